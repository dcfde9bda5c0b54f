"""A measurement, or several, as text for a terminal: first whether the numbers can be trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from servewise.report import words
from servewise.report.blocks import facts, heading, line
from servewise.types import Edge, Endpoint, Estimate, Measurement, Promise, Summary, Sweep, SweepPoint, Trust
from servewise.units import format_duration

__all__ = ["measurement_terminal", "sweep_document", "sweep_terminal"]

SWEEP_RESULT_SCHEMA = "servewise.sweep-result/1"
METRICS = ("ttft", "tpot", "itl", "e2e")
PERCENTILES = ("p50", "p90", "p95", "p99")


def measurement_terminal(measurement: Measurement, summary: Summary | None, promise: Promise | None) -> RenderableType:
    """Lay out a measurement: the verdict on its numbers, what was measured, latencies, rates, and the caveats."""
    parts: list[RenderableType] = [*_verdict(measurement.trust)]
    parts.append(facts([("server", _server_words(measurement.endpoint)), ("load", measurement.load_words)]))
    if summary is not None:
        parts += [_latencies(summary), facts(_rates(measurement, summary, promise))]
    server = _server_facts(measurement.trust.facts)
    if server:
        parts += [heading("The server's own metrics"), facts(server)]
    parts += _notes(measurement.trust.notes)
    return Group(*parts)


def _verdict(trust: Trust) -> list[RenderableType]:
    if trust.trustworthy:
        return [line("The numbers can be trusted.", "bold")]
    reasons = [Padding(line(f"- {reason}"), (0, 0, 0, 2)) for reason in trust.reasons]
    return [line("NOT TRUSTWORTHY: these are not the server's numbers", "bold"), *reasons]


def _server_words(endpoint: Endpoint) -> str:
    version = f" {endpoint.engine_version}" if endpoint.engine_version else ""
    engine = "an unknown engine" if endpoint.engine == "unknown" else f"{endpoint.engine}{version}"
    streams = "" if endpoint.stream else ", answers in one piece"
    sampling = "" if endpoint.temperature is None else f", temperature {endpoint.temperature:g}"
    return f"{endpoint.model} at {endpoint.base_url} ({engine}, {endpoint.api}{streams}{sampling})"


def _latencies(summary: Summary) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.add_column("")
    for name in ("mean", *PERCENTILES):
        table.add_column(name, justify="right", no_wrap=True)
    for metric in METRICS:
        estimates = summary.percentiles.get(metric, {})
        if not estimates or not estimates["p50"].num_samples:
            table.add_row(metric.upper(), "-", *("-" for _ in PERCENTILES))
            continue
        cells = [_estimate_cell(estimates[name]) for name in PERCENTILES]
        table.add_row(metric.upper(), f"{format_duration(summary.means[metric])}\n", *cells)
    return Group(Text(), table)


def _estimate_cell(estimate: Estimate) -> str:
    """A value with its interval of 95% below."""
    if math.isnan(estimate.low):
        return f"{format_duration(estimate.value)}\n"
    # an end that the sample cannot bound
    high = "?" if math.isinf(estimate.high) else format_duration(estimate.high)
    return f"{format_duration(estimate.value)}\n[{format_duration(estimate.low)}, {high}]"


def _rates(measurement: Measurement, summary: Summary, promise: Promise | None) -> list[tuple[str, str]]:
    known = measurement.trust.facts
    not_counted = measurement.log.num_requests - summary.num_requests
    warm_up = f"; {not_counted:,} of the warm-up not counted" if not_counted else ""
    rows = [
        ("requests", f"{summary.num_ok:,} of {summary.num_requests:,} finished in {summary.duration_s:.1f} s{warm_up}")
    ]
    tokens = f"{_rate(summary.throughput_tokens_per_s)} output tokens/s, {_rate(summary.throughput_rps)} requests/s"
    if "steady_output_tokens_per_s" in known:
        tokens += f"; {_rate(known['steady_output_tokens_per_s'])} output tokens/s until the last was sent"
    rows.append(("throughput", tokens))
    if promise is not None:
        rows.append(("promise", words.promise_words(promise)))
        rows.append(("kept", "yes" if summary.promise_kept else f"no: {'; '.join(summary.broken)}"))
        if words.has_joint_limit(promise):
            good = f"{_rate(summary.goodput_tokens_per_s)} output tokens/s, {_rate(summary.goodput_rps)} requests/s"
            rows += [("kept by", words.attainment_words(summary.attainment)), ("goodput", good)]
    if summary.cached_tokens_frac is not None:
        rows.append(("prefix cache", f"{summary.cached_tokens_frac:.1%} of the prompt tokens"))
    rows.append(("client", _client_words(known)))
    return rows


def _client_words(known: Mapping[str, float]) -> str:
    """How the client kept up."""
    parts = []
    if "held_concurrency" in known:
        parts.append(f"held {known['held_concurrency']:.1f} of {known['requested_concurrency']:.0f} in flight")
    if "offered_rps" in known:
        parts.append(f"offered {known['offered_rps']:.2f} of {known['requested_rps']:.2f} requests/s")
    for name, meaning in (("client_lag_p99_s", "loop late"), ("send_lag_p99_s", "sends late")):
        if name in known:
            parts.append(f"{meaning} p99 {format_duration(known[name])}")
    if "kernel_stamped_frac" in known:
        parts.append(f"{known['kernel_stamped_frac']:.0%} stamped by the kernel")
    if "tokens_per_chunk" in known:
        parts.append(f"{known['tokens_per_chunk']:.2f} tokens per chunk")
    if "input_drift_mean_frac" in known:
        parts.append(f"prompts {known['input_drift_mean_frac']:+.1%} of their length")
    return ", ".join(parts) or "-"


def _server_facts(known: Mapping[str, float]) -> list[tuple[str, str]]:
    rows = []
    if "server_running_mean" in known:
        in_flight = f"{known['server_running_mean']:.1f} running, {known['server_in_flight_mean']:.1f} with the waiting"
        rows.append(("requests", f"{in_flight}, on average"))
    if "server_kv_used_max_frac" in known:
        rows.append(("KV cache", f"{known['server_kv_used_max_frac']:.1%} used at most"))
    if "server_preemptions" in known:
        rows.append(("preemptions", f"{known['server_preemptions']:,.0f}"))
    if "server_prefix_hit_frac" in known:
        rows.append(("prefix cache", f"{known['server_prefix_hit_frac']:.1%} of the tokens that were looked up"))
    if "server_output_tokens" in known:
        rows.append(("tokens", f"{known['server_output_tokens']:,.0f} generated"))
    return rows


def _notes(notes: tuple[str, ...]) -> list[RenderableType]:
    if not notes:
        return []
    return [heading("Know before you use them"), *(Padding(line(f"- {note}"), (0, 0, 0, 2)) for note in notes)]


def _rate(value: float) -> str:
    return f"{value:,.2f}" if math.isfinite(value) and value < 100 else f"{value:,.0f}" if value == value else "unknown"


def sweep_terminal(sweep: Sweep) -> RenderableType:
    """Lay out a sweep: the edge when one was searched, then every run."""
    parts: list[RenderableType] = []
    if sweep.edge is not None:
        parts.append(line(edge_words(sweep.edge, sweep.kind), "bold"))
    rows = [("server", _server_words(sweep.endpoint)), ("load", sweep.load_words)]
    if sweep.promise is not None:
        rows.append(("promise", words.promise_words(sweep.promise)))
    parts += [facts(rows), Text(), _runs(sweep)]
    untrusted = [point for point in sweep.points if not point.trust.trustworthy]
    if untrusted:
        parts.append(heading("Not trustworthy"))
        parts += [
            Padding(line(f"- at {point.load:g}: {'; '.join(point.trust.reasons)}"), (0, 0, 0, 2)) for point in untrusted
        ]
    return Group(*parts)


def edge_words(edge: Edge, kind: str) -> str:
    """Between which loads the edge lies, and how sure that is."""
    unit = "requests/s" if kind == "rate" else "requests in flight"
    if edge.low is None and edge.high is None:
        return f"Nothing is known of the highest load: {edge.stopped}"
    if edge.low is None:
        return f"No load keeps the promise: {edge.stopped}"
    low = f"{edge.low:.4g} (kept in {edge.low_kept[0]} of {edge.low_kept[1]} runs)"
    if edge.high is None:
        return f"The highest load that keeps the promise is at least {low} {unit}: {edge.stopped}"
    high = f"{edge.high:.4g} (kept in {edge.high_kept[0]} of {edge.high_kept[1]})"
    stopped = f"; {edge.stopped}" if edge.stopped else ""
    return f"The highest load that keeps the promise is between {low} and {high} {unit}{stopped}"


def _runs(sweep: Sweep) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.add_column("requests/s" if sweep.kind == "rate" else "in flight", justify="right")
    heads = ("requests", "output\ntokens/s", "TTFT\np50", "TTFT\np99", "TPOT\np50", "TPOT\np99", "E2E\np99")
    for name in (*heads, *(("kept by\n%", "promise") if sweep.promise is not None else ()), "trusted"):
        table.add_column(name, justify="right", no_wrap=True)
    for point in sweep.points:
        table.add_row(
            f"{point.load:.4g}", *_run_cells(point, sweep.promise), "yes" if point.trust.trustworthy else "no"
        )
    return table


def _run_cells(point: SweepPoint, promise: Promise | None) -> list[str]:
    summary = point.summary
    shown = (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("tpot", "p99"), ("e2e", "p99"))
    cells = ["-", "-"] if summary is None else [str(summary.num_requests), _rate(summary.throughput_tokens_per_s)]
    cells += [words.percentile_words(summary, metric, percentile) for metric, percentile in shown]
    if promise is not None:
        has_share = summary is not None and words.has_joint_limit(promise)
        cells.append(f"{100 * summary.attainment.value:.2f}" if summary is not None and has_share else "-")
        cells.append("kept" if point.kept else "broken")
    return cells


def sweep_document(sweep: Sweep) -> dict[str, Any]:
    """The same as a JSON document; times [s], null where a figure is not known."""
    edge = sweep.edge
    return {
        "schema": SWEEP_RESULT_SCHEMA,
        "name": sweep.name,
        "kind": sweep.kind,
        "load": sweep.load_words,
        "model": sweep.endpoint.model,
        "engine": sweep.endpoint.engine,
        "engine_version": sweep.endpoint.engine_version,
        "edge": None
        if edge is None
        else {
            "low": edge.low,
            "high": edge.high,
            "low_kept": list(edge.low_kept),
            "high_kept": list(edge.high_kept),
            "stopped": edge.stopped,
        },
        "points": [_point_document(point) for point in sweep.points],
    }


def _point_document(point: SweepPoint) -> dict[str, Any]:
    summary = point.summary
    figures: dict[str, Any] = {}
    if summary is not None:
        figures = {
            "num_requests": summary.num_requests,
            "attainment": summary.attainment.value,
            "throughput_tokens_per_s": _known(summary.throughput_tokens_per_s),
            "goodput_tokens_per_s": _known(summary.goodput_tokens_per_s),
            **{
                f"{metric}_{name}_s": _known(estimates[name].value)
                for metric, estimates in summary.percentiles.items()
                for name in ("p50", "p99")
            },
        }
    return {
        "load": point.load,
        "repeat": point.repeat,
        "folder": point.folder,
        "promise_kept": point.kept,
        "trustworthy": point.trust.trustworthy,
        "reasons": list(point.trust.reasons),
        **figures,
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
