"""Text Generation Inference, forward by forward and in plain Python, to be read beside ``docs/tgi-scheduler.md``.

One object a request and a cached block, lists for queues, one event a loop iteration; no code is shared with the numba
kernel. Life of a request: ``submit`` -> turned away, or the queue -> the batch, with all its blocks -> its prompt is
computed, perhaps in chunks -> one row a forward -> gone.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from oracle import plain_engine
from oracle.plain_engine import PlainEngine, Request, Result, Row
from servewise.types import StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The engine's settings; ``num_kv_blocks`` are usable blocks. The last two matter without chunking only."""

    max_concurrent_requests: int
    max_batch_prefill_tokens: int
    num_kv_blocks: int
    block_size_tokens: int
    prefill_chunking: bool = True
    prefix_caching: bool = False
    waiting_served_ratio: float = 0.25
    max_waiting_tokens: int = 20


@dataclass(slots=True, eq=False)
class Cached:
    """A cached block: what it holds with all before it, how many requests use it, and when it was used last."""

    identity: Hashable
    users: int
    used_at: int
    place: int


@dataclass(slots=True, eq=False)
class Live(plain_engine.Live):
    """A request inside the engine, or one that was turned away (``rejected``, and ``finished`` at its arrival)."""

    computed: int = 0
    chunk: int = 0
    shared: list[Cached] = field(default_factory=list)

    @property
    def prompt_left(self) -> int:
        """Tokens of its prompt that no forward has taken."""
        return max(self.request.input_tokens - self.computed, 0)

    def identity(self, place: int) -> Hashable:
        """What block ``place`` of its prompt holds."""
        named = self.request.block_ids
        return named[place] if place < len(named) else ("own", self.request.id, place)


