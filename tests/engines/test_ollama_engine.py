"""Ollama's defaults by version and memory, its environment, and the options of the server that it starts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from servewise import catalog
from servewise.catalog import get_gpu, get_model
from servewise.engines import llamacpp, ollama
from servewise.errors import InputError
from servewise.types import Parallelism
from servewise.units import GIB

LLAMA = get_model("meta-llama/Llama-3.1-8B-Instruct")


@pytest.mark.parametrize(
    ("version", "gpu", "num_gpus", "context", "batch"),
    [
        ("0.33.0", "L4-24GB", 1, 4096, 512),  # 22.5 GiB
        ("0.33.0", "L4-24GB", 2, 32768, 1024),
        ("0.33.0", "A100-SXM-40GB", 1, 32768, 1024),
        ("0.33.0", "H100-SXM-80GB", 1, 131072, 2048),  # 262144, but the model has no more
        ("0.20.3", "H100-SXM-80GB", 1, 131072, 512),
        ("0.15.4", "H100-SXM-80GB", 1, 4096, 512),
    ],
)
def test_defaults_follow_memory_and_version(version: str, gpu: str, num_gpus: int, context: int, batch: int) -> None:
    params = ollama.default_params(version, get_gpu(gpu), LLAMA, Parallelism(pipeline_parallel_size=num_gpus))
    assert (params.num_parallel, params.context_length, params.num_batch) == (1, context, batch)
    assert (params.keep_alive_s, params.kv_cache_type, params.context_shift) == (300.0, "f16", True)


def test_versions_with_another_queue_are_refused() -> None:
    with pytest.raises(InputError, match=r"Ollama 0\.9\.6 is older than 0\.10\.0"):
        ollama.default_params("0.9.6", get_gpu("H100-SXM-80GB"), LLAMA)


def test_environment() -> None:
    params = ollama.default_params("0.33.0", get_gpu("L4-24GB"), LLAMA)
    assert ollama.environment(params) == {
        "OLLAMA_NUM_PARALLEL": "1",
        "OLLAMA_CONTEXT_LENGTH": "4096",
        "OLLAMA_KV_CACHE_TYPE": "f16",
        "OLLAMA_KEEP_ALIVE": "300s",
        "LLAMA_ARG_CACHE_RAM": "8192",
    }
    assert ollama.environment(replace(params, keep_alive_s=None))["OLLAMA_KEEP_ALIVE"] == "-1"
    assert ollama.model_parameters(params) == {"num_batch": "512"}
    assert ollama.model_parameters(replace(params, num_gpu=20)) == {"num_batch": "512", "num_gpu": "20"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_parallel": 0}, "num_parallel is 0"),
        ({"context_length": 10**6}, "more than the 131072 tokens"),
        ({"keep_alive_s": -1.0}, "keep_alive_s is -1.0"),
        ({"keep_alive_s": math.nan}, "keep_alive_s is nan"),
        ({"num_gpu": 34}, "allowed: 0 to 33"),
    ],
)
def test_parameters_that_ollama_refuses(changes: dict[str, float], message: str) -> None:
    params = ollama.default_params("0.33.0", get_gpu("L4-24GB"), LLAMA)
    with pytest.raises(InputError, match=message):
        ollama.validate(replace(params, **changes), LLAMA)  # type: ignore[arg-type]


def test_a_model_loads_at_the_rate_of_a_drive() -> None:
    assert ollama.load_s(39 * GIB) == pytest.approx(10.0)
    assert "19191" in ollama.load_provenance().source
    assert ollama.provenance("0.33.0").kind == "spec"


def test_options_of_llama_server() -> None:
    params = llamacpp.default_params("b10488", get_gpu("L4-24GB"), LLAMA)
    given = llamacpp.launch_args(replace(params, cache_type_k="q8_0", n_gpu_layers=20, context_shift=True))
    options = dict(zip(given[::2], given[1::2], strict=False))
    assert options["--ctx-size"] == "131072"
    assert options["--parallel"] == "4"
    assert "--kv-unified" in given
    assert "--context-shift" in given
    assert given[given.index("--cache-type-k") + 1] == "q8_0"
    assert given[given.index("--cache-ram") + 1] == "8192"
    assert given[-2:] == ("--n-gpu-layers", "20")
    assert "--n-gpu-layers" not in llamacpp.launch_args(replace(params, kv_unified=False))
    assert "--no-kv-unified" in llamacpp.launch_args(replace(params, kv_unified=False))


def test_the_last_layers_go_to_the_gpu_and_the_output_first() -> None:
    assert llamacpp.host_layers(-1, LLAMA) == (0, False)
    assert llamacpp.host_layers(33, LLAMA) == (0, False)
    assert llamacpp.host_layers(32, LLAMA) == (1, False)
    assert llamacpp.host_layers(1, LLAMA) == (32, False)
    assert llamacpp.host_layers(0, LLAMA) == (32, True)


def test_ollama_reads_what_llama_cpp_reads() -> None:
    gpu = get_gpu("L4-24GB")
    assert catalog.supported_precisions(gpu, "ollama") == catalog.supported_precisions(gpu, "llama.cpp")
