"""Draws of step times made by hand, and results to try them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest

from servewise import perf
from servewise.search.families import families, search_family
from servewise.search.results import Result
from servewise.search.shapes import enumerate_shapes
from servewise.types import Deployment, MeasuredRuns, Search, StepModel

RUNS = MeasuredRuns(
    engine="vllm",
    engine_version="0.11.0",
    model="meta-llama/Llama-3.1-8B-Instruct",
    gpu="H100-SXM-80GB",
    precision="fp8/bf16",
    parallelism="TP1",
    num_runs=12,
    lowest_concurrency=4,
    highest_concurrency=64,
    tpot_median_error_pct=6.5,
    tpot_bias_pct=-2.0,
    ttft_median_error_pct=14.0,
    ttft_bias_pct=3.0,
    source="made up for tests",
    differs=("gpu",),
)


def slowed(model: StepModel, factor: float, request_factor: float = 1.0) -> StepModel:
    """A step model whose steps take ``factor`` times as long, and whose way to the engine ``request_factor``."""
    table = model.table
    kept = {"context_knots"}
    request = {"request_fixed_s", "request_s_per_input_token"}
    changed = {
        field.name: getattr(table, field.name) * (request_factor if field.name in request else factor)
        for field in fields(table)
        if field.name not in kept
    }
    return replace(model, table=replace(table, **changed))


def use_draws(monkeypatch: pytest.MonkeyPatch, factors: Sequence[float], request_factor: float = 1.0) -> None:
    """Let the search draw step models that are slower by these factors."""

    def draw(deployment: Deployment, num_draws: int, seed: int = 0) -> tuple[StepModel, ...]:
        assert (num_draws, seed, deployment.num_replicas) == (len(factors), 0, 1)
        model = perf.step_model(deployment)
        return tuple(slowed(model, factor, request_factor) for factor in factors)

    monkeypatch.setattr(perf, "draw_step_models", draw)


def use_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let means be off by made-up factors, and made-up runs be the nearest."""

    def mean_error(_deployment: Deployment, *, saturated: bool = False) -> SimpleNamespace:
        name = "saturated" if saturated else "other model"
        return SimpleNamespace(error_class=name, tpot_frac=(0.9, 1.2), ttft_frac=(0.7, 1.5), num_runs=40)

    monkeypatch.setattr(perf, "mean_error", mean_error)
    monkeypatch.setattr(perf, "nearest_runs", lambda _deployment, limit: (RUNS,) * limit)


def kept_result(search: Search, *, num_replicas: int = 2) -> Result:
    """The first result of a search that keeps the promise with at least so many replicas."""
    for family in families(search, enumerate_shapes(search)):
        for result in search_family(search, family, (), prune=False):
            if result.candidate.status == "kept" and result.candidate.deployment.num_replicas >= num_replicas:
                return result
    raise AssertionError("no such result")
