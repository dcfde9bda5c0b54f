"""llama.cpp's KV types, cells and layers on the host; Ollama's memory and time are those of the server it starts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from servewise import perf
from servewise.catalog import get_gpu, get_model
from servewise.engines import llamacpp, ollama
from servewise.errors import InputError
from servewise.perf.formula import StepFormula
from servewise.types import CacheType, Deployment, LlamacppParams, ModelSpec, Parallelism, Precision
from servewise.units import GIB

LLAMA = get_model("meta-llama/Llama-3.1-8B-Instruct")
OSS = get_model("openai/gpt-oss-20b")
CARD = get_gpu("RTX-4090-24GB")


def deploy(model: ModelSpec = LLAMA, **changes: object) -> Deployment:
    params = replace(llamacpp.default_params("b10488", CARD, model), ctx_size=8192)
    weights = "mxfp4" if model is OSS else "q4_k_m"
    return Deployment(
        model=model,
        gpu=CARD,
        engine="llama.cpp",
        engine_version="b10488",
        precision=Precision(weights=weights),  # type: ignore[arg-type]
        parallelism=Parallelism(),
        params=replace(params, **changes),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("key", "value", "frac"), [("f16", "f16", 1.0), ("q8_0", "q8_0", 34 / 64), ("f16", "q4_0", (2 + 18 / 32) / 4)]
)
def test_kv_types(key: CacheType, value: CacheType, frac: float) -> None:
    typed = deploy(cache_type_k=key, cache_type_v=value)
    assert perf.memory(typed).kv_bytes == pytest.approx(frac * GIB, abs=1)
    plain, small = (StepFormula(d) for d in (deploy(), typed))
    n, context = np.array([4.0]), np.array([4 * 32768.0])
    saved = plain.decode_attention_s(n, context) - small.decode_attention_s(n, context)
    assert (saved > 0).all() == (frac < 1)


def test_kv_types_are_not_those_of_other_engines() -> None:
    with pytest.raises(InputError, match="set cache_type_k and cache_type_v"):
        perf.memory(replace(deploy(), precision=Precision(weights="q4_k_m", kv="fp8")))


def test_cells_are_padded_and_divided() -> None:
    shared = perf.memory(deploy(ctx_size=8000))
    assert shared.kv_capacity_tokens == 8192
    split = deploy(ctx_size=4 * 1000, kv_unified=False)
    assert perf.memory(split).kv_capacity_tokens == 4 * 1024
    assert split.max_request_tokens == 1024


def test_windows_have_cells_for_every_slot_and_a_pass() -> None:
    """gpt-oss-20b: 12 layers see all, 12 a window of 128; 2 KiB a token and layer. 4 slots: 4 * 128 + 512 = 1,024."""
    assert perf.memory(deploy(OSS)).kv_bytes == 2048 * 12 * (8192 + 1024)
    # a stream of 2,048 cells for each of 4 slots: 128 + 512 = 640, padded to 768
    assert perf.memory(deploy(OSS, kv_unified=False)).kv_bytes == 2048 * 12 * 4 * (2048 + 768)


def test_layers_on_the_host_take_no_memory_of_the_gpu() -> None:
    whole, half = perf.memory(deploy()), perf.memory(deploy(n_gpu_layers=17))
    assert half.kv_bytes == whole.kv_bytes / 2
    tables = 2 * LLAMA.vocab_size * LLAMA.hidden_size * 4.8944 / 8
    assert half.weights_bytes == pytest.approx((whole.weights_bytes + tables) / 2, rel=1e-3)
    none = perf.memory(deploy(n_gpu_layers=0))
    assert (none.weights_bytes, none.kv_bytes) == (0, 0)


def test_layers_on_the_host_run_at_its_bandwidth() -> None:
    """Half of the layers of Llama-3.1-8B in Q4_K_M: 2.1 GB at 71.7 GB/s."""
    host = llamacpp.host_rates()
    whole, half = StepFormula(deploy()), StepFormula(deploy(n_gpu_layers=17))
    one, none = np.array([1.0]), np.array([0.0])
    weights = sum(w.num_layers * w.num_outputs * w.num_inputs for w in whole.matrices) * 4.8944 / 8
    slower = half.decode_step_s(one, none) - whole.decode_step_s(one, none)
    read_s = weights / 2 / host.memory_bytes_per_s
    assert read_s == pytest.approx(0.0297, rel=0.01)
    assert 0.8 * read_s < slower[0] < read_s
    # a batch of 32 is computed by the GPU, which is sent the weights
    many = half.token_parts(np.array([512.0])).total - whole.token_parts(np.array([512.0])).total
    assert many[0] == pytest.approx(weights / 2 / host.copy_bytes_per_s, rel=1e-6)
    context = np.array([8192.0])
    kv_s = 8192 * 128 * 1024 / 2 / host.memory_bytes_per_s
    attention = half.decode_attention_s(one, context) - 0.5 * whole.decode_attention_s(one, context)
    assert attention[0] == pytest.approx(half.overheads.attention_scale * kv_s, rel=1e-6)


def test_the_table_says_that_the_host_is_assumed_and_never_falls() -> None:
    model = perf.step_model(deploy(n_gpu_layers=17))
    assert any("52% of the layers are on the host" in w or "50% of the layers are" in w for w in model.warnings)
    assert model.provenance["host"].kind == "assumed"
    assert "host" not in perf.step_model(deploy()).provenance
    assert perf.step_model(deploy()).provenance["host_copies"].kind == "assumed"
    assert "host_copies" not in perf.step_model(deploy(cache_ram_mib=0)).provenance
    assert (np.diff(model.table.decode_fixed_s) >= 0).all()
    assert (np.diff(model.table.mixed_tokens_s[1:]) >= 0).all()


def test_ollama_takes_what_its_server_takes() -> None:
    params = replace(ollama.default_params("0.33.0", CARD, LLAMA), num_parallel=2, kv_cache_type="q8_0")
    deployment = replace(deploy(), engine="ollama", engine_version="0.33.0", params=params)
    inner = ollama.as_llama_server(deployment)
    assert isinstance(inner.params, LlamacppParams)
    assert inner.params.is_split
    outer, server = perf.memory(deployment), perf.memory(inner)
    assert (outer.kv_bytes, outer.weights_bytes, outer.num_kv_blocks) == (
        server.kv_bytes,
        server.weights_bytes,
        server.num_kv_blocks,
    )
    times, server_times = perf.step_model(deployment).table, perf.step_model(inner).table
    np.testing.assert_array_equal(times.decode_fixed_s, server_times.decode_fixed_s)
    small = replace(deployment, gpu=replace(CARD, mem_bytes=8 * GIB))
    longest = perf.largest_model_len(small)
    assert 0 < longest < LLAMA.max_context_tokens
    assert perf.memory(replace(small, params=replace(params, context_length=longest))).fits
    refused = perf.memory(replace(small, params=replace(params, context_length=longest + 512)))
    assert not refused.fits
    assert "lower context_length" in refused.reason
