"""What a fleet runs out of first, in words."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servewise.kernel import layout
from servewise.metrics import broken, e2e_s, finished, tpot_s, ttft_s
from servewise.perf import explain
from servewise.search.fleet import Load, Trial, try_fleet
from servewise.search.shapes import Shape
from servewise.sim import Outcome, to_log
from servewise.types import Deployment, Disaggregation, MemoryReport, Promise, RequestLog, Summary

__all__ = ["broken_reason", "limited_by", "replicas", "runs_full"]

GROUPS = {
    "compute": ("compute", "prefill_attention", "head"),
    "memory bandwidth": ("weights", "kv", "elementwise"),
    "communication between GPUs": ("all_reduce",),
    "drafting": ("draft",),
    "launch and scheduling overhead": ("overhead",),
}
KV_FULL_FRAC = 0.95
"""KV memory is named as the limit from this share of the blocks in use on; a choice of wording, nothing rests on it."""
LONG_DRAIN_FRAC = 0.1
"""A fleet is called saturated when it needs longer than this share of the arrivals' span to finish afterwards."""

FULL_FRAC = 0.9
"""Replicas run full when on average they decode this share of the requests that slots and KV memory admit at once."""


def runs_full(shape: Shape, memory: MemoryReport, load: Load, outcome: Outcome) -> bool:
    """Whether requests wait for slots or KV memory most of the time, not in bursts alone.

    With pipeline stages what is decoded is counted a batch; seats and memory are for those of all stages together, but
    of TensorRT-LLM, whose batches have seats of their own.
    """
    stages = shape.deployment.parallelism.pipeline_parallel_size
    seats = shape.deployment.max_rows * (stages if shape.deployment.engine == "tensorrt-llm" else 1)
    requests = load.packed.requests
    mean_tokens = float(requests.input_tokens.mean() + requests.output_tokens.mean() / 2)
    admitted = min(seats, memory.kv_capacity_tokens / mean_tokens)
    decoding = _decoding_times(shape.deployment, outcome)
    mean_rows = decoding[:, layout.ROW_TIME].sum() / max(float(decoding[:, layout.NOW].sum()), 1e-9)
    return bool(stages * mean_rows >= FULL_FRAC * admitted)


def _decoding_times(deployment: Deployment, outcome: Outcome) -> NDArray[np.float64]:
    """Times of what decodes: of every scheduler, or of the decode instances of groups."""
    group = deployment.disaggregation
    if group is None:
        return outcome.times
    instance = np.arange(len(outcome.times)) % (group.prefill.num_instances + group.decode.num_instances)
    return np.asarray(outcome.times[instance >= group.prefill.num_instances])


def limited_by(shape: Shape, memory: MemoryReport, load: Load, trial: Trial) -> str:
    """What the replicas' time goes to, full KV memory, or a group's busier pool; and what one replica less breaks."""
    outcome, group = trial.outcome, shape.deployment.disaggregation
    used_frac = outcome.peak_kv_blocks / outcome.num_kv_blocks
    if group is not None:
        first = _busier_pool(group, outcome)
    elif outcome.num_preemptions or used_frac >= KV_FULL_FRAC:
        first = f"KV memory ({used_frac:.0%} in use at the peak, {outcome.num_preemptions} preemptions)"
    else:
        name, share = _main_resource(shape, load, outcome)
        first = f"{name} ({share:.0%} of step time; replicas busy {_busy_frac(outcome):.0%})"
    if trial.num_replicas == 1:
        return first
    fewer = try_fleet(shape, memory, load, trial.num_replicas - 1, stop=False)
    log = to_log(load.workload, fewer.outcome)
    missed = _missed(log, load.promise) or "; ".join(broken(log, load.promise))
    return f"{first}; with {replicas(trial.num_replicas - 1)} {missed}" if missed else first


