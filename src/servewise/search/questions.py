"""Questions that differ from the plan's: the cheapest fleet for each, many of them answered by the same simulations.

A question may have another promise, another limit on the effort, or leave shapes out. All questions that are asked
together have the same load, so one run of a fleet tells which of them it answers. Only the cheapest fleet is looked
for: a shape is left as soon as it cannot undercut what is known, and a fleet that breaks a promise rules smaller ones
of its shape out.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

from servewise.metrics import broken, summarize
from servewise.search.bounds import stop_rule
from servewise.search.capacity import scaled
from servewise.search.families import least_cost, most_replicas, shape_bounds
from servewise.search.fleet import Load, latency_s, try_fleet
from servewise.search.pricing import price
from servewise.search.shapes import Shape
from servewise.sim import to_log
from servewise.types import Deployment, Promise, Replanned, RequestLog, Search

__all__ = ["Question", "answer", "loosest"]

WAVE = 8
"""Shapes tried between two updates of what is known. A fixed number, so that the outcome does not depend on the
number of threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A search over the shapes that ``permits`` lets through; its workload is the plan's."""

    search: Search
    permits: Callable[[Deployment], bool] = lambda _deployment: True


@dataclass(slots=True, kw_only=True)
class Runs:
    """Fleets of one shape, each simulated once, until it has broken even the loosest promise.

    Parameters
    ----------
    shape : Shape
    load : Load
        Of the questions, with the loosest of their promises.
    at_least : int
        Smaller fleets are known to break it.
    """

    shape: Shape
    load: Load
    at_least: int
    logs: dict[int, RequestLog | None] = field(default_factory=dict)
    verdicts: dict[tuple[Promise, int], bool] = field(default_factory=dict)
    num_requests_simulated: int = 0

    def log(self, num_replicas: int) -> RequestLog | None:
        """What happened to each request; None when the loosest promise was broken."""
        if num_replicas not in self.logs:
            assert self.shape.memory is not None  # noqa: S101 (it fits)
            trial = try_fleet(self.shape, self.shape.memory, self.load, num_replicas)
            self.num_requests_simulated += trial.outcome.num_simulated
            self.logs[num_replicas] = None if trial.stopped else to_log(self.load.workload, trial.outcome)
        return self.logs[num_replicas]

    @property
    def fewest(self) -> int:
        """The fewest replicas that are not known to break even the loosest promise."""
        return max([self.at_least, *(n + 1 for n in self.logs if not self._kept(self.load.promise, n))])

    def kept(self, promise: Promise, num_replicas: int) -> bool:
        """Whether a fleet keeps a promise; a larger one that was simulated and breaks it answers for it."""
        if any(n > num_replicas and not self._kept(promise, n) for n in self.logs):
            return False
        return self._kept(promise, num_replicas)

    def _kept(self, promise: Promise, num_replicas: int) -> bool:
        key = promise, num_replicas
        if key not in self.verdicts:
            log = self.log(num_replicas)
            self.verdicts[key] = log is not None and not broken(log, promise)
        return self.verdicts[key]


def loosest(promises: Iterable[Promise]) -> Promise:
    """A promise that is broken only where all of the given ones are, which differ in their limits alone."""
    found = list(promises)
    first = found[0]

    def largest(name: str) -> float | None:
        values = [getattr(promise, name) for promise in found]
        return None if None in values else max(values)

    return replace(
        first,
        ttft_s=largest("ttft_s"),
        tpot_s=largest("tpot_s"),
        e2e_s=largest("e2e_s"),
        deadline_s=largest("deadline_s"),
        attainment=min(promise.attainment for promise in found),
        percentiles=tuple(
            replace(limit, limit_s=max(promise.percentiles[i].limit_s for promise in found))
            for i, limit in enumerate(first.percentiles)
        ),
    )


