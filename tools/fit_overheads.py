"""Fit engines' overheads to public serving runs, and measure how predictions fare without the runs they are for.

    python -m tools.fit_overheads RUNS.csv OUT_DIR

RUNS.csv has the columns of AIConfigurator's published serving rows (see ``benchmarks/serving_rows.py``). Written are
``overheads.json`` (fitted overheads by level, with their covariance) and ``validation.json`` (errors of held-out runs
by group and class). The assumed constants of an ``overheads.json`` that is already in OUT_DIR are kept.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.fidelity import both_lines
from benchmarks.serving_fit import fit_rows, linearize, prepare
from benchmarks.serving_rows import place, read_rows
from benchmarks.serving_shipped import overheads_document, validation_document
from benchmarks.serving_validation import GROUPINGS, hold_out


def one_line_entries(document: dict[str, Any]) -> str:
    """JSON with every entry of the second level on a line of its own, a third of the size of one number a line."""
    parts = []
    for name, value in sorted(document.items()):
        if isinstance(value, dict):
            lines = [f" {json.dumps(key)}: {json.dumps(entry, sort_keys=True)}" for key, entry in sorted(value.items())]
            parts.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
        elif isinstance(value, list):
            parts.append(f"{json.dumps(name)}: [\n" + ",\n".join(f" {json.dumps(entry)}" for entry in value) + "\n]")
        else:
            parts.append(f"{json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(runs: Path, out: Path) -> None:
    """Fit, validate and write both files."""
    placed, unplaced = place(read_rows(runs))
    for row in unplaced:
        print(f"line {row.row.number}: not placed: {row.reason}", file=sys.stderr)
    prepared = prepare(placed)
    everything = range(len(placed))
    found = fit_rows(prepared, everything)
    linear = linearize(prepared, found, everything)
    held_out = {grouping: hold_out(prepared, found, linear, grouping) for grouping in GROUPINGS}
    for grouping, found_out in held_out.items():
        print(f"{grouping} left out: {json.dumps(both_lines(prepared, found_out.predicted))}")
    known = json.loads((out / "overheads.json").read_text(encoding="utf-8"))
    documents = {
        "overheads.json": overheads_document(prepared, found, held_out, known),
        "validation.json": validation_document(prepared, held_out),
    }
    for name, document in documents.items():
        (out / name).write_text(one_line_entries(document), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
