"""How well mean TTFT and TPOT of public serving runs are predicted.

    python -m benchmarks.fidelity --data RUNS.csv [--unseen model|gpu] [--no-fit] [--rows]

RUNS.csv has the columns named in ``benchmarks/serving_rows.py``. Every row's own client is simulated on the deployment
it states. Without ``--no-fit`` engines' overheads are fitted to the file, and each row is predicted by a fit that has
not seen its group (model x engine x GPU x precision), with ``--unseen`` its model or its GPU. With ``--no-fit`` the
shipped overheads predict, as a user gets them. Rows that cannot be placed, and those that a rule of
``exclusions.csv`` sets aside, are counted and named. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.serving_fit import Predicted, Prepared, fit_rows, linearize, predict, prepare
from benchmarks.serving_rows import Placed, Unplaced, place, read_rows
from benchmarks.serving_shipped import shipped_intervals, shipped_overheads
from benchmarks.serving_validation import HeldOut, Interval, groups_of, hold_out, interval_score, intervals
from servewise.errors import InputError

FIGURES = ("ttft", "tpot")


Errors = dict[str, float | int | None]


def errors(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> Errors:
    """Count, median and p90 of absolute relative errors, and median signed error [%]; None for no rows."""
    relative = predicted / measured - 1.0
    if not len(relative):
        return {"n": 0, "median_ape_pct": None, "p90_ape_pct": None, "bias_pct": None}
    return {
        "n": len(relative),
        "median_ape_pct": round(100 * float(np.median(np.abs(relative))), 2),
        "p90_ape_pct": round(100 * float(np.quantile(np.abs(relative), 0.9)), 2),
        "bias_pct": round(100 * float(np.median(relative)), 2),
    }


def both_lines(prepared: Prepared, predicted: Predicted) -> dict[str, dict[str, Errors]]:
    """Errors of TPOT and TTFT over every placed row, and over those that no rule sets aside."""
    measured, kept = np.exp(prepared.measured), prepared.weights > 0
    out: dict[str, dict[str, Errors]] = {"all": {}, "kept": {}}
    for name, j in (("tpot", 1), ("ttft", 0)):
        out["all"][name] = errors(predicted.times_ms[:, j], measured[:, j])
        out["kept"][name] = errors(predicted.times_ms[kept[:, j], j], measured[kept[:, j], j])
    return out


def print_groups(prepared: Prepared, predicted: Predicted, groups: tuple[str, ...]) -> None:
    """One line a group, every placed row."""
    measured = np.exp(prepared.measured)
    for name in sorted(set(groups)):
        at = [i for i, group in enumerate(groups) if group == name]
        lines = [errors(predicted.times_ms[at, j], measured[at, j]) for j in (1, 0)]
        tpot, ttft = (f"{e['median_ape_pct']:6.1f} / {e['p90_ape_pct']:6.1f} / {e['bias_pct']:+6.1f}" for e in lines)
        print(f"{name:75s} {len(at):4d}  TPOT {tpot}  TTFT {ttft}")


def print_rows(prepared: Prepared, predicted: Predicted) -> None:
    """One line a row."""
    for i, placed in enumerate(prepared.rows):
        (ttft, tpot), row = predicted.times_ms[i], placed.row
        mark = ",".join(sorted(placed.excluded)) or "-"
        print(
            f"line {row.number}: {row.group} TP{placed.deployment.parallelism.tensor_parallel_size} "
            f"{placed.client.input_tokens}/{placed.client.output_tokens} x{placed.client.concurrency}: "
            f"TTFT {row.ttft_ms:.1f} predicted {ttft:.1f}, TPOT {row.tpot_ms:.2f} predicted {tpot:.2f}, "
            f"set aside {mark}"
        )


def held_out_predictions(prepared: Prepared, grouping: str) -> HeldOut:
    """Fit to the rows, and predict each without its group."""
    started = time.perf_counter()
    everything = range(len(prepared.rows))
    found = fit_rows(prepared, everything)
    held_out = hold_out(prepared, found, linearize(prepared, found, everything), grouping)
    print(f"fitted and left out {len(set(held_out.groups))} times in {time.perf_counter() - started:.0f} s")
    return held_out


def report_unplaced(unplaced: list[Unplaced]) -> None:
    """Name every row that was not placed, and count the reasons."""
    for row in unplaced:
        print(f"line {row.row.number} not placed: {row.reason}")
    for reason, count in Counter(row.reason for row in unplaced).most_common():
        print(f"not placed: {count} x {reason}")


def report_set_aside(placed: list[Placed]) -> None:
    """Name every placed row of which a rule sets figures aside."""
    for figures in sorted({row.excluded for row in placed if row.excluded}, key=sorted):
        lines = [row.row.number for row in placed if row.excluded == figures]
        print(f"set aside, {' and '.join(sorted(figures))}: {len(lines)} rows, lines {', '.join(map(str, lines))}")


def main(arguments: list[str]) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--unseen", choices=("model", "gpu"))
    parser.add_argument("--no-fit", action="store_true")
    parser.add_argument("--rows", action="store_true", help="print every row")
    asked = parser.parse_args(arguments)
    if asked.no_fit and asked.unseen:
        parser.error("--unseen leaves rows out of a fit; with --no-fit there is none")
    try:
        print(json.dumps(run(asked)))
    except (InputError, OSError) as error:
        print(f"benchmarks.fidelity: {error}", file=sys.stderr)
        return 2
    return 0


def run(asked: argparse.Namespace) -> dict[str, object]:
    """Predict the rows of a file, name what is not placed or set aside, and return the summary.

    Raises
    ------
    InputError
        When the file cannot be read or none of its rows can be placed.
    """
    rows = read_rows(asked.data)
    placed, unplaced = place(rows)
    report_unplaced(unplaced)
    report_set_aside(placed)
    if not placed:
        raise InputError(f"{asked.data}: none of {len(rows)} rows can be placed; the reasons are above")
    started = time.perf_counter()
    prepared = prepare(placed)
    if asked.no_fit:
        predicted = predict(prepared, shipped_overheads(prepared))
        print(f"predicted {len(placed)} rows in {time.perf_counter() - started:.1f} s, tables and compilation included")
        groups, interval = groups_of(prepared, "group"), shipped_intervals(prepared, predicted)
    else:
        held_out = held_out_predictions(prepared, asked.unseen or "group")
        predicted, groups, interval = held_out.predicted, groups_of(prepared, "group"), intervals(prepared, held_out)
    print_groups(prepared, predicted, groups)
    if asked.rows:
        print_rows(prepared, predicted)
    return {**both_lines(prepared, predicted), **calibration(prepared, predicted, interval, len(rows))}


def calibration(prepared: Prepared, predicted: Predicted, interval: Interval, num_rows: int) -> dict[str, object]:
    """Coverage of the file, and how well the 90% intervals hold over kept figures."""
    ratio, kept = np.exp(prepared.measured) / predicted.times_ms, prepared.weights > 0
    holds, width = interval.holds(ratio), interval.width
    by_figure = {
        name: {
            "hit_frac": round(float(holds[kept[:, j], j].mean()), 4),
            "width_median_pct": round(100 * float(np.median(width[kept[:, j], j])), 1),
            "score_pct": round(100 * interval_score(interval, ratio, np.flatnonzero(kept[:, j]), j), 1),
        }
        for j, name in enumerate(FIGURES)
        if kept[:, j].any()
    }
    return {
        "coverage_frac": round(len(prepared.rows) / num_rows, 4),
        "interval90_hit_frac": round(float(holds[kept].mean()), 4) if kept.any() else None,
        "interval_width_median_pct": round(100 * float(np.median(width[kept])), 1) if kept.any() else None,
        "interval_by_figure": by_figure,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
