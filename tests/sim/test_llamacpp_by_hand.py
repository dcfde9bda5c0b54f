"""llama.cpp's slots against schedules worked out by hand.

Every pass takes one second. P4 O3 is a prompt of 4 tokens with an output of 3, A3 a part of 3 tokens of request A.
Slots that never ran are taken from the last on: with four of them, A gets slot 3, B slot 2.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from oracle.llamacpp_cases import SlotCase, server
from oracle.llamacpp_plain import Engine, Params
from oracle.plain_engine import Request
from oracle.strategies import req, unit_table
from servewise.kernel import layout
from servewise.sim import Outcome
from servewise.types import StepTable
from sim.llamacpp_agree import run_open, run_plain

A, B, C, D = range(4)
Times = list[tuple[float, float]]


def by_hand(params: Params, *requests: Request, times: StepTable | None = None) -> tuple[Engine, Times, Outcome]:
    """The plain server that has served them, first and last tokens, and what the kernel says, which agrees."""
    case = SlotCase(requests=requests, params=params, times=times or unit_table(8, 512))
    engine = run_plain(case)
    expected = [(r.first_token_s, r.last_token_s) for r in engine.result().requests]
    for fast_forward in (True, False):
        kernel = run_open(case, fast_forward=fast_forward)
        np.testing.assert_array_equal(list(zip(kernel.outputs.first, kernel.outputs.last, strict=True)), expected)
        np.testing.assert_array_equal(kernel.outputs.cached, [r.cached_tokens for r in engine.result().requests])
        assert kernel.counters[0, layout.NUM_STEPS] == len(engine.steps)
    return engine, expected, kernel


def test_passes_of_slots_with_equally_many_tokens() -> None:
    # 8 tokens a batch, 4 a pass. A: P5 O3 in slot 3, B: P3 O2 in slot 2, both at 0.
    # batch 0: B3 A5. Pass 1: two slots, 4 // 2 tokens each: B2 A2. Pass 2: B has 1 left: B1 A1. Pass 3: A2.
    # t=3: both have their first token. batch 1: B1 A1, one pass. t=4: B ends. batch 2: A1. t=5.
    engine, times, _ = by_hand(server(), req(A, 0.0, 5, 3), req(B, 0.0, 3, 2))
    assert engine.passes == [[(2, 2), (3, 2)], [(2, 1), (3, 1)], [(3, 2)], [(2, 1), (3, 1)], [(3, 1)]]
    assert times == [(3.0, 5.0), (3.0, 4.0)]


def test_consecutive_tokens_of_a_shared_cache() -> None:
    # The same with one stream: B3 A1 | A4 is two passes. t=2; then a pass a step.
    engine, times, _ = by_hand(server(unified=True), req(A, 0.0, 5, 3), req(B, 0.0, 3, 2))
    assert engine.passes == [[(2, 3), (3, 1)], [(3, 4)], [(2, 1), (3, 1)], [(3, 1)]]
    assert times == [(2.0, 4.0), (2.0, 3.0)]


def test_a_gap_between_slots_costs_a_pass() -> None:
    # A in slot 3, B in 2, C in 1; prompts of one token. Step 0: one pass. Step 1: one pass, t=2: B ends.
    # Steps 2, 3, 4: slots 1 and 3 are no neighbours: two passes each, t=4, 6, 8.
    requests = req(A, 0.0, 1, 5), req(B, 0.0, 1, 2), req(C, 0.0, 1, 5)
    engine, times, _ = by_hand(server(), *requests)
    assert engine.passes == [[(1, 1), (2, 1), (3, 1)]] * 2 + [[(1, 1)], [(3, 1)]] * 3
    assert times == [(1.0, 8.0), (1.0, 2.0), (1.0, 8.0)]
    _, times, _ = by_hand(server(unified=True), *requests)
    assert times == [(1.0, 5.0), (1.0, 2.0), (1.0, 5.0)]


def test_a_prompt_above_a_slot_that_generates_shares_its_pass_and_one_below_does_not() -> None:
    # Two slots. A: P1 O1 in slot 1, B: P1 O9 in slot 0. t=1: A ends. C: P6 O1, at 0.5, gets slot 1.
    # batch 1: B1 C6: B1 C1 | C4 | C1: 1 + ceil(5 / 4) passes. t=4: C ends, B has 2 tokens.
    # The other 7 tokens of B take a second each: t=11.
    _, times, _ = by_hand(server(2), req(A, 0.0, 1, 1), req(B, 0.0, 1, 9), req(C, 0.5, 6, 1))
    assert times == [(1.0, 1.0), (1.0, 11.0), (4.0, 4.0)]
    # Four slots. A: P1 O3 in slot 3 generates when B: P4 O1 comes to slot 2, at 0.5.
    # batch 1: A1 B4. A is first in the batch, and no slot follows 3: A1 | B4. t=3. A's last token: t=4.
    engine, times, _ = by_hand(server(), req(A, 0.0, 1, 3), req(B, 0.5, 4, 1))
    assert engine.passes == [[(3, 1)], [(3, 1)], [(2, 4)], [(3, 1)]]
    assert times == [(1.0, 4.0), (3.0, 3.0)]


def test_prompts_go_in_the_order_of_slots_and_the_batch_is_never_exceeded() -> None:
    # 8 tokens a batch and a pass. A: P6 O1 in slot 3, B: P6 O1 in slot 2, at 0: batch 0 is B6 A2, batch 1 is A4.
    engine, times, kernel = by_hand(server(unified=True, ubatch=8), req(A, 0.0, 6, 1), req(B, 0.0, 6, 1))
    assert [step.rows for step in engine.steps] == [((B, 6), (A, 2)), ((A, 4),)]
    assert times == [(2.0, 2.0), (1.0, 1.0)]
    assert kernel.budget_bound
    # C: P8 O1 comes at 0.5 and gets slot 1, below A: it is served before the rest of A's prompt.
    engine, times, _ = by_hand(server(unified=True, ubatch=8), req(A, 0.0, 6, 1), req(B, 0.0, 6, 1), req(C, 0.5, 8, 1))
    assert [step.rows for step in engine.steps] == [((B, 6), (A, 2)), ((C, 8),), ((A, 4),)]
    assert times == [(3.0, 3.0), (1.0, 1.0), (2.0, 2.0)]


def test_of_those_who_waited_the_last_goes_first_when_two_slots_are_released_at_once() -> None:
    # Two slots, 4 tokens a batch. A in slot 1, B in slot 0: P1 O1. C and D: P4 O1. All at 0: C and D wait.
    # t=1: slot 0, then slot 1 is released. D takes the slot released longest ago, 0; C takes 1. D's prompt goes first.
    requests = req(A, 0.0, 1, 1), req(B, 0.0, 1, 1), req(C, 0.0, 4, 1), req(D, 0.0, 4, 1)
    params = server(2, batch=4)
    _, times, kernel = by_hand(params, *requests)
    assert times[2:] == [(3.0, 3.0), (2.0, 2.0)]
    assert kernel.slots_bound
    # C and D come while the step runs: they have not waited when it ends, and are served in order.
    late = (*requests[:2], req(C, 0.2, 4, 1), req(D, 0.3, 4, 1))
    _, times, kernel = by_hand(params, *late)
    assert times[2:] == [(2.0, 2.0), (3.0, 3.0)]
    assert not kernel.slots_bound
    # Ollama's own queue is first in, first out.
    _, times, _ = by_hand(dataclasses.replace(params, is_ollama=True, n_batch=4), *requests)
    assert times[2:] == [(2.0, 2.0), (3.0, 3.0)]


def test_a_slot_keeps_its_content_for_a_prompt_that_begins_alike() -> None:
    # Blocks of 2 tokens. A: P5 O3 with blocks 0 1, slot 1, is done at t=4: passes A4 | A1, then two steps.
    # Its content is 5 + 3 - 1 = 7 tokens. B: P8 O1 with blocks 0 1 2, at 5: 4 tokens are there, more than a tenth of
    # it, so it takes slot 1, not slot 0, which never ran. It computes 4 tokens: t=6.
    # C: P4 O1 with blocks 0 1, at 7: all 4 are there, the last is computed again: t=8.
    # D: P41 O1 with blocks 0 1 3 ..., at 9: 4 of 41 tokens are not more than a tenth: slot 0; 41 tokens.
    params = dataclasses.replace(server(2, unified=True), block_size_tokens=2)
    ids = (0, 1, *range(3, 21))
    requests = (
        req(A, 0.0, 5, 3, ids=(0, 1)),
        req(B, 5.0, 8, 1, ids=(0, 1, 2)),
        req(C, 7.0, 4, 1, ids=(0, 1)),
        req(D, 9.0, 41, 1, ids=ids),
    )
    engine, times, _ = by_hand(params, *requests)
    assert [r.cached_tokens for r in engine.result().requests] == [0, 4, 3, 0]
    assert [passed[0][0] for passed in engine.passes] == [1, 1, 1, 1, 1, 1, *[0] * 11]
    assert times[:3] == [(2.0, 4.0), (6.0, 6.0), (8.0, 8.0)]
    # 5 steps of 8 tokens, two passes each, and one of one token
    assert times[3] == (9.0 + 11, 9.0 + 11)


def test_a_shared_cache_that_is_full_fails_everybody() -> None:
    # 256 cells. A and B: P100 O100. t=1: first tokens, 200 cells in use. Each step takes 2 more; 28 steps fit.
    # t=29: 256 cells are in use, the 29th step finds none. C: P10 O1, which waits since 0, gets a slot: t=30.
    params = server(2, unified=True, batch=256, ubatch=256, context=256)
    _, times, kernel = by_hand(params, req(A, 0.0, 100, 100), req(B, 0.0, 100, 100), req(C, 0.0, 10, 1))
    assert all(map(math.isnan, [*times[0], *times[1]]))
    assert times[2] == (30.0, 30.0)
    assert kernel.outputs.rejected.tolist() == [1, 1, 0]
    assert kernel.memory_bound
    assert kernel.peak_kv_blocks == 256


def test_a_shared_cache_clears_idle_slots_first() -> None:
    # 256 cells, blocks of 32. A: P96 O1 with blocks 0 1 2, slot 1, done at t=1, 96 cells. B: P154 O9, at 2, has no
    # blocks and gets slot 0; 154 cells. 6 more tokens fit beside A's content; the 7th clears it.
    # C: the prompt of A again, at 20: nothing is left of it.
    params = dataclasses.replace(server(2, unified=True, batch=256, ubatch=256, context=256), block_size_tokens=32)
    a, c = req(A, 0.0, 96, 1, ids=(0, 1, 2)), req(C, 20.0, 96, 1, ids=(0, 1, 2))
    engine, _, kernel = by_hand(params, a, req(B, 2.0, 154, 9), c)
    assert [r.cached_tokens for r in engine.result().requests] == [0, 0, 0]
    assert kernel.memory_bound
    engine, _, _ = by_hand(params, a, req(B, 2.0, 154, 7), c)
    assert [r.cached_tokens for r in engine.result().requests] == [0, 0, 95]


def test_a_content_that_would_be_lost_is_copied_to_the_host_and_back() -> None:
    # One slot, blocks of 2 tokens; room for 20 tokens on the host, a quarter of a second for each on its way.
    # A: P5 O3 with blocks 0 1, done at t=4 with a content of 7. B: P4 O1 with blocks 5 6, at 5: A's content is copied,
    # until 6.75. B: 7.75. C: P8 O1 with blocks 0 1 2, at 10: B's 4 tokens are copied, then A's 7 come back: 12.75.
    # 4 of them begin C's prompt; 13.75. D: P4 O1 with blocks 5 6, at 20: C's content of 8 tokens is copied, and B's
    # comes back: 23. Its last token is computed again: 24.
    params = dataclasses.replace(server(1), block_size_tokens=2, host_tokens=20, copy_s=0.25)
    requests = (
        req(A, 0.0, 5, 3, ids=(0, 1)),
        req(B, 5.0, 4, 1, ids=(5, 6)),
        req(C, 10.0, 8, 1, ids=(0, 1, 2)),
        req(D, 20.0, 4, 1, ids=(5, 6)),
    )
    engine, times, _ = by_hand(params, *requests)
    assert [r.cached_tokens for r in engine.result().requests] == [0, 0, 4, 3]
    assert times == [(2.0, 4.0), (7.75, 7.75), (13.75, 13.75), (24.0, 24.0)]
    # Room for 10: B's content puts A's out, which was there longer. C finds nothing: two passes after a second.
    # Its 8 tokens do not fit beside B's 4 and put them out as well: two seconds for them, then D's pass.
    engine, times, _ = by_hand(dataclasses.replace(params, host_tokens=10), *requests)
    assert [r.cached_tokens for r in engine.result().requests] == [0, 0, 0, 0]
    assert times[2:] == [(13.0, 13.0), (23.0, 23.0)]
    # Room for 6: A's content is more and is not copied, and puts nothing out.
    engine, times, _ = by_hand(dataclasses.replace(params, host_tokens=6), *requests)
    assert [r.cached_tokens for r in engine.result().requests] == [0, 0, 0, 3]
    assert times[1:] == [(6.0, 6.0), (13.0, 13.0), (22.0, 22.0)]


def test_idle_slots_are_copied_and_what_begins_a_copied_content_leaves_the_host() -> None:
    # Two slots, blocks of 2, a quarter of a second for each token. A: P4 O1 with blocks 0 1, in slot 1: t=1. B: P4 O1
    # with blocks 5 6, at 2, gets slot 0, and A's content, idle, is copied: 3, 4. C: P8 O1 with blocks 0 1 2 3, at 5,
    # gets slot 1 for its 4 tokens, of which it loses none; B's are copied: 6, 7. D is B again, at 9, in slot 0: C's 8
    # tokens are copied: 11, 12. A's, with which they begin, are no longer needed.
    params = dataclasses.replace(server(2), block_size_tokens=2, host_tokens=100, copy_s=0.25)
    requests = (
        req(A, 0.0, 4, 1, ids=(0, 1)),
        req(B, 2.0, 4, 1, ids=(5, 6)),
        req(C, 5.0, 8, 1, ids=(0, 1, 2, 3)),
        req(D, 9.0, 4, 1, ids=(5, 6)),
    )
    engine, times, _ = by_hand(params, *requests)
    assert [r.cached_tokens for r in engine.result().requests] == [0, 0, 4, 3]
    assert [time for time, _ in times] == [1.0, 4.0, 7.0, 12.0]
    assert [(saved.owner.id, saved.content) for saved in engine.host] == [(B, 4), (C, 8)]
    # With shared cells the slots are emptied. A's content was copied for B, so C takes it back after B's was copied:
    # 8 tokens, 7, 8. D at 9: B's content comes back, after C's was copied: 12 tokens, 12, 13.
    engine, times, _ = by_hand(dataclasses.replace(params, is_unified=True), *requests)
    assert [r.cached_tokens for r in engine.result().requests] == [0, 0, 4, 3]
    assert [time for time, _ in times] == [1.0, 4.0, 8.0, 13.0]
    assert [(saved.owner.id, saved.content) for saved in engine.host] == [(C, 8)]


def test_a_content_for_which_a_shared_cache_has_no_room_stays_on_the_host() -> None:
    # 256 cells, blocks of 32, a 64th of a second for each token. A: P96 O1 with blocks 0 1 2, done at t=1, 96 cells.
    # B: P150 O40, at 2: A's content is idle, so it is copied and its slot emptied: 3.5. B's first token comes at 4.5.
    # C: P40 O1 with block 0, at 14.25, finds 150 + 10 cells in use: 96 more are 256, so A's come back, until 16: 32.
    # At 15.25 it is a step too late: 161 are in use, and nothing comes back.
    params = dataclasses.replace(
        server(2, unified=True, batch=256, ubatch=256, context=256),
        block_size_tokens=32,
        host_tokens=1000,
        copy_s=1 / 64,
    )
    a, b = req(A, 0.0, 96, 1, ids=(0, 1, 2)), req(B, 2.0, 150, 40)
    engine, times, _ = by_hand(params, a, b, req(C, 14.25, 40, 1, ids=(0,)))
    assert [r.cached_tokens for r in engine.result().requests] == [0, 0, 32]
    assert times[1][0] == 4.5
    assert times[2] == (14.5 + 1.5 + 1, 14.5 + 1.5 + 1)
    engine, times, _ = by_hand(params, a, b, req(C, 15.25, 40, 1, ids=(0,)))
    assert [r.cached_tokens for r in engine.result().requests] == [0, 0, 0]
    assert times[2] == (15.5 + 1, 15.5 + 1)
    assert [saved.content for saved in engine.host] == [96]


def test_a_context_shift_drops_half() -> None:
    # A context of 256. P250 O12: the prompt takes a pass, t=1. The content is one short of the context after 5 more
    # tokens: (255 - 1) // 2 = 127 are dropped, 128 stay, and 6 tokens more make 134. Never more than 255 cells.
    params = dataclasses.replace(server(1, batch=256, ubatch=256, context=256), context_shift=True)
    engine, times, kernel = by_hand(params, req(A, 0.0, 250, 12))
    assert times == [(1.0, 12.0)]
    assert engine.slots[0].content == 134
    assert kernel.peak_kv_blocks == engine.peak_blocks == 255


def test_models_with_windows_compute_the_end_of_a_prompt_apart() -> None:
    # 4 tokens a pass. P20: 20 - (4 + 4) = 12 tokens, 3 passes; then 4, then the last 4.
    params = dataclasses.replace(server(1, batch=32), has_windows=True)
    engine, times, _ = by_hand(params, req(A, 0.0, 20, 1))
    assert [step.rows for step in engine.steps] == [((A, 12),), ((A, 4),), ((A, 4),)]
    assert times == [(5.0, 5.0)]


def test_ollama_loads_a_model_that_was_idle_for_too_long() -> None:
    # Kept for 300 s, loaded in 2. A: t=1. B at 301: idle for 300 s, not longer: t=302. C at 603: idle for 301 s,
    # loads until 605: t=606. D comes at 604 and waits, one slot: t=607.
    params = dataclasses.replace(server(1), is_ollama=True, keep_alive_s=300.0, load_s=2.0)
    requests = req(A, 0.0, 1, 1), req(B, 301.0, 1, 1), req(C, 603.0, 1, 1), req(D, 604.0, 1, 1)
    case = SlotCase(requests=requests, params=params, times=unit_table(8, 512))
    engine = run_plain(case)
    assert engine.num_loads == 1
    np.testing.assert_allclose([r.first_token_s for r in engine.result().requests], [1.0, 302.0, 606.0, 607.0])
    np.testing.assert_allclose(run_open(case).outputs.first, [1.0, 302.0, 606.0, 607.0])
    # Not loaded at first: A at t=3. B finds a model idle for 298 s.
    cold = dataclasses.replace(case, params=dataclasses.replace(params, starts_loaded=False))
    np.testing.assert_allclose(run_open(cold).outputs.first, [3.0, 302.0, 606.0, 607.0])
    assert run_plain(cold).num_loads == 2


def test_attention_covers_whole_multiples_of_256_cells() -> None:
    # A millisecond a token of context, beside a second a pass. A: P300 O4 and B: P10 O4 at 0, in one batch.
    # Split: the prompts take passes only of themselves; then both read up to the longest: 2 * 512 cells a step.
    table = dataclasses.replace(unit_table(8, 512), attention_slope_s=np.full((9, 1), 1e-3))
    requests = req(A, 0.0, 300, 4), req(B, 0.0, 10, 4)
    engine, times, _ = by_hand(server(2, batch=512, ubatch=512), *requests, times=table)
    assert len(engine.passes) == 2 + 3
    np.testing.assert_allclose(times, [(2.0, 2 + 3 * 2.024)] * 2)
    # One stream: 310 cells are in use, and 2 more with each step: 512 cells.
    engine, times, _ = by_hand(server(2, unified=True, batch=512, ubatch=512), *requests, times=table)
    assert len(engine.passes) == 1 + 3
    np.testing.assert_allclose(times, [(1.0, 1 + 3 * 1.512)] * 2)
