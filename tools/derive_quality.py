"""Derive ``data/quality/recovery.csv``: how much of the bf16 score each precision keeps, by model size.

Run it on the collection of published accuracy results (see docs/catalog.md)::

    python tools/derive_quality.py ../shared/data/quality.csv

What counts: accuracy benchmarks whose baseline is at least 40%, well above chance. What does not: perplexity
and divergence, averages of tasks that are listed one by one, GPQA-Diamond (198 questions: +-7 points of
noise), CI references equal to their baseline to the last digit (copied, not measured), recoveries above 105%
(the baseline was measured in another way), and plain rounding to 4-bit integers.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import defaultdict
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "src" / "servewise" / "data" / "quality" / "recovery.csv"
COLUMNS = ("entity", "field", "value", "unit", "kind", "source", "accessed", "note")
ACCESSED = "2026-11-29"

SCHEMES = {
    "fp8": (
        "FP8",
        "FP8 W8A8",
        "FP8 W8A8 static",
        "FP8 W8A8 compressed-tensors",
        "FP8 W8A8 channelwise dynamic",
        "FP8_PER_CHANNEL_PER_TOKEN",
        "FP8 FBGEMM nonuniform",
    ),
    "fp8+kv-fp8": ("FP8+kvFP8", "FP8 + kv fp8"),
    "fp8_block": ("FP8_BLOCK RTN", "FP8_BLOCK Tuning", "FP8_BLOCK_SCALES"),
    "int8": ("INT8-SQ", "INT8 W8A8", "INT8 W8A8 asym"),
    "int4": (
        "AWQ (W4A16)",
        "GPTQ-Int4 (W4A16)",
        "INT4-AWQ",
        "INT4 AWQ (W4A16)",
        "INT4 AWQ (ONNX)",
        "Pure INT4 AWQ-MO",
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
}
SCHEME_OF = {name: scheme for scheme, names in SCHEMES.items() for name in names}

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


def is_accuracy(benchmark: str) -> bool:
    """Whether a benchmark's score is an accuracy that is not counted twice."""
    skipped = ("lower better", "loss", "same top", "GPQA", "Avg.", "Average", "avg(MMLU,C-Eval,IFEval)")
    return not any(part in benchmark for part in skipped)


def counts(row: dict[str, str]) -> bool:
    """Whether a result says something about its scheme."""
    if row["scheme"] not in SCHEME_OF or not is_accuracy(row["benchmark"]) or not row["recovery_pct"]:
        return False
    baseline = float(row["baseline"])
    if baseline < 1.5:
        baseline *= 100
    copied = "TensorRT-LLM" in row["source"] and row["baseline"] == row["quantized"]
    return baseline >= MIN_BASELINE_PCT and float(row["recovery_pct"]) <= MAX_RECOVERY_PCT and not copied


def percentile(values: list[float], q: float) -> float:
    """Percentile by linear interpolation of the sorted sample."""
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def derive(rows: list[dict[str, str]]) -> list[tuple[str, ...]]:
    """Rows of the table: p10, median and p90 of the recovery, clipped at 100%."""
    groups: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for row in filter(counts, rows):
        result = (float(row["recovery_pct"]), row["source"])
        scheme = SCHEME_OF[row["scheme"]]
        for name in (size_class(row["model"]), "any"):
            groups[scheme, name].append(result)
    table: list[tuple[str, ...]] = []
    for (scheme, name), results in sorted(groups.items()):
        if len(results) < MIN_RESULTS and name != "any":
            continue
        values = [value for value, _ in results]
        source = "; ".join(sorted({source for _, source in results}))
        for field, q in (("low", 0.1), ("typical", 0.5), ("high", 0.9)):
            value = f"{min(100.0, percentile(values, q)):.2f}"
            note = f"{'p10' if q == 0.1 else 'median' if q == 0.5 else 'p90'}; 100 is the ceiling"
            table.append((f"{scheme}/{name}", field, value, "%", "derived", source, ACCESSED, note))
        table.append((f"{scheme}/{name}", "num_results", str(len(results)), "results", "derived", source, ACCESSED, ""))
    return table


def main() -> None:
    """Write the table."""
    with Path(sys.argv[1]).open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    table = derive(rows)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    with OUT.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(table)


if __name__ == "__main__":
    main()
