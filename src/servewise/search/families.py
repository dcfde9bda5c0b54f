"""Shapes that differ only in settings, searched together: they share step tables, and often their schedule."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from servewise.effort import fleet_excess
from servewise.engines import capture_sizes
from servewise.perf import calibrated_step_model
from servewise.search.bounds import Bounds, bounds, idle_ranks, stop_rule
from servewise.search.fleet import Demand, Load, Trial, find_fleet, latency_s, summary_of, try_fleet
from servewise.search.groups import group_bounds, group_load
from servewise.search.limits import broken_reason, replicas
from servewise.search.pricing import price, usd_per_h
from servewise.search.results import Point, Result, beaten, kind_of, rivals, verdict_of, warnings_of
from servewise.search.settings import schedule_key
from servewise.search.shapes import Shape
from servewise.sim import MAX_PREFIX_AWARE_REPLICAS, Packed, caches_prefixes, num_ranks, pack_requests, to_log
from servewise.types import Candidate, Deployment, Search, StepModel, StepTable

__all__ = [
    "Family",
    "families",
    "family_of",
    "fleet_of",
    "least_cost",
    "least_hopeless",
    "most_replicas",
    "search_family",
    "shape_bounds",
    "simulated_whole",
]

MAX_GPUS = 1024
"""Fleets beyond this many GPUs are not tried without a budget."""


NO_BOUNDS = Bounds(num_replicas=1, num_hopeless=0, latency_s=0.0)
"""What holds of any shape: the unpruned search rests on nothing else."""


@dataclass(slots=True, kw_only=True)
class Family:
    """Shapes of one model, GPU, precision and parallelism that fit, with what they share.

    Parameters
    ----------
    shapes : sequence of Shape
        In order of enumeration: larger settings first.
    loads : list of Load
        Of each shape.
    bounds : list of Bounds
    """

    shapes: Sequence[Shape]
    loads: list[Load] = field(default_factory=list)
    bounds: list[Bounds] = field(default_factory=list)


def families(search: Search, shapes: Sequence[Shape]) -> list[Family]:
    """Group the shapes that can be built; builds step tables and bounds."""
    grouped: dict[tuple[object, ...], list[Shape]] = {}
    for shape in shapes:
        if not shape.reason:
            grouped.setdefault(family_of(shape.deployment), []).append(shape)
    packs: dict[tuple[object, ...], Packed] = {}
    return [_prepare(search, members, packs) for members in grouped.values()]


def family_of(deployment: Deployment) -> tuple[object, ...]:
    """What shapes of a family have in common: all but their settings."""
    d, group = deployment, deployment.disaggregation
    prefill = None if group is None else group.prefill
    pool = None if prefill is None else (prefill.gpu.name, prefill.parallelism, prefill.num_instances)
    instances = None if group is None else group.decode.num_instances
    return (
        *(d.model.name, d.gpu.name, d.precision, d.parallelism, d.engine, d.engine_version),
        *(pool, instances, d.speculation),
    )


def _prepare(search: Search, members: Sequence[Shape], packs: dict[tuple[object, ...], Packed]) -> Family:
    family = Family(shapes=members)
    models: dict[tuple[int, ...], StepModel] = {}
    limits: dict[tuple[int, ...], Bounds] = {}
    rule = stop_rule(search.promise, search.workload.num_requests)
    for shape in members:
        deployment = shape.deployment
        if deployment.disaggregation is not None:
            load = group_load(search, deployment, rule)
            family.loads.append(load)
            family.bounds.append(shape_bounds(search, deployment, load))
            continue
        captured = capture_sizes(deployment)
        if captured not in models:
            models[captured] = calibrated_step_model(deployment, search.calibrations)
        model = models[captured]
        key = (
            deployment.engine,
            deployment.max_request_tokens,
            deployment.kv_block_tokens,
            None if deployment.engine == "vllm" else deployment.max_step_tokens,  # others refuse prompts by it
            model.table.request_fixed_s,
            model.table.request_s_per_input_token,
        )
        if key not in packs:
            packs[key] = pack_requests(search.workload, deployment, model.table)
        family.loads.append(
            Load(workload=search.workload, promise=search.promise, rule=rule, packed=packs[key], step_model=model)
        )
        if captured not in limits:  # bounds of the largest settings hold for all
            limits[captured] = shape_bounds(search, deployment, family.loads[-1])
        family.bounds.append(limits[captured])
    return family


def shape_bounds(search: Search, deployment: Deployment, load: Load) -> Bounds:
    """What no fleet of a shape beats under a load and its promise."""
    if deployment.disaggregation is not None:
        return group_bounds(load, deployment)
    return bounds(
        load.packed,
        idle_ranks(load.step_model.table, num_ranks(deployment)),
        load.promise,
        load.rule,
        knows_prefix=search.workload.prefix is not None and caches_prefixes(deployment),
        num_ranks=deployment.parallelism.data_parallel_size,
        num_stages=deployment.parallelism.pipeline_parallel_size,
        tokens_per_step=deployment.max_tokens_per_step,
    )


def least_cost(search: Search, shape: Shape, load: Load, num_replicas: int) -> float:
    """$ per million output tokens at load that no fleet of so many replicas undercuts."""
    tokens = float(load.packed.requests.output_tokens.sum())
    if not tokens:
        return math.inf
    return usd_per_h(search, shape.deployment, num_replicas) / 3600 * load.workload.span_s / tokens * 1e6


def most_replicas(search: Search, deployment: Deployment) -> tuple[int, str]:
    """Largest fleet to consider, and why no larger one."""
    too_much = fleet_excess(deployment, search.max_effort)
    if too_much:
        return 1, f"a second replica {too_much}"
    num_gpus = deployment.gpus_per_replica
    limit = search.budget.max_gpus
    most, why = MAX_GPUS // num_gpus, f"no more than {MAX_GPUS} GPUs are tried"
    if search.router == "prefix_aware" and most > MAX_PREFIX_AWARE_REPLICAS - 1:
        most = MAX_PREFIX_AWARE_REPLICAS - 1
        why = f"the prefix_aware router is simulated for at most {MAX_PREFIX_AWARE_REPLICAS} replicas"
    if limit is not None and limit // num_gpus <= most:
        most, why = limit // num_gpus, f"the budget of {limit} GPU{'s' * (limit != 1)}"
    budget = search.budget.usd_per_h
    if budget is not None:
        # a larger fleet never costs less
        affordable = bisect_right(range(1, most + 1), budget, key=lambda n: usd_per_h(search, deployment, n))
        if affordable < most:
            most, why = affordable, f"the budget of ${budget:g} per hour"
    return most, why


def search_family(search: Search, family: Family, known: Sequence[Point], *, prune: bool) -> list[Result]:
    """Search the shapes of a family in order.

    Parameters
    ----------
    search, family
    known : sequence of Point
        Fleets of other families that keep the promise.
    prune : bool
        False simulates everything, for comparison.
    """
    results: list[Result] = []
    points = list(known) if prune else []
    for shape, load, bound in zip(family.shapes, family.loads, family.bounds, strict=True):
        result = _same_schedule(shape, load, bound, results) if prune else None
        if result is None:
            result = _simulated(search, shape, load, bound if prune else NO_BOUNDS, points)
        if prune and result.point is not None:
            points.append(result.point)
        results.append(result)
    return results


def _same_schedule(shape: Shape, load: Load, bound: Bounds, earlier: Sequence[Result]) -> Result | None:
    """The verdict on an earlier shape whose fleets ran as this one's would: no setting ever held anything back."""
    if shape.deployment.disaggregation is not None:
        return None
    for result in earlier:
        if result.demand is not None and _suffices(shape, load, result, result.demand):
            base = result.candidate
            candidate = replace(
                base,
                index=shape.index,
                deployment=replace(shape.deployment, num_replicas=base.deployment.num_replicas),
                memory=shape.memory,
                status="same_schedule",
                reason=f"behaves exactly like candidate {base.index}",
            )
            return Result(candidate=candidate, shape=shape, load=load, bound=bound, fewest=result.fewest)
    return None


