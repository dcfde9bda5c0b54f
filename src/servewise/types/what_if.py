"""What would change a plan's decision, and what its promise costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from servewise.types.provenance import Provenance

__all__ = [
    "Alternative",
    "Hosted",
    "HostedPrice",
    "LargestBatch",
    "Replanned",
    "Restriction",
    "Variation",
    "VariationPoint",
    "WhatIf",
]

Restriction = Literal["model", "gpu", "engine", "precision", "effort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned:
    """The cheapest fleet that answers a question which differs from the plan's in one thing.

    Parameters
    ----------
    candidate : int
        Index of its replica's shape among the plan's candidates.
    num_replicas, num_gpus : int
    usd_per_h : float [$/h]
    usd_per_mtok_output_at_load : float [$]
        Per million output tokens of goodput, under the promise and the load of the question.
    attainment : float
        Share of requests within every joint limit of the question's promise.
    goodput_tokens_per_s, throughput_tokens_per_s : float [output tokens/s]
    ttft_p99_s, tpot_p99_s : float or None [s]
        None where no request has one.
    latency_s : float [s]
        E2E at the promised attainment.
    """

    candidate: int
    num_replicas: int
    num_gpus: int
    usd_per_h: float
    usd_per_mtok_output_at_load: float
    attainment: float
    goodput_tokens_per_s: float
    throughput_tokens_per_s: float
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The cheapest fleet when one choice is made beforehand; None when none keeps the promise.

    ``value`` is a name of a model, GPU or engine, a precision (``fp8/bf16``: weights and KV cache), or the most effort
    allowed. ``num_fit`` counts the shapes
    of the choice that fit, so that None can be told from nothing to try.
    """

    restriction: Restriction
    value: str
    num_fit: int
    best: Replanned | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VariationPoint:
    """The question with ``value`` instead of the plan's own.

    Parameters
    ----------
    value : float
    best : Replanned or None
        None when no fleet answers it.
    stay : Replanned or None
        The cheapest of the winner's own kind (model, engine, GPUs, precision, parallelism, drafter), whose settings and
        number may be others.
    """

    value: float
    best: Replanned | None
    stay: Replanned | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """Plans over one variable, everything else as asked.

    Parameters
    ----------
    variable : str
        ``load`` (a multiple of the traffic's rate, the same requests arriving faster), or the promise's own key:
        ``ttft_s``, ``tpot_s``, ``e2e_s``, ``attainment``, ``deadline_s``, ``ttft_p99_s`` and the like.
    points : tuple of VariationPoint
        Ascending, the plan's own value among them.
    """

    variable: str
    points: tuple[VariationPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedPrice:
    """What a provider charges for the model by the token [$ per million tokens]."""

    provider: str
    model: str
    usd_per_mtok_input: float
    usd_per_mtok_output: float
    provenance: Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosted:
    """The traffic's tokens bought from a provider, whose latency is not known.

    Parameters
    ----------
    price : HostedPrice
    usd_per_mtok_output : float [$]
        Input and output of the traffic, per million output tokens; it does not depend on the load.
    """

    price: HostedPrice
    usd_per_mtok_output: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestBatch:
    """The most requests that a replica of the winner can decode at once within the promise's TPOT.

    Parameters
    ----------
    num_requests : int
        The least of the three below; 0 when a single request is too slow.
    by_tpot : int or None
        Requests of the traffic's mean context whose decode step takes no longer than the TPOT limit; None: no step
        that the engine is set to is that long, or TPOT is not limited.
    by_kv_cache : int
        Requests of the mean context that the KV cache holds.
    by_settings : int
        Most that the engine is set to run at once.
    context_tokens : int
        Mean context: the input and half of the output.
    step_s : float or None [s]
        Decode step of ``num_requests``; None for none.
    tokens_per_s : float [output tokens/s]
        Of a replica that does nothing but such steps.
    """

    num_requests: int
    by_tpot: int | None
    by_kv_cache: int
    by_settings: int
    context_tokens: int
    step_s: float | None
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What would change the decision, and what the promise costs: planned again, not extrapolated.

    Without a winner: which looser promises and lower loads can be kept, and at what cost.

    Parameters
    ----------
    num_shapes : int
        Shapes of replicas that every question is planned over: of each model, engine, GPU, precision and parallelism
        that fits, the settings that keep the plan's own promise and the largest and smallest others.
    num_simulated_requests : int
    alternatives : tuple of Alternative
    variations : tuple of Variation
    largest_batch : LargestBatch or None
        None where a replica's steps are not those of one batch: groups, ranks, stages, drafters.
    hosted : tuple of Hosted
        The winner's model, cheapest first.
    expected_load : float or None
        Load that the traffic is expected to grow to, as a multiple of it; None: nothing is said of it.
    """

    num_shapes: int
    num_simulated_requests: int
    alternatives: tuple[Alternative, ...]
    variations: tuple[Variation, ...]
    largest_batch: LargestBatch | None
    hosted: tuple[Hosted, ...]
    expected_load: float | None = None

    @property
    def fleets(self) -> tuple[Replanned, ...]:
        """Every fleet that answers one of the questions."""
        found = [alternative.best for alternative in self.alternatives]
        points = [point for variation in self.variations for point in variation.points]
        found += [fleet for point in points for fleet in (point.best, point.stay)]
        return tuple(fleet for fleet in found if fleet is not None)
