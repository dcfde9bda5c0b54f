"""Discovery: what each engine is recognised by, and what cannot be measured."""

from __future__ import annotations

import pytest
from tests.measure import servers
from tests.measure.server import Page, Script, serve

from servewise.errors import InputError, MeasurementError
from servewise.measure.discover import Discovery, discover
from servewise.net.plain import PlainClient
from servewise.types import Api


def _discover(script: Script, **options: object) -> Discovery:
    with PlainClient(script.url) as client:
        return discover(client, script.url, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "version", "api", "context"),
    [
        ("vllm", "0.32.0", "openai-chat", 2048),
        ("sglang", "0.5.23", "openai-chat", 4096),
        ("llama.cpp", "b11549", "openai-chat", 2048),
        ("ollama", "0.12.6", "ollama-chat", None),
        ("tgi", "3.2.1", "tgi-generate", 4096),
        ("unknown", "", "openai-chat", None),
    ],
)
def test_engines_are_recognised(engine: str, version: str, api: Api, context: int | None) -> None:
    with serve(servers.ENGINES[engine]()) as script:
        found = _discover(script)
    endpoint = found.endpoint
    assert (endpoint.engine, endpoint.engine_version, endpoint.api) == (engine, version, api)
    assert endpoint.model == ("llama3.2:1b" if engine == "ollama" else "m")
    assert found.max_context_tokens == context


def test_an_older_sglang_names_itself_elsewhere() -> None:
    pages = servers.sglang()
    pages["/get_server_info"] = pages.pop("/server_info")
    with serve(pages) as script:
        assert _discover(script).endpoint.engine_version == "0.5.23"


def test_a_model_without_a_chat_template_is_asked_for_completions() -> None:
    pages: dict[str, Page] = servers.vllm() | {
        "/v1/chat/completions": (400, {}, b'{"error": {"message": "no chat template"}}')
    }
    with serve(pages) as script:
        assert _discover(script).endpoint.api == "openai-completions"


def test_a_server_that_does_not_generate_says_what_it_said() -> None:
    pages: dict[str, Page] = {"/v1/models": servers.models("vllm")}
    with (
        serve(pages) as script,
        pytest.raises(MeasurementError, match="does not generate: /v1/completions answers 404"),
    ):
        _discover(script)


def test_several_models_need_a_choice() -> None:
    pages: dict[str, Page] = servers.vllm() | {"/v1/models": servers.models("vllm", "a", "b")}
    with serve(pages) as script:
        with pytest.raises(InputError, match="choose one with --model: 'a', 'b'"):
            _discover(script)
        assert _discover(script, model="b").endpoint.model == "b"


def test_a_server_that_wants_a_key_is_bad_input() -> None:
    with serve({"/v1/models": (401, {}, b"")}) as script, pytest.raises(InputError, match="--key-env"):
        _discover(script)


def test_anything_else_is_no_language_model_server() -> None:
    with serve({"/": "hello", "/v1/models": "<html>"}) as script, pytest.raises(MeasurementError, match="no models"):
        _discover(script)
