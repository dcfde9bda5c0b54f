"""vLLM with pipeline stages, step by step and in plain Python: ``docs/pipeline-parallelism.md``.

Slow and obvious: a batch is a list of rows, the pipeline a list of when each stage is free again. Requests and block
pool are those of ``vllm_plain``, the duration of a whole pass is that of every engine; plans and time are its own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from oracle.blocks_plain import Block, BlockPool
from oracle.plain_engine import PlainEngine, Request, Result, Row, StepRecord, step_duration
from oracle.vllm_plain import Live, Params
from servewise.types import StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A planned step; without rows it is processed with the one before it."""

    number: int
    rows: tuple[Row, ...]
    end_s: float


@dataclass(slots=True, eq=False)
class Staged(Live):
    """A request and the steps that it is in and that were not processed, and where it last sampled a token."""

    steps: list[int] = field(default_factory=list)
    sampled_in: int = -1000


def stage_times(times: StepTable, rows: Sequence[Row], layers: Sequence[int]) -> list[float]:
    """What a batch takes on each stage [s]."""
    sampled = float(times.sample_s[sum(row.samples for row in rows)])
    rest = step_duration(times, rows) - sampled
    spent = [rest * count / sum(layers) for count in layers]
    spent[-1] += sampled
    return spent


def needed_later(row: Row) -> bool:
    """Whether the first stage waits for the row's token: not if it is wasted, or ends its request with the prompt."""
    live = row.live
    tokens = live.generated + live.in_flight
    ends_with_prompt = row.is_prefill and tokens >= live.request.max_tokens
    return row.samples and tokens <= live.request.output_tokens and not ends_with_prompt


