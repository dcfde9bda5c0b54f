"""Derive ``data/quality/recovery.csv``: how much of its score a model keeps, by precision, task kind and size.

Run it on the collection of published accuracy results (see docs/quality.md)::

    python tools/derive_quality.py ../shared/data/quality.csv

The results of ``tools/data/quality_published.csv`` are added to it.

What counts: accuracy benchmarks whose baseline is at least 40%, well above chance. What does not: perplexity
and divergence, averages of tasks that are listed one by one, HumanEval+ and MBPP+ (the answers of HumanEval and
MBPP under more tests), one run of AIME (30 questions) or GPQA-Diamond (198: +-7 points of noise), CI references
equal to their baseline to the last digit (copied, not measured), recoveries above 105% (the baseline was measured
in another way), and plain rounding to 4-bit integers.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "src" / "servewise" / "data" / "quality" / "recovery.csv"
PUBLISHED = ROOT / "tools" / "data" / "quality_published.csv"
COLUMNS = ("entity", "field", "value", "unit", "kind", "source", "accessed", "note")
ACCESSED = "2026-11-30"

SCHEMES = {
    "fp8": (
        "FP8",
        "FP8 W8A8",
        "FP8 W8A8 static",
        "FP8 W8A8 compressed-tensors",
        "FP8 W8A8 channelwise dynamic",
        "FP8_PER_CHANNEL_PER_TOKEN",
        "FP8 FBGEMM nonuniform",
        "FP8-dynamic",
    ),
    "fp8+kv-fp8": ("FP8+kvFP8", "FP8 + kv fp8"),
    "fp8_block": ("FP8_BLOCK RTN", "FP8_BLOCK Tuning", "FP8_BLOCK_SCALES", "FP8-block"),
    "int8": ("INT8-SQ", "INT8 W8A8", "INT8 W8A8 asym", "w8a8"),
    "int4": (
        "AWQ (W4A16)",
        "GPTQ-Int4 (W4A16)",
        "INT4-AWQ",
        "INT4 AWQ (W4A16)",
        "INT4 AWQ (ONNX)",
        "Pure INT4 AWQ-MO",
        "w4a16",
    ),
    "nvfp4": (
        "NVFP4",
        "NVFP4 W4A4 RTN",
        "NVFP4 W4A4 RTN (QuantizationModifier)",
        "NVFP4 W4A4 AutoRound",
        "NVFP4 W4A4 AutoRound+alg_ext",
        "NVFP4 W4A4 AutoRound iters=0",
        "NVFP4 W4A4 AutoRound iters=200",
    ),
    "nvfp4+kv-fp8": ("NVFP4+kvFP8",),
    "mxfp4": ("MXFP4 W4A4 AutoRound", "MXFP4 W4A4 AutoRound+alg_ext"),
    "q8_0": ("Q8_0",),
    "q4_k_m": ("Q4_K_M", "GGUF q4_k_m (AutoRound)"),
}
SCHEME_OF = {name: scheme for scheme, names in SCHEMES.items() for name in names}

TASKS = {
    "code": ("humaneval", "mbpp", "livecodebench", "swe"),
    "long-context": ("ruler",),
    "chat": ("ifeval", "arena hard"),
    "math": ("gsm8k", "math", "aime", "gpqa", "bbh", "musr"),
    "knowledge": (
        *("mmlu", "arc", "hellaswag", "winogrande", "truthfulqa", "piqa", "boolq", "openbookqa", "lambada"),
        *("c-eval", "cmmlu"),
    ),
}
"""Task kinds and parts of the names of their benchmarks; the first that fits."""

MIXED = ("average", "openllm")
"""Averages over several kinds: they count where all kinds are taken together."""

SIZES_B = {
    "DeepSeek-V3-Lite": 16,
    "GLM-4.7-Flash": 30,
    "Mixtral-8x7B": 47,
    "Nemotron-3-Nano": 30,
    "Nemotron-MOE": 30,
    "Nemotron-Super-V3": 49,
    "Phi-4 Mini": 3.8,
    "Phi-4-multimodal": 5.6,
    "Phi3.5-mini": 3.8,
    "Phi-3.5 Mini": 3.8,
    "phi-4": 14.7,
    "Llama-4-Scout": 109,
    "Llama-4-Maverick": 400,
}
"""Sizes [billion parameters] that the name does not say."""

SMALL_BELOW_B, LARGE_FROM_B = 4.0, 20.0
MIN_BASELINE_PCT, MAX_RECOVERY_PCT = 40.0, 105.0
MIN_RESULTS = 5


def size_b(model: str) -> float:
    """Total size of a model [billion parameters], from its name."""
    for part, size in SIZES_B.items():
        if part in model:
            return float(size)
    match = re.search(r"(\d+(?:\.\d+)?)[bB]\b", model)
    if match is None:
        raise SystemExit(f"no size known for {model!r}: add it to SIZES_B")
    return float(match.group(1))


def size_class(model: str) -> str:
    """small, medium or large."""
    size = size_b(model)
    if size < SMALL_BELOW_B:
        return "small"
    return "large" if size >= LARGE_FROM_B else "medium"


def task_of(benchmark: str) -> str | None:
    """Task kind of a benchmark; None for an average over several kinds."""
    name = benchmark.lower()
    if any(part in name for part in MIXED):
        return None
    for task, parts in TASKS.items():
        if any(part in name for part in parts):
            return task
    raise SystemExit(f"no task kind known for {benchmark!r}: add it to TASKS")


def is_accuracy(row: dict[str, str]) -> bool:
    """Whether a benchmark's score is an accuracy, of enough answers, that is not counted twice."""
    benchmark = row["benchmark"]
    skipped = ("lower better", "loss", "same top", "Avg.", "avg(MMLU,C-Eval,IFEval)", "HumanEval+", "MBPP+")
    if any(part in benchmark for part in skipped):
        return False
    return not any(part in benchmark for part in ("AIME", "GPQA-Diamond")) or "runs" in row["note"]


