"""Step models drawn from what the measurements leave open."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from servewise.errors import OutOfRangeError
from servewise.perf.formula import StepFormula
from servewise.perf.overheads import Overheads, levels_of, overhead_document
from servewise.perf.step import MEASURED_CONTEXT_TOKENS, provenance_of, step_model, warnings_of
from servewise.perf.table import tabulate
from servewise.perf.validation import error_class
from servewise.types import Deployment, StepModel

__all__ = ["draw_overheads", "draw_step_models"]

GPU_SCALES = ("elementwise_scale", "weights_scale", "compute_scale", "collective_scale", "attention_scale")
"""Overheads that scale the work of the GPU: a deployment's common error moves them together."""


def draw_overheads(deployment: Deployment, num_draws: int, seed: int = 0) -> tuple[Overheads, ...]:
    """Overheads drawn from the posterior of the fit, and from the errors that deployments of its class had in common.

    Draws come in pairs that mirror each other around the fit, so that few of them are balanced.

    Parameters
    ----------
    deployment : Deployment
    num_draws : int
        At least 2.
    seed : int
        The same seed gives the same draws, whatever the number of replicas.

    Raises
    ------
    OutOfRangeError
        When there are fewer than 2 draws.
    """
    if num_draws < 2:
        raise OutOfRangeError(f"num_draws must be at least 2, got {num_draws}")
    fitted = StepFormula(deployment).overheads
    document = overhead_document()
    names: list[str] = document["names"]
    level = next(name for name in levels_of(deployment) if name in document["levels"])
    common = document["common_error"][error_class(deployment)]
    triangle = document["levels"][level]["covariance"]
    covariance = np.array(
        [row + [triangle[j][i] for j in range(i + 1, len(triangle))] for i, row in enumerate(triangle)]
    )
    draw = np.random.default_rng(seed)
    half = -(-num_draws // 2)
    shifts = draw.multivariate_normal(np.zeros(len(names)), covariance, half, method="svd")
    gpu = draw.normal(0.0, common["gpu"], half)
    shifts[:, [names.index(n) for n in GPU_SCALES]] += gpu[:, None]
    shifts[:, [names.index(n) for n in ("request_ms", "prefill_layer_us")]] += draw.normal(
        0.0, common["request"], (half, 1)
    )
    mirrored = np.concatenate([shifts, -shifts])[:num_draws]
    at = np.array([getattr(fitted, name) for name in names])
    return tuple(Overheads(**dict(zip(names, row.tolist(), strict=True))) for row in at * np.exp(mirrored))


def draw_step_models(deployment: Deployment, num_draws: int, seed: int = 0) -> tuple[StepModel, ...]:
    """Step models whose parameters are drawn from what the measurements leave open.

    Parameters and errors are those of :func:`draw_overheads`.

    Returns
    -------
    tuple of StepModel
        With the provenance and warnings of the fitted one.
    """
    drawn = draw_overheads(deployment, num_draws, seed)
    if deployment.speculation is not None:  # the drafter's passes have the same overheads
        return tuple(step_model(deployment, overheads) for overheads in drawn)
    formula = StepFormula(deployment)
    tables = []
    for overheads in drawn:
        formula.overheads = overheads
        tables.append(tabulate(formula))
    # operators know which of their tables were asked for once a step was computed
    provenance, warnings = MappingProxyType(provenance_of(formula)), warnings_of(formula)
    return tuple(
        StepModel(table=table, provenance=provenance, max_context_tokens=MEASURED_CONTEXT_TOKENS, warnings=warnings)
        for table in tables
    )
