"""What an engine adds to its operators: launches, scheduling, sampling, and the way of a request to it and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from servewise.types import Deployment, Provenance

__all__ = ["Assumed", "Overheads", "assumed", "overhead_document", "overheads_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """The few parameters of the step-time formula that are fitted to whole serving runs.

    Parameters
    ----------
    layer_us : float [us]
        Gaps between kernels of one layer.
    prefill_layer_us : float [us]
        More of them in a layer of a step with prompt tokens.
    step_ms : float [ms]
        Of every step.
    row_us : float [us]
        Scheduling, sampling and output of one row.
    prompt_token_us : float [us]
        Input processing of one prompt token inside the engine.
    elementwise_scale, operator_scale, attention_scale : float
        Corrections of memory traffic between the operators; of matrix products, experts and collectives; and of
        attention.
    request_ms : float [ms]
    request_us_per_input_token : float [us]
        Network, tokenizer and API server, once a request.
    """

    layer_us: float
    prefill_layer_us: float
    step_ms: float
    row_us: float
    prompt_token_us: float
    elementwise_scale: float
    operator_scale: float
    attention_scale: float
    request_ms: float
    request_us_per_input_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """Constants that nothing was fitted to; their reasons are in ``overheads.json``."""

    eager_layer_us: float
    elementwise_bandwidth_frac: float
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


def overheads_of(deployment: Deployment) -> tuple[Overheads, Provenance]:
    """Overheads of a deployment's engine and GPU, and where they come from."""
    entry = overhead_document()["engines"][deployment.engine]
    values = {name: float(entry["shared"][name]) for name in Overheads.__slots__}
    return Overheads(**values), Provenance(kind=entry["kind"], source=entry["source"], note=entry["note"])
