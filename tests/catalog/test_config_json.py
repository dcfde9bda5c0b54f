"""The reader of config.json: what each architecture means, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servewise.catalog import SUPPORTED_ARCHITECTURES, get_model, list_models, read_config_json
from servewise.catalog.config_json import MAX_FILE_BYTES, spec_from_config
from servewise.errors import InputError
from servewise.types import ModelSpec, Provenance

from . import configs
from .configs import LLAMA_2_7B, PUBLISHED, Config


def spec_of(config: Config) -> ModelSpec:
    return spec_from_config(config, "test", Provenance(kind="spec", source="test"))


def write(path: Path, config: object) -> Path:
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def test_every_supported_architecture_has_a_config() -> None:
    tested = {config["architectures"][0] for config, _ in PUBLISHED.values()}
    assert tested == set(SUPPORTED_ARCHITECTURES)


def test_file_and_folder(tmp_path: Path) -> None:
    file = write(tmp_path / "config.json", LLAMA_2_7B)
    from_file, from_folder = read_config_json(file), read_config_json(tmp_path)
    assert from_file.num_layers == from_folder.num_layers == 32
    assert from_file.name == str(file)
    assert get_model(str(file)) == from_file
    assert get_model(str(tmp_path)) == from_folder


def test_defaults_of_llama() -> None:
    spec = spec_of(LLAMA_2_7B)
    assert (spec.head_dim, spec.v_head_dim, spec.tie_word_embeddings) == (128, 128, False)
    assert (spec.attention_bias, spec.attention_out_bias, spec.sliding_window_tokens) == (False, False, 0)
    assert spec.native_precision == "bf16"


def test_missing_kv_heads_means_multi_head() -> None:
    config = {k: v for k, v in LLAMA_2_7B.items() if k != "num_key_value_heads"}
    assert spec_of(config).num_kv_heads == 32


def test_qwen2_biases_only_on_qkv() -> None:
    spec = spec_of(configs.QWEN2_1_5B)
    assert (spec.attention_bias, spec.attention_out_bias) == (True, False)


def test_qwen3_norms_queries_and_keys() -> None:
    assert spec_of(configs.QWEN3_4B).qk_norm


def test_qwen_moe_shared_expert() -> None:
    moe = spec_of(configs.QWEN15_MOE).moe
    assert moe is not None
    assert (moe.shared_intermediate_size, moe.has_shared_gate, moe.num_moe_layers) == (5632, True, 24)


def test_qwen3_moe_dense_layers() -> None:
    spec = spec_of(configs.QWEN3_30B_A3B | {"mlp_only_layers": [0, 1]})
    assert spec.moe is not None
    assert spec.moe.num_moe_layers == 46
    assert spec.intermediate_size == 6144
    assert spec_of(configs.QWEN3_30B_A3B).intermediate_size == 0


def test_mla() -> None:
    spec = spec_of(configs.DEEPSEEK_V2_LITE)
    assert spec.attention == "mla"
    assert (spec.head_dim, spec.v_head_dim, spec.q_lora_rank, spec.kv_lora_rank) == (192, 128, 0, 512)
    assert spec.moe is not None
    assert (spec.moe.num_moe_layers, spec.moe.shared_intermediate_size) == (26, 2816)
    assert not spec.moe.router_bias


def test_gpt_oss() -> None:
    spec = spec_of(configs.GPT_OSS_20B)
    assert spec.moe is not None
    assert spec.attention_sinks
    assert spec.attention_out_bias
    assert (spec.moe.has_expert_bias, spec.moe.router_bias) == (True, True)
    assert (spec.sliding_window_tokens, spec.num_sliding_layers) == (128, 12)
    assert (spec.native_precision, spec.unquantized_modules) == ("mxfp4", ("attention", "router"))


@pytest.mark.parametrize(
    ("config", "window", "num_sliding"),
    [
        (configs.MISTRAL_7B_V01, 4096, 32),
        (configs.MISTRAL_NEMO, 0, 0),
        (configs.GEMMA_2_9B, 4096, 21),
        (configs.GEMMA_3_1B, 512, 22),
        (configs.GEMMA_3_4B, 1024, 29),
        (configs.PHI_3_MINI, 2047, 32),
        (configs.PHI_4_MINI, 0, 0),
        (configs.QWEN2_1_5B, 0, 0),
        (
            configs.QWEN2_1_5B | {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20},
            4096,
            8,
        ),
    ],
)
def test_sliding_windows(config: Config, window: int, num_sliding: int) -> None:
    spec = spec_of(config)
    assert (spec.sliding_window_tokens, spec.num_sliding_layers) == (window, num_sliding)


def test_gemma_3_text_and_vision() -> None:
    spec = spec_of(configs.GEMMA_3_4B)
    assert spec.architecture == "Gemma3ForConditionalGeneration"
    assert (spec.vocab_size, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (262208, 8, 4, 256)
    assert (spec.norms_per_layer, spec.qk_norm, spec.tie_word_embeddings) == (4, True, True)
    assert 410e6 < spec.vision_num_params < 425e6
    assert spec_of(configs.GEMMA_3_1B).vision_num_params == 0


REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")


@pytest.mark.parametrize("field", [*REQUIRED, "max_position_embeddings", "architectures"])
@pytest.mark.parametrize("null", [True, False])
def test_missing_field_is_named(field: str, null: bool) -> None:
    config: Config = {k: v for k, v in LLAMA_2_7B.items() if k != field}
    if null:
        config[field] = None
    with pytest.raises(InputError, match=rf"{field}.*missing"):
        spec_of(config)


@pytest.mark.parametrize("field", ["num_experts", "moe_intermediate_size", "num_experts_per_tok"])
def test_missing_expert_field_is_named(field: str) -> None:
    with pytest.raises(InputError, match=rf"{field}.*missing"):
        spec_of({k: v for k, v in configs.QWEN3_30B_A3B.items() if k != field})


@pytest.mark.parametrize("field", REQUIRED)
@pytest.mark.parametrize("value", [-1, 0, 1.5, 32.0, "32", True, [32], {}, 10**12])
def test_wrong_values_are_named(field: str, value: object) -> None:
    with pytest.raises(InputError, match=field):
        spec_of(LLAMA_2_7B | {field: value})


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"num_key_value_heads": 7}, "num_key_value_heads.*does not divide"),
        ({"num_attention_heads": 31, "num_key_value_heads": 31}, "head_dim.*does not divide"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings.*true or false"),
        ({"architectures": []}, "architectures.*empty"),
        ({"architectures": "LlamaForCausalLM"}, "architectures.*list of strings"),
        ({"architectures": [1]}, "architectures.*list of strings"),
        (
            {"hidden_size": 10**6, "intermediate_size": 10**8, "vocab_size": 10**8, "num_hidden_layers": 999},
            "no language model",
        ),
    ],
)
def test_contradictions(change: Config, match: str) -> None:
    with pytest.raises(InputError, match=match):
        spec_of(LLAMA_2_7B | change)


def test_unknown_architecture_lists_the_supported() -> None:
    with pytest.raises(InputError, match=r"MambaForCausalLM.*not supported.*LlamaForCausalLM"):
        spec_of(LLAMA_2_7B | {"architectures": ["MambaForCausalLM"]})


def test_unknown_layer_type() -> None:
    with pytest.raises(InputError, match=r"layer_types.*linear_attention"):
        spec_of(configs.GPT_OSS_20B | {"layer_types": ["linear_attention"] * 24})
    with pytest.raises(InputError, match=r"layer_types.*3 entries for 24 layers"):
        spec_of(configs.GPT_OSS_20B | {"layer_types": ["full_attention"] * 3})


def test_more_experts_visited_than_there_are() -> None:
    with pytest.raises(InputError, match="num_experts_per_tok"):
        spec_of(configs.MIXTRAL_8X7B | {"num_experts_per_tok": 9})


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "not valid JSON"),
        (b'{"hidden_size": 4096', "not valid JSON"),
        (b'{"hidden_size": NaN}', "NaN is not a number"),
        (b'{"hidden_size": Infinity}', "Infinity is not a number"),
        (b"[1, 2]", "must be a JSON object"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"[" * 200_000, "nested too deeply|not valid JSON"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b" " * (MAX_FILE_BYTES + 1), "larger than"),
        (b"{}", "architectures.*missing"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, match: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=match):
        read_config_json(file)


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InputError, match="no such file"):
            read_config_json(path)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(base=st.sampled_from([config for config, _ in PUBLISHED.values()]), data=st.data(), value=JSON_VALUES)
def test_any_value_in_any_field_is_read_or_refused(base: Config, data: Any, value: object) -> None:
    field = data.draw(st.sampled_from(sorted(base)))
    try:
        spec = spec_of(base | {field: value})
    except InputError as error:
        message = str(error)
    else:
        message = f"test: {spec.num_layers} layers"
    assert message.startswith("test: ")


@pytest.mark.parametrize("name", list_models())
def test_built_in_models_are_consistent(name: str) -> None:
    spec = get_model(name)
    assert spec.name == name
    assert spec.num_heads % spec.num_kv_heads == 0
    assert 0 <= spec.num_sliding_layers <= spec.num_layers
    assert 2048 <= spec.max_context_tokens <= 10 * 2**20  # Phi-2 to Llama 4 Scout
    assert spec.provenance.source.startswith("https://huggingface.co/")
