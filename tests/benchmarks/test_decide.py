"""The benchmark of decisions: its services, and that it finds what it looks for."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import decide
from benchmarks.plan_numbers import disagreeing_numbers
from servewise import api
from servewise.deploy import Artefact, Rendered
from servewise.report import plan_terminal
from servewise.types import Deployment

FAST = "one-consumer-gpu"


@pytest.fixture(scope="module")
def result() -> api.PlanResult:
    return api.plan(api.load_service(decide.SERVICES / f"{FAST}.yaml"), out_dir=None)


@pytest.fixture(scope="module")
def printed(result: api.PlanResult) -> str:
    out = io.StringIO()
    Console(file=out, width=decide.WIDTH, color_system=None).print(plan_terminal(result.report))
    return out.getvalue()


@pytest.fixture
def document(result: api.PlanResult) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.json_text)
    return found


def winner(document: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in document["candidates"] if each["index"] == document["winner"])
    return found


def test_the_services_ask_what_deciding_is_about() -> None:
    services = {path.stem: api.load_service(path) for path in decide.SERVICES.glob("*.yaml")}
    assert len(services) >= 12
    assert all(services[name].name == name for name in services)
    efforts = {service.max_effort for service in services.values()}
    assert efforts == {"low", "medium", "high"}
    assert {engine for service in services.values() for engine in service.engines} == {
        "vllm",
        "sglang",
        "tensorrt-llm",
        "tgi",
        "ollama",
    }
    assert any(service.speculations for service in services.values())


def test_a_service_is_decided_without_a_fault(tmp_path: Path) -> None:
    found = decide.Findings()
    decide.decide(decide.SERVICES / f"{FAST}.yaml", tmp_path, found)
    assert found.faults == []
    assert found.disagreeing == []
    assert found.artefacts > 10
    assert found.manifests > 10
    assert found.verdicts["accepted"] > 20
    assert found.verdicts["rejected"] == 0
    assert set(found.commands) == {"vllm", "llama-server"}


def test_an_option_that_no_program_has_is_a_fault(result: api.PlanResult) -> None:
    deployment: Deployment = result.plan.candidates[result.plan.ranking[0]].deployment
    deployment = replace(deployment, engine="vllm", engine_version="0.33.0")
    script = Artefact(name="replica-0.sh", text="#!/bin/sh\nexec vllm serve m --max-num-sequences 3\n", checked=())
    found = decide.Findings()
    decide.look("here", Rendered(target="command", files=(script,)), deployment, found)
    assert found.verdicts == {"rejected": 1}
    assert len(found.faults) == 1
    assert "--max-num-sequences" in found.faults[0]


def test_the_numbers_of_a_plan_agree(document: dict[str, Any], printed: str) -> None:
    assert disagreeing_numbers(document, printed) == []


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (("cost", "usd_per_month"), "a month"),
        (("cost", "usd_per_mtok_output_at_load"), "usd_per_mtok_output_at_load"),
        (("cost", "usd_per_mtok_output_at_capacity"), "at capacity"),
        (("summary", "attainment", "value"), "attainment"),
        (("summary", "percentiles", "ttft", "p99", "value"), "TTFT p99"),
        (("summary", "percentiles", "e2e", "p99", "value"), "E2E p99"),
    ],
)
def test_a_number_that_is_changed_is_found(
    document: dict[str, Any], printed: str, path: tuple[str, ...], words: str
) -> None:
    changed = copy.deepcopy(document)
    *outer, last = path
    place = winner(changed)
    for step in outer:
        place = place[step]
    place[last] *= 0.9
    assert any(words in fault for fault in disagreeing_numbers(changed, printed))


def test_a_row_of_the_table_that_is_no_candidates_is_found(document: dict[str, Any], printed: str) -> None:
    lines = printed.splitlines()
    (row,) = (number for number, line in enumerate(lines) if line.lstrip().startswith("1 RTX"))
    attained = f"{100 * winner(document)['summary']['attainment']['value']:.2f}"
    lines[row] = lines[row].replace(attained, "12.34")
    assert disagreeing_numbers(document, "\n".join(lines)) == ["row 1 of the printed ranking is no candidate's"]


def test_a_ranking_that_is_not_by_cost_is_found(document: dict[str, Any], printed: str) -> None:
    winner, *others = document["ranking"]
    assert len(others) > 1
    document["ranking"] = [winner, *reversed(others)]
    assert any("do not ascend" in fault for fault in disagreeing_numbers(document, printed))


def test_a_winner_that_does_not_lead_is_found(document: dict[str, Any], printed: str) -> None:
    document["ranking"].reverse()
    assert any("leads the ranking" in fault for fault in disagreeing_numbers(document, printed))
