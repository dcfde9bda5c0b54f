"""Compare the plain scheduler of the tests with vLLM's own, step by step.

    python tools/compare_with_vllm.py VLLM_SOURCE_DIR [--cases 200] [--seed 0] [--stages 1]

VLLM_SOURCE_DIR is a folder that holds the package ``vllm`` of release 0.33.0, not installed but unpacked:
``pip download vllm==0.33.0 --no-deps``, unzip the wheel. Needs msgspec; no GPU, no torch. The code in that folder
is run.

For every profile of ``tests/oracle/strategies.py``, and again with priorities, watermarks and capped chunks, that many
generated workloads are run twice: by
``tests/oracle/vllm_plain.py``, and by vLLM's ``Scheduler`` or ``AsyncScheduler`` behind the stand-ins of
``vllm_stand_ins.py`` in a loop written after ``step_with_batch_queue``. Both must give the same rows in the same
steps, the same times, prefix hits, preemptions and peaks, bit for bit. What the two share is the duration of a step
of given rows (``step_duration``). With ``--stages`` the plain scheduler is ``tests/oracle/pipeline_plain.py``, and what
they share is what a batch takes on each stage (``stage_times``).

Prints the first differences, the counts by kind, and one JSON line last. Exit code: 0 all equal, 1 some differ,
2 bad input.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import itertools
import json
import math
import sys
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from oracle import pipeline_plain
from oracle.pipeline_plain import stage_times
from oracle.plain_engine import Request, RequestResult, Result, Row, StepRecord, step_duration
from oracle.strategies import PROFILES, Case, option_case, seeded_case
from oracle.vllm_plain import Live, Params, simulate
from servewise.errors import InputError
from vllm_stand_ins import engine_config, install, runner_output, sampling_params

NUM_REQUESTS = 40
SHOWN_PER_KIND = 3
KINDS = tuple(a + b + c for c in ("", "+options") for a in ("sync", "async") for b in ("", "+cache"))
STOP_TOKEN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm:
    """The modules of vLLM that are driven."""

    scheduler: Any
    async_scheduler: Any
    cache_utils: Any
    cache_interface: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A request: vLLM's object, all the tokens it will turn out to have, and what was seen of it."""

    theirs: Any
    tokens: list[int]
    seen: Live


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A planned step; ``output`` is vLLM's SchedulerOutput. An empty one ends when it was planned."""

    output: Any
    rows: list[Row]
    end_s: float


def load_vllm(source: Path) -> Vllm:
    """Import vLLM's scheduler from a folder."""
    install(source)
    vllm = Vllm(
        scheduler=importlib.import_module("vllm.v1.core.sched.scheduler"),
        async_scheduler=importlib.import_module("vllm.v1.core.sched.async_scheduler"),
        cache_utils=importlib.import_module("vllm.v1.core.kv_cache_utils"),
        cache_interface=importlib.import_module("vllm.v1.kv_cache_interface"),
    )
    vllm.cache_utils.init_none_hash(block_hash)
    return vllm


def block_hash(content: object) -> bytes:
    """The hash that vLLM chains over blocks: of (hash of the block before, tokens, extra keys)."""
    return hashlib.sha256(repr(content).encode()).digest()


def make_tokens(request: Request, block_size_tokens: int) -> list[int]:
    """Prompt and output: tokens are equal where, and only where, the workload names equal blocks.

    A request that does not end by length ends by the stop token.
    """
    tokens = []
    for position in range(request.input_tokens + request.output_tokens):
        block, offset = divmod(position, block_size_tokens)
        if block < len(request.block_ids):
            tokens.append(1 + request.block_ids[block] * block_size_tokens + offset)
        else:
            tokens.append(-((request.id + 1) * 10**6 + position))
    if request.max_tokens > request.output_tokens:
        tokens[-1] = STOP_TOKEN
    return tokens


def make_scheduler(vllm: Vllm, params: Params, num_stages: int) -> Any:
    """vLLM's scheduler of a model with one layer of full attention."""
    spec = vllm.cache_interface.FullAttentionSpec(
        block_size=params.block_size_tokens, num_kv_heads=1, head_size=1, dtype=None
    )
    blocks = vllm.cache_interface.KVCacheConfig(
        num_blocks=params.num_kv_blocks + 1,  # and the null block
        kv_cache_tensors=[],
        kv_cache_groups=[vllm.cache_interface.KVCacheGroupSpec(["layer"], spec)],
    )
    grammars = SimpleNamespace(accept_tokens=lambda _request, _tokens: True)
    module = vllm.async_scheduler if params.async_scheduling else vllm.scheduler
    cls = module.AsyncScheduler if params.async_scheduling else module.Scheduler
    return cls(engine_config(params, num_stages), blocks, grammars, block_size=params.block_size_tokens)


