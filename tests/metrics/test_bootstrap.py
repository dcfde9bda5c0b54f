"""The moving-block bootstrap: exact mechanics, and coverage where requests are correlated."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.logs import make_log
from servewise.metrics import resample as resample_module
from servewise.metrics import summarize
from servewise.metrics.bootstrap import (
    SortedSample,
    block_counts,
    block_length,
    interval,
    percentile_interval,
)
from servewise.types import Promise


@given(num=st.integers(1, 300), length=st.integers(1, 300), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_resamples_draw_blocks_and_keep_the_size(num: int, length: int, seed: int) -> None:
    length = min(num, length)
    for counts in block_counts(num, length, seed=seed, num_resamples=3):
        assert counts.shape == (num + 1,)
        assert counts[-1] == 0
        assert counts.sum() == num
        assert counts.min() >= 0


def test_resamples_are_blocks_of_neighbours() -> None:
    # One block of 10 and one cut to 2 out of 12: what is drawn once by the long one is a run of 10.
    for counts in block_counts(12, 10, seed=1, num_resamples=20):
        drawn = np.flatnonzero(counts)
        assert drawn[-1] - drawn[0] + 1 == len(drawn)
        assert 10 <= len(drawn) <= 12


def test_same_seed_same_resamples() -> None:
    first = np.stack(list(block_counts(50, 7, seed=4, num_resamples=5)))
    again = np.stack(list(block_counts(50, 7, seed=4, num_resamples=5)))
    other = np.stack(list(block_counts(50, 7, seed=5, num_resamples=5)))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@given(
    values=st.lists(st.floats(0, 9) | st.just(math.nan), min_size=1, max_size=300),
    seed=st.integers(0, 1000),
    length=st.integers(1, 20),
)
@settings(max_examples=150, deadline=None)
def test_percentiles_of_a_resample_are_numpys(values: list[float], seed: int, length: int) -> None:
    array = np.array(values)
    qs = np.array([0.0, 50.0, 90.0, 99.9, 100.0])
    sample = SortedSample(array)
    for counts in block_counts(len(array), min(length, len(array)), seed=seed, num_resamples=3):
        drawn = np.repeat(array, counts[:-1])
        drawn = drawn[np.isfinite(drawn)]
        found = sample.percentiles(counts, qs)
        if len(drawn):
            np.testing.assert_allclose(found, np.percentile(drawn, qs), atol=1e-12)
        else:
            assert np.isnan(found).all()


def ar1(rng: np.random.Generator, num: int, rho: float) -> np.ndarray:
    """Stationary, standard normal marginal, correlation ``rho`` between neighbours."""
    noise = rng.standard_normal(num) * math.sqrt(1 - rho**2)
    values = np.empty(num)
    state = rng.standard_normal()
    for i in range(num):
        state = rho * state + noise[i]
        values[i] = state
    return values


def test_block_length_grows_with_correlation_and_not_below_the_cube_root() -> None:
    rng = np.random.default_rng(0)
    num = 4_000
    independent = block_length([rng.standard_normal(num)])
    weak = block_length([ar1(rng, num, 0.5)])
    strong = block_length([ar1(rng, num, 0.98)])
    assert independent == math.ceil(num ** (1 / 3))
    assert independent <= weak < strong <= math.ceil(3 * math.sqrt(num))
    assert block_length([rng.standard_normal(num), ar1(rng, num, 0.98)]) > 2 * independent


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0], [3.0] * 100, [math.nan] * 50, [math.nan, 1.0] * 20])
def test_block_length_of_degenerate_series(values: list[float]) -> None:
    assert 1 <= block_length([np.array(values)]) <= max(1, len(values) // 3)


def test_blocks_cover_correlated_data_better_than_single_requests() -> None:
    # P90 of an AR(1) series with correlation 0.9 is 1.2816: how often do nominal 95% intervals hold it?
    rng = np.random.default_rng(20)
    truth, qs, num, trials = 1.2815515655446004, np.array([90.0]), 1_500, 120
    hits = {"block": 0, "single": 0}
    for trial in range(trials):
        values = ar1(rng, num, 0.9)
        sample = SortedSample(values)
        for name, length in (("block", block_length([values])), ("single", 1)):
            draws = block_counts(num, length, seed=trial, num_resamples=150)
            resampled = np.array([sample.percentiles(counts, qs)[0] for counts in draws])
            low, high = interval(float(np.percentile(values, 90)), resampled)
            hits[name] += low <= truth <= high
    assert hits["block"] / trials >= 0.85
    assert hits["single"] / trials <= 0.60


def test_independent_data_are_covered_as_promised() -> None:
    rng = np.random.default_rng(3)
    truth, qs, trials, hits = math.log(2.0), np.array([50.0]), 150, 0
    for trial in range(trials):
        values = rng.exponential(size=800)
        sample = SortedSample(values)
        draws = block_counts(800, block_length([values]), seed=trial, num_resamples=150)
        resampled = np.array([sample.percentiles(counts, qs)[0] for counts in draws])
        low, high = interval(float(np.median(values)), resampled)
        hits += low <= truth <= high
    assert 0.88 <= hits / trials <= 0.99


def test_ends_that_the_sample_cannot_bound_are_open() -> None:
    resampled = np.array([1.0, 2.0])
    assert percentile_interval(1.5, 99.0, 367, resampled)[1] == math.inf
    assert percentile_interval(1.5, 99.0, 368, resampled)[1] < 2.0
    assert percentile_interval(1.5, 99.9, 3_687, resampled)[1] == math.inf
    assert percentile_interval(1.5, 99.9, 3_688, resampled)[1] < 2.0
    assert percentile_interval(1.5, 50.0, 5, resampled) == (0.0, math.inf)
    low, high = percentile_interval(1.5, 50.0, 6, resampled)
    assert 1.0 <= low < high <= 2.0


def test_a_constant_record_is_not_certain() -> None:
    num = 100
    times = np.arange(num, dtype=np.float64)
    log = make_log(times, times + 0.1, times + 0.1, np.ones(num, dtype=np.int64))
    kept = summarize(log, Promise(ttft_s=1.0)).attainment
    assert (kept.value, kept.high) == (1.0, 1.0)
    assert kept.low == pytest.approx(0.025**0.01)  # 0.964: the binomial bound at 100 of 100
    broken = summarize(log, Promise(ttft_s=0.01)).attainment
    assert (broken.low, broken.value) == (0.0, 0.0)
    assert broken.high == pytest.approx(1 - 0.025**0.01)


def test_summary_intervals_are_the_bootstrap_of_all_metrics_and_repeat() -> None:
    rng = np.random.default_rng(8)
    num = 4_000
    times = np.cumsum(rng.exponential(1.0, num))
    first = times + np.exp(ar1(rng, num, 0.9)) * 0.2
    output = rng.integers(1, 30, num)
    log = make_log(times, first, first + (output - 1) * 0.02, output)
    promise = Promise(ttft_s=0.5)
    summary = summarize(log, promise, seed=11)
    assert summary == summarize(log, promise, seed=11)
    assert summary != summarize(log, promise, seed=12)
    share = summary.attainment
    assert share.low < share.value < share.high
    alone = math.sqrt(share.value * (1 - share.value) / num) * 2 * 1.96
    assert share.high - share.low > 1.5 * alone  # correlated requests tell less than independent ones
    for metric in ("ttft", "e2e"):
        for estimate in summary.percentiles[metric].values():
            assert estimate.low < estimate.value < estimate.high < math.inf


def test_cells_give_the_intervals_that_single_requests_give(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    num = 20_000
    times = np.cumsum(rng.exponential(1.0, num))
    first = times + np.exp(ar1(rng, num, 0.9)) * 0.2
    output = rng.integers(1, 30, num)
    log = make_log(times, first, first + (output - 1) * np.exp(ar1(rng, num, 0.5)) * 0.02, output)
    promise = Promise(ttft_s=0.5)
    exact = summarize(log, promise)
    monkeypatch.setattr(resample_module, "ENTRY_LIMIT", 1000)
    binned = summarize(log, promise)
    assert binned.attainment.value == exact.attainment.value
    assert binned.attainment.low == pytest.approx(exact.attainment.low, abs=2e-3)
    for metric, by_name in exact.percentiles.items():
        for name, estimate in by_name.items():
            other = binned.percentiles[metric][name]
            assert other.value == estimate.value
            half_width = (estimate.high - estimate.low) / 2
            # Other blocks and other draws: the ends agree to a fraction of the interval.
            tolerance = (0.5 if name != "p99.9" else 1.0) * half_width
            assert other.low == pytest.approx(estimate.low, abs=tolerance)
            assert other.high == pytest.approx(estimate.high, abs=tolerance)
