"""Predicted against measured: prefill and decode instances of SGLang in different ratios.

``python -m benchmarks.disaggregated --data FILE`` takes the public runs of dstackai/benchmarks@06c957a,
``comparison/pd_ratio`` (Apache-2.0): gpt-oss-120b, SGLang (the newest image of September 2025, taken to be 0.5.2) on
eight H200, instances of two GPUs each, NIXL within the node, a router that takes turns; ``vllm bench serve`` with 500
random prompts of one length and a fixed number in flight. Nothing is fitted here.

The client does not ignore the end of a sequence, and only mean output lengths can be computed from what was published.
Outputs are drawn from an exponential distribution with that mean, cut at the limit (assumed). Runs of one prefill and
one decode instance are set aside: how many GPUs those had is not said.

The same client sends the same prompts again with its next concurrency, to servers that still have them in the prefix
caches of their prefill instances; servewise simulates none there. So a run is *repeated* if an earlier one of the same
lengths was sent to the same instances and all prompts fit their KV caches. Figures are given for all runs, and without
those.

Every run is printed; the last line is one JSON object with median errors.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from servewise import catalog, metrics
from servewise.engines import sglang
from servewise.perf import kv_link, memory, step_model
from servewise.sim import simulate_disaggregated, to_log
from servewise.types import (
    Deployment,
    Disaggregation,
    InstancePool,
    MemoryReport,
    Parallelism,
    Precision,
    Provenance,
    Role,
    StepModel,
    Workload,
)

__all__ = [
    "Prediction",
    "Run",
    "disaggregated_section",
    "evaluate",
    "first_only",
    "main",
    "measured_frac",
    "read_runs",
    "summary",
]

VERSION = "0.5.2"
GPU = "H200-SXM-141GB"
FIGURES = ("ttft_mean", "tpot_mean", "output_tokens_per_s")
ROLES: tuple[Role, Role] = ("prefill", "decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One published run; times in s."""

    name: str
    num_prefill: int
    num_decode: int
    tensor_parallel_size: int
    num_prompts: int
    input_tokens: int
    max_tokens: int
    mean_output_tokens: float
    concurrency: int
    is_first: bool
    measured: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A run and what was predicted of the same figures."""

    run: Run
    predicted: Mapping[str, float]
    is_repeated: bool

    def error(self, figure: str) -> float:
        """Relative to the measured value; positive when predicted too high."""
        return self.predicted[figure] / self.run.measured[figure] - 1.0


def read_runs(path: Path) -> tuple[list[Run], int]:
    """Runs with a known deployment, and how many were set aside."""
    found: dict[str, dict[str, str]] = {}
    values: dict[str, dict[str, float]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            name = row["url_or_repo_path"].rpartition("#")[2]
            found[name] = row
            factor = 1e-3 if row["unit"] == "ms" else 1.0
            values.setdefault(name, {})[row["metric"]] = float(row["value"]) * factor
    runs = []
    started: set[tuple[str, ...]] = set()
    for name, row in sorted(found.items(), key=lambda item: item[0].removesuffix(".json")[-15:]):
        if not row["tp"]:
            continue
        ratio, _, prompts = row["notes"].partition(";num_prompts=")
        prefill, _, decode = ratio.removesuffix("D").partition("P")
        measured = values[name]
        series = (ratio, row["isl"], row["osl"])
        runs.append(
            Run(
                name=name,
                num_prefill=int(prefill),
                num_decode=int(decode),
                tensor_parallel_size=int(float(row["tp"])),
                num_prompts=int(prompts),
                input_tokens=int(row["isl"]),
                max_tokens=int(row["osl"]),
                mean_output_tokens=measured["output_tokens_per_s"] / measured["requests_per_s"],
                concurrency=int(row["concurrency_or_rate"].partition("=")[2]),
                is_first=series not in started,
                measured={figure: measured[figure] for figure in FIGURES},
            )
        )
        started.add(series)
    runs.sort(key=lambda run: run.name)
    return runs, len(found) - len(runs)


def outputs_of(run: Run) -> NDArray[np.int64]:
    """Output lengths with the run's mean, exponential and cut at the limit [tokens]."""
    draws = np.random.default_rng(run.input_tokens).exponential(size=run.num_prompts)
    low, high = 0.0, 1e3 * run.max_tokens
    for _ in range(60):
        scale = 0.5 * (low + high)
        outputs = np.clip(np.ceil(scale * draws), 1, run.max_tokens)
        low, high = (scale, high) if outputs.mean() < run.mean_output_tokens else (low, scale)
    return outputs.astype(np.int64)


