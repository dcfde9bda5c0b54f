"""A schedule of three requests worked out by hand, from the workload to the log."""

from __future__ import annotations

import numpy as np
import pytest

from oracle.strategies import Case, params, req, unit_table
from servewise import metrics
from servewise.sim import run
from servewise.types import Promise, RequestLog
from sim.agree import deployment_of, memory_of, model_of, workload_of
from sim.properties import expanded


def log_of(case: Case) -> RequestLog:
    return run(workload_of(case), deployment_of(case), model_of(case), memory_of(case))


@pytest.mark.parametrize("lag", [False, True])
def test_chunks_seats_and_lag(lag: bool) -> None:
    """Two seats, budget 8, steps of 1 s. A: 10 in, 3 out at 0; B: 5 in, 2 out at 0; C: 3 in, 2 out at 1.5.

    Without lag::

        step from  0   1   2   3   4
        A          8   2*  *   *          * = a token comes at the end of the step
        B              5*  *
        C (waits: no seat)     3*  *

    At 3 s B is done and C takes its seat.

    With lag a step is planned when the one before it starts. At 2 s, when the step from 3 s is planned, B's last
    token is in flight: B gets no row and keeps its seat. At 3 s B has left, and the step from 4 s is planned: A
    gets no row, C its prompt::

        step from  0   1   2   3   4   5
        A          8   2*  *   *
        B              5*  *
        C                          3*  *
    """
    case = Case(
        requests=(req(0, 0.0, 10, 3), req(1, 0.0, 5, 2), req(2, 1.5, 3, 2)),
        params=params(block=4, seats=2, lag=lag),
        times=unit_table(),
    )
    log = log_of(case)
    later = float(lag)
    assert log.first_token_s.tolist() == [2.0, 2.0, 4.0 + later]
    assert log.last_token_s.tolist() == [4.0, 3.0, 5.0 + later]
    np.testing.assert_array_equal(metrics.ttft_s(log), [2.0, 2.0, 2.5 + later])
    np.testing.assert_array_equal(metrics.tpot_s(log), [1.0, 1.0, 1.0])
    assert log.itl is not None
    assert expanded(log.itl).tolist() == [1.0] * 4
    assert metrics.count_good(log, Promise(ttft_s=2.0)) == 2
    summary = metrics.summarize(log, Promise(ttft_s=2.0), with_intervals=False)
    assert summary.attainment.value == pytest.approx(2 / 3)


def test_preemption_and_recompute() -> None:
    """Four blocks of two tokens, steps of 1 s, no lag. A: 3 in, 4 out; B: 3 in, 3 out; C: 1 in, 1 out; all at 0.

    ::

        step from  0   1   2   3   4
        A          3*  1*  1*  1*
        B          3*  1*          5*
        C                          1*

    At 0 s A and B take two blocks each, C finds none. At 1 s both hold 3 tokens in 2 blocks, where the fourth has
    its place too: both decode. At 2 s A needs a third block: B, the last of the running list, is preempted with 2
    tokens generated. At 3 s one block is free and B, at the head of the queue, needs 3 for its 5 tokens; C stays
    behind it. At 4 s A is gone: B is recomputed, which gives its third token, and C joins.
    """
    case = Case(
        requests=(req(0, 0.0, 3, 4), req(1, 0.0, 3, 3), req(2, 0.0, 1, 1)),
        params=params(blocks=4, block=2, budget=16, lag=False),
        times=unit_table(),
    )
    log = log_of(case)
    assert log.num_preemptions.tolist() == [0, 1, 0]
    assert log.first_token_s.tolist() == [1.0, 1.0, 5.0]
    assert log.last_token_s.tolist() == [4.0, 5.0, 5.0]
    assert log.itl is not None
    # A: three gaps of 1 s; B: 1 s, then 3 s from its second token (2 s) to its third (5 s)
    assert sorted(expanded(log.itl).tolist()) == [1.0, 1.0, 1.0, 1.0, 3.0]
    assert log.timeline is not None
    assert log.timeline.kv_used_frac.max() == 1.0


def test_a_shared_prefix_is_computed_once() -> None:
    """Blocks of 2, prompts of 5 tokens whose first four are shared, one seat, 1 output token each, no lag.

    A computes 5 tokens; B and C find 4 of theirs and compute 1 each.
    """
    shared = (7, 8)
    case = Case(
        requests=tuple(req(i, 0.0, 5, 1, ids=shared) for i in range(3)),
        params=params(block=2, seats=1, caching=True, lag=False),
        times=unit_table(),
    )
    log = log_of(case)
    assert log.cached_tokens.tolist() == [0, 4, 4]
    assert log.last_token_s.tolist() == [1.0, 2.0, 3.0]
