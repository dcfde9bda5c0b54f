"""Every real engine answers a streamed chat completion: with chunks, an end, and its own count of the tokens."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from benchmarks.engines import HOST, MODEL_NAME, EngineServer

NUM_TOKENS = 24


def stream_chat(server: EngineServer) -> list[dict[str, Any]]:
    """The events of one streamed answer of NUM_TOKENS tokens."""
    body = {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": "Name three rivers."}],
        "max_tokens": NUM_TOKENS,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection(HOST, server.port, timeout=120)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == http.client.OK, response.read()
    assert response.headers.get_content_type() == "text/event-stream"
    lines = [line[5:].strip() for line in response if line.startswith(b"data:")]
    connection.close()
    assert lines.pop() == b"[DONE]"
    return [json.loads(line) for line in lines]


@pytest.mark.shared
@pytest.mark.parametrize(
    "fixture",
    [
        pytest.param("vllm_server", marks=pytest.mark.engines),
        pytest.param("llamacpp_server", marks=pytest.mark.engines),
        pytest.param("sglang_server", marks=pytest.mark.sglang),
    ],
)
def test_a_streamed_chat_completion_ends_with_usage(fixture: str, request: pytest.FixtureRequest) -> None:
    events = stream_chat(request.getfixturevalue(fixture))
    choices = [choice for event in events for choice in event["choices"]]
    assert [choice["finish_reason"] for choice in choices if choice.get("finish_reason")] == ["length"]
    usage = next(event["usage"] for event in reversed(events) if event.get("usage"))
    assert usage["completion_tokens"] == NUM_TOKENS
    assert usage["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + NUM_TOKENS
