"""TensorRT-LLM: the compiled scheduler against the plain one, and what ``sim`` promises for it."""

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

from oracle.strategies import PROFILES, Profile, req, unit_table
from oracle.trtllm_cases import TrtllmCase, seeded_trtllm_case, trtllm, trtllm_cases
from oracle.trtllm_plain import Engine, Live, Params
from servewise.errors import InputError
from servewise.kernel import layout
from servewise.sim import Outcome, simulate, to_log
from servewise.types import Router
from sim.test_recording import expanded
from sim.trtllm_agree import (
    assert_closed_loop_agrees,
    assert_open_agrees,
    deployment_of,
    memory_of,
    model_of,
    run_open,
    run_plain,
    workload_of,
)

some = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])

ROUTERS: tuple[Router, ...] = ("round_robin", "least_requests", "prefix_aware")

# ------------------------------------------------------------------ against the plain engine


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "single steps"])
@pytest.mark.parametrize("profile", PROFILES)
def test_one_replica(profile: Profile, fast_forward: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(30):
        case = seeded_trtllm_case(seed, profile)
        kernel = assert_open_agrees(case, fast_forward=fast_forward)
        for name in ("slots_bound", "memory_bound", "budget_bound"):
            seen[name] += getattr(kernel, name)
        windows = kernel.counters[0, layout.NUM_WINDOWS] < kernel.counters[0, layout.NUM_STEPS]
        seen[f"{case.params.policy} windows"] += windows
        seen["pauses"] += kernel.num_preemptions
        seen["hits"] += int((kernel.outputs.cached > 0).sum())
        if case.params.policy == "GUARANTEED_NO_EVICT":
            assert kernel.num_preemptions == 0
    least = {"slots_bound": 5, "memory_bound": 10, "budget_bound": 5}
    if fast_forward:
        least |= {"GUARANTEED_NO_EVICT windows": 5, "MAX_UTILIZATION windows": 5}
    least |= {"preempting": {"pauses": 100}, "prefix": {"hits": 200}}.get(profile, {})
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}


def test_the_cases_reach_the_rare_rules() -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        for profile in PROFILES:
            case = seeded_trtllm_case(seed, profile)
            engine = run_plain(case)
            seen["deferred"] += engine.deferrals
            seen["robbed"] += engine.robberies
            seen["waited"] += engine.waited
            seen["copies"] += engine.pool.copies
            longest = case.params.max_num_tokens
            seen["too long again"] += not case.params.enable_chunked_prefill and any(
                live.num_preemptions > 0 and live.target > longest for live in engine.lives
            )
    least = {"deferred": 300, "robbed": 10, "waited": 10, "copies": 100, "too long again": 5}
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}


@some
@given(case=trtllm_cases(), fast_forward=st.booleans())
def test_one_replica_on_any_case(case: TrtllmCase, fast_forward: bool) -> None:
    assert_open_agrees(case, fast_forward=fast_forward)


@some
@given(case=trtllm_cases(), num_replicas=st.integers(1, 4), router=st.sampled_from(ROUTERS), windows=st.booleans())
def test_fleets_on_any_case(case: TrtllmCase, num_replicas: int, router: Router, windows: bool) -> None:
    assert_open_agrees(case, num_replicas=num_replicas, router=router, fast_forward=windows)


@some
@given(
    case=trtllm_cases(),
    concurrency=st.integers(1, 12),
    think_s=st.sampled_from([0.0, 0.05]),
    fast_forward=st.booleans(),
)
def test_closed_loop_on_any_case(case: TrtllmCase, concurrency: int, think_s: float, fast_forward: bool) -> None:
    assert_closed_loop_agrees(case, concurrency=concurrency, think_s=think_s, fast_forward=fast_forward)


class TokenClock(Engine):
    """The plain engine, writing down when each token is delivered."""

    def __init__(self, case: TrtllmCase) -> None:
        super().__init__(case.params, case.times)
        self.token_s: dict[int, list[float]] = {request.id: [] for request in case.requests}
        for request in case.requests:
            self.submit(request)
        self.run_until(np.inf)

    def deliver(self, live: Live) -> None:
        self.token_s[live.request.id].append(self.step_end_s)


