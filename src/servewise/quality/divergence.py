"""How far two next-token distributions are apart, as far as the tokens that servers name tell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["LEAST_REST", "Distribution", "Step", "compare_step"]

Distribution = Mapping[int, float]
"""Token id to log probability [nats] of the tokens that a server names: its most probable ones."""

LEAST_REST = 1e-6
"""Probability that the rest of a distribution is taken to have at least: what is left of 1 after subtracting single-
precision probabilities is not known better. More of it makes the divergence smaller, so a lower bound stays one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One position.

    Parameters
    ----------
    agrees : bool
    kl_nats : float [nats]
    is_outside : bool
        The other server did not name the base's most probable token.
    bucket : float
        The base's probability of the tokens that are one bucket.
    """

    agrees: bool
    kl_nats: float
    is_outside: bool
    bucket: float


def compare_step(base: Distribution, other: Distribution) -> Step:
    """Compare two distributions at one position.

    All tokens that not both name are one bucket to the Kullback-Leibler divergence of the other from the base. Merging
    outcomes never makes a divergence larger (the log sum inequality; T. Cover, J. Thomas, "Elements of Information
    Theory", 2nd ed., theorem 2.7.1), so it is a lower bound of the divergence over the whole vocabulary, and equal to
    it when both name every token.

    The most probable tokens agree when the other's most probable one is as probable to the base as its own: low
    precision often finds two equally probable.

    Parameters
    ----------
    base, other : mapping of int to float
        Log probabilities [nats].

    Raises
    ------
    ValueError
        When one of them names no token.
    """
    highest = max(base.values())
    mine = max(base, key=lambda token: base[token])
    theirs = max(other.values())
    agrees = any(base.get(token) == highest for token, value in other.items() if value == theirs)
    divergence, bucket = _divergence(base, other)
    return Step(agrees=agrees, kl_nats=divergence, is_outside=mine not in other, bucket=bucket)


def _divergence(base: Distribution, other: Distribution) -> tuple[float, float]:
    """The bound, and the base's probability of the bucket."""
    shared = [token for token in base if token in other]
    divergence = math.fsum(math.exp(base[token]) * (base[token] - other[token]) for token in shared)
    rest = max(1.0 - math.fsum(math.exp(base[token]) for token in shared), 0.0)
    if rest > 0.0:
        left = max(1.0 - math.fsum(math.exp(other[token]) for token in shared), LEAST_REST)
        divergence += rest * math.log(rest / left)
    return max(divergence, 0.0), rest
