"""Compare the plain scheduler with speculative decoding of the tests with vLLM's own, step by step.

    python tools/compare_speculation_with_vllm.py VLLM_SOURCE_DIR [--cases 200] [--seed 0]

VLLM_SOURCE_DIR and what is needed are as for ``compare_with_vllm.py``. Generated workloads are run by
``tests/oracle/speculative_plain.py``, and by vLLM's ``Scheduler`` or ``AsyncScheduler``, whose model runner accepts as
the schedule of ``docs/speculative-decoding.md`` says. Both must give the same rows in the same steps, the same times,
preemptions and peaks, bit for bit. What the two share is that schedule and the duration of a step of given rows.

Left out are the choices that the page names: ``max_model_len`` does not bind, and no prompt has one token. Exit code: 0
all equal, 1 some differ, 2 bad input.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from compare_with_vllm import STOP_TOKEN, Vllm, first_difference, load_vllm, make_tokens
from oracle.plain_engine import RequestResult, Result, Row, StepRecord
from oracle.speculative_plain import Drafter, Engine, Live
from oracle.strategies import PROFILES, Case
from servewise.errors import InputError
from sim.speculative_agree import drafter_of, seeded_speculative
from vllm_stand_ins import UNLIMITED_TOKENS, engine_config, runner_output, sampling_params

NUM_REQUESTS = 40
SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A planned step; ``rows`` are (request, tokens, whether it computes a prompt, whether it samples)."""

    output: Any
    rows: list[Row]
    planned_s: float


