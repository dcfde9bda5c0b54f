"""SGLang with pipeline stages, step by step and in plain Python: "SGLang" in ``docs/pipeline-parallelism.md``.

A micro-batch is a plain SGLang engine (``sglang_plain``) that has lent its waiting list, its pages and its chunked
request to the others, and whose step is processed before it plans again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from oracle import sglang_plain
from oracle.pipeline_plain import stage_times
from oracle.plain_engine import Row, StepRecord
from oracle.sglang_plain import RETRACT_STEPS, Live, Params, StuckError
from servewise.types import StepTable


@dataclass(slots=True)
class MicroBatch:
    """What a micro-batch has for itself; its step is processed at ``end_s``."""

    running: list[Live] = field(default_factory=list)
    joining: list[Live] = field(default_factory=list)
    latch: bool = False
    somebody_left: bool = False
    step: list[Row] = field(default_factory=list)
    end_s: float = math.inf


class Engine(sglang_plain.Engine):
    """One replica with ``len(layers)`` stages of so many layers."""

    def __init__(self, params: Params, times: StepTable, layers: Sequence[int]) -> None:
        super().__init__(params, times)
        self.layers = layers
        self.batches = [MicroBatch() for _ in layers]
        self.turn = 0
        self.free_s = [0.0] * len(layers)
        self.now_s = 0.0
        self.num_empty = 0
        self.has_place = False  # whether the chunked request held its seat before the plan

    # ---------------------------------------------------------------- time

    def advance(self, limit_s: float) -> bool:
        """Process the step of the micro-batch whose turn it is, or let it plan the next; False when neither is due."""
        batch = self.batches[self.turn]
        if batch.step:
            if batch.end_s > limit_s:
                return False
            self.now_s = batch.end_s
            self._process(batch)
            return True
        begin_s = self.now_s
        idle = not any(b.step or b.running or b.joining for b in self.batches) and not self.waiting and not self.chunked
        if idle:
            self.ratio_start, self.ratio_steps, self.turn = self.init, 0, 0
            begin_s = max(begin_s, self.inbox[0].request.arrival_s) if self.inbox else math.inf
        if begin_s >= limit_s:
            return False
        self.now_s = begin_s
        self.waiting += self._arrived(self.now_s)
        rows = self._plan_of(self.batches[self.turn])
        self.num_empty = 0 if rows else self.num_empty + 1
        if self.num_empty > len(self.batches) and not any(b.step for b in self.batches):
            raise StuckError
        if rows:
            self._send(self.batches[self.turn], rows)
        self.turn = (self.turn + 1) % len(self.batches)
        return True

    def _send(self, batch: MicroBatch, rows: list[Row]) -> None:
        """Send a step through the stages."""
        at_s = start_s = self.now_s
        for stage, spent_s in enumerate(stage_times(self.times, rows, self.layers)):
            at_s = max(at_s, self.free_s[stage])
            start_s = at_s if stage == 0 else start_s
            at_s += spent_s
            self.free_s[stage] = at_s
        batch.step, batch.end_s = rows, at_s
        for row in rows:
            if math.isnan(row.live.scheduled_s):
                row.live.scheduled_s = start_s
        row_ids = tuple((row.live.request.id, row.tokens) for row in rows)
        self.steps.append(StepRecord(start_s=start_s, duration_s=at_s - start_s, rows=row_ids))

    def _process(self, batch: MicroBatch) -> None:
        """Deliver a step's tokens; ended requests leave."""
        for row in batch.step:
            live = row.live
            if not row.samples:
                continue
            live.in_flight -= 1
            live.emit(batch.end_s)
            if live.finished:
                batch.somebody_left = True
                (batch.running if live in batch.running else batch.joining).remove(live)
                self._finish(live)
            elif row.is_prefill:
                self._checkpoint(live, row.start + row.tokens)
        batch.step, batch.end_s = [], math.inf

    # ---------------------------------------------------------------- plan

    def _plan_of(self, batch: MicroBatch) -> list[Row]:
        if self.chunked is not None and self.chunk_ran:
            self._checkpoint(self.chunked, self.chunked.computed)
        self.chunk_ran = False
        if batch.joining and not batch.running:
            batch.somebody_left = True  # their batch takes the place of the empty one, with its latch
        self.running, self.joining = batch.running + batch.joining, []
        self.latch = batch.latch and not batch.somebody_left and bool(self.running)
        self.has_place = self.chunked is not None
        self.somebody_left = False
        rows = self._plan_prompts() or self._plan_decode()
        batch.running, batch.joining, batch.latch = self.running, self.joining, self.latch
        batch.somebody_left = self.somebody_left or self.chunk_ran  # the chunked request leaves its batch
        self.peak_running = max(self.peak_running, self._num_held() + (self.chunked is not None))
        self.peak_blocks = max(self.peak_blocks, self.params.num_pages - self.unheld)
        return rows

    def _num_held(self) -> int:
        """Requests in all micro-batches, but for the chunked one."""
        return sum(len(batch.running) + len(batch.joining) for batch in self.batches)

    def _has_seat(self, batch: list[Row]) -> bool:
        """Both in the micro-batch and in the engine."""
        own = max(self.params.most_running // len(self.batches), 1)
        mine = self.batches[self.turn]
        elsewhere = self._num_held() - len(mine.running) - len(mine.joining)
        new = len(batch) - (self.has_place and len(batch) > 0)
        free = self.params.most_running - elsewhere - len(self.running) - self.has_place
        return len(self.running) + len(batch) < own and new < free

    def _retract(self, lives: list[Live]) -> None:
        """All of the micro-batch if it must be: others may hold the pages."""
        first = True
        while first or self._pages_needed(lives) > self.unheld:
            first = False
            order = {id(live): place for place, live in enumerate(lives)}
            victim = min(lives, key=lambda live: (live.generated, -live.request.input_tokens, -order[id(live)]))
            lives.remove(victim)
            self.running.remove(victim)
            self._give_up(victim)
            self.tree.evict(self._pages(RETRACT_STEPS * len(lives)))
            victim.num_preemptions += 1
            self.somebody_left = True
            self.waiting.append(victim)
            self.tree.evict(self._pages_needed(lives))
        produced = sum(live.generated for live in lives) + RETRACT_STEPS * len(lives)
        self.ratio_start = min(produced / (sum(live.max_tokens for live in lives) + 1), 1.0)
        self.ratio_steps = 0
