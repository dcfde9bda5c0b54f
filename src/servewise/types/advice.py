"""A plan's recommendation in words, each sentence with the fields it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["AdviceSentence", "AdviceTopic"]

AdviceTopic = Literal[
    "chosen",
    "cheapest",
    "fastest",
    "quality",
    "simplest",
    "engine",
    "gpu",
    "model",
    "price",
    "load",
    "promise",
    "nines",
    "sure",
    "spare",
    "growth",
    "batch",
    "goodput",
    "hosted",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceSentence:
    """One sentence of the recommendation.

    Parameters
    ----------
    topic : AdviceTopic
    text : str
        Names in it are untrusted; the reports escape them.
    about : tuple of str
        JSON pointers (RFC 6901) to the parts of ``plan.json`` that its figures come from; ``/candidates/N`` is the
        candidate at that place. Every figure is one of theirs, or a ratio, a difference or a change in percent of two.
    """

    topic: AdviceTopic
    text: str
    about: tuple[str, ...]
