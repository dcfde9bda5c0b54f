"""Text Generation Inference: the compiled driver against the plain engine, and what ``sim`` promises for it."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.strategies import req, unit_table
from oracle.tgi_cases import TgiCase, seeded_tgi_case, small, tgi_cases
from oracle.tgi_plain import Params
from servewise.kernel import layout
from servewise.sim import simulate, to_log
from servewise.types import RequestStatus, Router
from sim import agree, properties
from sim.tgi_agree import (
    TGI,
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

A, B, C = range(3)

# ------------------------------------------------------------------ against the plain engine


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "single steps"])
def test_one_replica(fast_forward: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(150):
        case = seeded_tgi_case(seed)
        kernel = assert_open_agrees(case, fast_forward=fast_forward)
        how = "chunks" if case.params.prefill_chunking else "whole prompts"
        for name in ("slots_bound", "memory_bound", "budget_bound"):
            seen[f"{how} {name}"] += getattr(kernel, name)
        seen[f"{how} windows"] += bool(
            (kernel.counters[:, layout.NUM_WINDOWS] < kernel.counters[:, layout.NUM_STEPS]).all()
        )
        seen["turned away"] += int(kernel.outputs.rejected.sum())
        seen["hits"] += int((kernel.outputs.cached > 0).sum())
        plain = run_plain(case)
        seen["flushed"] += plain.flushes
        seen["two unfinished prompts"] += plain.two_prompts
    least = {
        **{f"{how} {what}": 8 for how in ("chunks", "whole prompts") for what in ("slots_bound", "memory_bound")},
        **{f"{how} budget_bound": 8 for how in ("chunks", "whole prompts")},
        "turned away": 1000,
        "hits": 200,
        "flushed": 200,
        "two unfinished prompts": 20,
    }
    if fast_forward:
        least |= {"chunks windows": 20, "whole prompts windows": 10}
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}


@some
@given(case=tgi_cases(), fast_forward=st.booleans())
def test_one_replica_on_any_case(case: TgiCase, fast_forward: bool) -> None:
    assert_open_agrees(case, fast_forward=fast_forward)


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "single steps"])
def test_fleets(fast_forward: bool) -> None:
    """A router in front counts those turned away as finished at once."""
    num_rejected = 0
    for seed in range(100):
        case = seeded_tgi_case(seed)
        kernel = assert_open_agrees(case, num_replicas=3, router="least_requests", fast_forward=fast_forward)
        num_rejected += int(kernel.outputs.rejected.sum())
    assert num_rejected > 500


@some
@given(case=tgi_cases(20), num_replicas=st.integers(1, 4), router=st.sampled_from(ROUTERS), windows=st.booleans())
def test_fleets_on_any_case(case: TgiCase, num_replicas: int, router: Router, windows: bool) -> None:
    if router == "prefix_aware" and not case.params.prefix_caching:
        router = "least_requests"
    assert_open_agrees(case, num_replicas=num_replicas, router=router, fast_forward=windows)


@some
@given(
    case=tgi_cases(), concurrency=st.integers(1, 14), think_s=st.sampled_from([0.0, 0.001, 1.0]), windows=st.booleans()
)
def test_a_closed_loop_on_any_case(case: TgiCase, concurrency: int, think_s: float, windows: bool) -> None:
    assert_closed_loop_agrees(case, concurrency=concurrency, think_s=think_s, fast_forward=windows)


@some
@given(case=tgi_cases(), factor=st.sampled_from([2, 4]))
def test_trace_blocks_larger_than_the_engines(case: TgiCase, factor: int) -> None:
    """A traced block of several engine blocks is as good as these, chained."""
    size = factor * case.params.block_size_tokens
    requests = tuple(
        dataclasses.replace(r, block_ids=tuple(factor * b + j for b in r.block_ids for j in range(factor)))
        for r in case.requests
    )
    coarse = agree.workload_of(case, size)
    fine = agree.workload_of(dataclasses.replace(case, requests=requests))
    rest = deployment_of(case), model_of(case), memory_of(case)
    first, second = simulate(coarse, *rest), simulate(fine, *rest)
    np.testing.assert_array_equal(first.outputs.cached, second.outputs.cached)
    np.testing.assert_array_equal(first.outputs.last, second.outputs.last)


@some
@given(case=tgi_cases())
def test_a_cache_that_nobody_shares_changes_nothing(case: TgiCase) -> None:
    requests = tuple(dataclasses.replace(r, block_ids=()) for r in case.requests)
    params = dataclasses.replace(case.params, prefill_chunking=True, prefix_caching=True)
    cached = dataclasses.replace(case, requests=requests, params=params)
    without = dataclasses.replace(cached, params=dataclasses.replace(params, prefix_caching=False))
    first, second = run_plain(cached).result(), run_plain(without).result()
    assert first.steps == second.steps
    assert first.requests == second.requests
    np.testing.assert_array_equal(run_open(cached).outputs.last, run_open(without).outputs.last)


@some
@given(case=tgi_cases(), fast_forward=st.booleans())
def test_gaps_between_tokens(case: TgiCase, fast_forward: bool) -> None:
    properties.assert_gaps_are_those_of_the_tokens(TGI, case, fast_forward)


@some
@given(case=tgi_cases())
def test_samples_count_the_requests_in_the_engine(case: TgiCase) -> None:
    case = dataclasses.replace(case, times=properties.without_constants(case.times))
    outcome = run_open(case, num_samples=50)
    properties.assert_samples_count_the_requests(outcome)
    for _, running, waiting, used in properties.samples_of(outcome):
        assert running + waiting <= case.params.max_concurrent_requests
        assert used > 0


@some
@given(case=tgi_cases(), num_replicas=st.integers(1, 3), share=st.floats(0.0, 1.0))
def test_a_run_stops_exactly_when_too_many_are_bad(case: TgiCase, num_replicas: int, share: float) -> None:
    properties.assert_stops_exactly_when_too_many_are_bad(TGI, case, num_replicas, share)


# ------------------------------------------------------------------ laws


@some
@given(case=tgi_cases())
def test_laws_of_the_plain_engine(case: TgiCase) -> None:
    """Requests, tokens and order are conserved, limits are kept, somebody is admitted in every second forward only."""
    engine = run_plain(case)
    params = case.params
    served = [live for live in engine.lives if not live.rejected]
    assert len(served) + sum(live.rejected for live in engine.lives) == len(case.requests)
    computed: Counter[int] = Counter()
    first_forward: dict[int, int] = {}
    ends: dict[int, float] = {live.request.id: live.last_token_s for live in served}
    in_batch_before: set[int] = set()
    last_admitting = -2
    for number, step in enumerate(engine.steps):
        here = {i for i, _ in step.rows}
        new = here - set(first_forward)
        if new and in_batch_before:
            assert last_admitting != number - 1, "two admitting forwards in a row"
            last_admitting = number
        first_forward |= dict.fromkeys(new, number)
        for i, tokens in step.rows:
            computed[i] += tokens
        in_batch_before = {i for i in first_forward if ends[i] > step.end_s}
        at_once = sum(tokens for _, tokens in step.rows)
        assert at_once <= max(params.max_batch_prefill_tokens, len(here)) + params.block_size_tokens - 1
        assert len(in_batch_before) <= params.max_concurrent_requests
    order = [first_forward[live.request.id] for live in served]
    assert order == sorted(order), "nobody overtakes"
    for live in served:
        request = live.request
        assert computed[request.id] == request.input_tokens - live.cached_tokens + request.output_tokens - 1
        assert request.arrival_s <= live.scheduled_s < live.first_token_s <= live.last_token_s
    for earlier, later in zip(engine.steps, engine.steps[1:], strict=False):
        assert earlier.end_s <= later.start_s
    assert engine.peak_blocks <= params.num_kv_blocks
    assert not engine.batch
    assert all(block.users == 0 for block in engine.cache)


@some
@given(case=tgi_cases(), fast_forward=st.booleans())
def test_requests_below_the_limit_are_never_turned_away(case: TgiCase, fast_forward: bool) -> None:
    wide = dataclasses.replace(case.params, max_concurrent_requests=len(case.requests))
    tokens = max(case.params.max_batch_prefill_tokens, len(case.requests)) + case.params.block_size_tokens - 1
    case = dataclasses.replace(case, params=wide, times=unit_table(len(case.requests), tokens))
    kernel = assert_open_agrees(case, fast_forward=fast_forward)
    assert not kernel.outputs.rejected.any()
    assert not kernel.slots_bound


# ------------------------------------------------------------------ size


def served(how: str) -> TgiCase:
    """640 requests at a rate at which some 40 run, in a pool that holds about 50 without sharing."""
    rng = np.random.default_rng(7)
    arrival_s = np.cumsum(rng.exponential(0.3, 640))
    lengths = rng.integers(200, 1025, (640, 2))
    requests = tuple(
        req(i, float(t), int(p), int(o), ids=tuple(range(64 * (i % 5), 64 * (i % 5) + min(p // 16, 30))))
        for i, (t, (p, o)) in enumerate(zip(arrival_s, lengths, strict=True))
    )
    params = Params(
        max_concurrent_requests=64,
        max_batch_prefill_tokens=2048,
        num_kv_blocks=50 * 1600 // 16,
        block_size_tokens=16,
        prefill_chunking=how != "whole prompts",
        prefix_caching=how == "chunks, cached",
        waiting_served_ratio=0.3125,
    )
    times = properties.curved_table(64, 2064, fixed_s=0.015)
    return TgiCase(requests=requests, params=params, times=times)


@pytest.mark.parametrize("how", ["chunks", "chunks, cached", "whole prompts"])
@pytest.mark.parametrize("closed", [True, False], ids=["closed loop", "open loop"])
def test_windows_change_nothing(how: str, closed: bool) -> None:
    times = [layout.NOW, layout.MIXED_TIME, layout.DECODE_TIME, layout.ROW_TIME, layout.LAST_EMISSION]
    fast = properties.assert_windows_change_nothing(
        TGI, served(how), concurrency=64 if closed else 0, most=0.5, times=times
    )
    assert (fast.outputs.cached > 0).any() == (how == "chunks, cached")


def fingerprint() -> str:
    """Digest of every output bit of some runs."""
    cases = [seeded_tgi_case(seed, 30) for seed in range(10)]
    return properties.digest_of(properties.open_and_closed(TGI, cases))


def test_compiled_code_computes_what_the_source_says() -> None:
    properties.assert_compiled_equals_source(fingerprint)


# ------------------------------------------------------------------ refusals


def test_a_log_says_who_was_turned_away() -> None:
    requests = (req(A, 0.0, 2, 9), req(B, 0.5, 2, 1), req(C, 12.0, 2, 1))
    case = TgiCase(requests=requests, params=small(rows=1), times=unit_table())
    log = to_log(workload_of(case), run_open(case))
    assert log.status.tolist() == [RequestStatus.OK, RequestStatus.REJECTED, RequestStatus.OK]
    assert np.isnan(log.first_token_s[B])


def test_a_prompt_that_fits_no_forward_is_rejected() -> None:
    requests = (req(A, 0.0, 9, 1), req(B, 0.0, 8, 1))
    whole = TgiCase(requests=requests, params=small(chunking=False), times=unit_table())
    log = to_log(workload_of(whole), run_open(whole))
    assert log.status.tolist() == [RequestStatus.REJECTED, RequestStatus.OK]
    rounded = dataclasses.replace(whole, params=small(chunking=False, prefill=7, block=4))
    assert to_log(workload_of(rounded), run_open(rounded)).status.tolist() == [RequestStatus.REJECTED, RequestStatus.OK]
    cut = dataclasses.replace(whole, params=small())
    assert (to_log(workload_of(cut), run_open(cut)).status == RequestStatus.OK).all()


@pytest.mark.parametrize(
    ("params", "changes", "message"),
    [
        (small(chunking=False), {"prefix_caching": True}, "without prefill_chunking is not simulated"),
        (small(blocks=9), {"max_total_tokens": 11}, "max_total_tokens 11 exceeds the KV capacity of 9 tokens"),
        (small(), {"block_size_tokens": 3}, "must be a power of two, got 3"),
        (small(), {"max_concurrent_requests": 65}, "the engine can run 65 and 65"),
        (small(), {"max_batch_prefill_tokens": 5000}, "the engine can run 4 and 5000"),
    ],
)
def test_settings_that_cannot_be_simulated(params: Params, changes: dict[str, object], message: str) -> None:
    case = TgiCase(requests=(req(A, 0.0, 4, 1),), params=params, times=unit_table())
    properties.assert_refused(TGI, case, changes, message)
