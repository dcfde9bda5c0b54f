"""Overheads by level: the most specific one that was fitted, times what is known of the kernels."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from perf_deployments import deploy

from servewise.catalog import get_gpu, get_model
from servewise.engines import llamacpp, sglang, trtllm
from servewise.perf.overheads import (
    Overheads,
    assumed,
    cell_of,
    kernel_of,
    levels_of,
    overhead_document,
    overheads_of,
)
from servewise.types import Deployment, Parallelism, Precision

NAMES = Overheads.__slots__
MODEL = "meta-llama/Llama-3.1-8B-Instruct"


def other_engine(engine: str, version: str, gpu: str = "H100-SXM-80GB", model: str = MODEL) -> Deployment:
    """A deployment on another engine with its defaults."""
    spec, card, spread = get_model(model), get_gpu(gpu), Parallelism()
    defaults = {"tensorrt-llm": trtllm, "sglang": sglang, "llama.cpp": llamacpp}[engine]
    return Deployment(
        model=spec,
        gpu=card,
        engine=engine,  # type: ignore[arg-type]
        engine_version=version,
        precision=Precision(),
        parallelism=spread,
        params=defaults.default_params(version, card, spec, spread),  # type: ignore[attr-defined]
    )


def written(monkeypatch: pytest.MonkeyPatch, levels: list[str], kernels: dict[str, dict[str, float]]) -> None:
    """A document with the named levels, the value of every overhead being 1 + the level's place."""
    document: dict[str, Any] = json.loads(json.dumps(overhead_document()))
    document["levels"] = {
        name: {"values": dict.fromkeys(NAMES, 1.0 + i), "note": f"{i} runs"} for i, name in enumerate(levels)
    }
    document["kernels"] = kernels
    monkeypatch.setattr("servewise.perf.overheads.overhead_document", lambda: document)


# -------------------------------------------------------------------------------------------------------------- cells


def test_vllm_schedules_one_way_or_the_other() -> None:
    """By the setting, whatever the version: 0.12 with asynchronous scheduling on runs as 0.14 does by default."""
    new, old = deploy(MODEL), deploy(MODEL, version="0.12.0")
    assert cell_of(new) == ("vllm", "asynchronous", "hopper")
    assert cell_of(old) == ("vllm", "synchronous", "hopper")
    turned = replace(old, params=replace(old.vllm_params, async_scheduling=True))
    assert cell_of(turned) == cell_of(new)
    assert cell_of(deploy(MODEL, gpu="B200-SXM-180GB"))[2] == "blackwell"


@pytest.mark.parametrize(
    ("version", "since"),
    [
        ("0.21.0", "0"),
        ("1.0.0rc3", "0"),
        ("1.1.0", "1.1"),
        ("1.1.0rc2", "1.1"),
        ("1.2.0rc6.post1", "1.1"),
        ("v1.10.0", "1.1"),
    ],
)
def test_other_engines_have_ranges_of_versions(version: str, since: str) -> None:
    deployment = replace(other_engine("tensorrt-llm", "1.2.0"), engine_version=version)
    assert cell_of(deployment) == ("tensorrt-llm", f"from {since}", "hopper")


def test_what_decides_which_kernels_run() -> None:
    assert kernel_of(deploy(MODEL, weights="fp8")) == ("vllm", "asynchronous", "hopper", "fp8", "dense")
    assert kernel_of(deploy("openai/gpt-oss-120b", weights="mxfp4"))[3:] == ("mxfp4", "experts")


# -------------------------------------------------------------------------------------------------------------- levels


