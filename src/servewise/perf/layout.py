"""The matrices one GPU multiplies by in a forward pass, and in which precision they are stored."""

from __future__ import annotations

from dataclasses import dataclass

from servewise.engines import trtllm
from servewise.errors import InputError
from servewise.types import (
    CacheType,
    Deployment,
    EngineName,
    GpuSpec,
    KvPrecision,
    LlamacppParams,
    ModelSpec,
    Parallelism,
    WeightPrecision,
)

__all__ = [
    "GGUF_PRECISIONS",
    "Experts",
    "Matrix",
    "bytes_per_weight",
    "compute_type",
    "expert_layer",
    "head_precision",
    "kv_element_bytes",
    "layer_matrices",
    "local_heads",
    "require_supported",
    "unvalidated",
]

SCALE_BYTES: dict[WeightPrecision, float] = {
    "bf16": 0.0,
    "fp8": 0.0,
    "int8": 0.0,
    "fp8_block": 4.0 / (128 * 128),
    "int4": 2.5 / 128,
    "nvfp4": 1.0 / 16,
    "mxfp4": 1.0 / 32,
    "q8_0": 2.0 / 32,
    "q4_0": 2.0 / 32,
    "q4_k_m": 4.8944 / 8 - 0.5,
}
"""Scales (and AWQ's zero points) per weight [bytes]: one f32 a 128x128 block, one f16 and a 4-bit zero point
a group of 128, one byte a group of 16 or 32. Scales per channel are below 0.1% and left out.

GGUF's blocks of 32 weights have one f16 scale (``ggml/src/ggml-common.h``: 34 bytes for Q8_0, 18 for Q4_0). Q4_K_M
mixes Q4_K (144 bytes for 256 weights) and Q6_K (210): 4.8944 bits a weight of Llama-3.1-8B, embedding included
(ggml-org/llama.cpp ``tools/quantize/README.md``)."""
STORED_BYTES: dict[WeightPrecision, float] = {
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "int8": 1.0,
    "int4": 0.5,
    "nvfp4": 0.5,
    "mxfp4": 0.5,
    "q8_0": 1.0,
    "q4_0": 0.5,
    "q4_k_m": 0.5,
}
"""A weight without its scales [bytes]."""
COMPUTE_TYPES: dict[WeightPrecision, str] = {
    "bf16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "int8": "int8",
    "int4": "bf16",
    "nvfp4": "fp4",
    "mxfp4": "bf16",
    "q8_0": "bf16",
    "q4_0": "bf16",
    "q4_k_m": "bf16",
}
"""Matrix type a GPU needs to compute in the stored precision; ``int4`` and ``mxfp4`` compute in bf16. llama.cpp
multiplies GGUF blocks as 8-bit integers, at a rate that is known as a share of the bf16 peak."""
KV_BYTES: dict[KvPrecision, float] = {"bf16": 2.0, "fp8": 1.0}
CACHE_BYTES: dict[CacheType, float] = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
"""An element of a KV cache [bytes]; llama.cpp's blocks of 32 have one f16 scale (``ggml/src/ggml-common.h``)."""
GGUF_PRECISIONS: tuple[WeightPrecision, ...] = ("q8_0", "q4_0", "q4_k_m")
"""Precisions that only llama.cpp reads."""
LLAMACPP_PRECISIONS: tuple[WeightPrecision, ...] = ("bf16", *GGUF_PRECISIONS, "mxfp4")
"""Precisions that llama.cpp reads: F16 or BF16, Q8_0, Q4_0, Q4_K_M, MXFP4 (gpt-oss)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A weight matrix of every layer of one kind, as one GPU holds it.

    Parameters
    ----------
    module : str
        ``attention``, ``dense_mlp``, ``shared_experts`` or ``router``.
    num_outputs, num_inputs : int
        Its shape on one GPU.
    num_layers : int
        Layers that have it.
    precision : WeightPrecision
    """

    module: str
    num_outputs: int
    num_inputs: int
    num_layers: int
    precision: WeightPrecision


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Routed experts of every layer that has them.

    Parameters
    ----------
    hidden_size, intermediate_size : int
        Shape of a whole expert.
    top_k, num_experts : int
        Of the layer, not of one GPU.
    tensor_parallel_size : int
        GPUs that share each expert.
    expert_parallel_size : int
        Groups of GPUs that the experts are divided among.
    num_layers : int
    precision : WeightPrecision
    gated : bool
    """

    hidden_size: int
    intermediate_size: int
    top_k: int
    num_experts: int
    tensor_parallel_size: int
    num_layers: int
    precision: WeightPrecision
    gated: bool
    expert_parallel_size: int = 1

    @property
    def num_matrices(self) -> int:
        """Matrices of one expert, up, down and perhaps gate."""
        return 3 if self.gated else 2


def bytes_per_weight(precision: WeightPrecision) -> float:
    """Stored size of a weight with its scales [bytes]."""
    return STORED_BYTES[precision] + SCALE_BYTES[precision]


def compute_type(gpu: GpuSpec, precision: WeightPrecision) -> str:
    """Matrix type in which this GPU multiplies weights of a precision: its own, or bf16 after unpacking."""
    wanted = COMPUTE_TYPES[precision]
    return wanted if wanted in gpu.peak_flops_per_s else "bf16"


def module_precision(
    model: ModelSpec, weights: WeightPrecision, module: str, engine: EngineName = "vllm"
) -> WeightPrecision:
    """Precision of a module: routers stay in bf16, and so does what the published checkpoint leaves out.

    GGUF files of such checkpoints store the rest in Q8_0 (ggml-org's of gpt-oss).
    """
    if module == "router":
        return "bf16"
    if weights == model.native_precision and module in model.unquantized_modules:
        return "q8_0" if engine == "llama.cpp" and weights != "bf16" else "bf16"
    return weights


def head_precision(weights: WeightPrecision, engine: EngineName) -> WeightPrecision:
    """Precision of the language-model head: bf16, but in quantized GGUF files, which store it in Q8_0 or Q6_K.

    The 6.6 bits of Q6_K, in 4-bit files, are taken as Q8_0's 8.5.
    """
    return "q8_0" if engine == "llama.cpp" and weights != "bf16" else "bf16"


def kv_element_bytes(deployment: Deployment) -> tuple[float, float]:
    """Stored size of an element of the keys and of the values in the KV cache [bytes]."""
    params = deployment.params
    if isinstance(params, LlamacppParams):
        return CACHE_BYTES[params.cache_type_k], CACHE_BYTES[params.cache_type_v]
    return KV_BYTES[deployment.precision.kv], KV_BYTES[deployment.precision.kv]


def local_heads(model: ModelSpec, tensor_parallel_size: int) -> tuple[int, int]:
    """Query and key-value heads of one GPU; key-value heads are replicated when there are fewer than GPUs."""
    return -(-model.num_heads // tensor_parallel_size), max(1, model.num_kv_heads // tensor_parallel_size)


def attention_shapes(model: ModelSpec, tensor_parallel_size: int) -> list[tuple[int, int]]:
    """(outputs, inputs) of one layer's attention matrices on one GPU."""
    hidden = model.hidden_size
    heads, kv_heads = local_heads(model, tensor_parallel_size)
    out = (hidden, heads * model.v_head_dim)
    if model.attention == "gqa":
        return [(heads * model.head_dim + kv_heads * (model.head_dim + model.v_head_dim), hidden), out]
    nope = model.head_dim - model.qk_rope_head_dim
    latent = model.kv_lora_rank + model.qk_rope_head_dim
    up = (heads * (nope + model.v_head_dim), model.kv_lora_rank)
    if model.q_lora_rank == 0:
        return [(heads * model.head_dim, hidden), (latent, hidden), up, out]
    return [(model.q_lora_rank + latent, hidden), (heads * model.head_dim, model.q_lora_rank), up, out]


def layer_matrices(
    model: ModelSpec, weights: WeightPrecision, tensor_parallel_size: int, engine: EngineName = "vllm"
) -> tuple[Matrix, ...]:
    """Matrices of all layers on one GPU, without routed experts, embedding and head.

    Parameters
    ----------
    model : ModelSpec
    weights : WeightPrecision
    tensor_parallel_size : int
    engine : EngineName
        Whose checkpoints decide what is left unquantized.

    Returns
    -------
    tuple of Matrix

    Sources
    -------
    Column- and row-parallel layers as in vLLM's ``model_executor/models`` (0.33.0): low-rank projections of
    MLA and routers are replicated.
    """
    tp, hidden, moe = tensor_parallel_size, model.hidden_size, model.moe
    num_in = 2 if model.gated_mlp else 1
    shapes = [("attention", s, model.num_layers) for s in attention_shapes(model, tp)]

    def mlp(module: str, width: int, num_layers: int) -> None:
        local = -(-width // tp)
        shapes.extend([(module, (num_in * local, hidden), num_layers), (module, (hidden, local), num_layers)])

    num_dense = model.num_layers - (moe.num_moe_layers if moe else 0)
    if num_dense:
        mlp("dense_mlp", model.intermediate_size, num_dense)
    if moe:
        shapes.append(("router", (moe.num_experts, hidden), moe.num_moe_layers))
        if moe.shared_intermediate_size:
            mlp("shared_experts", moe.shared_intermediate_size, moe.num_moe_layers)
    return tuple(
        Matrix(
            module=module,
            num_outputs=shape[0],
            num_inputs=shape[1],
            num_layers=num_layers,
            precision=module_precision(model, weights, module, engine),
        )
        for module, shape, num_layers in shapes
    )


def expert_layer(model: ModelSpec, weights: WeightPrecision, parallelism: Parallelism) -> Experts | None:
    """Routed experts on one GPU, or None for a dense model.

    The tensor and data parallel ranks together share the experts: divided among ``expert_parallel_size`` groups,
    and each split over the GPUs of its group.
    """
    if model.moe is None:
        return None
    ranks = parallelism.tensor_parallel_size * parallelism.data_parallel_size
    return Experts(
        hidden_size=model.hidden_size,
        intermediate_size=model.moe.intermediate_size,
        top_k=model.moe.top_k,
        num_experts=model.moe.num_experts,
        tensor_parallel_size=max(1, ranks // parallelism.expert_parallel_size),
        expert_parallel_size=parallelism.expert_parallel_size,
        num_layers=model.moe.num_moe_layers,
        precision=weights,
        gated=model.gated_mlp,
    )


def require_readable(deployment: Deployment) -> None:
    """Refuse weights that the engine has no reader for."""
    weights, engine = deployment.precision.weights, deployment.engine
    if engine == "llama.cpp" and weights not in LLAMACPP_PRECISIONS:
        raise InputError(
            f"llama.cpp has no weights in {weights}; allowed: {', '.join(LLAMACPP_PRECISIONS)} "
            "(F16, Q8_0, Q4_0, Q4_K_M, MXFP4)"
        )
    if engine == "llama.cpp" and deployment.precision.kv != "bf16":
        raise InputError(
            f"llama.cpp has no KV cache in {deployment.precision.kv}; set cache_type_k and cache_type_v "
            "(kv_cache_type for Ollama), and leave the precision's at bf16"
        )
    if engine != "llama.cpp" and weights in GGUF_PRECISIONS:
        raise InputError(
            f"{weights} is a GGUF type, which {engine} is not planned with; use llama.cpp, or int4, int8 or fp8"
        )


def require_supported(deployment: Deployment) -> None:
    """Refuse weights that the engine cannot read, and parallelism that makes no sense or that the model of memory and
    time does not cover.

    Raises
    ------
    InputError
        Naming the field, its value and what is allowed.
    """
    parallelism, model, node = deployment.parallelism, deployment.model, deployment.gpu.gpus_per_node
    size, ranks = parallelism.tensor_parallel_size, parallelism.data_parallel_size
    if deployment.disaggregation is not None:
        raise InputError("memory and step times are those of one pool; ask for deployment.pool('prefill') or 'decode'")
    require_readable(deployment)
    require_drafter(deployment)
    if not (1 <= size <= node or (size % node == 0 and size <= model.num_heads)):
        raise InputError(
            f"tensor_parallel_size {size} is neither within one node of {deployment.gpu.name} nor made of whole ones; "
            f"allowed: 1 to {node}, and multiples of {node} up to the {model.num_heads} heads of {model.name}"
        )
    if not 1 <= parallelism.pipeline_parallel_size <= model.num_layers:
        raise InputError(
            f"pipeline_parallel_size {parallelism.pipeline_parallel_size} cuts the {model.num_layers} layers of "
            f"{model.name} into empty stages; allowed: 1 to {model.num_layers}"
        )
    if ranks < 1 or (ranks > 1 and model.moe is None):
        raise InputError(
            f"data_parallel_size {ranks}: only models with experts run data parallel ranks in lock step; "
            "use num_replicas for independent copies"
        )
    if deployment.engine == "tensorrt-llm":
        trtllm.validate_parallelism(parallelism)
    experts = parallelism.expert_parallel_size
    if experts < 1 or (experts > 1 and (model.moe is None or (size * ranks) % experts)):
        raise InputError(
            f"expert_parallel_size {experts} does not divide the {size * ranks} ranks of a model with experts; "
            "use a divisor of tensor_parallel_size * data_parallel_size"
        )
    if parallelism.expert_all_to_all and (ranks == 1 or experts != size * ranks):
        raise InputError(
            f"expert_all_to_all needs data parallel ranks and experts divided among all {size * ranks} of their GPUs, "
            f"got data_parallel_size {ranks} and expert_parallel_size {experts}"
        )


def require_drafter(deployment: Deployment) -> None:
    """Refuse a drafter that the engine could not run beside the model, or whose time is not covered.

    Sources
    -------
    vLLM 0.33.0, ``config/speculative.py``: a draft model needs the model's vocabulary.
    """
    known, model = deployment.speculation, deployment.model
    if known is None:
        return
    if deployment.engine != "vllm":
        raise InputError(f"speculative decoding of {deployment.engine!r} is not covered; use vllm")
    if deployment.parallelism.num_gpus > deployment.parallelism.tensor_parallel_size:
        raise InputError("speculative decoding with data parallel ranks or pipeline stages is not covered")
    if known.method == "mtp" and model.mtp_num_params == 0:
        raise InputError(f"{model.name} has no layer that predicts further tokens (mtp); use another method")
    if known.draft_model is not None and known.draft_model.vocab_size != model.vocab_size:
        raise InputError(
            f"draft model {known.draft_model.name} has {known.draft_model.vocab_size} tokens in its vocabulary, "
            f"{model.name} {model.vocab_size}; they must be the same"
        )


def unvalidated(deployment: Deployment) -> tuple[str, ...]:
    """What about this deployment no public run was compared with, in words."""
    parallelism, notes = deployment.parallelism, []
    if deployment.engine == "tgi":
        notes.append(
            "assumed: TGI's kernels take what vLLM's take, and the time of its host, which adds to every forward, is "
            "a guess: nothing was measured on TGI (see docs/step-model.md)"
        )
    if parallelism.pipeline_parallel_size > 1:
        notes.append("unvalidated: no public run under load with pipeline parallelism was available to compare with")
    if parallelism.data_parallel_size > 1:
        notes.append("unvalidated: few public runs with data parallel attention were available to compare with")
    if deployment.speculation is not None:
        notes.append("unvalidated: no public run with speculative decoding was available to compare with")
    if deployment.model.attention == "mla":
        notes.append("unvalidated: no public run of a model with latent attention was available to compare with")
    return tuple(notes)
