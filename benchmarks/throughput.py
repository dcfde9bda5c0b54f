"""How far predicted throughput is from published throughput.

``python -m benchmarks.throughput --data FILE`` takes any file of published figures with the columns of
``benchmarks.throughput_rows.COLUMNS``: TensorRT-LLM's performance overviews, MLPerf Inference logs, llama.cpp's
benches, runs of TGI. Every row is placed (a model, GPU, precision, parallelism and run that servewise can predict),
counted as unplaceable with its reason, or as not of this kind. Nothing is fitted here.

The last line is one JSON object. Its ``n``, ``median_ape_pct`` and ``spearman`` are of throughput, and of latencies of
static batches, which are throughput's reciprocal. Latencies of a server at a rate are placed, and their errors printed
apart: such runs are tuned to the edge of what the server sustains, where latency says how close to it, and are what
``benchmarks.fidelity`` measures.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import throughput_llamacpp, throughput_mlperf, throughput_tgi, throughput_trtllm
from benchmarks.throughput_rows import Row, Unplaceable, better_when_small, read_rows

__all__ = ["Placed", "Report", "evaluate", "main", "predict"]

ABOVE = 1.10
"""A prediction more than this times the measured rate is above it."""
NUM_WORST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A row and its prediction, in the same unit."""

    row: Row
    predicted: float

    @property
    def error(self) -> float:
        """Relative to the measured value; positive when predicted too high."""
        return self.predicted / self.row.value - 1.0

    @property
    def under_load(self) -> bool:
        """Whether this is a latency of a server that requests reach at a rate; the time of a whole run is none."""
        return better_when_small(self.row.metric) and not self.row.batch and self.row.metric != "makespan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that came of a file."""

    placed: tuple[Placed, ...]
    unplaced: tuple[tuple[Row, str], ...]
    foreign: dict[str, int]
    unreadable: tuple[str, ...]

    @property
    def coverage_frac(self) -> float:
        """Share of the rows of this kind that were placed."""
        total = len(self.placed) + len(self.unplaced) + len(self.unreadable)
        return len(self.placed) / total if total else 0.0

    def summary(self) -> dict[str, float | int | None]:
        """The JSON line: ``above_frac`` is of the rates; Spearman's rank correlation is over all rates of the file,
        over the latencies where there are no rates."""
        counted = [p for p in self.placed if not p.under_load]
        rates = [p for p in counted if not better_when_small(p.row.metric)]
        return {
            "n": len(counted),
            "median_ape_pct": _percent(median_ape(counted)),
            "spearman": spearman(rates or counted),
            "above_frac": round(sum(p.error > ABOVE - 1.0 for p in rates) / len(rates), 4) if rates else None,
            "coverage_frac": round(self.coverage_frac, 4),
        }


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100.0 * share, 2)


def median_ape(placed: Sequence[Placed]) -> float | None:
    """Median of the absolute relative errors; None without rows."""
    return float(np.median([abs(p.error) for p in placed])) if placed else None


def mean_ranks(values: Sequence[float]) -> np.ndarray:
    """Rank of each value, from 1; equal values share the mean of theirs."""
    _, position, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean: np.ndarray = (np.cumsum(counts) - 0.5 * (counts - 1))[position]
    return mean


def spearman(placed: Sequence[Placed]) -> float | None:
    """Rank correlation of predicted and measured values; None with fewer than 3 rows or without any spread."""
    if len(placed) < 3:
        return None
    ranks = [mean_ranks([p.predicted for p in placed]), mean_ranks([p.row.value for p in placed])]
    if any(np.ptp(r) == 0 for r in ranks):
        return None
    return round(float(np.corrcoef(*ranks)[0, 1]), 4)


def predict(row: Row) -> float:
    """Predicted value of a row, by the kind of run that its engine, source and load name.

    Raises
    ------
    Unplaceable
        With the reason.
    """
    if "speculative" in row.notes.lower():
        raise Unplaceable("speculative decoding is not modelled")
    engine = row.engine.lower()
    if "mlperf" in row.source.lower():
        return throughput_mlperf.predict(row)
    if "llama.cpp" in engine:
        return throughput_llamacpp.predict(row)
    if "tensorrt-llm" in engine:
        return throughput_trtllm.predict(row)
    if "tgi" in engine:
        return throughput_tgi.predict(row)
    raise Unplaceable(f"runs of engine {row.engine!r} in this source are not described")


