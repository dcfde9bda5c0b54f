"""TensorRT-LLM's V1 scheduler, step by step and in plain Python, to be read beside ``docs/trtllm-scheduler.md``.

Nothing here is fast: one object a request and a KV block, lists for queues, one event a loop iteration. It shares no
code with the numba kernel.

Life of a request: ``submit`` -> waiting list -> started (it holds blocks; its prompt is computed, perhaps in chunks,
then one row a step) -> its last token is processed. A paused request goes back to the waiting list.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from oracle import plain_engine
from oracle.plain_engine import PlainEngine, Request, Row
from servewise.types import StepTable

Identity = int | tuple[str, int, int]
"""A full block's content and all before it: a named identity, or ``("own", request id, index)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The engine's settings. ``counts_reuse``: the scheduler knows what is cached before it starts a request (1.3)."""

    policy: Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"]
    max_batch_size: int
    max_num_tokens: int
    num_kv_blocks: int
    block_size_tokens: int
    enable_block_reuse: bool
    counts_reuse: bool
    enable_chunked_prefill: bool
    batch_wait_timeout_iters: int = 0
    batch_wait_max_tokens_ratio: float = 0.0


# ---------------------------------------------------------------------- blocks


@dataclass(slots=True, eq=False)
class Block:
    """A KV block: free (``ref`` 0, in the queue) or held by ``ref`` requests; findable or not."""

    ref: int = 0
    identity: Identity | None = None


class Blocks:
    """All blocks: a queue of free ones in order of reuse, and the findable ones by what they contain."""

    def __init__(self, num_blocks: int) -> None:
        self.free = [Block() for _ in range(num_blocks)]
        self.findable: dict[Identity, Block] = {}
        self.copies = 0

    def take(self) -> Block:
        """The block at the front of the queue; its old content is forgotten."""
        block = self.free.pop(0)
        if block.identity is not None:
            del self.findable[block.identity]
            block.identity = None
        block.ref = 1
        return block

    def share(self, block: Block) -> None:
        """One more request holds this block."""
        if block.ref == 0:
            self.free.remove(block)
        block.ref += 1

    def store(self, block: Block, identity: Identity) -> None:
        """Make a full block findable, unless another one with its content is."""
        if identity not in self.findable:
            self.findable[identity] = block
            block.identity = identity
        else:
            self.copies += 1

    def release(self, blocks: list[Block]) -> None:
        """A request lets go of its blocks, the last one first."""
        for block in reversed(blocks):
            block.ref -= 1
            if block.ref == 0:
                self.free.append(block)


# ---------------------------------------------------------------------- requests


@dataclass(slots=True, eq=False)
class Live(plain_engine.Live):
    """A request inside the engine.

    ``generated`` tokens were processed, ``in_flight`` more are on their way. Of the ``target`` tokens that were known
    when it was started last, ``computed`` have a place in the KV cache (and of what it generated since).
    """

    number: int = 0
    in_flight: int = 0
    computed: int = 0
    target: int = 0
    blocks: list[Block] = field(default_factory=list)
    num_stored: int = 0  # of its blocks that are findable, or were found to be copies
    cached_tokens: int = -1

    @property
    def known(self) -> int:
        """Tokens of its prompt and of its output that were processed."""
        return self.request.input_tokens + self.generated

    @property
    def prompt_left(self) -> int:
        """Tokens of its prompt, as it was started last, that no step has taken yet."""
        return max(self.target - self.computed, 0)

    @property
    def last_token_is_known(self) -> bool:
        """Whether the engine knows, by length, that its last token is on its way."""
        return self.generated + self.in_flight >= self.request.max_tokens

    def identity(self, index: int) -> Identity:
        """What its full block ``index`` contains."""
        named = self.request.block_ids
        return named[index] if index < len(named) else ("own", self.request.id, index)


class Engine(PlainEngine):
    """One replica."""

    def __init__(self, params: Params, times: StepTable) -> None:
        super().__init__(params, times)
        self.pool = Blocks(params.num_kv_blocks)
        self.waiting: list[Live] = []  # in order of arrival
        self.started: list[Live] = []  # in order of arrival
        self.planned: list[Row] = []  # the step after it
        self.waited = 0  # plans in which prompts waited for more of them
        self.deferrals = 0
        self.robberies = 0  # requests paused to start another one

    def _new_live(self, request: Request) -> Live:
        return Live(request, number=len(self.lives))

    # ---------------------------------------------------------------- time

    def _begin(self, now_s: float) -> None:
        """Start the planned step and plan the one after it; plan first if nothing is planned."""
        self.begin_s = math.inf
        self.waiting += self._arrived(now_s)
        rows = self.planned or self._plan()
        self.planned = []
        if not rows:
            assert not self.started, "a request is started but nothing can be planned"
            assert not self.waiting, "a request waits for an empty engine"
            return
        self._start_step(rows, now_s)
        self.planned = self._plan()

    def _process_outputs(self) -> None:
        """Store the prompts that the step has finished, deliver its tokens, let finished requests go."""
        ended = []
        for row in self.step:
            if row.is_prefill and row.samples and row.live.blocks:  # else it has been paused since
                self._store(row.live, row.start + row.tokens)
        for row in self.step:
            live = row.live
            if live.finished or not row.samples:  # finished: this was its wasted row
                continue
            live.in_flight -= 1
            live.emit(self.step_end_s)
            if live.finished:
                ended.append(live)
        for live in sorted(ended, key=lambda live: live.number):
            if live in self.waiting:  # paused while its last token was in flight
                self.waiting.remove(live)
                continue
            self.started.remove(live)
            self._release(live, live.known - 1)
        self._end_step()

    # ---------------------------------------------------------------- plan

    def _plan(self) -> list[Row]:
        paused: list[Live] = []
        while self.evicts and self._growth() > len(self.pool.free):
            paused.append(self._pause(self.started[-1]))
        prompts: list[Row] = []
        unfinished = [live for live in self.started if live.prompt_left > 0]
        for live in unfinished:
            tokens, budget = live.prompt_left, self.params.max_num_tokens - self._num_decoding()
            if tokens > budget:
                tokens = budget - budget % self.params.block_size_tokens
            if tokens > 0:
                prompts.append(self._row(live, tokens))
        if not any(live.prompt_left > 0 for live in unfinished) and not self._must_wait(unfinished, paused):
            self._start(prompts, unfinished, paused)
        in_prompts = [row.live for row in prompts]
        decoding = [live for live in self._decoding() if live not in in_prompts]
        for live in decoding:
            live.blocks += [self.pool.take() for _ in range(self._next_block(live))]
        rows = prompts + [self._row(live, 1) for live in decoding]
        self.peak_running = max(self.peak_running, len(self.started))
        self.peak_blocks = max(self.peak_blocks, self.params.num_kv_blocks - self._available())
        return rows

    @property
    def evicts(self) -> bool:
        """Whether requests are paused when memory runs out."""
        return self.params.policy == "MAX_UTILIZATION"

    def _decoding(self) -> list[Live]:
        """Those who get one token, besides those whose prompt ends in this very plan."""
        return [live for live in self.started if live.prompt_left == 0 and not live.last_token_is_known]

    def _num_decoding(self) -> int:
        return len(self._decoding())

    def _next_block(self, live: Live) -> int:
        """Blocks that one more token needs, 0 or 1."""
        return int(live.computed >= len(live.blocks) * self.params.block_size_tokens)

    def _growth(self) -> int:
        """Blocks that the decode rows of this plan begin (of a prompt that just ended: the whole of it is there)."""
        return sum(self._next_block(live) for live in self._decoding())

    def _available(self) -> int:
        """Free blocks that are not spoken for."""
        if self.evicts:
            return len(self.pool.free)
        return len(self.pool.free) - sum(self._reserved(live) - len(live.blocks) for live in self.started)

    def _reserved(self, live: Live) -> int:
        return math.ceil((live.request.input_tokens + live.request.max_tokens) / self.params.block_size_tokens)

    def _pause(self, live: Live) -> Live:
        self.started.remove(live)
        self._release(live, live.computed if live.prompt_left > 0 else live.known - 1)
        live.computed = live.target = 0
        live.num_preemptions += 1
        self.waiting = sorted([*self.waiting, live], key=lambda live: live.number)
        return live

    # ---------------------------------------------------------------- start

    def _candidates(self, paused: list[Live]) -> list[Live]:
        """Active requests that wait; none that arrived after a paused one."""
        seats = max(self.params.max_batch_size - len(self.started), 0)
        limit = min((live.number for live in paused), default=len(self.lives))
        return [live for live in self.waiting[:seats] if live.number < limit]

    def _start(self, prompts: list[Row], unfinished: list[Live], paused: list[Live]) -> None:
        """Start waiting requests in order until one does not fit."""
        decoding = [live for live in self._decoding() if live not in [row.live for row in prompts]]
        budget = self.params.max_num_tokens - len(decoding) - sum(row.tokens for row in prompts)
        growth = sum(self._next_block(live) for live in decoding)
        computing = {self._first_new(live) for live in unfinished} - {None}
        for live in self._candidates(paused):
            if paused and live.number > min(p.number for p in paused):
                return
            first_new = self._first_new(live)
            if first_new in computing:
                self.deferrals += 1
                continue
            if first_new is not None:
                computing.add(first_new)
            hits = self._find(live)
            while self.evicts and self._needed(live, hits) > self._available() - growth:
                last = self.started[-1] if self.started else live
                if last.number <= live.number or last.prompt_left > 0 or last in [row.live for row in prompts]:
                    return
                if last in decoding:
                    decoding.remove(last)
                    budget += 1
                    growth -= self._next_block(last)
                paused.append(self._pause(last))
                self.robberies += 1
            if self._needed(live, hits) > self._available() - (growth if self.evicts else 0):
                return
            counted, tokens = self._chunk(live, len(hits), budget)
            if tokens == 0:
                return
            cut = self._counts_as(live, len(hits)) > budget
            budget -= counted
            self._take(live, hits)
            prompts.append(self._row(live, tokens))
            if cut:
                return

    def _take(self, live: Live, hits: list[Block]) -> None:
        self.waiting.remove(live)
        self.started = sorted([*self.started, live], key=lambda live: live.number)
        for block in hits:
            self.pool.share(block)
        total = math.ceil(live.known / self.params.block_size_tokens)
        live.num_stored = len(hits)
        live.blocks = hits + [self.pool.take() for _ in range(total - len(hits))]
        live.computed = len(hits) * self.params.block_size_tokens
        live.target = live.known
        if live.cached_tokens < 0:
            live.cached_tokens = live.computed

    def _needed(self, live: Live, hits: list[Block]) -> int:
        """Blocks that must be there to start it."""
        total = math.ceil(live.known / self.params.block_size_tokens) if self.evicts else self._reserved(live)
        return total - sum(block.ref > 0 for block in hits) if self.params.counts_reuse else total

    def _counts_as(self, live: Live, num_hits: int) -> int:
        """Tokens of the budget that its whole prompt counts as."""
        return live.known - num_hits * self.params.block_size_tokens if self.params.counts_reuse else live.known

    def _chunk(self, live: Live, num_hits: int, budget: int) -> tuple[int, int]:
        """Tokens that its next chunk counts as, and those it computes; 0 when it has to wait."""
        counted = self._counts_as(live, num_hits)
        if counted > budget:
            may_cut = self.params.enable_chunked_prefill or counted > self.params.max_num_tokens
            counted = budget - budget % self.params.block_size_tokens if may_cut else 0
        return counted, min(counted, live.known - num_hits * self.params.block_size_tokens)

    def _must_wait(self, unfinished: list[Live], paused: list[Live]) -> bool:
        """Whether the prompts that would start are too few to disturb the decode rows with; counts such plans."""
        num_decoding = self._num_decoding()
        if unfinished or num_decoding == 0 or self.params.batch_wait_timeout_iters == 0:
            return False
        tokens, budget = num_decoding, self.params.max_num_tokens - num_decoding
        free = self._available() - (self._growth() if self.evicts else 0)
        computing: set[Identity] = set()
        any_prompt = False
        for live in self._candidates(paused):
            first_new = self._first_new(live)
            if first_new in computing:
                continue
            if first_new is not None:
                computing.add(first_new)
            hits = self._find(live)
            counted = self._counts_as(live, len(hits))
            if self._needed(live, hits) > free or counted > budget:
                break
            any_prompt = True
            free -= self._needed(live, hits)
            budget -= counted
            tokens += counted
        enough = self.params.batch_wait_max_tokens_ratio * self.params.max_num_tokens
        if any_prompt and tokens < enough and self.waited < self.params.batch_wait_timeout_iters:
            self.waited += 1
            return True
        if any_prompt:
            self.waited = 0
        return False

    # ---------------------------------------------------------------- blocks

    def _find(self, live: Live) -> list[Block]:
        """The longest run of findable blocks from the start that leaves at least one token to compute."""
        hits: list[Block] = []
        for index in range((live.known - 1) // self.params.block_size_tokens):
            block = self.pool.findable.get(live.identity(index))
            if block is None:
                break
            hits.append(block)
        return hits

    def _first_new(self, live: Live) -> Identity | None:
        """The first full block of its prompt that cannot be found."""
        if not self.params.enable_block_reuse:
            return None
        for index in range((live.target or live.known) // self.params.block_size_tokens):
            if live.identity(index) not in self.pool.findable:
                return live.identity(index)
        return None

    def _store(self, live: Live, num_tokens: int) -> None:
        """Make the blocks findable that its first ``num_tokens`` tokens fill."""
        if self.params.enable_block_reuse:
            for index in range(live.num_stored, num_tokens // self.params.block_size_tokens):
                self.pool.store(live.blocks[index], live.identity(index))
                live.num_stored = index + 1

    def _release(self, live: Live, num_known: int) -> None:
        self._store(live, num_known)
        self.pool.release(live.blocks)
        live.blocks = []
        live.num_stored = 0

    def _row(self, live: Live, tokens: int) -> Row:
        is_prefill = live.prompt_left > 0
        start = live.computed
        live.computed += tokens
        samples = live.prompt_left == 0
        live.in_flight += samples
        return Row(live=live, tokens=tokens, start=start, is_prefill=is_prefill, samples=samples)
