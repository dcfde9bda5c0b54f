"""Rows of public serving runs: read, set aside by rule, and placed on deployments and clients.

A file has the columns of AIConfigurator's published serving rows: model, gpu_system, engine, engine_version, precision,
gemm_quant_mode, isl, osl, batch_size_field, concurrency_from_source, tp_size, pp_size, attention_dp_size, moe_tp_size,
moe_ep_size, ttft_mean_ms, tpot_mean_ms, date.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.places import find_gpu, find_model, weight_precision
from benchmarks.serving_sources import Client, Server, deployment_of, is_inferencex, named_client
from servewise import perf
from servewise.errors import InputError
from servewise.perf.layout import require_supported
from servewise.types import Deployment, EngineName, Parallelism

__all__ = ["EXCLUSIONS", "Placed", "ServingRow", "Unplaced", "exclusions", "place", "read_rows"]

EXCLUSIONS = Path(__file__).with_name("exclusions.csv")
ENGINES: dict[str, EngineName] = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
VERSIONS_BY_DATE: dict[EngineName, tuple[tuple[str, str], ...]] = {
    "vllm": (("2026-03", "0.17.0"), ("2025-12", "0.12.0"), ("", "0.11.0")),
    "tensorrt-llm": (("2026-02", "1.2.0"), ("", "1.1.0")),
    "sglang": (("", "0.5.1"),),
}
"""Release that was current from a month on, for rows that name no version."""
REQUIRED_COLUMNS = {"model", "gpu_system", "engine", "precision", "isl", "osl", "ttft_mean_ms", "tpot_mean_ms"}
WHOLE_NUMBERS = (
    "isl",
    "osl",
    "batch_size_field",
    "concurrency_from_source",
    "tp_size",
    "pp_size",
    "attention_dp_size",
    "moe_tp_size",
    "moe_ep_size",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRow:
    """One measured run; ``number`` is its line in the file, the header being line 1."""

    number: int
    cells: Mapping[str, str]
    ttft_ms: float
    tpot_ms: float

    def integer(self, column: str, missing: int = 1) -> int:
        """A whole number of a cell; an empty one, or 0, is ``missing``."""
        text = self.cells.get(column, "")
        return int(float(text)) or missing if text else missing

    @property
    def group(self) -> str:
        """Rows that are left out together: model, engine, GPU, precision and their parallelism."""
        names = ("model", "engine", "gpu_system", "precision")
        return " ".join(self.cells[name] for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A row with the deployment and the client that it measured.

    ``excluded`` names the figures (``ttft``, ``tpot``) that a rule of ``exclusions.csv`` sets aside.
    """

    row: ServingRow
    deployment: Deployment
    client: Client
    excluded: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """A row that cannot be simulated, and why."""

    row: ServingRow
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of ``exclusions.csv``: comparisons that all hold, and the figures it sets aside."""

    comparisons: tuple[tuple[str, str, str], ...]
    figures: frozenset[str]
    reason: str


def read_rows(path: Path) -> tuple[ServingRow, ...]:
    """Read a file of serving rows.

    Raises
    ------
    InputError
        When a column is missing, a figure is not a number or there are no rows.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = REQUIRED_COLUMNS - set(reader.fieldnames or ())
        if missing:
            raise InputError(f"{path}: no column {', '.join(sorted(missing))}")
        rows = [read_row(f"{path}, line {reader.line_num}", reader.line_num, cells) for cells in reader]
    if not rows:
        raise InputError(f"{path}: no rows below the header")
    return tuple(rows)


def read_row(where: str, number: int, cells: Mapping[str, str | None]) -> ServingRow:
    """Check the cells of one line.

    Raises
    ------
    InputError
        When cells are missing, a time is not positive or a size is not a whole number.
    """
    if None in cells or None in cells.values():
        raise InputError(f"{where}: not as many cells as the header has")
    known = {name: (text or "").strip() for name, text in cells.items()}

    def number_of(column: str) -> float:
        try:
            return float(known[column])
        except ValueError as error:
            raise InputError(f"{where}: {column} {known[column]!r} is not a number") from error

    ttft, tpot = number_of("ttft_mean_ms"), number_of("tpot_mean_ms")
    if not (0.0 < ttft < math.inf and 0.0 < tpot < math.inf):
        raise InputError(f"{where}: times must be positive milliseconds, got TTFT {ttft} and TPOT {tpot}")
    for column in WHOLE_NUMBERS:
        if known.get(column) and not (number_of(column) >= 0 and number_of(column).is_integer()):
            raise InputError(f"{where}: {column} {known[column]!r} is not a whole number of 0 or more")
    return ServingRow(number=number, cells=known, ttft_ms=ttft, tpot_ms=tpot)


