"""How many replicas of one shape keep the promise: found by simulating fleets on the whole workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from servewise.metrics import broken, summarize
from servewise.search.bounds import StopRule
from servewise.search.shapes import Shape
from servewise.sim import Outcome, Packed, simulate, simulate_disaggregated, to_log
from servewise.types import MemoryReport, Promise, RequestLog, StepModel, Summary, Workload

__all__ = ["Demand", "Fleet", "Load", "Trial", "find_fleet", "latency_s", "summary_of", "try_fleet"]

GROWTH = 1.25
EARLY_FRAC = 0.25
"""A fleet that breaks the promise within this share of the requests is far too small: the next one tried is
``GROWTH`` times as large."""
NUM_SMALL_STEPS = 4
"""After so many fleets the next is twice as large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One fleet on the whole workload.

    Parameters
    ----------
    num_replicas : int
    kept : bool
    stopped : bool
        The run ended as soon as the promise was broken.
    outcome : Outcome
    """

    num_replicas: int
    kept: bool
    stopped: bool
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What some runs asked of their replicas; None where the limit did hold something back.

    With no less than this, or with the same limit, they would have run the same.
    """

    num_seqs: int | None
    num_batched_tokens: int | None
    num_kv_blocks: int | None
    peak_seqs: int
    peak_batched_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The outcome of a search over fleet sizes.

    Parameters
    ----------
    trial : Trial or None
        The smallest fleet that keeps the promise with one replica more and breaks it with one less; when there
        is none, the largest that was tried; None when none was.
    found : bool
    beaten : bool
        The search ended because neither this nor a larger fleet could matter.
    first : Trial or None
        The smallest fleet that keeps the promise while one replica more breaks it, so that it was passed over.
    demand : Demand or None
        Of all the runs that decided.
    num_replicas : int
        The smallest fleet not known to break the promise.
    num_requests_simulated : int
    """

    trial: Trial | None
    found: bool
    beaten: bool
    first: Trial | None
    demand: Demand | None
    num_replicas: int
    num_requests_simulated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a shape has to serve: workload, promise, and how both look to its engine.

    ``step_model`` of a group is that of its decode instances, ``prefill_model`` that of its prefill instances.
    """

    workload: Workload
    promise: Promise
    rule: StopRule | None
    packed: Packed
    step_model: StepModel
    prefill_model: StepModel | None = None

    @property
    def records_itl(self) -> bool:
        """Whether the promise limits gaps between tokens."""
        return any(limit.metric == "itl" for limit in self.promise.percentiles)


def try_fleet(shape: Shape, memory: MemoryReport, load: Load, num_replicas: int, *, stop: bool = True) -> Trial:
    """Simulate one fleet size; ``stop`` ends a run as soon as it has broken the joint limits."""
    rule = load.rule
    if load.prefill_model is not None and shape.prefill_memory is not None:
        outcome = simulate_disaggregated(
            load.workload,
            replace(shape.deployment, num_replicas=num_replicas),
            {"prefill": load.prefill_model, "decode": load.step_model},
            {"prefill": shape.prefill_memory, "decode": memory},
            packed=load.packed,
            promise=load.promise if rule is None else rule.limits,
            max_bad=rule.max_bad if rule is not None and stop else None,
            record_itl=load.records_itl,
        )
        return _judged(load, num_replicas, outcome)
    outcome = simulate(
        load.workload,
        replace(shape.deployment, num_replicas=num_replicas),
        load.step_model,
        memory,
        packed=load.packed,
        promise=load.promise if rule is None else rule.limits,
        max_bad=rule.max_bad if rule is not None and stop else None,
        record_itl=load.records_itl,
    )
    return _judged(load, num_replicas, outcome)


def _judged(load: Load, num_replicas: int, outcome: Outcome) -> Trial:
    rule = load.rule
    if rule is not None and rule.decides:
        kept = outcome.num_bad <= rule.max_bad
    else:
        kept = not outcome.broken and not broken(to_log(load.workload, outcome), load.promise)
    return Trial(num_replicas=num_replicas, kept=kept, stopped=outcome.broken, outcome=outcome)


