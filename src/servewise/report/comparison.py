"""A comparison of strategies as text for a terminal and as a JSON document."""

from __future__ import annotations

import math
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from servewise.report import words
from servewise.report.blocks import facts, heading, line
from servewise.types import Comparison, MemoryUse, StrategyResult, Summary
from servewise.units import format_bytes

__all__ = ["COMPARISON_SCHEMA", "comparison_json", "comparison_terminal"]

COMPARISON_SCHEMA = "servewise.comparison/1"


def comparison_terminal(comparison: Comparison) -> RenderableType:
    """Lay out a comparison: what was compared, speed, memory, and the caveats."""
    first = comparison.results[0].deployment
    precision = first.precision
    size = first.parallelism.tensor_parallel_size
    rows = [
        ("model", f"{first.model.name}, {precision.weights} weights, {precision.kv} KV cache"),
        ("replica", f"{size} x {first.gpu.name}{f' (TP{size})' if size > 1 else ''}"),
        ("traffic", comparison.traffic),
        ("longest request", f"{comparison.context_tokens:,} tokens"),
        ("promise", words.promise_words(comparison.promise)),
    ]
    able = [result for result in comparison.results if result.summary is not None]
    parts: list[RenderableType] = [line(f"{comparison.name}: strategies on one replica", "bold"), facts(rows)]
    if able:
        parts += [heading("Speed"), _speed(able, comparison), heading("KV cache"), _memory(able)]
    unable = [result for result in comparison.results if result.summary is None]
    if unable:
        parts.append(heading("Could not run"))
        parts += [Padding(line(f"- {result.name}: {result.reason}"), (0, 0, 0, 2)) for result in unable]
    if comparison.notes:
        parts.append(heading("Know before you trust it"))
        parts += [Padding(line(f"- {note}"), (0, 0, 0, 2)) for note in comparison.notes]
    return Group(*parts)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.add_column("strategy", overflow="fold", min_width=12)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _speed(results: list[StrategyResult], comparison: Comparison) -> RenderableType:
    latencies = ("TTFT\np50", "TTFT\np99", "TPOT\np50", "TPOT\np99")
    table = _table("output\ntokens/s", "goodput\ntokens/s", "kept by\n%", *latencies, "drain\ns")
    for result in results:
        summary = result.summary
        assert summary is not None  # noqa: S101 (filtered by the caller)
        table.add_row(
            line(result.name),
            f"{summary.throughput_tokens_per_s:,.0f}",
            f"{summary.goodput_tokens_per_s:,.0f}",
            f"{100 * summary.attainment.value:.1f}" if words.has_joint_limit(comparison.promise) else "-",
            *(words.percentile_words(summary, m, p) for m in ("ttft", "tpot") for p in ("p50", "p99")),
            f"{summary.drain_s:,.0f}",
        )
    return table


def _memory(results: list[StrategyResult]) -> RenderableType:
    table = _table(
        "KV\ntokens",
        "peak\nrunning",
        "unused of\nreserved",
        "unused/KV\nmean",
        "unused/KV\npeak",
        "prefix\ntokens saved",
        "prefix\nKV saved",
    )
    table.add_column("held\nback by", overflow="fold", min_width=8)
    for result in results:
        use = result.memory_use
        assert use is not None  # noqa: S101 (filtered by the caller)
        table.add_row(
            line(result.name),
            f"{use.capacity_tokens:,}",
            str(result.peak_running),
            _percent(use.unused_of_reserved_frac),
            _percent(use.mean_unused_frac),
            _percent(use.peak_unused_frac),
            "unknown" if use.prefix_tokens_saved is None else f"{use.prefix_tokens_saved:,}",
            "-" if use.prefix_bytes_saved is None else format_bytes(use.prefix_bytes_saved),
            line(", ".join(result.held_back_by) or "-"),
        )
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The same as a JSON document; times [s], null where a figure is not known."""
    first = comparison.results[0].deployment
    return {
        "schema": COMPARISON_SCHEMA,
        "name": comparison.name,
        "traffic": comparison.traffic,
        "model": first.model.name,
        "gpu": first.gpu.name,
        "tensor_parallel_size": first.parallelism.tensor_parallel_size,
        "precision": {"weights": first.precision.weights, "kv": first.precision.kv},
        "context_tokens": comparison.context_tokens,
        "strategies": [_strategy_json(result) for result in comparison.results],
        "notes": list(comparison.notes),
    }


def _strategy_json(result: StrategyResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "engine": result.deployment.engine,
        "engine_version": result.deployment.engine_version,
        "reason": result.reason,
        "peak_running": result.peak_running,
        "held_back_by": list(result.held_back_by),
        "summary": None if result.summary is None else _summary_json(result.summary),
        "memory_use": None if result.memory_use is None else _use_json(result.memory_use),
    }


def _summary_json(summary: Summary) -> dict[str, Any]:
    return {
        "num_requests": summary.num_requests,
        "num_ok": summary.num_ok,
        "num_good": summary.num_good,
        "attainment": summary.attainment.value,
        "promise_kept": summary.promise_kept,
        "duration_s": summary.duration_s,
        "drain_s": summary.drain_s,
        "throughput_tokens_per_s": _known(summary.throughput_tokens_per_s),
        "goodput_tokens_per_s": _known(summary.goodput_tokens_per_s),
        "num_preemptions": summary.num_preemptions,
        **{
            f"{metric}_{name}_s": _known(summary.percentiles[metric][name].value)
            for metric in ("ttft", "tpot")
            for name in ("p50", "p99")
        },
    }


def _use_json(use: MemoryUse) -> dict[str, Any]:
    return {
        "capacity_tokens": use.capacity_tokens,
        "span_s": use.span_s,
        "reserved_token_s": use.reserved_token_s,
        "used_token_s": use.used_token_s,
        "unused_of_reserved_frac": use.unused_of_reserved_frac,
        "mean_unused_frac": use.mean_unused_frac,
        "peak_unused_frac": use.peak_unused_frac,
        "peak_reserved_tokens": use.peak_reserved_tokens,
        "prefix_tokens_saved": use.prefix_tokens_saved,
        "prefix_bytes_saved": use.prefix_bytes_saved,
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
