"""How predictions compared with public serving runs: the nearest runs to a deployment, and the errors of its class."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, Literal

from servewise.catalog.facts import read_facts
from servewise.perf.operators import nearest_system
from servewise.types import ROLES, Deployment, MeasuredRuns

__all__ = ["MeanError", "error_class", "mean_error", "nearest_runs"]

ErrorClass = Literal[
    "measured", "other model", "other gpu", "other engine", "transferred gpu", "calibrated", "calibrated elsewhere"
]
"""What of a deployment was among the runs: its engine with its model in its precision on its GPU; the engine on
the GPU with other models or precisions; the engine on other GPUs; nothing of its engine; or not even the GPU's
operators were measured. Or that the user's own runs calibrated the model, with such a load and deployment or others."""
GROUP_ERRORS = "perf/group_errors.csv"
DRAFTER_ERROR = 0.15
"""Standard deviation (logarithm) that a drafter adds: assumed, as for a GPU without operator tables."""

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanError:
    """90% interval of measured over predicted means, of deployments of the same class.

    Parameters
    ----------
    error_class : ErrorClass or "drafter" or "groups"
        A drafter has the errors of the deployment without, widened by an assumed share. A group has the larger ones of
        its instances' and of what measured groups showed.
    tpot_frac, ttft_frac : (float, float)
        5% and 95% quantiles of measured / predicted.
    num_runs : int
        Held-out runs behind it; 0 when it is assumed.
    """

    error_class: ErrorClass | Literal["drafter", "groups"]
    tpot_frac: tuple[float, float]
    ttft_frac: tuple[float, float]
    num_runs: int


@cache
def validation() -> Mapping[str, Any]:
    """Groups of runs and quantiles of errors by class."""
    text = resources.files("servewise.data").joinpath("perf/validation.json").read_text(encoding="utf-8")
    document: Mapping[str, Any] = json.loads(text)
    return document


def error_class(deployment: Deployment) -> ErrorClass:
    """How much of a deployment was among the measured runs."""
    if not nearest_system(deployment.gpu)[1]:
        return "transferred gpu"
    runs = [r for r in validation()["runs"] if r["engine"] == deployment.engine]
    if not runs:
        return "other engine"
    on_gpu = [r for r in runs if r["gpu"] == deployment.gpu.name]
    if not on_gpu:
        return "other gpu"
    own = deployment.model.name, deployment.precision.weights
    return "measured" if any((r["model"], r["precision"].split("/")[0]) == own for r in on_gpu) else "other model"


def mean_error(deployment: Deployment, *, saturated: bool = False) -> MeanError:
    """90% interval of measured over predicted mean TPOT and TTFT for a deployment's class.

    Parameters
    ----------
    deployment : Deployment
    saturated : bool
        Whether requests wait for KV memory or slots under the load in question.

    Sources
    -------
    ``servewise/data/perf/validation.json``, ``servewise/data/perf/group_errors.csv``.
    """
    if deployment.disaggregation is not None:
        return _group_error(deployment, saturated)
    if deployment.speculation is not None:
        plain = mean_error(replace(deployment, speculation=None), saturated=saturated)
        return MeanError(
            error_class="drafter",
            tpot_frac=_widened(plain.tpot_frac),
            ttft_frac=_widened(plain.ttft_frac),
            num_runs=0,
        )
    name = error_class(deployment)
    classes = validation()["classes"]
    loads = (" saturated", "") if saturated else ("",)
    keys = [f"{engine}{name}{load}" for load in loads for engine in (f"{deployment.engine}: ", "")]
    entry = next(classes[key] for key in keys if key in classes)
    return MeanError(
        error_class=name,
        tpot_frac=(entry["tpot_frac"][0], entry["tpot_frac"][1]),
        ttft_frac=(entry["ttft_frac"][0], entry["ttft_frac"][1]),
        num_runs=entry["num_runs"],
    )


def _group_error(deployment: Deployment, saturated: bool) -> MeanError:
    """TTFT as a prefill instance's, TPOT as a decode instance's, neither smaller than that of measured groups."""
    found = read_facts(GROUP_ERRORS)["groups"]

    def seen(name: str) -> float:
        return found[name].number({"-": 1.0, "runs": 1.0}, f"{GROUP_ERRORS}: {name}")

    def hull(of: Interval, name: str) -> Interval:
        return min(of[0], seen(f"{name}_low")), max(of[1], seen(f"{name}_high"))

    prefill, decode = (mean_error(deployment.pool(role), saturated=saturated) for role in ROLES)
    return MeanError(
        error_class="groups",
        tpot_frac=hull(decode.tpot_frac, "tpot"),
        ttft_frac=hull(prefill.ttft_frac, "ttft"),
        num_runs=int(seen("num_runs")),
    )


def _widened(interval: Interval) -> Interval:
    """An interval widened by the assumed error of a drafter, in quadrature on logarithms."""
    tail = 1.645 * DRAFTER_ERROR
    low, high = (math.copysign(math.hypot(log, tail), log) for log in map(math.log, interval))
    return math.exp(low), math.exp(high)


def nearest_runs(deployment: Deployment, limit: int = 3) -> tuple[MeasuredRuns, ...]:
    """Measured runs most like a deployment, nearest first, at most ``limit``.

    Another engine counts most, then another GPU, model, precision and parallelism.
    """
    own = {
        "engine": deployment.engine,
        "gpu": deployment.gpu.name,
        "model": deployment.model.name,
        "precision": precision_text(deployment),
        "parallelism": parallelism_text(deployment),
    }
    weights = {"engine": 16, "gpu": 8, "model": 4, "precision": 2, "parallelism": 1}

    def differs(run: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(name for name, value in own.items() if run[name] != value)

    found = sorted(validation()["runs"], key=lambda run: sum(weights[name] for name in differs(run)))
    return tuple(MeasuredRuns(**run, source=validation()["source"], differs=differs(run)) for run in found[:limit])


def precision_text(deployment: Deployment) -> str:
    """Precision of weights and KV cache, e.g. ``fp8/bf16``."""
    return f"{deployment.precision.weights}/{deployment.precision.kv}"


def parallelism_text(deployment: Deployment) -> str:
    """How a replica is spread, e.g. ``TP4 EP4``."""
    p = deployment.parallelism
    sizes = (
        ("TP", p.tensor_parallel_size),
        ("PP", p.pipeline_parallel_size),
        ("DP", p.data_parallel_size),
        ("EP", p.expert_parallel_size),
    )
    return " ".join(f"{name}{size}" for name, size in sizes if size > 1 or name == "TP")
