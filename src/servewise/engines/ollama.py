"""Ollama: defaults by version and GPU memory, the ``llama-server`` that it starts, and its environment.

The figures live in ``servewise/data/engines/ollama.toml`` with their sources.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from servewise.engines import facts, llamacpp
from servewise.engines.launch import Launch, checked_name
from servewise.errors import InputError
from servewise.types import (
    Deployment,
    GpuSpec,
    LlamacppParams,
    ModelSpec,
    OllamaParams,
    Parallelism,
    Provenance,
    WeightPrecision,
)
from servewise.units import GIB

__all__ = [
    "MAX_OUTPUT_CONTEXTS",
    "NUM_KEEP",
    "as_llama_server",
    "default_params",
    "default_version",
    "environment",
    "launch",
    "load_provenance",
    "load_s",
    "model_parameters",
    "needs_quantized_checkpoint",
    "provenance",
    "validate",
]

ENGINE = "ollama"
NUM_KEEP = 4
"""Tokens at the start that a context shift keeps (``api.DefaultOptions``)."""
MAX_OUTPUT_CONTEXTS = 10
"""An output is at most so many contexts long (``openEndedGenerationContextMultiplier`` in ``llm/llama_server.go``)."""


def default_version() -> str:
    """Release of Ollama that is planned for when none is named."""
    return facts.default_version(ENGINE)


def provenance(version: str) -> Provenance:
    """Origin of a release's defaults."""
    return facts.cited(ENGINE, facts.range_of(ENGINE, version)["source"])


def default_params(
    version: str, gpu: GpuSpec, model: ModelSpec, parallelism: Parallelism | None = None
) -> OllamaParams:
    """Parameters of ``ollama serve`` when nothing is set.

    Parameters
    ----------
    version : str
        Release, such as ``0.33.0``.
    gpu : GpuSpec
    model : ModelSpec
    parallelism : Parallelism or None
        Memory of all GPUs decides the context.

    Returns
    -------
    OllamaParams

    Raises
    ------
    InputError
        When the release is older than the first one described.

    Sources
    -------
    ``servewise/data/engines/ollama.toml``.
    """
    known = facts.range_of(ENGINE, version)
    memory_gib = gpu.mem_bytes * (parallelism.num_gpus if parallelism else 1) / GIB
    tokens = next(int(tokens) for least, tokens in known["context_tiers"] if memory_gib >= least)
    context = min(tokens, model.max_context_tokens)
    return OllamaParams(
        num_parallel=known["num_parallel"],
        context_length=context,
        num_batch=next(batch for most, batch in known["batch_tiers"] if context <= most),
        keep_alive_s=known["keep_alive_s"],
        cache_ram_mib=known["cache_ram_mib"],
    )


def as_llama_server(deployment: Deployment) -> Deployment:
    """The ``llama-server`` that an Ollama deployment runs; another engine's deployment as it is."""
    params = deployment.params
    if not isinstance(params, OllamaParams):
        return deployment
    server = LlamacppParams(
        ctx_size=params.context_length * params.num_parallel,
        parallel=params.num_parallel,
        batch_size=params.num_batch,
        ubatch_size=params.num_batch,
        kv_unified=False,
        cache_type_k=params.kv_cache_type,
        cache_type_v=params.kv_cache_type,
        n_gpu_layers=params.num_gpu,
        context_shift=params.context_shift,
        cache_ram_mib=params.cache_ram_mib,
    )
    version = str(facts.document(ENGINE)["llamacpp_version"])
    return replace(deployment, engine="llama.cpp", engine_version=version, params=server)


def load_s(weights_bytes: int) -> float:
    """Time until a model that was unloaded is back [s]."""
    return weights_bytes / (float(facts.document(ENGINE)["load"]["gib_per_s"]) * GIB)


def load_provenance() -> Provenance:
    """Origin of the rate at which models are loaded."""
    return facts.cited(ENGINE, facts.document(ENGINE)["load"]["source"])


def validate(params: OllamaParams, model: ModelSpec) -> None:
    """Check that Ollama, and the server it starts, would accept the parameters.

    Raises
    ------
    InputError
        Naming the parameter, its value and what is allowed.
    """
    for name in ("num_parallel", "context_length", "num_batch"):
        if getattr(params, name) < 1:
            raise InputError(f"{name} is {getattr(params, name)}; it must be at least 1")
    if params.keep_alive_s is not None and not 0.0 <= params.keep_alive_s < math.inf:
        raise InputError(f"keep_alive_s is {params.keep_alive_s}; it must be 0 or more, or None for ever")
    if params.context_length > model.max_context_tokens:
        raise InputError(
            f"context_length {params.context_length} is more than the {model.max_context_tokens} tokens of context "
            f"{model.name} supports; lower it"
        )
    llamacpp.validate_cache(params.cache_ram_mib)
    llamacpp.validate_layers(params.num_gpu, "num_gpu", model)


def environment(params: OllamaParams) -> Mapping[str, str]:
    """Variables for ``ollama serve``, and for the ``llama-server`` that inherits them."""
    return {
        "OLLAMA_NUM_PARALLEL": str(params.num_parallel),
        "OLLAMA_CONTEXT_LENGTH": str(params.context_length),
        "OLLAMA_KV_CACHE_TYPE": params.kv_cache_type,
        "OLLAMA_KEEP_ALIVE": "-1" if params.keep_alive_s is None else f"{params.keep_alive_s:g}s",
        "LLAMA_ARG_CACHE_RAM": str(params.cache_ram_mib),
    }


def model_parameters(params: OllamaParams) -> Mapping[str, str]:
    """``PARAMETER`` lines of a Modelfile, for what has no variable."""
    found = {"num_batch": str(params.num_batch)}
    if params.num_gpu >= 0:
        found["num_gpu"] = str(params.num_gpu)
    return found


def needs_quantized_checkpoint(model: ModelSpec, weights: WeightPrecision) -> bool:
    """Whether a file has to be made or found: always, Ollama serves GGUF."""
    del model, weights
    return True


def launch(deployment: Deployment) -> Launch:
    """What starts one replica: the server with its environment, and the Modelfile that ``ollama create`` reads.

    Raises
    ------
    InputError
        When Ollama would refuse the parameters, or the model's name would be read as an option.
    """
    params = deployment.params
    if not isinstance(params, OllamaParams):
        raise InputError(f"these are not Ollama's parameters: {params}")
    validate(params, deployment.model)
    source = checked_name(deployment.model.name, "a Modelfile")
    if '"' in source or source != source.strip():  # its quotes may hold several lines, and it trims
        raise InputError(f"model name {source!r} cannot stand in a Modelfile; use one without quotes or outer spaces")
    lines = [f"FROM {source}"]
    lines += [f"PARAMETER {name} {value}" for name, value in model_parameters(params).items()]
    return Launch(args=["ollama", "serve"], env=environment(params), files={"Modelfile": "\n".join(lines) + "\n"})
