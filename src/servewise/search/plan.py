"""The search: every replica shape, the fleet of each that keeps the promise, and what is best among them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from servewise.effort import columns, effort
from servewise.search.assurance import assure, draw, outside_calibration
from servewise.search.capacity import capacity, load_curve
from servewise.search.explanation import explained
from servewise.search.families import Family, families, least_cost, least_hopeless, search_family, simulated_whole
from servewise.search.fleet import summary_of, try_fleet
from servewise.search.limits import limited_by
from servewise.search.operation import autoscaling, failure
from servewise.search.precisions import by_precision
from servewise.search.pricing import price
from servewise.search.results import Point, Result, without_beaten
from servewise.search.shapes import Shape, enumerate_shapes
from servewise.search.what_if import what_if
from servewise.sim import compile_drivers, driver_name, not_compiled
from servewise.types import Candidate, Candidates, Explanation, Plan, Search, best_of_each

__all__ = ["Progress", "plan"]

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, the steps done and the steps in all."""

COMPILING = "compiling the simulator, once on this machine"

WAVE = 4
"""Families searched between two updates of what is known. A fixed number, so that the outcome does not depend
on the number of threads."""
NUM_PRICED = 10
"""Best candidates for which the capacity is searched (those on the frontier come on top)."""
NUM_IN_FULL = 4
"""Cheapest candidates of the frontier, the winner first, that get intervals, a load curve and a verdict."""


def plan(
    search: Search,
    *,
    progress: Progress | None = None,
    threads: int | None = None,
    prune: bool = True,
    with_what_if: bool = False,
) -> Plan:
    """Find the deployments that keep the promise, cheapest first.

    Parameters
    ----------
    search : Search
    progress : callable, optional
    threads : int, optional
        Defaults to the number of cores; the outcome does not depend on it.
    prune : bool
        False simulates every shape that fits, for comparison with the pruned search.
    with_what_if : bool
        Also plan again with other promises, loads and choices.

    Returns
    -------
    Plan
        With ``winner`` None when no deployment keeps the promise. An interrupt (Ctrl-C) ends the search with
        what it has found, and ``complete`` False.
    """
    started = time.perf_counter()
    tell = progress or (lambda _stage, _done, _total: None)
    shapes = enumerate_shapes(search)
    results: list[Result] = []
    complete, explanation = True, None
    broken_down, following, precisions, changes = None, None, None, None
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        try:
            _search_all(search, shapes, pool, tell, results, prune=prune)
            _detail_best(search, pool, tell, results)
            explanation = _assure_best(search, pool, tell, results)
            tell("operation", 0, 1)
            best = _winner(results)
            if best is not None:
                broken_down, following = failure(search, best), autoscaling(search, best)
            if best is not None and explanation is not None:
                precisions = by_precision(search, best, explanation, results, pool)
            tell("operation", 1, 1)
            if with_what_if and results:
                changes = what_if(search, results, best, _good(results), pool, tell)
        except KeyboardInterrupt:  # what was found is worth keeping
            pool.shutdown(cancel_futures=True)
            complete = False
    candidates = [_not_searched(shape) for shape in shapes]
    for result in results:
        candidates[result.candidate.index] = result.candidate
    candidates = [replace(c, effort=effort(c.deployment)) for c in candidates]
    ranking = _ranking(candidates)
    frontier = _frontier(candidates, ranking)
    for index in frontier:
        candidates[index] = replace(candidates[index], on_frontier=True)
    simulated = {r.candidate.index for r in results if r.num_requests_simulated}
    return Plan(
        candidates=tuple(candidates),
        winner=ranking[0] if ranking else None,
        ranking=ranking,
        frontier=frontier,
        nearest=None if ranking else _nearest(candidates),
        pruned_by_reason=_pruned(candidates, simulated),
        num_simulated=len(simulated),
        num_simulated_requests=sum(r.num_requests_simulated for r in results),
        wall_s=time.perf_counter() - started,
        complete=complete,
        explanation=explanation,
        failure=broken_down,
        autoscaling=following,
        engines=tuple(columns(engine) for engine, _ in search.engines),
        what_if=changes,
        filtered=search.filtered,
        precisions=precisions,
    )


