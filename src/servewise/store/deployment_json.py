"""Deployments as ``plan.json`` writes them, and back."""

from __future__ import annotations

from servewise.store.assurance_json import Positions
from servewise.store.plan_document import (
    DeploymentDocument,
    DisaggregationDocument,
    LinkDocument,
    PlanDocument,
    PoolDocument,
    SpeculationDocument,
)
from servewise.types import Deployment, Disaggregation, InstancePool, KvLink, Parallelism, Precision, Speculation

__all__ = ["deployment_document", "deployment_of"]


def deployment_document(deployment: Deployment, positions: Positions) -> DeploymentDocument:
    """What is written of a deployment; origins go to the document's table."""
    group, drafter = deployment.disaggregation, deployment.speculation
    return DeploymentDocument(
        model=deployment.model.name,
        gpu=deployment.gpu.name,
        weights=deployment.precision.weights,
        kv=deployment.precision.kv,
        tensor_parallel_size=deployment.parallelism.tensor_parallel_size,
        pipeline_parallel_size=deployment.parallelism.pipeline_parallel_size,
        data_parallel_size=deployment.parallelism.data_parallel_size,
        expert_parallel_size=deployment.parallelism.expert_parallel_size,
        expert_all_to_all=deployment.parallelism.expert_all_to_all,
        engine=deployment.engine,
        engine_version=deployment.engine_version,
        num_replicas=deployment.num_replicas,
        router=deployment.router,
        params=deployment.params,
        disaggregation=None if group is None else _group_document(group, positions),
        speculation=None if drafter is None else _speculation_document(drafter),
    )


def _speculation_document(drafter: Speculation) -> SpeculationDocument:
    return SpeculationDocument(
        method=drafter.method,
        num_speculative_tokens=drafter.num_speculative_tokens,
        acceptance=drafter.acceptance,
        draft_model=None if drafter.draft_model is None else drafter.draft_model.name,
        head_name=drafter.head_name,
    )


def _group_document(group: Disaggregation, positions: Positions) -> DisaggregationDocument:
    return DisaggregationDocument(
        prefill=_pool_document(group.prefill),
        decode=_pool_document(group.decode),
        link=LinkDocument(
            kind=group.link.kind,
            bytes_per_s=group.link.bytes_per_s,
            latency_s=group.link.latency_s,
            provenance=dict(positions(group.link.provenance)),
        ),
        router=group.router,
    )


def _pool_document(pool: InstancePool) -> PoolDocument:
    return PoolDocument(
        gpu=pool.gpu.name,
        tensor_parallel_size=pool.parallelism.tensor_parallel_size,
        expert_parallel_size=pool.parallelism.expert_parallel_size,
        params=pool.params,
        num_instances=pool.num_instances,
    )


def deployment_of(document: DeploymentDocument, parsed: PlanDocument) -> Deployment:
    """The deployment that was written."""
    group, drafter = document.disaggregation, document.speculation
    return Deployment(
        model=parsed.models[document.model],
        gpu=parsed.gpus[document.gpu],
        engine=document.engine,
        engine_version=document.engine_version,
        precision=Precision(weights=document.weights, kv=document.kv),
        parallelism=Parallelism(
            tensor_parallel_size=document.tensor_parallel_size,
            pipeline_parallel_size=document.pipeline_parallel_size,
            data_parallel_size=document.data_parallel_size,
            expert_parallel_size=document.expert_parallel_size,
            expert_all_to_all=document.expert_all_to_all,
        ),
        params=document.params,
        num_replicas=document.num_replicas,
        router=document.router,
        disaggregation=None if group is None else _group(group, parsed),
        speculation=None if drafter is None else _speculation(drafter, parsed),
    )


def _speculation(document: SpeculationDocument, parsed: PlanDocument) -> Speculation:
    return Speculation(
        method=document.method,
        num_speculative_tokens=document.num_speculative_tokens,
        acceptance=document.acceptance,
        draft_model=None if document.draft_model is None else parsed.models[document.draft_model],
        head_name=document.head_name,
    )


def _group(document: DisaggregationDocument, parsed: PlanDocument) -> Disaggregation:
    link = document.link
    return Disaggregation(
        prefill=_pool(document.prefill, parsed),
        decode=_pool(document.decode, parsed),
        link=KvLink(
            kind=link.kind,
            bytes_per_s=link.bytes_per_s,
            latency_s=link.latency_s,
            provenance={name: parsed.provenance[row] for name, row in link.provenance.items()},
        ),
        router=document.router,
    )


def _pool(document: PoolDocument, parsed: PlanDocument) -> InstancePool:
    return InstancePool(
        gpu=parsed.gpus[document.gpu],
        parallelism=Parallelism(
            tensor_parallel_size=document.tensor_parallel_size, expert_parallel_size=document.expert_parallel_size
        ),
        params=document.params,
        num_instances=document.num_instances,
    )
