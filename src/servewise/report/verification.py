"""A verification as text for a terminal and as a JSON document."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from servewise.report.blocks import facts, heading, line
from servewise.report.escape import finite
from servewise.types import Compared, Estimate, Interval, LimitCheck, Verification
from servewise.units import format_duration

__all__ = ["VERIFICATION_SCHEMA", "verification_json", "verification_terminal"]

VERIFICATION_SCHEMA = "servewise.verification/1"
VERDICTS: Mapping[str, str] = {
    "kept": "the promise is kept",
    "broken": "the promise is NOT kept",
    "too short to tell": "the run was too short to tell whether the promise is kept",
    "not trustworthy": "the measurement cannot be trusted, so it says nothing of the promise",
}


def verification_terminal(found: Verification) -> RenderableType:
    """Lay out a verification: whether it can be trusted, the promise, and what was predicted."""
    endpoint = found.endpoint
    engine = f"{endpoint.engine} {endpoint.engine_version}".strip()
    trust = found.trust
    rows = [
        ("measurement", "can be trusted" if trust.trustworthy else "cannot be trusted"),
        ("endpoint", f"{endpoint.base_url}, {endpoint.model} on {engine}"),
        ("load", found.load_words),
        ("requests", f"{found.summary.num_requests:,} count, {found.summary.num_ok:,} answered"),
    ]
    parts: list[RenderableType] = [line(f"{found.plan}: {VERDICTS[found.verdict]}", "bold"), facts(rows)]
    parts += _list("Why it cannot be trusted", trust.reasons)
    parts += [heading("Promise (95% interval of the run)"), _promise(found)]
    if found.more_requests is not None:
        parts.append(line(f"  about {found.more_requests:,} requests would tell"))
    if found.compared:
        parts += [heading("Predicted and measured"), _compared(found)]
    return Group(*parts, *_list("Know before you trust it", (*found.warnings, *trust.notes)))


def _list(title: str, texts: tuple[str, ...]) -> list[RenderableType]:
    return [heading(title), *(Padding(line(f"- {text}"), (0, 0, 0, 2)) for text in texts)] if texts else []


def _promise(found: Verification) -> RenderableType:
    table = _table("promised")
    for name in ("measured", "low", "high"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("is")
    for check in found.limits:
        cells = [_of_limit(check, value) for value in (check.measured.value, check.measured.low, check.measured.high)]
        table.add_row(line(check.limit), *cells, check.standing)
    return table


def _of_limit(check: LimitCheck, value: float) -> str:
    """A share where the limit is about one, else a time."""
    about_share = not math.isnan(check.wanted_frac) or check.limit.startswith("every")
    return _share(value) if about_share else _seconds(value)


def _compared(found: Verification) -> RenderableType:
    table = _table("figure")
    for name in ("predicted", "stated by the plan", "measured", "of the run"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("is")
    for row in found.compared:
        table.add_row(
            line(row.figure),
            _value(row, row.predicted),
            _ends(row, row.stated),
            _value(row, row.measured.value),
            _ends(row, row.measured),
            _inside(row),
        )
    return table


def _inside(row: Compared) -> str:
    if row.inside is not None:
        return "inside" if row.inside else "outside"
    return "-" if row.stated is None else "at its edge"


def _ends(row: Compared, ends: Interval | Estimate | None) -> str:
    if ends is None or math.isnan(ends.low):
        return "-"
    return f"{_value(row, ends.low)} to {_value(row, ends.high)}"


def _value(row: Compared, value: float) -> str:
    if row.unit == "share":
        return _share(value)
    return _seconds(value) if row.unit == "s" else f"{value:,.0f} /s"


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.2f}%"


def _seconds(value: float) -> str:
    return "open" if math.isinf(value) else format_duration(value)


def _table(first: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.add_column(first, overflow="fold", min_width=12)
    return table


def verification_json(found: Verification) -> dict[str, Any]:
    """The same as a JSON document; times [s], null where a figure is not known or unbounded."""
    return {"schema": VERIFICATION_SCHEMA, **finite(asdict(found))}
