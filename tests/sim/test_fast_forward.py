"""Fast-forward equals single steps on workloads of real size; same input gives same bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from servewise import perf
from servewise.catalog import get_gpu, get_model
from servewise.engines import vllm
from servewise.kernel import layout
from servewise.sim import Outcome, simulate
from servewise.traffic import load_profile
from servewise.types import Deployment, MemoryReport, Parallelism, Precision, StepModel, Workload

NUM_REQUESTS = 3000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    deployment: Deployment
    step_model: StepModel
    memory: MemoryReport

    def run(self, workload: Workload, *, fast_forward: bool = True) -> Outcome:
        return simulate(
            workload, self.deployment, self.step_model, self.memory, fast_forward=fast_forward, record_itl=True
        )


def serve(*, caching: bool, lag: bool = True, router: str = "round_robin", num_replicas: int = 1) -> Served:
    """Llama-3.1-8B on H100s, with its real step table."""
    model, gpu, version = get_model("meta-llama/Llama-3.1-8B-Instruct"), get_gpu("H100-SXM-80GB"), "0.33.0"
    params = dataclasses.replace(
        vllm.default_params(version, gpu, model),
        max_model_len=131072,
        enable_prefix_caching=caching,
        async_scheduling=lag,
    )
    deployment = Deployment(
        model=model,
        gpu=gpu,
        engine="vllm",
        engine_version=version,
        precision=Precision(),
        parallelism=Parallelism(),
        params=params,
        num_replicas=num_replicas,
        router=router,
    )
    return Served(deployment=deployment, step_model=perf.step_model(deployment), memory=perf.memory(deployment))


def with_rate(workload: Workload, rate_rps: float) -> Workload:
    """The first requests, their arrivals stretched to a mean rate."""
    first = slice(0, NUM_REQUESTS)
    arrival_s = workload.arrival_s[first] - workload.arrival_s[0]
    prefix = workload.prefix
    if prefix is not None:
        offsets = prefix.offsets[: NUM_REQUESTS + 1]
        prefix = dataclasses.replace(prefix, offsets=offsets, ids=prefix.ids[: offsets[-1]])
    return dataclasses.replace(
        workload,
        arrival_s=arrival_s * (len(arrival_s) - 1) / (rate_rps * arrival_s[-1]),
        input_tokens=workload.input_tokens[first],
        output_tokens=workload.output_tokens[first],
        max_tokens=workload.max_tokens[first],
        prefix=prefix,
    )


def assert_windows_change_nothing(served: Served, workload: Workload) -> Outcome:
    fast, slow = served.run(workload), served.run(workload, fast_forward=False)
    np.testing.assert_allclose(fast.outputs.first, slow.outputs.first, rtol=1e-9)
    np.testing.assert_allclose(fast.outputs.last, slow.outputs.last, rtol=1e-9)
    np.testing.assert_array_equal(fast.outputs.preemptions, slow.outputs.preemptions)
    np.testing.assert_array_equal(fast.outputs.cached, slow.outputs.cached)
    np.testing.assert_array_equal(fast.replica_of, slow.replica_of)
    same = np.ones(layout.NUM_INTS, bool)
    same[[layout.NUM_WINDOWS, layout.NEXT_FINISH]] = False  # NEXT_FINISH is a bound while nothing runs
    np.testing.assert_array_equal(fast.counters[:, same], slow.counters[:, same])
    np.testing.assert_allclose(fast.times[:, : layout.NEXT_SAMPLE], slow.times[:, : layout.NEXT_SAMPLE], rtol=1e-9)
    assert not np.isnan(fast.outputs.last).any()
    assert (slow.counters[:, layout.NUM_WINDOWS] == slow.counters[:, layout.NUM_STEPS]).all()
    return fast


def windows_per_step(outcome: Outcome) -> float:
    return float(outcome.counters[:, layout.NUM_WINDOWS].sum() / outcome.counters[:, layout.NUM_STEPS].sum())


@pytest.mark.parametrize("lag", [True, False], ids=["lag", "no lag"])
@pytest.mark.parametrize("caching", [True, False], ids=["caching", "no caching"])
def test_a_conversation_trace_near_saturation(caching: bool, lag: bool) -> None:
    azure = load_profile("azure-conversation-2023")
    served = serve(caching=caching, lag=lag)
    calm = assert_windows_change_nothing(served, with_rate(azure, 3.0))
    assert calm.num_preemptions == 0
    assert windows_per_step(calm) < 0.2
    full = assert_windows_change_nothing(served, with_rate(azure, 40.0))
    assert full.num_preemptions > 100
    assert windows_per_step(full) < 1.0


@pytest.mark.parametrize("router", ["round_robin", "least_requests", "prefix_aware"])
def test_shared_prefixes(router: str) -> None:
    mooncake = load_profile("mooncake-conversation")
    served = serve(caching=True, router=router, num_replicas=2)
    outcome = assert_windows_change_nothing(served, with_rate(mooncake, 2.4))
    assert (outcome.outputs.cached > 0).sum() > 100
    assert outcome.num_preemptions > 0


def long_outputs(workload: Workload) -> Workload:
    """Few requests that decode for long, so that windows run into the table's knots."""
    some = with_rate(workload, 0.05)
    tokens = np.full(NUM_REQUESTS, 2500)
    return dataclasses.replace(some, output_tokens=tokens, max_tokens=tokens)


def test_long_windows_that_cross_knots() -> None:
    served = serve(caching=False)
    table = served.step_model.table
    workload = long_outputs(load_profile("azure-conversation-2023"))
    knots = np.arange(512.0, 8192.0, 512.0)
    # the same attention cut into many pieces, each a little steeper than the one before
    rows = np.arange(table.max_rows + 1)
    pieces = np.arange(len(knots) + 1)
    slope = table.attention_slope_s[:, :1] * (1 + 0.05 * pieces)
    jumps = (slope[:, :-1] - slope[:, 1:]) * rows[:, None] * knots
    base = table.attention_base_s[:, :1] + np.concatenate((np.zeros((len(rows), 1)), np.cumsum(jumps, axis=1)), axis=1)
    finer = dataclasses.replace(
        table,
        context_knots=np.concatenate(([0.0], knots)),
        attention_base_s=base,
        attention_slope_s=slope,
    )
    served = dataclasses.replace(served, step_model=dataclasses.replace(served.step_model, table=finer))
    outcome = assert_windows_change_nothing(served, workload)
    windows = outcome.counters[0, layout.NUM_WINDOWS] / NUM_REQUESTS
    assert 4 < windows < 25  # prefill, finish and about five knots in 2,500 steps of each request


@pytest.mark.parametrize("router", ["round_robin", "least_requests"])
def test_the_same_input_gives_the_same_bytes(router: str) -> None:
    served = serve(caching=True, router=router, num_replicas=3)
    workload = with_rate(load_profile("azure-conversation-2023"), 60.0)
    one, two = served.run(workload), served.run(workload)
    read: list[Callable[[Outcome], np.ndarray]] = [
        lambda o: o.outputs.first,
        lambda o: o.outputs.last,
        lambda o: o.outputs.cached,
        lambda o: o.outputs.preemptions,
        lambda o: o.replica_of,
        lambda o: o.counters,
        lambda o: o.times,
        lambda o: o.recorder.counts,
        lambda o: o.recorder.gaps[0, : o.recorder.counts[0, 0]],
    ]
    for column in read:
        assert column(one).tobytes() == column(two).tobytes()
