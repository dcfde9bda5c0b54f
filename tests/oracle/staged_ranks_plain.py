"""Data parallel ranks with pipeline stages, in plain Python: "Ranks" in ``docs/pipeline-parallelism.md``.

Every rank is a plain pipeline (``pipeline_plain``) whose plans are asked for from outside, one event each; the router
between them is that of ``ranks_plain``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from oracle.pipeline_plain import Engine, needed_later
from oracle.plain_engine import Live, Row, StepRecord, step_duration
from oracle.ranks_plain import Ranks, num_tokens
from oracle.vllm_plain import Params
from servewise.types import StepTable


@dataclass(slots=True, eq=False)
class Pass:
    """What every rank has sent as its pass of one number, when, and when it has left the last stage."""

    sent_s: dict[int, float] = field(default_factory=dict)
    rows: dict[int, list[Row]] = field(default_factory=dict)
    keeps: dict[int, bool] = field(default_factory=dict)
    end_s: float = math.nan


@dataclass(slots=True, eq=False)
class Flying:
    """A rank's part of a pass, as its engine sees it."""

    number: int
    rows: tuple[Row, ...]
    shared: Pass

    @property
    def end_s(self) -> float:
        """When it has left the last stage."""
        return self.shared.end_s


def alike_and_own(times: StepTable, steps: Sequence[Sequence[Row]]) -> tuple[float, list[tuple[float, float]]]:
    """What a pass takes on all ranks alike; and each rank's own part in the layers and behind them [s]."""
    tokens = [num_tokens(rows) for rows in steps]
    own = []
    for rows in steps:
        sampled = float(times.sample_s[sum(row.samples for row in rows)]) if rows else 0.0
        if not rows:
            own.append((0.0, 0.0))
        elif any(row.is_prefill for row in rows):
            alone = step_duration(times, rows) - sampled
            own.append((alone - float(times.mixed_tokens_s[num_tokens(rows)]), sampled))
        else:
            alone = step_duration(times, rows) - sampled
            table = float(times.decode_fixed_s[len(rows)]) - float(times.sample_s[len(rows)])
            own.append((alone - table, sampled))
    if any(row.is_prefill for rows in steps for row in rows):
        alike, padded = float(times.mixed_tokens_s[max(tokens)]), times.padded_mixed_tokens
    else:
        alike = float(times.decode_fixed_s[max(tokens)]) - float(times.sample_s[max(tokens)])
        padded = times.padded_decode_tokens
    if max(tokens) > padded:
        alike -= float(times.experts_s[len(steps) * max(tokens)] - times.experts_s[sum(tokens)])
    return alike, own


