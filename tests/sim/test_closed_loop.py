"""The client of a closed loop: the kernel against the plain engines, and what the client promises."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.strategies import PROFILES, Case, cases, params, req, seeded_case, unit_table
from servewise.errors import InputError
from servewise.kernel import layout
from servewise.sim import Outcome, simulate, simulate_closed_loop, to_log
from servewise.types import RequestStatus
from sim.agree import assert_closed_loop_agrees, deployment_of, memory_of, model_of, normalized, workload_of

some = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])

THINKS_S = st.sampled_from([0.0, 0.0, 0.001, 0.07, 3.0])


def far_client(case: Case, s_per_input_token: float) -> Case:
    """The case with a time outside the engine that differs between requests by more than a step."""
    return dataclasses.replace(case, times=dataclasses.replace(case.times, request_s_per_input_token=s_per_input_token))


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "single steps"])
def test_vllm(fast_forward: bool) -> None:
    seen: Counter[str] = Counter()
    for profile in PROFILES:
        for seed in range(16):
            concurrency, think_s = (1, 2, 5, 12)[seed % 4], (0.0, 0.02, 0.0)[seed % 3]
            case = far_client(seeded_case(seed, profile, 40), (0.0, 2e-3)[seed // 4 % 2])
            kernel = assert_closed_loop_agrees(
                case, concurrency=concurrency, think_s=think_s, fast_forward=fast_forward
            )
            seen["preempted"] += kernel.num_preemptions
            seen["full"] += kernel.slots_bound
            seen["overtaken"] += overtaken(kernel)
    least = {"preempted": 100, "full": 10, "overtaken": 100}
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}


def overtaken(kernel: Outcome) -> int:
    """Answers that left the engine before others and reached the client after them."""
    left = kernel.outputs.last - kernel.packed.requests.extra
    order = np.lexsort((kernel.outputs.last, left))
    return int((np.diff(kernel.outputs.last[order]) < 0).sum())


@some
@given(
    case=cases(),
    concurrency=st.integers(1, 14),
    think_s=THINKS_S,
    away_s=st.sampled_from([1e-5, 3e-3]),
    fast_forward=st.booleans(),
)
def test_vllm_on_any_case(case: Case, concurrency: int, think_s: float, away_s: float, fast_forward: bool) -> None:
    case = far_client(case, away_s)
    assert_closed_loop_agrees(case, concurrency=concurrency, think_s=think_s, fast_forward=fast_forward)


@some
@given(case=cases(), concurrency=st.integers(1, 14), think_s=st.sampled_from([0.0, 1.0, 2.0]), windows=st.booleans())
def test_vllm_with_ties(case: Case, concurrency: int, think_s: float, windows: bool) -> None:
    times = unit_table(case.params.max_num_seqs, case.params.max_num_batched_tokens)
    tied = dataclasses.replace(case, times=times)
    assert_closed_loop_agrees(tied, concurrency=concurrency, think_s=think_s, fast_forward=windows)


# ------------------------------------------------------------------ the client


def run_client(case: Case, **asked: object) -> Outcome:
    case = normalized(case)
    return simulate_closed_loop(
        workload_of(case),
        deployment_of(case),
        model_of(case),
        memory_of(case),
        **asked,  # type: ignore[arg-type]
    )


@some
@given(case=cases(), concurrency=st.integers(1, 6), think_s=THINKS_S)
def test_never_more_requests_in_flight_than_the_client_has(case: Case, concurrency: int, think_s: float) -> None:
    kernel = run_client(case, concurrency=concurrency, think_s=think_s)
    arrival, seen = kernel.packed.requests.arrival, np.sort(kernel.outputs.last)
    assert (np.diff(arrival) >= 0).all()
    assert (arrival[:concurrency] == 0.0).all()
    # request number concurrency + i was sent when i + 1 answers had been seen, and at once
    np.testing.assert_array_equal(arrival[concurrency:], seen[: len(seen[concurrency:])] + think_s)


def test_the_time_outside_the_engine_is_counted_once_between_two_requests() -> None:
    """One slot, steps of one second: each request takes its steps and its extra, and nothing else."""
    times = dataclasses.replace(unit_table(), request_fixed_s=0.25, request_s_per_input_token=0.5)
    requests = tuple(req(i, 0.0, tokens, output) for i, (tokens, output) in enumerate([(1, 1), (4, 3), (2, 2)]))
    kernel = run_client(Case(requests=requests, params=params(), times=times), concurrency=1, think_s=10.0)
    # extra: 0.75, 2.25, 1.25; seen at 1.75, 11.75 + 3 + 2.25 = 17, 27 + 2 + 1.25
    assert kernel.packed.requests.arrival.tolist() == [0.0, 11.75, 27.0]
    assert kernel.outputs.first.tolist() == [1.75, 15.0, 29.25]
    assert kernel.outputs.last.tolist() == [1.75, 17.0, 30.25]


def test_the_slot_whose_answer_arrives_first_sends_first() -> None:
    """B leaves the engine after A and reaches the client before it: the third request follows B."""
    times = dataclasses.replace(unit_table(), request_s_per_input_token=1.0)
    a, b = req(0, 0.0, 6, 1), req(1, 0.0, 1, 2)
    kernel = run_client(
        Case(requests=(a, b, req(2, 0.0, 1, 1), req(3, 0.0, 1, 1)), params=params(), times=times), concurrency=2
    )
    # A leaves at 1 and is seen at 7, B leaves at 2 and is seen at 3
    assert kernel.outputs.last[:2].tolist() == [7.0, 3.0]
    # the third is sent at 3 and seen at 5, before A: so the fourth follows it
    assert kernel.packed.requests.arrival.tolist() == [0.0, 0.0, 3.0, 5.0]


def test_more_slots_than_requests_is_a_burst() -> None:
    case = normalized(seeded_case(5, "mixed", 30))
    burst = dataclasses.replace(case, requests=tuple(dataclasses.replace(r, arrival_s=0.0) for r in case.requests))
    opened = simulate(workload_of(burst), deployment_of(case), model_of(case), memory_of(case))
    closed = run_client(case, concurrency=1000)
    assert opened.outputs.last.tobytes() == closed.outputs.last.tobytes()


def test_the_log_says_when_the_client_sent() -> None:
    case = Case(
        requests=tuple(req(i, 5.0 * i, t, 1) for i, t in enumerate([20, 1, 30, 1])), params=params(), times=unit_table()
    )
    deployment = deployment_of(case)
    shorter = dataclasses.replace(deployment.params, max_model_len=15)
    deployment = dataclasses.replace(deployment, params=shorter)
    workload = workload_of(case)
    arrival_s = workload.arrival_s.copy()
    kernel = simulate_closed_loop(workload, deployment, model_of(case), memory_of(case), concurrency=1)
    log = to_log(workload, kernel)
    rejected, ok = RequestStatus.REJECTED, RequestStatus.OK
    assert log.status.tolist() == [rejected, ok, rejected, ok]
    assert log.sent_s.tolist() == log.intended_s.tolist() == [0.0, 0.0, 1.0, 1.0]
    assert workload.arrival_s.tolist() == arrival_s.tolist()


def test_a_table_of_as_many_rows_as_can_run_is_enough() -> None:
    """By length three requests never have four rows; after a stop token two have one more each."""
    whole = seeded_case(1, "mixed", 20)
    by_length = dataclasses.replace(
        whole,
        requests=tuple(req(i, 0.0, 2 + i % 3, 4) for i in range(20)),
        params=dataclasses.replace(whole.params, max_num_seqs=8, max_num_batched_tokens=16, num_kv_blocks=200),
        times=unit_table(3, 16),
    )
    assert run_client(by_length, concurrency=3).counters[0, layout.NUM_FINISHED] == 20
    stopped = dataclasses.replace(by_length, requests=tuple(req(i, 0.0, 2, 4, stop=True) for i in range(20)))
    with pytest.raises(InputError, match="covers 3 rows and 16 tokens, the engine can run 6"):
        run_client(stopped, concurrency=3)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"concurrency": 0}, "concurrency must be at least 1, got 0"),
        ({"concurrency": 2, "think_s": -1.0}, "think_s must be 0 or more and finite, got -1.0"),
        ({"concurrency": 2, "think_s": float("nan")}, "think_s must be 0 or more and finite, got nan"),
    ],
)
def test_what_a_client_cannot_be(asked: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_client(seeded_case(1, "mixed", 5), **asked)


def test_a_closed_loop_has_one_replica() -> None:
    case = normalized(seeded_case(1, "mixed", 5))
    with pytest.raises(InputError, match="one replica, got 2"):
        simulate_closed_loop(workload_of(case), deployment_of(case, 2), model_of(case), memory_of(case), concurrency=4)
