"""How a checkpoint stores its linear layers, read from ``quantization_config``."""

from __future__ import annotations

import re

from servewise.catalog.fields import ConfigFields
from servewise.types import WeightPrecision

__all__ = ["SUPPORTED_METHODS", "read_quantization"]

SUPPORTED_METHODS = ("fp8", "awq", "gptq", "compressed-tensors", "modelopt", "mxfp4")
"""Values of ``quant_method`` that are understood."""

INT4_GROUP = 128
"""Group of the int4 precision; other groups store another number of scales."""
INT4_GROUPS = (32, INT4_GROUP)
"""Groups of compressed-tensors that are taken for int4. Kimi's groups of 32 store 8% more than is counted."""


def read_quantization(
    config: ConfigFields, *, num_layers: int, num_dense_layers: int, is_moe: bool
) -> tuple[WeightPrecision, tuple[str, ...]]:
    """Precision of a checkpoint and the modules it keeps in bf16.

    Parameters
    ----------
    config : ConfigFields
        The whole config; without ``quantization_config`` the checkpoint is taken as bf16.
    num_layers, num_dense_layers : int
        All layers, and those with a dense MLP.
    is_moe : bool

    Returns
    -------
    (WeightPrecision, tuple of str)
        See ``ModelSpec.native_precision`` and ``ModelSpec.unquantized_modules``.

    Raises
    ------
    InputError
        For a method, width or exception that no precision of servewise describes.
    """
    if "quantization_config" not in config:
        return "bf16", ()
    quant = config.section("quantization_config")
    method = quant.text("quant_method")
    if method not in SUPPORTED_METHODS:
        raise quant.error("quant_method", f"got {method!r}, supported: {', '.join(SUPPORTED_METHODS)}")
    precision = PRECISION_READERS[method](quant)
    names = quant.texts("modules_to_not_convert", ()) + quant.texts("ignore", ()) + quant.texts("ignored_layers", ())
    return precision, unquantized(quant, names, num_layers=num_layers, num_dense_layers=num_dense_layers, is_moe=is_moe)


def read_fp8(quant: ConfigFields) -> WeightPrecision:
    """fp8, per block when the block is 128 x 128."""
    block = quant.integers("weight_block_size", ())
    if not block:
        return "fp8"
    if block != (128, 128):
        raise quant.error("weight_block_size", f"got {list(block)}, supported: [128, 128]")
    return "fp8_block"


def read_int4(quant: ConfigFields) -> WeightPrecision:
    """AWQ or GPTQ, 4 bits in groups of 128."""
    bits = quant.integer("bits", high=16)
    if bits != 4:
        raise quant.error("bits", f"got {bits}, supported: 4 (weight-only 8 bit is not modelled)")
    group = quant.integer("group_size", low=-1)
    if group != INT4_GROUP:
        raise quant.error("group_size", f"got {group}, supported: {INT4_GROUP}")
    return "int4"


def read_mxfp4(quant: ConfigFields) -> WeightPrecision:
    """gpt-oss's own format; nothing in it varies."""
    del quant
    return "mxfp4"


def read_modelopt(quant: ConfigFields) -> WeightPrecision:
    """NVIDIA ModelOpt."""
    algorithm = quant.text("quant_algo").upper()
    known: dict[str, WeightPrecision] = {"FP8": "fp8", "NVFP4": "nvfp4"}
    if algorithm not in known:
        raise quant.error("quant_algo", f"got {algorithm!r}, supported: {', '.join(known)}")
    return known[algorithm]


def read_compressed_tensors(quant: ConfigFields) -> WeightPrecision:
    """llm-compressor: one group of layers with one scheme."""
    groups = quant.section("config_groups")
    group = groups.section("group_0")
    if "group_1" in groups:
        raise groups.error("group_1", "a mix of schemes is not modelled; supported: one group")
    weights = group.section("weights")
    bits, kind = weights.integer("num_bits", high=16), weights.text("type")
    strategy = weights.text("strategy", "tensor")
    group_size = weights.integer("group_size", 0, low=-1)
    if (bits, kind) == (8, "float"):
        return "fp8_block" if strategy == "block" else "fp8"
    if (bits, kind) == (8, "int") and "input_activations" in group:
        return "int8"
    if (bits, kind) == (4, "int") and group_size in INT4_GROUPS:
        return "int4"
    if (bits, kind, group_size) == (4, "float", 16):
        return "nvfp4"
    if (bits, kind, group_size) == (4, "float", 32):
        return "mxfp4"
    raise weights.error(
        "num_bits",
        f"{bits}-bit {kind} weights with group_size {group_size} are not modelled; supported: 8-bit float, "
        f"8-bit int with quantized activations, 4-bit int in groups of 32 or {INT4_GROUP}, 4-bit float in groups "
        "of 16 (nvfp4) or 32 (mxfp4)",
    )


PRECISION_READERS = {
    "fp8": read_fp8,
    "awq": read_int4,
    "gptq": read_int4,
    "mxfp4": read_mxfp4,
    "modelopt": read_modelopt,
    "compressed-tensors": read_compressed_tensors,
}

MODULE_PATTERNS = {
    "attention": re.compile(r"self_attn|\battn\b"),
    "shared_experts": re.compile(r"shared_expert"),
    "dense_mlp": re.compile(r"\bmlp\b(?!.*(gate\b|router|expert))|\b(gate|up|gate_up|down)_proj\b"),
}
LAYER_INDEX = re.compile(r"layers\.(\d+)")
ALWAYS_BF16 = re.compile(
    r"norm|embed|lm_head|vision|visual|multi_modal_projector|mtp|eh_proj|router|\bgate\b|shared_expert_gate"
)
ROUTED_EXPERTS = re.compile(r"\bexperts\b")


def unquantized(
    quant: ConfigFields, names: tuple[str, ...], *, num_layers: int, num_dense_layers: int, is_moe: bool
) -> tuple[str, ...]:
    """Map the checkpoint's exceptions to the modules of a ModelSpec; routers are always exceptions."""
    layers_seen: dict[str, set[str]] = {}
    for name in names:
        index = LAYER_INDEX.search(name)
        is_mtp = index is not None and int(index.group(1)) >= num_layers
        if is_mtp or ALWAYS_BF16.search(name):
            continue
        module = next((m for m, pattern in MODULE_PATTERNS.items() if pattern.search(name)), None)
        if module is None or ROUTED_EXPERTS.search(name):
            raise quant.error("ignore", f"keeping {name!r} in bf16 is not modelled; nothing is guessed about it")
        layers_seen.setdefault(module, set()).add(index.group(1) if index else "*")
    for module, layers in layers_seen.items():
        expected = num_dense_layers if module == "dense_mlp" else num_layers
        if module == "shared_experts":
            expected = num_layers - num_dense_layers
        if "*" not in layers and len(layers) < expected:
            raise quant.error(
                "ignore",
                f"keeps {module} in bf16 in {len(layers)} of {expected} layers; supported: in all or in none",
            )
    modules = [m for m in ("attention", "dense_mlp", "shared_experts") if m in layers_seen]
    return (*modules, "router") if is_moe else tuple(modules)
