"""Groups of prefill and decode instances, small schedules worked out by hand.

Steps take one second and, unless it says otherwise, blocks hold 2 tokens, a step 8, and a block takes 0.25 s on the
link, which arrives 0.25 s later. ``A4`` is a step's row with four tokens of A. Plan ``j + 1`` is made when step ``j``
begins (TensorRT-LLM's P: when it has ended).
"""

from __future__ import annotations

import numpy as np
import pytest

from oracle.disaggregated_cases import DisaggregatedCase, group_params
from oracle.disaggregated_plain import GroupParams
from oracle.plain_engine import Request
from oracle.strategies import req, unit_table
from servewise.types import RequestStatus
from sim.disaggregated_agree import run_group, run_plain, to_log_of, workload_of

A, B, C, D = range(4)


def by_hand(params: GroupParams, *requests: Request) -> list[list[float]]:
    """When each token is delivered, of the plain group, with which the kernel agrees."""
    case = DisaggregatedCase(requests=requests, params=params, prefill_times=unit_table(), decode_times=unit_table())
    plain = run_plain(case)
    for fast_forward in (True, False):
        kernel = run_group(case, fast_forward=fast_forward)
        assert kernel.outputs.first.tolist() == [live.token_s[0] for live in plain.lives]
        assert kernel.outputs.last.tolist() == [live.token_s[-1] for live in plain.lives]
        assert kernel.outputs.preemptions.tolist() == [live.num_preemptions for live in plain.lives]
        log = to_log_of(case, kernel)
        assert (log.status == RequestStatus.OK).all()
        assert (log.cached_tokens == -1).all()
    return [live.token_s for live in plain.lives]


def test_vllm_hides_a_transfer_behind_other_requests() -> None:
    # P: plan 0 (t=0): A4 B4 of 10. plan 1 (t=0): B6. plan 2 (t=1): C3. Finished: A at 1, B at 2, C at 3.
    # D: t=1 A admitted, 2 blocks: on the link until 1.5, ready at 1.75. Step 1.75-2.75: A's last prompt token again.
    # Plan at 2.75: A, and B admitted: 5 blocks, until 4.0, ready at 4.25. Plan at 3.75: A's last token is in flight;
    # C admitted: 2 blocks, the link is free at 4.0: until 4.5, ready at 4.75. t=4.75: A has its third token, B and C
    # are ready: one step, in which the transfer of B did not cost D anything. B has 5.75 and 6.75.
    tokens = by_hand(group_params("vllm"), req(A, 0.0, 4, 3), req(B, 0.0, 10, 2), req(C, 0.5, 3, 1))
    assert tokens == [[2.75, 3.75, 4.75], [5.75, 6.75], [5.75]]


@pytest.mark.parametrize(
    ("engine", "tokens"),
    [
        # P: 8 tokens until 1, 2 until 2. D fetches 5 blocks: 2 to 3.25, ready at 3.5; its step gives the first token.
        ("vllm", [4.5, 5.5]),
        # The first chunk, 4 pages, is on the link from 1 to 2; the last page from 2 to 2.25, there at 2.5.
        ("sglang", [2.5, 3.5]),
        # The first token is P's, at 2; D fetches 5 blocks as vLLM does: ready at 3.5.
        ("tensorrt-llm", [2.0, 4.5]),
    ],
)
def test_what_of_a_transfer_is_hidden_behind_its_own_prompt(engine: str, tokens: list[float]) -> None:
    assert by_hand(group_params(engine), req(A, 0.0, 10, 2)) == [tokens]  # type: ignore[arg-type]


