"""Names of models, GPUs and precisions in published results, as the catalog knows them."""

from __future__ import annotations

import re

from servewise.catalog import get_gpu, get_model
from servewise.errors import InputError, UnknownNameError
from servewise.types import GpuSpec, ModelSpec, WeightPrecision

__all__ = ["find_gpu", "find_model", "weight_precision"]

QUANTIZED_SUFFIX = re.compile(
    r"[-_](fp8|nvfp4|fp4|mxfp4|int8|int4|awq|gptq|w8a8|w4a16|bf16|fp16)([-_].*)?$", re.IGNORECASE
)
PRECISIONS: dict[str, WeightPrecision] = {
    "": "bf16",
    "unstated": "bf16",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "fp16": "bf16",
    "float16": "bf16",
    "fp8": "fp8",
    "fp8_static": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "int8_wo": "int8",
    "sq": "int8",
    "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
}


def find_model(name: str) -> ModelSpec:
    """Catalog model of a published name: the name itself, or the model that a quantized copy was made from.

    Raises
    ------
    UnknownNameError
        When the catalog has neither.
    """
    bare = QUANTIZED_SUFFIX.sub("", name)
    unknown: UnknownNameError | None = None
    for candidate in (name, bare, bare.split("/")[-1]):
        try:
            return get_model(candidate)
        except UnknownNameError as error:
            unknown = unknown or error
    assert unknown is not None
    raise unknown


def find_gpu(name: str) -> GpuSpec:
    """Catalog GPU of a published name, with or without what follows its memory size."""
    return get_gpu(re.sub(r"[_-]server$", "", name.strip(), flags=re.IGNORECASE))


def weight_precision(stated: str, model: ModelSpec, name: str) -> WeightPrecision:
    """Precision of the linear layers, from how a source states it.

    A checkpoint that is published quantized is served as it is, whatever the source calls it; ``fp8`` of a
    checkpoint whose name says so means its own blocks where its makers publish blocks of 128 x 128.

    Raises
    ------
    InputError
        When a precision is stated that is not known.
    """
    if model.native_precision != "bf16":
        return model.native_precision
    found = PRECISIONS.get(stated.strip().lower())
    if found is None:
        raise InputError(f"precision {stated!r} is not known; known: {', '.join(filter(None, PRECISIONS))}")
    if found == "fp8" and name.startswith("Qwen/") and name.upper().endswith("-FP8"):
        return "fp8_block"
    return found
