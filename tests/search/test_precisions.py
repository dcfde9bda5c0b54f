"""The winner's replica in every precision: what weight-only formats change, and that each has figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from servewise import perf, quality
from servewise.catalog import get_gpu, get_model, supported_precisions, weights_only_stored
from servewise.engines import vllm
from servewise.search import plan
from servewise.search.operating_point import decode_s, prefill_s
from servewise.types import Candidate, Deployment, Parallelism, Plan, Precision, Search, StepTable, Workload

Make = Callable[..., Search]
H100 = get_gpu("H100-SXM-80GB")


@pytest.fixture(scope="module")
def searched(make_search: Make, chat: Workload) -> Plan:
    asked = make_search(gpus=("H100-SXM-80GB",), workload=chat)
    (model,) = asked.models
    choices = quality.precision_choices(model, supported_precisions(H100), quality.Floor(min_recovery_pct=0.0))
    return plan(replace(asked, precisions={model.name: choices}))


def rows_of(found: Plan) -> dict[Precision, Candidate]:
    assert found.precisions is not None
    rows = [found.candidates[row.index] for row in found.precisions.rows]
    return {candidate.deployment.precision: candidate for candidate in rows}


def test_every_precision_of_the_winners_replica_has_figures(searched: Plan) -> None:
    winner = searched.candidates[searched.winner or 0].deployment
    rows = rows_of(searched)
    assert set(rows) == set(supported_precisions(H100)) - {
        p for p in supported_precisions(H100) if p.weights in ("fp8_block", "mxfp4")
    }
    for precision, candidate in rows.items():
        assert candidate.summary is not None
        assert candidate.memory is not None
        alike = replace(candidate.deployment, precision=winner.precision, params=winner.params, num_replicas=1)
        assert alike == replace(winner, num_replicas=1), precision
        if candidate.status == "dominated":
            assert candidate.cost is not None
            assert candidate.reason


def test_figures_of_a_dominated_precision_change_neither_winner_nor_frontier(searched: Plan) -> None:
    """What is filled in afterwards was proven no better: it is not kept, and beaten by what is."""
    kept = [c for c in searched.candidates if c.status == "kept"]
    assert {c.index for c in kept} == set(searched.ranking)
    for candidate in rows_of(searched).values():
        if candidate.status == "dominated":
            assert candidate.cost is not None
            dollars = candidate.cost.usd_per_mtok_output_at_load
            assert any(
                c.cost is not None
                and c.cost.usd_per_mtok_output_at_load <= dollars
                and c.latency_s <= candidate.latency_s
                for c in kept
            )


def table_of(weights: str) -> StepTable:
    (precision,) = (p for p in supported_precisions(H100) if p == Precision(weights=weights))  # type: ignore[arg-type]
    model, version = get_model("llama-3.1-8b"), vllm.default_version()
    deployment = Deployment(
        model=model,
        gpu=H100,
        engine="vllm",
        engine_version=version,
        precision=precision,
        parallelism=Parallelism(),
        params=vllm.default_params(version, H100, model),
    )
    return perf.step_model(deployment).table


@pytest.mark.parametrize("weights", ["int4", "nvfp4"])
def test_weight_only_formats_speed_up_a_decode_step_and_no_prompt(weights: str) -> None:
    """They save bytes, of which one decode row is made, and no arithmetic, of which a prompt is."""
    assert weights_only_stored(H100, "vllm", weights)  # type: ignore[arg-type]
    plain, stored = table_of("bf16"), table_of(weights)
    assert np.all(stored.mixed_tokens_s[2048:] >= plain.mixed_tokens_s[2048:])
    one = np.array([1.0])
    assert decode_s(stored, one, 1000 * one)[0] < 0.8 * decode_s(plain, one, 1000 * one)[0]


def test_rows_say_which_weights_are_only_stored(searched: Plan) -> None:
    assert searched.precisions is not None
    by_precision = dict(zip(rows_of(searched), searched.precisions.rows, strict=True))
    bf16, int4 = by_precision[Precision()], by_precision[Precision(weights="int4")]
    assert (bf16.weight_only, int4.weight_only) == (False, True)
    assert int4.decode_alone_s < bf16.decode_alone_s
    assert int4.prompt_s >= bf16.prompt_s
    fp8 = by_precision[Precision(weights="fp8")]
    assert not fp8.weight_only
    assert fp8.prompt_s < bf16.prompt_s


def test_step_times_are_those_of_the_table(searched: Plan) -> None:
    found = searched.precisions
    assert found is not None
    row = next(r for r in found.rows if searched.candidates[r.index].deployment.precision == Precision())
    deployment = searched.candidates[row.index].deployment
    table = perf.step_model(deployment).table
    one, tokens = np.array([1.0]), np.array([float(found.prompt_tokens)])
    assert row.decode_alone_s == pytest.approx(float(decode_s(table, one, one * found.context_tokens)[0]))
    _, prompt = prefill_s(table, deployment, 0 * one, 0 * one, tokens, tokens * (tokens + 1) / 2, one)
    assert row.prompt_s == pytest.approx(float(prompt[0]))
