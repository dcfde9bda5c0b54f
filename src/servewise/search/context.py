"""The context limit that every deployment of a search is launched with."""

from __future__ import annotations

from servewise.types import ModelSpec, Search

__all__ = ["context_tokens", "mean_tokens"]

CONTEXT_STEP_TOKENS = 1024
"""The context limit is rounded up to a multiple of this."""


def context_tokens(search: Search, model: ModelSpec) -> int:
    """Context limit to launch with: room for the longest request as declared, within the model's own limit."""
    longest = int((search.workload.input_tokens + search.workload.max_tokens).max())
    return min(-(-longest // CONTEXT_STEP_TOKENS) * CONTEXT_STEP_TOKENS, model.max_context_tokens)


def mean_tokens(search: Search) -> int:
    """Mean context of a request in the middle of its output [tokens], at which sliding windows take their memory."""
    return int((search.workload.input_tokens + search.workload.output_tokens / 2).mean())
