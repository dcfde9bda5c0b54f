"""Which parameters of a correction are fitted, on which scale, and what is believed of them beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from servewise.calibrate.runs import MeasuredRun, mean_running
from servewise.metrics import tpot_s, ttft_s
from servewise.types import DESCRIBED, CalibrationForm, Deployment, StepTable

__all__ = ["Parameter", "form_of", "parameters_of"]

TYPICAL_PROMPT_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of the correction, fitted in multiples of ``unit``.

    Parameters
    ----------
    name : str
    unit : float
        For times [s]: so large that it would explain all of what was measured by itself.
    prior, prior_sd : float
        Mean and standard deviation of what is believed beforehand, in units.
    lower, upper : float
        In units.
    essential : bool
        Whether it is fitted even if the runs leave it open.
    """

    name: str
    unit: float
    prior: float
    prior_sd: float
    lower: float
    upper: float
    essential: bool = False


def form_of(deployment: Deployment) -> CalibrationForm:
    """Whether a device's own step times are corrected or replaced."""
    return "absolute" if deployment.gpu.vendor == DESCRIBED else "scaled"


def parameters_of(form: CalibrationForm, runs: Sequence[MeasuredRun], table: StepTable) -> tuple[Parameter, ...]:
    """The parameters of a form.

    Scales are believed to be about as far from 1 as predictions without calibration are off (docs/accuracy.md): 0.3 for
    products, 0.5 for attention, whose kernels vary more, 1 for the way of a request, which is the user's own network.
    """
    if form == "scaled":
        return _scaled(runs, table)
    return _absolute(runs)


def _scale(name: str, prior_sd: float, *, essential: bool = False) -> Parameter:
    return Parameter(name=name, unit=1.0, prior=1.0, prior_sd=prior_sd, lower=0.05, upper=20.0, essential=essential)


def _added(name: str, unit: float, *, prior_sd: float, essential: bool = False) -> Parameter:
    """A time that is added: never below 0, so that no step takes less than nothing."""
    return Parameter(
        name=name,
        unit=unit,
        prior=0.0,
        prior_sd=prior_sd,
        lower=1e-3 if essential else 0.0,
        upper=50.0,
        essential=essential,
    )


def _scaled(runs: Sequence[MeasuredRun], table: StepTable) -> tuple[Parameter, ...]:
    step_s = float(table.decode_fixed_s[1])
    rows = max(mean_running(run.log) for run in runs)
    prompt = min(TYPICAL_PROMPT_TOKENS, table.max_batched_tokens)
    return (
        _scale("products_scale", 0.3, essential=True),
        _scale("attention_scale", 0.5),
        _scale("request_scale", 1.0),
        _added("step_s", step_s, prior_sd=0.3),
        _added("row_s", step_s / rows, prior_sd=0.3),
        _added("prompt_token_s", float(table.mixed_tokens_s[prompt]) / prompt, prior_sd=0.3),
    )


def _absolute(runs: Sequence[MeasuredRun]) -> tuple[Parameter, ...]:
    tpot = [float(np.nanmedian(tpot_s(run.log))) for run in runs]
    ttft = min(float(np.nanmedian(ttft_s(run.log))) for run in runs)
    prompt = min(float(np.mean(run.log.input_tokens)) for run in runs)
    rows = max(mean_running(run.log) for run in runs)
    context = max(float(np.mean(run.log.input_tokens + run.log.output_tokens / 2)) for run in runs)

    def added(name: str, unit: float, *, essential: bool = False) -> Parameter:
        return _added(name, unit, prior_sd=1.0, essential=essential)

    return (
        added("step_s", min(tpot), essential=True),
        added("row_s", max(tpot) / rows),
        added("context_token_s", max(tpot) / (rows * context)),
        added("prompt_token_s", ttft / prompt),
        added("pair_s", 2.0 * ttft / prompt**2),
        added("request_s", ttft),
        added("request_input_token_s", ttft / prompt),
    )
