"""Published runs of Text Generation Inference: dstack's on MI300X, and TGI's own of version 3.

Nothing was fitted to TGI, and neither source states the lengths of its requests one by one: every request has the
mean lengths. What else is assumed is said where it is.

Sources: dstackai/benchmarks@06c957a ``amd/tgi_vs_vllm`` (README, ``scripts/benchmark_serving.py``,
``raw_data/tgi_raw.txt``); huggingface/text-generation-inference@db931fc ``docs/source/conceptual/chunking.md`` and
``load_tests`` (``common.js``, ``long.js``, ``long.py``); read 2026-11-29.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.throughput_names import place_gpu, place_model
from benchmarks.throughput_rows import Row, Unplaceable, read_rows
from servewise import perf
from servewise.engines import tgi
from servewise.errors import InputError
from servewise.metrics import tpot_s, ttft_s
from servewise.sim import simulate, simulate_closed_loop, to_log
from servewise.types import Deployment, Parallelism, Precision, PrefixBlocks, Provenance, TgiParams, Workload

__all__ = ["Figures", "accuracy_section", "predict"]

SPACING_S = 0.001
"""Between two requests of dstack's client, which sends them all "at once" (assumed): the first one runs alone."""
DSTACK_MAX_TOKENS = 150
"""``--sonnet-output-len``; answers stop earlier, at the mean length that a row states."""
DSTACK_VERSION = "2.3.0"
"""Image ``sha-11d7af7-rocm`` of October 2024, before prompts were chunked."""
DSTACK_CHANGES: Mapping[str, int] = {
    "max_concurrent_requests": 8192,
    "max_total_tokens": 130_000,
    "max_batch_prefill_tokens": 130_049,
}
"""As the README sets them; its ``--max-input-tokens`` is garbled: the longest that ``max_total_tokens`` allows, and
version 2 adds 50 to that for a forward."""
V3_VERSION = "3.0.0"
V3_OUTPUT_TOKENS = 50
"""``max_new_tokens``; all answers are taken to be as long."""
V3_PROMPTS: Mapping[str, int] = {"small": 40, "long": 10_000}
"""8,000 tokens of 200 requests, 200,000 of 20."""
V3_SMALL_USERS = 100
"""``vus`` of ``common.js``; the long scenario has as many as requests."""
PREFIX_BLOCK = 8
INTRODUCTION = """
## Text Generation Inference

`python -m benchmarks.throughput` on the two public files. Nothing is fitted to TGI: its kernels are taken to be vLLM's,
the time of its host is assumed, and every request has the mean lengths of its run. Neither MI300X (no GPU of its kind
was measured, and the runs are of 2024) nor L4 has operator tables: transferred. The small scenario of tgi_v3 is taken
to have 100 users, all answers there 50 tokens. Bias: positive when predicted too high.

| file | figure | rows | median error | p90 | bias |
|---|---|---:|---:|---:|---:|
"""
SOURCE = Provenance(kind="assumed", source="assumed: every request has the mean lengths of its run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a run shows; ``makespan`` from the first request to the last token [s]."""

    output_tokens_per_s: float
    ttft_mean: float
    ttft_p99: float
    tpot_mean: float
    makespan: float


def predict(row: Row) -> float:
    """Predicted value of a row, in its metric's unit (seconds for times).

    Raises
    ------
    Unplaceable
        With the reason.
    """
    found = re.match(r"(\d+) requests", row.load)
    if found is None:
        raise Unplaceable(f"the load is not stated: {row.load!r}")
    if row.metric not in Figures.__slots__:
        raise Unplaceable(f"no prediction of {row.metric}")
    num = int(found.group(1))
    try:
        if "dstack" in row.source:
            if "QPS" in row.path:
                raise Unplaceable("requests came at a rate that the source does not state; many failed in one run")
            figures = dstack(row.model, row.gpu, row.num_gpus, num, row.input_tokens, row.output_tokens)
        elif row.metric == "makespan":
            scenario = "long" if "long" in row.notes.lower() else "small"
            figures = v3(row.model, row.gpu, row.num_gpus, num, scenario, "2nd run" in row.notes)
        else:
            raise Unplaceable(f"runs of engine {row.engine!r} in this source are not described")
    except InputError as error:
        raise Unplaceable(str(error)) from None
    return float(getattr(figures, row.metric))


def deployment_of(model: str, gpu: str, num_gpus: int, version: str, changes: Mapping[str, int]) -> Deployment:
    """TGI with its defaults but for what a source changes, and with as long requests as fit."""
    spec, card = place_model(model), place_gpu(gpu)
    spread = Parallelism(tensor_parallel_size=num_gpus)
    params: TgiParams = replace(tgi.default_params(version, card, spec, spread), **changes)  # type: ignore[arg-type]
    deployment = Deployment(
        model=spec,
        gpu=card,
        engine="tgi",
        engine_version=version,
        precision=Precision(),
        parallelism=spread,
        params=params,
    )
    longest = min(params.max_total_tokens, perf.largest_model_len(deployment))
    return replace(deployment, params=replace(params, max_total_tokens=longest))


def workload_of(
    num: int, input_tokens: int, output_tokens: int, max_tokens: int, prefix: PrefixBlocks | None = None
) -> Workload:
    """Equal requests, one after the other."""
    return Workload(
        name="published run",
        arrival_s=SPACING_S * np.arange(num),
        input_tokens=np.full(num, input_tokens),
        output_tokens=np.full(num, output_tokens),
        max_tokens=np.full(num, max_tokens),
        max_tokens_kind="declared",
        prefix=prefix,
        session=None,
        provenance=SOURCE,
    )


@cache
def dstack(model: str, gpu: str, num_gpus: int, num: int, input_tokens: int, output_tokens: int) -> Figures:
    """All requests at once."""
    deployment = deployment_of(model, gpu, num_gpus, DSTACK_VERSION, DSTACK_CHANGES)
    workload = workload_of(num, input_tokens, output_tokens, DSTACK_MAX_TOKENS)
    log = to_log(workload, simulate(workload, deployment, perf.step_model(deployment), perf.memory(deployment)))
    first, span_s = ttft_s(log), float(log.last_token_s.max())
    return Figures(
        output_tokens_per_s=num * output_tokens / span_s,
        ttft_mean=float(first.mean()),
        ttft_p99=float(np.percentile(first, 99)),
        tpot_mean=float(tpot_s(log).mean()),
        makespan=span_s,
    )


@cache
def v3(model: str, gpu: str, num_gpus: int, num: int, scenario: str, again: bool) -> Figures:
    """A closed loop; ``again`` sends the same prompts a second time, and that run is what counts."""
    deployment = deployment_of(model, gpu, num_gpus, V3_VERSION, {})
    times, memory = perf.step_model(deployment), perf.memory(deployment)
    input_tokens = V3_PROMPTS[scenario]
    blocks = input_tokens // PREFIX_BLOCK

    def end_s(runs: int) -> float:
        prefix = PrefixBlocks(
            offsets=np.arange(runs * num + 1) * blocks,
            ids=np.tile(np.arange(num * blocks), runs),
            num_ids=num * blocks,
            block_size_tokens=PREFIX_BLOCK,
        )
        workload = workload_of(runs * num, input_tokens, V3_OUTPUT_TOKENS, V3_OUTPUT_TOKENS, prefix)
        users = V3_SMALL_USERS if scenario == "small" else num
        return float(simulate_closed_loop(workload, deployment, times, memory, concurrency=users).outputs.last.max())

    makespan_s = end_s(2) - end_s(1) if again else end_s(1)
    return Figures(
        output_tokens_per_s=num * V3_OUTPUT_TOKENS / makespan_s,
        ttft_mean=np.nan,
        ttft_p99=np.nan,
        tpot_mean=np.nan,
        makespan=makespan_s,
    )


def rows_of(path: Path) -> tuple[list[tuple[Row, float]], dict[str, int]]:
    """TGI's rows of a file with their predictions, and reasons why others have none, counted."""
    placed, unplaced = [], {}
    for row in read_rows(path)[0]:
        if "tgi" not in row.engine.lower():
            continue
        try:
            placed.append((row, predict(row)))
        except Unplaceable as reason:
            unplaced[str(reason)] = unplaced.get(str(reason), 0) + 1
    return placed, unplaced


def figure_of(row: Row) -> str:
    """What a row of the table is about."""
    return f"{row.metric} on {row.num_gpus} {row.gpu}"


def accuracy_section(data: Path) -> str:
    """Markdown: predicted against measured, by file and metric, with what is assumed."""
    text = INTRODUCTION
    reasons: dict[str, int] = {}
    for name in ("dstack_tgi_vs_vllm_mi300x", "tgi_v3"):
        placed, unplaced = rows_of(data / f"{name}.csv")
        reasons |= unplaced
        for figure in sorted({figure_of(row) for row, _ in placed}):
            errors = np.array([100.0 * (p / row.value - 1.0) for row, p in placed if figure_of(row) == figure])
            size = np.abs(errors)
            text += (
                f"| {name} | {figure} | {len(errors)} | {np.median(size):.0f}% | {np.quantile(size, 0.9):.0f}% | "
                f"{np.median(errors):+.0f}% |\n"
            )
    return text + "\nNot predicted:\n\n" + "".join(f"- {count} rows: {why}\n" for why, count in reasons.items())
