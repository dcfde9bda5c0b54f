"""Predict serving rows by simulating their clients, and fit engines' overheads to them.

The overheads of a *cell* (engine, version range, GPU architecture) are ``exp(shared + engine + cell)``: every level is
pulled towards 0 by a normal prior, so a cell without runs has its engine's overheads and an engine without runs has
the shared ones. Residuals are logarithms of predicted over measured times, large ones count linearly (pseudo-Huber).
Gauss-Newton with derivatives by finite differences; leaving rows out solves the same problem without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from benchmarks.serving_rows import Placed
from benchmarks.serving_sources import requests_of
from servewise import perf
from servewise.engines import capture_sizes, pads_to_captured_sizes, replays_graphs_with_prompts
from servewise.perf.formula import StepFormula
from servewise.perf.overheads import Overheads, cell_of, kernel_of
from servewise.perf.table import tabulate
from servewise.sim import simulate_closed_loop
from servewise.types import MemoryReport, StepModel, Workload

__all__ = [
    "NAMES",
    "Fit",
    "Levels",
    "Predicted",
    "Prepared",
    "all_overheads",
    "fit_rows",
    "linearize",
    "predict",
    "prepare",
    "solve",
    "start",
]

Array = NDArray[np.float64]
Cell = tuple[str, str, str]
Style = tuple[str, str, str, str]
Table = tuple[str, str, str]
Kernel = tuple[str, str, str, str, str]

PRIORS: Mapping[str, tuple[float, float, float, float]] = {
    "layer_us": (6.0, 0.84, 0.079, 0.18),
    "prefill_layer_us": (10.0, 1.1, 0.057, 0.12),
    "eager_layer_us": (400.0, 0.93, 0.051, 0.3),
    "expert_layer_us": (5.0, 0.84, 0.088, 0.24),
    "step_ms": (0.5, 0.84, 0.066, 0.15),
    "row_us": (8.0, 0.84, 0.066, 0.15),
    "prompt_token_us": (0.3, 1.1, 0.057, 0.15),
    "elementwise_scale": (0.6, 0.33, 0.022, 0.06),
    "weights_scale": (1.0, 0.067, 0.0066, 0.018),
    "compute_scale": (1.0, 0.13, 0.0088, 0.024),
    "collective_scale": (1.0, 0.17, 0.017, 0.045),
    "attention_scale": (1.0, 0.17, 0.011, 0.03),
    "request_ms": (15.0, 0.84, 0.066, 0.15),
    "request_us_per_input_token": (3.0, 0.84, 0.066, 0.15),
}
"""Prior median of each overhead, and standard deviations of the shared level, of engines around it and of cells around
their engine: relative to the median, of scales in logarithms. Medians are orders of magnitude: gaps of a few us between
the kernels of a layer, launches of hundreds of us a layer without a graph, a Python loop of half a millisecond a step,
HTTP and tokenizer tens of milliseconds; scales are 1 if the operators are right, 0.6 for traffic that engines fuse
away. The ratios of the widths (of levels, tables and groups alike), SIGMA and TTFT_WEIGHT were chosen for the smallest
held-out errors over groups, models and GPUs together."""
NAMES = tuple(field.name for field in fields(Overheads))
DIFFERENCE = 0.1
"""Step of the finite differences, in logarithms."""
SIGMA = 0.07
"""Residual (logarithm) from which on rows count linearly."""
TTFT_WEIGHT = 0.2
"""Times to first token repeat worse than times per token: their residuals count less."""
SCALES = ("elementwise_scale", "weights_scale", "compute_scale", "collective_scale", "attention_scale")
SIGNED = ("layer_us", "expert_layer_us")
"""Overheads that may be negative: engines start kernels before others end, the tables' operators run alone."""
SMALLEST = 0.02
STYLE_SPREAD = {"weights_scale": 0.24, "compute_scale": 0.19}
TABLE_SPREAD = {"weights_scale": 0.074, "compute_scale": 0.044, "attention_scale": 0.01}
KERNEL_SPREAD = {"weights_scale": 0.2, "compute_scale": 0.014}
"""How far the operator tables are from what an engine really runs: by engine, for all engines, and both."""
GROUP_SPREAD = (0.073, 0.008)
"""What the rows of one deployment have in common beyond all this: TTFT and TPOT (logarithms)."""
HELD = 1e-6
LONGEST_STEP = 0.5
"""Most that a logarithm moves in one step of Gauss-Newton."""
NUM_STEPS = 5
NUM_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Rows ready to be predicted again and again: what they share is built once."""

    rows: tuple[Placed, ...]
    formulas: tuple[StepFormula, ...]
    formula_of: NDArray[np.int64]
    memories: tuple[MemoryReport, ...]
    workloads: tuple[Workload, ...]
    cells: tuple[Cell, ...]
    kernels: tuple[Kernel, ...]
    groups: tuple[str, ...]

    @property
    def measured(self) -> Array:
        """ln(TTFT), ln(TPOT) of every row, shape (num_rows, 2), ln(ms)."""
        return np.log(np.array([(p.row.ttft_ms, p.row.tpot_ms) for p in self.rows]))

    @property
    def weights(self) -> Array:
        """Weight of each residual, 0 where a rule sets the figure aside, shape (num_rows, 2)."""
        return np.array([("ttft" not in p.excluded, "tpot" not in p.excluded) for p in self.rows], float) * (
            TTFT_WEIGHT,
            1.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Mean TTFT and TPOT of rows, shape (num_rows, 2) [ms], and whether requests waited for memory or a slot."""

    times_ms: Array
    saturated: NDArray[np.bool_]


