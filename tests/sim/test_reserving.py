"""TensorRT-LLM and SGLang: the compiled driver against the plain engines, and what ``sim`` promises for them."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.reserving_cases import ReservingCase, reserving_cases, seeded_reserving_case, sglang, tensorrt_llm
from oracle.reserving_plain import Engine, Live, Params
from oracle.strategies import req, unit_table
from servewise import metrics
from servewise.errors import InputError
from servewise.kernel import layout
from servewise.sim import Outcome, simulate, simulate_closed_loop, to_log
from servewise.types import Promise, RequestStatus, Router
from sim.reserving_agree import (
    assert_open_agrees,
    deployment_of,
    memory_of,
    model_of,
    run_open,
    workload_of,
)
from sim.test_recording import expanded

some = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])

ROUTERS: tuple[Router, ...] = ("round_robin", "least_requests")

A, B, C = range(3)

# ------------------------------------------------------------------ against the plain engines


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "single steps"])
def test_one_replica(fast_forward: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(120):
        case = seeded_reserving_case(seed)
        kernel = assert_open_agrees(case, fast_forward=fast_forward)
        engine = case.params.engine
        if engine == "tensorrt-llm":
            seen["chunking" if case.params.enable_chunked_prefill else "no chunking"] += 1
        for name in ("slots_bound", "memory_bound", "budget_bound"):
            seen[f"{engine} {name}"] += getattr(kernel, name)
        seen[f"{engine} windows"] += bool(
            (kernel.counters[:, layout.NUM_WINDOWS] < kernel.counters[:, layout.NUM_STEPS]).all()
        )
        seen["stopped"] += int((kernel.packed.requests.by_length == 0).sum())
        assert (kernel.outputs.cached == (-1 if engine == "sglang" else 0)).all()
    least = {
        **{f"{engine} {what}": 8 for engine in ("tensorrt-llm", "sglang") for what in ("slots_bound", "memory_bound")},
        **{f"{engine} budget_bound": 8 for engine in ("tensorrt-llm", "sglang")},
        "chunking": 10,
        "no chunking": 10,
        "stopped": 500,
    }
    if fast_forward:
        least |= {"tensorrt-llm windows": 20, "sglang windows": 20}
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}


@some
@given(case=reserving_cases(), fast_forward=st.booleans())
def test_one_replica_on_any_case(case: ReservingCase, fast_forward: bool) -> None:
    assert_open_agrees(case, fast_forward=fast_forward)


@some
@given(case=reserving_cases(), num_replicas=st.integers(1, 4), router=st.sampled_from(ROUTERS), windows=st.booleans())
def test_fleets_on_any_case(case: ReservingCase, num_replicas: int, router: Router, windows: bool) -> None:
    assert_open_agrees(case, num_replicas=num_replicas, router=router, fast_forward=windows)


class TokenClock(Engine):
    """The plain engine, writing down when each token is delivered."""

    def __init__(self, case: ReservingCase) -> None:
        super().__init__(case.params, case.times)
        self.token_s: dict[int, list[float]] = {request.id: [] for request in case.requests}
        for request in case.requests:
            self.submit(request)
        self.run_until(np.inf)

    def deliver(self, live: Live) -> None:
        self.token_s[live.request.id].append(self.step_end_s)


@some
@given(case=reserving_cases(), fast_forward=st.booleans())
def test_gaps_between_tokens(case: ReservingCase, fast_forward: bool) -> None:
    expected = np.sort(np.concatenate([np.diff(times) for times in TokenClock(case).token_s.values()]))
    outcome = run_open(case, record_itl=True, fast_forward=fast_forward)
    itl = to_log(workload_of(case), outcome).itl
    assert itl is not None
    assert len(expected) == sum(r.output_tokens - 1 for r in case.requests)
    np.testing.assert_allclose(np.sort(expanded(itl)), expected, rtol=1e-9, atol=1e-12)


@some
@given(case=reserving_cases())
def test_samples_count_the_requests_in_the_engine(case: ReservingCase) -> None:
    times = dataclasses.replace(case.times, request_fixed_s=0.0, request_s_per_input_token=0.0)
    outcome = run_open(dataclasses.replace(case, times=times), num_samples=50)
    samples = outcome.recorder.samples[0, : outcome.recorder.counts[0, 1]]
    assert len(samples) > 0
    arrival, last = outcome.packed.requests.arrival, outcome.outputs.last
    for time_s, running, waiting, used in samples:
        assert running + waiting == (arrival <= time_s).sum() - (last <= time_s).sum()
        assert 0 <= used <= case.params.num_kv_blocks
        assert (used > 0) == (running > 0)


@some
@given(case=reserving_cases(), num_replicas=st.integers(1, 3), share=st.floats(0.0, 1.0))
def test_a_run_stops_exactly_when_too_many_are_bad(case: ReservingCase, num_replicas: int, share: float) -> None:
    log = to_log(workload_of(case), run_open(case))
    ttft_s = np.sort(metrics.ttft_s(log))
    promise = Promise(ttft_s=float(ttft_s[int(share * (len(ttft_s) - 1))]))
    fleet = {"num_replicas": num_replicas, "router": "least_requests", "promise": promise}
    whole = run_open(case, **fleet)  # type: ignore[arg-type]
    num_bad = len(case.requests) - metrics.count_good(to_log(workload_of(case), whole), promise)
    assert whole.num_bad == num_bad
    assert not whole.broken
    for max_bad in {0, num_bad - 1, num_bad} - {-1}:
        stopped = run_open(case, max_bad=max_bad, **fleet)  # type: ignore[arg-type]
        assert stopped.broken == (num_bad > max_bad)


# ------------------------------------------------------------------ size


def served(engine: str) -> ReservingCase:
    """A benchmark's run: 64 in flight of 640 requests, in a pool that holds about 50."""
    rng = np.random.default_rng(7)
    requests = tuple(
        req(i, 0.0, int(p), int(o))
        for i, (p, o) in enumerate(zip(rng.integers(820, 1025, 640), rng.integers(820, 1025, 640), strict=True))
    )
    size = 1 if engine == "sglang" else 32
    params = Params(
        engine="sglang" if engine == "sglang" else "tensorrt-llm",
        max_rows=64,
        max_num_tokens=8192,
        num_kv_blocks=50 * 2048 // size,
        block_size_tokens=size,
        enable_chunked_prefill=engine != "tensorrt-llm, whole prompts",
    )
    times = dataclasses.replace(
        unit_table(64, 8192),
        context_knots=np.array([0.0, 512.0, 1300.0]),
        attention_base_s=np.outer(np.arange(65) > 0, [0.0, 1e-4, 2e-4]),
        attention_slope_s=np.outer(np.arange(65) > 0, [1e-8, 1.1e-8, 1.2e-8]),
        decode_fixed_s=0.01 + 1e-5 * np.arange(65),
        mixed_tokens_s=0.01 + 1e-5 * np.arange(8193),
    )
    return ReservingCase(requests=requests, params=params, times=times)


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "tensorrt-llm, whole prompts"])
@pytest.mark.parametrize("closed", [True, False], ids=["closed loop", "burst"])
def test_windows_change_nothing(engine: str, closed: bool) -> None:
    case = served(engine)

    def run(fast_forward: bool) -> Outcome:
        arguments = workload_of(case), deployment_of(case), model_of(case), memory_of(case)
        if closed:
            return simulate_closed_loop(*arguments, concurrency=64, fast_forward=fast_forward)
        return simulate(*arguments, fast_forward=fast_forward)

    fast, slow = run(True), run(False)
    np.testing.assert_allclose(fast.outputs.first, slow.outputs.first, rtol=1e-9)
    np.testing.assert_allclose(fast.outputs.last, slow.outputs.last, rtol=1e-9)
    np.testing.assert_allclose(fast.packed.requests.arrival, slow.packed.requests.arrival, rtol=1e-9)
    same = np.ones(layout.NUM_INTS, bool)
    same[layout.NUM_WINDOWS] = False
    np.testing.assert_array_equal(fast.counters[:, same], slow.counters[:, same])
    np.testing.assert_allclose(fast.times, slow.times, rtol=1e-9)
    assert fast.memory_bound
    assert fast.counters[0, layout.NUM_WINDOWS] < 0.35 * fast.counters[0, layout.NUM_STEPS]
    assert slow.counters[0, layout.NUM_WINDOWS] == slow.counters[0, layout.NUM_STEPS]


