"""Which spreads over GPUs are tried."""

from __future__ import annotations

from servewise.catalog import get_gpu, get_model
from servewise.search.spreads import spreads

H100 = get_gpu("H100-SXM-80GB")
QWEN = get_model("Qwen/Qwen3-235B-A22B")


def test_ranks_with_stages_fill_two_nodes() -> None:
    """Whole nodes of ranks, each rank within a node."""
    found = spreads("vllm", QWEN, H100, "fp8")
    staged = [s for s in found if s.data_parallel_size > 1 and s.pipeline_parallel_size > 1]
    sizes = [(s.tensor_parallel_size, s.data_parallel_size, s.pipeline_parallel_size) for s in staged]
    assert sizes == [(1, 8, 2), (2, 4, 2), (4, 2, 2)]
    assert all(s.num_gpus == 16 for s in staged)
    assert all(s.expert_parallel_size == s.tensor_parallel_size * s.data_parallel_size for s in staged)


def test_a_dense_model_has_no_ranks() -> None:
    dense = get_model("meta-llama/Llama-3.1-70B-Instruct")
    assert all(s.data_parallel_size == 1 for s in spreads("vllm", dense, H100, "bf16"))


def test_stages_of_tensorrt_llm_stay_within_a_node() -> None:
    dense = get_model("meta-llama/Llama-3.1-70B-Instruct")
    sizes = [
        (s.tensor_parallel_size, s.pipeline_parallel_size)
        for s in spreads("tensorrt-llm", dense, H100, "bf16")
        if s.pipeline_parallel_size > 1
    ]
    assert sizes == [(1, 2), (2, 2), (4, 2), (1, 4), (2, 4)]
    of_sglang = spreads("sglang", dense, H100, "bf16")
    assert max(s.num_gpus for s in of_sglang) == 4 * H100.gpus_per_node  # whole nodes as stages
