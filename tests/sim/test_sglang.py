"""SGLang: the compiled driver against the plain engine, and what ``sim`` promises for it."""

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

from oracle.sglang_cases import PROFILES, Profile, SglangCase, seeded_sglang_case, sglang_cases, small
from oracle.sglang_plain import Engine, Live
from oracle.strategies import req, unit_table
from servewise import metrics
from servewise.errors import InputError
from servewise.kernel import layout
from servewise.kernel.radix import AVAILABLE, HOLDERS, LENGTH, NEWER, OLDEST
from servewise.kernel.sglang import Sglang, new_sglang
from servewise.sim import Outcome, simulate, simulate_closed_loop, to_log
from servewise.types import Promise, Router
from sim.sglang_agree import (
    assert_closed_loop_agrees,
    assert_open_agrees,
    deployment_of,
    memory_of,
    model_of,
    run_open,
    without_names,
    workload_of,
)
from sim.test_recording import expanded

some = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])

ROUTERS: tuple[Router, ...] = ("round_robin", "least_requests", "prefix_aware")
THINKS_S = st.sampled_from([0.0, 0.0, 0.001, 0.07, 3.0])

A, B, C = range(3)

# ------------------------------------------------------------------ against the plain engine


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "single steps"])
@pytest.mark.parametrize("profile", PROFILES)
def test_one_replica(profile: Profile, fast_forward: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        case = seeded_sglang_case(seed, profile)
        kernel = assert_open_agrees(case, fast_forward=fast_forward)
        seen["retracted"] += kernel.num_preemptions
        seen["hits"] += int((kernel.outputs.cached > 0).sum())
        seen["cut"] += kernel.budget_bound
        seen["full"] += kernel.slots_bound
        seen["scarce"] += kernel.memory_bound
        seen["windows"] += int(kernel.counters[0, layout.NUM_WINDOWS] < kernel.counters[0, layout.NUM_STEPS])
        seen["stopped"] += int((kernel.packed.requests.by_length == 0).sum())
    least = {"retracted": 8, "hits": 100, "cut": 20, "full": 3, "scarce": 20, "stopped": 500}
    if fast_forward:
        least["windows"] = 20
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}


@some
@given(case=sglang_cases(), fast_forward=st.booleans())
def test_one_replica_on_any_case(case: SglangCase, fast_forward: bool) -> None:
    assert_open_agrees(case, fast_forward=fast_forward)


@some
@given(case=sglang_cases(), num_replicas=st.integers(1, 4), router=st.sampled_from(ROUTERS), windows=st.booleans())
def test_fleets_on_any_case(case: SglangCase, num_replicas: int, router: Router, windows: bool) -> None:
    if router == "prefix_aware":  # the plain router knows pages only
        case = dataclasses.replace(case, span=1)
    assert_open_agrees(case, num_replicas=num_replicas, router=router, fast_forward=windows)


@some
@given(case=sglang_cases(), concurrency=st.integers(1, 14), think_s=THINKS_S, fast_forward=st.booleans())
def test_closed_loops_on_any_case(case: SglangCase, concurrency: int, think_s: float, fast_forward: bool) -> None:
    assert_closed_loop_agrees(case, concurrency=concurrency, think_s=think_s, fast_forward=fast_forward)


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_a_long_queue(policy: str) -> None:
    """Beyond 128 waiting requests lpm is fcfs, and fcfs looks up the first 128 only."""
    hits = 0
    for seed in range(6):
        case = seeded_sglang_case(seed, "prefix", 180)
        requests = tuple(dataclasses.replace(r, arrival_s=0.0) for r in case.requests)
        params = dataclasses.replace(case.params, schedule_policy=policy)
        kernel = assert_open_agrees(dataclasses.replace(case, requests=requests, params=params))
        hits += int((kernel.outputs.cached > 0).sum())
    assert hits > 100


def test_without_prefix_data_the_tree_matters_only_after_a_retraction() -> None:
    """With a tree equals the oracle, and equals a run without one unless somebody was retracted."""
    seen: Counter[str] = Counter()
    for profile in PROFILES:
        for seed in range(40):
            case = without_names(seeded_sglang_case(seed, profile))
            if case.params.ignore_eos:
                continue
            on, off = (
                dataclasses.replace(case, params=dataclasses.replace(case.params, disable_radix_cache=disabled))
                for disabled in (False, True)
            )
            unknown = dataclasses.replace(workload_of(on), prefix=None)
            kernel = assert_open_agrees(on, workload=unknown)
            without = run_open(off, workload=unknown)
            same = kernel.outputs.last.tobytes() == without.outputs.last.tobytes()
            if kernel.num_preemptions == 0:
                assert same
                assert (kernel.counters == without.counters).all()
            seen["retracted" if kernel.num_preemptions else "not retracted"] += 1
            seen["changed"] += not same
    assert seen["retracted"] > 20
    assert seen["not retracted"] > 30
    assert seen["changed"] > 3


