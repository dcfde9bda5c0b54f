"""Answers and next-token distributions of running servers.

Where an engine takes and gives token ids, both servers are asked about exactly the same tokens. Shapes seen at running
servers: vLLM 0.32 (``/tokenize``, ``/v1/completions`` with ``prompt_logprobs`` and ``return_token_ids``), SGLang 0.5.23
(``/tokenize``, ``/generate``), llama.cpp b11549 (``/tokenize``, ``/apply-template``, ``/completion``). Others are asked
for texts alone, in OpenAI's API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from servewise.errors import MeasurementError
from servewise.net.plain import PlainClient
from servewise.quality.divergence import Distribution
from servewise.quality.prompts import Prompt
from servewise.types import Endpoint

__all__ = ["MAX_ANSWER_BYTES", "Answer", "TextServer", "TokenServer", "text_server", "token_server"]

MAX_ANSWER_BYTES: Final = 256 << 20
"""vLLM names some 75 bytes for each of the most probable tokens at every token of the prompt."""
MAX_SAID_CHARS: Final = 200
LEAST_LOGPROB: Final = -9999.0
"""What vLLM writes for a probability of 0; the others write less, or infinity."""
FAILED: Final = ("abort", "error")
"""Endings of answers that an engine gave up."""
NEUTRAL: Final[Mapping[str, float]] = {"temperature": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Greedy, whatever a server's own defaults are: penalties would change what is most probable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A greedy answer.

    Parameters
    ----------
    text : str
    tokens : tuple of int or None
        Without the token that ends an answer; None where the server gives none.
    hit_max : bool
        Ended only because it was as long as was asked for.
    """

    text: str
    tokens: tuple[int, ...] | None
    hit_max: bool


class TextServer(Protocol):
    """A server that answers."""

    def answer(self, prompt: Prompt, max_tokens: int, seed: int) -> Answer:
        """The greedy answer.

        Raises
        ------
        MeasurementError
            When it refuses, or what it says cannot be understood.
        """


class TokenServer(Protocol):
    """A server that takes and gives token ids. What it refuses is a MeasurementError."""

    one_by_one: bool
    """Whether each position is a request of its own."""

    def prompt_tokens(self, prompt: Prompt) -> tuple[int, ...]:
        """Tokens of a prompt, in the server's chat template unless it is raw, up to where the answer begins."""

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Tokens of a text alone."""

    def answer_tokens(self, prompt: Sequence[int], max_tokens: int, seed: int) -> Answer:
        """The greedy answer to a prompt of tokens."""

    def distributions(
        self, prompt: Sequence[int], answer: Sequence[int], positions: Sequence[int], top: int
    ) -> list[Distribution]:
        """What would come at each position of an answer, from 0 to its length, after the prompt and what is before."""


def text_server(client: PlainClient, endpoint: Endpoint, *, raw: bool) -> TextServer:
    """A server that is asked in OpenAI's API."""
    return _OpenAi(client, endpoint, raw=raw)


def token_server(client: PlainClient, endpoint: Endpoint, *, raw: bool) -> TokenServer | None:
    """A server of an engine whose token ids and log probabilities are known how to be asked for; None for others."""
    known: dict[str, type[_Vllm | _Sglang | _LlamaCpp]] = {"vllm": _Vllm, "sglang": _Sglang, "llama.cpp": _LlamaCpp}
    found = known.get(endpoint.engine)
    return None if found is None else found(client, endpoint, raw=raw)


class _Server:
    """What all servers share: asking, and reading what is untrusted."""

    one_by_one = False

    def __init__(self, client: PlainClient, endpoint: Endpoint, *, raw: bool) -> None:
        self._client = client
        self._model = endpoint.model
        self._raw = raw

    def _ask(self, path: str, document: Mapping[str, Any]) -> Any:
        answer = self._client.post(path, document)
        if answer.status != 200:
            said = answer.body[:MAX_SAID_CHARS].decode("utf-8", errors="replace")
            raise MeasurementError(f"{path} answers {answer.status}: {said}")
        return answer.json()


