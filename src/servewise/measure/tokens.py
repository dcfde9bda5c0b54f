"""Words that are one token each for the server's own tokenizer, and what its chat template adds around them.

Prompts are made of such words: then a prompt has the intended length, and the text of a prefix block is the same
tokens wherever it stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from servewise.errors import MeasurementError
from servewise.measure.answer import api_path
from servewise.measure.apis import Message, input_tokens_of, is_chat, request_document
from servewise.measure.words import WORDS
from servewise.net.plain import PlainClient
from servewise.types import Endpoint

__all__ = ["ServerTokenizer", "Wording", "find_wording"]

MIN_WORDS: Final = 64
"""Fewer words than this would make prompts alike."""
PROBE_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """How text becomes tokens.

    Parameters
    ----------
    words : tuple of str
        Without spaces.
    tokens_per_word : float
        1 when every word is one token; never less.
    head_tokens, tail_tokens : int [tokens]
        What the server adds before and after a prompt (chat template, start of text).
    turn_tokens : int [tokens]
        What it adds around each further turn of a conversation.
    source : str
        How this is known, in words.
    exact : bool
        Whether prompts have the intended length, not about it.
    """

    words: tuple[str, ...]
    tokens_per_word: float
    head_tokens: int
    tail_tokens: int
    turn_tokens: int
    source: str
    exact: bool


class ServerTokenizer:
    """The server's own tokenizer, where it can be asked.

    Shapes: vLLM (``prompt`` or ``messages`` to ``/tokenize``), SGLang (``prompt``), llama.cpp (``content``, and
    ``/apply-template`` for messages), TGI (``inputs``).
    """

    def __init__(self, client: PlainClient, endpoint: Endpoint) -> None:
        self._client = client
        self._endpoint = endpoint

    def tokens(self, text: str, *, special: bool = False) -> list[Hashable] | None:
        """Tokens of a text; None when the server cannot be asked. ``special`` adds what starts every prompt."""
        engine = self._endpoint.engine
        if engine in ("vllm", "sglang"):
            return self._ask({"model": self._endpoint.model, "prompt": text, "add_special_tokens": special})
        if engine == "llama.cpp":
            return self._ask({"content": text, "add_special": special, "parse_special": special})
        return self._ask({"inputs": text}) if engine == "tgi" else None

    def templated(self, messages: Sequence[Message]) -> list[Hashable] | None:
        """Tokens of messages in the chat template, up to where the answer begins; None when unknown."""
        engine = self._endpoint.engine
        if engine in ("vllm", "sglang"):
            return self._ask({"model": self._endpoint.model, "messages": list(messages), "add_generation_prompt": True})
        if engine == "llama.cpp":
            prompt = self._client.post("/apply-template", {"messages": list(messages)}).fields().get("prompt")
            return self.tokens(prompt, special=True) if isinstance(prompt, str) else None
        return None

    def _ask(self, document: dict[str, Any]) -> list[Hashable] | None:
        answer = self._client.post("/tokenize", document)
        body = answer.json() if answer.status == 200 else None
        found = body.get("tokens") if isinstance(body, dict) else body
        if not isinstance(found, list):
            return None
        return [token.get("id") if isinstance(token, dict) else token for token in found]


def find_wording(client: PlainClient, endpoint: Endpoint) -> Wording:
    """Learn how a server's tokens are counted: from its tokenizer, or from the usage of a few short requests.

    Raises
    ------
    MeasurementError
        When the server refuses the short requests.
    """
    asked = ServerTokenizer(client, endpoint)
    words = _single_tokens(asked, WORDS)
    if len(words) < MIN_WORDS:
        return _by_usage(client, endpoint)
    # TGI starts every text with its start token
    added = len(asked.tokens(words[0]) or ()) - 1
    if len(asked.tokens(" ".join(words)) or ()) != added + len(words):
        return _by_usage(client, endpoint)
    wording = Wording(
        words=words,
        tokens_per_word=1.0,
        head_tokens=0,
        tail_tokens=0,
        turn_tokens=0,
        source="the server's tokenizer",
        exact=True,
    )
    if is_chat(endpoint.api):
        return _with_template(client, asked, endpoint, wording)
    start = asked.tokens(words[0], special=True)
    return replace(wording, head_tokens=0 if start is None else max(len(start) - 1, 0))


def _single_tokens(asked: ServerTokenizer, words: Sequence[str]) -> tuple[str, ...]:
    """Those words that are one token, both after a space and, as a prompt begins, after none.

    They are asked for all at once, a line each: the token of the line break, which no word holds, tells them apart.
    """
    kept = list(words)
    for space in (" ", ""):
        tokens = asked.tokens("a" + "".join(f"\n{space}{word}" for word in kept)) or []
        lines = _lines(tokens)
        if len(lines) != len(kept) + 1:
            return ()
        kept = [word for word, line in zip(kept, lines[1:], strict=True) if line == 1]
    return tuple(kept)


def _lines(tokens: Sequence[Hashable]) -> list[int]:
    """Tokens of each line: the line break is the most frequent token."""
    if not tokens:
        return []
    line_break = Counter(tokens).most_common(1)[0][0]
    lengths = [0]
    for token in tokens:
        if token == line_break:
            lengths.append(0)
        else:
            lengths[-1] += 1
    return lengths


def _with_template(client: PlainClient, asked: ServerTokenizer, endpoint: Endpoint, wording: Wording) -> Wording:
    """What the template adds: where the tokens of two different prompts begin and cease to differ."""
    one, other, answer = (" ".join(wording.words[start : start + 16]) for start in (0, 16, 32))
    turns = [{"role": "user", "content": one}, {"role": "assistant", "content": answer}]
    turns.append({"role": "user", "content": other})
    tokens = [asked.templated([{"role": "user", "content": text}]) for text in (one, other)]
    both = asked.templated(turns)
    if tokens[0] is None or tokens[1] is None:
        around = _usage(client, endpoint, [{"role": "user", "content": one}]) - 16
        between = _usage(client, endpoint, turns) - 48 - around
        # where the template's tokens stand is unknown: all before the text shares no more than was asked for
        return replace(
            wording,
            head_tokens=max(around, 0),
            turn_tokens=max(between, 0),
            source="the server's tokenizer, the chat template from usage",
        )
    head = _common(tokens[0], tokens[1])
    tail = _common(tokens[0][::-1], tokens[1][::-1])
    between = 0 if both is None else len(both) - 48 - head - tail
    exact = len(tokens[0]) == 16 + head + tail
    return replace(wording, head_tokens=head, tail_tokens=tail, turn_tokens=max(between, 0), exact=exact)


def _common(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Length of the common beginning."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _by_usage(client: PlainClient, endpoint: Endpoint) -> Wording:
    """Fit tokens per word and what is added to the usage of three short requests."""
    few, more = WORDS[:16], WORDS[16:144]
    prompts = [" ".join(words) for words in (few, few + more, few + WORDS[144:272])]
    counts = [_usage(client, endpoint, [{"role": "user", "content": text}]) for text in prompts]
    if min(counts) <= 0:
        return Wording(
            words=WORDS,
            tokens_per_word=1.0,
            head_tokens=0,
            tail_tokens=0,
            turn_tokens=0,
            source="nothing: the server counts no tokens, each word is taken for one",
            exact=False,
        )
    ratio = (counts[1] + counts[2] - 2 * counts[0]) / (2 * len(more))
    around = max(round(counts[0] - ratio * len(few)), 0)
    between = 0
    if is_chat(endpoint.api):
        turns = [{"role": role, "content": prompts[0]} for role in ("user", "assistant", "user")]
        between = max(_usage(client, endpoint, turns) - 3 * (counts[0] - around) - around, 0)
    return Wording(
        words=WORDS,
        tokens_per_word=max(ratio, 1.0),
        head_tokens=around,
        tail_tokens=0,
        turn_tokens=between,
        source="the usage of short requests",
        exact=ratio == 1.0,
    )


def _usage(client: PlainClient, endpoint: Endpoint, messages: Sequence[Message]) -> int:
    """Prompt tokens that the server counts in a request; 0 when it does not say."""
    whole = replace(endpoint, stream=False)
    document = request_document(whole, messages, 1, force=True)
    answer = client.post(api_path(whole), document, timeout_s=PROBE_TIMEOUT_S)
    if answer.status != 200:
        raise MeasurementError(
            f"{endpoint.base_url} refuses a short request ({answer.status}), so prompts cannot be made to length"
        )
    return input_tokens_of(answer.fields()) or 0
