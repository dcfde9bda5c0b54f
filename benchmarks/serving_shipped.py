"""What is shipped of a fit: overheads by level with what they leave open, and errors of held-out runs by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.serving_fit import NAMES, PRIORS, SCALES, Fit, Predicted, Prepared, overheads_from
from benchmarks.serving_validation import HeldOut, Interval, enough, quantiles
from servewise import perf
from servewise.perf.overheads import Overheads, overheads_of
from servewise.perf.validation import parallelism_text, precision_text

__all__ = ["overheads_document", "shipped_intervals", "shipped_overheads", "validation_document"]

Array = NDArray[np.float64]

SOURCE = (
    "fitted with tools/fit_overheads.py to the serving runs published by ai-dynamo/aiconfigurator@095f58a (Apache-2.0)"
)
CLASSES = {"measured": "deployment", "other model": "model", "other gpu": "gpu", "other engine": "engine"}
"""Class of a deployment -> what was left out to learn its errors."""
TRANSFER_ERROR = 0.15
"""Standard deviation (logarithm) that a transfer to a GPU without operator tables adds: assumed, about the spread of
achieved over peak matrix rates between boards of one architecture."""


def shipped_overheads(prepared: Prepared) -> dict[Any, Overheads]:
    """Overheads of every kind of deployment among the rows, as they are shipped."""
    kinds = {}
    for placed, cell, kernel in zip(prepared.rows, prepared.cells, prepared.kernels, strict=True):
        kinds[cell, kernel] = overheads_of(placed.deployment)[0]
    return kinds


def shipped_intervals(prepared: Prepared, predicted: Predicted) -> Interval:
    """The intervals a user sees: of each deployment's class, near saturation or not."""
    found = [
        perf.mean_error(placed.deployment, saturated=bool(saturated))
        for placed, saturated in zip(prepared.rows, predicted.saturated, strict=True)
    ]
    return Interval(ratio=np.array([(error.ttft_frac, error.tpot_frac) for error in found]))


