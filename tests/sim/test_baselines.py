"""The textbook baselines: the compiled drivers against the plain engine, and what ``sim`` promises for them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.baseline_cases import BaselineCase, baseline_cases, seeded_baseline_case, table_size
from oracle.baselines_plain import Params
from oracle.strategies import req, unit_table
from servewise.kernel import layout
from servewise.sim import to_log
from servewise.types import RequestStatus, Router
from sim import properties
from sim.baselines_agree import (
    BASELINES,
    assert_closed_loop_agrees,
    assert_open_agrees,
    deployment_of,
    run_open,
    workload_of,
)

some = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])

ROUTERS: tuple[Router, ...] = ("round_robin", "least_requests")
ENGINES: tuple[Literal["static", "orca", "sarathi"], ...] = ("static", "orca", "sarathi")

A, B, C = range(3)

# ------------------------------------------------------------------ against the plain engine


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "single steps"])
def test_one_replica(fast_forward: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(150):
        case = seeded_baseline_case(seed)
        kernel = assert_open_agrees(case, fast_forward=fast_forward)
        engine = case.params.engine
        for name in ("slots_bound", "memory_bound", "budget_bound"):
            seen[f"{engine} {name}"] += getattr(kernel, name)
        seen[f"{engine} preemptions"] += kernel.num_preemptions
        seen[f"{engine} windows"] += bool(
            (kernel.counters[:, layout.NUM_WINDOWS] < kernel.counters[:, layout.NUM_STEPS]).all()
        )
        seen["waits for a batch"] += case.params.max_wait_s > 0
    least = {f"{engine} {what}": 8 for engine in ENGINES for what in ("slots_bound", "memory_bound")}
    least |= {"sarathi budget_bound": 20, "sarathi preemptions": 300, "waits for a batch": 8}
    if fast_forward:
        least |= {f"{engine} windows": 15 for engine in ENGINES}
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}
    assert [seen[f"{engine} preemptions"] for engine in ("static", "orca")] == [0, 0]


@some
@given(case=baseline_cases(), fast_forward=st.booleans())
def test_one_replica_on_any_case(case: BaselineCase, fast_forward: bool) -> None:
    assert_open_agrees(case, fast_forward=fast_forward)


@pytest.mark.parametrize("router", ROUTERS)
def test_fleets(router: Router) -> None:
    for seed in range(150):
        assert_open_agrees(seeded_baseline_case(seed), num_replicas=1 + seed % 3, router=router)


@some
@given(case=baseline_cases(), num_replicas=st.integers(1, 4), router=st.sampled_from(ROUTERS), windows=st.booleans())
def test_fleets_on_any_case(case: BaselineCase, num_replicas: int, router: Router, windows: bool) -> None:
    assert_open_agrees(case, num_replicas=num_replicas, router=router, fast_forward=windows)


@some
@given(
    case=baseline_cases(),
    concurrency=st.integers(1, 9),
    think_s=st.sampled_from([0.0, 0.013, 2.0]),
    windows=st.booleans(),
)
def test_closed_loops_on_any_case(case: BaselineCase, concurrency: int, think_s: float, windows: bool) -> None:
    assert_closed_loop_agrees(case, concurrency=concurrency, think_s=think_s, fast_forward=windows)


@some
@given(case=baseline_cases(), fast_forward=st.booleans())
def test_gaps_between_tokens(case: BaselineCase, fast_forward: bool) -> None:
    properties.assert_gaps_are_those_of_the_tokens(BASELINES, case, fast_forward)


@some
@given(case=baseline_cases(), router=st.sampled_from(ROUTERS))
def test_samples_count_the_requests_in_the_engine(case: BaselineCase, router: Router) -> None:
    case = dataclasses.replace(case, times=properties.without_constants(case.times))
    outcome = run_open(case, router=router, num_samples=50)
    properties.assert_samples_count_the_requests(outcome)
    slot = deployment_of(case).params.blocks_of_slot  # type: ignore[union-attr]
    for _, running, _, used in properties.samples_of(outcome):
        assert (used > 0) == (running > 0)
        if case.params.engine == "orca":
            assert used == running * slot
        if case.params.engine == "static":
            assert used % slot == 0
            assert used >= running * slot


@some
@given(case=baseline_cases(), num_replicas=st.integers(1, 3), share=st.floats(0.0, 1.0))
def test_a_run_stops_exactly_when_too_many_are_bad(case: BaselineCase, num_replicas: int, share: float) -> None:
    properties.assert_stops_exactly_when_too_many_are_bad(BASELINES, case, num_replicas, share)


# ------------------------------------------------------------------ size


def served(engine: Literal["static", "orca", "sarathi"]) -> BaselineCase:
    """A benchmark's run: 400 requests of some hundred tokens, in a pool with 20 slots of 1,024 tokens."""
    rng = np.random.default_rng(7)
    lengths = zip(rng.integers(100, 500, 400), rng.integers(50, 500, 400), strict=True)
    requests = tuple(req(i, 0.05 * i, int(p), int(o)) for i, (p, o) in enumerate(lengths))
    params = Params(
        engine=engine,
        max_batch_size=64,
        max_seq_len=1024,
        num_kv_blocks=20 * 64,
        block_size_tokens=16,
        chunk_size=512 if engine == "sarathi" else 0,
        max_wait_s=0.5 if engine == "static" else 0.0,
    )
    rows, tokens = table_size(params)
    times = properties.curved_table(rows, tokens, knots=(0.0, 256.0, 600.0))
    return BaselineCase(requests=requests, params=params, times=times)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("closed", [True, False], ids=["closed loop", "open loop"])
