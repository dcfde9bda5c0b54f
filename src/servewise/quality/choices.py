"""The second question: which precisions keep enough of the quality."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from servewise.errors import InputError
from servewise.quality.recovery import Recovery, expected_recovery
from servewise.quality.scores import Score, expected_score, scores_to_show
from servewise.types import ModelSpec, Precision, PrecisionChoice, TaskKind, WeightPrecision

__all__ = ["Floor", "below_floor", "choices_of_models", "precision_choices"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What a model in a precision must keep.

    Parameters
    ----------
    min_recovery_pct : float [%]
        Least typical share of the bf16 score to keep, in [0, 100].
    tasks : sequence of TaskKind
        Kinds of task that must each keep it; none: all kinds taken together.
    min_scores : mapping of str to float [%]
        Least typical score on benchmarks.

    Raises
    ------
    InputError
        When a floor is not a percentage.
    """

    min_recovery_pct: float
    tasks: Sequence[TaskKind] = ()
    min_scores: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        floors = {"min_recovery_pct": self.min_recovery_pct, **self.min_scores}
        for name, pct in floors.items():
            if not math.isfinite(pct) or not 0 <= pct <= 100:
                raise InputError(f"{name} is {pct}, must be from 0 to 100 percent")


def choices_of_models(
    models: Sequence[ModelSpec],
    gpu_precisions: Sequence[Precision],
    floor: Floor,
    own_scores: Mapping[str, Mapping[str, float]],
) -> tuple[dict[str, tuple[PrecisionChoice, ...]], tuple[str, ...]]:
    """What a floor leaves of several models, with the scores that set them side by side, and what it turned down.

    Parameters
    ----------
    models : sequence of ModelSpec
    gpu_precisions : sequence of Precision
    floor : Floor
    own_scores : mapping of model to mapping of benchmark to float [%]
        The user's own, which replace published ones.

    Returns
    -------
    choices : dict of str to tuple of PrecisionChoice
        By model.
    filtered : tuple of str
        In words.
    """
    scores = scores_to_show([model.name for model in models], own_scores, floor.min_scores, floor.tasks)
    choices = {m.name: precision_choices(m, gpu_precisions, floor, scores[m.name]) for m in models}
    filtered = tuple(why for m in models for why in below_floor(m, gpu_precisions, floor, scores[m.name]))
    return choices, filtered


def precision_choices(
    model: ModelSpec, gpu_precisions: Iterable[Precision], floor: Floor, scores: Sequence[Score] = ()
) -> tuple[PrecisionChoice, ...]:
    """Precisions of a model that the quality floor lets through.

    Parameters
    ----------
    model : ModelSpec
    gpu_precisions : iterable of Precision
        What the GPUs in question run (``catalog.supported_precisions``).
    floor : Floor
    scores : sequence of Score
        Of the model as it was published.

    Returns
    -------
    tuple of PrecisionChoice
        In the order given, without repeats, with the figures of the kind of task that keeps least. ``at_risk`` when
        a 10th percentile is below the floor, when the combination or a kind was not measured, or when nothing is
        known (then ``recovery_pct`` is None).
    """
    judged = (_judge(model, precision, floor, scores) for precision in _obtainable(model, gpu_precisions))
    return tuple(choice for choice in judged if isinstance(choice, PrecisionChoice))


def below_floor(
    model: ModelSpec, gpu_precisions: Iterable[Precision], floor: Floor, scores: Sequence[Score] = ()
) -> tuple[str, ...]:
    """The precisions that :func:`precision_choices` leaves out although they can be had, each with the reason."""
    judged = ((p, _judge(model, p, floor, scores)) for p in _obtainable(model, gpu_precisions))
    return tuple(f"{model.name} in {p.weights}/{p.kv}: {why}" for p, why in judged if isinstance(why, str))


def _obtainable(model: ModelSpec, precisions: Iterable[Precision]) -> Iterator[Precision]:
    return (precision for precision in dict.fromkeys(precisions) if is_obtainable(model, precision.weights))


def _judge(model: ModelSpec, precision: Precision, floor: Floor, scores: Sequence[Score]) -> PrecisionChoice | str:
    """Choice for one precision, or why it is known to fall below the floor."""
    expected = tuple(expected_score(model, precision, score) for score in scores)
    risks = []
    for benchmark, least in floor.min_scores.items():
        found = next((score for score in expected if score.benchmark == benchmark), None)
        pct = None if found is None else found.expected_pct
        if found is None or pct is None:
            risks.append(f"no {benchmark} score is known, and at least {least:g} is asked")
        elif pct[1] < least:
            return f"{benchmark} {pct[1]:.1f} expected, below the {least:g} that is asked"
        elif pct[0] < least:
            risks.append(f"{benchmark} may be as low as {pct[0]:.1f}, and at least {least:g} is asked")
        elif found.is_estimate:
            risks.append(f"{benchmark} {pct[1]:.1f} is an estimate, and at least {least:g} is asked")
    choice = _recovering(model, precision, floor)
    if isinstance(choice, str):
        return choice
    basis = "; ".join((choice.basis, *risks))
    return replace(choice, expected_scores=expected, at_risk=choice.at_risk or bool(risks), basis=basis)


def _recovering(model: ModelSpec, precision: Precision, floor: Floor) -> PrecisionChoice | str:
    """Choice by the share of the bf16 score that is kept, or why it is too little."""
    found: list[Recovery] = []
    for task in floor.tasks or (None,):
        recovery = expected_recovery(model, precision, task)
        if recovery is None:
            unknown = f"no published result for {precision.weights} weights with a {precision.kv} KV cache"
            return PrecisionChoice(precision=precision, recovery_pct=None, at_risk=True, basis=unknown, source=unknown)
        found.append(recovery)
    least = min(found, key=lambda recovery: recovery.pct)
    for recovery in found:
        if recovery.pct[1] < floor.min_recovery_pct:
            return (
                f"keeps {recovery.pct[1]:.2f}% of its score, below the {floor.min_recovery_pct:g}% that is asked "
                f"({recovery.basis})"
            )
    return PrecisionChoice(
        precision=precision,
        recovery_pct=least.pct,
        at_risk=any(recovery.is_estimate or recovery.pct[0] < floor.min_recovery_pct for recovery in found),
        basis=least.basis,
        source=least.source,
    )
