"""The drafter of a deployment with speculative decoding, as a deployment of its own."""

from __future__ import annotations

from dataclasses import replace

from servewise.perf.memory_weights import layers_bytes, weights_bytes
from servewise.types import Deployment, Precision, VllmParams

__all__ = ["drafter_of", "drafter_weights_bytes"]


def drafter_of(deployment: Deployment) -> Deployment | None:
    """What runs a drafter's passes: the draft model, or one layer of the model; None without passes of its own.

    It is sharded as the model is (vLLM's default). A draft model has the precision of its checkpoint.
    """
    known, params = deployment.speculation, deployment.params
    if known is None or known.method == "ngram" or not isinstance(params, VllmParams):
        return None
    model, weights = deployment.model, deployment.precision.weights
    if known.draft_model is not None:
        model, weights = known.draft_model, known.draft_model.native_precision
    else:
        # assumed: published EAGLE heads and MTP modules have one decoder layer of the model's shape
        experts = None if model.moe is None or model.moe.num_moe_layers == 0 else replace(model.moe, num_moe_layers=1)
        model = replace(model, num_layers=1, num_sliding_layers=0, sliding_window_tokens=0, moe=experts)
        if known.method == "eagle":  # assumed: heads are trained and published in bf16
            model, weights = replace(model, native_precision="bf16", unquantized_modules=()), "bf16"
    return replace(
        deployment,
        model=model,
        precision=Precision(weights=weights, kv=deployment.precision.kv),
        params=replace(params, max_model_len=min(params.max_model_len, model.max_context_tokens)),
        speculation=None,
    )


def drafter_weights_bytes(deployment: Deployment) -> int:
    """Weights of the drafter on one GPU [bytes]; a head shares the model's embedding and output layer."""
    drafter = drafter_of(deployment)
    if drafter is None:
        return 0
    if deployment.speculation is not None and deployment.speculation.method == "draft_model":
        return weights_bytes(drafter.model, drafter.precision.weights, drafter.parallelism)
    return int(layers_bytes(drafter.model, drafter.precision.weights, drafter.parallelism, 1))
