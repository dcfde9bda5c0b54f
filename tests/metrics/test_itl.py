"""Pooled gaps against writing every gap out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.logs import make_log, make_segments
from servewise.errors import InputError
from servewise.metrics import itl, itl_percentiles, summarize
from servewise.types import ItlSegments, Promise

QS = [0.0, 10.0, 50.0, 90.0, 95.0, 99.0, 99.9, 100.0]


def written_out(segments: ItlSegments) -> np.ndarray:
    """Every gap of every request."""
    gaps: list[float] = []
    for first, increment, steps, weight in zip(
        segments.first_s, segments.increment_s, segments.steps, segments.weight, strict=True
    ):
        for j in range(steps):
            gaps += [first + j * increment] * weight
    return np.array(gaps)


def test_hand_worked() -> None:
    segments = make_segments([(1.0, 1.0, 3, 2), (10.0, 0.0, 4, 1)])  # 1 1 2 2 3 3 10 10 10 10
    np.testing.assert_allclose(itl_percentiles(segments, [0, 50, 100]), [1.0, 3.0, 10.0])
    np.testing.assert_allclose(itl_percentiles(segments, [60]), [3.0 + 0.4 * 7.0])
    assert itl.itl_mean_s(segments) == pytest.approx(5.2)
    assert itl.num_gaps(segments) == 10


rows = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.01, 0.02, 0.5]) | st.floats(0.0, 2.0, allow_subnormal=False),
        st.sampled_from([0.0, 1e-6, 0.01, -1e-5, 1e-19]),
        st.integers(0, 40),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=25,
)


@given(rows=rows, limit=st.sampled_from([0, 1, 7, 10_000]))
@settings(max_examples=200, deadline=None)
def test_both_ways_equal_numpy_on_the_gaps_written_out(rows: list[tuple[float, float, int, int]], limit: int) -> None:
    segments = make_segments(rows)
    gaps = written_out(segments)
    found = itl._percentiles(itl._ascending(segments), np.array(QS), limit)
    if len(gaps) == 0:
        assert np.isnan(found).all()
    else:
        np.testing.assert_allclose(found, np.percentile(gaps, QS), rtol=1e-12, atol=1e-15)


def test_selection_of_many_gaps_is_exact() -> None:
    rng = np.random.default_rng(5)
    num = 3_000
    segments = ItlSegments(
        first_s=np.round(rng.lognormal(-4, 0.7, num), 3),
        increment_s=rng.choice([0.0, 1e-6, 3e-5], num),
        steps=rng.integers(1, 60, num),
        weight=rng.integers(1, 4, num),
    )
    gaps = np.sort(written_out(segments))
    qs = np.array([1.0, 50.0, 90.0, 99.0, 99.9])
    found = itl._percentiles(itl._ascending(segments), qs, 500)
    np.testing.assert_allclose(found, np.percentile(gaps, qs), rtol=1e-12)
    rank_error = np.abs(np.searchsorted(gaps, found) / len(gaps) - qs / 100)
    ties = (np.searchsorted(gaps, found, side="right") - np.searchsorted(gaps, found)) / len(gaps)
    assert np.all(rank_error <= 1e-4 + ties)


def test_selection_survives_a_million_equal_gaps() -> None:
    segments = make_segments([(0.02, 0.0, 1000, 1)] * 1000 + [(0.5, 0.0, 1, 1)])
    found = itl._percentiles(itl._ascending(segments), np.array([50.0, 99.9, 100.0]), 10)
    np.testing.assert_allclose(found, [0.02, 0.02, 0.5])


@pytest.mark.parametrize("row", [(math.nan, 0.0, 1, 1), (0.1, math.inf, 2, 1), (0.1, 0.0, -1, 1), (0.1, 0.0, 1, -2)])
def test_a_bad_segment_is_named(row: tuple[float, float, int, int]) -> None:
    with pytest.raises(InputError, match="gap segment 1 is"):
        itl_percentiles(make_segments([(0.1, 0.0, 1, 1), row]), [50])


def test_no_gaps_is_nan_safe() -> None:
    log = make_log([0.0], [1.0], [1.0], [1], itl=make_segments([]))
    summary = summarize(log, Promise(ttft_s=2.0))
    estimate = summary.percentiles["itl"]["p50"]
    assert math.isnan(estimate.value)
    assert math.isnan(estimate.low)
    assert math.isnan(summary.means["itl"])
    assert estimate.num_samples == 0


def test_intervals_hold_the_value_and_narrow_with_more_gaps() -> None:
    rng = np.random.default_rng(2)
    widths = []
    for num in (500, 50_000):
        segments = ItlSegments(
            first_s=rng.lognormal(-4, 0.5, num),
            increment_s=np.zeros(num),
            steps=rng.integers(1, 10, num),
            weight=rng.integers(1, 30, num),
        )
        values = itl_percentiles(segments, [50.0, 90.0])
        ends = itl.itl_intervals(segments, [50.0, 90.0], values, seed=0)
        for value, (low, high) in zip(values, ends, strict=True):
            assert low <= value <= high
        widths.append(ends[0][1] - ends[0][0])
        truth = math.exp(-4)
        assert ends[0][0] < truth < ends[0][1]
    assert 4 < widths[0] / widths[1] < 25  # about sqrt(100)


def test_histogram_in_chunks_is_the_histogram_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    segments = make_segments(
        [
            (float(f), 1e-4, int(s), int(w))
            for f, s, w in zip(rng.random(200), rng.integers(1, 9, 200), rng.integers(1, 5, 200), strict=True)
        ]
    )
    runs = itl._ascending(segments)
    grid = np.append(np.linspace(0, 1, 50), 2.0)
    whole = itl._histogram(runs, grid)
    assert whole.sum() == itl.num_gaps(segments)
    gaps = written_out(segments)
    np.testing.assert_array_equal(whole.sum(axis=0), np.bincount(np.searchsorted(grid, gaps), minlength=len(grid)))
    monkeypatch.setattr(itl, "EXPAND_LIMIT", 7)
    np.testing.assert_array_equal(itl._histogram(runs, grid), whole)
