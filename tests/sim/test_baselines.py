"""The textbook baselines: the compiled drivers against the plain engine, and what ``sim`` promises for them."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.baseline_cases import BaselineCase, baseline_cases, seeded_baseline_case, table_size
from oracle.baselines_plain import Engine, Live, Params
from oracle.strategies import req, unit_table
from servewise import metrics
from servewise.errors import InputError
from servewise.kernel import layout
from servewise.sim import Outcome, simulate, simulate_closed_loop, to_log
from servewise.types import Promise, RequestStatus, Router
from sim.baselines_agree import (
    assert_closed_loop_agrees,
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
ENGINES: tuple[Literal["static", "orca", "sarathi"], ...] = ("static", "orca", "sarathi")

A, B, C = range(3)

# ------------------------------------------------------------------ against the plain engine


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "single steps"])
def test_one_replica(fast_forward: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(150):
        case = seeded_baseline_case(seed)
        kernel = assert_open_agrees(case, fast_forward=fast_forward)
        engine = case.params.engine
        for name in ("slots_bound", "memory_bound", "budget_bound"):
            seen[f"{engine} {name}"] += getattr(kernel, name)
        seen[f"{engine} preemptions"] += kernel.num_preemptions
        seen[f"{engine} windows"] += bool(
            (kernel.counters[:, layout.NUM_WINDOWS] < kernel.counters[:, layout.NUM_STEPS]).all()
        )
        seen["waits for a batch"] += case.params.max_wait_s > 0
    least = {f"{engine} {what}": 8 for engine in ENGINES for what in ("slots_bound", "memory_bound")}
    least |= {"sarathi budget_bound": 20, "sarathi preemptions": 300, "waits for a batch": 8}
    if fast_forward:
        least |= {f"{engine} windows": 15 for engine in ENGINES}
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}
    assert [seen[f"{engine} preemptions"] for engine in ("static", "orca")] == [0, 0]


@some
@given(case=baseline_cases(), fast_forward=st.booleans())
def test_one_replica_on_any_case(case: BaselineCase, fast_forward: bool) -> None:
    assert_open_agrees(case, fast_forward=fast_forward)


@pytest.mark.parametrize("router", ROUTERS)
def test_fleets(router: Router) -> None:
    for seed in range(150):
        assert_open_agrees(seeded_baseline_case(seed), num_replicas=1 + seed % 3, router=router)


@some
@given(case=baseline_cases(), num_replicas=st.integers(1, 4), router=st.sampled_from(ROUTERS), windows=st.booleans())
def test_fleets_on_any_case(case: BaselineCase, num_replicas: int, router: Router, windows: bool) -> None:
    assert_open_agrees(case, num_replicas=num_replicas, router=router, fast_forward=windows)


@some
@given(
    case=baseline_cases(),
    concurrency=st.integers(1, 9),
    think_s=st.sampled_from([0.0, 0.013, 2.0]),
    windows=st.booleans(),
)
def test_closed_loops_on_any_case(case: BaselineCase, concurrency: int, think_s: float, windows: bool) -> None:
    assert_closed_loop_agrees(case, concurrency=concurrency, think_s=think_s, fast_forward=windows)


class TokenClock(Engine):
    """The plain engine, writing down when each token is delivered."""

    def __init__(self, case: BaselineCase) -> None:
        super().__init__(case.params, case.times)
        self.token_s: dict[int, list[float]] = {request.id: [] for request in case.requests}
        for request in case.requests:
            self.submit(request)
        self.run_until(np.inf)

    def deliver(self, live: Live) -> None:
        self.token_s[live.request.id].append(self.step_end_s)


@some
@given(case=baseline_cases(), fast_forward=st.booleans())
def test_gaps_between_tokens(case: BaselineCase, fast_forward: bool) -> None:
    expected = np.sort(np.concatenate([np.diff(times) for times in TokenClock(case).token_s.values()]))
    outcome = run_open(case, record_itl=True, fast_forward=fast_forward)
    itl = to_log(workload_of(case), outcome).itl
    assert itl is not None
    assert len(expected) == sum(r.output_tokens - 1 for r in case.requests)
    np.testing.assert_allclose(np.sort(expanded(itl)), expected, rtol=1e-9, atol=1e-12)


@some
@given(case=baseline_cases(), router=st.sampled_from(ROUTERS))
def test_samples_count_the_requests_in_the_engine(case: BaselineCase, router: Router) -> None:
    times = dataclasses.replace(case.times, request_fixed_s=0.0, request_s_per_input_token=0.0)
    outcome = run_open(dataclasses.replace(case, times=times), router=router, num_samples=50)
    samples = outcome.recorder.samples[0, : outcome.recorder.counts[0, 1]]
    assert len(samples) > 0
    arrival, last = outcome.packed.requests.arrival, outcome.outputs.last
    slot = deployment_of(case).params.blocks_of_slot  # type: ignore[union-attr]
    for time_s, running, waiting, used in samples:
        assert running + waiting == (arrival <= time_s).sum() - (last <= time_s).sum()
        assert 0 <= used <= case.params.num_kv_blocks
        assert (used > 0) == (running > 0)
        if case.params.engine == "orca":
            assert used == running * slot
        if case.params.engine == "static":
            assert used % slot == 0
            assert used >= running * slot


@some
@given(case=baseline_cases(), num_replicas=st.integers(1, 3), share=st.floats(0.0, 1.0))
def test_a_run_stops_exactly_when_too_many_are_bad(case: BaselineCase, num_replicas: int, share: float) -> None:
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


def served(engine: Literal["static", "orca", "sarathi"]) -> BaselineCase:
    """A benchmark's run: 400 requests of some hundred tokens, in a pool with 20 slots of 1,024 tokens."""
    rng = np.random.default_rng(7)
    lengths = zip(rng.integers(100, 500, 400), rng.integers(50, 500, 400), strict=True)
    requests = tuple(req(i, 0.05 * i, int(p), int(o)) for i, (p, o) in enumerate(lengths))
    params = Params(
        engine=engine,
        max_batch_size=64,
        max_seq_len=1024,
        num_kv_blocks=20 * 64,
        block_size_tokens=16,
        chunk_size=512 if engine == "sarathi" else 0,
        max_wait_s=0.5 if engine == "static" else 0.0,
    )
    rows, tokens = table_size(params)
    times = dataclasses.replace(
        unit_table(rows, tokens),
        context_knots=np.array([0.0, 256.0, 600.0]),
        attention_base_s=np.outer(np.arange(rows + 1) > 0, [0.0, 1e-4, 2e-4]),
        attention_slope_s=np.outer(np.arange(rows + 1) > 0, [1e-8, 1.1e-8, 1.2e-8]),
        decode_fixed_s=0.01 + 1e-5 * np.arange(rows + 1),
        mixed_tokens_s=0.01 + 1e-5 * np.arange(tokens + 1),
    )
    return BaselineCase(requests=requests, params=params, times=times)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("closed", [True, False], ids=["closed loop", "open loop"])
