"""Compare the simulated llama.cpp with a real server, pass by pass.

    python tools/compare_with_llamacpp.py MODEL.gguf [--seed 0]

llama.cpp must be installed (``python -m benchmarks.engine_installs llamacpp``, 34 MB; no GPU); MODEL is any small
model, whose weights do not matter; where there is a prompt cache, one that keeps TOKEN_BYTES of a token. For each
scenario a server is started, its slots are filled one by one, and a burst of requests follows while they generate, so
that all of these wait; or requests come one by one, each when the one before it was answered. So nothing depends on how
fast the machine is: the requests are given to the simulator in the same order, and its passes (which slots, how many
tokens of each), the slots of the requests, the tokens that were there already, and the orders of first and last tokens
must be those of the server. Passes are read in the server's log. Where a shared cache is too small, the real server
tries smaller batches before it gives up; its passes are then more than the simulated ones.

Prints what is equal by scenario, and one JSON line last. Exit code: 0 all equal, 1 some differ, 2 bad input.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from benchmarks.engines import started
from oracle.llamacpp_cases import SlotCase
from oracle.llamacpp_plain import Engine, Live, Params
from oracle.plain_engine import Request
from oracle.strategies import unit_table
from servewise.units import MIB
from sim.llamacpp_agree import run_open

BLOCK = 16
"""Tokens of a block that prompts share."""
TOKEN_BYTES = 2 * 4 * 2 * 64 * 2 + 12
"""Of the tests' tiny model (keys and values, layers, heads, their size, f16), in the server's prompt cache."""
COPY_S = 1 / 64
"""Simulated time of a token on its way to the host; any would do."""
FAR_APART_S = 10_000.0
SERVER_CORE = 0
Passes = list[list[tuple[int, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A server and what is sent to it; with ``shared`` prompts begin with some of a few common blocks.

    ``num_requests`` in a burst while the slots generate (``head_start_tokens`` at least), or ``apart``.
    """

    name: str
    params: Params
    ctx_size: int
    shared: bool = False
    prompt_tokens: tuple[int, int] = (5, 400)
    output_tokens: tuple[int, int] = (1, 40)
    num_requests: int = 12
    head_start_tokens: int = 150
    apart: bool = False
    cache_ram_mib: int = 0

    def settings(self) -> dict[str, Any]:
        """Fields of the real server's parameters."""
        return {
            "n_parallel": self.params.num_slots,
            "n_ctx": self.ctx_size,
            "n_batch": self.params.n_batch,
            "n_ubatch": self.params.n_ubatch,
            "kv_unified": self.params.is_unified and self.params.num_slots > 1,
            "ctx_shift": self.params.context_shift,
            "cache_ram_mib": self.cache_ram_mib,
            "n_threads_http": 64,  # with fewer than there are requests, some do not reach the queue
        }