class VllmEngine:
    """One replica with vLLM's scheduler; its model runner is the case's step table, on stages of so many layers."""

    def __init__(self, vllm: Vllm, case: Case, layers: Sequence[int]) -> None:
        self.vllm = vllm
        self.params = case.params
        self.times = case.times
        self.layers = layers
        self.scheduler = make_scheduler(vllm, case.params, len(layers))
        self.hasher = None
        if case.params.enable_prefix_caching:
            self.hasher = vllm.cache_utils.get_request_block_hasher(case.params.block_size_tokens, block_hash)
        self.pending = deque(case.requests)
        self.served: dict[str, Served] = {}
        self.steps: list[StepRecord] = []
        self.free_s = [0.0] * len(layers)  # of each stage
        self.sampled_s: dict[int, float] = {}  # when the tokens of vLLM's step were sampled
        self.peak_running = 0
        self.peak_blocks = 0

    def run(self) -> Result:
        """Serve everything: fill the queue of batches, else wait for the first in it."""
        depth = len(self.layers) + self.params.async_scheduling
        batches: deque[Batch] = deque()
        now_s = 0.0
        while self.pending or batches or self.scheduler.has_requests():
            if not batches and not self.scheduler.has_requests():
                now_s = max(now_s, self.pending[0].arrival_s)
            self._admit(now_s)
            if self.scheduler.has_requests():
                batch = self._plan(now_s)
                batches.append(batch)
                if len(batches) < depth and (batch.rows or self.scheduler.has_requests()):
                    continue
            batch = batches.popleft()
            now_s = max(now_s, batch.end_s)
            self._process(batch)
        return self._result()

    def _admit(self, now_s: float) -> None:
        while self.pending and self.pending[0].arrival_s <= now_s:
            request = self.pending.popleft()
            tokens = make_tokens(request, self.params.block_size_tokens)
            theirs = self.vllm.scheduler.Request(
                str(request.id),
                tokens[: request.input_tokens],
                sampling_params(request.max_tokens, STOP_TOKEN),
                None,
                arrival_time=float(request.id),  # in their order, without ties
                priority=request.priority,
                block_hasher=self.hasher,
            )
            self.served[theirs.request_id] = Served(theirs=theirs, tokens=tokens, seen=Live(request))
            self.scheduler.add_request(theirs)

    def _plan(self, now_s: float) -> Batch:
        """Let vLLM plan a step, whose batch follows the one before it through the stages."""
        was_running = {theirs.request_id for theirs in self.scheduler.running}
        output = self.scheduler.schedule()
        self.peak_running = max(self.peak_running, len(self.scheduler.running))
        num_free = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        self.peak_blocks = max(self.peak_blocks, self.params.num_kv_blocks - num_free)
        rows = []
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            theirs, seen = self.served[request_id].theirs, self.served[request_id].seen
            start = theirs.num_computed_tokens - num_tokens
            if request_id not in was_running:  # admitted now
                seen.prefill_target = theirs.num_tokens
                if seen.cached_tokens < 0:
                    seen.cached_tokens = start
            is_prefill = start < seen.prefill_target
            samples = not theirs.is_prefill_chunk
            rows.append(Row(live=seen, tokens=num_tokens, start=start, is_prefill=is_prefill, samples=samples))
        if not rows:
            return Batch(output=output, rows=rows, end_s=now_s)
        self._record(now_s, rows)
        return Batch(output=output, rows=rows, end_s=self.free_s[-1])

    def _record(self, now_s: float, rows: list[Row]) -> None:
        number = self.scheduler.current_step
        start_s = max(now_s, self.free_s[0], self.sampled_s.get(number - len(self.layers), 0.0))
        end_s = start_s
        one = len(self.layers) == 1
        spent = [step_duration(self.times, rows)] if one else stage_times(self.times, rows, self.layers)
        for stage, spent_s in enumerate(spent):
            end_s = max(end_s, self.free_s[stage]) + spent_s
            self.free_s[stage] = end_s
        if any(self._needed_later(row) for row in rows):
            self.sampled_s[number] = end_s
        row_ids = tuple((row.live.request.id, row.tokens) for row in rows)
        self.steps.append(StepRecord(start_s=start_s, duration_s=spent[0] if one else end_s - start_s, rows=row_ids))
        for row in rows:
            if math.isnan(row.live.scheduled_s):
                row.live.scheduled_s = start_s

    def _needed_later(self, row: Row) -> bool:
        """Whether vLLM's first stage waits for the row's token before the group's next step (``PPHandler``)."""
        request = row.live.request
        theirs = self.served[str(request.id)].theirs
        tokens = theirs.num_output_tokens + theirs.num_output_placeholders
        ends_with_prompt = row.is_prefill and tokens >= request.max_tokens
        return row.samples and tokens <= request.output_tokens and not ends_with_prompt

    def _process(self, batch: Batch) -> None:
        """Hand vLLM the sampled tokens and see which of them it took."""
        request_ids = list(batch.output.num_scheduled_tokens)
        served = [self.served[request_id] for request_id in request_ids]
        sampled: list[list[int]] = []
        for one, row in zip(served, batch.rows, strict=True):
            # The row of a request that has ended meanwhile samples something that nobody reads.
            known = one.theirs.num_tokens
            token = one.tokens[known] if known < len(one.tokens) else STOP_TOKEN
            sampled.append([token] if row.samples else [])
        self.scheduler.update_from_output(batch.output, runner_output(request_ids, sampled))
        for one in served:
            generated = one.theirs.num_output_tokens
            if generated > one.seen.generated:
                one.seen.generated = generated
                if generated == 1:
                    one.seen.first_token_s = batch.end_s
                if one.theirs.is_finished():
                    one.seen.last_token_s = batch.end_s

    def _result(self) -> Result:
        requests = tuple(
            RequestResult(
                id=one.seen.request.id,
                scheduled_s=one.seen.scheduled_s,
                first_token_s=one.seen.first_token_s,
                last_token_s=one.seen.last_token_s,
                cached_tokens=one.seen.cached_tokens,
                num_preemptions=one.theirs.num_preemptions,
            )
            for one in self.served.values()
        )
        return Result(
            requests=requests,
            steps=tuple(self.steps),
            num_preemptions=sum(request.num_preemptions for request in requests),
            peak_running=self.peak_running,
            peak_blocks=self.peak_blocks,
        )


