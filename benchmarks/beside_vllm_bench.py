"""``vllm bench serve`` and ``servewise measure`` take turns at one real vLLM server: do they say the same?

    python -m benchmarks.beside_vllm_bench [--model DIR] [--rounds N]

Starts vLLM with a tiny model on core 0; both clients send the same closed loop of completions of equal lengths from
core 1, each first in every other round. They agree when the medians of TTFT and TPOT and the throughput differ, in
the mean of the rounds, by no more than what vLLM's bench differs by from round to round (range over mean). The exit
code is 0 then, 1 if not, and 2 if the rounds of either client differ by more than 15% in TPOT: such a machine tells
nothing. The last line is one JSON object.

TTFT counts from the actual send on both sides, as vLLM's bench counts it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import engine_installs
from benchmarks.engines import MODEL_NAME, EngineServer, started
from servewise.measure.formats import read_runs
from servewise.measure.job import Target
from servewise.measure.session import Session
from servewise.measure.spec import LoadSpec
from servewise.metrics import tpot_s, ttft_sent_s
from servewise.traffic import FixedLength
from servewise.types import RequestLog

__all__ = ["agreement", "figures", "main"]

SERVER_CORE, CLIENT_CORE = 0, 1
CONCURRENCY, NUM_REQUESTS = 8, 64
INPUT_TOKENS, OUTPUT_TOKENS = 128, 48
NUM_ROUNDS = 5
MODELS = Path(__file__).resolve().parents[2] / "shared" / "models"
OPTIONS = ["--max-num-seqs", "32", "--max-model-len", "1024", "--no-enable-prefix-caching"]
BENCH_TIMEOUT_S = 300.0
MOST_SPREAD = 0.15

Figures = Mapping[str, float]


def figures(log: RequestLog) -> Figures:
    """Median TTFT from the actual send, median TPOT, output tokens/s from the first send to the last token."""
    span_s = float(np.nanmax(log.last_token_s) - np.min(log.sent_s))
    return {
        "ttft_p50_s": float(np.nanmedian(ttft_sent_s(log))),
        "tpot_p50_s": float(np.nanmedian(tpot_s(log))),
        "throughput_tokens_per_s": float(np.sum(log.output_tokens)) / span_s,
    }


def agreement(bench: Sequence[Figures], own: Sequence[Figures]) -> dict[str, dict[str, float]]:
    """Of each figure: the ratio of the means of the rounds, and each side's range over its mean."""
    found = {}
    for name in bench[0]:
        theirs, ours = np.array([f[name] for f in bench]), np.array([f[name] for f in own])
        spreads = {"bench_spread": np.ptp(theirs) / theirs.mean(), "own_spread": np.ptp(ours) / ours.mean()}
        found[name] = {"ratio": float(ours.mean() / theirs.mean())} | {k: float(v) for k, v in spreads.items()}
    return found


def run_bench(server: EngineServer, model: Path, seed: int) -> RequestLog:
    """One run of ``vllm bench serve``."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench.json"
        command = [str(engine_installs.find("vllm") / "bin" / "vllm"), "bench", "serve"]
        command += ["--base-url", server.url, "--endpoint", "/v1/completions", "--model", MODEL_NAME]
        command += ["--tokenizer", str(model), "--dataset-name", "random", "--seed", str(seed), "--ignore-eos"]
        command += ["--random-input-len", str(INPUT_TOKENS), "--random-output-len", str(OUTPUT_TOKENS)]
        command += ["--num-prompts", str(NUM_REQUESTS), "--max-concurrency", str(CONCURRENCY)]
        command += ["--save-result", "--save-detailed", "--result-filename", str(out)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=BENCH_TIMEOUT_S)
        if ended.returncode != 0:
            raise RuntimeError(f"vllm bench serve ended with code {ended.returncode}:\n{ended.stderr[-3000:]}")
        return read_runs(out, "vllm")[0].log


def run_own(session: Session, seed: int) -> RequestLog:
    """One run of this project's client."""
    load = LoadSpec(
        concurrency=CONCURRENCY,
        input_tokens=FixedLength(tokens=INPUT_TOKENS),
        output_tokens=FixedLength(tokens=OUTPUT_TOKENS),
        num_requests=NUM_REQUESTS,
    )
    measured = session.run(load, name=f"round {seed}", seed=seed)
    if not measured.trust.trustworthy:
        print(f"own client, round {seed}: {'; '.join(measured.trust.reasons)}", file=sys.stderr)
    return measured.log


def main(arguments: Sequence[str] | None = None) -> int:
    """Take turns and compare."""
    parser = argparse.ArgumentParser(description="Compare this project's client with vLLM's, at one vLLM server.")
    parser.add_argument("--model", type=Path, default=MODELS / "tiny")
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS)
    given = parser.parse_args(arguments)
    bench: list[Figures] = []
    own: list[Figures] = []
    with started("vllm", model=given.model, options=OPTIONS, core=SERVER_CORE) as server:
        os.sched_setaffinity(0, {CLIENT_CORE})
        with Target(url=server.url, api="openai-completions").open() as session:
            run_bench(server, given.model, seed=0)
            run_own(session, seed=0)
            for number in range(1, given.rounds + 1):
                turns = [
                    lambda seed: bench.append(figures(run_bench(server, given.model, seed))),
                    lambda seed: own.append(figures(run_own(session, seed))),
                ]
                for turn in turns if number % 2 else reversed(turns):
                    turn(number)
                print(f"round {number}: bench {_words(bench[-1])}; own {_words(own[-1])}", flush=True)
    found = agreement(bench, own)
    agrees = all(abs(f["ratio"] - 1.0) <= f["bench_spread"] for f in found.values())
    valid = max(found["tpot_p50_s"]["bench_spread"], found["tpot_p50_s"]["own_spread"]) <= MOST_SPREAD
    rounded = {name: {key: round(value, 4) for key, value in f.items()} for name, f in found.items()}
    print(json.dumps({**rounded, "rounds": given.rounds, "agrees": agrees, "valid": valid}))
    return (0 if agrees else 1) if valid else 2


def _words(found: Figures) -> str:
    times = f"TTFT {1e3 * found['ttft_p50_s']:.1f} ms, TPOT {1e3 * found['tpot_p50_s']:.2f} ms"
    return f"{times}, {found['throughput_tokens_per_s']:.0f} tokens/s"


if __name__ == "__main__":
    sys.exit(main())
