"""Memory and step times with speculative decoding."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from perf.perf_deployments import deploy
from servewise import perf
from servewise.catalog import get_model
from servewise.engines import capture_sizes, sglang
from servewise.errors import InputError
from servewise.perf.formula import StepFormula
from servewise.types import Deployment, Parallelism, Speculation, SpeculationMethod, StepTable, chain_acceptance

LARGE = "meta-llama/Llama-3.1-70B-Instruct"
SMALL = get_model("meta-llama/Llama-3.2-1B-Instruct")


def speculating(deployment: Deployment, method: SpeculationMethod, k: int = 3) -> Deployment:
    """The deployment with ``k`` proposals a step."""
    return replace(
        deployment,
        speculation=Speculation(
            method=method,
            num_speculative_tokens=k,
            acceptance=chain_acceptance(0.7, k),
            draft_model=SMALL if method == "draft_model" else None,
        ),
    )


def large(**params: object) -> Deployment:
    """Llama-3.1-70B on four H100."""
    return deploy(LARGE, tp=4, max_num_seqs=256, **params)


def decode_s(table: StepTable, n: int, context: float) -> float:
    """A decode step of ``n`` rows with so many tokens of context each [s]."""
    k = int(np.searchsorted(table.context_knots, context, side="right")) - 1
    attention = table.attention_base_s[n, k] + table.attention_slope_s[n, k] * n * context
    return float(table.decode_fixed_s[n] + attention)


@pytest.mark.parametrize("n", [1, 8, 64])
def test_a_step_verifies_all_tokens_of_its_rows(n: int) -> None:
    """32 rows of 4 tokens are a step of 128 tokens and sampled rows, with the host's work for 32."""
    deployment = large()
    formula = StepFormula(deployment)
    tokens = np.array([4.0 * n])
    expected = formula.token_parts(tokens).total + formula.head_s(tokens) + formula.rows_s(np.array([float(n)]))
    expected = expected + formula.step_overhead_s()
    expected = expected + formula.decode_attention_s(np.array([float(n)]), np.array([n * 2003.0]), 4)
    table = perf.step_model(speculating(deployment, "ngram")).table
    assert decode_s(table, n, 2000) == pytest.approx(float(expected[0]), rel=perf.TABLE_TOLERANCE_FRAC)


@pytest.mark.parametrize("n", [1, 32, 120])
def test_a_draft_model_runs_once_over_all_tokens_and_then_a_token_a_row(n: int) -> None:
    """What a drafter adds to a step is three passes of its own formula, each with a head, without the host's time."""
    deployment = large()
    rows, context = np.array([float(n)]), np.array([n * 2003.0])
    tables = {method: perf.step_model(speculating(deployment, method)).table for method in ("draft_model", "ngram")}
    precision = replace(deployment.precision, weights=SMALL.native_precision)
    drafter = StepFormula(replace(deployment, model=SMALL, precision=precision))
    passes = drafter.token_parts(4 * rows).total + 2 * drafter.token_parts(rows).total + 3 * drafter.head_s(rows)
    passes = passes + drafter.decode_attention_s(rows, context, 4) + 2 * drafter.decode_attention_s(rows, context)
    step_s = decode_s(tables["draft_model"], n, 2000)
    added = step_s - decode_s(tables["ngram"], n, 2000)
    assert added == pytest.approx(float(passes[0]), abs=2 * perf.TABLE_TOLERANCE_FRAC * step_s)


def test_more_proposals_never_take_less_time() -> None:
    tables = [perf.step_model(speculating(large(), "ngram", k)).table for k in (1, 2, 3, 5, 8)]
    tables.insert(0, perf.step_model(large()).table)
    for fewer, more in pairwise(tables):
        for n in (1, 4, 32, 128, 256):
            for context in (500, 4000):
                assert decode_s(more, n, context) >= decode_s(fewer, n, context) * (1 - 2 * perf.TABLE_TOLERANCE_FRAC)


