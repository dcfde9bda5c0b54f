"""``max_effort`` turns down what asks for more, with the fact, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from servewise import effort
from servewise.search.families import most_replicas
from servewise.search.results import warnings_of
from servewise.search.shapes import enumerate_shapes
from servewise.types import Budget, Search

from .conftest import Make

ENGINES = (("vllm", "0.33.0"), ("sglang", "0.5.23"), ("tgi", "3.3.5"))


@pytest.fixture(scope="module")
def searches(make_search: Make) -> dict[str, Search]:
    def make(level: str) -> Search:
        return make_search(engines=ENGINES, gpus=("H100-SXM-80GB",), budget=Budget(), max_effort=level)

    return {level: make(level) for level in ("low", "medium", "high")}


def test_only_what_asks_for_more_is_turned_down(searches: dict[str, Search]) -> None:
    low, medium = enumerate_shapes(searches["low"]), enumerate_shapes(searches["medium"])
    assert [s.deployment for s in low] == [s.deployment for s in medium]
    for shape, other in zip(low, medium, strict=True):
        spans_nodes = shape.deployment.parallelism.num_gpus > shape.deployment.gpu.gpus_per_node
        assert "asks for" not in other.reason
        assert ("asks for medium effort" in shape.reason) == (spans_nodes and not other.reason)
        assert shape.reason.endswith(other.reason)
    turned_down = [s.reason for s in low if "asks for" in s.reason]
    assert turned_down
    assert all("a replica on several nodes needs the same environment" in reason for reason in turned_down)


def test_groups_are_listed_where_the_team_can_run_them(searches: dict[str, Search]) -> None:
    grouped = {
        level: [s for s in enumerate_shapes(search) if s.deployment.disaggregation]
        for level, search in searches.items()
    }
    assert not grouped["low"]
    assert not grouped["medium"]
    assert grouped["high"]
    assert {effort.effort(s.deployment).level for s in grouped["high"]} == {"high"}


def test_one_replica_where_a_router_is_too_much(searches: dict[str, Search]) -> None:
    shape = enumerate_shapes(searches["low"])[0]
    most, why = most_replicas(searches["low"], shape.deployment)
    assert most == 1
    assert why.startswith("a second replica asks for medium effort, more than max_effort low: several replicas need")
    assert most_replicas(searches["medium"], shape.deployment)[0] > 1


def test_candidates_on_tgi_warn_of_its_maintenance_mode(searches: dict[str, Search]) -> None:
    fresh = SimpleNamespace(warnings=())
    for shape in enumerate_shapes(searches["medium"]):
        warned = any("maintenance mode" in text for text in warnings_of(shape, fresh))  # type: ignore[arg-type]
        assert warned == (shape.deployment.engine == "tgi")
