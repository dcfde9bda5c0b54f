"""The clients and servers behind published serving runs, as far as their sources state them.

InferenceX (SemiAnalysisAI/InferenceX, ``benchmarks/*.sh`` and ``.github/workflows/*sweep.yml`` of 2025-10 to
2026-03, read 2026-11-29): ``benchmark_serving.py --random-range-ratio 0.8 --num-prompts 10*CONC --max-concurrency CONC
--request-rate inf --ignore-eos``; server settings as in :func:`inferencex_params`. Their dates are known and their
lengths are pairs of 1,024 and 8,192.

The other runs (AIConfigurator's own) state lengths and a concurrency only. They are taken to be a closed loop of
1,000 prompts of fixed lengths, the usual client's default.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from servewise.engines import sglang, trtllm, vllm
from servewise.types import (
    CudagraphMode,
    Deployment,
    EngineName,
    EngineParams,
    GpuSpec,
    KvPrecision,
    ModelSpec,
    Parallelism,
    Precision,
    Provenance,
    SglangParams,
    TrtllmParams,
    VllmParams,
    WeightPrecision,
    Workload,
)

__all__ = ["Client", "Server", "deployment_of", "is_inferencex", "named_client", "requests_of"]

PROMPTS_PER_CONCURRENT_REQUEST = 10
NUM_PROMPTS = 1000
"""Default of ``vllm bench serve`` and SGLang's ``bench_serving``, for clients that do not say."""
INFERENCEX_LENGTHS = {(1024, 1024), (1024, 8192), (8192, 1024)}
INFERENCEX_SHORTEST_FRAC = 0.8
SERVER_CONTEXT_TOKENS = 256
"""Room that servers are given beyond the longest request, as InferenceX's scripts do (20 to 200 tokens)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A closed loop: ``concurrency`` requests in flight, lengths uniform from ``shortest_frac`` of the nominal on."""

    source: str
    input_tokens: int
    output_tokens: int
    concurrency: int
    shortest_frac: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What a row says of the server."""

    engine: EngineName
    version: str
    model: ModelSpec
    gpu: GpuSpec
    weights: WeightPrecision
    parallelism: Parallelism


def is_inferencex(date: str, input_tokens: int, output_tokens: int) -> bool:
    """Whether a run is InferenceX's: dated, with its lengths."""
    return bool(date) and (input_tokens, output_tokens) in INFERENCEX_LENGTHS


def named_client(date: str, input_tokens: int, output_tokens: int, concurrency: int) -> Client:
    """Client of a run: InferenceX's where its date and lengths are InferenceX's, else fixed lengths."""
    inferencex = is_inferencex(date, input_tokens, output_tokens)
    return Client(
        source="InferenceX" if inferencex else "AIConfigurator",
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        concurrency=concurrency,
        shortest_frac=INFERENCEX_SHORTEST_FRAC if inferencex else 1.0,
    )


def kv_precision(client: Client, server: Server) -> KvPrecision:
    """Precision of the KV cache.

    InferenceX sets fp8 for Llama and for gpt-oss on TensorRT-LLM's Blackwell, and leaves it to the engine elsewhere.
    Its Hopper scripts for vLLM set fp8 too, but the runs were not made so: on two H100 requests queue from 32 on, as
    they do with a bf16 cache only. TensorRT-LLM takes fp8 for checkpoints quantized to per-tensor fp8 or nvfp4,
    whose exporter (ModelOpt) stores KV scales; vLLM and SGLang do so only when told.
    """
    hopper = server.gpu.architecture == "hopper"
    if client.source == "InferenceX":
        if server.model.moe is None:
            return "bf16" if server.engine == "vllm" and hopper else "fp8"
        return "fp8" if server.engine == "tensorrt-llm" and not hopper else "bf16"
    return "fp8" if server.engine == "tensorrt-llm" and server.weights in ("fp8", "nvfp4") else "bf16"