@some
@given(case=trtllm_cases(), fast_forward=st.booleans())
def test_gaps_between_tokens(case: TrtllmCase, fast_forward: bool) -> None:
    expected = np.sort(np.concatenate([np.diff(times) for times in TokenClock(case).token_s.values()]))
    outcome = run_open(case, record_itl=True, fast_forward=fast_forward)
    itl = to_log(workload_of(case), outcome).itl
    assert itl is not None
    assert len(expected) == sum(r.output_tokens - 1 for r in case.requests)
    np.testing.assert_allclose(np.sort(expanded(itl)), expected, rtol=1e-9, atol=1e-12)


@some
@given(case=trtllm_cases())
def test_samples_count_the_requests_in_the_engine(case: TrtllmCase) -> None:
    times = dataclasses.replace(case.times, request_fixed_s=0.0, request_s_per_input_token=0.0)
    outcome = run_open(dataclasses.replace(case, times=times), num_samples=50)
    samples = outcome.recorder.samples[0, : outcome.recorder.counts[0, 1]]
    assert len(samples) > 0
    arrival, last = outcome.packed.requests.arrival, outcome.outputs.last
    for time_s, running, waiting, used in samples:
        assert running + waiting == (arrival <= time_s).sum() - (last <= time_s).sum()
        assert 0 <= used <= case.params.num_kv_blocks
        assert (used > 0) == (running > 0)


# ------------------------------------------------------------------ laws of the plain engine


def check_blocks(engine: Engine) -> None:
    """No block is lost, free ones are nobody's, what is reserved is there, and what is findable is what it says."""
    held = [block for live in engine.started for block in live.blocks]
    assert len(engine.pool.free) == len({id(block) for block in engine.pool.free})
    assert len(engine.pool.free) + len({id(block) for block in held}) == engine.params.num_kv_blocks
    assert all(block.ref == 0 for block in engine.pool.free)
    assert all(block.ref == sum(other is block for other in held) for block in held)
    assert all(block.identity == identity for identity, block in engine.pool.findable.items())
    assert engine._available() >= 0
    assert all(not live.blocks for live in engine.waiting)


@some
@given(case=trtllm_cases())
def test_blocks_are_conserved_and_order_is_kept(case: TrtllmCase) -> None:
    engine = Engine(case.params, case.times)
    for request in case.requests:
        engine.submit(request)
    paused: Counter[int] = Counter()
    while engine.advance(np.inf):
        check_blocks(engine)
        assert len(engine.started) <= case.params.max_batch_size
        assert sum(row.tokens for row in engine.step) <= case.params.max_num_tokens
        now_paused = Counter({live.number: live.num_preemptions for live in engine.lives if live.num_preemptions})
        for number in now_paused - paused:  # the oldest that run are never the victims
            assert all(live.number < number for live in engine.started if live.blocks and live.target < live.computed)
        paused = now_paused
    assert all(live.finished for live in engine.lives)
    assert len(engine.pool.free) == case.params.num_kv_blocks
    if case.params.policy == "GUARANTEED_NO_EVICT":
        assert not paused


@some
@given(case=trtllm_cases(("mixed", "preempting", "chunks")))
def test_without_shared_blocks_reuse_matters_only_after_a_pause(case: TrtllmCase) -> None:
    requests = tuple(dataclasses.replace(r, block_ids=()) for r in case.requests)
    outcomes = [
        run_open(
            dataclasses.replace(
                case, requests=requests, params=dataclasses.replace(case.params, enable_block_reuse=reuse)
            )
        )
        for reuse in (False, True)
    ]
    assert (outcomes[1].outputs.cached == 0).all()
    if outcomes[0].num_preemptions == 0:
        np.testing.assert_allclose(outcomes[0].outputs.last, outcomes[1].outputs.last, rtol=1e-9)


# ------------------------------------------------------------------ size


def served(policy: str, seed: int = 7) -> TrtllmCase:
    """Conversations that grow by turns, 400 requests in a pool that holds about 40."""
    rng = np.random.default_rng(seed)
    requests, arrival_s, number = [], 0.0, 0
    known: list[tuple[int, ...]] = [()] * 40
    while number < 400:
        who = int(rng.integers(40))
        new = int(rng.integers(100, 700))
        ids = known[who]
        output = int(rng.integers(50, 400))
        total = (len(ids) * 32 + new) // 32
        known[who] = (*ids, *(10_000 * (number + 1) + i for i in range(total - len(ids))))
        prompt = len(ids) * 32 + new
        request = req(number, arrival_s, prompt, output, stop=bool(rng.random() < 0.5), ids=known[who])
        requests.append(request)
        if len(known[who]) > 120:
            known[who] = ()
        arrival_s += float(rng.exponential(0.03))
        number += 1
    params = Params(
        policy="MAX_UTILIZATION" if policy == "MAX_UTILIZATION" else "GUARANTEED_NO_EVICT",
        max_batch_size=64,
        max_num_tokens=8192,
        num_kv_blocks=1500,
        block_size_tokens=32,
        enable_block_reuse=True,
        counts_reuse=True,
        enable_chunked_prefill=False,
    )
    times = dataclasses.replace(
        unit_table(64, 8192),
        context_knots=np.array([0.0, 512.0, 1300.0]),
        attention_base_s=np.outer(np.arange(65) > 0, [0.0, 1e-4, 2e-4]),
        attention_slope_s=np.outer(np.arange(65) > 0, [1e-8, 1.1e-8, 1.2e-8]),
        decode_fixed_s=0.01 + 1e-5 * np.arange(65),
        mixed_tokens_s=0.01 + 1e-5 * np.arange(8193),
    )
    return TrtllmCase(requests=tuple(requests), params=params, times=times)