class Engine(PlainEngine):
    """One replica with ``len(layers)`` stages of so many layers."""

    def __init__(self, params: Params, times: StepTable, layers: Sequence[int]) -> None:
        super().__init__(params, times)
        self.layers = layers
        self.num_stages = len(layers)
        self.depth = self.num_stages + params.async_scheduling
        self.pool = BlockPool(params.num_kv_blocks, params.enable_prefix_caching)
        self.waiting: list[Staged] = []
        self.running: list[Staged] = []
        self.in_flight: deque[Batch] = deque()
        self.free_s = [0.0] * self.num_stages
        self.sampled_s: dict[int, float] = {}  # when the tokens of a step were sampled
        self.now_s = 0.0
        self.number = 0

    def _new_live(self, request: Request) -> Staged:
        return Staged(request)

    # ---------------------------------------------------------------- time

    def advance(self, limit_s: float) -> bool:
        """Process the oldest batch or make a plan; False when neither is due."""
        next_s = self.inbox[0].request.arrival_s if self.inbox else math.inf
        idle = not self.running and not self.waiting and next_s > self.now_s
        if len(self.in_flight) == self.depth or (idle and self.in_flight):
            if self.in_flight[0].end_s > limit_s:
                return False
            self.now_s = max(self.now_s, self.in_flight[0].end_s)
            self._process(self.in_flight.popleft())
            return True
        begin_s = next_s if idle else self.now_s
        if begin_s >= limit_s:
            return False
        self.now_s = begin_s
        self.waiting += self._arrived(self.now_s)
        self._send(self._plan())
        return True

    def _send(self, rows: list[Row]) -> None:
        """Send a batch on its way."""
        if not rows:
            assert self.in_flight or self.running, "a request waits for an empty engine"
            end_s = self.in_flight[-1].end_s if self.in_flight else self.now_s
            self.in_flight.append(Batch(number=self.number, rows=(), end_s=max(end_s, self.now_s)))
            return
        at_s = max(self.now_s, self.sampled_s.get(self.number - self.num_stages, 0.0))
        for stage, spent_s in enumerate(stage_times(self.times, rows, self.layers)):
            at_s = max(at_s, self.free_s[stage])
            if stage == 0:
                start_s = at_s
            at_s += spent_s
            self.free_s[stage] = at_s
        self.in_flight.append(Batch(number=self.number, rows=tuple(rows), end_s=at_s))
        if any(needed_later(row) for row in rows):
            self.sampled_s[self.number] = at_s
        for row in rows:
            assert isinstance(row.live, Staged)
            row.live.steps.append(self.number)
            if row.samples:
                row.live.sampled_in = self.number
            if math.isnan(row.live.scheduled_s):
                row.live.scheduled_s = start_s
        row_ids = tuple((row.live.request.id, row.tokens) for row in rows)
        self.steps.append(StepRecord(start_s=start_s, duration_s=at_s - start_s, rows=row_ids))

    def _process(self, batch: Batch) -> None:
        """Deliver a batch's tokens and let requests go that have all of theirs."""
        for row in batch.rows:
            live = row.live
            assert isinstance(live, Staged)
            live.steps.remove(batch.number)
            if live.finished or not row.samples:
                continue
            if live in self.running:
                later = [b for b in self.in_flight if b.number > batch.number]
                planned = sum(other.tokens for b in later for other in b.rows if other.live is live)
                self._hash(live, live.computed - planned)
            live.in_flight -= 1
            live.emit(batch.end_s)
            if live.finished:
                (self.running if live in self.running else self.waiting).remove(live)
                self._free(live)

    # ---------------------------------------------------------------- plan

    def _plan(self) -> list[Row]:
        self.number += 1
        rows: list[Row] = []
        if not self._plan_running(rows):
            self._plan_waiting(rows)
        self.peak_running = max(self.peak_running, len(self.running))
        self.peak_blocks = max(self.peak_blocks, self.params.num_kv_blocks - len(self.pool.free))
        return rows

    def _budget(self, rows: list[Row]) -> int:
        return self.params.max_num_batched_tokens - sum(row.tokens for row in rows)

    def _may_run(self, live: Staged) -> bool:
        """Whether a running request may have a row in this plan."""
        if live.computed < live.request.input_tokens + live.generated:
            return True  # the next chunk of a prompt, or a token that is known
        if not self.params.async_scheduling:
            return False
        last = live.in_flight > 0 and live.generated + live.in_flight >= live.request.max_tokens
        return live.in_flight > 0 and not last

    def _plan_running(self, rows: list[Row]) -> bool:
        """Give tokens to the running list in order; True when somebody was preempted."""
        preempted = False
        index = 0
        while index < len(self.running) and self._budget(rows) > 0:
            live = self.running[index]
            index += 1
            unfinished_prompt = live.computed < live.prefill_target
            waits = self.params.async_scheduling and self.number < live.sampled_in + self.num_stages
            if not self._may_run(live) or (waits and not unfinished_prompt):
                continue
            tokens = min(live.known - live.computed, self._budget(rows))
            while self._short(live, tokens) > len(self.pool.free):
                victim = self.running.pop()
                self._free(victim)
                victim.computed = 0
                victim.num_preemptions += 1
                self.waiting.insert(0, victim)
                preempted = True
                if victim is live:
                    return preempted
            self._add(rows, live, tokens)
        return preempted

    def _plan_waiting(self, rows: list[Row]) -> None:
        """Admit in the order of the waiting list, passing over those with a row in flight, until something is short."""
        passed = 0
        while passed < len(self.waiting) and self._budget(rows) > 0:
            if len(self.running) >= self.params.max_num_seqs:
                return
            live = self.waiting[passed]
            if live.steps:
                passed += 1
                continue
            hits = self._lookup(live)
            hit_tokens = len(hits) * self.params.block_size_tokens
            chunk = min(live.known - hit_tokens, self._budget(rows))
            must_fit = live.known if self.params.scheduler_reserve_full_isl else hit_tokens + chunk
            if self._blocks(must_fit) - len(hits) + sum(b.ref == 0 for b in hits) > len(self.pool.free):
                return
            self.running.append(self.waiting.pop(passed))
            for block in hits:
                self.pool.touch(block)
            live.blocks = hits
            live.num_hashed = len(hits)
            live.computed = hit_tokens
            live.prefill_target = live.known
            if live.cached_tokens < 0:
                live.cached_tokens = hit_tokens
            self._add(rows, live, chunk)

    def _lookup(self, live: Staged) -> list[Block]:
        hits: list[Block] = []
        if self.params.enable_prefix_caching:
            for index in range((live.known - 1) // self.params.block_size_tokens):
                block = self.pool.lookup(live.identity(index))
                if block is None:
                    break
                hits.append(block)
        return hits

    def _add(self, rows: list[Row], live: Staged, tokens: int) -> None:
        short = self._short(live, tokens)
        if short > 0:
            live.blocks = live.blocks + self.pool.take(short)
        row = Row(
            live=live,
            tokens=tokens,
            start=live.computed,
            is_prefill=live.computed < live.prefill_target,
            samples=live.computed + tokens == live.known,
        )
        rows.append(row)
        live.computed += tokens
        live.in_flight += row.samples
        self._hash(live, min(live.computed, live.request.input_tokens + live.generated))

    # ---------------------------------------------------------------- blocks

    def _hash(self, live: Staged, num_tokens: int) -> None:
        if self.params.enable_prefix_caching:
            for index in range(live.num_hashed, num_tokens // self.params.block_size_tokens):
                self.pool.set_hash(live.blocks[index], live.identity(index))
                live.num_hashed = index + 1

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.params.block_size_tokens)

    def _short(self, live: Staged, tokens: int) -> int:
        return self._blocks(live.computed + tokens) - len(live.blocks)

    def _free(self, live: Staged) -> None:
        self.pool.release(live.blocks)
        live.blocks = []
        live.num_hashed = 0


def simulate(requests: Iterable[Request], params: Params, times: StepTable, layers: Sequence[int]) -> Result:
    """Run one replica over requests sorted by arrival until all are done."""
    return Engine(params, times, layers).serve(requests)
