"""Replicas that start, fail and drain: against the fleet that does not, against single replicas, and by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from servewise import perf, traffic
from servewise.catalog import get_gpu, get_model
from servewise.engines import sglang, trtllm, vllm
from servewise.errors import InputError
from servewise.sim import ClusterRun, Life, run, simulate_cluster
from servewise.types import Deployment, MemoryReport, Parallelism, Precision, RequestStatus, Router, StepModel, Workload

MODEL, H100 = get_model("meta-llama/Llama-3.1-8B-Instruct"), get_gpu("H100-SXM-80GB")
ROUTERS: tuple[Router, ...] = ("round_robin", "least_requests", "prefix_aware", "session_sticky")


@pytest.fixture(scope="module")
def chat() -> Workload:
    """Busy traffic in conversations of up to four turns."""
    workload = traffic.load(traffic.TrafficSource(profile="azure-conversation-2023", num_requests=800))
    rng = np.random.default_rng(3)
    return replace(workload, arrival_s=workload.arrival_s * 0.25, session=rng.integers(0, 250, workload.num_requests))


def deployed(engine: str = "vllm", router: Router = "least_requests", num_replicas: int = 1) -> Deployment:
    """A small fleet."""
    params = {
        "vllm": replace(vllm.default_params("0.33.0", H100, MODEL), max_model_len=16384, max_num_seqs=64),
        "sglang": replace(sglang.default_params("0.5.23", H100, MODEL), context_length=16384, max_running_requests=64),
        "tensorrt-llm": replace(
            trtllm.default_params("1.2.1", H100, MODEL),
            max_seq_len=16384,
            max_batch_size=64,
            enable_chunked_prefill=True,
        ),
    }[engine]
    version = {"vllm": "0.33.0", "sglang": "0.5.23", "tensorrt-llm": "1.2.1"}[engine]
    return Deployment(
        model=MODEL,
        gpu=H100,
        engine=engine,  # type: ignore[arg-type]
        engine_version=version,
        precision=Precision(),
        parallelism=Parallelism(),
        params=params,  # type: ignore[arg-type]
        num_replicas=num_replicas,
        router=router,
    )


def parts(deployment: Deployment) -> tuple[StepModel, MemoryReport]:
    """What simulates it."""
    return perf.step_model(deployment), perf.memory(deployment)


def clustered(workload: Workload, deployment: Deployment, *lives: Life, fast_forward: bool = True) -> ClusterRun:
    """A cluster's run."""
    return simulate_cluster(workload, deployment, *parts(deployment), lives, fast_forward=fast_forward)


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_replicas_that_stay_are_a_fleet(chat: Workload, router: Router, engine: str) -> None:
    deployment = deployed(engine, router, num_replicas=3)
    if router == "prefix_aware":
        shared = traffic.load(traffic.TrafficSource(profile="mooncake-conversation", num_requests=150))
        chat = replace(shared, arrival_s=shared.arrival_s * 0.05)
        deployment = replace(
            deployment,
            params=replace(deployment.params, **{deployed_length(deployment): 131072}),  # type: ignore[arg-type]
        )
    whole = run(chat, deployment, *parts(deployment), record_itl=False, num_samples=0)
    found = clustered(chat, deployment, Life(), Life(), Life())
    np.testing.assert_allclose(found.log.first_token_s, whole.first_token_s, rtol=1e-12)
    np.testing.assert_allclose(found.log.last_token_s, whole.last_token_s, rtol=1e-12)
    np.testing.assert_array_equal(found.log.replica, whole.replica)
    np.testing.assert_array_equal(found.log.cached_tokens, whole.cached_tokens)
    assert found.num_retries.sum() == 0
    for i in range(3):
        assert found.busy_until_s[i] == pytest.approx(whole.last_token_s[whole.replica == i].max())


def deployed_length(deployment: Deployment) -> str:
    """The parameter that bounds a request."""
    return {"vllm": "max_model_len", "sglang": "context_length", "tensorrt-llm": "max_seq_len"}[deployment.engine]


LIVES = (
    Life(),
    Life(until_s=20.0, ends="failure"),
    Life(ready_s=25.0),  # the one that failed, started again
    Life(ready_s=5.0, until_s=30.0),
    Life(ready_s=31.0, until_s=33.0, ends="failure"),
)


