"""``compare``: every strategy on the same traffic, what cannot run with its reason, the document and the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from servewise import api
from servewise.cli import main
from servewise.compare import strategies
from servewise.errors import InputError
from servewise.report import comparison_json
from servewise.types import Comparison, StrategyResult

NAMES = ["static", "orca", "sarathi", "vllm without cache", "vllm", "sglang", "tensorrt-llm"]
SHARED = {
    "synthesis": {
        "num_requests": 200,
        "arrivals": {"process": "poisson", "rate_rps": 4.0},
        "input_tokens": {"lognormal": {"median": 900, "sigma": 0.5, "max_tokens": 3000}},
        "output_tokens": {"lognormal": {"median": 150, "sigma": 0.6, "max_tokens": 900}},
        "system_prompts": {"tokens": 400, "num_groups": 2},
    }
}


@pytest.fixture
def found(write_service: Callable[..., Path]) -> Comparison:
    return api.compare(api.load_service(write_service(traffic=SHARED)))


def by_name(comparison: Comparison) -> dict[str, StrategyResult]:
    return {result.name: result for result in comparison.results}


def test_every_strategy_serves_the_same_requests(found: Comparison) -> None:
    assert [result.name for result in found.results] == NAMES
    for result in found.results:
        assert result.summary is not None
        assert result.memory_use is not None
        assert result.reason == ""
        assert result.summary.num_requests == result.summary.num_ok == 200
        assert result.deployment.max_request_tokens == found.context_tokens
    shapes = {(r.deployment.model.name, r.deployment.gpu.name, r.deployment.parallelism) for r in found.results}
    assert len(shapes) == 1


def test_the_ways_of_setting_memory_aside_waste_in_their_order(found: Comparison) -> None:
    unused = {result.name: result.memory_use.unused_of_reserved_frac for result in found.results if result.memory_use}
    assert unused["sglang"] == 0.0 < unused["vllm"] < 0.05 < unused["tensorrt-llm"] < unused["orca"] < unused["static"]
    assert unused["orca"] > 0.5


def test_only_a_prefix_cache_saves_prefixes(found: Comparison) -> None:
    uses = {name: result.memory_use for name, result in by_name(found).items()}
    for name in ("static", "orca", "sarathi", "vllm without cache"):
        assert uses[name].prefix_tokens_saved == 0
    paged = by_name(found)["vllm"]
    assert paged.memory is not None
    assert uses["vllm"].prefix_tokens_saved > 100 * 384
    assert uses["vllm"].prefix_bytes_saved == uses["vllm"].prefix_tokens_saved * paged.memory.kv_bytes_per_token


def test_where_prefixes_are_unknown_so_is_what_is_saved(write_service: Callable[..., Path]) -> None:
    uses = {name: r.memory_use for name, r in by_name(api.compare(api.load_service(write_service()))).items()}
    assert uses["vllm"].prefix_tokens_saved is None
    assert uses["vllm without cache"].prefix_tokens_saved == 0


def test_a_strategy_that_does_not_fit_says_why(write_service: Callable[..., Path]) -> None:
    service = api.load_service(write_service(hardware=["L4-24GB"]))
    found = api.compare(service, gpu="RTX-4090-24GB", tensor_parallel_size=1)
    reasons = {result.name: result.reason for result in found.results if result.summary is None}
    assert "sglang" not in reasons or "RTX-4090-24GB" in reasons["sglang"]
    assert all(result.deployment.gpu.name == "RTX-4090-24GB" for result in found.results)
    large = api.load_service(write_service(model="meta-llama/Llama-3.1-70B-Instruct"))
    unable = api.compare(large, tensor_parallel_size=1)
    assert all("weights" in result.reason and result.summary is None for result in unable.results)
    with pytest.raises(InputError, match="cannot be split over 3 GPUs"):
        api.compare(large, tensor_parallel_size=3)
    with pytest.raises(InputError, match="does not fit on one node of L4-24GB"):
        api.compare(api.load_service(write_service(model="meta-llama/Llama-3.1-405B-Instruct")), gpu="L4-24GB")


def test_the_smallest_replica_on_which_vllm_starts(write_service: Callable[..., Path]) -> None:
    large = api.load_service(write_service(model="meta-llama/Llama-3.1-70B-Instruct", hardware=["H100-SXM-80GB"]))
    sizes = {r.deployment.parallelism.tensor_parallel_size for r in api.compare(large).results}
    assert sizes == {2}
    fewer = by_name(api.compare(large, tensor_parallel_size=1))["vllm"].memory
    assert fewer is not None
    assert not fewer.fits


def test_a_rate_rescales_the_traffic(write_service: Callable[..., Path]) -> None:
    service = api.load_service(write_service(traffic={"profile": "azure-conversation-2023", "num_requests": 2000}))
    slow = by_name(api.compare(service, rate_rps=1.0))["vllm"].summary
    assert slow is not None
    assert slow.num_requests / (slow.duration_s - slow.drain_s) == pytest.approx(1.0, rel=0.05)


def test_the_document_holds_the_same_figures(found: Comparison) -> None:
    document = json.loads(json.dumps(comparison_json(found), allow_nan=False))
    assert document["schema"] == "servewise.comparison/1"
    assert [entry["name"] for entry in document["strategies"]] == NAMES
    for entry, result in zip(document["strategies"], found.results, strict=True):
        assert result.summary is not None
        assert result.memory_use is not None
        assert entry["summary"]["ttft_p99_s"] == result.summary.percentiles["ttft"]["p99"].value
        assert entry["memory_use"]["unused_of_reserved_frac"] == result.memory_use.unused_of_reserved_frac


def test_the_command(write_service: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = write_service(traffic=SHARED)
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(path)])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("small: strategies on one replica\n")
    assert max(map(len, out.splitlines())) <= 100
    assert all(sum(line.startswith(name.split()[0]) for line in out.splitlines()) >= 2 for name in NAMES)
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(path), "--json"])
    assert ended.value.code == 0
    assert len(json.loads(capsys.readouterr().out)["strategies"]) == len(NAMES)
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(path), "--gpu", "H1000"])
    assert ended.value.code == 2


def test_prompts_beyond_a_step_are_cut_and_not_rejected(found: Comparison) -> None:
    first = found.results[0].deployment
    for longest, chunked in ((4096, False), (16384, True)):
        named = strategies(first.model, first.gpu, first.precision, 1, longest)
        assert named["tensorrt-llm"].params.enable_chunked_prefill is chunked  # type: ignore[union-attr]