def fingerprint() -> str:
    """Digest of every output bit of some runs."""
    digest = hashlib.sha256()
    for seed in range(8):
        case = seeded_reserving_case(seed, 30)
        closed = simulate_closed_loop(
            workload_of(case), deployment_of(case), model_of(case), memory_of(case), concurrency=5
        )
        for outcome in (run_open(case, num_replicas=2, router="least_requests", record_itl=True), closed):
            for array in (*outcome.outputs, outcome.counters, outcome.times, outcome.packed.requests.arrival):
                digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def test_compiled_code_computes_what_the_source_says() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "from sim.test_reserving import fingerprint; print(fingerprint())"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == fingerprint()


# ------------------------------------------------------------------ refusals


def test_a_prompt_that_fits_no_step_is_rejected() -> None:
    requests = (req(A, 0.0, 9, 1), req(B, 0.0, 8, 1), req(C, 1.0, 20, 4))
    whole = ReservingCase(requests=requests, params=tensorrt_llm(blocks=100, chunking=False), times=unit_table())
    log = to_log(workload_of(whole), run_open(whole))
    assert log.status.tolist() == [RequestStatus.REJECTED, RequestStatus.OK, RequestStatus.REJECTED]
    cut = dataclasses.replace(whole, params=tensorrt_llm(blocks=100, chunking=True))
    assert (to_log(workload_of(cut), run_open(cut)).status == RequestStatus.OK).all()