def test_windows_change_nothing(engine: Literal["static", "orca", "sarathi"], closed: bool) -> None:
    case = served(engine)

    def run(fast_forward: bool) -> Outcome:
        arguments = workload_of(case), deployment_of(case), model_of(case), memory_of(case)
        if closed:
            return simulate_closed_loop(*arguments, concurrency=32, fast_forward=fast_forward)
        return simulate(*arguments, fast_forward=fast_forward)

    fast, slow = run(True), run(False)
    np.testing.assert_allclose(fast.outputs.first, slow.outputs.first, rtol=1e-9)
    np.testing.assert_allclose(fast.outputs.last, slow.outputs.last, rtol=1e-9)
    np.testing.assert_allclose(fast.packed.requests.arrival, slow.packed.requests.arrival, rtol=1e-9)
    same = np.ones(layout.NUM_INTS, bool)
    same[layout.NUM_WINDOWS] = False
    np.testing.assert_array_equal(fast.counters[:, same], slow.counters[:, same])
    np.testing.assert_allclose(fast.times, slow.times, rtol=1e-9)
    assert fast.counters[0, layout.NUM_WINDOWS] < 0.5 * fast.counters[0, layout.NUM_STEPS]
    assert slow.counters[0, layout.NUM_WINDOWS] == slow.counters[0, layout.NUM_STEPS]