@pytest.mark.parametrize(
    ("levels", "value"),
    [
        (["shared"], 1.0),
        (["shared", "vllm"], 2.0),
        (["shared", "vllm", "vllm asynchronous on hopper"], 3.0),
        (["shared", "vllm asynchronous on hopper", "vllm"], 2.0),
        # other cells and engines are no help
        (["shared", "vllm asynchronous on blackwell", "vllm synchronous on hopper", "sglang"], 1.0),
    ],
)
def test_the_most_specific_level_counts(monkeypatch: pytest.MonkeyPatch, levels: list[str], value: float) -> None:
    written(monkeypatch, levels, {})
    found, provenance = overheads_of(deploy(MODEL))
    assert {getattr(found, name) for name in NAMES} == {value}
    assert provenance.note == f"{levels[int(value) - 1]}: {int(value) - 1} runs"
    assert provenance.kind == "derived"


def test_scales_of_style_table_and_kernel_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = {
        "vllm asynchronous fp8 dense": {"compute_scale": 2.0},
        "hopper fp8 dense": {"compute_scale": 3.0, "attention_scale": 1.5},
        "vllm asynchronous hopper fp8 dense": {"compute_scale": 5.0, "weights_scale": 0.5},
        # of others
        "vllm synchronous fp8 dense": {"compute_scale": 7.0},
        "blackwell fp8 dense": {"compute_scale": 11.0},
        "hopper fp8 experts": {"compute_scale": 13.0},
        "hopper bf16 dense": {"compute_scale": 17.0},
        "sglang from 0 hopper fp8 dense": {"compute_scale": 19.0},
    }
    written(monkeypatch, ["shared"], kernels)
    found, _ = overheads_of(deploy(MODEL, weights="fp8"))
    assert (found.compute_scale, found.attention_scale, found.weights_scale) == (30.0, 1.5, 0.5)
    assert (found.collective_scale, found.step_ms) == (1.0, 1.0)
    plain, _ = overheads_of(deploy(MODEL, weights="int8"))
    assert plain.compute_scale == 1.0


def test_levels_from_the_cell_to_all_engines() -> None:
    assert levels_of(deploy(MODEL)) == ("vllm asynchronous on hopper", "vllm", "shared")
    assert levels_of(other_engine("llama.cpp", "b6000"))[1:] == ("llama.cpp", "shared")


def test_an_engine_without_runs_has_what_all_share() -> None:
    found, provenance = overheads_of(other_engine("llama.cpp", "b6000", "RTX-4090-24GB"))
    assert provenance.note.startswith("shared: ")
    assert found.step_ms == overhead_document()["levels"]["shared"]["values"]["step_ms"]


# ------------------------------------------------------------------------------------------------------------ the data


def covariance(level: str) -> np.ndarray:
    triangle = overhead_document()["levels"][level]["covariance"]
    assert [len(row) for row in triangle] == list(range(1, len(NAMES) + 1)), level
    full = np.zeros((len(NAMES), len(NAMES)))
    for i, row in enumerate(triangle):
        full[i, : i + 1] = full[: i + 1, i] = row
    return full


def test_covariances_have_a_row_for_every_overhead_and_are_semidefinite() -> None:
    for level in overhead_document()["levels"]:
        values = np.linalg.eigvalsh(covariance(level))
        # the figures are rounded to four digits
        assert values.min() > -1e-3 * values.max(), level
        assert (np.diag(covariance(level)) > 0).all(), level


def test_every_level_has_every_overhead_within_reason() -> None:
    for level, entry in overhead_document()["levels"].items():
        assert set(entry["values"]) == set(NAMES)
        for name, value in entry["values"].items():
            if name.endswith("_scale"):
                assert 0.3 < value < 2.0, (level, name)
            elif name not in ("layer_us", "expert_layer_us"):
                assert value > 0.0, (level, name)
    for scales in overhead_document()["kernels"].values():
        assert all(name.endswith("_scale") and 0.4 < scale < 2.5 for name, scale in scales.items())


def test_what_nothing_was_fitted_to_is_labelled() -> None:
    assert overhead_document()["assumed"]["source"].startswith("assumed: ")
    assert 0.5 < assumed().elementwise_bandwidth_frac <= 1.0