@pytest.mark.parametrize("router", ["round_robin", "least_requests", "session_sticky"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_every_replica_runs_as_it_would_alone(chat: Workload, router: Router, engine: str) -> None:
    """Given who was sent where and when, a replica's run is that of a single one (simulated on its own)."""
    deployment = deployed(engine, router)
    found = clustered(chat, deployment, *LIVES)
    log, lost = found.log, found.num_retries
    assert (log.status == RequestStatus.OK).all()
    assert lost.sum() > 3
    for i, life in enumerate(LIVES):
        mine = np.flatnonzero((log.replica == i) & (lost == 0))
        if life.ends == "failure":
            assert (log.last_token_s[mine] <= life.until_s + 1.0).all()  # network included
            continue
        if (lost[log.replica == i] > 0).any():
            continue  # was sent others' requests at a time that the log does not tell
        assert (log.intended_s[mine] >= life.ready_s).all()
        assert (log.intended_s[mine] < life.until_s).all()
        own = replace(
            chat,
            arrival_s=chat.arrival_s[mine],
            input_tokens=chat.input_tokens[mine],
            output_tokens=chat.output_tokens[mine],
            max_tokens=chat.max_tokens[mine],
            session=None,
        )
        alone = run(own, deployed(engine, "round_robin"), *parts(deployment), record_itl=False, num_samples=0)
        np.testing.assert_allclose(log.first_token_s[mine], alone.first_token_s, rtol=1e-9)
        np.testing.assert_allclose(log.last_token_s[mine], alone.last_token_s, rtol=1e-9)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_windows_are_single_steps(chat: Workload, engine: str) -> None:
    found = clustered(chat, deployed(engine), *LIVES)
    steps = clustered(chat, deployed(engine), *LIVES, fast_forward=False)
    np.testing.assert_allclose(found.log.last_token_s, steps.log.last_token_s, rtol=1e-9)
    np.testing.assert_array_equal(found.log.replica, steps.log.replica)
    np.testing.assert_array_equal(found.num_retries, steps.num_retries)


def three(*, at_s: tuple[float, float, float], output_tokens: int) -> Workload:
    """Three like requests."""
    chat = traffic.load(traffic.TrafficSource(profile="azure-conversation-2023", num_requests=3))
    full = np.full(3, output_tokens, np.int64)
    return replace(
        chat, arrival_s=np.array(at_s), input_tokens=np.full(3, 512, np.int64), output_tokens=full, max_tokens=full
    )


def test_a_request_whose_replica_fails_is_run_again_whole() -> None:
    deployment = deployed()
    # alone, a request takes a second and more; the only replica fails in the middle of the second one
    calm = clustered(three(at_s=(0.0, 100.0, 200.0), output_tokens=200), deployment, Life())
    took_s = calm.log.last_token_s - calm.log.intended_s
    assert took_s[1] > 0.5
    found = clustered(
        three(at_s=(0.0, 100.0, 200.0), output_tokens=200),
        deployment,
        Life(until_s=100.3, ends="failure"),
        Life(ready_s=130.0),
    )
    assert found.num_retries.tolist() == [0, 1, 0]
    assert found.log.replica.tolist() == [0, 1, 1]
    # it starts from nothing when the replica is back, and counts from its first intended send
    assert found.log.last_token_s[1] == pytest.approx(130.0 + took_s[1])
    assert found.log.intended_s[1] == 100.0
    assert found.log.last_token_s[2] == pytest.approx(200.0 + took_s[2])
    assert found.busy_until_s.tolist() == [100.3, pytest.approx(200.0 + took_s[2])]


def test_what_the_last_step_would_have_emitted_is_lost() -> None:
    workload = three(at_s=(0.0, 50.0, 60.0), output_tokens=100)
    end_s = clustered(workload, deployed(), Life()).log.last_token_s[0]
    early = clustered(workload, deployed(), Life(until_s=end_s - 0.02, ends="failure"), Life(ready_s=10.0))
    assert early.num_retries.tolist() == [1, 0, 0]
    late = clustered(workload, deployed(), Life(until_s=end_s + 1e-6, ends="failure"), Life(ready_s=10.0))
    assert late.num_retries.tolist() == [0, 0, 0]


def test_a_draining_replica_finishes_what_it_has() -> None:
    workload = three(at_s=(0.0, 1.0, 2.0), output_tokens=400)
    found = clustered(workload, deployed(), Life(until_s=0.5), Life(ready_s=0.9))
    assert found.log.replica.tolist() == [0, 1, 1]
    assert found.num_retries.sum() == 0
    assert found.busy_until_s[0] == found.log.last_token_s[0] > 0.5


def test_requests_wait_for_a_replica_and_are_unfinished_without_one() -> None:
    workload = three(at_s=(0.0, 10.0, 100.0), output_tokens=50)
    found = clustered(workload, deployed(), Life(ready_s=30.0, until_s=90.0))
    assert [RequestStatus(s).name for s in found.log.status] == ["OK", "OK", "UNFINISHED"]
    assert (found.log.first_token_s[:2] > 30.0).all()
    assert math.isnan(found.log.last_token_s[2])
    died = clustered(workload, deployed(), Life(until_s=10.1, ends="failure"))
    assert [RequestStatus(s).name for s in died.log.status] == ["OK", "UNFINISHED", "UNFINISHED"]
    assert np.isnan(died.log.first_token_s[1:]).all()


def test_a_conversation_stays_with_its_replica(chat: Workload) -> None:
    found = clustered(chat, deployed(router="session_sticky"), Life(), Life(), Life())
    assert chat.session is not None
    for session in np.unique(chat.session):
        assert len(np.unique(found.log.replica[chat.session == session])) == 1
    with pytest.raises(InputError, match="names conversations"):
        clustered(replace(chat, session=None), deployed(router="session_sticky"), Life())


@pytest.mark.parametrize("lives", [(), (Life(ready_s=5.0, until_s=5.0),)])
def test_a_cluster_needs_replicas(chat: Workload, lives: tuple[Life, ...]) -> None:
    with pytest.raises(InputError, match="a cluster needs replicas"):
        clustered(chat, deployed(), *lives)
