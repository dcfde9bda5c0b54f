"""A plan in words: the sentences and figures that the terminal and the page share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from servewise.types import (
    Candidate,
    CandidateStatus,
    Deployment,
    Estimate,
    InstancePool,
    LoadPoint,
    Parallelism,
    Plan,
    Promise,
    Summary,
)
from servewise.units import format_duration, format_usd

__all__ = [
    "Rejection",
    "against_winner_words",
    "at_risk",
    "attainment_cell",
    "attainment_words",
    "candidate_words",
    "cost_words",
    "count",
    "engine_words",
    "fleet_words",
    "gpu_words",
    "has_joint_limit",
    "knee",
    "latency_words",
    "limit_words",
    "model_name",
    "percentile_words",
    "precision_words",
    "promise_words",
    "rejections",
    "risk_notes",
    "settings_words",
    "several_models",
    "shape_words",
    "shortfall",
    "shortfall_words",
    "shown_percentiles",
    "spread",
    "spread_words",
    "unfinished_words",
]

STATUS_WORDS: Final[Mapping[CandidateStatus, str]] = {
    "infeasible": "cannot run",
    "broken": "does not keep the promise",
    "dominated": "proven no better",
    "same_schedule": "behaves exactly like another candidate",
    "not_searched": "not searched",
}
NUM_REASONS: Final = 3
RISK: Final = "quality at risk"
"""How the warning of a candidate begins whose precision may keep less than the quality floor."""


def candidate_words(candidate: Candidate) -> str:
    """Say what a fleet is, e.g. ``8 x H100-SXM-80GB: 2 replicas, TP4, fp8 weights, bf16 KV, vllm 0.11.0``."""
    deployment = candidate.deployment
    group = deployment.disaggregation
    if group is not None:
        return (
            f"{count(deployment.num_replicas, 'group')} of {_pool_words(group.prefill, 'prefill')} and"
            f" {_pool_words(group.decode, 'decode')}, {deployment.precision.weights} weights,"
            f" {deployment.precision.kv} KV, {deployment.engine} {deployment.engine_version}"
        )
    replicas = count(deployment.num_replicas, "replica")
    return (
        f"{deployment.num_gpus} x {deployment.gpu.name}: {replicas}, {shape_words(deployment)},"
        f" {deployment.precision.weights} weights, {deployment.precision.kv} KV,"
        f" {deployment.engine} {deployment.engine_version}"
    )


def _pool_words(pool: InstancePool, role: str) -> str:
    instances = f"{count(pool.num_instances, f'{role} instance')}"
    return f"{instances} ({spread_words(pool.parallelism)} on {pool.gpu.name})"


def shape_words(deployment: Deployment) -> str:
    """What a replica is, e.g. ``TP4``, ``TP4 ngram x3`` with a drafter, or a group's ``2P TP1 + 1D TP2``."""
    group = deployment.disaggregation
    if group is None:
        drafter = deployment.speculation
        proposes = "" if drafter is None else f" {drafter.method} x{drafter.num_speculative_tokens}"
        return spread_words(deployment.parallelism) + proposes
    pools = ((group.prefill, "P"), (group.decode, "D"))
    return " + ".join(f"{pool.num_instances}{letter} {spread_words(pool.parallelism)}" for pool, letter in pools)


def gpu_words(deployment: Deployment) -> str:
    """The GPUs of a deployment, e.g. ``H100-SXM-80GB``; of a mixed group the prefill pool's first."""
    group = deployment.disaggregation
    if group is None or group.prefill.gpu.name == group.decode.gpu.name:
        return deployment.gpu.name
    return f"{group.prefill.gpu.name} + {group.decode.gpu.name}"


def spread_words(parallelism: Parallelism) -> str:
    """How a replica is spread over GPUs, e.g. ``TP4`` or ``TP1 DP8 EP8``."""
    words = f"TP{parallelism.tensor_parallel_size}"
    if parallelism.pipeline_parallel_size > 1:
        words += f" PP{parallelism.pipeline_parallel_size}"
    if parallelism.data_parallel_size > 1:
        words += f" DP{parallelism.data_parallel_size}"
    if parallelism.expert_parallel_size > 1:
        words += f" EP{parallelism.expert_parallel_size}"
    return words


def engine_words(candidate: Candidate) -> str:
    """An engine's name in few letters, e.g. ``trt-llm``."""
    return {"tensorrt-llm": "trt-llm"}.get(candidate.deployment.engine, candidate.deployment.engine)


