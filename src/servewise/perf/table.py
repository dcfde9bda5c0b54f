"""From the step-time formula to the table that the simulator reads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servewise.perf.formula import StepFormula
from servewise.types import StepTable

__all__ = ["TABLE_TOLERANCE_FRAC", "tabulate"]

Array = NDArray[np.float64]

TABLE_TOLERANCE_FRAC = 0.005
"""Largest relative difference between table and formula over a step's total time."""
KNOT_TOLERANCE_FRAC = 0.7 * TABLE_TOLERANCE_FRAC
"""Part of the tolerance that attention's knots may use; interpolation over tokens needs some of the rest."""
TABLE_ROWS = 1024
TABLE_TOKENS = 16384
"""Least extent of a table: deployments that differ in settings only share one table, to the last digit."""
NUM_CANDIDATES = 400
DENSE_TOKENS = 64
"""Token counts up to here are computed one by one."""
TOKEN_STEP_FRAC = 0.035
"""Spacing of the token counts beyond, over which times are interpolated."""


def token_counts(formula: StepFormula, max_tokens: int) -> Array:
    """Token counts at which the formula is evaluated: dense at first, then geometric, jumps kept sharp."""
    num = int(np.log(max(max_tokens, 2)) / TOKEN_STEP_FRAC) + 2
    spread = np.geomspace(1, max_tokens, num)
    sizes = formula.capture_sizes
    points = np.concatenate([np.arange(1, DENSE_TOKENS + 1), np.rint(spread), sizes, sizes + 1])
    points = np.unique(points)
    return points[points <= max_tokens]


def token_times_s(formula: StepFormula, max_tokens: int, *, with_prompts: bool) -> Array:
    """Token-only part of a step by number of tokens, index 0 to ``max_tokens`` [s]."""
    points = token_counts(formula, max_tokens)
    waits = formula.token_parts(points, with_prompts=with_prompts).floor > 0.0
    # from some count on a step no longer waits for its launches: a kink between two points
    kinks = np.flatnonzero(waits[:-1] & ~waits[1:])
    points = np.unique(np.concatenate([points, *(np.arange(points[i], points[i + 1]) for i in kinks)]))
    tokens = np.arange(max_tokens + 1, dtype=np.float64)
    out = np.interp(formula.padded(tokens), points, formula.token_parts(points, with_prompts=with_prompts).total)
    out[0] = 0.0
    return np.maximum.accumulate(out)


def context_knots(formula: StepFormula, fixed_s: Array, rows: Array) -> Array:
    """Average contexts between which attention is taken as affine [tokens].

    Chosen greedily, the longest pieces whose chord stays within the tolerance of the total step time at every
    batch size; the sliding window is a knot because attention has a kink there.
    """
    longest = float(formula.deployment.model.max_context_tokens)
    window = formula.deployment.model.sliding_window_tokens
    # whole numbers: the simulator finds the step that crosses a knot exactly
    spread = np.rint(np.geomspace(8.0, longest, NUM_CANDIDATES))
    grid = np.unique(np.concatenate([[0.0], spread, [float(window)]]))
    sample = np.unique(np.geomspace(1, rows[-1], 24).astype(np.int64)).astype(np.float64)
    attention = formula.decode_attention_s(sample[:, None], sample[:, None] * grid[None, :])
    allowed = KNOT_TOLERANCE_FRAC * (attention + fixed_s[sample.astype(np.int64)][:, None])
    forced = int(np.searchsorted(grid, window)) if window else 0
    knots, start = [0], 0
    while start < len(grid) - 1:
        stop = forced if start < forced else len(grid) - 1
        end = farthest_chord(grid, attention, allowed, start, stop)
        knots.append(end)
        start = end
    return grid[knots]


