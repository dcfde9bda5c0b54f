"""Measure a real engine at low loads, calibrate, and predict higher loads and other lengths: the loop, closed.

    python -m benchmarks.closed_loop --engine vllm|llamacpp [--model DIR_OR_GGUF]

Starts the engine with a tiny model on core 0 of this machine and sends it closed loops from core 1. Calibration is on
4 to 16 requests at once; held out are 32 and 64, with the lengths of the calibration and with others. All points are
run in every round, in an order of its own, with the same lengths and other words. The device is one that no table
describes, so nothing is known of its speed but what the calibration says.

Held out: median error of TPOT and throughput at most 10%, of TTFT at most 20%, and all at least twice better than
to predict the mean of the calibration. The exit code is 0 then, 1 if not, and 2 if the run is not valid: the client did
not keep up, or repeats of one point differ by more than 10% (the range of the median TPOT over its mean, in the median
point). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks import engine_installs
from benchmarks.engines import EngineServer, started
from servewise.calibrate import MeasuredRun, calibrate, measured_run
from servewise.calibrate.fit import Served
from servewise.calibrate.runs import checked_run
from servewise.calibrate.statistics import metrics_of
from servewise.config import named_deployment
from servewise.errors import MeasurementError
from servewise.measure.job import Target
from servewise.measure.session import Session
from servewise.measure.spec import LoadSpec
from servewise.perf import memory, step_model
from servewise.store import new_run_dir, write_measurement
from servewise.traffic import UniformLength
from servewise.types import Calibration, Deployment, Measurement, PointMetrics

__all__ = ["Point", "errors", "main", "spread_pct"]

SERVER_CORE, CLIENT_CORE = 0, 1
NUM_ROUNDS = 2
ATTEMPTS = 4
"""Runs of a point until the client kept up."""
VERSIONS = {"vllm": engine_installs.VLLM, "llamacpp": "b11549"}
"""Of the installed engines (``engine_requirements``); llama.cpp's build does not say it."""
MOST_SPREAD_PCT = 10.0
TARGETS_PCT = {"tpot_s": 10.0, "throughput_tokens_per_s": 10.0, "ttft_s": 20.0}
LEAST_RATIO = 2.0
MODELS = Path(__file__).resolve().parents[2] / "shared" / "models"
DEVICE = 'name = "one core"\nmemory_gib = 16\nbandwidth_gb_per_s = 10\nbf16_tflops = 0.1\n'
"""Memory enough for the model and its cache; the two rates are not used by a calibration of this form."""

Lengths = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A closed loop with uniform lengths [tokens]."""

    concurrency: int
    inputs: Lengths
    outputs: Lengths
    num_requests: int

    @property
    def name(self) -> str:
        """Short and in words."""
        return (
            f"{self.concurrency} at once, {self.inputs[0]}-{self.inputs[1]} in, {self.outputs[0]}-{self.outputs[1]} out"
        )

    def spec(self) -> LoadSpec:
        """Its load, with the same lengths each time."""
        (a, b), (c, d) = self.inputs, self.outputs
        made = LoadSpec(
            concurrency=self.concurrency,
            input_tokens=UniformLength(low=a, high=b),
            output_tokens=UniformLength(low=c, high=d),
            num_requests=self.num_requests,
        )
        workload = replace(made.make_workload(seed=self.concurrency), name=f"{a}-{b} in, {c}-{d} out")
        return replace(made, workload=workload)


SHORT: tuple[Lengths, Lengths] = ((32, 192), (24, 64))
LONG: tuple[Lengths, Lengths] = ((200, 500), (24, 64))
OTHER: tuple[Lengths, Lengths] = ((32, 320), (32, 128))


def _point(concurrency: int, lengths: tuple[Lengths, Lengths]) -> Point:
    num = max(24, 3 * concurrency)
    return Point(concurrency=concurrency, inputs=lengths[0], outputs=lengths[1], num_requests=num)


CALIBRATED = (
    *(_point(c, SHORT) for c in (4, 8, 16)),
    *(_point(c, LONG) for c in (4, 8)),
)
"""Not fewer at once: both engines multiply one to three rows by other kernels than larger batches."""
HELD_OUT = (*(_point(c, SHORT) for c in (32, 64)), *(_point(c, OTHER) for c in (32, 64)))


def settings_of(engine: str) -> tuple[list[str], dict[str, str]]:
    """How the server is started, and the same as the deployment's settings."""
    if engine == "vllm":
        options = ["--max-num-seqs", "128", "--max-num-batched-tokens", "2048", "--max-model-len", "2048"]
        options += ["--no-enable-prefix-caching", "--no-async-scheduling"]
        sizes = {"max_num_seqs": "128", "max_num_batched_tokens": "2048", "max_model_len": "2048"}
        return options, sizes | {"enable_prefix_caching": "false", "async_scheduling": "false"}
    options = ["n_parallel=64", "n_ctx=65536", "cache_ram_mib=0"]
    return options, {"parallel": "64", "ctx_size": "65536"}


