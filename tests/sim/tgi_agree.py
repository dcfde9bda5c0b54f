"""TGI's cases as ``sim`` takes them, and its plain engine."""

from __future__ import annotations

from dataclasses import replace

from oracle.tgi_cases import TgiCase
from oracle.tgi_plain import Engine
from servewise.types import Deployment, Router, TgiParams, Workload
from sim import agree


def deployment_of(case: TgiCase, num_replicas: int = 1, router: Router = "round_robin") -> Deployment:
    """A deployment with the case's settings; its limit of a request is that of the pool."""
    params = case.params
    knobs = TgiParams(
        max_concurrent_requests=params.max_concurrent_requests,
        max_batch_prefill_tokens=params.max_batch_prefill_tokens,
        max_total_tokens=params.num_kv_blocks * params.block_size_tokens + 1,
        cuda_memory_fraction=1.0,
        wiggle_room=0.9,
        block_size_tokens=params.block_size_tokens,
        prefix_caching=params.prefix_caching,
        prefill_chunking=params.prefill_chunking,
        cuda_graphs=(),
        waiting_served_ratio=params.waiting_served_ratio,
        max_waiting_tokens=params.max_waiting_tokens,
    )
    return agree.deployment("tgi", "3.3.5", knobs, num_replicas, router)


def workload_of(case: TgiCase) -> Workload:
    """The case's requests with their prefixes."""
    workload = agree.workload_of(case)
    return workload if case.params.prefix_caching else replace(workload, prefix=None)


TGI = agree.Comparison(
    deployment_of=deployment_of, engine_of=lambda case: Engine(case.params, case.times), workload_of=workload_of
)
memory_of = agree.memory_of
model_of = agree.model_of
run_open = TGI.run_open
run_plain = TGI.run_plain
assert_open_agrees = TGI.assert_open_agrees
assert_closed_loop_agrees = TGI.assert_closed_loop_agrees
