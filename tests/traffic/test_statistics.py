"""Statistics, by hand and against independently computed ones."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from servewise.traffic import TrafficStatistics, describe, read_trace, statistics
from traffic.workloads import prefix_of, workload_of

FILES = {
    "azure2023_code": "AzureLLMInferenceTrace_code_2023.csv",
    "azure2023_conv": "AzureLLMInferenceTrace_conv_2023.csv",
    "mooncake_conversation_trace": "conversation_trace.jsonl",
    "mooncake_synthetic_trace": "synthetic_trace.jsonl",
}


@pytest.mark.shared
@pytest.mark.parametrize("trace", FILES)
def test_real_traces(shared_dir: Path, trace: str) -> None:
    with (shared_dir / "data" / "trace_stats.csv").open() as file:
        row = next(row for row in csv.DictReader(file) if row["trace"] == trace)
    expected = {name: float(value) for name, value in row.items() if name != "trace" and value}
    stats = statistics(read_trace(shared_dir / "data" / "traces" / FILES[trace]))
    assert stats.num_requests == expected["requests"]
    assert stats.duration_s == pytest.approx(expected["duration_s"], abs=0.06)
    assert stats.mean_rate_rps == pytest.approx(expected["mean_rps"], abs=1e-4)
    assert stats.cv_interarrival == pytest.approx(expected["cv_interarrival"], abs=1e-3)
    assert stats.zero_gap_frac == pytest.approx(expected["frac_zero_gap"], abs=1e-3)
    # The file's index of Mooncake divides by one window less.
    assert stats.dispersion_60s == pytest.approx(expected["idc_60s"], rel=0.02)
    assert stats.peak_to_mean == pytest.approx(expected["peak_to_mean_60s"], abs=5e-3)
    for ours, theirs in ((stats.input, "in"), (stats.output, "out")):
        assert ours.mean == pytest.approx(expected[f"{theirs}_mean"], abs=0.06)
        assert ours.p50 == expected[f"{theirs}_p50"]
        assert ours.p90 == pytest.approx(expected[f"{theirs}_p90"])
        assert ours.p99 == pytest.approx(expected[f"{theirs}_p99"])
        assert ours.max == expected[f"{theirs}_max"]
    if "prefix_token_hit_rate_inf_cache" in expected:
        # The file also counts a last block that is not full, which no engine caches.
        assert stats.prefix_hit_frac == pytest.approx(expected["prefix_token_hit_rate_inf_cache"], abs=1e-3)
        assert stats.block_size_tokens == expected["block_tokens"]
    else:
        assert stats.prefix_hit_frac is None


def test_by_hand() -> None:
    """Two full windows of 3 and 1 requests, and a partial one."""
    workload = workload_of([0, 10, 59, 60, 120, 121], input_tokens=[1, 2, 3, 4, 5, 6], output_tokens=[6, 5, 4, 3, 2, 1])
    stats = statistics(workload)
    assert stats.mean_rate_rps == pytest.approx(6 / 121)
    assert stats.peak_rate_rps == pytest.approx(3 / 60)
    assert stats.peak_to_mean == pytest.approx(1.5)
    assert stats.dispersion_60s == pytest.approx(1 / 2)
    assert stats.length_correlation == pytest.approx(-1)
    assert stats.output_frac == pytest.approx(0.5)
    assert (stats.input.mean, stats.input.p50, stats.input.max) == (3.5, 3.5, 6)


def test_unknown_is_not_zero() -> None:
    stats = statistics(workload_of([5.0]))
    for name in (
        *("mean_rate_rps", "peak_rate_rps", "peak_to_mean", "dispersion_60s", "cv_interarrival"),
        *("zero_gap_frac", "length_correlation", "prefix_hit_frac", "prefix_hit_frac_by_cache"),
        *("num_sessions", "block_size_tokens"),
    ):
        assert getattr(stats, name) is None, name
    rows = dict(describe(stats))
    assert rows["shared prefixes"] == "unknown"
    assert rows["mean rate"] == "unknown"
    assert rows["conversations"] == "unknown"


def test_known_and_nothing_shared_is_zero() -> None:
    stats = statistics(workload_of([0, 1], prefix=prefix_of([[1], [2]])), cache_tokens=[1000])
    assert stats.prefix_hit_frac == 0
    assert stats.prefix_hit_frac_by_cache == ((1000, 0.0),)


def test_describe_names_every_statistic() -> None:
    workload = workload_of([0, 0, 0, 70], [64, 64, 64, 32], [1, 2, 3, 4], prefix_of([[1, 2]] * 4), session=[0, 0, 1, 2])
    stats: TrafficStatistics = statistics(workload, cache_tokens=[16, 2_560_000])
    rows = dict(describe(stats))
    assert rows["requests"] == "4"
    assert rows["conversations"] == "3 (1.33 requests each)"
    assert rows["prefix hits, unbounded cache"] == "42.9% of input tokens"
    assert rows["prefix hits, 2.56M-token LRU cache"] == "42.9% of input tokens"
    assert "67% of gaps are 0 s" in rows["CV of inter-arrival times"]
    assert rows["max_tokens"].startswith("assumed")