def broken_reason(trial: Trial, load: Load, summary: Summary, why_no_more: str) -> str:
    """Why no fleet of a shape keeps the promise: how far off, and whether it cannot even keep up."""
    offered_rps = load.workload.num_requests / max(load.workload.span_s, 1e-9)
    if summary.promise_kept:
        return why_no_more
    reason = f"{'; '.join(summary.broken)} with {replicas(trial.num_replicas)} ({why_no_more})"
    if load.workload.span_s > 0 and summary.drain_s > LONG_DRAIN_FRAC * load.workload.span_s:
        return f"saturated: serves {summary.throughput_rps:.2f} of {offered_rps:.2f} requests/s; {reason}"
    return reason


def replicas(num: int) -> str:
    """A number of replicas in words."""
    return "1 replica" if num == 1 else f"{num} replicas"


def _busier_pool(group: Disaggregation, outcome: Outcome) -> str:
    """The pool whose instances are busy most of the time."""
    busy_s = outcome.times[:, layout.MIXED_TIME] + outcome.times[:, layout.DECODE_TIME]
    share = (busy_s / max(float(outcome.times[:, layout.NOW].max()), 1e-9)).reshape(
        -1, group.prefill.num_instances + group.decode.num_instances
    )
    prefill = float(share[:, : group.prefill.num_instances].mean())
    decode = float(share[:, group.prefill.num_instances :].mean())
    first, second = ("prefill", "decode") if prefill >= decode else ("decode", "prefill")
    return f"{first} instances (busy {max(prefill, decode):.0%}; {second} {min(prefill, decode):.0%})"


def _busy_frac(outcome: Outcome) -> float:
    busy_s = outcome.times[:, layout.MIXED_TIME].sum() + outcome.times[:, layout.DECODE_TIME].sum()
    return float(busy_s / max(outcome.times[:, layout.NOW].max() * len(outcome.times), 1e-9))


def _main_resource(shape: Shape, load: Load, outcome: Outcome) -> tuple[str, float]:
    """The group of step-time parts with the largest share, at the fleet's mean operating point."""
    mixed_s = float(outcome.times[:, layout.MIXED_TIME].sum())
    decode_s = float(outcome.times[:, layout.DECODE_TIME].sum())
    mean_rows = outcome.times[:, layout.ROW_TIME].sum() / max(mixed_s + decode_s, 1e-9)
    rows = min(max(1, round(float(mean_rows))), shape.deployment.max_rows)
    requests = load.packed.requests
    context = int(rows * (requests.input_tokens.mean() + requests.output_tokens.mean() / 2))
    room = shape.deployment.max_step_tokens - rows * shape.deployment.queries_per_row
    prompt = min(int(requests.input_tokens.mean()), room)
    time_of: dict[str, float] = {}
    for seconds, prefill_tokens in ((decode_s, 0), (mixed_s, max(prompt, 1))):
        parts = explain(shape.deployment, rows, context, prefill_tokens, correction=load.step_model.correction)
        total = sum(parts.values())
        for group, names in GROUPS.items():
            time_of[group] = time_of.get(group, 0.0) + seconds * sum(parts.get(name, 0.0) for name in names) / total
    name = max(time_of, key=lambda group: time_of[group])
    return name, time_of[name] / max(mixed_s + decode_s, 1e-9)


def _missed(log: RequestLog, promise: Promise) -> str:
    """The joint limit that most requests miss, with the share."""
    columns = (
        ("TTFT", promise.ttft_s, ttft_s(log)),
        ("TPOT", promise.tpot_s, tpot_s(log)),
        ("E2E", promise.e2e_s, e2e_s(log)),
    )
    worst, share = "", 0.0
    for name, limit, values in columns:
        if limit is not None:
            # a finished request of one token has no TPOT to miss
            missed = float(np.mean(~((values <= limit) | (np.isnan(values) & finished(log)))))
            if missed > share:
                worst, share = name, missed
    return f"{share:.1%} of requests would miss {worst}" if worst else ""
