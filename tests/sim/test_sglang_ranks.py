"""SGLang's ranks in lock step: the kernel and the plain ranks agree, and windows change nothing."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.sglang_cases import PROFILES, Profile, SglangCase, seeded_sglang_case, sglang_cases, small
from oracle.sglang_ranks_plain import simulate_rank_fleet
from oracle.strategies import for_ranks, req, unit_table
from servewise import perf
from servewise.catalog import get_gpu, get_model
from servewise.engines import sglang
from servewise.kernel import layout
from servewise.sim import Outcome, run, simulate, to_log
from servewise.traffic import load_profile
from servewise.types import Deployment, Parallelism, Precision, Promise, Router, SglangParams, Workload
from sim import properties
from sim.sglang_agree import deployment_of, memory_of, model_of, workload_of

some = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])

ROUTERS: tuple[Router, ...] = ("round_robin", "least_requests")


def run_kernel(
    case: SglangCase,
    num_ranks: int,
    *,
    by_load: bool = False,
    num_replicas: int = 1,
    router: Router = "round_robin",
    **asked: object,
) -> Outcome:
    """The kernel's view of a case."""
    alone = deployment_of(case, num_replicas, router)
    assert isinstance(alone.params, SglangParams)
    deployment = dataclasses.replace(
        alone,
        parallelism=Parallelism(data_parallel_size=num_ranks),
        params=dataclasses.replace(alone.params, load_balance_method="total_requests" if by_load else "round_robin"),
    )
    return simulate(workload_of(case), deployment, model_of(case), memory_of(case), **asked)  # type: ignore[arg-type]


def assert_agrees(
    case: SglangCase,
    num_ranks: int,
    *,
    seed: int = 0,
    by_load: bool = False,
    num_replicas: int = 1,
    router: Router = "round_robin",
    fast_forward: bool = True,
) -> Outcome:
    """Compare one case in both implementations; returns the kernel's outcome."""
    case = dataclasses.replace(case, times=for_ranks(case.times, num_ranks, seed))
    plain = simulate_rank_fleet(
        case.requests,
        case.params,
        case.times,
        num_replicas=num_replicas,
        num_ranks=num_ranks,
        by_load=by_load,
        router=router,
    )
    kernel = run_kernel(
        case,
        num_ranks,
        by_load=by_load,
        num_replicas=num_replicas,
        router=router,
        fast_forward=fast_forward,
        record_itl=True,
    )
    properties.assert_gaps(to_log(workload_of(case), kernel), plain.token_s)
    assert tuple(kernel.replica_of) == plain.replica
    assert tuple(kernel.scheduler_of - num_ranks * kernel.replica_of) == plain.rank
    expected, extra = plain.requests, kernel.packed.requests.extra
    np.testing.assert_allclose(kernel.outputs.first - extra, [r.first_token_s for r in expected], rtol=1e-9)
    np.testing.assert_allclose(kernel.outputs.last - extra, [r.last_token_s for r in expected], rtol=1e-9)
    np.testing.assert_array_equal(kernel.outputs.preemptions, [r.num_preemptions for r in expected])
    np.testing.assert_array_equal(kernel.outputs.cached, [r.cached_tokens for r in expected])
    np.testing.assert_array_equal(kernel.counters[:, layout.NUM_STEPS], [len(run.steps) for run in plain.ranks])
    np.testing.assert_array_equal(kernel.counters[:, layout.PEAK_RUNNING], [run.peak_running for run in plain.ranks])
    np.testing.assert_array_equal(kernel.counters[:, layout.PEAK_BLOCKS], [run.peak_blocks for run in plain.ranks])
    return kernel


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "single steps"])
@pytest.mark.parametrize("profile", PROFILES)
def test_ranks_of_one_replica(profile: Profile, fast_forward: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(30):
        kernel = assert_agrees(
            seeded_sglang_case(seed, profile), 2 + seed % 3, seed=seed, by_load=seed % 2 > 0, fast_forward=fast_forward
        )
        seen["retracted"] += kernel.num_preemptions
        seen["hits"] += int((kernel.outputs.cached > 0).sum())
        seen["cut"] += kernel.budget_bound
        seen["scarce"] += kernel.memory_bound
        seen["windows"] += int(
            kernel.counters[:, layout.NUM_WINDOWS].sum() < kernel.counters[:, layout.NUM_STEPS].sum()
        )
    least = {"hits": 50, "cut": 15} | ({"retracted": 5, "scarce": 10} if profile == "scarce" else {})
    if fast_forward:
        least["windows"] = 10
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}


@some
@given(
    case=sglang_cases(),
    num_ranks=st.integers(2, 4),
    num_replicas=st.integers(1, 3),
    by_load=st.booleans(),
    router=st.sampled_from(ROUTERS),
    fast_forward=st.booleans(),
)
def test_fleets_of_ranks_on_any_case(
    case: SglangCase, num_ranks: int, num_replicas: int, by_load: bool, router: Router, fast_forward: bool
) -> None:
    assert_agrees(case, num_ranks, by_load=by_load, num_replicas=num_replicas, router=router, fast_forward=fast_forward)