def _detail_best(search: Search, pool: ThreadPoolExecutor, tell: Progress, results: list[Result]) -> None:
    """Put the capacity and limits of the best results in their place; without any, simulate the least hopeless."""
    place = {result.candidate.index: i for i, result in enumerate(results)}
    candidates = {result.candidate.index: result.candidate for result in results}
    ranking = _ranking(list(candidates.values()))
    if not ranking:  # then it is told how far off they are
        results[:] = pool.map(lambda result: simulated_whole(search, result), results)
        for result in least_hopeless(search, results):
            results[place[result.candidate.index]] = result
        return
    frontier = _frontier(candidates, ranking)
    chosen = list(dict.fromkeys((*best_of_each(candidates, ranking)[:NUM_PRICED], *frontier)))
    in_full = set(frontier[:NUM_IN_FULL])

    def detail(index: int) -> Candidate:
        return _detailed(search, results[place[index]], in_full=index in in_full)

    for done, candidate in enumerate(pool.map(detail, chosen), 1):
        results[place[candidate.index]] = replace(results[place[candidate.index]], candidate=candidate)
        tell("capacity", done, len(chosen))


def _assure_best(search: Search, pool: ThreadPoolExecutor, tell: Progress, results: list[Result]) -> Explanation | None:
    """Put the verdict on the best results in their place, and take the winner's numbers apart."""
    place = {result.candidate.index: i for i, result in enumerate(results)}
    candidates = {result.candidate.index: result.candidate for result in results}
    ranking = _ranking(list(candidates.values()))
    if not ranking:
        return None
    chosen = [results[place[index]] for index in _frontier(candidates, ranking)[:NUM_IN_FULL]]
    explanation = explained(search, chosen[0])
    # settings that share step times share what is drawn of them
    shapes = {id(result.load.step_model): result.shape.deployment for result in chosen}
    drawn = dict(zip(shapes, pool.map(lambda d: draw(d, search.calibrations), shapes.values()), strict=True))

    def assured(result: Result) -> Candidate:
        found = assure(search, result, drawn[id(result.load.step_model)])
        return replace(result.candidate, assurance=found)

    for done, candidate in enumerate(pool.map(assured, chosen), 1):
        results[place[candidate.index]] = replace(results[place[candidate.index]], candidate=candidate)
        tell("assurance", done, len(chosen))
    return explanation


def _good(results: Sequence[Result]) -> tuple[int, ...]:
    """Indices of shapes that are likely to answer other questions, too, the winner first."""
    candidates = {result.candidate.index: result.candidate for result in results}
    ranking = _ranking(list(candidates.values()))
    return tuple(dict.fromkeys((*best_of_each(candidates, ranking)[:NUM_PRICED], *_frontier(candidates, ranking))))


def _winner(results: Sequence[Result]) -> Result | None:
    """The result that ranks first."""
    candidates = {result.candidate.index: result for result in results}
    ranking = _ranking([result.candidate for result in results])
    return candidates[ranking[0]] if ranking else None


def _not_searched(shape: Shape) -> Candidate:
    """What is known of a shape before the search."""
    return Candidate(
        index=shape.index,
        deployment=shape.deployment,
        status="infeasible" if shape.reason else "not_searched",
        reason=shape.reason or "the search was interrupted before",
        memory=shape.memory,
        quality_recovery_pct=shape.precision.recovery_pct,
        quality_basis=shape.precision.basis,
        expected_scores=shape.precision.expected_scores,
    )


