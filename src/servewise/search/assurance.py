"""How sure it is that a fleet keeps its promise: the same simulation with step times drawn anew."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from servewise import perf
from servewise.search.families import most_replicas, shape_bounds
from servewise.search.fleet import Load, summary_of, try_fleet
from servewise.search.limits import replicas, runs_full
from servewise.search.pricing import price
from servewise.search.results import Result
from servewise.search.shapes import Shape
from servewise.sim import Outcome
from servewise.types import (
    VERY_LIKELY_FRAC,
    Assurance,
    Calibration,
    Candidate,
    Deployment,
    Interval,
    MeanEstimate,
    MemoryReport,
    SafetyMargin,
    Search,
    StepModel,
    Summary,
)

__all__ = ["NUM_DRAWS", "DrawnModels", "assure", "draw", "outside_calibration"]

NUM_DRAWS = 32
"""Step models drawn; the fewest that an interval of 90% and a verdict from 95% on can be read from."""
SEED = 0
ENDS = (0.05, 0.95)
"""Quantiles of the draws between which the model-based intervals reach."""
LARGEST_GROWTH = 4
"""Fleets beyond this multiple of a candidate's are not tried for the safety margin."""


DrawnModels = tuple[StepModel, StepModel | None]
"""Of a replica and None, or of a group's decode and prefill instances."""


def draw(deployment: Deployment, calibrations: Sequence[Calibration] = ()) -> tuple[DrawnModels, ...]:
    """The step models that every fleet of a shape is tried with.

    Where a calibration applies they are drawn from what its runs leave open, which is less.
    Those of a group's two pools come from the same random numbers: what is not known of one is not known of the other.
    """
    if deployment.disaggregation is None:
        models = _drawn(replace(deployment, num_replicas=1), calibrations)
        return tuple((model, None) for model in models)
    pools = [_drawn(deployment.pool(role), calibrations) for role in ("decode", "prefill")]
    return tuple(zip(*pools, strict=True))


def _drawn(deployment: Deployment, calibrations: Sequence[Calibration]) -> tuple[StepModel, ...]:
    calibration = perf.calibration_of(deployment, calibrations)
    if calibration is None:
        return perf.draw_step_models(deployment, NUM_DRAWS, SEED)
    return perf.calibrated_draws(deployment, calibration, NUM_DRAWS, SEED)


def assure(search: Search, result: Result, drawn: Sequence[DrawnModels]) -> Assurance:
    """How a kept candidate does in every draw, and the fleet that does well in almost all of them.

    Parameters
    ----------
    search : Search
    result : Result
        Of a candidate that keeps the promise.
    drawn : sequence of DrawnModels
    """
    candidate, shape, load = result.candidate, result.shape, result.load
    memory, summary, num_replicas = shape.memory, candidate.summary, candidate.deployment.num_replicas
    assert memory is not None  # noqa: S101 (it was simulated)
    assert summary is not None  # noqa: S101 (it was simulated)
    loads = [_under(load, *models) for models in drawn]
    runs = []
    for drawn_load in loads:
        trial = try_fleet(shape, memory, drawn_load, num_replicas, stop=False)
        runs.append(summary_of(trial, drawn_load, with_intervals=False)[1])
    kept = [run.promise_kept for run in runs]
    margin, tried = _margin(search, candidate, _Drawn(shape=shape, memory=memory, load=load, loads=loads, kept=kept))
    return Assurance(
        num_draws=len(runs),
        kept_frac=sum(kept) / len(kept),
        attainment=_interval([run.attainment.value for run in runs]),
        percentiles={
            metric: {name: _interval([run.percentiles[metric][name].value for run in runs]) for name in by_name}
            for metric, by_name in summary.percentiles.items()
        },
        means=_means(search, shape, memory, load, num_replicas, summary),
        margin=margin,
        margin_tried=tried,
    )


def _under(load: Load, model: StepModel, prefill_model: StepModel | None) -> Load:
    """The same load with other step times; the way to the engine and back takes another time with them, too."""
    table, requests = (prefill_model or model).table, load.packed.requests
    extra = table.request_fixed_s + table.request_s_per_input_token * requests.input_tokens.astype(np.int64)
    packed = replace(load.packed, requests=requests._replace(extra=np.asarray(extra, np.float64)))
    return replace(load, step_model=model, prefill_model=prefill_model, packed=packed)


def _interval(values: Sequence[float]) -> Interval:
    """The ends of what the draws say; NaN when one of them says nothing."""
    if np.isnan(values).any():
        return Interval(low=math.nan, high=math.nan)
    low, high = np.quantile(values, ENDS)
    return Interval(low=float(low), high=float(high))


def outside_calibration(search: Search, deployment: Deployment, load: Load, outcome: Outcome) -> tuple[str, ...]:
    """In what a fleet's run goes beyond what its calibration measured, in words."""
    calibration = perf.calibration_of(deployment, search.calibrations)
    if calibration is None:
        return ()
    requests = load.packed.requests
    longest = int((requests.input_tokens.astype(np.int64) + requests.output_tokens).max())
    return perf.outside_range(calibration, outcome.peak_running, longest)