def answer(
    questions: Sequence[Question],
    members: Sequence[tuple[Shape, Load]],
    scale: float,
    pool: Executor,
    *,
    first: Sequence[int],
    fewest: dict[int, int],
) -> tuple[list[Replanned | None], int]:
    """The cheapest fleet for each question.

    Parameters
    ----------
    questions : sequence of Question
        That differ in their promise's limits, the effort they allow and the shapes they permit.
    members : sequence of (Shape, Load)
        Shapes that fit, with their load in the plan.
    scale : float
        The load of all questions: so many times the plan's.
    pool : Executor
    first : sequence of int
        Indices of shapes that are likely to be good: they are tried first, and win ties.
    fewest : dict of int to int
        By a shape's index, the fewest replicas that are not known to break all of the promises. What is found out
        goes there, too.

    Returns
    -------
    list of Replanned or None
        None where no fleet within the budget keeps the question's promise.
    int
        Requests simulated.
    """
    base = replace(questions[0].search, promise=loosest(question.search.promise for question in questions))
    place = {index: position for position, index in enumerate(first)}

    def promising(member: tuple[Shape, Load]) -> tuple[int, float, int]:
        shape, load = member
        dollars = least_cost(base, shape, load, fewest.get(shape.index, 1))
        return place.get(shape.index, len(place)), dollars, shape.index

    waiting = sorted(members, key=promising)
    best: list[Replanned | None] = [None] * len(questions)
    num_requests = 0
    for start in range(0, len(waiting), WAVE):
        known = [math.inf if b is None else b.usd_per_mtok_output_at_load for b in best]

        def ask(member: tuple[Shape, Load], known: Sequence[float] = known) -> tuple[dict[int, Replanned], Runs | None]:
            return _ask(base, questions, member, scale, known, fewest.get(member[0].index, 1))

        wave = waiting[start : start + WAVE]
        for (shape, _), (found, runs) in zip(wave, pool.map(ask, wave), strict=True):
            if runs is not None:
                num_requests += runs.num_requests_simulated
                fewest[shape.index] = runs.fewest
            for position, fleet in found.items():
                held = best[position]
                if held is None or fleet.usd_per_mtok_output_at_load < held.usd_per_mtok_output_at_load:
                    best[position] = fleet
    return best, num_requests


def _ask(
    base: Search,
    questions: Sequence[Question],
    member: tuple[Shape, Load],
    scale: float,
    known: Sequence[float],
    fewest: int,
) -> tuple[dict[int, Replanned], Runs | None]:
    """Fleets of one shape that undercut what is known, by the question's position, and the runs that told."""
    shape, load = member
    asked = [i for i, question in enumerate(questions) if question.permits(shape.deployment)]
    # the same requests in less time cost less
    if not any(least_cost(base, shape, load, fewest) / scale < known[i] for i in asked):
        return {}, None
    rule = stop_rule(base.promise, base.workload.num_requests)
    here = replace(scaled(load, scale) if scale != 1.0 else load, promise=base.promise, rule=rule)
    fewest = max(fewest, shape_bounds(base, shape.deployment, here).num_replicas)
    runs = Runs(shape=shape, load=here, at_least=fewest)
    sizes = []
    for position in asked:
        search = questions[position].search
        most = most_replicas(search, shape.deployment)[0]
        if math.isfinite(known[position]):
            cheaper = bisect_left(
                range(fewest, most + 1), known[position], key=lambda n: least_cost(base, shape, here, n)
            )
            most = fewest - 1 + cheaper
        if most >= fewest:
            sizes.append((most, position))
    found = {}
    for most, position in sorted(sizes, reverse=True):  # a large fleet that breaks a promise settles the smaller ones
        search = questions[position].search
        size = _fewest_kept(runs, search.promise, fewest, most)
        if size is not None:
            found[position] = _replanned(search, runs, size)
    return found, runs


def _fewest_kept(runs: Runs, promise: Promise, fewest: int, most: int) -> int | None:
    """Smallest fleet that keeps a promise with one replica more, too; None when none up to ``most`` does."""
    if not runs.kept(promise, most):
        return None
    low, size = fewest - 1, most
    while size - low > 1:
        middle = (low + size) // 2
        if runs.kept(promise, middle):
            size = middle
        else:
            low = middle
    while size <= most:
        if runs.kept(promise, size) and runs.kept(promise, size + 1):
            return size
        size += 1
    return None


def _replanned(search: Search, runs: Runs, num_replicas: int) -> Replanned:
    log, shape = runs.log(num_replicas), runs.shape
    assert log is not None  # noqa: S101 (it keeps the promise)
    summary = summarize(log, search.promise, with_intervals=False)
    cost = price(search, shape.deployment, summary, num_replicas)
    return Replanned(
        candidate=shape.index,
        num_replicas=num_replicas,
        num_gpus=num_replicas * shape.deployment.gpus_per_replica,
        usd_per_h=cost.usd_per_h,
        usd_per_mtok_output_at_load=cost.usd_per_mtok_output_at_load,
        attainment=summary.attainment.value,
        goodput_tokens_per_s=summary.goodput_tokens_per_s,
        throughput_tokens_per_s=summary.throughput_tokens_per_s,
        ttft_p99_s=_known(summary.percentiles["ttft"]["p99"].value),
        tpot_p99_s=_known(summary.percentiles["tpot"]["p99"].value),
        latency_s=latency_s(log, search.promise),
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