def test_a_declared_limit_beyond_the_context_is_cut() -> None:
    case = ReservingCase(
        requests=(req(A, 0.0, 4, 3, stop=True),), params=tensorrt_llm(blocks=10, chunking=False), times=unit_table()
    )
    with pytest.raises(InputError, match="set 27 KV blocks of 4 tokens aside, the engine has 10"):
        run_open(case)
    deployment = deployment_of(case)
    shorter = dataclasses.replace(deployment.params, max_seq_len=40)
    deployment = dataclasses.replace(deployment, params=shorter)
    kernel = simulate(workload_of(case), deployment, model_of(case), memory_of(case))
    assert kernel.peak_kv_blocks == 10


def test_output_beyond_sglangs_estimate_has_room() -> None:
    params = dataclasses.replace(sglang(pages=9000), max_num_tokens=64)
    case = ReservingCase(requests=(req(A, 0.0, 10, 5000),), params=params, times=unit_table(4, 64))
    assert run_open(case).peak_kv_blocks == 10 + 5000 + 1
    stopped = dataclasses.replace(case, requests=(dataclasses.replace(case.requests[0], output_tokens=7),))
    assert run_open(stopped).peak_kv_blocks == 10 + 4096 + 1


@pytest.mark.parametrize(
    ("params", "changes", "message"),
    [
        (sglang(), {"chunked_prefill_size": -1}, "chunked_prefill_size must be positive, got -1"),
        (sglang(), {"page_size": 3}, "chunked_prefill_size 8 must be a multiple of page_size 3"),
        (sglang(), {"max_prefill_tokens": 7}, "at most max_prefill_tokens 7"),
        (sglang(), {"max_running_requests": 65}, "the engine can run 65 and 8"),
        (tensorrt_llm(blocks=9, chunking=True), {"max_num_tokens": 3}, "max_num_tokens 3 is below 4"),
        (tensorrt_llm(blocks=9, chunking=False), {"max_batch_size": 9}, "max_num_tokens 8 is below 9"),
        (tensorrt_llm(blocks=9, chunking=True), {"max_num_tokens": 5000}, "the engine can run 4 and 5000"),
    ],
)
def test_settings_that_cannot_be_simulated(params: Params, changes: dict[str, int], message: str) -> None:
    case = ReservingCase(requests=(req(A, 0.0, 4, 1),), params=params, times=unit_table())
    deployment = deployment_of(case)
    knobs = dataclasses.replace(deployment.params, **changes)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        simulate(workload_of(case), dataclasses.replace(deployment, params=knobs), model_of(case), memory_of(case))
