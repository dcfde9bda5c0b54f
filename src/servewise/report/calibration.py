"""A calibration as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from servewise.report.blocks import facts, heading, line
from servewise.types import Calibration, FittedParameter, PointFit, PointMetrics
from servewise.units import format_duration

__all__ = ["calibration_terminal"]

MEANING: Mapping[str, str] = {
    "products_scale": "times as long: all of a step but attention",
    "attention_scale": "times as long: attention",
    "request_scale": "times as long: the way to the engine and back",
    "step_s": "more a step",
    "row_s": "more a running request, in a step",
    "context_token_s": "more a token of their contexts",
    "prompt_token_s": "more a prompt token",
    "pair_s": "more a token that a prompt token attends to",
    "request_s": "more a request, outside the engine",
    "request_input_token_s": "more a token of its prompt, outside the engine",
}


def calibration_terminal(calibration: Calibration) -> RenderableType:
    """Lay out a calibration: what was fitted, how well it predicts what it did not see, and the caveats."""
    c, precision = calibration, calibration.precision
    known = c.measured_range
    rows = [
        ("engine", f"{c.engine} {c.engine_version}"),
        ("model", f"{c.model}, {precision.weights} weights, {precision.kv} KV cache"),
        ("device", f"{c.parallelism.num_gpus} x {c.gpu}"),
        ("runs", f"{len(c.points)}, {sum(point.num_requests for point in c.points):,} requests that count"),
        ("range", f"up to {known.max_running:,} requests at once, {known.max_context_tokens:,} tokens of context"),
        ("held out", _errors_words(c)),
    ]
    parts: list[RenderableType] = [line("Calibration", "bold"), facts(rows), heading("Parameters (90% interval)")]
    parts += [_parameters(c), heading("Load points: measured, and predicted from the other points"), _points(c)]
    notes = [*c.notes, *(f"{p.name} was kept at {_value(p.name, p.value)}: {p.kept}" for p in c.parameters if p.kept)]
    if notes:
        parts.append(heading("Know before you trust it"))
        parts += [Padding(line(f"- {note}"), (0, 0, 0, 2)) for note in notes]
    return Group(*parts)


def _errors_words(c: Calibration) -> str:
    """Errors of held-out points, beside those without calibration."""
    ttft = "-" if math.isinf(c.ttft_error_frac) else f"{c.ttft_error_frac:.1%}"
    found = f"TPOT within {c.tpot_error_frac:.1%}, TTFT within {ttft} (root mean square)"
    before = [point for point in c.points if point.uncalibrated is not None]
    if not before:
        return found
    errors = [
        math.sqrt(sum(math.log(_of(p.measured, name) / _of(p.uncalibrated, name)) ** 2 for p in before) / len(before))
        for name in ("tpot_s", "ttft_s")
    ]
    return f"{found}; without calibration {errors[0]:.1%} and {errors[1]:.1%}"


def _of(metrics: PointMetrics | None, name: str) -> float:
    return float(getattr(metrics, name))


def _parameters(c: Calibration) -> RenderableType:
    table = _table("parameter", "value", "low", "high")
    table.add_column("meaning", overflow="fold")
    for p in c.parameters:
        ends = (_value(p.name, p.interval.low), _value(p.name, p.interval.high))
        table.add_row(line(p.name), _value(p.name, p.value), *ends, line(_meaning(p)))
    return table


def _meaning(p: FittedParameter) -> str:
    return MEANING[p.name] + (" (not fitted)" if p.kept else "")


def _value(name: str, value: float) -> str:
    if not name.endswith("_s"):
        return f"{value:.3f}"
    if value >= 1e-4:
        return format_duration(value)
    return f"{value * 1e6:.2f} us" if value >= 1e-7 else f"{value * 1e9:.2f} ns"


def _points(c: Calibration) -> RenderableType:
    table = _table("load", "running", "TPOT", "predicted", "TTFT", "predicted", "tokens/s", "predicted")
    for point in c.points:
        table.add_row(line(point.load), f"{point.mean_running:.1f}", *_cells(point))
    return table


def _cells(point: PointFit) -> list[str]:
    seen, held = point.measured, point.held_out
    cells = []
    for name in ("tpot_s", "ttft_s"):
        cells += [format_duration(_of(seen, name)), f"{_of(held, name) / _of(seen, name) - 1:+.1%}"]
    rates = seen.throughput_tokens_per_s, held.throughput_tokens_per_s
    return [*cells, f"{rates[0]:,.0f}", f"{rates[1] / rates[0] - 1:+.1%}"]


def _table(first: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.add_column(first, overflow="fold", min_width=12)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table
