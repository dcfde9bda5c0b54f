"""Prompts of a workload: of the intended length, sharing exactly the prefix blocks that it says, conversations real.

A prompt is put together from *pieces*: a piece starts with its number, written in words, and goes on with a stretch of
random words. Different pieces therefore differ within their first words, the same piece is the same text everywhere.
Each shared prefix block is a piece, and so is the rest of each prompt.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

import numpy as np
import orjson
from numpy.typing import NDArray

from servewise.measure.apis import Message, is_chat, request_document
from servewise.measure.loads import turn_before
from servewise.measure.tokens import Wording
from servewise.types import Endpoint, PrefixBlocks, Workload

__all__ = ["WorkloadPrompts", "previous_turns"]

CORPUS_WORDS: Final = 1 << 17
MAX_CACHED_BLOCKS: Final = 100_000
STRIDE: Final = 1_000_003
"""Prime: consecutive pieces start far from each other in the random words."""


class WorkloadPrompts:
    """What each request of a workload says (:class:`servewise.types.Prompts`).

    Parameters
    ----------
    workload : Workload
    endpoint : Endpoint
    wording : Wording
    seed : int
        Of the words: prompts of another seed share nothing with these.
    force : bool
        Ask for answers of exactly the workload's length where the engine can.
    """

    def __init__(
        self, workload: Workload, endpoint: Endpoint, wording: Wording, *, seed: int, force: bool = True
    ) -> None:
        self._input_tokens = workload.input_tokens
        self._output_tokens = workload.output_tokens
        self._wording = wording
        self._previous = previous_turns(workload)
        self._is_repeated = np.zeros(workload.num_requests, dtype=np.bool_)
        self._is_repeated[self._previous[self._previous >= 0]] = True
        self._prefix = workload.prefix
        self._num_shared = _num_shared_blocks(workload.prefix, workload.num_requests)
        num_pieces = workload.num_requests + (0 if workload.prefix is None else workload.prefix.num_ids)
        longest = int(np.max(np.maximum(workload.input_tokens, workload.output_tokens)))
        self._pieces = _Pieces(wording.words, num_pieces, longest, seed)
        self._blocks: dict[tuple[int, int], bytes] = {}
        self._body = _Body(endpoint, force=force)

    def body(self, request: int, answers: Mapping[int, str]) -> bytes:
        """JSON body of a request; ``answers`` holds the texts of earlier requests that were to be kept."""
        output_tokens = int(self._output_tokens[request])
        turns = [request]
        while self._previous[turns[0]] >= 0:
            turns.insert(0, int(self._previous[turns[0]]))
        texts = [self._prompt(turns[0])]
        for before, turn in pairwise(turns):
            said = answers.get(before)
            # an answer that failed leaves nothing to repeat: words of its length stand for it
            texts.append(self._message(before, self._output_words(before)) if said is None else _escaped(said))
            texts.append(self._message(turn, self._added_words(before, turn)))
        return self._body.put_together(texts, output_tokens)

    def keeps_answer(self, request: int) -> bool:
        """Whether a later request repeats this one's answer."""
        return bool(self._is_repeated[request])

    def intended_input_tokens(self, request: int) -> int:
        """Tokens that the prompt was meant to have."""
        return int(self._input_tokens[request])

    def _prompt(self, request: int) -> bytes:
        """Text of a prompt that repeats no answer, without the first word's space."""
        wording, ratio = self._wording, self._wording.tokens_per_word
        first = wording.head_tokens
        end = max(int(self._input_tokens[request]) - wording.tail_tokens, first + 1)
        parts: list[bytes] = []
        position = first
        if self._prefix is not None:
            size, start = self._prefix.block_size_tokens, int(self._prefix.offsets[request])
            # blocks that the template covers whole are the same for every request
            for place in range(first // size, int(self._num_shared[request])):
                until = min((place + 1) * size, end)
                if until <= position:
                    break
                parts.append(self._block(int(self._prefix.ids[start + place]), round((until - position) / ratio)))
                position = until
        if position < end:
            parts.append(self._new_words(request, round((end - position) / ratio)))
        return b"".join(parts)[1:]

    def _message(self, request: int, num_words: int) -> bytes:
        """Words of a later message; templates trim the space before it."""
        text = self._new_words(request, num_words)
        return text[1:] if self._body.is_chat else text

    def _block(self, identity: int, num_words: int) -> bytes:
        key = identity, num_words
        text = self._blocks.get(key)
        if text is None:
            if len(self._blocks) >= MAX_CACHED_BLOCKS:
                self._blocks.clear()
            text = self._blocks[key] = self._pieces.text(identity, num_words)
        return text

    def _new_words(self, request: int, num_words: int) -> bytes:
        """Words of this request alone."""
        first = 0 if self._prefix is None else self._prefix.num_ids
        return self._pieces.text(first + request, max(num_words, 1))

    def _added_words(self, before: int, turn: int) -> int:
        """Words that a turn adds to the conversation before it."""
        known = int(self._input_tokens[before] + self._output_tokens[before]) + self._wording.turn_tokens
        return round((int(self._input_tokens[turn]) - known) / self._wording.tokens_per_word)

    def _output_words(self, request: int) -> int:
        return round(int(self._output_tokens[request]) / self._wording.tokens_per_word)


class _Pieces:
    """Numbered stretches of words, each word with the space before it."""

    def __init__(self, words: tuple[str, ...], num_pieces: int, longest: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shuffled = [f" {words[i]}".encode() for i in rng.permutation(len(words))]
        self._words = shuffled
        self._num_digits = 1
        while len(shuffled) ** self._num_digits < num_pieces:
            self._num_digits += 1
        picks = rng.integers(len(shuffled), size=CORPUS_WORDS + longest)
        self._corpus = b"".join([shuffled[i] for i in picks.tolist()])
        lengths = np.array([len(word) for word in shuffled])[picks]
        self._starts = np.concatenate(([0], np.cumsum(lengths)))

    def text(self, piece: int, num_words: int) -> bytes:
        """The first words of a piece: its number, then random ones."""
        base, digits = len(self._words), []
        rest = piece
        for _ in range(min(self._num_digits, num_words)):
            rest, digit = divmod(rest, base)
            digits.append(self._words[digit])
        start = piece * STRIDE % CORPUS_WORDS
        stop = start + num_words - len(digits)
        digits.append(self._corpus[self._starts[start] : self._starts[stop]])
        return b"".join(digits)


class _Body:
    """Request documents with the texts left open; the text between two texts is made once."""

    def __init__(self, endpoint: Endpoint, *, force: bool) -> None:
        self._endpoint = endpoint
        self._force = force
        self.is_chat = is_chat(endpoint.api)
        self._made: dict[tuple[int, int], list[bytes]] = {}

    def put_together(self, texts: list[bytes], output_tokens: int) -> bytes:
        """The document with these texts, which are JSON strings without their quotes."""
        if not self.is_chat:
            texts = [b"".join(texts)]
        key = len(texts), output_tokens
        between = self._made.get(key)
        if between is None:
            between = self._made[key] = self._between(len(texts), output_tokens)
        parts = [between[0]]
        for text, after in zip(texts, between[1:], strict=True):
            parts += (text, after)
        return b"".join(parts)

    def _between(self, num_texts: int, output_tokens: int) -> list[bytes]:
        marks = [secrets.token_hex(16) for _ in range(num_texts)]
        roles = ("user", "assistant")
        messages: list[Message] = [{"role": roles[i % 2], "content": mark} for i, mark in enumerate(marks)]
        rest = orjson.dumps(request_document(self._endpoint, messages, output_tokens, force=self._force))
        between = []
        for mark in marks:
            before, _, rest = rest.partition(mark.encode())
            between.append(before)
        return [*between, rest]


def _escaped(text: str) -> bytes:
    """A JSON string without its quotes; lone surrogates, which UTF-8 lacks, are replaced."""
    return orjson.dumps(text.encode("utf-8", errors="replace").decode())[1:-1]


def _num_shared_blocks(prefix: PrefixBlocks | None, num_requests: int) -> NDArray[np.int64]:
    """How many of its first blocks each request shares with another."""
    if prefix is None:
        return np.zeros(num_requests, dtype=np.int64)
    is_shared = np.bincount(prefix.ids, minlength=prefix.num_ids)[prefix.ids] > 1
    total = np.concatenate(([0], np.cumsum(is_shared)))
    return np.asarray(total[prefix.offsets[1:]] - total[prefix.offsets[:-1]], dtype=np.int64)


def previous_turns(workload: Workload) -> NDArray[np.int64]:
    """The earlier request of its conversation whose prompt and answer each request repeats; -1 for none.

    Such a request is the next one of its session, is longer than the earlier prompt with its answer, and
    begins with the earlier one's blocks. Without sessions or prefix blocks nothing is known to be repeated.

    Returns
    -------
    int64 array, shape (num_requests,)
    """
    found = np.full(workload.num_requests, -1, dtype=np.int64)
    prefix = workload.prefix
    if prefix is None:
        return found
    earlier = turn_before(workload)
    turns = np.flatnonzero(earlier >= 0)
    grows = workload.input_tokens[turns] > (workload.input_tokens + workload.output_tokens)[earlier[turns]]
    for turn in turns[grows]:
        before = earlier[turn]
        row = prefix.ids[prefix.offsets[before] : prefix.offsets[before + 1]]
        next_row = prefix.ids[prefix.offsets[turn] : prefix.offsets[turn + 1]]
        if len(row) and np.array_equal(row, next_row[: len(row)]):
            found[turn] = before
    return found