def test_times_grow_with_rows() -> None:
    """The router's bound on the next finish rests on it."""
    table = perf.step_model(speculating(large(), "draft_model")).table
    for values in (table.decode_fixed_s[1:], table.sample_s, table.mixed_tokens_s[1:]):
        assert (np.diff(values) >= 0).all()
    assert (table.attention_slope_s >= 0).all()


def test_a_drafter_takes_memory_and_time() -> None:
    """A draft model: its weights and its keys and values; a head: one layer's of each; none for ngram."""
    usual = large()
    alone, reports = perf.memory(usual), {}
    for method in ("ngram", "eagle", "draft_model"):
        reports[method] = perf.memory(speculating(usual, method))
    assert reports["ngram"].weights_bytes == alone.weights_bytes
    assert reports["ngram"].kv_bytes_per_token == alone.kv_bytes_per_token
    small = perf.memory(replace(usual, model=SMALL))
    assert reports["draft_model"].weights_bytes == alone.weights_bytes + small.weights_bytes
    both = alone.kv_bytes_per_token + small.kv_bytes_per_token
    assert reports["draft_model"].kv_bytes_per_token == pytest.approx(both)
    layers = usual.model.num_layers
    assert reports["eagle"].kv_bytes_per_token == pytest.approx(alone.kv_bytes_per_token * (layers + 1) / layers)
    head = reports["eagle"].weights_bytes - alone.weights_bytes
    assert head == pytest.approx(alone.weights_bytes / (layers + 3), rel=0.1)
    blocks = [alone.num_kv_blocks] + [reports[m].num_kv_blocks for m in ("ngram", "eagle", "draft_model")]
    assert blocks == sorted(blocks, reverse=True)
    tables = [perf.step_model(speculating(usual, m)).table for m in ("ngram", "eagle", "draft_model")]
    for n in (1, 32, 128):
        times = [decode_s(table, n, 2000) for table in tables]
        assert times == sorted(times)


def test_the_gain_vanishes_beyond_the_ridge() -> None:
    """One request gains nearly E; with 256, 1,024 tokens a step, nearly all of it is gone."""
    usual = perf.step_model(large()).table
    deployment = speculating(large(), "ngram")
    assert deployment.speculation is not None
    mean, table = deployment.speculation.mean_tokens_per_step, perf.step_model(deployment).table
    gains = [mean * decode_s(usual, n, 1000) / decode_s(table, n, 1000) for n in (1, 64, 256)]
    assert 0.9 * mean < gains[0] <= mean
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] < 1.3


def test_graphs_hold_whole_rows() -> None:
    """Of 4 tokens each, up to 512 tokens: 128 rows; without speculation 512."""
    deployment = speculating(large(), "ngram")
    sizes = capture_sizes(deployment)
    assert set(capture_sizes(large())) - {256} <= set(sizes)
    assert {4, 8, 16, 32, 512} <= set(sizes)
    assert sizes[-1] == 512
    few = speculating(deploy(LARGE, tp=4, max_num_seqs=10), "ngram", 2)
    assert capture_sizes(few)[-1] == 56  # up to 2 * 10 * 3 = 60 tokens
    assert set(capture_sizes(few)) >= {3, 6, 12, 24, 30}
    table = perf.step_model(deployment).table
    smallest = decode_s(table, 128, 100)
    assert decode_s(table, 129, 100) - smallest > 3 * (smallest - decode_s(table, 127, 100))


def test_flash_attention_2_never_packs_verified_rows() -> None:
    """A100: a decode row costs at least what it costs beside a prompt; on H100 it does not."""
    deployment = deploy(LARGE, gpu="A100-SXM-80GB", tp=4, max_num_seqs=256)
    per_row, per_token = StepFormula(deployment).mixed_row_attention_s()
    table = perf.step_model(speculating(deployment, "ngram")).table
    assert decode_s(table, 64, 4000) - table.decode_fixed_s[64] >= 0.99 * 64 * (per_row + 4000 * per_token) > 0.0
    assert StepFormula(large()).mixed_row_attention_s() == (0.0, 0.0)


