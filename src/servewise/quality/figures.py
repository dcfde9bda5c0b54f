"""Figures over prompts with their intervals, and what they say.

The positions of one answer are not independent, so prompts are what is resampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from servewise.metrics.bootstrap import CONFIDENCE, TAIL
from servewise.metrics.student import NORMAL, student_quantile
from servewise.quality.divergence import LEAST_REST
from servewise.types import AnswerPair, Estimate, PromptComparison, QualityFigure

__all__ = ["figures", "loss_seen", "standing"]

NUM_RESAMPLES: Final = 2000

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A figure that is the sum of one column over the sum of another; shape (num_prompts,)."""

    over: Floats
    under: Floats
    is_share: bool


def figures(prompts: Sequence[PromptComparison], *, seed: int = 0) -> tuple[QualityFigure, ...]:
    """Reduce prompts to figures.

    Parameters
    ----------
    prompts : sequence of PromptComparison
        At least one.
    seed : int
        Of the bootstrap: same prompts and seed, same intervals.
    """
    num = len(prompts)
    # how often each prompt is drawn
    counts = np.random.default_rng(seed).multinomial(num, np.full(num, 1.0 / num), size=NUM_RESAMPLES)
    of_candidate = _columns(prompts, [prompt.candidate for prompt in prompts])
    of_noise = _columns(prompts, [prompt.again for prompt in prompts])
    found = []
    for name, column in of_candidate.items():
        both = column, of_noise[name]
        draws = [_ratio(counts @ one.over, counts @ one.under) for one in both]
        candidate, noise = (_estimate(one) for one in both)
        low, high = _widened(candidate.value - noise.value, draws[0] - draws[1], num)
        if column.is_share and low == high:
            # all prompts alike: no more is known than that so many were, or what is known of the two shares
            low -= min(_unseen(num), candidate.value - candidate.low + noise.high - noise.value)
            high += min(_unseen(num), candidate.high - candidate.value + noise.value - noise.low)
        if column.is_share:
            low, high = max(low, -1.0), min(high, 1.0)
        elif candidate.value == noise.value == 0.0:
            low = high = math.nan
        excess = Estimate(value=candidate.value - noise.value, low=low, high=high, num_samples=num)
        found.append(QualityFigure(name=name, candidate=candidate, noise=noise, excess=excess))
    return tuple(found)


def _columns(prompts: Sequence[PromptComparison], pairs: Sequence[AnswerPair]) -> dict[str, _Column]:
    def column(over: Sequence[float], under: Sequence[float] | None = None, *, is_share: bool = True) -> _Column:
        ones = np.ones(len(pairs)) if under is None else np.array(under, dtype=np.float64)
        return _Column(over=np.array(over, dtype=np.float64), under=ones, is_share=is_share)

    positions = [pair.num_positions for pair in pairs]
    found = {}
    if any(positions):
        found["agreement"] = column([pair.num_agree for pair in pairs], positions)
        found["kl_nats"] = column([pair.kl_sum_nats for pair in pairs], positions, is_share=False)
    found["exact_match"] = column([pair.exact for pair in pairs])
    found["common_prefix"] = column([pair.common_frac for pair in pairs])
    lengths = [prompt.base_length for prompt in prompts]
    found["length_ratio"] = column([pair.length for pair in pairs], lengths, is_share=False)
    found["hit_max"] = column([pair.hit_max for pair in pairs])
    return found


def _ratio(over: Floats, under: Floats) -> Floats:
    found: Floats = np.divide(over, under, out=np.full(np.shape(over), np.nan), where=under > 0.0)
    return found


def _estimate(column: _Column) -> Estimate:
    num = len(column.over)
    value = float(_ratio(column.over.sum(), column.under.sum()))
    low, high = math.nan, math.nan
    if num > 1 and math.isfinite(value):
        low, high = _share_interval(column, value) if column.is_share else _by_factor(column, value)
    return Estimate(value=value, low=low, high=high, num_samples=num)


def _variance(column: _Column, value: float) -> float:
    """Variance of a ratio of sums over prompts, by what each prompt adds to its error (linearization)."""
    num = len(column.over)
    residuals = column.over - value * column.under
    return num / (num - 1.0) * float(residuals @ residuals) / float(column.under.sum()) ** 2


