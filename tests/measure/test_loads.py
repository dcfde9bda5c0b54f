"""Loads: what is sent when, in closed and open loops."""

from __future__ import annotations

import numpy as np
import pytest

from servewise.errors import InputError
from servewise.measure.loads import arrivals, closed_loop, made_up, open_loop, ramp
from servewise.traffic import Arrivals, Conversations, FixedLength, SynthesisSpec, UniformLength, synthesize
from servewise.types import Workload

FOUR = FixedLength(tokens=4)


def _talks() -> Workload:
    talks = Conversations(turns=FixedLength(tokens=3), turn_gap_s=5.0)
    spec = SynthesisSpec(
        num_requests=30, arrivals=Arrivals(rate_rps=1.0), input_tokens=FOUR, output_tokens=FOUR, conversations=talks
    )
    return synthesize(spec, 1)


def test_a_closed_loop_has_all_requests_ready_at_once() -> None:
    workload = made_up(FOUR, FOUR, concurrency=8, num_requests=100)
    load = closed_loop(workload, 8, duration_s=3.0, timeout_s=9.0)
    assert (load.num_requests, load.concurrency, load.duration_s, load.timeout_s) == (100, 8, 3.0, 9.0)
    assert not load.send_s.any()
    assert (load.after == -1).all()


def test_a_ramp_up_spreads_the_first_requests_of_a_closed_loop() -> None:
    load = closed_loop(made_up(FOUR, FOUR, num_requests=10), 4, ramp_up_s=2.0)
    assert load.send_s.tolist() == [0.0, 0.5, 1.0, 1.5] + [1.5] * 6


def test_a_closed_loop_limited_by_time_has_more_requests_than_can_be_sent() -> None:
    workload = made_up(FOUR, FOUR, concurrency=2, duration_s=1.0)
    assert workload.num_requests == 200
    assert made_up(FOUR, FOUR, concurrency=2, duration_s=1.0, num_requests=5).num_requests == 5


def test_open_loops_keep_the_times_of_the_workload() -> None:
    workload = made_up(FOUR, FOUR, when=arrivals(10.0, 0.0), num_requests=5)
    load = open_loop(workload)
    assert load.send_s == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert load.concurrency is None


@pytest.mark.parametrize("burstiness", [0.0, 0.5, 1.0, 3.0])
def test_rate_and_burstiness_are_those_asked_for(burstiness: float) -> None:
    gaps = np.diff(made_up(FOUR, FOUR, when=arrivals(50.0, burstiness), num_requests=200_000, seed=1).arrival_s)
    assert np.mean(gaps) == pytest.approx(0.02, rel=0.03)
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(burstiness, abs=0.05)


@pytest.mark.parametrize("burstiness", [0.0, 1.0, 4.0])
def test_a_duration_has_as_many_arrivals_as_its_rate_gives(burstiness: float) -> None:
    workload = made_up(FOUR, FOUR, when=arrivals(100.0, burstiness), duration_s=200.0, seed=2)
    assert workload.num_requests == pytest.approx(20_000, rel=0.1)
    # the draw did not stop before the end of the time
    assert workload.arrival_s[-1] == pytest.approx(200.0, abs=5.0)


def test_a_ramp_rises_from_one_rate_to_the_other() -> None:
    workload = made_up(FOUR, FOUR, when=ramp(10.0, 90.0, 100.0), duration_s=100.0, seed=3)
    tenth = np.histogram(workload.arrival_s, bins=10, range=(0.0, 100.0))[0]
    assert tenth[0] == pytest.approx(140, rel=0.3)
    assert tenth[-1] == pytest.approx(860, rel=0.15)
    assert workload.num_requests == pytest.approx(5000, rel=0.1)


def test_turns_wait_for_the_answer_before() -> None:
    workload = _talks()
    assert workload.session is not None
    for load in (open_loop(workload), closed_loop(workload, 4)):
        turns = np.flatnonzero(load.after >= 0)
        assert len(turns) == 20
        assert (load.after[turns] < turns).all()
        assert (workload.session[load.after[turns]] == workload.session[turns]).all()
        assert (np.diff(load.send_s) >= 0).all()


def test_lengths_are_drawn_and_nothing_is_shared() -> None:
    workload = made_up(UniformLength(low=5, high=9), FOUR, num_requests=1000, seed=4)
    assert set(workload.input_tokens.tolist()) == {5, 6, 7, 8, 9}
    assert workload.prefix is not None
    assert len(workload.prefix.ids) == 0


def test_a_load_without_an_end_is_refused() -> None:
    with pytest.raises(InputError, match="no end"):
        made_up(FOUR, FOUR, concurrency=1)
