"""Each formula against a hand-worked figure, its limits, and where it can be against an independent computation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servewise import formulas
from servewise.errors import OutOfRangeError
from servewise.metrics import attainment, good
from servewise.types import Promise, RequestLog


def test_paged_over_naive_of_published_waste() -> None:
    assert formulas.paged_over_naive(0.6, 0.04) == pytest.approx(2.4)
    assert formulas.paged_over_naive(0.8, 0.04) == pytest.approx(4.8)
    assert formulas.paged_over_naive(0.3, 0.3) == 1.0


def test_prefix_savings_keep_one_copy() -> None:
    assert formulas.prefix_savings_bytes(32, 256, 524_288) == 31 * 256 * 524_288
    assert formulas.prefix_savings_bytes(1, 256, 524_288) == 0


def test_latency_decomposition_is_an_identity() -> None:
    assert formulas.e2e_s(0.2, 0.02, 100) == pytest.approx(2.18)
    assert formulas.e2e_s(0.2, 0.02, 1) == 0.2
    assert formulas.decode_share(0.2, 0.02, 100) == pytest.approx(1.98 / 2.18)
    # 19 gaps are 88% of the whole when the first token takes 19 * 12 / 88 gaps
    assert formulas.decode_share(19 * 12 / 88, 1.0, 20) == pytest.approx(0.88)


def test_lognormal_tail_of_drawn_latencies() -> None:
    drawn = 0.05 * np.exp(0.77 * np.random.default_rng(7).standard_normal(400_000))
    assert formulas.lognormal_percentile(0.05, 0.77, 99) == pytest.approx(np.percentile(drawn, 99), rel=0.02)
    assert formulas.lognormal_percentile(0.05, 0.77, 50) == pytest.approx(0.05)
    assert formulas.lognormal_sigma(0.05, 0.3, 99) == pytest.approx(math.log(6) / 2.3263478740408408)


@given(st.floats(0.01, 10), st.floats(0.01, 3), st.floats(50.5, 99.99))
def test_sigma_inverts_the_percentile(p50_s: float, sigma: float, percentile: float) -> None:
    tail_s = formulas.lognormal_percentile(p50_s, sigma, percentile)
    assert formulas.lognormal_sigma(p50_s, tail_s, percentile) == pytest.approx(sigma, rel=1e-6)


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=50), st.floats(0.001, 10), st.floats(0, 10))
def test_a_looser_limit_never_lowers_goodput(latency_s: list[float], limit_s: float, more_s: float) -> None:
    num = len(latency_s)
    zero, whole = np.zeros(num), np.ones(num, dtype=np.int64)
    log = RequestLog(
        intended_s=zero,
        sent_s=zero,
        first_token_s=np.array(latency_s),
        last_token_s=np.array(latency_s),
        input_tokens=whole,
        output_tokens=whole,
        cached_tokens=whole * 0,
        num_preemptions=whole * 0,
        replica=whole * 0,
        status=np.zeros(num, dtype=np.int8),
    )
    tight, loose = Promise(e2e_s=limit_s), Promise(e2e_s=limit_s + more_s)
    assert not np.any(good(log, tight) & ~good(log, loose))
    shares = attainment(log, tight), attainment(log, loose)
    assert formulas.goodput_tokens_per_s(100, shares[0]) <= formulas.goodput_tokens_per_s(100, shares[1])


def bubble_of_a_schedule(num_stages: int, num_micro_batches: int) -> float:
    """The idle share counted on the grid of stages and time slots."""
    slots = num_stages + num_micro_batches - 1
    busy = sum(1 for stage in range(num_stages) for t in range(slots) if 0 <= t - stage < num_micro_batches)
    return 1 - busy / (num_stages * slots)


@given(st.integers(1, 16), st.integers(1, 100))
def test_bubble_is_what_the_schedule_leaves_idle(num_stages: int, num_micro_batches: int) -> None:
    expected = bubble_of_a_schedule(num_stages, num_micro_batches)
    assert formulas.pipeline_bubble(num_stages, num_micro_batches) == pytest.approx(expected)


@given(st.integers(1, 64), st.floats(0.001, 0.99))
def test_min_micro_batches_is_the_least(num_stages: int, share: float) -> None:
    found = formulas.min_micro_batches(num_stages, share)
    assert formulas.pipeline_bubble(num_stages, found) < share
    assert found == 1 or formulas.pipeline_bubble(num_stages, found - 1) >= share


def test_micro_batches_of_eight_stages() -> None:
    # 7 / (63 + 7) is 10% and not below it
    assert formulas.min_micro_batches(8, 0.1) == 64


def test_dollars_per_million_tokens() -> None:
    assert formulas.usd_per_mtok(1.5, 3000) == pytest.approx(0.1389, abs=5e-5)


def test_power_law() -> None:
    assert formulas.max_batch_of_power_law(0.1, 0.05, 0.7) == pytest.approx(2 ** (1 / 0.7))
    ratio = formulas.power_law_throughput(256, 0.05, 0.7) / formulas.power_law_throughput(2, 0.05, 0.7)
    assert ratio == pytest.approx(128**0.3)


@given(st.floats(0.01, 10), st.floats(0.01, 1), st.floats(0.1, 2))
def test_the_largest_batch_takes_just_the_limit(limit_s: float, latency_1_s: float, exponent: float) -> None:
    batch = formulas.max_batch_of_power_law(limit_s, latency_1_s, exponent)
    assert batch / formulas.power_law_throughput(batch, latency_1_s, exponent) == pytest.approx(limit_s)


def test_disaggregation_saving() -> None:
    assert formulas.disaggregation_saving(3.0, 0.8, 0.7, 3.0) == pytest.approx(0.22)
    assert formulas.disaggregation_saving(4.0, 4.0, 0.5, 3.0) < 0


def test_quantized_weights_with_scales() -> None:
    assert formulas.quantized_bytes(8e9, 16) == 16e9
    # AWQ and GPTQ: a 16-bit scale and a 4-bit zero point for 128 weights
    assert formulas.quantized_bytes(8e9, 4, 128, 20) == pytest.approx(8e9 * (4 + 20 / 128) / 8)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: formulas.paged_over_naive(1.0, 0.0), "naive_waste_frac"),
        (lambda: formulas.prefix_savings_bytes(0, 1, 1), "num_requests"),
        (lambda: formulas.e2e_s(1, 1, 0), "output_tokens"),
        (lambda: formulas.decode_share(0.0, 0.0, 5), "ttft_s"),
        (lambda: formulas.lognormal_percentile(0.05, 1.0, 100), "percentile"),
        (lambda: formulas.lognormal_sigma(0.05, 0.01, 99), "tail_s"),
        (lambda: formulas.min_micro_batches(8, 0.0), "max_bubble_frac"),
        (lambda: formulas.usd_per_mtok(1.0, 0.0), "tokens_per_s"),
        (lambda: formulas.usd_per_mtok(math.nan, 1.0), "usd_per_h"),
        (lambda: formulas.max_batch_of_power_law(0.1, 0.0, 0.7), "latency_1_s"),
        (lambda: formulas.quantized_bytes(1.0, 0.0), "bits"),
    ],
)
def test_values_outside_a_formulas_range_are_refused(call, name: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(OutOfRangeError, match=name):
        call()
