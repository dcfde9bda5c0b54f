"""SGLang's cases as ``sim`` takes them, and its plain engine."""

from __future__ import annotations

from dataclasses import replace

from oracle.sglang_cases import SglangCase
from oracle.sglang_plain import Engine
from servewise.types import Deployment, Router, SglangParams, Workload
from sim import agree


def deployment_of(case: SglangCase, num_replicas: int = 1, router: Router = "round_robin") -> Deployment:
    """A deployment with the case's settings; its context limit is out of the way."""
    params = case.params
    knobs = SglangParams(
        max_running_requests=params.max_running_requests,
        chunked_prefill_size=params.chunked_prefill_size,
        max_prefill_tokens=params.max_prefill_tokens,
        context_length=1 << 20,
        mem_fraction_static=0.9,
        page_size=params.page_size,
        cuda_graph_max_bs=8,
        schedule_policy=params.schedule_policy,
        schedule_conservativeness=params.schedule_conservativeness,
        enable_mixed_chunk=params.enable_mixed_chunk,
        disable_radix_cache=params.disable_radix_cache,
        ignore_eos=params.ignore_eos,
    )
    return agree.deployment("sglang", "0.5.23", knobs, num_replicas, router)


def workload_of(case: SglangCase) -> Workload:
    """The case's requests; what is known about prefixes are blocks of ``span`` pages."""
    requests = tuple(
        replace(r, block_ids=tuple(name // case.span for name in r.block_ids[:: case.span])) for r in case.requests
    )
    return agree.workload_of(replace(case, requests=requests), case.span * case.params.page_size)


def without_names(case: SglangCase) -> SglangCase:
    """The case with nothing known about prefixes."""
    return replace(case, requests=tuple(replace(r, block_ids=()) for r in case.requests))


SGLANG = agree.Comparison(
    deployment_of=deployment_of, engine_of=lambda case: Engine(case.params, case.times), workload_of=workload_of
)
memory_of = agree.memory_of
model_of = agree.model_of
run_open = SGLANG.run_open
run_plain = SGLANG.run_plain
assert_open_agrees = SGLANG.assert_open_agrees
assert_closed_loop_agrees = SGLANG.assert_closed_loop_agrees
