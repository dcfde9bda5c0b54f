"""SGLang: the compiled driver against the plain engine, and what ``sim`` promises for it."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.sglang_cases import PROFILES, Profile, SglangCase, seeded_sglang_case, sglang_cases, small, twins_case
from oracle.strategies import req, unit_table
from servewise.errors import InputError
from servewise.kernel import layout
from servewise.kernel.radix import AVAILABLE, HOLDERS, LENGTH, NEWER, OLDEST
from servewise.kernel.sglang import Sglang, new_sglang
from servewise.types import Router
from sim import properties
from sim.sglang_agree import (
    SGLANG,
    assert_closed_loop_agrees,
    assert_open_agrees,
    run_open,
    without_names,
    workload_of,
)

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


def test_prompts_that_begin_alike_wait_for_each_other() -> None:
    """Under lpm; without the rule some of the same cases hit less or more."""
    seen: Counter[str] = Counter()
    for seed in range(60):
        case = twins_case(random.Random(seed), 40)  # noqa: S311 (no secret)
        kernel = assert_open_agrees(case, fast_forward=seed % 2 > 0)
        never = dataclasses.replace(case.params, in_batch_prefix_caching_check_threshold=-1)
        plain = SGLANG.run_plain(dataclasses.replace(case, params=never)).result()
        seen["hits"] += int((kernel.outputs.cached > 0).sum())
        seen["retracted"] += kernel.num_preemptions
        seen["changed"] += kernel.outputs.cached.tolist() != [r.cached_tokens for r in plain.requests]
    assert seen["hits"] > 500
    assert seen["retracted"] > 5
    assert seen["changed"] > 8


@some
@given(rng=st.randoms(use_true_random=False), num_requests=st.integers(1, 20), fast_forward=st.booleans())
def test_prompts_that_begin_alike_on_any_case(rng: random.Random, num_requests: int, fast_forward: bool) -> None:
    assert_open_agrees(twins_case(rng, num_requests), fast_forward=fast_forward)


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


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "single steps"])
def test_gaps_between_tokens(fast_forward: bool) -> None:
    retracted = 0
    for profile in PROFILES:
        for seed in range(40):
            case = seeded_sglang_case(seed, profile, 40)
            plain = properties.assert_gaps_are_those_of_the_tokens(SGLANG, case, fast_forward)
            retracted += plain.result().num_preemptions
    assert retracted > 50


@some
@given(case=sglang_cases(), fast_forward=st.booleans())
def test_gaps_between_tokens_on_any_case(case: SglangCase, fast_forward: bool) -> None:
    properties.assert_gaps_are_those_of_the_tokens(SGLANG, case, fast_forward)


@some
@given(case=sglang_cases())
def test_samples_count_the_requests_in_the_engine(case: SglangCase) -> None:
    case = dataclasses.replace(case, times=properties.without_constants(case.times))
    outcome = run_open(case, num_samples=50)
    properties.assert_samples_count_the_requests(outcome)
    for _, running, _, used in properties.samples_of(outcome):
        assert (used > 0) == (running > 0)


@some
@given(case=sglang_cases(), num_replicas=st.integers(1, 3), share=st.floats(0.0, 1.0))
def test_a_run_stops_exactly_when_too_many_are_bad(case: SglangCase, num_replicas: int, share: float) -> None:
    properties.assert_stops_exactly_when_too_many_are_bad(SGLANG, case, num_replicas, share)


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
    times = properties.curved_table(64, 8192)
    return SglangCase(requests=requests, params=params, times=times)


@pytest.mark.parametrize("ignore_eos", [True, False])
@pytest.mark.parametrize("mixed", [False, True], ids=["exclusive", "mixed"])
@pytest.mark.parametrize("closed", [True, False], ids=["closed loop", "burst"])
def test_windows_change_nothing(mixed: bool, ignore_eos: bool, closed: bool) -> None:
    case = served(mixed=mixed, ignore_eos=ignore_eos)
    fast = properties.assert_windows_change_nothing(SGLANG, case, concurrency=64 if closed else 0, most=0.35)
    assert fast.memory_bound or not ignore_eos


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
    cases = [seeded_sglang_case(seed, profile, 30) for profile in PROFILES for seed in range(5)]
    return properties.digest_of(properties.open_and_closed(SGLANG, cases))


def test_compiled_code_computes_what_the_source_says() -> None:
    properties.assert_compiled_equals_source(fingerprint)


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
    properties.assert_refused(SGLANG, case, changes, message)