def fingerprint() -> str:
    """Digest of every output bit of some runs."""
    digest = hashlib.sha256()
    for seed in range(8):
        case = seeded_baseline_case(seed, 30)
        closed = simulate_closed_loop(
            workload_of(case), deployment_of(case), model_of(case), memory_of(case), concurrency=5
        )
        for outcome in (run_open(case, num_replicas=2, router="least_requests", record_itl=True), closed):
            for array in (*outcome.outputs, outcome.counters, outcome.times, outcome.packed.requests.arrival):
                digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def test_compiled_code_computes_what_the_source_says() -> None:
    assert {seeded_baseline_case(seed, 30).params.engine for seed in range(8)} == set(ENGINES)
    ended = subprocess.run(
        [sys.executable, "-c", "from sim.test_baselines import fingerprint; print(fingerprint())"],
        env={
            **os.environ,
            "NUMBA_DISABLE_JIT": "1",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == fingerprint()


# ------------------------------------------------------------------ order, memory, refusals


def test_strategies_that_waste_less_are_no_slower() -> None:
    ends = {engine: float(run_open(served(engine)).outputs.last.max()) for engine in ENGINES}
    assert ends["static"] > 1.3 * ends["orca"]
    assert ends["orca"] > 1.2 * ends["sarathi"]


def test_a_prompt_without_room_for_a_token_is_rejected_and_outputs_are_cut() -> None:
    params = Params(engine="orca", max_batch_size=2, max_seq_len=8, num_kv_blocks=4, block_size_tokens=4)
    requests = (req(A, 0.0, 8, 1), req(B, 0.0, 5, 9), req(C, 1.0, 7, 4))
    case = BaselineCase(requests=requests, params=params, times=unit_table(*table_size(params)))
    log = to_log(workload_of(case), run_open(case))
    assert log.status.tolist() == [RequestStatus.REJECTED, RequestStatus.OK, RequestStatus.OK]
    assert log.output_tokens[1:].tolist() == [3, 1]


@pytest.mark.parametrize(
    ("engine", "changes", "message"),
    [
        ("sarathi", {"chunk_size": 3}, "chunk_size 3 is below max_batch_size 4"),
        ("sarathi", {"chunk_size": 99}, "the engine can run 4 and 99"),
        ("orca", {"max_seq_len": 17}, "max_seq_len 17 exceeds the KV capacity of 16 tokens"),
        ("static", {"max_seq_len": 17}, "max_seq_len 17 exceeds the KV capacity of 16 tokens"),
        ("orca", {"block_size_tokens": 3}, "block_size_tokens must be a power of two, got 3"),
        ("static", {"max_batch_size": 40}, "the engine can run 40 and 16"),
    ],
)
def test_settings_that_cannot_be_simulated(
    engine: Literal["static", "orca", "sarathi"], changes: dict[str, int], message: str
) -> None:
    params = Params(
        engine=engine,
        max_batch_size=4,
        max_seq_len=16,
        num_kv_blocks=4,
        block_size_tokens=4,
        chunk_size=8 if engine == "sarathi" else 0,
    )
    case = BaselineCase(requests=(req(A, 0.0, 4, 1),), params=params, times=unit_table(4, 64))
    deployment = deployment_of(case)
    knobs = dataclasses.replace(deployment.params, **changes)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        simulate(workload_of(case), dataclasses.replace(deployment, params=knobs), model_of(case), memory_of(case))