@pytest.mark.parametrize("policy", ["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"])
def test_windows_change_nothing(policy: str) -> None:
    case = served(policy)
    fast, slow = assert_open_agrees(case), run_open(case, fast_forward=False)
    np.testing.assert_allclose(fast.outputs.first, slow.outputs.first, rtol=1e-9)
    np.testing.assert_allclose(fast.outputs.last, slow.outputs.last, rtol=1e-9)
    np.testing.assert_array_equal(fast.outputs.cached, slow.outputs.cached)
    same = np.ones(layout.NUM_INTS, bool)
    same[layout.NUM_WINDOWS] = False
    np.testing.assert_array_equal(fast.counters[:, same], slow.counters[:, same])
    np.testing.assert_allclose(fast.times, slow.times, rtol=1e-9)
    assert fast.memory_bound
    assert (fast.outputs.cached > 0).sum() > 100
    assert (fast.num_preemptions > 5) == (policy == "MAX_UTILIZATION")
    assert fast.counters[0, layout.NUM_WINDOWS] < 0.7 * fast.counters[0, layout.NUM_STEPS]


def fingerprint() -> str:
    """Digest of every output bit of some runs."""
    digest = hashlib.sha256()
    for seed in range(3):
        for profile in PROFILES:
            case = seeded_trtllm_case(seed, profile, 30)
            outcome: Outcome = run_open(case, num_replicas=2, router="least_requests", record_itl=True)
            for array in (*outcome.outputs, outcome.counters, outcome.times):
                digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def test_compiled_code_computes_what_the_source_says() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "from sim.test_trtllm import fingerprint; print(fingerprint())"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == fingerprint()


TESTS = Path(__file__).resolve().parents[1]

# ------------------------------------------------------------------ what is not known, and refusals


def test_unknown_prefixes_are_unknown() -> None:
    case = served("MAX_UTILIZATION")
    workload = dataclasses.replace(workload_of(case), prefix=None)
    outcome = simulate(workload, deployment_of(case), model_of(case), memory_of(case))
    assert outcome.num_preemptions > 0
    assert (to_log(workload, outcome).cached_tokens == -1).all()


@pytest.mark.parametrize(
    ("params", "changes", "message"),
    [
        (trtllm(), {"tokens_per_block": 3}, "tokens_per_block must be a power of two, got 3"),
        (trtllm(chunking=True), {"max_num_tokens": 3}, "max_num_tokens 3 is below 4"),
        (trtllm(evicts=True), {"max_num_tokens": 3, "max_batch_size": 2}, "max_num_tokens 3 is below 4"),
        (trtllm(), {"max_batch_size": 9}, "max_num_tokens 8 is below 9"),
        (trtllm(), {"max_num_tokens": 5000}, "the engine can run 4 and 5000"),
        (
            trtllm(blocks=26),
            {},
            "prompt and max_tokens set 27 KV blocks of 4 tokens aside, the engine has 26; lower max",
        ),
        (
            trtllm(blocks=1, evicts=True),
            {},
            "prompt and output need 2 KV blocks of 4 tokens, the engine has 1; lower the",
        ),
    ],
)
def test_settings_that_cannot_be_simulated(params: Params, changes: dict[str, int], message: str) -> None:
    case = TrtllmCase(requests=(req(0, 0.0, 4, 2, stop=True),), params=params, times=unit_table())
    deployment = deployment_of(case)
    knobs = dataclasses.replace(deployment.params, **changes)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        simulate(workload_of(case), dataclasses.replace(deployment, params=knobs), model_of(case), memory_of(case))