class VllmEngine(Engine):
    """One replica with vLLM's scheduler; of the plain engine it has the duration of a step and the levels."""

    def __init__(self, vllm: Vllm, case: Case, drafter: Drafter) -> None:
        super().__init__(case.params, case.times, drafter)
        self.vllm = vllm
        self.scheduler = make_scheduler(vllm, case, drafter)
        self.pending = deque(case.requests)
        self.theirs: dict[str, tuple[Any, list[int], Live]] = {}

    def run(self) -> Result:
        """Serve everything: fill the queue of batches, else wait for the first in it."""
        depth = 1 + self.params.async_scheduling
        batches: deque[Batch] = deque()
        now_s = 0.0
        while self.pending or batches or self.scheduler.has_requests():
            if not batches and not self.scheduler.has_requests():
                now_s = max(now_s, self.pending[0].arrival_s)
            self._admit(now_s)
            if self.scheduler.has_requests():
                batches.append(self._plan_theirs(now_s))
                if len(batches) < depth and (batches[-1].rows or self.scheduler.has_requests()):
                    continue
            now_s = self._run(batches.popleft(), now_s)
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
                arrival_time=float(request.id),
            )
            self.theirs[theirs.request_id] = theirs, tokens, Live(request)
            self.scheduler.add_request(theirs)

    def _plan_theirs(self, now_s: float) -> Batch:
        was_running = {theirs.request_id for theirs in self.scheduler.running}
        output = self.scheduler.schedule()
        self.peak_running = max(self.peak_running, len(self.scheduler.running))
        num_free = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        self.peak_blocks = max(self.peak_blocks, self.params.num_kv_blocks - num_free)
        rows = []
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            theirs, _, live = self.theirs[request_id]
            start = theirs.num_computed_tokens - num_tokens
            if request_id not in was_running:
                live.prefill_target = theirs.num_tokens
            rows.append(
                Row(
                    live=live,
                    tokens=num_tokens,
                    start=start,
                    is_prefill=start < live.prefill_target,
                    samples=not theirs.is_prefill_chunk,
                )
            )
        return Batch(output=output, rows=rows, planned_s=now_s)

    def _run(self, batch: Batch, now_s: float) -> float:
        """Let a batch run from ``now_s`` on and hand vLLM its tokens; returns when it ends."""
        rows = batch.rows
        if not rows:
            self.scheduler.update_from_output(batch.output, runner_output([], []))
            return now_s
        duration_s = self._duration_s(rows)
        end_s = now_s + duration_s
        row_ids = tuple((row.live.request.id, row.tokens) for row in rows)
        self.steps.append(StepRecord(start_s=now_s, duration_s=duration_s, rows=row_ids))
        number = len(self.steps)
        came = self._level(number) - self._level(number - 1)
        request_ids = list(batch.output.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for request_id, row in zip(request_ids, rows, strict=True):
            if math.isnan(row.live.scheduled_s):
                row.live.scheduled_s = now_s
            theirs, tokens, _ = self.theirs[request_id]
            known, count = theirs.num_tokens, (1 if row.is_prefill else came) if row.samples else 0
            # beyond its last token a request samples something that nobody reads
            sampled.append([tokens[i] if i < len(tokens) else 1 for i in range(known, known + count)])
            if not theirs.is_finished():
                row.live.yielded += count
        self.scheduler.update_from_output(batch.output, runner_output(request_ids, sampled))
        self._see(request_ids, end_s)
        if not self.params.async_scheduling:  # asynchronously vLLM takes it that there are proposals
            drafts = [[1] * self.drafter.proposed for _ in request_ids]
            self.scheduler.update_draft_token_ids(SimpleNamespace(req_ids=request_ids, draft_token_ids=drafts))
        return end_s

    def _see(self, request_ids: Sequence[str], end_s: float) -> None:
        for request_id in request_ids:
            theirs, _, live = self.theirs[request_id]
            if theirs.num_output_tokens > live.generated:
                if live.generated == 0:
                    live.first_token_s = end_s
                live.generated = theirs.num_output_tokens
                if theirs.is_finished():
                    live.last_token_s = end_s

    def _result(self) -> Result:
        requests = tuple(
            RequestResult(
                id=live.request.id,
                scheduled_s=live.scheduled_s,
                first_token_s=live.first_token_s,
                last_token_s=live.last_token_s,
                cached_tokens=0,
                num_preemptions=theirs.num_preemptions,
            )
            for theirs, _, live in self.theirs.values()
        )
        return Result(
            requests=requests,
            steps=tuple(self.steps),
            num_preemptions=sum(request.num_preemptions for request in requests),
            peak_running=self.peak_running,
            peak_blocks=self.peak_blocks,
        )


def make_scheduler(vllm: Vllm, case: Case, drafter: Drafter) -> Any:
    """vLLM's scheduler of a model with one layer of full attention, and a drafter."""
    params = case.params
    spec = vllm.cache_interface.FullAttentionSpec(
        block_size=params.block_size_tokens, num_kv_heads=1, head_size=1, dtype=None
    )
    blocks = vllm.cache_interface.KVCacheConfig(
        num_blocks=params.num_kv_blocks + 1,
        kv_cache_tensors=[],
        kv_cache_groups=[vllm.cache_interface.KVCacheGroupSpec(["layer"], spec)],
    )
    grammars = SimpleNamespace(
        accept_tokens=lambda _request, _tokens: True, validate_tokens=lambda _request, tokens: tokens
    )
    config = engine_config(params, 1)
    config.num_speculative_tokens = drafter.proposed
    config.num_lookahead_tokens = drafter.lookahead
    config.observability_config.per_request_spec_decode_metrics = "none"
    config.speculative_config = SimpleNamespace(
        disable_eagle_block_drop=False,
        max_num_new_slots_for_drafting=drafter.extra,
        needs_eagle_block_drop=lambda: False,
        num_speculative_tokens_per_batch_size=None,
        use_eagle=lambda: False,
        use_eagle_block_drop=lambda: False,
    )
    module = vllm.async_scheduler if params.async_scheduling else vllm.scheduler
    cls = module.AsyncScheduler if params.async_scheduling else module.Scheduler
    return cls(config, blocks, grammars, block_size=params.block_size_tokens)


def fitting(case: Case, drafter: Drafter) -> Case | None:
    """The case with prompts of two tokens or more, and with those requests alone whose proposals always fit."""
    capacity = case.params.num_kv_blocks * case.params.block_size_tokens
    room = capacity - 2 * (1 + drafter.proposed) - drafter.proposed - drafter.lookahead
    requests = [replace(r, input_tokens=max(r.input_tokens, 2)) for r in case.requests]
    kept = tuple(r for r in requests if r.input_tokens + r.output_tokens <= room)
    return replace(case, requests=kept) if kept else None


def compare(vllm: Vllm, num_cases: int, first_seed: int) -> tuple[Counter[str], Counter[str]]:
    """Equal and different cases by kind; prints the first differences."""
    equal: Counter[str] = Counter()
    different: Counter[str] = Counter()
    for profile in PROFILES:
        for seed in range(first_seed, first_seed + num_cases):
            drawn, speculation = seeded_speculative(seed, profile, NUM_REQUESTS)
            drafter = drafter_of(speculation)
            case = fitting(drawn, drafter)
            if case is None:
                continue
            kind = f"{'async' if case.params.async_scheduling else 'sync'} {speculation.method}"
            plain = Engine(case.params, case.times, drafter)
            plain.longest = UNLIMITED_TOKENS
            for request in case.requests:
                plain.submit(request)
            plain.run_until(math.inf)
            ours = plain.result()
            difference = first_difference(ours, VllmEngine(vllm, case, drafter).run())
            if difference is None:
                equal[kind] += 1
                equal["preemptions"] += ours.num_preemptions
                continue
            different[kind] += 1
            if different.total() <= SHOWN:
                print(f"{kind}: {profile} {seed}: {difference}")
    return equal, different


def main() -> int:
    """Run the comparison; returns the exit code."""
    parser = argparse.ArgumentParser(description="Compare the plain scheduler with speculation with vLLM's own.")
    parser.add_argument("source", metavar="VLLM_SOURCE_DIR", type=Path, help="holds the unpacked package `vllm`")
    parser.add_argument("--cases", type=int, default=200, help="workloads of each profile (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first of them (default: 0)")
    arguments = parser.parse_args()
    try:
        vllm = load_vllm(arguments.source)
    except InputError as error:
        parser.error(str(error))
    equal, different = compare(vllm, arguments.cases, arguments.seed)
    print(json.dumps({"equal": dict(equal), "different": dict(different)}))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