def counts(row: dict[str, str]) -> bool:
    """Whether a result says something about its scheme."""
    if row["scheme"] not in SCHEME_OF or not is_accuracy(row) or not row["recovery_pct"]:
        return False
    baseline = float(row["baseline"])
    if baseline < 1.5:
        baseline *= 100
    copied = "TensorRT-LLM" in row["source"] and row["baseline"] == row["quantized"]
    return baseline >= MIN_BASELINE_PCT and float(row["recovery_pct"]) <= MAX_RECOVERY_PCT and not copied


def model_key(model: str) -> str:
    """One name for the spellings of a model."""
    return re.sub(r"[^a-z0-9]", "", model.rsplit("/", 1)[-1].lower()).removeprefix("meta")


def publisher(source: str) -> str:
    """What the table names as the source: the cards of one publisher are one."""
    if source.startswith("https://huggingface.co/RedHatAI/"):
        return "Red Hat AI model cards on huggingface.co (tools/data/quality_published.csv)"
    return source


def percentile(values: list[float], q: float) -> float:
    """Percentile by linear interpolation of the sorted sample."""
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def derive(rows: list[dict[str, str]]) -> list[tuple[str, ...]]:
    """Rows of the table: p10, median and p90 of the recovery, clipped at 100%."""
    groups: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in filter(counts, rows):
        scheme, size, task = SCHEME_OF[row["scheme"]], size_class(row["model"]), task_of(row["benchmark"])
        for kind in ("any",) if task is None else (task, "any"):
            for name in (size, "any"):
                groups[f"{scheme}/{kind}/{name}"].append(row)
    table: list[tuple[str, ...]] = []
    for entity, results in sorted(groups.items()):
        if len(results) < MIN_RESULTS and not entity.endswith("/any/any"):
            continue
        values = [float(row["recovery_pct"]) for row in results]
        source = "; ".join(sorted({publisher(row["source"]) for row in results}))
        for field, q, name in (("low", 0.1, "p10"), ("typical", 0.5, "median"), ("high", 0.9, "p90")):
            value = f"{min(100.0, percentile(values, q)):.2f}"
            table.append((entity, field, value, "%", "derived", source, ACCESSED, f"{name}; 100 is the ceiling"))
        num_models = len({model_key(row["model"]) for row in results})
        for field, unit, count in (("num_results", "results", len(results)), ("num_models", "models", num_models)):
            table.append((entity, field, str(count), unit, "derived", source, ACCESSED, ""))
    return table


def read(path: Path) -> list[dict[str, str]]:
    """Results of a collection; the shared one calls the last column ``notes``."""
    with path.open(newline="", encoding="utf-8") as stream:
        return [{"note": row.get("notes", "")} | row for row in csv.DictReader(stream)]


def main() -> None:
    """Write the table."""
    table = derive(read(Path(sys.argv[1])) + read(PUBLISHED))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    with OUT.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(table)


if __name__ == "__main__":
    main()
