"""TensorRT-LLM against schedules worked out by hand.

Every step takes one second. P4 O3 is a prompt of 4 tokens with an output of 3, A3 a row of 3 tokens of request A;
plan j is the plan of step j, made when step j - 1 starts.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from oracle.client_plain import run_closed_loop
from oracle.reserving_cases import ReservingCase, tensorrt_llm
from oracle.reserving_plain import Engine
from oracle.strategies import req, unit_table
from oracle.vllm_plain import Result
from servewise.sim import simulate_closed_loop
from sim.reserving_agree import deployment_of, memory_of, model_of, run_open, workload_of

A, B, C = range(3)


def by_hand(case: ReservingCase) -> tuple[list[tuple[float, list[tuple[int, int]]]], list[tuple[float, float]]]:
    """Start and rows of every step, first and last token of every request; the kernel gives the latter, too."""
    engine = Engine(case.params, case.times)
    for request in case.requests:
        engine.submit(request)
    engine.run_until(np.inf)
    result = engine.result()
    for fast_forward in (True, False):
        kernel = run_open(case, fast_forward=fast_forward)
        assert list(zip(kernel.outputs.first, kernel.outputs.last, strict=True)) == times_of(result)
    return schedule(result), times_of(result)


def schedule(result: Result) -> list[tuple[float, list[tuple[int, int]]]]:
    return [(step.start_s, list(step.rows)) for step in result.steps]


def times_of(result: Result) -> list[tuple[float, float]]:
    return [(r.first_token_s, r.last_token_s) for r in result.requests]


def test_tensorrt_llm_takes_whole_prompts_beside_decode_rows() -> None:
    # 8 tokens a step. A: P5 O3, B: P4 O2 at 0, both by length; C: P3 O1 by a stop token, at 0.5.
    # plan 0: A5, 3 tokens left are too few for B. plan 1 (t=0): A1, whose first token is in flight, B4; C is not here.
    # t=1 plan 2: A has 1 + 1 of 3: A1; B has 0 + 1 of 2: B1; C3.
    # t=2 plan 3: A 2 + 1 of 3 and B 1 + 1 of 2 get no rows; C's end is not known: C1, in vain.
    # t=3 all are done. Step 3 runs. plan 4: nothing.
    requests = (req(A, 0.0, 5, 3), req(B, 0.0, 4, 2), req(C, 0.5, 3, 1, stop=True))
    steps, times = by_hand(
        ReservingCase(requests=requests, params=tensorrt_llm(blocks=100, chunking=False), times=unit_table())
    )
    assert steps == [(0.0, [(A, 5)]), (1.0, [(A, 1), (B, 4)]), (2.0, [(A, 1), (B, 1), (C, 3)]), (3.0, [(C, 1)])]
    assert times == [(1.0, 3.0), (2.0, 3.0), (3.0, 3.0)]


def test_tensorrt_llm_cuts_prompts_at_blocks_and_reserves_to_the_end() -> None:
    # 8 tokens a step, 6 blocks of 4. A: P10 O3 sets 4 blocks aside, B: P5 O2 and C: P6 O1 2 each.
    # plan 0: A is cut at 8. plan 1 (t=0): A2, B5 of 6; no memory for C.
    # t=1 plan 2: A1 B1. t=2 plan 3: A1; B has 1 + 1 of 2; it keeps its blocks until t=3, so C waits.
    # t=3 B is done. plan 4: A has 2 + 1 of 3: no row; C6. t=4 A is done. t=5 C is done.
    requests = (req(A, 0.0, 10, 3), req(B, 0.0, 5, 2), req(C, 0.0, 6, 1))
    steps, times = by_hand(
        ReservingCase(requests=requests, params=tensorrt_llm(blocks=6, chunking=True), times=unit_table())
    )
    assert steps == [
        (0.0, [(A, 8)]),
        (1.0, [(A, 2), (B, 5)]),
        (2.0, [(A, 1), (B, 1)]),
        (3.0, [(A, 1)]),
        (4.0, [(C, 6)]),
    ]
    assert times == [(2.0, 4.0), (2.0, 3.0), (5.0, 5.0)]


def test_tensorrt_llm_lets_prompts_wait_beside_decode_rows() -> None:
    # 8 tokens a step; prompts wait at most 2 steps for one of 6. A: P4 O6 at 0; B: P2 O1, C: P3 O1 at 0.5.
    # plan 0: A4; nothing decodes, so nothing waits. plan 1 (t=0): A1. t=1 plan 2: A1 and B2 C3 are 6: enough.
    # Without C: t=1 plan 2: 3 of 6, A1 alone. t=2 plan 3: A1 alone. t=3 plan 4: waited twice: A1 B2. B is done at 5.
    requests = (req(A, 0.0, 4, 6), req(B, 0.5, 2, 1), req(C, 0.5, 3, 1))
    params = dataclasses.replace(
        tensorrt_llm(blocks=100, chunking=False), batch_wait_timeout_iters=2, batch_wait_max_tokens_ratio=0.75
    )
    steps, times = by_hand(ReservingCase(requests=requests, params=params, times=unit_table()))
    assert steps[2] == (2.0, [(A, 1), (B, 2), (C, 3)])
    assert times == [(1.0, 6.0), (3.0, 3.0), (3.0, 3.0)]
    steps, times = by_hand(ReservingCase(requests=requests[:2], params=params, times=unit_table()))
    assert steps[2:5] == [(2.0, [(A, 1)]), (3.0, [(A, 1)]), (4.0, [(A, 1), (B, 2)])]
    assert times == [(1.0, 6.0), (5.0, 5.0)]


def test_a_client_with_two_slots() -> None:
    # A: P4 O1 by a stop token, B: P3 O3 and C: P2 O1 by length; two in flight.
    # plan 0: A4 B3. plan 1 (t=0): A1 B1. t=1 A is done, C is sent. Step 1: A's row is in vain.
    # plan 2 (t=1): B1 C2; both at 3.
    requests = (req(A, 9.0, 4, 1, stop=True), req(B, 9.0, 3, 3), req(C, 9.0, 2, 1))
    case = ReservingCase(requests=requests, params=tensorrt_llm(blocks=100, chunking=False), times=unit_table())
    plain = Engine(case.params, case.times)
    sent = run_closed_loop(plain, requests, concurrency=2, think_s=0.0, extra_s=lambda _: 0.0)
    kernel = simulate_closed_loop(
        workload_of(case), deployment_of(case), model_of(case), memory_of(case), concurrency=2
    )
    assert [r.arrival_s for r in sent] == kernel.packed.requests.arrival.tolist() == [0.0, 0.0, 1.0]
    assert times_of(plain.result()) == [(1.0, 1.0), (1.0, 3.0), (3.0, 3.0)]
    assert kernel.outputs.first.tolist() == [1.0, 1.0, 3.0]
    assert kernel.outputs.last.tolist() == [1.0, 3.0, 3.0]
