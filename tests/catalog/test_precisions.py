"""Which precision runs where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servewise.catalog import get_gpu, list_gpus, supported_precisions
from servewise.errors import CatalogError, UnknownNameError
from servewise.types import Precision


def weights_on(gpu: str) -> set[str]:
    return {p.weights for p in supported_precisions(get_gpu(gpu))}


ENGINES = ("vllm", "llama.cpp")
NOWHERE = {"vllm": {"apple"}, "llama.cpp": {"gaudi"}}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", list_gpus())
def test_bf16_runs_wherever_the_engine_runs_and_comes_first(name: str, engine: str) -> None:
    gpu = get_gpu(name)
    found = supported_precisions(gpu, engine)
    if gpu.architecture in NOWHERE[engine]:
        assert found == ()
        return
    assert found[0] == Precision(weights="bf16", kv="bf16")
    assert len(found) == len(set(found))


@pytest.mark.parametrize("name", list_gpus())
def test_gguf_files_are_llama_cpp_s_alone(name: str) -> None:
    gpu = get_gpu(name)
    gguf = {"q8_0", "q4_0", "q4_k_m"}
    assert not gguf & {p.weights for p in supported_precisions(gpu)}
    read = {p.weights for p in supported_precisions(gpu, "llama.cpp")}
    assert read in (set(), gguf | {"bf16", "mxfp4"})


def test_what_each_generation_adds() -> None:
    assert {"fp8", "int8", "int4"} <= weights_on("A100-SXM-80GB")
    assert {"fp8", "int8", "int4"} <= weights_on("L40S")
    assert "int8" not in weights_on("B200")
    assert {"nvfp4", "mxfp4", "fp8"} <= weights_on("B200")
    assert "int4" not in weights_on("MI300X")


@pytest.mark.parametrize(("name", "has"), [("A100-SXM-80GB", False), ("A10G", False), ("L4", True), ("H200", True)])
def test_fp8_kv_cache_from_ada_on(name: str, has: bool) -> None:
    assert (Precision(weights="bf16", kv="fp8") in supported_precisions(get_gpu(name))) == has


def test_unknown_engine_and_architecture() -> None:
    with pytest.raises(UnknownNameError, match="vllm"):
        supported_precisions(get_gpu("L4"), engine="vlm")
    with pytest.raises(CatalogError, match="rubin"):
        supported_precisions(replace(get_gpu("L4"), architecture="rubin"))
