"""Rows of published throughput tables: read, checked, and sorted into those that are of this kind."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

from servewise.errors import InputError

__all__ = ["COLUMNS", "Row", "Unplaceable", "better_when_small", "foreign_class", "note", "read_rows"]

COLUMNS = (
    "source",
    "url_or_repo_path",
    "date",
    "engine",
    "engine_version",
    "model",
    "precision",
    "gpu",
    "n_gpus",
    "tp",
    "pp",
    "ep",
    "isl",
    "osl",
    "concurrency_or_rate",
    "metric",
    "value",
    "unit",
    "notes",
)
RATES = {
    "output_tokens_per_s": "tokens/s",
    "output_tokens_per_s_per_gpu": "tokens/s/gpu",
    "prefill_tokens_per_s": "tokens/s",
    "decode_tokens_per_s": "tokens/s",
    "samples_per_s": "samples/s",
}
LATENCIES = ("ttft", "tpot", "makespan")
LATENCY_UNITS = {"ms": 1e-3, "s": 1.0}
OTHER_WORKLOADS = {
    "vision": ("resnet", "retinanet", "ssd", "3d-unet", "yolo", "pointpainting"),
    "image generation": ("stable-diffusion", "sdxl", "flux"),
    "speech": ("rnnt", "whisper"),
    "recommendation": ("dlrm",),
    "encoder": ("bert",),
    "graph": ("rgat", "gnn"),
}
"""MLPerf Inference's workloads that are no language model that generates tokens, by class."""


class Unplaceable(Exception):  # noqa: N818 - not an error: an outcome with a reason
    """A row of this kind that nothing can be predicted for; its text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published figure.

    Parameters
    ----------
    line : int
        In the file, the header being 1.
    source, path, engine, version, model, precision, gpu, load, metric, notes : str
    num_gpus, tp, pp, ep : int
        0 where the source does not say.
    input_tokens, output_tokens : int [tokens]
        0 where the source does not say.
    value : float
        In the metric's unit, seconds for latencies.
    """

    line: int
    source: str
    path: str
    engine: str
    version: str
    model: str
    precision: str
    gpu: str
    num_gpus: int
    tp: int
    pp: int
    ep: int
    input_tokens: int
    output_tokens: int
    load: str
    metric: str
    value: float
    notes: str

    @property
    def batch(self) -> int:
        """Size of a static batch; 0 when requests are queued or arrive at a rate."""
        found = re.search(r"batch=(\d+)", self.load)
        return int(found.group(1)) if found else 0

    @property
    def name(self) -> str:
        """What the row is, in few words."""
        parts = f"TP{self.tp or '?'}" + (f",PP{self.pp}" if self.pp > 1 else "") + (f",EP{self.ep}" if self.ep else "")
        lengths = f" {self.input_tokens}/{self.output_tokens}" if self.input_tokens else ""
        return (
            f"line {self.line}: {self.version or self.engine} {self.model} {self.precision} on "
            f"{self.num_gpus or '?'} x {self.gpu} {parts}{lengths} {self.load}".replace("  ", " ")
        )


def note(row: Row, key: str) -> str:
    """Value of ``key=value`` among a row's notes; empty when it has none."""
    found = re.search(rf"(?:^|[;\s]){re.escape(key)}=([^;]*)", row.notes)
    return found.group(1).strip() if found else ""


def better_when_small(metric: str) -> bool:
    """Whether a metric is a latency."""
    return metric.startswith(LATENCIES)


def foreign_class(metric: str, model: str, num_gpus: str = "") -> str:
    """Why a row is not a throughput or latency of a language model on GPUs; empty when it is one.

    The rule: the workload is not one of MLPerf's that generate no tokens, the metric is a rate of tokens or samples,
    a time to first or per output token or of a whole run, and the number of accelerators is not stated to be zero.
    """
    name = model.lower()
    for kind, words in OTHER_WORKLOADS.items():
        if any(word in name for word in words):
            return f"workload of another kind: {kind}"
    if metric not in RATES and not better_when_small(metric):
        return f"metric {metric!r}"
    if num_gpus and re.fullmatch(r"0+(\.0+)?", num_gpus):
        return "server without an accelerator"
    return ""


def read_rows(path: Path) -> tuple[list[Row], dict[str, int], list[str]]:
    """Read a file of published figures.

    Parameters
    ----------
    path : Path

    Returns
    -------
    rows : list of Row
    foreign : dict
        Rows that are not of this kind, counted by class.
    unreadable : list of str
        Rows of this kind without a usable value, each with its line.

    Raises
    ------
    InputError
        When a column is missing.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(
                f"{path.name} lacks the columns {', '.join(missing)}; a file of published figures has "
                f"{', '.join(COLUMNS)}"
            )
        records = [{key: (text or "").strip() for key, text in record.items() if key} for record in reader]
    rows: list[Row] = []
    foreign: dict[str, int] = {}
    unreadable: list[str] = []
    for line, record in enumerate(records, start=2):
        kind = foreign_class(record["metric"], record["model"], record["n_gpus"])
        if kind:
            foreign[kind] = foreign.get(kind, 0) + 1
            continue
        try:
            rows.append(_row(line, record))
        except ValueError as error:
            unreadable.append(f"line {line}: {error}")
    return rows, foreign, unreadable


def _row(line: int, record: dict[str, str]) -> Row:
    def count(field: str) -> int:
        number = float(record[field] or 0)
        if not 0 <= number < 1e9 or number != int(number):
            raise ValueError(f"{field} {record[field]!r} is not a count")
        return int(number)

    def tokens(field: str) -> int:
        """A length, or a mean length to the nearest token."""
        number = float(record[field] or 0)
        if not 0 <= number < 1e9:
            raise ValueError(f"{field} {record[field]!r} is not a number of tokens")
        return round(number)

    value, metric, unit = float(record["value"] or "nan"), record["metric"], record["unit"]
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"value {record['value']!r} is not a positive number")
    known = LATENCY_UNITS if better_when_small(metric) else {RATES[metric]: 1.0}
    if unit not in known:
        raise ValueError(f"unit {unit!r} of {metric}; known: {', '.join(known)}")
    return Row(
        line=line,
        source=record["source"],
        path=record["url_or_repo_path"],
        engine=record["engine"],
        version=record["engine_version"],
        model=record["model"],
        precision=record["precision"],
        gpu=record["gpu"],
        num_gpus=count("n_gpus"),
        tp=count("tp"),
        pp=count("pp"),
        ep=count("ep"),
        input_tokens=tokens("isl"),
        output_tokens=tokens("osl"),
        load=record["concurrency_or_rate"],
        metric=metric,
        value=value * known[unit],
        notes=record["notes"],
    )