def measured(
    server: EngineServer, points: Sequence[Point], num_rounds: int, out: Path | None
) -> dict[Point, list[MeasuredRun]]:
    """Runs of every point, all of them in each round; kept in folders of ``out``.

    Raises
    ------
    MeasurementError
        When the client did not keep up.
    """
    runs: dict[Point, list[MeasuredRun]] = defaultdict(list)
    with Target(url=server.url, temperature=0.0).open() as session:
        session.run(_point(4, SHORT).spec(), name="warm-up", seed=0)
        for number in range(num_rounds):
            for index in np.random.default_rng(number).permutation(len(points)):
                point = points[index]
                found = trusted(
                    session, point, name=f"{number}-{point.name}", seed=1 + number * len(points) + int(index)
                )
                if out is not None:
                    write_measurement(new_run_dir(out, f"{number}-{point.name}"), found)
                run = replace(measured_run(found), load=point.name)
                runs[point].append(run)
                print(f"round {number}: {point.name}: {words(metrics_of(run, run.log))}", flush=True)
    return runs


def trusted(session: Session, point: Point, *, name: str, seed: int) -> Measurement:
    """A run in which the client kept up; on a busy machine it may take several."""
    for attempt in range(ATTEMPTS):
        found = session.run(point.spec(), name=name, seed=seed + 1000 * attempt)
        if found.trust.trustworthy:
            return found
        print(f"{name}: again, {'; '.join(found.trust.reasons)}", flush=True)
    raise MeasurementError(f"{point.name}: {'; '.join(found.trust.reasons)}")


def spread_pct(runs: Mapping[Point, Sequence[MeasuredRun]]) -> float:
    """Range of the median TPOT over its mean, in the median point [%]."""
    spreads = []
    for repeats in runs.values():
        seen = [metrics_of(run, run.log).tpot_s for run in repeats]
        spreads.append(100.0 * (max(seen) - min(seen)) / float(np.mean(seen)))
    return float(np.median(spreads))


def errors(measured_at: Sequence[PointMetrics], predicted: Sequence[PointMetrics], name: str) -> float:
    """Median absolute error of a figure [%]."""
    pairs = [(getattr(m, name), getattr(p, name)) for m, p in zip(measured_at, predicted, strict=True)]
    return 100.0 * float(np.median([abs(p / m - 1.0) for m, p in pairs]))


def words(m: PointMetrics) -> str:
    """Metrics in words."""
    times = f"TPOT {1e3 * m.tpot_s:.1f} ms, TTFT {1e3 * m.ttft_s:.1f} ms, E2E {m.e2e_s:.2f} s"
    return f"{times}, {m.throughput_tokens_per_s:.0f} tokens/s"


def mean_of(metrics: Sequence[PointMetrics]) -> PointMetrics:
    """Each figure's mean."""
    names = PointMetrics.__slots__
    return PointMetrics(**{name: float(np.mean([getattr(m, name) for m in metrics])) for name in names})


