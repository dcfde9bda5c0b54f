"""The fit finds parameters that are known, within the intervals that it states, and predicts what it did not see."""

from __future__ import annotations

import numpy as np
import pytest
from tests.calibrate.sweeps import DESCRIBED, deployed, sweep

from servewise.calibrate import calibrate
from servewise.types import PARAMETERS, Calibration, StepCorrection

SCALED = StepCorrection(
    products_scale=1.25, attention_scale=0.8, request_scale=0.5, step_s=1e-3, row_s=3e-5, prompt_token_s=5e-6
)
ABSOLUTE = StepCorrection(
    products_scale=0.0,
    attention_scale=0.0,
    request_scale=0.0,
    step_s=8e-3,
    row_s=4e-4,
    context_token_s=1e-6,
    prompt_token_s=6e-5,
    pair_s=1e-8,
    request_s=4e-3,
    request_input_token_s=2e-6,
)
SEEDS = (0, 1)


@pytest.fixture(scope="module")
def scaled() -> list[Calibration]:
    return [calibrate(sweep(deployed(), SCALED, seed=seed), deployed()) for seed in SEEDS]


@pytest.fixture(scope="module")
def absolute() -> list[Calibration]:
    return [calibrate(sweep(deployed(DESCRIBED), ABSOLUTE, seed=seed), deployed(DESCRIBED)) for seed in SEEDS]


def covered(found: list[Calibration], truth: StepCorrection) -> float:
    inside = [
        p.interval.low <= getattr(truth, p.name) <= p.interval.high
        for calibration in found
        for p in calibration.parameters
    ]
    return float(np.mean(inside))


def test_intervals_hold_the_truth_about_as_often_as_they_say(
    scaled: list[Calibration], absolute: list[Calibration]
) -> None:
    # 90% intervals of 2 sweeps with 6 and 7 parameters that depend on each other
    assert covered(scaled, SCALED) >= 0.7
    assert covered(absolute, ABSOLUTE) >= 0.7


def test_what_matters_most_is_found_closely(scaled: list[Calibration], absolute: list[Calibration]) -> None:
    for found in scaled:
        assert found.correction.products_scale == pytest.approx(SCALED.products_scale, rel=0.12)
        assert found.correction.request_scale == pytest.approx(SCALED.request_scale, rel=0.3)
    for found in absolute:
        assert found.correction.step_s == pytest.approx(ABSOLUTE.step_s, rel=0.1)
        assert found.correction.prompt_token_s == pytest.approx(ABSOLUTE.prompt_token_s, rel=0.4)


def test_points_held_out_are_predicted_better_than_without_calibration(scaled: list[Calibration]) -> None:
    for found in scaled:
        for name in ("tpot_s", "throughput_tokens_per_s"):
            held = [abs(np.log(getattr(p.measured, name) / getattr(p.held_out, name))) for p in found.points]
            before = [abs(np.log(getattr(p.measured, name) / getattr(p.uncalibrated, name))) for p in found.points]
            assert np.median(held) < 0.4 * np.median(before)
        assert found.tpot_error_frac < 0.1


def test_a_device_without_tables_is_predicted_from_the_other_points(absolute: list[Calibration]) -> None:
    for found in absolute:
        assert found.form == "absolute"
        assert all(point.uncalibrated is None for point in found.points)
        assert found.tpot_error_frac < 0.1
        assert found.ttft_error_frac < 0.25


def test_parameters_outside_the_form_stay_where_they_were(
    scaled: list[Calibration], absolute: list[Calibration]
) -> None:
    for found, form in ((scaled[0], SCALED), (absolute[0], ABSOLUTE)):
        fitted = {p.name for p in found.parameters}
        for name in set(PARAMETERS) - fitted:
            assert getattr(found.correction, name) == getattr(form, name)
            assert (found.draws[:, PARAMETERS.index(name)] == getattr(form, name)).all()


def test_what_the_runs_do_not_tell_is_kept_and_said() -> None:
    """With contexts of a few tokens attention takes no time, so nothing is said of its kernels."""
    runs = sweep(deployed(), StepCorrection(products_scale=1.2), inputs=(16, 32), outputs=(20, 40))
    found = calibrate(runs, deployed())
    attention = next(p for p in found.parameters if p.name == "attention_scale")
    assert "do not tell" in attention.kept
    assert attention.value == 1.0
    assert attention.interval.high - attention.interval.low > 0.5


def test_the_same_runs_give_the_same_calibration() -> None:
    runs = sweep(deployed(), SCALED, concurrencies=(1, 4, 16), num=40)
    first, second = (calibrate(runs, deployed()) for _ in range(2))
    assert first.correction == second.correction
    np.testing.assert_array_equal(first.draws, second.draws)
