"""The declared limit on output tokens, for traces that lack it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.types import ModelSpec, Workload

__all__ = ["assume_max_tokens", "assumed_limits", "context_limit"]

CONTEXT_STEP_TOKENS = 1024
"""Context limits are rounded up to a multiple of this; a choice of round numbers."""


def context_limit(workload: Workload, model: ModelSpec) -> int:
    """Context limit to launch with [tokens]: room for the longest request as declared, within the model's own limit."""
    longest = int((workload.input_tokens + workload.max_tokens).max())
    return min(-(-longest // CONTEXT_STEP_TOKENS) * CONTEXT_STEP_TOKENS, model.max_context_tokens)


def assumed_limits(
    input_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    value: int | None = None,
    context_tokens: int | None = None,
) -> NDArray[np.int64]:
    """Limit on the output of each request [tokens]; see :func:`assume_max_tokens`."""
    if value is not None and value < 1:
        raise InputError(f"max_tokens is {value}; it must be at least 1")
    if context_tokens is not None and context_tokens < 1:
        raise InputError(f"context_tokens is {context_tokens}; it must be at least 1")
    if value is None:
        value = _p99(output_tokens)
    if context_tokens is None:
        return np.maximum(output_tokens, value)
    return np.maximum(output_tokens, np.minimum(context_tokens - input_tokens, value))


def _p99(tokens: NDArray[np.int64]) -> int:
    """99th percentile, rounded up to a value that occurs; one copy where numpy.percentile makes several."""
    place = int(np.ceil(0.99 * (len(tokens) - 1)))
    return int(np.partition(tokens, place)[place])


def assume_max_tokens(workload: Workload, value: int | None = None, context_tokens: int | None = None) -> Workload:
    """Give each request the limit on output that a client would have declared.

    Parameters
    ----------
    workload : Workload
    value : int or None [tokens]
        The same limit for all; by default the 99th percentile of the outputs.
    context_tokens : int or None [tokens]
        Context of the model: the limit then leaves room for the prompt.

    Returns
    -------
    Workload
        With ``max_tokens_kind="assumed"``. A request whose own output is longer keeps that as its limit and
        so ends by length.

    Raises
    ------
    InputError
        A value below 1.

    Sources
    -------
    assumed: public traces do not say what clients declared. The true output would be an oracle that no
    server has.
    """
    limits = assumed_limits(workload.input_tokens, workload.output_tokens, value, context_tokens)
    return replace(workload, max_tokens=limits, max_tokens_kind="assumed")