def _suffices(shape: Shape, load: Load, other: Result, demand: Demand) -> bool:
    """Whether a shape would have run exactly as another one did."""
    mine, theirs = shape.deployment, other.shape.deployment
    memory, other_memory = shape.memory, other.shape.memory
    if memory is None or other_memory is None or schedule_key(mine.params) != schedule_key(theirs.params):
        return False
    num_seqs = demand.num_seqs
    if num_seqs is not None and mine.engine == "sglang":  # whose micro-batches have a share of the seats each
        num_seqs *= mine.parallelism.pipeline_parallel_size
    limits = [
        (mine.max_rows, theirs.max_rows, num_seqs),
        (mine.max_step_tokens, theirs.max_step_tokens, demand.num_batched_tokens),
        (memory.num_kv_blocks, other_memory.num_kv_blocks, demand.num_kv_blocks),
    ]
    if load.workload.prefix is not None and caches_prefixes(mine):
        # the size of the pool decides what the cache still holds
        limits[2] = (memory.num_kv_blocks, other_memory.num_kv_blocks, None)
    for limit, other_limit, needed in limits:
        if limit != other_limit and (needed is None or needed > limit):
            return False
    return _same_times(load.step_model.table, other.load.step_model.table, demand)


def _same_times(mine: StepTable, theirs: StepTable, demand: Demand) -> bool:
    """Whether two tables agree wherever some runs can have read them."""
    rows, tokens = demand.peak_seqs + 1, demand.peak_batched_tokens + 1
    return mine is theirs or bool(
        np.array_equal(mine.decode_fixed_s[:rows], theirs.decode_fixed_s[:rows])
        and np.array_equal(mine.mixed_tokens_s[:tokens], theirs.mixed_tokens_s[:tokens])
        and np.array_equal(mine.sample_s[:rows], theirs.sample_s[:rows])
        and np.array_equal(mine.context_knots, theirs.context_knots)
        and np.array_equal(mine.attention_base_s[:rows], theirs.attention_base_s[:rows])
        and np.array_equal(mine.attention_slope_s[:rows], theirs.attention_slope_s[:rows])
    )


