"""Speculative decoding: tokens that a drafter proposes and the model verifies in one step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from servewise.errors import InputError
from servewise.types.model import ModelSpec

__all__ = ["Speculation", "SpeculationMethod", "chain_acceptance"]

SpeculationMethod = Literal["draft_model", "eagle", "mtp", "ngram"]
"""What proposes tokens: a small model, a head on the model's hidden states (EAGLE, or the model's own multi-token
prediction), or earlier tokens of the same request."""


def chain_acceptance(rate: float, num_speculative_tokens: int) -> tuple[float, ...]:
    """Acceptance by position when each token is accepted with the same probability given that those before it were.

    Raises
    ------
    InputError
        When ``rate`` is not in [0, 1].
    """
    if not 0.0 <= rate <= 1.0:
        raise InputError(f"an acceptance rate must be in [0, 1], got {rate}")
    return tuple(rate**position for position in range(1, num_speculative_tokens + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How tokens are proposed and how many of them are accepted.

    Parameters
    ----------
    method : SpeculationMethod
    num_speculative_tokens : int
        Proposed in each step.
    acceptance : tuple of float
        By position, the share of steps in which the token at this position (and so all before it) is accepted:
        vLLM's *unconditional* rates, in [0, 1] and never increasing.
    draft_model : ModelSpec or None
        Of method ``draft_model``.
    head_name : str
        Hub id of the trained head, of method ``eagle``; needed to launch only.

    Raises
    ------
    InputError
        Naming the field, its value and what is allowed.

    Sources
    -------
    vLLM 0.33.0, ``config/speculative.py``: ``synthetic_acceptance_rates``.
    """

    method: SpeculationMethod
    num_speculative_tokens: int
    acceptance: tuple[float, ...]
    draft_model: ModelSpec | None = None
    head_name: str = ""

    def __post_init__(self) -> None:
        """Refuse what no engine could do."""
        if self.method not in get_args(SpeculationMethod):
            raise InputError(f"method is {self.method!r}; allowed: {', '.join(get_args(SpeculationMethod))}")
        if self.num_speculative_tokens < 1:
            raise InputError(f"num_speculative_tokens is {self.num_speculative_tokens}; it must be at least 1")
        if len(self.acceptance) != self.num_speculative_tokens:
            raise InputError(
                f"acceptance has {len(self.acceptance)} rates for {self.num_speculative_tokens} speculative tokens; "
                "give one for each position"
            )
        if not all(0.0 <= rate <= 1.0 for rate in self.acceptance):
            raise InputError(f"acceptance rates must be in [0, 1], got {self.acceptance}")
        if any(later > earlier for earlier, later in pairwise(self.acceptance)):
            raise InputError(
                f"acceptance rates must not increase with the position, got {self.acceptance}: a token is accepted "
                "only if all before it are"
            )
        if (self.method == "draft_model") != (self.draft_model is not None):
            raise InputError("draft_model must be given with method 'draft_model', and only then")
        if self.head_name and self.method != "eagle":
            raise InputError(f"head_name names the head of method 'eagle', not of {self.method!r}")

    @property
    def queries_per_row(self) -> int:
        """Tokens that a step computes for a decoding request: its last one and those proposed."""
        return 1 + self.num_speculative_tokens

    @property
    def mean_tokens_per_step(self) -> float:
        """Tokens that a step yields for a decoding request, on average."""
        return 1.0 + math.fsum(self.acceptance)

    @property
    def max_tokens_per_step(self) -> int:
        """Most tokens that a step yields for a decoding request, where steps vary as little as they can."""
        return 1 + math.ceil(round(math.fsum(self.acceptance), 6))

    @property
    def lookahead_tokens(self) -> int:
        """KV slots beyond the verified tokens: drafters with a forward pass of their own write theirs there.

        vLLM 0.33.0, ``config/vllm.py``: ``num_lookahead_tokens``.
        """
        return 0 if self.method == "ngram" else self.num_speculative_tokens

    def step_tokens(self, num_rows: int) -> int:
        """Least budget of a step that holds so many decoding requests with their proposals [tokens]."""
        return num_rows * (self.queries_per_row + self.budget_tokens_per_request)

    @property
    def budget_tokens_per_request(self) -> int:
        """Tokens of a step's budget that every request in it takes beside its own: one more input of a draft model.

        vLLM 0.33.0, ``config/speculative.py``: ``max_num_new_slots_for_drafting``.
        """
        return int(self.method == "draft_model")
