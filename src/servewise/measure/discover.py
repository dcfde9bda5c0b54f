"""Which server answers at an address: its API, model, engine and version, and the longest request it takes.

Shapes seen at running servers: vLLM 0.32, SGLang 0.5.23, llama.cpp b11549. From documents alone: Ollama (docs/api.md
of ollama/ollama), TGI (``/info`` of 3.2), TensorRT-LLM (docs/source/commands/trtllm-serve.rst).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from servewise.errors import InputError, MeasurementError
from servewise.measure.answer import api_path, error_message
from servewise.measure.apis import request_document
from servewise.net.plain import Answer, PlainClient
from servewise.types import Api, Endpoint

__all__ = ["Discovery", "discover"]

OWNERS: Final[Mapping[str, str]] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama.cpp",
    "tensorrt_llm": "tensorrt-llm",
}
"""``owned_by`` in ``/v1/models``."""

SGLANG_INFO: Final = ("/server_info", "/get_server_info")
"""The second was the only one before SGLang 0.5.4."""

MAX_NAME_CHARS: Final = 512
MAX_LISTED: Final = 10
ONE_TOKEN_TIMEOUT_S: Final = 300.0
"""For the first answer: Ollama loads the model then, others compile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """What was found out about a server.

    Parameters
    ----------
    endpoint : Endpoint
    max_context_tokens : int or None [tokens]
        Longest prompt with its answer; None when the server does not say.
    """

    endpoint: Endpoint
    max_context_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Engine:
    name: str
    version: str
    models: tuple[str, ...]
    max_context_tokens: int | None


def discover(
    client: PlainClient, base_url: str, *, model: str | None = None, api: Api | None = None, stream: bool = True
) -> Discovery:
    """Find out how to speak to a server, and see it answer one token.

    Parameters
    ----------
    client : PlainClient
    base_url : str
    model : str, optional
        Needed when the server has several.
    api : Api, optional
        By default the engine's own: chat completions, or completions for a model without a chat template; Ollama's
        and TGI's native ones.
    stream : bool
        Whether the measured answers are to be streamed.

    Raises
    ------
    InputError
        When the server has several models, or not the one that was asked for, or wants a key.
    MeasurementError
        When nothing that serves a language model answers.
    """
    engine = _recognise(client, base_url)
    name = _model(engine, model)
    endpoint = Endpoint(
        base_url=base_url,
        api=api or "openai-chat",
        model=name,
        engine=engine.name,
        engine_version=engine.version,
        stream=stream,
    )
    choices = (api,) if api is not None else _apis(engine.name)
    refused = ""
    for choice in choices:
        tried = replace(endpoint, api=choice)
        answer = _ask_one_token(client, tried)
        if answer.status == 200:
            return Discovery(endpoint=tried, max_context_tokens=engine.max_context_tokens)
        said = error_message(answer.body) or "nothing"
        refused = f"{api_path(replace(tried, stream=False))} answers {answer.status}: {said}"
    raise MeasurementError(f"{base_url} does not generate: {refused}; check the model's name and --api")


def _apis(engine: str) -> tuple[Api, ...]:
    if engine == "ollama":
        return ("ollama-chat", "ollama-generate")
    if engine == "tgi":
        return ("tgi-generate", "openai-chat")
    return ("openai-chat", "openai-completions")


def _ask_one_token(client: PlainClient, endpoint: Endpoint) -> Answer:
    whole = replace(endpoint, stream=False)
    asked = request_document(whole, [{"role": "user", "content": "Hello"}], 1, force=True)
    return client.post(api_path(whole), asked, timeout_s=ONE_TOKEN_TIMEOUT_S)


def _recognise(client: PlainClient, base_url: str) -> _Engine:
    listed = client.get("/v1/models")
    if listed.status in (401, 403):
        raise InputError(f"{base_url} wants a key ({listed.status}); name the variable that holds it with --key-env")
    cards = [card for card in _list(listed.fields().get("data")) if isinstance(card.get("id"), str)]
    names = tuple(str(card["id"])[:MAX_NAME_CHARS] for card in cards)
    owner = next((str(card["owned_by"]) for card in cards if "owned_by" in card), "")
    context = next((limit for card in cards if (limit := _count(card.get("max_model_len")))), None)
    name = OWNERS.get(owner, "")
    if name in ("vllm", "tensorrt-llm"):
        return _Engine(
            name=name, version=_text(client.get("/version"), "version"), models=names, max_context_tokens=context
        )
    if name == "sglang":
        version = next((found for page in SGLANG_INFO if (found := _text(client.get(page), "version"))), "")
        return _Engine(name=name, version=version, models=names, max_context_tokens=context)
    if name == "llama.cpp" or listed.headers.get("server") == "llama.cpp":
        return _llamacpp(client, names)
    return _by_native_api(client, base_url, names)


def _llamacpp(client: PlainClient, names: tuple[str, ...]) -> _Engine:
    props = client.get("/props").fields()
    settings = props.get("default_generation_settings")
    return _Engine(
        name="llama.cpp",
        version=str(props.get("build_info", ""))[:MAX_NAME_CHARS],
        models=names,
        max_context_tokens=_count(settings.get("n_ctx")) if isinstance(settings, dict) else None,
    )


def _by_native_api(client: PlainClient, base_url: str, names: tuple[str, ...]) -> _Engine:
    """Servers whose model cards do not name them."""
    info = client.get("/info").fields()
    if isinstance(info.get("model_id"), str) and "version" in info:
        return _Engine(
            name="tgi",
            version=str(info["version"])[:MAX_NAME_CHARS],
            models=(info["model_id"][:MAX_NAME_CHARS],),
            max_context_tokens=_count(info.get("max_total_tokens")),
        )
    version = _text(client.get("/api/version"), "version")
    tags = [tag["name"] for tag in _list(client.get("/api/tags").fields().get("models")) if "name" in tag]
    if version and tags:
        return _Engine(
            name="ollama",
            version=version,
            models=tuple(str(tag)[:MAX_NAME_CHARS] for tag in tags),
            max_context_tokens=None,
        )
    if not names:
        raise MeasurementError(
            f"{base_url} lists no models at /v1/models, /api/tags or /info; is it a language model server, and ready?"
        )
    return _Engine(name="unknown", version="", models=names, max_context_tokens=None)


def _model(engine: _Engine, asked: str | None) -> str:
    shown = ", ".join(repr(name) for name in engine.models[:MAX_LISTED])
    more = f" and {len(engine.models) - MAX_LISTED} more" if len(engine.models) > MAX_LISTED else ""
    if asked is not None:
        # some servers answer to names that they do not list (LoRA adapters, aliases): the first answer decides
        return asked
    if len(engine.models) == 1:
        return engine.models[0]
    raise InputError(f"the server has {len(engine.models)} models; choose one with --model: {shown}{more}")


def _list(value: Any) -> Sequence[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(answer: Answer, name: str) -> str:
    value = answer.fields().get(name)
    return value[:MAX_NAME_CHARS] if isinstance(value, str) else ""


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