def workload_of(run: Run) -> Workload:
    """What the client sends."""
    outputs = outputs_of(run)
    return Workload(
        name=run.name,
        arrival_s=np.zeros(run.num_prompts),
        input_tokens=np.full(run.num_prompts, run.input_tokens),
        output_tokens=outputs,
        max_tokens=np.full(run.num_prompts, run.max_tokens),
        max_tokens_kind="declared",
        prefix=None,
        session=None,
        provenance=Provenance(kind="assumed", source="assumed: exponential outputs with the published mean"),
    )


def deployment_of(run: Run) -> Deployment:
    """The group that served it."""
    model, gpu = catalog.get_model("openai/gpt-oss-120b"), catalog.get_gpu(GPU)
    parallelism = Parallelism(tensor_parallel_size=run.tensor_parallel_size)
    alone = Deployment(
        model=model,
        gpu=gpu,
        engine="sglang",
        engine_version=VERSION,
        precision=Precision(weights=model.native_precision, kv="bf16"),
        parallelism=parallelism,
        params=sglang.default_params(VERSION, gpu, model, parallelism),
    )
    pools = [
        InstancePool(gpu=gpu, parallelism=parallelism, params=alone.params, num_instances=number)
        for number in (run.num_prefill, run.num_decode)
    ]
    link = kv_link(alone, alone, run.num_prefill, run.num_decode)
    return replace(alone, disaggregation=Disaggregation(prefill=pools[0], decode=pools[1], link=link))


def predict(run: Run, models: Mapping[Role, StepModel], memories: Mapping[Role, MemoryReport]) -> Prediction:
    """Simulate the run's client on the run's group."""
    workload = workload_of(run)
    outcome = simulate_disaggregated(workload, deployment_of(run), models, memories, concurrency=run.concurrency)
    log = to_log(workload, outcome)
    duration_s = float(np.nanmax(log.last_token_s))
    cached_tokens = run.num_prefill * memories["prefill"].kv_capacity_tokens
    return Prediction(
        run=run,
        is_repeated=not run.is_first and run.num_prompts * run.input_tokens <= cached_tokens,
        predicted={
            "ttft_mean": float(np.nanmean(metrics.ttft_s(log))),
            "tpot_mean": float(np.nanmean(metrics.tpot_s(log))),
            "output_tokens_per_s": float(log.output_tokens.sum()) / duration_s,
        },
    )


def evaluate(runs: Iterable[Run]) -> list[Prediction]:
    """Predict runs that differ in their client and ratio only."""
    models: dict[Role, StepModel] = {}
    memories: dict[Role, MemoryReport] = {}
    predictions = []
    for run in runs:
        if not models:
            deployment = deployment_of(run)
            models = {role: step_model(deployment.pool(role)) for role in ROLES}
            memories = {role: memory(deployment.pool(role)) for role in ROLES}
        predictions.append(predict(run, models, memories))
    return predictions


def summary(predictions: Iterable[Prediction]) -> dict[str, float]:
    """Median of the errors' size and of the errors, by figure [%]."""
    found = list(predictions)
    out: dict[str, float] = {"n": len(found)}
    for figure in FIGURES:
        errors = 100.0 * np.array([prediction.error(figure) for prediction in found])
        out[f"{figure}_median_ape_pct"] = round(float(np.median(np.abs(errors))), 1)
        out[f"{figure}_bias_pct"] = round(float(np.median(errors)), 1)
    return out


def measured_frac(predictions: Iterable[Prediction], figure: str) -> tuple[float, float]:
    """5% and 95% quantiles of measured over predicted: what ``data/perf/group_errors.csv`` holds."""
    ratios = [1.0 / (1.0 + prediction.error(figure)) for prediction in predictions]
    low, high = np.quantile(ratios, (0.05, 0.95))
    return round(float(low), 4), round(float(high), 4)


