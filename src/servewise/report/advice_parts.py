"""What the sentences of a recommendation are made of: a fleet with its figures, and how it compares to the chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from servewise.effort import effort
from servewise.report import words
from servewise.types import (
    EFFORTS,
    AdviceSentence,
    AdviceTopic,
    Alternative,
    Candidate,
    EffortReport,
    Plan,
    Promise,
    Replanned,
    Restriction,
    WhatIf,
)
from servewise.units import format_duration, format_usd

__all__ = ["Point", "Said", "Side", "percent", "scores", "sentence", "traded"]

LEAST_CHANGE_PCT = 1.0
"""Smaller differences are not worth a word."""
NUM_SCORES = 3
"""Benchmarks that two models are compared on in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A fleet that keeps a promise, with the figures it is compared by.

    ``about`` are JSON pointers to the parts of ``plan.json`` that they come from. Costs are per million output tokens
    at load, ``latency_s`` is E2E at the promised attainment; ``with_model``: its words name the model.
    """

    candidate: Candidate
    usd_per_mtok: float
    usd_per_h: float
    attainment: float
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    latency_s: float
    about: tuple[str, ...]
    with_model: bool

    @property
    def words(self) -> str:
        """The fleet, e.g. ``4 x H100-SXM-80GB: 2 x TP2 trt-llm fp8/fp8``."""
        deployment = self.candidate.deployment
        model = f"{words.model_name(self.candidate)} on " if self.with_model else ""
        return (
            f"{model}{deployment.num_gpus} x {words.gpu_words(deployment)}: {deployment.num_replicas} x "
            f"{words.shape_words(deployment)} {words.engine_words(self.candidate)} "
            f"{deployment.precision.weights}/{deployment.precision.kv}"
        )

    @property
    def quality_pct(self) -> tuple[float, float] | None:
        """Typical share of the bf16 score that the precision keeps, and its low end [%]."""
        recovery = self.candidate.quality_recovery_pct
        return None if recovery is None else (recovery[1], recovery[0])

    @property
    def effort(self) -> EffortReport:
        """What the fleet asks of a team."""
        return effort(self.candidate.deployment)

    @property
    def decision(self) -> tuple[object, ...]:
        """What a user decides: the model, the engine, the GPUs, the precision, how a replica is spread, the drafter."""
        d = self.candidate.deployment
        shape = (words.gpu_words(d), words.shape_words(d))
        return (d.model.name, d.engine, d.engine_version, d.precision, shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The plan at one value of a variable: the cheapest fleet, the cheapest like the winner, and where it stands."""

    value: float
    best: Side | None
    stay: Side | None
    about: str

    @property
    def holds(self) -> bool:
        """Whether a fleet like the winner costs no more than a word is worth above the cheapest."""
        return (
            self.best is not None
            and self.stay is not None
            and self.stay.usd_per_mtok <= self.best.usd_per_mtok * (1 + LEAST_CHANGE_PCT / 100)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A plan that keeps its promise, and the sides that sentences are about."""

    plan: Plan
    promise: Promise
    several_models: bool

    @property
    def what_if(self) -> WhatIf | None:
        """What was planned again."""
        return self.plan.what_if

    def of(self, index: int) -> Side:
        """A candidate of the ranking."""
        candidate = self.plan.candidates[index]
        cost, summary = candidate.cost, candidate.summary
        assert cost is not None  # noqa: S101 (it is ranked)
        assert summary is not None  # noqa: S101 (it is ranked)
        p99 = {metric: estimates["p99"].value for metric, estimates in summary.percentiles.items()}
        return Side(
            candidate=candidate,
            usd_per_mtok=cost.usd_per_mtok_output_at_load,
            usd_per_h=cost.usd_per_h,
            attainment=summary.attainment.value,
            ttft_p99_s=p99.get("ttft"),
            tpot_p99_s=p99.get("tpot"),
            latency_s=candidate.latency_s,
            about=(f"/candidates/{index}",),
            with_model=self.several_models,
        )

    def replanned(self, fleet: Replanned, pointer: str) -> Side:
        """A fleet that answers another question; ``pointer`` leads to it."""
        shape = self.plan.candidates[fleet.candidate]
        deployment = replace(shape.deployment, num_replicas=fleet.num_replicas)
        return Side(
            candidate=replace(shape, deployment=deployment),
            usd_per_mtok=fleet.usd_per_mtok_output_at_load,
            usd_per_h=fleet.usd_per_h,
            attainment=fleet.attainment,
            ttft_p99_s=fleet.ttft_p99_s,
            tpot_p99_s=fleet.tpot_p99_s,
            latency_s=fleet.latency_s,
            about=(pointer, f"/candidates/{fleet.candidate}"),
            with_model=self.several_models,
        )

    def alternatives(self, restriction: Restriction) -> list[tuple[Alternative, Side | None, str]]:
        """The cheapest fleet of each value that could have been chosen beforehand, and the pointer to it."""
        found: list[tuple[Alternative, Side | None, str]] = []
        for i, alternative in enumerate(() if self.what_if is None else self.what_if.alternatives):
            if alternative.restriction == restriction:
                best = alternative.best
                pointer = f"/what_if/alternatives/{i}"
                found.append((alternative, None if best is None else self.replanned(best, pointer), pointer))
        return found

    def curve(self, variable: str) -> list[Point]:
        """The plans over a variable."""
        for i, variation in enumerate(() if self.what_if is None else self.what_if.variations):
            if variation.variable == variable:
                pointers = [f"/what_if/variations/{i}/points/{j}" for j in range(len(variation.points))]
                return [
                    Point(
                        value=point.value,
                        best=None if point.best is None else self.replanned(point.best, pointer),
                        stay=None if point.stay is None else self.replanned(point.stay, pointer),
                        about=pointer,
                    )
                    for point, pointer in zip(variation.points, pointers, strict=True)
                ]
        return []


def sentence(topic: AdviceTopic, text: str, *sides: Side | str) -> AdviceSentence:
    """A sentence about some sides and pointers."""
    pointers = [p for side in sides for p in ((side,) if isinstance(side, str) else side.about)]
    return AdviceSentence(topic=topic, text=text, about=tuple(dict.fromkeys(pointers)))


def percent(value: float, base: float) -> str:
    """The change from ``base``, e.g. ``+39%``, or ``the same``."""
    text = f"{100 * (value / base - 1):+,.0f}%"
    return "the same" if text in ("+0%", "-0%") else text


def scores(side: Side, winner: Side) -> list[tuple[str, float, float]]:
    """Benchmarks that one evaluation has of both, with the score that each is expected to reach [%]."""
    theirs = {(s.benchmark, s.report): s.expected_pct for s in winner.candidate.expected_scores}
    found = []
    for score in side.candidate.expected_scores:
        mine, other = score.expected_pct, theirs.get((score.benchmark, score.report))
        if mine is not None and other is not None:
            found.append((score.benchmark, mine[1], other[1]))
    return found


def traded(said: Said, side: Side, winner: Side) -> str:
    """What a fleet costs, gains and gives up against the winner, e.g. ``$4.408 per Mtok output (+39%); gains ...``."""
    gains: list[str] = []
    losses: list[str] = []
    for name, mine, base in (
        ("TTFT p99", side.ttft_p99_s, winner.ttft_p99_s),
        ("TPOT p99", side.tpot_p99_s, winner.tpot_p99_s),
        (f"E2E p{100 * said.promise.attainment:g}", side.latency_s, winner.latency_s),
    ):
        if mine is not None and base is not None and _changed(mine, base):
            (gains if mine < base else losses).append(f"{name} {format_duration(mine)} ({percent(mine, base)})")
    if side.candidate.deployment.model.name != winner.candidate.deployment.model.name:
        for benchmark, mine, base in scores(side, winner)[:NUM_SCORES]:
            (gains if mine > base else losses).append(f"{benchmark} {mine:.1f} instead of {base:.1f}")
    elif side.quality_pct is not None and winner.quality_pct is not None and side.quality_pct != winner.quality_pct:
        kept, base_kept = side.quality_pct, winner.quality_pct
        (gains if kept > base_kept else losses).append(f"{_kept(kept)} of the bf16 score, not {_kept(base_kept)}")
    if side.effort.level != winner.effort.level:
        easier = EFFORTS.index(side.effort.level) < EFFORTS.index(winner.effort.level)
        (gains if easier else losses).append(f"{side.effort.level} effort instead of {winner.effort.level}")
    cost = f"{format_usd(side.usd_per_mtok)} per Mtok output ({percent(side.usd_per_mtok, winner.usd_per_mtok)})"
    return "; ".join([cost, *_listed("gains", gains), *_listed("gives up", losses)])


def _kept(quality_pct: tuple[float, float]) -> str:
    return f"{quality_pct[0]:.1f}% ({quality_pct[1]:.1f}% at worst)"


def _changed(value: float, base: float) -> bool:
    return abs(100 * (value / base - 1)) >= LEAST_CHANGE_PCT


def _listed(what: str, items: Iterable[str]) -> list[str]:
    text = ", ".join(items)
    return [f"{what} {text}"] if text else []
