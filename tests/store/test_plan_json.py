"""plan.json: what goes in comes out, what is damaged is refused, and the schema does not change unnoticed."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servewise import __version__
from servewise.catalog import get_model
from servewise.errors import InputError, SimulationError
from servewise.store import plan_from_json, plan_json_schema, plan_to_json
from servewise.types import (
    Autoscaling,
    Disaggregation,
    Failure,
    InstancePool,
    KvLink,
    Outage,
    Plan,
    Provenance,
    Speculation,
)
from store.plans import GPU, MODEL, PLAN, SUMMARY, deployment, estimate, meta

DOCS = Path(__file__).resolve().parents[2] / "docs"


def same(one: object, other: object) -> bool:
    """Equality in which NaN equals NaN."""
    return repr(one) == repr(other)


def test_a_plan_survives_the_round_trip_through_text() -> None:
    about = meta()
    text = json.dumps(plan_to_json(PLAN, about), allow_nan=False)
    plan, found = plan_from_json(json.loads(text))
    assert same(plan, PLAN)
    assert found == about
    assert plan.candidates[0].deployment == PLAN.candidates[0].deployment


def test_the_document_carries_where_it_comes_from() -> None:
    document = plan_to_json(PLAN, meta())
    assert document["schema"] == "servewise.plan/1"
    assert document["servewise_version"] == __version__
    assert document["input_hashes"] == {"chat.yaml": "sha256:00"}
    assert document["seeds"] == {"bootstrap": 7}
    assert document["engine_versions"] == {"vllm": ["0.33.0"]}
    assert document["price_dates"] == ["2026-01-01"]
    assert document["workload"]["mean_input_tokens"] == 90.0
    assert document["workload"]["provenance"]["source"] == "run@1234"


def test_facts_are_written_once() -> None:
    many = tuple(dataclasses.replace(PLAN.candidates[0], index=i, assurance=None) for i in range(500))
    text = json.dumps(plan_to_json(dataclasses.replace(PLAN, candidates=many), meta()), separators=(",", ":"))
    assert text.count('"vocab_size"') == 1
    assert text.count('"mem_bw_bytes_per_s"') == 1
    assert text.count("https://example.org/sheet") == 3  # the model's, the GPU's, and the table's
    assert len(text) / 500 < 3_500  # bytes a simulated candidate, here with three percentiles and one load point


def test_null_means_what_the_documentation_says() -> None:
    candidate = plan_to_json(PLAN, meta())["candidates"][0]
    assert candidate["cost"]["usd_per_mtok_output_at_load"] is None
    assert candidate["cost"]["usd_per_mtok_output_at_capacity"] is None
    ttft = candidate["summary"]["percentiles"]["ttft"]["p99"]
    assert (ttft["low"], ttft["high"]) == (0.2, None)
    plan, _ = plan_from_json(plan_to_json(PLAN, meta()))
    cost, summary = plan.candidates[0].cost, plan.candidates[0].summary
    assert cost is not None
    assert summary is not None
    assert cost.usd_per_mtok_output_at_load == math.inf
    assert math.isnan(cost.usd_per_mtok_output_at_capacity)
    assert summary.percentiles["ttft"]["p99"].high == math.inf
    assert math.isnan(summary.percentiles["e2e"]["p50"].high)  # no interval was computed
    assert math.isnan(plan.candidates[1].latency_s)


def test_the_verdict_is_written_and_follows_from_the_draws() -> None:
    document = plan_to_json(PLAN, meta())
    written = document["candidates"][0]["assurance"]
    assert (written["kept_frac"], written["num_draws"], written["verdict"]) == (25 / 32, 32, "likely")
    assert written["percentiles"]["tpot"]["p50"] == {"low": None, "high": None}
    assert written["means"]["tpot"]["value"] is None
    assert document["candidates"][1]["assurance"] is None
    plan, _ = plan_from_json(document)
    assurance = plan.candidates[0].assurance
    assert assurance is not None
    assert assurance.verdict == "likely"
    assert math.isnan(assurance.percentiles["tpot"]["p50"].low)


def test_parts_refer_to_the_table_of_origins() -> None:
    document = plan_to_json(PLAN, meta())
    (number,) = document["explanation"]["numbers"]
    rows = number["parts"][0]["sources"]
    assert [document["provenance"][row]["source"] for row in rows] == ["https://example.org/sheet", "run@1234"]
    assert number["parts"][1]["sources"] == []
    assert document["explanation"]["nearest"][0]["ttft_median_error_pct"] is None


def test_plans_without_the_keys_that_were_added_are_read() -> None:
    document = plan_to_json(PLAN, meta())
    del document["explanation"]
    del document["engines"], document["effort_facts"]
    for candidate in document["candidates"]:
        del candidate["assurance"], candidate["effort"]
    plan, _ = plan_from_json(document)
    assert plan.explanation is None
    assert plan.candidates[0].assurance is None
    assert plan.candidates[0].effort is None
    assert plan.engines == ()


def test_facts_on_effort_are_written_once_and_referred_to() -> None:
    document = plan_to_json(PLAN, meta())
    report = document["candidates"][0]["effort"]
    facts = document["effort_facts"]
    assert report["level"] == "medium"
    assert facts["several-replicas"]["demand"] == "medium"
    assert "several-replicas" in report["facts"]
    assert [of["engine"] for of in document["engines"]] == ["vllm", "tgi"]
    assert facts["tgi-status"]["warn"] is True
    assert facts["tgi-status"]["provenance"]["source"].startswith("https://")
    del facts["several-replicas"]
    with pytest.raises(InputError, match="`effort_facts` lacks several-replicas"):
        plan_from_json(document)


number = st.floats(0, 1e12)


@given(value=number, low=number, high=number | st.just(math.inf), wall_s=number, reason=st.text(max_size=40))
@settings(max_examples=40, deadline=None)
def test_any_number_and_any_text_survive(value: float, low: float, high: float, wall_s: float, reason: str) -> None:
    summary = dataclasses.replace(SUMMARY, attainment=estimate(value, low, high))
    candidate = dataclasses.replace(PLAN.candidates[0], summary=summary, reason=reason)
    plan = dataclasses.replace(PLAN, candidates=(candidate, PLAN.candidates[1]), wall_s=wall_s)
    again, _ = plan_from_json(json.loads(json.dumps(plan_to_json(plan, meta()))))
    assert same(again, plan)


def test_unknown_keys_are_ignored_because_a_version_may_add_some() -> None:
    document = plan_to_json(PLAN, meta())
    document["added_later"] = 1
    document["candidates"][0]["added_later"] = [2]
    assert same(plan_from_json(document)[0], PLAN)


def set_key(*path: str | int, value: object) -> Callable[[dict], None]:
    def change(document: dict) -> None:
        target = document
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_key("schema", value="servewise.plan/2"), r"schema is 'servewise\.plan/2'.*plan again"),
        (set_key("schema", value=1), "this is not a plan"),
        (set_key("winner", value=7), "refers to candidate 7"),
        (set_key("ranking", value=[0, 5]), "refers to candidate 5"),
        (set_key("wall_s", value="1"), "damaged at wall_s: .*number, found '1'"),
        (set_key("wall_s", value=None), "damaged at wall_s"),
        (set_key("candidates", 0, "status", value="best"), r"damaged at candidates\.0\.status"),
        (set_key("candidates", 0, "deployment", "model", value="other"), "other on H100-SXM-80GB.*lack"),
        (set_key("candidates", 0, "deployment", "gpu", value="TPU"), "on TPU.*lack"),
        (set_key("candidates", 0, "memory", "provenance", "weights", value=-1), "missing provenance"),
        (set_key("explanation", "numbers", 0, "parts", 0, "sources", value=[99]), "explanation of tpot.*provenance"),
        (set_key("candidates", 0, "assurance", "verdict", value="sure"), r"damaged at candidates\.0\.assurance"),
        (set_key("candidates", 0, "assurance", "kept_frac", value=None), r"assurance\.kept_frac"),
        (set_key("models", MODEL.name, "num_layers", value=32.5), "num_layers"),
        (set_key("gpus", GPU.name, "mem_bytes", value=None), "mem_bytes"),
        (lambda document: document.pop("candidates"), "damaged at candidates: Field required"),
    ],
)
def test_a_damaged_plan_is_refused_by_key(change: Callable[[dict], None], message: str) -> None:
    document = copy.deepcopy(plan_to_json(PLAN, meta()))
    change(document)
    with pytest.raises(InputError, match=message):
        plan_from_json(document)


@pytest.mark.parametrize("document", [None, [], "plan", {}, {"schema": None}, 3])
def test_other_json_is_not_a_plan(document: object) -> None:
    with pytest.raises(InputError, match="not a plan"):
        plan_from_json(document)


def test_nan_where_it_has_no_meaning_is_not_stored() -> None:
    with pytest.raises(SimulationError, match=r"cannot be stored.*wall_s"):
        plan_to_json(dataclasses.replace(PLAN, wall_s=math.nan), meta())


def test_two_models_of_one_name_are_not_stored() -> None:
    other = deployment(model=dataclasses.replace(MODEL, num_layers=1))
    candidates = (PLAN.candidates[0], dataclasses.replace(PLAN.candidates[1], deployment=other))
    with pytest.raises(SimulationError, match="share a name"):
        plan_to_json(dataclasses.replace(PLAN, candidates=candidates), meta())


def test_a_plan_without_candidates_is_a_plan() -> None:
    empty = Plan(
        candidates=(),
        winner=None,
        ranking=(),
        frontier=(),
        nearest=None,
        pruned_by_reason={},
        num_simulated=0,
        num_simulated_requests=0,
        wall_s=0.0,
    )
    assert plan_from_json(plan_to_json(empty, meta()))[0] == empty


def keys(schema: dict) -> set[str]:
    """All property names of a JSON Schema."""
    found = set(schema.get("properties", {}))
    for part in schema.get("$defs", {}).values():
        found |= set(part.get("properties", {}))
    return found


def test_the_published_schema_is_the_one_in_the_code() -> None:
    # A change of the types is a change of a public format: it must be seen here and decided on.
    assert json.loads((DOCS / "plan.schema.json").read_text(encoding="utf-8")) == plan_json_schema()


def test_every_key_is_documented() -> None:
    text = (DOCS / "plan-json.md").read_text(encoding="utf-8")
    document = plan_to_json(PLAN, meta())
    names = set(document) | set(document["workload"])
    for candidate in document["candidates"]:
        names |= set(candidate) | set(candidate["deployment"])
        for part in ("memory", "summary", "cost", "assurance", "effort"):
            names |= set(candidate[part] or {})
    names |= set(document["candidates"][0]["assurance"]["margin"]) | set(document["explanation"])
    names |= set(document["candidates"][0]["assurance"]["means"]["ttft"])
    (breakdown,), (runs,) = document["explanation"]["numbers"], document["explanation"]["nearest"]
    names |= set(breakdown) | set(breakdown["parts"][0]) | set(runs) | set(document["explanation"]["caveats"][0])
    names |= set(document["engines"][0]) | set(document["effort_facts"]["tgi-status"])
    names |= {field.name for part in (Failure, Outage, Autoscaling) for field in dataclasses.fields(part)}
    assert names <= keys(plan_json_schema())
    missing = sorted(name for name in names if f"`{name}`" not in text)
    assert missing == []


def test_groups_come_back_with_both_pools() -> None:
    first = PLAN.candidates[0]
    other = dataclasses.replace(GPU, name="L40S-48GB")
    link = KvLink(
        kind="network", bytes_per_s=1e10, latency_s=1e-3, provenance={"link": Provenance(kind="spec", source="a sheet")}
    )
    decode = InstancePool(
        gpu=first.deployment.gpu,
        parallelism=first.deployment.parallelism,
        params=first.deployment.params,
        num_instances=2,
    )
    group = Disaggregation(
        prefill=dataclasses.replace(decode, gpu=other, num_instances=1),
        decode=decode,
        link=link,
        router="least_requests",
    )
    changed = dataclasses.replace(first, deployment=dataclasses.replace(first.deployment, disaggregation=group))
    plan = dataclasses.replace(PLAN, candidates=(changed, *PLAN.candidates[1:]))
    document = plan_to_json(plan, meta())
    assert other.name in document["gpus"]
    found, _ = plan_from_json(document)
    assert found.candidates[0].deployment == changed.deployment


def test_drafters_come_back_with_their_models() -> None:
    first = PLAN.candidates[0]
    drafter = Speculation(
        method="draft_model",
        num_speculative_tokens=2,
        acceptance=(0.7, 0.4),
        draft_model=get_model("meta-llama/Llama-3.2-1B-Instruct"),
    )
    changed = dataclasses.replace(first, deployment=dataclasses.replace(first.deployment, speculation=drafter))
    document = plan_to_json(dataclasses.replace(PLAN, candidates=(changed, *PLAN.candidates[1:])), meta())
    found, _ = plan_from_json(document)
    assert found.candidates[0].deployment == changed.deployment
