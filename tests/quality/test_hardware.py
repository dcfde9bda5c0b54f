"""What hardware rules out is said in words, with the reason of the table."""

from __future__ import annotations

import re

import pytest

from servewise.catalog import get_gpu, get_model, list_gpus, read_facts, supported_precisions, unsupported_precisions
from servewise.quality import not_run

LLAMA = get_model("llama-3.1-8b")
A100, H100, B200 = (get_gpu(name) for name in ("A100-SXM-80GB", "H100-SXM-80GB", "B200"))
ENGINES = ("vllm", "sglang", "tensorrt-llm", "tgi", "ollama")


def test_every_row_of_what_runs_where_has_a_source() -> None:
    for architecture, facts in read_facts("catalog/precisions.csv").items():
        for field, fact in facts.items():
            assert re.match(r"https://|assumed: |PyPI |[\w.-]+/[\w.-]+", fact.provenance.source), (architecture, field)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", list_gpus())
def test_a_precision_is_supported_or_refused_with_a_reason(name: str, engine: str) -> None:
    gpu = get_gpu(name)
    refused = unsupported_precisions(gpu, engine)
    assert all(refused.values())
    supported = supported_precisions(gpu, engine)
    assert not {f"{p.weights} weights" for p in supported} & set(refused)
    assert not {f"{p.kv} KV cache" for p in supported} & set(refused)


def test_nvfp4_computes_on_blackwell_alone() -> None:
    (why,) = (text for text in not_run([LLAMA], [H100, A100, B200], ["sglang"]) if "nvfp4 weights" in text)
    assert why == "nvfp4 weights on H100-SXM-80GB, A100-SXM-80GB: sglang: modelopt_fp4 needs Blackwell"


def test_gguf_files_are_left_to_llama_cpp() -> None:
    (why,) = (text for text in not_run([LLAMA], [H100], ["vllm"]) if "q4_k_m" in text)
    assert why.startswith("q8_0, q4_0, q4_k_m weights on H100-SXM-80GB: vllm: ")
    assert not any("q4_k_m" in text for text in not_run([LLAMA], [H100], ["vllm", "ollama"]))


def test_formats_that_the_model_cannot_be_had_in_are_not_mentioned() -> None:
    assert not any("mxfp4" in text or "fp8_block" in text for text in not_run([LLAMA], [A100], ENGINES))
