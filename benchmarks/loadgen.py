"""Whether ``servewise measure`` measures the server or itself.

A server with known answers (first token after 200 ms, then one every 20 ms, 100 tokens; C, on core 0) is measured by
servewise on core 1, in lockstep: 512 and 1000 requests at once, and a Poisson stream of 100 a second. A client of
a hundred lines of C runs just before each run, with as many requests at once: what it sees is the machine's noise. A
run whose reference saw a P99 of more than 205 ms (1000 at once: 210 ms) is repeated and not counted; after 15 runs of a
case the quietest are taken, and ``is_quiet`` says so. Figures are medians of five runs; TTFT counts from the intended
send, and from the actual send as well (``ttft_sent_*``), as the reference counts it.

Needs a C compiler (``cc``) and two cores: without them it says so and measures nothing.
``--lock FILE`` holds a lock while a run lasts, for machines that have something else to do.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import numpy as np

from servewise.measure import run_load
from servewise.types import Endpoint, Load

HERE = Path(__file__).resolve().parent
TTFT_MS, ITL_MS, NUM_TOKENS = 200, 20, 100
SERVER_CORE, CLIENT_CORE = 0, 1
RUNS, MOST_RUNS = 5, 15
CASES: dict[str, dict[str, float]] = {
    "c512": {"concurrency": 512, "num_requests": 2048, "quiet_ms": 205.0},
    "c1000": {"concurrency": 1000, "num_requests": 3000, "quiet_ms": 210.0},
    "poisson100": {"rate_rps": 100, "num_requests": 1000, "quiet_ms": 205.0},
}
"""``quiet_ms``: what the reference's P99 may be. To send 1000 first tokens takes the server 5 ms."""
RUN_TIMEOUT_S = 120.0


class Greeting:
    """Says the same each time."""

    def body(self, request: int, answers: Mapping[int, str]) -> bytes:  # noqa: ARG002 - the protocol's
        return (
            b'{"model":"known","messages":[{"role":"user","content":"hello"}],"max_tokens":%d,'
            b'"stream":true,"stream_options":{"include_usage":true}}' % NUM_TOKENS
        )

    def keeps_answer(self, request: int) -> bool:  # noqa: ARG002
        return False

    def intended_input_tokens(self, request: int) -> int:  # noqa: ARG002
        return 8


def client(case: str, port: int, spawned_ns: int, seed: int) -> dict[str, float]:
    """One run, in a process of its own."""
    asked = CASES[case]
    num = int(asked["num_requests"])
    concurrency = asked.get("concurrency")
    send_s = np.zeros(num)
    if concurrency is None:
        send_s = np.cumsum(np.random.default_rng(seed).exponential(1.0 / asked["rate_rps"], num))
        send_s -= send_s[0]
    load = Load(
        send_s=send_s,
        after=np.full(num, -1, dtype=np.int64),
        think_s=np.zeros(num),
        concurrency=None if concurrency is None else int(concurrency),
        duration_s=None,
        timeout_s=60.0,
    )
    endpoint = Endpoint(base_url=f"http://127.0.0.1:{port}", api="openai-chat", model="known")
    before = cpu_s()
    run = run_load(endpoint, load, Greeting())
    used_s = cpu_s() - before
    log = run.log
    if run.details.failure.count("") != num or log.itl is None:
        raise SystemExit(f"requests failed: {set(run.details.failure)}")
    ttft_ms, sent_ms = (log.first_token_s - log.intended_s) * 1e3, (log.first_token_s - log.sent_s) * 1e3
    return {
        "ttft_p50_ms": float(np.percentile(ttft_ms, 50)),
        "ttft_p99_ms": float(np.percentile(ttft_ms, 99)),
        "ttft_sent_p50_ms": float(np.percentile(sent_ms, 50)),
        "ttft_sent_p99_ms": float(np.percentile(sent_ms, 99)),
        "itl_p99_ms": float(np.percentile(log.itl.first_s, 99) * 1e3),
        "tokens_per_s": float(log.output_tokens.sum() / np.nanmax(log.last_token_s)),
        "cpu_us_per_token": float(used_s / log.output_tokens.sum() * 1e6),
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0,
        "start_s": (run.start_ns - spawned_ns) / 1e9,
        "trustworthy": float(run.trust.trustworthy),
    }