class _OpenAi(_Server):
    def answer(self, prompt: Prompt, max_tokens: int, seed: int) -> Answer:
        document: dict[str, Any] = {"model": self._model, "max_tokens": max_tokens, "seed": seed, **NEUTRAL}
        if self._raw:
            found = self._ask("/v1/completions", document | {"prompt": prompt.text})
        else:
            found = self._ask("/v1/chat/completions", document | {"messages": list(prompt.messages)})
        with _Reading("an answer"):
            choice = found["choices"][0]
            message = choice if self._raw else choice["message"]
            names = ("text",) if self._raw else ("reasoning_content", "reasoning", "content")
            text = "".join(value for name in names if isinstance(value := message.get(name), str))
            return _answer(text, None, choice["finish_reason"])


class _Vllm(_Server):
    def prompt_tokens(self, prompt: Prompt) -> tuple[int, ...]:
        if self._raw:
            return self._tokenize({"prompt": prompt.text, "add_special_tokens": True})
        return self._tokenize({"messages": list(prompt.messages), "add_generation_prompt": True})

    def tokenize(self, text: str) -> tuple[int, ...]:
        return self._tokenize({"prompt": text, "add_special_tokens": False})

    def _tokenize(self, document: Mapping[str, Any]) -> tuple[int, ...]:
        found = self._ask("/tokenize", {"model": self._model, **document})
        with _Reading("tokens"):
            return tuple(_token(token) for token in found["tokens"])

    def answer_tokens(self, prompt: Sequence[int], max_tokens: int, seed: int) -> Answer:
        asked = {"prompt": list(prompt), "max_tokens": max_tokens, "seed": seed, "return_token_ids": True}
        found = self._ask("/v1/completions", {"model": self._model, "repetition_penalty": 1.0, **NEUTRAL, **asked})
        with _Reading("an answer"):
            choice = found["choices"][0]
            tokens = [_token(token) for token in choice["token_ids"]]
            # the tokenizer's own end token is no stop reason, the others of generation_config.json are
            ended = choice["finish_reason"] == "stop" and choice.get("stop_reason") in (None, *tokens[-1:])
            return _answer(choice["text"], tokens[:-1] if ended else tokens, choice["finish_reason"])

    def distributions(
        self, prompt: Sequence[int], answer: Sequence[int], positions: Sequence[int], top: int
    ) -> list[Distribution]:
        asked = {"prompt": [*prompt, *answer], "max_tokens": 1, "prompt_logprobs": top, "logprobs": top}
        named = {"return_tokens_as_token_ids": True}
        found = self._ask("/v1/completions", {"model": self._model, **NEUTRAL, **asked, **named})
        with _Reading("log probabilities"):
            choice = found["choices"][0]
            rows = [_by_id(row) for row in choice["prompt_logprobs"][len(prompt) :]]
            after = choice["logprobs"]["top_logprobs"][0]
            rows.append({_token_of(name.removeprefix("token_id:")): _logprob(after[name]) for name in after})
            return [_named(rows[position]) for position in positions]


class _Sglang(_Vllm):
    def answer_tokens(self, prompt: Sequence[int], max_tokens: int, seed: int) -> Answer:
        sampling = {"max_new_tokens": max_tokens, "repetition_penalty": 1.0, "sampling_seed": seed, **NEUTRAL}
        found = self._ask("/generate", {"input_ids": list(prompt), "sampling_params": sampling})
        with _Reading("an answer"):
            tokens = [_token(token) for token in found["output_ids"]]
            ending = found["meta_info"]["finish_reason"]
            ended = ending["type"] == "stop" and tokens[-1:] == [ending.get("matched")]
            return _answer(found["text"], tokens[:-1] if ended else tokens, ending["type"])

    def distributions(
        self, prompt: Sequence[int], answer: Sequence[int], positions: Sequence[int], top: int
    ) -> list[Distribution]:
        asked = {"input_ids": [*prompt, *answer], "sampling_params": {"max_new_tokens": 1, **NEUTRAL}}
        # the row of the start itself says nothing when it is the first token
        wanted = {"return_logprob": True, "logprob_start_len": len(prompt) - 1, "top_logprobs_num": top}
        found = self._ask("/generate", asked | wanted)
        with _Reading("log probabilities"):
            info = found["meta_info"]
            rows = [*info["input_top_logprobs"][1:], info["output_top_logprobs"][0]]
            if len(rows) != len(answer) + 1:
                raise ValueError(f"{len(rows)} rows for {len(answer)} tokens")
            named = [{_token(row[1]): _logprob(row[0]) for row in rows[position]} for position in positions]
            return [_named(row) for row in named]


