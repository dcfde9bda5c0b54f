"""A promise as it is written on a command line."""

from __future__ import annotations

import math
from typing import Final

from servewise.config.schema import PERCENTILE_KEY
from servewise.errors import InputError, UnknownNameError
from servewise.types import Metric, PercentileLimit, Promise

__all__ = ["parse_promise"]

LIMITS: Final = ("ttft_s", "tpot_s", "e2e_s", "deadline_s")
EXAMPLE: Final = "ttft_s=1,tpot_s=0.05,attainment=0.99"
_METRICS: Final[dict[str, Metric]] = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2e", "itl": "itl"}


def parse_promise(text: str) -> Promise:
    """Read a promise such as ``ttft_s=1,tpot_s=0.05,attainment=0.99`` or ``ttft_p99_s=2``; keys as in a service file.

    Raises
    ------
    InputError
        When a key is unknown or repeated, or a value is out of range, or nothing is promised.
    """
    given: dict[str, float] = {}
    for part in text.split(","):
        key, equals, written = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise InputError(f"{part.strip()!r} is not KEY=VALUE; write a promise such as {EXAMPLE}")
        if key not in (*LIMITS, "attainment") and PERCENTILE_KEY.fullmatch(key) is None:
            raise UnknownNameError("limit", key, [*LIMITS, "attainment", "ttft_p99_s", "tpot_p99_s", "itl_p99_s"])
        if key in given:
            raise InputError(f"{key} is promised twice; write it once")
        given[key] = _positive(key, written)
    attainment = given.pop("attainment", None)
    if attainment is not None and not attainment < 1.0:
        raise InputError(f"attainment is {attainment:g}; write a share of requests below 1, e.g. 0.99")
    joint = [key for key in ("ttft_s", "tpot_s", "e2e_s") if key in given]
    if attainment is not None and not joint:
        raise InputError("a share of requests needs limits to meet; add ttft_s, tpot_s or e2e_s")
    return Promise(
        ttft_s=given.get("ttft_s"),
        tpot_s=given.get("tpot_s"),
        e2e_s=given.get("e2e_s"),
        attainment=0.99 if attainment is None else attainment,
        percentiles=tuple(_percentile(key, limit_s) for key, limit_s in given.items() if key not in LIMITS),
        deadline_s=given.get("deadline_s"),
    )


def _positive(key: str, written: str) -> float:
    try:
        value = float(written)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise InputError(f"{key} is {written!r}; it must be a positive number, e.g. {EXAMPLE}")
    return value


def _percentile(key: str, limit_s: float) -> PercentileLimit:
    match = PERCENTILE_KEY.fullmatch(key)
    if match is None or float(match[2]) == 0.0:
        raise InputError(f"{key} is not a percentile between 0 and 100 such as ttft_p99_s")
    return PercentileLimit(metric=_METRICS[match[1]], percentile=float(match[2]), limit_s=limit_s)