def test_windows_change_nothing(engine: Literal["static", "orca", "sarathi"], closed: bool) -> None:
    case = served(engine)
    properties.assert_windows_change_nothing(BASELINES, case, concurrency=32 if closed else 0, most=0.5)


def fingerprint() -> str:
    """Digest of every output bit of some runs."""
    cases = [seeded_baseline_case(seed, 30) for seed in range(8)]
    return properties.digest_of(properties.open_and_closed(BASELINES, cases))


def test_compiled_code_computes_what_the_source_says() -> None:
    assert {seeded_baseline_case(seed, 30).params.engine for seed in range(8)} == set(ENGINES)
    properties.assert_compiled_equals_source(fingerprint)


# ------------------------------------------------------------------ order, memory, refusals


def test_strategies_that_waste_less_are_no_slower() -> None:
    ends = {engine: float(run_open(served(engine)).outputs.last.max()) for engine in ENGINES}
    assert ends["static"] > 1.3 * ends["orca"]
    assert ends["orca"] > 1.2 * ends["sarathi"]


def test_a_prompt_without_room_for_a_token_is_rejected_and_outputs_are_cut() -> None:
    params = Params(engine="orca", max_batch_size=2, max_seq_len=8, num_kv_blocks=4, block_size_tokens=4)
    requests = (req(A, 0.0, 8, 1), req(B, 0.0, 5, 9), req(C, 1.0, 7, 4))
    case = BaselineCase(requests=requests, params=params, times=unit_table(*table_size(params)))
    log = to_log(workload_of(case), run_open(case))
    assert log.status.tolist() == [RequestStatus.REJECTED, RequestStatus.OK, RequestStatus.OK]
    assert log.output_tokens[1:].tolist() == [3, 1]


@pytest.mark.parametrize(
    ("engine", "changes", "message"),
    [
        ("sarathi", {"chunk_size": 3}, "chunk_size 3 is below max_batch_size 4"),
        ("sarathi", {"chunk_size": 99}, "the engine can run 4 and 99"),
        ("orca", {"max_seq_len": 17}, "max_seq_len 17 exceeds the KV capacity of 16 tokens"),
        ("static", {"max_seq_len": 17}, "max_seq_len 17 exceeds the KV capacity of 16 tokens"),
        ("orca", {"block_size_tokens": 3}, "block_size_tokens must be a power of two, got 3"),
        ("static", {"max_batch_size": 40}, "the engine can run 40 and 16"),
    ],
)
def test_settings_that_cannot_be_simulated(
    engine: Literal["static", "orca", "sarathi"], changes: dict[str, int], message: str
) -> None:
    params = Params(
        engine=engine,
        max_batch_size=4,
        max_seq_len=16,
        num_kv_blocks=4,
        block_size_tokens=4,
        chunk_size=8 if engine == "sarathi" else 0,
    )
    case = BaselineCase(requests=(req(A, 0.0, 4, 1),), params=params, times=unit_table(4, 64))
    properties.assert_refused(BASELINES, case, changes, message)
