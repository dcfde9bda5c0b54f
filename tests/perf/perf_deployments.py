"""Deployments that the tests of memory and time share."""

from __future__ import annotations

from dataclasses import replace

from servewise.catalog import get_gpu, get_model
from servewise.engines import vllm
from servewise.types import Deployment, KvPrecision, Parallelism, Precision, WeightPrecision


def deploy(
    model: str = "meta-llama/Llama-3.1-70B-Instruct",
    gpu: str = "H100-SXM-80GB",
    tp: int = 1,
    weights: WeightPrecision = "bf16",
    kv: KvPrecision = "bf16",
    version: str = "0.33.0",
    **params: object,
) -> Deployment:
    """vLLM's defaults with ``max_model_len`` 8192 and other parameters as named."""
    spec, card = get_model(model), get_gpu(gpu)
    changes: dict[str, object] = {"max_model_len": min(8192, spec.max_context_tokens), **params}
    return Deployment(
        model=spec,
        gpu=card,
        engine="vllm",
        engine_version=version,
        precision=Precision(weights=weights, kv=kv),
        parallelism=Parallelism(tensor_parallel_size=tp),
        params=replace(vllm.default_params(version, card, spec), **changes),  # type: ignore[arg-type]
    )
