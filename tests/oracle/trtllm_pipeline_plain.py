"""TensorRT-LLM with pipeline stages, step by step and in plain Python: ``docs/pipeline-parallelism.md``.

Requests, blocks and the rules of starting are those of ``trtllm_plain``; what goes into a batch, the batches in flight
and their way through the stages are its own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from oracle import trtllm_plain
from oracle.plain_engine import Row, StepRecord, step_duration
from oracle.trtllm_plain import Live, Params
from servewise.types import StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A planned step; without rows it is processed with the one before it."""

    rows: tuple[Row, ...]
    end_s: float


class Engine(trtllm_plain.Engine):
    """One replica with ``len(layers)`` stages of so many layers."""

    def __init__(self, params: Params, times: StepTable, layers: Sequence[int]) -> None:
        super().__init__(params, times)
        assert not self.evicts
        self.layers = layers
        self.in_flight: deque[Batch] = deque()
        self.free_s = [0.0] * len(layers)
        self.now_s = 0.0

    # ---------------------------------------------------------------- time

    def advance(self, limit_s: float) -> bool:
        """Process the oldest batch or make a plan; False when neither is due."""
        next_s = self.inbox[0].request.arrival_s if self.inbox else math.inf
        idle = not self.started and not self.waiting and next_s > self.now_s
        if len(self.in_flight) == len(self.layers) or (idle and self.in_flight):
            if self.in_flight[0].end_s > limit_s:
                return False
            batch = self.in_flight.popleft()
            self.now_s = max(self.now_s, batch.end_s)
            self.step, self.step_end_s = list(batch.rows), batch.end_s
            self._process_outputs()
            return True
        begin_s = next_s if idle else self.now_s
        if begin_s >= limit_s:
            return False
        self.now_s = begin_s
        self.waiting += self._arrived(self.now_s)
        self._send(self._plan())
        return True

    def _send(self, rows: list[Row]) -> None:
        """Send a batch through the stages, each of which takes it when it has left the one before."""
        at_s = self.now_s
        if not rows:
            assert self.in_flight or self.started, "a request waits for an empty engine"
            at_s = max(at_s, self.in_flight[-1].end_s) if self.in_flight else at_s
            self.in_flight.append(Batch(rows=(), end_s=at_s))
            return
        sampled = float(self.times.sample_s[sum(row.samples for row in rows)])
        rest = step_duration(self.times, rows) - sampled
        for stage, count in enumerate(self.layers):
            at_s = max(at_s, self.free_s[stage])
            if stage == 0:
                start_s = at_s
            at_s += rest * count / sum(self.layers)
            if stage == len(self.layers) - 1:
                at_s += sampled
            self.free_s[stage] = at_s
        self.in_flight.append(Batch(rows=tuple(rows), end_s=at_s))
        for row in rows:
            if math.isnan(row.live.scheduled_s):
                row.live.scheduled_s = start_s
        row_ids = tuple((row.live.request.id, row.tokens) for row in rows)
        self.steps.append(StepRecord(start_s=start_s, duration_s=at_s - start_s, rows=row_ids))

    # ---------------------------------------------------------------- plan

    def _plan(self) -> list[Row]:
        decoding = self._decoding()
        prompts: list[Row] = []
        budget = self.params.max_num_tokens - len(decoding)
        unfinished = [live for live in self.started if live.prompt_left > 0]
        for live in unfinished:
            tokens = live.prompt_left
            if tokens > budget:
                tokens = budget - budget % self.params.block_size_tokens
            if tokens > 0 and len(decoding) < self.params.max_batch_size:
                prompts.append(self._row(live, tokens))
        if not any(live.prompt_left > 0 for live in unfinished):
            self._start_some(prompts, unfinished, decoding)
        for live in decoding:
            live.blocks += [self.pool.take() for _ in range(self._next_block(live))]
        rows = prompts + [self._row(live, 1) for live in decoding]
        self.peak_running = max(self.peak_running, len(self.started))
        self.peak_blocks = max(self.peak_blocks, self.params.num_kv_blocks - self._available())
        return rows

    def _decoding(self) -> list[Live]:
        """Those whose next token may be computed: the one before it was processed."""
        return [live for live in self.started if live.prompt_left == 0 and live.in_flight == 0]

    def _start_some(self, prompts: list[Row], unfinished: list[Live], decoding: list[Live]) -> None:
        """Start waiting requests in order until one does not fit; all batches together have seats for so many more."""
        budget = self.params.max_num_tokens - len(decoding) - sum(row.tokens for row in prompts)
        computing = {self._first_new(live) for live in unfinished} - {None}
        active = len(self.layers) * self.params.max_batch_size - len(self.started)
        for live in self.waiting[: max(active, 0)]:
            if len(prompts) + len(decoding) == self.params.max_batch_size:
                return
            first_new = self._first_new(live)
            if first_new in computing:
                self.deferrals += 1
                continue
            if first_new is not None:
                computing.add(first_new)
            hits = self._find(live)
            counted, tokens = self._chunk(live, len(hits), budget)
            if self._needed(live, hits) > self._available() or tokens == 0:
                return
            cut = self._counts_as(live, len(hits)) > budget
            budget -= counted
            self._take(live, hits)
            prompts.append(self._row(live, tokens))
            if cut:
                return
