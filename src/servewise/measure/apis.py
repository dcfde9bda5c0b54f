"""What a request looks like in each API, and how an engine is told to answer at full length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from servewise.types import Api, Endpoint

__all__ = ["API_OF_PATH", "FORCED", "Message", "input_tokens_of", "is_chat", "request_document"]

Message = Mapping[str, str]
"""``role`` and ``content``."""

API_OF_PATH: Final[Mapping[str, Api]] = {
    "/v1/chat/completions": "openai-chat",
    "/v1/completions": "openai-completions",
    "/api/chat": "ollama-chat",
    "/api/generate": "ollama-generate",
    "/generate": "tgi-generate",
    "/generate_stream": "tgi-generate",
}
"""The API that a pasted address names."""

FORCED: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm": ("ignore_eos", "min_tokens"),
    "sglang": ("ignore_eos", "min_tokens"),
    "tensorrt-llm": ("ignore_eos", "min_tokens"),
    "llama.cpp": ("ignore_eos",),
}
"""What each engine's OpenAI API takes beside ``max_tokens`` so that an answer does not end early.

vLLM 0.32 and SGLang 0.5.23 (protocol.py), TensorRT-LLM 1.0 (openai_protocol.py), llama.cpp b11549 (server-task).
Ollama and TGI take nothing of the kind, OpenAI refuses what it does not know.
"""


def is_chat(api: Api) -> bool:
    """Whether prompts are messages, which the server puts into its chat template."""
    return api in ("openai-chat", "ollama-chat")


def request_document(
    endpoint: Endpoint, messages: Sequence[Message], max_tokens: int, *, force: bool
) -> dict[str, Any]:
    """The JSON document of a request; APIs without messages get their contents one after another.

    Parameters
    ----------
    endpoint : Endpoint
    messages : sequence of Message
    max_tokens : int
        Tokens to answer with at most; exactly so many when ``force`` is set and the engine can.
    force : bool
    """
    text = "".join(message["content"] for message in messages)
    document: dict[str, Any] = {"model": endpoint.model, "stream": endpoint.stream}
    if endpoint.api in ("openai-chat", "openai-completions"):
        if is_chat(endpoint.api):
            document["messages"] = list(messages)
        else:
            document["prompt"] = text
        document["max_tokens"] = max_tokens
        if endpoint.stream:
            document["stream_options"] = {"include_usage": True}
        forced = FORCED.get(endpoint.engine, ()) if force else ()
        if endpoint.temperature is not None:
            document["temperature"] = endpoint.temperature
        if "ignore_eos" in forced:
            document["ignore_eos"] = True
        if "min_tokens" in forced:
            document["min_tokens"] = max_tokens
    elif endpoint.api == "tgi-generate":
        # the path says whether it streams; details hold the token counts
        document = {"inputs": text, "parameters": {"max_new_tokens": max_tokens, "details": True}}
        if endpoint.temperature:  # 0 is refused; greedy is what it does without
            document["parameters"]["temperature"] = endpoint.temperature
    else:
        if is_chat(endpoint.api):
            document["messages"] = list(messages)
        else:
            document |= {"prompt": text, "raw": True}
        document["options"] = {"num_predict": max_tokens}
        if endpoint.temperature is not None:
            document["options"]["temperature"] = endpoint.temperature
    return document


def input_tokens_of(answer: Mapping[str, Any]) -> int | None:
    """Prompt tokens that a whole answer reports; None when it reports none."""
    usage = answer.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else answer.get("prompt_eval_count")
    return count if isinstance(count, int) and count > 0 else None
