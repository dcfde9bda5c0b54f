"""TensorRT-LLM's cases as ``sim`` takes them, and its plain engine."""

from __future__ import annotations

from oracle.trtllm_cases import TrtllmCase
from oracle.trtllm_plain import Engine
from servewise.types import Deployment, Router, TrtllmParams
from sim import agree


def deployment_of(case: TrtllmCase, num_replicas: int = 1, router: Router = "round_robin") -> Deployment:
    """A deployment with the case's settings; its context limit is out of the way."""
    params = case.params
    knobs = TrtllmParams(
        max_batch_size=params.max_batch_size,
        max_num_tokens=params.max_num_tokens,
        max_seq_len=1 << 20,
        free_gpu_memory_fraction=0.9,
        tokens_per_block=params.block_size_tokens,
        enable_chunked_prefill=params.enable_chunked_prefill,
        cuda_graph_padding=True,
        cuda_graph_max_batch_size=8,
        batch_wait_timeout_iters=params.batch_wait_timeout_iters,
        batch_wait_max_tokens_ratio=params.batch_wait_max_tokens_ratio,
        capacity_scheduler_policy=params.policy,
        enable_block_reuse=params.enable_block_reuse,
    )
    version = "1.3.0" if params.counts_reuse else "1.2.1"
    return agree.deployment("tensorrt-llm", version, knobs, num_replicas, router)


TRTLLM = agree.Comparison(deployment_of=deployment_of, engine_of=lambda case: Engine(case.params, case.times))
workload_of = agree.workload_of
memory_of = agree.memory_of
model_of = agree.model_of
run_open = TRTLLM.run_open
run_plain = TRTLLM.run_plain
assert_open_agrees = TRTLLM.assert_open_agrees
assert_closed_loop_agrees = TRTLLM.assert_closed_loop_agrees
