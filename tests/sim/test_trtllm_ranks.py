"""TensorRT-LLM's ranks: the kernel and the plain ranks agree, steps worked out by hand, and laws."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.plain_engine import Request
from oracle.ranks_plain import RankFleetResult, simulate_rank_fleet
from oracle.strategies import PROFILES, Profile, for_ranks, req, unit_table
from oracle.trtllm_cases import TrtllmCase, seeded_trtllm_case, trtllm, trtllm_cases
from oracle.trtllm_ranks_plain import TrtllmRanks
from servewise import perf
from servewise.catalog import get_gpu, get_model
from servewise.engines import trtllm as engine
from servewise.errors import InputError
from servewise.kernel import layout
from servewise.sim import Outcome, simulate
from servewise.traffic import load_profile
from servewise.types import Deployment, Parallelism, Precision, Promise, Router
from sim import agree, properties, trtllm_agree

some = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])

ROUTERS: tuple[Router, ...] = ("round_robin", "least_requests")


def run_kernel(
    case: TrtllmCase, num_ranks: int, *, num_replicas: int = 1, router: Router = "round_robin", **asked: Any
) -> Outcome:
    """The kernel's view of a case."""
    deployment = replace(
        trtllm_agree.deployment_of(case, num_replicas, router), parallelism=Parallelism(data_parallel_size=num_ranks)
    )
    return simulate(agree.workload_of(case), deployment, agree.model_of(case), agree.memory_of(case), **asked)


def run_plain(
    case: TrtllmCase, num_ranks: int, *, num_replicas: int = 1, router: Router = "round_robin"
) -> RankFleetResult:
    """The plain ranks' view of it."""
    return simulate_rank_fleet(
        case.requests,
        case.params,  # type: ignore[arg-type]
        case.times,
        num_replicas=num_replicas,
        num_ranks=num_ranks,
        kv_aware=False,
        router=router,
        new_ranks=TrtllmRanks,
    )


def assert_agrees(
    case: TrtllmCase,
    num_ranks: int,
    *,
    seed: int = 0,
    num_replicas: int = 1,
    router: Router = "round_robin",
    fast_forward: bool = True,
) -> Outcome:
    """Compare one case in both implementations; returns the kernel's outcome."""
    case = replace(case, times=for_ranks(case.times, num_ranks, seed))
    plain = run_plain(case, num_ranks, num_replicas=num_replicas, router=router)
    kernel = run_kernel(case, num_ranks, num_replicas=num_replicas, router=router, fast_forward=fast_forward)
    assert tuple(kernel.replica_of) == plain.replica
    expected, extra = plain.requests, kernel.packed.requests.extra
    np.testing.assert_allclose(kernel.outputs.first - extra, [r.first_token_s for r in expected], rtol=1e-9)
    np.testing.assert_allclose(kernel.outputs.last - extra, [r.last_token_s for r in expected], rtol=1e-9)
    np.testing.assert_array_equal(kernel.outputs.preemptions, [r.num_preemptions for r in expected])
    np.testing.assert_array_equal(kernel.outputs.cached, [r.cached_tokens for r in expected])
    runs = [run for replica in plain.replicas for run in replica.ranks]
    np.testing.assert_array_equal(kernel.counters[:, layout.NUM_STEPS], [len(run.steps) for run in runs])
    np.testing.assert_array_equal(kernel.counters[:, layout.PEAK_RUNNING], [run.peak_running for run in runs])
    np.testing.assert_array_equal(kernel.counters[:, layout.PEAK_BLOCKS], [run.peak_blocks for run in runs])
    assert kernel.num_simulated == len(expected)
    return kernel