def scenarios() -> list[Scenario]:
    """Every rule once."""
    four = Params(
        num_slots=4, cells=8192, context=8192, n_batch=128, n_ubatch=64, is_unified=True, block_size_tokens=BLOCK
    )
    split = replace(four, cells=2048, context=2048, is_unified=False)
    full = replace(four, cells=1024, context=1024)
    one = replace(four, num_slots=1, cells=512, context=512, n_batch=64)
    scenarios = [
        Scenario(name="four slots, unified", params=four, ctx_size=8192),
        Scenario(name="four slots, split", params=split, ctx_size=8192),
        Scenario(name="four slots, unified, shared prefixes", params=four, ctx_size=8192, shared=True),
        Scenario(name="four slots, split, shared prefixes", params=split, ctx_size=8192, shared=True),
        Scenario(
            name="eight slots, split", params=replace(split, num_slots=8, cells=1024, context=1024), ctx_size=8192
        ),
        Scenario(
            name="four slots, unified, too few cells",
            params=full,
            ctx_size=1024,
            prompt_tokens=(250, 350),
            output_tokens=(20, 60),
        ),
        Scenario(
            name="one slot, context shift",
            params=replace(one, context_shift=True, n_keep=0),
            ctx_size=512,
            output_tokens=(150, 450),
        ),
    ]
    for mib in (1, 16):
        cached = {"shared": True, "num_requests": 24, "cache_ram_mib": mib, "ctx_size": 8192}
        for name, params in (("unified", four), ("split", split)):
            params = replace(params, host_tokens=mib * MIB // TOKEN_BYTES, copy_s=COPY_S)
            name = f"four slots, {name}, prompt cache of {mib} MiB"
            scenarios.append(Scenario(name=name, params=params, head_start_tokens=400, **cached))
            scenarios.append(Scenario(name=f"{name}, one by one", params=params, apart=True, **cached))
    return scenarios


@dataclass(slots=True)
class Sent:
    """A request to the real server, and its answer."""

    request: Request
    tokens: list[int]
    answer: dict[str, Any] = field(default_factory=dict)
    ended_s: float = math.nan

    @property
    def failed(self) -> bool:
        """Whether the server gave it up."""
        return "timings" not in self.answer

    @property
    def first_s(self) -> float:
        """When its first token was sampled [s]."""
        return math.nan if self.failed else self.ended_s - 1e-3 * float(self.answer["timings"]["predicted_ms"])


def make_requests(scenario: Scenario, rng: random.Random) -> list[Request]:
    """As many requests as slots, of few tokens and long outputs, and then the burst; or those that come apart."""
    params = scenario.params
    outputs = [scenario.head_start_tokens + 20 * i for i in range(0 if scenario.apart else params.num_slots)]
    found = [
        Request(id=i, arrival_s=0.0, input_tokens=8, output_tokens=tokens, max_tokens=tokens)
        for i, tokens in enumerate(outputs)
    ]
    if params.context == params.cells == 1024 and params.is_unified:
        found = [replace(r, output_tokens=100 + 9 * r.id, max_tokens=100 + 9 * r.id) for r in found]
    for number in range(len(found), len(found) + scenario.num_requests):
        inputs, tokens = rng.randint(*scenario.prompt_tokens), rng.randint(*scenario.output_tokens)
        ids: tuple[int, ...] = ()
        if scenario.shared:
            tree = rng.randrange(3)
            ids = tuple(100 * tree + block for block in range(min(rng.randint(1, 12), inputs // BLOCK)))
        found.append(
            Request(
                id=number,
                arrival_s=number * FAR_APART_S if scenario.apart else 0.0,
                input_tokens=inputs,
                output_tokens=tokens,
                max_tokens=tokens,
                block_ids=ids,
            )
        )
    return found


def tokens_of(request: Request, rng: random.Random) -> list[int]:
    """A prompt with the request's blocks, the rest its own."""
    tokens: list[int] = []
    for block in request.block_ids:
        shared = random.Random(f"block-{block}")  # noqa: S311 (not a secret)
        tokens += [shared.randint(1000, 40000) for _ in range(BLOCK)]
    return tokens + [rng.randint(1000, 40000) for _ in range(request.input_tokens - len(tokens))]


def post(port: int, sent: Sent) -> None:
    """Send one request and wait for its answer."""
    body = {
        "prompt": sent.tokens,
        "n_predict": sent.request.output_tokens,
        "ignore_eos": True,
        "temperature": 0.0,
        "cache_prompt": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    sent.answer = json.loads(connection.getresponse().read())
    sent.ended_s = time.monotonic()
    connection.close()


def read_passes(log: str) -> tuple[Passes, list[int]]:
    """Passes in a server's log, and the number of passes before each step."""
    passes: Passes = []
    steps: list[int] = []
    in_pass = False
    announced = False
    for line in log.splitlines():
        if "added ubatch to split" in line:
            announced = True
        elif "equal_seqs" in line:
            in_pass, announced = announced, False
            if in_pass:
                passes.append([])
            else:
                steps.append(len(passes))
        elif in_pass and (found := re.search(r"seq_id = \[\.*(\d)\.*\], output", line)):
            slot = int(found[1])
            if passes[-1] and passes[-1][-1][0] == slot:
                passes[-1][-1] = (slot, passes[-1][-1][1] + 1)
            else:
                passes[-1].append((slot, 1))
    return passes, steps


def run_real(scenario: Scenario, sent: Sequence[Sent], model: Path) -> str:
    """Serve the requests; returns the log from the first of them on."""
    options = [f"{name}={json.dumps(value)}" for name, value in scenario.settings().items()]
    settings = {"LLAMA_BATCH_DEBUG": "1"}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with started(
            "llamacpp", model=model, options=[*options, "verbosity=10"], settings=settings, core=SERVER_CORE, log=log
        ) as server:
            time.sleep(0.5)
            start = log.stat().st_size
            threads = [threading.Thread(target=post, args=(server.port, one)) for one in sent]
            for number, thread in enumerate(threads):
                thread.start()
                if scenario.apart:
                    thread.join()
                time.sleep(0.03 if number < scenario.params.num_slots else 0.012)
            for thread in threads:
                thread.join()
        return log.read_bytes()[start:].decode(errors="replace")


def joins(scenario: Scenario, passes: Passes, steps: Sequence[int]) -> list[int]:
    """The step with which each request that fills a slot began; the last slot is filled first."""
    found = []
    for slot in reversed(range(scenario.params.num_slots)):
        at = next(i for i, parts in enumerate(passes) if any(part[0] == slot for part in parts))
        found.append(sum(start <= at for start in steps) - 1)
    return found


def run_plain(scenario: Scenario, requests: Sequence[Request], joined: Sequence[int]) -> tuple[Engine, list[Live]]:
    """The plain server; request ``i`` of those that fill the slots comes before step ``joined[i]``, the rest after."""
    engine = Engine(scenario.params, unit_table(16, 512))
    if scenario.apart:
        engine.serve(requests)
        return engine, engine.lives
    lives = [engine.submit(requests[0])]
    for request, step in zip(requests[1 : len(joined)], joined[1:], strict=True):
        while len(engine.steps) < step or engine.step:
            engine.advance(math.inf)
        lives.append(engine.submit(replace(request, arrival_s=engine.begin_s)))
    engine.advance(math.inf)
    burst_s = engine.step_end_s - 0.5
    lives += [engine.submit(replace(request, arrival_s=burst_s)) for request in requests[len(joined) :]]
    engine.run_until(math.inf)
    return engine, lives


def order(times: Sequence[float]) -> list[int]:
    """Places by time, those without one last."""
    return sorted(range(len(times)), key=lambda i: (math.isnan(times[i]), times[i]))


def agreement(real: Sequence[float], simulated: Sequence[float]) -> float:
    """Share of pairs of requests in the same order; equal simulated times are no pair."""
    pairs = [
        (real[i] < real[j]) == (simulated[i] < simulated[j])
        for i in range(len(real))
        for j in range(i)
        if simulated[i] != simulated[j] and not math.isnan(real[i] + real[j] + simulated[i] + simulated[j])
    ]
    return float(sum(pairs) / len(pairs)) if pairs else 1.0


def compare(scenario: Scenario, model: Path, seed: int = 0, *, differences: bool = False) -> dict[str, Any]:
    """Run one scenario in both and say how closely they agree."""
    rng = random.Random(f"{scenario.name}-{seed}")  # noqa: S311
    requests = make_requests(scenario, rng)
    sent = [Sent(request, tokens_of(request, rng)) for request in requests]
    log = run_real(scenario, sent, model)
    passes, steps = read_passes(log)
    joined = [] if scenario.apart else joins(scenario, passes, steps)
    engine, lives = run_plain(scenario, requests, joined)
    kernel = run_open(
        SlotCase(requests=tuple(live.request for live in lives), params=scenario.params, times=unit_table(16, 512))
    )
    running = [len({part[0] for parts in chunk for part in parts}) for chunk in by_step(passes, steps)]
    simulated = [len(step.rows) for step in engine.steps]
    same = sum(a == b for a, b in zip(running, simulated, strict=False))
    first, last = kernel.outputs.first, kernel.outputs.last
    failed = [one.failed for one in sent]
    found = {
        "requests": len(sent),
        "failed": sum(failed),
        "cached_tokens": sum(0 if one.failed else one.answer["timings"]["cache_n"] for one in sent),
        "failed_equal": failed == [bool(r) for r in kernel.outputs.rejected],
        "passes": [len(passes), len(engine.passes)],
        "passes_equal": passes == engine.passes,
        "steps": [len(steps), len(engine.steps)],
        "running_equal_frac": round(same / max(len(running), len(simulated)), 4),
        "cached_equal": all(
            one.failed or one.answer["timings"]["cache_n"] == cached
            for one, cached in zip(sent, kernel.outputs.cached, strict=True)
        ),
        "first_order": round(agreement([one.first_s for one in sent], list(first)), 4),
        "last_order": round(agreement([one.ended_s for one in sent], list(np.where(failed, np.nan, last))), 4),
    }
    if differences and passes != engine.passes:
        at = next((i for i, (a, b) in enumerate(zip(passes, engine.passes, strict=False)) if a != b), -1)
        print(f"  first difference at pass {at}: {passes[at : at + 4]} and {engine.passes[at : at + 4]}")
    return found


def by_step(passes: Passes, steps: Sequence[int]) -> list[Passes]:
    """Passes of each step."""
    ends = [*steps[1:], len(passes)]
    return [passes[start:end] for start, end in zip(steps, ends, strict=True)]


def main() -> int:
    """Compare all scenarios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--differences", action="store_true", help="print the first pass that differs")
    parser.add_argument("--only", default="", help="part of a scenario's name")
    options = parser.parse_args()
    if not options.model.is_file():
        print(f"{options.model} is not a file", file=sys.stderr)
        return 2
    found = {}
    for scenario in scenarios():
        if options.only in scenario.name:
            found[scenario.name] = compare(scenario, options.model, options.seed, differences=options.differences)
            print(f"{scenario.name}: {found[scenario.name]}", flush=True)
    print(json.dumps(found))
    equal = all(
        one["failed_equal"] and one["cached_equal"] and (one["passes_equal"] or one["failed"]) for one in found.values()
    )
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
