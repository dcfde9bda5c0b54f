"""How long a full search takes, in a fresh process: with an empty compile cache, then warm.

Run as ``python -m benchmarks.plan_speed`` for the example, with ``--wide`` for Llama-3.1-8B on all five engines and
eight GPUs. The last line printed is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "chatbot.yaml"
WARM_RUNS = 3
WIDE = {
    "models": ("meta-llama/Llama-3.1-8B-Instruct",),
    "engines": ("vllm", "sglang", "tensorrt-llm", "tgi", "ollama"),
    "hardware": (
        "L4-24GB",
        "A10G-24GB",
        "RTX-4090-24GB",
        "L40S-48GB",
        "A100-SXM-80GB",
        "H100-SXM-80GB",
        "H200-SXM-141GB",
        "B200-SXM-180GB",
    ),
    "min_recovery_pct": 95.0,
}
"""What the wide search asks instead of the example: a model that fits almost everywhere."""


def run_once(*, wide: bool) -> dict[str, object]:
    """Plan on the example's whole trace and write the reports, as the command line does."""
    from servewise import api

    service = api.load_service(EXAMPLE)
    # the profile at its own rate: all of the trace's requests
    service = replace(service, traffic=replace(service.traffic, rate_rps=None))
    if wide:
        service = replace(service, **WIDE)
    with tempfile.TemporaryDirectory() as folder:
        plan = api.plan(service, out_dir=Path(folder)).plan
    statuses = [candidate.status for candidate in plan.candidates]
    assert plan.winner is not None
    assert plan.complete
    return {
        "candidates": len(statuses),
        "fit_frac": sum(status != "infeasible" for status in statuses) / len(statuses),
        "simulated": plan.num_simulated,
        "pruned_by_reason": dict(plan.pruned_by_reason),
        "simulated_requests": plan.num_simulated_requests,
        "search_wall_s": round(plan.wall_s, 2),
        "by_engine": dict(Counter(candidate.deployment.engine for candidate in plan.candidates)),
    }


def in_fresh_process(cache: str, *, wide: bool) -> tuple[float, dict[str, object]]:
    """Wall time [s] and result of a run in a process of its own."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.plan_speed", "--child", *(["--wide"] if wide else [])],
        env=os.environ | {"NUMBA_CACHE_DIR": cache},
        cwd=EXAMPLE.parents[1],
        check=True,
        capture_output=True,
        text=True,
    )
    return time.perf_counter() - started, json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--wide", action="store_true", help="five engines and eight GPUs instead of the example")
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(run_once(wide=asked.wide)))
        return
    with tempfile.TemporaryDirectory() as cache:
        cold_wall_s, _ = in_fresh_process(cache, wide=asked.wide)
        print(f"cold: {cold_wall_s:.1f} s", file=sys.stderr)
        warm = []
        for _ in range(WARM_RUNS):
            warm.append(in_fresh_process(cache, wide=asked.wide))
            print(f"warm: {warm[-1][0]:.1f} s", file=sys.stderr)
    wall_s, result = min(warm, key=lambda run: run[0])
    peak_rss_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        json.dumps(
            result
            | {
                "wall_s": round(wall_s, 2),
                "cold_wall_s": round(cold_wall_s, 2),
                "peak_rss_mib": round(peak_rss_mib, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
