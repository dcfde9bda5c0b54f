"""Fitting overheads: predictions are simulations, known overheads are found again, levels add up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from serving_table import placed_row

from benchmarks.serving_fit import (
    DIFFERENCE,
    GROUP_SPREAD,
    HELD,
    NAMES,
    PRIORS,
    SCALES,
    SIGNED,
    SMALLEST,
    TTFT_WEIGHT,
    Fit,
    Levels,
    Linear,
    Prepared,
    all_overheads,
    fit_rows,
    linearize,
    overheads_from,
    predict,
    prepare,
    solve,
    start,
)
from benchmarks.serving_rows import Placed
from benchmarks.serving_sources import requests_of
from servewise import perf
from servewise.perf.overheads import Overheads, cell_of, kernel_of
from servewise.sim import simulate_closed_loop

Array = NDArray[np.float64]

SERVERS = (
    {},
    {"tp_size": "2", "precision": "fp8", "model": "Qwen/Qwen3-32B"},
    {"engine": "trtllm", "engine_version": "1.0.0rc3", "precision": "fp8"},
    {"engine": "sglang", "engine_version": "0.5.1", "gpu_system": "h200_sxm", "isl": "1024"},
)
LOADS = ("1", "8", "48")


def rows() -> list[Placed]:
    """Four deployments at three loads."""
    return [
        placed_row(2 + len(LOADS) * i + j, **server, batch_size_field=load, concurrency_from_source=load)
        for i, server in enumerate(SERVERS)
        for j, load in enumerate(LOADS)
    ]


def measured_as(prepared: Prepared, times_ms: Array) -> Prepared:
    """The same rows with other measured times."""
    placed = tuple(
        replace(p, row=replace(p.row, ttft_ms=float(ttft), tpot_ms=float(tpot)))
        for p, (ttft, tpot) in zip(prepared.rows, times_ms, strict=True)
    )
    return replace(prepared, rows=placed)


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare(rows())


@pytest.fixture(scope="module")
def truth(prepared: Prepared) -> Fit:
    """Overheads drawn around the prior."""
    prior = start(prepared)
    draw = np.random.default_rng(5)
    return replace(prior, values=0.7 * prior.levels.spread() * draw.standard_normal(prior.values.shape))


@pytest.fixture(scope="module")
def synthetic(prepared: Prepared, truth: Fit) -> Prepared:
    """Rows measured as the truth predicts them, with an error of 1%."""
    times = predict(prepared, all_overheads(prepared, truth)).times_ms
    noise = np.random.default_rng(6).normal(0.0, 0.01, times.shape)
    return measured_as(prepared, times * np.exp(noise))


@pytest.fixture(scope="module")
def fitted(synthetic: Prepared) -> Fit:
    """Overheads fitted to the synthetic rows, whose deployments have nothing in common beyond their overheads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.serving_fit.GROUP_SPREAD", (1e-3, 1e-3))
        return fit_rows(synthetic, range(len(synthetic.rows)), num_steps=4)


@pytest.fixture(scope="module")
def linear(synthetic: Prepared, fitted: Fit) -> Linear:
    return linearize(synthetic, fitted, range(len(synthetic.rows)))


def errors(prepared: Prepared, fit: Fit) -> Array:
    return np.abs(predict(prepared, all_overheads(prepared, fit)).times_ms / np.exp(prepared.measured) - 1.0)


# --------------------------------------------------------------------------------------------------------- prediction


def test_a_prediction_is_the_simulated_client(prepared: Prepared, truth: Fit) -> None:
    known = all_overheads(prepared, truth)
    found = predict(prepared, known)
    for i in (1, 5, 8, 9):
        placed = prepared.rows[i]
        deployment = placed.deployment
        model = perf.step_model(deployment, known[cell_of(deployment), kernel_of(deployment)])
        outcome = simulate_closed_loop(
            requests_of(placed.client),
            deployment,
            model,
            perf.memory(deployment),
            concurrency=placed.client.concurrency,
        )
        arrival, out = outcome.packed.requests.arrival, outcome.outputs
        count = len(arrival)
        assert count == 1000
        ttft = 1e3 * sum(out.first[k] - arrival[k] for k in range(count)) / count
        tokens = placed.client.output_tokens
        tpot = 1e3 * sum((out.last[k] - out.first[k]) / (tokens - 1) for k in range(count)) / count
        assert found.times_ms[i] == pytest.approx([ttft, tpot], rel=1e-9)
        assert found.saturated[i] == (outcome.memory_bound or outcome.slots_bound)


