"""TensorRT-LLM against schedules worked out by hand.

Every step takes one second; 8 tokens a step and blocks of 4. P4 O3 is a prompt of 4 tokens with an output of 3, A3 a
row of 3 tokens of request A; plan j is the plan of step j, made when step j - 1 starts.
"""

from __future__ import annotations

import dataclasses

import pytest

from oracle.plain_engine import Request
from oracle.strategies import req, unit_table
from oracle.trtllm_cases import TrtllmCase, trtllm
from oracle.trtllm_plain import Params
from servewise.sim import simulate
from sim.trtllm_agree import deployment_of, memory_of, model_of, run_open, run_plain, workload_of

A, B, C, D = range(4)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Start and rows of every step; first and last token, hit and pauses of every request; most blocks."""

    steps: list[tuple[float, list[tuple[int, int]]]]
    times: list[tuple[float, float]]
    cached: list[int]
    pauses: list[int]
    peak_blocks: int


def by_hand(requests: tuple[Request, ...], params: Params) -> Seen:
    """What the plain engine does; the kernel does the same."""
    case = TrtllmCase(requests=requests, params=params, times=unit_table())
    result = run_plain(case).result()
    seen = Seen(
        steps=[(step.start_s, list(step.rows)) for step in result.steps],
        times=[(r.first_token_s, r.last_token_s) for r in result.requests],
        cached=[r.cached_tokens for r in result.requests],
        pauses=[r.num_preemptions for r in result.requests],
        peak_blocks=result.peak_blocks,
    )
    for fast_forward in (True, False):
        kernel = run_open(case, fast_forward=fast_forward)
        assert list(zip(kernel.outputs.first, kernel.outputs.last, strict=True)) == seen.times
        assert kernel.outputs.cached.tolist() == seen.cached
        assert kernel.outputs.preemptions.tolist() == seen.pauses
        assert kernel.peak_kv_blocks == seen.peak_blocks
    return seen


@pytest.mark.parametrize("counts", [True, False], ids=["1.3", "1.2"])
def test_cached_tokens_count_no_more_since_1_3(counts: bool) -> None:
    # A: P8 O4 at 0, B: P8 O1 at 1.5, both of blocks 0 and 1.
    # plan 0: A8. plan 1 (t=0): A1. t=1: A's blocks are stored. plan 2 (t=1): A1. B arrives.
    # plan 3 (t=2): A has 2 + 1 of 4: A1, 7 tokens are left. B finds block 0 (one token must be left to compute).
    # 1.3: it counts as 4: B4. t=3 plan 4: A has 3 + 1 of 4, B 0 + 1 of 1: nothing. t=4: both are done.
    # 1.2: it counts as 8, too many. plan 4 (t=3): A has 3 + 1 of 4: no row; B4. t=4: A is done. t=5: B is done.
    requests = (req(A, 0.0, 8, 4, ids=(0, 1)), req(B, 1.5, 8, 1, ids=(0, 1)))
    seen = by_hand(requests, trtllm(reuse=True, counts=counts))
    last = [(3.0, [(B, 4), (A, 1)])] if counts else [(3.0, [(A, 1)]), (4.0, [(B, 4)])]
    assert seen.steps == [(0.0, [(A, 8)]), (1.0, [(A, 1)]), (2.0, [(A, 1)]), *last]
    assert seen.times == [(1.0, 4.0), (4.0, 4.0) if counts else (5.0, 5.0)]
    assert seen.cached == [0, 4]


@pytest.mark.parametrize("counts", [True, False], ids=["1.3", "1.2"])
def test_blocks_that_others_hold_are_not_reserved_again_since_1_3(counts: bool) -> None:
    # 6 blocks. A: P8 O8 at 0 reserves 4, B: P8 O4 at 1.5 reserves 3; both of blocks 0 and 1. So 2 are available for B.
    # 1.3: A holds the block that B finds: B needs 2. plan 3 (t=2): B4 A1. B at 4, 5, 6, 7. All 6 are reserved.
    # 1.2: B needs 3. A's last token is out at t=8; then a plan is made again: B4, whose tokens are out at 9 to 12.
    requests = (req(A, 0.0, 8, 8, ids=(0, 1)), req(B, 1.5, 8, 4, ids=(0, 1)))
    seen = by_hand(requests, trtllm(blocks=6, reuse=True, counts=counts))
    assert seen.times == [(1.0, 8.0), (4.0, 7.0) if counts else (9.0, 12.0)]
    assert seen.cached == [0, 4]
    assert seen.peak_blocks == (6 if counts else 4)


def test_a_deferred_prompt_is_computed_twice() -> None:
    # 16 tokens a step. A, B: P8 O1 of blocks 0 and 1, C: P4 O1 of its own, at 0; D: as A, at 0.5.
    # plan 0: A8; B's first new block is A's: passed over; C4. plan 1 (t=0): A waits no more and has stored nothing: B8.
    # t=1: A and C are done, A's blocks stored. plan 2 (t=1): D finds block 0: D4. t=2: B is done; it leaves two copies.
    requests = (
        req(A, 0.0, 8, 1, ids=(0, 1)),
        req(B, 0.0, 8, 1, ids=(0, 1)),
        req(C, 0.0, 4, 1),
        req(D, 0.5, 8, 1, ids=(0, 1)),
    )
    seen = by_hand(requests, dataclasses.replace(trtllm(reuse=True), max_num_tokens=16))
    assert seen.steps == [(0.0, [(A, 8), (C, 4)]), (1.0, [(B, 8)]), (2.0, [(D, 4)])]
    assert seen.times == [(1.0, 1.0), (2.0, 2.0), (1.0, 1.0), (3.0, 3.0)]
    assert seen.cached == [0, 0, 0, 4]


@pytest.mark.parametrize("counts", [True, False], ids=["1.3", "1.2"])
def test_the_window_of_a_chunk_starts_behind_the_hit(counts: bool) -> None:
    # Chunks. A: P16 O1 at 0, B: P16 O1 at 2.5 of the same four blocks, C: P3 O1 at 2.5.
    # plan 0: A8. plan 1 (t=0): A8. t=2: A is done; its four blocks are stored.
    # t=2.5: B finds 3 blocks and has 4 tokens left. 1.3: B4 C3.
    # 1.2: B counts as 16, cut to 8, of which it needs 4: B4; the plan is closed. plan (t=2.5): C3.
    ids = (0, 1, 2, 3)
    requests = (req(A, 0.0, 16, 1, ids=ids), req(B, 2.5, 16, 1, ids=ids), req(C, 2.5, 3, 1))
    seen = by_hand(requests, trtllm(chunking=True, reuse=True, counts=counts))
    last = [(2.5, [(B, 4), (C, 3)])] if counts else [(2.5, [(B, 4)]), (3.5, [(C, 3)])]
    assert seen.steps == [(0.0, [(A, 8)]), (1.0, [(A, 8)]), *last]
    assert seen.cached == [0, 12, 0]


@pytest.mark.parametrize("reuse", [False, True], ids=["no reuse", "reuse"])
def test_the_last_one_is_paused_and_comes_back(reuse: bool) -> None:
    # MAX_UTILIZATION, 5 blocks. A: P4 O9, B: P4 O8, both at 0 and by length.
    # plan 0: A4 B4, 3 blocks are left. plan 1 (t=0): both begin a block; 1 is left. Plans 2 to 4 fill these blocks.
    # plan 5 (t=4): both would begin a block, so B is paused, with 4 tokens out and one in flight; A takes one.
    # t=5: B's fifth token. It now needs ceil(9 / 4) = 3 blocks; 2 are free. A's tokens come at 1, 2, ... 9.
    # plan 9 (t=8): A has 8 + 1 of 9: nothing. t=9: A is done. B's prompt of 9 tokens is more than a step holds:
    # without reuse it is cut: B8; plan 10 (t=9): B1, which ends it: B's sixth token at 11, then 12 and 13.
    # With reuse block 0 of B was stored when it was paused, 7 of its tokens being known: B5 at t=9; 10, 11, 12.
    requests = (req(A, 0.0, 4, 9), req(B, 0.0, 4, 8))
    seen = by_hand(requests, trtllm(blocks=5, evicts=True, reuse=reuse))
    assert seen.steps[:6] == [(0.0, [(A, 4), (B, 4)]), *[(t, [(A, 1), (B, 1)]) for t in (1, 2, 3, 4)], (5, [(A, 1)])]
    again = [(9.0, [(B, 5)])] if reuse else [(9.0, [(B, 8)]), (10.0, [(B, 1)])]
    assert seen.steps[9 : 9 + len(again)] == again
    assert seen.times == [(1.0, 9.0), (1.0, 12.0 if reuse else 13.0)]
    assert seen.pauses == [0, 1]
    assert seen.cached == [0, 0]
    assert seen.peak_blocks == 4


def test_a_deferred_prompt_takes_blocks_from_a_younger_one() -> None:
    # MAX_UTILIZATION, 8 blocks, 24 tokens a step. A: P8 O2 and B: P16 O2 share block 0; C: P8 O9; all at 0.
    # plan 0: A8 (2 blocks); B is passed over; C8 (2). 4 are left.
    # plan 1 (t=0): A1 and C1 begin a block, so 2 are left for B, which needs 4. C is younger: it is paused before its
    # row: 2 blocks and the one it does not begin make 5. B16 beside A1.
    # t=1: C's first token. plan 2 (t=1): A has 1 + 1 of 2: nothing; B begins a block: 8 - 3 - 5 = 0 are left, and C
    # needs ceil(9 / 4) = 3. t=2: A is done, 3 are free. plan 3 (t=2): B 1 + 1 of 2: nothing. C9: 3 blocks.
    # t=3: B is done. Step 3 ends at t=4 with C's second token; the ninth is out at 11.
    requests = (req(A, 0.0, 8, 2, ids=(0, 1)), req(B, 0.0, 16, 2, ids=(0, 2)), req(C, 0.0, 8, 9))
    params = dataclasses.replace(trtllm(blocks=8, evicts=True, reuse=True), max_num_tokens=24)
    seen = by_hand(requests, params)
    assert seen.steps[:3] == [(0.0, [(A, 8), (C, 8)]), (1.0, [(B, 16), (A, 1)]), (2.0, [(B, 1)])]
    assert seen.times == [(1.0, 2.0), (2.0, 3.0), (1.0, 11.0)]
    assert seen.pauses == [0, 0, 1]


def test_a_request_that_waits_for_tokens_takes_blocks_when_they_run_short() -> None:
    # MAX_UTILIZATION of 1.2, 8 blocks, 12 tokens a step. A: P8 O7 and B: P11 O1 share block 0; C: P4 O9; all at 0.
    # plan 0: A8; B is passed over; C4. plan 1 (t=0): A1 C1 begin a block; 3 are left. B needs 3, but counts as 11 of
    # 10 tokens. plans 2 to 4: the same. plan 5 (t=4): A1 and C1 begin a block, so 1 is left for B. C is paused: 2
    # blocks come back, and with one row less 11 tokens are left: B starts, finds block 0: B7.
    # t=5: C's fifth token. t=6: B is done.
    # plan 6 (t=5): A1. A holds 4 blocks and B 2 more: C, which needs 3, has to wait.
    # plan 7 (t=6): A has 6 + 1 of 7: nothing. C has stored one block: C5. Its sixth token is out at 8, its ninth at 11.
    requests = (req(A, 0.0, 8, 7, ids=(0, 1)), req(B, 0.0, 11, 1, ids=(0, 2)), req(C, 0.0, 4, 9))
    params = dataclasses.replace(trtllm(blocks=8, evicts=True, reuse=True, counts=False), max_num_tokens=12)
    seen = by_hand(requests, params)
    assert seen.steps == [
        (0.0, [(A, 8), (C, 4)]),
        *[(t, [(A, 1), (C, 1)]) for t in (1.0, 2.0, 3.0, 4.0)],
        (5.0, [(B, 7), (A, 1)]),
        (6.0, [(A, 1)]),
        (7.0, [(C, 5)]),
        *[(t, [(C, 1)]) for t in (8.0, 9.0, 10.0)],
    ]
    assert seen.times == [(1.0, 7.0), (6.0, 6.0), (1.0, 11.0)]
    assert seen.pauses == [0, 0, 1]
    assert seen.cached == [0, 4, 0]


def test_deployments_of_a_fleet_have_caches_of_their_own() -> None:
    # Two replicas, three requests of one block each, one after the other: A and C on the first, B on the second.
    requests = tuple(req(i, 10.0 * i, 8, 1, ids=(0, 1)) for i in (A, B, C))
    case = TrtllmCase(requests=requests, params=trtllm(reuse=True), times=unit_table())
    arguments = workload_of(case), deployment_of(case, num_replicas=2), model_of(case), memory_of(case)
    assert simulate(*arguments).outputs.cached.tolist() == [0, 0, 4]
