"""Priorities, watermark and capped chunks against schedules worked out by hand, in both implementations.

Every step takes one second. ``B`` is the block size in tokens, ``P4 O3`` a prompt of 4 tokens with an output of 3,
``A3`` a row of 3 tokens of request A. Blocks of 2 tokens, budget of 8 tokens, no lag unless said otherwise.
"""

from __future__ import annotations

import dataclasses

import pytest

from oracle.plain_engine import Request, Result
from oracle.strategies import Case, params, req, unit_table
from oracle.vllm_plain import Params, simulate
from sim.agree import assert_agrees

A, B, C = range(3)


def run_both(requests: list[Request], settings: Params) -> Result:
    """The plain run, after the kernel was found to agree, with windows and without."""
    case = Case(requests=tuple(requests), params=settings, times=unit_table())
    assert_agrees(case)
    assert_agrees(case, fast_forward=False)
    return simulate(requests, settings, case.times)


def rows(result: Result) -> list[str]:
    """The rows of every step, such as ``A4 B1``."""
    return [" ".join(f"{'ABC'[number]}{tokens}" for number, tokens in step.rows) for step in result.steps]


def first_and_last(result: Result) -> list[tuple[float, float]]:
    return [(r.first_token_s, r.last_token_s) for r in result.requests]


def test_a_cap_lets_several_prompts_be_unfinished() -> None:
    # Cap 4; all at 0: A: P10 O2, B: P3 O3, C: P9 O1.
    # plan 1: A4 leaves 4, B3 leaves 1, C1. B has its first token at 1.
    # plan 2: A4 B1 leave 3 of 8: C3. A has 8 of 10, C 4 of 9.
    # plan 3: A2 B1, C4 (5 tokens are left of the budget and of C). B done.
    # plan 4: A1 C1. All done at 4.
    requests = [req(A, 0.0, 10, 2), req(B, 0.0, 3, 3), req(C, 0.0, 9, 1)]
    capped = run_both(requests, params(lag=False, threshold=4))
    assert rows(capped) == ["A4 B3 C1", "A4 B1 C3", "A2 B1 C4", "A1 C1"]
    assert first_and_last(capped) == [(3, 4), (1, 3), (4, 4)]
    # Without a cap A takes all of plan 1, and B's first token waits for step 2.
    usual = run_both(requests, params(lag=False))
    assert rows(usual)[:2] == ["A8", "A2 B3 C3"]


def test_a_cap_does_not_hold_for_a_request_that_is_alone() -> None:
    # Cap 4. A: P14 O1 at 0, alone: A8. B: P2 O1 at 0.5 is seen by plan 2: A has 6 left and gets 4, B2.
    # B is done at 2: plan 3: A2.
    requests = [req(A, 0.0, 14, 1), req(B, 0.5, 2, 1)]
    assert rows(run_both(requests, params(lag=False, threshold=4))) == ["A8", "A4 B2", "A2"]
    # With lag plan 2, made at 0, does not see B: A6, and B runs in step 3, planned at 1.
    assert rows(run_both(requests, params(threshold=4))) == ["A8", "A6", "B2"]


def test_a_request_whose_last_token_is_in_flight_counts_as_another() -> None:
    # Cap 4, with lag. A: P1 O2 at 0; B: P12 O1 at 1.5.
    # plan 1 A1, plan 2 (at 0) A1. plan 3 (at 1): A's last token is in flight, no row: empty, made again at 2, when A
    # has gone: B is alone, B8. plan 4 (at 2): B4.
    requests = [req(A, 0.0, 1, 2), req(B, 1.5, 12, 1)]
    assert rows(run_both(requests, params(threshold=4))) == ["A1", "A1", "B8", "B4"]
    # With O3 A has a row in step 3. plan 4 (at 2, when step 3 starts) sees B and A, whose last token is in flight:
    # two, so B4. plan 5 (at 3): B alone, B8.
    requests = [req(A, 0.0, 1, 3), req(B, 1.5, 12, 1)]
    assert rows(run_both(requests, params(threshold=4))) == ["A1", "A1", "A1", "B4", "B8"]


