"""What an engine adds to its operators: launches, scheduling, sampling, and the way of a request to it and back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from servewise.engines import tgi
from servewise.types import Deployment, Provenance, VllmParams

__all__ = ["Assumed", "Overheads", "assumed", "cell_of", "kernel_of", "levels_of", "overhead_document", "overheads_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """The few parameters of the step-time formula that are fitted to whole serving runs.

    Parameters
    ----------
    layer_us : float [us]
        Gaps between kernels of one layer.
    prefill_layer_us : float [us]
        More of them in a layer of a step with prompt tokens.
    eager_layer_us : float [us]
        Launching the kernels of one layer without a CUDA graph: such a step takes no less than this a layer.
    expert_layer_us : float [us]
        Routing, sorting and gathering around the experts of one layer, beyond the tables.
    step_ms : float [ms]
        Of every step.
    row_us : float [us]
        Sampling and output of one row that the GPU waits for.
    prompt_token_us : float [us]
        Input processing of one prompt token inside the engine.
    elementwise_scale, weights_scale, compute_scale, collective_scale, attention_scale : float
        Corrections of memory traffic between the operators; of matrix products and experts, where reading weights
        limits them and where arithmetic does; of collectives; and of attention.
    request_ms : float [ms]
    request_us_per_input_token : float [us]
        Network, tokenizer and API server, once a request.
    """

    layer_us: float
    prefill_layer_us: float
    eager_layer_us: float
    expert_layer_us: float
    step_ms: float
    row_us: float
    prompt_token_us: float
    elementwise_scale: float
    weights_scale: float
    compute_scale: float
    collective_scale: float
    attention_scale: float
    request_ms: float
    request_us_per_input_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """Constants that nothing was fitted to; their reasons are in ``overheads.json``.

    ``expert_imbalance_scale`` is how much longer than in the measured tables, whose routers are skewed, the busiest
    of several groups of experts takes.
    """

    elementwise_bandwidth_frac: float
    expert_imbalance_scale: float
    weight_only_compute_frac: float


@cache
def overhead_document() -> Mapping[str, Any]:
    """Fitted overheads by engine, with their sources."""
    text = resources.files("servewise.data").joinpath("perf/overheads.json").read_text(encoding="utf-8")
    document: Mapping[str, Any] = json.loads(text)
    return document


@cache
def assumed() -> Assumed:
    """Constants that nothing was fitted to."""
    values = overhead_document()["assumed"]
    return Assumed(**{name: float(values[name]) for name in Assumed.__slots__})


def cell_of(deployment: Deployment) -> tuple[str, str, str]:
    """Engine, way of scheduling or version range, and GPU architecture that a deployment's overheads belong to.

    vLLM hides the scheduler's time behind the GPU's when it schedules asynchronously (from 0.14 on by default).
    """
    if isinstance(deployment.params, VllmParams):
        how = "asynchronous" if deployment.params.async_scheduling else "synchronous"
        return deployment.engine, how, deployment.gpu.architecture
    starts: Sequence[str] = overhead_document()["version_ranges"].get(deployment.engine, ["0"])
    version = version_numbers(deployment.engine_version)
    since = max((s for s in starts if version_numbers(s) <= version), key=version_numbers, default=starts[0])
    return deployment.engine, f"from {since}", deployment.gpu.architecture


def kernel_of(deployment: Deployment) -> tuple[str, str, str, str, str]:
    """A cell with precision of the weights and kind of layers: what decides which kernels run."""
    kind = "experts" if deployment.model.moe is not None else "dense"
    return *cell_of(deployment), deployment.precision.weights, kind


def version_numbers(version: str) -> tuple[int, ...]:
    """First three numbers of a version, for comparisons."""
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


def overheads_of(deployment: Deployment) -> tuple[Overheads, Provenance]:
    """Overheads of a deployment: of its engine, version range and GPU architecture where serving runs were fitted,
    else of its engine, else those that all engines share; and where they come from."""
    document = overhead_document()
    for level in levels_of(deployment):
        if level in document["levels"]:
            entry = document["levels"][level]
            values = {name: float(entry["values"][name]) for name in Overheads.__slots__}
            engine, how, architecture, precision, kind = kernel_of(deployment)
            style, table = (engine, how, precision, kind), (architecture, precision, kind)
            for key in (style, table, kernel_of(deployment)):
                for name, scale in document["kernels"].get(" ".join(key), {}).items():
                    values[name] *= float(scale)
            source = Provenance(kind="derived", source=document["source"], note=f"{level}: {entry['note']}")
            return with_host_time(deployment, Overheads(**values), source)
    raise AssertionError("the shared level is always there")


def with_host_time(deployment: Deployment, found: Overheads, source: Provenance) -> tuple[Overheads, Provenance]:
    """Add the time of a host that overlaps nothing with the GPU, where it is not among what was fitted (TGI)."""
    if deployment.engine != "tgi":
        return found, source
    step_ms, row_us, reason = tgi.host_time()
    slower = replace(found, step_ms=found.step_ms + step_ms, row_us=found.row_us + row_us)
    return slower, Provenance(kind="assumed", source=f"{source.source}; {reason.source}", note=source.note)


def levels_of(deployment: Deployment) -> tuple[str, ...]:
    """Names of the levels whose overheads may serve a deployment, the most specific first."""
    engine, how, architecture = cell_of(deployment)
    return f"{engine} {how} on {architecture}", engine, "shared"
