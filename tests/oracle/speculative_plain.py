"""vLLM with speculative decoding, step by step and in plain Python: ``docs/speculative-decoding.md``.

Slow and obvious: the counters of a request are those that vLLM keeps, optimistic while a step is in flight and rolled
back when it is processed; acceptance is counted with fractions. Blocks are a number. Settings are those of
``vllm_plain``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from oracle import plain_engine
from oracle.plain_engine import PlainEngine, Request, Result, Row
from oracle.vllm_plain import Params
from servewise.types import StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """``proposed`` tokens a row and step, of which ``accepted`` are, on average; ``lookahead`` KV slots of its own;
    ``extra`` tokens of the budget for every request in a step."""

    proposed: int
    accepted: Fraction
    lookahead: int
    extra: int


@dataclass(slots=True, eq=False)
class Live(plain_engine.Live):
    """A request; ``yielded`` counts its tokens and those that were dropped at its end."""

    yielded: int = 0
    in_flight: int = 0
    computed: int = 0
    prefill_target: int = 0
    num_blocks: int = 0


class Engine(PlainEngine):
    """One replica."""

    def __init__(self, params: Params, times: StepTable, drafter: Drafter) -> None:
        super().__init__(params, times)
        self.drafter = drafter
        self.longest = params.num_kv_blocks * params.block_size_tokens  # max_model_len of the tests
        self.num_free = params.num_kv_blocks
        self.waiting: list[Live] = []
        self.running: list[Live] = []
        self.planned: list[Row] = []  # the step after the running one (async only)

    def _new_live(self, request: Request) -> Live:
        return Live(request)

    # ---------------------------------------------------------------- time

    def _begin(self, now_s: float) -> None:
        self.begin_s = math.inf
        self.waiting += self._arrived(now_s)
        rows = self.planned or self._plan()
        self.planned = []
        if not rows:
            assert not self.running, "a request is running but nothing can be planned"
            assert not self.waiting, "a request waits for an empty engine"
            return
        self._start_step(rows, now_s)
        if self.params.async_scheduling:
            self.planned = self._plan()

    def _duration_s(self, rows: Sequence[Row]) -> float:
        times = self.times
        decoding = [row.live for row in rows if not row.is_prefill]
        prompts = [row for row in rows if row.is_prefill]
        n = len(decoding)
        context = sum(live.request.input_tokens + live.yielded for live in decoding)
        attention = 0.0
        if n:
            knot = bisect_right(times.context_knots.tolist(), context / n) - 1
            attention = float(times.attention_base_s[n, knot]) + float(times.attention_slope_s[n, knot]) * context
        if not prompts:
            return float(times.decode_fixed_s[n]) + attention
        tokens = sum(row.tokens for row in prompts)
        pairs = sum(row.tokens * row.start + row.tokens * (row.tokens + 1) / 2 for row in prompts)
        beside = times.mixed_row_attention_fixed_s * n + times.mixed_row_attention_s_per_token * context
        return (
            float(times.mixed_tokens_s[sum(row.tokens for row in rows)])
            + max(attention, beside)
            + float(times.sample_s[sum(row.samples for row in rows)])
            + times.prefill_fixed_s
            + times.prefill_s_per_token * tokens
            + times.prefill_s_per_pair * pairs
        )

    def _level(self, steps: int) -> int:
        return steps + math.floor(steps * self.drafter.accepted)

    def _process_outputs(self) -> None:
        number = len(self.steps)
        accepted = self._level(number) - self._level(number - 1) - 1
        for row in self.step:
            live = row.live
            if live.finished or not row.samples:
                continue
            rejected = 0 if row.is_prefill else self.drafter.proposed - accepted
            came = 1 if row.is_prefill else 1 + accepted
            if live in self.running:  # a preempted request has nothing to roll back
                live.computed -= rejected
                live.in_flight -= rejected + came
            live.yielded += came
            for _ in range(min(came, live.request.output_tokens - live.generated)):
                live.emit(self.step_end_s)
            if live.finished:
                (self.running if live in self.running else self.waiting).remove(live)
                self._free(live)
        self._end_step()

    # ---------------------------------------------------------------- plan

    def _plan(self) -> list[Row]:
        rows: list[Row] = []
        before = sum(live.num_preemptions for live in self.lives)
        self._plan_running(rows)
        if sum(live.num_preemptions for live in self.lives) == before:
            self._plan_waiting(rows)
        self.peak_running = max(self.peak_running, len(self.running))
        self.peak_blocks = max(self.peak_blocks, self.params.num_kv_blocks - self.num_free)
        return rows

    def _tokens_left(self, rows: list[Row]) -> int:
        """What the next request of the plan may get."""
        taken = sum(row.tokens + self.drafter.extra for row in rows)
        return self.params.max_num_batched_tokens - taken - self.drafter.extra

    def _plan_running(self, rows: list[Row]) -> None:
        index = 0
        while index < len(self.running) and self._tokens_left(rows) > 0:
            live = self.running[index]
            index += 1
            # even if all proposals in flight are rejected, it will have had its last token
            certain = live.generated + 1
            if live.in_flight > 0 and certain >= live.request.max_tokens:
                continue
            if live.computed < live.prefill_target:
                tokens = min(live.prefill_target - live.computed, self._tokens_left(rows))
            else:
                tokens = 1 + self.drafter.proposed
                assert tokens <= self._tokens_left(rows), "the budget holds every row"
            while live in self.running and self._blocks_short(live, tokens) > self.num_free:
                victim = self.running.pop()
                self._free(victim)
                victim.computed = victim.in_flight = 0
                victim.num_preemptions += 1
                self.waiting.insert(0, victim)
            if live in self.running:
                self._add_row(rows, live, tokens)

    def _plan_waiting(self, rows: list[Row]) -> None:
        while self.waiting and self._tokens_left(rows) > 0 and len(self.running) < self.params.max_num_seqs:
            live = self.waiting[0]
            known = live.request.input_tokens + live.generated
            chunk = min(known, self._tokens_left(rows))
            if self.params.scheduler_reserve_full_isl and self._blocks_for(known) > self.num_free:
                return
            if self._blocks_short(live, chunk) > self.num_free:
                return
            self.running.append(self.waiting.pop(0))
            live.prefill_target = known
            self._add_row(rows, live, chunk)

    def _add_row(self, rows: list[Row], live: Live, tokens: int) -> None:
        short = max(0, self._blocks_short(live, tokens))
        live.num_blocks += short
        self.num_free -= short
        is_prefill = live.computed < live.prefill_target
        samples = not is_prefill or live.computed + tokens == live.prefill_target
        rows.append(Row(live=live, tokens=tokens, start=live.computed, is_prefill=is_prefill, samples=samples))
        live.computed += tokens
        if samples:
            live.in_flight += 1 if is_prefill else tokens

    def _blocks_short(self, live: Live, tokens: int) -> int:
        slots = min(live.computed + tokens + self.drafter.lookahead, self.longest)
        return self._blocks_for(slots) - live.num_blocks

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.params.block_size_tokens)

    def _free(self, live: Live) -> None:
        self.num_free += live.num_blocks
        live.num_blocks = 0

    def result(self) -> Result:
        assert self.num_free == self.params.num_kv_blocks
        return super().result()
