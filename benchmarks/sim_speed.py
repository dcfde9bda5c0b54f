"""How many requests the simulator computes per CPU second.

Llama-3.1-8B on one H100 replica of vLLM. The Azure conversation trace, repeated to a million requests, at 50%
and 80% of the replica's capacity and in an overload that preempts; the Mooncake conversation trace, whose
requests share prefixes, at 80% with prefix caching on; the Azure trace on a group of one prefill and two decode
instances at 80% of its capacity. The traces are read from the development data where there
are, and drawn from the built-in profiles of the same name otherwise.

Every figure is process CPU time of ``sim.simulate`` from the workload on (packing included), with compiled code
warm, best of five.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from servewise import perf
from servewise.catalog import get_gpu, get_model
from servewise.engines import vllm
from servewise.sim import Outcome, simulate, simulate_disaggregated
from servewise.traffic import load_profile, read_trace
from servewise.types import (
    Deployment,
    Disaggregation,
    InstancePool,
    MemoryReport,
    Parallelism,
    Precision,
    StepModel,
    Workload,
)

TRACES = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces"
NUM_REQUESTS = 1_000_000
NUM_CAPACITY_REQUESTS = 200_000
"""Requests in the runs that find the capacity."""
LOADS = {"50%": 0.5, "80%": 0.8, "overload": 1.5}
KEEPS_UP_FRAC = 0.99
"""A replica keeps up while it completes requests at this share of the rate at which they arrive."""
BEST_OF = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One replica with its step times and memory."""

    deployment: Deployment
    step_model: StepModel
    memory: MemoryReport

    def run(self, workload: Workload) -> Outcome:
        """What the benchmark times."""
        if self.deployment.disaggregation is not None:
            models = {"prefill": self.step_model, "decode": self.step_model}
            memories = {"prefill": self.memory, "decode": self.memory}
            return simulate_disaggregated(workload, self.deployment, models, memories)  # type: ignore[arg-type]
        return simulate(workload, self.deployment, self.step_model, self.memory)


def apart(served: Served, num_prefill: int, num_decode: int) -> Served:
    """The same instances in two roles, in one node."""
    alone = served.deployment
    pools = [
        InstancePool(gpu=alone.gpu, parallelism=alone.parallelism, params=alone.params, num_instances=number)
        for number in (num_prefill, num_decode)
    ]
    link = perf.kv_link(alone, alone, num_prefill, num_decode)
    found = Disaggregation(prefill=pools[0], decode=pools[1], link=link, router="least_requests")
    return replace(served, deployment=replace(alone, disaggregation=found))


def serve(max_model_len: int, *, caching: bool) -> Served:
    """Llama-3.1-8B on one H100 with vLLM's defaults but for the two settings."""
    model, gpu, version = get_model("meta-llama/Llama-3.1-8B-Instruct"), get_gpu("H100-SXM-80GB"), "0.33.0"
    params = replace(
        vllm.default_params(version, gpu, model), max_model_len=max_model_len, enable_prefix_caching=caching
    )
    deployment = Deployment(
        model=model,
        gpu=gpu,
        engine="vllm",
        engine_version=version,
        precision=Precision(),
        parallelism=Parallelism(),
        params=params,
    )
    return Served(deployment=deployment, step_model=perf.step_model(deployment), memory=perf.memory(deployment))


def trace(file_name: str, profile: str) -> tuple[Workload, str]:
    """The trace, or a draw from the profile that was derived from it; and which of the two it is."""
    path = TRACES / file_name
    if path.is_file():
        return read_trace(path), file_name
    return load_profile(profile), f"profile {profile}"


