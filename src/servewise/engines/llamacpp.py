"""llama.cpp's llama-server: defaults and what it refuses. It captures no batch sizes.

The figures live in ``servewise/data/engines/llamacpp.toml`` with their sources.
"""

from __future__ import annotations

from dataclasses import dataclass

from servewise.engines import facts
from servewise.engines.launch import Launch, checked_name
from servewise.errors import InputError
from servewise.types import Deployment, GpuSpec, LlamacppParams, ModelSpec, Parallelism, Provenance

__all__ = [
    "HostRates",
    "default_params",
    "default_version",
    "host_layers",
    "host_provenance",
    "host_rates",
    "launch",
    "launch_args",
    "library_gib",
    "provenance",
    "validate",
    "validate_cache",
    "validate_layers",
]

ENGINE = "llamacpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRates:
    """What the host of a GPU does a second; batches of ``copy_tokens`` are computed by the GPU."""

    memory_bytes_per_s: float
    copy_bytes_per_s: float
    flops_per_s: float
    copy_tokens: int


def default_version() -> str:
    """Build of llama.cpp that is planned for when none is named."""
    return facts.default_version(ENGINE)


def provenance(version: str) -> Provenance:
    """Origin of a build's defaults."""
    return facts.cited(ENGINE, facts.range_of(ENGINE, version)["source"])


def library_gib(gpu: GpuSpec, num_gpus: int) -> tuple[float, Provenance]:
    """Driver context and communication buffers of one GPU [GiB] with ``num_gpus`` sharing each layer."""
    return facts.library_gib(ENGINE, gpu, num_gpus)


def default_params(
    version: str, gpu: GpuSpec, model: ModelSpec, parallelism: Parallelism | None = None
) -> LlamacppParams:
    """Parameters of ``llama-server`` when no option is given.

    Parameters
    ----------
    version : str
        Build, such as ``b10488``.
    gpu : GpuSpec
    model : ModelSpec
    parallelism : Parallelism or None
        The defaults depend neither on it nor on the GPU.

    Returns
    -------
    LlamacppParams
        ``ctx_size`` is the model's whole context; ``llama-server`` lowers it until it fits.

    Raises
    ------
    InputError
        When the build is unknown.

    Sources
    -------
    ``servewise/data/engines/llamacpp.toml``.
    """
    del gpu, parallelism
    known = facts.range_of(ENGINE, version)
    return LlamacppParams(
        ctx_size=model.max_context_tokens,
        parallel=known["parallel"],
        batch_size=known["batch_size"],
        ubatch_size=known["ubatch_size"],
        kv_unified=known["kv_unified"],
        cache_ram_mib=known["cache_ram_mib"],
    )


def validate(params: LlamacppParams, model: ModelSpec) -> None:
    """Check that llama-server would accept the parameters.

    Raises
    ------
    InputError
        Naming the parameter, its value and what is allowed.
    """
    for name in ("ctx_size", "parallel", "batch_size", "ubatch_size"):
        if getattr(params, name) < 1:
            raise InputError(f"{name} is {getattr(params, name)}; it must be at least 1")
    validate_cache(params.cache_ram_mib)
    if params.ubatch_size > params.batch_size:
        raise InputError(f"ubatch_size {params.ubatch_size} is above batch_size {params.batch_size}; lower it")
    longest = params.ctx_size // params.parallel if params.is_split else 0  # shared cells may be any number
    if longest > model.max_context_tokens:
        raise InputError(
            f"ctx_size gives a slot {longest} tokens, more than the {model.max_context_tokens} tokens of context "
            f"{model.name} supports; lower it"
        )
    validate_layers(params.n_gpu_layers, "n_gpu_layers", model)


def validate_cache(cache_ram_mib: int) -> None:
    """Check the size of the prompt cache in the host's memory.

    Raises
    ------
    InputError
        When it is negative; llama-server takes -1 for no limit, which is not simulated.
    """
    if cache_ram_mib < 0:
        raise InputError(f"cache_ram_mib is {cache_ram_mib}; it must be 0 (no cache) or more")


def validate_layers(num_gpu_layers: int, name: str, model: ModelSpec) -> None:
    """Check a number of layers on the GPU, of which the output is one; -1 is all.

    Raises
    ------
    InputError
        Naming the parameter, its value and what is allowed.
    """
    if not -1 <= num_gpu_layers <= model.num_layers + 1:
        raise InputError(
            f"{name} is {num_gpu_layers}; allowed: 0 to {model.num_layers + 1} for {model.name}, or -1 for all"
        )


def host_layers(num_gpu_layers: int, model: ModelSpec) -> tuple[int, bool]:
    """Layers that stay on the host, and whether the output does; the last layers go to the GPU, the output first.

    Sources
    -------
    llama.cpp as vendored in llama-cpp-python 0.3.36, ``src/llama-model.cpp``: ``i_gpu_start``.
    """
    if num_gpu_layers < 0:
        return 0, False
    return min(model.num_layers + 1 - num_gpu_layers, model.num_layers), num_gpu_layers == 0


def host_rates() -> HostRates:
    """Rates of the host, which are assumed."""
    host = facts.document(ENGINE)["host"]
    return HostRates(
        memory_bytes_per_s=1e9 * host["memory_gb_per_s"],
        copy_bytes_per_s=1e9 * host["copy_gb_per_s"],
        flops_per_s=1e12 * host["tflops_per_s"],
        copy_tokens=host["copy_tokens"],
    )


def host_provenance() -> Provenance:
    """Origin of the host's rates."""
    return facts.cited(ENGINE, facts.document(ENGINE)["host"]["source"])


def launch_args(params: LlamacppParams) -> tuple[str, ...]:
    """Options of ``llama-server`` for these parameters, without the model, host and port."""
    layers = () if params.n_gpu_layers < 0 else ("--n-gpu-layers", str(params.n_gpu_layers))
    return (
        "--ctx-size",
        str(params.ctx_size),
        "--parallel",
        str(params.parallel),
        "--kv-unified" if params.kv_unified else "--no-kv-unified",
        "--batch-size",
        str(params.batch_size),
        "--ubatch-size",
        str(params.ubatch_size),
        "--cache-type-k",
        params.cache_type_k,
        "--cache-type-v",
        params.cache_type_v,
        "--context-shift" if params.context_shift else "--no-context-shift",
        "--cache-ram",
        str(params.cache_ram_mib),
        *layers,
    )


def launch(deployment: Deployment) -> Launch:
    """What starts one server; its model is a GGUF file.

    Raises
    ------
    InputError
        When llama-server would refuse the parameters, or the file's name would be read as an option.
    """
    params = deployment.params
    if not isinstance(params, LlamacppParams):
        raise InputError(f"these are not llama.cpp's parameters: {params}")
    validate(params, deployment.model)
    return Launch(
        args=["llama-server", "--model", checked_name(deployment.model.name, "llama-server"), *launch_args(params)]
    )
