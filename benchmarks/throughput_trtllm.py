"""TensorRT-LLM's own performance overviews: what was run, by version, and what servewise says of it.

Up to 0.9 static batches of ``gptSessionBenchmark``; from 0.10 on ``trtllm-bench throughput``: all requests queued at
once, equal lengths, batch limits listed by model and later from its own heuristic, up to 0.18 with engines built ahead
(C++), since then with the PyTorch backend.

Sources: NVIDIA/TensorRT-LLM ``docs/source/performance/perf-overview.md`` of 0.9, 0.14 and 1.0 (@00f3768) and
``docs/source/developer-guide/perf-overview.md`` (@03e27c7), ``tensorrt_llm/bench/build/tuning.py`` (@04cba88), read
2026-11-29.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from benchmarks.throughput_builds import built_limits
from benchmarks.throughput_names import place_gpu, place_model
from benchmarks.throughput_rows import Row, Unplaceable
from benchmarks.throughput_runs import (
    SideBySide,
    output_tokens_per_s,
    queued,
    replaying_every_size,
    run,
    static_batch,
    with_graph_sizes,
)
from servewise.catalog import param_counts
from servewise.engines import trtllm
from servewise.errors import InputError
from servewise.perf import StepFormula, memory
from servewise.types import (
    Deployment,
    GpuSpec,
    MemoryReport,
    ModelSpec,
    Parallelism,
    Precision,
    Provenance,
    TrtllmParams,
    WeightPrecision,
)

__all__ = ["Settings", "num_requests", "place", "predict", "tuned_settings"]

SOURCE = Provenance(kind="spec", source="NVIDIA/TensorRT-LLM@00f3768 docs/source/performance/perf-overview.md")
GRAPH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 2048, 4096, 8192)
"""``cuda_graph_config.batch_sizes`` of the overviews' PyTorch runs, padded to; those above the largest batch are
replaced by it (``pyexecutor/model_engine.py``, ``_filter_cuda_graph_batch_sizes``)."""
QUEUED_KV_FRACTION = 0.95
"""``--kv_cache_free_gpu_mem_fraction`` "in many cases"; 0.90 or lower after an out-of-memory error."""
ENGINE_KV_FRACTION = 0.90
"""Default of ``trtllm-bench`` in the versions that build engines."""
REQUESTS_BY_LENGTH = ((256, 30000), (2500, 3000), (9216, 1500))
"""Longest input and output together, and how many requests: the overviews' tables of both generations."""
MOST_REQUESTS_OF_LONG = 1000
STATED: dict[str, WeightPrecision] = {
    "fp16": "bf16",
    "bf16": "bf16",
    "fp8": "fp8",
    "fp4": "nvfp4",
    "nvfp4": "nvfp4",
    "int8": "int8",
    "int4": "int4",
    "int4-awq": "int4",
    "int4 awq": "int4",
    "w4a16_awq": "int4",
}
"""First word of a stated precision; what follows in brackets explains it."""
MAX_BATCH, MAX_TOKENS = 4096, 32768
"""Caps of the heuristic."""
ROW_BYTES_PER_WORD = 16
"""What the C++ decoder holds of every row it may have, a word of the vocabulary [bytes]: about four copies of its
logits in fp32, from the cache that Llama-3-70B has left at TP2 between builds for 256 and for 2,048 rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Batch limits of a run; a rank of an attention data parallel group has them for itself."""

    max_batch_size: int
    max_num_tokens: int