def _means(
    search: Search, shape: Shape, memory: MemoryReport, load: Load, num_replicas: int, summary: Summary
) -> dict[str, MeanEstimate]:
    """Mean TTFT and TPOT with the errors of predictions like these."""
    outcome = try_fleet(shape, memory, load, num_replicas, stop=False).outcome
    saturated = runs_full(shape, memory, load, outcome)
    error = perf.mean_error(shape.deployment, saturated=saturated)
    calibration = perf.calibration_of(shape.deployment, search.calibrations)
    if calibration is not None:
        outside = saturated or bool(outside_calibration(search, shape.deployment, load, outcome))
        error = perf.calibrated_error(error, shape.deployment, calibration, inside=not outside)
    return {
        name: MeanEstimate(
            value=summary.means[name],
            low=summary.means[name] * low,
            high=summary.means[name] * high,
            error_class=error.error_class,
            num_runs=error.num_runs,
        )
        for name, (low, high) in (("ttft", error.ttft_frac), ("tpot", error.tpot_frac))
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """A shape under all draws, and in which of them the candidate's fleet keeps the promise."""

    shape: Shape
    memory: MemoryReport
    load: Load
    loads: Sequence[Load]
    kept: Sequence[bool]

    @property
    def num_needed(self) -> int:
        """Draws in which a fleet must keep the promise to be very likely to keep it."""
        return math.ceil(VERY_LIKELY_FRAC * len(self.loads) - 1e-9)

    def num_kept(self, num_replicas: int) -> int:
        """Draws in which a fleet keeps the promise; 0 as soon as it does in too few."""
        may_break = len(self.loads) - self.num_needed
        num_broken = 0
        # those in which the smaller fleet broke it come first: they decide the soonest
        for i in sorted(range(len(self.loads)), key=lambda i: self.kept[i]):
            num_broken += not try_fleet(self.shape, self.memory, self.loads[i], num_replicas).kept
            if num_broken > may_break:
                return 0
        return len(self.loads) - num_broken


def _margin(search: Search, candidate: Candidate, drawn: _Drawn) -> tuple[SafetyMargin | None, str]:
    """The smallest fleet that keeps the promise in almost all draws, and what was tried, in words."""
    num_replicas = candidate.deployment.num_replicas
    assert candidate.cost is not None  # noqa: S101 (it was priced)
    if sum(drawn.kept) >= drawn.num_needed:
        return SafetyMargin(
            num_replicas=num_replicas,
            kept_frac=sum(drawn.kept) / len(drawn.kept),
            extra_usd_per_h=0.0,
            usd_per_mtok_output_at_load=candidate.cost.usd_per_mtok_output_at_load,
        ), "the fleet itself"
    most, why = most_replicas(search, candidate.deployment)
    if most > LARGEST_GROWTH * num_replicas:
        most, why = LARGEST_GROWTH * num_replicas, f"fleets beyond {LARGEST_GROWTH} times as large are not tried"
    if most <= num_replicas:
        return None, f"no larger fleet: {why}"
    fewest, num_hopeless = _fewest(search, drawn)
    if fewest is None:
        return None, (
            f"no fleet of these replicas: in {num_hopeless} of {len(drawn.loads)} draws too many requests are refused "
            "or miss a limit even on an idle replica"
        )
    for size in range(max(num_replicas + 1, fewest), most + 1):
        num_kept = drawn.num_kept(size)
        if num_kept:
            trial = try_fleet(drawn.shape, drawn.memory, drawn.load, size, stop=False)
            larger = price(search, candidate.deployment, summary_of(trial, drawn.load, with_intervals=False)[1], size)
            return SafetyMargin(
                num_replicas=size,
                kept_frac=num_kept / len(drawn.loads),
                extra_usd_per_h=larger.usd_per_h - candidate.cost.usd_per_h,
                usd_per_mtok_output_at_load=larger.usd_per_mtok_output_at_load,
            ), f"up to {replicas(size)}"
    return None, f"up to {replicas(most)} ({why})"


def _fewest(search: Search, drawn: _Drawn) -> tuple[int | None, int]:
    """Replicas without which too many draws are proven to break the promise (None: with any number of them), and
    the draws in which every fleet does."""
    deployment = drawn.shape.deployment
    fewest = []
    for load in drawn.loads:
        bound = shape_bounds(search, deployment, load)
        if load.rule is None or bound.num_hopeless <= load.rule.max_bad:
            fewest.append(bound.num_replicas)
    num_hopeless = len(drawn.loads) - len(fewest)
    if len(fewest) < drawn.num_needed:
        return None, num_hopeless
    return sorted(fewest)[drawn.num_needed - 1], num_hopeless
