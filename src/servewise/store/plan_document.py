"""The schema of ``plan.json``, version 1, as documented in ``docs/plan-json.md``.

Within a version keys are only added, and readers ignore keys they do not know. Facts about models and GPUs
and origins of figures are written once, in tables at the top; candidates refer to them by name and position.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from servewise.types import (
    AdviceSentence,
    Autoscaling,
    Budget,
    CandidateStatus,
    Caveat,
    Effort,
    EffortFact,
    EngineName,
    EngineParams,
    ExpectedScore,
    Failure,
    GpuSpec,
    GroupRouter,
    KvPrecision,
    LoadPoint,
    MaxTokensKind,
    ModelSpec,
    PrecisionTable,
    PriceKind,
    Promise,
    Provenance,
    Router,
    SafetyMargin,
    SpeculationMethod,
    Verdict,
    WeightPrecision,
    WhatIf,
)

__all__ = ["PLAN_SCHEMA", "PlanDocument", "WorkloadMeta", "plan_json_schema"]

PLAN_SCHEMA = "servewise.plan/1"
"""Name and version of the schema."""


def _null_as(value: float) -> BeforeValidator:
    return BeforeValidator(lambda given: value if given is None else given)


Undefined = Annotated[
    float,
    _null_as(math.nan),
    WithJsonSchema({"type": ["number", "null"], "description": "null: undefined or not computed"}),
]
Unbounded = Annotated[
    float, _null_as(math.inf), WithJsonSchema({"type": ["number", "null"], "description": "null: infinite"})
]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="null", populate_by_name=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadMeta:
    """The traffic that was planned for.

    Parameters
    ----------
    name : str
    num_requests : int
    span_s : float [s]
        First to last arrival.
    mean_input_tokens, mean_output_tokens : float [tokens]
    max_tokens_kind : MaxTokensKind
    knows_prefixes : bool
        Whether shared prefixes were known.
    provenance : Provenance
    """

    name: str
    num_requests: int
    span_s: float
    mean_input_tokens: float
    mean_output_tokens: float
    max_tokens_kind: MaxTokensKind
    knows_prefixes: bool
    provenance: Provenance


class PoolDocument(_Document):
    """The instances of a group that have one role."""

    gpu: str
    tensor_parallel_size: int
    expert_parallel_size: int
    params: EngineParams
    num_instances: int


class LinkDocument(_Document):
    """What the KV cache crosses; origins by their position in the table."""

    kind: str
    bytes_per_s: float
    latency_s: float
    provenance: dict[str, int]


class DisaggregationDocument(_Document):
    """A group of prefill and decode instances; the deployment's own fields are those of its decode instances."""

    prefill: PoolDocument
    decode: PoolDocument
    link: LinkDocument
    router: GroupRouter


class SpeculationDocument(_Document):
    """A drafter; its model by name."""

    method: SpeculationMethod
    num_speculative_tokens: int
    acceptance: tuple[float, ...]
    draft_model: str | None
    head_name: str


class DeploymentDocument(_Document):
    """A deployment; model and GPU by name."""

    model: str
    gpu: str
    engine: EngineName
    engine_version: str
    weights: WeightPrecision
    kv: KvPrecision
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    expert_parallel_size: int
    expert_all_to_all: bool
    num_replicas: int
    router: Router
    params: EngineParams
    disaggregation: DisaggregationDocument | None = None
    speculation: SpeculationDocument | None = None


class MemoryDocument(_Document):
    """Memory of the fullest GPU of a replica; provenance by position in the table."""

    mem_bytes: int
    budget_bytes: int
    weights_bytes: int
    activation_bytes: int
    non_torch_bytes: int
    graph_bytes: int
    kv_bytes: int
    kv_bytes_per_token: float
    block_size_tokens: int
    num_kv_blocks: int
    fits: bool
    reason: str
    provenance: dict[str, int]


class EstimateDocument(_Document):
    """A value with its 95% interval: no interval when both ends are null, unbounded when only ``high`` is."""

    value: Undefined
    low: Undefined
    high: Unbounded
    num_samples: int


class SummaryDocument(_Document):
    """A run reduced to the figures of the glossary."""

    num_requests: int
    num_ok: int
    num_good: int
    attainment: EstimateDocument
    promise_kept: bool
    broken: tuple[str, ...]
    duration_s: float
    drain_s: float
    throughput_tokens_per_s: Unbounded
    goodput_tokens_per_s: Unbounded
    throughput_rps: Unbounded
    goodput_rps: Unbounded
    total_tokens_per_s: Unbounded
    total_goodput_tokens_per_s: Unbounded
    percentiles: dict[str, dict[str, EstimateDocument]]
    means: dict[str, Undefined]
    cached_tokens_frac: float | None
    num_preemptions: int | None


class CostDocument(_Document):
    """Dollars of a fleet; per million tokens at load infinite when goodput is 0."""

    usd_per_h: float
    usd_per_month: float
    nodes: tuple[tuple[int, int], ...]
    num_gpus_rented: int
    usd_per_mtok_output_at_load: Unbounded
    usd_per_mtok_total_at_load: Unbounded
    usd_per_mtok_output_at_capacity: Undefined
    usd_per_mtok_total_at_capacity: Undefined
    price_date: str
    price_source: str