def evaluate(path: Path, progress: Callable[[str], None] = lambda _: None) -> Report:
    """Read a file and predict its rows.

    Raises
    ------
    InputError
        When a column is missing.
    """
    rows, foreign, unreadable = read_rows(path)
    placed, unplaced = [], []
    for number, row in enumerate(rows, start=1):
        if number % 50 == 0:
            progress(f"{number} of {len(rows)} rows")
        try:
            placed.append(Placed(row=row, predicted=predict(row)))
        except Unplaceable as reason:
            unplaced.append((row, str(reason)))
    return Report(placed=tuple(placed), unplaced=tuple(unplaced), foreign=foreign, unreadable=tuple(unreadable))


def ranks(placed: Sequence[Placed]) -> str:
    """Rank correlation in words, where rows are of one metric and there is one."""
    found = spearman(placed) if len({p.row.metric for p in placed}) == 1 else None
    return "" if found is None else f"  rank correlation {found:.3f}"


def group_lines(title: str, placed: Iterable[Placed], key: Callable[[Placed], str]) -> list[str]:
    """One line a group: rows, median error, bias, 90th percentile, share above, rank correlation."""
    groups: dict[str, list[Placed]] = {}
    for p in placed:
        groups.setdefault(key(p), []).append(p)
    lines = [f"by {title}:"]
    for name, members in sorted(groups.items()):
        errors = np.array([p.error for p in members])
        lines.append(
            f"  {name:<44} n {len(members):>4}  median error {100 * np.median(abs(errors)):5.1f}%  "
            f"bias {100 * np.median(errors):+6.1f}%  p90 {100 * np.percentile(abs(errors), 90):5.1f}%  "
            f"above by 10% {100 * np.mean(errors > ABOVE - 1):5.1f}%{ranks(members)}"
        )
    return lines


def report_lines(report: Report) -> list[str]:
    """The report in words."""
    lines: list[str] = []
    counted = [p for p in report.placed if not p.under_load]
    under_load = [p for p in report.placed if p.under_load]
    if under_load:
        lines += group_lines("latency under load (not in the JSON line)", under_load, lambda p: p.row.metric)
    if counted:
        for title, key in (
            ("metric", lambda p: p.row.metric),
            ("source and version", lambda p: f"{p.row.source} {p.row.version}".strip()),
            ("GPU", lambda p: p.row.gpu),
            ("precision", lambda p: p.row.precision or "not stated"),
            ("model", lambda p: p.row.model),
        ):
            lines += group_lines(title, counted, key)
        worst = sorted(counted, key=lambda p: -abs(np.log(p.predicted / p.row.value)))[:NUM_WORST]
        lines.append(f"the {len(worst)} worst rows:")
        for p in worst:
            lines.append(
                f"  {100 * p.error:+7.1f}%  {p.row.metric} {p.row.value:g} predicted {p.predicted:.4g}  {p.row.name}"
            )
    lines.append(f"not placed: {len(report.unplaced)} rows")
    for reason, count in Counter(reason for _, reason in report.unplaced).most_common():
        first = next(row for row, why in report.unplaced if why == reason)
        lines.append(f"  {count:>4}  {reason} (first: {first.name})")
    lines += [f"unreadable: {text}" for text in report.unreadable]
    lines += [f"not of this kind: {count} rows, {kind}" for kind, count in sorted(report.foreign.items())]
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the report, and the JSON line last."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="file of published figures (CSV)")
    parser.add_argument("--rows", action="store_true", help="print every row's prediction and every unplaced row")
    options = parser.parse_args(arguments)
    report = evaluate(options.data, lambda text: print(text, file=sys.stderr))
    if options.rows:
        for p in report.placed:
            print(f"{100 * p.error:+7.1f}%  {p.row.metric} {p.row.value:g} predicted {p.predicted:.5g}  {p.row.name}")
        for row, reason in report.unplaced:
            print(f"not placed: {row.name}: {reason}")
    print("\n".join(report_lines(report)))
    print(json.dumps(report.summary()))


if __name__ == "__main__":
    main()