def exclusions(path: Path = EXCLUSIONS) -> tuple[Rule, ...]:
    """Read the rules by which rows are set aside.

    Raises
    ------
    InputError
        When a rule is not a conjunction of comparisons, or sets aside other figures than times.
    """
    rules = []
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            parts = []
            for text in line["rule"].split(" and "):
                found = re.fullmatch(r"(\w+) (=|!=|>|>=) (\S+)", text.strip())
                if found is None:
                    raise InputError(f"{path}: rule {line['rule']!r} is not 'column = value and ...'")
                parts.append((found[1], found[2], found[3]))
            figures = {"both": {"ttft", "tpot"}}.get(line["figures"], {line["figures"]})
            if not figures <= {"ttft", "tpot"}:
                raise InputError(f"{path}: figures {line['figures']!r} of a rule; allowed: ttft, tpot, both")
            rules.append(Rule(comparisons=tuple(parts), figures=frozenset(figures), reason=line["reason"]))
    return tuple(rules)


def excluded_figures(facts: Mapping[str, str], rules: Sequence[Rule]) -> frozenset[str]:
    """Figures of a row that some rule sets aside; a rule about an empty cell holds only when it asks for that."""

    def holds(column: str, operator: str, wanted: str) -> bool:
        value = facts.get(column, "")
        if wanted == "empty":
            return (value == "") == (operator == "=")
        wanted = facts.get(wanted, wanted)
        if value == "" or wanted == "":
            return False
        if operator in ("=", "!="):
            return (value == wanted) == (operator == "=")
        return float(value) > float(wanted) or (operator == ">=" and float(value) == float(wanted))

    found: set[str] = set()
    for rule in rules:
        if all(holds(*comparison) for comparison in rule.comparisons):
            found |= rule.figures
    return frozenset(found)


def with_gpus_counted_once(row: ServingRow) -> ServingRow:
    """The row as InferenceX ran it, where its GPUs were counted twice.

    TP 2 with EP 2 on 2 GPUs came into the table as 2 x 2 parts of experts, and so as 4 GPUs: the same times to the last
    digit stand beside it as one part in 2 (gpt-oss, TensorRT-LLM, B200, 2026-02-05), and InferenceX runs these
    deployments with EP = TP only (``.github/configs/nvidia-master.yaml@525079a``, gptoss-fp4-b200-trt and -h200-trt).
    """
    side = row.integer("moe_ep_size")
    lengths = row.integer("isl"), row.integer("osl")
    known = is_inferencex(row.cells.get("date", ""), *lengths)
    wide = next((name for name in ("tp_size", "attention_dp_size") if row.integer(name) == side * side), None)
    if not known or side == 1 or row.integer("moe_tp_size") != side or wide is None:
        return row
    cells = {**row.cells, wide: str(side), "moe_tp_size": "1"}
    if cells.get("concurrency_from_source"):
        ranks = int(float(cells.get("attention_dp_size") or 1))
        cells["batch_size_field"] = str(row.integer("concurrency_from_source") // ranks)
    return replace(row, cells=cells)


def duplicates(rows: Sequence[ServingRow]) -> dict[int, str]:
    """Row number -> ``copy`` (of an earlier row) or ``conflict`` (the same figures under another deployment)."""
    same: dict[tuple[float, float], list[ServingRow]] = {}
    for row in rows:
        same.setdefault((round(row.ttft_ms, 4), round(row.tpot_ms, 4)), []).append(row)
    out = {}
    columns = ("model", "gpu_system", "engine", "isl", "osl")
    sizes = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "batch_size_field")
    for rows_of in same.values():
        kinds = {tuple(r.cells.get(c, "") for c in columns) + tuple(r.integer(c) for c in sizes) for r in rows_of}
        for i, row in enumerate(rows_of):
            if len(kinds) > 1:
                out[row.number] = "conflict"
            elif i:
                out[row.number] = "copy"
    return out


