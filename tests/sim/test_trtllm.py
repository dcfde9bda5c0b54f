"""TensorRT-LLM: the compiled scheduler against the plain one, and what ``sim`` promises for it."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.strategies import PROFILES, Profile, req, unit_table
from oracle.trtllm_cases import TrtllmCase, seeded_trtllm_case, trtllm, trtllm_cases
from oracle.trtllm_plain import Engine, Params
from servewise.kernel import layout
from servewise.sim import simulate, to_log
from servewise.types import Router
from sim import properties
from sim.trtllm_agree import (
    TRTLLM,
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


@some
@given(case=trtllm_cases(), fast_forward=st.booleans())
def test_gaps_between_tokens(case: TrtllmCase, fast_forward: bool) -> None:
    properties.assert_gaps_are_those_of_the_tokens(TRTLLM, case, fast_forward)


@some
@given(case=trtllm_cases())
def test_samples_count_the_requests_in_the_engine(case: TrtllmCase) -> None:
    case = dataclasses.replace(case, times=properties.without_constants(case.times))
    outcome = run_open(case, num_samples=50)
    properties.assert_samples_count_the_requests(outcome)
    for _, running, _, used in properties.samples_of(outcome):
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
    times = properties.curved_table(64, 8192)
    return TrtllmCase(requests=tuple(requests), params=params, times=times)


@pytest.mark.parametrize("policy", ["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"])
def test_windows_change_nothing(policy: str) -> None:
    case = served(policy)
    assert_open_agrees(case)
    fast = properties.assert_windows_change_nothing(TRTLLM, case, most=0.7)
    assert fast.memory_bound
    assert (fast.outputs.cached > 0).sum() > 100
    assert (fast.num_preemptions > 5) == (policy == "MAX_UTILIZATION")


def fingerprint() -> str:
    """Digest of every output bit of some runs."""
    cases = [seeded_trtllm_case(seed, profile, 30) for seed in range(3) for profile in PROFILES]
    return properties.digest_of(properties.open_and_closed(TRTLLM, cases))


def test_compiled_code_computes_what_the_source_says() -> None:
    properties.assert_compiled_equals_source(fingerprint)


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
    properties.assert_refused(TRTLLM, case, changes, message)
