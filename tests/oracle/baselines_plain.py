"""Static batching, Orca and Sarathi, step by step in plain Python, to be read beside ``docs/baseline-schedulers.md``.

One object a request, lists for queues, blocks counted by asking every request what it holds. No code is shared with
the numba kernel.

Life of a request: ``submit`` -> waiting list -> running (rows in steps) -> its last token is processed. With Sarathi a
preempted request goes back to the front of the waiting list; with static batching one that has ended stays in the
batch until the last one has.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

from oracle import plain_engine
from oracle.plain_engine import PlainEngine, Request, Row, step_duration
from servewise.types import StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The engine's settings; ``chunk_size`` is Sarathi's, ``max_wait_s`` that of static batching."""

    engine: Literal["static", "orca", "sarathi"]
    max_batch_size: int
    max_seq_len: int
    num_kv_blocks: int
    block_size_tokens: int
    chunk_size: int = 0
    max_wait_s: float = 0.0


@dataclass(slots=True, eq=False)
class Live(plain_engine.Live):
    """A request inside the engine; ``computed`` tokens have a place in the KV cache.

    Rows that begin below ``prefill_target`` (known tokens when it was last admitted) are prefill.
    """

    computed: int = 0
    prefill_target: int = 0
    blocks: int = 0

    @property
    def known(self) -> int:
        """Tokens of prompt and output."""
        return self.request.input_tokens + self.generated


