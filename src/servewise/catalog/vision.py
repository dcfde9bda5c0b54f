"""Parameters of the vision towers of multimodal models, from their configs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from servewise.catalog.fields import ConfigFields

__all__ = ["VISION_PARAMS"]

MAX_LAYERS, MAX_PIXELS = 1000, 100000


def layer_params(width: int, mlp: int) -> int:
    """Transformer layer with biases and two layer norms, its MLP ungated."""
    return 4 * (width * width + width) + 2 * width * mlp + mlp + width + 4 * width


def siglip_params(vision: ConfigFields, hidden_size: int) -> int:
    """Gemma 3's SigLIP tower and its projector into the language model."""
    width, mlp = vision.integer("hidden_size"), vision.integer("intermediate_size")
    num_layers, patch = vision.integer("num_hidden_layers", high=MAX_LAYERS), vision.integer("patch_size", high=1000)
    num_patches = (vision.integer("image_size", high=MAX_PIXELS) // patch) ** 2
    embeddings = 3 * patch * patch * width + width + num_patches * width
    projector = width * hidden_size + width
    return embeddings + num_layers * layer_params(width, mlp) + 2 * width + projector


def mllama_params(vision: ConfigFields, hidden_size: int) -> int:
    """Llama 3.2's tower: local and gated global layers, embeddings of tiles and aspect ratios, a projector."""
    width, mlp = vision.integer("hidden_size"), vision.integer("intermediate_size")
    num_layers = vision.integer("num_hidden_layers", high=MAX_LAYERS)
    num_global = vision.integer("num_global_layers", high=MAX_LAYERS)
    patch, tiles = vision.integer("patch_size", high=1000), vision.integer("max_num_tiles", high=100)
    num_patches = (vision.integer("image_size", high=MAX_PIXELS) // patch) ** 2 + 1
    ratios = len(vision.lists("supported_aspect_ratios")) + 1
    layer = layer_params(width, mlp) - 4 * width  # attention without biases
    positions = num_patches * width + ratios * tiles * num_patches * width + 2 * ratios * tiles * width
    output = vision.integer("vision_output_dim")
    return (num_layers + num_global) * layer + positions + 3 * patch * patch * width + output * hidden_size


def pixtral_params(vision: ConfigFields, hidden_size: int) -> int:
    """Pixtral's tower with gated MLPs, and Mistral 3's projector that merges 2 x 2 patches."""
    width, mlp = vision.integer("hidden_size"), vision.integer("intermediate_size")
    num_layers, patch = vision.integer("num_hidden_layers", high=MAX_LAYERS), vision.integer("patch_size", high=1000)
    layer = 4 * width * width + 3 * width * mlp + 2 * width
    projector = width + 4 * width * width + width * hidden_size + hidden_size * hidden_size
    return num_layers * layer + 3 * patch * patch * width + width + projector


def llama4_params(vision: ConfigFields, hidden_size: int) -> int:
    """Llama 4's tower with its pixel-shuffle adapter and projector."""
    width, mlp = vision.integer("hidden_size"), vision.integer("intermediate_size")
    num_layers, patch = vision.integer("num_hidden_layers", high=MAX_LAYERS), vision.integer("patch_size", high=1000)
    num_patches = (vision.integer("image_size", high=MAX_PIXELS) // patch) ** 2 + 1
    inner, output = vision.integer("projector_input_dim"), vision.integer("vision_output_dim")
    adapter = mlp * inner + inner * output + output * hidden_size
    return num_layers * layer_params(width, mlp) + (3 * patch * patch + num_patches + 5) * width + adapter


def moonvit_params(vision: ConfigFields, hidden_size: int) -> int:
    """Kimi's MoonViT and its projector that merges 2 x 2 patches."""
    width, mlp = vision.integer("vt_hidden_size"), vision.integer("vt_intermediate_size")
    num_layers, patch = vision.integer("vt_num_hidden_layers", high=MAX_LAYERS), vision.integer("patch_size", high=1000)
    merged = 4 * width
    projector = merged * merged + merged * hidden_size
    return num_layers * layer_params(width, mlp) + (3 * patch * patch + 64 * 64) * width + projector


# Sources: huggingface/transformers, models/{siglip,gemma3,mllama,pixtral,mistral3,llama4}/modeling_*.py as of release
# 4.57; vllm/model_executor/models/moonvit.py.
VISION_PARAMS: Mapping[str, Callable[[ConfigFields, int], int]] = {
    "Gemma3ForConditionalGeneration": siglip_params,
    "KimiK25ForConditionalGeneration": moonvit_params,
    "Llama4ForConditionalGeneration": llama4_params,
    "Mistral3ForConditionalGeneration": pixtral_params,
    "MllamaForConditionalGeneration": mllama_params,
}
"""Reader of ``vision_config`` by architecture; the second argument is the language model's width."""