class TokenClock(Engine):
    """The plain engine, writing down when each token is delivered."""

    def __init__(self, case: SglangCase) -> None:
        super().__init__(case.params, case.times)
        self.token_s: dict[int, list[float]] = {request.id: [] for request in case.requests}
        for request in case.requests:
            self.submit(request)
        self.run_until(np.inf)

    def deliver(self, live: Live) -> None:
        self.token_s[live.request.id].append(self.step_end_s)


def assert_gaps_are_those_of_the_tokens(case: SglangCase, fast_forward: bool) -> int:
    """Compare pooled gaps, return the number of retractions."""
    clock = TokenClock(case)
    expected = np.sort(np.concatenate([np.diff(times) for times in clock.token_s.values()]))
    outcome = run_open(case, record_itl=True, fast_forward=fast_forward)
    itl = to_log(workload_of(case), outcome).itl
    assert itl is not None
    assert len(expected) == sum(r.output_tokens - 1 for r in case.requests) == len(expanded(itl))
    np.testing.assert_allclose(np.sort(expanded(itl)), expected, rtol=1e-9, atol=1e-12)
    return clock.num_retractions


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "single steps"])
def test_gaps_between_tokens(fast_forward: bool) -> None:
    retracted = 0
    for profile in PROFILES:
        for seed in range(40):
            retracted += assert_gaps_are_those_of_the_tokens(seeded_sglang_case(seed, profile, 40), fast_forward)
    assert retracted > 50


@some
@given(case=sglang_cases(), fast_forward=st.booleans())
def test_gaps_between_tokens_on_any_case(case: SglangCase, fast_forward: bool) -> None:
    assert_gaps_are_those_of_the_tokens(case, fast_forward)


@some
@given(case=sglang_cases())
def test_samples_count_the_requests_in_the_engine(case: SglangCase) -> None:
    times = dataclasses.replace(case.times, request_fixed_s=0.0, request_s_per_input_token=0.0)
    outcome = run_open(dataclasses.replace(case, times=times), num_samples=50)
    samples = outcome.recorder.samples[0, : outcome.recorder.counts[0, 1]]
    assert len(samples) > 0
    arrival, last = outcome.packed.requests.arrival, outcome.outputs.last
    for time_s, running, waiting, used in samples:
        assert running + waiting == (arrival <= time_s).sum() - (last <= time_s).sum()
        assert 0 <= used <= case.params.num_pages
        assert (used > 0) == (running > 0)


@some
@given(case=sglang_cases(), num_replicas=st.integers(1, 3), share=st.floats(0.0, 1.0))
def test_a_run_stops_exactly_when_too_many_are_bad(case: SglangCase, num_replicas: int, share: float) -> None:
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


# ------------------------------------------------------------------ laws


@some
@given(case=sglang_cases(profiles=("prefix", "scarce")))
def test_pages_are_conserved(case: SglangCase) -> None:
    """When all are done nobody holds a page: what is not available is in segments."""
    made: list[Sglang] = []

    def remember(**given: object) -> Sglang:
        made.append(new_sglang(**given))  # type: ignore[arg-type]
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("servewise.sim.drivers.sglang.new_sglang", remember)
        outcome = run_open(case)
    tree = made[-1].tree
    if case.params.disable_radix_cache:
        assert outcome.counters[0, layout.FREE] == case.params.num_pages
        return
    pages = 0
    segment = int(tree.counters[0, OLDEST])
    while segment > 0:
        row = tree.segments[0, segment]
        assert row[HOLDERS] == 0
        pages += int(row[LENGTH])
        segment = int(row[NEWER])
    assert pages + tree.counters[0, AVAILABLE] == case.params.num_pages == outcome.counters[0, layout.FREE]


# ------------------------------------------------------------------ size


def served(*, mixed: bool, ignore_eos: bool) -> SglangCase:
    """A benchmark's run: 64 in flight of 640 requests, in a pool that holds about 50."""
    rng = np.random.default_rng(7)
    requests = tuple(
        req(i, 0.0, int(p), int(o), stop=not ignore_eos)
        for i, (p, o) in enumerate(zip(rng.integers(820, 1025, 640), rng.integers(820, 1025, 640), strict=True))
    )
    params = small(pages=50 * 2048, rows=64, chunk=8192, mixed=mixed, ignore_eos=ignore_eos)
    times = dataclasses.replace(
        unit_table(64, 8192),
        context_knots=np.array([0.0, 512.0, 1300.0]),
        attention_base_s=np.outer(np.arange(65) > 0, [0.0, 1e-4, 2e-4]),
        attention_slope_s=np.outer(np.arange(65) > 0, [1e-8, 1.1e-8, 1.2e-8]),
        decode_fixed_s=0.01 + 1e-5 * np.arange(65),
        mixed_tokens_s=0.01 + 1e-5 * np.arange(8193),
    )
    return SglangCase(requests=requests, params=params, times=times)


