"""Static batching, Orca and Sarathi against schedules worked out by hand.

Unless a table is given every step takes one second. P4 O3 is a prompt of 4 tokens with an output of 3, A3 a row of 3
tokens of request A. There is no lag: a step's plan is made when the one before it has ended.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from oracle.baseline_cases import BaselineCase, table_size
from oracle.baselines_plain import Engine, Params
from oracle.plain_engine import Request
from oracle.strategies import req, unit_table
from servewise.types import StepTable
from sim.baselines_agree import run_open

A, B, C, D = range(4)


def by_hand(
    requests: tuple[Request, ...], params: Params, times: StepTable | None = None
) -> tuple[list[tuple[float, list[tuple[int, int]]]], list[tuple[float, float]]]:
    """Start and rows of every step, first and last token of every request; the kernel gives the latter, too."""
    case = BaselineCase(requests=requests, params=params, times=times or unit_table(*table_size(params)))
    engine = Engine(case.params, case.times)
    for request in case.requests:
        engine.submit(request)
    engine.run_until(np.inf)
    result = engine.result()
    expected = [(r.first_token_s, r.last_token_s) for r in result.requests]
    for fast_forward in (True, False):
        kernel = run_open(case, fast_forward=fast_forward)
        assert list(zip(kernel.outputs.first, kernel.outputs.last, strict=True)) == expected
        assert kernel.peak_kv_blocks == result.peak_blocks
        assert kernel.outputs.preemptions.tolist() == [r.num_preemptions for r in result.requests]
    return [(step.start_s, list(step.rows)) for step in result.steps], expected


def test_a_static_batch_starts_when_full_or_when_it_has_waited() -> None:
    # 2 slots of 2 blocks. A: P3 O3 at 0 would wait until 1.5. B: P2 O1 at 1 fills the batch, so it starts at 1.
    # t=1: A3 B2; B has all its tokens at 2, A decodes until 4, and keeps C: P2 O2, which came at 1.2, waiting.
    # t=4: C has waited longer than 1.5: alone until 6. D: P1 O1 at 9 waits for nobody until 10.5.
    params = Params(
        engine="static", max_batch_size=8, max_seq_len=7, num_kv_blocks=5, block_size_tokens=4, max_wait_s=1.5
    )
    requests = (req(A, 0.0, 3, 3), req(B, 1.0, 2, 1), req(C, 1.2, 2, 2, stop=True), req(D, 9.0, 1, 1))
    steps, times = by_hand(requests, params)
    assert steps == [
        (1.0, [(A, 3), (B, 2)]),
        (2.0, [(A, 1)]),
        (3.0, [(A, 1)]),
        (4.0, [(C, 2)]),
        (5.0, [(C, 1)]),
        (10.5, [(D, 1)]),
    ]
    assert times == [(2.0, 4.0), (2.0, 2.0), (5.0, 6.0), (11.5, 11.5)]


def test_a_static_batch_pads_its_prompts_and_computes_rows_that_have_ended() -> None:
    # A prompt token costs 1 s, a pair 0.5 s; a decode row 10 s and 1 s a token of context.
    # A: P4 O3, B: P2 O2. The prompts cost two of 4 tokens: 2 * 4 * 1 + 0.5 * 2 * (1 + 2 + 3 + 4) = 18: t=18.
    # Then 2 rows over contexts of 5 and 3: 20 + 8 = 28: t=46, B's last token.
    # Then still 2 rows, but only A attends, to 6: 20 + 6 = 26: t=72, A's last.
    rows, tokens = np.arange(3.0), np.arange(65.0)
    times = dataclasses.replace(
        unit_table(2, 64),
        mixed_tokens_s=tokens,
        prefill_s_per_pair=0.5,
        decode_fixed_s=10.0 * rows,
        attention_slope_s=(rows > 0).astype(float)[:, None],
    )
    params = Params(engine="static", max_batch_size=2, max_seq_len=8, num_kv_blocks=100, block_size_tokens=4)
    _, answered = by_hand((req(A, 0.0, 4, 3), req(B, 0.0, 2, 2)), params, times)
    assert answered == [(18.0, 72.0), (18.0, 46.0)]


def test_orca_admits_whole_prompts_to_slots_step_by_step() -> None:
    # 4 blocks make 2 slots of 2. A: P3 O3 at 0, B: P6 O2 and C: P1 O1 at 0.5.
    # t=0: A3. t=1: A1 B6; no slot for C, whose one token would fit. t=2: A1 B1.
    # t=3 A and B have ended, and their slots are free at once: C1. C is done at 4.
    params = Params(engine="orca", max_batch_size=4, max_seq_len=8, num_kv_blocks=4, block_size_tokens=4)
    steps, times = by_hand((req(A, 0.0, 3, 3), req(B, 0.5, 6, 2, stop=True), req(C, 0.5, 1, 1)), params)
    assert steps == [(0.0, [(A, 3)]), (1.0, [(A, 1), (B, 6)]), (2.0, [(A, 1), (B, 1)]), (3.0, [(C, 1)])]
    assert times == [(1.0, 3.0), (2.0, 3.0), (4.0, 4.0)]


def test_sarathi_takes_a_prompts_blocks_at_once_and_preempts_the_last() -> None:
    # 4 tokens a step, 5 blocks of 2. A: P3 O4, B: P5 O1 at 0.
    # t=0: A3 takes 2 blocks; B has 1 token of the step left and takes its 3 blocks: none is free.
    # t=1: A1 is its 4th token: no new block. B 3 of its other 4.
    # t=2: A's 5th token needs a block. B is the last: it gives up 3, of which A takes 1; B needs 3 of 2. A1.
    # t=3: A1. t=4: A has its 4 tokens. B from its start: B4, t=5: B1, t=6: done.
    params = Params(
        engine="sarathi", max_batch_size=3, max_seq_len=8, num_kv_blocks=5, block_size_tokens=2, chunk_size=4
    )
    steps, times = by_hand((req(A, 0.0, 3, 4), req(B, 0.0, 5, 1)), params)
    assert steps == [
        (0.0, [(A, 3), (B, 1)]),
        (1.0, [(A, 1), (B, 3)]),
        (2.0, [(A, 1)]),
        (3.0, [(A, 1)]),
        (4.0, [(B, 4)]),
        (5.0, [(B, 1)]),
    ]
    assert times == [(1.0, 4.0), (6.0, 6.0)]


def test_sarathi_decodes_before_it_computes_prompts() -> None:
    # 4 tokens a step, 3 seats. A: P2 O3, B: P9 O2, C: P1 O1 at 0; there is memory for all.
    # t=0: A2 and 2 of B; the step is full, so C waits. t=1: A1, then 3 of B. t=2: A1, then 3 of B (8 of 9).
    # t=3: A has ended. B1, then C1. t=4: C has ended, B1 is its second token. t=5: done.
    params = Params(
        engine="sarathi", max_batch_size=3, max_seq_len=12, num_kv_blocks=99, block_size_tokens=2, chunk_size=4
    )
    steps, times = by_hand((req(A, 0.0, 2, 3), req(B, 0.0, 9, 2, stop=True), req(C, 0.0, 1, 1)), params)
    assert steps == [
        (0.0, [(A, 2), (B, 2)]),
        (1.0, [(A, 1), (B, 3)]),
        (2.0, [(A, 1), (B, 3)]),
        (3.0, [(B, 1), (C, 1)]),
        (4.0, [(B, 1)]),
    ]
    assert times == [(1.0, 3.0), (4.0, 5.0), (4.0, 4.0)]
