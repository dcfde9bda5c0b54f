"""Measured logs: what is unknown stays undefined, what is not counted stays out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.metrics.logs import make_log
from tests.store.measurements import measurement

from servewise.metrics import broken, counted_log, good, itl_percentiles, summarize, tpot_s, ttft_s, unjudged
from servewise.types import PercentileLimit, Promise

NAN = float("nan")


def test_unknown_output_tokens_leave_tpot_and_rates_undefined() -> None:
    log = make_log([0, 1], [0.5, 1.5], [1.0, 2.0], [3, -1])
    assert np.isnan(tpot_s(log)).tolist() == [False, True]
    found = summarize(log, Promise(e2e_s=2.0))
    assert math.isnan(found.throughput_tokens_per_s)
    assert math.isnan(found.goodput_tokens_per_s)
    assert math.isnan(found.total_tokens_per_s)
    assert found.throughput_rps == pytest.approx(1.0)
    assert found.percentiles["tpot"]["p50"].num_samples == 1
    assert found.promise_kept


def test_unknown_input_tokens_leave_only_the_totals_undefined() -> None:
    found = summarize(make_log([0], [0.5], [1.0], [4], inputs=[-1], cached=[3]), Promise())
    assert found.throughput_tokens_per_s == pytest.approx(4.0)
    assert math.isnan(found.total_tokens_per_s)
    assert found.cached_tokens_frac is None


def test_unknown_tokens_of_a_failed_request_do_not_matter() -> None:
    found = summarize(make_log([0, 1], [0.5, NAN], [1.0, NAN], [4, -1], status=[0, 2]), Promise())
    assert found.throughput_tokens_per_s == pytest.approx(4.0)


def test_an_answer_in_one_piece_has_no_ttft_and_is_judged_by_e2e_alone() -> None:
    log = make_log([0, 1], [NAN, NAN], [1.0, 2.0], [3, 3])
    assert np.isnan(ttft_s(log)).all()
    assert np.isnan(tpot_s(log)).all()
    assert broken(log, Promise(e2e_s=1.5)) == ()
    found = summarize(log, Promise(e2e_s=1.5))
    assert found.num_good == 2
    assert found.percentiles["ttft"]["p50"].num_samples == 0
    assert found.percentiles["e2e"]["p50"].value == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("promise", "words"),
    [
        (Promise(ttft_s=5.0), ("TTFT cannot be judged: 1 answers have no first token",)),
        (Promise(tpot_s=5.0), ("TPOT cannot be judged: unknown for 2 answers",)),
        (
            Promise(percentiles=(PercentileLimit(metric="ttft", percentile=50, limit_s=5),)),
            ("TTFT cannot be judged: 1 answers have no first token",),
        ),
        (Promise(e2e_s=5.0), ()),
    ],
)
def test_a_promise_on_what_was_not_seen_is_not_judged(promise: Promise, words: tuple[str, ...]) -> None:
    log = make_log([0, 1, 2], [NAN, 1.5, 2.5], [1.0, 2.0, 3.0], [3, -1, 3])
    assert unjudged(log, promise) == words
    assert broken(log, promise) == words
    assert summarize(log, promise).promise_kept == (not words)
    assert bool(good(log, promise)[2])


def test_requests_of_the_warm_up_are_kept_and_not_counted() -> None:
    made = measurement()
    log = counted_log(made)
    assert (made.log.num_requests, log.num_requests) == (3, 2)
    assert log.intended_s.tolist() == [1.0, 2.0]
    assert log.itl is not None
    # the gaps 0.2 and 0.1 of the second request: the first does not count, the third failed
    assert itl_percentiles(log.itl, [50.0])[0] == pytest.approx(0.15)
    assert log.itl.steps.sum() == 2