class IntervalDocument(_Document):
    """The model-based 90% interval; null where a draw leaves the figure undefined."""

    low: Undefined
    high: Undefined


class MeanDocument(_Document):
    """A mean with the 90% interval of comparable predictions."""

    value: Undefined
    low: Undefined
    high: Undefined
    error_class: str
    num_runs: int


class AssuranceDocument(_Document):
    """A fleet under step times drawn from what the measurements leave open; the verdict follows from the share."""

    num_draws: int
    kept_frac: float
    verdict: Verdict
    attainment: IntervalDocument
    percentiles: dict[str, dict[str, IntervalDocument]]
    means: dict[str, MeanDocument]
    margin: SafetyMargin | None
    margin_tried: str


class PartDocument(_Document):
    """A part of a number; sources by position in the table."""

    group: str
    name: str
    value: float
    sources: tuple[int, ...]


class BreakdownDocument(_Document):
    """A number with parts that sum to it."""

    number: Literal["ttft", "tpot", "memory", "prefill_memory", "cost"]
    value: float
    unit: Literal["s", "bytes", "usd_per_mtok"]
    parts: tuple[PartDocument, ...]
    note: str


class MeasuredRunsDocument(_Document):
    """Public serving runs near to the winner, and how predictions compared."""

    engine: str
    engine_version: str
    model: str
    gpu: str
    precision: str
    parallelism: str
    num_runs: int
    lowest_concurrency: int
    highest_concurrency: int
    tpot_median_error_pct: Undefined
    tpot_bias_pct: Undefined
    ttft_median_error_pct: Undefined
    ttft_bias_pct: Undefined
    source: str
    differs: tuple[str, ...]


class ExplanationDocument(_Document):
    """Parts of the winner's numbers, and what they rest on."""

    num_rows: float
    context_tokens: float
    prompt_tokens: float
    numbers: tuple[BreakdownDocument, ...]
    caveats: tuple[Caveat, ...]
    nearest: tuple[MeasuredRunsDocument, ...]
    scheduler: Literal["replica", "decode instance"] = "replica"


class EffortDocument(_Document):
    """What is asked of a team; facts by their id in the table ``effort_facts``."""

    level: Effort
    facts: tuple[str, ...]


class EngineColumnsDocument(_Document):
    """How an engine compares beside its performance."""

    engine: EngineName
    convenience: EffortDocument
    model_flexibility: EffortDocument
    hardware_dependence: EffortDocument


class CandidateDocument(_Document):
    """One replica shape and what came of it."""

    index: int
    deployment: DeploymentDocument
    status: CandidateStatus
    reason: str
    memory: MemoryDocument | None
    summary: SummaryDocument | None
    cost: CostDocument | None
    latency_s: Undefined
    quality_recovery_pct: tuple[float, float, float] | None
    quality_basis: str = ""
    expected_scores: tuple[ExpectedScore, ...] = ()
    on_frontier: bool
    limited_by: str
    load_curve: tuple[LoadPoint, ...]
    warnings: tuple[str, ...]
    assurance: AssuranceDocument | None = None
    effort: EffortDocument | None = None


class PlanDocument(_Document):
    """A plan with everything it was computed from that is needed to repeat it."""

    schema_: Literal["servewise.plan/1"] = Field(default="servewise.plan/1", alias="schema")
    servewise_version: str
    name: str
    created: str
    input_hashes: dict[str, str]
    seeds: dict[str, int]
    engine_versions: dict[str, tuple[str, ...]]
    price_dates: tuple[str, ...]
    price_kind: PriceKind
    promise: Promise
    budget: Budget
    max_effort: Effort
    router: Router
    workload: WorkloadMeta
    models: dict[str, ModelSpec]
    gpus: dict[str, GpuSpec]
    provenance: tuple[Provenance, ...]
    candidates: tuple[CandidateDocument, ...]
    winner: int | None
    ranking: tuple[int, ...]
    frontier: tuple[int, ...]
    nearest: int | None
    pruned_by_reason: dict[str, int]
    num_simulated: int
    num_simulated_requests: int
    wall_s: float
    complete: bool
    explanation: ExplanationDocument | None = None
    failure: Failure | None = None
    autoscaling: Autoscaling | None = None
    engines: tuple[EngineColumnsDocument, ...] = ()
    effort_facts: dict[str, EffortFact] = Field(default_factory=dict)
    what_if: WhatIf | None = None
    advice: tuple[AdviceSentence, ...] = ()
    filtered: tuple[str, ...] = ()
    precisions: PrecisionTable | None = None


def plan_json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of ``plan.json``."""
    schema = PlanDocument.model_json_schema(by_alias=True, mode="validation")
    for definition in schema["$defs"].values():
        # Texts for readers of the code, with units in a form that JSON Schema has no place for.
        definition.pop("description", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
