"""llama.cpp's own benches: ``llama-bench`` and ``llama-batched-bench``.

Prompts are computed in batches of ``n_ubatch`` tokens, one sequence after the other; all sequences decode together.
``llama-bench`` fills the cache to a depth first. Prefill and decode are timed apart.

Sources: ggml-org/llama.cpp ``benches/dgx-spark``, ``tools/batched-bench/batched-bench.cpp``,
``tools/llama-bench/llama-bench.cpp`` (read 2026-11-29).
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from benchmarks.throughput_names import place_gpu, place_model
from benchmarks.throughput_rows import Row, Unplaceable
from benchmarks.throughput_runs import StaticTimes, replaying_every_size, static_batch
from servewise.engines import llamacpp
from servewise.errors import InputError
from servewise.perf import StepFormula
from servewise.types import Deployment, ModelSpec, Parallelism, Precision, WeightPrecision

__all__ = ["file_type", "predict"]

DEFAULT_UBATCH = 2048
"""``-ub 2048`` of the published sweeps, which state it for the batched ones."""
FILE_TYPES: dict[str, WeightPrecision] = {
    "q8_0": "q8_0",
    "q4_0": "q4_0",
    "q4_k": "q4_k_m",
    "mxfp4": "mxfp4",
    "f16": "bf16",
    "bf16": "bf16",
}
"""GGUF file types and the precisions of weights that stand for them."""


def file_type(row: Row, model: ModelSpec) -> WeightPrecision:
    """Precision of a GGUF file, from its name or the row's precision.

    ggml-org's files that name no type hold the checkpoint's own precision where that is quantized, Q4_0 where the
    model was trained for it (``qat``), and Q8_0 otherwise.

    Raises
    ------
    Unplaceable
        When servewise has no such precision.
    """
    stated = f"{row.model} {row.precision}".lower()
    found = re.search(r"(?<![a-z0-9])(q\d_[0k]|mxfp4|bf16|f16)(?![a-z0-9])", stated)
    if found:
        name = found.group(1)
    elif model.native_precision != "bf16":
        name = model.native_precision
    else:
        name = "q4_0" if "qat" in stated else "q8_0"
    if name not in FILE_TYPES:
        raise Unplaceable(f"precision not modelled: {name}")
    return FILE_TYPES[name]


@cache
def formula_of(row_model: str, gpu_name: str, weights: WeightPrecision, batch: int) -> StepFormula:
    """Step times of one sequence or several on one GPU, with the cache in f16."""
    model, gpu = place_model(row_model), place_gpu(gpu_name)
    version = llamacpp.default_version()
    params = replace(
        llamacpp.default_params(version, gpu, model),
        parallel=batch,
        batch_size=DEFAULT_UBATCH,
        ubatch_size=DEFAULT_UBATCH,
    )
    deployment = Deployment(
        model=model,
        gpu=gpu,
        engine="llama.cpp",
        engine_version=version,
        precision=Precision(weights=weights, kv="bf16"),
        parallelism=Parallelism(),
        params=params,
    )
    return replaying_every_size(StepFormula(deployment), max(DEFAULT_UBATCH, batch))


def predict(row: Row) -> float:
    """Predicted value of a row [tokens/s].

    Raises
    ------
    Unplaceable
        With the reason.
    """
    if row.num_gpus > 1:
        raise Unplaceable("llama.cpp over several GPUs is not modelled")
    model = place_model(row.model)
    place_gpu(row.gpu)
    batch = row.batch or 1
    ubatch = re.search(r"n_ubatch=(\d+)", row.notes)
    depth = re.search(r"context depth=(\d+)", row.notes)
    try:
        times = timed(
            formula_of(row.model, row.gpu, file_type(row, model), batch),
            row,
            batch=batch,
            chunk=int(ubatch.group(1)) if ubatch else DEFAULT_UBATCH,
            depth=int(depth.group(1)) if depth else 0,
        )
    except InputError as error:
        raise Unplaceable(str(error)) from None
    if row.metric == "prefill_tokens_per_s" and row.input_tokens:
        return batch * row.input_tokens / times.prefill_s
    if row.metric == "decode_tokens_per_s" and row.output_tokens:
        return batch * row.output_tokens / times.decode_s
    raise Unplaceable(f"no prediction of {row.metric} without its lengths")


def timed(formula: StepFormula, row: Row, *, batch: int, chunk: int, depth: int) -> StaticTimes:
    """Time of the part that a row states: decode is timed without the prompts, each token taking a step."""
    if row.metric == "decode_tokens_per_s":
        return static_batch(
            formula,
            batch=batch,
            input_tokens=0,
            output_tokens=row.output_tokens,
            cached_tokens=depth + row.input_tokens,
        )
    return static_batch(
        formula, batch=batch, input_tokens=row.input_tokens, output_tokens=0, cached_tokens=depth, chunk=chunk
    )
