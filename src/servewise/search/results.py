"""What came of a shape: its candidate, what that was computed from, and which fleets beat which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from servewise.effort import cautions
from servewise.search.bounds import Bounds
from servewise.search.fleet import Demand, Load
from servewise.search.shapes import Shape
from servewise.types import Candidate, CandidateStatus, Deployment, StepModel

__all__ = ["Kind", "Point", "Result", "beaten", "kind_of", "rivals", "verdict_of", "warnings_of", "without_beaten"]

Kind = tuple[object, ...]
"""What a user chooses between: model, engine, GPUs, precision, drafter, whole replicas or groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A fleet that keeps the promise: cost ($ per million output tokens at load), latency [s], and its kind."""

    usd_per_mtok: float
    latency_s: float
    kind: Kind = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A candidate with what it was computed from.

    Parameters
    ----------
    candidate, shape, load, bound
    demand : Demand or None
        Of its runs when it was simulated.
    first : Point or None
        Of the smallest fleet that keeps the promise, where that was passed over because one replica more breaks it.
    unfinished : (int, str) or None
        Size of the largest fleet tried, which was simulated until it had broken the promise, and why none larger was.
    fewest : int
        Smaller fleets are known to break the promise.
    num_requests_simulated : int
    """

    candidate: Candidate
    shape: Shape
    load: Load
    bound: Bounds
    demand: Demand | None = None
    first: Point | None = None
    unfinished: tuple[int, str] | None = None
    fewest: int = 1
    num_requests_simulated: int = 0

    @property
    def point(self) -> Point | None:
        """Of a fleet that keeps the promise and passed no smaller one over: those may rule others out."""
        candidate = self.candidate
        if candidate.status != "kept" or candidate.cost is None or self.first is not None:
            return None
        dollars = candidate.cost.usd_per_mtok_output_at_load
        return Point(usd_per_mtok=dollars, latency_s=candidate.latency_s, kind=kind_of(candidate.deployment))


def kind_of(deployment: Deployment) -> Kind:
    """The kind of a deployment's fleets."""
    group = deployment.disaggregation
    gpus = (deployment.gpu.name, None if group is None else group.prefill.gpu.name)
    return (
        deployment.model.name,
        deployment.engine,
        deployment.engine_version,
        gpus,
        deployment.precision,
        deployment.speculation,
    )


def rivals(points: Sequence[Point], deployment: Deployment) -> list[Point]:
    """Fleets of the same model: one of another, which scores differently, rules nothing out."""
    return [point for point in points if point.kind[:1] == kind_of(deployment)[:1]]


def beaten(points: Sequence[Point], usd_per_mtok: float, latency_s: float) -> bool:
    """Whether a known fleet is at least as good in both cost and latency, and better in one."""
    return any(
        p.usd_per_mtok <= usd_per_mtok
        and p.latency_s <= latency_s
        and (p.usd_per_mtok < usd_per_mtok or p.latency_s < latency_s)
        for p in points
    )


def verdict_of(shape: Shape, load: Load, bound: Bounds, status: CandidateStatus, reason: str) -> Result:
    """A result without figures."""
    candidate = Candidate(
        index=shape.index,
        deployment=shape.deployment,
        status=status,
        reason=reason,
        memory=shape.memory,
        quality_recovery_pct=shape.precision.recovery_pct,
        quality_basis=shape.precision.basis,
        expected_scores=shape.precision.expected_scores,
        warnings=warnings_of(shape, load.step_model),
    )
    return Result(candidate=candidate, shape=shape, load=load, bound=bound)


def warnings_of(shape: Shape, model: StepModel) -> tuple[str, ...]:
    """What a reader of the candidate's figures must know."""
    warnings = list(model.warnings)
    quality = shape.precision
    if quality.at_risk:
        low = "unknown" if quality.recovery_pct is None else f"as low as {quality.recovery_pct[0]:.1f}%"
        warnings.append(f"quality at risk: the recovery of this precision may be {low} ({quality.basis})")
    return (*warnings, *cautions(shape.deployment.engine))


def without_beaten(results: Sequence[Result]) -> list[Result]:
    """The results without fleets that passed over a smaller one which is beaten anyway.

    Only the smallest fleet of a shape that keeps the promise competes. So a search may leave a shape as soon as that
    one is beaten, whether one replica more keeps the promise, too, or not.
    """
    points = [result.point for result in results if result.point is not None]

    def kept(result: Result) -> Result:
        first = result.first
        if (
            first is None
            or result.candidate.status != "kept"
            or not beaten(rivals(points, result.shape.deployment), first.usd_per_mtok, first.latency_s)
        ):
            return result
        reason = (
            f"${first.usd_per_mtok:.3f} per Mtok output and {first.latency_s:.1f} s of E2E; another fleet beats both"
        )
        verdict = verdict_of(result.shape, result.load, result.bound, "dominated", reason)
        return replace(verdict, num_requests_simulated=result.num_requests_simulated)

    return [kept(result) for result in results]
