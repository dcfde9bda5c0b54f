"""Calibrate a step model with a sweep of measured runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import numpy as np

from servewise.calibrate.fit import ENDS, Fit, Served, fit, refitted
from servewise.calibrate.parameters import Parameter, form_of, parameters_of
from servewise.calibrate.runs import MeasuredRun, checked, mean_running
from servewise.calibrate.statistics import Observed, metrics_of, observed
from servewise.errors import InputError
from servewise.perf import memory, step_model
from servewise.types import (
    PARAMETERS,
    UNCORRECTED,
    Calibration,
    CalibrationForm,
    Deployment,
    FittedParameter,
    Interval,
    MeasuredRange,
    PointFit,
    PointMetrics,
    StepCorrection,
)

__all__ = ["calibrate"]

Progress = Callable[[str, int, int], None]

WITHOUT_TABLES = StepCorrection(products_scale=0.0, attention_scale=0.0, request_scale=0.0)
"""What is left of a step model whose device no table describes."""


def calibrate(
    runs: Sequence[MeasuredRun],
    deployment: Deployment,
    *,
    input_hashes: Mapping[str, str] | None = None,
    progress: Progress = lambda _stage, _done, _total: None,
) -> Calibration:
    """Fit the few parameters of a step model's correction to measured runs of one deployment.

    Parameters
    ----------
    runs : sequence of MeasuredRun
        At least three load points.
    deployment : Deployment
        What served all of them, one replica.
    input_hashes : mapping of str to str, optional
        ``sha256:...`` of each run, by name.
    progress : callable, optional
        Called with the stage, the steps done and the steps in all.

    Returns
    -------
    Calibration

    Raises
    ------
    InputError
        When the runs or the deployment cannot be used.
    MeasurementError
        When a run cannot be trusted.
    """
    several = deployment.num_replicas > 1 or deployment.parallelism.data_parallel_size > 1
    if several or deployment.disaggregation is not None or deployment.speculation is not None:
        raise InputError(
            "a calibration is of one replica, without disaggregation, speculative decoding or data parallel ranks; "
            "measure a single such replica"
        )
    sound, notes = checked(runs, deployment)
    report = memory(deployment)
    if not report.fits:
        raise InputError(f"the deployment does not fit: {report.reason}; give the settings that the server runs with")
    served = Served(deployment=deployment, memory=report, step_model=step_model(deployment))
    form = form_of(deployment)
    base = WITHOUT_TABLES if form == "absolute" else UNCORRECTED
    seen = [observed(run) for run in sound]
    parameters = parameters_of(form, sound, served.step_model.table)
    progress("fit", 0, 1)
    found = fit(served, seen, parameters, base)
    progress("fit", 1, 1)
    points = _points(served, seen, found, base, form, progress)
    return Calibration(
        form=form,
        engine=deployment.engine,
        engine_version=deployment.engine_version,
        gpu=deployment.gpu.name,
        model=deployment.model.name,
        precision=deployment.precision,
        parallelism=deployment.parallelism,
        correction=found.correction,
        parameters=_fitted(found, parameters),
        draws=found.draws,
        points=points,
        tpot_error_frac=_error([np.log(p.measured.tpot_s / p.held_out.tpot_s) for p in points]),
        ttft_error_frac=_error(
            [
                np.log(p.measured.ttft_s / p.held_out.ttft_s)
                for p, run in zip(points, sound, strict=True)
                if not run.queue_grew
            ]
        ),
        measured_range=MeasuredRange(
            max_running=max(_peak_running(run) for run in sound),
            max_context_tokens=max(int((run.log.input_tokens + run.log.output_tokens).max()) for run in sound),
        ),
        notes=notes,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        input_hashes=dict(input_hashes or {}),
    )


def _points(
    served: Served,
    seen: Sequence[Observed],
    found: Fit,
    base: StepCorrection,
    form: CalibrationForm,
    progress: Progress,
) -> tuple[PointFit, ...]:
    """Every run as measured, and as predicted with all runs, and without those of its load point."""
    loads = list(dict.fromkeys(one.run.load for one in seen))
    without = {}
    for done, load in enumerate(loads):
        progress("held-out points", done, len(loads))
        without[load] = refitted(served, found, load, base)
    progress("held-out points", len(loads), len(loads))

    def predicted(run: MeasuredRun, by: StepCorrection) -> PointMetrics:
        return metrics_of(run, served.simulated(run, by))

    return tuple(
        PointFit(
            name=run.name,
            load=run.load,
            num_requests=int(run.counted.sum()),
            mean_running=mean_running(run.log),
            measured=metrics_of(run, run.log),
            uncalibrated=predicted(run, UNCORRECTED) if form == "scaled" else None,
            fitted=predicted(run, found.correction),
            held_out=predicted(run, without[run.load]),
        )
        for run in (one.run for one in seen)
    )


def _fitted(found: Fit, parameters: Sequence[Parameter]) -> tuple[FittedParameter, ...]:
    """The form's parameters with their intervals."""
    out = []
    for parameter in parameters:
        value = getattr(found.correction, parameter.name)
        low, high = np.quantile(found.draws[:, PARAMETERS.index(parameter.name)], ENDS)
        out.append(
            FittedParameter(
                name=parameter.name,
                value=value,
                interval=Interval(low=min(float(low), value), high=max(float(high), value)),
                kept=found.kept.get(parameter.name, ""),
            )
        )
    return tuple(out)


def _error(logs: Sequence[float]) -> float:
    """Root mean square; infinite without any."""
    return float(np.sqrt(np.mean(np.square(logs)))) if len(logs) else float("inf")


def _peak_running(run: MeasuredRun) -> int:
    """Most requests that were producing tokens at once: those that still waited ran nowhere."""
    log = run.log
    times = np.concatenate([log.first_token_s, log.last_token_s])
    steps = np.concatenate([np.ones(log.num_requests), -np.ones(log.num_requests)])
    return int(np.cumsum(steps[np.lexsort((steps, times))]).max())
