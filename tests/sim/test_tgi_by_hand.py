"""Text Generation Inference against schedules worked out by hand.

Every forward takes one second. P4 O3 is a prompt of 4 tokens with an output of 3, A3 a row of 3 tokens of request A.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from oracle.client_plain import run_closed_loop
from oracle.plain_engine import Request
from oracle.strategies import req, unit_table
from oracle.tgi_cases import TgiCase, small
from oracle.tgi_plain import Engine, Params
from servewise.sim import simulate_closed_loop
from sim.tgi_agree import deployment_of, memory_of, model_of, run_open, run_plain, workload_of

A, B, C, D, E = range(5)

Rows = list[tuple[int, int]]


def by_hand(params: Params, *requests: Request) -> tuple[list[tuple[float, Rows]], list[tuple[float, float]], Engine]:
    """Start and rows of every forward, first and last token of every request; the kernel gives the latter, too."""
    case = TgiCase(requests=requests, params=params, times=unit_table())
    engine = run_plain(case)
    result = engine.result()
    times = [(r.first_token_s, r.last_token_s) for r in result.requests]
    for fast_forward in (True, False):
        kernel = run_open(case, fast_forward=fast_forward)
        np.testing.assert_array_equal(np.column_stack([kernel.outputs.first, kernel.outputs.last]), times)
        assert kernel.outputs.cached.tolist() == [r.cached_tokens for r in result.requests]
        assert kernel.outputs.rejected.tolist() == [live.rejected for live in engine.lives]
    return [(step.start_s, list(step.rows)) for step in result.steps], times, engine


def test_somebody_is_admitted_in_every_second_forward() -> None:
    # 8 tokens. A: P3 O6 at 0, B: P2 O1 at 0.5, C: P2 O2 at 1.5, D: P1 O1 at 2.5.
    # t=0 the engine was idle: A3. t=1 after such a forward: B2 beside A1. t=2 nobody may, though C is here: A1.
    # t=3 C2 and D1 beside A1. t=4 nobody may: A1 C1. t=5 A1 is its sixth token.
    steps, times, _ = by_hand(small(), req(A, 0, 3, 6), req(B, 0.5, 2, 1), req(C, 1.5, 2, 2), req(D, 2.5, 1, 1))
    assert steps == [
        (0.0, [(A, 3)]),
        (1.0, [(A, 1), (B, 2)]),
        (2.0, [(A, 1)]),
        (3.0, [(A, 1), (C, 2), (D, 1)]),
        (4.0, [(A, 1), (C, 1)]),
        (5.0, [(A, 1)]),
    ]
    assert times == [(1.0, 6.0), (2.0, 2.0), (4.0, 5.0), (4.0, 4.0)]


def test_an_empty_batch_may_admit_at_once() -> None:
    # A: P1 O2 at 0, B: P1 O1 at 0.5, C: P1 O1 at 1.5. t=1: A1 B1, whereupon both are done: t=2: C1, not one later.
    steps, _, _ = by_hand(small(), req(A, 0, 1, 2), req(B, 0.5, 1, 1), req(C, 1.5, 1, 1))
    assert steps == [(0.0, [(A, 1)]), (1.0, [(A, 1), (B, 1)]), (2.0, [(C, 1)])]


def test_a_prompt_is_cut_at_what_the_batch_leaves() -> None:
    # 8 tokens. A: P3 O6 at 0, B: P10 O2 and C: P2 O1 at 0.5.
    # t=1: A1 leaves 7 for B, none for C. Then 8 - (2 - 1) = 7 are handed out, B needs 3. t=2 nobody may: A1 B3.
    # t=3: A1 B1 leave 6: C2.
    steps, times, _ = by_hand(small(), req(A, 0, 3, 6), req(B, 0.5, 10, 2), req(C, 0.5, 2, 1))
    assert steps[:4] == [
        (0.0, [(A, 3)]),
        (1.0, [(A, 1), (B, 7)]),
        (2.0, [(A, 1), (B, 3)]),
        (3.0, [(A, 1), (B, 1), (C, 2)]),
    ]
    assert times == [(1.0, 6.0), (3.0, 4.0), (4.0, 4.0)]


def test_of_two_unfinished_prompts_the_newer_goes_first() -> None:
    # 8 tokens. A: P1 O3 at 0, B: P30 O1 at 0.5, C: P9 O1 at 1.6.
    # t=1: A1 B7. t=2 nobody may: A1 B7. t=3: A is done, B's 7 of 8 - 1 were handed out before: 1 is left for C.
    # t=4 of 7 C gets 7, B the one it cannot be denied. t=5: of 7 C gets its last one, B 6. t=6: B's last 2.
    steps, times, engine = by_hand(small(), req(A, 0, 1, 3), req(B, 0.5, 30, 1), req(C, 1.6, 9, 1))
    assert steps == [
        (0.0, [(A, 1)]),
        (1.0, [(A, 1), (B, 7)]),
        (2.0, [(A, 1), (B, 7)]),
        (3.0, [(B, 7), (C, 1)]),
        (4.0, [(B, 1), (C, 7)]),
        (5.0, [(B, 6), (C, 1)]),
        (6.0, [(B, 2)]),
    ]
    assert times == [(1.0, 3.0), (7.0, 7.0), (6.0, 6.0)]
    assert engine.two_prompts == 2


def test_the_budget_of_new_prompts_is_rounded_up_to_blocks() -> None:
    # 6 tokens, blocks of 4. A: P9 O1: the first chunk is 8, the next one at most 6. B: P4 O1 at 0.
    # A needs ceil(9 / 4) = 3 blocks, B 1. t=0: A8, no room for B. t=1: A1 of A's own leaves 5, rounded 8: B4.
    steps, _, _ = by_hand(small(blocks=4, block=4, prefill=6), req(A, 0, 9, 1), req(B, 0, 4, 1))
    assert steps == [(0.0, [(A, 8)]), (1.0, [(A, 1), (B, 4)])]


def test_all_blocks_are_set_aside_and_the_head_blocks_the_others() -> None:
    # 10 blocks of a token. A: P3 O2 of at most 4 sets 3 + 4 - 1 = 6 aside, B: P3 O3 5, C: P1 O1 1.
    # t=1: B does not fit beside A, and C stays behind B. t=2: A has stopped: B3 C1.
    stops = dataclasses.replace(req(A, 0, 3, 2), max_tokens=4)
    steps, _, engine = by_hand(small(blocks=10), stops, req(B, 0, 3, 3), req(C, 0, 1, 1))
    assert steps[:3] == [(0.0, [(A, 3)]), (1.0, [(A, 1)]), (2.0, [(B, 3), (C, 1)])]
    assert engine.peak_blocks == 6


def test_who_is_turned_away() -> None:
    # Two at once. A and B: P1 O3 at 0, done at 3. C at 0.5 and D at 2.9 are turned away, E at 3 is not.
    requests = (req(A, 0, 1, 3), req(B, 0, 1, 3), req(C, 0.5, 1, 1), req(D, 2.9, 1, 1), req(E, 3.0, 1, 1))
    _, times, engine = by_hand(small(rows=2), *requests)
    assert [live.rejected for live in engine.lives] == [False, False, True, True, False]
    assert times[E] == (4.0, 4.0)


def test_a_prompt_is_found_when_its_request_has_ended() -> None:
    # A, B and D have the same prompt of 4 tokens, C two of them. A: O1 at 0 and B: O2 at 0 compute it both.
    # A ends at 1: it is cached. At 2 C has 2 tokens of it, B's copy is given back. D at 3 has all 4 and computes the
    # last one again. Blocks: C holds 2 cached and 1 of its own, D 4 cached.
    same = (1, 2, 3, 4)
    steps, _, engine = by_hand(
        small(caching=True),
        req(A, 0, 4, 1, ids=same),
        req(B, 0, 4, 2, ids=same),
        req(C, 2, 3, 1, ids=(1, 2, 9)),
        req(D, 3, 4, 1, ids=same),
    )
    assert steps == [(0.0, [(A, 4), (B, 4)]), (1.0, [(B, 1)]), (2.0, [(C, 1)]), (3.0, [(D, 1)])]
    assert [live.cached_tokens for live in engine.lives] == [0, 0, 2, 3]
    assert len(engine.cache) == 5


def test_a_blocked_head_empties_the_cache() -> None:
    # 20 blocks. A: P4 O1 is cached at 1. B: P10 O5 at 1 sets 14 aside and ends at 7. C: P5 O4 at 1.5 needs 8, and 2
    # are empty and 4 cached: at 2 it fails, and what A left is forgotten. So D, with A's prompt, finds nothing at 7.
    same = (1, 2, 3, 4)
    first, second = req(A, 0, 4, 1, ids=same), req(B, 1, 10, 5)
    steps, _, engine = by_hand(
        small(blocks=20, caching=True), first, second, req(C, 1.5, 5, 4), req(D, 2, 4, 1, ids=same)
    )
    assert [live.cached_tokens for live in engine.lives] == [0, 0, 0, 0]
    assert engine.flushes == 4
    assert steps[7] == (7.0, [(C, 5), (D, 3)])
    _, _, engine = by_hand(small(blocks=20, caching=True), first, second, req(C, 2, 4, 1, ids=same))
    assert [live.cached_tokens for live in engine.lives] == [0, 0, 3]


def test_the_prompt_used_longest_ago_is_forgotten_first_and_from_its_end() -> None:
    # 10 blocks. A: P4 and B: P4 O1 are cached at 1 and 3, A's is used again by C at 4. D: P3 O3 at 6 needs 5: 2 are
    # empty, so 3 of B's 4 blocks go. E: B's prompt at 10 finds 1 token.
    one, two = (1, 2, 3, 4), (5, 6, 7, 8)
    _, _, engine = by_hand(
        small(blocks=10, caching=True),
        req(A, 0, 4, 1, ids=one),
        req(B, 2, 4, 1, ids=two),
        req(C, 4, 4, 1, ids=one),
        req(D, 6, 3, 3),
        req(E, 10, 4, 1, ids=two),
    )
    assert [live.cached_tokens for live in engine.lives] == [0, 0, 3, 0, 1]


def test_of_prompts_that_end_together_the_one_admitted_first_is_forgotten_first() -> None:
    # 10 blocks. A and B: P4 O1 are cached at 1. C: P3 O3 at 2 needs 5: 2 are empty, so 3 of A's 4 blocks go.
    # D: B's prompt at 6 finds it whole, E: A's at 8 finds 1 token of it.
    one, two = (1, 2, 3, 4), (5, 6, 7, 8)
    _, _, engine = by_hand(
        small(blocks=10, caching=True),
        req(A, 0, 4, 1, ids=one),
        req(B, 0, 4, 1, ids=two),
        req(C, 2, 3, 3),
        req(D, 6, 4, 1, ids=two),
        req(E, 8, 4, 1, ids=one),
    )
    assert [live.cached_tokens for live in engine.lives] == [0, 0, 0, 3, 1]


def test_shared_blocks_count_for_each_who_holds_them() -> None:
    # A: P6 O1 leaves 6 blocks in the cache at 1. B and C: the same prompt with O6 at 1 hold these and 5 each: 16, but
    # 22 are counted until they end at 7. D: P1 O1 at 2 needs a block; of 20 it gets none before 7, of 22 at once.
    same = (1, 2, 3, 4, 5, 6)
    requests = (req(A, 0, 6, 1, ids=same), req(B, 1, 6, 6, ids=same), req(C, 1, 6, 6, ids=same), req(D, 2, 1, 1))
    steps, _, engine = by_hand(small(blocks=20, caching=True), *requests)
    assert (engine.peak_blocks, steps[-1]) == (16, (7.0, [(D, 1)]))
    steps, _, _ = by_hand(small(blocks=22, caching=True), *requests)
    assert (2.0, [(B, 1), (C, 1), (D, 1)]) in steps


def test_whole_prompts_run_alone_when_enough_wait() -> None:
    # 8 tokens, no chunks; half of those that run must wait. A and B: P2 O4 at 0, C: P3 O2 at 0.5.
    # t=1: 1 waits for 2 that run: C3, alone. t=2: A1 B1 C1, C is done. t=3, t=4: A1 B1.
    steps, times, _ = by_hand(small(chunking=False), req(A, 0, 2, 4), req(B, 0, 2, 4), req(C, 0.5, 3, 2))
    assert steps == [
        (0.0, [(A, 2), (B, 2)]),
        (1.0, [(C, 3)]),
        (2.0, [(A, 1), (B, 1), (C, 1)]),
        (3.0, [(A, 1), (B, 1)]),
        (4.0, [(A, 1), (B, 1)]),
    ]
    assert times == [(1.0, 5.0), (1.0, 5.0), (2.0, 3.0)]


def test_whole_prompts_wait_for_company_or_for_so_many_forwards() -> None:
    # Twice as many must wait as run, or 4 forwards. A: P2 O9 at 0, B: P2 O1 at 0.5.
    # t=1 the counter is 1, then 2, 3, and at t=4 it is 4: B2. With C: P2 O1 at 1.5 there are two at t=2: B2 C2.
    params = small(chunking=False, ratio=2.0, patience=4)
    steps, _, _ = by_hand(params, req(A, 0, 2, 9), req(B, 0.5, 2, 1))
    assert [rows for _, rows in steps[:6]] == [[(A, 2)], [(A, 1)], [(A, 1)], [(A, 1)], [(B, 2)], [(A, 1)]]
    steps, _, _ = by_hand(params, req(A, 0, 2, 9), req(B, 0.5, 2, 1), req(C, 1.5, 2, 1))
    assert [rows for _, rows in steps[:4]] == [[(A, 2)], [(A, 1)], [(B, 2), (C, 2)], [(A, 1)]]


def test_a_client_that_is_turned_away_sends_the_next() -> None:
    # Two at once, a client with three slots that thinks for 0.75 s. A: P1 O2, B: P1 O3, C, D, E: P1 O1.
    # t=0: C is turned away, D comes at 0.75 and is turned away, E at 1.5, too: A ends at 2.
    params = small(rows=2)
    requests = (req(A, 9, 1, 2), req(B, 9, 1, 3), req(C, 9, 1, 1), req(D, 9, 1, 1), req(E, 9, 1, 1))
    case = TgiCase(requests=requests, params=params, times=unit_table())
    engine = Engine(params, case.times)
    sent = run_closed_loop(engine, requests, concurrency=3, think_s=0.75, extra_s=lambda _: 0.0)
    kernel = simulate_closed_loop(
        workload_of(case), deployment_of(case), model_of(case), memory_of(case), concurrency=3, think_s=0.75
    )
    assert [r.arrival_s for r in sent] == kernel.packed.requests.arrival.tolist() == [0.0, 0.0, 0.0, 0.75, 1.5]
    assert kernel.outputs.rejected.tolist() == [0, 0, 1, 1, 1]
    assert kernel.outputs.last[:2].tolist() == [2.0, 3.0]