# ------------------------------------------------------------------ agreement


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "single steps"])
@pytest.mark.parametrize("profile", PROFILES)
def test_ranks_of_one_replica(profile: Profile, fast_forward: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(30):
        kernel = assert_agrees(seeded_trtllm_case(seed, profile), 2 + seed % 3, seed=seed, fast_forward=fast_forward)
        for name in ("slots_bound", "memory_bound", "budget_bound"):
            seen[name] += getattr(kernel, name)
        seen["hits"] += int((kernel.outputs.cached > 0).sum())
        seen["shorter"] += int((kernel.counters[:, layout.NUM_STEPS] - kernel.counters[:, layout.NUM_WINDOWS]).sum())
        seen["pauses"] += kernel.num_preemptions
    least = {"memory_bound": 5, "budget_bound": 5, "slots_bound": 2}
    least |= {"prefix": {"hits": 100}, "preempting": {"pauses": 50}}.get(profile, {})
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}
    assert (seen["shorter"] > 50) == fast_forward


@some
@given(
    case=trtllm_cases(),
    num_ranks=st.integers(2, 4),
    num_replicas=st.integers(1, 3),
    router=st.sampled_from(ROUTERS),
    fast_forward=st.booleans(),
)
def test_fleets_on_any_case(
    case: TrtllmCase, num_ranks: int, num_replicas: int, router: Router, fast_forward: bool
) -> None:
    assert_agrees(case, num_ranks, num_replicas=num_replicas, router=router, fast_forward=fast_forward)


def fingerprint() -> str:
    """Digest of every output bit of some runs."""
    outcomes = []
    for seed in range(8):
        case = seeded_trtllm_case(seed, PROFILES[seed % len(PROFILES)], 30)
        case = replace(case, times=for_ranks(case.times, 2, seed))
        outcomes.append(run_kernel(case, 2, num_replicas=1 + seed % 2, router="least_requests", record_itl=True))
    return properties.digest_of(outcomes)


def test_compiled_code_computes_what_the_source_says() -> None:
    properties.assert_compiled_equals_source(fingerprint)


# ------------------------------------------------------------------ by hand


def by_hand(*requests: Request, seats: int = 4) -> tuple[list[tuple[float, float]], list[int]]:
    """First and last tokens on two ranks with steps of 1 s, and the rank of each request."""
    times = replace(unit_table(), experts_s=np.zeros(2 * 4096 + 1))
    case = TrtllmCase(requests=requests, params=trtllm(seats=seats), times=times)
    kernel, plain = run_kernel(case, 2), run_plain(case, 2)
    tokens = list(zip(kernel.outputs.first.tolist(), kernel.outputs.last.tolist(), strict=True))
    assert tokens == [(r.first_token_s, r.last_token_s) for r in plain.requests]
    assert kernel.scheduler_of.tolist() == list(plain.replicas[0].rank)
    return tokens, kernel.scheduler_of.tolist()


def test_what_arrives_together_is_balanced_by_its_prompts() -> None:
    """Prompts of 2, 8, 4 and 6 tokens at 0, at most two a rank. The longest choose first: 8 goes to rank 0, 6 to rank 1
    (0 tokens), 4 to rank 1 (6 < 8), which is full then, 2 to rank 0. Eight tokens a step: 8 on rank 0 alone, so that 2
    waits for the next; 4 before 6 on rank 1, by arrival, so that 6 waits."""
    requests = [req(number, 0.0, tokens, 1) for number, tokens in enumerate((2, 8, 4, 6))]
    tokens, ranks = by_hand(*requests)
    assert ranks == [0, 0, 1, 1]
    # by arrival: 2 first on rank 0, then 8 does not fit beside it
    assert tokens == [(1.0, 1.0), (2.0, 2.0), (1.0, 1.0), (2.0, 2.0)]


def test_a_rank_that_is_full_leaves_requests_to_the_others() -> None:
    """A long prompt keeps tokens on rank 0, but a rank may not have more than its share of the requests: three requests
    on two ranks are at most two each, so the third goes to rank 1 too, the fourth to rank 0."""
    arrivals = [req(0, 0.0, 8, 9), req(1, 0.5, 2, 9), req(2, 1.5, 2, 9), req(3, 2.5, 2, 9)]
    _, ranks = by_hand(*arrivals)
    assert ranks == [0, 1, 1, 0]