def test_vllm_presses_back_when_d_is_full() -> None:
    # D has 4 blocks, P 5. A: P6 O2, B and C: P4 O1, at 0; D: P4 O1, at 2.5.
    # P: plan 0: A6 B2, all 5 blocks. plan 1: B2; C has no block. t=1 A finished; D admits it, 3 of 4 blocks; the
    # transfer, 3 blocks, arrives at 2. t=2: B finished, A's blocks are free on P: C4 until 3. On D A is ready, its row
    # runs; B needs 2 blocks, 1 is left, and A's next token takes it. t=3: C finished. P holds B's and C's 4 blocks: D
    # needs 2 and there is 1. t=4: A leaves D. B: 4 to 4.5, there at 4.75; C: 4.5 to 5.0, there at 5.25.
    # t=4.75: B's blocks are free on P: D4 until 5.75. B's row until 5.75, C's until 6.75.
    # t=5.75: D is admitted to B's blocks: until 6.25, there at 6.5; its row from 6.75 on.
    params = group_params("vllm", p_blocks=5, d_blocks=4)
    requests = (req(A, 0.0, 6, 2), req(B, 0.0, 4, 1), req(C, 0.0, 4, 1), req(D, 2.5, 4, 1))
    assert by_hand(params, *requests) == [[3.0, 4.0], [5.75], [6.75], [7.75]]
    # With room on D everybody is admitted when its prompt is finished. B: at 2, there at 2.75, seen when D plans at 3,
    # its row from 4 on. C: at 3, there at 3.75, row from 5 on. P has blocks for D from 2.75 on, so at 3: it is
    # finished at 4, there at 4.75, row from 6 on.
    assert by_hand(group_params("vllm", p_blocks=5), *requests) == [[3.0, 4.0], [5.0], [6.0], [7.0]]


def test_sglang_holds_prompts_back_when_d_is_full() -> None:
    # D has 7 pages, 14 tokens, and keeps 4 for every request. A: 4 + 4 <= 14. B: 4 + 4 > 14 - 4 - 4. So P does not
    # have B. A: until 1, there at 1.75, which is its first token; then 2.75 and 3.75. t=3.75: B gets its pages: prompt
    # until 4.75, there at 5.5: its only token. With one page more B is within 16 - 4 - 4: both prompts are one step;
    # B's pages follow A's on the link, until 2.0, there at 2.25; D sees that when it plans at 2.75.
    requests = (req(A, 0.0, 4, 3), req(B, 0.0, 4, 1))
    assert by_hand(group_params("sglang", d_blocks=7), *requests) == [[1.75, 2.75, 3.75], [5.5]]
    assert by_hand(group_params("sglang", d_blocks=8), *requests) == [[1.75, 2.75, 3.75], [2.75]]


def test_vllm_preempts_the_last_request_and_computes_it_again_on_d() -> None:
    # D has 4 blocks. A: P4 O4, B: P2 O4; prompts until 1; A is there at 1.75, B at 2.0. A's step 0 is 1.75 to 2.75, its
    # second token takes the third block beside B's one. Plan at 2.75: A, and B joins. Plan at 3.75: A needs the fourth
    # block: B, last, is preempted; its first token, in flight, comes at 4.75. A: 4.75, 5.75. t=5.75: B, 3 tokens, is
    # computed again until 6.75, which gives its second token.
    params = group_params("vllm", d_blocks=4)
    tokens = by_hand(params, req(A, 0.0, 4, 4), req(B, 0.0, 2, 4))
    assert tokens == [[2.75, 3.75, 4.75, 5.75], [4.75, 6.75, 7.75, 8.75]]
    case = DisaggregatedCase(
        requests=(req(A, 0.0, 4, 4), req(B, 0.0, 2, 4)),
        params=params,
        prefill_times=unit_table(),
        decode_times=unit_table(),
    )
    assert run_group(case).outputs.preemptions.tolist() == [0, 1]


def test_sglang_retracts_who_has_the_fewest_tokens() -> None:
    # Pages of 1 token, 13 of them on D. A: P2 O9, B: P3 O6. A is there at 1.75, B (after A on the link) at 2.5; D sees
    # B at 2.75. Pages left after A 11, B 8; A's rows 7, 6; from then on two a step: planned at 2.75 4, 3.75 2, 4.75 0.
    # Plan at 5.75: B has 3 tokens and one in flight (6.75), A has 5 and one: B is retracted, with 3 + 4 - 1 tokens in
    # its KV cache; 6 pages, of which A takes one. B comes back for 6 + 4 tokens: when A has left, at 9.75.
    params = group_params("sglang", block=1, d_blocks=13)
    tokens = by_hand(params, req(A, 0.0, 2, 9), req(B, 0.0, 3, 6))
    assert tokens[A] == [1.75 + i for i in range(9)]
    assert tokens[B] == [2.75, 4.75, 5.75, 6.75, 10.75, 11.75]