def predict(deployment: Deployment, calibration: Calibration, runs: Sequence[MeasuredRun]) -> PointMetrics:
    """A point with the calibrated step times: the requests that its runs sent."""
    served = Served(deployment=deployment, memory=memory(deployment), step_model=step_model(deployment))
    return mean_of([metrics_of(run, served.simulated(run, calibration.correction)) for run in runs])


def report(deployment: Deployment, runs: Mapping[Point, Sequence[MeasuredRun]]) -> dict[str, float]:
    """Calibrate, predict what was held out, and compare."""
    calibration = calibrate([run for point in CALIBRATED for run in runs[point]], deployment)
    for parameter in calibration.parameters:
        print(
            f"{parameter.name}: {parameter.value:.3g} ({parameter.interval.low:.3g} to {parameter.interval.high:.3g})"
        )
    at = {point: mean_of([metrics_of(run, run.log) for run in found]) for point, found in runs.items()}
    held_out = {point: [checked_run(run)[0] for run in runs[point]] for point in HELD_OUT}
    predicted = {point: predict(deployment, calibration, found) for point, found in held_out.items()}
    baseline = mean_of([at[point] for point in CALIBRATED])
    for point in HELD_OUT:
        print(f"{point.name}\n  measured  {words(at[point])}\n  predicted {words(predicted[point])}")
    seen, said = [at[p] for p in HELD_OUT], [predicted[p] for p in HELD_OUT]
    found = {name: errors(seen, said, name) for name in TARGETS_PCT}
    ratios = [errors(seen, [baseline] * len(seen), name) / found[name] for name in TARGETS_PCT]
    return {
        "tpot_median_ape_pct": found["tpot_s"],
        "throughput_median_ape_pct": found["throughput_tokens_per_s"],
        "ttft_median_ape_pct": found["ttft_s"],
        "baseline_ratio": min(ratios),
        "points": len(HELD_OUT),
        "repeat_spread_pct": spread_pct(runs),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it all."""
    parser = argparse.ArgumentParser(description="Calibrate on low loads of a real engine, predict higher ones.")
    parser.add_argument("--engine", choices=("vllm", "llamacpp"), required=True)
    parser.add_argument("--model", type=Path, help="model folder, or GGUF file for llama.cpp")
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS)
    parser.add_argument("--out", type=Path, help="folder in which the runs are kept")
    given = parser.parse_args(arguments)
    model: Path = given.model or MODELS / ("tiny" if given.engine == "vllm" else "tiny.gguf")
    config = model if model.is_dir() else model.with_suffix("")
    options, settings = settings_of(given.engine)
    with started(given.engine, model=model, options=options, core=SERVER_CORE) as server:
        os.sched_setaffinity(0, {CLIENT_CORE})
        try:
            runs = measured(server, (*CALIBRATED, *HELD_OUT), given.rounds, given.out)
        except MeasurementError as error:
            print(f"not valid: {error}", file=sys.stderr)
            return 2
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as device:
        device.write(DEVICE)
        device.flush()
        deployment = named_deployment(
            engine={"llamacpp": "llama.cpp"}.get(given.engine, given.engine),
            engine_version=VERSIONS[given.engine],
            model=str(config / "config.json"),
            gpu=device.name,
            weights="bf16",
            settings=settings,
        )
    found = report(deployment, runs)
    limits = {"tpot_median_ape_pct": "tpot_s", "throughput_median_ape_pct": "throughput_tokens_per_s"}
    limits["ttft_median_ape_pct"] = "ttft_s"
    passed = all(found[key] <= TARGETS_PCT[name] for key, name in limits.items())
    passed &= found["baseline_ratio"] >= LEAST_RATIO
    valid = found["repeat_spread_pct"] <= MOST_SPREAD_PCT
    if not valid:
        print(f"not valid: repeats differ by {found['repeat_spread_pct']:.1f}%", file=sys.stderr)
    print(json.dumps({name: round(value, 2) for name, value in found.items()}))
    return (0 if passed else 1) if valid else 2


if __name__ == "__main__":
    sys.exit(main())