def prepare(rows: Sequence[Placed]) -> Prepared:
    """Build what the rows share."""
    numbers: dict[tuple[object, ...], int] = {}
    formulas: list[StepFormula] = []
    workloads: dict[object, Workload] = {}
    index = []
    for placed in rows:
        d = placed.deployment
        graphs = capture_sizes(d), replays_graphs_with_prompts(d), pads_to_captured_sizes(d)
        limits = d.max_rows, d.max_step_tokens
        key = (cell_of(d), d.engine_version, d.model.name, d.gpu.name, d.precision, d.parallelism, graphs, limits)
        if key not in numbers:
            numbers[key] = len(formulas)
            formulas.append(StepFormula(d))
        index.append(numbers[key])
        workloads.setdefault(placed.client, requests_of(placed.client))
    return Prepared(
        rows=tuple(rows),
        formulas=tuple(formulas),
        formula_of=np.array(index, np.int64),
        memories=tuple(perf.memory(placed.deployment) for placed in rows),
        workloads=tuple(workloads[placed.client] for placed in rows),
        cells=tuple(cell_of(placed.deployment) for placed in rows),
        kernels=tuple(kernel_of(placed.deployment) for placed in rows),
        groups=tuple(f"{placed.row.group} {placed.deployment.parallelism}" for placed in rows),
    )


def predict(
    prepared: Prepared, overheads: Mapping[tuple[Cell, Kernel], Overheads], chosen: Sequence[int] | None = None
) -> Predicted:
    """Simulate the clients of the chosen rows.

    Parameters
    ----------
    prepared : Prepared
    overheads : mapping of (cell, kernel) to Overheads
    chosen : sequence of int, optional
        Rows; default all.
    """
    chosen = range(len(prepared.rows)) if chosen is None else chosen
    needed = sorted({int(prepared.formula_of[i]) for i in chosen})

    def table(number: int) -> StepModel:
        formula = prepared.formulas[number]
        formula.overheads = overheads[cell_of(formula.deployment), kernel_of(formula.deployment)]
        return StepModel(table=tabulate(formula), provenance={}, max_context_tokens=0)

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        models = dict(zip(needed, pool.map(table, needed), strict=True))

        def run(i: int) -> tuple[float, float, bool]:
            return run_row(prepared, i, models[int(prepared.formula_of[i])])

        rows = list(pool.map(run, chosen))
    return Predicted(
        times_ms=np.array([row[:2] for row in rows]), saturated=np.array([row[2] for row in rows], np.bool_)
    )


