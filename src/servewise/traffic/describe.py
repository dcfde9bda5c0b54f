"""Statistics in words, for people."""

from __future__ import annotations

from servewise.traffic.statistics import LengthStatistics, TrafficStatistics
from servewise.units import format_duration

__all__ = ["describe"]

_BUCKETED_FRAC = 0.5


def describe(stats: TrafficStatistics) -> list[tuple[str, str]]:
    """Rows of (label, value) in the order in which they matter; what is unknown says ``unknown``."""
    rows = [
        ("requests", f"{stats.num_requests:,}"),
        ("duration", format_duration(stats.duration_s)),
        ("mean rate", _rate(stats.mean_rate_rps)),
        ("peak rate (60 s)", _rate(stats.peak_rate_rps, stats.peak_to_mean)),
        ("index of dispersion (60 s)", _number(stats.dispersion_60s, "1 is Poisson")),
        ("CV of inter-arrival times", _number(stats.cv_interarrival, _gap_note(stats))),
        ("input tokens", _lengths(stats.input)),
        ("output tokens", _lengths(stats.output)),
        ("output share of tokens", f"{stats.output_frac:.1%}"),
        ("input-output correlation", _number(stats.length_correlation)),
        ("max_tokens", f"{stats.max_tokens_kind}, median {stats.max_tokens_p50:,.0f}"),
        ("conversations", _sessions(stats)),
    ]
    if stats.prefix_hit_frac is None or stats.prefix_hit_frac_by_cache is None:
        return [*rows, ("shared prefixes", "unknown")]
    rows.append(("prefix hits, unbounded cache", f"{stats.prefix_hit_frac:.1%} of input tokens"))
    rows += [
        (f"prefix hits, {tokens / 1e6:g}M-token LRU cache", f"{frac:.1%} of input tokens")
        for tokens, frac in stats.prefix_hit_frac_by_cache
    ]
    return rows


def _rate(rate_rps: float | None, peak_to_mean: float | None = None) -> str:
    if rate_rps is None:
        return "unknown"
    return f"{rate_rps:.3g} requests/s" + ("" if peak_to_mean is None else f" ({peak_to_mean:.2f} x mean)")


def _number(value: float | None, note: str = "") -> str:
    if value is None:
        return "unknown"
    return f"{value:.2f}" + (f" ({note})" if note else "")


def _gap_note(stats: TrafficStatistics) -> str:
    if stats.zero_gap_frac is None or stats.zero_gap_frac < _BUCKETED_FRAC:
        return "1 is Poisson"
    return f"{stats.zero_gap_frac:.0%} of gaps are 0 s: bucketed time stamps"


def _lengths(tokens: LengthStatistics) -> str:
    return (
        f"mean {tokens.mean:,.1f}, P50 {tokens.p50:,.0f}, P90 {tokens.p90:,.0f}, "
        f"P99 {tokens.p99:,.0f}, max {tokens.max:,}"
    )


def _sessions(stats: TrafficStatistics) -> str:
    if stats.num_sessions is None:
        return "unknown"
    return f"{stats.num_sessions:,} ({stats.num_requests / stats.num_sessions:.2f} requests each)"
