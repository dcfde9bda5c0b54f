"""SGLang against schedules worked out by hand.

Every step takes one second. P4 O3 is a prompt of 4 tokens with an output of 3, A3 a row of 3 tokens of request A; plan
j is the plan of step j, made when step j - 1 starts. Pages have one token unless said otherwise, a batch 8 tokens.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from oracle.client_plain import run_closed_loop
from oracle.plain_engine import Request, Result
from oracle.sglang_cases import SglangCase, small
from oracle.sglang_plain import Engine, Params
from oracle.strategies import req, unit_table
from servewise.kernel import layout
from servewise.sim import Outcome, simulate_closed_loop
from sim.sglang_agree import deployment_of, memory_of, model_of, run_open, workload_of

A, B, C, D = range(4)

Steps = list[tuple[float, list[tuple[int, int]]]]


def by_hand(requests: tuple[Request, ...], params: Params) -> tuple[Steps, list[tuple[float, float]], Outcome]:
    """Start and rows of every step, first and last token of every request; the kernel gives the latter, too."""
    case = SglangCase(requests=requests, params=params, times=unit_table())
    engine = Engine(case.params, case.times)
    for request in case.requests:
        engine.submit(request)
    engine.run_until(np.inf)
    result = engine.result()
    for fast_forward in (False, True):
        kernel = run_open(case, fast_forward=fast_forward)
        assert list(zip(kernel.outputs.first, kernel.outputs.last, strict=True)) == times_of(result)
        assert kernel.outputs.cached.tolist() == [r.cached_tokens for r in result.requests]
        assert kernel.counters[0, layout.NUM_STEPS] == len(result.steps)
        assert kernel.peak_kv_blocks == result.peak_blocks
    return [(step.start_s, list(step.rows)) for step in result.steps], times_of(result), kernel


def times_of(result: Result) -> list[tuple[float, float]]:
    return [(r.first_token_s, r.last_token_s) for r in result.requests]


def test_prompts_run_alone() -> None:
    # A: P10 O3, B: P5 O2 at 0, by length; C: P3 O2 by a stop token, at 0.5.
    # plan 0: A8. plan 1 (t=0): A2, then B5 of 6. t=1 plan 2: C3, alone. t=2 plan 3: no prompt: A1 B1 C1.
    # t=3 plan 4: A has 1 + 1 of 3: A1; B 1 + 1 of 2: no row; C's end is not known: C1, in vain.
    # t=4 B and C are done. plan 5: A has 2 + 1 of 3: nothing. t=5 A is done.
    requests = (req(A, 0.0, 10, 3), req(B, 0.0, 5, 2), req(C, 0.5, 3, 2, stop=True))
    steps, times, _ = by_hand(requests, small())
    assert steps == [
        (0.0, [(A, 8)]),
        (1.0, [(A, 2), (B, 5)]),
        (2.0, [(C, 3)]),
        (3.0, [(A, 1), (B, 1), (C, 1)]),
        (4.0, [(A, 1), (C, 1)]),
    ]
    assert times == [(2.0, 5.0), (2.0, 4.0), (3.0, 4.0)]


def test_no_row_is_wasted_when_prompts_follow() -> None:
    # A: P2 O2 by a stop token at 0; B: P3 O2 at 0.5; C: P1 O1 at 0.5, but there are two seats.
    # plan 0: A2. plan 1 (t=0): A1. t=1 plan 2: B3; C has no seat. t=2 A is done, its row in vain never runs.
    # plan 3 (t=2): C1 has A's seat. t=3 plan 4: B1. t=5 B is done.
    requests = (req(A, 0.0, 2, 2, stop=True), req(B, 0.5, 3, 2), req(C, 0.5, 1, 1))
    steps, times, _ = by_hand(requests, small(rows=2))
    assert steps == [(0.0, [(A, 2)]), (1.0, [(A, 1)]), (2.0, [(B, 3)]), (3.0, [(C, 1)]), (4.0, [(B, 1)])]
    assert times == [(1.0, 2.0), (3.0, 5.0), (4.0, 4.0)]


@pytest.mark.parametrize(("prompt", "ignore_eos", "second"), [(2, False, 1), (3, False, 11), (2, True, 11)])
def test_a_share_of_what_runs_is_set_aside(prompt: int, ignore_eos: bool, second: int) -> None:
    # 20 pages. A: P4 O10, B: P`prompt` O5, both at 0 and by length.
    # plan 0: A needs 4 + 10 + 1 < 20: A4. Spoken for: 4 + 1 + 10. B needs at least 8 of the rest, 5: the latch.
    # plan 1 (t=0): nobody ran when A's batch began, so the latch is off. 16 are free, spoken for 0.7 * 10 = 7: the rest
    # is 9. With P2 B needs 2 + 5 + 1 = 8 < 9: B2. With P3 it needs 9: the latch. If clients ignore the end, 10 are
    # spoken for and the rest is 6. A decodes then in steps 1 to 9 and is done at 10; B runs in step 10.
    requests = (req(A, 0.0, 4, 10), req(B, 0.0, prompt, 5))
    steps, times, _ = by_hand(requests, small(pages=20, ignore_eos=ignore_eos))
    assert steps[second - 1 if second > 1 else 1] == (float(max(second - 1, 1)), [(B, prompt)])
    assert times[B][0] == max(second, 2)


def test_a_waiting_request_is_not_tried_before_somebody_leaves() -> None:
    # 30 pages. A: P4 O2 and B: P4 O8 at 0, C: P4 O10 at 0. plan 0: A needs 4 + 2 + 1, then B 4 + 8 + 1 = 13 of
    # 30 - 7 = 23: A4 B4; C needs 15 of 10: the latch. plan 1 (t=0): nobody ran, so it is off: 22 are free, spoken for
    # 0.7 * (2 + 8) = 7: the rest is 15: C's 15 do not fit: the latch. A1 B1: 20 free.
    # t=1 plan 2: A's last token is in flight: B1 alone: 19 free. Latch off from plan 3 on: A is done at 2.
    # t=2 plan 3: A's 5 pages are free, and B's token: 24 free, spoken for 0.698 * (8 - 2) = 4.2: C4 alone.
    requests = (req(A, 0.0, 4, 2), req(B, 0.0, 4, 8), req(C, 0.0, 4, 10))
    steps, times, _ = by_hand(requests, small(pages=30))
    assert steps[:4] == [(0.0, [(A, 4), (B, 4)]), (1.0, [(A, 1), (B, 1)]), (2.0, [(B, 1)]), (3.0, [(C, 4)])]
    assert times[A] == (1.0, 2.0)
    assert times[C][0] == 4.0


def test_retraction_loses_a_token_and_computes_the_rest_again() -> None:
    # 14 pages, nothing set aside. A and B: P3 O6 at 0, by length.
    # plan 0: A needs 3 + 6 + 1 < 14; B the same of 14 - 10: the latch. A3. plan 1 (t=0): latch off; 11 are free: B3.
    # plans 2 to 5 (t=1 to 4): A1 B1; 8 pages are free, then 6, 4, 2, 0.
    # t=5 plan 6: A and B have 4 tokens, one more in flight. Of equals the last in the batch is retracted: B. Its 4
    # pages beyond the prompt are free, and 20 are asked for: its prompt is evicted. A1: 6 are free.
    # t=6 B's token of step 5 is lost. plan 7: B needs 7 + 2 + 1 = 10; A's last token is in flight: an empty plan.
    # t=7 A is done. plan: B7, whose end samples its 5th token. t=8 plan 8 (t=7): B1. t=9 B is done.
    requests = (req(A, 0.0, 3, 6), req(B, 0.0, 3, 6))
    both = [(A, 1), (B, 1)]
    expected: Steps = [(0.0, [(A, 3)]), (1.0, [(B, 3)])]
    expected += [(float(t), both) for t in range(2, 6)]
    expected += [(6.0, [(A, 1)]), (7.0, [(B, 7)]), (8.0, [(B, 1)])]
    for tree in (True, False):
        steps, times, kernel = by_hand(requests, small(pages=14, conservativeness=0.0, tree=tree))
        assert steps == expected
        assert times == [(1.0, 7.0), (2.0, 9.0)]
        assert kernel.outputs.preemptions.tolist() == [0, 1]


def test_the_request_with_the_fewest_tokens_is_retracted_then_the_longest_prompt() -> None:
    # 24 pages, nothing set aside. A: P2 O11, B: P3 O7, C: P2 O7 at 0, by length.
    # plan 0: A needs 14 < 24; B needs 11 of 24 - 14: A2. plan 1 (t=0): 22 free. B needs 11 < 22, C 10 of 11: B3 C2.
    # plans 2 to 6 (t=1 to 5): A1 B1 C1; 17 pages are free, then 14, 11, 8, 5, 2. t=6 plan 7: all have 5 tokens, one
    # more in flight, and need 3 pages: B has the longest prompt. Its 5 pages beyond it are free, then its prompt.
    requests = (req(A, 0.0, 2, 11), req(B, 0.0, 3, 7), req(C, 0.0, 2, 7))
    steps, _, kernel = by_hand(requests, small(pages=24, conservativeness=0.0))
    assert kernel.outputs.preemptions.tolist() == [0, 1, 0]
    assert steps[6:8] == [(6.0, [(A, 1), (B, 1), (C, 1)]), (7.0, [(A, 1), (C, 1)])]


def test_prefixes_are_found_when_they_have_been_processed() -> None:
    # A: P5 O2 and B: P5 O1 at 0, with the same prompt; C: P6 O1 that begins with it and D: P3 O1 with its first three
    # tokens at 1.5. plan 0: A5, B3: nothing is in the tree. plan 1 (t=0): B's 3 pages are in the tree now: B2.
    # t=1 A is processed: its first 3 pages are there already and free, the other 2 are new. plan 2: A1.
    # t=2 B is processed and done: its last 2 pages are A's. plan 3 (t=2): C finds 5 tokens: C1; D at most 2 of 3: D1.
    # So A's 6 pages, B's none; C's and D's one each.
    ids = (0, 1, 2, 3, 4)
    requests = (
        req(A, 0.0, 5, 2, ids=ids),
        req(B, 0.0, 5, 1, ids=ids),
        req(C, 1.5, 6, 1, ids=ids),
        req(D, 1.5, 3, 1, ids=ids[:3]),
    )
    steps, times, kernel = by_hand(requests, small())
    assert steps == [(0.0, [(A, 5), (B, 3)]), (1.0, [(B, 2)]), (2.0, [(A, 1)]), (3.0, [(C, 1), (D, 1)])]
    assert times == [(1.0, 3.0), (2.0, 2.0), (4.0, 4.0), (4.0, 4.0)]
    assert kernel.outputs.cached.tolist() == [0, 0, 5, 2]
    assert kernel.peak_kv_blocks == 10


def test_eviction_takes_whole_nodes_and_the_oldest_leaf_first() -> None:
    # 12 pages. A: P4 O1, B: P3 O1 at 0 and 10, with prompts of their own; C: P5 O1 at 20; then A's and B's prompts
    # again (D with 4 + 1 tokens, E with 3 + 1). A leaves 4 pages, B 3: 5 are available. C needs 5: none is evicted, and
    # then 12 are full. D finds A's 4 pages at 30 and takes one: B is the oldest: all its 3 pages go. E finds nothing.
    requests = (
        req(0, 0.0, 4, 1, ids=(0, 1, 2, 3)),
        req(1, 10.0, 3, 1, ids=(10, 11, 12)),
        req(2, 20.0, 5, 1),
        req(3, 30.0, 5, 1, ids=(0, 1, 2, 3)),
        req(4, 40.0, 4, 1, ids=(10, 11, 12)),
    )
    _, _, kernel = by_hand(requests, small(pages=12))
    assert kernel.outputs.cached.tolist() == [0, 0, 0, 4, 0]


def test_rows_that_end_together_leave_in_the_order_of_the_batch() -> None:
    # mixed chunks, 20 pages. A: P3 O4 at 0, B: P3 O2 at 0.5, with prompts of their own. Steps: A3, A1, B3 A1, B1 A1: B
    # joined before A, so B leaves its 3 + 1 pages first and A its 3 + 3. 10 pages are available. C: P13 O1 at 20: B's
    # output and B's prompt go, 14 are available. Then A's prompt is found, B's is not.
    requests = (
        req(0, 0.0, 3, 4, ids=(0, 1, 2)),
        req(1, 0.5, 3, 2, ids=(10, 11, 12)),
        req(2, 20.0, 13, 1),
        req(3, 30.0, 4, 1, ids=(0, 1, 2)),
        req(4, 40.0, 4, 1, ids=(10, 11, 12)),
    )
    steps, _, kernel = by_hand(requests, small(pages=20, chunk=16, mixed=True))
    assert steps[3] == (3.0, [(1, 1), (0, 1)])
    assert kernel.outputs.cached.tolist() == [0, 0, 0, 3, 0]


def test_output_is_evicted_before_the_prompt() -> None:
    # The retraction of test_retraction_loses_a_token, with names for B's prompt. B's second prompt of 7 tokens is put
    # into the tree as a node of 3 and one of 4; its last token but one follows as a third. A's prompt and 3 available
    # pages are the rest of 14. C: P9 O1 at 20: A's prompt goes, then B's last page and its 4: 11 are available. D finds
    # B's prompt.
    requests = (
        req(A, 0.0, 3, 6),
        req(B, 0.0, 3, 6, ids=(0, 1, 2)),
        req(C, 20.0, 9, 1),
        req(D, 30.0, 4, 1, ids=(0, 1, 2)),
    )
    _, _, kernel = by_hand(requests, small(pages=14, chunk=16, conservativeness=0.0))
    assert kernel.outputs.preemptions.tolist() == [0, 1, 0, 0]
    assert kernel.outputs.cached.tolist() == [0, 0, 0, 3]


@pytest.mark.parametrize(("policy", "order"), [("fcfs", [1, 2]), ("lpm", [2, 1])])
def test_the_longest_prefix_goes_first(policy: str, order: list[int]) -> None:
    # one seat. A: P4 O4 at 0; B: P4 and C: P5 that begins with A's prompt, both O1, at 1.5 and 1.6.
    requests = (req(A, 0.0, 4, 4, ids=(0, 1, 2, 3)), req(B, 1.5, 4, 1), req(C, 1.6, 5, 1, ids=(0, 1, 2, 3)))
    steps, _, _ = by_hand(requests, dataclasses.replace(small(rows=1), schedule_policy=policy))
    assert [rows[0][0] for _, rows in steps[-2:]] == order


def test_a_prompt_that_begins_like_one_before_it_goes_last() -> None:
    # lpm, two seats, nothing in the tree. A and B: P40 O1 that begin alike, C: P40 O1 of its own, all at 0.
    # With 31 common tokens plan 0 takes the first two: A40 B40. t=1 both are done, C40.
    # With 32 it takes A and C. t=1 both are done; plan 1, made again: B finds A's 32 tokens: B8.
    def steps(common: int) -> Steps:
        ids = (tuple(range(40)), (*range(common), *range(100, 140 - common)), tuple(range(200, 240)))
        requests = tuple(req(name, 0.0, 40, 1, ids=ids[name]) for name in (A, B, C))
        return by_hand(requests, dataclasses.replace(small(rows=2, chunk=128), schedule_policy="lpm"))[0]

    assert steps(31) == [(0.0, [(A, 40), (B, 40)]), (1.0, [(C, 40)])]
    assert steps(32) == [(0.0, [(A, 40), (C, 40)]), (1.0, [(B, 8)])]


def test_decode_rows_beside_prompts() -> None:
    # mixed chunks of 8 tokens. A: P6 O5 at 0, B: P12 O2 at 0.5, C: P3 O1 at 0.5.
    # plan 0: A6. plan 1 (t=0): A1. t=1 plan 2: 8 less 1 running request: B7 A1. t=2 plan 3: B5, then C: 2 left: C2 A1.
    # t=3 plan 4: B joined behind its chunk and before A: 8 less 2 running: C1, then B1 A1; A's fifth token.
    # t=4 plan 5: B has 1 + 1 of 2, A 4 + 1 of 5, C 0 + 1 of 1: nothing. t=5 all are done.
    requests = (req(A, 0.0, 6, 5), req(B, 0.5, 12, 2), req(C, 0.5, 3, 1))
    steps, times, _ = by_hand(requests, small(mixed=True))
    assert steps == [
        (0.0, [(A, 6)]),
        (1.0, [(A, 1)]),
        (2.0, [(B, 7), (A, 1)]),
        (3.0, [(B, 5), (C, 2), (A, 1)]),
        (4.0, [(C, 1), (B, 1), (A, 1)]),
    ]
    assert times == [(1.0, 5.0), (4.0, 5.0), (5.0, 5.0)]


def test_max_prefill_tokens_closes_a_batch_that_exceeds_it() -> None:
    # max_prefill_tokens 4: plan 0: A3, 1 left: B3; nothing left: C waits although 2 tokens of the chunk are left.
    requests = (req(A, 0.0, 3, 1), req(B, 0.0, 3, 1), req(C, 0.0, 2, 1))
    steps, _, _ = by_hand(requests, dataclasses.replace(small(), max_prefill_tokens=4))
    assert steps == [(0.0, [(A, 3), (B, 3)]), (1.0, [(C, 2)])]


def test_pages_of_several_tokens_are_charged_whole() -> None:
    # pages of 4, batches of 8 tokens. A: P5 takes 2 pages of the budget: B waits. B: P9 is cut at 8; C: P3 joins it.
    requests = (req(A, 0.0, 5, 1), req(B, 0.0, 9, 1), req(C, 0.0, 3, 1))
    steps, _, _ = by_hand(requests, small(page=4, pages=100))
    assert steps == [(0.0, [(A, 5)]), (1.0, [(B, 8)]), (2.0, [(B, 1), (C, 3)])]


def test_a_client_with_two_slots() -> None:
    # A: P4 O1 by a stop token, B: P3 O3 and C: P2 O1 by length; two in flight.
    # plan 0: A4 B3. plan 1 (t=0): A1 B1. t=1 A is done, C is sent. Step 1: A's row is in vain.
    # plan 2 (t=1): C2 alone; t=3 plan 3 (t=2): B1; so C at 3, B at 4.
    requests = (req(A, 9.0, 4, 1, stop=True), req(B, 9.0, 3, 3), req(C, 9.0, 2, 1))
    case = SglangCase(requests=requests, params=small(), times=unit_table())
    plain = Engine(case.params, case.times)
    sent = run_closed_loop(plain, requests, concurrency=2, think_s=0.0, extra_s=lambda _: 0.0)
    kernel = simulate_closed_loop(
        workload_of(case), deployment_of(case), model_of(case), memory_of(case), concurrency=2
    )
    assert [r.arrival_s for r in sent] == kernel.packed.requests.arrival.tolist() == [0.0, 0.0, 1.0]
    assert times_of(plain.result()) == [(1.0, 1.0), (1.0, 4.0), (3.0, 3.0)]
    assert kernel.outputs.last.tolist() == [1.0, 4.0, 3.0]
