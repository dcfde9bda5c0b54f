"""How well the simulator replays real vLLM runs, request by request.

Each sub-folder of ``--data`` is one run (see ``request_logs_read``). Its model and GPU are looked up by name, its
engine's settings are those of its version with what the run set, the KV cache and the step times are computed, and the
requests arrive as they did. Nothing of the log's outcome enters a prediction; what the run logged about its KV cache is
printed beside the computed one.

Errors are percent of the measured value: of the mean TPOT, of the mean TTFT (from the arrival at the API process), of
the time from the first arrival to the last token, of the mean number of running requests over the log's samples, and
the median of the absolute error of every request's TPOT and TTFT.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.request_logs_read import LoggedRun, read_run, run_folders
from servewise import perf
from servewise.errors import InputError, ServewiseError
from servewise.sim import run as simulate_run
from servewise.types import Deployment, MemoryReport, StepModel

__all__ = ["Predicted", "main", "predict", "score"]

Array = NDArray[np.float64]

SAMPLES_PER_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A simulated run: times of each request, and the state of the scheduler over time.

    Parameters
    ----------
    memory : MemoryReport
    first_s, last_s : float64 array, shape (num_requests,) [s]
    time_s, running, waiting : float64 array, shape (num_samples,)
    num_preemptions : int
    """

    memory: MemoryReport
    first_s: Array
    last_s: Array
    time_s: Array
    running: Array
    waiting: Array
    num_preemptions: int


def kv_memory(run: LoggedRun) -> tuple[Deployment, MemoryReport]:
    """The deployment and its computed memory.

    An engine that ran held one request of ``max_model_len``; where the computed cache does not, the limit is lowered
    to what it holds: it decides which requests are refused, and none was.
    """
    deployment = run.deployment
    params = deployment.vllm_params
    longest = min(params.max_model_len, perf.largest_model_len(deployment))
    deployment = replace(deployment, params=replace(params, max_model_len=max(longest, 1)))
    memory = perf.memory(deployment)
    if run.kv_bytes is not None:
        blocks = int(run.kv_bytes // (memory.kv_bytes_per_token * memory.block_size_tokens)) - 1
        memory = replace(memory, kv_bytes=run.kv_bytes, num_kv_blocks=blocks, fits=True, reason="")
    return deployment, memory


def inside_engine(step_model: StepModel) -> StepModel:
    """Step times without a request's way to the engine and back: the log's time stamps are the engine core's."""
    return replace(step_model, table=replace(step_model.table, request_fixed_s=0.0, request_s_per_input_token=0.0))


def predict(run: LoggedRun) -> Predicted:
    """Simulate a run.

    Raises
    ------
    ServewiseError
        When the deployment does not fit, or is not covered.
    """
    deployment, memory = kv_memory(run)
    step_model = inside_engine(perf.step_model(deployment))
    log = simulate_run(
        run.workload,
        deployment,
        step_model,
        memory,
        record_itl=False,
        num_samples=SAMPLES_PER_S * max(1, round(run.workload.span_s)),
    )
    assert log.timeline is not None
    return Predicted(
        memory=memory,
        first_s=log.first_token_s,
        last_s=log.last_token_s,
        time_s=log.timeline.time_s,
        running=log.timeline.running,
        waiting=log.timeline.waiting,
        num_preemptions=int(log.num_preemptions.sum()),
    )


def latencies(run: LoggedRun, first_s: Array, last_s: Array) -> tuple[Array, Array]:
    """TTFT of every request and TPOT of those with two tokens or more [s]."""
    gaps = run.workload.output_tokens - 1
    some = gaps > 0
    return first_s - run.workload.arrival_s, (last_s - first_s)[some] / gaps[some]


def at_ticks(run: LoggedRun, predicted: Predicted, values: Array) -> Array:
    """A state of the simulation at the log's samples."""
    places = np.searchsorted(predicted.time_s, run.tick_s, side="right") - 1
    return np.where(places >= 0, values[np.maximum(places, 0)], 0.0)


def percent(predicted: float, measured: float) -> float:
    """Error of a prediction [%]."""
    return 100.0 * (predicted / measured - 1.0)


def score(run: LoggedRun, predicted: Predicted) -> dict[str, float]:
    """Errors of one run [%]."""
    ttft, tpot = latencies(run, run.first_s, run.last_s)
    sim_ttft, sim_tpot = latencies(run, predicted.first_s, predicted.last_s)
    running = at_ticks(run, predicted, predicted.running)
    errors = {
        "tpot_mean_err_pct": percent(sim_tpot.mean(), tpot.mean()),
        "ttft_mean_err_pct": percent(sim_ttft.mean(), ttft.mean()),
        "makespan_err_pct": percent(predicted.last_s.max(), run.last_s.max()),
        "running_err_pct": percent(running.mean(), run.running.mean()),
        "tpot_request_median_pct": 100 * np.median(np.abs(sim_tpot / tpot - 1)),
        "ttft_request_median_pct": 100 * np.median(np.abs(sim_ttft / ttft - 1)),
    }
    return {key: round(float(value), 2) for key, value in errors.items()}


def report(run: LoggedRun, predicted: Predicted) -> None:
    """Print measured and simulated quantities side by side."""
    logged = "not logged" if run.logged_kv_tokens is None else f"{run.logged_kv_tokens:,} logged"
    print(f"{run.name}: KV cache {predicted.memory.kv_capacity_tokens:,} tokens computed a rank, {logged}")
    pairs = zip(
        ("TTFT s", "TPOT ms"),
        latencies(run, run.first_s, run.last_s),
        latencies(run, predicted.first_s, predicted.last_s),
        (1.0, 1e3),
        strict=True,
    )
    for name, measured, simulated, scale in pairs:
        for who, values in (("measured", measured), ("simulated", simulated)):
            spread = " ".join(f"{scale * np.quantile(values, q):8.3f}" for q in (0.1, 0.5, 0.9, 0.99))
            print(f"  {name:8}{who:10} p10 p50 p90 p99 {spread}  mean {scale * values.mean():8.3f}")
    for name, measured, states in (
        ("running", run.running, predicted.running),
        ("waiting", run.waiting, predicted.waiting),
    ):
        simulated = at_ticks(run, predicted, states)
        print(f"  {name}: mean {measured.mean():.1f} measured, {simulated.mean():.1f} simulated")
    print(
        f"  first arrival to last token: {run.last_s.max():.1f} s measured, {predicted.last_s.max():.1f} s simulated; "
        f"{predicted.num_preemptions} preemptions simulated"
    )


def replay(folder: Path) -> dict[str, object]:
    """Read, simulate and score one run, and report it in words.

    Raises
    ------
    ServewiseError
        Why it cannot be placed.
    """
    run = read_run(folder)
    predicted = predict(run)
    num_refused = int(np.isnan(predicted.last_s).sum())
    if num_refused:
        raise InputError(
            f"{num_refused} requests that were served are longer than the computed KV cache of "
            f"{predicted.memory.kv_capacity_tokens} tokens"
        )
    report(run, predicted)
    return {"name": run.name, **score(run, predicted)}


def main(arguments: list[str] | None = None) -> int:
    """Replay every run and print one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.request_logs", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="a folder of runs")
    options = parser.parse_args(arguments)
    try:
        folders = run_folders(options.data)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    runs: list[dict[str, object]] = []
    for folder in folders:
        try:
            runs.append(replay(folder))
        except ServewiseError as error:
            print(f"{folder.name}: not placed: {error}")
    print(json.dumps({"runs": runs, "coverage_frac": len(runs) / len(folders)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
