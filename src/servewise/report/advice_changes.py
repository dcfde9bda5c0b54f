"""What would change the decision: other prices, loads and promises, and buying the tokens instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import takewhile

from servewise.report import words
from servewise.report.advice_parts import Point, Said, Side, percent, sentence
from servewise.report.operation_words import unit
from servewise.types import AdviceSentence, AdviceTopic, Promise
from servewise.units import format_duration, format_usd

__all__ = ["asked", "changes", "hosted", "instead", "limit_name", "limit_words", "nines"]


def changes(said: Said, winner: Side) -> Iterator[AdviceSentence]:
    """At which price, load and promise another deployment is the cheapest."""
    yield from _price(said, winner)
    if said.what_if is None:
        return
    for variation in said.what_if.variations:
        name = variation.variable
        topic: AdviceTopic = "load" if name == "load" else "promise"
        shown = partial(limit_words, name)
        parts, about = _around(said.curve(name), asked(said.promise, name), winner, shown)
        if parts:
            yield sentence(topic, f"{limit_name(name)}: {'; '.join(parts)}.", winner, *about)


def instead(said: Said) -> Iterator[AdviceSentence]:
    """The nearest value of each limit, and the nearest load, at which something keeps the promise."""
    for variation in () if said.what_if is None else said.what_if.variations:
        name = variation.variable
        own, points = asked(said.promise, name), said.curve(name)
        points.sort(key=lambda point: abs(point.value - own))
        topic: AdviceTopic = "load" if name == "load" else "promise"
        found = next((point for point in points if point.best is not None), None)
        if found is None or found.best is None:
            text = f"{limit_name(name)}: even at {limit_words(name, points[-1].value)} nothing keeps the promise."
            yield sentence(topic, text, points[-1].about)
        else:
            keeps = f"{found.best.words} keeps the promise, {format_usd(found.best.usd_per_mtok)} per Mtok output"
            yield sentence(topic, f"{limit_name(name)}: at {limit_words(name, found.value)} {keeps}.", found.best)


def _price(said: Said, winner: Side) -> Iterator[AdviceSentence]:
    """The prices of GPUs at which the decision changes.

    A fleet costs in proportion to the price of its GPU, so they are exact, but for fleets that share a kind of GPU.
    """
    sides = [(alternative.value, side) for alternative, side, _ in said.alternatives("gpu") if side is not None]
    own = words.gpu_words(winner.candidate.deployment)
    others = [(name, side) for name, side in sides if _kinds(name).isdisjoint(_kinds(own))]
    if not others:
        return
    name, nearest = min(others, key=lambda named: named[1].usd_per_mtok)
    rise = _share(nearest.usd_per_mtok, winner.usd_per_mtok)
    parts = [f"{own} may cost {rise} more until {name} is cheaper"]
    parts += [f"{name} wins if it costs {_share(winner.usd_per_mtok, side.usd_per_mtok)} less" for name, side in others]
    yield sentence("price", f"Price: {'; '.join(parts)}.", winner, *(side for _, side in others))


def _kinds(gpus: str) -> set[str]:
    return set(gpus.split(" + "))


def _share(value: float, base: float) -> str:
    return f"{abs(100 * (value / base - 1)):.1f}%"


def _around(
    curve: Sequence[Point], own: float, winner: Side, shown: Callable[[float], str]
) -> tuple[list[str], list[Side | str]]:
    """How far the decision holds below and above the plan's own value, and what comes then."""
    parts: list[str] = []
    about: list[Side | str] = []
    below, above = [point for point in reversed(curve) if point.value < own], [p for p in curve if p.value > own]
    for to, points in (("down to", below), ("up to", above)):
        held = list(takewhile(lambda point: point.holds, points))
        if held and held[-1].stay is not None:
            parts.append(_same(to, held[-1].value, held[-1].stay, winner, shown))
            about.append(held[-1].stay)
        if len(held) < len(points):
            then = points[len(held)]
            parts.append(_changed(then, winner, shown))
            about += [side for side in (then.best, then.stay, then.about) if side is not None]
    return parts, about


def _same(to: str, value: float, side: Side, winner: Side, shown: Callable[[float], str]) -> str:
    num, now = side.candidate.deployment.num_replicas, winner.candidate.deployment.num_replicas
    replicas = "" if num == now else f" with {words.count(num, unit(winner.candidate.deployment))}"
    return f"the same deployment{replicas} {to} {shown(value)}, {_cost(side, winner)}"