def _simulated(search: Search, shape: Shape, load: Load, bound: Bounds, points: Sequence[Point]) -> Result:
    """Find the fleet of a shape, unless bounds or known fleets show that it cannot matter."""
    memory = shape.memory
    assert memory is not None  # noqa: S101 (members of a family fit in memory)
    if load.rule is not None and bound.num_hopeless > load.rule.max_bad:
        share = bound.num_hopeless / search.workload.num_requests
        hopeless = f"{share:.1%} of requests are refused or miss a limit even on an idle replica"
        return replace(verdict_of(shape, load, bound, "broken", hopeless), fewest=MAX_GPUS + 1)
    most, why_no_more = most_replicas(search, shape.deployment)
    if bound.num_replicas > most:
        work = f"the work needs at least {replicas(bound.num_replicas)} > {most} ({why_no_more})"
        return replace(verdict_of(shape, load, bound, "broken", work), fewest=bound.num_replicas)
    same_model = rivals(points, shape.deployment)
    alike = [point for point in same_model if point.kind == kind_of(shape.deployment)]

    def worth(num_replicas: int) -> bool:
        return not beaten(same_model, least_cost(search, shape, load, num_replicas), bound.latency_s)

    def matters(trial: Trial) -> bool:
        latency = latency_s(to_log(load.workload, trial.outcome), search.promise)
        if not beaten(alike, math.inf, latency):
            return True
        if beaten(alike, least_cost(search, shape, load, trial.num_replicas), latency):
            return False
        return not beaten(alike, _point(search, shape, load, trial).usd_per_mtok, latency)

    fleet = find_fleet(shape, memory, load, fewest=bound.num_replicas, most=most, worth=worth, matters=matters)
    first = None if fleet.first is None else _point(search, shape, load, fleet.first)
    known = {"fewest": fleet.num_replicas, "num_requests_simulated": fleet.num_requests_simulated}
    common = {"demand": fleet.demand, "first": first, **known}
    if fleet.beaten or fleet.trial is None:
        dollars = least_cost(search, shape, load, fleet.num_replicas)
        reason = f"at least ${dollars:.3f} per Mtok output and {bound.latency_s:.1f} s of E2E; another fleet beats both"
        if fleet.trial is not None and fleet.trial.kept:
            reason = (
                f"{replicas(fleet.trial.num_replicas)} would do, but another fleet of its kind is cheaper and faster"
            )
            return replace(verdict_of(shape, load, bound, "dominated", reason), **common)  # type: ignore[arg-type]
        verdict = verdict_of(shape, load, bound, "dominated", reason)
        return replace(verdict, **known)  # type: ignore[arg-type]
    trial = fleet.trial
    if trial.stopped:
        return replace(_stopped(shape, load, bound, trial, why_no_more), **common)  # type: ignore[arg-type]
    if trial.kept and not fleet.found:
        why_no_more = f"{replicas(trial.num_replicas)} keep the promise, but one more breaks it"
    candidate = _finished(search, shape, load, trial, why_no_more=None if fleet.found else why_no_more)
    return Result(candidate=candidate, shape=shape, load=load, bound=bound, **common)  # type: ignore[arg-type]


