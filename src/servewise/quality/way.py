"""How two servers can be compared: by tokens and what would come next, by tokens, or by texts alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from servewise.errors import MeasurementError
from servewise.net.plain import PlainClient
from servewise.quality.prompts import Prompt
from servewise.quality.servers import TextServer, TokenServer, text_server, token_server
from servewise.types import Endpoint

__all__ = ["Asked", "Side", "Way", "find_way"]

DEFAULT_POSITIONS: Final = 32
"""Positions of an answer where each is a request of its own."""
MAX_CHECKED_CHARS: Final = 20_000
HELLO: Final = Prompt(line=0, messages=({"role": "user", "content": "Hello"},))
PROBE: Final = "Größe: 3.14159e-7 µm;\n\tif (x != nullptr) { return 12345; }  # 你好, мир! 🙂 naïve don't"
"""Tokenizers that cut this, and the user's own prompts, alike are taken for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A server that was recognised, and the connection to it."""

    endpoint: Endpoint
    client: PlainClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of both servers.

    Parameters
    ----------
    max_tokens : int [tokens]
        Of an answer.
    top : int
        Most probable tokens that a server names at each position.
    positions : int or None
        Positions of an answer that are compared at most; None takes all where one request gives them, and 32 where
        each is a request of its own.
    concurrency : int
        Prompts at once.
    seed : int
        Of sampling (which greedy answers do not use), of the draw of prompts and of the bootstrap.
    raw : bool
        Send prompts as they are, without a chat template.
    keep_text : bool
        Keep prompts and answers in the result.
    min_agreement : float or None
        Least top-token agreement.
    """

    max_tokens: int = 128
    top: int = 20
    positions: int | None = None
    concurrency: int = 4
    seed: int = 0
    raw: bool = False
    keep_text: bool = False
    min_agreement: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How the two servers can be compared, and why not better."""

    base: TextServer
    candidate: TextServer
    tokens: tuple[TokenServer, TokenServer] | None
    forced: bool
    """Whether the next tokens at the base's positions are known."""
    positions: int | None
    notes: tuple[str, ...]


def find_way(base: Side, candidate: Side, prompts: Sequence[Prompt], asked: Asked) -> Way:
    """Tokens and next tokens where both servers give them, else texts; what is left out is said."""
    texts = tuple(text_server(side.client, side.endpoint, raw=asked.raw) for side in (base, candidate))
    by_text = Way(base=texts[0], candidate=texts[1], tokens=None, forced=False, positions=None, notes=())
    servers = []
    for name, side in (("base", base), ("candidate", candidate)):
        server = token_server(side.client, side.endpoint, raw=asked.raw)
        why = f"{side.endpoint.engine} is not known to" if server is None else ""
        if server is not None:
            try:
                server.answer_tokens(server.prompt_tokens(HELLO), 1, asked.seed)
            except MeasurementError as error:
                why = f"it does not ({error})"
        if server is None or why:
            note = f"texts alone were compared: the {name} would have to give token ids, and {why}"
            return replace(by_text, notes=(note,))
        servers.append(server)
    tokens = servers[0], servers[1]
    if not _same_tokenizer(tokens, prompts):
        note = (
            "texts alone were compared: the tokenizers of base and candidate differ, so that one's tokens"
            " mean nothing to the other"
        )
        return replace(by_text, notes=(note,))
    way = replace(by_text, tokens=tokens, forced=True)
    for name, server in zip(("base", "candidate"), tokens, strict=True):
        try:
            server.distributions(server.prompt_tokens(HELLO), (), (0,), asked.top)
        except MeasurementError as error:
            note = f"next tokens were not compared: the {name} gives no log probabilities ({error})"
            return replace(way, forced=False, notes=(note,))
    one_by_one = any(server.one_by_one for server in tokens)
    return replace(way, positions=asked.positions or (DEFAULT_POSITIONS if one_by_one else None))


def _same_tokenizer(servers: tuple[TokenServer, TokenServer], prompts: Sequence[Prompt]) -> bool:
    left = MAX_CHECKED_CHARS
    for text in (PROBE, *(prompt.text for prompt in prompts)):
        if left <= 0:
            break
        cut = text[:left]
        if servers[0].tokenize(cut) != servers[1].tokenize(cut):
            return False
        left -= len(cut)
    return True
