"""Synthetic traffic: arrivals, lengths, shared system prompts and conversations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.traffic.arrivals import Arrivals, draw_arrival_times
from servewise.traffic.lengths import LengthDistribution, draw_lengths_of
from servewise.traffic.max_tokens import assumed_limits
from servewise.traffic.prefixes import positions
from servewise.types import PrefixBlocks, Provenance, Workload

__all__ = ["BLOCK_SIZE_TOKENS", "Conversations", "SynthesisSpec", "SystemPrompts", "synthesize"]

BLOCK_SIZE_TOKENS = 16
"""Prefix blocks of synthetic traffic [tokens]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPrompts:
    """Beginnings that many prompts share.

    Parameters
    ----------
    tokens : int [tokens]
        Length of each, added to the drawn input.
    num_groups : int
        Different system prompts; each conversation (or single request) has one.
    zipf_exponent : float
        The k-th group is chosen in proportion to ``k**-zipf_exponent``; 0: all equally often.
    """

    tokens: int
    num_groups: int = 1
    zipf_exponent: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("tokens", self.tokens), ("num_groups", self.num_groups)):
            if value < 1:
                raise InputError(f"{name} of system prompts is {value}; it must be at least 1")
        if not 0 <= self.zipf_exponent < np.inf:
            raise InputError(f"zipf_exponent is {self.zipf_exponent}; it must be at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """Turns whose prompt is everything before plus new user tokens.

    Parameters
    ----------
    turns : LengthDistribution
        Turns of a conversation.
    turn_gap_s : float [s]
        Median time from the start of a turn to the start of the next: answering and thinking together.
    turn_gap_sigma : float
        Standard deviation of its natural logarithm (lognormal); 0: always the median.
    """

    turns: LengthDistribution
    turn_gap_s: float
    turn_gap_sigma: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.turn_gap_s < np.inf:
            raise InputError(f"turn_gap_s is {self.turn_gap_s}; it must be a positive number of seconds")
        if not 0 <= self.turn_gap_sigma < np.inf:
            raise InputError(f"turn_gap_sigma is {self.turn_gap_sigma}; it must be at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisSpec:
    """What to synthesize.

    Parameters
    ----------
    num_requests : int
        Requests in all, turns included.
    arrivals : Arrivals
        Of requests; with ``conversations``, of their first turns.
    input_tokens : LengthDistribution [tokens]
        What the user adds: the prompt without the system prompt and without earlier turns.
    output_tokens : LengthDistribution [tokens]
    system_prompts : SystemPrompts or None
    conversations : Conversations or None
    max_tokens : int or None [tokens]
        Limit that every client declares; assumed when None.
    name : str
    """

    num_requests: int
    arrivals: Arrivals
    input_tokens: LengthDistribution
    output_tokens: LengthDistribution
    system_prompts: SystemPrompts | None = None
    conversations: Conversations | None = None
    max_tokens: int | None = None
    name: str = "synthetic"

    def __post_init__(self) -> None:
        if self.num_requests < 1:
            raise InputError(f"num_requests is {self.num_requests}; it must be at least 1")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InputError(f"max_tokens is {self.max_tokens}; it must be at least 1")


@dataclass(frozen=True, slots=True)
class _Turns:
    """Requests in conversation order: who they belong to and which turn they are (from 0)."""

    session: NDArray[np.int64]
    turn: NDArray[np.int64]

    @property
    def first(self) -> NDArray[np.int64]:
        """Index of the first turn of each request's conversation."""
        return np.arange(len(self.turn)) - self.turn


def synthesize(spec: SynthesisSpec, seed: int = 0) -> Workload:
    """Synthesize a workload.

    Prefix blocks are always known: of 16 tokens, over prompt and output of conversations, over the prompt
    otherwise. Without system prompts and conversations nothing is shared. Outputs end at the declared
    ``max_tokens``.

    Parameters
    ----------
    spec : SynthesisSpec
    seed : int
        The same seed gives the same workload, byte for byte.
    """
    rng = np.random.default_rng(seed)
    turns = _draw_turns(spec, rng)
    arrival_s = _draw_turn_times(spec, turns, rng)
    new_tokens = draw_lengths_of(spec.input_tokens, spec.num_requests, rng)
    output_tokens = draw_lengths_of(spec.output_tokens, spec.num_requests, rng)
    if spec.max_tokens is not None:
        output_tokens = np.minimum(output_tokens, spec.max_tokens)
    system_tokens = 0 if spec.system_prompts is None else spec.system_prompts.tokens
    input_tokens = _prompts(turns, new_tokens, output_tokens, system_tokens)
    group = _draw_groups(spec.system_prompts, int(turns.session[-1]) + 1, rng)[turns.session]
    rows = input_tokens if spec.conversations is None else input_tokens + output_tokens
    order = np.argsort(arrival_s, kind="stable")
    arrival_s = arrival_s[order] - arrival_s.min()
    input_tokens, output_tokens = input_tokens[order], output_tokens[order]
    if spec.max_tokens is None:
        max_tokens = assumed_limits(input_tokens, output_tokens)
    else:
        max_tokens = np.full(spec.num_requests, spec.max_tokens, dtype=np.int64)
    return Workload(
        name=spec.name,
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        max_tokens=max_tokens,
        max_tokens_kind="assumed" if spec.max_tokens is None else "declared",
        prefix=_blocks(rows[order], turns.session[order], group[order], spec.system_prompts),
        session=turns.session[order] if spec.conversations is not None else None,
        provenance=Provenance(kind="assumed", source="assumed: synthetic traffic", note=f"seed {seed}"),
    )


def _draw_turns(spec: SynthesisSpec, rng: np.random.Generator) -> _Turns:
    num = spec.num_requests
    if spec.conversations is None:
        return _Turns(np.arange(num), np.zeros(num, dtype=np.int64))
    num_turns = draw_lengths_of(spec.conversations.turns, num, rng)
    # As many conversations as the requests need; the last one may end early.
    num_sessions = int(np.searchsorted(np.cumsum(num_turns), num)) + 1
    num_turns = num_turns[:num_sessions]
    session = np.repeat(np.arange(num_sessions), num_turns)[:num]
    starts = np.cumsum(num_turns) - num_turns
    return _Turns(session, np.arange(num) - starts[session])


def _draw_turn_times(spec: SynthesisSpec, turns: _Turns, rng: np.random.Generator) -> NDArray[np.float64]:
    starts_s = draw_arrival_times(spec.arrivals, int(turns.session[-1]) + 1, rng)
    if spec.conversations is None:
        return starts_s
    sigma = spec.conversations.turn_gap_sigma
    gaps_s = spec.conversations.turn_gap_s * np.exp(sigma * rng.standard_normal(spec.num_requests))
    return starts_s[turns.session] + _sum_before(gaps_s, turns)


def _sum_before(values: NDArray[np.float64], turns: _Turns) -> NDArray[np.float64]:
    """Sum of the values of a conversation's turns from the second to each turn; 0 at the first."""
    total: NDArray[np.float64] = np.cumsum(np.where(turns.turn == 0, 0.0, values))
    total -= total[turns.first]
    return total


def _prompts(
    turns: _Turns, new_tokens: NDArray[np.int64], output_tokens: NDArray[np.int64], system_tokens: int
) -> NDArray[np.int64]:
    """Prompt of each turn: system prompt, all earlier turns with their answers, and the new user tokens."""
    total = np.cumsum(new_tokens + output_tokens)
    before_turn = total - (new_tokens + output_tokens)
    prompts: NDArray[np.int64] = system_tokens + before_turn - before_turn[turns.first] + new_tokens
    return prompts


def _draw_groups(prompts: SystemPrompts | None, num_sessions: int, rng: np.random.Generator) -> NDArray[np.int64]:
    if prompts is None:
        return np.zeros(num_sessions, dtype=np.int64)
    weights = np.arange(1, prompts.num_groups + 1, dtype=np.float64) ** -prompts.zipf_exponent
    return rng.choice(prompts.num_groups, size=num_sessions, p=weights / weights.sum())


def _blocks(
    tokens: NDArray[np.int64],
    session: NDArray[np.int64],
    group: NDArray[np.int64],
    prompts: SystemPrompts | None,
) -> PrefixBlocks:
    """Blocks of each request: those of its system prompt, then those of its conversation."""
    num_groups = 1 if prompts is None else prompts.num_groups
    num_common = 0 if prompts is None else prompts.tokens // BLOCK_SIZE_TOKENS
    num_blocks = tokens // BLOCK_SIZE_TOKENS
    longest = np.zeros(int(session.max()) + 1, dtype=np.int64)
    np.maximum.at(longest, session, num_blocks - num_common)
    base = num_groups * num_common + np.cumsum(longest) - longest
    offsets = np.zeros(len(tokens) + 1, dtype=np.int64)
    np.cumsum(num_blocks, out=offsets[1:])
    position = positions(offsets)
    common = np.repeat(group * num_common, num_blocks) + position
    own = np.repeat(base[session] - num_common, num_blocks) + position
    return PrefixBlocks(
        offsets=offsets,
        ids=np.where(position < num_common, common, own),
        num_ids=int(num_groups * num_common + longest.sum()),
        block_size_tokens=BLOCK_SIZE_TOKENS,
    )
