"""Defaults of SGLang, TensorRT-LLM and llama.cpp, and the batch sizes engines capture."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servewise import engines
from servewise.catalog import get_gpu, get_model
from servewise.engines import facts, llamacpp, sglang, trtllm, vllm
from servewise.errors import InputError
from servewise.types import Deployment, EngineName, EngineParams, Parallelism, Precision
from servewise.units import GIB, MIB

LLAMA = get_model("meta-llama/Llama-3.1-8B-Instruct")
H100 = get_gpu("H100-SXM-80GB")


def deployment(engine: EngineName, params: EngineParams) -> Deployment:
    return Deployment(
        model=LLAMA,
        gpu=H100,
        engine=engine,
        engine_version="0",
        precision=Precision(),
        parallelism=Parallelism(),
        params=params,
    )


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm", "llamacpp"])
def test_every_table_names_its_sources(name: str) -> None:
    document = facts.document(name)
    for row in document["range"]:
        assert facts.cited(name, row["source"]).source
    since = [facts.version_key(name, row["from"]) for row in document["range"]]
    assert since == sorted(since)
    assert facts.range_of(name, document["default_version"]) == document["range"][-1]


def test_a_source_that_says_it_is_assumed_is_not_called_a_specification() -> None:
    assert facts.cited("sglang", ["context"]).kind == "assumed"
    assert facts.cited("sglang", ["context", "tp_logs"]).kind == "measured"
    assert facts.cited("sglang", ["wheel_0_5_23", "context"]).kind == "spec"


@pytest.mark.parametrize(
    ("version", "gpu", "parallelism", "fraction"),
    [
        # tensor parallel size alone decides
        ("0.4.6", "RTX-4090-24GB", Parallelism(), 0.88),
        ("0.4.6", "H100-SXM-80GB", Parallelism(tensor_parallel_size=8), 0.81),
        # 9.5 + 8 x 0.5 GiB of 79.19
        ("0.5.0", "H100-SXM-80GB", Parallelism(tensor_parallel_size=8), 0.830),
        # 512 + 1.5 x 8192 + 2 x 256 + 1024 / 8 MiB of 79.19 GiB
        ("0.5.23", "H100-SXM-80GB", Parallelism(), 0.834),
        # 512 + 1.5 x 16384 + 1024 + 512 x (2 + 8 x 4.5) MiB of 178.36 GiB
        ("0.5.23", "B200-SXM-180GB", Parallelism(data_parallel_size=8), 0.7505),
    ],
)
def test_sglang_memory_fraction(version: str, gpu: str, parallelism: Parallelism, fraction: float) -> None:
    params = sglang.default_params(version, get_gpu(gpu), LLAMA, parallelism)
    assert params.mem_fraction_static == pytest.approx(fraction, abs=6e-4)


def test_a_vision_tower_lowers_the_fraction() -> None:
    """Kimi-K2.5's tower of 27 layers of width 1,152 is 1.42 times ViT-L: 0.95 x (1 - 0.042)."""
    big = replace(H100, mem_bytes=int(283.56 * GIB))
    eight = Parallelism(tensor_parallel_size=8)
    plain = sglang.default_params("0.5.8", big, LLAMA, eight).mem_fraction_static
    tower = replace(LLAMA, vision_num_params=27 * 12 * 1152**2)
    params = sglang.default_params("0.5.8", big, tower, eight)
    assert params.mem_fraction_static == pytest.approx(plain * 0.95 * (1 - 0.0424), abs=1e-3)


def test_sglang_size_classes_and_ranks() -> None:
    two = sglang.default_params("0.5.23", H100, LLAMA, Parallelism(data_parallel_size=2))
    assert (two.chunked_prefill_size, two.page_size, two.cuda_graph_max_bs) == (4096, 1, 256)
    four = sglang.default_params("0.5.23", H100, LLAMA, Parallelism(tensor_parallel_size=4))
    assert (four.chunked_prefill_size, four.cuda_graph_max_bs) == (8192, 512)
    assert sglang.default_params("0.5.23", get_gpu("B200-SXM-180GB"), LLAMA).page_size == 64