def _search_all(
    search: Search,
    shapes: Sequence[Shape],
    pool: ThreadPoolExecutor,
    tell: Progress,
    results: list[Result],
    *,
    prune: bool,
) -> None:
    """Search all families into ``results``, the promising ones first, a wave at a time."""
    tell("step tables", 0, 1)
    waiting = families(search, shapes)
    tell("step tables", 1, 1)

    def promising(family: Family) -> tuple[float, int]:
        """Fleets that may be both cheap and fast come first: they rule out most of the others."""
        best = min(
            least_cost(search, shape, load, bound.num_replicas) * bound.latency_s
            for shape, load, bound in zip(family.shapes, family.loads, family.bounds, strict=True)
        )
        return best, family.shapes[0].index

    waiting.sort(key=promising)
    missing = not_compiled(driver_name(shape.deployment) for shape in shapes if not shape.reason)
    if missing:
        tell(COMPILING, 0, 1)
        compile_drivers(missing)
        tell(COMPILING, 1, 1)
    for start in range(0, len(waiting), WAVE):
        known = [result.point for result in results if result.point is not None]

        def run(family: Family, known: Sequence[Point] = known) -> list[Result]:
            return search_family(search, family, known, prune=prune)

        for found in pool.map(run, waiting[start : start + WAVE]):
            results += found
        tell("fleets", min(start + WAVE, len(waiting)), len(waiting))
    results[:] = without_beaten(results)


def _pruned(candidates: Sequence[Candidate], simulated: Set[int]) -> dict[str, int]:
    """Candidates that were settled without a simulation of their own, by the reason."""
    reasons = Counter(c.status for c in candidates if c.index not in simulated)
    words = {"broken": "hopeless"}
    return {words.get(status, status): num for status, num in reasons.items()}


def _ranking(candidates: Sequence[Candidate]) -> tuple[int, ...]:
    """Kept candidates, cheapest at load first."""

    def key(candidate: Candidate) -> tuple[float, float, int, int]:
        assert candidate.cost is not None  # noqa: S101 (a kept candidate was simulated)
        dollars = candidate.cost.usd_per_mtok_output_at_load
        return dollars, candidate.latency_s, candidate.deployment.num_gpus, candidate.index

    return tuple(c.index for c in sorted((c for c in candidates if c.status == "kept"), key=key))


def _frontier(candidates: Candidates, ranking: Sequence[int]) -> tuple[int, ...]:
    """Kept candidates that no other beats in both cost and latency."""
    frontier: list[int] = []
    fastest = float("inf")
    for index in ranking:
        if candidates[index].latency_s < fastest:
            fastest = candidates[index].latency_s
            frontier.append(index)
    return tuple(frontier)


def _nearest(candidates: Sequence[Candidate]) -> int | None:
    """The broken candidate with the highest attainment (ties: the cheaper one)."""
    tried = [c for c in candidates if c.status == "broken" and c.summary is not None and c.cost is not None]
    if not tried:
        return None

    def key(candidate: Candidate) -> tuple[float, float, int]:
        assert candidate.summary is not None  # noqa: S101 (chosen above)
        assert candidate.cost is not None  # noqa: S101 (chosen above)
        return -candidate.summary.attainment.value, candidate.cost.usd_per_h, candidate.index

    return min(tried, key=key).index


def _detailed(search: Search, result: Result, *, in_full: bool) -> Candidate:
    """A kept candidate with capacity and limits, and in full with intervals and its load curve."""
    candidate, shape, load = result.candidate, result.shape, result.load
    memory, num_replicas = shape.memory, candidate.deployment.num_replicas
    assert memory is not None  # noqa: S101 (it was simulated)
    trial = try_fleet(shape, memory, load, num_replicas, stop=False)
    _, summary = summary_of(trial, load, with_intervals=in_full)
    highest = capacity(shape, memory, load, num_replicas)
    return replace(
        candidate,
        summary=summary,
        cost=price(search, candidate.deployment, summary, num_replicas, None if highest is None else highest[1]),
        limited_by=limited_by(shape, memory, load, trial),
        load_curve=load_curve(shape, memory, load, num_replicas, highest[0]) if in_full and highest else (),
        warnings=(*candidate.warnings, *outside_calibration(search, candidate.deployment, load, trial.outcome)),
    )
