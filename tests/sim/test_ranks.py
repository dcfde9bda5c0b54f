"""Data parallel ranks in lock step: the kernel and the plain ranks agree, and windows change nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.plain_engine import Row
from oracle.ranks_plain import joint_duration, simulate_rank_fleet
from oracle.strategies import PROFILES, Case, Profile, cases, for_ranks, params, req, seeded_case, unit_table
from oracle.vllm_plain import Live
from servewise import perf
from servewise.catalog import get_gpu, get_model
from servewise.engines import vllm
from servewise.errors import InputError
from servewise.kernel import layout
from servewise.sim import Outcome, run, simulate
from servewise.traffic import load_profile
from servewise.types import Deployment, Parallelism, Precision, Promise, Router, StepTable
from sim import properties
from sim.agree import deployment_of, memory_of, model_of, normalized, workload_of

some = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])

VERSIONS = {False: "0.26.0", True: "0.33.0"}
"""vLLM versions whose router looks at the KV cache, or does not."""
ROUTERS: tuple[Router, ...] = ("round_robin", "least_requests")


def run_kernel(
    case: Case,
    num_ranks: int,
    *,
    kv_aware: bool = True,
    num_replicas: int = 1,
    router: Router = "round_robin",
    **asked: object,
) -> Outcome:
    """The kernel's view of a case."""
    deployment = deployment_of(case, num_replicas, router, num_ranks, VERSIONS[kv_aware])
    return simulate(workload_of(case), deployment, model_of(case), memory_of(case), **asked)  # type: ignore[arg-type]


def assert_agrees(
    case: Case,
    num_ranks: int,
    *,
    seed: int = 0,
    kv_aware: bool = True,
    num_replicas: int = 1,
    router: Router = "round_robin",
    fast_forward: bool = True,
) -> Outcome:
    """Compare one case in both implementations; returns the kernel's outcome."""
    case = normalized(case)
    case = dataclasses.replace(case, times=for_ranks(case.times, num_ranks, seed))
    plain = simulate_rank_fleet(
        case.requests,
        case.params,
        case.times,
        num_replicas=num_replicas,
        num_ranks=num_ranks,
        kv_aware=kv_aware,
        router=router,
    )
    kernel = run_kernel(
        case, num_ranks, kv_aware=kv_aware, num_replicas=num_replicas, router=router, fast_forward=fast_forward
    )
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
    return kernel


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "single steps"])
@pytest.mark.parametrize("profile", PROFILES)
def test_ranks_of_one_replica(profile: Profile, fast_forward: bool) -> None:
    preempted = hits = shorter = 0
    for seed in range(30):
        kernel = assert_agrees(
            seeded_case(seed, profile), 2 + seed % 3, seed=seed, kv_aware=seed % 2 > 0, fast_forward=fast_forward
        )
        preempted += kernel.num_preemptions
        hits += int((kernel.outputs.cached > 0).sum())
        shorter += int(kernel.counters[:, layout.NUM_STEPS].sum() - kernel.counters[:, layout.NUM_WINDOWS].sum())
    assert preempted > 5
    assert hits > 5
    assert (shorter > 50) == fast_forward


@some
@given(
    case=cases(),
    num_ranks=st.integers(2, 4),
    num_replicas=st.integers(1, 3),
    kv_aware=st.booleans(),
    router=st.sampled_from(ROUTERS),
    fast_forward=st.booleans(),
)
def test_fleets_of_ranks_on_any_case(
    case: Case, num_ranks: int, num_replicas: int, kv_aware: bool, router: Router, fast_forward: bool
) -> None:
    assert_agrees(
        case, num_ranks, kv_aware=kv_aware, num_replicas=num_replicas, router=router, fast_forward=fast_forward
    )


@pytest.mark.parametrize("router", ROUTERS)
def test_fleets_of_ranks(router: Router) -> None:
    for seed in range(12):
        profile = PROFILES[seed % len(PROFILES)]
        assert_agrees(seeded_case(seed, profile), 2, seed=seed, num_replicas=1 + seed % 4, router=router)


