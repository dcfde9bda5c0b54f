"""How the closed loop is judged; what it measures needs an engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.calibrate.sweeps import deployed, disturbed, sweep

from benchmarks import closed_loop
from benchmarks.closed_loop import CALIBRATED, HELD_OUT, Point, errors, spread_pct
from servewise.calibrate.statistics import metrics_of
from servewise.types import UNCORRECTED, PointMetrics

METRICS = PointMetrics(ttft_s=0.1, tpot_s=0.01, e2e_s=1.0, throughput_tokens_per_s=100.0)


def test_what_is_predicted_is_at_least_twice_what_was_measured() -> None:
    assert min(p.concurrency for p in HELD_OUT) >= 2 * max(p.concurrency for p in CALIBRATED)
    assert max(p.concurrency for p in HELD_OUT) >= 8 * min(p.concurrency for p in CALIBRATED)
    assert {(p.inputs, p.outputs) for p in HELD_OUT} - {(p.inputs, p.outputs) for p in CALIBRATED}


def test_errors_are_medians_of_absolute_percentages() -> None:
    said = [replace(METRICS, tpot_s=tpot_s) for tpot_s in (0.009, 0.012, 0.0105)]
    assert errors([METRICS] * 3, said, "tpot_s") == pytest.approx(10.0)
    assert errors([METRICS] * 3, said, "ttft_s") == 0.0


def test_the_spread_is_that_of_repeats() -> None:
    run = sweep(deployed(), UNCORRECTED, concurrencies=(4,), num=40, drift=0.0, jitter=0.0)[0]
    slower = replace(run, log=disturbed(run.log, 0, drift=0.2, jitter=0.0))
    point = Point(concurrency=4, inputs=(1, 2), outputs=(1, 2), num_requests=40)
    assert spread_pct({point: [run, run]}) == 0.0
    times = [metrics_of(one, one.log).tpot_s for one in (run, slower)]
    expected = 100 * abs(times[0] - times[1]) / (sum(times) / 2)
    assert spread_pct({point: [run, slower]}) == pytest.approx(expected)


def test_the_server_runs_with_the_settings_that_are_predicted() -> None:
    options, settings = closed_loop.settings_of("vllm")
    given = dict(zip(options[::2], options[1::2], strict=False))
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
        assert given[f"--{name.replace('_', '-')}"] == settings[name]
    options, settings = closed_loop.settings_of("llamacpp")
    assert f"n_parallel={settings['parallel']}" in options
    assert f"n_ctx={settings['ctx_size']}" in options
