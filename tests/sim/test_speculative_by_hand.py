"""Speculative decoding worked out by hand, in the kernel and in the plain scheduler. Every step takes one second."""

from __future__ import annotations

import pytest

from oracle.plain_engine import Request
from oracle.strategies import Case, params, req, unit_table
from oracle.vllm_plain import Params
from servewise.kernel import layout
from servewise.sim import Outcome
from sim.speculative_agree import assert_agrees, speculation_of


def run(requests: tuple[Request, ...], settings: Params, method: str, *rates: float) -> Outcome:
    """The kernel's outcome, with which the plain scheduler agrees, in windows and step by step."""
    case = Case(requests=requests, params=settings, times=unit_table())
    speculation = speculation_of(method, rates)
    assert_agrees(case, speculation, fast_forward=False)
    return assert_agrees(case, speculation)


def tokens(outcome: Outcome) -> list[tuple[float, float]]:
    """First and last token of every request [s]."""
    return [(float(a), float(b)) for a, b in zip(outcome.outputs.first, outcome.outputs.last, strict=True)]


def steps(outcome: Outcome) -> int:
    """Steps that ran."""
    return int(outcome.counters[0, layout.NUM_STEPS])


def test_two_tokens_a_step() -> None:
    """Two proposals, of which the first is always accepted. A: 5 tokens from 0; B: 4 from 0.5; C: 2 from 2.

    ::

        step  A          B          C
        0..1  prompt A1
        1..2  A2 A3      prompt B1
        2..3  A4 A5 end  B2 B3      prompt C1
        3..4             B4 end     C2 end     (a second token of each is dropped)
    """
    three = (req(0, 0.0, 4, 5), req(1, 0.5, 4, 4), req(2, 2.0, 3, 2))
    assert tokens(run(three, params(lag=False, budget=12), "ngram", 1.0, 0.0)) == [(1, 3), (2, 4), (3, 4)]


def test_half_a_token_a_step() -> None:
    """One proposal, accepted every other time: G(s) = s + floor(s / 2) is 1, 3, 4, 6, so steps yield 1, 2, 1, 2 tokens.

    ::

        step  yields  A          B          C
        0..1  1       prompt A1
        1..2  2       A2 A3
        2..3  1       A4         prompt B1  prompt C1
        3..4  2       A5 end     B2 end     C2 C3
        4..5  1                             C4 end
    """
    three = (req(0, 0.0, 4, 5), req(1, 1.5, 4, 2), req(2, 1.5, 4, 4))
    assert tokens(run(three, params(lag=False, budget=16), "mtp", 0.5)) == [(1, 4), (3, 4), (3, 5)]


def test_wasted_rows_of_requests_that_end_by_length() -> None:
    """Asynchronous, all of two proposals accepted. A and B end in step 1..2, A with its 3rd token, B with its 2nd.

    Before that step A had 2 tokens to go: whether the step is its last depends on what is accepted. So the step after
    it, planned at 1, has a row of A. B had one to go: its end was sure. C's last token comes with its prompt.
    """
    settings = params(lag=True, budget=16)
    a, b, c = req(0, 0.0, 2, 3), req(1, 0.0, 2, 2), req(2, 0.0, 2, 1)
    outcome = run((a, b, c), settings, "ngram", 1.0, 1.0)
    assert (tokens(outcome), steps(outcome)) == ([(1, 2), (1, 2), (1, 1)], 3)
    outcome = run((b, c), settings, "ngram", 1.0, 1.0)
    assert (tokens(outcome), steps(outcome)) == ([(1, 2), (1, 1)], 2)


@pytest.mark.parametrize(("output_tokens", "num_steps", "peak"), [(6, 4, 8), (7, 5, 10)])
def test_blocks_with_asynchronous_scheduling(output_tokens: int, num_steps: int, peak: int) -> None:
    """One proposal, always accepted; blocks of one token; a prompt of 2.

    ::

        plan  at  processed             in flight    needs
        1     0                                      the prompt: 2
        2     0   P = 2                 prompt (1)   2 + 1 + 1 = 4
        3     1   1 token, 3 known      2            3 + 2 + 1 = 6
        4     2   3 tokens, 5 known     2            5 + 2 + 1 = 8
        5     3   5 tokens, 7 known     2            7 + 2 + 1 = 10 if it may need another step

    Step 4 ends at 4 with token 6, or 7. After 5 of 6 tokens the end was sure, after 5 of 7 it was not.
    """
    outcome = run((req(0, 0.0, 2, output_tokens),), params(lag=True, block=1, blocks=20), "ngram", 1.0)
    assert (tokens(outcome), steps(outcome), outcome.peak_kv_blocks) == ([(1, 4)], num_steps, peak)


THREE = (req(0, 0.0, 4, 6), req(1, 0.0, 4, 6), req(2, 0.0, 2, 1))


def test_preemption() -> None:
    """8 blocks of 2 tokens, two proposals, the first accepted, without slots of a drafter's own.

    ::

        plan at  free before  A                 B                        C
        0        8            4 tokens: 2       4: 2                     2: 1, ends at 1
        1        4            5 + 2 known: +2   5 + 2: +2                A3, B3 at 2
        2        0            7 + 2: +1 short   preempted, frees 4       A5 at 3
        3        3            9 + 2: +1         4 + 3 known: 4 > 2 free  A6 at 4, end
        4        8                              prompt of 7: 4           B4 at 5
        5        4                              8 + 2: +1                B6 at 6
    """
    outcome = run(THREE, params(lag=False, blocks=8, budget=12), "ngram", 1.0, 0.0)
    assert tokens(outcome) == [(1, 4), (1, 6), (1, 1)]
    assert (outcome.outputs.preemptions.tolist(), outcome.peak_kv_blocks) == ([0, 1, 0], 8)


def test_preemption_with_slots_of_the_drafter() -> None:
    """The same with two more slots for each.

    ::

        plan at  free before  A                     B                            C
        0        8            4 + 2: 3              3                            2 + 2: 2, ends at 1
        1        2            5 + 2 + 2: +2         +2 short: preempts itself    A3 at 2
        2        3            7 + 4: +1             5 known, 5 + 2: 4 > 2 free   A5 at 3
        3        2            9 + 4: +1             4 > 1 free                   A6 at 4, end
        4        8                                  4                            B2 at 5
        5        4                                  6 + 4: +1, then 8 + 4: +1    B4 at 6, B6 at 7
    """
    outcome = run(THREE, params(lag=False, blocks=8, budget=12), "eagle", 1.0, 0.0)
    assert tokens(outcome) == [(1, 4), (1, 7), (1, 1)]
    assert (outcome.outputs.preemptions.tolist(), outcome.peak_kv_blocks) == ([0, 1, 0], 8)


def test_a_draft_model_takes_budget() -> None:
    """Two seats and 6 tokens a step. A draft model takes one a request: A gets 5 of its 6, and the last with B's 3 (of
    6 - 2 - 1). Without, A's prompt is done after a step, and C, who has a seat from then on, after the next.
    """
    three = (req(0, 0.0, 6, 1), req(1, 0.0, 3, 1), req(2, 0.0, 3, 1))
    settings = params(lag=False, budget=6, seats=2)
    assert tokens(run(three, settings, "draft_model", 0.5)) == [(2, 2), (2, 2), (3, 3)]
    assert tokens(run(three, settings, "ngram", 0.5)) == [(1, 1), (2, 2), (2, 2)]