def test_everything_says_that_it_is_unvalidated() -> None:
    model = perf.step_model(speculating(large(), "eagle"))
    assert any("no public run with speculative decoding" in warning for warning in model.warnings)
    assert {"verification", "drafter"} <= set(model.provenance)
    assert model.provenance["drafter"].kind == "assumed"
    assert not any("speculative" in warning for warning in perf.step_model(large()).warnings)


def test_multi_token_prediction_of_a_model_that_has_it() -> None:
    deployment = deploy("deepseek-ai/DeepSeek-V3", gpu="H200-SXM-141GB", tp=8, weights="fp8_block", max_num_seqs=64)
    with_mtp = perf.memory(speculating(deployment, "mtp", 1)).weights_bytes - perf.memory(deployment).weights_bytes
    assert with_mtp * 8 == pytest.approx(deployment.model.mtp_num_params, rel=0.25)
    assert perf.step_model(speculating(deployment, "mtp", 1)).table.decode_fixed_s[1] > 0


def refused(deployment: Deployment, match: str) -> None:
    with pytest.raises(InputError, match=match):
        perf.step_model(deployment)
    with pytest.raises(InputError, match=match):
        perf.memory(deployment)


def test_what_is_not_covered_is_refused() -> None:
    usual = large()
    refused(speculating(usual, "mtp"), "has no layer that predicts further tokens")
    other = get_model("Qwen/Qwen3-0.6B")
    known = speculating(usual, "draft_model").speculation
    assert known is not None
    refused(replace(usual, speculation=replace(known, draft_model=other)), "must be the same")
    stages = replace(usual, parallelism=Parallelism(tensor_parallel_size=2, pipeline_parallel_size=2))
    refused(speculating(stages, "ngram"), "pipeline stages is not covered")
    version = sglang.default_version()
    params = sglang.default_params(version, usual.gpu, usual.model)
    refused(
        speculating(replace(usual, engine="sglang", engine_version=version, params=params), "ngram"),
        "speculative decoding of 'sglang' is not covered",
    )


@pytest.mark.parametrize("gpu", ["H100-SXM-80GB", "A100-SXM-80GB"])
@pytest.mark.parametrize("method", ["ngram", "eagle", "draft_model"])
def test_the_parts_of_a_step_sum_to_it(method: SpeculationMethod, gpu: str) -> None:
    deployment = speculating(deploy(LARGE, gpu=gpu, tp=4, max_num_seqs=256), method)
    table = perf.step_model(deployment).table
    for n in (1, 8, 100, 256):
        parts = perf.explain(deployment, n, n * 2000.0)
        assert sum(parts.values()) == pytest.approx(decode_s(table, n, 2000), rel=2 * perf.TABLE_TOLERANCE_FRAC)
        assert (parts["draft"] > 0) == (method != "ngram")
        prompt, pairs = 1000, 1000 * 1001 / 2
        beside = sum(perf.explain(deployment, n, n * 2000.0, prompt).values())
        attention = decode_s(table, n, 2000) - table.decode_fixed_s[n]
        step_s = table.mixed_tokens_s[4 * n + prompt] + attention + table.sample_s[n + 1] + table.prefill_fixed_s
        step_s += prompt * table.prefill_s_per_token + pairs * table.prefill_s_per_pair
        assert beside == pytest.approx(step_s, rel=2 * perf.TABLE_TOLERANCE_FRAC)
    alone = perf.explain(deployment, 0, 0.0, 500)
    assert alone["kv"] == 0.0 < alone["prefill_attention"]


def test_what_verifies_is_the_models_own_step() -> None:
    """The drafter adds a part and changes none of the others."""
    found = {method: dict(perf.explain(speculating(large(), method), 8, 16000.0)) for method in ("ngram", "eagle")}
    assert found["eagle"].pop("draft") > 0.0 == found["ngram"].pop("draft")
    assert found["eagle"] == found["ngram"]
