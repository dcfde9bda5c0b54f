"""Hold the simulator against a real engine: the same burst, the same settings, the KV cache too small for it.

    python tools/compare_with_engines.py --engine vllm --model DIR [--repeats 3] [--scheduling-policy ...]
    python tools/compare_with_engines.py --engine sglang --model DIR [--repeats 3]

The engine must be installed (``python -m benchmarks.engine_installs vllm``); DIR is a small model in Hugging Face
format. The server runs on one core (``--core``); nothing else should run there.

Bursts of known lengths (``ignore_eos``) go to the server: equal ones, and ones of mixed lengths and priorities. Each is
simulated with the times at which the client sent its requests and an affine step table: a decode step takes the run's
median gap between tokens, what is left of the run's time is divided among the tokens of prompts. So only times on this
machine are fitted, no rule; what is compared hardly depends on them:

- the order of first and of last tokens, over the pairs of requests that neither has in one step: Kendall's tau, and how
  many requests from the first on came in the simulated order;
- the most requests between their first and last token at one instant, preemptions (SGLang: retractions), and steps.

Prints a line a run and one JSON line last.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.engines import started
from real_engines import Observed, Sent, send_burst
from servewise import catalog
from servewise.kernel import layout
from servewise.sim import simulate
from servewise.types import (
    Deployment,
    MemoryReport,
    Parallelism,
    Precision,
    Provenance,
    SglangParams,
    StepModel,
    StepTable,
    VllmParams,
    Workload,
)

CONTEXT_TOKENS = 1216
MAX_ROWS = 32
STEP_TOKENS = 512
GAP_S = 0.02
BLOCK_TOKENS = 32
VLLM_BLOCKS = 40
"""One of them is vLLM's null block."""
SGLANG_TOKENS = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is compared of a burst."""

    max_at_once: int
    preemptions: int
    steps: int | None
    late_first_tokens: int
    """Requests whose first token came after another's last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How far a real order follows a simulated one: Kendall's tau, and requests in order from the first on."""

    tau: float
    prefix: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One burst of a run."""

    burst: str
    num_requests: int
    real: Seen
    simulated: Seen
    first_tokens: Order
    last_tokens: Order


def equal_burst(_rng: random.Random) -> list[Sent]:
    """Eight requests of 120 and 200 tokens."""
    return [Sent(input_tokens=120, output_tokens=200)] * 8


def mixed_burst(rng: random.Random) -> list[Sent]:
    """Sixteen requests of other lengths and of three priorities (which only a policy of priorities looks at).

    One before them has a head start and fills vLLM's cache until all have come: when exactly does not matter then.
    """
    others = [
        Sent(input_tokens=rng.randint(100, 300), output_tokens=rng.randint(40, 240), priority=rng.choice([0, 1, 2]))
        for _ in range(16)
    ]
    return [Sent(input_tokens=1130, output_tokens=80), *others]


BURSTS = {"equal": equal_burst, "mixed": mixed_burst}


def decode_step_s(observed: Observed) -> float:
    """The median gap between a request's tokens [s]."""
    return float(np.median(np.concatenate([np.diff(answer.chunk_s) for answer in observed.answers])))


