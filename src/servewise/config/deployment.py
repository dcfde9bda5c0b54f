"""A deployment as the user names it: an engine's defaults for a model on a GPU, and settings that differ from them."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from servewise.catalog import get_gpu, get_model, supported_precisions
from servewise.engines import llamacpp, ollama, sglang, tgi, trtllm, vllm
from servewise.errors import InputError, UnknownNameError
from servewise.types import (
    Deployment,
    EngineName,
    EngineParams,
    GpuSpec,
    ModelSpec,
    Parallelism,
    Precision,
)

__all__ = ["ENGINES_OF_DEPLOYMENTS", "named_deployment"]

Defaults = Callable[[str, GpuSpec, ModelSpec, Parallelism], EngineParams]
ENGINES_OF_DEPLOYMENTS: Mapping[EngineName, tuple[Callable[[], str], Defaults]] = {
    "vllm": (vllm.default_version, lambda version, gpu, model, _: vllm.default_params(version, gpu, model)),
    "sglang": (sglang.default_version, sglang.default_params),
    "tensorrt-llm": (trtllm.default_version, lambda version, gpu, model, _: trtllm.default_params(version, gpu, model)),
    "tgi": (tgi.default_version, tgi.default_params),
    "ollama": (ollama.default_version, ollama.default_params),
    "llama.cpp": (llamacpp.default_version, llamacpp.default_params),
}
"""Engines that can be named, with their default version and parameters."""


def named_deployment(
    *,
    engine: str,
    model: str,
    gpu: str,
    engine_version: str = "",
    tensor_parallel_size: int = 1,
    weights: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Deployment:
    """One replica of an engine as its version starts by default, with the settings that differ.

    Parameters
    ----------
    engine : str
    model : str
        Catalog name, or path of a ``config.json``.
    gpu : str
        Catalog name, or path of a file that describes a device.
    engine_version : str
        The one that is planned for by default.
    tensor_parallel_size : int
    weights : str, optional
        The model's native precision by default.
    settings : mapping of str to str, optional
        Engine parameters by their own name, as text.

    Raises
    ------
    InputError
        When a name is unknown, or a value is none of its setting.
    """
    known = next((name for name in ENGINES_OF_DEPLOYMENTS if name == engine), None)
    if known is None:
        raise UnknownNameError("engine", engine, ENGINES_OF_DEPLOYMENTS)
    default_version, default_params = ENGINES_OF_DEPLOYMENTS[known]
    version, device, spec = engine_version or default_version(), get_gpu(gpu), get_model(model)
    parallelism = Parallelism(tensor_parallel_size=tensor_parallel_size)
    chosen = spec.native_precision if weights is None else weights
    offered = [p for p in supported_precisions(device, known) if p.kv == Precision().kv]
    precision = next((p for p in offered if p.weights == chosen), None)
    if precision is None:
        names = ", ".join(p.weights for p in offered) or "nothing"
        raise InputError(f"{engine} does not run {chosen!r} weights on {device.name}; it runs {names}")
    return Deployment(
        model=spec,
        gpu=device,
        engine=known,
        engine_version=version,
        precision=precision,
        parallelism=parallelism,
        params=_with(default_params(version, device, spec, parallelism), settings or {}),
    )


def _with(params: EngineParams, settings: Mapping[str, str]) -> EngineParams:
    """Parameters with some of them set from text."""
    hints = get_type_hints(type(params))
    values = {}
    for name, text in settings.items():
        if name not in hints:
            raise UnknownNameError("setting", name, hints)
        try:
            values[name] = _value(hints[name], text)
        except ValueError:
            raise InputError(f"setting {name} is {text!r:.60}; it must be {_kind(hints[name])}") from None
    return dataclasses.replace(params, **values)


def _value(kind: Any, text: str) -> Any:
    """A setting's text as its type.

    Raises
    ------
    ValueError
        When it is none.
    """
    if get_origin(kind) in (Union, types.UnionType):
        inner = next(part for part in get_args(kind) if part is not type(None))
        return None if text.lower() == "none" else _value(inner, text)
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise ValueError(text)
        return text
    if get_origin(kind) is tuple:
        return tuple(_value(get_args(kind)[0], part) for part in text.split(",") if part)
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    return kind(text)


def _kind(kind: Any) -> str:
    """A setting's type in words."""
    if get_origin(kind) in (Union, types.UnionType):
        return f"none or {_kind(next(part for part in get_args(kind) if part is not type(None)))}"
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if get_origin(kind) is tuple:
        return f"several of {_kind(get_args(kind)[0])}, with commas between"
    return {bool: "true or false", int: "a whole number", float: "a number"}[kind]
