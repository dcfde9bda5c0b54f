"""Plans to and from JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from servewise import __version__
from servewise.errors import InputError, SimulationError
from servewise.store.assurance_json import (
    assurance_document,
    assurance_of,
    explanation_document,
    explanation_of,
)
from servewise.store.deployment_json import deployment_document, deployment_of
from servewise.store.documents import read_document
from servewise.store.effort_json import (
    columns_document,
    columns_of,
    effort_document,
    effort_of,
    facts_of_plan,
    missing_facts,
)
from servewise.store.plan_document import (
    PLAN_SCHEMA,
    CandidateDocument,
    CostDocument,
    EstimateDocument,
    MemoryDocument,
    PlanDocument,
    SummaryDocument,
    WorkloadMeta,
)
from servewise.types import (
    Budget,
    Candidate,
    Cost,
    Effort,
    Estimate,
    GpuSpec,
    MemoryReport,
    Plan,
    PriceKind,
    Promise,
    Provenance,
    Router,
    Search,
    Summary,
)

__all__ = ["PlanMeta", "plan_from_json", "plan_meta", "plan_to_json", "read_plan"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlanMeta:
    """What a plan was computed for and from.

    Parameters
    ----------
    name : str
        Of the service.
    created : str
        ISO 8601, UTC.
    input_hashes : mapping of str to str
        ``sha256:...`` of each file that was read, by name.
    seeds : mapping of str to int
    promise : Promise
    budget : Budget
    max_effort : Effort
    router : Router
    price_kind : PriceKind
    workload : WorkloadMeta
    servewise_version : str
    """

    name: str
    created: str
    input_hashes: Mapping[str, str]
    seeds: Mapping[str, int]
    promise: Promise
    budget: Budget
    max_effort: Effort
    router: Router
    price_kind: PriceKind
    workload: WorkloadMeta
    servewise_version: str = __version__


def plan_meta(search: Search, *, name: str, input_hashes: Mapping[str, str], seeds: Mapping[str, int]) -> PlanMeta:
    """Describe what a search was asked, as of now."""
    workload = search.workload
    return PlanMeta(
        name=name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        input_hashes=input_hashes,
        seeds=seeds,
        promise=search.promise,
        budget=search.budget,
        max_effort=search.max_effort,
        router=search.router,
        price_kind=search.price_kind,
        workload=WorkloadMeta(
            name=workload.name,
            num_requests=workload.num_requests,
            span_s=workload.span_s,
            mean_input_tokens=float(workload.input_tokens.mean()),
            mean_output_tokens=float(workload.output_tokens.mean()),
            max_tokens_kind=workload.max_tokens_kind,
            knows_prefixes=workload.prefix is not None,
            provenance=workload.provenance,
        ),
    )


def plan_to_json(plan: Plan, meta: PlanMeta) -> dict[str, Any]:
    """Turn a plan into a JSON document of schema ``servewise.plan/1``.

    Returns
    -------
    dict
        Only JSON's own types; NaN and infinity are null, with the meaning ``docs/plan-json.md`` gives.

    Raises
    ------
    SimulationError
        When the plan holds NaN where the schema gives it no meaning, or contradicts itself.
    """
    table = _ProvenanceTable()
    deployments = [candidate.deployment for candidate in plan.candidates]
    models = {deployment.model.name: deployment.model for deployment in deployments}
    drafts = (d.speculation.draft_model for d in deployments if d.speculation)
    models |= {draft.name: draft for draft in drafts if draft is not None}
    gpus = {deployment.gpu.name: deployment.gpu for deployment in deployments}
    gpus |= {d.disaggregation.prefill.gpu.name: d.disaggregation.prefill.gpu for d in deployments if d.disaggregation}
    versions: dict[str, set[str]] = {}
    for deployment in deployments:
        if deployment.model != models[deployment.model.name] or deployment.gpu != gpus[deployment.gpu.name]:
            raise SimulationError(f"two models or GPUs of the plan share a name: {deployment.model.name}")
        versions.setdefault(deployment.engine, set()).add(deployment.engine_version)
    candidates = tuple(_candidate_document(candidate, table) for candidate in plan.candidates)
    why = None if plan.explanation is None else explanation_document(plan.explanation, table.positions)
    dates = {candidate.cost.price_date for candidate in plan.candidates if candidate.cost is not None}
    document = PlanDocument(
        servewise_version=meta.servewise_version,
        name=meta.name,
        created=meta.created,
        input_hashes=dict(meta.input_hashes),
        seeds=dict(meta.seeds),
        engine_versions={engine: tuple(sorted(found)) for engine, found in sorted(versions.items())},
        price_dates=tuple(sorted(dates)),
        price_kind=meta.price_kind,
        promise=meta.promise,
        budget=meta.budget,
        max_effort=meta.max_effort,
        router=meta.router,
        workload=meta.workload,
        models=models,
        gpus={name: _plain(gpu) for name, gpu in gpus.items()},
        provenance=tuple(table.rows),
        candidates=candidates,
        winner=plan.winner,
        ranking=plan.ranking,
        frontier=plan.frontier,
        nearest=plan.nearest,
        pruned_by_reason=dict(plan.pruned_by_reason),
        num_simulated=plan.num_simulated,
        num_simulated_requests=plan.num_simulated_requests,
        wall_s=plan.wall_s,
        complete=plan.complete,
        explanation=why,
        failure=plan.failure,
        autoscaling=plan.autoscaling,
        engines=tuple(map(columns_document, plan.engines)),
        effort_facts=facts_of_plan(plan),
        what_if=plan.what_if,
        advice=plan.advice,
        filtered=plan.filtered,
        precisions=plan.precisions,
    )
    text = document.model_dump_json(by_alias=True)
    try:
        _parse(text)  # what is written can be read
    except InputError as error:
        raise SimulationError(f"the plan cannot be stored: {error}") from error
    found: dict[str, Any] = json.loads(text)
    return found


def plan_from_json(document: object) -> tuple[Plan, PlanMeta]:
    """Read a JSON document that :func:`plan_to_json` made.

    Parameters
    ----------
    document : object
        What ``json.loads`` returned.

    Returns
    -------
    plan : Plan
    meta : PlanMeta

    Raises
    ------
    InputError
        When it is no such document, naming the key that is wrong.
    """
    if not isinstance(document, dict) or not isinstance(document.get("schema"), str):
        raise InputError(f"this is not a plan: it has no key `schema` with the value {PLAN_SCHEMA!r}")
    if document["schema"] != PLAN_SCHEMA:
        raise InputError(
            f"schema is {document['schema']!r}, this version of servewise reads {PLAN_SCHEMA!r}; plan again"
        )
    parsed = _parse(json.dumps(document))
    plan = Plan(
        candidates=tuple(_candidate(candidate, parsed) for candidate in parsed.candidates),
        winner=parsed.winner,
        ranking=parsed.ranking,
        frontier=parsed.frontier,
        nearest=parsed.nearest,
        pruned_by_reason=parsed.pruned_by_reason,
        num_simulated=parsed.num_simulated,
        num_simulated_requests=parsed.num_simulated_requests,
        wall_s=parsed.wall_s,
        complete=parsed.complete,
        explanation=None if parsed.explanation is None else explanation_of(parsed.explanation, parsed.provenance),
        failure=parsed.failure,
        autoscaling=parsed.autoscaling,
        engines=tuple(columns_of(engine, parsed.effort_facts) for engine in parsed.engines),
        what_if=parsed.what_if,
        advice=parsed.advice,
        filtered=parsed.filtered,
        precisions=parsed.precisions,
    )
    meta = PlanMeta(**{field.name: getattr(parsed, field.name) for field in dataclasses.fields(PlanMeta)})
    return plan, meta


def _parse(text: str) -> PlanDocument:
    """Validate a document and the references within it."""
    try:
        parsed = PlanDocument.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"plan is damaged at {where}: {first['msg']}, found {first['input']!r:.80}") from error
    known = {candidate.index for candidate in parsed.candidates}
    ends = [index for index in (parsed.winner, parsed.nearest) if index is not None]
    replanned = [] if parsed.what_if is None else [fleet.candidate for fleet in parsed.what_if.fleets]
    compared = () if parsed.precisions is None else (row.index for row in parsed.precisions.rows)
    for index in (*ends, *parsed.ranking, *parsed.frontier, *replanned, *compared):
        if index not in known:
            raise InputError(f"plan is damaged: it refers to candidate {index}, which it does not hold")
    for candidate in parsed.candidates:
        deployment = candidate.deployment
        if deployment.model not in parsed.models or deployment.gpu not in parsed.gpus:
            raise InputError(
                f"plan is damaged: candidate {candidate.index} is {deployment.model} on {deployment.gpu}, "
                "which the tables `models` and `gpus` lack"
            )
        if candidate.memory is not None:
            _check_rows(candidate.memory.provenance.values(), parsed, f"candidate {candidate.index}")
    if parsed.explanation is not None:
        for number in parsed.explanation.numbers:
            for part in number.parts:
                _check_rows(part.sources, parsed, f"the explanation of {number.number}")
    lost = missing_facts(parsed)
    if lost:
        raise InputError(f"plan is damaged: the table `effort_facts` lacks {', '.join(sorted(lost))}")
    return parsed


def _check_rows(rows: Iterable[int], parsed: PlanDocument, what: str) -> None:
    if not all(0 <= row < len(parsed.provenance) for row in rows):
        raise InputError(f"plan is damaged: {what} refers to a missing provenance")


class _ProvenanceTable:
    """Every origin once, in order of first use."""

    def __init__(self) -> None:
        self.rows: dict[Provenance, int] = {}

    def positions(self, origins: Mapping[str, Provenance]) -> dict[str, int]:
        """Positions of the origins, adding the new ones."""
        return {name: self.rows.setdefault(origin, len(self.rows)) for name, origin in origins.items()}


def _plain(gpu: GpuSpec) -> GpuSpec:
    """The same GPU with mappings that pydantic can write."""
    return dataclasses.replace(gpu, peak_flops_per_s=dict(gpu.peak_flops_per_s), provenance=dict(gpu.provenance))


def _fields(source: object, names: Mapping[str, object], *but: str) -> dict[str, Any]:
    """Attributes of the same names."""
    return {name: getattr(source, name) for name in names if name not in but}


def _candidate_document(candidate: Candidate, table: _ProvenanceTable) -> CandidateDocument:
    memory, summary, cost = candidate.memory, candidate.summary, candidate.cost
    parts: dict[str, Any] = {
        "deployment": deployment_document(candidate.deployment, table.positions),
        "memory": None,
        "summary": None,
        "cost": None,
        "assurance": None,
        "effort": None if candidate.effort is None else effort_document(candidate.effort),
    }
    if memory is not None:
        parts["memory"] = MemoryDocument(
            **_fields(memory, MemoryDocument.model_fields, "provenance"),
            provenance=table.positions(memory.provenance),
        )
    if summary is not None:
        parts["summary"] = SummaryDocument(
            **_fields(summary, SummaryDocument.model_fields, "attainment", "percentiles"),
            attainment=_estimate_document(summary.attainment),
            percentiles={
                metric: {name: _estimate_document(estimate) for name, estimate in by_name.items()}
                for metric, by_name in summary.percentiles.items()
            },
        )
    if cost is not None:
        parts["cost"] = CostDocument(**_fields(cost, CostDocument.model_fields))
    if candidate.assurance is not None:
        parts["assurance"] = assurance_document(candidate.assurance)
    return CandidateDocument(**_fields(candidate, CandidateDocument.model_fields, *parts), **parts)


def _estimate_document(estimate: Estimate) -> EstimateDocument:
    return EstimateDocument(**_fields(estimate, EstimateDocument.model_fields))


def _candidate(document: CandidateDocument, parsed: PlanDocument) -> Candidate:
    memory, summary, cost = None, None, None
    if document.memory is not None:
        origins = {name: parsed.provenance[row] for name, row in document.memory.provenance.items()}
        memory = MemoryReport(**_fields(document.memory, MemoryDocument.model_fields, "provenance"), provenance=origins)
    if document.summary is not None:
        summary = Summary(
            **_fields(document.summary, SummaryDocument.model_fields, "attainment", "percentiles"),
            attainment=_estimate(document.summary.attainment),
            percentiles={
                metric: {name: _estimate(estimate) for name, estimate in by_name.items()}
                for metric, by_name in document.summary.percentiles.items()
            },
        )
    if document.cost is not None:
        cost = Cost(**_fields(document.cost, CostDocument.model_fields))
    return Candidate(
        **_fields(
            document, CandidateDocument.model_fields, "deployment", "memory", "summary", "cost", "assurance", "effort"
        ),
        deployment=deployment_of(document.deployment, parsed),
        memory=memory,
        summary=summary,
        cost=cost,
        assurance=None if document.assurance is None else assurance_of(document.assurance),
        effort=None if document.effort is None else effort_of(document.effort, parsed.effort_facts),
    )


def _estimate(document: EstimateDocument) -> Estimate:
    # Without a lower end there is no interval; a missing upper end alone means that nothing bounds it.
    high = math.nan if math.isnan(document.low) else document.high
    return Estimate(value=document.value, low=document.low, high=high, num_samples=document.num_samples)


def read_plan(path: Path) -> tuple[Plan, PlanMeta]:
    """A plan from its file.

    Raises
    ------
    InputError
        When it cannot be read, or is no plan.
    """
    document = read_document(path, "give a plan.json")
    try:
        return plan_from_json(document)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