def first_only(predictions: Iterable[Prediction]) -> list[Prediction]:
    """Without the runs that a prefix cache helped."""
    return [prediction for prediction in predictions if not prediction.is_repeated]


def best_ratio_frac(predictions: Iterable[Prediction]) -> float:
    """Share of the clients, of those that met all ratios, whose fastest ratio is predicted to be the fastest."""
    clients: dict[tuple[int, int, int], list[Prediction]] = {}
    for prediction in predictions:
        run = prediction.run
        clients.setdefault((run.input_tokens, run.max_tokens, run.concurrency), []).append(prediction)
    most = max(len(same) for same in clients.values())
    whole = [same for same in clients.values() if len(same) == most]
    figure = "output_tokens_per_s"
    hits = sum(
        max(same, key=lambda p: p.predicted[figure]) is max(same, key=lambda p: p.run.measured[figure])
        for same in whole
    )
    return hits / len(whole)


def ratio_of(prediction: Prediction) -> str:
    """Prefill to decode instances."""
    return f"{prediction.run.num_prefill}:{prediction.run.num_decode}"


def disaggregated_section(path: Path) -> str:
    """Markdown of the errors by ratio, for the accuracy page."""
    runs, num_aside = read_runs(path)
    predictions = evaluate(runs)
    text = (
        "## Prefill and decode apart\n\n"
        "dstackai/benchmarks@06c957a `comparison/pd_ratio`: SGLang, gpt-oss-120b, eight H200, instances of two. "
        "`python -m benchmarks.disaggregated`; nothing was fitted to these runs. "
        f"{num_aside} runs with one instance of each kind are set aside: how many "
        "GPUs they had is not published. Repeated prompts are those that the servers still had in their prefix caches "
        "from an earlier run.\n\n"
        "| prefill : decode | runs | TPOT median | bias | TTFT median | bias | output tokens/s median | bias |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|\n"
    )
    ratios = sorted({ratio_of(prediction) for prediction in predictions})
    chosen = {
        "all": predictions,
        **{ratio: [p for p in predictions if ratio_of(p) == ratio] for ratio in ratios},
        "all, without repeated prompts": first_only(predictions),
    }
    for name, some in chosen.items():
        found = summary(some)
        cells = " | ".join(
            f"{found[f'{figure}_median_ape_pct']} | {found[f'{figure}_bias_pct']:+}"
            for figure in ("tpot_mean", "ttft_mean", "output_tokens_per_s")
        )
        text += f"| {name} | {len(some)} | {cells} |\n"
    text += (
        f"\nOf the clients that met all ratios, {100 * best_ratio_frac(predictions):.0f}% have their fastest ratio "
        "predicted to be the fastest.\n"
    )
    return text


def main() -> None:
    """Print every run, and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="dstack_pd_ratio.csv")
    runs, num_aside = read_runs(parser.parse_args().data)
    predictions = evaluate(runs)
    print(f"{'P:D':5}{'at once':>8}{'in':>7}{'out':>7}{'TTFT s':>20}{'TPOT ms':>18}{'tokens/s':>18}")
    for prediction in predictions:
        run, found = prediction.run, prediction.predicted
        print(
            f"{ratio_of(prediction):5}{run.concurrency:8}{run.input_tokens:7}{run.mean_output_tokens:7.0f}"
            f"{found['ttft_mean']:10.3f}{run.measured['ttft_mean']:10.3f}"
            f"{1e3 * found['tpot_mean']:9.2f}{1e3 * run.measured['tpot_mean']:9.2f}"
            f"{found['output_tokens_per_s']:9.0f}{run.measured['output_tokens_per_s']:9.0f}"
            f"{'  repeated' if prediction.is_repeated else ''}"
        )
    print(f"{num_aside} runs set aside; predicted, measured")
    found: dict[str, object] = summary(predictions) | {"best_ratio_frac": round(best_ratio_frac(predictions), 3)}
    first = first_only(predictions)
    found["without_repeated"] = summary(first) | {
        f"{figure}_measured_frac": measured_frac(first, figure) for figure in ("tpot_mean", "ttft_mean")
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
