"""Answers of servers are untrusted: whatever they say is understood or refused."""

from __future__ import annotations

from string import ascii_uppercase
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.measure.server import serve
from tests.quality import toy

from servewise.errors import MeasurementError
from servewise.net.plain import Answer, PlainClient
from servewise.quality.prompts import Prompt
from servewise.quality.servers import TokenServer, text_server, token_server
from servewise.types import Endpoint

PROMPT = Prompt(line=1, messages=({"role": "user", "content": "tell me of a"},))
KEYS = [
    *(
        "choices",
        "text",
        "message",
        "content",
        "finish_reason",
        "stop_reason",
        "token_ids",
        "prompt_logprobs",
        "logprobs",
    ),
    *("top_logprobs", "tokens", "tokens_predicted", "stop_type", "completion_probabilities", "id", "logprob", "97"),
    *("meta_info", "output_ids", "type", "matched", "prompt", "input_top_logprobs", "output_top_logprobs"),
    "token_id:97",
]
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["stop", "length", "eos", "97", ""])
scalars |= st.just(-(10**400))
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=9)
)


class Says(PlainClient):
    """Answers everything with one document."""

    def __init__(self, document: Any) -> None:
        self.document = document

    def post(self, path: str, document: Any, *, timeout_s: float | None = None) -> Answer:  # noqa: ARG002
        said = self.document

        class Said(Answer):
            def json(self) -> Any:
                return said

        return Said(status=200, headers={}, body=b"")


def endpoint(engine: str) -> Endpoint:
    return Endpoint(base_url="http://localhost:1", api="openai-chat", model="m", engine=engine)


def tokens(client: PlainClient, engine: str) -> TokenServer:
    found = token_server(client, endpoint(engine), raw=False)
    assert found is not None
    return found


@settings(max_examples=300)
@given(documents, st.sampled_from(["vllm", "sglang", "llama.cpp"]))
def test_what_a_server_says_is_understood_or_refused(document: Any, engine: str) -> None:
    server = tokens(Says(document), engine)
    asks = (
        lambda: server.prompt_tokens(PROMPT),
        lambda: server.tokenize("a"),
        lambda: server.answer_tokens([97], 4, 0),
        lambda: server.distributions([97], [98], [0, 1], 2),
        lambda: text_server(Says(document), endpoint(engine), raw=False).answer(PROMPT, 4, 0),
    )
    for ask in asks:
        try:
            found = ask()
        except MeasurementError:
            continue
        if isinstance(found, list):
            assert all(row and max(row.values()) <= 0.0 for row in found)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_answer_that_the_engine_gave_up_is_none(engine: str) -> None:
    ended = {"choices": [{"text": "a", "token_ids": [97], "finish_reason": "abort"}], "text": "a", "output_ids": [97]}
    ended["meta_info"] = {"finish_reason": {"type": "abort", "message": "out of memory"}}
    with pytest.raises(MeasurementError, match="it ended by 'abort'"):
        tokens(Says(ended), engine).answer_tokens([97], 4, 0)


@pytest.mark.parametrize(("stop_reason", "num_kept"), [(None, 0), (toy.END, 0), ("a stop text", 1), (97, 1)])
def test_the_end_token_of_vllm_is_no_part_of_an_answer(stop_reason: int | str | None, num_kept: int) -> None:
    """vLLM gives an end token that is not the tokenizer's own as the stop reason, and keeps it as the last token."""
    model = toy.Toy(toy.table(9))
    # most answers of the toy go round and round
    prompt = next(model.tokens(last) for last in ascii_uppercase if model.greedy(model.tokens(last), 20)[1])
    said, _ = model.greedy(prompt, 20)
    assert said
    with serve(toy.vllm(model, stop_reason=stop_reason)) as script, PlainClient(script.url) as client:
        answer = tokens(client, "vllm").answer_tokens(prompt, 20, 0)
    assert answer.tokens == (*said, *[toy.END] * num_kept)
    assert not answer.hit_max


PRIVATE = "my private answer " * 1000


@pytest.mark.parametrize(
    "document",
    [
        {"choices": [{"text": [PRIVATE], "token_ids": [97], "finish_reason": "stop"}]},
        {"choices": [{"text": "a", "token_ids": [PRIVATE], "finish_reason": "stop"}]},
        {"choices": [{"text": "a", "prompt_logprobs": [None], "logprobs": {"top_logprobs": [{PRIVATE: -1.0}]}}]},
        {"choices": [{"text": "a", "prompt_logprobs": [None, {PRIVATE: {"logprob": -1.0}}], "logprobs": None}]},
        {"choices": [{"prompt_logprobs": [None], "logprobs": {"top_logprobs": [{"token_id:1": PRIVATE}]}}]},
    ],
)
def test_messages_are_short_and_quote_no_answer(document: Any) -> None:
    server = tokens(Says(document), "vllm")
    refused = []
    for ask in (lambda: server.answer_tokens([97], 4, 0), lambda: server.distributions([97], [98], [0], 2)):
        with pytest.raises(MeasurementError) as error:
            ask()
        refused.append(str(error.value))
    assert max(map(len, refused)) < 400
    assert "private" not in "".join(refused)


def test_the_noise_of_llamacpp_is_not_that_of_its_cache() -> None:
    """Only what a pass has computed itself comes from the cache: else the second answer would repeat the first."""
    model = toy.Toy(toy.table(1))
    with serve(toy.llamacpp(model)) as script, PlainClient(script.url) as client:
        server = tokens(client, "llama.cpp")
        for _ in range(2):
            server.answer_tokens([97], 4, 0)
            server.distributions([97], [98, 99, 100], [0, 1, 2], 3)
    cached = [asked["cache_prompt"] for _, path, _, asked in script.asked if path == "/completion"]
    assert cached == [False, False, True, True] * 2


@pytest.mark.parametrize(("engine", "pages"), [("vllm", toy.vllm), ("sglang", toy.sglang), ("llama.cpp", toy.llamacpp)])
def test_tokens_and_distributions_are_those_of_the_model(engine: str, pages: Any) -> None:
    model = toy.Toy(toy.table(1))
    with serve(pages(model)) as script, PlainClient(script.url) as client:
        server = tokens(client, engine)
        prompt = server.prompt_tokens(PROMPT)
        assert list(prompt) == model.tokens(model.template(PROMPT.messages))
        answer = server.answer_tokens(prompt, 6, 0)
        said, ended = model.greedy(prompt, 6)
        assert (answer.tokens, answer.hit_max) == (tuple(said), not ended)
        rows = server.distributions(prompt, said, range(len(said) + 1), 3)
        for position, row in enumerate(rows):
            last = [*prompt, *said][len(prompt) - 1 + position]
            assert row.items() >= model.top(last, 3).items()
