"""The shared vocabulary: frozen dataclasses and struct-of-arrays tables. Rooms meet only through these."""

from servewise.types.deployment import (
    Deployment,
    EngineName,
    EngineParams,
    KvPrecision,
    LlamacppParams,
    Parallelism,
    Precision,
    Router,
    SglangParams,
    TrtllmParams,
    VllmParams,
)
from servewise.types.hardware import GpuOffer, GpuSpec, PriceKind
from servewise.types.log import ItlSegments, RequestLog, RequestStatus, Timeline
from servewise.types.model import AttentionKind, ModelSpec, MoeSpec, WeightPrecision
from servewise.types.perf import MemoryReport, StepModel, StepTable
from servewise.types.plan import (
    Budget,
    Candidate,
    Candidates,
    CandidateStatus,
    Cost,
    Effort,
    LoadPoint,
    Plan,
    PrecisionChoice,
    Search,
    best_of_each,
)
from servewise.types.promise import Estimate, Metric, PercentileLimit, Promise, Summary
from servewise.types.provenance import Kind, Provenance
from servewise.types.workload import MaxTokensKind, PrefixBlocks, Workload

__all__ = [
    "AttentionKind",
    "Budget",
    "Candidate",
    "CandidateStatus",
    "Candidates",
    "Cost",
    "Deployment",
    "Effort",
    "EngineName",
    "EngineParams",
    "Estimate",
    "GpuOffer",
    "GpuSpec",
    "ItlSegments",
    "Kind",
    "KvPrecision",
    "LlamacppParams",
    "LoadPoint",
    "MaxTokensKind",
    "MemoryReport",
    "Metric",
    "ModelSpec",
    "MoeSpec",
    "Parallelism",
    "PercentileLimit",
    "Plan",
    "Precision",
    "PrecisionChoice",
    "PrefixBlocks",
    "PriceKind",
    "Promise",
    "Provenance",
    "RequestLog",
    "RequestStatus",
    "Router",
    "Search",
    "SglangParams",
    "StepModel",
    "StepTable",
    "Summary",
    "Timeline",
    "TrtllmParams",
    "VllmParams",
    "WeightPrecision",
    "Workload",
    "best_of_each",
]
