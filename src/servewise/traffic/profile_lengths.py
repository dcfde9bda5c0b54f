"""Lengths of a profile: quantiles of the input, and of the output given the input, over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEVELS", "LengthTable", "bins_of", "draw_lengths", "fit_lengths", "segments_of", "stratified"]

LEVELS = (
    *(0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075),
    *(round(0.1 + 0.04 * step, 2) for step in range(20)),
    *(0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.975, 0.98, 0.985, 0.99, 0.9925, 0.995, 0.9975, 0.999, 1.0),
)
"""Probabilities at which quantiles are kept; dense in the upper tail, which decides mean and P99."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTable:
    """Joint distribution of lengths.

    Parameters
    ----------
    input_tokens : tuple of float, shape (len(LEVELS),) [tokens]
        Quantiles of the input.
    output_tokens : tuple of tuple of float, shape (num_bins, len(LEVELS)) [tokens]
        Quantiles of the output in each of ``num_bins`` equally likely bins of the input.
    """

    input_tokens: tuple[float, ...]
    output_tokens: tuple[tuple[float, ...], ...]


def segments_of(arrival_s: NDArray[np.float64], duration_s: float, num_segments: int) -> NDArray[np.int64]:
    """Which of ``num_segments`` equal parts of the duration each request arrives in."""
    return np.minimum(arrival_s / duration_s * num_segments, num_segments - 1).astype(np.int64)


def bins_of(values: NDArray[np.int64], num_bins: int) -> NDArray[np.int64]:
    """Equally likely bin of each value by rank (ties by position)."""
    rank = np.empty(len(values), dtype=np.int64)
    rank[np.argsort(values, kind="stable")] = np.arange(len(values))
    return rank * num_bins // len(values)


def fit_lengths(
    input_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    segment: NDArray[np.int64],
    num_bins: int,
) -> tuple[LengthTable, ...]:
    """Quantiles of a trace in each part of its duration.

    Parameters
    ----------
    input_tokens, output_tokens : int64 array, shape (num_requests,) [tokens]
    segment : int64 array, shape (num_requests,)
        From 0; every part has requests.
    num_bins : int
    """
    tables = []
    for part in range(int(segment.max()) + 1):
        inputs, outputs = input_tokens[segment == part], output_tokens[segment == part]
        bins = bins_of(inputs, num_bins)
        tables.append(
            LengthTable(
                input_tokens=_quantiles(inputs),
                output_tokens=tuple(_quantiles(outputs[bins == index]) for index in range(num_bins)),
            )
        )
    return tuple(tables)


def _quantiles(tokens: NDArray[np.int64]) -> tuple[float, ...]:
    return tuple(float(value) for value in np.rint(np.quantile(tokens, LEVELS)))


def stratified(num: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Ascending probabilities, one in each of ``num`` equal parts of [0, 1): a sample with little noise."""
    return (np.arange(num) + rng.random(num)) / num


def draw_lengths(
    tables: Sequence[LengthTable], segment: NDArray[np.int64], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Input and output tokens for requests in the given parts of the duration.

    Both are drawn in equal strata, so that few requests already have the trace's mean and percentiles; which
    request of a part gets which length is random.
    """
    input_tokens = np.empty(len(segment), dtype=np.int64)
    output_tokens = np.empty(len(segment), dtype=np.int64)
    for part, table in enumerate(tables):
        members = rng.permutation(np.flatnonzero(segment == part))
        input_tokens[members] = _draw(table.input_tokens, len(members), rng)
        # Members stand in order of their input now, so that equal slices are the bins.
        num_bins = len(table.output_tokens)
        bins = np.arange(len(members)) * num_bins // max(len(members), 1)
        for index, quantiles in enumerate(table.output_tokens):
            inside = rng.permutation(members[bins == index])
            output_tokens[inside] = _draw(quantiles, len(inside), rng)
    return input_tokens, output_tokens


def _draw(quantiles: Sequence[float], num: int, rng: np.random.Generator) -> NDArray[np.int64]:
    tokens = np.rint(np.interp(stratified(num, rng), LEVELS, quantiles)).astype(np.int64)
    return np.maximum(tokens, 1)
