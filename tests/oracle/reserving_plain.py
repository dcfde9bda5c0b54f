"""TensorRT-LLM (V1, GUARANTEED_NO_EVICT) and SGLang (prompts alone), step by step and in plain Python.

To be read beside ``docs/reserving-scheduler.md``. One object a request, lists for queues, one event a loop
iteration; no code is shared with the numba kernel.

Life of a request: ``submit`` -> waiting list -> admitted, with its whole KV cache set aside -> its prompt is
computed, perhaps in chunks -> one row a decode step -> its last token is processed, its blocks are free again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from oracle.vllm_plain import Request, RequestResult, Result, StepRecord, step_duration
from servewise.types import StepTable

CLIP_TOKENS = 4096
"""SGLang counts at most so many tokens of output when it admits a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The engine's settings; ``max_num_tokens`` of a step are ``chunked_prefill_size`` for SGLang.

    The last two are TensorRT-LLM's: beside decode rows, prompts wait for a step that is full to this share.
    """

    engine: Literal["tensorrt-llm", "sglang"]
    max_rows: int
    max_num_tokens: int
    num_kv_blocks: int
    block_size_tokens: int
    enable_chunked_prefill: bool = True
    batch_wait_timeout_iters: int = 0
    batch_wait_max_tokens_ratio: float = 0.0


@dataclass(slots=True, eq=False)
class Live:
    """A request inside the engine: ``generated`` tokens were processed, ``in_flight`` more are on their way."""

    request: Request
    generated: int = 0
    in_flight: int = 0
    computed: int = 0
    finished: bool = False
    scheduled_s: float = math.nan
    first_token_s: float = math.nan
    last_token_s: float = math.nan

    @property
    def prompt_left(self) -> int:
        """Tokens of its prompt that no step has taken yet."""
        return max(self.request.input_tokens - self.computed, 0)

    @property
    def last_token_is_known(self) -> bool:
        """Whether the engine knows, by length, that its last token is on its way."""
        return self.generated + self.in_flight >= self.request.max_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """``tokens`` of one request in one step, after ``start`` computed ones."""

    live: Live
    tokens: int
    start: int
    is_prefill: bool
    samples: bool


class Engine:
    """One replica. Time passes only in :meth:`advance`."""

    def __init__(self, params: Params, times: StepTable) -> None:
        self.params = params
        self.times = times
        self.lives: list[Live] = []
        self.inbox: list[Live] = []  # submitted, not yet seen by a plan
        self.waiting: list[Live] = []
        self.admitted: list[Live] = []  # in order; each holds a seat and its blocks
        self.step: list[Row] = []  # running now
        self.step_end_s = math.inf
        self.planned: list[Row] = []  # the step after it
        self.begin_s = math.inf  # a step ended then; the next has not begun yet
        self.steps: list[StepRecord] = []
        self.waited = 0  # steps in which prompts waited for more of them
        self.peak_running = 0
        self.peak_blocks = 0

    def submit(self, request: Request) -> Live:
        """Hand over a request, in order of arrival."""
        live = Live(request)
        self.lives.append(live)
        self.inbox.append(live)
        return live

    # ---------------------------------------------------------------- time

    def run_until(self, limit_s: float) -> None:
        """Process every step that ends at or before ``limit_s`` and every plan made before it."""
        while self.advance(limit_s):
            pass

    def advance(self, limit_s: float) -> bool:
        """Process the next event, a step's end or the begin of one; False when none is due."""
        if self.step:
            if self.step_end_s > limit_s:
                return False
            self._process_outputs()
            return True
        begin_s = self.begin_s
        if begin_s == math.inf and self.inbox:  # idle
            begin_s = self.inbox[0].request.arrival_s
        if begin_s >= limit_s:
            return False
        self._begin(begin_s)
        return True

    def _begin(self, now_s: float) -> None:
        """Start the planned step and plan the one after it; plan first if nothing is planned."""
        self.begin_s = math.inf
        while self.inbox and self.inbox[0].request.arrival_s <= now_s:
            self.waiting.append(self.inbox.pop(0))
        rows = self.planned or self._plan()
        self.planned = []
        if not rows:
            assert not self.admitted, "a request is admitted but nothing can be planned"
            assert not self.waiting, "a request waits for an empty engine"
            return
        duration_s = step_duration(self.times, rows)  # type: ignore[arg-type]
        self.step, self.step_end_s = rows, now_s + duration_s
        for row in rows:
            if math.isnan(row.live.scheduled_s):
                row.live.scheduled_s = now_s
        row_ids = tuple((row.live.request.id, row.tokens) for row in rows)
        self.steps.append(StepRecord(start_s=now_s, duration_s=duration_s, rows=row_ids))
        self.planned = self._plan()

    def _process_outputs(self) -> None:
        """Deliver the tokens of the step that ends now and let finished requests go."""
        for row in self.step:
            live = row.live
            if live.finished or not row.samples:  # finished: this was its wasted row
                continue
            live.in_flight -= 1
            live.generated += 1
            self.deliver(live)
            if live.generated == 1:
                live.first_token_s = self.step_end_s
            if live.generated == live.request.output_tokens:
                live.finished = True
                live.last_token_s = self.step_end_s
                self.admitted.remove(live)
        self.begin_s = self.step_end_s
        self.step, self.step_end_s = [], math.inf

    def deliver(self, live: Live) -> None:
        """A token leaves the engine; for those who count them."""

    # ---------------------------------------------------------------- plan

    def _plan(self) -> list[Row]:
        rows = self._plan_sglang() if self.params.engine == "sglang" else self._plan_tensorrt_llm()
        self.peak_running = max(self.peak_running, len(self.admitted))
        self.peak_blocks = max(self.peak_blocks, sum(self.set_aside(live) for live in self.admitted))
        return rows

    def _decode_rows(self) -> list[Row]:
        return [
            self._row(live, 1)
            for live in list(self.admitted)
            if live.prompt_left == 0 and live.generated + live.in_flight > 0 and not live.last_token_is_known
        ]

    def _plan_tensorrt_llm(self) -> list[Row]:
        """Decode rows, then prompts with what is left of the tokens, unless these have to wait for more."""
        decode = self._decode_rows()
        is_unfinished = any(live.prompt_left > 0 for live in self.admitted)
        prompts = self._prompt_rows(self.params.max_num_tokens - len(decode))
        whole = [row for row in prompts if row.start == 0 and row.samples]
        if decode and whole and not is_unfinished:
            if self._must_wait(len(decode) + sum(row.tokens for row in whole)):
                for row in reversed(prompts):
                    self._take_back(row)
                return decode
            self.waited = 0
        return decode + prompts

    def _must_wait(self, num_tokens: int) -> bool:
        """Whether a step of so many tokens is too small to disturb the decode rows with; counts such steps."""
        enough = self.params.batch_wait_max_tokens_ratio * self.params.max_num_tokens
        must_wait = num_tokens < enough and self.waited < self.params.batch_wait_timeout_iters
        self.waited += must_wait
        return must_wait

    def _take_back(self, row: Row) -> None:
        """Undo an admission that was planned only to see what it would be."""
        self.admitted.remove(row.live)
        self.waiting.insert(0, row.live)
        row.live.computed -= row.tokens
        row.live.in_flight -= row.samples

    def _prompt_rows(self, budget: int) -> list[Row]:
        rows: list[Row] = []
        while (live := self._next_prompt()) is not None:
            tokens = live.prompt_left
            if tokens > budget and self.params.enable_chunked_prefill:
                tokens = budget - budget % self.params.block_size_tokens
            if tokens > budget or tokens == 0:
                break
            budget -= tokens
            self._admit(live)
            rows.append(self._row(live, tokens))
            if live.prompt_left > 0:
                break
        return rows

    def _plan_sglang(self) -> list[Row]:
        """A batch of prompts if one can be made, otherwise decode rows."""
        page = self.params.block_size_tokens
        rows: list[Row] = []
        pages = self.params.max_num_tokens // page
        while pages > 0 and (live := self._next_prompt()) is not None:
            tokens = min(live.prompt_left, pages * page)
            pages -= math.ceil(tokens / page)
            self._admit(live)
            rows.append(self._row(live, tokens))
            if live.prompt_left > 0:
                break
        return rows or self._decode_rows()

    def _next_prompt(self) -> Live | None:
        """The unfinished prompt, or the first that waits, if there are a seat and memory for it."""
        unfinished = [live for live in self.admitted if live.prompt_left > 0]
        if unfinished:
            return unfinished[0]
        if not self.waiting or len(self.admitted) >= self.params.max_rows:
            return None
        free = self.params.num_kv_blocks - sum(self.set_aside(live) for live in self.admitted)
        needed = self.set_aside(self.waiting[0])
        fits = needed < free if self.params.engine == "sglang" else needed <= free
        return self.waiting[0] if fits else None

    def set_aside(self, live: Live) -> int:
        """Blocks that belong to the request while it is admitted."""
        request, size = live.request, self.params.block_size_tokens
        if self.params.engine == "tensorrt-llm":
            return math.ceil((request.input_tokens + request.max_tokens) / size)
        output = max(min(request.max_tokens, CLIP_TOKENS), request.output_tokens)
        return math.ceil(request.input_tokens / size) + math.ceil(output / size) + 1

    def _admit(self, live: Live) -> None:
        if live not in self.admitted:
            self.waiting.remove(live)
            self.admitted.append(live)

    def _row(self, live: Live, tokens: int) -> Row:
        is_prefill = live.prompt_left > 0
        start = live.computed
        live.computed += tokens
        samples = live.prompt_left == 0
        live.in_flight += samples
        return Row(live=live, tokens=tokens, start=start, is_prefill=is_prefill, samples=samples)

    # ---------------------------------------------------------------- results

    def result(self) -> Result:
        """What has happened so far, requests in order of submission."""
        requests = tuple(
            RequestResult(
                id=live.request.id,
                scheduled_s=live.scheduled_s,
                first_token_s=live.first_token_s,
                last_token_s=live.last_token_s,
                cached_tokens=-1,
                num_preemptions=0,
            )
            for live in self.lives
        )
        return Result(
            requests=requests,
            steps=tuple(self.steps),
            num_preemptions=0,
            peak_running=self.peak_running,
            peak_blocks=self.peak_blocks,
        )