def version_numbers(version: str) -> tuple[int, int]:
    """Major and minor version; ``1.2-era`` counts as 1.2."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is None:
        raise Unplaceable(f"engine version not named: {version!r}")
    return int(found.group(1)), int(found.group(2))


def num_requests(input_tokens: int, output_tokens: int) -> int:
    """Requests of a queued run, by the length of one."""
    total = input_tokens + output_tokens
    return next((count for limit, count in REQUESTS_BY_LENGTH if total <= limit), MOST_REQUESTS_OF_LONG)


def round_up(value: float, step: int) -> int:
    """Next multiple of ``step``."""
    return step * math.ceil(value / step)


def tuned_settings(
    model: ModelSpec, gpu: GpuSpec, precision: Precision, num_gpus: int, row: Row, kv_fraction: float
) -> Settings:
    """Batch limits that ``trtllm-bench`` chooses: from how many requests it thinks fit, rounded up.

    Its estimate takes every layer's KV cache over all GPUs, also where layers slide or latents are stored.
    """
    stages = max(row.pp, 1)
    width = {"bf16": 2.0, "fp8": 1.0}[precision.kv]
    stored = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5, "mxfp4": 0.5}.get(precision.weights, 2.0)
    head = model.head_dim if model.attention == "gqa" else model.hidden_size // model.num_heads
    per_token = 2 * model.num_layers * max(num_gpus // stages, model.num_kv_heads) * head * width
    free = gpu.mem_bytes * num_gpus - param_counts(model).total * stored
    fits = max(free, 0.0) * kv_fraction / (per_token * (row.input_tokens + row.output_tokens))
    rows = min(fits, MAX_BATCH) / stages
    tokens = min(rows * (1 + row.input_tokens / row.output_tokens), MAX_TOKENS)
    batch = max(64, round_up(rows, 32)) if rows < 256 else round_up(rows, 128 if rows < 1024 else 256)
    limit = max(2048, round_up(tokens, 256)) if tokens < 4096 else round_up(tokens, 512 if tokens < 8192 else 1024)
    return Settings(max_batch_size=batch, max_num_tokens=limit)


def precision_of(row: Row, model: ModelSpec, gpu: GpuSpec) -> Precision:
    """Precision of weights and KV cache, as the overview's checkpoints have them.

    ``FP8 implies FP8 KV cache`` in engine builds; ModelOpt's FP8 and FP4 checkpoints ask for an FP8 cache too, and
    so do the options of gpt-oss and DeepSeek, except ``Hopper: use auto`` for gpt-oss. A model published
    quantized runs in its own precision, but for NVFP4 conversions of DeepSeek.
    """
    stated = STATED.get(row.precision.partition("(")[0].strip().lower())
    if stated is None:
        raise Unplaceable(f"precision not known: {row.precision!r}")
    native = model.native_precision
    weights = stated
    if native != "bf16" and not (native == "fp8_block" and stated == "nvfp4"):
        weights = native
    if stated in ("bf16", "int8", "int4") and native == "bf16":
        return Precision(weights=weights, kv="bf16")
    if native == "mxfp4" and gpu.architecture == "hopper":
        return Precision(weights=weights, kv="bf16")
    return Precision(weights=weights, kv="fp8")


def parallelism_of(row: Row, model: ModelSpec) -> Parallelism:
    """Parallelism of one deployment.

    ``DEP`` is attention data parallel with the experts divided among all ranks. The overviews of the PyTorch
    backend set ``enable_attention_dp`` for every model with experts, also where the table's head says ``TP``.
    """
    stages, gpus = max(row.pp, 1), row.num_gpus or max(row.tp, 1) * max(row.pp, 1)
    group = gpus // stages
    found = re.search(r"cfg=DEP(\d+)", row.notes)
    if found or (model.moe is not None and not is_built(row) and row.tp > 1):
        ranks = int(found.group(1)) if found else row.tp
        return Parallelism(data_parallel_size=ranks, expert_parallel_size=ranks, pipeline_parallel_size=stages)
    if not row.tp:
        raise Unplaceable("tensor parallel size not named")
    if row.tp != group:
        raise Unplaceable(f"TP{row.tp} x PP{stages} is not {gpus} GPUs")
    experts = group if model.moe is not None and row.ep == group else 1
    return Parallelism(tensor_parallel_size=row.tp, expert_parallel_size=experts, pipeline_parallel_size=stages)


def is_built(row: Row) -> bool:
    """Whether an engine was built ahead, whose kernels are enqueued from C++."""
    return version_numbers(row.version) < (0, 19) or "engine backend" in row.engine


@cache
def place(row: Row) -> tuple[Deployment, bool]:
    """Deployment of a row, and whether its kernels are enqueued from C++ (a built engine).

    Raises
    ------
    Unplaceable
        With the reason.
    """
    if not row.input_tokens or not row.output_tokens:
        raise Unplaceable("lengths not named")
    gpu, model = place_gpu(row.gpu), place_model(row.model)
    precision, parallelism = precision_of(row, model, gpu), parallelism_of(row, model)
    built = is_built(row)
    stages = parallelism.pipeline_parallel_size
    length = row.input_tokens + row.output_tokens
    params = trtllm.default_params(trtllm.default_version(), gpu, model, parallelism)
    if row.batch:
        tokens = max(row.batch * row.input_tokens, 1)
        params = replace(params, max_batch_size=row.batch, max_num_tokens=tokens, max_seq_len=length)
    else:
        fraction = ENGINE_KV_FRACTION if built else QUEUED_KV_FRACTION
        if built:
            batch, tokens = built_limits(model.name, parallelism.tensor_parallel_size, length)
            tuned = Settings(max_batch_size=min(batch, tokens), max_num_tokens=tokens)
        else:
            tuned = tuned_settings(model, gpu, precision, parallelism.num_gpus, row, fraction)
        params = TrtllmParams(
            max_batch_size=tuned.max_batch_size * stages,
            max_num_tokens=tuned.max_num_tokens * stages,
            max_seq_len=length,
            free_gpu_memory_fraction=fraction,
            tokens_per_block=64 if built else params.tokens_per_block,
            enable_chunked_prefill=True,
            cuda_graph_padding=True,
            cuda_graph_max_batch_size=GRAPH_SIZES[-1],
        )
    deployment = Deployment(
        model=model,
        gpu=gpu,
        engine="tensorrt-llm",
        engine_version=row.version,
        precision=precision,
        parallelism=parallelism,
        params=params,
    )
    return deployment, built


def graph_sizes(deployment: Deployment) -> tuple[int, ...]:
    """Batch sizes captured for one stage."""
    stages = deployment.parallelism.pipeline_parallel_size
    most = min(deployment.max_rows, deployment.max_step_tokens) // stages
    return tuple(sorted({min(size, most) for size in GRAPH_SIZES}))


def formula_of(deployment: Deployment, built: bool) -> StepFormula:
    """Step times as the run had them."""
    try:
        formula = SideBySide(deployment)
    except InputError as error:
        raise Unplaceable(str(error)) from None
    if built:
        return replaying_every_size(formula, max(deployment.max_step_tokens, deployment.max_rows))
    return with_graph_sizes(formula, graph_sizes(deployment))


def memory_of(deployment: Deployment, built: bool) -> MemoryReport:
    """Memory of a run; the C++ decoder of a built engine has buffers for its largest batch besides."""
    report = memory(deployment)
    if not built:
        return report
    size, longest = deployment.parallelism.tensor_parallel_size, deployment.max_request_tokens
    batch, _ = built_limits(deployment.model.name, size, longest)
    buffers = ROW_BYTES_PER_WORD * batch * deployment.model.vocab_size * ENGINE_KV_FRACTION
    lost = math.ceil(buffers / (report.kv_bytes_per_token * report.block_size_tokens))
    return replace(report, num_kv_blocks=max(report.num_kv_blocks - lost, 0))


def predict(row: Row) -> float:
    """Predicted value of a row, in its metric's unit.

    Raises
    ------
    Unplaceable
        With the reason.
    """
    deployment, built = place(row)
    gpus = deployment.num_gpus
    if row.batch:
        times = static_batch(
            formula_of(deployment, built),
            batch=row.batch,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
        )
        if row.metric.startswith("ttft"):
            return times.prefill_s
        total = row.batch * row.output_tokens / (times.prefill_s + times.decode_s)
    else:
        total = queued_tokens_per_s(deployment, built, row)
    return total / gpus if row.metric.endswith("_per_gpu") else total


def queued_tokens_per_s(deployment: Deployment, built: bool, row: Row) -> float:
    """Output tokens per second of all GPUs, all requests being there at the start."""
    ranks = deployment.parallelism.data_parallel_size
    count = ranks * math.ceil(num_requests(row.input_tokens, row.output_tokens) / ranks)
    report = memory_of(deployment, built)
    if not report.fits:
        raise Unplaceable(f"does not fit by the memory model: {report.reason}")
    inputs, outputs = (np.full(count, n, np.int64) for n in (row.input_tokens, row.output_tokens))
    workload = queued(row.name, inputs, outputs, SOURCE)
    formula = formula_of(deployment, built)
    # no pipeline of this engine is simulated: the formula's steps are those of all its stages
    one_stage = replace(deployment.parallelism, pipeline_parallel_size=1)
    try:
        outcome = run(workload, replace(deployment, parallelism=one_stage), formula, report)
    except InputError as error:
        raise Unplaceable(str(error)) from None
    # ranks with equal requests stay in step
    return output_tokens_per_s(workload, outcome)
