"""Dollars of a deployment's fleet, whatever its replicas consist of."""

from __future__ import annotations

from dataclasses import replace

from servewise.cost import cost, cost_of_groups, fleet_nodes, groups_usd_per_h
from servewise.types import Cost, Deployment, Search, Summary

__all__ = ["price", "usd_per_h"]


def usd_per_h(search: Search, deployment: Deployment, num_replicas: int) -> float:
    """Rent of a fleet [$/h]."""
    if deployment.disaggregation is not None:
        return groups_usd_per_h(replace(deployment, num_replicas=num_replicas), search.offers)
    return fleet_nodes(num_replicas, deployment.parallelism.num_gpus, search.offers[deployment.gpu.name])[1]


def price(
    search: Search, deployment: Deployment, summary: Summary, num_replicas: int, capacity: Summary | None = None
) -> Cost:
    """Cost of a fleet under a load, and at its capacity."""
    if deployment.disaggregation is not None:
        return cost_of_groups(summary, replace(deployment, num_replicas=num_replicas), search.offers, capacity)
    offers = search.offers[deployment.gpu.name]
    return cost(summary, num_replicas, deployment.parallelism.num_gpus, offers, capacity)
