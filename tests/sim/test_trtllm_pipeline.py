"""TensorRT-LLM with pipeline stages: the kernel against the plain pipeline, schedules by hand, and laws."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.plain_engine import Request
from oracle.strategies import PROFILES, Profile, req, unit_table
from oracle.trtllm_cases import TrtllmCase, seeded_trtllm_case, trtllm, trtllm_cases
from oracle.trtllm_pipeline_plain import Engine
from oracle.trtllm_plain import Params
from servewise.errors import InputError
from servewise.kernel import layout
from servewise.sim import simulate, to_log
from servewise.sim.drivers.trtllm import layers_of_stages
from servewise.types import Deployment, Parallelism, Router, TrtllmParams
from sim import agree, properties, trtllm_agree
from sim.properties import expanded

some = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])

ROUTERS: tuple[Router, ...] = ("round_robin", "least_requests", "prefix_aware")
NUM_STAGES = st.integers(2, 4)


def staged(
    case: TrtllmCase, num_stages: int, num_replicas: int = 1, router: Router = "round_robin", num_ranks: int = 1
) -> Deployment:
    """The case's deployment with pipeline stages."""
    parallelism = Parallelism(pipeline_parallel_size=num_stages, data_parallel_size=num_ranks)
    return replace(trtllm_agree.deployment_of(case, num_replicas, router), parallelism=parallelism)


def without_eviction(case: TrtllmCase) -> TrtllmCase:
    """The case with what is simulated with stages."""
    return replace(case, params=replace(case.params, policy="GUARANTEED_NO_EVICT", batch_wait_timeout_iters=0))


def pipeline(num_stages: int) -> agree.Comparison:
    """Pipelines of so many stages."""
    layers = layers_of_stages(agree.MODEL.num_layers, num_stages)
    return agree.Comparison(
        deployment_of=lambda case, *fleet: staged(case, num_stages, *fleet),
        engine_of=lambda case: Engine(case.params, case.times, layers),
        normalized=without_eviction,
    )


# ------------------------------------------------------------------ agreement


@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize("profile", PROFILES)
def test_one_replica(profile: Profile, num_stages: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        case = seeded_trtllm_case(seed, profile)
        kernel = pipeline(num_stages).assert_open_agrees(case)
        for name in ("slots_bound", "memory_bound", "budget_bound"):
            seen[name] += getattr(kernel, name)
        seen["hits"] += int((kernel.outputs.cached > 0).sum())
        seen["chunks"] += case.params.enable_chunked_prefill
    least = {"slots_bound": 5, "memory_bound": 10, "budget_bound": 5, "chunks": 5}
    least |= {"hits": 200} if profile == "prefix" else {}
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}


@some
@given(case=trtllm_cases(), num_stages=NUM_STAGES, num_replicas=st.integers(1, 3), router=st.sampled_from(ROUTERS))
def test_fleets_on_any_case(case: TrtllmCase, num_stages: int, num_replicas: int, router: Router) -> None:
    pipeline(num_stages).assert_open_agrees(case, num_replicas=num_replicas, router=router)


@some
@given(
    case=trtllm_cases(),
    num_stages=NUM_STAGES,
    concurrency=st.integers(1, 14),
    think_s=st.sampled_from([0.0, 0.02]),
)
def test_a_client_in_a_closed_loop(case: TrtllmCase, num_stages: int, concurrency: int, think_s: float) -> None:
    pipeline(num_stages).assert_closed_loop_agrees(case, concurrency=concurrency, think_s=think_s)


def test_deferred_prompts_are_among_the_cases() -> None:
    deferrals = sum(pipeline(2).run_plain(seeded_trtllm_case(seed, "prefix")).deferrals for seed in range(20))
    assert deferrals > 50


def fingerprint() -> str:
    """Digest of every output bit of some runs."""
    cases = [seeded_trtllm_case(seed, profile, 30) for profile in PROFILES for seed in range(2)]
    return properties.digest_of(properties.open_and_closed(pipeline(2), cases))


def test_compiled_code_computes_what_the_source_says() -> None:
    properties.assert_compiled_equals_source(fingerprint)


# ------------------------------------------------------------------ by hand


def by_hand(requests: tuple[Request, ...], params: Params) -> list[tuple[float, float]]:
    """First and last tokens on two stages of 1 s, whatever is in a batch; the plain pipeline agrees."""
    times = unit_table()
    times = replace(times, decode_fixed_s=2 * times.decode_fixed_s, mixed_tokens_s=2 * times.mixed_tokens_s)
    outputs = pipeline(2).assert_open_agrees(TrtllmCase(requests=requests, params=params, times=times)).outputs
    return list(zip(outputs.first.tolist(), outputs.last.tolist(), strict=True))


