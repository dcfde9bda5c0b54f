"""Two answers to one prompt, compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from servewise.quality.divergence import Distribution, compare_step
from servewise.quality.servers import Answer
from servewise.types import AnswerPair

__all__ = ["answer_pair", "chosen_positions", "with_steps"]


def answer_pair(base: Answer, other: Answer) -> AnswerPair:
    """An answer against the base's: token by token where both have tokens, else character by character."""
    left: Sequence[int] | str = base.text
    right: Sequence[int] | str = other.text
    if base.tokens is not None and other.tokens is not None:
        left, right = base.tokens, other.tokens
    shorter, longer = min(len(left), len(right)), max(len(left), len(right))
    common = next((i for i in range(shorter) if left[i] != right[i]), shorter)
    return AnswerPair(
        exact=common == longer and base.hit_max == other.hit_max,
        common=common,
        common_frac=common / longer if longer else 1.0,
        length=len(right),
        hit_max=other.hit_max,
    )


def chosen_positions(answer: Answer, limit: int | None) -> list[int]:
    """Positions of an answer at which the next token is compared, evenly spread when there are more than the limit.

    The end of an answer is a token, too, where the model chose it.
    """
    num = len(answer.tokens or ()) + (not answer.hit_max)
    if limit is None or num <= limit:
        return list(range(num))
    return sorted({round(position) for position in np.linspace(0, num - 1, limit).tolist()})


def with_steps(
    pair: AnswerPair, positions: Sequence[int], base: Sequence[Distribution], other: Sequence[Distribution]
) -> AnswerPair:
    """The same with what would come at each position."""
    steps = [compare_step(mine, theirs) for mine, theirs in zip(base, other, strict=True)]
    if not steps:
        return pair
    worst = max(range(len(steps)), key=lambda i: steps[i].kl_nats)
    return replace(
        pair,
        num_positions=len(steps),
        num_agree=sum(step.agrees for step in steps),
        kl_sum_nats=sum(step.kl_nats for step in steps),
        worst_kl_nats=steps[worst].kl_nats,
        worst_position=positions[worst],
        num_outside=sum(step.is_outside for step in steps),
        bucket_sum=sum(step.bucket for step in steps),
    )
