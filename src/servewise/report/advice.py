"""The recommendation in words: what was chosen and against what, what would change it, how sure it is, what more costs.

Every sentence is made of fields of the plan and says which (``about``), so that its figures can be checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from servewise.report import sureness, words
from servewise.report.advice_changes import changes, hosted, instead, nines
from servewise.report.advice_parts import Said, Side, percent, scores, sentence, traded
from servewise.report.operation_words import unit
from servewise.types import EFFORTS, AdviceSentence, Plan, Promise
from servewise.units import HOURS_PER_MONTH, format_duration, format_usd

__all__ = ["advice"]

GROWTHS = (1.5, 2.0)
"""Loads that growth is told for, where none is expected."""


def advice(plan: Plan, promise: Promise) -> tuple[AdviceSentence, ...]:
    """The recommendation of a plan; what could be promised instead when nothing keeps the promise."""
    said = Said(plan=plan, promise=promise, several_models=words.several_models(plan))
    if plan.winner is None:
        return tuple(instead(said))
    winner = said.of(plan.winner)
    return (
        *_chosen(said, winner),
        *_against(said, winner),
        *_choices(said, winner),
        *changes(said, winner),
        *nines(said, winner),
        *_sure(winner),
        *_more(said, winner),
        *_worth(said, winner),
        *hosted(said, winner),
    )


def _chosen(said: Said, winner: Side) -> Iterator[AdviceSentence]:
    summary, cost = winner.candidate.summary, winner.candidate.cost
    assert summary is not None  # noqa: S101 (it is ranked)
    assert cost is not None  # noqa: S101 (it is ranked)
    parts = [f"{format_usd(winner.usd_per_mtok)} per Mtok output at load, {format_usd(cost.usd_per_month)} a month"]
    if words.has_joint_limit(said.promise):
        parts.append(f"{100 * winner.attainment:.2f}% of requests within the limits")
    parts.append(words.latency_words(summary, said.promise))
    if winner.quality_pct is not None:
        parts.append(f"{winner.quality_pct[0]:.1f}% of the bf16 score expected")
    parts.append(f"{winner.effort.level} effort")
    yield sentence("chosen", f"Take {winner.words}: {', '.join(parts)}.", winner)


def _against(said: Said, winner: Side) -> Iterator[AdviceSentence]:
    """The chosen fleet against the cheapest other, the fastest, the best in quality and the simplest."""
    others = [said.of(index) for index in said.plan.alternatives]
    other = next((side for side in others if side.decision != winner.decision), None)
    if other is not None:
        what = "keeps the promise" if said.plan.complete else "was searched and keeps the promise"
        text = f"Nothing that {what} is cheaper. The next is {other.words}: {traded(said, other, winner)}."
        yield sentence("cheapest", text, other, winner)
    fastest = said.of(said.plan.frontier[-1])
    if fastest.candidate.index == winner.candidate.index:
        yield sentence("fastest", f"It is also the fastest: E2E {format_duration(winner.latency_s)}.", winner)
    else:
        yield sentence("fastest", f"The fastest is {fastest.words}: {traded(said, fastest, winner)}.", fastest, winner)
    if said.what_if is not None:
        yield from _best_quality(said, winner)
        yield from _simplest(said, winner)


def _best_quality(said: Said, winner: Side) -> Iterator[AdviceSentence]:
    """The precision that keeps most of the score, and the model that scores best where models compete."""
    found = [side for _, side, _ in said.alternatives("precision") if side is not None]
    best = max(found, key=lambda side: (side.quality_pct or (0.0, 0.0), -side.usd_per_mtok), default=winner)
    if (best.quality_pct or (0.0, 0.0)) > (winner.quality_pct or (0.0, 0.0)):
        text = f"The least loss of quality has {best.words}: {traded(said, best, winner)}."
        yield sentence("quality", text, best, winner)
    elif winner.quality_pct is not None:
        kept = f"{winner.quality_pct[0]:.1f}%"
        text = f"No precision that keeps the promise is expected to keep more of the score than the chosen: {kept}."
        yield sentence("quality", text, winner)
    better = []
    for _, side, _ in said.alternatives("model"):
        compared = [] if side is None else scores(side, winner)
        if side is not None and compared:
            better.append((sum(mine - base for _, mine, base in compared) / len(compared), side))
    gain, side = max(better, key=lambda pair: pair[0], default=(0.0, winner))
    if gain > 0.0:
        yield sentence("quality", f"The best model is {side.words}: {traded(said, side, winner)}.", side, winner)


def _simplest(said: Said, winner: Side) -> Iterator[AdviceSentence]:
    def demands(side: Side) -> tuple[int, int, float]:
        report = side.effort
        lifted = sum(fact.demand != "low" for fact in report.facts)
        return EFFORTS.index(report.level), lifted, side.usd_per_mtok

    asked = [*said.alternatives("effort"), *said.alternatives("engine")]
    found = [side for _, side, _ in asked if side is not None]
    simplest = min([winner, *found], key=demands)
    if demands(simplest)[:2] < demands(winner)[:2]:
        what = f"{simplest.words} ({simplest.effort.level} effort)"
        text = f"The simplest to run is {what}: {traded(said, simplest, winner)}."
        yield sentence("simplest", text, simplest, winner)
    else:
        yield sentence(
            "simplest", f"Nothing that keeps the promise asks less than {winner.effort.level} effort.", winner
        )


def _choices(said: Said, winner: Side) -> Iterator[AdviceSentence]:
    """What another engine, GPU or model would cost."""
    choices: tuple[Literal["engine", "gpu", "model"], ...] = ("engine", "gpu", "model")
    for restriction in choices:
        parts: list[str] = []
        about: list[Side | str] = [winner]
        for alternative, side, pointer in said.alternatives(restriction):
            if side is not None and side.decision == winner.decision:
                continue
            about.append(pointer if side is None else side)
            if side is None:
                parts.append(f"{alternative.value}: none of {alternative.num_fit} shapes that fit keeps the promise")
            else:
                cost = f"{format_usd(side.usd_per_mtok)} ({percent(side.usd_per_mtok, winner.usd_per_mtok)})"
                parts.append(f"{alternative.value}: {cost} with {side.words}")
        if parts:
            what = "GPU" if restriction == "gpu" else restriction
            yield sentence(restriction, f"The cheapest with another {what}: {'; '.join(parts)}.", *about)


def _sure(winner: Side) -> Iterator[AdviceSentence]:
    assurance = winner.candidate.assurance
    if assurance is None:
        return
    text = f"How sure: it {sureness.verdict_words(assurance)}"
    margin = sureness.margin_words(winner.candidate)
    yield sentence("sure", f"{text}{f'; {margin}' if margin else ''}.", winner)


def _more(said: Said, winner: Side) -> Iterator[AdviceSentence]:
    """What one replica more, and more traffic, add."""
    failed = said.plan.failure
    if failed is not None:
        name = unit(winner.candidate.deployment)
        extra = (failed.one_more.usd_per_h - failed.planned.usd_per_h) * HOURS_PER_MONTH
        kept = "keeps" if failed.one_more.promise_kept else "still breaks"
        now = "keeps" if failed.planned.promise_kept else "breaks"
        shares = [f" ({100 * outage.attainment:.2f}%)" for outage in (failed.one_more, failed.planned)]
        with_it, without = shares if words.has_joint_limit(said.promise) else ("", "")
        text = (
            f"One {name} more (N+1) adds {format_usd(extra)} a month: with it the fleet {kept} the promise{with_it} "
            f"while a {name} is down, without it {now} it{without}."
        )
        yield sentence("spare", text, "/failure")
    parts: list[str] = []
    about: list[Side | str] = [winner]
    expected = None if said.what_if is None else said.what_if.expected_load
    for point in said.curve("load"):
        value, side = point.value, point.best
        if value == expected and side is None:
            parts.append(f"nothing keeps the promise at {value:g} times the load")
            about.append(point.about)
        elif value in ((expected,) if expected is not None else GROWTHS) and side is not None:
            change = percent(side.usd_per_h, winner.usd_per_h)
            parts.append(f"{value:g} times the load takes {side.words} at {format_usd(side.usd_per_h)}/h ({change})")
            about.append(side)
    if parts:
        grown = "If traffic grows" if expected is None else "When traffic has grown as expected"
        yield sentence("growth", f"{grown}: {'; '.join(parts)}.", *about)


def _worth(said: Said, winner: Side) -> Iterator[AdviceSentence]:
    """Goodput against throughput, and the largest batch."""
    summary = winner.candidate.summary
    assert summary is not None  # noqa: S101 (it is ranked)
    text = (
        f"Of {summary.throughput_tokens_per_s:,.0f} output tokens/s, {summary.goodput_tokens_per_s:,.0f} belong to "
        "requests that keep the promise (goodput)"
    )
    curve = [point for point in winner.candidate.load_curve if not point.promise_kept]
    if curve:
        over = max(curve, key=lambda point: point.offered_rps)
        text += (
            f"; at {over.offered_rps:.3g} requests/s the same fleet would give {over.throughput_tokens_per_s:,.0f} and "
            f"{over.goodput_tokens_per_s:,.0f}"
        )
    yield sentence("goodput", f"{text}.", winner)
    batch = None if said.what_if is None else said.what_if.largest_batch
    if batch is not None and batch.step_s is not None:
        limited = said.promise.tpot_s is not None
        allowed = "more than the settings" if batch.by_tpot is None else f"{batch.by_tpot:,}"
        lead = f"The largest batch of a replica{' within the TPOT limit' if limited else ''}"
        size = f"{batch.num_requests:,} requests of {batch.context_tokens:,} tokens"
        speed = f"{format_duration(batch.step_s)} a step, {batch.tokens_per_s:,.0f} output tokens/s"
        text = (
            f"{lead}: {size}, {speed} while nothing but decoding happens "
            f"({f'TPOT allows {allowed}, ' if limited else ''}the KV cache holds {batch.by_kv_cache:,}, the settings "
            f"allow {batch.by_settings:,})."
        )
        yield sentence("batch", text, "/what_if/largest_batch")
