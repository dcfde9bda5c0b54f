"""Which fleets compete: the smallest of each shape, against the others of its kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servewise.search import fleet
from servewise.search.fleet import Fleet, Load, Trial, find_fleet
from servewise.search.results import Point, Result, beaten, kind_of, without_beaten
from servewise.types import Promise, Workload

from .conftest import Make
from .drawn import kept_result
from .test_random_searches import FakeOutcome


def found_among(
    monkeypatch: pytest.MonkeyPatch, chat: Workload, kept: set[int], *, matters: bool
) -> tuple[Fleet, list[int]]:
    """The search from 4 replicas on, where fleets of the given sizes keep the promise; and what it simulated."""
    tried = []

    def fake(_shape: object, _memory: object, _load: object, num_replicas: int) -> Trial:
        tried.append(num_replicas)
        good = num_replicas in kept
        return Trial(num_replicas=num_replicas, kept=good, stopped=not good, outcome=FakeOutcome(chat.num_requests))

    monkeypatch.setattr(fleet, "try_fleet", fake)
    load = Load(workload=chat, promise=Promise(), rule=None, packed=None, step_model=None)
    asked = find_fleet(None, None, load, fewest=4, most=64, worth=lambda _num: True, matters=lambda _trial: matters)
    return asked, tried


def test_a_fleet_that_is_passed_over_is_remembered(monkeypatch: pytest.MonkeyPatch, chat: Workload) -> None:
    found, _ = found_among(monkeypatch, chat, {4, 6, 7}, matters=True)
    assert found.found
    assert found.trial is not None
    assert found.first is not None
    assert (found.first.num_replicas, found.trial.num_replicas) == (4, 6)
    usual, _ = found_among(monkeypatch, chat, {5, 6}, matters=True)
    assert usual.trial is not None
    assert (usual.first, usual.trial.num_replicas) == (None, 5)


def test_one_replica_more_is_not_asked_of_a_beaten_fleet(monkeypatch: pytest.MonkeyPatch, chat: Workload) -> None:
    for kept in ({5}, {5, 6}):
        found, tried = found_among(monkeypatch, chat, kept, matters=False)
        assert found.beaten
        assert not found.found
        assert max(tried) == 5


@pytest.fixture(scope="module")
def result(make_search: Make) -> Result:
    return kept_result(make_search(gpus=("L40S-48GB",)))


def test_who_beats_whom() -> None:
    points = [Point(usd_per_mtok=1.0, latency_s=2.0)]
    assert beaten(points, 1.0, 2.1)
    assert beaten(points, 1.1, 2.0)
    assert not beaten(points, 1.0, 2.0)  # equals compete
    assert not beaten(points, 0.9, 3.0)
    assert not beaten(points, 2.0, 1.0)


def test_a_fleet_counts_only_if_the_one_it_passed_over_is_not_beaten(result: Result) -> None:
    own = result.point
    assert own is not None
    assert own.kind == kind_of(result.shape.deployment)
    cheaper = replace(own, usd_per_mtok=0.9 * own.usd_per_mtok)
    larger = replace(result, candidate=replace(result.candidate, index=10**6), first=cheaper)
    assert larger.point is None  # it rules nothing out
    first, second = without_beaten([result, larger])
    assert first is result
    assert second is larger  # what it passed over is cheaper than the other
    slower = replace(larger, first=replace(own, latency_s=1.1 * own.latency_s))
    first, second = without_beaten([result, slower])
    assert first is result
    assert second.candidate.status == "dominated"
    assert "another fleet beats both" in second.candidate.reason
