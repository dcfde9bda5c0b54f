"""A calibration that was not fitted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from servewise.types import (
    PARAMETERS,
    Calibration,
    Deployment,
    FittedParameter,
    Interval,
    MeasuredRange,
    PointFit,
    PointMetrics,
    StepCorrection,
)


def made(
    deployment: Deployment,
    correction: StepCorrection,
    *,
    error_frac: float = 0.02,
    spread_frac: float = 0.01,
    num_draws: int = 64,
) -> Calibration:
    """What runs of a deployment might have given."""
    values = np.array([getattr(correction, name) for name in PARAMETERS])
    random = np.random.default_rng(0)
    metrics = PointMetrics(ttft_s=0.1, tpot_s=0.01, e2e_s=1.0, throughput_tokens_per_s=100.0)
    point = PointFit(
        name="run",
        load="4 at once",
        num_requests=100,
        mean_running=4.0,
        measured=metrics,
        uncalibrated=metrics,
        fitted=metrics,
        held_out=metrics,
    )
    return Calibration(
        form="scaled",
        engine=deployment.engine,
        engine_version=deployment.engine_version,
        gpu=deployment.gpu.name,
        model=deployment.model.name,
        precision=deployment.precision,
        parallelism=deployment.parallelism,
        correction=correction,
        parameters=(
            FittedParameter(
                name="products_scale", value=correction.products_scale, interval=Interval(low=0.9, high=1.3)
            ),
            FittedParameter(name="step_s", value=0.0, interval=Interval(low=0.0, high=1e-3), kept="not told"),
        ),
        draws=values * np.exp(random.normal(0.0, spread_frac, (num_draws, len(values)))),
        points=tuple(replace(point, load=f"{i} at once") for i in (1, 2, 4, 8, 16)),
        tpot_error_frac=error_frac,
        ttft_error_frac=2 * error_frac,
        measured_range=MeasuredRange(max_running=64, max_context_tokens=2000),
        notes=("a note",),
        created="2026-11-30T00:00:00+00:00",
        input_hashes={"run": "sha256:0"},
    )
