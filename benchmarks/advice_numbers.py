"""Whether every figure of a plan's recommendation is one of its tables': read from ``plan.json`` alone.

A sentence names the parts of the document that it is about. Each number in it must be a field of those parts, in the
unit and to the digits that it is written with, or follow from two of them: the change of one field from one part to
another in percent, the dollars of a month from those of an hour, the GPUs of a fleet from those of a replica.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["disagreeing_numbers"]

HOURS_PER_MONTH = 730.0
NUMBER = re.compile(
    r"(?<![\w.])(?P<sign>[+-]?)(?P<usd>\$?)(?P<digits>\d[\d,]*(?:\.\d+)?)(?P<unit>%| ms\b| s\b| min\b| h\b|/h)?"
)
SPREAD = re.compile(r"\b(?:TP|PP|DP|EP)(\d+)\b")
SECONDS = {" ms": 1e-3, " s": 1.0, " min": 60.0, " h": 3600.0}
NOT_FIGURES = ("N+1", "bf16 score")
SUBJECTS = {"$": "usd", "TTFT": "ttft", "TPOT": "tpot", "E2E": "latency_s"}
"""Words, and what the fields are called that they are about."""
SHARES = ("attainment", "kept_frac", "value")
"""Fields that hold a share of 1 and are said in percent."""
PERCENTS = ("quality_recovery_pct", "expected_pct")


def disagreeing_numbers(document: Mapping[str, Any]) -> list[str]:
    """The numbers of the recommendation that no field of its parts bears out, each with its sentence."""
    winner = () if document["winner"] is None else (f"/candidates/{document['winner']}",)
    wrong = []
    for said in document["advice"]:
        parts = [list(_leaves(_resolve(document, pointer))) for pointer in dict.fromkeys((*winner, *said["about"]))]
        parts += [[("promise." + key, value) for key, value in _leaves(document["promise"])]]
        wrong += [
            f"{number!r} in {said['topic']}: {said['text']}" for number in _unborne(said["text"], document, parts)
        ]
    return wrong


def _unborne(text: str, document: Mapping[str, Any], parts: Sequence[Sequence[tuple[str, float]]]) -> Iterator[str]:
    text = _without_names(text, document)
    known = [(key, value) for part in parts for key, value in part]
    for match in SPREAD.finditer(text):
        if not any(key.endswith("parallel_size") and value == float(match[1]) for key, value in known):
            yield match[0]
    text = SPREAD.sub(" ", text)
    for match in NUMBER.finditer(text):
        if not _is_borne(match, _subject(text[: match.start()]), known, parts):
            yield match[0]


def _subject(before: str) -> str:
    """What the fields are called that a change in percent is about: of what its clause names last."""
    clause = re.split(r"[;,] ", before)[-1]
    named = {clause.rfind(word): field for word, field in SUBJECTS.items() if word in clause}
    return named[max(named)] if named else ""


def _is_borne(
    match: re.Match[str], subject: str, known: Sequence[tuple[str, float]], parts: Sequence[Sequence[tuple[str, float]]]
) -> bool:
    digits, unit = match["digits"].replace(",", ""), match["unit"] or ""
    value = float(digits)
    half = 0.5 * 10.0 ** -len(digits.partition(".")[2]) * (1 + 1e-6) + 1e-9

    def near(found: float) -> bool:
        same_sign = match["sign"] != ("+" if found < 0 else "-")
        return math.isfinite(found) and abs(abs(found) - value) <= half and (same_sign or unit != "%")

    if match["usd"]:
        dollars = [(key, found) for key, found in known if "usd" in key]
        hourly = [found for key, found in dollars if key.endswith("usd_per_h")]
        months = [HOURS_PER_MONTH * (a - b) for a in hourly for b in (*hourly, 0.0)]
        return any(near(found) for _, found in dollars) or any(near(found) for found in months)
    if unit in SECONDS:
        return any(near(found / SECONDS[unit]) for key, found in known if _is_time(key))
    if unit == "%":
        shares = [100 * found for key, found in known if key.rsplit(".", 1)[-1] in SHARES]
        shares += [100 * (1 - (1 - found) / 10) for key, found in known if key == "promise.attainment"]
        percents = [found for key, found in known if key.endswith(PERCENTS)]
        if match["sign"]:  # what is said with a sign is the change of what was just named, against the winner
            return any(near(found) for found in _changes(parts, parts[:1], subject))
        return any(near(found) for found in (*shares, *percents, *_changes(parts, parts, "usd")))
    sizes = [found for key, found in known if key.endswith("num_replicas")]
    spans = [found for key, found in known if key.endswith("parallel_size")]
    fleets = [a * b * c for a in sizes for b in spans for c in (*spans, 1.0)]
    scaled = [found for _, found in known]
    more = [a - b for a in sizes for b in sizes]
    draws = [a * b for key, a in known if key.endswith("kept_frac") for k, b in known if k.endswith("num_draws")]
    return any(near(found) for found in (*scaled, *fleets, *more, *draws))


def _is_time(key: str) -> bool:
    """Whether a field holds seconds: the value of a variation's point may, too."""
    return key.endswith("_s") or key == "value" or ("percentiles" in key and key.endswith("value"))


def _changes(
    parts: Sequence[Sequence[tuple[str, float]]], bases: Sequence[Sequence[tuple[str, float]]], subject: str
) -> Iterator[float]:
    """Changes of the fields named so from one of the bases to one of the parts [%]."""
    for other in bases:
        base = {_plain(key): value for key, value in reversed(other)}
        for part in parts:
            for key, value in ((_plain(key), value) for key, value in part):
                if subject in key and base.get(key) and value:
                    yield 100 * (value / base[key] - 1)


def _plain(key: str) -> str:
    """A field's name, the same for a candidate's and a fleet's that was planned again."""
    names = {
        "best.": "",
        "stay.": "",
        "cost.": "",
        "summary.percentiles.ttft.p99.value": "ttft_p99_s",
        "summary.percentiles.tpot.p99.value": "tpot_p99_s",
    }
    for name, short in names.items():
        key = key.replace(name, short)
    return key


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(node, bool):
        return
    if isinstance(node, int | float):
        yield path, float(node)
    elif isinstance(node, Mapping):
        for key, child in node.items():
            yield from _leaves(child, f"{path}.{key}" if path else key)
    elif isinstance(node, Sequence) and not isinstance(node, str):
        yield ".".join((path, "length")), float(len(node))
        for child in node:
            yield from _leaves(child, path)


def _resolve(document: Mapping[str, Any], pointer: str) -> Any:
    node: Any = document
    for key in pointer.split("/")[1:]:
        node = node[int(key)] if isinstance(node, list) else node[key]
    return node


def _without_names(text: str, document: Mapping[str, Any]) -> str:
    """The text without names that hold digits."""
    names = [*document["models"], *document["gpus"], *(name.rsplit("/", 1)[-1] for name in document["models"])]
    names += [hosted["price"]["provider"] for hosted in (document["what_if"] or {}).get("hosted", ())]
    for name in (*sorted(names, key=len, reverse=True), *NOT_FIGURES):
        text = text.replace(name, " ")
    text = re.sub(r"\bp[\d.]+\b", " ", text)  # of a percentile
    return re.sub(r"\b(?:bf16|fp8_block|fp8|int8|int4|nvfp4|mxfp4|q8_0|q4_0|q4_k_m)\b", " ", text)
