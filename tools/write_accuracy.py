"""Write docs/accuracy.md: every accuracy benchmark on the public data, and nothing by hand.

    python -m tools.write_accuracy DATA_DIR DOCS_DIR

DATA_DIR holds ``kvlogs.csv`` and ``measured/`` as the benchmarks read them. Takes several minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import throughput_tgi
from benchmarks.accuracy_page import ServingResults, serving_section
from benchmarks.disaggregated import disaggregated_section
from benchmarks.serving_fit import fit_rows, linearize, predict, prepare
from benchmarks.serving_rows import place, read_rows
from benchmarks.serving_shipped import shipped_overheads
from benchmarks.serving_validation import GROUPINGS, hold_out
from benchmarks.throughput import Placed, evaluate

INTRODUCTION = """# Accuracy

Written by `python -m tools.write_accuracy DATA_DIR docs`. All figures are relative errors in %, predicted against
measured: the median and the 90th percentile of their size, and the median with its sign (positive: predicted too slow).

## Mean TTFT and TPOT of serving runs

1,140 public runs published by ai-dynamo/aiconfigurator@095f58a (Apache-2.0): vLLM, SGLang and TensorRT-LLM on H100,
H200, B200 and GB200. Each run's own client is simulated on the deployment it states (`benchmarks/serving_sources.py`);
`python -m benchmarks.fidelity` computes every line. Repeats of one configuration differ by 5% at the 90th percentile.
The number of prompts, the token budget and the precision of the KV cache are not in the data; where the source does
not say, they were chosen with these rows in sight, and so were the widths of the priors. Everything else that is fitted
is left out with the rows it would have been fitted to: the last linearization of the fit is solved again without them
(refitting from nothing, tried on a quarter of the rows, moved median held-out errors of TPOT by -1.0 to +0.9 points).
The table counts the GPUs of 37 InferenceX runs twice, as rows with the same times show; they are placed as they ran.

"""


def last_json(module: str, data: Path) -> dict[str, Any]:
    """The JSON object that a benchmark prints last."""
    run = subprocess.run(
        [sys.executable, "-m", module, "--data", str(data)], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def serving_results(path: Path) -> ServingResults:
    """Predictions as shipped, and without the rows' groups."""
    placed, unplaced = place(read_rows(path))
    prepared = prepare(placed)
    everything = range(len(placed))
    found = fit_rows(prepared, everything)
    linear = linearize(prepared, found, everything)
    return ServingResults(
        prepared=prepared,
        unplaced=tuple(unplaced),
        shipped=predict(prepared, shipped_overheads(prepared)),
        held_out={grouping: hold_out(prepared, found, linear, grouping) for grouping in GROUPINGS},
    )


def memory_section(data: Path) -> str:
    """KV cache that engines really had, against computed."""
    found = last_json("benchmarks.memory", data / "kvlogs.csv")
    misses = "".join(f"- {miss['row']}: {miss['reason']}\n" for miss in found["misses"]) or "- none\n"
    return (
        "\n## KV cache at start-up\n\n`python -m benchmarks.memory`, engines' start-up logs from public threads: "
        f"{found['n']} rows, median error {found['median_ape_pct']:.1f}%, {100 * found['within_10pct_frac']:.0f}% of "
        f"rows within 10%, {100 * found['coverage_frac']:.0f}% of the sane rows placed. Misses:\n\n{misses}"
    )


def log_section(data: Path) -> str:
    """Runs with a log of every request."""
    found = last_json("benchmarks.request_logs", data / "measured" / "vllm_request_logs")
    text = (
        "\n## Runs with request logs\n\n`python -m benchmarks.request_logs`, vLLM 0.19 with 300 ShareGPT requests "
        "(casys-kaist/LLMServingSim@5daddb2, MIT); errors of means.\n\n"
        "| run | TPOT | TTFT | makespan | running |\n|---|---:|---:|---:|---:|\n"
    )
    for run in found["runs"]:
        keys = ("tpot_mean_err_pct", "ttft_mean_err_pct", "makespan_err_pct", "running_err_pct")
        text += f"| {run['name']} | " + " | ".join(f"{run[key]:+.1f}" for key in keys) + " |\n"
    return text


def throughput_section(data: Path) -> str:
    """Published throughput tables."""
    text = (
        "\n## Throughput tables\n\n`python -m benchmarks.throughput`. MLPerf results are tuned by their vendors: an "
        "upper envelope; the last column is the share of rows predicted more than 10% above the measured one.\n\n"
        "| file | rows | median error | rank correlation | covered | above |\n|---|---:|---:|---:|---:|---:|\n"
    )
    for name in ("trtllm_perf_overview", "mlperf_v4_1", "llamacpp_dgx_spark"):
        found = last_json("benchmarks.throughput", data / "measured" / f"{name}.csv")
        text += (
            f"| {name} | {found['n']} | {found['median_ape_pct']:.1f}% | {found['spearman']:.3f} | "
            f"{100 * found['coverage_frac']:.0f}% | {100 * found['above_frac']:.0f}% |\n"
        )
    return text + llamacpp_table(evaluate(data / "measured" / "llamacpp_dgx_spark.csv").placed)


def llamacpp_table(placed: Sequence[Placed]) -> str:
    """llama.cpp's benches apart: batches go through the simulated server, single sequences do not."""
    text = (
        "\nllama.cpp's benches on GB10 apart. `llama-batched-bench` is predicted by simulating the server with a slot "
        "for each sequence, `llama-bench` by adding up steps of one.\n\n"
        "| bench | figure | rows | median error | 90th percentile | median with sign |\n|---|---|---:|---:|---:|---:|\n"
    )
    for bench in ("llama-batched-bench", "llama-bench"):
        for metric, name in (("prefill_tokens_per_s", "prompts"), ("decode_tokens_per_s", "decoding")):
            errors = np.array([p.error for p in placed if f"({bench})" in p.row.source and p.row.metric == metric])
            text += (
                f"| {bench} | {name} | {len(errors)} | {100 * np.median(abs(errors)):.1f}% | "
                f"{100 * np.percentile(abs(errors), 90):.1f}% | {100 * np.median(errors):+.1f}% |\n"
            )
    return text


def main(data: Path, docs: Path) -> None:
    """Run everything and write the page."""
    page = INTRODUCTION + serving_section(serving_results(data / "measured" / "silicon_serving.csv"))
    page += memory_section(data) + log_section(data) + throughput_section(data)
    page += throughput_tgi.accuracy_section(data / "measured")
    page += "\n" + disaggregated_section(data / "measured" / "dstack_pd_ratio.csv")
    (docs / "accuracy.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
