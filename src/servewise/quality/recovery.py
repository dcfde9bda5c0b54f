"""How much of its bf16 score a model keeps in a precision, from published results."""

from __future__ import annotations

from dataclasses import dataclass

from servewise.catalog import param_counts, read_facts
from servewise.types import ModelSpec, Precision

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
    source : str
    is_estimate : bool
        True when the combination itself was not measured.
    """

    pct: tuple[float, float, float]
    num_results: int
    source: str
    is_estimate: bool = False


def size_class(model: ModelSpec) -> str:
    """``small`` below 4, ``large`` from 20 billion parameters, else ``medium``: small models lose more."""
    total = param_counts(model).total
    if total < SMALL_BELOW_PARAMS:
        return "small"
    return "large" if total >= LARGE_FROM_PARAMS else "medium"


def published(scheme: str, size: str) -> Recovery | None:
    """Results of a scheme for a size of model, or for all sizes when there are too few; None without any."""
    table = read_facts(RECOVERY)
    for name in (f"{scheme}/{size}", f"{scheme}/any"):
        if name not in table:
            continue
        facts = table[name]
        low, typical, high = (facts[f].number(PERCENT, name) for f in ("low", "typical", "high"))
        num_results = int(facts["num_results"].value)
        sizes = f"{size} models" if name.endswith(size) else "models of all sizes"
        return Recovery(
            pct=(low, typical, high),
            num_results=num_results,
            source=f"{num_results} results of {scheme} on {sizes}: {facts['typical'].provenance.source}",
        )
    return None


def expected_recovery(model: ModelSpec, precision: Precision) -> Recovery | None:
    """What a model is expected to keep in a precision.

    Parameters
    ----------
    model : ModelSpec
    precision : Precision

    Returns
    -------
    Recovery or None
        100% for the checkpoint as it was published. An fp8 KV cache alone was not measured: its loss is
        bounded by that of fp8 weights and fp8 KV cache together. A combination of weights and KV cache that
        was not measured is the product of both. None when nothing is known about the weights.
    """
    size = size_class(model)
    if precision.weights == model.native_precision:
        weights: Recovery | None = Recovery(
            pct=(100.0, 100.0, 100.0), num_results=0, source=f"{model.name} as it was published"
        )
    else:
        weights = published(precision.weights, size)
    if precision.kv == "bf16":
        return weights
    if precision.weights != model.native_precision:
        measured = published(f"{precision.weights}+kv-{precision.kv}", size)
        if measured is not None:
            return measured
    kv = published(f"fp8+kv-{precision.kv}", size)
    if weights is None or kv is None:
        return None
    low, typical, high = (a * b / 100.0 for a, b in zip(weights.pct, kv.pct, strict=True))
    return Recovery(
        pct=(low, typical, high),
        num_results=min(weights.num_results or kv.num_results, kv.num_results),
        source=f"not measured: {weights.source}, times a bound on the loss of the KV cache from {kv.source}",
        is_estimate=True,
    )
