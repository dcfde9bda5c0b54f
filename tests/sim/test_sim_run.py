"""What ``sim`` promises beyond the schedule: early stop, rejections, compiled = interpreted, refusals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.strategies import PROFILES, Case, Profile, cases, params, req, seeded_case, unit_table
from servewise import metrics
from servewise.errors import InputError
from servewise.sim import Outcome, simulate, to_log
from servewise.types import Promise, RequestStatus, Router, Workload
from sim import properties
from sim.agree import deployment_of, memory_of, model_of, normalized, run_kernel, workload_of

some = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])

# ------------------------------------------------------------------ early stop


def median_promise(case: Case) -> Promise:
    """Limits that about half of the requests miss, each equal to what some request saw."""
    log = to_log(workload_of(case), run_kernel(case))
    ttft_s, tpot_s, e2e_s = metrics.ttft_s(log), metrics.tpot_s(log), metrics.e2e_s(log)
    tpot_s = tpot_s[~np.isnan(tpot_s)]

    def middle(values: np.ndarray) -> float:
        return float(np.sort(values)[len(values) // 2])

    return Promise(ttft_s=middle(ttft_s), tpot_s=middle(tpot_s) if len(tpot_s) else None, e2e_s=middle(e2e_s))


def assert_stops_exactly_when_broken(case: Case, num_replicas: int, router: Router) -> None:
    case = normalized(case)
    promise, workload = median_promise(case), workload_of(case)
    whole = run_kernel(case, num_replicas=num_replicas, router=router, promise=promise)
    log = to_log(workload, whole)
    num_bad = workload.num_requests - metrics.count_good(log, promise)
    assert whole.num_bad == num_bad
    assert not whole.broken
    for max_bad in {0, num_bad // 2, num_bad - 1, num_bad, num_bad + 1} - {-1}:
        stopped = run_kernel(case, num_replicas=num_replicas, router=router, promise=promise, max_bad=max_bad)
        assert stopped.broken == (num_bad > max_bad)
        if stopped.broken:
            assert max_bad < stopped.num_bad <= num_bad
            if router == "round_robin":  # replicas run one after another: the run ends with the step that broke it
                assert stopped.num_bad <= max_bad + case.params.max_num_seqs
            ended = ~np.isnan(stopped.outputs.last)
            np.testing.assert_array_equal(stopped.outputs.last[ended], whole.outputs.last[ended])
        else:
            assert stopped.outputs.last.tobytes() == whole.outputs.last.tobytes()


@pytest.mark.parametrize("router", ["round_robin", "least_requests", "prefix_aware"])
@pytest.mark.parametrize("profile", PROFILES)
def test_a_run_stops_exactly_when_too_many_are_bad(profile: Profile, router: Router) -> None:
    for seed in range(6):
        assert_stops_exactly_when_broken(seeded_case(seed, profile), 1 + seed % 3, router)


@some
@given(case=cases(), num_replicas=st.integers(1, 3))
def test_a_run_stops_exactly_when_too_many_are_bad_on_any_case(case: Case, num_replicas: int) -> None:
    assert_stops_exactly_when_broken(case, num_replicas, "least_requests")


def test_a_limit_that_is_just_met_is_kept() -> None:
    case = Case(requests=(req(0, 0.0, 3, 3), req(1, 0.0, 3, 1)), params=params(lag=False), times=unit_table())
    exact = Promise(ttft_s=1.0, tpot_s=1.0, e2e_s=3.0)
    assert run_kernel(case, promise=exact).num_bad == 0
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        tighter = dataclasses.replace(exact, **{name: np.nextafter(getattr(exact, name), 0.0)})
        # the request of one token has no TPOT and ends at 1 s
        assert run_kernel(case, promise=tighter).num_bad == (2 if name == "ttft_s" else 1)


# ------------------------------------------------------------------ max_model_len


def limited(case: Case, max_model_len: int, **asked: object) -> tuple[Outcome, Workload]:
    deployment = deployment_of(case)
    settings_ = dataclasses.replace(deployment.params, max_model_len=max_model_len)
    deployment = dataclasses.replace(deployment, params=settings_)
    workload = workload_of(case)
    return simulate(workload, deployment, model_of(case), memory_of(case), **asked), workload


def test_prompts_beyond_the_context_are_rejected_and_outputs_cut_at_it() -> None:
    requests = (req(0, 0.0, 10, 1), req(1, 0.0, 9, 5, stop=True), req(2, 0.0, 4, 3), req(3, 0.5, 40, 1))
    case = Case(requests=requests, params=params(budget=64, lag=False), times=unit_table())
    outcome, workload = limited(case, 10)
    log = to_log(workload, outcome)
    assert outcome.packed.num_rejected == 2
    ok, rejected = RequestStatus.OK, RequestStatus.REJECTED
    assert log.status.tolist() == [rejected, ok, ok, rejected]
    assert log.output_tokens.tolist() == [0, 1, 3, 0]
    np.testing.assert_array_equal(log.first_token_s, [np.nan, 1.0, 1.0, np.nan])
    np.testing.assert_array_equal(log.last_token_s, [np.nan, 1.0, 3.0, np.nan])
    assert log.replica.tolist() == [-1, 0, 0, -1]


def test_a_cut_output_ends_by_length() -> None:
    """It wastes no row, unlike the stop token that it was cut off from."""
    case = Case(requests=(req(0, 0.0, 4, 6, stop=True),), params=params(), times=unit_table())
    whole, _ = limited(case, 200)
    cut, _ = limited(case, 7)
    assert whole.packed.requests.by_length.tolist() == [0]
    assert cut.packed.requests.by_length.tolist() == [1]
    assert cut.outputs.last.tolist() == [3.0]


def test_rejected_requests_are_bad() -> None:
    requests = tuple(req(i, 0.0, 12 if i % 2 else 3, 2) for i in range(10))
    case = Case(requests=requests, params=params(budget=64, seats=8), times=unit_table())
    promise = Promise(e2e_s=100.0)
    outcome, workload = limited(case, 10, promise=promise)
    assert outcome.num_bad == 5 == workload.num_requests - metrics.count_good(to_log(workload, outcome), promise)
    for max_bad in (0, 4, 5, 6):
        outcome, _ = limited(case, 10, promise=promise, max_bad=max_bad)
        assert outcome.broken == (max_bad < 5)


def test_a_workload_of_which_nothing_is_accepted() -> None:
    case = Case(requests=(req(0, 0.0, 12, 2), req(1, 1.0, 13, 1)), params=params(), times=unit_table())
    outcome, workload = limited(case, 10, max_bad=1)
    log = to_log(workload, outcome)
    assert outcome.broken
    assert outcome.num_bad == 2
    assert (log.status == RequestStatus.REJECTED).all()


@some
@given(case=cases(), share=st.floats(0.2, 1.0))
def test_a_context_limit_leaves_exactly_the_requests_that_fit(case: Case, share: float) -> None:
    case = normalized(case)
    limit = max(2, int(share * case.params.num_kv_blocks * case.params.block_size_tokens))
    outcome, workload = limited(case, limit)
    fits = workload.input_tokens < limit
    log = to_log(workload, outcome)
    np.testing.assert_array_equal(log.status == RequestStatus.OK, fits)
    served = np.minimum(workload.output_tokens, limit - workload.input_tokens)
    np.testing.assert_array_equal(log.output_tokens, np.where(fits, served, 0))
    kept = tuple(
        dataclasses.replace(
            r,
            output_tokens=min(r.output_tokens, limit - r.input_tokens),
            max_tokens=min(r.max_tokens, limit - r.input_tokens),
            block_ids=r.block_ids,
        )
        for r in case.requests
        if r.input_tokens < limit
    )
    if kept:
        alone = run_kernel(dataclasses.replace(case, requests=kept))
        assert alone.outputs.last.tobytes() == outcome.outputs.last.tobytes()


# ------------------------------------------------------------------ compiled = interpreted

FINGERPRINT_CASES = [(profile, seed) for profile in PROFILES for seed in range(4)]


def fingerprint() -> str:
    """Digest of every output bit of some runs."""
    fleets: tuple[tuple[int, Router], ...] = ((1, "round_robin"), (3, "least_requests"), (2, "prefix_aware"))
    return properties.digest_of(
        run_kernel(
            normalized(seeded_case(seed, profile, 40)), num_replicas=num_replicas, router=router, record_itl=True
        )
        for profile, seed in FINGERPRINT_CASES
        for num_replicas, router in fleets
    )


def test_compiled_code_computes_what_the_source_says() -> None:
    properties.assert_compiled_equals_source(fingerprint)


# ------------------------------------------------------------------ refusals


def refused(change: Callable[[Case], object]) -> str:
    case = normalized(seeded_case(0, "mixed"))
    with pytest.raises(InputError) as caught:
        change(case)
    return str(caught.value)


def with_params(case: Case, **changes: object) -> object:
    deployment = deployment_of(case)
    changed = dataclasses.replace(deployment.params, **changes)
    return simulate(
        workload_of(case),
        dataclasses.replace(deployment, params=changed),
        model_of(case),
        memory_of(case),
    )


def test_settings_that_contradict_each_other_are_refused() -> None:
    too_long = refused(lambda case: with_params(case, max_model_len=1_000_000))
    assert "max_model_len 1000000 exceeds the KV capacity" in too_long
    assert "set enable_chunked_prefill" in refused(lambda case: with_params(case, enable_chunked_prefill=False))
    assert "power of two, got 12" in refused(lambda case: with_params(case, block_size_tokens=12))
    assert "is below max_num_seqs" in refused(lambda case: with_params(case, max_num_seqs=4096))
    assert "the step table covers" in refused(lambda case: with_params(case, max_num_batched_tokens=1 << 20))
    assert "at most 62 replicas" in refused(lambda case: run_kernel(case, num_replicas=63, router="prefix_aware"))


def test_a_deployment_that_does_not_fit_is_refused() -> None:
    case = normalized(seeded_case(0, "mixed"))
    memory = dataclasses.replace(memory_of(case), fits=False, reason="weights 2 GiB > 1 GiB")
    with pytest.raises(InputError, match="weights 2 GiB > 1 GiB"):
        simulate(workload_of(case), deployment_of(case), model_of(case), memory)


def test_tables_and_blocks_that_cannot_be_simulated_exactly_are_refused() -> None:
    case = normalized(seeded_case(0, "prefix"))
    broken_knots = dataclasses.replace(case.times, context_knots=case.times.context_knots + 0.5)
    with pytest.raises(InputError, match="whole numbers of tokens that start at 0"):
        run_kernel(dataclasses.replace(case, times=broken_knots))
    size = case.params.block_size_tokens
    for traced in (3 * size, size + 1):
        with pytest.raises(InputError, match="prefix blocks"):
            run_kernel(case, workload=workload_of(case, traced))


@pytest.mark.parametrize("changes", [{"sample_s": np.full(65, np.nan)}, {"prefill_s_per_pair": np.inf}])
def test_a_step_table_that_is_not_finite_is_refused(changes: dict[str, object]) -> None:
    times = dataclasses.replace(unit_table(), **changes)  # type: ignore[arg-type]
    case = Case(requests=(req(0, 0.0, 3, 3),), params=params(lag=False), times=times)
    with pytest.raises(InputError, match="not finite"):
        run_kernel(case)
