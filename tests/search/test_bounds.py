"""Bounds that pruning rests on are never better than what is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servewise.metrics import broken, good
from servewise.search.bounds import stop_rule
from servewise.search.families import families
from servewise.search.fleet import latency_s, try_fleet
from servewise.search.shapes import Shape, enumerate_shapes
from servewise.sim import to_log
from servewise.types import Budget, PercentileLimit, Promise, Search, Speculation, Workload

from .conftest import Make

PROMISES = (
    Promise(ttft_s=0.3, tpot_s=0.02, attainment=0.9),
    Promise(ttft_s=1.0, tpot_s=0.05, attainment=0.99),
    Promise(e2e_s=6.0, attainment=0.95),
    Promise(ttft_s=0.4, attainment=0.95),
    Promise(percentiles=(PercentileLimit(metric="ttft", percentile=95.0, limit_s=0.4),)),
)


def trials(search: Search, every: int, sizes: tuple[int, ...], shapes: Sequence[Shape] | None = None) -> int:
    """Hold fleets of some shapes of a search against their bounds; returns how many."""
    promise, tried = search.promise, 0
    for family in families(search, shapes or enumerate_shapes(search))[::every]:
        for shape, load, bound in list(zip(family.shapes, family.loads, family.bounds, strict=True))[::4]:
            for num_replicas in sizes:
                trial = try_fleet(shape, shape.memory, load, num_replicas, stop=False)
                log = to_log(load.workload, trial.outcome)
                if not broken(log, promise):
                    assert num_replicas >= bound.num_replicas
                assert latency_s(log, promise) >= bound.latency_s
                assert np.count_nonzero(~good(log, load.rule.limits)) >= bound.num_hopeless
                tried += 1
    return tried


@pytest.mark.parametrize("promise", PROMISES)
def test_no_fleet_beats_its_bounds(make_search: Make, promise: Promise) -> None:
    search = make_search(promise=promise, gpus=("L40S-48GB",))
    assert trials(search, 3, (1, 2, 4, 16)) >= 24


@pytest.mark.parametrize("engine", [("vllm", "0.33.0"), ("sglang", "0.5.23"), ("tensorrt-llm", "1.2.1")])
def test_no_fleet_of_groups_beats_its_bounds(make_search: Make, engine: tuple[str, str]) -> None:
    """Prefill and decode apart."""
    search = make_search(
        engines=(engine,),
        promise=PROMISES[1],
        gpus=("L40S-48GB", "H100-SXM-80GB"),
        max_effort="high",
        router="least_requests",
    )
    groups = [shape for shape in enumerate_shapes(search) if shape.deployment.disaggregation is not None]
    assert trials(search, 3, (1, 2, 4), groups) >= 24


@pytest.mark.parametrize("engine", [("vllm", "0.33.0"), ("sglang", "0.5.23"), ("tensorrt-llm", "1.2.1")])
def test_no_fleet_of_ranks_beats_its_bounds(make_search: Make, chat: Workload, engine: tuple[str, str]) -> None:
    """Data parallel ranks that share the experts, in traffic that leaves some of them idle."""
    workload = replace(chat, arrival_s=chat.arrival_s / 2)
    search = make_search(
        model_name="Qwen/Qwen3-30B-A3B",
        engines=(engine,),
        workload=workload,
        promise=PROMISES[1],
        gpus=("H100-SXM-80GB",),
        budget=Budget(max_gpus=64),
    )
    assert any(shape.deployment.parallelism.data_parallel_size > 1 for shape in enumerate_shapes(search))
    assert trials(search, 5, (1, 2, 3)) >= 24


@pytest.mark.parametrize("promise", PROMISES)
def test_no_fleet_with_a_drafter_beats_its_bounds(make_search: Make, promise: Promise) -> None:
    """Even if nearly everything is accepted."""
    drafter = Speculation(method="ngram", num_speculative_tokens=3, acceptance=(0.98, 0.97, 0.95))
    search = make_search(promise=promise, gpus=("L40S-48GB",), speculations=(drafter,))
    speculating = [shape for shape in enumerate_shapes(search) if shape.deployment.speculation is not None]
    assert trials(search, 2, (1, 2, 8), speculating) >= 12


@given(st.integers(1, 5000), st.floats(0.01, 0.9999))
def test_as_many_may_be_bad_as_attainment_allows(num_requests: int, attainment: float) -> None:
    rule = stop_rule(Promise(ttft_s=1.0, attainment=attainment), num_requests)
    assert rule is not None
    assert rule.decides
    assert (num_requests - rule.max_bad) / num_requests >= attainment
    assert (num_requests - rule.max_bad - 1) / num_requests < attainment


@given(st.integers(1, 3000), st.floats(0.5, 99.9), st.integers(0, 2**32 - 1))
def test_more_late_requests_than_a_percentile_allows_break_it(num: int, percentile: float, seed: int) -> None:
    limit = PercentileLimit(metric="ttft", percentile=percentile, limit_s=1.0)
    rule = stop_rule(Promise(percentiles=(limit,)), num)
    assert rule is not None
    assert not rule.decides
    values = np.random.default_rng(seed).uniform(0.0, 1.0, num)
    values[: rule.max_bad + 1] += 1.0 + 1e-9
    assert np.percentile(values, percentile) > 1.0
    if rule.max_bad > 1:
        values[1 : rule.max_bad + 1] = 0.5
        assert np.percentile(values, percentile) <= 1.0


def test_several_percentiles_allow_the_sum_of_the_strictest_of_each_metric() -> None:
    limits = (
        PercentileLimit(metric="ttft", percentile=90.0, limit_s=1.0),
        PercentileLimit(metric="ttft", percentile=99.0, limit_s=3.0),
        PercentileLimit(metric="tpot", percentile=95.0, limit_s=0.05),
    )
    rule = stop_rule(Promise(percentiles=limits), 1001)
    assert rule is not None
    assert (rule.limits.ttft_s, rule.limits.tpot_s, rule.limits.e2e_s) == (3.0, 0.05, None)
    assert rule.max_bad == 10 + 50


def test_without_a_limit_on_requests_no_run_ends_early() -> None:
    assert stop_rule(Promise(deadline_s=10.0), 100) is None
    assert stop_rule(Promise(percentiles=(PercentileLimit(metric="itl", percentile=99.0, limit_s=1.0),)), 9) is None
