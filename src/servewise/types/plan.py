"""The question (a service) and the answer (a plan)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from servewise.types.advice import AdviceSentence
from servewise.types.assurance import Assurance
from servewise.types.calibration import Calibration
from servewise.types.deployment import Deployment, EngineName, Precision, Router
from servewise.types.effort import Effort, EffortReport, EngineColumns
from servewise.types.explanation import Explanation
from servewise.types.hardware import GpuOffer, GpuSpec, PriceKind
from servewise.types.model import ModelSpec
from servewise.types.operation import Autoscaling, Failure
from servewise.types.perf import MemoryReport
from servewise.types.promise import Promise, Summary
from servewise.types.speculation import Speculation
from servewise.types.what_if import HostedPrice, WhatIf
from servewise.types.workload import Workload

__all__ = [
    "OWN_REPORT",
    "Budget",
    "Candidate",
    "CandidateStatus",
    "Candidates",
    "Cost",
    "ExpectedScore",
    "LoadPoint",
    "Plan",
    "PrecisionChoice",
    "PrecisionRow",
    "PrecisionTable",
    "Search",
    "TaskKind",
    "best_of_each",
]

TaskKind = Literal["knowledge", "math", "code", "long-context", "chat"]
"""Kinds of task that quantization hurts differently; ``math`` includes reasoning, ``chat`` following instructions."""

CandidateStatus = Literal["kept", "broken", "infeasible", "dominated", "same_schedule", "not_searched"]
"""``kept``: keeps the promise. ``broken``: no fleet within the budget keeps it. ``infeasible``: cannot run at
all, or filtered. ``dominated``: proven no better than a kept one. ``same_schedule``: proven
to behave exactly like another candidate. ``not_searched``: the search was interrupted before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Upper limits of the fleet; None means no limit."""

    max_gpus: int | None = None
    usd_per_h: float | None = None


OWN_REPORT = "the service file"
"""The evaluation that scores of the user's own belong to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedScore:
    """What a model in a precision is expected to score on a benchmark.

    Parameters
    ----------
    benchmark : str
    published_pct : float [%]
        Score of the checkpoint as it was published.
    expected_pct : (low, typical, high) or None [%]
        That times the recovery of the precision on this kind of task; None when its recovery is unknown.
    is_estimate : bool
        True when that recovery was not measured as such.
    report : str
        Evaluation the score belongs to. Scores of different evaluations of one benchmark may differ by their prompts.
    source : str
    """

    benchmark: str
    published_pct: float
    expected_pct: tuple[float, float, float] | None
    is_estimate: bool
    report: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionChoice:
    """A precision the quality floor lets through, with what it is expected to keep.

    ``recovery_pct`` is the (low, typical, high) share of the bf16 score kept; None when nothing is known. ``basis``
    says in words which results it comes from: kind of task, how many, of which models; or which score may be too low.
    """

    precision: Precision
    recovery_pct: tuple[float, float, float] | None
    at_risk: bool
    basis: str
    source: str
    expected_scores: tuple[ExpectedScore, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Everything the search needs, resolved: no names, no files.

    Parameters
    ----------
    workload : Workload
    models : tuple of ModelSpec
    precisions : mapping of str to tuple of PrecisionChoice
        By model name, those the quality floor lets through.
    gpus : tuple of GpuSpec
    offers : mapping of str to tuple of GpuOffer
        By GPU name, of the chosen price kind.
    engines : tuple of (engine, version)
    promise : Promise
    budget : Budget
    max_effort : Effort
    router : Router
    price_kind : PriceKind
    start_up_s : float or None [s]
        Until a replica that is started serves; None: as ``perf.start_up_s`` says.
    speculations : tuple of Speculation
        Drafters that are tried with vLLM, beside none.
    calibrations : tuple of Calibration
        Corrections of step models by the user's own runs.
    hosted_prices : mapping of str to tuple of HostedPrice
        By model name: what buying its tokens costs.
    filtered : tuple of str
        What the quality floor or the hardware turned down before the search, in words.
    expected_load : float or None
        Load that the traffic is expected to grow to, as a multiple of it.
    """

    workload: Workload
    models: tuple[ModelSpec, ...]
    precisions: Mapping[str, tuple[PrecisionChoice, ...]]
    gpus: tuple[GpuSpec, ...]
    offers: Mapping[str, tuple[GpuOffer, ...]]
    engines: tuple[tuple[EngineName, str], ...]
    promise: Promise
    budget: Budget
    max_effort: Effort = "medium"
    router: Router = "round_robin"
    price_kind: PriceKind = "on_demand"
    start_up_s: float | None = None
    speculations: tuple[Speculation, ...] = ()
    calibrations: tuple[Calibration, ...] = ()
    hosted_prices: Mapping[str, tuple[HostedPrice, ...]] = field(default_factory=dict)
    filtered: tuple[str, ...] = ()
    expected_load: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Dollars of a fleet under a load.

    Parameters
    ----------
    usd_per_h : float
        Of the rented nodes.
    usd_per_month : float
        730 h of it.
    nodes : tuple of (num_gpus, count)
        What is rented.
    num_gpus_rented : int
        May exceed what the replicas use.
    usd_per_mtok_output_at_load, usd_per_mtok_total_at_load : float
        Per million tokens of goodput under the workload.
    usd_per_mtok_output_at_capacity, usd_per_mtok_total_at_capacity : float
        The same at the highest load the fleet keeps the promise at; NaN until that was searched.
    price_date : str
    price_source : str
    """

    usd_per_h: float
    usd_per_month: float
    nodes: tuple[tuple[int, int], ...]
    num_gpus_rented: int
    usd_per_mtok_output_at_load: float
    usd_per_mtok_total_at_load: float
    usd_per_mtok_output_at_capacity: float
    usd_per_mtok_total_at_capacity: float
    price_date: str
    price_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """One point of the load-goodput curve of a fixed fleet: the workload with its arrivals sped up by ``scale``."""

    scale: float
    offered_rps: float
    attainment: float
    promise_kept: bool
    goodput_tokens_per_s: float
    throughput_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One replica shape and, when it can keep the promise, the fleet that does.

    Parameters
    ----------
    index : int
        Position in the enumeration, stable for one search.
    deployment : Deployment
        ``num_replicas`` is the smallest fleet that keeps the promise (with N-1 failing and N+1 keeping it), or
        the largest one tried.
    status : CandidateStatus
    reason : str
        Why it was not kept, e.g. ``weights 131.4 GiB > 72.9 GiB usable`` or ``saturated: ...``; empty when kept.
    memory : MemoryReport or None
    summary : Summary or None
        Of the fleet, when it was simulated.
    cost : Cost or None
    latency_s : float
        E2E at the promised attainment percentile, the frontier's second axis; NaN when not simulated.
    quality_recovery_pct : (low, typical, high) or None
    quality_basis : str
        Which results that comes from, e.g. ``math: 20 results of 8 large models``.
    expected_scores : tuple of ExpectedScore
        On the benchmarks that set the plan's models side by side, and those a floor was given for.
    on_frontier : bool
    limited_by : str
        What the fleet runs out of first: ``compute``, ``memory bandwidth``, ``KV memory``, ``overhead`` or the
        broken part of the promise, in words.
    load_curve : tuple of LoadPoint
        For the winner and the frontier.
    warnings : tuple of str
    assurance : Assurance or None
        For the winner and the cheapest of the frontier, unless the search was interrupted before.
    effort : EffortReport or None
        What the deployment asks of a team.
    """

    index: int
    deployment: Deployment
    status: CandidateStatus
    reason: str
    memory: MemoryReport | None = None
    summary: Summary | None = None
    cost: Cost | None = None
    latency_s: float = float("nan")
    quality_recovery_pct: tuple[float, float, float] | None = None
    quality_basis: str = ""
    expected_scores: tuple[ExpectedScore, ...] = ()
    on_frontier: bool = False
    limited_by: str = ""
    load_curve: tuple[LoadPoint, ...] = ()
    warnings: tuple[str, ...] = ()
    assurance: Assurance | None = None
    effort: EffortReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionRow:
    """The winner's replica in another precision.

    Parameters
    ----------
    index : int
        Candidate with the best settings of that precision; simulated even if it is dominated.
    weight_only : bool
        Weights are unpacked and computed in 16 bits: this saves memory and bandwidth, no compute.
    prompt_s : float [s]
        One prompt computed alone.
    decode_alone_s, decode_batch_s : float [s]
        One decode step of one row, and of a batch.
    """

    index: int
    weight_only: bool
    prompt_s: float
    decode_alone_s: float
    decode_batch_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionTable:
    """Every precision of the winner's replica, with memory, speed and quality at once.

    Parameters
    ----------
    prompt_tokens : int
        Of the prompt that is computed alone: the median.
    context_tokens : float
        Of a decode row.
    num_rows : int
        Of the batch: what the winner runs on average.
    rows : tuple of PrecisionRow
    """

    prompt_tokens: int
    context_tokens: float
    num_rows: int
    rows: tuple[PrecisionRow, ...]


Candidates = Sequence[Candidate] | Mapping[int, Candidate]
"""Candidates by their index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer.

    Parameters
    ----------
    candidates : tuple of Candidate
        In order of enumeration.
    winner : int or None
        Index of the cheapest candidate that keeps the promise; None when none does.
    ranking : tuple of int
        Kept candidates, cheapest first (ties: lower latency, fewer GPUs, lower index).
    frontier : tuple of int
        Pareto-optimal in ($ per Mtok output at load, latency), cheapest first.
    nearest : int or None
        Without a winner: the candidate that came nearest to the promise.
    pruned_by_reason : mapping of str to int
    num_simulated, num_simulated_requests : int
        Candidates simulated at least once; requests simulated in all runs.
    wall_s : float [s]
    complete : bool
        False when the search was interrupted: a better deployment may be among those not searched.
    explanation : Explanation or None
        Of the winner; None without one, or when the search was interrupted before.
    failure : Failure or None
        What the winner does when one of its replicas fails; None as above, and where all requests come at once.
    autoscaling : Autoscaling or None
        A fleet of the winner's replicas that follows the load; None as above, and where there is nothing to follow.
    engines : tuple of EngineColumns
        How each engine that was asked for compares beside its performance.
    what_if : WhatIf or None
        What would change the decision and what the promise costs; None when not asked for, or interrupted before.
    advice : tuple of AdviceSentence
        The recommendation in words; without a winner, what could be promised instead.
    filtered : tuple of str
        What the quality floor or the hardware turned down before the search, in words.
    precisions : PrecisionTable or None
        Of the winner; None as ``explanation``, and where it speculates or splits prefill from decode.
    """

    candidates: tuple[Candidate, ...]
    winner: int | None
    ranking: tuple[int, ...]
    frontier: tuple[int, ...]
    nearest: int | None
    pruned_by_reason: Mapping[str, int]
    num_simulated: int
    num_simulated_requests: int
    wall_s: float
    complete: bool = True
    explanation: Explanation | None = None
    failure: Failure | None = None
    autoscaling: Autoscaling | None = None
    engines: tuple[EngineColumns, ...] = ()
    what_if: WhatIf | None = None
    advice: tuple[AdviceSentence, ...] = ()
    filtered: tuple[str, ...] = ()
    precisions: PrecisionTable | None = None

    @property
    def alternatives(self) -> tuple[int, ...]:
        """The best settings of each model, GPU, precision and parallelism that keeps the promise, cheapest first."""
        return best_of_each(self.candidates, self.ranking)


def best_of_each(candidates: Candidates, ranking: Sequence[int]) -> tuple[int, ...]:
    """The first of a ranking of every model, engine, GPU, precision, parallelism and drafter."""
    best: dict[tuple[object, ...], int] = {}
    for index in ranking:
        d = candidates[index].deployment
        pools = [d] if d.disaggregation is None else [d.disaggregation.prefill, d.disaggregation.decode]
        shape = tuple((p.gpu.name, p.parallelism, getattr(p, "num_instances", 0)) for p in pools)
        best.setdefault((d.model.name, d.engine, d.engine_version, d.precision, shape, d.speculation), index)
    return tuple(best.values())
