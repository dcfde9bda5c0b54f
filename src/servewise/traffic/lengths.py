"""Distributions of lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError

__all__ = [
    "EmpiricalLength",
    "FixedLength",
    "LengthDistribution",
    "LognormalLength",
    "UniformLength",
    "draw_lengths_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLength:
    """Always ``tokens`` [tokens]."""

    tokens: int

    def __post_init__(self) -> None:
        _at_least_one("tokens", self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformLength:
    """Every whole number from ``low`` to ``high`` equally likely [tokens]."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _at_least_one("low", self.low)
        if self.high < self.low:
            raise InputError(f"high is {self.high}; it must be at least low ({self.low})")


@dataclass(frozen=True, slots=True, kw_only=True)
class LognormalLength:
    """Lognormal with the given median and sigma of the logarithm, rounded and cut to [1, ``max_tokens``].

    Parameters
    ----------
    median : float [tokens]
    sigma : float
        Standard deviation of the natural logarithm.
    max_tokens : int [tokens]
    """

    median: float
    sigma: float
    max_tokens: int

    def __post_init__(self) -> None:
        _at_least_one("median", self.median)
        _at_least_one("max_tokens", self.max_tokens)
        if not 0 <= self.sigma < np.inf:
            raise InputError(f"sigma is {self.sigma}; it must be at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmpiricalLength:
    """One of ``values`` [tokens], all equally likely; a value listed twice is twice as likely."""

    values: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise InputError("empirical lengths need at least one value")
        _at_least_one("the smallest value", min(self.values))


LengthDistribution = FixedLength | UniformLength | LognormalLength | EmpiricalLength


def _at_least_one(name: str, value: float) -> None:
    if not 1 <= value < np.inf:
        raise InputError(f"{name} is {value}; a length must be at least 1 token")


def draw_lengths_of(lengths: LengthDistribution, num: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw ``num`` lengths [tokens], int64."""
    if isinstance(lengths, FixedLength):
        return np.full(num, lengths.tokens, dtype=np.int64)
    if isinstance(lengths, UniformLength):
        return rng.integers(lengths.low, lengths.high, size=num, endpoint=True)
    if isinstance(lengths, LognormalLength):
        drawn = lengths.median * np.exp(lengths.sigma * rng.standard_normal(num))
        return np.clip(np.rint(drawn), 1, lengths.max_tokens).astype(np.int64)
    return rng.choice(np.asarray(lengths.values, dtype=np.int64), size=num)
