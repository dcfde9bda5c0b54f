"""How long a step takes, by the formula of ``types.StepTable``."""

from __future__ import annotations

import math

from servewise.kernel.layout import Times, compiled

__all__ = ["knot_at", "mixed_step_s", "steps_to_knot"]

FAR = 1 << 60


@compiled
def knot_at(times: Times, rows: int, context: int, knot: int) -> int:
    """Piece of the attention times for ``rows`` decode rows of ``context`` tokens together, searched from ``knot``."""
    while context < times.knots[knot] * rows:
        knot -= 1
    while knot + 1 < len(times.knots) and context >= times.knots[knot + 1] * rows:
        knot += 1
    return knot


@compiled
def steps_to_knot(times: Times, rows: int, context: int, knot: int) -> int:
    """Tokens that every row may grow by before the next piece counts."""
    if knot + 1 < len(times.knots):
        growth: int = math.ceil((times.knots[knot + 1] * rows - context) / rows)
        return growth
    return FAR


@compiled
def mixed_step_s(
    times: Times, rows: int, context: int, attention: float, tokens: int, sampled: int, prompt_tokens: int, pairs: float
) -> float:
    """Duration of a step with prompts [s].

    Parameters
    ----------
    times : Times
    rows, context : int
        Decode rows in it, and their contexts, summed.
    attention : float [s]
        Theirs in a step without prompts.
    tokens, sampled : int
        In the step: tokens, and rows that emit one.
    prompt_tokens, pairs : int, float
        Of the prompts, and the tokens that these attend to, summed.
    """
    if rows > 0:
        attention = max(attention, times.mixed_row_fixed * rows + times.mixed_row_per_token * context)
    return float(
        times.mixed_tokens[tokens]
        + attention
        + times.sample[sampled]
        + times.prefill_fixed
        + times.prefill_per_token * prompt_tokens
        + times.prefill_per_pair * pairs
    )