def test_rows_are_predicted_alike_alone_and_together(prepared: Prepared, truth: Fit) -> None:
    known = all_overheads(prepared, truth)
    together = predict(prepared, known)
    some = predict(prepared, known, [7, 2])
    assert np.array_equal(some.times_ms, together.times_ms[[7, 2]])
    again = predict(prepared, known)
    assert np.array_equal(again.times_ms, together.times_ms)


def test_deployments_that_run_alike_share_a_formula(prepared: Prepared) -> None:
    assert prepared.formula_of.tolist() == [i // len(LOADS) for i in range(len(prepared.rows))]
    long = {"engine": "trtllm", "isl": "4096"}  # this client is given a token budget by its load
    budgets = prepare([placed_row(**long, batch_size_field=load, concurrency_from_source=load) for load in ("8", "16")])
    assert len(budgets.formulas) == 2


def changed(placed: Placed, **params: object) -> Placed:
    deployment = placed.deployment
    return replace(
        placed,
        deployment=replace(deployment, params=replace(deployment.vllm_params, **params)),  # type: ignore[arg-type]
    )


def test_deployments_that_schedule_differently_share_none() -> None:
    usual = placed_row()
    rows = [usual, changed(usual, async_scheduling=True), changed(usual, cudagraph_mode="FULL_DECODE_ONLY")]
    found = prepare(rows)
    assert len(found.formulas) == 3
    synchronous = overheads_from(np.zeros(len(NAMES)))
    asynchronous = replace(synchronous, step_ms=synchronous.step_ms + 10.0)
    known = {
        kind: asynchronous if kind[0][1] == "asynchronous" else synchronous
        for kind in zip(found.cells, found.kernels, strict=True)
    }
    times = predict(found, known).times_ms
    assert times[1, 1] > times[0, 1] + 9.0
    assert times[2, 0] > times[0, 0]  # prompts without graphs
    for i, row in enumerate(rows):
        assert np.array_equal(predict(prepare([row]), known).times_ms[0], times[i])


def test_saturation_is_noticed() -> None:
    """Contexts of 300 requests, 900,000 tokens on average, exceed the KV cache of one H100."""
    few = prepare([placed_row(batch_size_field=n, concurrency_from_source=n, osl="4096") for n in ("8", "300")])
    found = predict(few, all_overheads(few, start(few)))
    assert found.saturated.tolist() == [False, True]


def test_weights_of_residuals(prepared: Prepared) -> None:
    some = (
        replace(prepared.rows[0], excluded=frozenset({"ttft"})),
        replace(prepared.rows[1], excluded=frozenset({"ttft", "tpot"})),
        replace(prepared.rows[2], excluded=frozenset()),
    )
    weights = replace(prepared, rows=some).weights
    assert weights.tolist() == [[0.0, 1.0], [0.0, 0.0], [TTFT_WEIGHT, 1.0]]
    assert np.allclose(np.exp(prepared.measured[0]), (60.5, 8.25))


# ------------------------------------------------------------------------------------------------------------- levels

LEVELS = Levels(
    engines=("sglang", "vllm"),
    cells=(("sglang", "from 0", "hopper"), ("vllm", "asynchronous", "hopper")),
    styles=(("vllm", "asynchronous", "bf16", "dense"), ("vllm", "asynchronous", "fp8", "dense")),
    tables=(("hopper", "bf16", "dense"), ("hopper", "fp8", "dense")),
    kernels=(("vllm", "asynchronous", "hopper", "fp8", "dense"),),
    groups=("a",),
)


def rows_of(engine: str, how: str, architecture: str, precision: str, kind: str = "dense") -> list[int]:
    return LEVELS.rows_of((engine, how, architecture), (engine, how, architecture, precision, kind))


def test_levels_that_add_up() -> None:
    assert LEVELS.num_rows == 10
    # shared 0; engines 1, 2; cells 3, 4; styles 5, 6; tables 7, 8; kernel 9
    assert rows_of("vllm", "asynchronous", "hopper", "fp8") == [0, 2, 4, 6, 8, 9]
    assert rows_of("vllm", "asynchronous", "hopper", "bf16") == [0, 2, 4, 5, 7]
    assert rows_of("vllm", "asynchronous", "blackwell", "fp8") == [0, 2, 6]
    assert rows_of("vllm", "synchronous", "hopper", "fp8") == [0, 2, 8]
    assert rows_of("sglang", "from 0", "hopper", "bf16") == [0, 1, 3, 7]
    assert rows_of("llama.cpp", "from 0", "ada", "q4_0") == [0]


def test_what_was_not_measured_adds_nothing() -> None:
    values = np.zeros((LEVELS.num_rows, len(NAMES)))
    values[0], values[2], values[9] = 0.1, 0.2, 0.4
    fit = Fit(levels=LEVELS, values=values, covariance=np.zeros((0, 0)))

    def scale(*kernel: str) -> float:
        full = (*kernel, "dense")
        return fit.overheads(full[:3], full).weights_scale  # type: ignore[arg-type]

    assert scale("vllm", "asynchronous", "hopper", "fp8") == pytest.approx(np.exp(0.7))
    assert scale("vllm", "asynchronous", "hopper", "bf16") == pytest.approx(np.exp(0.3))
    assert scale("llama.cpp", "from 0", "ada", "q4_0") == pytest.approx(np.exp(0.1))


def test_only_scales_differ_by_table() -> None:
    spread = LEVELS.spread()
    assert spread.shape == (LEVELS.num_rows, len(NAMES))
    assert np.array_equal(spread[0], [PRIORS[name][1] for name in NAMES])
    assert np.array_equal(spread[1], spread[2])
    assert np.array_equal(spread[3], [PRIORS[name][3] for name in NAMES])
    for row in spread[5:]:
        assert {name for name, s in zip(NAMES, row, strict=True) if s > HELD} <= set(SCALES)


def test_overheads_from_logarithms() -> None:
    assert set(NAMES) == set(PRIORS)
    prior = overheads_from(np.zeros(len(NAMES)))
    assert all(getattr(prior, name) == PRIORS[name][0] for name in NAMES)
    low = overheads_from(np.full(len(NAMES), -2.0))
    for name in NAMES:
        ratio = getattr(low, name) / PRIORS[name][0]
        expected = np.exp(-2.0) if name in SCALES else -1.0 if name in SIGNED else SMALLEST
        assert ratio == pytest.approx(expected), name


# ---------------------------------------------------------------------------------------------------------------- fit


def test_known_overheads_are_predicted_again(synthetic: Prepared, fitted: Fit) -> None:
    """TPOT is met within 4% at the median and 8% at worst, TTFT within 6% at the median; the prior is twice as far off.

    Noise is 1%, but 24 figures are few for the overheads of four deployments, which stay near the prior. TTFT of
    single rows jumps: requests of one length come back in waves, and whether a wave still joins a step turns on
    microseconds.
    """
    left, before = errors(synthetic, fitted), errors(synthetic, start(synthetic))
    assert (np.median(left, axis=0) < (0.08, 0.04)).all()
    assert left[:, 1].max() < 0.08
    assert (np.median(before, axis=0) > 2 * np.median(left, axis=0)).all()


def test_a_fit_does_not_see_the_rows_that_it_was_not_given(prepared: Prepared) -> None:
    two = prepare(prepared.rows[:6])
    seen = range(3)
    other = np.exp(two.measured)
    other[3:] *= 3.0
    slow = measured_as(two, other)
    assert np.array_equal(fit_rows(two, seen, num_steps=1).values, fit_rows(slow, seen, num_steps=1).values)
    assert not np.allclose(
        fit_rows(two, range(3, 6), num_steps=1).values, fit_rows(slow, range(3, 6), num_steps=1).values
    )


def test_a_figure_that_a_rule_sets_aside_has_no_say(synthetic: Prepared, fitted: Fit, linear: Linear) -> None:
    everything = range(len(synthetic.rows))
    aside = replace(
        synthetic, rows=(replace(synthetic.rows[0], excluded=frozenset({"ttft", "tpot"})), *synthetic.rows[1:])
    )
    wrong = linear.residuals.copy()
    wrong[0] += 2.0
    first = solve(aside, fitted, linear, everything)
    second = solve(aside, fitted, replace(linear, residuals=wrong), everything)
    assert np.allclose(first.values, second.values, atol=1e-12)
    heard = solve(synthetic, fitted, replace(linear, residuals=wrong), everything)
    assert not np.allclose(heard.values, first.values, atol=1e-3)


def test_slopes_are_what_the_prediction_does(synthetic: Prepared, fitted: Fit, linear: Linear) -> None:
    assert linear.residuals.shape == (12, 2)
    assert linear.slopes.shape == (12, 2, len(NAMES))
    name = NAMES.index("step_ms")
    more = fitted.values.copy()
    more[0, name] += DIFFERENCE
    before = predict(synthetic, all_overheads(synthetic, fitted)).times_ms
    after = predict(synthetic, all_overheads(synthetic, replace(fitted, values=more))).times_ms
    assert np.log(after / before)[:, 1] == pytest.approx(DIFFERENCE * linear.slopes[:, 1, name], rel=1e-9)
    assert (linear.slopes[:, 1, name] > 0).all()
    # what happens outside the engine is no part of TPOT at one request at a time
    assert np.allclose(linear.slopes[0::3, 1, NAMES.index("request_ms")], 0.0, atol=1e-9)
    only = linearize(synthetic, fitted, [3])
    assert np.isnan(only.residuals[[0, 11]]).all()
    assert np.array_equal(only.residuals[3], linear.residuals[3])


def test_no_rows_leave_the_prior(synthetic: Prepared, fitted: Fit, linear: Linear) -> None:
    """However far the fit is that the problem was linearized at: it knows the rows."""
    far = replace(fitted, values=fitted.values + 2.0)
    alone = solve(synthetic, far, linear, [])
    assert np.allclose(alone.values, 0.0, atol=1e-9)
    spread = alone.levels.spread().ravel()
    assert np.allclose(np.sqrt(np.diag(alone.covariance)), spread, rtol=1e-6)


def test_runs_narrow_what_is_known(fitted: Fit) -> None:
    width = np.sqrt(np.diag(fitted.covariance)).reshape(fitted.values.shape)
    shared = dict(zip(NAMES, width[0] / fitted.levels.spread()[0], strict=True))
    assert shared["step_ms"] < 0.95
    # the experts' overhead has no run: it stays as it was assumed
    assert shared["expert_layer_us"] == pytest.approx(1.0, abs=1e-6)
    assert np.linalg.eigvalsh(fitted.covariance).min() > 0.0


def test_a_deployment_far_off_does_not_drag_the_others(synthetic: Prepared) -> None:
    """One deployment three times as slow: its own terms take most of it, the engine's other runs little."""
    times = np.exp(synthetic.measured)
    times[3:6] *= 3.0
    slow = measured_as(synthetic, times)
    found = fit_rows(slow, range(12), num_steps=3)
    shifted = errors(synthetic, found)
    assert np.median(shifted[[0, 1, 2, *range(6, 12)]]) < 0.08
    assert GROUP_SPREAD[0] > GROUP_SPREAD[1] > 0


def test_overheads_by_kind(synthetic: Prepared, fitted: Fit) -> None:
    known = all_overheads(synthetic, fitted)
    assert set(known) == set(zip(synthetic.cells, synthetic.kernels, strict=True))
    kind = synthetic.cells[0], synthetic.kernels[0]
    assert known[kind] == fitted.overheads(*kind)
    assert isinstance(known[kind], Overheads)
    shift = np.zeros(len(NAMES))
    shift[NAMES.index("compute_scale")] = 0.1
    moved = all_overheads(synthetic, fitted, shift)[kind]
    assert moved.compute_scale == pytest.approx(known[kind].compute_scale * np.exp(0.1))
    assert moved.step_ms == known[kind].step_ms