class _LlamaCpp(_Server):
    one_by_one = True

    def prompt_tokens(self, prompt: Prompt) -> tuple[int, ...]:
        text = prompt.text
        if not self._raw:
            found = self._ask("/apply-template", {"messages": list(prompt.messages)})
            with _Reading("a rendered prompt"):
                text = found["prompt"]
        return self._tokenize(text, special=True)

    def tokenize(self, text: str) -> tuple[int, ...]:
        return self._tokenize(text, special=False)

    def _tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        found = self._ask("/tokenize", {"content": text, "add_special": special, "parse_special": True})
        with _Reading("tokens"):
            return tuple(_token(token) for token in found["tokens"])

    def answer_tokens(self, prompt: Sequence[int], max_tokens: int, seed: int) -> Answer:
        # from the cache of the first answer the second would have less noise than a server's answers have
        asked = {"prompt": list(prompt), "n_predict": max_tokens, "seed": seed, "cache_prompt": False}
        wanted = {"return_tokens": True, "repeat_penalty": 1.0, "dry_multiplier": 0.0}
        found = self._ask("/completion", {**NEUTRAL, **wanted, **asked})
        with _Reading("an answer"):
            tokens = [_token(token) for token in found["tokens"]]
            if found["stop_type"] == "eos" and len(tokens) == found["tokens_predicted"]:
                tokens.pop()
            return _answer(found["content"], tokens, "length" if found["stop_type"] == "limit" else "stop")

    def distributions(
        self, prompt: Sequence[int], answer: Sequence[int], positions: Sequence[int], top: int
    ) -> list[Distribution]:
        rows: list[Distribution] = []
        for position in positions:
            before = [*prompt, *answer[:position]]
            # only what this pass has computed itself may come from the cache
            asked = {"prompt": before, "n_predict": 1, "n_probs": top, "cache_prompt": bool(rows)}
            found = self._ask("/completion", {"repeat_penalty": 1.0, "dry_multiplier": 0.0, **NEUTRAL, **asked})
            with _Reading("log probabilities"):
                entries = found["completion_probabilities"][0]["top_logprobs"]
                rows.append(_named({_token(entry["id"]): _logprob(entry["logprob"]) for entry in entries}))
        return rows


class _Reading:
    """Turns what an untrusted answer lacks, or has wrong, into a MeasurementError."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, LookupError | TypeError | ValueError | AttributeError | OverflowError):
            said = repr(error)[:MAX_SAID_CHARS]
            raise MeasurementError(f"{self._what} cannot be read in what the server says ({said})") from error


def _answer(text: Any, tokens: Sequence[int] | None, ending: Any) -> Answer:
    if not isinstance(text, str):
        raise TypeError(f"{type(text).__name__} is no text")
    if ending in FAILED:
        raise ValueError(f"it ended by {ending!r}")
    return Answer(text=text, tokens=None if tokens is None else tuple(tokens), hit_max=ending == "length")


def _token(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise TypeError(f"{type(value).__name__} is no token id, which are from 0")
    return value


def _token_of(name: str) -> int:
    """Token id of its name. Messages do not quote it: where it is no id, it is a piece of text."""
    if not name.isdecimal():
        raise TypeError("a token is not named by its id")
    return int(name)


def _logprob(value: Any) -> float:
    if not isinstance(value, int | float) or not value <= 1e-3:
        raise TypeError(f"{type(value).__name__} is no log probability, which are up to 0")
    return max(min(float(value), 0.0), LEAST_LOGPROB)


def _by_id(row: Mapping[str, Mapping[str, Any]]) -> Distribution:
    return {_token_of(token): _logprob(entry["logprob"]) for token, entry in row.items()}


def _named(row: Distribution) -> Distribution:
    if not row:
        raise ValueError("no token is named")
    return row
