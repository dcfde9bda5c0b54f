"""What is asked of each API: the server's own sampling unless another was asked for, and answers of full length."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from servewise.measure.apis import FORCED, request_document
from servewise.types import Api, Endpoint

MESSAGES = [{"role": "user", "content": "Hello "}, {"role": "user", "content": "there"}]


def asked(api: Api, **changes: Any) -> dict[str, Any]:
    endpoint = replace(Endpoint(base_url="http://localhost", api=api, model="m", engine="vllm"), **changes)
    return request_document(endpoint, MESSAGES, 7, force=True)


@pytest.mark.parametrize(
    ("api", "place"),
    [
        ("openai-chat", None),
        ("openai-completions", None),
        ("ollama-chat", "options"),
        ("ollama-generate", "options"),
        ("tgi-generate", "parameters"),
    ],
)
def test_temperature_is_asked_for_only_when_it_was_given(api: Api, place: str | None) -> None:
    def settings(document: dict[str, Any]) -> dict[str, Any]:
        return document if place is None else document[place]

    assert "temperature" not in settings(asked(api))
    assert settings(asked(api, temperature=0.7))["temperature"] == 0.7


def test_tgi_is_greedy_without_a_temperature_and_refuses_zero() -> None:
    assert "temperature" not in asked("tgi-generate", temperature=0.0)["parameters"]


@pytest.mark.parametrize("engine", [*FORCED, "unknown"])
def test_an_engine_is_told_not_to_stop_early_only_in_words_it_knows(engine: str) -> None:
    document = asked("openai-chat", engine=engine)
    assert {key for key in document if key in ("ignore_eos", "min_tokens")} == set(FORCED.get(engine, ()))
    assert document["max_tokens"] == 7


def test_an_api_without_messages_gets_their_contents() -> None:
    assert asked("openai-completions")["prompt"] == "Hello there"
    assert asked("tgi-generate")["inputs"] == "Hello there"
    assert asked("ollama-generate")["raw"] is True
