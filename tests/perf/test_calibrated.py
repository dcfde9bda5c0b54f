"""What a calibration does to step times, draws and errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.calibrate.made import made
from tests.calibrate.sweeps import deployed

from servewise import perf
from servewise.catalog import get_gpu, get_model
from servewise.engines import vllm
from servewise.perf import (
    calibrated_draws,
    calibrated_error,
    calibrated_step_model,
    calibration_of,
    corrected,
    outside_range,
    step_model,
)
from servewise.types import (
    PARAMETERS,
    UNCORRECTED,
    Deployment,
    Parallelism,
    Precision,
    Speculation,
    StepCorrection,
    StepModel,
    StepTable,
    chain_acceptance,
)

SIZES = st.floats(0.0, 1e-3)
CORRECTIONS = st.builds(
    StepCorrection,
    **{name: SIZES if name.endswith("_s") else st.floats(0.0, 5.0) for name in PARAMETERS},
)
OTHER = StepCorrection(products_scale=1.2, attention_scale=0.8, step_s=1e-3, row_s=2e-5, request_s=5e-3)


@pytest.fixture(scope="module")
def deployment() -> Deployment:
    return deployed()


@pytest.fixture(scope="module")
def table(deployment: Deployment) -> StepTable:
    return step_model(deployment).table


def decode_s(table: StepTable, rows: int, context: int) -> float:
    knot = int(np.searchsorted(table.context_knots, context / rows, side="right")) - 1
    attention = table.attention_base_s[rows, knot] + table.attention_slope_s[rows, knot] * context
    return float(table.decode_fixed_s[rows] + attention)


def mixed_s(table: StepTable, rows: int, context: int, tokens: int, pairs: float) -> float:
    knot = int(np.searchsorted(table.context_knots, context / rows, side="right")) - 1
    attention = table.attention_base_s[rows, knot] + table.attention_slope_s[rows, knot] * context
    beside = table.mixed_row_attention_fixed_s * rows + table.mixed_row_attention_s_per_token * context
    prompts = table.prefill_fixed_s + table.prefill_s_per_token * tokens + table.prefill_s_per_pair * pairs
    return float(table.mixed_tokens_s[rows + tokens] + max(attention, beside) + table.sample_s[rows + 1] + prompts)


def test_a_correction_that_changes_nothing_is_the_table_itself(table: StepTable) -> None:
    assert corrected(table, UNCORRECTED) is table


@settings(max_examples=30, deadline=None)
@given(by=CORRECTIONS)
def test_corrected_times_are_what_the_parameters_say(table: StepTable, by: StepCorrection) -> None:
    there, here = table, corrected(table, by)
    only_attention = replace(UNCORRECTED, products_scale=0.0, request_scale=0.0)
    attention = corrected(there, only_attention)
    rows, context, tokens, pairs = 8, 8 * 700, 300, 45_000.0
    a = by.products_scale * (decode_s(there, rows, context) - decode_s(attention, rows, context))
    a += by.attention_scale * decode_s(attention, rows, context)
    a += by.step_s + by.row_s * rows + by.context_token_s * context
    assert decode_s(here, rows, context) == pytest.approx(a, rel=1e-9, abs=1e-12)
    m = by.products_scale * (
        mixed_s(there, rows, context, tokens, pairs) - mixed_s(attention, rows, context, tokens, pairs)
    )
    m += by.attention_scale * mixed_s(attention, rows, context, tokens, pairs)
    m += by.step_s + by.row_s * (rows + 1) + by.context_token_s * context
    m += by.prompt_token_s * tokens + by.pair_s * pairs
    assert mixed_s(here, rows, context, tokens, pairs) == pytest.approx(m, rel=1e-9, abs=1e-12)
    assert here.request_fixed_s == pytest.approx(by.request_scale * there.request_fixed_s + by.request_s)


@settings(max_examples=30, deadline=None)
@given(by=CORRECTIONS)
def test_times_never_fall_when_work_is_added(table: StepTable, by: StepCorrection) -> None:
    here = corrected(table, by)
    for curve in (here.decode_fixed_s, here.mixed_tokens_s, here.sample_s):
        assert (np.diff(curve) >= -1e-12).all()
    assert (here.attention_slope_s >= 0.0).all()


@pytest.mark.parametrize("gpu", ["H100-SXM-80GB", "A100-SXM-80GB"])
def test_the_parts_of_a_corrected_step_sum_to_it(gpu: str) -> None:
    deployment = replace(deployed(), gpu=get_gpu(gpu))
    table = step_model(deployment).table
    # rows beside a prompt are not packed on the A100: the second side of the maximum is there
    assert (table.mixed_row_attention_s_per_token > 0.0) == (gpu == "A100-SXM-80GB")
    by = replace(OTHER, context_token_s=1e-6, prompt_token_s=2e-6, pair_s=1e-10)
    here = corrected(table, by)
    parts = perf.explain(deployment, 16, 16 * 500, correction=by)
    assert sum(parts.values()) == pytest.approx(decode_s(here, 16, 16 * 500), rel=perf.TABLE_TOLERANCE_FRAC)
    parts = perf.explain(deployment, 16, 16 * 500, 256, 30_000.0, correction=by)
    assert sum(parts.values()) == pytest.approx(mixed_s(here, 16, 16 * 500, 256, 30_000.0), rel=0.01)


def test_without_a_calibration_nothing_changes(deployment: Deployment, table: StepTable) -> None:
    model = calibrated_step_model(deployment)
    assert model.warnings == step_model(deployment).warnings
    np.testing.assert_array_equal(model.table.decode_fixed_s, table.decode_fixed_s)


def test_a_calibration_that_changes_nothing_changes_no_time(deployment: Deployment, table: StepTable) -> None:
    model = calibrated_step_model(deployment, (made(deployment, UNCORRECTED),))
    for name in StepTable.__slots__:
        np.testing.assert_array_equal(getattr(model.table, name), getattr(table, name))
    assert model.provenance["calibration"].kind == "measured"


def test_a_calibration_applies_to_its_engine_and_device(deployment: Deployment) -> None:
    own = made(deployment, OTHER)
    assert calibration_of(deployment, (own,)) is own
    assert calibration_of(replace(deployment, gpu=get_gpu("A100-SXM-80GB")), (own,)) is None
    assert calibration_of(replace(deployment, engine="sglang"), (own,)) is None
    drafter = Speculation(method="ngram", num_speculative_tokens=2, acceptance=chain_acceptance(0.5, 2))
    assert calibration_of(replace(deployment, speculation=drafter), (own,)) is None
    of_file = replace(deployment, model=replace(deployment.model, name="/somewhere/tiny/config.json"))
    same = replace(own, form="absolute", model="tiny/config.json")
    assert calibration_of(of_file, (same,)) is same
    elsewhere = replace(own, model="another")
    assert calibration_of(deployment, (elsewhere, own)) is own  # its own model comes first
    assert calibration_of(deployment, (elsewhere,)) is elsewhere
    assert calibration_of(deployment, (replace(elsewhere, form="absolute"),)) is None


def test_what_differs_from_the_measured_deployment_is_said(deployment: Deployment) -> None:
    own = made(deployment, OTHER)
    assert not [w for w in calibrated_step_model(deployment, (own,)).warnings if "calibrated" in w]
    wider = replace(deployment, parallelism=Parallelism(tensor_parallel_size=2), precision=Precision(weights="fp8"))
    (warning,) = [w for w in calibrated_step_model(wider, (own,)).warnings if w.startswith("calibrated")]
    assert "precision bf16 (here fp8)" in warning
    assert "tensor parallel size 1 (here 2)" in warning


def test_loads_beyond_the_measured_ones_are_said(deployment: Deployment) -> None:
    own = made(deployment, OTHER)
    assert outside_range(own, 64, 2000) == ()
    assert outside_range(own, 128, 2000) == ("outside the calibration: 128 requests at once, measured up to 64",)
    assert len(outside_range(own, 128, 9000)) == 2


def test_draws_are_repeatable_and_centred(deployment: Deployment) -> None:
    own = made(deployment, OTHER)
    models = calibrated_draws(deployment, own, 32, seed=3)
    again = calibrated_draws(deployment, own, 32, seed=3)
    times = np.array([model.table.decode_fixed_s[16] for model in models])
    assert [model.table.decode_fixed_s[16] for model in again] == times.tolist()
    fitted = calibrated_step_model(deployment, (own,)).table.decode_fixed_s[16]
    assert np.median(times) == pytest.approx(fitted, rel=0.02)
    assert 0.01 < np.std(np.log(times)) < 0.06


def test_a_calibration_narrows_what_is_open(deployment: Deployment) -> None:
    """Draws and errors are as wide as the residuals, where the runs were; no narrower than before elsewhere."""
    own, usual = made(deployment, OTHER), perf.mean_error(deployment)

    def width(models: Sequence[StepModel]) -> float:
        return float(np.std([np.log(model.table.decode_fixed_s[16]) for model in models]))

    assert width(calibrated_draws(deployment, own, 32)) < width(perf.draw_step_models(deployment, 32))
    inside = calibrated_error(usual, deployment, own, inside=True)
    assert inside.tpot_frac[0] > usual.tpot_frac[0]
    assert inside.tpot_frac[1] < usual.tpot_frac[1]
    assert inside.error_class == "calibrated"
    for outside in (
        calibrated_error(usual, deployment, own, inside=False),
        calibrated_error(usual, replace(deployment, engine_version="0.20.0"), own, inside=True),
    ):
        assert outside.error_class == "calibrated elsewhere"
        assert outside.tpot_frac[0] <= usual.tpot_frac[0]
        assert outside.tpot_frac[1] >= usual.tpot_frac[1]


def test_another_model_is_as_unsure_as_before_or_more(deployment: Deployment) -> None:
    own = made(deployment, OTHER)
    model = get_model("meta-llama/Llama-3.1-70B-Instruct")
    larger = replace(
        deployment,
        model=model,
        parallelism=Parallelism(tensor_parallel_size=4),
        params=vllm.default_params("0.19.0", deployment.gpu, model),
    )
    usual = perf.mean_error(larger)
    assert calibrated_error(usual, larger, own, inside=True).ttft_frac[1] >= usual.ttft_frac[1]