def count(number: int, what: str) -> str:
    """A number of things, e.g. ``1 replica`` or ``2 replicas``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def fleet_words(candidate: Candidate) -> str:
    """Say what a fleet is in few words, e.g. ``8 x H100-SXM-80GB: 2 x TP4 vllm fp8/bf16 256/8192``."""
    deployment = candidate.deployment
    return (
        f"{deployment.num_gpus} x {gpu_words(deployment)}: {deployment.num_replicas} x"
        f" {shape_words(deployment)} {engine_words(candidate)}"
        f" {precision_words(candidate)} {settings_words(candidate)}"
    )


def precision_words(candidate: Candidate) -> str:
    """Weights and KV precision, e.g. ``fp8/bf16``; ``int4/bf16!`` where the quality is at risk."""
    precision = candidate.deployment.precision
    return f"{precision.weights}/{precision.kv}{'!' if at_risk(candidate) else ''}"


def at_risk(candidate: Candidate) -> bool:
    """Whether the precision may keep less of the model's score than the quality floor asks."""
    return any(warning.startswith(RISK) for warning in candidate.warnings)


def risk_notes(candidates: Iterable[Candidate], *, with_model: bool) -> tuple[str, ...]:
    """What the ``!`` of each precision means, each once, e.g. ``! int4/bf16: quality at risk: ...``."""
    return tuple(
        dict.fromkeys(
            f"! {f'{model_name(c)} ' if with_model else ''}{precision_words(c).rstrip('!')}: {risk}"
            for c in candidates
            for risk in c.warnings
            if risk.startswith(RISK)
        )
    )


def settings_words(candidate: Candidate) -> str:
    """Most requests at once and most tokens a step, whatever the engine calls them, e.g. ``256/8192``."""
    return f"{candidate.deployment.max_rows}/{candidate.deployment.max_step_tokens}"


def limit_words(candidate: Candidate) -> str:
    """What limits a fleet in few words, e.g. ``memory bandwidth``, without the figures that show it."""
    return re.split(r" \(|;", candidate.limited_by, maxsplit=1)[0] or "-"


def model_name(candidate: Candidate) -> str:
    """A model's name without the organisation."""
    return candidate.deployment.model.name.rsplit("/", 1)[-1]


def several_models(plan: Plan) -> bool:
    """Whether the plan compares models."""
    return len({c.deployment.model.name for c in plan.candidates}) > 1


def promise_words(promise: Promise) -> str:
    """The promise, e.g. ``TTFT <= 1.00 s and TPOT <= 50 ms for 99% of requests; TTFT p99.9 <= 2.00 s``."""
    limits = (("TTFT", promise.ttft_s), ("TPOT", promise.tpot_s), ("E2E", promise.e2e_s))
    joint = [f"{name} <= {format_duration(limit)}" for name, limit in limits if limit is not None]
    parts = []
    if joint:
        parts.append(f"{' and '.join(joint)} for {100 * promise.attainment:g}% of requests")
    parts += [f"{p.metric.upper()} p{p.percentile:g} <= {format_duration(p.limit_s)}" for p in promise.percentiles]
    if promise.deadline_s is not None:
        parts.append(f"everything within {format_duration(promise.deadline_s)}")
    return "; ".join(parts) if parts else "every request finishes (throughput)"


def attainment_words(attainment: Estimate) -> str:
    """An attainment with its interval, e.g. ``99.62% [99.31, 99.80]``."""
    return f"{100 * attainment.value:.2f}% [{100 * attainment.low:.2f}, {100 * attainment.high:.2f}]"


def percentile_words(summary: Summary | None, metric: str, percentile: str) -> str:
    """A percentile as a duration; ``-`` when it was not computed."""
    estimate = None if summary is None else summary.percentiles.get(metric, {}).get(percentile)
    return "-" if estimate is None else format_duration(estimate.value)


def latency_words(summary: Summary, promise: Promise) -> str:
    """The p99 of each metric and the promised percentiles, e.g. ``TTFT p99 612 ms, TPOT p99 41 ms``."""
    return ", ".join(
        f"{metric.upper()} {key} {percentile_words(summary, metric, key)}"
        for metric, key in shown_percentiles(summary, promise)
    )


def shown_percentiles(summary: Summary, promise: Promise) -> list[tuple[str, str]]:
    """Metric and name of the percentiles that are shown, as far as the summary has them."""
    wanted = dict.fromkeys((metric, "p99") for metric in ("ttft", "tpot", "e2e", "itl"))
    wanted |= dict.fromkeys((limit.metric, f"p{limit.percentile:g}") for limit in promise.percentiles)
    return [(metric, key) for metric, key in wanted if key in summary.percentiles.get(metric, {})]


def has_joint_limit(promise: Promise) -> bool:
    """Whether a share of requests is promised, so that attainment means something."""
    return any(limit is not None for limit in (promise.ttft_s, promise.tpot_s, promise.e2e_s))


def attainment_cell(candidate: Candidate, promise: Promise) -> str:
    """Attainment in percent; ``-`` when no share of requests is promised or nothing was simulated."""
    if candidate.summary is None or not has_joint_limit(promise):
        return "-"
    return f"{100 * candidate.summary.attainment.value:.2f}"


