"""Whether what a plan says agrees with its table.

    disagreeing_numbers(document, printed)

Two things are held against ``plan.json``: its figures against each other (cost, goodput, attainment, ranking), and the
numbers of the printed plan against its figures, as exactly as they are printed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["disagreeing_numbers"]

HOURS_A_MONTH = 730.0
SECONDS: Mapping[str, float] = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
NUMBER = r"([\d,]*\.?\d+)"
TIME = rf"{NUMBER} ?(ms|s|min|h)\b"


def disagreeing_numbers(document: Mapping[str, Any], printed: str) -> list[str]:
    """Numbers of a plan that do not agree, each in words.

    Parameters
    ----------
    document : mapping
        ``plan.json`` of a plan.
    printed : str
        What ``servewise plan`` prints of it, in lines that are not broken.
    """
    index = document["winner"]
    if index is None:
        return []
    by_index = {candidate["index"]: candidate for candidate in document["candidates"]}
    winner = by_index[index]
    return [
        *_ranking(document, by_index),
        *(fault for each in document["ranking"] for fault in _candidate(by_index[each])),
        *_printed(winner, printed),
        *_table(document, printed),
    ]


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


def _ranking(document: Mapping[str, Any], by_index: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    """The winner leads the ranking, all in it keep the promise, and the cheapest is first."""
    ranking = document["ranking"]
    if ranking[0] != document["winner"]:
        yield f"candidate {document['winner']} is the winner and {ranking[0]} leads the ranking"
    lost = [each for each in ranking if by_index[each]["status"] != "kept"]
    if lost:
        yield f"candidates {lost} are ranked and do not keep the promise"
    dollars = [by_index[each]["cost"]["usd_per_mtok_output_at_load"] for each in ranking]
    if dollars != sorted(dollars):
        yield f"the ranking's dollars per Mtok output at load do not ascend: {dollars}"


def _candidate(candidate: Mapping[str, Any]) -> Iterator[str]:
    """A candidate's dollars and shares follow from its rates and counts."""
    name, summary, cost = f"candidate {candidate['index']}", candidate["summary"], candidate["cost"]
    if not _near(cost["usd_per_month"], cost["usd_per_h"] * HOURS_A_MONTH):
        yield f"{name}: {cost['usd_per_month']} $ a month is not {HOURS_A_MONTH} h of {cost['usd_per_h']} $"
    if not _near(summary["attainment"]["value"], summary["num_good"] / summary["num_requests"]):
        yield f"{name}: attainment {summary['attainment']['value']} is not {summary['num_good']} of its requests"
    dollars = cost["usd_per_h"] / 3600.0 * 1e6
    for rate, price in (
        ("goodput_tokens_per_s", "usd_per_mtok_output_at_load"),
        ("total_goodput_tokens_per_s", "usd_per_mtok_total_at_load"),
    ):
        if summary[rate] and cost[price] is not None and not _near(cost[price], dollars / summary[rate]):
            yield f"{name}: {price} {cost[price]} is not that of {summary[rate]} tokens/s"


def _shows(text: str, value: float | None, scale: float = 1.0) -> bool:
    """Whether a printed number is a value, as exactly as it is printed."""
    if value is None:
        return False
    digits = text.replace(",", "")
    decimals = len(digits.partition(".")[2])
    return abs(float(digits) - value / scale) <= 0.5000001 * 10.0**-decimals


def _printed(winner: Mapping[str, Any], printed: str) -> Iterator[str]:
    """The lines of cost, attainment and latency above the table."""
    cost, summary = winner["cost"], winner["summary"]
    found = re.search(rf"cost +\${NUMBER} per Mtok output at load", printed)
    yield from _compared("cost at load", found, (cost["usd_per_mtok_output_at_load"],))
    found = re.search(rf"\${NUMBER} at capacity", printed)
    yield from _compared("cost at capacity", found, (cost["usd_per_mtok_output_at_capacity"],), may_lack=True)
    found = re.search(rf"\${NUMBER} a month at this load always \(\${NUMBER}/h", printed)
    yield from _compared("cost a month", found, (cost["usd_per_month"], cost["usd_per_h"]))
    found = re.search(rf"kept by +{NUMBER}% of ([\d,]+) requests", printed)
    values = (100.0 * summary["attainment"]["value"], summary["num_requests"])
    yield from _compared("attainment", found, values, may_lack=True)
    line = re.search(r"^ *latency +(.*)$", printed, re.MULTILINE)
    shown = re.findall(rf"(TTFT|TPOT|E2E|ITL) (p[\d.]+) {TIME}", line[1]) if line else []
    if not shown:
        yield "no latency is printed"
    for metric, percentile, text, unit in shown:
        value = summary["percentiles"][metric.lower()][percentile]["value"]
        if not _shows(text, value, SECONDS[unit]):
            yield f"{metric} {percentile}: printed {text} {unit}, the table has {value} s"


def _compared(
    what: str, found: re.Match[str] | None, values: tuple[float | None, ...], *, may_lack: bool = False
) -> Iterator[str]:
    if found is None:
        if not may_lack:
            yield f"{what}: not printed"
        return
    for text, value in zip(found.groups(), values, strict=True):
        if not _shows(text, value):
            yield f"{what}: printed {text}, the table has {value}"


def _table(document: Mapping[str, Any], printed: str) -> Iterator[str]:
    """Rows of the printed ranking: each is a candidate with exactly these dollars, share and percentiles."""
    prices = rf"{NUMBER} +{NUMBER} +({NUMBER}|-)"
    rows = re.findall(rf"^ *(\d+) +\S.*? +{prices} +(?:{NUMBER} +)?{TIME} +{TIME} *$", printed, re.MULTILINE)
    if not rows:
        yield "no row of the ranking was read"
    kept = [each for each in document["candidates"] if each["index"] in set(document["ranking"])]
    for number, usd_per_h, at_load, at_capacity, _, share, ttft, ttft_unit, tpot, tpot_unit in rows:
        for candidate in kept:
            cost, summary = candidate["cost"], candidate["summary"]
            percentiles = summary["percentiles"]
            if (
                _shows(usd_per_h, cost["usd_per_h"])
                and _shows(at_load, cost["usd_per_mtok_output_at_load"])
                and (at_capacity == "-" or _shows(at_capacity, cost["usd_per_mtok_output_at_capacity"]))
                and (not share or _shows(share, 100.0 * summary["attainment"]["value"]))
                and _shows(ttft, percentiles["ttft"]["p99"]["value"], SECONDS[ttft_unit])
                and _shows(tpot, percentiles["tpot"]["p99"]["value"], SECONDS[tpot_unit])
            ):
                break
        else:
            yield f"row {number} of the printed ranking is no candidate's"