class StagedRanks(Ranks):
    """The ranks of one replica, with ``len(layers)`` stages of so many layers."""

    engines: list[Engine]

    def __init__(
        self, params: Params, times: StepTable, *, num_ranks: int, kv_aware: bool, layers: Sequence[int]
    ) -> None:
        super().__init__(params, times, num_ranks=num_ranks, kv_aware=kv_aware)
        self.engines = [Engine(params, times, layers) for _ in range(num_ranks)]
        self.layers = layers
        self.depth = self.engines[0].depth
        self.free_s = [0.0] * len(layers)
        self.passes: list[Pass] = []
        self.sent = [0] * num_ranks  # passes of each rank
        self.begins_s = [math.nan] * num_ranks  # earliest next plan; nan asleep
        self.waits_for = [-1] * num_ranks  # the pass that must be over before it
        self.settled = 0
        self.emitted: Counter[Live] = Counter()
        self.done_s: list[float] = []

    def run_until(self, limit_s: float) -> None:
        """Make every plan that is due before ``limit_s``."""
        while True:
            rank, at_s = self._next_plan()
            asleep = [i for i, begin_s in enumerate(self.begins_s) if math.isnan(begin_s)]
            if asleep and self.inbox and self.inbox[0].arrival_s <= at_s:
                if self.inbox[0].arrival_s >= limit_s:
                    return
                self._wake(self.inbox[0].arrival_s)
                rank, at_s = self._next_plan()
            if rank < 0 or at_s >= limit_s:
                return
            self.boundary_s = at_s
            self._route()
            self._plan(rank, at_s)

    def _next_plan(self) -> tuple[int, float]:
        """Rank and time of the next plan; (-1, inf) when nobody can make one."""
        due = []
        for rank, begin_s in enumerate(self.begins_s):
            if not math.isnan(begin_s) and self.waits_for[rank] < self.settled:
                ends = self.passes[self.waits_for[rank]].end_s if self.waits_for[rank] >= 0 else 0.0
                due.append((max(begin_s, ends), rank))
        at_s, rank = min(due, default=(math.inf, -1))
        return rank, at_s

    def _wake(self, now_s: float) -> None:
        self.begins_s = [now_s if math.isnan(begin_s) else begin_s for begin_s in self.begins_s]

    def _plan(self, rank: int, now_s: float) -> None:
        """One turn of a rank's loop."""
        engine, number = self.engines[rank], self.sent[rank]
        engine.now_s = now_s
        engine.waiting += engine._arrived(now_s)
        if engine.in_flight and engine.in_flight[0].number <= number + 1 - self.depth:
            engine._process(engine.in_flight.popleft())
        engine.number = number
        rows = engine._plan()
        has_work = any(one.running or one.waiting or one.inbox for one in self.engines)
        if not rows and max(self.sent) <= number and not has_work:
            self.begins_s[rank] = math.nan
            return
        if len(self.passes) == number:
            self.passes.append(Pass())
        shared = self.passes[number]
        shared.sent_s[rank], shared.rows[rank] = now_s, rows
        shared.keeps[rank] = any(needed_later(row) for row in rows)
        engine.in_flight.append(Flying(engine.number, tuple(rows), shared))
        for row in rows:
            row.live.steps.append(engine.number)
            if row.samples:
                row.live.sampled_in = engine.number
        self.sent[rank] = number + 1
        self.begins_s[rank] = now_s
        self.waits_for[rank] = number + 1 - self.depth if rows else number
        self._wake(now_s)
        while self.settled < min(self.sent):
            self._settle(self.settled)
            self.settled += 1

    def _settle(self, number: int) -> None:
        """All ranks have sent the pass: find its way through the stages."""
        shared = self.passes[number]
        ranks = range(len(self.engines))
        at_s = max(shared.sent_s.values())
        for rank in ranks:
            if shared.rows[rank]:
                at_s = max(at_s, self._token_s(rank, number - len(self.layers)))
        begin_s = at_s
        alike, own = alike_and_own(self.times, [shared.rows[rank] for rank in ranks])
        any_rows = any(shared.rows.values())
        for stage, count in enumerate(self.layers):
            share = count / sum(self.layers)
            at_s = max(at_s if any_rows else begin_s, self.free_s[stage])
            if stage < len(self.layers) - 1:
                at_s += (alike + max(layers for layers, _ in own)) * share
            else:
                at_s += alike * share + max(layers * share + sampled for layers, sampled in own)
            self.free_s[stage] = at_s
        shared.end_s = at_s
        for rank in ranks:
            if shared.rows[rank]:
                row_ids = tuple((row.live.request.id, row.tokens) for row in shared.rows[rank])
                self.engines[rank].steps.append(StepRecord(start_s=begin_s, duration_s=at_s - begin_s, rows=row_ids))
            for row in shared.rows[rank]:
                self.emitted[row.live] += row.samples
                if row.samples and self.emitted[row.live] == row.live.request.output_tokens:
                    self.done_s.append(at_s)

    def _token_s(self, rank: int, number: int) -> float:
        """When the tokens came that the first stage waits for: of that pass, or of the last one before in its group
        that had some."""
        while number >= 0:
            if self.passes[number].keeps[rank]:
                return self.passes[number].end_s
            number -= len(self.layers)
        return 0.0

    def _score(self, engine: Engine) -> float:
        waiting = len(engine.waiting) + len(engine.inbox)
        if not self.kv_aware:
            return 4 * waiting + len(engine.running)
        used = (self.params.num_kv_blocks - len(engine.pool.free)) / self.params.num_kv_blocks
        return len(engine.running) + waiting + waiting * 6 * max(0.0, used - 0.5)

    def num_finished(self, now_s: float) -> int:
        """Requests whose last token is out at ``now_s``."""
        return sum(done_s <= now_s for done_s in self.done_s)
