"""The search for the edge: found, confirmed, widened, stopped."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
from tests.metrics.logs import make_log

from servewise.measure.sweep import search_edge
from servewise.metrics import summarize
from servewise.types import Edge, Promise, SweepPoint, Trust

FINE = Trust(reasons=(), notes=(), facts={"failed_frac": 0.0})
KEPT = summarize(make_log([0], [0.1], [0.2], [2]), Promise(e2e_s=1.0))
BROKEN = summarize(make_log([0], [0.1], [2.0], [2]), Promise(e2e_s=1.0))


def _point(load: float, repeat: int, kept: bool, trust: Trust = FINE) -> SweepPoint:
    return SweepPoint(load=load, repeat=repeat, summary=KEPT if kept else BROKEN, trust=trust)


def _find(keeps: Callable[[float, int], bool], *, start: float = 1.0, whole: bool = False, most: float = 1e9) -> Edge:
    return search_edge(
        lambda load, repeat: _point(load, repeat, keeps(load, repeat)), start=start, whole=whole, most=most
    )


@pytest.mark.parametrize("start", [0.01, 1.0, 7.3, 900.0])
@pytest.mark.parametrize("truth", [0.5, 3.0, 7.3, 100.0])
def test_the_edge_is_between_its_sides(start: float, truth: float) -> None:
    edge = _find(lambda load, _: load <= truth, start=start)
    assert edge.low is not None
    assert edge.high is not None
    assert edge.low <= truth < edge.high <= 1.1 * edge.low
    assert (edge.low_kept, edge.high_kept, edge.stopped) == ((3, 3), (0, 3), "")
    runs = Counter((point.load, point.repeat) for point in edge.points)
    assert max(runs.values()) == 1
    assert len(edge.points) < 40


@pytest.mark.parametrize("truth", [1, 2, 5, 64, 100])
def test_concurrencies_are_whole_and_next_to_each_other(truth: int) -> None:
    edge = _find(lambda load, _: load <= truth, start=8, whole=True)
    assert (edge.low, edge.high) == (truth, truth + 1)
    assert all(float(point.load).is_integer() for point in edge.points)


def test_a_side_that_does_not_hold_moves_the_edge() -> None:
    # the first run at every load from 5 to 9 is luck
    edge = _find(lambda load, repeat: load <= 5 or (load <= 9 and repeat == 0))
    assert edge.low is not None
    assert edge.high is not None
    assert edge.low <= 5 < edge.high <= 1.1 * edge.low


def test_a_noisy_edge_shows_how_many_runs_kept_it() -> None:
    edge = _find(lambda load, repeat: load <= 4 or (load <= 4.6 and repeat != 1))
    assert edge.low is not None
    assert 4.0 < edge.low <= 4.6
    assert edge.low_kept == (2, 3)


def test_nothing_that_keeps_and_nothing_that_breaks() -> None:
    none = _find(lambda *_: False, whole=True, start=4)
    assert (none.low, none.high, none.high_kept) == (None, 1, (0, 3))
    assert "breaks the promise" in none.stopped
    every = _find(lambda *_: True, whole=True, most=16)
    assert (every.low, every.high, every.low_kept) == (16, None, (3, 3))
    assert "highest load to try" in every.stopped


def test_a_client_that_cannot_keep_up_ends_the_search_and_failed_requests_do_not() -> None:
    late = Trust(reasons=("the client was late",), notes=(), facts={"failed_frac": 0.0})
    failing = Trust(reasons=("half of it failed",), notes=(), facts={"failed_frac": 0.5})
    edge = search_edge(lambda load, i: _point(load, i, True, late if load > 10 else FINE), start=1, whole=False)
    assert (edge.low, edge.high) == (8.0, None)
    assert "3 runs at 16 cannot be trusted, the last: the client was late" in edge.stopped
    assert [point.load for point in edge.points] == [1, 2, 4, 8, 16, 16, 16]
    edge = search_edge(lambda load, i: _point(load, i, load < 10, failing if load > 10 else FINE), start=1, whole=False)
    assert edge.stopped == ""
    assert edge.high == pytest.approx(10.0, rel=0.1)


def test_a_run_that_cannot_be_trusted_is_made_again() -> None:
    late = Trust(reasons=("the client was late",), notes=(), facts={})

    def measure(load: float, repeat: int) -> SweepPoint:
        return _point(load, repeat, load <= 5, late if repeat == 0 else FINE)

    edge = search_edge(measure, start=4, whole=True)
    assert (edge.low, edge.high, edge.low_kept, edge.high_kept) == (5, 6, (3, 3), (0, 3))
    assert max(Counter((point.load, point.repeat) for point in edge.points).values()) == 1


def test_an_alternating_server_ends_the_search_at_last() -> None:
    edge = _find(lambda load, repeat: math.sin(1e6 * load + repeat) > 0)
    assert len(edge.points) <= 60
