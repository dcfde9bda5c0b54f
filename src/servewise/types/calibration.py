"""Corrections of a step model that were fitted to measured runs, and how far they can be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from servewise.types.assurance import Interval
from servewise.types.deployment import EngineName, Parallelism, Precision

__all__ = [
    "PARAMETERS",
    "UNCORRECTED",
    "Calibration",
    "CalibrationForm",
    "FittedParameter",
    "MeasuredRange",
    "PointFit",
    "PointMetrics",
    "StepCorrection",
]

CalibrationForm = Literal["scaled", "absolute"]
"""``scaled`` corrects the step times that the catalog's hardware gives; ``absolute`` puts others in their place, for a
device that no table describes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCorrection:
    """The few parameters by which measured runs correct a step model. The defaults change nothing.

    Parameters
    ----------
    products_scale : float
        Of all in a step that is not attention: matrix products, collectives, gaps between kernels, the host.
    attention_scale : float
        Of decode attention, and of a prompt's attention pairs.
    request_scale : float
        Of the way of a request to the engine and back.
    step_s : float [s]
        More in every step.
    row_s : float [s]
        More for every row that a step samples.
    context_token_s : float [s]
        More for every token of context that decode rows attend to.
    prompt_token_s, pair_s : float [s]
        More for every prompt token in a step, and for every token that it attends to.
    request_s, request_input_token_s : float [s]
        More for every request outside the engine, and for every token of its prompt.
    """

    products_scale: float = 1.0
    attention_scale: float = 1.0
    request_scale: float = 1.0
    step_s: float = 0.0
    row_s: float = 0.0
    context_token_s: float = 0.0
    prompt_token_s: float = 0.0
    pair_s: float = 0.0
    request_s: float = 0.0
    request_input_token_s: float = 0.0


UNCORRECTED = StepCorrection()
"""Changes nothing."""
PARAMETERS: tuple[str, ...] = tuple(StepCorrection.__slots__)
"""Names of the parameters, in the order of the columns of :attr:`Calibration.draws`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedParameter:
    """One parameter of the correction.

    Parameters
    ----------
    name : str
        Of :data:`PARAMETERS`.
    value : float
    interval : Interval
        90%; of a parameter that was not fitted, what the runs and the belief beforehand leave open.
    kept : str
        Why it was kept where it was before; empty for a fitted one.
    """

    name: str
    value: float
    interval: Interval
    kept: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointMetrics:
    """Medians of a run's latencies [s], and the rate of its output [tokens/s]."""

    ttft_s: float
    tpot_s: float
    e2e_s: float
    throughput_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PointFit:
    """One load point: measured, and predicted with and without it.

    Parameters
    ----------
    name, load : str
        Of the run, and its load in words.
    num_requests : int
        Those that were answered.
    mean_running : float
        Requests in the engine at once, on average.
    measured, uncalibrated, fitted, held_out : PointMetrics
        ``held_out`` is predicted from the other points alone. ``uncalibrated`` is None where no table describes the
        device.
    """

    name: str
    load: str
    num_requests: int
    mean_running: float
    measured: PointMetrics
    uncalibrated: PointMetrics | None
    fitted: PointMetrics
    held_out: PointMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRange:
    """What the measured runs reached.

    Parameters
    ----------
    max_running : int
        Most requests that were producing tokens at once.
    max_context_tokens : int [tokens]
        Longest request with its answer.
    """

    max_running: int
    max_context_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A correction of the step model of one engine on one device, with what it was fitted to.

    Parameters
    ----------
    form : CalibrationForm
    engine, engine_version, gpu, model, precision, parallelism
        What was measured.
    correction : StepCorrection
    parameters : tuple of FittedParameter
        Each of :data:`PARAMETERS` that the form has.
    draws : float64 array, shape (num_draws, len(PARAMETERS))
        What the runs leave open: corrections that explain them about as well.
    points : tuple of PointFit
    tpot_error_frac, ttft_error_frac : float
        Root mean square of ln(measured / predicted) of the points held out, median TPOT and TTFT.
    measured_range : MeasuredRange
    notes : tuple of str
        What a user must know of the runs and of the fit, in words.
    created : str
        ISO 8601, UTC.
    input_hashes : mapping of str to str
        ``sha256:...`` of each run, by name.
    """

    form: CalibrationForm
    engine: EngineName
    engine_version: str
    gpu: str
    model: str
    precision: Precision
    parallelism: Parallelism
    correction: StepCorrection
    parameters: tuple[FittedParameter, ...]
    draws: NDArray[np.float64]
    points: tuple[PointFit, ...]
    tpot_error_frac: float
    ttft_error_frac: float
    measured_range: MeasuredRange
    notes: tuple[str, ...]
    created: str
    input_hashes: Mapping[str, str]