def test_of_equals_sglang_retracts_the_last() -> None:
    # Pages of 1 token, 17 on D. C: P1 O9 at 0, there at 1.5. A and B: P2 O9 at 0.5, one step 1 to 2, there at 2.75
    # and 3.25; both are rows from the plan at 3.5 on. Pages taken: 5 by prompts, 1, 1, 1 by C, then 3 a plan at 3.5,
    # 4.5 and 5.5: 17. Plan at 6.5: A and B have the same: B is retracted, with 2 + 4 - 1 tokens; C and A take 2 of 5.
    # B comes back for 5 + 4 tokens: not beside A (at 9.5 9 are free, less 4 for A), but when A leaves at 12.5.
    params = group_params("sglang", block=1, d_blocks=17)
    tokens = by_hand(params, req(C, 0.0, 1, 9), req(A, 0.5, 2, 9), req(B, 0.5, 2, 9))
    assert tokens[0] == [1.5 + i for i in range(9)]
    assert tokens[1] == [3.5, *(5.5 + i for i in range(8))]
    assert tokens[2] == [3.5, 5.5, 6.5, 7.5, *(13.5 + i for i in range(5))]


def test_sglang_waits_for_a_request_that_is_about_to_leave() -> None:
    # As before, but A: P2 O6. Plan at 5.75: A's last token is in flight, B has no page: nobody decodes in this step. At
    # 6.75 A leaves, and B goes on without having been retracted.
    params = group_params("sglang", block=1, d_blocks=13)
    tokens = by_hand(params, req(A, 0.0, 2, 6), req(B, 0.0, 3, 6))
    assert tokens[A] == [1.75 + i for i in range(6)]
    assert tokens[B] == [2.75, 4.75, 5.75, 6.75, 7.75, 8.75]


@pytest.mark.parametrize(("stop", "last_of_b"), [(True, 4.75), (False, 4.25)])
def test_tensorrt_llm_reserves_on_d_and_answers_from_p(stop: bool, last_of_b: float) -> None:
    # D has 5 blocks. A: P4 O2 of at most 4, or of exactly 2 (3 blocks, B would fit: 4 blocks then); B: P2 O2.
    # P: A4 B2 until 1: both first tokens. A: 2 blocks on the link until 1.5, ready at 1.75, second token at 2.75.
    # By a stop token: a wasted row until 3.75. B is admitted at 2.75: ready at 3.25; its row begins at 3.75, or 3.25.
    request = Request(id=A, arrival_s=0.0, input_tokens=4, output_tokens=2, max_tokens=4 if stop else 2)
    params = group_params("tensorrt-llm", d_blocks=5 if stop else 4)
    assert by_hand(params, request, req(B, 0.0, 2, 2)) == [[1.0, 2.75], [1.0, last_of_b]]


def test_requests_take_turns_or_go_where_the_fewest_are() -> None:
    # Two D. A: P2 O9, B: P2 O1, C: P2 O4, finished at 1, 2 and 3 (2 tokens a step). In turn: A and C share the first D,
    # C's row has to wait for A's step. Fewest: C goes to the second, which B has left by then.
    requests = (req(A, 0.0, 2, 9), req(B, 0.0, 2, 1), req(C, 0.0, 2, 4))
    times = {}
    for router in ("round_robin", "least_requests"):
        params = group_params("vllm", y=2, budget=2, seats=2, s_per_block=0.125, latency_s=0.125, router=router)
        times[router] = by_hand(params, *requests)
    # A: there at 1.25. B: there at 2.25, done at 3.25. C, finished at 3: in turn it is D0's, which plans at 3.25, there
    # at 3.5, seen at 4.25, row from 5.25. Fewest: B has not left at 3, both have one: D0, it is its turn.
    assert times["round_robin"] == times["least_requests"]
    assert times["round_robin"][C][0] == 6.25
    late = (*requests[:2], req(C, 2.5, 2, 4))  # finished at 3.5
    for router, first in (("round_robin", 7.25), ("least_requests", 4.75)):
        params = group_params("vllm", y=2, budget=2, seats=2, s_per_block=0.125, latency_s=0.125, router=router)
        assert by_hand(params, *late)[C][0] == first


def test_a_request_larger_than_an_empty_pool_is_refused() -> None:
    case = DisaggregatedCase(
        requests=(req(A, 0.0, 20, 4),),
        params=group_params("sglang", d_blocks=12),
        prefill_times=unit_table(),
        decode_times=unit_table(),
    )
    with pytest.raises(Exception, match="a request needs 13 KV blocks of 2 tokens on a decode instance, which has 12"):
        run_group(case)
    assert np.isfinite(workload_of(case).arrival_s).all()
