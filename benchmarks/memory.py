"""How much KV cache a deployment gets, against start-up logs of real engines.

``python -m benchmarks.memory --data kvlogs.csv`` takes any file with these columns. Each row with ``sanity`` "ok"
becomes a deployment from what a user knows before starting (model, GPU, flags, engine version); the KV cache that
servewise predicts is compared with the one the engine reported. In tokens where they are reported; in GiB where
they are not, and for hybrid models in vLLM, which prints the tokens of another formula. A second figure takes the
measured weights instead of the predicted ones: it shows what part of an error is the weights'.

The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.memory_rows import Placed, UnplacedError, number, place
from servewise import perf
from servewise.engines import vllm
from servewise.errors import InputError
from servewise.types import Deployment, MemoryReport
from servewise.units import GIB

WITHIN_FRAC = 0.10
OPTIONAL = ("weights_precision", "kv_dtype", "other", "inferred_fields")
COLUMNS = ("id", "engine", "engine_version", "model", "gpu", "sanity", "reported_kv_tokens", "reported_kv_gib")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One row: what was predicted and what the engine reported.

    Parameters
    ----------
    name, model : str
    unit : str
        ``tokens`` or ``GiB``.
    predicted, reported : float
    with_measured_weights : float or None
        The prediction with the log's weights, None when the log lacks them.
    assumed : tuple of str
    """

    name: str
    model: str
    unit: str
    predicted: float
    reported: float
    with_measured_weights: float | None
    assumed: tuple[str, ...]


def error_frac(predicted: float, reported: float) -> float:
    """Signed error relative to the reported value; a refusal that was predicted is no error."""
    if reported == 0:
        return 0.0 if predicted == 0 else 1.0
    return predicted / reported - 1.0


def prints_capacity(deployment: Deployment) -> bool:
    """Whether an engine prints what its cache holds when layers differ; vLLM has groups of layers since 0.10."""
    return deployment.engine != "vllm" or vllm.version_key(deployment.engine_version) < (0, 10, 0)


def choose_unit(row: Mapping[str, str], placed: Placed) -> str:
    """What to compare in.

    Raises
    ------
    UnplacedError
        When the row reports neither tokens nor GiB.
    """
    deployment = placed.deployment
    sliding = not prints_capacity(deployment) and deployment.model.num_sliding_layers > 0
    tokens, gib = number(row, "reported_kv_tokens"), number(row, "reported_kv_gib")
    if tokens is not None and not sliding and placed.weights_bytes is None:
        return "tokens"
    if gib is not None:
        return "GiB"
    if placed.weights_bytes is not None:
        raise UnplacedError("tokens of a model whose attention is not described; GiB are not reported")
    if tokens is not None:
        return "printed tokens"
    raise UnplacedError("the row reports neither tokens nor GiB of KV cache")


def in_unit(placed: Placed, report: MemoryReport, kv_bytes: float, unit: str) -> float:
    """KV cache of ``kv_bytes`` in the unit; the tokens vLLM prints for hybrids are those of its longest requests."""
    cells_are_set = placed.deployment.engine == "llama.cpp"
    if unit == "GiB":
        return max(0.0, kv_bytes) * (placed.kv_width if cells_are_set else 1.0) / GIB
    if cells_are_set:
        return float(report.kv_capacity_tokens)
    per_token = report.kv_bytes_per_token
    if unit == "printed tokens":
        deployment = placed.deployment
        length = deployment.max_request_tokens
        per_token = perf.kv_layout(deployment).bytes_of_request(length, deployment.max_step_tokens) / length
    return max(0.0, kv_bytes / (per_token * placed.kv_width))


