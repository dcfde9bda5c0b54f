"""A GGUF model in another precision, or as a Hugging Face checkpoint: for real engines, and ``servewise quality``.

    python tools/quantize_gguf.py gguf IN.gguf OUT.gguf {BF16,Q8_0,Q4_0,Q4_1}
    python tools/quantize_gguf.py checkpoint IN.gguf TOKENIZER_DIR OUT_DIR

Needs ``gguf``; ``checkpoint`` also ``safetensors`` and ``ml_dtypes``. ``gguf`` writes every matrix in another type by
the numpy code of the gguf package (llama.cpp's plain rounding, ``quantize_row_*_ref``, without an importance matrix).
``checkpoint`` makes a Hugging Face folder in bf16 of a Llama; tokenizer and chat template come from another folder.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants  # type: ignore[import-not-found]

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
    import ml_dtypes  # type: ignore[import-not-found]
    from safetensors.numpy import save_file  # type: ignore[import-not-found]

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
        "bos_token_id": reader.fields["tokenizer.ggml.bos_token_id"].contents(),
        "eos_token_id": reader.fields["tokenizer.ggml.eos_token_id"].contents(),
        "torch_dtype": "bfloat16",
    }
    (target / "config.json").write_text(json.dumps(config, indent=1))
    for name in TOKENIZER_FILES:
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, target / name)


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


def main() -> None:
    """One model."""
    command, source, *others = sys.argv[1:]
    if command == "gguf":
        quantize_gguf(Path(source), Path(others[0]), others[1])
    else:
        write_checkpoint(Path(source), Path(others[0]), Path(others[1]))


if __name__ == "__main__":
    main()
