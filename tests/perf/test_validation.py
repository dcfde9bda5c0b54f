"""Which measured runs a deployment is like, and the errors that deployments of its class had."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from perf_deployments import deploy
from test_overheads import other_engine

from servewise.catalog.facts import read_facts
from servewise.perf.validation import (
    error_class,
    mean_error,
    nearest_runs,
    parallelism_text,
    precision_text,
    validation,
)
from servewise.types import Deployment, Disaggregation, InstancePool, KvLink, Parallelism, Speculation

MEASURED = deploy("meta-llama/Llama-3.1-70B-Instruct", weights="fp8", tp=2)
OTHER_MODEL = deploy("meta-llama/Llama-3.1-8B-Instruct")
OTHER_GPU = deploy("meta-llama/Llama-3.1-8B-Instruct", gpu="A100-SXM-80GB")
TRANSFERRED = deploy("meta-llama/Llama-3.1-8B-Instruct", gpu="RTX-4090-24GB")
OTHER_ENGINE = other_engine("llama.cpp", "b6000", "H100-SXM-80GB")


@pytest.mark.parametrize(
    ("deployment", "expected"),
    [
        (MEASURED, "measured"),
        (OTHER_MODEL, "other model"),
        (deploy("meta-llama/Llama-3.1-70B-Instruct", tp=4), "other model"),  # in bf16, which was not measured
        (OTHER_GPU, "other gpu"),
        (OTHER_ENGINE, "other engine"),
        (TRANSFERRED, "transferred gpu"),
        # whatever the engine: the GPU's operators come first
        (other_engine("llama.cpp", "b6000", "M4-MAX-128GB"), "transferred gpu"),
        (other_engine("sglang", "0.5.1", "H200-SXM-141GB"), "other gpu"),
        (other_engine("tensorrt-llm", "1.0.0"), "measured"),
    ],
)
def test_how_much_of_a_deployment_was_measured(deployment: Deployment, expected: str) -> None:
    assert error_class(deployment) == expected
    assert mean_error(deployment).error_class == expected


def test_a_drafter_widens_what_is_known_without_it() -> None:
    drafter = Speculation(method="ngram", num_speculative_tokens=2, acceptance=(0.6, 0.3))
    plain, found = mean_error(OTHER_MODEL), mean_error(replace(OTHER_MODEL, speculation=drafter))
    assert (found.error_class, found.num_runs) == ("drafter", 0)
    for narrow, wide in ((plain.tpot_frac, found.tpot_frac), (plain.ttft_frac, found.ttft_frac)):
        assert wide[0] < narrow[0] < 1.0 < narrow[1] < wide[1]
        # what is already wide grows less, and no end by more than the whole assumed error
        assert narrow[0] / wide[0] < math.exp(1.645 * 0.15) > wide[1] / narrow[1]


def test_a_group_is_known_no_better_than_its_instances_and_than_measured_groups() -> None:
    seen = read_facts("perf/group_errors.csv")["groups"]
    for prefill, decode in ((OTHER_MODEL, OTHER_GPU), (OTHER_GPU, TRANSFERRED)):
        pools = [
            InstancePool(gpu=one.gpu, parallelism=one.parallelism, params=one.params, num_instances=1)
            for one in (prefill, decode)
        ]
        link = KvLink(kind="network", bytes_per_s=1e9, latency_s=1e-3, provenance={})
        group = replace(decode, disaggregation=Disaggregation(prefill=pools[0], decode=pools[1], link=link))
        found = mean_error(group)
        assert (found.error_class, found.num_runs) == ("groups", int(seen["num_runs"].value))
        for metric, alone in (("tpot", mean_error(decode).tpot_frac), ("ttft", mean_error(prefill).ttft_frac)):
            low, high = getattr(found, f"{metric}_frac")
            assert low == min(alone[0], float(seen[f"{metric}_low"].value))
            assert high == max(alone[1], float(seen[f"{metric}_high"].value))


def interval(low: float, high: float, num_runs: int = 30) -> dict[str, Any]:
    return {"num_runs": num_runs, "tpot_frac": [low, high], "ttft_frac": [low / 2, high * 2]}


@pytest.fixture
def classes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A document whose classes a test fills."""
    document: dict[str, Any] = json.loads(json.dumps(validation()))
    document["classes"] = {}
    monkeypatch.setattr("servewise.perf.validation.validation", lambda: document)
    found: dict[str, Any] = document["classes"]
    return found


def test_an_interval_of_the_engine_goes_before_that_of_all(classes: dict[str, Any]) -> None:
    classes["measured"] = interval(0.8, 1.3, 100)
    assert mean_error(MEASURED).tpot_frac == (0.8, 1.3)
    classes["vllm: measured"] = interval(0.9, 1.1)
    classes["sglang: measured"] = interval(0.1, 9.0)
    found = mean_error(MEASURED)
    assert (found.tpot_frac, found.ttft_frac, found.num_runs) == ((0.9, 1.1), (0.45, 2.2), 30)


