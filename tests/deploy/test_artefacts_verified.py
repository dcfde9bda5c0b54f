"""Every engine, topology and target: no option that its program lacks, no manifest that its schema refuses."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from benchmarks.artefacts import documents, starts, verdicts
from benchmarks.manifests import validate_manifest
from deploy.fleets import CASES
from servewise.deploy import TARGETS, Rendered, render
from servewise.errors import InputError
from servewise.types import Deployment


def rendered(deployment: Deployment) -> Iterator[Rendered]:
    """All targets that can express a deployment."""
    for target in TARGETS:
        try:
            yield render(deployment, target, name="my service")
        except InputError:
            continue  # test_render.py holds what a target may refuse


@pytest.mark.parametrize("case", CASES)
def test_programs_have_the_options_that_are_written(case: str) -> None:
    for found in rendered(CASES[case]):
        judged = verdicts(found, CASES[case])
        assert judged, found.target
        assert [(source, each) for source, each in judged if each.verdict == "rejected"] == []


@pytest.mark.parametrize("case", CASES)
def test_manifests_keep_their_published_schemas(case: str) -> None:
    for found in rendered(CASES[case]):
        for source, document in documents(found):
            assert validate_manifest(document) == [], (found.target, source)


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_has_programs_to_check(target: str) -> None:
    assert list(starts(render(CASES["vllm, several replicas"], target, name="x")))  # type: ignore[arg-type]


SPOILED: Mapping[str, tuple[str, str, tuple[str | int, ...]]] = {
    "Service": ("vllm, several replicas", "kubernetes", ("spec",)),
    "StatefulSet": ("vllm, one GPU", "kubernetes", ("spec", "template", "spec", "containers", 0)),
    "Deployment": ("vllm, several replicas", "kubernetes", ("spec", "template", "spec")),
    "LeaderWorkerSet": (
        "vllm, several nodes",
        "kubernetes",
        ("spec", "leaderWorkerTemplate", "workerTemplate", "spec"),
    ),
    "PodMonitor": ("vllm, one GPU", "kubernetes", ("spec", "podMetricsEndpoints", 0)),
    "InferenceService": ("vllm, one GPU", "kserve", ("spec", "predictor")),
    "DynamoGraphDeployment": ("vllm, one GPU", "dynamo", ("spec", "components", 0)),
    "services": ("vllm, one GPU", "compose", ("services", "replica-0")),
    "applications": ("vllm, one GPU", "ray-serve", ("applications", 0)),
    "llm_configs": ("vllm, one GPU", "ray-serve", ("applications", 0, "args", "llm_configs", 0)),
}
"""A place in a document of each kind to which a key is added that it does not have."""


@pytest.mark.parametrize("kind", SPOILED)
def test_a_key_that_a_schema_lacks_is_found(kind: str) -> None:
    case, target, path = SPOILED[kind]
    found = render(CASES[case], target, name="x")  # type: ignore[arg-type]
    spoiled = 0
    for _, document in documents(found):
        if kind in (document.get("kind"), *document) or kind == "llm_configs":
            broken: Any = copy.deepcopy(document)
            place = broken
            for step in path:
                place = place[step]
            place["notAKey"] = 1
            assert any("notAKey" in problem for problem in validate_manifest(broken)), validate_manifest(broken)
            spoiled += 1
    assert spoiled


def test_an_object_without_a_schema_is_a_fault() -> None:
    assert validate_manifest({"apiVersion": "example.org/v1", "kind": "Nothing", "metadata": {}}) != []
    assert validate_manifest({"name": "x"}) == ["nothing is known that has the keys name"]
