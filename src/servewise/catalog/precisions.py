"""Which precision runs on which GPU under which engine."""

from __future__ import annotations

from typing import get_args

from servewise.catalog.facts import Fact, read_facts
from servewise.errors import CatalogError, UnknownNameError
from servewise.types import DESCRIBED, GpuSpec, KvPrecision, Precision, WeightPrecision

__all__ = ["supported_precisions", "unsupported_precisions", "weights_only_stored"]

PRECISIONS = "catalog/precisions.csv"
SUPPORT = ("native", "weight_only", "none")
"""``weight_only``: stored in the precision, computed in bf16: it saves memory and bandwidth, no compute."""


def supported_precisions(gpu: GpuSpec, engine: str = "vllm") -> tuple[Precision, ...]:
    """Precisions that an engine runs on a GPU.

    Parameters
    ----------
    gpu : GpuSpec
    engine : str

    Returns
    -------
    tuple of Precision
        Every supported precision of weights with every supported one of the KV cache, bf16 first; none when the
        engine does not run on the GPU; bf16 alone on a described device. Whether a model can be had in it is another
        question (see ``quality``).

    Raises
    ------
    UnknownNameError
        When nothing is known about the engine.
    CatalogError
        When the table does not know the GPU's architecture.

    Sources
    -------
    ``data/catalog/precisions.csv``: the support matrix and pages of vLLM's documentation, llama.cpp's backends and
    types, a source a value.
    """
    if gpu.architecture == DESCRIBED:  # other formats would need kernels that nobody described
        return (Precision(),)
    weights = [w for w in get_args(WeightPrecision) if _support(gpu, engine, f"weights.{w}") != "none"]
    kvs = [k for k in get_args(KvPrecision) if _support(gpu, engine, f"kv.{k}") != "none"]
    return tuple(Precision(weights=w, kv=k) for w in weights for k in kvs)


def unsupported_precisions(gpu: GpuSpec, engine: str) -> dict[str, str]:
    """What an engine does not run on a GPU, e.g. ``nvfp4 weights``, with the reason, or the source where it gives none.

    On a described device everything but bf16: nobody described kernels for other formats.
    """
    parts = [("weights", name, f"{name} weights") for name in get_args(WeightPrecision)]
    parts += [("kv", name, f"{name} KV cache") for name in get_args(KvPrecision)]
    if gpu.architecture == DESCRIBED:
        plain = Precision()
        return {text: "not described" for _, name, text in parts if name not in (plain.weights, plain.kv)}
    facts = ((text, _fact(gpu, engine, f"{part}.{name}")) for part, name, text in parts)
    return {text: f.provenance.note or f.provenance.source for text, f in facts if f.value == "none"}


def weights_only_stored(gpu: GpuSpec, engine: str, weights: WeightPrecision) -> bool:
    """Whether an engine unpacks such weights and computes in bf16 on a GPU."""
    return gpu.architecture != DESCRIBED and _support(gpu, engine, f"weights.{weights}") == "weight_only"


def _support(gpu: GpuSpec, engine: str, part: str) -> str:
    """What the table says of an engine, a GPU and ``weights.NAME`` or ``kv.NAME``."""
    return _fact(gpu, engine, part).value


def _fact(gpu: GpuSpec, engine: str, part: str) -> Fact:
    """The value and its source.

    Raises
    ------
    UnknownNameError
        When nothing is known about the engine.
    CatalogError
        When the table does not know the GPU's architecture or lacks the part.
    """
    engine = "llama.cpp" if engine == "ollama" else engine  # which it runs
    table = read_facts(PRECISIONS)
    engines = {field.rsplit(".", 2)[0] for fields in table.values() for field in fields}
    if engine not in engines:
        raise UnknownNameError("engine", engine, engines)
    if gpu.architecture not in table:
        raise CatalogError(f"{PRECISIONS}: nothing about architecture {gpu.architecture!r} of {gpu.name}")
    field = f"{engine}.{part}"
    fact = table[gpu.architecture].get(field)
    if fact is None or fact.value not in SUPPORT:
        raise CatalogError(f"{PRECISIONS}: {gpu.architecture} {field} must be one of {', '.join(SUPPORT)}")
    return fact
