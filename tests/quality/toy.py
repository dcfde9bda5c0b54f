"""Language models whose every probability is known, behind the shapes of the engines that real ones answer with.

A token is a character's code. What comes next depends on the last token alone, by a table of eight letters and the end.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

END = 0
LETTERS = [ord(letter) for letter in "abcdefgh"]
HEAD = "U:"
"""The chat template. What follows depends on a prompt's last character, as nothing comes after it."""

Pages = dict[str, Any]


@dataclass
class Toy:
    """A model: for each last token the probabilities of the end and of the letters, in this order."""

    table: Mapping[int, Sequence[float]]
    shift: int = 0
    """Added to every token id: another tokenizer."""
    head: str = HEAD
    max_top: int = 20
    fails_on: str = ""
    """Prompts that end with one of these are refused."""
    asked: int = 0
    prompts: list[str] = field(default_factory=list)

    def tokens(self, text: str) -> list[int]:
        return [ord(character) + self.shift for character in text]

    def template(self, messages: Sequence[Mapping[str, str]]) -> str:
        return self.head + "|".join(message["content"] for message in messages)

    def logprobs(self, last: int) -> dict[int, float]:
        """All tokens' log probabilities, the most probable first."""
        known = self.table.get(last - self.shift, self.table[LETTERS[0]])
        named = zip([END, *LETTERS], known, strict=True)
        found = {token + self.shift if token else END: math.log(value) for token, value in named}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def top(self, last: int, top: int) -> dict[int, float]:
        return dict(list(self.logprobs(last).items())[:top])

    def greedy(self, prompt: Sequence[int], max_tokens: int) -> tuple[list[int], bool]:
        """Tokens without the end, and whether the model ended them."""
        self.asked += 1
        found: list[int] = []
        last = prompt[-1]
        while len(found) < max_tokens:
            last = next(iter(self.logprobs(last)))
            if last == END:
                return found, True
            found.append(last)
        return found, False

    def text(self, tokens: Sequence[int]) -> str:
        return "".join(chr(token - self.shift) for token in tokens)

    def refuses(self, prompt: Any) -> bool:
        text = prompt if isinstance(prompt, str) else self.text(prompt)
        self.prompts.append(text)
        return bool(self.fails_on) and text[-1:] in self.fails_on


REFUSED = (400, {}, b'{"error": {"message": "the prompt is too long", "code": 400}}')


def vllm(toy: Toy, *, with_logprobs: bool = True, stop_reason: int | str | None = None) -> Pages:
    """Shapes of vLLM 0.32, as seen at a running server. The end token is the tokenizer's own, or a stop reason."""

    def tokenize(asked: dict[str, Any]) -> Any:
        text = asked["prompt"] if "prompt" in asked else toy.template(asked["messages"])
        return {"count": len(text), "max_model_len": 4096, "tokens": toy.tokens(text)}

    def completions(asked: dict[str, Any]) -> Any:
        prompt = asked["prompt"]
        if toy.refuses(prompt):
            return REFUSED
        ids = toy.tokens(prompt) if isinstance(prompt, str) else prompt
        wanted = asked.get("prompt_logprobs")
        if wanted is not None and not with_logprobs:
            return REFUSED
        if wanted is not None and wanted > toy.max_top:
            said = {"error": {"message": f"Requested prompt logprobs of {wanted}, which is greater than max allowed"}}
            return 400, {}, json.dumps(said).encode()
        tokens, ended = toy.greedy(ids, asked["max_tokens"])
        choice: dict[str, Any] = {
            "index": 0,
            "text": toy.text(tokens),
            "finish_reason": "stop" if ended else "length",
            "stop_reason": stop_reason if ended else None,
            "token_ids": [*tokens, END] if ended else tokens,
        }
        if wanted is not None:
            rows: list[Any] = [None]
            for before, token in itertools.pairwise(ids):
                named = toy.top(before, wanted) | {token: toy.logprobs(before).get(token, -20.0)}
                rows.append({str(key): {"logprob": value, "rank": 1} for key, value in named.items()})
            after = {f"token_id:{key}": value for key, value in toy.top(ids[-1], asked["logprobs"]).items()}
            choice |= {"prompt_logprobs": rows, "logprobs": {"top_logprobs": [after]}}
        return {"choices": [choice], "usage": {"prompt_tokens": len(ids), "completion_tokens": len(tokens)}}

    return {
        "/v1/models": {"data": [{"id": "toy", "owned_by": "vllm", "max_model_len": 4096}]},
        "/version": {"version": "0.32.0"},
        "/tokenize": tokenize,
        "/v1/completions": completions,
        "/v1/chat/completions": chat(toy),
    }


