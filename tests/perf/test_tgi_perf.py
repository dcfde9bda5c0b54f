"""Memory of TGI by hand, and what its steps cost beside vLLM's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from servewise import perf
from servewise.catalog import get_gpu, get_model
from servewise.engines import tgi, vllm
from servewise.errors import InputError
from servewise.perf.overheads import overhead_document, overheads_of
from servewise.types import Deployment, GpuSpec, ModelSpec, Parallelism, Precision
from servewise.units import GIB

LLAMA = get_model("meta-llama/Llama-3.1-8B-Instruct")
H100 = get_gpu("H100-SXM-80GB")
LLAMA_PARAMS = 8030261248
LLAMA_KV_BYTES = 32 * 8 * 128 * 2 * 2


def deploy(
    gpu: GpuSpec = H100, model: ModelSpec = LLAMA, tp: int = 1, precision: Precision | None = None, **changes: object
) -> Deployment:
    spread = Parallelism(tensor_parallel_size=tp)
    params = replace(tgi.default_params("3.3.5", gpu, model, spread), **changes)  # type: ignore[arg-type]
    return Deployment(
        model=model,
        gpu=gpu,
        engine="tgi",
        engine_version="3.3.5",
        precision=precision or Precision(),
        parallelism=spread,
        params=params,
    )


def test_memory_by_hand() -> None:
    """Llama-3.1-8B, 4,096 tokens: three hidden states and the widest layer's inner activations a token."""
    gpu = replace(H100, mem_bytes=80 * GIB)
    report = perf.memory(deploy(gpu, max_batch_prefill_tokens=4096, max_total_tokens=8192))
    activation = 4096 * 6 * (4096 + 14336)
    assert report.activation_bytes == activation
    kv = int(0.9 * 80 * GIB) - 2 * LLAMA_PARAMS - activation - 0.5 * GIB
    assert report.kv_bytes == pytest.approx(kv, rel=1e-3)
    assert report.num_kv_blocks == report.kv_bytes // LLAMA_KV_BYTES - 1
    assert report.graph_bytes == 0
    half = perf.memory(deploy(gpu, max_batch_prefill_tokens=4096, max_total_tokens=8192, cuda_memory_fraction=0.5))
    assert report.kv_bytes - half.kv_bytes == pytest.approx(0.45 * 80 * GIB, rel=1e-6)


def test_an_l4_holds_thirty_thousand_tokens() -> None:
    """docs/source/conceptual/chunking.md@db931fc: "a single L4 can handle 30k tokens on llama 3.1-8B"."""
    longest = perf.largest_model_len(deploy(get_gpu("L4-24GB")))
    assert longest == pytest.approx(30_000, rel=0.1)
    assert perf.memory(deploy(get_gpu("L4-24GB"), max_total_tokens=longest)).fits
    too_long = perf.memory(deploy(get_gpu("L4-24GB"), max_total_tokens=longest + 1))
    assert "lower max_total_tokens" in too_long.reason


def test_sliding_windows_keep_every_token() -> None:
    gemma = get_model("google/gemma-3-27b-it")
    model = replace(gemma, vision_num_params=0)
    report = perf.memory(deploy(model=model, tp=2, max_total_tokens=4096))
    assert model.num_sliding_layers > 0
    per_layer = 2 * (model.num_kv_heads // 2) * (model.head_dim + model.v_head_dim)
    assert report.kv_bytes_per_token == model.num_layers * per_layer


def test_what_tgi_does_not_have_is_refused() -> None:
    served = deploy(max_total_tokens=8192)
    with pytest.raises(InputError, match="only tensor parallelism"):
        perf.memory(replace(served, parallelism=Parallelism(pipeline_parallel_size=2)))


def test_the_host_adds_to_every_step_and_says_that_it_is_assumed() -> None:
    found, provenance = overheads_of(deploy())
    shared = overhead_document()["levels"]["shared"]["values"]
    step_ms, row_us, _ = tgi.host_time()
    assert found.step_ms == pytest.approx(shared["step_ms"] + step_ms)
    assert found.row_us == pytest.approx(shared["row_us"] + row_us)
    assert (provenance.kind, provenance.note) == ("assumed", "shared: pooled over all engines")
    model = perf.step_model(deploy())
    assert any(text.startswith("assumed: TGI's kernels") for text in model.warnings)


def test_beyond_32_rows_every_kernel_is_launched() -> None:
    """32 layers of Llama, at what launching one takes; below, no slower than vLLM but for the host."""
    table = perf.step_model(deploy()).table
    eager_s = 32e-6 * overheads_of(deploy())[0].eager_layer_us
    assert table.decode_fixed_s[32] < 0.6 * eager_s < table.decode_fixed_s[33]
    params = vllm.default_params("0.33.0", H100, LLAMA)
    other = perf.step_model(replace(deploy(), engine="vllm", engine_version="0.33.0", params=params)).table
    step_ms, row_us, _ = tgi.host_time()
    rows = np.array([1, 2, 4, 8, 16, 32])
    host_s = 1e-3 * step_ms + 1e-6 * row_us * rows
    np.testing.assert_allclose(table.decode_fixed_s[rows] - host_s, other.decode_fixed_s[rows], rtol=0.05)