def test_requests_wait_ahead_of_the_ranks_until_one_has_a_seat() -> None:
    """One seat each. C comes at 0.5 and finds both taken: A leaves with the step that ends at 2, and C is on its rank
    then, in the plan that is made at 2, whose step begins at once because the rank has no other."""
    tokens, ranks = by_hand(req(0, 0.0, 4, 2), req(1, 0.0, 4, 4), req(2, 0.5, 4, 1), seats=1)
    assert ranks == [0, 1, 0]
    assert tokens == [(1.0, 2.0), (1.0, 4.0), (3.0, 3.0)]


# ------------------------------------------------------------------ laws


@some
@given(case=trtllm_cases())
def test_equal_ranks_do_the_same(case: TrtllmCase) -> None:
    """Pairs of equal requests: one goes to each of two ranks, and their tokens come at the same instants."""
    pairs = tuple(
        replace(request, id=2 * number + twin, block_ids=())
        for number, request in enumerate(case.requests)
        for twin in (0, 1)
    )
    case = replace(case, requests=pairs, times=for_ranks(case.times, 2, 0))
    outcome = run_kernel(case, 2)
    assert set((outcome.scheduler_of[::2] + outcome.scheduler_of[1::2]).tolist()) == {1}
    np.testing.assert_allclose(outcome.outputs.first[::2], outcome.outputs.first[1::2], rtol=1e-9)
    np.testing.assert_allclose(outcome.outputs.last[::2], outcome.outputs.last[1::2], rtol=1e-9)


def test_a_run_stops_when_the_ranks_together_have_too_many_bad() -> None:
    case = seeded_trtllm_case(3, "mixed")
    case = replace(case, times=for_ranks(case.times, 2, 0))
    tight = Promise(ttft_s=1e-6)  # which nobody keeps
    stopped = run_kernel(case, 2, promise=tight, max_bad=5)
    assert stopped.broken
    assert 6 <= stopped.num_bad < len(case.requests)
    whole = run_kernel(case, 2, promise=tight)
    assert whole.num_bad == len(case.requests)


def real_deployment(**sizes: int) -> Deployment:
    """Qwen3-30B-A3B on H100."""
    model, gpu, version = get_model("Qwen/Qwen3-30B-A3B"), get_gpu("H100-SXM-80GB"), "1.2.1"
    params = replace(
        engine.default_params(version, gpu, model), max_seq_len=16384, max_batch_size=128, enable_chunked_prefill=True
    )
    return Deployment(
        model=model,
        gpu=gpu,
        engine="tensorrt-llm",
        engine_version=version,
        precision=Precision(),
        parallelism=Parallelism(**sizes),
        params=params,
    )


def test_windows_change_nothing_with_the_real_step_table() -> None:
    azure = load_profile("azure-conversation-2023")
    first = slice(0, 1500)
    wanted = real_deployment(data_parallel_size=4, expert_parallel_size=4)
    model, memory = perf.step_model(wanted), perf.memory(wanted)
    for rate_rps in (4.0, 40.0):
        workload = replace(
            azure,
            arrival_s=np.arange(1500) / rate_rps,
            input_tokens=azure.input_tokens[first],
            output_tokens=azure.output_tokens[first],
            max_tokens=azure.max_tokens[first],
        )
        fast = simulate(workload, wanted, model, memory)
        slow = simulate(workload, wanted, model, memory, fast_forward=False)
        np.testing.assert_allclose(fast.outputs.first, slow.outputs.first, rtol=1e-9)
        np.testing.assert_allclose(fast.outputs.last, slow.outputs.last, rtol=1e-9)
        assert not np.isnan(fast.outputs.last).any()
        assert fast.counters[:, layout.NUM_WINDOWS].sum() < 0.9 * fast.counters[:, layout.NUM_STEPS].sum()
        per_rank = np.bincount(fast.scheduler_of, minlength=4)
        assert per_rank.min() > 0.8 * per_rank.max()


def test_ranks_are_single_gpus() -> None:
    wanted = real_deployment(tensor_parallel_size=2, data_parallel_size=2, expert_parallel_size=4)
    with pytest.raises(InputError, match="makes every GPU a rank of its own; use tensor_parallel_size 1"):
        perf.step_model(wanted)
