"""One seat makes the engine a single-server queue, whose mean wait is known.

With ``max_num_seqs`` 1 and without lag a request of ``k`` output tokens takes one prefill step and ``k - 1``
decode steps and then leaves. With steps of 1 ms and one token each this is the M/D/1 queue, with geometric numbers
of tokens the discrete twin of M/M/1.

Sources
-------
Pollaczek-Khinchine: the mean wait in M/G/1 is ``rate * E[S^2] / (2 (1 - rho))``. Standard error of a mean over
correlated waits: the asymptotic variance for M/M/1 with mean service 1 is ``rho (2 + 5 rho - 4 rho^2 + rho^3) /
(1 - rho)^4`` (Daley 1968; Whitt, "Planning queueing simulations", Management Science 35, 1989). Deterministic
services vary less, so the same tolerance holds for M/D/1.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from oracle.strategies import Case, params, unit_table
from servewise.sim import Outcome, simulate
from servewise.types import Workload
from sim.agree import ASSUMED, deployment_of, memory_of, model_of

NUM_REQUESTS = 200_000
STEP_S = 1e-3


def engine(seats: int = 1, step_s: float = STEP_S) -> Case:
    """An engine without lag whose steps all take the same time; requests are given apart."""
    table = unit_table(max_rows=seats, max_tokens=1024)
    times = dataclasses.replace(
        table, decode_fixed_s=table.decode_fixed_s * step_s, mixed_tokens_s=table.mixed_tokens_s * step_s
    )
    settings = params(blocks=1 << 16, block=16, budget=1024, seats=seats, lag=False)
    return Case(requests=(), params=settings, times=times)


def workload_of(arrival_s: np.ndarray, output_tokens: np.ndarray) -> Workload:
    return Workload(
        name="queue",
        arrival_s=arrival_s,
        input_tokens=np.ones(len(arrival_s), np.int64),
        output_tokens=output_tokens,
        max_tokens=output_tokens,
        max_tokens_kind="declared",
        prefix=None,
        session=None,
        provenance=ASSUMED,
    )


def run(case: Case, workload: Workload, num_replicas: int = 1) -> Outcome:
    return simulate(workload, deployment_of(case, num_replicas), model_of(case), memory_of(case))


def waits_s(workload: Workload, outcome: Outcome, step_s: float = STEP_S) -> np.ndarray:
    """Time from arrival to the start of the first step [s]."""
    return outcome.outputs.first - step_s - workload.arrival_s


def poisson(load: float, output_tokens: np.ndarray, seed: int) -> Workload:
    """Poisson arrivals that keep one seat busy for a share ``load`` of the time."""
    rng = np.random.default_rng(seed)
    mean_s = output_tokens.mean() * STEP_S
    return workload_of(np.cumsum(rng.exponential(mean_s / load, len(output_tokens))), output_tokens)


def geometric_tokens(mean_tokens: float, seed: int, count: int = NUM_REQUESTS) -> np.ndarray:
    return np.random.default_rng(seed).geometric(1 / mean_tokens, count)


def standard_error(load: float) -> float:
    """Of the mean of so many consecutive waits in M/M/1, in units of the mean service."""
    variance = load * (2 + 5 * load - 4 * load**2 + load**3) / (1 - load) ** 4
    return float(np.sqrt(variance / NUM_REQUESTS))


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_m_d_1(load: float) -> None:
    workload = poisson(load, np.ones(NUM_REQUESTS, np.int64), seed=1)
    mean = waits_s(workload, run(engine(), workload)).mean() / STEP_S
    assert mean == pytest.approx(load / (2 * (1 - load)), abs=4 * standard_error(load))


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_m_m_1(load: float) -> None:
    mean_tokens = 50.0
    workload = poisson(load, geometric_tokens(mean_tokens, seed=2), seed=3)
    mean = waits_s(workload, run(engine(), workload)).mean() / (mean_tokens * STEP_S)
    # a geometric number of steps with mean m has the second moment (2 - 1/m) m^2; exponential is the limit
    expected = load * (2 - 1 / mean_tokens) / (2 * (1 - load))
    assert expected == pytest.approx(load / (1 - load), rel=0.02)
    assert mean == pytest.approx(expected, abs=4 * standard_error(load))


def test_the_tolerance_tells_the_two_queues_apart() -> None:
    """At the loads above the mean waits of M/D/1 and M/M/1 differ by more than the tolerance of both."""
    for load in (0.3, 0.6, 0.8):
        assert load / (1 - load) - load / (2 * (1 - load)) > 8 * standard_error(load)


@pytest.mark.parametrize("load", [0.5, 0.9, 1.2])
def test_every_wait_follows_lindleys_recursion(load: float) -> None:
    """W' = max(0, W + S - A), request by request, and not only on average."""
    workload = poisson(load, geometric_tokens(20.0, seed=4, count=5000), seed=5)
    service_s = workload.output_tokens * STEP_S
    expected = np.zeros(5000)
    for i, gap_s in enumerate(np.diff(workload.arrival_s)):
        expected[i + 1] = max(0.0, expected[i] + service_s[i] - gap_s)
    outcome = run(engine(), workload)
    np.testing.assert_allclose(waits_s(workload, outcome), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(outcome.outputs.last, workload.arrival_s + expected + service_s, rtol=1e-9)


def test_enough_seats_leave_only_the_wait_for_the_next_step() -> None:
    """M/D/infinity in slots: a request waits for the step boundary alone, half a step on average when busy."""
    tokens = np.full(20_000, 40)
    rng = np.random.default_rng(6)
    workload = workload_of(np.cumsum(rng.exponential(STEP_S, len(tokens))), tokens)  # 40 in service on average
    outcome = run(engine(seats=200), workload)
    waits = waits_s(workload, outcome)
    assert waits.max() < STEP_S * (1 + 1e-9)
    assert waits.min() >= -1e-9
    # uniform within a step: standard deviation step / sqrt(12)
    assert waits.mean() == pytest.approx(STEP_S / 2, abs=4 * STEP_S / np.sqrt(12 * len(tokens)))
    np.testing.assert_allclose(outcome.outputs.last - outcome.outputs.first, 39 * STEP_S, rtol=1e-7)
    # Little's law: requests in the system = rate x time there
    span_s = outcome.outputs.last.max() - workload.arrival_s[0]
    rows = float(outcome.times[0, 4]) / span_s  # decode rows x time
    rate_rps = len(tokens) / span_s
    assert rows == pytest.approx(rate_rps * 39 * STEP_S, rel=1e-9)
