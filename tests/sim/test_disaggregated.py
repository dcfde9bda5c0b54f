"""Groups of prefill and decode instances: the compiled group against the plain one, and what ``sim`` promises."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.disaggregated_cases import (
    ENGINES,
    DisaggregatedCase,
    disaggregated_cases,
    group_params,
    seeded_disaggregated_case,
)
from oracle.disaggregated_plain import Group, Live
from oracle.strategies import req, unit_table
from servewise.errors import InputError
from servewise.kernel import layout
from servewise.sim import simulate, simulate_closed_loop, simulate_disaggregated
from servewise.types import KvLink, LlamacppParams, Parallelism, Router
from sim import properties
from sim.disaggregated_agree import (
    assert_agrees,
    deployment_of,
    memories_of,
    models_of,
    run_group,
    run_plain,
    to_log_of,
    workload_of,
)

some = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])

# ------------------------------------------------------------------ against the plain group


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "single steps"])
def test_a_group(fast_forward: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(150):
        case = seeded_disaggregated_case(seed)
        kernel = assert_agrees(case, fast_forward=fast_forward)
        engine = case.params.engine
        seen[engine] += 1
        seen[f"{engine} preemptions"] += kernel.num_preemptions
        for name in ("slots_bound", "memory_bound", "budget_bound"):
            seen[f"{engine} {name}"] += getattr(kernel, name)
        steps = kernel.counters[:, layout.NUM_STEPS] - kernel.counters[:, layout.NUM_WINDOWS]
        seen[f"{engine} saved"] += int(steps.sum())
        seen[f"{engine} stopped"] += int((kernel.packed.requests.by_length == 0).sum())
    least = dict.fromkeys(ENGINES, 30)
    least |= {f"{engine} {what}": 8 for engine in ENGINES for what in ("slots_bound", "memory_bound", "budget_bound")}
    least |= {f"{engine} stopped": 500 for engine in ENGINES}
    least |= {"vllm preemptions": 50, "sglang preemptions": 20}
    if fast_forward:
        least |= {f"{engine} saved": 1000 for engine in ENGINES}
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}
    assert seen["tensorrt-llm preemptions"] == 0


@some
@given(case=disaggregated_cases(), fast_forward=st.booleans())
def test_a_group_on_any_case(case: DisaggregatedCase, fast_forward: bool) -> None:
    assert_agrees(case, fast_forward=fast_forward)


@some
@given(
    case=disaggregated_cases(),
    concurrency=st.integers(1, 6),
    think_s=st.sampled_from([0.0, 0.5]),
    fast_forward=st.booleans(),
)
def test_a_group_in_a_closed_loop(
    case: DisaggregatedCase, concurrency: int, think_s: float, fast_forward: bool
) -> None:
    assert_agrees(case, concurrency=concurrency, think_s=think_s, fast_forward=fast_forward)


@some
@given(
    case=disaggregated_cases(max_requests=20),
    num_groups=st.integers(1, 3),
    router=st.sampled_from(["round_robin", "least_requests"]),
    fast_forward=st.booleans(),
)
def test_groups_are_independent_once_routed(
    case: DisaggregatedCase, num_groups: int, router: Router, fast_forward: bool
) -> None:
    fleet = run_group(case, num_groups=num_groups, router=router, fast_forward=fast_forward)
    if router == "round_robin":
        assert fleet.replica_of.tolist() == [i % num_groups for i in range(len(case.requests))]
    for group in range(num_groups):
        mine = np.flatnonzero(fleet.replica_of == group)
        if len(mine) == 0:
            continue
        alone = run_plain(dataclasses.replace(case, requests=tuple(case.requests[i] for i in mine)))
        extra = fleet.packed.requests.extra[mine]
        first, last = fleet.outputs.first[mine] - extra, fleet.outputs.last[mine] - extra
        np.testing.assert_allclose(first, [live.token_s[0] for live in alone.lives], rtol=1e-9)
        np.testing.assert_allclose(last, [live.token_s[-1] for live in alone.lives], rtol=1e-9)


@some
@given(case=disaggregated_cases(max_requests=20), num_groups=st.integers(2, 3))
def test_least_requests_goes_to_the_group_with_the_fewest(case: DisaggregatedCase, num_groups: int) -> None:
    fleet = run_group(case, num_groups=num_groups, router="least_requests")
    left = fleet.outputs.last - fleet.packed.requests.extra
    if case.params.engine == "sglang":  # D delivers an only token when it plans, which is after arrivals
        left[fleet.packed.requests.output_tokens == 1] += 1e-6
    arrival = fleet.packed.requests.arrival
    pointer = 0
    for i, chosen in enumerate(fleet.replica_of):
        before = np.arange(i)
        in_flight = [int(((fleet.replica_of[:i] == g) & (left[before] > arrival[i])).sum()) for g in range(num_groups)]
        assert in_flight[chosen] == min(in_flight)
        order = [(pointer + j) % num_groups for j in range(num_groups)]
        assert chosen == min(order, key=lambda g: in_flight[g])
        pointer = (int(chosen) + 1) % num_groups


# ------------------------------------------------------------------ the laws


class Audited(Group):
    """The plain group, which checks its laws after every event."""

    def check(self) -> None:
        size = self.params.prefill.block_size_tokens
        for prefill in self.prefills:
            held = [live for live in self.lives if live.p_blocks and self.prefills[live.p] is prefill]
            assert sum(live.p_blocks for live in held) + prefill.free == self.params.prefill.num_kv_blocks
            assert all(live.p_blocks >= -(-live.request.input_tokens // size) for live in held)
            assert all(math_isnan(live.arrived_on_d_s) for live in held), "P's blocks outlive the transfer"
        for decode in self.decodes:
            held = [live for live in self.lives if live.d_blocks and self.decodes[live.d] is decode]
            assert sum(live.d_blocks for live in held) + decode.free == self.params.decode.num_kv_blocks
            for live in decode.running:
                assert live.arrived_on_d_s <= self.now_s
                assert live.d_blocks * self.params.decode.block_size_tokens >= live.computed
        for live in self.lives:
            if math_isnan(live.arrived_on_d_s) and not math_isnan(live.prompt_finished_s) and not live.finished:
                assert live.p_blocks > 0, "a prompt that did not arrive is on P"


def math_isnan(value: float) -> bool:
    """Whether it has not happened."""
    return value != value


def assert_laws(case: DisaggregatedCase) -> None:
    group = Audited(case.params, case.prefill_times, case.decode_times)
    group.audit = group.check
    group.run(case.requests)
    for live in group.lives:
        assert_request_laws(case, live)
    assert all(prefill.free == case.params.prefill.num_kv_blocks for prefill in group.prefills)
    assert all(decode.free == case.params.decode.num_kv_blocks for decode in group.decodes)


def assert_request_laws(case: DisaggregatedCase, live: Live) -> None:
    """Every token comes, one after the other, and none of D's before the KV cache is there."""
    assert len(live.token_s) == live.request.output_tokens
    assert all(a < b or live.num_preemptions for a, b in zip(live.token_s, live.token_s[1:], strict=False))
    assert live.token_s == sorted(live.token_s)
    assert live.request.arrival_s < live.prompt_finished_s <= live.token_s[0]
    of_d = live.token_s[1:] if case.params.engine == "tensorrt-llm" else live.token_s
    if of_d:
        wire_s = -(-live.request.input_tokens // case.params.prefill.block_size_tokens) * case.params.s_per_block
        if case.params.engine != "sglang":
            assert live.arrived_on_d_s >= live.prompt_finished_s + wire_s + case.params.latency_s - 1e-9
        assert live.prompt_finished_s < live.arrived_on_d_s + 1e-12
        assert live.arrived_on_d_s <= of_d[0]


@some
@given(case=disaggregated_cases())
def test_laws(case: DisaggregatedCase) -> None:
    assert_laws(case)


def test_laws_on_longer_runs() -> None:
    for seed in range(40):
        assert_laws(seeded_disaggregated_case(seed))


# ------------------------------------------------------------------ what is recorded


def test_a_request_may_come_at_the_instant_of_a_plan_that_has_been_made() -> None:
    """In a closed loop, when SGLang's D delivers an only token as it plans."""
    for seed in (8, 45, 77):
        for concurrency in (2, 3, 5):
            assert_agrees(seeded_disaggregated_case(seed, 30), concurrency=concurrency)


@some
@given(case=disaggregated_cases(), fast_forward=st.booleans())
def test_gaps_between_tokens(case: DisaggregatedCase, fast_forward: bool) -> None:
    assert_gaps(case, fast_forward)


def test_gaps_on_longer_runs() -> None:
    for seed in (*range(20), 49, 209):
        assert_gaps(seeded_disaggregated_case(seed), True)


def assert_gaps(case: DisaggregatedCase, fast_forward: bool) -> None:
    outcome = run_group(case, record_itl=True, fast_forward=fast_forward)
    properties.assert_gaps(to_log_of(case, outcome), [live.token_s for live in run_plain(case).lives])


@some
@given(case=disaggregated_cases())
def test_samples_count_the_requests_in_the_group(case: DisaggregatedCase) -> None:
    case = dataclasses.replace(case, prefill_times=properties.without_constants(case.prefill_times))
    properties.assert_samples_count_the_requests(run_group(case, num_samples=50))


@some
@given(case=disaggregated_cases(), num_groups=st.integers(1, 2), share=st.floats(0.0, 1.0))
def test_a_run_stops_exactly_when_too_many_are_bad(case: DisaggregatedCase, num_groups: int, share: float) -> None:
    properties.assert_ends_early(
        lambda **asked: run_group(case, **asked), lambda outcome: to_log_of(case, outcome), share, num_groups=num_groups
    )


# ------------------------------------------------------------------ size


def served(engine: str) -> DisaggregatedCase:
    """Three prefill and two decode instances, 600 requests, pools that hold about 40 of them."""
    rng = np.random.default_rng(7)
    arrivals = np.cumsum(rng.exponential(0.05, 600))
    requests = tuple(
        req(i, float(t), int(p), int(o), stop=bool(i % 3))
        for i, (t, p, o) in enumerate(
            zip(arrivals, rng.integers(200, 1800, 600), rng.integers(20, 500, 600), strict=True)
        )
    )
    params = group_params(
        engine,  # type: ignore[arg-type]
        x=3,
        y=2,
        block=16,
        budget=2048,
        seats=64,
        p_blocks=1000,
        d_blocks=2600,
        latency_s=1e-3,
        s_per_block=1e-4,
        reserved=512,
        router="least_requests",
    )
    times = dataclasses.replace(properties.curved_table(64, 2048), mixed_tokens_s=0.01 + 5e-5 * np.arange(2049))
    return DisaggregatedCase(requests=requests, params=params, prefill_times=times, decode_times=times)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("concurrency", [0, 96], ids=["open", "closed loop"])
def test_windows_change_nothing(engine: str, concurrency: int) -> None:
    case = served(engine)
    fast = run_group(case, concurrency=concurrency)
    slow = run_group(case, concurrency=concurrency, fast_forward=False)
    properties.assert_same_runs(fast, slow, apart=(layout.KNOT,))
    assert fast.counters[3:, layout.NUM_WINDOWS].sum() < 0.7 * fast.counters[3:, layout.NUM_STEPS].sum()
    assert fast.memory_bound or fast.slots_bound


def fingerprint() -> str:
    """Digest of every output bit of some runs."""
    outcomes = []
    for seed in range(12):
        case = seeded_disaggregated_case(seed, 30)
        outcomes.append(run_group(case, num_groups=2, router="least_requests", record_itl=True))
        outcomes.append(run_group(case, concurrency=5))
    return properties.digest_of(outcomes)


def test_compiled_code_computes_what_the_source_says() -> None:
    properties.assert_compiled_equals_source(fingerprint)


# ------------------------------------------------------------------ refusals

ONE = DisaggregatedCase(
    requests=(req(0, 0.0, 4, 2),), params=group_params("vllm"), prefill_times=unit_table(), decode_times=unit_table()
)


def test_the_plain_simulator_refuses_groups() -> None:
    deployment = deployment_of(ONE)
    arguments = workload_of(ONE), deployment, models_of(ONE)["decode"], memories_of(ONE)["decode"]
    with pytest.raises(InputError, match="use simulate_disaggregated"):
        simulate(*arguments)
    with pytest.raises(InputError, match="use simulate_disaggregated"):
        simulate_closed_loop(*arguments, concurrency=1)
    with pytest.raises(InputError, match="is not disaggregated; use simulate"):
        simulate_disaggregated(workload_of(ONE), deployment.pool("decode"), models_of(ONE), memories_of(ONE))


def test_engines_without_such_a_mode_are_refused() -> None:
    deployment = deployment_of(ONE)
    knobs = LlamacppParams(ctx_size=4096, parallel=4, batch_size=512, ubatch_size=512, kv_unified=False)
    found = deployment.disaggregation
    assert found is not None
    pools = {
        "prefill": dataclasses.replace(found.prefill, params=knobs),
        "decode": dataclasses.replace(found.decode, params=knobs),
    }
    other = dataclasses.replace(
        deployment,
        engine="llama.cpp",
        params=knobs,
        disaggregation=dataclasses.replace(found, **pools),  # type: ignore[arg-type]
    )
    with pytest.raises(InputError, match=r"'llama.cpp' has no disaggregated prefill and decode; allowed: sglang, "):
        simulate_disaggregated(workload_of(ONE), other, models_of(ONE), memories_of(ONE))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_instances": 0}, "a group of 0 prefill and 1 decode instances serves nobody"),
        ({"block_size_tokens": 4}, "kv_block_tokens must be the same in both pools, got 4 and 2"),
        ({"max_model_len": 100}, "max_request_tokens must be the same in both pools, got 100 and 200"),
        ({"max_num_seqs": 9}, "max_num_batched_tokens 8 is below max_num_seqs 9"),
        ({"block_size_tokens": 3}, "block_size_tokens must be a power of two, got 3"),
    ],
)
def test_pools_that_do_not_go_together(changes: dict[str, int], message: str) -> None:
    deployment = deployment_of(ONE)
    found = deployment.disaggregation
    assert found is not None
    pool = found.prefill
    if "num_instances" in changes:
        pool = dataclasses.replace(pool, **changes)
    else:
        pool = dataclasses.replace(pool, params=dataclasses.replace(pool.params, **changes))
    other = dataclasses.replace(deployment, disaggregation=dataclasses.replace(found, prefill=pool))
    with pytest.raises(InputError, match=message):
        simulate_disaggregated(workload_of(ONE), other, models_of(ONE), memories_of(ONE))