def _by_factor(column: _Column, value: float) -> tuple[float, float]:
    """Interval of what cannot be negative: Student's on the logarithm, as a few prompts make most of such a sum.

    Of a sum of nothing it is not known.
    """
    if value <= 0.0:
        return math.nan, math.nan
    reach = student_quantile(CONFIDENCE, len(column.over) - 1.0) * math.sqrt(_variance(column, value)) / value
    return value * math.exp(-reach), value * math.exp(reach)


def _widened(value: float, draws: Floats, num: int) -> tuple[float, float]:
    """Percentiles of the resamples, moved apart as Student's distribution is wider than the normal one.

    The plain percentiles are too narrow for few prompts (T. Hesterberg, "What Teachers Should Know About the
    Bootstrap", The American Statistician 69(4), 2015).
    """
    defined = draws[np.isfinite(draws)]
    if num < 2 or not len(defined) or not math.isfinite(value):
        return math.nan, math.nan
    wider = student_quantile(CONFIDENCE, num - 1.0) / NORMAL * math.sqrt(num / (num - 1.0))
    low, high = np.quantile(defined, [TAIL, 1.0 - TAIL])
    return value + wider * min(float(low) - value, 0.0), value + wider * max(float(high) - value, 0.0)


def _unseen(num: int) -> float:
    """Share of prompts that may be otherwise although none of so many is: seeing none has a chance of 2.5% then."""
    return float(1.0 - TAIL ** (1.0 / num))


def _share_interval(column: _Column, share: float) -> tuple[float, float]:
    """Interval of a share; of all or nothing no wider than if one position of the longest prompt had been otherwise.

    Nothing is known then of the scatter between prompts, and one position less must not make the interval narrower.
    """
    low, high = _wilson(column, share)
    if 0.0 < share < 1.0:
        return low, high
    moved = column.over.copy()
    moved[int(np.argmax(column.under))] += 1.0 if share <= 0.0 else -1.0
    less_low, less_high = _wilson(replace(column, over=moved), float(moved.sum() / column.under.sum()))
    return (low, min(high, less_high)) if share <= 0.0 else (max(low, less_low), high)


def _wilson(column: _Column, share: float) -> tuple[float, float]:
    """Wilson's interval of a share, with as many independent trials as the scatter between prompts leaves.

    Where no prompt differs from another, nothing is known but that so many prompts were alike: each is one trial.
    A bootstrap would say that the interval has no width.

    Sources
    -------
    E. Wilson, J. Am. Stat. Assoc. 22, 1927; for clusters: E. Korn, B. Graubard, "Confidence intervals for proportions
    with small expected number of positive counts estimated from survey data", Survey Methodology 24(2), 1998.
    """
    num = len(column.over)
    variance = _variance(column, share)
    trials = share * (1.0 - share) / variance if variance > 0.0 and 0.0 < share < 1.0 else float(num)
    trials = min(trials, float(column.under.sum()))
    z = student_quantile(CONFIDENCE, num - 1.0)
    centre = (share + z * z / (2.0 * trials)) / (1.0 + z * z / trials)
    reach = z / (1.0 + z * z / trials) * math.sqrt(share * (1.0 - share) / trials + z * z / (4.0 * trials * trials))
    return max(min(centre - reach, share), 0.0), min(max(centre + reach, share), 1.0)


def loss_seen(found: Sequence[QualityFigure]) -> bool:
    """Whether the candidate is further from the base than the base from itself, beyond chance.

    Decided by the next tokens at the base's own positions where they are known, else by the answers themselves. Two
    figures can be mistaken, each in 2.5% if its interval held the truth as often as it says: docs/measuring-quality.md
    says how often they are.
    """
    by_name = {figure.name: figure for figure in found}
    deciding = ("agreement", "kl_nats") if "agreement" in by_name else ("exact_match", "common_prefix")
    return any(_is_worse(by_name[name]) for name in deciding)


def _is_worse(figure: QualityFigure) -> bool:
    # single-precision probabilities do not tell a smaller KL from none
    return figure.excess.low > LEAST_REST if figure.name == "kl_nats" else figure.excess.high < 0.0


def standing(found: Sequence[QualityFigure], min_agreement: float) -> Literal["kept", "broken", "too few to tell"]:
    """Whether the top-token agreement is at least so much: only if its whole interval says so."""
    agreement = next((figure.candidate for figure in found if figure.name == "agreement"), None)
    if agreement is not None and agreement.low >= min_agreement:
        return "kept"
    return "broken" if agreement is not None and agreement.high < min_agreement else "too few to tell"
