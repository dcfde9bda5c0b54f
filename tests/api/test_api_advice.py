"""The recommendation: which sentences there are, and that their numbers are the plan's."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.advice_numbers import disagreeing_numbers

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A plan with a choice of GPUs, engines and precisions."""
    import json

    from servewise import api

    folder = tmp_path_factory.mktemp("advice")
    service = {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "traffic": {"profile": "azure-conversation-2023", "num_requests": 1000, "rate_rps": 10},
        "promise": {"ttft_s": 1.0, "tpot_s": 0.05, "attainment": 0.9, "e2e_p99_s": 60},
        "quality": {"min_recovery_pct": 99},
        "hardware": ["L40S-48GB", "H100-SXM-80GB"],
        "budget": {"max_gpus": 4},
        "engines": ["vllm", "tgi"],
    }
    path = folder / "service.yaml"
    path.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in service.items()) + "\n")
    return json.loads(api.plan(api.load_service(path)).json_text)


def test_every_topic_is_said(document: Any) -> None:
    topics = [said["topic"] for said in document["advice"]]
    once = {"chosen", "cheapest", "fastest", "quality", "simplest", "engine", "gpu", "price", "load", "nines", "sure"}
    once |= {"spare", "growth", "goodput", "batch", "hosted"}
    assert set(topics) == once | {"promise"}
    assert sorted(topic for topic in topics if topic != "promise") == sorted(once)
    limits = [said["text"].split(":")[0] for said in document["advice"] if said["topic"] == "promise"]
    assert limits == ["TTFT limit", "TPOT limit", "Share of requests", "E2E p99 limit"]


def test_every_number_is_borne_out_by_its_fields(document: Any) -> None:
    assert disagreeing_numbers(document) == []


def test_a_number_that_was_changed_is_found(document: Any) -> None:
    """Every dollar in every sentence, a tenth more: dollars have few fields to be mistaken for."""
    num_changed = 0
    for place, said in enumerate(document["advice"]):
        for match in re.finditer(r"\$(\d[\d,]*\.?\d*)", said["text"]):
            other = f"${float(match[1].replace(',', '')) * 1.1:.{len(match[1].partition('.')[2])}f}"
            changed = copy.deepcopy(document["advice"])
            changed[place]["text"] = said["text"][: match.start()] + other + said["text"][match.end() :]
            wrong = disagreeing_numbers({**document, "advice": changed})
            assert wrong, f"{other} for {match[0]} in {said['text']}"
            num_changed += 1
    assert num_changed > 20


def test_a_sign_that_was_changed_is_found(document: Any) -> None:
    num_changed = num_found = 0
    for place, said in enumerate(document["advice"]):
        for match in re.finditer(r"\(([+-])(\d+%)\)", said["text"]):
            other = f"({'-' if match[1] == '+' else '+'}{match[2]})"
            changed = copy.deepcopy(document["advice"])
            changed[place]["text"] = said["text"][: match.start()] + other + said["text"][match.end() :]
            num_changed += 1
            num_found += bool(disagreeing_numbers({**document, "advice": changed}))
    assert num_changed > 10
    assert num_found > 0.8 * num_changed, "another field may have changed so, but that is rare"


def test_quick_plans_nothing_again(plan: Command) -> None:
    ended = plan("--quick")
    assert ended.code == 0
    assert ended.document["what_if"] is None
    assert "What the promise costs" not in ended.out
    topics = {said["topic"] for said in ended.document["advice"]}
    assert {"chosen", "fastest", "sure", "goodput"} <= topics
    assert not topics & {"price", "load", "promise", "nines", "growth", "batch", "hosted", "engine", "gpu"}
    assert not topics & {"quality", "simplest"}, "said of what was never looked at"
    assert disagreeing_numbers(ended.document) == []


def test_expected_growth_is_planned(plan: Command) -> None:
    ended = plan(operations={"expected_growth_pct": 37})
    load = next(v for v in ended.document["what_if"]["variations"] if v["variable"] == "load")
    (point,) = (point for point in load["points"] if point["value"] == 1.37)
    (said,) = (said for said in ended.document["advice"] if said["topic"] == "growth")
    assert said["text"].startswith("When traffic has grown as expected: 1.37 times the load takes ")
    assert f"${point['best']['usd_per_h']:.3f}/h" in said["text"]
    assert disagreeing_numbers(ended.document) == []


def test_own_prices_by_the_token_replace_the_built_in_ones(plan: Command) -> None:
    offer = {"provider": "ours [b]", "usd_per_mtok_input": 0.001, "usd_per_mtok_output": 0.002}
    ended = plan(hosted=[offer])
    (hosted,) = ended.document["what_if"]["hosted"]
    traffic = ended.document["workload"]
    per_output = traffic["mean_input_tokens"] / traffic["mean_output_tokens"]
    assert hosted["usd_per_mtok_output"] == pytest.approx(0.001 * per_output + 0.002)
    (said,) = (said for said in ended.document["advice"] if said["topic"] == "hosted")
    assert "ours [b]" in said["text"]
    assert "is never cheaper" in said["text"]
    assert "ours [b]" in " ".join(ended.out.split())
    dear = plan(hosted=[{**offer, "usd_per_mtok_output": 1e6}]).document
    (said,) = (said for said in dear["advice"] if said["topic"] == "hosted")
    assert "a fleet of one's own is cheaper from 0.125 times the load on" in said["text"]


def test_the_page_shows_it_and_obeys_no_name(plan: Command) -> None:
    offer = {"provider": "<script>alert(1)</script>", "usd_per_mtok_input": 0.5, "usd_per_mtok_output": 1.0}
    (folder,) = plan(hosted=[offer]).folders
    page = (folder / "plan.html").read_text(encoding="utf-8")
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<h2>Recommendation</h2>" in page
    for variable in ("ttft_s", "tpot_s", "attainment", "load"):
        assert f'id="cost-{variable}"' in page
        assert f'"cost-{variable}": ' in page or f'"cost-{variable}":' in page


def test_without_a_winner_it_says_what_could_be_promised(plan: Command) -> None:
    ended = plan(promise={"ttft_s": 0.02, "tpot_s": 0.05, "attainment": 0.95}, budget={"max_gpus": 1})
    assert ended.code == 3
    topics = [said["topic"] for said in ended.document["advice"]]
    assert topics == ["promise", "promise", "promise", "load"]
    assert disagreeing_numbers(ended.document) == []
    assert "Recommendation" in ended.out
    assert ended.document["advice"][0]["text"].startswith("TTFT limit: even at 40 ms nothing keeps the promise")