def step_table(burst: str, requests: Sequence[Sent], observed: Observed, num_steps: float) -> StepTable:
    """Decode steps of the run's median gap; prompts take what is left of its time, or of a head start."""
    answers = observed.answers
    decode_s = decode_step_s(observed)
    if burst == "mixed":
        num_tokens = requests[0].input_tokens
        left_s = answers[0].first_s - answers[0].sent_s - decode_s * -(-num_tokens // STEP_TOKENS)
    else:
        num_tokens = sum(request.input_tokens for request in requests)
        left_s = max(a.last_s for a in answers) - min(a.sent_s for a in answers) - decode_s * num_steps
    return StepTable(
        context_knots=np.array([0.0]),
        attention_base_s=np.zeros((MAX_ROWS + 1, 1)),
        attention_slope_s=np.zeros((MAX_ROWS + 1, 1)),
        decode_fixed_s=np.full(MAX_ROWS + 1, decode_s),
        mixed_tokens_s=np.full(STEP_TOKENS + 1, decode_s),
        sample_s=np.zeros(MAX_ROWS + 1),
        prefill_fixed_s=0.0,
        prefill_s_per_token=max(0.0, left_s / num_tokens),
        prefill_s_per_pair=0.0,
        request_fixed_s=0.0,
        request_s_per_input_token=0.0,
    )


def deployment_of(engine: str, options: argparse.Namespace) -> Deployment:
    """What the server is told, in the simulator's words; model and GPU are not looked at."""
    params: VllmParams | SglangParams
    if engine == "vllm":
        params = VllmParams(
            max_num_seqs=MAX_ROWS,
            max_num_batched_tokens=STEP_TOKENS,
            max_model_len=CONTEXT_TOKENS,
            gpu_memory_utilization=0.9,
            block_size_tokens=BLOCK_TOKENS,
            enable_prefix_caching=True,
            enable_chunked_prefill=True,
            async_scheduling=False,  # vLLM switches it off on CPUs
            scheduler_reserve_full_isl=True,
            scheduling_policy=options.scheduling_policy,
            watermark=options.watermark,
            long_prefill_token_threshold=options.long_prefill_token_threshold,
        )
    else:
        params = SglangParams(
            max_running_requests=MAX_ROWS,
            chunked_prefill_size=STEP_TOKENS,
            max_prefill_tokens=STEP_TOKENS,
            context_length=CONTEXT_TOKENS,
            mem_fraction_static=0.9,
            page_size=1,
            cuda_graph_max_bs=MAX_ROWS,
            ignore_eos=not options.stop_at_eos,
        )
    return Deployment(
        model=catalog.get_model("meta-llama/Llama-3.1-8B-Instruct"),
        gpu=catalog.get_gpu("H100-SXM-80GB"),
        engine="vllm" if engine == "vllm" else "sglang",
        engine_version="0.33.0" if engine == "vllm" else "0.5.23",
        precision=Precision(),
        parallelism=Parallelism(),
        params=params,
    )


def memory_of(engine: str) -> MemoryReport:
    """The KV cache that the server is forced to."""
    return MemoryReport(
        mem_bytes=1 << 34,
        budget_bytes=1 << 33,
        weights_bytes=1 << 25,
        activation_bytes=0,
        non_torch_bytes=0,
        graph_bytes=0,
        kv_bytes=1 << 30,
        kv_bytes_per_token=1.0,
        block_size_tokens=BLOCK_TOKENS if engine == "vllm" else 1,
        num_kv_blocks=VLLM_BLOCKS - 1 if engine == "vllm" else SGLANG_TOKENS,
        fits=True,
        reason="",
        provenance={},
    )


def workload_of(requests: Sequence[Sent], observed: Observed) -> Workload:
    """The burst, arriving when the client sent it."""
    sent_s = np.array([answer.sent_s for answer in observed.answers])
    outputs = np.array([request.output_tokens for request in requests])
    return Workload(
        name="burst",
        arrival_s=np.maximum.accumulate(sent_s - sent_s[0]),
        input_tokens=np.array([request.input_tokens for request in requests]),
        output_tokens=outputs,
        max_tokens=outputs,
        max_tokens_kind="declared",
        prefix=None,
        session=None,
        provenance=Provenance(kind="measured", source="this run"),
        priority=np.array([request.priority for request in requests]),
    )


def server_options(options: argparse.Namespace) -> list[str]:
    """What the server is told, in its own words."""
    if options.engine == "sglang":
        found = ["--max-total-tokens", str(SGLANG_TOKENS), "--context-length", str(CONTEXT_TOKENS)]
        found += ["--max-running-requests", str(MAX_ROWS), "--chunked-prefill-size", str(STEP_TOKENS)]
        return [*found, "--max-prefill-tokens", str(STEP_TOKENS)]
    found = ["--max-model-len", str(CONTEXT_TOKENS), "--max-num-seqs", str(MAX_ROWS)]
    found += ["--max-num-batched-tokens", str(STEP_TOKENS), "--block-size", str(BLOCK_TOKENS)]
    found += ["--num-gpu-blocks-override", str(VLLM_BLOCKS), "--scheduling-policy", options.scheduling_policy]
    found += ["--watermark", str(options.watermark)]
    return [*found, "--long-prefill-token-threshold", str(options.long_prefill_token_threshold)]


def seen(first_s: NDArray[np.float64], last_s: NDArray[np.float64], preemptions: float, steps: float | None) -> Seen:
    """Reduce the times of a burst."""
    at_once = [int(np.sum((first_s <= now) & (last_s > now))) for now in first_s]
    return Seen(
        max_at_once=max(at_once),
        preemptions=int(preemptions),
        steps=None if steps is None else int(steps),
        late_first_tokens=int(np.sum(first_s > last_s.min())),
    )


def step_of(real_s: NDArray[np.float64], decode_s: float) -> NDArray[np.int64]:
    """Number the steps of real times: what came within half a step of each other came of one."""
    order = np.argsort(real_s)
    numbers = np.zeros(len(real_s), np.int64)
    numbers[order[1:]] = np.cumsum(np.diff(real_s[order]) > 0.5 * decode_s)
    return numbers


def follows(simulated_s: NDArray[np.float64], real_s: NDArray[np.float64], decode_s: float) -> Order:
    """How far the real order follows the simulated one.

    Requests that the simulation ties may come in any order, and so may those of one real step: the scheduler decides
    the step, the front end in which order its tokens leave.
    """
    steps = step_of(real_s, decode_s)
    pairs = [
        (i, j)
        for i, j in combinations(range(len(real_s)), 2)
        if abs(simulated_s[i] - simulated_s[j]) > 1e-9 and steps[i] != steps[j]
    ]
    signs = [np.sign((simulated_s[i] - simulated_s[j]) * (steps[i] - steps[j])) for i, j in pairs]
    in_order = simulated_s[np.lexsort((simulated_s, steps))] <= np.sort(simulated_s) + 1e-9
    prefix = len(in_order) if in_order.all() else int(np.argmin(in_order))
    return Order(tau=float(np.mean(signs)) if signs else 1.0, prefix=prefix)


def compare(options: argparse.Namespace, burst: str, requests: list[Sent], observed: Observed) -> Compared:
    """Simulate a burst that was served, and compare."""
    engine, counters = options.engine, observed.counters
    lengths = [answer.output_tokens for answer in observed.answers]
    if lengths != [request.output_tokens for request in requests]:
        raise RuntimeError(f"answers of {lengths} tokens are not what was asked for")
    steps = counters.get("vllm:iteration_tokens_total_count")
    num_steps = steps if steps is not None else len({t for a in observed.answers for t in np.round(a.chunk_s, 3)})
    table = step_table(burst, requests, observed, num_steps)
    outcome = simulate(
        workload_of(requests, observed),
        deployment_of(engine, options),
        StepModel(table=table, provenance={}, max_context_tokens=CONTEXT_TOKENS),
        memory_of(engine),
    )
    names = {"vllm": "vllm:num_preemptions_total", "sglang": "sglang:num_retracted_requests_total"}
    first_s = np.array([answer.first_s for answer in observed.answers])
    last_s = np.array([answer.last_s for answer in observed.answers])
    decode_s = decode_step_s(observed)
    simulated_steps = float(outcome.counters[:, layout.NUM_STEPS].sum())
    return Compared(
        burst=burst,
        num_requests=len(requests),
        real=seen(first_s, last_s, counters.get(names[engine], 0.0), steps),
        simulated=seen(outcome.outputs.first, outcome.outputs.last, outcome.num_preemptions, simulated_steps),
        first_tokens=follows(outcome.outputs.first, first_s, decode_s),
        last_tokens=follows(outcome.outputs.last, last_s, decode_s),
    )


def describe(one: Compared) -> str:
    """A run in one line, real / simulated."""
    real, simulated = one.real, one.simulated
    return (
        f"{one.burst}: {one.num_requests} requests; at once {real.max_at_once}/{simulated.max_at_once}, preemptions "
        f"{real.preemptions}/{simulated.preemptions}, steps {real.steps}/{simulated.steps}, first tokens after "
        f"another's last {real.late_first_tokens}/{simulated.late_first_tokens}; order of first tokens tau "
        f"{one.first_tokens.tau:.3f}, {one.first_tokens.prefix} from the first on; of last tokens tau "
        f"{one.last_tokens.tau:.3f}, {one.last_tokens.prefix} from the first on"
    )


def compare_bursts(options: argparse.Namespace, port: int, repeat: int) -> list[Compared]:
    """Send each burst once to a server that is idle, and simulate it."""
    results = []
    warm_up = [Sent(input_tokens=STEP_TOKENS, output_tokens=8)]  # a server's first steps take longer than others
    send_burst(port, -1 - repeat, warm_up, head_start=False, ignore_eos=True, gap_s=GAP_S)
    for number, (burst, make) in enumerate(BURSTS.items()):
        requests = make(random.Random(f"{options.seed}-{repeat}"))  # noqa: S311 (not a secret)
        observed = send_burst(
            port,
            len(BURSTS) * repeat + number,
            requests,
            head_start=burst == "mixed",
            ignore_eos=not options.stop_at_eos,
            gap_s=GAP_S,
        )
        results.append(compare(options, burst, requests, observed))
    return results


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description="Hold the simulator against a real engine on this machine.")
    parser.add_argument("--engine", choices=("vllm", "sglang"), required=True)
    parser.add_argument("--model", type=Path, required=True, help="folder of a small model")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each burst (default: 3)")
    parser.add_argument("--core", type=int, default=0, help="the server's core (default: 0)")
    parser.add_argument("--seed", type=int, default=0, help="of the mixed lengths (default: 0)")
    parser.add_argument("--log", type=Path, help="of the server (default: none is kept)")
    for name, kind, usual in (("watermark", float, 0.0), ("long-prefill-token-threshold", int, 0)):
        parser.add_argument(f"--{name}", type=kind, default=usual, help=f"vLLM's (default: {usual})")
    parser.add_argument("--scheduling-policy", choices=("fcfs", "priority"), default="fcfs", help="vLLM's")
    parser.add_argument(
        "--stop-at-eos",
        action="store_true",
        help="do not ask to ignore the end of sequence, for which SGLang sets less cache aside; with random weights "
        "outputs end by length all the same",
    )
    return parser.parse_args(arguments)


def main() -> None:
    """Serve, compare, report."""
    options = parse()
    results = []
    with started(
        options.engine, model=options.model, options=server_options(options), core=options.core, log=options.log
    ) as server:
        for repeat in range(options.repeats):
            found = compare_bursts(options, server.port, repeat)
            results += found
            print("\n".join(describe(one) for one in found), flush=True)
    print(json.dumps({"engine": options.engine, "runs": [asdict(one) for one in results]}))


if __name__ == "__main__":
    main()