@pytest.mark.parametrize("router", ROUTERS)
def test_fleets_of_ranks(router: Router) -> None:
    for seed in range(12):
        profile = PROFILES[seed % len(PROFILES)]
        assert_agrees(seeded_sglang_case(seed, profile), 2, seed=seed, num_replicas=1 + seed % 4, router=router)


def test_ties() -> None:
    """Steps of one second, arrivals on the second."""
    requests = tuple(req(i, float(i // 2), 3 + i % 5, 2 + i % 7, stop=i % 4 == 0) for i in range(40))
    case = SglangCase(requests=requests, params=small(pages=30), times=unit_table())
    for by_load in (False, True):
        assert_agrees(case, 3, by_load=by_load)


# ------------------------------------------------------------------ by hand


def hand_case(*, tokens_s: float = 10.0, padded: int = 64) -> SglangCase:
    """Two prompts for two ranks. Steps take 10 s a token of the fullest rank, 1 s a prompt token of their own."""
    table = dataclasses.replace(
        unit_table(8, 64),
        mixed_tokens_s=tokens_s * np.arange(65),
        decode_fixed_s=tokens_s * np.arange(9),
        prefill_s_per_token=1.0,
    )
    table = dataclasses.replace(for_ranks(table, 2, 0), padded_decode_tokens=padded, padded_mixed_tokens=0)
    return SglangCase(requests=(req(0, 0.0, 4, 3), req(1, 0.0, 2, 1)), params=small(), times=table)


def test_a_step_takes_as_long_as_its_slowest_rank() -> None:
    # Step 0: 4 tokens beside 2: 40 s, less what lies between 8 and 6 tokens, and 4 s for the longer prompt.
    # Steps 1 and 2: one row beside an idle batch, padded alike: 10 s each.
    case = hand_case()
    saved_s = float(case.times.experts_s[8] - case.times.experts_s[6])
    assert saved_s > 0
    outcome = run_kernel(case, 2)
    np.testing.assert_allclose(outcome.outputs.first, 44.0 - saved_s, rtol=1e-12)
    np.testing.assert_allclose(outcome.outputs.last, [64.0 - saved_s, 44.0 - saved_s], rtol=1e-12)
    np.testing.assert_array_equal(outcome.counters[:, layout.NUM_STEPS], [3, 1])
    assert_agrees(case, 2)


def test_an_idle_rank_adds_no_token_and_no_padding_beyond_the_graphs() -> None:
    # The same, no graph: a row beside an idle rank. 2 tokens would be computed for 1, no more than twice as many:
    # padded. Beside three idle ranks 4 would be computed for 1: the rows are gathered as they are.
    two = hand_case(padded=0)
    saved_s = float(two.times.experts_s[8] - two.times.experts_s[6])
    np.testing.assert_allclose(run_kernel(two, 2).outputs.last[0], 64.0 - saved_s, rtol=1e-12)
    four = dataclasses.replace(
        two, times=dataclasses.replace(for_ranks(two.times, 4, 0), padded_decode_tokens=0, padded_mixed_tokens=0)
    )
    experts_s = four.times.experts_s
    first_s = 44.0 - float(experts_s[16] - experts_s[6])
    last_s = first_s + 2 * (10.0 - float(experts_s[4] - experts_s[1]))
    outcome = run_kernel(four, 4)
    np.testing.assert_allclose(outcome.outputs.first, first_s, rtol=1e-12)
    np.testing.assert_allclose(outcome.outputs.last, [last_s, first_s], rtol=1e-12)


def test_a_request_on_an_idle_rank_misses_the_step_that_is_planned() -> None:
    # Steps of a second. A: P2 O5 at 0 on rank 0; B: P2 O2 at 0.5 on rank 1; both by length.
    # t=0: plan 0: A2 | idle; plan 1 sees nothing of B: A1 | idle. t=1: plan 2 sees B: A1 | B2 at t=2.
    # t=2: plan 3: A1 | B1. t=3: A has 3 + 1 of 5: plan 4: A1 | B's last token is in flight: idle.
    # Alone B's engine would have begun at 0.5.
    requests = (req(0, 0.0, 2, 5), req(1, 0.5, 2, 2))
    case = SglangCase(requests=requests, params=small(), times=unit_table())
    case = dataclasses.replace(case, times=dataclasses.replace(for_ranks(case.times, 2, 0), padded_decode_tokens=64))
    case = dataclasses.replace(case, times=dataclasses.replace(case.times, padded_mixed_tokens=64))
    outcome = run_kernel(case, 2)
    np.testing.assert_allclose(outcome.outputs.first, [1.0, 3.0], rtol=1e-12)
    np.testing.assert_allclose(outcome.outputs.last, [5.0, 4.0], rtol=1e-12)
    np.testing.assert_array_equal(outcome.counters[:, layout.NUM_STEPS], [5, 2])


def test_how_requests_are_sent_to_ranks() -> None:
    # A: P2 O30 at 0 and B: P2 O1 at 0.5; C at 5: in turns to rank 0, by load to rank 1, which has nothing to do.
    requests = (req(0, 0.0, 2, 30), req(1, 0.5, 2, 1), req(2, 5.0, 2, 2))
    case = SglangCase(requests=requests, params=small(), times=unit_table())
    for by_load, rank in ((False, 0), (True, 1)):
        outcome = assert_agrees(case, 2, by_load=by_load)
        np.testing.assert_array_equal(outcome.scheduler_of, [0, 1, rank])


def fingerprint() -> str:
    """Digest of every output bit of some runs."""
    outcomes = []
    for seed in range(8):
        case = seeded_sglang_case(seed, PROFILES[seed % len(PROFILES)], 30)
        case = dataclasses.replace(case, times=for_ranks(case.times, 2, seed))
        outcomes.append(run_kernel(case, 2, num_replicas=1 + seed % 2, router="least_requests", record_itl=True))
    return properties.digest_of(outcomes)


def test_compiled_code_computes_what_the_source_says() -> None:
    properties.assert_compiled_equals_source(fingerprint)


# ------------------------------------------------------------------ real size


def moe_deployment(num_ranks: int, num_replicas: int = 1) -> Deployment:
    """Qwen3-30B-A3B on so many GPUs."""
    model, gpu, version = get_model("Qwen/Qwen3-30B-A3B"), get_gpu("H100-SXM-80GB"), "0.5.23"
    spread = Parallelism(data_parallel_size=num_ranks, expert_parallel_size=num_ranks)
    defaults = sglang.default_params(version, gpu, model, spread)
    return Deployment(
        model=model,
        gpu=gpu,
        engine="sglang",
        engine_version=version,
        precision=Precision(),
        parallelism=spread,
        params=dataclasses.replace(defaults, context_length=16384, max_running_requests=64),
        num_replicas=num_replicas,
    )


def azure(num_requests: int, rate_rps: float) -> Workload:
    """The first requests of the Azure conversations, evenly spaced."""
    profile = load_profile("azure-conversation-2023")
    first = slice(0, num_requests)
    return dataclasses.replace(
        profile,
        arrival_s=np.arange(num_requests) / rate_rps,
        input_tokens=profile.input_tokens[first],
        output_tokens=profile.output_tokens[first],
        max_tokens=profile.max_tokens[first],
    )


def test_windows_change_nothing_with_the_real_step_table() -> None:
    wanted = moe_deployment(2)
    model, memory = perf.step_model(wanted), perf.memory(wanted)
    for rate_rps in (4.0, 40.0):
        workload = azure(1500, rate_rps)
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
    half = azure(200, 5.0)
    pairs = np.repeat(np.arange(200), 2)
    workload = dataclasses.replace(
        half,
        arrival_s=half.arrival_s[pairs],
        input_tokens=half.input_tokens[pairs],
        output_tokens=half.output_tokens[pairs],
        max_tokens=half.max_tokens[pairs],
    )
    both = simulate(workload, wanted, model, memory).outputs
    # a rank alone pads to itself; what it sets aside it must set aside like a rank
    assert isinstance(wanted.params, SglangParams)
    alone = dataclasses.replace(
        wanted,
        parallelism=Parallelism(),
        params=dataclasses.replace(wanted.params, schedule_conservativeness=0.3),
    )
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
    workload = azure(400, 20.0)
    log = run(workload, wanted, perf.step_model(wanted), perf.memory(wanted))
    assert log.timeline is not None
    assert log.itl is not None
    assert set(log.replica) == {0, 1}
    gaps = int((log.itl.steps * log.itl.weight).sum())
    assert gaps == int((workload.output_tokens - 1).sum())
    assert log.timeline.running.max() > 4


def test_what_all_ranks_take_together_contains_the_exchange_around_experts() -> None:
    wanted = moe_deployment(4)
    table, formula = perf.step_model(wanted).table, perf.StepFormula(wanted)
    tokens = np.unique(np.geomspace(1, len(table.experts_s) - 1, 500).astype(np.int64))
    np.testing.assert_allclose(table.experts_s[tokens], formula.experts_s(tokens.astype(float)), rtol=0.01)
    assert np.all(np.diff(table.experts_s) >= 0)
    assert (table.padded_decode_tokens, table.padded_mixed_tokens) == (512, 0)
    sent_alone = dataclasses.replace(wanted.parallelism, expert_all_to_all=True)
    experts = perf.StepFormula(dataclasses.replace(wanted, parallelism=sent_alone))
    assert np.all(formula.experts_s(tokens.astype(float)) > experts.experts_s(tokens.astype(float)))
