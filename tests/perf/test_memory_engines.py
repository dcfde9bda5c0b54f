"""Memory of one deployment of each engine, worked out by hand, and what parallelism does to weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servewise import perf
from servewise.catalog import get_gpu, get_model
from servewise.engines import llamacpp, sglang, trtllm, vllm
from servewise.errors import InputError
from servewise.types import Deployment, EngineName, EngineParams, GpuSpec, ModelSpec, Parallelism, Precision
from servewise.units import GIB

LLAMA = get_model("meta-llama/Llama-3.1-8B-Instruct")
V3 = get_model("deepseek-ai/DeepSeek-V3")
H100 = get_gpu("H100-SXM-80GB")
ROUND_GPU = replace(H100, mem_bytes=80 * GIB)
LLAMA_PARAMS = 8030261248
LLAMA_KV_BYTES = 32 * 8 * 128 * 2 * 2


def deploy(
    engine: EngineName,
    version: str,
    params: EngineParams,
    *,
    model: ModelSpec = LLAMA,
    gpu: GpuSpec = ROUND_GPU,
    precision: Precision | None = None,
    parallelism: Parallelism | None = None,
) -> Deployment:
    return Deployment(
        model=model,
        gpu=gpu,
        engine=engine,
        engine_version=version,
        precision=precision or Precision(),
        parallelism=parallelism or Parallelism(),
        params=params,
    )


def test_vllm_by_hand() -> None:
    """Llama-3.1-8B, 8,192 tokens, 1,024 sequences: three hidden states a token, then logits of 14 bytes."""
    params = replace(vllm.default_params("0.19.0", H100, LLAMA), gpu_memory_utilization=0.95, max_model_len=8192)
    report = perf.memory(deploy("vllm", "0.19.0", params))
    activation = 6 * 8192 * 4096 + 14 * 1024 * 128256
    assert report.activation_bytes == activation
    assert report.weights_bytes == pytest.approx(2 * LLAMA_PARAMS, rel=1e-4)
    assert report.graph_bytes == 0
    kv = 0.95 * 80 * GIB - 2 * LLAMA_PARAMS - activation - 0.25 * GIB
    assert report.kv_bytes == pytest.approx(kv, rel=1e-3)
    assert report.kv_capacity_tokens == pytest.approx(kv / LLAMA_KV_BYTES, rel=1e-3)


def test_vllm_leaves_graphs_out_when_none_are_captured() -> None:
    params = replace(vllm.default_params("0.33.0", H100, LLAMA), max_model_len=8192)
    assert perf.memory(deploy("vllm", "0.33.0", params)).graph_bytes > 0
    eager = replace(params, cudagraph_mode="NONE")
    assert perf.memory(deploy("vllm", "0.33.0", eager)).graph_bytes == 0


def test_the_first_vllm_sampled_no_logits_for_chunks() -> None:
    """0.06 GiB of activation at 512 tokens in 0.6.4 (https://github.com/vllm-project/vllm/issues/10517)."""
    params = replace(
        vllm.default_params("0.11.0", H100, LLAMA), max_model_len=35000, max_num_seqs=256, max_num_batched_tokens=512
    )
    report = perf.memory(deploy("vllm", "0.6.4", params, gpu=get_gpu("RTX-4090-24GB")))
    assert report.activation_bytes / GIB == pytest.approx(0.06, abs=0.01)


def test_the_first_vllm_profiled_an_image_for_each_sequence() -> None:
    """Llama-3.2-11B-Vision, 128 sequences in 0.6.6: 36.63 GiB of activation
    (https://github.com/vllm-project/vllm/pull/12126, read 2026-11-29)."""
    model = get_model("meta-llama/Llama-3.2-11B-Vision-Instruct")
    params = replace(
        vllm.default_params("0.11.0", H100, model),
        max_model_len=65536,
        max_num_seqs=128,
        max_num_batched_tokens=65536,
        enable_chunked_prefill=False,
    )
    report = perf.memory(deploy("vllm", "0.6.6", params, model=model, gpu=H100))
    assert report.activation_bytes / GIB == pytest.approx(36.63, rel=0.05)
    assert report.kv_bytes_per_token == 40 * 8 * 128 * 2 * 2


def test_communication_buffers_depend_on_the_link() -> None:
    params = replace(vllm.default_params("0.19.0", H100, LLAMA), max_model_len=8192)
    two = Parallelism(tensor_parallel_size=2)
    nvlink = perf.memory(deploy("vllm", "0.19.0", params, parallelism=two)).non_torch_bytes
    pcie = perf.memory(deploy("vllm", "0.19.0", params, parallelism=two, gpu=get_gpu("RTX-4090-24GB"))).non_torch_bytes
    assert (nvlink / GIB, pcie / GIB) == (pytest.approx(2.1), pytest.approx(0.25))


def test_sglang_by_hand() -> None:
    """KV = free after loading - (1 - fraction) x free before, nothing else."""
    params = replace(sglang.default_params("0.5.23", ROUND_GPU, LLAMA), mem_fraction_static=0.85, context_length=8192)
    report = perf.memory(deploy("sglang", "0.5.23", params))
    before = (80 - 0.5) * GIB
    kv = (before - 2 * LLAMA_PARAMS) - 0.15 * before
    assert report.kv_bytes == pytest.approx(kv, rel=1e-3)
    assert report.kv_capacity_tokens == pytest.approx(kv / LLAMA_KV_BYTES, rel=1e-3)
    assert (report.activation_bytes, report.graph_bytes, report.block_size_tokens) == (0, 0, 1)


def test_sglang_shares_its_attention_workspace_on_amd() -> None:
    """Qwen3-30B-A3B on MI355X: 204.63 GiB before the workspace, 152.88 after
    (https://github.com/sgl-project/sglang/pull/18263, read 2026-11-29)."""
    model = get_model("Qwen/Qwen3-30B-A3B-Instruct-2507")
    card = replace(get_gpu("MI300X-192GB"), name="MI355X", mem_bytes=int(287.68 * GIB))
    params = replace(sglang.default_params("0.5.23", card, model), mem_fraction_static=0.911)
    report = perf.memory(deploy("sglang", "0.5.23", params, model=model, gpu=card))
    assert report.kv_bytes / GIB == pytest.approx(152.88, rel=0.01)
    assert report.kv_bytes + report.activation_bytes == pytest.approx(204.63 * GIB, rel=0.01)
    few = replace(params, max_running_requests=256)
    own = perf.memory(deploy("sglang", "0.5.23", few, model=model, gpu=card))
    assert own.activation_bytes == 256 * 32 * 1024 * (4 * 128 + 8)


def test_sglang_counts_the_sparse_index_since_0_5_4() -> None:
    model, card = get_model("deepseek-ai/DeepSeek-V3.2-Exp"), get_gpu("B200-SXM-180GB")
    spread = Parallelism(data_parallel_size=8)
    params = sglang.default_params("0.5.4", card, model, spread)
    for version, per_layer in (("0.5.3", 656), ("0.5.4", 656 + 132)):
        wanted = deploy(
            "sglang",
            version,
            params,
            model=model,
            gpu=card,
            precision=Precision(weights="fp8_block", kv="fp8"),
            parallelism=spread,
        )
        assert perf.memory(wanted).kv_bytes_per_token == 61 * per_layer


def test_tensorrt_llm_by_hand() -> None:
    """A fraction of what weights, one forward pass and libraries leave free."""
    params = replace(trtllm.default_params("1.2.1", ROUND_GPU, LLAMA), max_seq_len=8192, free_gpu_memory_fraction=0.8)
    report = perf.memory(deploy("tensorrt-llm", "1.2.1", params))
    forward = 8192 * (6 * 4096 + 6 * 14336)
    free = 80 * GIB - 2 * LLAMA_PARAMS - forward - 1.5 * GIB
    assert report.kv_bytes == pytest.approx(0.8 * free, rel=1e-3)
    assert report.kv_capacity_tokens == pytest.approx(0.8 * free / LLAMA_KV_BYTES, rel=1e-3)
    assert report.block_size_tokens == 32


def test_llama_cpp_by_hand() -> None:
    """8,192 cells of 128 KiB are 1 GiB; Q4_K_M has 4.8944 bits a weight; the compute buffer is 258.5 MiB."""
    params = replace(llamacpp.default_params("b10488", ROUND_GPU, LLAMA), ctx_size=8192)
    report = perf.memory(deploy("llama.cpp", "b10488", params, precision=Precision(weights="q4_k_m")))
    assert report.kv_bytes == GIB
    assert report.kv_capacity_tokens == 8192
    assert report.weights_bytes == pytest.approx(LLAMA_PARAMS * 4.8944 / 8, rel=1e-3)
    assert report.activation_bytes / 2**20 == 258.5
    small = deploy("llama.cpp", "b10488", params, precision=Precision(weights="q4_k_m"), gpu=get_gpu("L4-24GB"))
    longest = perf.largest_model_len(small)
    edge = replace(small, params=replace(params, ctx_size=longest))
    beyond = replace(small, params=replace(params, ctx_size=min(131072, longest + 1024)))
    assert perf.memory(edge).fits
    assert longest == 131072 or not perf.memory(beyond).fits
    tight = replace(small, gpu=replace(small.gpu, mem_bytes=6 * GIB))
    refused = perf.memory(tight)
    assert not refused.fits
    assert "lower ctx_size" in refused.reason
    assert 0 < perf.largest_model_len(tight) < 8192


def test_llama_cpp_refuses_what_it_has_no_type_for() -> None:
    params = replace(llamacpp.default_params("b10488", ROUND_GPU, LLAMA), ctx_size=8192)
    with pytest.raises(InputError, match="Q4_K_M"):
        perf.memory(deploy("llama.cpp", "b10488", params, precision=Precision(weights="nvfp4")))
    with pytest.raises(InputError, match="pipeline_parallel_size"):
        perf.memory(deploy("llama.cpp", "b10488", params, parallelism=Parallelism(tensor_parallel_size=2)))


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm"])
def test_refusals_name_the_engine_s_own_limit(engine: EngineName) -> None:
    model = get_model("meta-llama/Llama-3.1-70B-Instruct")
    defaults = {"sglang": sglang.default_params("0.5.23", H100, model), "tensorrt-llm": None}[engine]
    params = defaults or trtllm.default_params("1.2.1", H100, model)
    version = "0.5.23" if engine == "sglang" else "1.2.1"
    heavy = perf.memory(deploy(engine, version, params, model=model, gpu=H100))
    assert heavy.reason.startswith("weights 131.4 GiB >")
    quarters = Precision(weights="int4")
    long = perf.memory(deploy(engine, version, params, model=model, gpu=H100, precision=quarters))
    assert not long.fits
    assert ("context_length" if engine == "sglang" else "max_seq_len") in long.reason


def test_largest_request_is_the_edge_for_every_engine() -> None:
    card = get_gpu("L4-24GB")
    cases: list[tuple[EngineName, str, EngineParams]] = [
        ("sglang", "0.5.23", sglang.default_params("0.5.23", card, LLAMA)),
        ("tensorrt-llm", "1.2.1", trtllm.default_params("1.2.1", card, LLAMA)),
    ]
    for engine, version, params in cases:
        wanted = deploy(engine, version, params, gpu=card, precision=Precision(weights="fp8"))
        longest = perf.largest_model_len(wanted)
        assert 0 < longest < LLAMA.max_context_tokens
        name = "context_length" if engine == "sglang" else "max_seq_len"
        assert perf.memory(replace(wanted, params=replace(params, **{name: longest}))).fits  # type: ignore[arg-type]
        beyond = replace(wanted, params=replace(params, **{name: longest + 64}))  # type: ignore[arg-type]
        assert not perf.memory(beyond).fits


def test_pipeline_stages_divide_layers_and_cache() -> None:
    """Llama-3.1-8B at PP2: 7.51 GiB a GPU in https://github.com/llm-d-incubation/llm-d-planner/pull/205."""
    two = Parallelism(pipeline_parallel_size=2)
    assert perf.weights_bytes(LLAMA, "bf16", two) / GIB == pytest.approx(7.51, rel=0.01)
    params = replace(vllm.default_params("0.19.0", H100, LLAMA), max_model_len=8192)
    layout = perf.kv_layout(deploy("vllm", "0.19.0", params, parallelism=two))
    assert layout.bytes_of_request(10) == 10 * LLAMA_KV_BYTES / 2
    odd = perf.weights_bytes(LLAMA, "bf16", Parallelism(pipeline_parallel_size=3))
    assert odd == pytest.approx((11 / 32) * (2 * LLAMA_PARAMS - 4 * 128256 * 4096) + 2 * 128256 * 4096, rel=1e-3)


def test_data_parallel_ranks_share_experts_only() -> None:
    """DeepSeek-V3 in bf16 on 8 GPUs: routed experts an eighth; attention in whole with eight ranks of attention."""
    assert V3.moe is not None
    experts = 2 * 58 * 256 * 3 * 7168 * 2048
    eight = perf.weights_bytes(V3, "bf16", Parallelism(tensor_parallel_size=8))
    ranks = perf.weights_bytes(V3, "bf16", Parallelism(data_parallel_size=8))
    one = perf.weights_bytes(V3, "bf16", Parallelism())
    assert one - ranks == pytest.approx(experts * 7 / 8, rel=1e-6)
    assert eight < ranks < one
    spread = Parallelism(data_parallel_size=8, expert_parallel_size=8)
    assert perf.weights_bytes(V3, "bf16", spread) == ranks
    shared = perf.weights_bytes(V3, "bf16", Parallelism(data_parallel_size=8), dense_ranks=8)
    dense = 2 * (3 * 3 * 7168 * 18432 + 58 * 3 * 7168 * 2048 + 129280 * 7168)
    assert ranks - shared == pytest.approx(dense * 7 / 8, rel=1e-3)


def test_latent_cache_is_whole_on_every_tensor_parallel_rank() -> None:
    params = replace(vllm.default_params("0.33.0", H100, V3), max_model_len=8192)
    for size in (1, 8):
        spread = Parallelism(tensor_parallel_size=size)
        wanted = deploy("vllm", "0.33.0", params, model=V3, parallelism=spread)
        assert perf.kv_layout(wanted).bytes_of_request(1) == 61 * 576 * 2