def test_capture_sizes_of_each_engine() -> None:
    small = sglang.default_params("0.5.23", H100, LLAMA)
    sizes = engines.capture_sizes(deployment("sglang", small))
    assert sizes[:6] == (1, 2, 4, 8, 12, 16)
    assert (sizes[-1], len(sizes)) == (256, 5 + 31)
    large = engines.capture_sizes(deployment("sglang", replace(small, cuda_graph_max_bs=600)))
    assert large[-4:] == (512, 544, 576, 600)

    exact = trtllm.default_params("1.2.1", H100, LLAMA)
    sizes = engines.capture_sizes(deployment("tensorrt-llm", exact))
    assert sizes == (*range(1, 33), 64, 128)
    assert not engines.pads_to_captured_sizes(deployment("tensorrt-llm", exact))
    larger = deployment("tensorrt-llm", replace(exact, cuda_graph_max_batch_size=600))
    assert engines.capture_sizes(larger)[-5:] == (64, 128, 256, 512, 600)
    none = deployment("tensorrt-llm", replace(exact, cuda_graph_max_batch_size=0))
    assert engines.capture_sizes(none) == ()
    padded = deployment("tensorrt-llm", replace(exact, cuda_graph_padding=True, cuda_graph_max_batch_size=300))
    assert engines.capture_sizes(padded)[:4] == (1, 2, 4, 8)
    assert engines.capture_sizes(padded)[-4:] == (128, 192, 256, 300)
    assert engines.pads_to_captured_sizes(padded)

    none = deployment("llama.cpp", llamacpp.default_params("b10488", H100, LLAMA))
    assert (engines.capture_sizes(none), engines.pads_to_captured_sizes(none)) == ((), False)
    usual = deployment("vllm", vllm.default_params("0.33.0", H100, LLAMA))
    assert engines.capture_sizes(usual) == vllm.capture_sizes(usual.vllm_params, H100)


def test_tensorrt_llm_schedules_by_version() -> None:
    params = trtllm.default_params("1.2.1", H100, LLAMA)
    assert (params.capacity_scheduler_policy, params.enable_block_reuse) == ("GUARANTEED_NO_EVICT", True)
    assert not trtllm.counts_reuse("1.2.1")
    assert trtllm.counts_reuse("1.3.0rc5")
    with pytest.raises(InputError, match="older than"):
        trtllm.counts_reuse("0.1.0")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("chunked_prefill_size", 100, "no multiple of page_size"),
        ("mem_fraction_static", 1.0, r"in \(0, 1\)"),
        ("context_length", 10**9, "exceeds"),
        ("max_running_requests", 0, "at least 1"),
        ("cuda_graph_max_bs", -1, "no graphs"),
    ],
)
def test_parameters_that_sglang_refuses(field: str, value: object, message: str) -> None:
    params = replace(sglang.default_params("0.5.23", get_gpu("B200"), LLAMA), **{field: value})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        sglang.validate(params, LLAMA)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("tokens_per_block", 24, "power of two"),
        ("free_gpu_memory_fraction", 0.0, r"in \(0, 1\)"),
        ("max_seq_len", 10**9, "exceeds"),
        ("max_num_tokens", 0, "at least 1"),
        ("cuda_graph_max_batch_size", -1, "no graphs"),
        ("capacity_scheduler_policy", "STATIC_BATCH", "allowed: GUARANTEED_NO_EVICT, MAX_UTILIZATION"),
    ],
)
def test_parameters_that_tensorrt_llm_refuses(field: str, value: object, message: str) -> None:
    params = replace(trtllm.default_params("1.2.1", H100, LLAMA), **{field: value})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        trtllm.validate(params, LLAMA)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("ubatch_size", 4096, "above batch_size"), ("ctx_size", 10**9, "more than"), ("parallel", 0, "at least 1")],
)
def test_parameters_that_llama_server_refuses(field: str, value: object, message: str) -> None:
    params = replace(llamacpp.default_params("b10488", H100, LLAMA), **{field: value})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        llamacpp.validate(params, LLAMA)


def test_versions_are_read_and_old_ones_refused() -> None:
    with pytest.raises(InputError, match=r"SGLang 0\.2\.1 is older than 0\.3\.0"):
        sglang.default_params("0.2.1", H100, LLAMA)
    with pytest.raises(InputError, match=r"llama\.cpp version 'latest'"):
        llamacpp.default_params("latest", H100, LLAMA)
    assert H100.mem_bytes / MIB == pytest.approx(81090.56)