def first_difference(plain: Result, theirs: Result) -> str | None:
    """The first step, else request, else total in which two runs differ; None if they are equal."""
    for what, ours, others in (("step", plain.steps, theirs.steps), ("request", plain.requests, theirs.requests)):
        for index, (a, b) in enumerate(zip(ours, others, strict=False)):
            if a != b:
                return f"{what} {index}: plain {a}, vLLM {b}"
        if len(ours) != len(others):
            return f"number of {what}s: plain {len(ours)}, vLLM {len(others)}"
    for name in (field.name for field in fields(Result)):
        a, b = getattr(plain, name), getattr(theirs, name)
        if a != b:
            return f"{name}: plain {a}, vLLM {b}"
    return None


def kind_of(params: Params) -> str:
    """One of :data:`KINDS`; ``options`` are priorities, a watermark or a cap on chunks of prompts."""
    kind = ("async" if params.async_scheduling else "sync") + ("+cache" if params.enable_prefix_caching else "")
    plain = (params.scheduling_policy, params.watermark, params.long_prefill_token_threshold) == ("fcfs", 0.0, 0)
    return kind if plain else kind + "+options"


def compare(vllm: Vllm, num_cases: int, first_seed: int, num_stages: int) -> tuple[Counter[str], Counter[str]]:
    """Equal and different cases by kind, over all profiles, with and without options; prints the first differences."""
    equal: Counter[str] = Counter()
    different: Counter[str] = Counter()
    kinds = (seeded_case, option_case) if num_stages == 1 else (seeded_case,)  # options are for one stage only
    for make_case, profile in itertools.product(kinds, PROFILES):
        for seed in range(first_seed, first_seed + num_cases):
            case = make_case(seed, profile, NUM_REQUESTS)
            kind = kind_of(case.params)
            layers = [1 + (seed + stage) % 2 for stage in range(num_stages)]
            if num_stages == 1:
                plain = simulate(case.requests, case.params, case.times)
            else:
                plain = pipeline_plain.simulate(case.requests, case.params, case.times, layers)
            difference = first_difference(plain, VllmEngine(vllm, case, layers).run())
            if difference is None:
                equal[kind] += 1
                continue
            different[kind] += 1
            if different[kind] <= SHOWN_PER_KIND:
                print(f"{kind}: {make_case.__name__}({seed}, {profile!r}, {NUM_REQUESTS}): {difference}")
    return equal, different


def main() -> int:
    """Run the comparison; returns the exit code."""
    parser = argparse.ArgumentParser(description="Compare the plain scheduler of the tests with vLLM's own.")
    parser.add_argument("source", metavar="VLLM_SOURCE_DIR", type=Path, help="holds the unpacked package `vllm`")
    parser.add_argument(
        "--cases",
        type=int,
        default=200,
        help="workloads of each profile, twice: with settings that are off by default, too (default: 200)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the first of them (default: 0)")
    parser.add_argument("--stages", type=int, default=1, help="pipeline stages (default: 1)")
    arguments = parser.parse_args()
    if arguments.cases < 1 or arguments.stages < 1:
        parser.error(f"--cases is {arguments.cases}, --stages {arguments.stages}; at least 1 is needed of each")
    try:
        vllm = load_vllm(arguments.source)
    except InputError as error:
        parser.error(str(error))
    equal, different = compare(vllm, arguments.cases, arguments.seed, arguments.stages)
    by_kind = {kind: {"equal": equal[kind], "different": different[kind]} for kind in KINDS}
    for kind, counts in by_kind.items():
        print(f"{kind}: {counts['equal']} equal, {counts['different']} different")
    print(json.dumps({"equal": equal.total(), "different": different.total(), "by_kind": by_kind}))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