def test_two_stages() -> None:
    """A: 4 in, 3 out at 0; B and C: 4 in, 2 out at 0.5 and 1. Eight tokens a batch, two batches in flight::

    plan  at  batch              stage 1  stage 2
    1     0   A's prompt         0..1     1..2    A1 at 2
    2     0   (empty)
    3     2   A, B's prompt      2..3     3..4    A2, B1 at 4; C's prompt does not fit beside them
    4     2   C's prompt         3..4     4..5    C1 at 5
    5     4   A, B               4..5     5..6    A3, B2 at 6
    6     5   C                  5..6     6..7    C2 at 7
    """
    three = (req(0, 0.0, 4, 3), req(1, 0.5, 4, 2), req(2, 1.0, 4, 2))
    assert by_hand(three, trtllm()) == [(2.0, 6.0), (4.0, 6.0), (5.0, 7.0)]


def test_chunks_of_a_prompt_follow_each_other() -> None:
    """D: 20 in, 1 out at 0; E: 4 in, 2 out at 0.5, whose prompt fits beside D's last chunk::

    plan  at  batch              stage 1  stage 2
    1     0   D 8 of 20          0..1     1..2
    2     0   D 8                1..2     2..3    though the first is still in the pipeline
    3     2   D 4, E's prompt    2..3     3..4    D1, E1 at 4
    4     3   (E's token is not known: empty)
    5     4   E                  4..5     5..6    E2 at 6
    """
    assert by_hand((req(0, 0.0, 20, 1), req(1, 0.5, 4, 2)), trtllm(chunking=True)) == [(4.0, 4.0), (4.0, 6.0)]


def test_a_last_token_by_stop_costs_no_row() -> None:
    """One seat in a batch, and two in all: A ends by stop; B, which waits for a seat, starts in the plan at 4."""
    a, b = req(0, 0.0, 4, 2, stop=True), req(1, 0.0, 4, 1)
    outputs = by_hand((a, b), trtllm(seats=1))
    # plan 1: A's prompt 0..2; plan 2 at 0: B's prompt 1..3; plan 3 at 2: A 2..4; nothing else
    assert outputs == [(2.0, 4.0), (3.0, 3.0)]


# ------------------------------------------------------------------ laws and refusals


@some
@given(case=trtllm_cases(), num_stages=NUM_STAGES)
def test_tokens_are_a_pass_apart_and_none_is_lost(case: TrtllmCase, num_stages: int) -> None:
    case = without_eviction(case)
    outcome = pipeline(num_stages).run_open(case, record_itl=True)
    itl = to_log(trtllm_agree.workload_of(case), outcome).itl
    assert itl is not None
    gaps = expanded(itl)
    assert len(gaps) == sum(request.output_tokens - 1 for request in case.requests)
    assert len(gaps) == 0 or gaps.min() >= float(case.times.decode_fixed_s[1]) * (1 - 1e-9)
    np.testing.assert_allclose(gaps.sum(), (outcome.outputs.last - outcome.outputs.first).sum(), atol=1e-9)
    assert (outcome.counters[:, layout.PEAK_RUNNING] <= num_stages * case.params.max_batch_size).all()


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "layers"), [(32, 2, (16, 16)), (32, 3, (11, 11, 10)), (61, 4, (16, 15, 15, 15))]
)
def test_layers_left_over_go_to_the_first_stages(num_layers: int, num_stages: int, layers: tuple[int, ...]) -> None:
    assert layers_of_stages(num_layers, num_stages) == layers


def test_what_is_not_simulated_with_stages_is_refused() -> None:
    case = without_eviction(seeded_trtllm_case(0, "mixed"))
    run = (trtllm_agree.model_of(case), trtllm_agree.memory_of(case))
    plain = staged(case, 2)
    assert isinstance(plain.params, TrtllmParams)
    for change in ({"capacity_scheduler_policy": "MAX_UTILIZATION"}, {"batch_wait_timeout_iters": 1}):
        with pytest.raises(InputError, match="MAX_UTILIZATION and batch_wait_timeout_iters are not simulated"):
            simulate(
                trtllm_agree.workload_of(case),
                replace(plain, params=replace(plain.params, **change)),  # type: ignore[arg-type]
                *run,
            )
    with pytest.raises(InputError, match="data_parallel_size 2 with pipeline stages of 'tensorrt-llm'"):
        simulate(trtllm_agree.workload_of(case), staged(case, 2, num_ranks=2), *run)
