"""Servers as scripts: what each engine answers, shaped as the real ones do."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.measure.server import Page

TEMPLATE_HEAD = [1, 2, 3, 4, 5]
TEMPLATE_TAIL = [6, 7]
BETWEEN_TURNS = [8, 9, 10]


def tokens(text: str) -> list[int]:
    """A toy tokenizer: words of up to 6 letters are a token each with the space before them, longer ones two."""
    found = []
    for word in text.replace("\n", " \n ").split(" "):
        if word:
            number = 100 + sum(ord(letter) * 31**i for i, letter in enumerate(word)) % 1_000_003
            found += [number] if len(word) <= 6 else [number, number + 1]
    return found


def templated(messages: list[dict[str, str]]) -> list[int]:
    found = [*TEMPLATE_HEAD]
    for i, message in enumerate(messages):
        found += (BETWEEN_TURNS if i else []) + tokens(message["content"])
    return found + TEMPLATE_TAIL


def chat_answer(asked: dict[str, Any]) -> dict[str, Any]:
    return {
        "choices": [{"message": {"role": "assistant", "content": "x"}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": len(templated(asked["messages"])), "completion_tokens": 1},
    }


def completion_answer(asked: dict[str, Any]) -> dict[str, Any]:
    return {
        "choices": [{"text": "x"}],
        "usage": {"prompt_tokens": len(tokens(asked["prompt"])), "completion_tokens": 1},
    }


def models(owner: str, *names: str, **extra: object) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": name, "owned_by": owner, **extra} for name in names or ("m",)]}


def _vllm_tokenize(asked: dict[str, Any]) -> dict[str, Any]:
    found = templated(asked["messages"]) if "messages" in asked else tokens(asked["prompt"])
    return {"count": len(found), "max_model_len": 2048, "tokens": found, "token_strs": None}


def vllm() -> dict[str, Page]:
    return {
        "/v1/models": models("vllm", max_model_len=2048),
        "/version": {"version": "0.32.0"},
        "/tokenize": _vllm_tokenize,
        "/v1/chat/completions": chat_answer,
        "/v1/completions": completion_answer,
    }


def sglang() -> dict[str, Page]:
    def tokenize(asked: dict[str, Any]) -> Any:
        if "prompt" not in asked:
            return (400, {}, b'{"detail": "prompt is missing"}')
        return {"tokens": tokens(asked["prompt"]), "count": len(tokens(asked["prompt"])), "max_model_len": 4096}

    return {
        "/v1/models": models("sglang", max_model_len=4096),
        "/server_info": {"version": "0.5.23", "model_path": "m"},
        "/tokenize": tokenize,
        "/v1/chat/completions": chat_answer,
    }


def llamacpp() -> dict[str, Page]:
    return {
        "/v1/models": models("llamacpp"),
        "/props": {"build_info": "b11549", "default_generation_settings": {"n_ctx": 2048}},
        "/apply-template": lambda asked: {"prompt": "\n".join(m["content"] for m in asked["messages"])},
        "/tokenize": lambda asked: {"tokens": tokens(asked["content"])},
        "/v1/chat/completions": chat_answer,
    }


def ollama() -> dict[str, Page]:
    def chat(asked: dict[str, Any]) -> dict[str, Any]:
        return {"message": {"content": "x"}, "done": True, "prompt_eval_count": len(templated(asked["messages"]))}

    return {
        "/v1/models": models("library", "llama3.2:1b"),
        "/api/version": {"version": "0.12.6"},
        "/api/tags": {"models": [{"name": "llama3.2:1b", "model": "llama3.2:1b"}]},
        "/api/chat": chat,
    }


def tgi() -> dict[str, Page]:
    return {
        "/info": {"model_id": "m", "version": "3.2.1", "max_total_tokens": 4096, "router": "text-generation-router"},
        "/generate": lambda _: {"generated_text": "x"},
        "/tokenize": lambda asked: [{"id": number, "text": ""} for number in tokens(asked["inputs"])],
    }


def unknown() -> dict[str, Page]:
    return {"/v1/models": models("someone", "m"), "/v1/chat/completions": chat_answer}


ENGINES: dict[str, Callable[[], dict[str, Page]]] = {
    "vllm": vllm,
    "sglang": sglang,
    "llama.cpp": llamacpp,
    "ollama": ollama,
    "tgi": tgi,
    "unknown": unknown,
}


def streaming_chat(asked: dict[str, Any]) -> Any:
    """A whole chat answer, or its events in one go; an answer has the tokens that were asked for."""
    if not asked.get("stream"):
        return chat_answer(asked)
    count = asked["max_tokens"]
    events: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}]
    events += [{"choices": [{"index": 0, "delta": {"content": f" w{i}"}}]} for i in range(count)]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    usage = {"prompt_tokens": len(templated(asked["messages"])), "completion_tokens": count}
    events.append({"choices": [], "usage": usage})
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    return (200, {"content-type": "text/event-stream"}, body.encode())


class Metrics:
    """A metrics page that counts the tokens of the answers."""

    def __init__(self) -> None:
        self.tokens = 0

    def chat(self, asked: dict[str, Any]) -> Any:
        self.tokens += asked["max_tokens"]
        return streaming_chat(asked)

    def page(self, _: object) -> str:
        return f"vllm:num_requests_running 1\nvllm:generation_tokens_total {self.tokens}\n"


def measurable() -> dict[str, Page]:
    """A vLLM that streams and has a metrics page."""
    metrics = Metrics()
    return vllm() | {"/v1/chat/completions": metrics.chat, "/metrics": metrics.page}
