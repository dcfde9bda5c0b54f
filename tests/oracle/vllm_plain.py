"""vLLM 0.33's V1 engine, step by step and in plain Python, to be read beside ``docs/vllm-scheduler.md``.

Nothing here is fast: one object a request and a KV block, lists for queues, one event a loop iteration. It
shares no code with the numba kernel, so that a difference between the two is a mistake in one of them.

Life of a request: ``submit`` -> waiting list -> running list (rows in steps) -> its last token is processed.
A preempted request goes back to the front of the waiting list, or to its place in it when it is ordered by priority.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from oracle import plain_engine
from oracle.blocks_plain import Block, BlockPool, Identity
from oracle.plain_engine import PlainEngine, Request, Result, Row
from servewise.types import StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The engine's settings; ``num_kv_blocks`` are usable blocks, the engine's null block not among them."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_kv_blocks: int
    block_size_tokens: int
    enable_prefix_caching: bool = False
    async_scheduling: bool = True
    scheduler_reserve_full_isl: bool = True
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    watermark: float = 0.0
    long_prefill_token_threshold: int = 0


@dataclass(slots=True, eq=False)
class Live(plain_engine.Live):
    """A request inside the engine.

    ``generated`` tokens have been processed; ``in_flight`` more are being sampled by a step that is running
    or planned. ``computed`` tokens have a place in the KV cache (counted when planned). Rows that begin below
    ``prefill_target`` (known tokens at the last admission) are prefill.
    """

    in_flight: int = 0
    computed: int = 0
    prefill_target: int = 0
    blocks: list[Block] = field(default_factory=list)
    num_hashed: int = 0
    cached_tokens: int = -1

    @property
    def known(self) -> int:
        """Tokens of prompt and output, those still in flight included."""
        return self.request.input_tokens + self.generated + self.in_flight

    @property
    def turn(self) -> tuple[int, float, int]:
        """Its place in the order of priorities."""
        return self.request.priority, self.request.arrival_s, self.request.id

    def identity(self, index: int) -> Identity:
        """What its full block ``index`` contains."""
        named = self.request.block_ids
        return named[index] if index < len(named) else ("own", self.request.id, index)


class Engine(PlainEngine):
    """One replica."""

    def __init__(self, params: Params, times: StepTable) -> None:
        super().__init__(params, times)
        self.pool = BlockPool(params.num_kv_blocks, params.enable_prefix_caching)
        self.waiting: list[Live] = []
        self.running: list[Live] = []
        self.planned: list[Row] = []  # the step after it (async only)

    def _new_live(self, request: Request) -> Live:
        return Live(request)

    # ---------------------------------------------------------------- time

    def _begin(self, now_s: float) -> None:
        """Start the planned step, and plan the one after it (async); plan first if nothing is planned."""
        self.begin_s = math.inf
        self.waiting += self._arrived(now_s)
        self._sort_waiting()
        rows = self.planned or self._plan()
        self.planned = []
        if not rows:
            assert not self.running, "a request is running but nothing can be planned"
            assert not self.waiting, "a request waits for an empty engine"
            return
        self._start_step(rows, now_s)
        if self.params.async_scheduling:
            self.planned = self._plan()

    def _process_outputs(self) -> None:
        """Deliver the tokens of the step that ends now and let finished requests go."""
        for row in self.step:
            live = row.live
            if live.finished or not row.samples:  # finished: this was its wasted row
                continue
            if live in self.running:  # what the next step computes is not known yet
                planned = sum(other.tokens for other in self.planned if other.live is live)
                self._hash_blocks(live, live.computed - planned)
            live.in_flight -= 1
            live.emit(self.step_end_s)
            if live.finished:
                # A request preempted while its last token was in flight is in the waiting list.
                (self.running if live in self.running else self.waiting).remove(live)
                self._release_blocks(live)
        self._end_step()

    # ---------------------------------------------------------------- plan

    def _plan(self) -> list[Row]:
        rows: list[Row] = []
        most = self._most_tokens()
        preempted = self._plan_running(rows, most)
        if not preempted:
            self._plan_waiting(rows, most)
        self.peak_running = max(self.peak_running, len(self.running))
        self.peak_blocks = max(self.peak_blocks, self.params.num_kv_blocks - len(self.pool.free))
        return rows

    def _budget_left(self, rows: list[Row]) -> int:
        return self.params.max_num_batched_tokens - sum(row.tokens for row in rows)

    def _most_tokens(self) -> int:
        """The most tokens of one request in this plan."""
        threshold = self.params.long_prefill_token_threshold
        alone = len(self.running) + len(self.waiting) == 1
        return threshold if threshold > 0 and not alone else self.params.max_num_batched_tokens

    def _plan_running(self, rows: list[Row], most: int) -> bool:
        """Give tokens to the running list in order; True when somebody was preempted."""
        preempted = False
        index = 0
        while index < len(self.running) and self._budget_left(rows) > 0:
            live = self.running[index]
            index += 1
            if live.in_flight > 0 and live.generated + live.in_flight >= live.request.max_tokens:
                continue  # its last token is in flight, known by length
            tokens = min(live.known - live.computed, most, self._budget_left(rows))
            while live in self.running and self._blocks_short(live, tokens) > len(self.pool.free):
                victim = self._victim()
                if self.running.index(victim) < index:
                    index -= 1
                self.running.remove(victim)
                self._take_back(rows, victim)
                self._preempt(victim)
                preempted = True
            if live in self.running:
                self._add_row(rows, live, tokens)
        return preempted

    def _victim(self) -> Live:
        if self.params.scheduling_policy == "priority":
            return max(self.running, key=lambda live: live.turn)
        return self.running[-1]

    def _take_back(self, rows: list[Row], live: Live) -> None:
        """Drop the row that a request has been given in this plan, if it has one."""
        for row in [row for row in rows if row.live is live]:
            rows.remove(row)
            live.in_flight -= row.samples

    def _preempt(self, victim: Live) -> None:
        # `in_flight` stays: the token is still delivered when its step ends.
        self._release_blocks(victim)
        victim.computed = 0
        victim.num_preemptions += 1
        self.waiting.insert(0, victim)
        self._sort_waiting()

    def _sort_waiting(self) -> None:
        if self.params.scheduling_policy == "priority":
            self.waiting.sort(key=lambda live: live.turn)

    def _plan_waiting(self, rows: list[Row], most: int) -> None:
        """Admit from the head of the waiting list until something is short."""
        while self.waiting and self._budget_left(rows) > 0 and len(self.running) < self.params.max_num_seqs:
            live = self.waiting[0]
            assert live.in_flight == 0, "the step before the plan that preempted it has been processed"
            hits = self._lookup(live)
            hit_tokens = len(hits) * self.params.block_size_tokens
            chunk = min(live.known - hit_tokens, most, self._budget_left(rows))
            must_fit = live.known if self.params.scheduler_reserve_full_isl else hit_tokens + chunk
            new_blocks = self._blocks_for(must_fit) - len(hits)
            # Hit blocks that are free now leave the free queue too when touched.
            new_blocks += sum(block.ref == 0 for block in hits)
            if new_blocks + self._blocks_kept_free() > len(self.pool.free):
                return
            self.running.append(self.waiting.pop(0))
            for block in hits:
                self.pool.touch(block)
            live.blocks = hits
            live.num_hashed = len(hits)
            live.computed = hit_tokens
            live.prefill_target = live.known
            if live.cached_tokens < 0:
                live.cached_tokens = hit_tokens
            self._add_row(rows, live, chunk)

    def _blocks_kept_free(self) -> int:
        """Blocks that admissions must leave; vLLM's null block counts."""
        return int(self.params.watermark * (self.params.num_kv_blocks + 1)) if self.running else 0

    def _lookup(self, live: Live) -> list[Block]:
        """The longest run of cached blocks from the start that leaves at least one token to compute."""
        hits: list[Block] = []
        if self.params.enable_prefix_caching:
            for index in range((live.known - 1) // self.params.block_size_tokens):
                block = self.pool.lookup(live.identity(index))
                if block is None:
                    break
                hits.append(block)
        return hits

    def _add_row(self, rows: list[Row], live: Live, tokens: int) -> None:
        """Take the blocks that the row needs, hash those it fills, count its tokens as computed."""
        assert tokens > 0
        short = self._blocks_short(live, tokens)
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
        # tokens that are still being sampled have no identity yet
        self._hash_blocks(live, min(live.computed, live.request.input_tokens + live.generated))

    # ---------------------------------------------------------------- blocks

    def _hash_blocks(self, live: Live, num_tokens: int) -> None:
        """Make the blocks findable that its first ``num_tokens`` tokens fill."""
        if self.params.enable_prefix_caching:
            for index in range(live.num_hashed, num_tokens // self.params.block_size_tokens):
                self.pool.set_hash(live.blocks[index], live.identity(index))
                live.num_hashed = index + 1

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.params.block_size_tokens)

    def _blocks_short(self, live: Live, tokens: int) -> int:
        """Blocks still to be taken for its next ``tokens`` tokens."""
        return self._blocks_for(live.computed + tokens) - len(live.blocks)

    def _release_blocks(self, live: Live) -> None:
        self.pool.release(live.blocks)
        live.blocks = []
        live.num_hashed = 0


def simulate(requests: Iterable[Request], params: Params, times: StepTable) -> Result:
    """Run one replica over requests sorted by arrival until all are done."""
    return Engine(params, times).serve(requests)
