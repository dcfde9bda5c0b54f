"""Model names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from servewise.catalog import get_model, list_models
from servewise.errors import InputError, UnknownNameError


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"),
        ("META-LLAMA/llama-3.1-70b-instruct", "meta-llama/Llama-3.1-70B-Instruct"),
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct"),
        ("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B"),
        ("DeepSeek-R1", "deepseek-ai/DeepSeek-R1"),
        ("DeepSeek-V3-0324", "deepseek-ai/DeepSeek-V3"),
        ("gpt-oss-120b", "openai/gpt-oss-120b"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    assert get_model(alias).name == name


@pytest.mark.parametrize("name", ["bigscience/bloom", "llama-3.1", "", "\0", "a" * 300])
def test_unknown_name_says_what_to_pass(name: str) -> None:
    with pytest.raises(UnknownNameError, match=r"path of its config\.json"):
        get_model(name)


@pytest.mark.parametrize("path", ["./nowhere", "nowhere/config.json", "/nowhere", "./" + "a" * 300])
def test_a_path_that_is_not_there(path: str) -> None:
    with pytest.raises(InputError, match="no such file"):
        get_model(path)


def test_deepseek_v3_in_full() -> None:
    spec = get_model("DeepSeek-V3")
    assert spec.moe is not None
    assert (spec.attention, spec.head_dim, spec.kv_lora_rank, spec.qk_rope_head_dim) == ("mla", 192, 512, 64)
    assert (spec.num_layers, spec.moe.num_moe_layers, spec.moe.router_bias) == (61, 58, True)
    assert (spec.native_precision, spec.unquantized_modules) == ("fp8_block", ("router",))
    assert spec.mtp_num_params > 13e9


def test_no_alias_is_a_name_of_another_model() -> None:
    for name in list_models():
        assert get_model(name).name == name


def test_lookup_needs_no_heavy_library() -> None:
    code = (
        "import sys; from servewise.catalog import get_model, offers;"
        "get_model('llama-3.1-8b'); offers('H200');"
        "print([m for m in ('polars', 'numba', 'pydantic', 'ruamel', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
