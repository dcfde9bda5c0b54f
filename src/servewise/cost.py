"""Dollars: what the fleet rents, and what a million tokens of goodput cost.

A cost per token is never given without its load: ``at_load`` is this fleet under this workload,
``at_capacity`` the same fleet at the highest load it keeps the promise at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from servewise.errors import InputError
from servewise.types import Cost, Deployment, GpuOffer, InstancePool, Summary
from servewise.units import HOURS_PER_MONTH, SECONDS_PER_HOUR

__all__ = ["cost", "cost_of_groups", "fleet_nodes", "groups_usd_per_h"]

TOKENS_PER_MTOK = 1e6

Nodes = tuple[tuple[int, int], ...]


class _Rental(NamedTuple):
    """Nodes of one provider; compared by price, then GPUs, then nodes, then name."""

    price: Fraction
    num_gpus: int
    num_nodes: int
    provider: str
    nodes: Nodes
    offers: tuple[GpuOffer, ...]


def fleet_nodes(num_replicas: int, gpus_per_replica: int, offers: Sequence[GpuOffer]) -> tuple[Nodes, float]:
    """Cheapest nodes that hold a fleet, as providers rent them.

    A replica never spans nodes when a node on offer is large enough for it; otherwise it takes whole nodes of
    the largest size. All nodes come from one provider: a fleet in two clouds is another system. Of one
    provider and node size the newest price counts (the lowest of one date). Ties: fewer GPUs,
    fewer nodes, then the provider's name.

    Parameters
    ----------
    num_replicas, gpus_per_replica : int
        At least 1 each.
    offers : sequence of GpuOffer
        Of one GPU and one price kind.

    Returns
    -------
    nodes : tuple of (num_gpus, count)
        Largest nodes first.
    usd_per_h : float [$/h]

    Raises
    ------
    InputError
        Without offers, with a price that is not above zero, or with offers of several GPUs or kinds.
    """
    rental = _cheapest(num_replicas, gpus_per_replica, offers)
    return rental.nodes, float(rental.price)


def cost(
    summary: Summary,
    num_replicas: int,
    gpus_per_replica: int,
    offers: Sequence[GpuOffer],
    capacity: Summary | None = None,
) -> Cost:
    """Cost of a fleet under a load, at goodput.

    Parameters
    ----------
    summary : Summary
        Of the fleet under the workload.
    num_replicas, gpus_per_replica : int
    offers : sequence of GpuOffer
        Of one GPU and one price kind.
    capacity : Summary or None
        Of the same fleet at the highest load it keeps the promise at.

    Returns
    -------
    Cost
        Per million tokens infinite where goodput is 0; ``at_capacity`` NaN without ``capacity``.

    Raises
    ------
    InputError
        As :func:`fleet_nodes`.
    """
    return _cost(summary, _cheapest(num_replicas, gpus_per_replica, offers), capacity)


def cost_of_groups(
    summary: Summary, deployment: Deployment, offers: Mapping[str, Sequence[GpuOffer]], capacity: Summary | None = None
) -> Cost:
    """Cost of a disaggregated fleet under a load, at goodput.

    A group whose link is a node's own is rented in one node. Otherwise each pool has nodes of its own, an instance
    never spans nodes when one on offer is large enough, and both pools come from one provider.

    Parameters
    ----------
    summary : Summary
        Of the fleet under the workload.
    deployment : Deployment
        With ``disaggregation``.
    offers : mapping of GPU name to sequence of GpuOffer
        Of one price kind.
    capacity : Summary or None
        Of the same fleet at the highest load it keeps the promise at.

    Returns
    -------
    Cost
        As :func:`cost`; ``nodes`` are the prefill pool's, then the decode pool's.

    Raises
    ------
    InputError
        As :func:`fleet_nodes`, when the deployment is not disaggregated, no node holds a group that has to be in
        one, or no provider has both GPUs.
    """
    return _cost(summary, _cheapest_groups(deployment, offers), capacity)


def _cost(summary: Summary, rental: _Rental, capacity: Summary | None) -> Cost:
    usd_per_h = float(rental.price)
    capacity_output, capacity_total = math.nan, math.nan
    if capacity is not None:
        capacity_output = _usd_per_mtok(usd_per_h, capacity.goodput_tokens_per_s)
        capacity_total = _usd_per_mtok(usd_per_h, capacity.total_goodput_tokens_per_s)
    return Cost(
        usd_per_h=usd_per_h,
        usd_per_month=usd_per_h * HOURS_PER_MONTH,
        nodes=rental.nodes,
        num_gpus_rented=rental.num_gpus,
        usd_per_mtok_output_at_load=_usd_per_mtok(usd_per_h, summary.goodput_tokens_per_s),
        usd_per_mtok_total_at_load=_usd_per_mtok(usd_per_h, summary.total_goodput_tokens_per_s),
        usd_per_mtok_output_at_capacity=capacity_output,
        usd_per_mtok_total_at_capacity=capacity_total,
        price_date=_joined(offer.date for offer in rental.offers),
        price_source=f"{rental.provider}: {_joined(offer.provenance.source for offer in rental.offers)}",
    )


def _usd_per_mtok(usd_per_h: float, tokens_per_s: float) -> float:
    """Dollars per million tokens; infinite when there are none."""
    if tokens_per_s <= 0.0:
        return math.inf
    return usd_per_h / (tokens_per_s * SECONDS_PER_HOUR) * TOKENS_PER_MTOK


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(sorted(set(texts)))


def _cheapest(num_replicas: int, gpus_per_replica: int, offers: Sequence[GpuOffer]) -> _Rental:
    rentals = _by_provider(num_replicas, gpus_per_replica, offers)
    return min(rentals.values(), key=lambda rental: rental[:4])


def _cheapest_pools(
    num_groups: int, pools: Sequence[InstancePool], offers: Mapping[str, Sequence[GpuOffer]]
) -> _Rental:
    """Nodes of one provider for several pools."""
    rented = [
        _by_provider(num_groups * pool.num_instances, pool.parallelism.num_gpus, offers.get(pool.gpu.name, ()))
        for pool in pools
    ]
    kinds = {offer.kind for pool in pools for offer in offers[pool.gpu.name]}
    if len(kinds) > 1:
        raise InputError(f"one fleet was offered {', '.join(sorted(kinds))}; all offers must be of one price kind")
    common = sorted(set.intersection(*(set(rentals) for rentals in rented)))
    if not common:
        names = " and ".join(pool.gpu.name for pool in pools)
        raise InputError(f"no provider rents both {names}; a group is rented from one, so add prices for both")
    return min((_joint([rentals[name] for rentals in rented]) for name in common), key=lambda rental: rental[:4])


def _joint(rentals: Sequence[_Rental]) -> _Rental:
    """Rentals of one provider as one."""
    return _Rental(
        price=sum((rental.price for rental in rentals), Fraction(0)),
        num_gpus=sum(rental.num_gpus for rental in rentals),
        num_nodes=sum(rental.num_nodes for rental in rentals),
        provider=rentals[0].provider,
        nodes=tuple(node for rental in rentals for node in rental.nodes),
        offers=tuple(offer for rental in rentals for offer in rental.offers),
    )


def _by_provider(num_replicas: int, gpus_per_replica: int, offers: Sequence[GpuOffer]) -> Mapping[str, _Rental]:
    """Cheapest nodes of each provider."""
    return _rentals(num_replicas, gpus_per_replica, tuple(offers))


@lru_cache(maxsize=1 << 16)  # a search asks for the same fleets over and over
def _rentals(num_replicas: int, gpus_per_replica: int, offers: tuple[GpuOffer, ...]) -> Mapping[str, _Rental]:
    _check(num_replicas, gpus_per_replica, offers)
    largest = max(offer.num_gpus for offer in offers)
    # Nodes that a replica may use: those that hold one, or only the largest there are.
    smallest_useful = min(gpus_per_replica, largest)
    by_provider: dict[str, dict[int, GpuOffer]] = {}
    for offer in offers:
        if offer.num_gpus >= smallest_useful:
            sizes = by_provider.setdefault(offer.provider, {})
            sizes[offer.num_gpus] = _preferred(offer, sizes.get(offer.num_gpus, offer))
    return {
        provider: _cover(num_replicas, gpus_per_replica, provider, sizes) for provider, sizes in by_provider.items()
    }


def _preferred(one: GpuOffer, other: GpuOffer) -> GpuOffer:
    """The newer of two offers of one size; the cheaper of two of one date."""
    if one.date != other.date:
        return max(one, other, key=lambda offer: offer.date)
    return min(other, one, key=lambda offer: offer.usd_per_gpu_h)


def _cover(num_replicas: int, gpus_per_replica: int, provider: str, sizes: dict[int, GpuOffer]) -> _Rental:
    """Cheapest nodes of one provider: exact, by dynamic programming over the replicas."""
    largest = max(sizes)
    if gpus_per_replica > largest:
        count = num_replicas * math.ceil(gpus_per_replica / largest)
        offer = sizes[largest]
        price = Fraction(offer.usd_per_gpu_h) * largest * count
        return _Rental(price, largest * count, count, provider, ((largest, count),), (offer,))
    held = {size: size // gpus_per_replica for size in sizes}
    exact = {size: Fraction(offer.usd_per_gpu_h) * size for size, offer in sizes.items()}
    # Floats are fractions of powers of two: over the largest denominator they are integers.
    scale = max(price.denominator for price in exact.values())
    node_price = {size: int(price * scale) for size, price in exact.items()}
    best: list[tuple[int, int, int, int]] = [(0, 0, 0, 0)]  # price, GPUs, nodes, size of the last node
    for remaining in range(1, num_replicas + 1):
        before = {size: best[max(0, remaining - held[size])] for size in sizes}
        best.append(
            min((rest[0] + node_price[size], rest[1] + size, rest[2] + 1, size) for size, rest in before.items())
        )
    total, num_gpus, num_nodes, _ = best[num_replicas]
    counts: dict[int, int] = {}
    remaining = num_replicas
    while remaining > 0:
        size = best[remaining][3]
        counts[size] = counts.get(size, 0) + 1
        remaining -= held[size]
    nodes = tuple(sorted(counts.items(), reverse=True))
    used = tuple(sizes[size] for size, _ in nodes)
    return _Rental(Fraction(total, scale), num_gpus, num_nodes, provider, nodes, used)


def _check(num_replicas: int, gpus_per_replica: int, offers: Sequence[GpuOffer]) -> None:
    if num_replicas < 1 or gpus_per_replica < 1:
        raise InputError(
            f"a fleet of {num_replicas} replicas with {gpus_per_replica} GPUs each cannot be priced; "
            "both must be 1 or more"
        )
    if not offers:
        raise InputError("no rental price is known for this GPU; add one with `prices: FILE` in the service file")
    what = {(offer.gpu, offer.kind) for offer in offers}
    if len(what) > 1:
        names = ", ".join(f"{gpu} {kind}" for gpu, kind in sorted(what))
        raise InputError(f"one fleet was offered {names}; all offers must be of one GPU and one price kind")
    for offer in offers:
        if offer.num_gpus < 1:
            raise InputError(f"{offer.provider} offers a node of {offer.num_gpus} {offer.gpu}; it must have 1 or more")
        if not (math.isfinite(offer.usd_per_gpu_h) and offer.usd_per_gpu_h > 0.0):
            raise InputError(
                f"{offer.provider} offers {offer.gpu} at {offer.usd_per_gpu_h:g} $/h; a price must be above "
                "0 (for hardware you own, give its amortised cost per hour)"
            )


def groups_usd_per_h(deployment: Deployment, offers: Mapping[str, Sequence[GpuOffer]]) -> float:
    """Rent of a disaggregated fleet [$/h]; as :func:`cost_of_groups`."""
    return float(_cheapest_groups(deployment, offers).price)


def _cheapest_groups(deployment: Deployment, offers: Mapping[str, Sequence[GpuOffer]]) -> _Rental:
    found = deployment.disaggregation
    if found is None:
        raise InputError("the deployment is not disaggregated; use cost")
    groups = deployment.num_replicas
    if found.link.kind != "network":
        own = offers.get(deployment.gpu.name, ())
        rental = _cheapest(groups, deployment.gpus_per_replica, own)
        if max(size for size, _ in rental.nodes) < deployment.gpus_per_replica:
            raise InputError(
                f"no node on offer holds the {deployment.gpus_per_replica} {deployment.gpu.name} of a group, whose "
                f"link is {found.link.kind}; give it the network's"
            )
    else:
        rental = _cheapest_pools(groups, (found.prefill, found.decode), offers)
    return rental
