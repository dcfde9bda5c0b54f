"""Step models that measured runs have corrected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from types import MappingProxyType

import numpy as np

from servewise.perf.step import step_model
from servewise.perf.validation import MeanError
from servewise.types import (
    PARAMETERS,
    UNCORRECTED,
    Calibration,
    Deployment,
    Provenance,
    StepCorrection,
    StepModel,
    StepTable,
)

__all__ = [
    "calibrated_draws",
    "calibrated_error",
    "calibrated_step_model",
    "calibration_of",
    "corrected",
    "outside_range",
]

SPREAD_90 = 1.645
"""Standard deviations on either side between which 90% of a normal distribution lie."""
RANGE_MARGIN = 1.25
"""A load beyond this multiple of the measured one is outside the measured range."""
UNKNOWN_TTFT_FRAC = 0.5
"""Drawn error of first tokens where no run says it: all of them were overloaded. Assumed: about what the worst class of
predictions without calibration is off by."""


def corrected(table: StepTable, by: StepCorrection) -> StepTable:
    """Apply a correction to a step table; one that changes nothing returns the table itself.

    Parameters
    ----------
    table : StepTable
    by : StepCorrection
    """
    if by == UNCORRECTED:
        return table
    rows = np.arange(table.max_rows + 1, dtype=np.float64)
    slope = by.attention_scale * table.attention_slope_s
    slope[1:] += by.context_token_s
    decode = by.products_scale * table.decode_fixed_s + by.step_s + by.row_s * rows
    decode[0] = 0.0
    mixed = by.products_scale * table.mixed_tokens_s + by.step_s
    mixed[0] = 0.0
    return replace(
        table,
        attention_base_s=by.attention_scale * table.attention_base_s,
        attention_slope_s=slope,
        decode_fixed_s=decode,
        mixed_tokens_s=mixed,
        sample_s=by.products_scale * table.sample_s + by.row_s * rows,
        prefill_fixed_s=by.products_scale * table.prefill_fixed_s,
        prefill_s_per_token=by.products_scale * table.prefill_s_per_token + by.prompt_token_s,
        prefill_s_per_pair=by.attention_scale * table.prefill_s_per_pair + by.pair_s,
        mixed_row_attention_fixed_s=by.attention_scale * table.mixed_row_attention_fixed_s,
        # the longer of two sides counts: what every token of context takes more belongs to both
        mixed_row_attention_s_per_token=by.attention_scale * table.mixed_row_attention_s_per_token + by.context_token_s,
        experts_s=by.products_scale * table.experts_s,
        request_fixed_s=by.request_scale * table.request_fixed_s + by.request_s,
        request_s_per_input_token=by.request_scale * table.request_s_per_input_token + by.request_input_token_s,
    )


def calibration_of(deployment: Deployment, calibrations: Sequence[Calibration]) -> Calibration | None:
    """The calibration that applies to a deployment: of its engine and device, of its own model first.

    An ``absolute`` one holds for the model, precision and parallelism that were measured, and no other. None applies
    to deployments with speculative decoding, whose steps are others, nor to groups as a whole; to their pools it does.
    """
    if deployment.speculation is not None or deployment.disaggregation is not None:
        return None
    own = _plain_name(deployment.model.name), deployment.precision, deployment.parallelism
    near = [c for c in calibrations if (c.engine, c.gpu) == (deployment.engine, deployment.gpu.name)]
    for calibration in near:
        if (_plain_name(calibration.model), calibration.precision, calibration.parallelism) == own:
            return calibration
    return next((c for c in near if c.form == "scaled"), None)


def _plain_name(model: str) -> str:
    """A model's name; of the path of a ``config.json`` the folder and the file, wherever they are."""
    return "/".join(PurePath(model).parts[-2:]) if model.endswith(".json") else model


def calibrated_step_model(deployment: Deployment, calibrations: Sequence[Calibration] = ()) -> StepModel:
    """Step times of one replica, corrected where a calibration applies.

    Parameters
    ----------
    deployment : Deployment
    calibrations : sequence of Calibration

    Returns
    -------
    StepModel
        Warnings say what the calibration was measured with, where the deployment differs from that.
    """
    model, calibration = step_model(deployment), calibration_of(deployment, calibrations)
    if calibration is None:
        return model
    table = corrected(model.table, calibration.correction)
    return _with_origin(replace(model, table=table, correction=calibration.correction), deployment, calibration)


def _with_origin(model: StepModel, deployment: Deployment, calibration: Calibration) -> StepModel:
    """The same times with the calibration as their source."""
    error = calibration.ttft_error_frac
    ttft = "unknown" if math.isinf(error) else f"within {error:.1%}"
    origin = Provenance(
        kind="measured",
        source=f"calibration of {calibration.created}: {len(calibration.points)} runs of {calibration.engine} "
        f"{calibration.engine_version} with {calibration.model} on {calibration.gpu}",
        note=f"points held out: TPOT within {calibration.tpot_error_frac:.1%}, TTFT {ttft} (root mean square)",
    )
    absolute = calibration.form == "absolute"
    provenance = {"calibration": origin} | ({} if absolute else dict(model.provenance))
    warnings = () if absolute else model.warnings
    return replace(
        model,
        provenance=MappingProxyType(provenance),
        warnings=(*warnings, *differences(deployment, calibration)),
    )


