"""SGLang 0.5.23's scheduler, step by step and in plain Python, to be read beside ``docs/sglang-scheduler.md``.

One object a request, lists for queues, one event a loop iteration; no code is shared with the numba kernel.

Life of a request: ``submit`` -> waiting list -> a batch of prompts, perhaps as the chunked request of several ->
running batch, one row a decode step -> its last token is processed. A retracted request goes back to the waiting list.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal

from oracle import plain_engine
from oracle.plain_engine import PlainEngine, Request, Row
from oracle.radix_plain import Content, Node, RadixTree
from servewise.types import StepTable

CLIP_TOKENS = 4096
DECAY_STEPS = 600
RETRACT_STEPS = 20
LOOKED_UP = 128
REFRESH_EVERY = 32
DEFER_TOKENS = 32


def common_pages(some: list[Content], others: list[Content]) -> int:
    """Pages that two requests begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(some, others, strict=False)))


class StuckError(Exception):
    """The engine can make no step although requests are in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The engine's settings, spelt as SGLang spells them."""

    max_running_requests: int
    chunked_prefill_size: int
    num_pages: int
    page_size: int
    max_prefill_tokens: int = 16384
    schedule_policy: Literal["fcfs", "lpm"] = "fcfs"
    schedule_conservativeness: float = 1.0
    enable_mixed_chunk: bool = False
    disable_radix_cache: bool = False
    ignore_eos: bool = False
    in_batch_prefix_caching_check_threshold: int = 32

    @property
    def block_size_tokens(self) -> int:
        """As routers call it."""
        return self.page_size

    @property
    def num_kv_blocks(self) -> int:
        """As memory reports call it."""
        return self.num_pages

    @property
    def most_running(self) -> int:
        """Requests that may run at once."""
        return min(self.max_running_requests, self.num_pages * self.page_size // 2)


@dataclass(slots=True, eq=False)
class Live(plain_engine.Live):
    """A request inside the engine: ``in_flight`` tokens more than were processed are on their way.

    ``computed`` tokens have a place, ``kept`` pages of them in the tree, up to ``node``.
    """

    max_tokens: int = 0
    in_flight: int = 0
    computed: int = 0
    kept: int = 0
    node: Node | None = None
    retracted: bool = False
    cached_tokens: int = -1

    @property
    def known(self) -> int:
        """Tokens of the prompt and of processed output."""
        return self.request.input_tokens + self.generated

    @property
    def ends_in_flight(self) -> bool:
        """Whether the engine knows, by length, that its last token is in flight."""
        return self.in_flight > 0 and self.generated + self.in_flight >= self.max_tokens

    def contents(self, pages: int) -> list[Content]:
        """What its first pages contain."""
        named = self.request.block_ids[:pages]
        return [*named, *(("own", self.request.id, index) for index in range(len(named), pages))]


@dataclass(slots=True)
class Budget:
    """What a batch of prompts can still give away."""

    chunk: int
    input: int
    weighted: float
    taken: int
    rows: list[Row] = field(default_factory=list)


class Engine(PlainEngine):
    """One replica."""

    def __init__(self, params: Params, times: StepTable) -> None:
        super().__init__(params, times)
        self.tree = RadixTree(params.num_pages)
        self.waiting: list[Live] = []
        self.running: list[Live] = []  # the batch, in order
        self.joining: list[Live] = []  # prompts that are complete with the running step, not yet in the batch
        self.chunked: Live | None = None
        self.mixed_behind: list[Live] = []  # decode rows of a mixed step: they come after its prompts
        self.latch = False
        self.somebody_left = False
        self.chunk_ran = False
        self.tried = 0
        self.init = min(0.7 * params.schedule_conservativeness, 1.0)
        self.ratio_start = self.init
        self.ratio_steps = 0
        self.planned: list[Row] = []  # the step after it

    def _new_live(self, request: Request) -> Live:
        capacity = self.params.num_pages * self.params.page_size
        paged = self._pages(request.input_tokens) * self.params.page_size
        room = capacity - paged - self.params.page_size - 1
        live = Live(request, max_tokens=min(request.max_tokens, room))
        assert request.output_tokens <= live.max_tokens, "a request that the engine would cut"
        return live

    # ---------------------------------------------------------------- time

    def _begin(self, now_s: float) -> None:
        """Start the planned step and plan the one after it; plan first if nothing is planned."""
        self.begin_s = math.inf
        self.waiting += self._arrived(now_s)
        rows = self.planned or self._plan()
        self.planned = []
        if not rows:
            if self.running or self.waiting or self.chunked:
                raise StuckError
            self.ratio_start, self.ratio_steps = self.init, 0
            return
        self._start_step(rows, now_s)
        self.planned = self._plan()

    def _process_outputs(self) -> None:
        """Deliver the tokens of the step that ends now; ended requests leave."""
        for row in self.step:
            live = row.live
            if live.finished or live.retracted or not row.samples:  # a wasted row, a lost token, an unfinished chunk
                continue
            live.in_flight -= 1
            live.emit(self.step_end_s)
            if live.finished:
                self.somebody_left = True
                if live in self.running:
                    self.running.remove(live)
                self._finish(live)
            elif row.is_prefill:
                self._checkpoint(live, row.start + row.tokens)
        for row in self.step:
            row.live.retracted = False
        self._end_step()

    # ---------------------------------------------------------------- pages

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.params.page_size)

    @property
    def unheld(self) -> int:
        """Pages that are available or could be."""
        return self.tree.available + self.tree.evictable

    def _checkpoint(self, live: Live, tokens: int) -> None:
        if self.params.disable_radix_cache:
            return
        pages = tokens // self.params.page_size
        found, node = self.tree.insert(live.contents(pages))
        prompt = live.request.input_tokens // self.params.page_size
        if 0 < prompt < pages:
            self.tree.look_up(live.contents(prompt))
        self.tree.available += found - live.kept
        self.tree.hold(node)
        if live.node is not None:
            self.tree.let_go(live.node)
        live.node, live.kept = node, pages

    def _finish(self, live: Live) -> None:
        self._checkpoint(live, live.computed)
        self._give_up(live)

    def _give_up(self, live: Live) -> None:
        self.tree.available += self._pages(live.computed) - live.kept
        if live.node is not None:
            self.tree.let_go(live.node)
        live.node, live.kept, live.computed = None, 0, 0

    # ---------------------------------------------------------------- plan

    def _plan(self) -> list[Row]:
        if self.chunked is not None and self.chunk_ran:
            self._checkpoint(self.chunked, self.chunked.computed)
        nobody_ran = not self.running
        if self.mixed_behind:
            self.running = self.joining + [live for live in self.mixed_behind if live in self.running]
        else:
            self.running = self.running + self.joining
        if self.somebody_left or (self.chunked is not None and self.chunk_ran) or not self.running:
            self.latch = False
        if self.mixed_behind or (self.joining and nobody_ran):
            self.latch = False
        self.somebody_left, self.chunk_ran = False, False
        self.joining, self.mixed_behind = [], []

        rows = self._plan_prompts()
        if not rows:
            rows = self._plan_decode()
        elif self.params.enable_mixed_chunk:
            rows += self._decode_rows_beside_prompts()
        holders = self.running + self.joining + ([self.chunked] if self.chunked else [])
        self.peak_running = max(self.peak_running, len(holders))
        self.peak_blocks = max(self.peak_blocks, self.params.num_pages - self.unheld)
        return rows

    def _row(self, live: Live, tokens: int, *, is_prefill: bool) -> Row:
        start = live.computed
        live.computed += tokens
        samples = not is_prefill or live.computed == live.known
        live.in_flight += samples
        return Row(live=live, tokens=tokens, start=start, is_prefill=is_prefill, samples=samples)

    @property
    def ratio(self) -> float:
        """Share of what running requests may still produce that is set aside."""
        if self.params.ignore_eos:
            return 1.0
        least = 0.14 * self.init
        return max(self.ratio_start - self.ratio_steps * ((self.init - least) / DECAY_STEPS), least)

    def _rest(self, budget: Budget) -> float:
        return self.params.page_size * self.unheld - (budget.weighted + budget.taken)

    # ---------------------------------------------------------------- prompts

    def _plan_prompts(self) -> list[Row]:
        params = self.params
        if self.chunked is None:
            if not self.waiting or self.latch:
                return []
            if not self._has_seat([]):
                self.latch = True
                return []
        self._order_waiting()
        spoken_for = sum(min(live.max_tokens - live.generated, CLIP_TOKENS) for live in self.running)
        mixed = len(self.running) if params.enable_mixed_chunk else 0
        budget = Budget(
            chunk=params.chunked_prefill_size - mixed,
            input=params.max_prefill_tokens - mixed,
            weighted=self.ratio * spoken_for,
            taken=mixed,
        )
        if self.chunked is not None and not self._continue_chunk(self.chunked, budget):
            return []
        while self.waiting and not self._is_complete(budget) and self._admit(self.waiting[0], budget):
            self.waiting.pop(0)
            if self._rest(budget) <= 0:
                self.latch = True
                break
        if budget.rows:
            tokens = sum(row.tokens for row in budget.rows)
            self.tree.evict(self._pages(tokens) + (len(budget.rows) if params.page_size > 1 else 0))
            for row in budget.rows:
                self.tree.available -= self._pages(row.start + row.tokens) - self._pages(row.start)
            assert self.tree.available >= 0, "a batch of prompts does not fit"
        return budget.rows

    def _has_seat(self, batch: list[Row]) -> bool:
        """Whether one more request may run beside those of the batch."""
        return len(self.running) + len(batch) < self.params.most_running

    def _order_waiting(self) -> None:
        if self.params.disable_radix_cache or not self.waiting:
            return
        page = self.params.page_size
        if self.params.schedule_policy == "fcfs":
            self.tried += 1
            if self.tried % REFRESH_EVERY == 1:
                for live in reversed(self.waiting[:LOOKED_UP]):
                    self.tree.look_up(live.contents(live.known // page))
        elif len(self.waiting) <= LOOKED_UP:
            found = {live: self.tree.look_up(live.contents(live.known // page))[0] * page for live in self.waiting}
            deferred = self._deferred(found)
            self.waiting.sort(key=lambda live: math.inf if live in deferred else -min(found[live], live.known - 1))

    def _deferred(self, found: dict[Live, int]) -> list[Live]:
        """Waiting requests of which the tree has little, and one before them in the list a lot."""
        page = self.params.page_size
        deferred: list[Live] = []
        first: list[list[Content]] = []
        for live in self.waiting:
            if found[live] > self.params.in_batch_prefix_caching_check_threshold:
                continue
            contents = live.contents(live.known // page)
            if any(page * common_pages(contents, other) >= DEFER_TOKENS for other in first):
                deferred.append(live)
            else:
                first.append(contents)
        return deferred

    def _continue_chunk(self, live: Live, budget: Budget) -> bool:
        """The chunked request's next chunk; False if there is no room for it."""
        limit = min(budget.chunk, math.floor(self._rest(budget)))
        if limit <= 0:
            limit = budget.chunk
        tokens = min(live.known - live.computed, limit)
        if self._pages(live.computed + tokens) - self._pages(live.computed) > self.unheld:
            return False
        self._add_prompt(live, tokens, budget)
        return True

    def _is_complete(self, budget: Budget) -> bool:
        return self._rest(budget) > 0 and (budget.chunk <= 0 or budget.input <= 0)

    def _admit(self, live: Live, budget: Budget) -> bool:
        """Whether a waiting request joins the batch."""
        params, page = self.params, self.params.page_size
        if not self._has_seat(budget.rows):
            self.latch = True
            return False
        hit, node = 0, None
        if not params.disable_radix_cache:
            hit, node = self.tree.look_up(live.contents((live.known - 1) // page))
            self.tree.hold(node)
        ext = live.known - hit * page
        more = min(max(live.max_tokens - live.generated, 0), CLIP_TOKENS)
        tokens = ext
        if not ext + more + page < self._rest(budget):
            self.latch = bool(self.running or budget.rows)
            tokens = 0
        elif self._pages(ext) * page > budget.chunk:
            tokens = budget.chunk // page * page
        if tokens == 0:
            if node is not None:
                self.tree.let_go(node)
            return False
        live.node, live.kept, live.computed = node, hit, hit * page
        if live.cached_tokens < 0:
            live.cached_tokens = hit * page
        self._add_prompt(live, tokens, budget)
        return True

    def _add_prompt(self, live: Live, tokens: int, budget: Budget) -> None:
        page = self.params.page_size
        row = self._row(live, tokens, is_prefill=True)
        budget.rows.append(row)
        charged = self._pages(tokens) * page
        budget.chunk -= charged
        budget.input -= charged
        budget.taken += charged + page
        if row.samples:
            budget.taken += min(live.max_tokens, CLIP_TOKENS)
            self.joining.append(live)
            if self.chunked is live:
                self.chunked = None
        else:
            self.chunked = live
            self.chunk_ran = True

    # ---------------------------------------------------------------- decoding

    def _pages_needed(self, lives: list[Live]) -> int:
        return sum(live.computed % self.params.page_size == 0 for live in lives)

    def _take_decode_pages(self, lives: list[Live]) -> list[Row]:
        needed = self._pages_needed(lives)
        self.tree.evict(len(lives) if self.params.page_size > 1 else needed)
        self.tree.available -= needed
        assert self.tree.available >= 0
        return [self._row(live, 1, is_prefill=False) for live in lives]

    def _decode_rows_beside_prompts(self) -> list[Row]:
        lives = [live for live in self.running if not live.ends_in_flight]
        if not lives:
            return []
        self.tree.evict(self._pages_needed(lives))
        if self._pages_needed(lives) > self.unheld:
            return []
        self.mixed_behind = lives
        return self._take_decode_pages(lives)

    def _plan_decode(self) -> list[Row]:
        lives = [live for live in self.running if not live.ends_in_flight]
        if not lives:
            return []
        self.tree.evict(self._pages_needed(lives))
        if self._pages_needed(lives) <= self.unheld:
            self.ratio_steps += 1
        elif len(lives) < len(self.running):
            return []  # those that end leave their pages
        else:
            self._retract(lives)
        return self._take_decode_pages(lives)

    def _retract(self, lives: list[Live]) -> None:
        if len(lives) == 1:
            raise StuckError
        first = True
        while first or self._pages_needed(lives) > self.unheld:
            if len(lives) == 1:
                break
            first = False
            order = {id(live): place for place, live in enumerate(lives)}
            victim = min(lives, key=lambda live: (live.generated, -live.request.input_tokens, -order[id(live)]))
            lives.remove(victim)
            self.running.remove(victim)
            self._give_up(victim)
            self.tree.evict(self._pages(RETRACT_STEPS * len(lives)))
            victim.retracted, victim.in_flight = victim.in_flight > 0, 0
            victim.num_preemptions += 1
            self.somebody_left = True
            self.waiting.append(victim)
            self.tree.evict(self._pages_needed(lives))
        if self._pages_needed(lives) > self.unheld:
            raise StuckError
        produced = sum(live.generated for live in lives) + RETRACT_STEPS * len(lives)
        self.ratio_start = min(produced / (sum(live.max_tokens for live in lives) + 1), 1.0)
        self.ratio_steps = 0