def llamacpp(toy: Toy) -> Pages:
    """Shapes of llama.cpp b11549, as seen at a running server."""

    def completion(asked: dict[str, Any]) -> Any:
        if toy.refuses(asked["prompt"]):
            return REFUSED
        tokens, ended = toy.greedy(asked["prompt"], asked["n_predict"])
        top = toy.top(asked["prompt"][-1], asked.get("n_probs", 0))
        named = [{"id": key, "token": "", "bytes": [], "logprob": value} for key, value in top.items()]
        return {
            "content": toy.text(tokens),
            "tokens": tokens,
            "tokens_predicted": len(tokens) + ended,
            "stop_type": "eos" if ended else "limit",
            "completion_probabilities": [{"id": 0, "logprob": 0.0, "top_logprobs": named}],
        }

    return {
        "/v1/models": {"data": [{"id": "toy", "owned_by": "llamacpp"}]},
        "/props": {"build_info": "b11549", "default_generation_settings": {"n_ctx": 4096}},
        "/tokenize": lambda asked: {"tokens": toy.tokens(asked["content"])},
        "/apply-template": lambda asked: {"prompt": toy.template(asked["messages"])},
        "/completion": completion,
        "/v1/chat/completions": chat(toy),
    }


def sglang(toy: Toy) -> Pages:
    """Shapes of SGLang 0.5.23, as seen at a running server."""

    def generate(asked: dict[str, Any]) -> Any:
        ids, top = asked["input_ids"], asked.get("top_logprobs_num", 0)
        if toy.refuses(ids):
            return REFUSED
        tokens, ended = toy.greedy(ids, asked["sampling_params"]["max_new_tokens"])
        ending = {"type": "stop", "matched": END} if ended else {"type": "length", "length": len(tokens)}
        info: dict[str, Any] = {"finish_reason": ending}
        if asked.get("return_logprob"):
            start = asked["logprob_start_len"]
            rows = [[[value, key, None] for key, value in toy.top(before, top).items()] for before in ids[:-1]]
            info["input_top_logprobs"] = [None, *rows[start:]]
            info["output_top_logprobs"] = [[[value, key, None] for key, value in toy.top(ids[-1], top).items()]]
        return {"text": toy.text(tokens), "output_ids": [*tokens, END] if ended else tokens, "meta_info": info}

    pages = vllm(toy)
    del pages["/v1/completions"], pages["/version"]
    pages["/v1/models"] = {"data": [{"id": "toy", "owned_by": "sglang", "max_model_len": 4096}]}
    pages["/server_info"] = {"version": "0.5.23"}
    return pages | {"/generate": generate}


def chat(toy: Toy) -> Callable[[dict[str, Any]], Any]:
    def page(asked: dict[str, Any]) -> Any:
        text = toy.template(asked["messages"])
        if toy.refuses(text):
            return REFUSED
        tokens, ended = toy.greedy(toy.tokens(text), asked["max_tokens"])
        message = {"role": "assistant", "content": toy.text(tokens)}
        ending = "stop" if ended else "length"
        usage = {"prompt_tokens": len(text), "completion_tokens": len(tokens)}
        return {"choices": [{"index": 0, "message": message, "finish_reason": ending}], "usage": usage}

    return page


def plain(toy: Toy) -> Pages:
    """A server of an engine that is not known."""
    return {"/v1/models": {"data": [{"id": "toy"}]}, "/v1/chat/completions": chat(toy)}


def table(seed: int, sharpness: float = 2.0) -> dict[int, list[float]]:
    """Probabilities after each token that is printable ASCII, or a line break."""
    rng = np.random.default_rng(seed)
    found = {}
    for token in [*range(32, 127), ord("\n")]:
        logits = sharpness * rng.standard_normal(1 + len(LETTERS))
        logits[0] -= 3.0  # answers of some length
        weights = np.exp(logits)
        found[token] = (weights / weights.sum()).tolist()
    return found


def blurred(exact: Mapping[int, Sequence[float]], noise: float, seed: int) -> dict[int, list[float]]:
    """The same model after rounding of some kind: every logit is moved."""
    rng = np.random.default_rng(seed)
    found = {}
    for token, values in exact.items():
        weights = np.exp(np.log(values) + noise * rng.standard_normal(len(values)))
        found[token] = (weights / weights.sum()).tolist()
    return found


def hide_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this environment had no lm-evaluation-harness, whether it has one or not."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "lm_eval" else find(name, *more)
    )
