"""Reads a Hugging Face ``config.json``, an untrusted file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from servewise.catalog.families import FAMILIES, build_spec
from servewise.catalog.fields import ConfigFields
from servewise.catalog.params import param_counts
from servewise.catalog.quantization import read_quantization
from servewise.catalog.vision import VISION_PARAMS
from servewise.errors import InputError
from servewise.types import ModelSpec, Provenance

__all__ = ["SUPPORTED_ARCHITECTURES", "read_config_json", "spec_from_config"]

MAX_FILE_BYTES = 4 * 2**20
"""The largest published config (one quantization exception a module) is below 1 MiB."""

MULTIMODAL = {
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "KimiK25ForConditionalGeneration": "DeepseekV3ForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "Mistral3ForConditionalGeneration": "MistralForCausalLM",
    "MllamaForConditionalGeneration": "LlamaForCausalLM",
}
"""Multimodal architectures whose language model sits in ``text_config``, with the text architecture."""

SUPPORTED_ARCHITECTURES = (*FAMILIES, *MULTIMODAL)
"""Values of ``architectures[0]`` that are understood."""

MIN_PARAMS, MAX_PARAMS = 10**5, 10**14


def refuse_constant(text: str) -> NoReturn:
    """NaN and Infinity are no JSON."""
    raise ValueError(f"{text} is not a number")


def read_config_json(path: str | Path) -> ModelSpec:
    """Read the architecture of a model from its ``config.json``.

    Parameters
    ----------
    path : str or Path
        The file, or a folder that holds it.

    Returns
    -------
    ModelSpec
        Named by the path.

    Raises
    ------
    InputError
        When the file cannot be read, is not JSON, is larger than 4 MiB, names an architecture that is not
        supported, or lacks a field. Nothing is guessed.
    """
    file = Path(path).expanduser()
    if os.path.isdir(file):
        file = file / "config.json"
    if not os.path.isfile(file):
        raise InputError(f"{file}: no such file; give the path of a model's config.json or of its folder")
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    if len(raw) > MAX_FILE_BYTES:
        raise InputError(f"{file}: larger than {MAX_FILE_BYTES} bytes, so it is no model's config.json")
    try:
        data = json.loads(raw.decode("utf-8"), parse_constant=refuse_constant)
    except UnicodeDecodeError:
        raise InputError(f"{file}: not UTF-8 text; give a model's config.json") from None
    except RecursionError:
        raise InputError(f"{file}: nested too deeply to be a model's config.json") from None
    except ValueError as error:
        raise InputError(f"{file}: not valid JSON ({error}); give a model's config.json") from None
    if not isinstance(data, dict):
        raise InputError(f"{file}: holds a {type(data).__name__}, must be a JSON object")
    return spec_from_config(data, str(path), Provenance(kind="spec", source=str(path)))


def spec_from_config(data: Mapping[str, object], name: str, provenance: Provenance) -> ModelSpec:
    """Turn the fields of a ``config.json`` into a spec.

    Parameters
    ----------
    data : mapping of str to object
        The parsed file.
    name : str
        What the spec is called, and messages say.
    provenance : Provenance

    Raises
    ------
    InputError
        As :func:`read_config_json`.
    """
    config = ConfigFields(data, name)
    architectures = config.texts("architectures")
    if not architectures:
        raise config.error("architectures", f"is empty; supported: {', '.join(SUPPORTED_ARCHITECTURES)}")
    architecture = architectures[0]
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise config.error(
            "architectures",
            f"{architecture!r} is not supported and is never guessed; supported: {', '.join(SUPPORTED_ARCHITECTURES)}",
        )
    text_config = config
    if architecture in MULTIMODAL:
        text_config = config.section("text_config")
    spec = build_spec(text_config, MULTIMODAL.get(architecture, architecture), name, provenance)
    num_moe_layers = spec.moe.num_moe_layers if spec.moe else 0
    precision, unquantized = read_quantization(
        config,
        num_layers=spec.num_layers,
        num_dense_layers=spec.num_layers - num_moe_layers,
        is_moe=spec.moe is not None,
    )
    spec = replace(spec, architecture=architecture, native_precision=precision, unquantized_modules=unquantized)
    if architecture in MULTIMODAL:
        spec = replace(
            spec, vision_num_params=VISION_PARAMS[architecture](config.section("vision_config"), spec.hidden_size)
        )
    spec = replace(spec, mtp_num_params=mtp_params(config, spec))
    total = param_counts(spec).total
    if not MIN_PARAMS <= total <= MAX_PARAMS:
        raise config.error("hidden_size", f"the shapes give {total:.3g} parameters, which is no language model")
    return spec


def mtp_params(config: ConfigFields, spec: ModelSpec) -> int:
    """Parameters of multi-token-prediction modules: each one more layer with its own embedding and head.

    Sources
    -------
    https://github.com/deepseek-ai/DeepSeek-V3/blob/main/README_WEIGHTS.md
    """
    if spec.attention != "mla" or spec.moe is None:
        return 0
    num_modules = config.integer("num_nextn_predict_layers", 0, low=0, high=100)
    if not num_modules:
        return 0
    one_layer = replace(spec, num_layers=1, moe=replace(spec.moe, num_moe_layers=1))
    layer = param_counts(replace(one_layer, tie_word_embeddings=False)).total
    merge = 2 * spec.hidden_size * spec.hidden_size + 2 * spec.hidden_size
    return num_modules * (layer + merge)
