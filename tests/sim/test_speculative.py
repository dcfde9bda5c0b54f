"""Speculative decoding: the kernel against the plain scheduler, and what must hold of any drafter."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle import speculative_plain, vllm_plain
from oracle.client_plain import run_closed_loop
from oracle.speculative_plain import Drafter
from oracle.strategies import PROFILES, Case, Profile, cases, params, req, seeded_case, unit_table
from servewise.engines import sglang
from servewise.errors import InputError
from servewise.kernel import layout
from servewise.kernel.speculative import UNIT, _first_step_at, _floor_sum, _level, new_speculative
from servewise.perf import kv_link
from servewise.sim import simulate, simulate_closed_loop, to_log
from servewise.sim.memory_use import held
from servewise.types import (
    Deployment,
    Disaggregation,
    InstancePool,
    Parallelism,
    Promise,
    Router,
    Speculation,
    chain_acceptance,
)
from sim.agree import GPU, MODEL, memory_of, model_of, normalized, workload_of
from sim.agree import run_kernel as run_vllm
from sim.properties import assert_compiled_equals_source, digest_of
from sim.speculative_agree import (
    assert_agrees,
    deployed,
    drafter_of,
    plain_tokens,
    run_kernel,
    seeded_speculative,
    speculation_of,
    speculative_cases,
)
from sim.test_recording import expanded

some = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])

ROUTERS: tuple[Router, ...] = ("round_robin", "least_requests", "prefix_aware")

# ------------------------------------------------------------------ agreement


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "single steps"])
@pytest.mark.parametrize("profile", PROFILES)
def test_one_replica(profile: Profile, fast_forward: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        case, speculation = seeded_speculative(seed, profile)
        kernel = assert_agrees(case, speculation, fast_forward=fast_forward)
        seen["async" if case.params.async_scheduling else "sync"] += 1
        seen[speculation.method] += 1
        seen["preempted"] += kernel.num_preemptions
    least = {"async": 20, "sync": 10, "draft_model": 5, "eagle": 5, "mtp": 5, "ngram": 5, "preempted": 50}
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}


@some
@given(drawn=speculative_cases(), fast_forward=st.booleans())
def test_one_replica_on_any_case(drawn: tuple[Case, Speculation], fast_forward: bool) -> None:
    assert_agrees(*drawn, fast_forward=fast_forward)


@some
@given(drawn=speculative_cases(), num_replicas=st.integers(2, 4), router=st.sampled_from(ROUTERS))
def test_fleets_on_any_case(drawn: tuple[Case, Speculation], num_replicas: int, router: Router) -> None:
    assert_agrees(*drawn, num_replicas=num_replicas, router=router)


@some
@given(drawn=speculative_cases(), concurrency=st.integers(1, 14), think_s=st.sampled_from([0.0, 0.02]))
def test_a_client_in_a_closed_loop(drawn: tuple[Case, Speculation], concurrency: int, think_s: float) -> None:
    case, speculation = drawn
    outcome = simulate_closed_loop(
        workload_of(case),
        deployed(case, speculation),
        model_of(case),
        memory_of(case),
        concurrency=concurrency,
        think_s=think_s,
    )
    extra = outcome.packed.requests.extra
    engine = speculative_plain.Engine(case.params, case.times, drafter_of(speculation))
    sent = run_closed_loop(
        engine,
        case.requests,
        concurrency=concurrency,
        think_s=think_s,
        extra_s=lambda request: float(extra[request.id]),
    )
    np.testing.assert_allclose(outcome.packed.requests.arrival, [r.arrival_s for r in sent], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(outcome.outputs.last - extra, [live.last_token_s for live in engine.lives], rtol=1e-9)


def fingerprint() -> str:
    """Everything that some runs write."""
    return digest_of(
        run_kernel(*seeded_speculative(seed, profile), num_replicas=2, router=ROUTERS[seed], record_itl=True)
        for profile in PROFILES
        for seed in range(3)
    )


def test_compiled_code_computes_what_the_source_says() -> None:
    """The same source without numba gives the same, to the last bit."""
    assert_compiled_equals_source(fingerprint)


# ------------------------------------------------------------------ gaps between tokens


@some
@given(drawn=speculative_cases(), fast_forward=st.booleans())
def test_gaps_are_those_of_the_tokens(drawn: tuple[Case, Speculation], fast_forward: bool) -> None:
    """Tokens of one step come at once: gaps of 0 are gaps."""
    case, speculation = drawn
    tokens = plain_tokens(case, speculation)
    expected = np.sort(np.concatenate([np.diff(times) for times in tokens]))
    outcome = run_kernel(case, speculation, record_itl=True, fast_forward=fast_forward)
    itl = to_log(workload_of(case), outcome).itl
    assert itl is not None
    assert len(expected) == sum(request.output_tokens - 1 for request in case.requests)
    np.testing.assert_allclose(np.sort(expanded(itl)), expected, rtol=1e-9, atol=1e-12)


# ------------------------------------------------------------------ laws


@some
@given(case=cases())
def test_without_proposals_the_plain_scheduler_is_that_of_vllm(case: Case) -> None:
    """k = 0: the same first and last tokens, preemptions and steps."""
    case = normalized(case)
    settings = dataclasses.replace(case.params, enable_prefix_caching=False)
    usual = vllm_plain.simulate(case.requests, settings, case.times)
    engine = speculative_plain.Engine(
        settings, case.times, Drafter(proposed=0, accepted=Fraction(0), lookahead=0, extra=0)
    )
    for request in case.requests:
        engine.submit(request)
    engine.run_until(math.inf)
    for ours, theirs in zip(engine.result().requests, usual.requests, strict=True):
        assert ours == dataclasses.replace(theirs, cached_tokens=0)
    assert engine.result().steps == usual.steps
    assert engine.result().peak_blocks == usual.peak_blocks


@pytest.mark.parametrize("method", ["draft_model", "eagle", "ngram"])
@pytest.mark.parametrize("profile", PROFILES)
def test_if_nothing_is_accepted_tokens_come_as_without(profile: Profile, method: str) -> None:
    """Where neither memory nor budget binds, and steps take a second."""
    for seed in range(10):
        case = normalized(seeded_case(seed, profile))
        roomy = dataclasses.replace(
            case.params, num_kv_blocks=5000, max_num_batched_tokens=4096, enable_prefix_caching=False
        )
        case = dataclasses.replace(case, params=roomy, times=unit_table())
        usual = run_vllm(case)
        ours = run_kernel(case, speculation_of(method, (0.0, 0.0, 0.0)))
        np.testing.assert_array_equal(ours.outputs.first, usual.outputs.first)
        np.testing.assert_array_equal(ours.outputs.last, usual.outputs.last)


@some
@given(
    rates=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6).map(lambda r: tuple(sorted(r, reverse=True))),
    output_tokens=st.integers(1, 3000),
)
def test_a_request_alone_takes_the_mean_number_of_steps(rates: tuple[float, ...], output_tokens: int) -> None:
    """After its prompt, ``(O - 1) / E`` steps, give or take one for whole tokens at both ends."""
    speculation = speculation_of("ngram", rates)
    case = Case(
        requests=(req(0, 0.0, 4, output_tokens),),
        params=params(lag=False, blocks=4000, budget=32),
        times=unit_table(),
    )
    outcome = run_kernel(case, speculation)
    mean = (output_tokens - 1) / speculation.mean_tokens_per_step
    assert abs(outcome.outputs.last[0] - outcome.outputs.first[0] - mean) <= 1.0 + 1e-6 * output_tokens
    assert outcome.counters[0, layout.NUM_WINDOWS] <= 2  # the prompt, and all the rest


@some
@given(
    accepted=st.integers(0, 8 * UNIT),
    step=st.integers(0, 10**7),
    count=st.integers(0, 300),
    level=st.integers(1, 10**8),
)
def test_sums_and_inverse_of_levels(accepted: int, step: int, count: int, level: int) -> None:
    spec = new_speculative(1, proposed=8, accepted=accepted, lookahead=0, extra=0, longest=1)
    rate = UNIT + accepted
    start = step * rate % UNIT
    assert _floor_sum(count, UNIT, rate, start) == sum((rate * i + start) // UNIT for i in range(count))
    first = _first_step_at(spec, level)
    assert _level(spec, first) >= level > _level(spec, first - 1)


def test_recording_changes_nothing_and_samples_count_everybody() -> None:
    """Whoever has arrived and not ended runs or waits."""
    for profile in PROFILES:
        case, speculation = seeded_speculative(3, profile)
        plain = run_kernel(case, speculation)
        recorded = run_kernel(case, speculation, record_itl=True, num_samples=200)
        np.testing.assert_array_equal(recorded.outputs.last, plain.outputs.last)
        samples = recorded.recorder.samples[0, : recorded.recorder.counts[0, 1]]
        ends = recorded.outputs.last - recorded.packed.requests.extra
        for time_s, running, waiting, _ in samples:
            arrived = np.count_nonzero(recorded.packed.requests.arrival <= time_s)
            assert running + waiting == arrived - np.count_nonzero(ends <= time_s + 1e-9)


def test_a_run_with_too_many_bad_requests_stops() -> None:
    """After the first request that misses the limit; what ended before has the times of the whole run."""
    case, speculation = seeded_speculative(1, "mixed")
    deployment, workload = deployed(case, speculation), workload_of(case)
    whole = simulate(workload, deployment, model_of(case), memory_of(case), promise=Promise(e2e_s=0.2))
    assert whole.num_bad > 1
    stopped = simulate(workload, deployment, model_of(case), memory_of(case), promise=Promise(e2e_s=0.2), max_bad=0)
    assert stopped.broken
    ended = ~np.isnan(stopped.outputs.last)
    assert 0 < np.count_nonzero(ended) < len(ended)
    np.testing.assert_array_equal(stopped.outputs.last[ended], whole.outputs.last[ended])


# ------------------------------------------------------------------ what is refused


def refused(case: Case, deployment: Deployment, match: str) -> None:
    with pytest.raises(InputError, match=match):
        simulate(workload_of(case), deployment, model_of(case), memory_of(case))


def test_what_is_not_simulated_is_refused() -> None:
    case, speculation = seeded_speculative(0, "mixed")
    deployment = deployed(case, speculation)
    other = dataclasses.replace(
        deployment,
        engine="sglang",
        engine_version=sglang.default_version(),
        params=sglang.default_params(sglang.default_version(), GPU, MODEL),
    )
    refused(case, other, "speculative decoding of 'sglang' is not simulated")
    stages = dataclasses.replace(deployment, parallelism=Parallelism(pipeline_parallel_size=2))
    refused(case, stages, "pipeline_parallel_size 2 is not simulated")
    ranks = dataclasses.replace(deployment, parallelism=Parallelism(data_parallel_size=2))
    refused(case, ranks, "data_parallel_size 2")
    for name, value in (("scheduling_policy", "priority"), ("watermark", 0.1), ("long_prefill_token_threshold", 1)):
        changed = dataclasses.replace(deployment.vllm_params, **{name: value})
        refused(case, dataclasses.replace(deployment, params=changed), "not simulated with speculative decoding")


def test_a_budget_that_does_not_hold_every_row_is_refused() -> None:
    """4 seats of 1 + 3 tokens and one of a draft model's: 20."""
    case = Case(requests=(req(0, 0.0, 4, 4),), params=params(budget=19, seats=4), times=unit_table())
    speculation = speculation_of("draft_model", chain_acceptance(0.5, 3))
    refused(case, deployed(case, speculation), "max_num_batched_tokens 19 is below the 20 tokens")


def test_what_has_no_place_for_a_drafter_is_refused() -> None:
    case, speculation = seeded_speculative(0, "mixed")
    deployment = deployed(case, speculation)
    with pytest.raises(InputError, match="speculative decoding is not described"):
        held(run_kernel(case, speculation), deployment)
    pool = InstancePool(gpu=GPU, parallelism=Parallelism(), params=deployment.params, num_instances=1)
    link = kv_link(deployment, deployment, 1, 1)
    with pytest.raises(InputError, match="disaggregated deployments is not simulated"):
        dataclasses.replace(deployment, disaggregation=Disaggregation(prefill=pool, decode=pool, link=link))
