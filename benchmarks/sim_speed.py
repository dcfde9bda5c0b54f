"""How many requests the simulator computes per CPU second.

Llama-3.1-8B on one H100 replica of vLLM. The Azure conversation trace, repeated to a million requests, at 50%
and 80% of the replica's capacity and in an overload that preempts; the Mooncake conversation trace, whose
requests share prefixes, at 80% with prefix caching on; the Azure trace on a group of one prefill and two decode
instances at 80% of its capacity. The traces are read from the development data where there
are, and drawn from the built-in profiles of the same name otherwise.

``--all`` runs every engine with its defaults on one H100 (Ollama with 4-bit weights and one slot) at 80% of its own
capacity, a group of one prefill and two decode instances of vLLM, and vLLM's and SGLang's prefix caches.

Every figure is process CPU time of ``sim.simulate`` from the workload on (packing included), with compiled code
warm, best of five. The wall time of a run with one thread is printed beside it: where the machine's CPU clock is wrong,
they differ.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from servewise import perf
from servewise.catalog import get_gpu, get_model
from servewise.engines import ollama, sglang, tgi, trtllm, vllm
from servewise.sim import Outcome, simulate, simulate_disaggregated
from servewise.traffic import load_profile, read_trace
from servewise.types import (
    Deployment,
    Disaggregation,
    EngineName,
    EngineParams,
    InstancePool,
    MemoryReport,
    Parallelism,
    Precision,
    Role,
    StepModel,
    WeightPrecision,
    Workload,
)

MODEL, GPU, VLLM = get_model("meta-llama/Llama-3.1-8B-Instruct"), get_gpu("H100-SXM-80GB"), "0.33.0"
TRACES = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces"
NUM_REQUESTS = 1_000_000
NUM_CAPACITY_REQUESTS = 200_000
"""Requests in the runs that find the capacity."""
LOADS = {"50%": 0.5, "80%": 0.8, "overload": 1.5}
KEEPS_UP_FRAC = 0.99
"""A replica keeps up while it completes requests at this share of the rate at which they arrive."""
BEST_OF = 5


class Simulated(Protocol):
    """What is timed: anything that runs a workload."""

    def run(self, workload: Workload) -> Outcome:
        """Simulate the workload."""
        ...


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group of prefill and decode instances that are alike."""

    served: Served
    deployment: Deployment

    def run(self, workload: Workload) -> Outcome:
        """What the benchmark times."""
        models: dict[Role, StepModel] = {"prefill": self.served.step_model, "decode": self.served.step_model}
        memories: dict[Role, MemoryReport] = {"prefill": self.served.memory, "decode": self.served.memory}
        return simulate_disaggregated(workload, self.deployment, models, memories)


def served_by(engine: EngineName, version: str, params: EngineParams, weights: WeightPrecision = "bf16") -> Served:
    """Llama-3.1-8B on one H100."""
    deployment = Deployment(
        model=MODEL,
        gpu=GPU,
        engine=engine,
        engine_version=version,
        precision=Precision(weights=weights),
        parallelism=Parallelism(),
        params=params,
    )
    return Served(deployment=deployment, step_model=perf.step_model(deployment), memory=perf.memory(deployment))


def serve(max_model_len: int, *, caching: bool) -> Served:
    """vLLM with its defaults but for the two settings."""
    usual = vllm.default_params(VLLM, GPU, MODEL)
    return served_by("vllm", VLLM, replace(usual, max_model_len=max_model_len, enable_prefix_caching=caching))


def every_engine() -> dict[str, Simulated]:
    """Every engine with its defaults, requests of at most 16,384 tokens."""
    tokens = 16384
    found: dict[str, Simulated] = {"vllm": serve(tokens, caching=True)}
    version = sglang.default_version()
    found["sglang"] = served_by(
        "sglang", version, replace(sglang.default_params(version, GPU, MODEL), context_length=tokens)
    )
    version = trtllm.default_version()
    reserving = replace(
        trtllm.default_params(version, GPU, MODEL),
        max_seq_len=tokens,
        enable_chunked_prefill=True,
        cuda_graph_padding=True,
        cuda_graph_max_batch_size=2048,
    )
    found["tensorrt-llm"] = served_by("tensorrt-llm", version, reserving)
    version = tgi.default_version()
    found["tgi"] = served_by("tgi", version, replace(tgi.default_params(version, GPU, MODEL), max_total_tokens=tokens))
    version = ollama.default_version()
    slots = replace(ollama.default_params(version, GPU, MODEL), context_length=tokens, keep_alive_s=None)
    found["ollama"] = served_by("ollama", version, slots, "q4_k_m")
    served = serve(tokens, caching=False)
    pools = [
        InstancePool(
            gpu=GPU,
            parallelism=Parallelism(),
            params=served.deployment.params,
            num_instances=number,
        )
        for number in (1, 2)
    ]
    link = perf.kv_link(served.deployment, served.deployment, 1, 2)
    group = replace(served.deployment, disaggregation=Disaggregation(prefill=pools[0], decode=pools[1], link=link))
    found["disaggregated"] = Group(served=served, deployment=group)
    return found


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
    completed = np.count_nonzero(~np.isnan(outcome.outputs.last))
    return completed / float(np.nanmax(outcome.outputs.last) - workload.arrival_s[0])


def capacity_rps(served: Simulated, workload: Workload) -> float:
    """Highest rate with which the replica keeps up [rps], within 1%."""
    low, high = 0.01, 1000.0
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


def measure(served: Simulated, workload: Workload) -> tuple[float, Outcome]:
    """Speed on a workload, and the outcome, of which every request finished or was turned away."""
    outcome = served.run(workload)
    assert (np.isnan(outcome.outputs.last) == (outcome.outputs.rejected != 0)).all()
    assert outcome.num_simulated + outcome.packed.num_rejected == workload.num_requests
    return requests_per_cpu_s(lambda: served.run(workload), workload.num_requests), outcome


def measure_all() -> None:
    """Measure every engine, report in words, and print one JSON line."""
    azure, source = trace("AzureLLMInferenceTrace_conv_2023.csv", "azure-conversation-2023")
    speeds = {}
    for name, served in every_engine().items():
        rate_rps = 0.8 * capacity_rps(served, azure)
        workload = at_rate(repeated(azure, NUM_REQUESTS // 4), rate_rps)
        started = time.perf_counter()
        served.run(workload)
        wall_s = time.perf_counter() - started
        speeds[name], _ = measure(served, workload)
        print(
            f"{name:>14}: {speeds[name]:>10,.0f} requests per CPU second at {rate_rps:.2f} rps; "
            f"one run took {wall_s:.2f} s"
        )
    mooncake, prefix_source = trace("conversation_trace.jsonl", "mooncake-conversation")
    version = sglang.default_version()
    tree = replace(sglang.default_params(version, GPU, MODEL), context_length=131072)
    prefix = {}
    for name, served in {"vllm": serve(131072, caching=True), "sglang": served_by("sglang", version, tree)}.items():
        workload = at_rate(mooncake, 0.8 * capacity_rps(served, mooncake))
        prefix[name], outcome = measure(served, workload)
        assert outcome.outputs.cached.sum() > 0
        print(f"{name:>14}: {prefix[name]:>10,.0f} requests per CPU second with its prefix cache")
    print(
        json.dumps(
            {name: round(speed) for name, speed in speeds.items()}
            | {"prefix": round(min(prefix.values())), "traces": [source, prefix_source]}
        )
    )


def main() -> None:
    """Measure, report in words, and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every engine at 80% of its capacity")
    if parser.parse_args().all:
        measure_all()
        return
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