@pytest.mark.parametrize("ignore_eos", [True, False])
@pytest.mark.parametrize("mixed", [False, True], ids=["exclusive", "mixed"])
@pytest.mark.parametrize("closed", [True, False], ids=["closed loop", "burst"])
def test_windows_change_nothing(mixed: bool, ignore_eos: bool, closed: bool) -> None:
    case = served(mixed=mixed, ignore_eos=ignore_eos)

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
    assert fast.memory_bound or not ignore_eos
    assert fast.counters[0, layout.NUM_WINDOWS] < 0.35 * fast.counters[0, layout.NUM_STEPS]
    assert slow.counters[0, layout.NUM_WINDOWS] == slow.counters[0, layout.NUM_STEPS]


def test_more_requests_run_at_once_than_if_all_that_they_may_produce_were_set_aside() -> None:
    """Requests that declare four times what they produce."""
    generous = dataclasses.replace(
        served(mixed=False, ignore_eos=False),
        requests=tuple(req(i, 0.0, 900, 900) for i in range(200)),
    )
    requests = tuple(dataclasses.replace(r, max_tokens=3600) for r in generous.requests)
    estimated = dataclasses.replace(generous, requests=requests)
    ignoring = dataclasses.replace(estimated, params=dataclasses.replace(estimated.params, ignore_eos=True))
    assert run_open(estimated).peak_running > 1.5 * run_open(ignoring).peak_running


def fingerprint() -> str:
    """Digest of every output bit of some runs."""
    digest = hashlib.sha256()
    for profile in PROFILES:
        for seed in range(5):
            case = seeded_sglang_case(seed, profile, 30)
            closed = simulate_closed_loop(
                workload_of(case), deployment_of(case), model_of(case), memory_of(case), concurrency=5
            )
            for outcome in (run_open(case, num_replicas=2, router="least_requests", record_itl=True), closed):
                for array in (*outcome.outputs, outcome.counters, outcome.times, outcome.packed.requests.arrival):
                    digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def test_compiled_code_computes_what_the_source_says() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "from sim.test_sglang import fingerprint; print(fingerprint())"],
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


# ------------------------------------------------------------------ refusals


def test_a_declared_limit_beyond_the_cache_is_cut() -> None:
    """50 pages: of 10 tokens of prompt and 100 declared ones 50 - 10 - 1 - 1 = 38 are left, and 39 are refused."""
    case = SglangCase(requests=(req(A, 0.0, 10, 38, stop=True),), params=small(pages=50), times=unit_table())
    assert run_open(case).num_simulated == 1
    too_long = dataclasses.replace(case, requests=(req(A, 0.0, 10, 39, stop=True),))
    with pytest.raises(InputError, match="10 and 39 tokens does not fit the KV cache of 50 tokens"):
        run_open(too_long)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chunked_prefill_size": -1}, "chunked_prefill_size must be positive, got -1"),
        ({"page_size": 3}, "page_size must be a power of two, got 3"),
        ({"page_size": 16}, "chunked_prefill_size 8 must be a multiple of page_size 16"),
        ({"schedule_policy": "lof"}, "schedule_policy 'lof' is not simulated; allowed: fcfs, lpm"),
        ({"schedule_conservativeness": -0.5}, "schedule_conservativeness must not be negative, got -0.5"),
        ({"max_running_requests": 65}, "the engine can run 65 and 8"),
        ({"enable_mixed_chunk": True, "max_running_requests": 8}, "must exceed max_running_requests 8, got 8"),
        ({"ignore_eos": True, "disable_radix_cache": True}, "not simulated together with disable_radix_cache"),
    ],
)
def test_settings_that_cannot_be_simulated(changes: dict[str, object], message: str) -> None:
    case = SglangCase(requests=(req(A, 0.0, 4, 1),), params=small(), times=unit_table())
    deployment = deployment_of(case)
    knobs = dataclasses.replace(deployment.params, **changes)  # type: ignore[arg-type, misc]
    with pytest.raises(InputError, match=message):
        simulate(workload_of(case), dataclasses.replace(deployment, params=knobs), model_of(case), memory_of(case))