def differences(deployment: Deployment, calibration: Calibration) -> tuple[str, ...]:
    """In what a deployment differs from the measured one, in words."""
    pairs = (
        ("engine version", calibration.engine_version, deployment.engine_version),
        ("model", _plain_name(calibration.model), _plain_name(deployment.model.name)),
        ("precision", calibration.precision.weights, deployment.precision.weights),
        ("KV precision", calibration.precision.kv, deployment.precision.kv),
        ("tensor parallel size", *(d.parallelism.tensor_parallel_size for d in (calibration, deployment))),
        ("pipeline parallel size", *(d.parallelism.pipeline_parallel_size for d in (calibration, deployment))),
        ("data parallel size", *(d.parallelism.data_parallel_size for d in (calibration, deployment))),
        ("expert parallel size", *(d.parallelism.expert_parallel_size for d in (calibration, deployment))),
    )
    other = [f"{name} {measured} (here {here})" for name, measured, here in pairs if measured != here]
    return (f"calibrated with {', '.join(other)}: transferred",) if other else ()


def outside_range(calibration: Calibration, running: int, context_tokens: int) -> tuple[str, ...]:
    """In what a load goes beyond the measured runs, in words; empty when it does not.

    Parameters
    ----------
    calibration : Calibration
    running : int
        Most requests at once in a replica.
    context_tokens : int [tokens]
        Longest request with its answer.
    """
    known = calibration.measured_range
    reached = (
        ("requests at once", running, known.max_running),
        ("tokens of context", context_tokens, known.max_context_tokens),
    )
    return tuple(
        f"outside the calibration: {here:,} {what}, measured up to {measured:,}"
        for what, here, measured in reached
        if here > RANGE_MARGIN * measured
    )


def calibrated_draws(
    deployment: Deployment, calibration: Calibration, num_draws: int, seed: int = 0
) -> tuple[StepModel, ...]:
    """Step models drawn from what the calibration's runs leave open.

    Beside the parameters' draws, all step times of a model are scaled by what predictions of TPOT of points held out
    were off by, and what only first tokens wait for (prompts, the way to the engine and back) by what those of TTFT
    were. Draws come in pairs that mirror each other in these scales.

    Parameters
    ----------
    deployment : Deployment
    calibration : Calibration
    num_draws : int
        At least 2.
    seed : int
        The same seed gives the same draws.
    """
    base = step_model(deployment)
    random = np.random.default_rng(seed)
    chosen = random.permutation(len(calibration.draws))
    errors = np.array([calibration.tpot_error_frac, min(calibration.ttft_error_frac, UNKNOWN_TTFT_FRAC)])
    shifts = random.normal(0.0, errors, (-(-num_draws // 2), 2))
    models = []
    for i, (work, first) in enumerate(np.exp(np.concatenate([shifts, -shifts]))[:num_draws].tolist()):
        row = calibration.draws[chosen[i % len(chosen)]].tolist()
        drawn = corrected(base.table, StepCorrection(**dict(zip(PARAMETERS, row, strict=True))))
        off = StepCorrection(products_scale=work, attention_scale=work, request_scale=first)
        table = corrected(drawn, off)
        table = replace(
            table,
            prefill_fixed_s=first / work * table.prefill_fixed_s,
            prefill_s_per_token=first / work * table.prefill_s_per_token,
            prefill_s_per_pair=first / work * table.prefill_s_per_pair,
        )
        models.append(_with_origin(replace(base, table=table), deployment, calibration))
    return tuple(models)


def calibrated_error(usual: MeanError, deployment: Deployment, calibration: Calibration, *, inside: bool) -> MeanError:
    """90% interval of measured over predicted mean TPOT and TTFT.

    Parameters
    ----------
    usual : MeanError
        Of predictions without calibration.
    deployment : Deployment
    calibration : Calibration
    inside : bool
        Whether the load is within the measured range and does not run full. If not, and for another model or version,
        the interval is no narrower than the usual one.
    """
    num = len({point.load for point in calibration.points})
    tpot, ttft = (_interval(error, num) for error in (calibration.tpot_error_frac, calibration.ttft_error_frac))
    if inside and not differences(deployment, calibration):
        return MeanError(error_class="calibrated", tpot_frac=tpot, ttft_frac=ttft, num_runs=num)
    return MeanError(
        error_class="calibrated elsewhere",
        tpot_frac=(min(tpot[0], usual.tpot_frac[0]), max(tpot[1], usual.tpot_frac[1])),
        ttft_frac=(min(ttft[0], usual.ttft_frac[0]), max(ttft[1], usual.ttft_frac[1])),
        num_runs=num,
    )


def _interval(error_frac: float, num_points: int) -> tuple[float, float]:
    """5% and 95% quantiles of measured / predicted, as few errors leave them open."""
    # the spread of few errors is itself uncertain: Student's t, approximated (Abramowitz and Stegun 26.7.5)
    dof = max(num_points - 1, 1)
    spread = SPREAD_90 + (SPREAD_90**3 + SPREAD_90) / (4 * dof)
    return float(np.exp(-spread * error_frac)), float(np.exp(spread * error_frac))
