"""What quantization_config says about the weights."""

from __future__ import annotations

from typing import Any

import pytest

from servewise.catalog.config_json import spec_from_config
from servewise.errors import InputError
from servewise.types import ModelSpec, Provenance

from .configs import LLAMA_2_7B, QWEN3_30B_A3B, Config


def quantized(base: Config, **quant: Any) -> ModelSpec:
    return spec_from_config(base | {"quantization_config": quant}, "test", Provenance(kind="spec", source="test"))


def group(**weights: Any) -> dict[str, Any]:
    return {"group_0": {"weights": weights, "targets": ["Linear"]}}


W8A8 = {
    "group_0": {
        "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
        "input_activations": {"num_bits": 8, "type": "int"},
    }
}


@pytest.mark.parametrize(
    ("quant", "precision"),
    [
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": group(num_bits=8, type="float", strategy="tensor"),
            },
            "fp8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": group(num_bits=8, type="float", strategy="block"),
            },
            "fp8_block",
        ),
        ({"quant_method": "compressed-tensors", "config_groups": W8A8}, "int8"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": group(num_bits=4, type="int", group_size=128),
            },
            "int4",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": group(num_bits=4, type="int", group_size=32),
            },
            "int4",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": group(num_bits=4, type="float", group_size=16),
            },
            "nvfp4",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": group(num_bits=4, type="float", group_size=32),
            },
            "mxfp4",
        ),
    ],
)
def test_methods(quant: dict[str, Any], precision: str) -> None:
    spec = quantized(LLAMA_2_7B, **quant)
    assert (spec.native_precision, spec.unquantized_modules) == (precision, ())


@pytest.mark.parametrize(
    ("quant", "match"),
    [
        ({}, "quant_method.*missing"),
        ({"quant_method": "bitsandbytes"}, "bitsandbytes.*supported: fp8"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "weight_block_size"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "bits.*got 8"),
        ({"quant_method": "awq", "bits": 4, "group_size": 32}, "group_size.*got 32"),
        ({"quant_method": "awq", "group_size": 128}, "bits.*missing"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo"),
        ({"quant_method": "compressed-tensors"}, "config_groups.*missing"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": group(num_bits=8, type="int", strategy="channel"),
            },
            "num_bits.*not modelled",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": group(num_bits=8, type="float") | {"group_1": {}},
            },
            "group_1.*mix of schemes",
        ),
    ],
)
def test_refused(quant: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        quantized(LLAMA_2_7B, **quant)


def test_not_an_object() -> None:
    with pytest.raises(InputError, match=r"quantization_config.*object"):
        spec_from_config(LLAMA_2_7B | {"quantization_config": "fp8"}, "test", Provenance(kind="spec", source="test"))


def test_router_stays_in_bf16() -> None:
    spec = quantized(
        QWEN3_30B_A3B,
        quant_method="fp8",
        modules_to_not_convert=["lm_head", "model.layers.0.input_layernorm", "model.layers.0.mlp.gate"],
    )
    assert spec.unquantized_modules == ("router",)


@pytest.mark.parametrize(
    "ignore",
    [
        ["re:.*self_attn.*", "re:.*mlp.gate$", "lm_head"],
        [f"model.layers.{i}.self_attn.{p}_proj" for i in range(48) for p in "qkvo"],
    ],
)
def test_attention_kept_in_bf16(ignore: list[str]) -> None:
    spec = quantized(QWEN3_30B_A3B, quant_method="modelopt", quant_algo="NVFP4", ignore=ignore)
    assert spec.unquantized_modules == ("attention", "router")


def test_dense_mlp_kept_in_bf16() -> None:
    ignore = [f"model.layers.{i}.mlp.{p}_proj" for i in range(32) for p in ("gate", "up", "down")]
    assert quantized(LLAMA_2_7B, quant_method="fp8", ignored_layers=ignore).unquantized_modules == ("dense_mlp",)


def test_shared_experts_kept_in_bf16() -> None:
    spec = quantized(QWEN3_30B_A3B, quant_method="modelopt", quant_algo="FP8", ignore=["*.mlp.shared_expert.*"])
    assert spec.unquantized_modules == ("shared_experts", "router")


def test_layers_of_multi_token_prediction_do_not_count() -> None:
    assert (
        quantized(
            LLAMA_2_7B, quant_method="modelopt", quant_algo="FP8", ignore=["model.layers.32*"]
        ).unquantized_modules
        == ()
    )


@pytest.mark.parametrize(
    ("ignore", "match"),
    [
        (["model.layers.0.self_attn"], "attention in bf16 in 1 of 48 layers"),
        (["model.layers.0.mlp.experts.3.down_proj"], "not modelled"),
        (["something_else"], "something_else.*not modelled"),
    ],
)
def test_exceptions_that_cannot_be_represented(ignore: list[str], match: str) -> None:
    with pytest.raises(InputError, match=match):
        quantized(QWEN3_30B_A3B, quant_method="modelopt", quant_algo="FP8", ignore=ignore)