def rounded(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")


def level_entry(fit: Fit, rows: Sequence[int], note: str) -> dict[str, Any]:
    """Values of a sum of levels and the covariance of their logarithms.

    ``rows`` are the shared level, an engine and a cell, as far as they were measured; a level that was not adds its
    prior.
    """
    values = fit.values[list(rows)].sum(axis=0)
    num = len(NAMES)
    blocks = fit.covariance.reshape(fit.levels.num_rows, num, fit.levels.num_rows, num)
    covariance = blocks[np.ix_(rows, range(num), rows, range(num))].sum(axis=(0, 2))
    unmeasured = np.array([PRIORS[name][1 + len(rows) :] for name in NAMES])
    covariance += np.diag((unmeasured**2).sum(axis=1))
    # relative to the prior's median for additive overheads: the share of the value itself is what is drawn
    overheads = overheads_from(values)
    share = np.array(
        [1.0 if n in SCALES else PRIORS[n][0] / max(abs(getattr(overheads, n)), 0.2 * PRIORS[n][0]) for n in NAMES]
    )
    logs = covariance * np.outer(share, share)
    return {
        "values": {name: rounded(getattr(overheads, name)) for name in NAMES},
        "covariance": [[rounded(float(x)) for x in row[: i + 1]] for i, row in enumerate(logs)],
        "note": note,
    }


def overheads_document(
    prepared: Prepared, fit: Fit, held_out: Mapping[str, HeldOut], known: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything of ``overheads.json``."""
    levels, first = fit.levels, 1
    documents = {"shared": level_entry(fit, [0], "pooled over all engines")}
    for i, engine in enumerate(levels.engines):
        count = sum(cell[0] == engine for cell in prepared.cells)
        documents[engine] = level_entry(fit, [0, first + i], f"{count} runs on all GPUs")
    for i, cell in enumerate(levels.cells):
        at = first + len(levels.engines) + i
        own = [0, first + levels.engines.index(cell[0]), at]
        count = sum(c == cell for c in prepared.cells)
        documents[f"{cell[0]} {cell[1]} on {cell[2]}"] = level_entry(fit, own, f"{count} runs")
    first += len(levels.engines) + len(levels.cells)
    kernels: dict[str, dict[str, float]] = {}
    for name in (name for kind in (levels.styles, levels.tables, levels.kernels) for name in kind):
        scales = {n: rounded(float(np.exp(fit.values[first, NAMES.index(n)]))) for n in NAMES if n in SCALES}
        kernels[" ".join(name)] = {n: s for n, s in scales.items() if s != 1.0}
        first += 1
    return {
        "source": SOURCE,
        "version_ranges": known["version_ranges"],
        "names": list(NAMES),
        "levels": documents,
        "kernels": kernels,
        "common_error": common_errors(prepared, held_out),
        "assumed": known["assumed"],
    }


def common_errors(prepared: Prepared, held_out: Mapping[str, HeldOut]) -> dict[str, dict[str, float]]:
    """By class, how far the rows of one deployment are off together: standard deviations of logarithms.

    ``gpu`` from TPOT, ``request`` from TTFT; away from saturation, where one follows from the other.
    """
    out = {}
    for name, grouping in CLASSES.items():
        found = held_out[grouping]
        residual = prepared.measured - np.log(found.predicted.times_ms)
        use = (prepared.weights > 0) & ~found.predicted.saturated[:, None]
        spread = []
        for j in (1, 0):
            groups = np.array(prepared.groups)
            means = [abs(residual[(groups == g) & use[:, j], j].mean()) for g in sorted(set(groups[use[:, j]]))]
            spread.append(rounded(float(np.quantile(means, 0.68))))
        out[name] = {"gpu": spread[0], "request": spread[1]}
    wide = out["other gpu"]
    out["transferred gpu"] = {name: rounded(float(np.hypot(s, TRANSFER_ERROR))) for name, s in wide.items()}
    return out


def validation_document(prepared: Prepared, held_out: Mapping[str, HeldOut]) -> dict[str, Any]:
    """Everything of ``validation.json``: groups of runs with their errors, and 90% intervals by class."""
    classes: dict[str, Any] = {}
    engines = sorted({p.deployment.engine for p in prepared.rows})
    for name, grouping in CLASSES.items():
        found = held_out[grouping]
        ratio = np.exp(prepared.measured) / found.predicted.times_ms
        for load, at in (("", ~found.predicted.saturated), (" saturated", found.predicted.saturated)):
            for engine in (*engines, ""):
                own = np.array([engine in ("", p.deployment.engine) for p in prepared.rows])
                entry = class_entry(prepared, found, ratio, at & own)
                if entry is not None:
                    classes[f"{engine}: {name}{load}" if engine else f"{name}{load}"] = entry
    for load in ("", " saturated"):
        if (wide := classes.get(f"other gpu{load}")) is not None:
            classes[f"transferred gpu{load}"] = {
                "num_runs": 0,
                **{key: widened(wide[key]) for key in ("tpot_frac", "ttft_frac")},
            }
    return {"source": SOURCE, "runs": measured_runs(prepared, held_out["deployment"]), "classes": classes}


def class_entry(prepared: Prepared, found: HeldOut, ratio: Array, chosen: NDArray[np.bool_]) -> dict[str, Any] | None:
    """Quantiles of measured over predicted; None with too few runs or groups of runs."""
    kept = [chosen & (prepared.weights[:, j] > 0) for j in range(2)]
    if not all(enough(np.array(found.groups)[k]) for k in kept):
        return None
    ttft, tpot = (tuple(rounded(q) for q in quantiles(ratio[k, j])) for j, k in enumerate(kept))
    return {"num_runs": int(kept[1].sum()), "tpot_frac": tpot, "ttft_frac": ttft}


def widened(interval: Sequence[float]) -> list[float]:
    """An interval widened by the assumed error of a transfer, in quadrature on logarithms."""
    tail = 1.645 * TRANSFER_ERROR
    logs = np.log(interval)
    return [rounded(float(np.exp(np.sign(x) * np.hypot(x, tail)))) for x in logs]


def measured_runs(prepared: Prepared, held_out: HeldOut) -> list[dict[str, Any]]:
    """One entry a deployment: its runs, and how predictions without them compared."""
    ratio = held_out.predicted.times_ms / np.exp(prepared.measured)
    runs = []
    for group in sorted(set(prepared.groups)):
        at = [i for i, g in enumerate(prepared.groups) if g == group and not prepared.rows[i].excluded >= {"tpot"}]
        if not at:
            continue
        d = prepared.rows[at[0]].deployment
        loads = [prepared.rows[i].client.concurrency for i in at]
        error = 100 * (ratio[at] - 1.0)
        runs.append(
            {
                "engine": d.engine,
                "engine_version": d.engine_version,
                "model": d.model.name,
                "gpu": d.gpu.name,
                "precision": precision_text(d),
                "parallelism": parallelism_text(d),
                "num_runs": len(at),
                "lowest_concurrency": min(loads),
                "highest_concurrency": max(loads),
                "tpot_median_error_pct": round(float(np.median(np.abs(error[:, 1]))), 1),
                "tpot_bias_pct": round(float(np.median(error[:, 1])), 1),
                "ttft_median_error_pct": round(float(np.median(np.abs(error[:, 0]))), 1),
                "ttft_bias_pct": round(float(np.median(error[:, 0])), 1),
            }
        )
    return runs
