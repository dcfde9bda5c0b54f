"""Small models in other precisions, for real engines to serve to ``servewise quality``.

    python tools/quantize_models.py gguf IN.gguf OUT.gguf {BF16,Q8_0,Q4_0,Q4_1}
    python tools/quantize_models.py checkpoint IN.gguf TOKENIZER_DIR OUT_DIR
    python tools/quantize_models.py int8 CHECKPOINT_DIR OUT_DIR

Runs in an environment with ``gguf``, ``numpy``, ``safetensors`` and ``ml_dtypes``. ``gguf`` writes every matrix of a
GGUF file in another type by the numpy reference code of the gguf package (the plain rounding of llama.cpp's
``quantize_row_*_ref``, without an importance matrix). ``checkpoint`` makes a Hugging Face folder in bf16 of a Llama in
GGUF; the tokenizer and chat template come from another folder. ``int8`` makes a W8A8 checkpoint as compressed-tensors
0.17 writes it: symmetric int8 weights by output channel, activations by token while it runs; head and embedding stay.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import ml_dtypes  # type: ignore[import-not-found]
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants  # type: ignore[import-not-found]
from safetensors.numpy import load_file, save_file  # type: ignore[import-not-found]

NOT_COPIED = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def quantize_gguf(source: Path, target: Path, name: str) -> None:
    """Write every matrix of a GGUF file in another type; vectors stay as they are."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith(NOT_COPIED):
            is_array = field.types[0] == GGUFValueType.ARRAY
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if is_array else None)
    writer.add_quantization_version(2)
    kind = GGMLQuantizationType[name]
    for tensor in reader.tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type)
        if len(tensor.shape) > 1:
            writer.add_tensor(tensor.name, quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_checkpoint(source: Path, tokenizer: Path, target: Path) -> None:
    """A Hugging Face folder in bf16 of a Llama in GGUF."""
    reader = GGUFReader(source)
    known: dict[str, Any] = {
        key.removeprefix("llama."): field.contents() for key, field in reader.fields.items() if key.startswith("llama.")
    }
    heads, kv_heads = known["attention.head_count"], known["attention.head_count_kv"]
    weights = {}
    for tensor in reader.tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type)
        if ".attn_q." in tensor.name or ".attn_k." in tensor.name:
            values = _unpermuted(values, heads if ".attn_q." in tensor.name else kv_heads)
        weights[_hugging_face_name(tensor.name)] = values.astype(ml_dtypes.bfloat16)
    target.mkdir(parents=True)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": known["vocab_size"],
        "hidden_size": known["embedding_length"],
        "intermediate_size": known["feed_forward_length"],
        "num_hidden_layers": known["block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": known["rope.dimension_count"],
        "rms_norm_eps": known["attention.layer_norm_rms_epsilon"],
        "rope_theta": known["rope.freq_base"],
        "max_position_embeddings": known["context_length"],
        "hidden_act": "silu",
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }
    (target / "config.json").write_text(json.dumps(config, indent=1))
    _copy_tokenizer(tokenizer, target)


def write_int8(source: Path, target: Path) -> None:
    """A W8A8 checkpoint of a bf16 one, in one file of weights each."""
    weights = {}
    for name, values in load_file(source / "model.safetensors").items():
        if ".layers." in name and values.ndim == 2:
            exact = values.astype(np.float32)
            scale = np.maximum(np.abs(exact).max(axis=1, keepdims=True), 1e-8) / 127.0
            weights[name] = np.clip(np.rint(exact / scale), -127, 127).astype(np.int8)
            weights[f"{name}_scale"] = scale.astype(np.float32)
        else:
            weights[name] = values
    target.mkdir(parents=True)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    of_weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
    of_inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": of_weights, "input_activations": of_inputs},
        },
    }
    (target / "config.json").write_text(json.dumps(config, indent=1))
    _copy_tokenizer(source, target)


def _unpermuted(values: Any, heads: int) -> Any:
    """Rows of a query or key matrix in Hugging Face's order; GGUF pairs the halves that a rotation mixes."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _hugging_face_name(name: str) -> str:
    outside = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    if name in outside:
        return outside[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"


def _copy_tokenizer(source: Path, target: Path) -> None:
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copy(source / name, target / name)


def main() -> None:
    """One model."""
    command, *names = sys.argv[1:]
    if command == "gguf":
        quantize_gguf(Path(names[0]), Path(names[1]), names[2])
    elif command == "checkpoint":
        write_checkpoint(*map(Path, names))
    else:
        write_int8(*map(Path, names))


if __name__ == "__main__":
    main()
