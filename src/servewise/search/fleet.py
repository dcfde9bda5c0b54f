"""How many replicas of one shape keep the promise: found by simulating fleets on the whole workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from servewise.metrics import broken, summarize
from servewise.search.bounds import StopRule
from servewise.search.shapes import Shape
from servewise.sim import Outcome, Packed, simulate, to_log
from servewise.types import MemoryReport, Promise, RequestLog, StepModel, Summary, Workload

__all__ = ["Demand", "Fleet", "Load", "Trial", "find_fleet", "latency_s", "summary_of", "try_fleet"]

GROWTH = 1.25
EARLY_FRAC = 0.25
"""A fleet that breaks the promise within this share of the requests is far too small: the next one tried is
``GROWTH`` times as large."""
TRIES_FROM_BELOW = 4
"""After so many fleets the largest one is tried: if it breaks the promise, none is taken to keep it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One fleet on the whole workload.

    Parameters
    ----------
    num_replicas : int
    kept : bool
    num_bad : int
        Requests that missed the joint limits; of a run that was stopped early, those seen until then.
    stopped : bool
        The run ended as soon as the promise was broken.
    outcome : Outcome
    """

    num_replicas: int
    kept: bool
    num_bad: int
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
    worth_more : bool
        False when the search ended because no larger fleet could matter.
    demand : Demand or None
        Of all the runs that decided.
    num_replicas : int
        Where the search ended.
    num_requests_simulated : int
    """

    trial: Trial | None
    found: bool
    worth_more: bool
    demand: Demand | None
    num_replicas: int
    num_requests_simulated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a shape has to serve: workload, promise, and how both look to its engine."""

    workload: Workload
    promise: Promise
    rule: StopRule | None
    packed: Packed
    step_model: StepModel

    @property
    def records_itl(self) -> bool:
        """Whether the promise limits gaps between tokens."""
        return any(limit.metric == "itl" for limit in self.promise.percentiles)


def try_fleet(shape: Shape, memory: MemoryReport, load: Load, num_replicas: int, *, stop: bool = True) -> Trial:
    """Simulate one fleet size; ``stop`` ends a run as soon as it has broken the joint limits."""
    rule = load.rule
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
    if rule is not None and rule.decides:
        kept = outcome.num_bad <= rule.max_bad
    else:
        kept = not outcome.broken and not broken(to_log(load.workload, outcome), load.promise)
    return Trial(num_replicas=num_replicas, kept=kept, num_bad=outcome.num_bad, stopped=outcome.broken, outcome=outcome)


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
    """Find the smallest fleet N that keeps the promise while N - 1 breaks it and N + 1 keeps it.

    Attainment need not grow with every replica, so the neighbours are simulated, not assumed. The way up from
    ``fewest`` is the same whatever is known of other shapes, and cheap: a run ends when it has broken the promise.

    Parameters
    ----------
    shape, memory, load
    fewest, most : int
        Fleet sizes to consider; below ``fewest`` the promise is known to be broken.
    worth : callable
        Whether a fleet of so many replicas could still matter; the search ends at the first that cannot.
    matters : callable
        Whether a fleet that keeps the promise, or a larger one, could still matter; if not, the search ends there.
    """
    trials: dict[int, Trial] = {}

    def kept(num_replicas: int) -> bool:
        if num_replicas < fewest:
            return False
        if num_replicas not in trials:
            trials[num_replicas] = try_fleet(shape, memory, load, num_replicas)
        return trials[num_replicas].kept

    size = fewest
    found = beaten = False
    while size <= most and worth(size):
        if kept(size):
            while kept(size - 1):
                size -= 1
            if not matters(trials[size]):
                beaten = True
                break
            if kept(size + 1):
                found = True
                break
            size += 2
        elif len(trials) == TRIES_FROM_BELOW and not kept(most):
            break
        elif size < most and trials[size].outcome.num_simulated < EARLY_FRAC * load.workload.num_requests:
            size = min(most, max(size + 1, int(size * GROWTH)))
        else:
            size += 1
    tried = [n for n in trials if n <= most]
    trial = trials[size] if found else trials[max(tried)] if tried else None
    return Fleet(
        trial=trial,
        found=found,
        worth_more=not beaten and (found or size > most or most in trials),
        demand=_demand([t.outcome for t in trials.values()]) if trials else None,
        num_replicas=size,
        num_requests_simulated=sum(t.outcome.num_simulated for t in trials.values()),
    )


def _demand(outcomes: Sequence[Outcome]) -> Demand:
    peak_seqs = max(o.peak_running for o in outcomes)
    peak_tokens = max(o.peak_batched_tokens for o in outcomes)
    peak_blocks = max(o.peak_kv_blocks for o in outcomes)
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