def parallelism_of(row: ServingRow) -> Parallelism:
    """How a row's replica is spread; an expert layout that does not match its GPUs is taken as tensor parallel."""
    tp, ranks = row.integer("tp_size"), row.integer("attention_dp_size")
    experts = row.integer("moe_ep_size")
    matches = experts * row.integer("moe_tp_size") == tp * ranks
    return Parallelism(
        tensor_parallel_size=tp,
        pipeline_parallel_size=row.integer("pp_size"),
        data_parallel_size=ranks,
        expert_parallel_size=experts if matches else 1,
    )


def version_of(row: ServingRow, engine: EngineName) -> str:
    """Stated version, or the release that was current on the row's date."""
    stated = row.cells.get("engine_version", "")
    if re.match(r"v?\d", stated):
        return stated
    return next(version for month, version in VERSIONS_BY_DATE[engine] if row.cells.get("date", "") >= month)


def facts_of(row: ServingRow, ranks: int, gpus: int, has_experts: bool, duplicate: str) -> dict[str, str]:
    """What rules may ask of a row: its cells, and figures computed from them."""
    facts = dict(row.cells)
    facts["num_gpus"] = str(gpus)
    facts["duplicate"] = duplicate
    if row.cells.get("batch_size_field"):
        facts["batch_size_field"] = str(row.integer("batch_size_field"))
    if has_experts and row.cells.get("moe_tp_size") and row.cells.get("moe_ep_size"):
        facts["moe_width"] = str(row.integer("moe_tp_size") * row.integer("moe_ep_size"))
    if row.cells.get("concurrency_from_source"):
        facts["concurrency_per_rank"] = str(max(1, row.integer("concurrency_from_source") // ranks))
    return facts


def place(rows: Sequence[ServingRow]) -> tuple[list[Placed], list[Unplaced]]:
    """Place rows on the catalog's models and GPUs; what cannot be placed comes back with its reason."""
    rows = [with_gpus_counted_once(row) for row in rows]
    rules, copies = exclusions(), duplicates(rows)
    placed: list[Placed] = []
    unplaced: list[Unplaced] = []
    for row in rows:
        try:
            placed.append(place_row(row, rules, copies.get(row.number, "")))
        except InputError as error:
            unplaced.append(Unplaced(row=row, reason=str(error)))
    return placed, unplaced


def place_row(row: ServingRow, rules: Sequence[Rule], duplicate: str) -> Placed:
    """Place one row.

    Raises
    ------
    InputError
        When its engine, model or GPU is unknown, or the deployment cannot exist.
    """
    cells = row.cells
    engine = ENGINES.get(cells["engine"])
    if engine is None:
        raise InputError(f"engine {cells['engine']!r} is not simulated; known: {', '.join(ENGINES)}")
    model, gpu, parallelism = find_model(cells["model"]), find_gpu(cells["gpu_system"]), parallelism_of(row)
    stated = cells.get("gemm_quant_mode") or cells.get("precision", "")
    ranks, gpus = parallelism.data_parallel_size, parallelism.num_gpus
    load = row.integer("batch_size_field", 0) or row.integer("concurrency_from_source", 0) // ranks
    if load < 1:
        raise InputError("neither a batch size nor a concurrency is stated")
    client = named_client(cells.get("date", ""), row.integer("isl"), row.integer("osl"), load)
    server = Server(
        engine=engine,
        version=version_of(row, engine),
        model=model,
        gpu=gpu,
        weights=weight_precision(stated, model, cells["model"]),
        parallelism=parallelism,
    )
    facts = facts_of(row, ranks, gpus, model.moe is not None, duplicate)
    deployment = deployment_of(client, server)
    require_supported(deployment)
    memory = perf.memory(deployment)
    if not memory.fits:
        raise InputError(f"does not fit: {memory.reason}")
    return Placed(
        row=row,
        deployment=deployment,
        client=client,
        excluded=excluded_figures(facts, rules),
    )
