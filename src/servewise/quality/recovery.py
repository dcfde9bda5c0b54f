"""How much of its bf16 score a model keeps in a precision, from published results."""

from __future__ import annotations

from dataclasses import dataclass

from servewise.catalog import param_counts, read_facts
from servewise.types import ModelSpec, Precision, TaskKind

__all__ = ["Recovery", "expected_recovery", "size_class"]

RECOVERY = "quality/recovery.csv"
PERCENT = {"%": 1.0}
SMALL_BELOW_PARAMS, LARGE_FROM_PARAMS = 4e9, 20e9
"""The same bounds as in tools/derive_quality.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Share of the bf16 score that is kept.

    Parameters
    ----------
    pct : (low, typical, high) [%]
        10th percentile, median and 90th percentile of published results, at most 100.
    num_results : int
        0 when it is true by definition.
    basis : str
        What was measured, in words: ``math: 20 results of 8 large models``.
    source : str
    is_estimate : bool
        True when the combination itself was not measured, not on the kind of task that was asked, or on one model.
    """

    pct: tuple[float, float, float]
    num_results: int
    basis: str
    source: str
    is_estimate: bool = False


def size_class(model: ModelSpec) -> str:
    """``small`` below 4, ``large`` from 20 billion parameters, else ``medium``: small models lose more."""
    total = param_counts(model).total
    if total < SMALL_BELOW_PARAMS:
        return "small"
    return "large" if total >= LARGE_FROM_PARAMS else "medium"


def cells(task: TaskKind | None, size: str) -> tuple[str, ...]:
    """Cells of the table for a kind of task and a size of model, the finest first; the kind outlasts the size."""
    kinds = ("any",) if task is None else (task, "any")
    return tuple(f"{kind}/{name}" for kind in kinds for name in (size, "any"))


def published(scheme: str, task: TaskKind | None, size: str) -> Recovery | None:
    """Results of a scheme from the finest cell that has enough of them; None without any."""
    table = read_facts(RECOVERY)
    for cell in cells(task, size):
        facts = table.get(f"{scheme}/{cell}")
        if facts is None:
            continue
        low, typical, high = (facts[f].number(PERCENT, f"{scheme}/{cell}") for f in ("low", "typical", "high"))
        num_results = int(facts["num_results"].value)
        num_models = int(facts["num_models"].value)
        basis = _basis(cell, task, num_results, num_models)
        return Recovery(
            pct=(low, typical, high),
            num_results=num_results,
            basis=basis,
            source=f"{scheme}, {basis}: {facts['typical'].provenance.source}",
            is_estimate=num_models == 1 or (task is not None and not cell.startswith(f"{task}/")),
        )
    return None


def _basis(cell: str, task: TaskKind | None, num_results: int, num_models: int) -> str:
    kind, size = cell.split("/")
    models = f"{num_models} {'' if size == 'any' else f'{size} '}model{'' if num_models == 1 else 's'}"
    counted = f"{num_results} results of {models}{' of all sizes' if size == 'any' and num_models > 1 else ''}"
    if kind != "any":
        return f"{kind}: {counted}"
    return f"{f'too few of {task}, ' if task else ''}all tasks: {counted}"


def expected_recovery(model: ModelSpec, precision: Precision, task: TaskKind | None = None) -> Recovery | None:
    """What a model is expected to keep in a precision.

    Parameters
    ----------
    model : ModelSpec
    precision : Precision
    task : TaskKind or None
        Kind of task; None takes all kinds together.

    Returns
    -------
    Recovery or None
        Of the kind of task where there are enough results, else of all kinds together, as an estimate.
        100% for the checkpoint as it was published. An fp8 KV cache alone was not measured: its loss is
        bounded by that of fp8 weights and fp8 KV cache together. A combination of weights and KV cache that
        was not measured is the product of both. None when nothing is known about the weights.
    """
    size = size_class(model)
    if precision.weights == model.native_precision:
        weights: Recovery | None = Recovery(
            pct=(100.0, 100.0, 100.0),
            num_results=0,
            basis="the checkpoint as published",
            source=f"{model.name} as it was published",
        )
    else:
        weights = published(precision.weights, task, size)
    if precision.kv == "bf16":
        return weights
    if precision.weights != model.native_precision:
        measured = published(f"{precision.weights}+kv-{precision.kv}", task, size)
        if measured is not None:
            return measured
    kv = published(f"fp8+kv-{precision.kv}", task, size)
    if weights is None or kv is None:
        return None
    low, typical, high = (a * b / 100.0 for a, b in zip(weights.pct, kv.pct, strict=True))
    return Recovery(
        pct=(low, typical, high),
        num_results=min(weights.num_results or kv.num_results, kv.num_results),
        basis=f"not measured together: {weights.basis}; KV cache, {kv.basis}",
        source=f"not measured: {weights.source}, times a bound on the loss of the KV cache from {kv.source}",
        is_estimate=True,
    )