@pytest.mark.parametrize("lag", [True, False], ids=["lag", "no lag"])
def test_ties(lag: bool) -> None:
    """Steps of one second, arrivals on the second."""
    requests = tuple(req(i, float(i // 2), 3 + i % 5, 2 + i % 7, stop=i % 4 == 0) for i in range(40))
    case = Case(requests=requests, params=params(lag=lag, blocks=30), times=unit_table())
    for kv_aware in (False, True):
        assert_agrees(case, 3, kv_aware=kv_aware)


# ------------------------------------------------------------------ by hand


def hand_case(lag: bool = True) -> Case:
    """Two prompts for two ranks. Steps take 10 s a token of the fullest rank, 1 s a prompt token of their own."""
    table = dataclasses.replace(
        unit_table(8, 64),
        mixed_tokens_s=10.0 * np.arange(65),
        decode_fixed_s=10.0 * np.arange(9),
        prefill_s_per_token=1.0,
    )
    requests = (req(0, 0.0, 4, 3), req(1, 0.0, 2, 1))
    case = Case(requests=requests, params=params(lag=lag), times=for_ranks(table, 2, 0))
    return dataclasses.replace(case, times=dataclasses.replace(case.times, padded_decode_tokens=64))


def test_a_step_takes_as_long_as_its_slowest_rank() -> None:
    # Step 0: 4 tokens beside 2, no graph: 40 s, less the experts of 8 - 6 tokens, and 4 s for the longer prompt.
    # Steps 1 and 2: one row beside a dummy, padded alike: 10 s each.
    case = hand_case()
    case = dataclasses.replace(case, times=dataclasses.replace(case.times, padded_mixed_tokens=0))
    saved_s = float(case.times.experts_s[8] - case.times.experts_s[6])
    assert saved_s > 0
    outcome = run_kernel(case, 2)
    np.testing.assert_allclose(outcome.outputs.first, 44.0 - saved_s, rtol=1e-12)
    np.testing.assert_allclose(outcome.outputs.last, [64.0 - saved_s, 44.0 - saved_s], rtol=1e-12)
    np.testing.assert_array_equal(outcome.counters[:, layout.NUM_STEPS], [3, 1])


def test_padded_ranks_compute_the_experts_of_the_fullest() -> None:
    case = hand_case()
    case = dataclasses.replace(case, times=dataclasses.replace(case.times, padded_mixed_tokens=4))
    np.testing.assert_allclose(run_kernel(case, 2).outputs.first, 44.0, rtol=1e-12)


def test_an_idle_rank_joins_the_next_step() -> None:
    # The second request comes during the first step, on an idle rank: it runs in the next one, and not the one after.
    case = hand_case()
    case = dataclasses.replace(case, requests=(req(0, 0.0, 4, 3), req(1, 1.0, 2, 1)))
    case = dataclasses.replace(case, times=dataclasses.replace(case.times, padded_mixed_tokens=64))
    outcome = run_kernel(case, 2)
    # 44 s, then one row beside two prompt tokens: 20 s and 2 s
    np.testing.assert_allclose(outcome.outputs.first, [44.0, 66.0], rtol=1e-12)
    np.testing.assert_allclose(outcome.outputs.last, [76.0, 66.0], rtol=1e-12)


def test_a_rank_with_a_prompt_makes_all_of_them_unpadded() -> None:
    table = hand_case().times
    table = dataclasses.replace(table, padded_decode_tokens=64, padded_mixed_tokens=0)
    live = Live(req(0, 0.0, 8, 2))
    prompt = [Row(live=live, tokens=8, start=0, is_prefill=True, samples=True)]
    row = [Row(live=live, tokens=1, start=8, is_prefill=False, samples=True)]
    saved_s = float(table.experts_s[16] - table.experts_s[9])
    assert joint_duration(table, [prompt, row]) == pytest.approx(80 + 8 - saved_s)
    assert joint_duration(table, [row, []]) == pytest.approx(10)


# ------------------------------------------------------------------ the router between ranks


def last_choice(*, kv_aware: bool, blocks: int) -> int:
    """Rank of a request that finds three running on rank 0, and on rank 1 one that waits behind a long prompt."""
    prompts = {0.0: (2, 60), 0.5: (2, 2), 1.5: (2,), 5.5: (2,)}  # by arrival [s]; steps of one second
    arrivals = [(at_s, tokens) for at_s, several in prompts.items() for tokens in several]
    requests = tuple(req(i, at_s, tokens, 2 if i == 1 else 40) for i, (at_s, tokens) in enumerate(arrivals))
    case = Case(requests=requests, params=params(blocks=blocks, seats=8), times=unit_table())
    plain = simulate_rank_fleet(
        case.requests,
        case.params,
        for_ranks(case.times, 2, 0),
        num_replicas=1,
        num_ranks=2,
        kv_aware=kv_aware,
        router="round_robin",
    )
    assert plain.replicas[0].rank[:5] == (0, 1, 0, 1, 0)
    assert_agrees(case, 2, kv_aware=kv_aware)
    return plain.replicas[0].rank[5]


def test_how_much_a_waiting_request_counts() -> None:
    # before 0.27 it counts as four: 3 against 5; since then as one unless memory is scarce: 3 against 2
    assert last_choice(kv_aware=False, blocks=100) == 0
    assert last_choice(kv_aware=True, blocks=100) == 1
    # 28 of 32 blocks hold the long prompt: 3 against 2 + 6 * (0.875 - 0.5)
    assert last_choice(kv_aware=True, blocks=32) == 0


def fingerprint() -> str:
    """Digest of every output bit of some runs."""
    outcomes = []
    for seed in range(8):
        case = normalized(seeded_case(seed, PROFILES[seed % len(PROFILES)], 30))
        case = dataclasses.replace(case, times=for_ranks(case.times, 2, seed))
        outcomes.append(run_kernel(case, 2, num_replicas=1 + seed % 2, router="least_requests", record_itl=True))
    return properties.digest_of(outcomes)


def test_compiled_code_computes_what_the_source_says() -> None:
    properties.assert_compiled_equals_source(fingerprint)


# ------------------------------------------------------------------ real size


def moe_deployment(num_ranks: int, *, lag: bool = True, num_replicas: int = 1) -> Deployment:
    """Qwen3-30B-A3B on so many GPUs."""
    model, gpu, version = get_model("Qwen/Qwen3-30B-A3B"), get_gpu("H100-SXM-80GB"), "0.33.0"
    defaults = vllm.default_params(version, gpu, model)
    return Deployment(
        model=model,
        gpu=gpu,
        engine="vllm",
        engine_version=version,
        precision=Precision(),
        parallelism=Parallelism(data_parallel_size=num_ranks, expert_parallel_size=num_ranks),
        params=dataclasses.replace(
            defaults, max_model_len=16384, async_scheduling=lag, enable_prefix_caching=False, max_num_seqs=64
        ),
        num_replicas=num_replicas,
    )


@pytest.mark.parametrize("lag", [True, False], ids=["lag", "no lag"])
def test_windows_change_nothing_with_the_real_step_table(lag: bool) -> None:
    azure = load_profile("azure-conversation-2023")
    first = slice(0, 1500)
    for rate_rps in (4.0, 40.0):
        workload = dataclasses.replace(
            azure,
            arrival_s=np.arange(1500) / rate_rps,
            input_tokens=azure.input_tokens[first],
            output_tokens=azure.output_tokens[first],
            max_tokens=azure.max_tokens[first],
        )
        wanted = moe_deployment(2, lag=lag)
        model, memory = perf.step_model(wanted), perf.memory(wanted)
        fast = simulate(workload, wanted, model, memory)
        slow = simulate(workload, wanted, model, memory, fast_forward=False)
        np.testing.assert_allclose(fast.outputs.first, slow.outputs.first, rtol=1e-9)
        np.testing.assert_allclose(fast.outputs.last, slow.outputs.last, rtol=1e-9)
        np.testing.assert_array_equal(fast.counters[:, layout.NUM_STEPS], slow.counters[:, layout.NUM_STEPS])
        assert not np.isnan(fast.outputs.last).any()
        assert fast.counters[:, layout.NUM_WINDOWS].sum() < 0.8 * fast.counters[:, layout.NUM_STEPS].sum()


def test_equal_ranks_are_as_fast_as_one_with_its_share() -> None:
    """Pairs of equal requests: both ranks always have the same to do, so one alone sees the same times."""
    wanted = moe_deployment(2)
    model, memory = perf.step_model(wanted), perf.memory(wanted)
    azure = load_profile("azure-conversation-2023")
    pairs = np.repeat(np.arange(200), 2)
    workload = dataclasses.replace(
        azure,
        arrival_s=pairs / 5.0,
        input_tokens=azure.input_tokens[pairs],
        output_tokens=azure.output_tokens[pairs],
        max_tokens=azure.max_tokens[pairs],
    )
    both = simulate(workload, wanted, model, memory).outputs
    half = dataclasses.replace(
        workload,
        arrival_s=workload.arrival_s[::2],
        input_tokens=workload.input_tokens[::2],
        output_tokens=workload.output_tokens[::2],
        max_tokens=workload.max_tokens[::2],
    )
    # a rank alone pads to itself: its experts are those of ranks as full as it is
    alone = dataclasses.replace(wanted, parallelism=Parallelism())
    one = simulate(half, alone, model, memory).outputs
    np.testing.assert_allclose(both.first[::2], one.first, rtol=1e-9)
    np.testing.assert_allclose(both.last[1::2], one.last, rtol=1e-9)


def test_a_run_stops_when_the_ranks_together_have_too_many_bad() -> None:
    case = hand_case()
    case = dataclasses.replace(case, requests=(*case.requests, req(2, 1000.0, 2, 2)))
    tight = Promise(ttft_s=1.0)  # which nobody keeps; the first two end on different ranks
    stopped = run_kernel(case, 2, promise=tight, max_bad=1)
    assert stopped.broken
    assert stopped.num_bad == 2
    np.testing.assert_array_equal(np.isnan(stopped.outputs.first), [False, False, True])
    whole = run_kernel(case, 2, promise=tight, max_bad=3)
    assert not whole.broken
    assert whole.num_bad == 3
    assert not np.isnan(whole.outputs.last).any()


def test_a_log_sums_the_ranks() -> None:
    wanted = moe_deployment(2, num_replicas=2)
    azure = load_profile("azure-conversation-2023")
    first = slice(0, 400)
    workload = dataclasses.replace(
        azure,
        arrival_s=np.arange(400) / 20.0,
        input_tokens=azure.input_tokens[first],
        output_tokens=azure.output_tokens[first],
        max_tokens=azure.max_tokens[first],
    )
    log = run(workload, wanted, perf.step_model(wanted), perf.memory(wanted))
    assert log.timeline is not None
    assert log.itl is not None
    assert set(log.replica) == {0, 1}
    gaps = int((log.itl.steps * log.itl.weight).sum())
    assert gaps == int((workload.output_tokens - 1).sum())
    assert log.timeline.running.max() > 4


def test_a_table_without_experts_is_refused() -> None:
    case = Case(requests=(req(0, 0.0, 4, 3),), params=params(), times=unit_table())
    with pytest.raises(InputError, match="all data parallel ranks together"):
        run_kernel(case, 2)


def test_the_table_s_experts_follow_the_formula() -> None:
    wanted = moe_deployment(4)
    table: StepTable = perf.step_model(wanted).table
    formula = perf.StepFormula(wanted)
    assert len(table.experts_s) == 4 * table.max_batched_tokens + 1
    tokens = np.unique(np.geomspace(1, len(table.experts_s) - 1, 500).astype(np.int64))
    np.testing.assert_allclose(table.experts_s[tokens], formula.experts_s(tokens.astype(float)), rtol=0.01)
    assert np.all(np.diff(table.experts_s) >= 0)
    assert (table.padded_decode_tokens, table.padded_mixed_tokens) == (128, 128)
    # a graph is replayed: the experts of a table of one rank beside equal ones see four times its tokens
    assert len(perf.step_model(dataclasses.replace(wanted, parallelism=Parallelism())).table.experts_s) == 0