def fleet_of(search: Search, result: Result) -> Result:
    """The smallest fleet of a result's shape that keeps the promise, whatever other fleets can do."""
    return simulated_whole(search, _simulated(search, result.shape, result.load, result.bound, ()))


def _point(search: Search, shape: Shape, load: Load, trial: Trial) -> Point:
    """Cost and latency of a fleet that was simulated to its end."""
    log, summary = summary_of(trial, load, with_intervals=False)
    dollars = price(search, shape.deployment, summary, trial.num_replicas).usd_per_mtok_output_at_load
    return Point(usd_per_mtok=dollars, latency_s=latency_s(log, search.promise), kind=kind_of(shape.deployment))


def _stopped(shape: Shape, load: Load, bound: Bounds, trial: Trial, why_no_more: str) -> Result:
    """A shape whose largest fleet was simulated until it had broken the promise."""
    reason = (
        f"{replicas(trial.num_replicas)} ({why_no_more}) broke the promise before {trial.outcome.num_simulated:,} of "
        f"{load.workload.num_requests:,} requests were done"
    )
    verdict = verdict_of(shape, load, bound, "broken", reason)
    deployment = replace(shape.deployment, num_replicas=trial.num_replicas)
    return replace(
        verdict,
        candidate=replace(verdict.candidate, deployment=deployment),
        unfinished=(trial.num_replicas, why_no_more),
    )


def simulated_whole(search: Search, result: Result) -> Result:
    """A broken result with the figures of its largest fleet, simulated to the end of the traffic."""
    memory = result.shape.memory
    if result.unfinished is None or memory is None:
        return result
    size, why_no_more = result.unfinished
    trial = try_fleet(result.shape, memory, result.load, size, stop=False)
    return replace(
        result,
        candidate=_finished(search, result.shape, result.load, trial, why_no_more=why_no_more),
        unfinished=None,
        num_requests_simulated=result.num_requests_simulated + trial.outcome.num_simulated,
    )


def _finished(search: Search, shape: Shape, load: Load, trial: Trial, *, why_no_more: str | None) -> Candidate:
    """A candidate with the figures of a whole run; ``why_no_more`` None means that it keeps the promise."""
    log, summary = summary_of(trial, load, with_intervals=False)
    deployment = replace(shape.deployment, num_replicas=trial.num_replicas)
    return Candidate(
        index=shape.index,
        deployment=deployment,
        status="kept" if why_no_more is None else "broken",
        reason="" if why_no_more is None else broken_reason(trial, load, summary, why_no_more),
        memory=shape.memory,
        summary=summary,
        cost=price(search, deployment, summary, trial.num_replicas),
        latency_s=latency_s(log, search.promise),
        quality_recovery_pct=shape.precision.recovery_pct,
        quality_basis=shape.precision.basis,
        expected_scores=shape.precision.expected_scores,
        warnings=warnings_of(shape, load.step_model),
    )


def least_hopeless(search: Search, results: Sequence[Result]) -> list[Result]:
    """When bounds alone have turned everything down: the shape with the fewest hopeless requests, simulated.

    Returns
    -------
    list of Result
        One, or none when something was simulated or no replica is allowed.
    """
    tried = [r for r in results if r.candidate.status == "broken"]
    allowed = {r.candidate.index: most_replicas(search, r.shape.deployment) for r in tried}
    tried = [r for r in tried if allowed[r.candidate.index][0] > 0]
    if not tried or any(r.candidate.summary is not None for r in tried):
        return []
    best = min(tried, key=lambda r: (r.bound.num_hopeless, r.bound.num_replicas, r.candidate.index))
    most, why = allowed[best.candidate.index]
    memory = best.shape.memory
    assert memory is not None  # noqa: S101 (it was built)
    trial = try_fleet(best.shape, memory, best.load, min(most, best.bound.num_replicas), stop=False)
    candidate = _finished(search, best.shape, best.load, trial, why_no_more=best.candidate.reason or why)
    return [replace(best, candidate=candidate, num_requests_simulated=trial.outcome.num_simulated)]