def test_under_saturation_an_interval_of_saturated_runs_goes_first(classes: dict[str, Any]) -> None:
    classes["measured"] = interval(0.8, 1.3)
    classes["vllm: measured"] = interval(0.9, 1.1)
    assert mean_error(MEASURED, saturated=True).tpot_frac == (0.9, 1.1)
    classes["measured saturated"] = interval(0.5, 2.0)
    assert mean_error(MEASURED, saturated=True).tpot_frac == (0.5, 2.0)
    classes["vllm: measured saturated"] = interval(0.6, 1.5)
    assert mean_error(MEASURED, saturated=True).tpot_frac == (0.6, 1.5)
    assert mean_error(MEASURED).tpot_frac == (0.9, 1.1)


@pytest.mark.parametrize("saturated", [False, True])
@pytest.mark.parametrize("deployment", [MEASURED, OTHER_MODEL, OTHER_GPU, OTHER_ENGINE, TRANSFERRED])
def test_every_class_has_an_interval_around_one(deployment: Deployment, saturated: bool) -> None:
    found = mean_error(deployment, saturated=saturated)
    for low, high in (found.tpot_frac, found.ttft_frac):
        assert 0.2 < low < 1.1
        assert 0.95 < high < 5.0
        assert low < high
    assert (found.num_runs == 0) == (found.error_class == "transferred gpu")


def test_a_transfer_is_less_sure_than_another_gpu() -> None:
    def width(deployment: Deployment) -> float:
        low, high = mean_error(deployment).tpot_frac
        return high / low

    classes = validation()["classes"]
    wide = classes["other gpu"]["tpot_frac"]
    assert width(TRANSFERRED) > 1.1 * wide[1] / wide[0]
    assert width(TRANSFERRED) > width(MEASURED)


# -------------------------------------------------------------------------------------------------------- nearest runs


def test_the_same_deployment_is_nearest() -> None:
    first, second, third = nearest_runs(MEASURED)
    assert first.differs == ()
    assert (first.engine, first.gpu, first.parallelism) == ("vllm", "H100-SXM-80GB", "TP2")
    assert (first.precision, first.model) == ("fp8/bf16", "meta-llama/Llama-3.1-70B-Instruct")
    assert first.num_runs > 0
    assert first.lowest_concurrency <= first.highest_concurrency
    assert "aiconfigurator" in first.source
    assert second.differs == ("parallelism",)
    assert len(third.differs) >= 1


def test_another_engine_counts_most() -> None:
    assert all(run.engine == "vllm" for run in nearest_runs(TRANSFERRED, 5))
    assert all(run.differs[0] == "engine" for run in nearest_runs(OTHER_ENGINE))
    # of another engine, the same GPU goes before the same model
    assert {run.gpu for run in nearest_runs(OTHER_ENGINE)} == {"H100-SXM-80GB"}


def test_the_order_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine 16, GPU 8, model 4, precision 2, parallelism 1: what differs less adds up to less."""
    same = {
        "engine": "vllm",
        "gpu": "H100-SXM-80GB",
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "precision": "fp8/bf16",
        "parallelism": "TP2",
    }
    document = dict(validation())
    template = validation()["runs"][0]
    changes = (("engine",), ("gpu",), ("model", "precision", "parallelism"), ("precision", "parallelism"), ("model",))
    document["runs"] = [{**template, **same, **dict.fromkeys(names, "other")} for names in changes]
    monkeypatch.setattr("servewise.perf.validation.validation", lambda: document)
    assert [run.differs for run in nearest_runs(MEASURED, 9)] == [
        ("precision", "parallelism"),
        ("model",),
        ("model", "precision", "parallelism"),
        ("gpu",),
        ("engine",),
    ]
    assert len(nearest_runs(MEASURED, 2)) == 2


def test_texts() -> None:
    assert precision_text(MEASURED) == "fp8/bf16"
    assert parallelism_text(OTHER_MODEL) == "TP1"
    spread = Parallelism(tensor_parallel_size=4, pipeline_parallel_size=2, data_parallel_size=2, expert_parallel_size=8)
    shown = deploy("Qwen/Qwen3-30B-A3B")
    object.__setattr__(shown, "parallelism", spread)
    assert parallelism_text(shown) == "TP4 PP2 DP2 EP8"


def test_runs_are_of_deployments_that_the_catalog_knows() -> None:
    for run in validation()["runs"]:
        assert run["num_runs"] >= 1
        assert run["tpot_median_error_pct"] >= abs(run["tpot_bias_pct"]) - 1e-9 or run["num_runs"] > 1
        assert 0 <= run["tpot_median_error_pct"] < 100