@pytest.mark.parametrize("link", [{"bytes_per_s": 0.0}, {"latency_s": -1.0}, {"latency_s": float("inf")}])
def test_a_link_that_moves_nothing(link: dict[str, float]) -> None:
    deployment = deployment_of(ONE)
    found = deployment.disaggregation
    assert found is not None
    whole = KvLink(**{"kind": "network", "bytes_per_s": 1.0, "latency_s": 0.0, "provenance": {}, **link})  # type: ignore[arg-type]
    other = dataclasses.replace(deployment, disaggregation=dataclasses.replace(found, link=whole))
    with pytest.raises(InputError, match="moves nothing"):
        simulate_disaggregated(workload_of(ONE), other, models_of(ONE), memories_of(ONE))


def test_prefix_aware_routing_is_refused() -> None:
    with pytest.raises(InputError, match="prefix caches of disaggregated deployments are not simulated"):
        run_group(ONE, num_groups=2, router="prefix_aware")


@pytest.mark.parametrize("spread", [{"pipeline_parallel_size": 2}, {"data_parallel_size": 2}])
def test_stages_and_ranks_are_refused(spread: dict[str, int]) -> None:
    found = deployment_of(ONE).disaggregation
    assert found is not None
    pool = dataclasses.replace(found.prefill, parallelism=Parallelism(**spread))
    other = dataclasses.replace(deployment_of(ONE), disaggregation=dataclasses.replace(found, prefill=pool))
    with pytest.raises(InputError, match="are not simulated apart"):
        simulate_disaggregated(workload_of(ONE), other, models_of(ONE), memories_of(ONE))


def test_a_deployment_has_the_fields_of_its_decode_pool() -> None:
    deployment = deployment_of(ONE, num_groups=3)
    assert deployment.gpus_per_replica == 2
    assert deployment.num_gpus == 6
    assert deployment.pool("prefill").disaggregation is None
    found = deployment.disaggregation
    assert found is not None
    larger = dataclasses.replace(
        found.decode, parallelism=dataclasses.replace(found.decode.parallelism, tensor_parallel_size=2)
    )
    with pytest.raises(InputError, match="must be those of its decode pool"):
        dataclasses.replace(deployment, disaggregation=dataclasses.replace(found, decode=larger))
    with pytest.raises(InputError, match="is not disaggregated"):
        deployment.pool("decode").pool("decode")
