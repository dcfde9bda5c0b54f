"""The plain scheduler against schedules worked out by hand.

Every step takes exactly one second (:func:`unit_table`). In the comments ``B`` is the block size in tokens,
``P4 O3`` a prompt of 4 tokens with an output of 3, ``A3`` a row of 3 tokens of request A; plan j is the plan
of step j, made with lag 1 when step j - 1 starts. Request ids: A = 0, B = 1, and so on.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from oracle.plain_engine import Result, Row, step_duration
from oracle.strategies import params, req, unit_table
from oracle.vllm_plain import Engine, simulate
from servewise.types import StepTable

A, B, C, D, E = range(5)


def schedule(result: Result) -> list[tuple[float, list[tuple[int, int]]]]:
    """Start and rows of every step."""
    return [(step.start_s, list(step.rows)) for step in result.steps]


def times_of(result: Result) -> list[tuple[float, float, float]]:
    """Scheduled, first token, last token of every request."""
    return [(r.scheduled_s, r.first_token_s, r.last_token_s) for r in result.requests]


def test_chunks_admission_and_lag() -> None:
    # B = 4, budget 8. A: P10 O3, B: P5 O2 at 0; C: P3 O1 at 0.5. All end by length.
    # t=0 plan 0: A8, budget gone. Step 0.
    #     plan 1, made at 0, does not see C: A2 B5, 1 token left.
    # t=1 step 0 sampled nothing. Step 1.
    #     plan 2: A1 B1 (their first tokens are in flight), C3.
    # t=2 A, B have 1 token. Step 2.
    #     plan 3: A has 1 + 1 in flight of 3: A1. B has 1 + 1 of 2 and C 0 + 1 of 1: no rows.
    # t=3 A has 2; B, C done. Step 3. plan 4: A has 2 + 1 of 3: nothing.
    # t=4 A done.
    requests = [req(A, 0.0, 10, 3), req(B, 0.0, 5, 2), req(C, 0.5, 3, 1)]
    result = simulate(requests, params(block=4), unit_table())
    assert schedule(result) == [
        (0.0, [(A, 8)]),
        (1.0, [(A, 2), (B, 5)]),
        (2.0, [(A, 1), (B, 1), (C, 3)]),
        (3.0, [(A, 1)]),
    ]
    assert times_of(result) == [(0.0, 2.0, 4.0), (1.0, 2.0, 3.0), (2.0, 3.0, 3.0)]
    assert result.num_preemptions == 0
    assert result.peak_running == 3
    # After plan 2: A 11 tokens in 3 blocks, B 6 in 2, C 3 in 1; plan 3 adds none.
    assert result.peak_blocks == 6


def test_without_lag_an_arrival_during_a_step_joins_the_next_one() -> None:
    # The same requests. The plan of step 1 is made at t=1 and sees C: A2 B5 and 1 token of C.
    # t=2 plan: A1 B1 C2 (the rest of C's prompt). t=3: B, C done. A1. t=4: A done.
    requests = [req(A, 0.0, 10, 3), req(B, 0.0, 5, 2), req(C, 0.5, 3, 1)]
    result = simulate(requests, params(block=4, lag=False), unit_table())
    assert schedule(result) == [
        (0.0, [(A, 8)]),
        (1.0, [(A, 2), (B, 5), (C, 1)]),
        (2.0, [(A, 1), (B, 1), (C, 2)]),
        (3.0, [(A, 1)]),
    ]
    assert times_of(result) == [(0.0, 2.0, 4.0), (1.0, 2.0, 3.0), (1.0, 3.0, 3.0)]


def test_arrival_at_the_instant_a_step_ends() -> None:
    # A: P2 O3 runs [0,1) [1,2) [2,3). B arrives at 1.0 exactly: plan 2, made at 1, sees it.
    result = simulate([req(A, 0.0, 2, 3), req(B, 1.0, 2, 1)], params(), unit_table())
    assert schedule(result)[2] == (2.0, [(A, 1), (B, 2)])


@pytest.mark.parametrize(
    ("lag", "stop", "start_s"),
    [
        # Steps [0,1) prefill and [1,2) decode: the last token is processed at 2; idle; B runs at 2.5.
        (True, False, 2.5),
        (False, False, 2.5),
        (False, True, 2.5),
        # Plan 2, made at 1, cannot know the stop token: a wasted row runs in [2,3). B waits for its end.
        (True, True, 3.0),
    ],
)
def test_a_stop_token_wastes_a_row_only_with_lag(lag: bool, stop: bool, start_s: float) -> None:
    requests = [req(A, 0.0, 4, 2, stop=stop), req(B, 2.5, 4, 1)]
    result = simulate(requests, params(lag=lag), unit_table())
    wasted = [(2.0, [(A, 1)])] if lag and stop else []
    assert schedule(result) == [(0.0, [(A, 4)]), (1.0, [(A, 1)]), *wasted, (start_s, [(B, 4)])]
    assert times_of(result) == [(0.0, 1.0, 2.0), (start_s, start_s + 1, start_s + 1)]


def test_a_wasted_row_takes_budget_and_a_finishing_request_its_seat() -> None:
    # Budget 4, 2 seats. A: P4 O1 by stop token; B, C: P4 O1 by length; all at 0.
    # t=0 plan 0: A4. plan 1: A1 (wasted: its only token is in flight), B3 of 4.
    # t=1 A done, gone before plan 2. Step 1: A1 B3. plan 2: B1 (last chunk), C3 of 4.
    # t=2 step 2: B1 C3. plan 3: B's last token is in flight: no row. C1.
    # t=3 B done. Step 3: C1. t=4 C done.
    requests = [req(A, 0.0, 4, 1, stop=True), req(B, 0.0, 4, 1), req(C, 0.0, 4, 1)]
    result = simulate(requests, params(budget=4, seats=2), unit_table())
    assert schedule(result) == [
        (0.0, [(A, 4)]),
        (1.0, [(A, 1), (B, 3)]),
        (2.0, [(B, 1), (C, 3)]),
        (3.0, [(C, 1)]),
    ]
    assert times_of(result) == [(0.0, 1.0, 1.0), (1.0, 3.0, 3.0), (2.0, 4.0, 4.0)]
    # One seat. A: P4 O1 by length, B: P4 O1. plan 1: A gets no row but sits there still: nothing is planned.
    # t=1 A done, plan again: B4.
    result = simulate([req(A, 0.0, 4, 1), req(B, 0.0, 4, 1)], params(seats=1), unit_table())
    assert schedule(result) == [(0.0, [(A, 4)]), (1.0, [(B, 4)])]


def test_preemption_recompute_and_head_of_line() -> None:
    # B = 2, 6 blocks, budget 8. A: P4 O4, B: P4 O4, C: P2 O2, all at 0, all by length.
    # t=0 plan 0: A4 (2 blocks) B4 (2), 2 free, budget gone.
    #     plan 1: A1 (3rd block) B1 (3rd block), 0 free. C needs 1 block: stop.
    # t=1 A, B have 1 token. plan 2: A1 B1 fill their 3rd blocks (6 tokens). C still blocked.
    # t=2 A, B have 2. plan 3: A's 7th token needs a block: the last of the list, B, is preempted (3 blocks
    #     free), A takes 1: A1. Somebody was preempted: no admission, though C would fit. Waiting: B, C.
    # t=3 step 2 delivers A's and B's 3rd tokens (B's was in flight). Step 3: A1.
    #     plan 4: A's last is in flight. B knows 4 + 3 = 7 tokens = 4 blocks > 2 free: stop, C behind it.
    # t=4 A done, 6 free. Nothing was planned: plan again. B7 (4 blocks), C: 1 of 2 tokens (budget), 1 block.
    #     plan 5: B's 4th and last token is in flight. C's remaining prompt token.
    # t=5 B done. Step 5: C1. plan 6: C1 (its first token is in flight).
    # t=6 C has its first. Step 6: C1. t=7 C done.
    requests = [req(A, 0.0, 4, 4), req(B, 0.0, 4, 4), req(C, 0.0, 2, 2)]
    result = simulate(requests, params(blocks=6), unit_table())
    assert schedule(result) == [
        (0.0, [(A, 4), (B, 4)]),
        (1.0, [(A, 1), (B, 1)]),
        (2.0, [(A, 1), (B, 1)]),
        (3.0, [(A, 1)]),
        (4.0, [(B, 7), (C, 1)]),
        (5.0, [(C, 1)]),
        (6.0, [(C, 1)]),
    ]
    assert times_of(result) == [(0.0, 1.0, 4.0), (0.0, 1.0, 5.0), (4.0, 6.0, 7.0)]
    assert [r.num_preemptions for r in result.requests] == [0, 1, 0]
    assert result.num_preemptions == 1
    assert result.peak_blocks == 6
    assert result.peak_running == 2


def test_a_preempted_request_finds_its_own_blocks() -> None:
    # The same with prefix caching, no named blocks. At plan 3 B's blocks 0, 1, 2 are full and hashed; let go
    # last first they queue as 2, 1, 0, and A takes block 2: blocks 0 and 1 survive.
    # plan 4: B hits 2 blocks (both free): 4 - 2 + 2 = 4 > 2 free: stop.
    # t=4 A's blocks are free too. B: hits 4 tokens, 3 to compute, 4 <= 6 free. C2 fits the budget now.
    #     plan 5: C1. t=5 B done, C has its first token. t=6 C done.
    requests = [req(A, 0.0, 4, 4), req(B, 0.0, 4, 4), req(C, 0.0, 2, 2)]
    result = simulate(requests, params(blocks=6, caching=True), unit_table())
    assert schedule(result)[4:] == [(4.0, [(B, 3), (C, 2)]), (5.0, [(C, 1)])]
    assert times_of(result) == [(0.0, 1.0, 4.0), (0.0, 1.0, 5.0), (4.0, 5.0, 6.0)]
    # The hit of the first admission counts, not that of the second.
    assert [r.cached_tokens for r in result.requests] == [0, 0, 0]


def test_a_victim_whose_last_token_is_in_flight_finishes_normally() -> None:
    # B = 2, 5 blocks, 2 seats. A: P5 O3, B: P2 O2 at 0; C: P2 O1 at 1.5; all by length.
    # t=0 plan 0: A5 (3 blocks) B2 (1), 1 free. plan 1: A1 (6 tokens fit) B1 (2nd block), 0 free.
    # t=1 A, B have 1. plan 2: A's 7th token needs a block: B, last of the list, is the victim though its last
    #     token is in flight: no row for it. 1 free.
    # t=2 step 1 ends: B has its 2nd token and is done, gone from the waiting list. Step 2: A1.
    #     plan 3: A's last is in flight. C2 (1 block).
    # t=3 A done. Step 3: C2. t=4 C done.
    requests = [req(A, 0.0, 5, 3), req(B, 0.0, 2, 2), req(C, 1.5, 2, 1)]
    result = simulate(requests, params(blocks=5, seats=2), unit_table())
    assert schedule(result) == [
        (0.0, [(A, 5), (B, 2)]),
        (1.0, [(A, 1), (B, 1)]),
        (2.0, [(A, 1)]),
        (3.0, [(C, 2)]),
    ]
    assert times_of(result) == [(0.0, 1.0, 3.0), (0.0, 1.0, 2.0), (3.0, 4.0, 4.0)]
    assert [r.num_preemptions for r in result.requests] == [0, 1, 0]


def test_a_wasted_row_can_preempt_its_own_request() -> None:
    # B = 2, 4 blocks. A: P2 O3 by length, B: P3 O2 by stop token, at 0.
    # t=0 plan 0: A2 (1 block) B3 (2), 1 free. plan 1: A1 (2nd block) B1 (4 tokens fit), 0 free.
    # t=1 plan 2: A1 (4 tokens fit). B's stop token is in flight; its wasted row, token 5, needs a block and
    #     the last of the list is B itself: preempted, no row.
    # t=2 B has its 2nd token: done. Step 2: A1. t=3 A done.
    requests = [req(A, 0.0, 2, 3), req(B, 0.0, 3, 2, stop=True)]
    result = simulate(requests, params(blocks=4), unit_table())
    assert schedule(result) == [(0.0, [(A, 2), (B, 3)]), (1.0, [(A, 1), (B, 1)]), (2.0, [(A, 1)])]
    assert times_of(result) == [(0.0, 1.0, 3.0), (0.0, 1.0, 2.0)]
    assert [r.num_preemptions for r in result.requests] == [0, 1]


def test_a_wasted_row_can_preempt_another_request() -> None:
    # B = 2, 4 blocks. A: P4 O1 by stop token, B: P2 O3 by length, at 0.
    # t=0 plan 0: A4 (2 blocks) B2 (1), 1 free.
    #     plan 1: A's wasted row, token 5, takes the last block. B's 3rd token needs one: B is its own victim.
    # t=1 A done: 4 free. B has its 1st token, it was in flight. Step 1: A1, wasted.
    #     plan 2: B knows 3 tokens = 2 blocks: B3.
    # t=2 step 2: B3. plan 3: B has 1 + 1 of 3: B1. t=3 B has 2. Step 3: B1. t=4 B done.
    requests = [req(A, 0.0, 4, 1, stop=True), req(B, 0.0, 2, 3)]
    result = simulate(requests, params(blocks=4), unit_table())
    assert schedule(result) == [
        (0.0, [(A, 4), (B, 2)]),
        (1.0, [(A, 1)]),
        (2.0, [(B, 3)]),
        (3.0, [(B, 1)]),
    ]
    assert times_of(result) == [(0.0, 1.0, 1.0), (0.0, 1.0, 4.0)]
    assert result.num_preemptions == 1


def test_victims_queue_up_in_their_old_order() -> None:
    # B = 2, 4 blocks, no lag. A: P4 O3, B: P1 O3, C: P1 O3, at 0.
    # t=0 A4 (2 blocks) B1 C1 (1 each), 0 free.
    # t=1 A's 5th token needs a block: C is preempted, its block is enough. B1 (2 tokens fit). Waiting: C.
    # t=2 A1 (6 tokens fit). B's 3rd token needs a block: B is its own victim. Waiting: B, C.
    # t=3 A done, 4 free. B knows 1 + 2 = 3 tokens (2 blocks), C 1 + 1 = 2 (1 block): B3 C2.
    # t=4 B done (3 of 3), C has 2. C1 (3 tokens, 2nd block). t=5 C done.
    requests = [req(A, 0.0, 4, 3), req(B, 0.0, 1, 3), req(C, 0.0, 1, 3)]
    result = simulate(requests, params(blocks=4, lag=False), unit_table())
    assert schedule(result) == [
        (0.0, [(A, 4), (B, 1), (C, 1)]),
        (1.0, [(A, 1), (B, 1)]),
        (2.0, [(A, 1)]),
        (3.0, [(B, 3), (C, 2)]),
        (4.0, [(C, 1)]),
    ]
    assert [r.num_preemptions for r in result.requests] == [0, 1, 1]
    assert times_of(result) == [(0.0, 1.0, 3.0), (0.0, 1.0, 4.0), (0.0, 1.0, 5.0)]


def test_two_victims_in_one_plan() -> None:
    # B = 2, 4 blocks, no lag, all O2 by length, at 0. A, B: P2, C, D: P1.
    # t=0 A2 B2 C1 D1: 1 block each, 0 free.
    # t=1 A's 3rd token needs a block: D is preempted. B's too: C is preempted. A1 B1. Waiting: C, D.
    # t=2 A, B done, 4 free. C and D know 2 tokens each: C2 D2. t=3 C, D done.
    requests = [req(A, 0.0, 2, 2), req(B, 0.0, 2, 2), req(C, 0.0, 1, 2), req(D, 0.0, 1, 2)]
    result = simulate(requests, params(blocks=4, lag=False), unit_table())
    assert schedule(result) == [
        (0.0, [(A, 2), (B, 2), (C, 1), (D, 1)]),
        (1.0, [(A, 1), (B, 1)]),
        (2.0, [(C, 2), (D, 2)]),
    ]
    assert [r.num_preemptions for r in result.requests] == [0, 0, 1, 1]
    assert times_of(result) == [(0.0, 1.0, 2.0)] * 2 + [(0.0, 1.0, 3.0)] * 2


@pytest.mark.parametrize("reserve", [True, False])
def test_the_gate_reserves_the_whole_prompt_or_only_the_first_chunk(reserve: bool) -> None:
    # B = 2, 5 blocks, budget 4. A: P4 O3, B: P6 O1 at 0.
    # t=0 plan 0: A4 (2 blocks), 3 free. plan 1: A1 (3rd block), 2 free. B has 3 blocks; its first chunk of
    #     3 tokens needs 2.
    # Reserved: B waits. plan 2: A1. plan 3 (t=2): A's last is in flight; 3 > 2 still: nothing.
    #     t=3 A done, plan again: B4. plan: B2. t=5 B done.
    # Not: plan 1: A1 B3, 0 free. plan 2 (t=1): A1 (6 tokens fit); B's next 3 need a block: its own victim.
    #     plan 3 (t=2): A's last is in flight; B's chunk of 4 needs 2 <= 2: B4. plan 4 (t=3): B2. t=5 B done.
    requests = [req(A, 0.0, 4, 3), req(B, 0.0, 6, 1)]
    result = simulate(requests, params(blocks=5, budget=4, reserve=reserve), unit_table())
    early = [] if reserve else [(B, 3)]
    assert schedule(result) == [
        (0.0, [(A, 4)]),
        (1.0, [(A, 1), *early]),
        (2.0, [(A, 1)]),
        (3.0, [(B, 4)]),
        (4.0, [(B, 2)]),
    ]
    assert times_of(result) == [(0.0, 1.0, 3.0), (3.0 if reserve else 1.0, 5.0, 5.0)]
    assert result.num_preemptions == (0 if reserve else 1)


# -------------------------------------------------------------------- prefix cache


def test_prefix_hits_and_the_order_of_eviction() -> None:
    # B = 2, 5 blocks b0..b4, budget 8, all O1 by length. At 0: A: P6 [1 2 3], B: P6 [1 2 4].
    # At 5: C: P5 unnamed, D: P4 [1 2], E: P5 [1 2].
    # t=0 A6: b0 b1 b2, hashed 1 2 3 at once. In the same plan B hits 1 2 (of at most 5 tokens): B2: b3 (4).
    # t=1 A frees b2 (B holds b1, b0): queue b4 b2. B frees b3 b1 b0: queue b4 b2 b3 b1 b0.
    # t=5 plan: C5 takes b4 b2 b3: contents 3 and 4 are forgotten.
    #     D may hit (4 - 1) / 2 = 1 block: b0, which is free: 2 - 1 + 1 = 2 <= 2: D2 takes b1, content 2 is
    #     forgotten and b1 hashed as 2 again. Budget left 8 - 5 - 2 = 1.
    #     E hits 1 2, both held now: 3 - 2 + 0 = 1 > 0 free: stop.
    #     Next plan: the last tokens of C and D are in flight, E as before: nothing.
    # t=6 C, D done. E hits 1 2 (free): 3 - 2 + 2 = 3 <= 5: E1.
    requests = [
        req(A, 0.0, 6, 1, ids=(1, 2, 3)),
        req(B, 0.0, 6, 1, ids=(1, 2, 4)),
        req(C, 5.0, 5, 1),
        req(D, 5.0, 4, 1, ids=(1, 2)),
        req(E, 5.0, 5, 1, ids=(1, 2)),
    ]
    result = simulate(requests, params(blocks=5, caching=True), unit_table())
    assert schedule(result) == [(0.0, [(A, 6), (B, 2)]), (5.0, [(C, 5), (D, 2)]), (6.0, [(E, 1)])]
    assert [r.cached_tokens for r in result.requests] == [0, 4, 0, 2, 4]
    # A once more, a token longer: block 3 is gone here, and still there when the pool is large.
    again = [*requests, req(5, 20.0, 7, 1, ids=(1, 2, 3))]
    for blocks, hit in ((5, 4), (50, 6)):
        result = simulate(again, params(blocks=blocks, caching=True), unit_table())
        assert result.requests[5].cached_tokens == hit


@pytest.mark.parametrize("stop", [False, True])
def test_named_output_serves_the_next_turn_but_never_its_last_token(stop: bool) -> None:
    # B = 2. A: P3 O3, blocks [1 2 3] name prompt and output. The last token is sampled, not computed: 5
    # tokens are, so 1 and 2 are hashed and 3 is not, even when a wasted row computes token 6.
    # B, the next turn, P8 [1 2 3 4] hits 4 tokens.
    requests = [req(A, 0.0, 3, 3, stop=stop, ids=(1, 2, 3)), req(B, 9.0, 8, 1, ids=(1, 2, 3, 4))]
    result = simulate(requests, params(caching=True), unit_table())
    assert result.requests[1].cached_tokens == 4


def test_copies_of_a_block_are_not_merged() -> None:
    # B = 2, 5 blocks, budget 8, O1 each, at 0. A: P4 [1 2]: b0 b1. B: P4 [1 2] may hit (4 - 1) / 2 = 1 block,
    # b0, and computes 2 once more, on b2. C: P5 [1 2] hits the copy hashed first, b1; its last token: b3.
    requests = [req(A, 0.0, 4, 1, ids=(1, 2)), req(B, 0.0, 4, 1, ids=(1, 2)), req(C, 0.0, 5, 1, ids=(1, 2))]
    engine = Engine(params(blocks=5, caching=True), unit_table())
    lives = [engine.submit(request) for request in requests]
    engine.run_until(0.5)
    assert [[block.number for block in live.blocks] for live in lives] == [[0, 1], [0, 2], [0, 1, 3]]
    assert [block.number for block in engine.pool.hashed[2]] == [1, 2]
    # A frees nothing (C holds b0, b1); B frees b2; C frees b3, unhashed, to the front, then b1, b0.
    engine.run_until(math.inf)
    assert [block.number for block in engine.pool.free] == [3, 4, 2, 1, 0]


# -------------------------------------------------------------------- durations


def hand_table() -> StepTable:
    """Each term has its own decimal places, so that a duration can be read."""
    return StepTable(
        context_knots=np.array([0.0, 5.0]),
        attention_base_s=np.array([[0, 0], [1, 3], [2, 6]], dtype=float),
        attention_slope_s=np.array([[0, 0], [10, 20], [30, 40]], dtype=float),
        decode_fixed_s=np.array([0, 1000, 2000], dtype=float),
        mixed_tokens_s=np.arange(11) * 1e4,
        sample_s=np.array([0, 1e5, 2e5]),
        prefill_fixed_s=1e6,
        prefill_s_per_token=1e7,
        prefill_s_per_pair=1e9,
        request_fixed_s=7.0,
        request_s_per_input_token=7.0,
    )


def test_durations_of_the_steps_of_one_run() -> None:
    # Budget 4, no lag. A: P5 O3: chunks of 4 and 1, then two decode rows.
    # Step 0: p=4, a=1+2+3+4=10, q=0. Step 1, a last chunk of one token, is prefill: p=1, a=5, q=1.
    # Step 2: n=1, S=6 (beyond the knot at 5). Step 3: S=7.
    result = simulate([req(A, 0.0, 5, 3)], params(budget=4, lag=False), hand_table())
    assert [step.duration_s for step in result.steps] == [
        4e4 + 1e6 + 4e7 + 10e9,
        1e4 + 1e5 + 1e6 + 1e7 + 5e9,
        1000 + 3 + 20 * 6,
        1000 + 3 + 20 * 7,
    ]


def test_duration_of_a_mixed_step() -> None:
    # A decode row that attends to 4 tokens (below the knot) and a chunk of 2 after 3, positions 4 and 5,
    # which finishes its prompt: n=1, S=4, p=2, a=9, q=2.
    engine = Engine(params(), hand_table())
    decoding, prefilling = engine.submit(req(A, 0.0, 3, 3)), engine.submit(req(B, 0.0, 5, 1))
    rows = [
        Row(live=decoding, tokens=1, start=3, is_prefill=False, samples=True),
        Row(live=prefilling, tokens=2, start=3, is_prefill=True, samples=True),
    ]
    assert step_duration(hand_table(), rows) == 3e4 + (1 + 10 * 4) + 2e5 + 1e6 + 2e7 + 9e9