def run_row(prepared: Prepared, i: int, model: StepModel) -> tuple[float, float, bool]:
    """Mean TTFT and TPOT of row ``i`` [ms], and whether requests waited for memory or a slot."""
    placed = prepared.rows[i]
    outcome = simulate_closed_loop(
        prepared.workloads[i],
        placed.deployment,
        model,
        prepared.memories[i],
        concurrency=placed.client.concurrency,
    )
    requests, out = outcome.packed.requests, outcome.outputs
    several = requests.output_tokens > 1
    tpot = (out.last - out.first)[several] / (requests.output_tokens[several] - 1)
    saturated = outcome.memory_bound or outcome.slots_bound
    return 1e3 * float((out.first - requests.arrival).mean()), 1e3 * float(tpot.mean()), saturated


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Everything that is estimated together.

    Levels with overheads are the shared one, engines and cells; styles (engine and way of working, precision, kind
    of layers), tables (architecture, precision, kind of layers) and kernels (all of these) only scale operators.
    ``groups`` are nuisances: what the rows of one deployment have in common beyond all levels, so that many rows of
    one deployment do not pass for many independent measurements.
    """

    engines: tuple[str, ...]
    cells: tuple[Cell, ...]
    styles: tuple[Style, ...]
    tables: tuple[Table, ...]
    kernels: tuple[Kernel, ...]
    groups: tuple[str, ...]

    @property
    def num_rows(self) -> int:
        """Levels with overheads."""
        return 1 + len(self.engines) + len(self.cells) + len(self.styles) + len(self.tables) + len(self.kernels)

    def rows_of(self, cell: Cell, kernel: Kernel) -> list[int]:
        """Levels that add up to a deployment's overheads; what was not measured adds nothing."""
        rows, first = [0], 1
        for known, wanted in (
            (self.engines, cell[0]),
            (self.cells, cell),
            (self.styles, (*kernel[:2], *kernel[3:])),
            (self.tables, kernel[2:]),
            (self.kernels, kernel),
        ):
            if wanted in known:
                rows.append(first + known.index(wanted))  # type: ignore[arg-type]
            first += len(known)
        return rows

    def spread(self) -> Array:
        """Prior standard deviations, shape (num_rows, num_overheads); columns that a level lacks are held at 0."""
        prior = np.array([PRIORS[name][1:] for name in NAMES]).T
        table = np.array([TABLE_SPREAD.get(name, HELD) for name in NAMES])
        style = np.array([STYLE_SPREAD.get(name, HELD) for name in NAMES])
        kernel = np.array([KERNEL_SPREAD.get(name, HELD) for name in NAMES])
        counts = (1, len(self.engines), len(self.cells))
        rows = [np.tile(prior[i], (count, 1)) for i, count in enumerate(counts)]
        for spread, known in ((style, self.styles), (table, self.tables), (kernel, self.kernels)):
            rows.append(np.tile(spread, (len(known), 1)))
        return np.vstack(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Logarithms of overheads over their prior medians by level, and their posterior covariance (flattened)."""

    levels: Levels
    values: Array
    covariance: Array

    def overheads(self, cell: Cell, kernel: Kernel) -> Overheads:
        """Overheads of a deployment."""
        return overheads_from(self.values[self.levels.rows_of(cell, kernel)].sum(axis=0))


def overheads_from(logarithms: Array) -> Overheads:
    """Overheads from the logarithms of their ratio to the prior medians."""
    return Overheads(
        **{
            name: PRIORS[name][0]
            * (float(np.exp(x)) if name in SCALES else max(1.0 + float(x), -np.inf if name in SIGNED else SMALLEST))
            for name, x in zip(NAMES, logarithms, strict=True)
        }
    )


def all_overheads(prepared: Prepared, fit: Fit, shift: Array | float = 0.0) -> dict[tuple[Cell, Kernel], Overheads]:
    """Overheads of every kind of deployment among the rows, their logarithms shifted."""
    kinds = set(zip(prepared.cells, prepared.kernels, strict=True))
    return {kind: overheads_from(fit.values[fit.levels.rows_of(*kind)].sum(axis=0) + shift) for kind in kinds}


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Residuals ln(predicted / measured), shape (num_rows, 2), and slopes, shape (num_rows, 2, num_overheads), at a
    fit; rows that were not asked for are NaN."""

    residuals: Array
    slopes: Array


def linearize(prepared: Prepared, fit: Fit, chosen: Sequence[int]) -> Linear:
    """Residuals of the chosen rows and their derivatives."""
    shape = prepared.measured.shape
    at = np.asarray(chosen)

    def residuals(shift: Array) -> Array:
        out = np.full(shape, np.nan)
        out[at] = (
            np.log(predict(prepared, all_overheads(prepared, fit, shift), chosen).times_ms) - prepared.measured[at]
        )
        return out

    base = residuals(np.zeros(len(NAMES)))
    steps = DIFFERENCE * np.eye(len(NAMES))
    return Linear(residuals=base, slopes=np.stack([(residuals(s) - base) / DIFFERENCE for s in steps], axis=2))


def start(prepared: Prepared) -> Fit:
    """The prior."""
    cells = tuple(sorted(set(prepared.cells)))
    levels = Levels(
        engines=tuple(sorted({cell[0] for cell in cells})),
        cells=cells,
        styles=tuple(sorted({(*kernel[:2], *kernel[3:]) for kernel in prepared.kernels})),
        tables=tuple(sorted({kernel[2:] for kernel in prepared.kernels})),
        kernels=tuple(sorted(set(prepared.kernels))),
        groups=tuple(sorted(set(prepared.groups))),
    )
    num = levels.num_rows * len(NAMES)
    return Fit(levels=levels, values=np.zeros((levels.num_rows, len(NAMES))), covariance=np.zeros((num, num)))


def solve(prepared: Prepared, fit: Fit, linear: Linear, kept: Sequence[int], longest_step: float = np.inf) -> Fit:
    """Minimum of the linearized problem over the kept rows, by reweighted least squares.

    ``longest_step`` bounds how far a logarithm moves from ``fit``, which must not depend on rows that are left out.
    """
    levels, num_names = fit.levels, len(NAMES)
    num_main = levels.num_rows * num_names
    num = num_main + 2 * len(levels.groups)
    spread = np.concatenate([levels.spread().ravel(), np.tile(GROUP_SPREAD, len(levels.groups))])
    own = np.arange(num) >= (levels.num_rows - len(levels.kernels)) * num_names
    design = np.zeros((len(kept), 2, num))
    for j, i in enumerate(kept):
        rows = design[j, :, :num_main].reshape(2, levels.num_rows, num_names)
        rows[:, levels.rows_of(prepared.cells[i], prepared.kernels[i])] = linear.slopes[i][:, None, :]
        first = num_main + 2 * levels.groups.index(prepared.groups[i])
        design[j, 0, first] = design[j, 1, first + 1] = 1.0
    flat = design.reshape(-1, num)
    start_at = np.concatenate([fit.values.ravel(), np.zeros(num - num_main)])
    target = linear.residuals[list(kept)].ravel() - flat @ start_at
    weight = prepared.weights[list(kept)].ravel() / SIGMA**2
    x = start_at
    for _ in range(20):
        error = target + flat @ x
        robust = weight / np.sqrt(1.0 + (error / SIGMA) ** 2)
        # a deployment far off must not drag what all share along: its own terms have heavy tails
        tails = np.where(own, np.sqrt(1.0 + (x / spread) ** 2), 1.0)
        normal = flat.T @ (robust[:, None] * flat) + np.diag(1.0 / (spread**2 * tails))
        x = np.linalg.solve(normal, -flat.T @ (robust * target))
    values = fit.values + np.clip(x[:num_main].reshape(fit.values.shape) - fit.values, -longest_step, longest_step)
    return Fit(levels=levels, values=values, covariance=np.linalg.inv(normal)[:num_main, :num_main])


def fit_rows(prepared: Prepared, chosen: Sequence[int], first: Fit | None = None, num_steps: int = NUM_STEPS) -> Fit:
    """Fit overheads to the chosen rows."""
    found = first or start(prepared)
    for _ in range(num_steps):
        found = solve(prepared, found, linearize(prepared, found, chosen), chosen, LONGEST_STEP)
    return found
