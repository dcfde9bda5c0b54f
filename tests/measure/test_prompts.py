"""Prompts: exact lengths, exactly the shared blocks, real conversations."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from itertools import combinations, pairwise

import numpy as np
import pytest
from tests.measure import servers
from tests.measure.server import Page, serve

from servewise.measure.discover import discover
from servewise.measure.prompts import WorkloadPrompts, previous_turns
from servewise.measure.tokens import Wording, find_wording
from servewise.net.plain import PlainClient
from servewise.traffic import (
    Arrivals,
    Conversations,
    FixedLength,
    SynthesisSpec,
    SystemPrompts,
    UniformLength,
    synthesize,
)
from servewise.types import Endpoint, Workload

CHAT = Endpoint(base_url="http://localhost", api="openai-chat", model='a "model"', engine="vllm")
COMPLETIONS = Endpoint(base_url="http://localhost", api="openai-completions", model="m", engine="vllm")


def _wording(pages: dict[str, Page]) -> Wording:
    with serve(pages) as script, PlainClient(script.url) as client:
        return find_wording(client, discover(client, script.url).endpoint)


@pytest.fixture(scope="module")
def wording() -> Wording:
    return _wording(servers.vllm())


def _workload(num: int = 40, **options: object) -> Workload:
    given: dict[str, object] = {
        "num_requests": num,
        "arrivals": Arrivals(rate_rps=1.0),
        "input_tokens": UniformLength(low=20, high=200),
        "output_tokens": FixedLength(tokens=7),
    }
    return synthesize(SynthesisSpec(**(given | options)), 3)  # type: ignore[arg-type]


def _tokens(body: bytes) -> list[int]:
    asked = json.loads(body)
    return servers.templated(asked["messages"]) if "messages" in asked else servers.tokens(asked["prompt"])


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp", "tgi"])
def test_words_are_single_tokens_for_the_servers_tokenizer(engine: str) -> None:
    found = _wording(servers.ENGINES[engine]())
    assert len(found.words) > 300
    assert max(map(len, found.words)) <= 6  # the toy tokenizer splits longer ones
    assert found.tokens_per_word == 1.0


def test_the_template_is_what_two_prompts_have_in_common(wording: Wording) -> None:
    assert (wording.head_tokens, wording.tail_tokens, wording.turn_tokens) == (5, 2, 6)
    assert wording.exact
    # SGLang's tokenizer knows no messages here: the template's size is known, its place is not
    known = _wording(servers.sglang())
    assert (known.head_tokens, known.tail_tokens, known.turn_tokens) == (7, 0, 6)


def test_without_a_tokenizer_usage_gives_tokens_per_word() -> None:
    found = _wording(servers.unknown())
    assert found.source == "the usage of short requests"
    assert 1.0 < found.tokens_per_word < 1.5
    assert found.head_tokens == pytest.approx(7, abs=4)
    assert not found.exact
    prompts = WorkloadPrompts(_workload(), CHAT, found, seed=0)
    lengths = [len(_tokens(prompts.body(i, {}))) for i in range(40)]
    intended = [prompts.intended_input_tokens(i) for i in range(40)]
    assert np.mean(lengths) == pytest.approx(np.mean(intended), rel=0.1)


def test_a_server_that_counts_nothing_is_not_trusted_with_lengths() -> None:
    pages: dict[str, Page] = servers.unknown() | {"/v1/chat/completions": {"choices": []}}
    found = _wording(pages)
    assert not found.exact
    assert found.source.startswith("nothing")


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_prompts_have_the_intended_length_and_the_forced_answer(wording: Wording, endpoint: Endpoint) -> None:
    workload = _workload()
    used = wording if endpoint is CHAT else _plain(wording)
    prompts = WorkloadPrompts(workload, endpoint, used, seed=1)
    for i in range(workload.num_requests):
        body = prompts.body(i, {})
        asked = json.loads(body)
        assert len(_tokens(body)) == workload.input_tokens[i]
        assert (asked["max_tokens"], asked["min_tokens"], asked["ignore_eos"]) == (7, 7, True)
        assert asked["model"] == endpoint.model
        assert asked["stream_options"] == {"include_usage": True}


def _plain(wording: Wording) -> Wording:
    return Wording(
        words=wording.words,
        tokens_per_word=1.0,
        head_tokens=0,
        tail_tokens=0,
        turn_tokens=0,
        source="",
        exact=True,
    )


def _common(left: list[int], right: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_prompts_share_exactly_the_blocks_of_the_workload(wording: Wording, endpoint: Endpoint) -> None:
    workload = _workload(system_prompts=SystemPrompts(tokens=64, num_groups=3, zipf_exponent=0.5))
    assert workload.prefix is not None
    used = wording if endpoint is CHAT else _plain(wording)
    prompts = WorkloadPrompts(workload, endpoint, used, seed=2)
    texts = [_tokens(prompts.body(i, {})) for i in range(workload.num_requests)]
    rows = [workload.prefix.ids[a:b].tolist() for a, b in pairwise(workload.prefix.offsets)]
    shared = set()
    for i, j in combinations(range(workload.num_requests), 2):
        blocks = _common(rows[i], rows[j])
        # whole blocks of 16: no more and no fewer than the workload says, whatever the template adds in front
        assert _common(texts[i], texts[j]) // 16 == blocks
        shared.add(blocks)
    assert shared == {0, 4}


def test_prompts_of_another_seed_share_nothing_and_the_same_seed_all(wording: Wording) -> None:
    workload = _workload()
    bodies = [WorkloadPrompts(workload, COMPLETIONS, _plain(wording), seed=seed).body(0, {}) for seed in (1, 1, 2)]
    assert bodies[0] == bodies[1]
    assert _common(_tokens(bodies[0]), _tokens(bodies[2])) < 16


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_conversations_repeat_the_real_answers(wording: Wording, endpoint: Endpoint) -> None:
    talks = Conversations(turns=FixedLength(tokens=3), turn_gap_s=10.0)
    workload = _workload(30, conversations=talks, input_tokens=FixedLength(tokens=40))
    used = wording if endpoint is CHAT else _plain(wording)
    prompts = pickle.loads(pickle.dumps(WorkloadPrompts(workload, endpoint, used, seed=1)))  # noqa: S301 (as workers do)
    before = previous_turns(workload)
    answers: dict[int, str] = {}
    for i in range(workload.num_requests):
        body = prompts.body(i, answers)
        assert len(_tokens(body)) == workload.input_tokens[i]
        if before[i] >= 0:
            assert answers[before[i]].encode() in body
        assert prompts.keeps_answer(i) == (i in before)
        if prompts.keeps_answer(i):
            answers[i] = f" real {i} one two six ten end"
    assert set(np.bincount(before[before >= 0] + 1)) == {0, 1}
    assert np.count_nonzero(before >= 0) == 20


def test_a_lost_answer_is_stood_in_for_and_odd_ones_are_escaped(wording: Wording) -> None:
    talks = Conversations(turns=FixedLength(tokens=2), turn_gap_s=1.0)
    workload = _workload(2, conversations=talks, input_tokens=FixedLength(tokens=40))
    prompts = WorkloadPrompts(workload, CHAT, wording, seed=1)
    assert len(_tokens(prompts.body(1, {}))) == workload.input_tokens[1]
    long = FixedLength(tokens=200_000)
    talk = _workload(2, conversations=talks, input_tokens=FixedLength(tokens=10), output_tokens=long)
    assert len(_tokens(WorkloadPrompts(talk, CHAT, wording, seed=1).body(1, {}))) == talk.input_tokens[1]
    odd: Mapping[int, str] = {0: 'a "quote"\n\ud800 \x00'}
    assert json.loads(prompts.body(1, odd))["messages"][1]["content"] == 'a "quote"\n? \x00'


def test_unknown_prefixes_and_lone_requests_share_nothing(wording: Wording) -> None:
    workload = _workload()
    assert (previous_turns(workload) == -1).all()
    prompts = WorkloadPrompts(workload, CHAT, wording, seed=4)
    texts = [_tokens(prompts.body(i, {})) for i in range(workload.num_requests)]
    assert max(_common(a, b) for a, b in combinations(texts, 2)) == 5  # the template


@pytest.mark.parametrize("api", ["ollama-chat", "ollama-generate", "tgi-generate"])
def test_native_apis_hold_their_limits(wording: Wording, api: str) -> None:
    endpoint = Endpoint(base_url="http://localhost", api=api, model="m", engine=api.split("-")[0])  # type: ignore[arg-type]
    asked = json.loads(WorkloadPrompts(_workload(), endpoint, wording, seed=0).body(0, {}))
    limits = asked.get("options", asked.get("parameters"))
    assert limits.get("num_predict", limits.get("max_new_tokens")) == 7
    assert "ignore_eos" not in asked