def farthest_chord(grid: Array, values: Array, allowed: Array, start: int, stop: int) -> int:
    """Last index up to ``stop`` whose chord from ``start`` stays within ``allowed`` (bisection)."""

    def fits(end: int) -> bool:
        part = slice(start, end + 1)
        share = (grid[part] - grid[start]) / (grid[end] - grid[start])
        chord = values[:, start, None] + share * (values[:, end, None] - values[:, start, None])
        return bool(np.all(np.abs(chord - values[:, part]) <= allowed[:, part]))

    low, high = start + 1, stop
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def attention_pieces(formula: StepFormula, knots: Array, rows: Array) -> tuple[Array, Array]:
    """Base [s] and slope [s per token of context] of every batch size (row 0 is zero) and piece."""
    n = rows[1:, None]
    ends = np.append(knots, 2.0 * knots[-1])
    values = formula.decode_attention_s(n, n * ends[None, :])
    slope = np.maximum(np.diff(values, axis=1) / (n * np.diff(ends)[None, :]), 0.0)
    base = values[:, :-1] - slope * n * knots[None, :]
    shape = (len(rows), len(knots))
    all_base, all_slope = np.zeros(shape), np.zeros(shape)
    all_base[1:], all_slope[1:] = base, slope
    return all_base, all_slope


def tabulate(formula: StepFormula) -> StepTable:
    """Tabulate a step-time formula, within 0.5% of its total step time.

    Parameters
    ----------
    formula : StepFormula

    Returns
    -------
    StepTable
        Covers what the engine is set to, and at least ``TABLE_ROWS`` rows and ``TABLE_TOKENS`` tokens.
    """
    deployment, overheads = formula.deployment, formula.overheads
    max_rows = max(deployment.max_rows, TABLE_ROWS)
    max_tokens = max(deployment.max_step_tokens, TABLE_TOKENS, max_rows)
    rows = np.arange(max_rows + 1, dtype=np.float64)
    tokens_s = token_times_s(formula, max_tokens, with_prompts=True)
    sample_s = np.maximum.accumulate(sampled_rows_s(formula, rows))
    fixed_s = token_times_s(formula, max_rows, with_prompts=False) + sample_s + formula.step_overhead_s()
    fixed_s[0] = 0.0
    knots = context_knots(formula, fixed_s, rows)
    base, slope = attention_pieces(formula, knots, rows)
    prefill_fixed, per_token, per_pair = formula.prefill_attention_s()
    mixed_row_fixed, mixed_row_per_token = formula.mixed_row_attention_s()
    return StepTable(
        context_knots=knots,
        attention_base_s=base,
        attention_slope_s=slope,
        decode_fixed_s=fixed_s,
        mixed_tokens_s=tokens_s + formula.step_overhead_s(),
        sample_s=sample_s,
        prefill_fixed_s=prefill_fixed,
        prefill_s_per_token=per_token,
        prefill_s_per_pair=per_pair,
        mixed_row_attention_fixed_s=mixed_row_fixed,
        mixed_row_attention_s_per_token=mixed_row_per_token,
        experts_s=rank_experts_s(formula, max_tokens),
        padded_decode_tokens=formula.padded_tokens(with_prompts=False),
        padded_mixed_tokens=formula.padded_tokens(with_prompts=True),
        request_fixed_s=1e-3 * overheads.request_ms,
        request_s_per_input_token=1e-6 * overheads.request_us_per_input_token,
    )


def rank_experts_s(formula: StepFormula, max_tokens: int) -> Array:
    """Experts by the tokens of all data parallel ranks together [s]; empty for one rank."""
    ranks = formula.deployment.parallelism.data_parallel_size
    if ranks == 1:
        return np.zeros(0)
    num = int(np.log(ranks * max_tokens) / TOKEN_STEP_FRAC) + 2
    points = np.unique(
        np.concatenate([np.arange(1, DENSE_TOKENS + 1), np.rint(np.geomspace(1, ranks * max_tokens, num))])
    )
    times = np.interp(np.arange(ranks * max_tokens + 1), points, formula.experts_s(points))
    times[0] = 0.0
    return np.asarray(times)


def sampled_rows_s(formula: StepFormula, rows: Array) -> Array:
    """Head and per-row work of every number of sampled rows [s], the head interpolated."""
    num = int(np.log(max(rows[-1], 2.0)) / TOKEN_STEP_FRAC) + 2
    points = np.unique(np.concatenate([np.arange(1, DENSE_TOKENS + 1), np.rint(np.geomspace(1, rows[-1], num))]))
    points = points[points <= rows[-1]]
    head = np.interp(rows, points, formula.head_s(points))
    head[0] = 0.0
    return np.asarray(head + formula.rows_s(rows))