def find_fleet(
    shape: Shape,
    memory: MemoryReport,
    load: Load,
    *,
    fewest: int,
    most: int,
    worth: Callable[[int], bool],
    matters: Callable[[Trial], bool],
) -> Fleet:
    """Find a fleet N that keeps the promise while N - 1 breaks it and N + 1 keeps it.

    From ``fewest`` upwards, in growing steps, to a fleet that keeps the promise; then down between it and the
    largest known to break it. Attainment need not grow with every replica, so the neighbours are simulated, not
    assumed. The way is the same whatever is known of other shapes: that can only end it.

    Parameters
    ----------
    shape, memory, load
    fewest, most : int
        Fleet sizes to consider; below ``fewest`` the promise is known to be broken.
    worth : callable
        Whether a fleet of so many replicas could still matter; the search ends when the smallest left cannot.
    matters : callable
        Whether the smallest fleet that keeps the promise could still matter; if not, the search ends there.
    """
    trials: dict[int, Trial] = {}

    def kept(num_replicas: int) -> bool:
        if num_replicas not in trials:
            trials[num_replicas] = try_fleet(shape, memory, load, num_replicas)
        return trials[num_replicas].kept

    size, largest_broken = fewest, fewest - 1
    found = beaten = False
    first: Trial | None = None
    while size <= most and not found:
        if not worth(largest_broken + 1):
            beaten = True
            break
        if not kept(size):
            largest_broken = size
            size = _next_size(trials, size, most, load)
            continue
        while size - largest_broken > 1:
            middle = (size + largest_broken) // 2
            if kept(middle):
                size = middle
            else:
                largest_broken = middle
        if first is None and not matters(trials[size]):
            beaten = True
            break
        found = kept(size + 1)
        if not found:
            first = first or trials[size]
            largest_broken = size + 1
            size += 2
    tried = [n for n in trials if n <= most]
    return Fleet(
        trial=trials[size] if found or (beaten and size in trials) else trials[max(tried)] if tried else None,
        found=found,
        beaten=beaten,
        first=first,
        demand=_demand([t.outcome for t in trials.values()]) if trials else None,
        num_replicas=largest_broken + 1,
        num_requests_simulated=sum(t.outcome.num_simulated for t in trials.values()),
    )


def _next_size(trials: Mapping[int, Trial], size: int, most: int, load: Load) -> int:
    """Fleet size to try after one that broke the promise: larger by one, by a share, or twice as large."""
    if size == most:
        return most + 1
    step = 1.0
    if trials[size].outcome.num_simulated < EARLY_FRAC * load.workload.num_requests:
        step = GROWTH
    if len(trials) >= NUM_SMALL_STEPS:
        step = 2.0
    return min(most, max(size + 1, int(size * step)))


def _demand(outcomes: Sequence[Outcome]) -> Demand:
    peak_seqs = max(o.peak_running for o in outcomes)
    peak_tokens = max(o.peak_batched_tokens for o in outcomes)
    peak_blocks = max(o.needed_kv_blocks for o in outcomes)
    return Demand(
        num_seqs=None if any(o.slots_bound for o in outcomes) else peak_seqs,
        num_batched_tokens=None if any(o.budget_bound for o in outcomes) else peak_tokens,
        num_kv_blocks=None if any(o.memory_bound for o in outcomes) else peak_blocks,
        peak_seqs=peak_seqs,
        peak_batched_tokens=peak_tokens,
    )


def summary_of(trial: Trial, load: Load, *, with_intervals: bool) -> tuple[RequestLog, Summary]:
    """Log and summary of a finished trial."""
    log = to_log(load.workload, trial.outcome)
    return log, summarize(log, load.promise, with_intervals=with_intervals)


def latency_s(log: RequestLog, promise: Promise) -> float:
    """E2E at the promised attainment [s], over finished requests."""
    times = log.last_token_s - log.intended_s
    times = times[np.isfinite(times)]
    return float(np.quantile(times, promise.attainment)) if len(times) else float("nan")