def repeated(workload: Workload, num_requests: int) -> Workload:
    """The trace again and again, each time after its last request, cut to ``num_requests``."""
    copies = -(-num_requests // workload.num_requests)
    period_s = workload.span_s * workload.num_requests / (workload.num_requests - 1)
    starts_s = np.repeat(np.arange(copies) * period_s, workload.num_requests)
    columns = {
        name: np.tile(getattr(workload, name), copies)[:num_requests]
        for name in ("input_tokens", "output_tokens", "max_tokens")
    }
    arrival_s = (np.tile(workload.arrival_s, copies) + starts_s)[:num_requests]
    return replace(workload, arrival_s=arrival_s, **columns)


def at_rate(workload: Workload, rate_rps: float) -> Workload:
    """The workload with its clock set to a mean rate."""
    faster = rate_rps * workload.span_s / (workload.num_requests - 1)
    return replace(workload, arrival_s=workload.arrival_s / faster)


def completed_rps(workload: Workload, outcome: Outcome) -> float:
    """Requests completed per second, drain included [rps]."""
    return workload.num_requests / float(np.nanmax(outcome.outputs.last) - workload.arrival_s[0])


def capacity_rps(served: Served, workload: Workload) -> float:
    """Highest rate with which the replica keeps up [rps], within 1%."""
    low, high = 0.1, 1000.0
    while high / low > 1.01:
        rate_rps = (low * high) ** 0.5
        tried = at_rate(workload, rate_rps)
        keeps_up = completed_rps(tried, served.run(tried)) >= KEEPS_UP_FRAC * rate_rps
        low, high = (rate_rps, high) if keeps_up else (low, rate_rps)
    return low


def requests_per_cpu_s(work: Callable[[], Outcome], num_requests: int) -> float:
    """Requests per second of process CPU time, best of five [1/s]."""
    work()  # warm
    best_s = float("inf")
    for _ in range(BEST_OF):
        start_s = time.process_time()
        work()
        best_s = min(best_s, time.process_time() - start_s)
    return num_requests / best_s


def measure(served: Served, workload: Workload) -> tuple[float, Outcome]:
    """Speed on a workload, and the outcome, of which every request finished."""
    outcome = served.run(workload)
    assert not np.isnan(outcome.outputs.last).any()
    assert outcome.num_simulated + outcome.packed.num_rejected == workload.num_requests
    return requests_per_cpu_s(lambda: served.run(workload), workload.num_requests), outcome


def main() -> None:
    """Measure, report in words, and print one JSON line."""
    served, cached = serve(16384, caching=False), serve(16384, caching=True)
    azure, source = trace("AzureLLMInferenceTrace_conv_2023.csv", "azure-conversation-2023")
    capacity = capacity_rps(served, repeated(azure, NUM_CAPACITY_REQUESTS))
    million = repeated(azure, NUM_REQUESTS)
    print(f"{source} repeated to {NUM_REQUESTS:,} requests; capacity {capacity:.1f} rps")
    by_load, by_load_cached = {}, {}
    for name, load in LOADS.items():
        workload = at_rate(million, load * capacity)
        by_load[name], outcome = measure(served, workload)
        by_load_cached[name], _ = measure(cached, workload)
        print(
            f"{name:>8}: {by_load[name]:>10,.0f} requests per CPU second, with prefix caching on "
            f"{by_load_cached[name]:,.0f}; {outcome.num_preemptions:,} preemptions, at most "
            f"{outcome.peak_running} running"
        )
        assert name != "overload" or outcome.num_preemptions > 0

    long = serve(131072, caching=True)
    mooncake, prefix_source = trace("conversation_trace.jsonl", "mooncake-conversation")
    prefix_capacity = capacity_rps(long, mooncake)
    workload = at_rate(mooncake, 0.8 * prefix_capacity)
    prefix_speed, outcome = measure(long, workload)
    hit_frac = float(outcome.outputs.cached.sum() / workload.input_tokens.sum())
    assert hit_frac > 0
    print(
        f"{prefix_source}: {prefix_speed:,.0f} requests per CPU second at {0.8 * prefix_capacity:.2f} rps; "
        f"{hit_frac:.1%} of prompt tokens cached, {outcome.num_preemptions:,} preemptions"
    )
    group = apart(served, 1, 2)
    group_capacity = capacity_rps(group, repeated(azure, NUM_CAPACITY_REQUESTS))
    group_speed, _ = measure(group, at_rate(million, 0.8 * group_capacity))
    print(f"one prefill and two decode instances: {group_speed:,.0f} at {0.8 * group_capacity:.1f} rps")
    print(
        json.dumps(
            {
                "requests_per_cpu_s_disaggregated": round(group_speed),
                "requests_per_cpu_s": round(min(by_load.values())),
                "by_load": {name: round(value) for name, value in by_load.items()},
                "requests_per_cpu_s_prefix": round(prefix_speed),
                "by_load_prefix_caching_on": {name: round(value) for name, value in by_load_cached.items()},
                "capacity_rps": round(capacity, 2),
                "traces": [source, prefix_source],
            }
        )
    )


if __name__ == "__main__":
    main()