def _changed(point: Point, winner: Side, shown: Callable[[float], str]) -> str:
    """What is the cheapest where the winner's kind is not, and what that costs there."""
    if point.best is None:
        return f"at {shown(point.value)} nothing keeps the promise"
    stay = "not with the same deployment"
    if point.stay is not None:
        stay = f"{format_usd(point.stay.usd_per_mtok)} with the same deployment"
    return f"at {shown(point.value)} {point.best.words} is the cheapest, {_cost(point.best, winner)}, {stay}"


def _cost(side: Side, winner: Side) -> str:
    return f"{format_usd(side.usd_per_mtok)} per Mtok ({percent(side.usd_per_mtok, winner.usd_per_mtok)})"


def nines(said: Said, winner: Side) -> Iterator[AdviceSentence]:
    """The price of one more nine: a tenth as many requests may miss the limits."""
    points, own = said.curve("attainment"), said.promise.attainment
    if not points:
        return
    next_nine = 1.0 - (1.0 - own) / 10.0
    found = next((point for point in points if math.isclose(point.value, next_nine)), None)
    asked, wanted = f"{100 * own:.10g}%", f"{100 * next_nine:.10g}%"
    if found is None:
        text = f"One more nine ({wanted}) was not planned: the traffic is too short to tell it from {asked}."
        yield sentence("nines", text, winner, "/promise")
    elif found.best is None:
        yield sentence("nines", f"One more nine ({wanted}): nothing keeps it.", winner, "/promise", found.about)
    else:
        text = f"One more nine ({wanted} instead of {asked}) takes {found.best.words}, {_cost(found.best, winner)}."
        yield sentence("nines", text, winner, "/promise", found.about, found.best)


def hosted(said: Said, winner: Side) -> Iterator[AdviceSentence]:
    """Whether buying the tokens is cheaper, and from which load on it is not."""
    offers = () if said.what_if is None else said.what_if.hosted
    if not offers:
        return
    cheapest = offers[0]
    price = format_usd(cheapest.usd_per_mtok_output)
    text = (
        f"Bought by the token this traffic costs {price} per Mtok output with its input from {cheapest.price.provider} "
        f"(cheapest of {len(offers)} known, without a promise), {format_usd(winner.usd_per_mtok)} on this fleet"
    )
    about: list[Side | str] = ["/what_if/hosted", winner]
    model = winner.candidate.deployment.model.name
    curve = [(point.value, point.best) for point in said.curve("load") if point.best is not None]
    points = [(value, side) for value, side in curve if side.candidate.deployment.model.name == model]
    cheaper = [value for value, side in points if side.usd_per_mtok <= cheapest.usd_per_mtok_output]
    if points and not cheaper:
        least = min(points, key=lambda point: point[1].usd_per_mtok)
        text += (
            f"; from {points[0][0]:g} to {points[-1][0]:g} times the load a fleet of one's own is never cheaper "
            f"({format_usd(least[1].usd_per_mtok)} at best, at {least[0]:g} times)"
        )
        about += [points[0][1], points[-1][1], least[1]]
    elif points:
        text += _break_even(points, cheapest.usd_per_mtok_output)
        about += [side for _, side in points]
    yield sentence("hosted", f"{text}.", *about)


def _break_even(points: Sequence[tuple[float, Side]], usd_per_mtok: float) -> str:
    """Between which planned loads a fleet of one's own becomes the cheaper one for good."""
    dearer = [value for value, side in points if side.usd_per_mtok > usd_per_mtok]
    if not dearer:
        return f"; a fleet of one's own is cheaper from {points[0][0]:g} times the load on"
    last = max(dearer)
    after = [value for value, _ in points if value > last]
    if not after:
        first = min(value for value, side in points if side.usd_per_mtok <= usd_per_mtok)
        return f"; a fleet of one's own is cheaper at {first:g} times the load, but not at {last:g} times"
    return f"; a fleet of one's own is the cheaper one from between {last:g} and {after[0]:g} times the load on"


def limit_name(variable: str) -> str:
    """What was varied, e.g. ``TTFT limit`` or ``TTFT p99 limit``."""
    if variable == "load":
        return "Load"
    if variable == "attainment":
        return "Share of requests"
    if variable == "deadline_s":
        return "Deadline"
    metric, *percentile = variable.removesuffix("_s").split("_")
    return " ".join([metric.upper(), *percentile, "limit"])


def limit_words(variable: str, value: float) -> str:
    """A value of what was varied."""
    if variable == "load":
        return f"{value:g} times the load"
    return f"{100 * value:.10g}%" if variable == "attainment" else format_duration(value)


def asked(promise: Promise, variable: str) -> float:
    """The plan's own value of what was varied."""
    if variable == "load":
        return 1.0
    if "_p" in variable:
        names = {f"{limit.metric}_p{limit.percentile:g}_s": limit.limit_s for limit in promise.percentiles}
        return names[variable]
    return float(getattr(promise, variable))