def engine_params(client: Client, server: Server) -> EngineParams:
    """Settings of the server of a run."""
    context = client.input_tokens + client.output_tokens + SERVER_CONTEXT_TOKENS
    known = client.source == "InferenceX"
    if server.engine == "vllm":
        return vllm_params(client, server, context, known)
    if server.engine == "tensorrt-llm":
        return trtllm_params(client, server, context, known)
    default = sglang.default_params(server.version, server.gpu, server.model, server.parallelism)
    params: SglangParams = replace(default, context_length=context, ignore_eos=True)
    return params


def vllm_params(client: Client, server: Server, context: int, known: bool) -> VllmParams:
    """InferenceX: 8,192 batched tokens, asynchronous scheduling, ``--max-num-seqs CONC`` on Hopper and 512 on B200."""
    default = vllm.default_params(server.version, server.gpu, server.model)
    params = replace(default, max_model_len=context, enable_prefix_caching=False)
    if not known:
        return replace(params, max_num_batched_tokens=2048)
    rows = client.concurrency if server.gpu.architecture == "hopper" else 512
    # B200: full graphs of decode steps only, with fused all-reduce and attention
    mode: CudagraphMode = "FULL_AND_PIECEWISE" if server.gpu.architecture == "hopper" else "FULL_DECODE_ONLY"
    return replace(
        params, max_num_batched_tokens=8192, max_num_seqs=max(rows, 1), async_scheduling=True, cudagraph_mode=mode
    )


def trtllm_params(client: Client, server: Server, context: int, known: bool) -> TrtllmParams:
    """InferenceX: gpt-oss with 20,000 tokens a step and graphs up to CONC; Llama with 16,384 and graphs to 1,024
    (``70b_fp4_b200_trt_docker.sh@c2faa3d``, ``70b_fp8_b200_trt_slurm.sh@a267b4b``; older scripts name the context
    limit instead) and, for 1,024 in and out below TP 8, prompts that wait up to 20 steps for a batch of 90% of it."""
    default = trtllm.default_params(server.version, server.gpu, server.model, server.parallelism)
    params = replace(default, max_seq_len=context, cuda_graph_padding=True, cuda_graph_max_batch_size=1024)
    if not known:
        return replace(params, max_num_tokens=max(2048, client.input_tokens + client.concurrency))
    if server.model.moe is not None:
        params = replace(params, max_num_tokens=20000, cuda_graph_max_batch_size=max(client.concurrency, 1))
        # attention_dp_config.enable_balance: prompts wait until every rank has one, at most 50 steps
        balanced = server.parallelism.data_parallel_size > 1
        return replace(params, batch_wait_timeout_iters=50, batch_wait_max_tokens_ratio=1.0) if balanced else params
    params = replace(params, max_num_tokens=16384)
    waits = client.input_tokens == client.output_tokens == 1024 and server.parallelism.tensor_parallel_size < 8
    return replace(params, batch_wait_timeout_iters=20, batch_wait_max_tokens_ratio=0.9) if waits else params


def requests_of(client: Client) -> Workload:
    """Requests of a run, in the order in which they are sent; outputs end by length (``--ignore-eos``)."""
    known = client.source == "InferenceX"
    num = PROMPTS_PER_CONCURRENT_REQUEST * client.concurrency if known else max(NUM_PROMPTS, client.concurrency)
    draw = np.random.default_rng([client.input_tokens, client.output_tokens])

    def lengths(nominal: int) -> np.ndarray:
        low = max(1, int(client.shortest_frac * nominal))
        return draw.integers(low, nominal + 1, num)

    inputs, outputs = lengths(client.input_tokens), lengths(client.output_tokens)
    return Workload(
        name=client.source,
        arrival_s=np.zeros(num),
        input_tokens=inputs,
        output_tokens=outputs,
        max_tokens=outputs,
        max_tokens_kind="declared",
        prefix=None,
        session=None,
        provenance=Provenance(kind="assumed", source=client.source),
    )


def deployment_of(client: Client, server: Server) -> Deployment:
    """The deployment that a run measured."""
    return Deployment(
        model=server.model,
        gpu=server.gpu,
        engine=server.engine,
        engine_version=server.version,
        precision=Precision(weights=server.weights, kv=kv_precision(client, server)),
        parallelism=server.parallelism,
        params=engine_params(client, server),
    )
