"""The baselines' cases as ``sim`` takes them, and their plain engine."""

from __future__ import annotations

from dataclasses import replace

from oracle.baseline_cases import BaselineCase
from oracle.baselines_plain import Engine
from servewise.types import BaselineParams, Deployment, Router, Workload
from sim import agree


def deployment_of(case: BaselineCase, num_replicas: int = 1, router: Router = "round_robin") -> Deployment:
    """A deployment with the case's settings."""
    params = case.params
    knobs = BaselineParams(
        max_batch_size=params.max_batch_size,
        max_seq_len=params.max_seq_len,
        memory_utilization=0.9,
        block_size_tokens=params.block_size_tokens,
        chunk_size=params.chunk_size,
        max_wait_s=params.max_wait_s,
    )
    return agree.deployment(params.engine, "textbook", knobs, num_replicas, router)


def workload_of(case: BaselineCase) -> Workload:
    """The case's requests; nothing is known about prefixes."""
    return replace(agree.workload_of(case), prefix=None)


BASELINES = agree.Comparison(
    deployment_of=deployment_of, engine_of=lambda case: Engine(case.params, case.times), workload_of=workload_of
)
memory_of = agree.memory_of
model_of = agree.model_of
run_open = BASELINES.run_open
run_plain = BASELINES.run_plain
assert_open_agrees = BASELINES.assert_open_agrees
assert_closed_loop_agrees = BASELINES.assert_closed_loop_agrees
