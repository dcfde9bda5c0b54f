"""The second question: which precisions keep enough of the quality."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from servewise.errors import InputError
from servewise.quality.recovery import Recovery, expected_recovery
from servewise.types import ModelSpec, Precision, PrecisionChoice, TaskKind, WeightPrecision

__all__ = ["precision_choices"]

WEIGHT_BITS: dict[WeightPrecision, int] = {
    "bf16": 16,
    "fp8": 8,
    "fp8_block": 8,
    "int8": 8,
    "int4": 4,
    "nvfp4": 4,
    "mxfp4": 4,
    "q8_0": 8,
    "q4_0": 4,
    "q4_k_m": 4,
}
ONLY_AS_PUBLISHED: frozenset[WeightPrecision] = frozenset({"fp8_block", "mxfp4"})
"""Formats that are served as the model's authors publish them; fp8 and nvfp4 store as much and are common."""


def is_obtainable(model: ModelSpec, weights: WeightPrecision) -> bool:
    """Whether a model's weights exist or can be made in a precision: never by widening what was published."""
    if weights == model.native_precision:
        return True
    narrower = WEIGHT_BITS[weights] < WEIGHT_BITS[model.native_precision]
    return narrower and weights not in ONLY_AS_PUBLISHED


def precision_choices(
    model: ModelSpec, gpu_precisions: Iterable[Precision], min_recovery_pct: float, tasks: Sequence[TaskKind] = ()
) -> tuple[PrecisionChoice, ...]:
    """Precisions of a model that the quality floor lets through.

    Parameters
    ----------
    model : ModelSpec
    gpu_precisions : iterable of Precision
        What the GPUs in question run (``catalog.supported_precisions``).
    min_recovery_pct : float [%]
        Least typical share of the bf16 score to keep, in [0, 100].
    tasks : sequence of TaskKind
        Kinds of task that must each keep it; none: all kinds taken together.

    Returns
    -------
    tuple of PrecisionChoice
        In the order given, without repeats, with the figures of the kind of task that keeps least. ``at_risk`` when
        a 10th percentile is below the floor, when the combination or a kind was not measured, or when nothing is
        known (then ``recovery_pct`` is None).

    Raises
    ------
    InputError
        When the floor is not a percentage.
    """
    if not math.isfinite(min_recovery_pct) or not 0 <= min_recovery_pct <= 100:
        raise InputError(f"min_recovery_pct is {min_recovery_pct}, must be from 0 to 100 (percent of the bf16 score)")
    choices = []
    for precision in dict.fromkeys(gpu_precisions):
        if is_obtainable(model, precision.weights):
            choice = judge(model, precision, min_recovery_pct, tasks)
            if choice is not None:
                choices.append(choice)
    return tuple(choices)


def judge(
    model: ModelSpec, precision: Precision, min_recovery_pct: float, tasks: Sequence[TaskKind]
) -> PrecisionChoice | None:
    """Choice for one precision; None when it is known to fall below the floor."""
    found: list[Recovery] = []
    for task in tasks or (None,):
        recovery = expected_recovery(model, precision, task)
        if recovery is None:
            unknown = f"no published result for {precision.weights} weights with a {precision.kv} KV cache"
            return PrecisionChoice(precision=precision, recovery_pct=None, at_risk=True, basis=unknown, source=unknown)
        found.append(recovery)
    if any(recovery.pct[1] < min_recovery_pct for recovery in found):
        return None
    least = min(found, key=lambda recovery: recovery.pct)
    return PrecisionChoice(
        precision=precision,
        recovery_pct=least.pct,
        at_risk=any(recovery.is_estimate or recovery.pct[0] < min_recovery_pct for recovery in found),
        basis=least.basis,
        source=least.source,
    )
