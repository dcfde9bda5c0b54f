"""llama.cpp's own benches: ``llama-bench`` and ``llama-batched-bench``.

``llama-batched-bench`` computes the prompts of all sequences one after the other in batches of ``n_batch`` tokens, and
then a token of each at a time; every sequence has a stream of its own. That is what the simulated server does with as
many slots when all prompts come at once and are in one logical batch, so these rows are predicted by a simulation.
``llama-bench`` has one sequence and fills the cache to a depth first. Prefill and decode are timed apart.

Sources: ggml-org/llama.cpp ``benches/dgx-spark``, ``tools/batched-bench/batched-bench.cpp``,
``tools/llama-bench/llama-bench.cpp`` (read 2026-11-29).
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np

from benchmarks.throughput_names import place_gpu, place_model
from benchmarks.throughput_rows import Row, Unplaceable
from benchmarks.throughput_runs import StaticTimes, queued, static_batch
from servewise.engines import llamacpp
from servewise.errors import InputError
from servewise.perf import StepFormula, memory, tabulate
from servewise.sim import simulate
from servewise.types import (
    Deployment,
    LlamacppParams,
    ModelSpec,
    Parallelism,
    Precision,
    Provenance,
    StepModel,
    WeightPrecision,
)

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
def formula_of(row_model: str, gpu_name: str, weights: WeightPrecision) -> StepFormula:
    """Step times of up to ``DEFAULT_UBATCH`` tokens on one GPU, with the cache in f16."""
    model, gpu = place_model(row_model), place_gpu(gpu_name)
    version = llamacpp.default_version()
    params = replace(
        llamacpp.default_params(version, gpu, model), batch_size=DEFAULT_UBATCH, ubatch_size=DEFAULT_UBATCH
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
    return StepFormula(deployment)


@cache
def model_of(formula: StepFormula) -> StepModel:
    """The same as a table, without a network."""
    table = replace(tabulate(formula), request_fixed_s=0.0, request_s_per_input_token=0.0)
    return StepModel(table=table, provenance={}, max_context_tokens=formula.deployment.max_request_tokens)


def simulated(formula: StepFormula, *, batch: int, input_tokens: int, output_tokens: int, chunk: int) -> StaticTimes:
    """Time of ``batch`` sequences through the simulated server: prompts in one logical batch, then decode steps.

    The bench keeps no checkpoints for models with sliding windows, so their prompts are not cut before their end.
    """
    room = input_tokens + output_tokens + 2
    deployment = replace(
        formula.deployment,
        model=replace(formula.deployment.model, num_sliding_layers=0),
        params=LlamacppParams(
            ctx_size=batch * -(-room // 256) * 256,
            parallel=batch,
            batch_size=max(batch * input_tokens, chunk),
            ubatch_size=chunk,
            kv_unified=False,
        ),
    )
    workload = queued(
        "llama-batched-bench",
        np.full(batch, input_tokens),
        np.full(batch, output_tokens + 1),
        Provenance(kind="derived", source="the row's lengths"),
    )
    report = memory(replace(deployment, model=formula.deployment.model))
    outputs = simulate(workload, deployment, model_of(formula), report).outputs
    first_s = float(outputs.first.max())
    return StaticTimes(prefill_s=first_s, decode_s=float(outputs.last.max()) - first_s)


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
    ubatch = re.search(r"n_ubatch=(\d+)", row.notes)
    chunk = int(ubatch.group(1)) if ubatch else DEFAULT_UBATCH
    try:
        formula = formula_of(row.model, row.gpu, file_type(row, model))
        if "batched-bench" in row.source:
            times = simulated(
                formula,
                batch=row.batch or 1,
                input_tokens=row.input_tokens,
                output_tokens=row.output_tokens,
                chunk=chunk,
            )
        else:
            times = one_sequence(formula, row, chunk)
    except InputError as error:
        raise Unplaceable(str(error)) from None
    if row.metric == "prefill_tokens_per_s" and row.input_tokens:
        return (row.batch or 1) * row.input_tokens / times.prefill_s
    if row.metric == "decode_tokens_per_s" and row.output_tokens:
        return (row.batch or 1) * row.output_tokens / times.decode_s
    raise Unplaceable(f"no prediction of {row.metric} without its lengths")


def one_sequence(formula: StepFormula, row: Row, chunk: int) -> StaticTimes:
    """Time of the part that a row states: decode is timed without the prompts, each token taking a step."""
    depth = re.search(r"context depth=(\d+)", row.notes)
    filled = int(depth.group(1)) if depth else 0
    if row.metric == "decode_tokens_per_s":
        return static_batch(
            formula,
            batch=1,
            input_tokens=0,
            output_tokens=row.output_tokens,
            cached_tokens=filled + row.input_tokens,
        )
    return static_batch(
        formula, batch=1, input_tokens=row.input_tokens, output_tokens=0, cached_tokens=filled, chunk=chunk
    )
