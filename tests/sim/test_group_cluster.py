"""Groups of prefill and decode instances that start, fail and drain, and when each request went where."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from servewise import perf, traffic
from servewise.catalog import get_gpu, get_model
from servewise.engines import sglang, trtllm, vllm
from servewise.errors import InputError
from servewise.sim import ClusterRun, Life, Outcome, simulate_disaggregated, simulate_group_cluster, to_log
from servewise.types import (
    ROLES,
    Deployment,
    Disaggregation,
    EngineParams,
    InstancePool,
    Parallelism,
    Precision,
    RequestStatus,
    Router,
    Workload,
)

MODEL, H100 = get_model("meta-llama/Llama-3.1-8B-Instruct"), get_gpu("H100-SXM-80GB")
ENGINES = ("vllm", "sglang", "tensorrt-llm")
LONGEST = 16384


@pytest.fixture(scope="module")
def chat() -> Workload:
    """Busy traffic."""
    workload = traffic.load(traffic.TrafficSource(profile="azure-conversation-2023", num_requests=600))
    return replace(workload, arrival_s=workload.arrival_s * 0.25)


def deployed(engine: str, router: Router = "least_requests", num_replicas: int = 1) -> Deployment:
    """Groups of one prefill and two decode instances."""
    versions = {"vllm": "0.33.0", "sglang": "0.5.23", "tensorrt-llm": "1.2.1"}
    version = versions[engine]
    params: EngineParams
    match engine:
        case "vllm":
            params = replace(vllm.default_params(version, H100, MODEL), max_model_len=LONGEST, max_num_seqs=64)
        case "sglang":
            params = replace(
                sglang.default_params(version, H100, MODEL), context_length=LONGEST, max_running_requests=64
            )
        case _:
            params = replace(
                trtllm.default_params(version, H100, MODEL),
                max_seq_len=LONGEST,
                max_batch_size=64,
                enable_chunked_prefill=True,
            )
    one = Deployment(
        model=MODEL,
        gpu=H100,
        engine=engine,  # type: ignore[arg-type]
        engine_version=version,
        precision=Precision(),
        parallelism=Parallelism(),
        params=params,
    )
    pools = [InstancePool(gpu=H100, parallelism=Parallelism(), params=params, num_instances=num) for num in (1, 2)]
    link = perf.kv_link(one, one, 1, 2)
    group = Disaggregation(prefill=pools[0], decode=pools[1], link=link, router="least_requests")
    return replace(one, disaggregation=group, router=router, num_replicas=num_replicas)


def whole(workload: Workload, deployment: Deployment) -> Outcome:
    """A fleet that is there from the start to the end."""
    models = {role: perf.step_model(deployment.pool(role)) for role in ROLES}
    memories = {role: perf.memory(deployment.pool(role)) for role in ROLES}
    return simulate_disaggregated(workload, deployment, models, memories)


def clustered(workload: Workload, deployment: Deployment, *lives: Life, fast_forward: bool = True) -> ClusterRun:
    """One whose groups come and go."""
    models = {role: perf.step_model(deployment.pool(role)) for role in ROLES}
    memories = {role: perf.memory(deployment.pool(role)) for role in ROLES}
    return simulate_group_cluster(workload, deployment, models, memories, lives, fast_forward=fast_forward)


@pytest.mark.parametrize("router", ["round_robin", "least_requests"])
@pytest.mark.parametrize("engine", ENGINES)
def test_groups_that_stay_are_a_fleet(chat: Workload, engine: str, router: Router) -> None:
    deployment = deployed(engine, router, num_replicas=2)
    expected = to_log(chat, whole(chat, deployment))
    found = clustered(chat, deployment, Life(), Life())
    np.testing.assert_allclose(found.log.first_token_s, expected.first_token_s, rtol=1e-12)
    np.testing.assert_allclose(found.log.last_token_s, expected.last_token_s, rtol=1e-12)
    np.testing.assert_array_equal(found.log.replica, expected.replica)
    assert found.num_retries.sum() == 0


LIVES = (
    Life(),
    Life(until_s=15.0, ends="failure"),
    Life(ready_s=20.0),  # the one that failed, started again
    Life(ready_s=5.0, until_s=25.0),
)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_group_runs_as_it_would_alone(chat: Workload, engine: str) -> None:
    deployment = deployed(engine)
    found = clustered(chat, deployment, *LIVES)
    log, lost = found.log, found.num_retries
    assert (log.status == RequestStatus.OK).all()
    assert lost.sum() > 3
    num_compared = 0
    for i, life in enumerate(LIVES):
        mine = np.flatnonzero((log.replica == i) & (lost == 0))
        if life.ends == "failure":
            assert (log.last_token_s[mine] <= life.until_s + 1.0).all()  # network included
            continue
        assert (log.intended_s[mine] >= life.ready_s).all()
        assert (log.intended_s[mine] < life.until_s).all()
        if (lost[log.replica == i] > 0).any():
            continue  # was sent others' requests at a time that the log does not tell
        own = replace(
            chat,
            arrival_s=chat.arrival_s[mine],
            input_tokens=chat.input_tokens[mine],
            output_tokens=chat.output_tokens[mine],
            max_tokens=chat.max_tokens[mine],
            session=None,
        )
        alone = to_log(own, whole(own, deployed(engine, "round_robin")))
        np.testing.assert_allclose(log.first_token_s[mine], alone.first_token_s, rtol=1e-9)
        np.testing.assert_allclose(log.last_token_s[mine], alone.last_token_s, rtol=1e-9)
        num_compared += len(mine)
    assert num_compared > 50


def test_windows_are_single_steps(chat: Workload) -> None:
    found = clustered(chat, deployed("vllm"), *LIVES)
    steps = clustered(chat, deployed("vllm"), *LIVES, fast_forward=False)
    np.testing.assert_allclose(found.log.last_token_s, steps.log.last_token_s, rtol=1e-9)
    np.testing.assert_array_equal(found.num_retries, steps.num_retries)


def test_a_cluster_needs_groups(chat: Workload) -> None:
    with pytest.raises(InputError, match="a cluster needs replicas"):
        clustered(chat, deployed("vllm"))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_way_of_a_kv_cache_is_told_in_order(chat: Workload, engine: str) -> None:
    deployment = deployed(engine)
    outcome = whole(chat, deployment)
    log, way = to_log(chat, outcome), outcome.handover
    assert way is not None
    assert deployment.disaggregation is not None
    crossed = way.decode_of >= 0
    assert crossed.mean() > 0.9
    assert set(way.prefill_of) == {0}
    assert set(way.decode_of[crossed]) == {1, 2}
    assert (way.prefill_end_s > chat.arrival_s).all()
    assert (way.asked_s >= way.prefill_end_s)[crossed].all()
    assert (way.start_s >= way.asked_s)[crossed].all()
    # whole prompts are sent at once but for SGLang's chunks
    wire_s = way.end_s - way.start_s - deployment.disaggregation.link.latency_s
    sent_bytes = perf.kv_transfer_bytes(deployment.pool("prefill"), chat.input_tokens)
    full_s = sent_bytes / deployment.disaggregation.link.bytes_per_s
    if engine == "sglang":
        assert (wire_s <= full_s * (1 + 1e-9) + 1e-12)[crossed].all()
    else:
        np.testing.assert_allclose(wire_s[crossed], full_s[crossed], rtol=1e-6)
    first_s = log.first_token_s - outcome.packed.requests.extra
    if engine == "tensorrt-llm":  # the first token comes from the prefill instance
        np.testing.assert_allclose(first_s, way.prefill_end_s)
    else:
        assert (first_s >= way.end_s)[crossed].all()
