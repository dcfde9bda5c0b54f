"""Pipeline stages: the kernel against the plain pipeline, and what must hold of any pipeline."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle import pipeline_plain, vllm_plain
from oracle.strategies import PROFILES, Case, Profile, cases, params, req, seeded_case, unit_table
from servewise.engines import tgi
from servewise.errors import InputError
from servewise.kernel import layout
from servewise.sim import simulate, to_log
from servewise.sim.drivers.pipeline import layers_of_stages
from servewise.types import Router
from sim import properties
from sim.agree import GPU, MODEL, memory_of, model_of, normalized, workload_of
from sim.pipeline_agree import assert_agrees, pipeline, run_kernel, staged
from sim.properties import expanded
from sim.test_kernel_agrees import with_ties

some = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])

ROUTERS: tuple[Router, ...] = ("round_robin", "least_requests", "prefix_aware")
NUM_STAGES = st.integers(2, 5)

# ------------------------------------------------------------------ agreement


@pytest.mark.parametrize("num_stages", [2, 3, 4])
@pytest.mark.parametrize("profile", PROFILES)
def test_one_replica(profile: Profile, num_stages: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        case = seeded_case(seed, profile)
        kernel = assert_agrees(case, num_stages)
        seen["async" if case.params.async_scheduling else "sync"] += 1
        seen["caching" if case.params.enable_prefix_caching else "no caching"] += 1
        seen["preempted"] += kernel.num_preemptions
        seen["hit"] += int((kernel.outputs.cached > 0).sum())
        seen["named output"] += kernel.packed.names_output
    least = {"async": 15, "sync": 5, "caching": 5, "preempted": 20, "hit": 15, "named output": 5}
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}


@some
@given(case=cases(), num_stages=NUM_STAGES)
def test_one_replica_on_any_case(case: Case, num_stages: int) -> None:
    assert_agrees(case, num_stages)


@some
@given(case=cases(), num_stages=NUM_STAGES, num_replicas=st.integers(2, 4), router=st.sampled_from(ROUTERS))
def test_fleets_on_any_case(case: Case, num_stages: int, num_replicas: int, router: Router) -> None:
    assert_agrees(case, num_stages, num_replicas=num_replicas, router=router)


@pytest.mark.parametrize("profile", PROFILES)
def test_ties(profile: Profile) -> None:
    """Stages of one second and arrivals on the second."""
    for seed in range(20):
        case = with_ties(seeded_case(seed, profile))
        times = replace(
            case.times, decode_fixed_s=2 * case.times.decode_fixed_s, mixed_tokens_s=2 * case.times.mixed_tokens_s
        )
        assert_agrees(replace(case, times=times), 2, num_replicas=1 + seed % 3, router=ROUTERS[seed % 3])


@some
@given(case=cases(), num_stages=NUM_STAGES, concurrency=st.integers(1, 14), think_s=st.sampled_from([0.0, 0.02]))
def test_a_client_in_a_closed_loop(case: Case, num_stages: int, concurrency: int, think_s: float) -> None:
    compared = pipeline(num_stages)
    compared.assert_closed_loop_agrees(normalized(case), concurrency=concurrency, think_s=think_s)


def fingerprint() -> str:
    """Digest of every output bit of some runs."""
    return properties.digest_of(
        run_kernel(
            normalized(seeded_case(seed, profile)), 2 + seed, num_replicas=2, router=ROUTERS[seed], record_itl=True
        )
        for profile in PROFILES
        for seed in range(3)
    )


def test_compiled_code_computes_what_the_source_says() -> None:
    properties.assert_compiled_equals_source(fingerprint)


# ------------------------------------------------------------------ laws


@some
@given(case=cases())
def test_one_stage_is_the_engine_without_stages(case: Case) -> None:
    """The plain pipeline of one stage and the plain scheduler, which know nothing of each other's clocks."""
    case = normalized(case)
    one = pipeline_plain.simulate(case.requests, case.params, case.times, [7])
    plain = vllm_plain.simulate(case.requests, case.params, case.times)
    assert [step.rows for step in one.steps] == [step.rows for step in plain.steps]
    assert (one.num_preemptions, one.peak_running, one.peak_blocks) == (
        plain.num_preemptions,
        plain.peak_running,
        plain.peak_blocks,
    )
    for a, b in zip(one.requests, plain.requests, strict=True):
        assert (a.first_token_s, a.last_token_s) == pytest.approx((b.first_token_s, b.last_token_s), rel=1e-12)


