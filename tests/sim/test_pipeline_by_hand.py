"""Pipelines of two and three stages worked out by hand, in the kernel and in the plain scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oracle.plain_engine import Request
from oracle.strategies import Case, params, req, unit_table
from oracle.vllm_plain import Params
from servewise.sim import Outcome
from sim.pipeline_agree import assert_agrees


def run(requests: tuple[Request, ...], settings: Params, *, pass_s: float, num_stages: int) -> Outcome:
    """Batches whose pass takes ``pass_s``, whatever is in them; in the kernel, with which the plain pipeline agrees."""
    times = unit_table()
    times = replace(times, decode_fixed_s=pass_s * times.decode_fixed_s, mixed_tokens_s=pass_s * times.mixed_tokens_s)
    return assert_agrees(Case(requests=requests, params=settings, times=times), num_stages)


def tokens(outcome: Outcome) -> list[tuple[float, float]]:
    """First and last token of every request [s]."""
    return [
        (round(float(a), 9), round(float(b), 9))
        for a, b in zip(outcome.outputs.first, outcome.outputs.last, strict=True)
    ]


THREE = (req(0, 0.0, 4, 3), req(1, 0.5, 4, 2), req(2, 1.0, 4, 2))


def test_two_stages_with_asynchronous_scheduling() -> None:
    """Two stages of 1 s. A: 3 tokens from 0; B: 2 from 0.5; C: 2 from 1. At most three batches are in flight.

    ::

        plan  at  seen            batch        stage 1  stage 2
        1     0   A came          A's prompt    0..1     1..2    A1 at 2
        2     0                   (A waits for plan 3: empty)
        3     0                   A             2..3     3..4    A2 at 4: its input A1 comes at 2
        4     2   1 done; B, C    B's, C's      3..4     4..5    B1, C1 at 5
        5     2   2 with 1        A             4..5     5..6    A3 at 6: its input A2 comes at 4
        6     4   3 done          B, C          5..6     6..7    B2, C2 at 7
        7     5   4 done          (A's last token is in flight, known by length: empty)

    From 4 s on a batch leaves every second; each request gets a token every two.
    """
    outcome = run(THREE, params(lag=True), pass_s=2.0, num_stages=2)
    assert tokens(outcome) == [(2.0, 6.0), (5.0, 7.0), (5.0, 7.0)]


def test_two_stages_without_asynchronous_scheduling() -> None:
    """The same without: two batches in flight. Plan 2, made at once for the free stage, is empty, and so the engine
    waits for A's batch; B and C, who came meanwhile, join A, and one stage always rests::

        plan  at  batch                    stage 1  stage 2
        1     0   A's prompt                0..1     1..2    A1 at 2
        2     0   (empty)
        3     2   A, and B's, C's prompts   2..3     3..4    A2, B1, C1 at 4
        4     2   (empty)
        5     4   A, B, C                   4..5     5..6    A3, B2, C2 at 6
    """
    outcome = run(THREE, params(lag=False, budget=16), pass_s=2.0, num_stages=2)
    assert tokens(outcome) == [(2.0, 6.0), (4.0, 6.0), (4.0, 6.0)]


def test_three_stages_chunks_and_seats() -> None:
    """32 layers on three stages: 11, 11, 10 s. Four seats, 8 tokens a batch, at most three batches in flight (without
    asynchronous scheduling). A: 20 in, 2 out at 0; B: 4 in, 2 out at 0; C: 4 in, 2 out at 20; D: 4 in, 1 out at 40;
    E and F: 4 in, 1 out at 70.

    ::

        plan  at   batch             stage 1   2         3
        1     0    A 8 of 20          0..11    11..22    22..32
        2     0    A 8                11..22   22..33    33..43
        3     0    A 4, B's prompt    22..33   33..44    44..54    A1, B1 at 54
        4     32   C's prompt         33..44   44..55    55..65    C1 at 65
        5     43   D's prompt         44..55   55..66    66..76    D1 at 76, its last
        6     54   A, B               55..66   66..77    77..87    A2, B2 at 87, their last
        7     65   C                  66..77   77..88    88..98    C2 at 98
        8     76   E's prompt         77..88   88..99    99..109   E1: D's seat is free; F has none
        9     87   F's prompt         88..99   99..110   110..120  F1: A and B have left
    """
    requests = (
        req(0, 0.0, 20, 2),
        req(1, 0.0, 4, 2),
        req(2, 20.0, 4, 2),
        req(3, 40.0, 4, 1),
        req(4, 70.0, 4, 1),
        req(5, 70.0, 4, 1),
    )
    outcome = run(requests, params(lag=False, seats=4, budget=8), pass_s=32.0, num_stages=3)
    assert tokens(outcome) == [(54.0, 87.0), (54.0, 87.0), (65.0, 98.0), (76.0, 76.0), (109.0, 109.0), (120.0, 120.0)]
    assert outcome.slots_bound
    assert outcome.budget_bound


def test_a_victim_keeps_the_token_that_is_in_flight() -> None:
    """Two stages of 1 s, 5 blocks of 2 tokens, asynchronous. A: 4 in, 6 out at 0; B: 4 in, 4 out at 1.

    ::

        plan  at  batch         blocks of A, B     stage 1  stage 2
        1     0   A's prompt    2, 0                0..1     1..2    A1 at 2
        3     0   A             3, 0                2..3     3..4    A2 at 4
        4     2   B's prompt    3, 2 (none free)    3..4     4..5    B1 at 5
        5     2   A             3, 2                4..5     5..6    A3 at 6
        6     4   B needs a third block: it is the last of the running list, its own victim. B1 is in flight.
        7     5   A             4, 0                6..7     7..8    A4 at 8; B1 is delivered, B needs 3 blocks
        9     6   A             4, 0                8..9     9..10   A5 at 10
        11    8   A             5, 0               10..11   11..12   A6 at 12
        14    12  B, 5 tokens   0, 3               12..13   13..14   B2 at 14
        16    12  B             0, 3               14..15   15..16   B3 at 16
        18    14  B             0, 4               16..17   17..18   B4 at 18
    """
    requests = (req(0, 0.0, 4, 6), req(1, 1.0, 4, 4))
    outcome = run(requests, params(lag=True, blocks=5), pass_s=2.0, num_stages=2)
    assert tokens(outcome) == [(2.0, 12.0), (5.0, 18.0)]
    assert outcome.outputs.preemptions.tolist() == [0, 1]
    assert outcome.peak_kv_blocks == 5


def test_a_request_that_ends_by_a_stop_token_has_a_wasted_row() -> None:
    """Two stages of 1 s. A ends by a stop token at its 2nd token, at 4; step 5 is planned at 2, before anyone knows.
    B, who came at 3, is in plan 6, made at 4 when A's end is known: stage 1 is A's until 5 with the wasted row, which
    enters when A2 is there: 4..5. So B's prompt: 5..6, 6..7."""
    requests = (req(0, 0.0, 4, 2, stop=True), req(1, 3.0, 4, 1))
    outcome = run(requests, params(lag=True), pass_s=2.0, num_stages=2)
    assert tokens(outcome) == [(2.0, 4.0), (7.0, 7.0)]


@pytest.mark.parametrize("num_requests", [1, 2, 3, 4])
def test_requests_on_other_stages_slow_nobody(num_requests: int) -> None:
    """Four stages of 8 s. The first request's tokens are 32 s apart, whether the other stages rest or not: with fewer
    requests than stages a pipeline has bubbles, and no token comes sooner for it."""
    requests = tuple(req(number, 8.0 * number, 4, 5) for number in range(num_requests))
    outcome = run(requests, params(lag=True), pass_s=32.0, num_stages=4)
    assert tokens(outcome)[0] == (32.0, 32.0 * 5)
