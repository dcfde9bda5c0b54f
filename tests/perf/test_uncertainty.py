"""Draws of overheads and step models: balanced, repeatable, wider where less was measured, and never nonsense."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from numpy.typing import NDArray
from perf_deployments import deploy
from test_overheads import other_engine

from servewise import perf
from servewise.errors import OutOfRangeError
from servewise.perf.overheads import Overheads, overhead_document, overheads_of
from servewise.perf.uncertainty import GPU_SCALES, draw_overheads
from servewise.types import Deployment, Parallelism, Precision, Speculation, StepTable

Array = NDArray[np.float64]

NAMES = [field.name for field in fields(Overheads)]
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
FITTED = deploy("meta-llama/Llama-3.1-70B-Instruct", weights="fp8", kv="fp8", tp=2)


def shifts(deployment: Deployment, num_draws: int = 32, seed: int = 0) -> Array:
    """Logarithms of drawn over fitted overheads, shape (num_draws, num_overheads)."""
    fitted = overheads_of(deployment)[0]
    drawn = draw_overheads(deployment, num_draws, seed)
    return np.array([[np.log(getattr(d, name) / getattr(fitted, name)) for name in NAMES] for d in drawn])


def test_draws_mirror_each_other() -> None:
    found = shifts(FITTED)
    assert found.shape == (32, len(NAMES))
    assert found[16:] == pytest.approx(-found[:16], abs=1e-9)
    assert np.abs(found).max() > 0.01
    assert found.mean(axis=0) == pytest.approx(np.zeros(len(NAMES)), abs=1e-9)


def test_an_odd_number_of_draws() -> None:
    found = shifts(FITTED, 5)
    assert len(found) == 5
    assert found[3:] == pytest.approx(-found[:2], abs=1e-9)


def test_the_same_seed_gives_the_same_draws() -> None:
    assert draw_overheads(FITTED, 8, 3) == draw_overheads(FITTED, 8, 3)
    assert draw_overheads(FITTED, 8, 3) != draw_overheads(FITTED, 8, 4)


def test_replicas_do_not_matter() -> None:
    fleet = replace(FITTED, num_replicas=7, router="least_requests")
    assert draw_overheads(fleet, 6) == draw_overheads(FITTED, 6)


@pytest.mark.parametrize("num_draws", [1, 0, -2])
def test_one_draw_is_no_spread(num_draws: int) -> None:
    with pytest.raises(OutOfRangeError, match=f"at least 2, got {num_draws}"):
        draw_overheads(FITTED, num_draws)
    with pytest.raises(OutOfRangeError):
        perf.draw_step_models(FITTED, num_draws)


def test_draws_vary_as_the_fit_and_the_class_of_the_deployment_say() -> None:
    """Variances of 4,000 draws, within 15%: covariance of the fit, and the common error of what the GPU does."""
    found = shifts(FITTED, 4000)
    level = overhead_document()["levels"]["vllm asynchronous on hopper"]
    common = overhead_document()["common_error"]["measured"]
    variance = dict(zip(NAMES, found.var(axis=0), strict=True))
    for i, name in enumerate(NAMES):
        expected = level["covariance"][i][i]
        if name in GPU_SCALES:
            expected += common["gpu"] ** 2
        elif name in ("request_ms", "prefill_layer_us"):
            expected += common["request"] ** 2
        assert variance[name] == pytest.approx(expected, rel=0.15), name
    at = [NAMES.index(name) for name in GPU_SCALES]
    # a deployment's common error moves all scales together
    assert np.corrcoef(found[:, at[1]], found[:, at[2]])[0, 1] > 0.3


def tpot_spread(deployment: Deployment) -> float:
    """Standard deviation of the logarithm of a decode step of 16 rows at 1,000 tokens of context."""
    tables = [model.table for model in perf.draw_step_models(deployment, 64)]
    return float(np.std([np.log(decode_s(table, 16, 1000.0)) for table in tables]))


def decode_s(table: StepTable, rows: int, context: float) -> float:
    k = int(np.searchsorted(table.context_knots, context, side="right")) - 1
    attention = table.attention_base_s[rows, k] + table.attention_slope_s[rows, k] * rows * context
    return float(table.decode_fixed_s[rows] + attention)


def test_less_is_known_of_a_gpu_that_nothing_was_measured_on() -> None:
    """H100 has runs of this model, A100 tables but no runs, RTX 3090 neither."""
    model = "meta-llama/Llama-3.2-3B-Instruct"
    measured = tpot_spread(deploy("meta-llama/Llama-3.1-70B-Instruct", weights="fp8", kv="fp8", tp=2))
    transferred = tpot_spread(deploy(model, gpu="RTX-3090-24GB"))
    elsewhere = tpot_spread(deploy(model, gpu="A100-SXM-80GB"))
    assert 0.02 < measured < 0.2
    assert transferred > 1.3 * elsewhere
    assert elsewhere > measured


def test_models_keep_where_their_figures_come_from() -> None:
    fitted, drawn = perf.step_model(FITTED), perf.draw_step_models(FITTED, 2)
    for model in drawn:
        # tables that were asked for while computing steps included
        assert dict(model.provenance) == dict(fitted.provenance)
        assert model.warnings == fitted.warnings
        assert model.max_context_tokens == fitted.max_context_tokens
    steps = [decode_s(m.table, 8, 2000.0) for m in (*drawn, fitted)]
    # the two of a pair lie on either side of the fit
    assert min(steps[:2]) < steps[2] < max(steps[:2])


DRAFTER = Speculation(method="eagle", num_speculative_tokens=2, acceptance=(0.7, 0.5))


@pytest.mark.parametrize("deployment", [FITTED, replace(FITTED, speculation=DRAFTER)], ids=["plain", "speculative"])
def test_drawn_overheads_make_the_drawn_models(deployment: Deployment) -> None:
    for overheads, model in zip(draw_overheads(deployment, 3, 9), perf.draw_step_models(deployment, 3, 9), strict=True):
        assert np.array_equal(perf.step_model(deployment, overheads).table.decode_fixed_s, model.table.decode_fixed_s)
        assert model.table.request_fixed_s == pytest.approx(1e-3 * overheads.request_ms)


GPT_OSS = replace(
    other_engine("tensorrt-llm", "1.2.0", "B200-SXM-180GB", "openai/gpt-oss-120b"),
    precision=Precision(weights="mxfp4", kv="fp8"),
    parallelism=Parallelism(data_parallel_size=4, expert_parallel_size=4),
)
SMALL = "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize(
    "deployment",
    [
        FITTED,
        # engines whose layers overlap their kernels: a negative overhead of every layer, models with little else
        other_engine("tensorrt-llm", "1.2.0", "B200-SXM-180GB", SMALL),
        other_engine("tensorrt-llm", "1.0.0", "H100-SXM-80GB", "google/gemma-3-1b-it"),
        GPT_OSS,
        deploy(SMALL),
        deploy(MODEL, gpu="RTX-4090-24GB", weights="int4"),
        deploy("Qwen/Qwen3-30B-A3B", tp=4),
        other_engine("sglang", "0.5.1", "H200-SXM-141GB", SMALL),
        other_engine("llama.cpp", "b6000", "RTX-4090-24GB", SMALL),
        other_engine("llama.cpp", "b6000", "M4-MAX-128GB"),
    ],
    ids=lambda d: f"{d.engine} {d.model.name} {d.gpu.name}",
)
def test_drawn_tables_make_sense(deployment: Deployment) -> None:
    """Every step takes time, and more of it with more rows, tokens and context."""
    for model in perf.draw_step_models(deployment, 8, seed=1):
        table = model.table
        for times in (table.decode_fixed_s[1:], table.mixed_tokens_s, table.sample_s[1:]):
            assert np.isfinite(times).all()
            assert (times > 0.0).all()
            assert (np.diff(times) >= 0.0).all()
        assert (table.attention_slope_s >= 0.0).all()
        # attention at the start of every piece
        rows = np.arange(table.max_rows + 1.0)[:, None]
        attention = table.attention_base_s + table.attention_slope_s * rows * table.context_knots
        assert (attention >= 0.0).all()
        assert (np.diff(table.experts_s) >= 0.0).all()
        for value in (table.prefill_fixed_s, table.prefill_s_per_token, table.prefill_s_per_pair):
            assert value >= 0.0
        assert table.request_fixed_s > 0.0
        assert table.request_s_per_input_token > 0.0


@pytest.mark.parametrize("layer_us", [-1.0, -3.0])
def test_overlap_never_outweighs_the_work(layer_us: float) -> None:
    """The formula itself stays positive, so that what is explained adds up to what the table says."""
    deployment = other_engine("tensorrt-llm", "1.2.0", "B200-SXM-180GB", SMALL)
    formula = perf.StepFormula(deployment, replace(overheads_of(deployment)[0], layer_us=layer_us))
    parts = formula.token_parts(np.arange(1.0, 300.0))
    assert (parts.overhead < 0.0).all()
    assert (parts.total > 0.0).all()
