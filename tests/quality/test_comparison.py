"""A candidate against its base, with models whose every probability is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import pytest
from tests.measure.server import serve
from tests.quality import toy
from tests.quality.toy import Pages, Toy

from servewise.errors import InputError, MeasurementError
from servewise.measure.discover import discover
from servewise.net.plain import PlainClient
from servewise.quality.comparison import compare_quality
from servewise.quality.prompts import Prompt
from servewise.quality.way import Asked, Side
from servewise.types import QualityComparison

EXACT = toy.table(1)
ROUNDED = toy.blurred(EXACT, 0.7, 2)
PROMPTS = [
    Prompt(line=line, messages=({"role": "user", "content": f"tell me of {chr(64 + line)}"},)) for line in range(1, 25)
]
ASKED = Asked(max_tokens=24, top=9, concurrency=3)
ENGINES: dict[str, Callable[[Toy], Pages]] = {"vllm": toy.vllm, "sglang": toy.sglang, "llama.cpp": toy.llamacpp}


def compared(
    base: Pages, candidate: Pages, asked: Asked = ASKED, prompts: list[Prompt] = PROMPTS, **more: object
) -> QualityComparison:
    with ExitStack() as stack:
        sides = []
        for pages in (base, candidate):
            url = stack.enter_context(serve(pages)).url
            client = stack.enter_context(PlainClient(url))
            api = "openai-completions" if asked.raw else None
            sides.append(Side(endpoint=discover(client, url, api=api, stream=False).endpoint, client=client))
        return compare_quality(sides[0], sides[1], prompts, asked, **more)  # type: ignore[arg-type]


def truth(base: Toy, candidate: Toy, asked: Asked = ASKED) -> tuple[float, float, float]:
    """Agreement, KL and share of same answers, from the tables."""
    agree, divergences, same = [], [], 0
    for prompt in PROMPTS:
        ids = base.tokens(base.template(prompt.messages))
        answer, ended = base.greedy(ids, asked.max_tokens)
        same += candidate.greedy(ids, asked.max_tokens) == (answer, ended)
        for place in range(len(answer) + ended):
            mine, theirs = (model.logprobs([*ids, *answer][len(ids) - 1 + place]) for model in (base, candidate))
            agree.append(next(iter(mine)) == next(iter(theirs)))
            divergences.append(math.fsum(math.exp(value) * (value - theirs[token]) for token, value in mine.items()))
    return sum(agree) / len(agree), math.fsum(divergences) / len(divergences), same / len(PROMPTS)


def values(found: QualityComparison) -> dict[str, float]:
    return {figure.name: figure.candidate.value for figure in found.figures}


@pytest.mark.parametrize("base_engine", ENGINES)
@pytest.mark.parametrize("candidate_engine", ENGINES)
def test_the_known_agreement_and_divergence_come_out(base_engine: str, candidate_engine: str) -> None:
    base, candidate = Toy(EXACT), Toy(ROUNDED)
    # with as many positions as an answer has, llama.cpp is asked at all of them, too
    asked = replace(ASKED, positions=ASKED.max_tokens + 1)
    found = compared(ENGINES[base_engine](base), ENGINES[candidate_engine](candidate), asked)
    agreement, kl, same = truth(base, candidate)
    assert 0.3 < agreement < 1.0
    assert values(found)["agreement"] == pytest.approx(agreement)
    assert values(found)["kl_nats"] == pytest.approx(kl, rel=1e-6)
    assert values(found)["exact_match"] == pytest.approx(same)
    assert (found.verdict, found.unit, found.num_failed) == ("loss seen", "tokens", 0)
    assert [figure.noise.value for figure in found.figures][:2] == pytest.approx([1.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_base_itself_loses_nothing(engine: str) -> None:
    found = compared(ENGINES[engine](Toy(EXACT)), ENGINES[engine](Toy(EXACT)))
    assert values(found)["agreement"] == values(found)["exact_match"] == values(found)["common_prefix"] == 1.0
    assert values(found)["kl_nats"] == pytest.approx(0.0, abs=1e-12)
    assert found.verdict == "no loss seen"


def test_fewer_named_tokens_give_a_lower_bound() -> None:
    few = compared(toy.vllm(Toy(EXACT)), toy.vllm(Toy(ROUNDED)), replace(ASKED, top=2))
    _, kl, _ = truth(Toy(EXACT), Toy(ROUNDED))
    assert 0.0 < values(few)["kl_nats"] < kl
    assert any("KL is a lower bound" in note for note in few.notes)


def test_positions_are_spread_evenly_and_that_is_said() -> None:
    found = compared(toy.llamacpp(Toy(EXACT)), toy.llamacpp(Toy(ROUNDED)), replace(ASKED, positions=3))
    assert max(prompt.candidate.num_positions for prompt in found.prompts) == 3
    assert any("at most 3 positions" in note for note in found.notes)


def test_other_tokenizers_are_compared_by_their_texts() -> None:
    found = compared(toy.vllm(Toy(EXACT)), toy.vllm(Toy(EXACT, shift=1)))
    assert found.unit == "characters"
    assert "agreement" not in values(found)
    assert values(found)["exact_match"] == 1.0
    assert any("the tokenizers of base and candidate differ" in note for note in found.notes)


def test_an_unknown_engine_is_compared_by_its_texts() -> None:
    found = compared(toy.vllm(Toy(EXACT)), toy.plain(Toy(ROUNDED)))
    assert found.unit == "characters"
    assert values(found)["exact_match"] == pytest.approx(truth(Toy(EXACT), Toy(ROUNDED))[2])
    assert any("the candidate would have to give token ids" in note for note in found.notes)


def test_without_log_probabilities_the_answers_remain() -> None:
    found = compared(toy.vllm(Toy(EXACT)), toy.vllm(Toy(ROUNDED), with_logprobs=False))
    assert found.unit == "tokens"
    assert "agreement" not in values(found)
    assert any("the candidate gives no log probabilities" in note for note in found.notes)
    found = compared(toy.vllm(Toy(EXACT)), toy.vllm(Toy(ROUNDED, max_top=5)))
    assert any("greater than max allowed" in note for note in found.notes)


def test_another_chat_template_is_said_and_next_tokens_are_still_of_the_same_text() -> None:
    found = compared(toy.vllm(Toy(EXACT)), toy.vllm(Toy(ROUNDED, head="<user>")))
    assert any("24 prompts are other tokens to the candidate" in note for note in found.notes)
    assert values(found)["agreement"] == pytest.approx(truth(Toy(EXACT), Toy(ROUNDED))[0])


def test_raw_prompts_are_sent_as_they_are() -> None:
    base = Toy(EXACT)
    compared(toy.vllm(base), toy.vllm(Toy(EXACT)), replace(ASKED, raw=True))
    assert not [text for text in base.prompts if toy.HEAD in text]


def test_a_server_without_a_chat_template_needs_raw_prompts() -> None:
    pages = toy.vllm(Toy(EXACT))
    pages["/v1/chat/completions"] = (400, {}, b'{"error": "no chat template"}')
    with pytest.raises(InputError, match="add --raw"):
        compared(toy.vllm(Toy(EXACT)), pages)


def test_messages_need_a_chat_template() -> None:
    pages = toy.vllm(Toy(EXACT))
    pages["/v1/chat/completions"] = (400, {}, b'{"error": "no chat template"}')
    two = replace(PROMPTS[3], messages=({"role": "system", "content": "s"}, *PROMPTS[3].messages))
    with pytest.raises(InputError, match="line 4 has several messages"):
        compared(pages, pages, prompts=[PROMPTS[0], two])
    found = compared(pages, pages)
    assert found.settings["raw"]
    assert any("without a chat template" in note for note in found.notes)


def test_failed_prompts_are_counted_and_make_the_figures_untrustworthy() -> None:
    found = compared(toy.vllm(Toy(EXACT)), toy.vllm(Toy(ROUNDED, fails_on="CDE")))
    assert found.num_failed == len(found.failures) > 0
    assert len(found.prompts) + found.num_failed == len(PROMPTS)
    assert {line for line, _ in found.failures}.isdisjoint(prompt.line for prompt in found.prompts)
    assert found.verdict == "not trustworthy"
    assert "the prompt is too long" in found.reasons[0]


def test_when_all_fail_the_first_reason_is_given() -> None:
    candidate = Toy(EXACT, fails_on="L")
    with pytest.raises(MeasurementError, match=r"none of 1 prompts could be compared; that in line 12: .*too long"):
        compared(toy.vllm(Toy(EXACT)), toy.plain(candidate), prompts=[PROMPTS[11]])


@pytest.mark.parametrize(
    "wrong",
    [
        {"choices": []},
        {"choices": [{"text": "a", "token_ids": None, "finish_reason": "stop"}]},
        {"choices": [{"text": 3, "token_ids": [97], "finish_reason": "length"}]},
        {"choices": [{"text": "a", "token_ids": [-1], "finish_reason": "length"}]},
        [],
        "no JSON",
        "[" * 100_000,
    ],
)
def test_answers_that_cannot_be_read_leave_the_texts(wrong: object) -> None:
    pages = toy.vllm(Toy(EXACT))
    pages["/v1/completions"] = lambda _asked: wrong
    found = compared(toy.vllm(Toy(EXACT)), pages)
    assert found.unit == "characters"
    assert any("texts alone were compared" in note for note in found.notes)


@pytest.mark.parametrize("logprob", [1.5, None, "0", float("nan")])
def test_log_probabilities_that_are_none_are_not_taken_for_some(logprob: object) -> None:
    pages = toy.llamacpp(Toy(EXACT))
    whole = pages["/completion"]

    def completion(asked: dict[str, object]) -> object:
        found = whole(asked)
        found["completion_probabilities"][0]["top_logprobs"] = [{"id": 97, "logprob": logprob}]
        return found

    pages["/completion"] = completion
    found = compared(toy.llamacpp(Toy(EXACT)), pages)
    assert any("gives no log probabilities" in note for note in found.notes)


def test_what_was_finished_before_ctrl_c_is_kept() -> None:
    def stop(done: int, _total: int) -> None:
        if done >= 6:
            raise KeyboardInterrupt

    found = compared(toy.vllm(Toy(EXACT)), toy.vllm(Toy(ROUNDED)), progress=stop)
    assert found.interrupted
    assert 6 <= len(found.prompts) < len(PROMPTS)
    assert found.num_failed == 0


def test_texts_are_kept_only_when_asked_for() -> None:
    silent = compared(toy.vllm(Toy(EXACT)), toy.vllm(Toy(ROUNDED)))
    assert all(prompt.texts is None for prompt in silent.prompts)
    found = compared(toy.vllm(Toy(EXACT)), toy.vllm(Toy(ROUNDED)), replace(ASKED, keep_text=True))
    texts = found.prompts[0].texts
    assert texts is not None
    assert texts.prompt == PROMPTS[0].text
    assert texts.base


def test_a_noisy_base_is_not_held_against_the_candidate() -> None:
    """A base that is drawn anew at each question is as far from itself as the candidate is from it."""

    class Noisy(Toy):
        def logprobs(self, last: int) -> dict[int, float]:
            self.asked += 1
            return Toy(toy.blurred(EXACT, 0.5, self.asked % 97)).logprobs(last)

    # what is drawn depends on the order of the questions
    found = compared(toy.vllm(Noisy(EXACT)), toy.vllm(Noisy(EXACT)), replace(ASKED, concurrency=1))
    assert values(found)["agreement"] < 1.0
    assert found.verdict == "no loss seen"