def test_a_watermark_holds_back_all_but_the_first() -> None:
    # 10 blocks, watermark 0.25 of 11 (the null block counts): 2. Budget 20. A: P18 O1, B: P2 O1.
    # A needs 9 blocks: nothing runs, admitted, though 9 + 2 > 10. B: 1 + 2 > 1, waits for A's blocks.
    requests = [req(A, 0.0, 18, 1), req(B, 0.0, 2, 1)]
    assert rows(run_both(requests, params(blocks=10, budget=20, lag=False, watermark=0.25))) == ["A18", "B2"]
    assert rows(run_both(requests, params(blocks=10, budget=20, lag=False))) == ["A18 B2"]
    # 0.18 of 11 is 1.98: one block. P14 leaves three, of which B takes one.
    requests = [req(A, 0.0, 14, 1), req(B, 0.0, 4, 1)]
    assert rows(run_both(requests, params(blocks=10, budget=20, lag=False, watermark=0.18))) == ["A14 B4"]
    assert rows(run_both(requests, params(blocks=10, budget=20, lag=False, watermark=0.19))) == ["A14", "B4"]


def test_rows_may_use_the_blocks_below_the_watermark() -> None:
    # 4 blocks, watermark 0.5 of 5: 2. A: P4 O4 grows to 7 tokens, all 4 blocks, and nobody is preempted.
    result = run_both([req(A, 0.0, 4, 4)], params(blocks=4, lag=False, watermark=0.5))
    assert rows(result) == ["A4", "A1", "A1", "A1"]
    assert result.peak_blocks == 4
    assert result.num_preemptions == 0


def test_an_arrival_of_higher_priority_overtakes_a_head_that_does_not_fit() -> None:
    # 6 blocks. A: P6 O4 at 0 and B: P8 O1 at 0.5 of priority 1, C: P2 O1 at 1.5 of priority 0.
    # plan 1: A6, 3 blocks. plan 2 (at 1): A1 takes the fourth; B needs 4 of 2: waits.
    # plan 3 (at 2): A1; C is the head now: 1 block: C2. plan 4 (at 3): A1 takes the fifth; B waits. A done at 4.
    # plan 5: B8.
    requests = [req(A, 0.0, 6, 4, priority=1), req(B, 0.5, 8, 1, priority=1), req(C, 1.5, 2, 1)]
    by_priority = run_both(requests, params(blocks=6, lag=False, by_priority=True))
    assert rows(by_priority) == ["A6", "A1", "A1 C2", "A1", "B8"]
    assert first_and_last(by_priority)[C] == (3, 3)
    # In order of arrival C waits for B: there is room for both at 4, when A has gone.
    assert rows(run_both(requests, params(blocks=6, budget=10, lag=False))) == ["A6", "A1", "A1", "A1", "B8 C2"]


def test_priorities_order_those_that_wait_from_the_start() -> None:
    # One seat. All at 0; priorities A 2, B 1, C 1: B, C, A.
    requests = [req(A, 0.0, 3, 1, priority=2), req(B, 0.0, 4, 1, priority=1), req(C, 0.0, 5, 1, priority=1)]
    assert rows(run_both(requests, params(seats=1, lag=False, by_priority=True))) == ["B4", "C5", "A3"]
    # Without priorities the order is that of arrival, under either policy.
    plain = [dataclasses.replace(r, priority=0) for r in requests]
    assert rows(run_both(plain, params(seats=1, lag=False, by_priority=True))) == ["A3", "B4", "C5"]


def test_a_victim_before_the_row_loses_what_the_plan_gave_it() -> None:
    # 6 blocks. A: P3 O5 at 0 of priority 5; B: P5 O4 at 0.5 of priority 0.
    # plan 1: A3, 2 blocks. plan 2 (at 1): A1 (4 tokens), B5, 3 blocks: 1 free.
    # plan 3 (at 2): A1 (5 tokens) takes it. B1 (6 tokens) fits.
    # plan 4 (at 3): A1 (6 tokens) fits. B's 7th token needs a block: the victim is A, which has its row already: it
    #   loses it, and 3 blocks become free. B1.
    # plan 5 (at 4): B1. A has 3 tokens out, 6 to compute, 3 blocks of 2: waits. B done at 5.
    # plan 6: A6, its 4th token. plan 7: A1.
    requests = [req(A, 0.0, 3, 5, priority=5), req(B, 0.5, 5, 4)]
    result = run_both(requests, params(blocks=6, lag=False, by_priority=True))
    assert rows(result) == ["A3", "A1 B5", "A1 B1", "B1", "B1", "A6", "A1"]
    assert first_and_last(result) == [(1, 7), (2, 5)]
    assert [r.num_preemptions for r in result.requests] == [1, 0]
    # In order of arrival B would have given up its own blocks.
    usual = run_both(requests, params(blocks=6, lag=False))
    assert [r.num_preemptions for r in usual.requests] == [0, 1]


