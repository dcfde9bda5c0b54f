"""Logs small enough to work out on paper, and brute force for the rest."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.logs import make_log, make_segments
from servewise.errors import InputError
from servewise.metrics import attainment, count_good, e2e_s, summarize, tpot_s, ttft_s, ttft_sent_s
from servewise.types import PercentileLimit, Promise, RequestLog, RequestStatus

NAN = float("nan")
OK, REJECTED, FAILED, UNFINISHED = RequestStatus

# Five requests: two good, one slow to start, one slow to stream, one refused.
FIVE = make_log(
    intended=[0.0, 1.0, 2.0, 3.0, 4.0],
    sent=[0.0, 1.25, 2.0, 3.0, 4.0],
    first=[0.5, 1.5, 4.0, 3.5, NAN],
    last=[1.5, 1.5, 5.0, 8.0, NAN],
    output=[11, 1, 11, 10, 7],
    inputs=[100, 50, 30, 20, 10],
    cached=[64, 0, -1, 16, -1],
    preemptions=[0, 0, 2, 1, -1],
    status=[OK, OK, OK, OK, REJECTED],
)
PROMISE = Promise(ttft_s=0.5, tpot_s=0.1, attainment=0.5)


def test_columns_of_a_hand_worked_log() -> None:
    np.testing.assert_allclose(ttft_s(FIVE), [0.5, 0.5, 2.0, 0.5, NAN])
    np.testing.assert_allclose(ttft_sent_s(FIVE), [0.5, 0.25, 2.0, 0.5, NAN])
    np.testing.assert_allclose(tpot_s(FIVE), [0.1, NAN, 0.1, 0.5, NAN])
    np.testing.assert_allclose(e2e_s(FIVE), [1.5, 0.5, 3.0, 5.0, NAN])


def test_summary_of_a_hand_worked_log() -> None:
    summary = summarize(FIVE, PROMISE)
    assert (summary.num_requests, summary.num_ok, summary.num_good) == (5, 4, 2)
    assert summary.attainment.value == pytest.approx(2 / 5)
    assert summary.broken == ("attainment 0.400 < 0.5",)
    assert not summary.promise_kept
    assert summary.duration_s == pytest.approx(8.0)  # 0 to the last completion
    assert summary.drain_s == pytest.approx(4.0)  # 8 minus the last intended send, refused or not
    assert summary.throughput_tokens_per_s == pytest.approx((11 + 1 + 11 + 10) / 8)
    assert summary.goodput_tokens_per_s == pytest.approx((11 + 1) / 8)
    assert summary.throughput_rps == pytest.approx(4 / 8)
    assert summary.goodput_rps == pytest.approx(2 / 8)
    assert summary.total_tokens_per_s == pytest.approx((33 + 200) / 8)
    assert summary.total_goodput_tokens_per_s == pytest.approx((12 + 150) / 8)
    assert summary.cached_tokens_frac == pytest.approx(80 / 170)  # where it is known
    assert summary.num_preemptions == 3
    assert summary.percentiles["ttft"]["p50"].value == pytest.approx(0.5)
    assert summary.percentiles["ttft"]["p90"].value == pytest.approx(0.5 + 0.7 * 1.5)  # position 2.7 of 0..3
    assert summary.percentiles["tpot"]["p50"].num_samples == 3  # the one-token request has none
    assert summary.percentiles["e2e"]["p99.9"].value == pytest.approx(3.0 + 2.0 * (2.997 - 2))
    assert summary.means == pytest.approx({"ttft": 3.5 / 4, "tpot": 0.7 / 3, "e2e": 2.5})


def test_limits_are_inclusive() -> None:
    assert count_good(FIVE, Promise(ttft_s=2.0)) == 4
    assert count_good(FIVE, Promise(e2e_s=3.0)) == 3
    assert count_good(FIVE, Promise(tpot_s=0.5)) == 4
    assert count_good(FIVE, Promise(tpot_s=0.4)) == 3  # the one-token request skips it


def test_a_kept_promise_says_nothing_is_broken() -> None:
    summary = summarize(FIVE, dataclasses.replace(PROMISE, attainment=0.4))
    assert summary.promise_kept
    assert summary.broken == ()


def test_an_attainment_just_below_is_shown_as_below() -> None:
    num = 10_000
    times = np.arange(num, dtype=np.float64)
    first = times + 0.5
    first[:101] += 1.0
    log = make_log(times, first, first, np.ones(num, dtype=np.int64))
    assert summarize(log, Promise(ttft_s=1.0), with_intervals=False).broken == ("attainment 0.9899 < 0.99",)


@pytest.mark.parametrize(
    ("limit", "kept"),
    [
        (PercentileLimit(metric="ttft", percentile=50, limit_s=0.5), True),
        # Position 3 of 0..4; the refused one is at 4.
        (PercentileLimit(metric="ttft", percentile=75, limit_s=2.0), True),
        (PercentileLimit(metric="ttft", percentile=90, limit_s=1e9), False),  # towards the refused one
        (PercentileLimit(metric="tpot", percentile=50, limit_s=0.301), True),  # 0.1 0.1 0.5 inf: 0.3
        (PercentileLimit(metric="tpot", percentile=50, limit_s=0.299), False),
        (PercentileLimit(metric="e2e", percentile=25, limit_s=1.5), True),
        (PercentileLimit(metric="e2e", percentile=50, limit_s=2.9), False),
    ],
)
def test_marginal_limits_count_unfinished_requests_as_infinitely_slow(limit: PercentileLimit, kept: bool) -> None:
    summary = summarize(FIVE, Promise(percentiles=(limit,)), with_intervals=False)
    assert summary.promise_kept is kept
    assert len(summary.broken) == (0 if kept else 1)
    if not kept:
        assert summary.broken[0].startswith(f"{limit.metric} p{limit.percentile:g} ")


def test_marginal_limit_on_gaps() -> None:
    log = dataclasses.replace(FIVE, itl=make_segments([(0.010, 0.0, 99, 1), (0.5, 0.0, 1, 1)]))
    at = [PercentileLimit(metric="itl", percentile=50, limit_s=0.010)]
    assert summarize(log, Promise(percentiles=tuple(at))).promise_kept
    at = [PercentileLimit(metric="itl", percentile=99.9, limit_s=0.010)]
    assert summarize(log, Promise(percentiles=tuple(at))).broken == ("itl p99.9 451 ms > 10 ms",)
    with pytest.raises(InputError, match=r"limits itl p99\.9.*no gaps"):
        summarize(FIVE, Promise(percentiles=tuple(at)))


@pytest.mark.parametrize("q", [0.0, 100.0, 0.99 * 200, NAN])
def test_percentiles_outside_the_open_range_are_refused(q: float) -> None:
    with pytest.raises(InputError, match=r"outside \(0, 100\)"):
        summarize(FIVE, Promise(percentiles=(PercentileLimit(metric="ttft", percentile=q, limit_s=1.0),)))


def test_offline_form_needs_every_request_in_time() -> None:
    summary = summarize(FIVE, Promise(deadline_s=7.9))
    assert summary.broken == ("duration 8.00 s > 7.90 s", "1 of 5 requests did not finish")
    whole = dataclasses.replace(FIVE, status=np.zeros(5, dtype=np.int8), last_token_s=np.arange(5) + 4.0)
    assert summarize(whole, Promise(deadline_s=8.0)).promise_kept
    assert not summarize(whole, Promise(deadline_s=7.99)).promise_kept


def test_without_a_limit_only_finishing_counts() -> None:
    summary = summarize(FIVE, Promise())
    assert summary.num_good == 4
    assert summary.broken == ("1 of 5 requests did not finish",)


def test_nothing_finished_is_nan_safe() -> None:
    log = make_log([0.0, 2.0, 3.0], [NAN] * 3, [NAN] * 3, [5, 5, 5], status=[FAILED, UNFINISHED, REJECTED])
    summary = summarize(log, PROMISE)
    assert summary.num_ok == summary.num_good == 0
    assert summary.attainment.value == 0.0
    assert summary.attainment.high == pytest.approx(1 - 0.025 ** (1 / 3))
    assert (summary.duration_s, summary.drain_s) == (3.0, 0.0)
    assert summary.goodput_tokens_per_s == summary.throughput_rps == 0.0
    for metric in ("ttft", "tpot", "e2e"):
        assert math.isnan(summary.means[metric])
        estimate = summary.percentiles[metric]["p99"]
        assert math.isnan(estimate.value)
        assert math.isnan(estimate.low)
        assert math.isnan(estimate.high)
        assert estimate.num_samples == 0
    assert summary.cached_tokens_frac is None
    assert summary.num_preemptions is None


def test_partial_tokens_of_a_failed_request_do_not_count() -> None:
    log = make_log([0.0, 0.0], [1.0, 1.0], [2.0, 9.0], [3, 3], status=[OK, FAILED])
    summary = summarize(log, Promise(e2e_s=100.0))
    assert summary.num_ok == 1
    assert summary.duration_s == 2.0
    assert summary.throughput_tokens_per_s == 1.5


def test_an_empty_log_is_refused() -> None:
    empty = make_log([], [], [], [])
    with pytest.raises(InputError, match="empty"):
        summarize(empty, PROMISE)
    with pytest.raises(InputError, match="empty"):
        attainment(empty, PROMISE)


def test_intervals_can_be_left_out_and_values_stay() -> None:
    cheap, full = summarize(FIVE, PROMISE, with_intervals=False), summarize(FIVE, PROMISE)
    assert math.isnan(cheap.attainment.low)
    for metric, by_name in full.percentiles.items():
        for name, estimate in by_name.items():
            assert cheap.percentiles[metric][name].value == estimate.value
            assert math.isnan(cheap.percentiles[metric][name].high)
            assert estimate.low <= estimate.value <= estimate.high


finite = st.floats(0.0, 50.0, allow_subnormal=False)


@st.composite
def logs(draw: st.DrawFn) -> RequestLog:
    num = draw(st.integers(1, 30))

    def column(strategy: st.SearchStrategy) -> list:
        return draw(st.lists(strategy, min_size=num, max_size=num))

    intended = sorted(column(finite))
    status = column(st.sampled_from(list(RequestStatus)))
    output = column(st.integers(1, 5))
    first, last = [], []
    for sent, tokens, wait, span in zip(intended, output, column(finite), column(finite), strict=True):
        first.append(sent + wait)
        last.append(sent + wait + (span if tokens > 1 else 0.0))
    for i, outcome in enumerate(status):
        if outcome is not OK:
            first[i] = last[i] = NAN
    return make_log(intended, first, last, output, inputs=column(st.integers(1, 99)), status=status)


def brute_force_good(log: RequestLog, promise: Promise) -> list[bool]:
    """The definitions, one request at a time."""
    result = []
    for i in range(log.num_requests):
        is_good = log.status[i] == OK
        ttft = log.first_token_s[i] - log.intended_s[i]
        e2e = log.last_token_s[i] - log.intended_s[i]
        if promise.ttft_s is not None and not ttft <= promise.ttft_s:
            is_good = False
        if promise.e2e_s is not None and not e2e <= promise.e2e_s:
            is_good = False
        if promise.tpot_s is not None and log.output_tokens[i] > 1:
            tpot = (log.last_token_s[i] - log.first_token_s[i]) / (log.output_tokens[i] - 1)
            if not tpot <= promise.tpot_s:
                is_good = False
        result.append(bool(is_good))
    return result


maybe = st.none() | finite
promises = st.builds(Promise, ttft_s=maybe, tpot_s=maybe, e2e_s=maybe, attainment=st.floats(0.01, 0.99))


@given(log=logs(), promise=promises)
@settings(max_examples=150, deadline=None)
def test_summary_is_what_brute_force_finds(log: RequestLog, promise: Promise) -> None:
    is_good = brute_force_good(log, promise)
    summary = summarize(log, promise, with_intervals=False)
    assert summary.num_good == count_good(log, promise) == sum(is_good)
    assert summary.attainment.value == attainment(log, promise) == sum(is_good) / len(is_good)
    if any(limit is not None for limit in (promise.ttft_s, promise.tpot_s, promise.e2e_s)):
        assert summary.promise_kept == (sum(is_good) / len(is_good) >= promise.attainment)
    ok = [i for i in range(log.num_requests) if log.status[i] == OK]
    end = max([log.intended_s[-1], *(log.last_token_s[i] for i in ok)])
    assert summary.duration_s == end - log.intended_s[0]
    assert summary.drain_s >= 0.0
    tokens = sum(int(log.output_tokens[i]) for i in range(log.num_requests) if is_good[i])
    if summary.duration_s > 0:
        assert summary.goodput_tokens_per_s == pytest.approx(tokens / summary.duration_s)
        assert summary.goodput_tokens_per_s <= summary.throughput_tokens_per_s <= summary.total_tokens_per_s
    e2e = sorted(log.last_token_s[i] - log.intended_s[i] for i in ok)
    for name, q in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("p99.9", 99.9)):
        estimate = summary.percentiles["e2e"][name]
        assert estimate.num_samples == len(ok)
        if ok:
            position = (len(e2e) - 1) * q / 100
            below = int(position)
            above = min(below + 1, len(e2e) - 1)
            assert estimate.value == pytest.approx(e2e[below] + (e2e[above] - e2e[below]) * (position - below))


@given(log=logs(), q=st.floats(1, 99), limit_s=finite)
@settings(max_examples=100, deadline=None)
def test_marginal_limit_is_what_brute_force_finds(log: RequestLog, q: float, limit_s: float) -> None:
    ttft = sorted(
        log.first_token_s[i] - log.intended_s[i] if log.status[i] == OK else 1e300 for i in range(log.num_requests)
    )
    expected = float(np.percentile(ttft, q))
    promise = Promise(percentiles=(PercentileLimit(metric="ttft", percentile=q, limit_s=limit_s),))
    if abs(expected - limit_s) > 1e-9 and not 1e250 < expected < 1e290:
        # A weight below 1e-10 towards the stand-in for infinity would still be 1e290.
        assert summarize(log, promise, with_intervals=False).promise_kept == (expected <= limit_s)