def cost_words(candidate: Candidate) -> str:
    """What a fleet costs per million output tokens, an hour and a month (of this load, always)."""
    cost = candidate.cost
    if cost is None:
        return "no price"
    at_load, at_capacity = cost.usd_per_mtok_output_at_load, cost.usd_per_mtok_output_at_capacity
    per_mtok = f"{format_usd(at_load)} per Mtok output at load"
    if math.isfinite(at_capacity):
        per_mtok += f", {format_usd(at_capacity)} at capacity"
    return (
        f"{per_mtok}; {format_usd(cost.usd_per_month)} a month at this load always"
        f" ({format_usd(cost.usd_per_h)}/h x 730 h)"
    )


def shortfall_words(candidate: Candidate) -> str:
    """How far a candidate that does not keep the promise is from it."""
    summary = candidate.summary
    if summary is not None and summary.broken:
        reached = ", ".join(
            f"{metric.upper()} p99 {format_duration(summary.percentiles[metric]['p99'].value)}"
            for metric in ("ttft", "tpot", "e2e")
            if metric in summary.percentiles
        )
        return f"{'; '.join(summary.broken)} ({reached})"
    return candidate.reason or "no reason recorded"


def shortfall(plan: Plan) -> str:
    """Without a winner: which candidate came nearest and how far it is from the promise."""
    nearest = next((c for c in plan.candidates if c.index == plan.nearest), None)
    if nearest is None:
        found = sorted(rejections(plan), key=lambda r: (r.status != "broken", -r.num_candidates))[:NUM_REASONS]
        why = "; ".join(f"{r.num_candidates:,} {STATUS_WORDS[r.status]}, e.g. {r.example}" for r in found)
        return f"none of {len(plan.candidates):,} candidates was worth simulating: {why}"
    return f"nearest: {candidate_words(nearest)}: {shortfall_words(nearest)}"


def against_winner_words(candidate: Candidate, winner: Candidate) -> str:
    """What another fleet gives up and gains against the cheapest, e.g. ``cost +12%, time -30%``."""
    if candidate.index == winner.index:
        return "the cheapest"
    parts = []
    if candidate.cost is not None and winner.cost is not None:
        ratio = candidate.cost.usd_per_mtok_output_at_load / winner.cost.usd_per_mtok_output_at_load
        parts.append(_change("cost", ratio))
    parts.append(_change("time", candidate.latency_s / winner.latency_s))
    return ", ".join(parts)


def _change(what: str, ratio: float) -> str:
    percent = f"{100 * (ratio - 1):+,.0f}%"
    return f"same {what}" if percent in ("+0%", "-0%") else f"{what} {percent}"


def knee(curve: tuple[LoadPoint, ...]) -> LoadPoint | None:
    """The highest load at which the promise is kept; None when no load of the curve keeps it."""
    kept = [point for point in curve if point.promise_kept]
    return max(kept, key=lambda point: point.offered_rps) if kept else None


def spread(frontier: Sequence[Candidate], most: int) -> list[Candidate]:
    """At most so many points of a frontier: both ends stay, and what differs least from its neighbour goes first."""
    points = list(frontier)
    while len(points) > max(most, 2):
        del points[min(range(1, len(points) - 1), key=lambda i: _distance(points[i - 1], points[i]))]
    return points


def _distance(a: Candidate, b: Candidate) -> float:
    """How much two priced and simulated candidates differ in cost and latency, in log units."""
    if a.cost is None or b.cost is None:
        return math.inf
    dollars = b.cost.usd_per_mtok_output_at_load / a.cost.usd_per_mtok_output_at_load
    return abs(math.log(dollars)) + abs(math.log(b.latency_s / a.latency_s))


def unfinished_words(plan: Plan) -> str:
    """Say that a search was interrupted and what it leaves open; empty when it was not."""
    if plan.complete:
        return ""
    left = sum(candidate.status == "not_searched" for candidate in plan.candidates)
    return (
        f"interrupted: {left:,} of {len(plan.candidates):,} candidates were not searched;"
        " a better deployment may be among them"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Candidates turned down for the same kind of reason.

    ``example`` is the reason of the first of them; the others may differ in their numbers and names.
    """

    status: CandidateStatus
    num_candidates: int
    example: str


_NUMBERS: Final = re.compile(r"[0-9][0-9.,]*")


def rejections(plan: Plan) -> tuple[Rejection, ...]:
    """Group the candidates that were not kept by the kind of reason, most frequent first in each status."""
    groups: dict[tuple[CandidateStatus, str], list[str]] = {}
    for candidate in plan.candidates:
        if candidate.status != "kept":
            text = candidate.reason
            for name in (candidate.deployment.gpu.name, candidate.deployment.model.name):
                text = text.replace(name, "")
            groups.setdefault((candidate.status, _NUMBERS.sub("", text)), []).append(candidate.reason)
    order = list(STATUS_WORDS)
    found = [
        Rejection(status=status, num_candidates=len(reasons), example=reasons[0])
        for (status, _), reasons in groups.items()
    ]
    return tuple(sorted(found, key=lambda r: (order.index(r.status), -r.num_candidates, r.example)))