def compare(row: Mapping[str, str]) -> Compared:
    """Predict a row and compare.

    Raises
    ------
    UnplacedError
        When the row cannot be placed.
    """
    try:
        placed = place(row)
        unit = choose_unit(row, placed)
        whole_context = 1 if prints_capacity(placed.deployment) else None
        report = perf.memory(placed.deployment, whole_context)
    except InputError as error:
        raise UnplacedError(str(error)) from None
    reported = number(row, "reported_kv_gib" if unit == "GiB" else "reported_kv_tokens")
    predicted_weights = placed.weights_bytes or placed.width * report.weights_bytes
    kv_bytes = report.kv_bytes + kept_share(placed) * (report.weights_bytes - predicted_weights)
    measured = number(row, "reported_weights_gib")
    with_measured = None
    if measured is not None and placed.deployment.engine != "llama.cpp":
        swapped = report.kv_bytes + kept_share(placed) * (report.weights_bytes - measured * GIB)
        with_measured = in_unit(placed, report, swapped, unit)
    return Compared(
        name=row["id"],
        model=row["model"],
        unit=unit,
        predicted=in_unit(placed, report, kv_bytes, unit),
        reported=reported if reported is not None else 0.0,
        with_measured_weights=with_measured,
        assumed=placed.assumed,
    )


def kept_share(placed: Placed) -> float:
    """KV cache gained for each byte of weights saved: TensorRT-LLM takes a share of what is free."""
    return float(getattr(placed.deployment.params, "free_gpu_memory_fraction", 1.0))


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of the table.

    Raises
    ------
    InputError
        When a needed column is missing.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [c for c in COLUMNS if c not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{path}: lacks the columns {', '.join(missing)}; give a table of start-up logs")
        blank = dict.fromkeys(OPTIONAL, "")
        return [blank | {key: value or "" for key, value in row.items() if key is not None} for row in reader]


def describe(row: Compared) -> str:
    """One line on a row."""
    text = f"{row.name:>5} {row.model[:44]:<44} {row.unit:>14} {row.predicted:12.4g} {row.reported:12.4g}"
    text += f" {error_frac(row.predicted, row.reported):+8.1%}"
    if row.with_measured_weights is not None:
        text += f" {error_frac(row.with_measured_weights, row.reported):+8.1%}"
    return text + (f"  [{'; '.join(row.assumed)}]" if row.assumed else "")


def median_pct(errors: Sequence[float]) -> float | None:
    """Median absolute error [percent], None of none."""
    return round(100 * statistics.median(abs(e) for e in errors), 3) if errors else None


def run(path: Path) -> dict[str, object]:
    """Compare every sane row, print a line each, and summarise."""
    rows = [row for row in read_rows(path) if row["sanity"].strip().lower() == "ok"]
    compared, misses = [], []
    print(f"{'row':>5} {'model':<44} {'unit':>14} {'predicted':>12} {'reported':>12} {'error':>8} measured weights")
    for row in rows:
        try:
            done = compare(row)
        except UnplacedError as error:
            print(f"{row['id']:>5} {row['model'][:44]:<44} not placed: {error}")
            misses.append({"row": row["id"], "reason": f"not placed: {error}"})
            continue
        compared.append(done)
        print(describe(done))
        error_of_row = error_frac(done.predicted, done.reported)
        if abs(error_of_row) > WITHIN_FRAC:
            misses.append({"row": done.name, "reason": miss_reason(done), "error_pct": round(100 * error_of_row, 2)})
    errors = [error_frac(c.predicted, c.reported) for c in compared]
    known = [error_frac(c.with_measured_weights, c.reported) for c in compared if c.with_measured_weights is not None]
    print(f"with measured weights: {len(known)} rows, median error {median_pct(known)} %")
    within = sum(abs(e) <= WITHIN_FRAC for e in errors)
    return {
        "n": len(compared),
        "median_ape_pct": median_pct(errors),
        "within_10pct_frac": round(within / len(compared), 4) if compared else None,
        "coverage_frac": round(len(compared) / len(rows), 4) if rows else None,
        "misses": misses,
    }


def miss_reason(row: Compared) -> str:
    """Why a prediction may be off: the weights, where measured ones repair it, or what the row leaves open."""
    text = f"predicted {row.predicted:.4g} {row.unit}, reported {row.reported:.4g}"
    if row.with_measured_weights is not None:
        repaired = error_frac(row.with_measured_weights, row.reported)
        text += f"; with measured weights {repaired:+.1%}"
    return text + (f"; assumed {', '.join(row.assumed)}" if row.assumed else "")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True, help="CSV of start-up logs")
    arguments = parser.parse_args()
    try:
        summary = run(arguments.data)
    except (InputError, OSError) as error:
        print(f"benchmarks.memory: {error}", file=sys.stderr)
        return 2
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
