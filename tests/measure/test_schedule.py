"""Which request is sent when."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loop.engine import make_load

from servewise.measure.schedule import NEVER_NS, Schedule, check_load
from servewise.types import Load

S = 1_000_000_000


def play(load: Load, takes_ns: list[int], late_ns: int = 0) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
    """Run a schedule against answers that take a given time; intended send, send and end of each request [ns]."""
    check_load(load)
    schedule = Schedule(load)
    now = 0
    intended, sent, ended = dict[int, int](), dict[int, int](), dict[int, int]()
    in_flight: list[tuple[int, int]] = []
    while True:
        while (due := schedule.take(now)) is not None:
            request, at = due
            assert request not in sent
            intended[request], sent[request] = at, now
            heappush(in_flight, (now + takes_ns[request], request))
        following = min(schedule.next_ns(now), in_flight[0][0] if in_flight else NEVER_NS)
        if following == NEVER_NS:
            return intended, sent, ended
        now = max(now, following) + late_ns
        while in_flight and in_flight[0][0] <= now:
            at, request = heappop(in_flight)
            ended[request] = at
            schedule.ended(request, at)


@st.composite
def loads(draw: st.DrawFn) -> tuple[Load, list[int]]:
    num = draw(st.integers(1, 25))
    send_s = sorted(draw(st.lists(st.integers(0, 20), min_size=num, max_size=num)))
    after = [draw(st.integers(-1, i - 1)) for i in range(num)]
    load = make_load(
        [float(s) for s in send_s],
        after=after,
        think_s=float(draw(st.integers(0, 3))),
        concurrency=draw(st.none() | st.integers(1, 5)),
        duration_s=draw(st.none() | st.integers(1, 30).map(float)),
    )
    return load, [draw(st.integers(1, 8)) * S for _ in range(num)]


@given(loads(), st.integers(0, S))
@settings(deadline=None)
def test_laws(case: tuple[Load, list[int]], late_ns: int) -> None:
    load, takes_ns = case
    intended, sent, ended = play(load, takes_ns, late_ns)
    if load.duration_s is None:
        assert sorted(sent) == list(range(load.num_requests))
    else:
        assert all(at <= load.duration_s * S for at in sent.values())
    assert set(ended) == set(sent)
    for request, at in intended.items():
        assert at <= sent[request]
        earlier = int(load.after[request])
        ready = int(load.send_s[request] * S)
        if earlier >= 0:
            ready = max(ready, ended[earlier] + int(load.think_s[request] * S))
        # Nothing but a place can have kept it waiting beyond that, and a place is free when somebody ends.
        assert at == ready or (load.concurrency is not None and at > ready and at in ended.values())
    if load.concurrency is not None:
        for at in sent.values():
            assert sum(sent[r] <= at < ended[r] for r in sent) <= load.concurrency


@given(loads())
@settings(deadline=None)
def test_a_prompt_client_sends_on_time(case: tuple[Load, list[int]]) -> None:
    intended, sent, _ = play(*case)
    assert intended == sent


def test_places_go_to_the_first_in_the_load() -> None:
    load = make_load([0.0] * 4, after=[-1, 0, -1, -1], concurrency=1)
    intended, _, _ = play(load, [S] * 4)
    assert sorted(intended, key=intended.__getitem__) == [0, 1, 2, 3]


def test_a_pause_leaves_the_place_to_others() -> None:
    load = make_load([0.0] * 3, after=[-1, 0, -1], think_s=0.5, concurrency=1)
    intended, _, ended = play(load, [S] * 3)
    assert intended == {0: 0, 2: S, 1: 2 * S}
    assert ended == {0: S, 2: 2 * S, 1: 3 * S}


def test_a_closed_loop_intends_a_request_when_a_place_is_free_however_late_it_is_sent() -> None:
    intended, sent, ended = play(make_load([0.0] * 3, concurrency=1), [S] * 3, late_ns=7)
    assert intended == {0: 0, 1: ended[0], 2: ended[1]}
    assert [sent[r] - intended[r] for r in range(3)] == [0, 7, 7]


def test_a_large_load_is_dealt_out_quickly_and_in_order() -> None:
    num = 20_000
    load = make_load(list(np.arange(num) / 1000.0))
    intended, _, _ = play(load, [S] * num)
    assert list(intended) == list(range(num))