class Engine(PlainEngine):
    """One replica; a forward is a step."""

    def __init__(self, params: Params, times: StepTable) -> None:
        super().__init__(params, times)
        self.queue: list[Live] = []
        self.batch: list[Live] = []  # in order of admission
        self.cache: list[Cached] = []
        self.idle_since_s = -math.inf
        self.admits = True  # whether the next forward may
        self.waiting_tokens = 0
        self.uses = 0  # counts the requests that have ended
        self.flushes = 0
        self.two_prompts = 0  # forwards after which two or more prompts are unfinished

    def submit(self, request: Request) -> Live:
        """A request arrives; everything that happens until then has happened."""
        live = Live(request)
        self.lives.append(live)
        if len(self.queue) + len(self.batch) >= self.params.max_concurrent_requests:
            live.rejected = live.finished = True
            live.last_token_s = request.arrival_s
        else:
            self.queue.append(live)
        return live

    # ---------------------------------------------------------------- time

    def serve(self, requests: Iterable[Request]) -> Result:
        """Run over requests sorted by arrival until all are done; each is turned away, or not, as it arrives."""
        for request in requests:
            self.run_until(request.arrival_s)
            self.submit(request)
        self.run_until(math.inf)
        return self.result()

    def _next_begin_s(self) -> float:
        if self.batch:
            return self.idle_since_s
        return max(self.idle_since_s, self.queue[0].request.arrival_s) if self.queue else math.inf

    def _begin(self, now_s: float) -> None:
        rows = self._plan()
        self._start_step(rows, now_s)
        self.peak_running = max(self.peak_running, len(self.batch))
        self.peak_blocks = max(self.peak_blocks, self.params.num_kv_blocks - self._available())

    def _process_outputs(self) -> None:
        """Tokens leave, the next chunks are handed out, requests that are done go."""
        if any(row.is_prefill for row in self.step) and self.params.prefill_chunking:
            self._hand_out_chunks()
        for row in self.step:
            if row.samples:
                row.live.emit(self.step_end_s)
        for live in [live for live in self.batch if live.finished]:
            self.batch.remove(live)
            self._give_back(live)
        self.idle_since_s = self.step_end_s
        self._end_step()
        self.two_prompts += sum(live.prompt_left > 0 for live in self.batch) > 1

    def _hand_out_chunks(self) -> None:
        budget = self.params.max_batch_prefill_tokens - (len(self.batch) - 1)
        for live in reversed(self.batch):
            if live.prompt_left > 0:
                live.chunk = max(1, min(live.prompt_left, budget))
                budget -= live.chunk

    # ---------------------------------------------------------------- plan

    def _plan(self) -> list[Row]:
        old = list(self.batch)
        new: list[Live] = []
        if not old or self.admits:
            new = self._admit(old)
        assert old or new, "a request waits for an empty engine"
        self.admits = not (old and new)
        self.waiting_tokens = 1 if new else self.waiting_tokens + 1
        if new and not self.params.prefill_chunking:
            return [self._row(live) for live in new]
        return [self._row(live) for live in old + new]

    def _row(self, live: Live) -> Row:
        start, is_prefill = live.computed, live.prompt_left > 0
        tokens = live.chunk if is_prefill else 1
        live.computed += tokens
        return Row(live=live, tokens=tokens, start=start, is_prefill=is_prefill, samples=live.prompt_left == 0)

    def _admit(self, old: list[Live]) -> list[Live]:
        params = self.params
        budget = params.max_batch_prefill_tokens
        at_least = 0
        if params.prefill_chunking:
            budget -= sum(live.chunk if live.prompt_left > 0 else 1 for live in old)
            if budget <= 0 or sum(self._blocks(live) for live in old) > params.num_kv_blocks:
                return []
        elif old and self.waiting_tokens < params.max_waiting_tokens:
            at_least = math.floor(len(old) * Fraction(params.waiting_served_ratio))
        if len(self.queue) < at_least:
            return []
        budget = math.ceil(budget / params.block_size_tokens) * params.block_size_tokens
        new: list[Live] = []
        while self.queue and budget > 0:
            live = self.queue[0]
            if not self._take(live):
                break
            length = live.prompt_left
            if length > budget and not params.prefill_chunking:
                self.batch.remove(live)
                break
            live.chunk = min(length, budget)
            budget -= live.chunk
            self.queue.pop(0)
            new.append(live)
        if len(new) < at_least:  # only without prefix cache: nothing is left behind
            for live in reversed(new):
                self.batch.remove(live)
                self.queue.insert(0, live)
            return []
        return new

    # ---------------------------------------------------------------- memory

    def _blocks(self, live: Live) -> int:
        request = live.request
        return math.ceil((request.input_tokens + request.max_tokens - 1) / self.params.block_size_tokens)

    def _empty(self) -> int:
        """Blocks that hold nothing."""
        own = sum(self._blocks(live) - len(live.shared) for live in self.batch)
        return self.params.num_kv_blocks - len(self.cache) - own

    def _available(self) -> int:
        """Blocks that hold nothing or only what nobody uses."""
        return self._empty() + sum(block.users == 0 for block in self.cache)

    def _forget(self, count: int) -> None:
        """Forget cached blocks that nobody uses, those used longest ago and last in their prompt first."""
        unused = sorted((b for b in self.cache if b.users == 0), key=lambda b: (b.used_at, -b.place))
        for block in unused[:count]:
            self.cache.remove(block)

    def _find(self, live: Live) -> list[Cached]:
        by_identity = {block.identity: block for block in self.cache}
        found = []
        for place in range(live.request.input_tokens // self.params.block_size_tokens):
            block = by_identity.get(live.identity(place))
            if block is None:
                break
            found.append(block)
        return found

    def _take(self, live: Live) -> bool:
        """Set a request's blocks aside and let it join the batch; False if they are not there."""
        shared = self._find(live) if self.params.prefix_caching else []
        for block in shared:
            block.users += 1
        needed = self._blocks(live) - len(shared)
        if needed > self._available():
            self.flushes += sum(block.users == 0 for block in self.cache)
            self._forget(len(self.cache))
            for block in shared:
                block.users -= 1
            return False
        self._forget(needed - self._empty() if needed > self._empty() else 0)
        live.shared = shared
        live.computed = min(len(shared) * self.params.block_size_tokens, live.request.input_tokens - 1)
        live.cached_tokens = live.computed
        self.batch.append(live)
        return True

    def _give_back(self, live: Live) -> None:
        for block in live.shared:
            block.users -= 1
        if not self.params.prefix_caching:
            return
        self.uses += 1
        found = self._find(live)
        for block in found:
            block.used_at = self.uses
        for place in range(len(found), live.request.input_tokens // self.params.block_size_tokens):
            self.cache.append(Cached(live.identity(place), users=0, used_at=self.uses, place=place))