def test_tokens_of_a_lost_row_go_to_those_behind() -> None:
    # 15 blocks, admission by chunk. A: P8 O9 at 0, B: P4 O4 at 0.5, C: P27 O1 at 1.5, of priorities 5, 0 and 1.
    # plan 1: A8. plan 2 (at 1): A1 B4. plan 3 (at 2): A1 B1, C6 with what is left.
    # plan 4 (at 3): A1 (11 tokens, 6 blocks), B1 (6, 3), C6 (12, 6): all 15 blocks.
    # plan 5 (at 4): A1 fits. B's 7th token needs a block: A loses its row and 6 blocks, B1 takes one. C gets 7 of the 8
    #   tokens, not 6: 19 tokens, 4 of the 5 free blocks. B done at 5. A has 4 tokens out.
    # plan 6 (at 5): C8, the rest of its prompt: C done at 6, not later. plan 7: A8 of 12.
    # plan 8: A4, its 5th token, then 4 more.
    requests = [req(A, 0.0, 8, 9, priority=5), req(B, 0.5, 4, 4), req(C, 1.5, 27, 1, priority=1)]
    result = run_both(requests, params(blocks=15, lag=False, by_priority=True, reserve=False))
    start = ["A8", "A1 B4", "A1 B1 C6", "A1 B1 C6", "B1 C7", "C8", "A8", "A4"]
    assert rows(result) == [*start, "A1", "A1", "A1", "A1"]
    assert first_and_last(result)[C] == (6, 6)


def test_the_plan_goes_on_after_a_request_has_preempted_itself() -> None:
    # 5 blocks. A: P4 O6 at 0 of priority 5; B: P3 O3 at 0.5 of priority 0.
    # plan 1: A4. plan 2 (at 1): A1 takes the third block, B3 the last two. plan 3: A1, B1 fit.
    # plan 4 (at 3): A's 7th token needs a block: the last in order is A itself; 3 blocks become free. The plan goes on:
    #   B1 (5 tokens) takes one. B done at 4, A has 3 tokens out.
    # plan 5: A7. plan 6: A1. plan 7: A1 (9 tokens, 5 blocks).
    requests = [req(A, 0.0, 4, 6, priority=5), req(B, 0.5, 3, 3)]
    result = run_both(requests, params(blocks=5, lag=False, by_priority=True))
    assert rows(result) == ["A4", "A1 B3", "A1 B1", "B1", "A7", "A1", "A1"]
    assert first_and_last(result) == [(1, 7), (2, 4)]


@pytest.mark.parametrize("caching", [True, False])
def test_blocks_of_a_row_that_was_lost_stay_findable(caching: bool) -> None:
    # 10 blocks, cap 4, admission by chunk. A: P17 O1 at 0 of priority 5; B: P4 O2 at 0.5 of priority 0.
    # plan 1: A is alone: A8, 4 blocks. plan 2 (at 1): A4 (12 tokens, 6 blocks), B4, 2 blocks: 2 free.
    # plan 3 (at 2): A4 takes both: 16 tokens in 8 blocks, all hashed. B's 5th token needs a block: the victim is
    #   A. Its blocks are freed, the last one first: B takes that one. B1. B done at 3.
    # plan 4 (at 3): A finds its first 7 blocks, 14 tokens, although only 12 were ever computed: A3.
    #   Without the cache it begins anew: A8 A8 A1 (it is alone).
    requests = [req(A, 0.0, 17, 1, priority=5), req(B, 0.5, 4, 2)]
    settings = params(blocks=10, lag=False, by_priority=True, threshold=4, reserve=False, caching=caching)
    again = ["A3"] if caching else ["A8", "A8", "A1"]
    assert rows(run_both(requests, settings)) == ["A8", "A4 B4", "B1", *again]
