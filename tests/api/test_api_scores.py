"""Models of different size in one plan: their expected scores, and floors on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

MODELS = ["meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct"]


def test_a_plan_sets_models_side_by_side_by_their_scores(plan: Callable[..., Any]) -> None:
    ended = plan("--json", model=MODELS)
    document = ended.document
    kept = {c["deployment"]["model"] for c in document["candidates"] if c["status"] == "kept"}
    assert kept == set(MODELS)  # the small model is cheaper and faster, and rules the large one out of nothing
    for candidate in document["candidates"]:
        scores = candidate["expected_scores"]
        assert {score["report"] for score in scores} == {"qwen2.5"}
        for score in scores:
            low, typical, high = score["expected_pct"]
            assert low <= typical <= high <= score["published_pct"]


def test_the_report_says_what_may_be_compared(plan: Callable[..., Any]) -> None:
    shown = plan(model=MODELS).out
    assert "Quality: scores of the published models" in shown
    assert "by one evaluation, qwen2.5" in shown
    alone = plan().out
    assert "Quality: scores" not in alone


def test_a_floor_on_a_score_leaves_out_a_model_and_says_why(plan: Callable[..., Any]) -> None:
    ended = plan("--json", model=MODELS, quality={"min_recovery_pct": 100, "min_scores": {"MMLU-Pro": 40}})
    document = ended.document
    assert {c["deployment"]["model"] for c in document["candidates"]} == {MODELS[0]}
    assert any(f"{MODELS[1]} in bf16/bf16: MMLU-Pro 32.4 expected, below the 40" in w for w in document["filtered"])


def test_the_users_own_score_decides(plan: Callable[..., Any]) -> None:
    own = {MODELS[1]: {"MMLU-Pro": 45}}
    quality = {"min_recovery_pct": 100, "min_scores": {"MMLU-Pro": 40}, "scores": own}
    document = plan("--json", model=MODELS, quality=quality).document
    assert {c["deployment"]["model"] for c in document["candidates"]} == set(MODELS)


@pytest.mark.parametrize("least", [49, 99])
def test_a_floor_that_nothing_passes_says_so(plan: Callable[..., Any], least: int) -> None:
    ended = plan(quality={"min_scores": {"MMLU-Pro": least}})
    assert ended.code == 2
    assert f"passes the quality floor: {MODELS[0]} in bf16/bf16: MMLU-Pro 48.3 expected, below the {least}" in (
        ended.error
    )


def test_a_plan_says_what_the_hardware_does_not_run(plan: Callable[..., Any]) -> None:
    ended = plan("--json", engines=["sglang"])
    (why,) = (text for text in ended.document["filtered"] if "nvfp4" in text)
    assert why == "nvfp4 weights on L40S-48GB: sglang: modelopt_fp4 needs Blackwell"
