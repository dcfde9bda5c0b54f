"""The mean context of a search's requests."""

from __future__ import annotations

from servewise.types import Search

__all__ = ["mean_tokens"]


def mean_tokens(search: Search) -> int:
    """Mean context of a request in the middle of its output [tokens], at which sliding windows take their memory."""
    return int((search.workload.input_tokens + search.workload.output_tokens / 2).mean())