def cpu_s() -> float:
    """CPU time of this process [s]."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextmanager
def server(folder: Path) -> Iterator[int]:
    """The server with known answers; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    command = [str(folder / "loadgen_server"), *map(str, (port, TTFT_MS, ITL_MS, NUM_TOKENS))]
    with subprocess.Popen(on_core(SERVER_CORE, command)) as process:
        try:
            for _ in range(100):
                try:
                    seen(port)
                    break
                except OSError:
                    time.sleep(0.02)
            yield port
        finally:
            process.kill()


def on_core(core: int, command: list[str]) -> list[str]:
    """The command, bound to one core."""
    return [shutil.which("taskset") or "taskset", "-c", str(core), *command]


def seen(port: int) -> tuple[float, int, int]:
    """What the server saw since it was last asked: its lateness (P99) [ms], requests, those right after another."""
    with urlopen(f"http://127.0.0.1:{port}/seen", timeout=5.0) as answer:
        late_ms, requests, close = answer.read().split()
    return float(late_ms), int(requests), int(close)


def run_once(case: str, folder: Path, port: int, seed: int) -> dict[str, float]:
    """The reference, then servewise."""
    asked = CASES[case]
    concurrency = int(asked.get("concurrency", 64))
    command = [str(folder / "loadgen_reference"), str(port), str(concurrency), str(2 * concurrency)]
    ended = subprocess.run(
        on_core(CLIENT_CORE, command), check=True, capture_output=True, text=True, timeout=RUN_TIMEOUT_S
    )
    reference_ms = float(ended.stdout.split()[1])
    seen(port)
    command = [sys.executable, "-m", "benchmarks.loadgen", "--client", case, str(port), str(seed)]
    ended = subprocess.run(
        on_core(CLIENT_CORE, [*command, str(time.monotonic_ns())]),
        check=True,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        cwd=HERE.parent,
    )
    late_ms, requests, close = seen(port)
    figures: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    figures["reference_ttft_p99_ms"] = reference_ms
    figures["server_late_p99_ms"] = late_ms
    figures["short_gap_frac"] = close / max(requests - 1, 1)
    return figures


def measure(case: str, folder: Path, lock: Path | None) -> dict[str, float | bool]:
    """Median of the quiet runs of a case."""
    runs: list[dict[str, float]] = []

    def quiet() -> list[dict[str, float]]:
        return [run for run in runs if run["reference_ttft_p99_ms"] <= CASES[case]["quiet_ms"]]

    with server(folder) as port:
        while len(quiet()) < RUNS and len(runs) < MOST_RUNS:
            with held(lock):
                runs.append(run_once(case, folder, port, seed=len(runs)))
            print(case, {name: round(value, 3) for name, value in runs[-1].items()}, file=sys.stderr, flush=True)
    is_quiet = len(quiet()) >= RUNS
    counted = quiet() if is_quiet else sorted(runs, key=lambda run: run["reference_ttft_p99_ms"])[:RUNS]
    figures: dict[str, float | bool] = {
        name: round(statistics.median(run[name] for run in counted), 3) for name in counted[0]
    }
    return {**figures, "is_quiet": is_quiet, "num_runs": len(runs)}


@contextmanager
def held(lock: Path | None) -> Iterator[None]:
    """Hold a lock file."""
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    """Measure, and print one line of JSON last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--client", nargs=4, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.client:
        case, port, seed, spawned_ns = words.client
        print(json.dumps(client(case, int(port), int(spawned_ns), int(seed))))
        return
    compiler = shutil.which("cc")
    if compiler is None or (os.cpu_count() or 1) < 2 or shutil.which("taskset") is None:
        raise SystemExit("needs a C compiler (cc), taskset and two cores")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for program in ("loadgen_server", "loadgen_reference"):
            subprocess.run([compiler, "-O2", "-o", str(folder / program), str(HERE / f"{program}.c")], check=True)
        results = {case: measure(case, folder, words.lock) for case in words.cases}
    first = results[words.cases[0]]
    print(json.dumps({**results, **{name: first[name] for name in ("cpu_us_per_token", "start_s", "rss_mib")}}))


if __name__ == "__main__":
    main()