class Engine(PlainEngine):
    """One replica."""

    def __init__(self, params: Params, times: StepTable) -> None:
        super().__init__(params, times)
        self.waiting: list[Live] = []
        self.running: list[Live] = []  # with static batching: the batch
        self.idle_since_s = 0.0

    def _new_live(self, request: Request) -> Live:
        return Live(request)

    # ---------------------------------------------------------------- time

    def _next_begin_s(self) -> float:
        """When the next plan is made: at once if something runs or waits, else when something comes."""
        if self.params.engine == "static" and not self.running:
            return self._batch_start_s()
        if self.running or self.waiting:
            return self.idle_since_s
        return max(self.idle_since_s, self.inbox[0].request.arrival_s) if self.inbox else math.inf

    def _batch_start_s(self) -> float:
        """When a static batch is full, or its first request has waited long enough."""
        candidates = self.waiting + self.inbox
        if not candidates:
            return math.inf
        start_s = candidates[0].request.arrival_s + self.params.max_wait_s
        if len(candidates) >= self.num_slots:
            start_s = min(start_s, candidates[self.num_slots - 1].request.arrival_s)
        return max(start_s, self.idle_since_s)

    def _begin(self, now_s: float) -> None:
        """Plan and start a step."""
        self.waiting += self._arrived(now_s)
        rows = {"static": self._plan_static, "orca": self._plan_orca, "sarathi": self._plan_sarathi}[
            self.params.engine
        ]()
        self.peak_running = max(self.peak_running, len(self.running))
        self.peak_blocks = max(self.peak_blocks, self._blocks_in_use())
        assert rows, "somebody waits for an empty engine"
        self._start_step(rows, now_s)
        for row in rows:
            row.live.computed += row.tokens

    def _duration_s(self, rows: list[Row]) -> float:
        """What a step costs [s]; static batching pads prompts and computes rows that have ended."""
        if self.params.engine != "static":
            return step_duration(self.times, rows)
        times, size = self.times, len(self.running)
        if rows[0].is_prefill:
            longest = max(row.live.request.input_tokens for row in rows)
            pairs = size * longest * (longest + 1) / 2
            tokens = size * longest
            prompts_s = times.prefill_s_per_token * tokens + times.prefill_s_per_pair * pairs
            whole_s = float(times.mixed_tokens_s[tokens] + times.sample_s[size])
            return whole_s + times.prefill_fixed_s + prompts_s
        n, context = len(rows), sum(row.start + 1 for row in rows)
        knot = bisect_right(times.context_knots.tolist(), context / n) - 1
        attention_s = float(times.attention_base_s[n, knot] + times.attention_slope_s[n, knot] * context)
        return float(times.decode_fixed_s[size]) + attention_s

    def _process_outputs(self) -> None:
        """Deliver the tokens of the step that ends now and let finished requests go."""
        for row in self.step:
            if row.samples:
                row.live.emit(self.step_end_s)
        self.idle_since_s = self.step_end_s
        self._end_step()
        if self.params.engine == "static" and not all(live.finished for live in self.running):
            return
        for live in [live for live in self.running if live.finished]:
            self.running.remove(live)
            live.blocks = 0

    # ---------------------------------------------------------------- slots: static batching and Orca

    @property
    def blocks_of_slot(self) -> int:
        """Blocks that a request of the longest length needs."""
        return math.ceil(self.params.max_seq_len / self.params.block_size_tokens)

    @property
    def num_slots(self) -> int:
        """Requests that fit at once."""
        return min(self.params.max_batch_size, self.params.num_kv_blocks // self.blocks_of_slot)

    def _plan_static(self) -> list[Row]:
        """A new batch when nothing runs, else one token of everybody who has not ended."""
        if self.running:
            return [self._row(live, 1) for live in self.running if not live.finished]
        return [self._admit_to_slot() for _ in range(min(self.num_slots, len(self.waiting)))]

    def _plan_orca(self) -> list[Row]:
        """One token of everybody, and whole prompts while slots are free."""
        rows = [self._row(live, 1) for live in self.running]
        while self.waiting and len(self.running) < self.num_slots:
            rows.append(self._admit_to_slot())
        return rows

    def _admit_to_slot(self) -> Row:
        live = self.waiting.pop(0)
        self.running.append(live)
        live.blocks = self.blocks_of_slot
        assert self._blocks_in_use() <= self.params.num_kv_blocks
        live.prefill_target = live.known
        return self._row(live, live.known)

    # ---------------------------------------------------------------- Sarathi

    def _plan_sarathi(self) -> list[Row]:
        """Decodes, the unfinished prompt, new prompts, until the step is full."""
        decodes = [live for live in self.running if live.computed >= live.prefill_target]
        rows = [
            self._row(live, 1) for live in decodes if live in self.running and self._take_block_for_next_token(live)
        ]
        for live in self.running:
            if live.computed < live.prefill_target:
                rows.append(self._prompt_row(live, rows))
        while self.waiting and self._budget(rows) > 0 and len(self.running) < self.params.max_batch_size:
            live = self.waiting[0]
            if self._blocks_for(live.known) > self._free():
                break
            self.running.append(self.waiting.pop(0))
            live.blocks = self._blocks_for(live.known)
            live.prefill_target = live.known
            rows.append(self._prompt_row(live, rows))
        return rows

    def _take_block_for_next_token(self, live: Live) -> bool:
        """Make room for one more token, at the cost of the last admitted; False when that is the request itself."""
        while self._blocks_for(live.computed + 1) > live.blocks:
            if self._free() > 0:
                live.blocks += 1
                continue
            victim = self.running.pop()
            victim.blocks = 0
            victim.computed = 0
            victim.num_preemptions += 1
            self.waiting.insert(0, victim)
            if victim is live:
                return False
        return True

    def _prompt_row(self, live: Live, rows: list[Row]) -> Row:
        return self._row(live, min(live.known - live.computed, self._budget(rows)))

    def _budget(self, rows: list[Row]) -> int:
        return self.params.chunk_size - sum(row.tokens for row in rows)

    def _blocks_for(self, tokens: int) -> int:
        return math.ceil(tokens / self.params.block_size_tokens)

    def _free(self) -> int:
        return self.params.num_kv_blocks - self._blocks_in_use()

    def _blocks_in_use(self) -> int:
        return sum(live.blocks for live in self.lives)

    def _row(self, live: Live, tokens: int) -> Row:
        assert tokens > 0
        return Row(
            live=live,
            tokens=tokens,
            start=live.computed,
            is_prefill=live.computed < live.prefill_target,
            samples=live.computed + tokens == live.known,
        )
