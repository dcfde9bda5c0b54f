"""What the plain engines share: what goes in and comes out of them, and the bookkeeping around their plans.

Who gets which tokens when is each engine's own. Nothing here is shared with the numba kernel either.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from servewise.types import StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as the client sends it, with the output length that it will turn out to have.

    ``block_ids`` names its first full blocks (engine block size), of the prompt and perhaps of the output.
    """

    id: int
    arrival_s: float
    input_tokens: int
    output_tokens: int
    max_tokens: int
    block_ids: tuple[int, ...] = ()
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A step that ran: ``rows`` are (request id, tokens) in the order in which they were planned."""

    start_s: float
    duration_s: float
    rows: tuple[tuple[int, int], ...]

    @property
    def end_s(self) -> float:
        """When its outputs were processed [s]."""
        return self.start_s + self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestResult:
    """What happened to one request; ``cached_tokens`` is the prefix hit of its first admission."""

    id: int
    scheduled_s: float
    first_token_s: float
    last_token_s: float
    cached_tokens: int
    num_preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A run: one entry a request in the order given, and every step. Peaks are taken after each plan."""

    requests: tuple[RequestResult, ...]
    steps: tuple[StepRecord, ...]
    num_preemptions: int
    peak_running: int
    peak_blocks: int


@dataclass(slots=True, eq=False)
class Live:
    """A request inside an engine: ``generated`` tokens have been processed, at ``token_s``.

    One that is ``rejected`` is ``finished`` too; it left at ``last_token_s``, but has no times in the result.
    """

    request: Request
    generated: int = 0
    finished: bool = False
    rejected: bool = False
    scheduled_s: float = math.nan
    first_token_s: float = math.nan
    last_token_s: float = math.nan
    token_s: list[float] = field(default_factory=list)
    cached_tokens: int = 0
    num_preemptions: int = 0

    def emit(self, now_s: float) -> None:
        """A token of its output is processed; with the last one it is finished."""
        self.generated += 1
        self.token_s.append(now_s)
        if self.generated == 1:
            self.first_token_s = now_s
        if self.generated == self.request.output_tokens:
            self.finished = True
            self.last_token_s = now_s

    def result(self) -> RequestResult:
        """What has happened to it so far."""
        return RequestResult(
            id=self.request.id,
            scheduled_s=self.scheduled_s,
            first_token_s=math.nan if self.rejected else self.first_token_s,
            last_token_s=math.nan if self.rejected else self.last_token_s,
            cached_tokens=self.cached_tokens,
            num_preemptions=self.num_preemptions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """``tokens`` of one request (a ``Live`` of its engine) in one step, after ``start`` computed ones."""

    live: Any
    tokens: int
    start: int
    is_prefill: bool
    samples: bool


def step_duration(times: StepTable, rows: Iterable[Row]) -> float:
    """Duration of a step [s], by the formula in :class:`StepTable`."""
    n = context = p = a = q = 0
    for row in rows:
        q += row.samples
        if row.is_prefill:
            p += row.tokens
            # Token i of the chunk (from 1) attends to `start` earlier tokens and to i of the chunk.
            a += row.tokens * row.start + row.tokens * (row.tokens + 1) // 2
        else:
            n += 1
            context += row.start + 1
    attention = 0.0
    if n > 0:
        knot = bisect_right(times.context_knots.tolist(), context / n) - 1
        attention = float(times.attention_base_s[n, knot]) + float(times.attention_slope_s[n, knot]) * context
    if p == 0:
        return float(times.decode_fixed_s[n]) + attention
    beside_prompts = times.mixed_row_attention_fixed_s * n + times.mixed_row_attention_s_per_token * context
    return (
        float(times.mixed_tokens_s[n + p])
        + max(attention, beside_prompts)
        + float(times.sample_s[q])
        + times.prefill_fixed_s
        + times.prefill_s_per_token * p
        + times.prefill_s_per_pair * a
    )


class PlainEngine:
    """One replica, one step at a time. Time passes only in :meth:`advance`.

    An engine says what happens when a step may begin (:meth:`_begin`) and when one ends (:meth:`_process_outputs`).
    """

    def __init__(self, params: Any, times: StepTable) -> None:
        self.params = params
        self.times = times
        self.lives: list[Any] = []
        self.inbox: list[Any] = []  # submitted, not yet seen by a plan
        self.step: list[Any] = []  # running now
        self.step_end_s = math.inf
        self.begin_s = math.inf  # a step ended then; the next has not begun yet
        self.steps: list[StepRecord] = []
        self.peak_running = 0
        self.peak_blocks = 0

    def submit(self, request: Request) -> Any:
        """Hand over a request, in order of arrival."""
        live = self._new_live(request)
        self.lives.append(live)
        self.inbox.append(live)
        return live

    def _new_live(self, request: Request) -> Live:
        raise NotImplementedError

    def serve(self, requests: Iterable[Request]) -> Result:
        """Run over requests sorted by arrival until all are done."""
        for request in requests:
            self.submit(request)
        self.run_until(math.inf)
        return self.result()

    # ---------------------------------------------------------------- time

    def run_until(self, limit_s: float) -> None:
        """Process every step that ends at or before ``limit_s`` and every plan made before it.

        A plan made exactly at ``limit_s`` is left open: a request that arrives then still belongs to it.
        """
        while self.advance(limit_s):
            pass

    def advance(self, limit_s: float) -> bool:
        """Process the next event, a step's end or the begin of one; False when none is due."""
        if self.step:
            if self.step_end_s > limit_s:
                return False
            self._process_outputs()
            return True
        begin_s = self._next_begin_s()
        if begin_s >= limit_s:
            return False
        self._begin(begin_s)
        return True

    def _next_begin_s(self) -> float:
        """When the next plan is made: after the last step, or when something comes."""
        if self.begin_s == math.inf and self.inbox:  # idle
            return float(self.inbox[0].request.arrival_s)
        return self.begin_s

    def _begin(self, now_s: float) -> None:
        raise NotImplementedError

    def _process_outputs(self) -> None:
        raise NotImplementedError

    def _arrived(self, now_s: float) -> list[Any]:
        """Those of the inbox that are there."""
        arrived = []
        while self.inbox and self.inbox[0].request.arrival_s <= now_s:
            arrived.append(self.inbox.pop(0))
        return arrived

    def _start_step(self, rows: list[Row], now_s: float) -> None:
        """Rows begin to be computed."""
        duration_s = self._duration_s(rows)
        self.step, self.step_end_s = rows, now_s + duration_s
        for row in rows:
            if math.isnan(row.live.scheduled_s):
                row.live.scheduled_s = now_s
        row_ids = tuple((row.live.request.id, row.tokens) for row in rows)
        self.steps.append(StepRecord(start_s=now_s, duration_s=duration_s, rows=row_ids))

    def _duration_s(self, rows: list[Row]) -> float:
        return step_duration(self.times, rows)

    def _end_step(self) -> None:
        """The step is over, and the next may begin."""
        self.begin_s = self.step_end_s
        self.step, self.step_end_s = [], math.inf

    # ---------------------------------------------------------------- results

    def result(self) -> Result:
        """What has happened so far, requests in order of submission."""
        return Result(
            requests=tuple(live.result() for live in self.lives),
            steps=tuple(self.steps),
            num_preemptions=sum(live.num_preemptions for live in self.lives),
            peak_running=self.peak_running,
            peak_blocks=self.peak_blocks,
        )