@some
@given(case=cases(), num_stages=NUM_STAGES)
def test_the_tokens_of_a_request_are_a_whole_pass_apart(case: Case, num_stages: int) -> None:
    """The shortest pass of one row bounds the gaps; batches leave in the order of their plans."""
    case = normalized(case)
    outcome = run_kernel(case, num_stages, record_itl=True)
    itl = to_log(workload_of(case), outcome).itl
    assert itl is not None
    gaps = expanded(itl)
    assert len(gaps) == sum(request.output_tokens - 1 for request in case.requests)
    assert len(gaps) == 0 or gaps.min() >= float(case.times.decode_fixed_s[1]) * (1 - 1e-9)
    span_s = (outcome.outputs.last - outcome.outputs.first).sum()
    assert math.isclose(gaps.sum(), span_s, rel_tol=1e-9, abs_tol=1e-9)
    plain = pipeline_plain.simulate(case.requests, case.params, case.times, layers_of_stages(32, num_stages))
    ends = [step.end_s for step in plain.steps]
    assert ends == sorted(ends)


@some
@given(case=cases(), num_stages=NUM_STAGES)
def test_running_in_pieces_changes_nothing(case: Case, num_stages: int) -> None:
    case = normalized(case)
    layers = layers_of_stages(MODEL.num_layers, num_stages)
    whole = pipeline_plain.simulate(case.requests, case.params, case.times, layers)
    engine = pipeline_plain.Engine(case.params, case.times, layers)
    for request in case.requests:
        engine.run_until(request.arrival_s)
        engine.submit(request)
    engine.run_until(math.inf)
    assert engine.result() == whole


@some
@given(case=cases(), num_stages=NUM_STAGES)
def test_samples_count_the_requests_in_the_engine(case: Case, num_stages: int) -> None:
    """Running and waiting requests are at most those that have arrived, at least those without their last token."""
    case = normalized(case)
    outcome = run_kernel(case, num_stages, num_samples=50)
    samples = outcome.recorder.samples[0, : outcome.recorder.counts[0, 1]]
    extra = outcome.packed.requests.extra
    for time_s, running, waiting, used in samples:
        came = int((workload_of(case).arrival_s <= time_s).sum())
        left = int((outcome.outputs.last - extra <= time_s * (1 + 1e-12)).sum())
        assert came - left <= running + waiting <= came
        assert 0 <= used <= case.params.num_kv_blocks


def test_a_full_pipeline_yields_a_batch_every_slowest_stage() -> None:
    """Three stages of 11, 11 and 10 s. Three requests in groups of their own: a token every 11 s, each request's 33 s
    after its last. One alone takes 32 s a token. (A is in steps 1, 4, ..., B in plan 5 at 32 s, C in plan 9 at 75.)"""
    times = unit_table()
    times = replace(times, decode_fixed_s=32 * times.decode_fixed_s, mixed_tokens_s=32 * times.mixed_tokens_s)
    crowd = tuple(req(number, arrival_s, 4, 20) for number, arrival_s in enumerate((0.0, 10.0, 70.0)))
    settled: dict[int, np.ndarray] = {}
    for requests in (crowd, crowd[:1]):
        case = Case(requests=requests, params=params(), times=times)
        itl = to_log(workload_of(case), run_kernel(case, 3, record_itl=True)).itl
        assert itl is not None
        settled[len(requests)] = expanded(itl)
    assert settled[1].tolist() == pytest.approx([32.0] * 19)
    assert np.median(settled[3]) == pytest.approx(33.0)


# ------------------------------------------------------------------ stages and refusals


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "layers"),
    [(32, 2, (16, 16)), (32, 3, (11, 11, 10)), (61, 2, (31, 30)), (61, 4, (15, 15, 16, 15)), (7, 4, (2, 2, 2, 1))],
)
def test_layers_left_over_go_to_the_stages_before_the_last(
    num_layers: int, num_stages: int, layers: tuple[int, ...]
) -> None:
    """As vLLM's ``get_pp_indices`` has it."""
    assert layers_of_stages(num_layers, num_stages) == layers


def test_pipelines_of_other_engines_are_refused() -> None:
    case = normalized(seeded_case(0, "mixed"))
    version = tgi.default_version()
    params = tgi.default_params(version, GPU, MODEL)
    deployment = replace(staged(case, 2), engine="tgi", engine_version=version, params=params)
    with pytest.raises(InputError, match="pipeline_parallel_size 2: pipeline stages of 'tgi' are not simulated"):
        simulate(workload_of(case), deployment, model_of(case), memory_of(case))


def test_every_step_counts_once() -> None:
    """No windows: fast-forward has nothing to change."""
    kernel = run_kernel(normalized(seeded_case(1, "mixed")), 2)
    assert (kernel.counters[:, layout.NUM_WINDOWS] == kernel.counters[:, layout.NUM_STEPS]).all()
