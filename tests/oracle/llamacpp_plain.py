"""llama.cpp's server, alone or under Ollama, step by step and in plain Python.

To be read beside ``docs/llamacpp-scheduler.md``. One object a slot and a request, lists for queues, one event a loop
iteration; no code is shared with the numba kernel.

Life of a request: ``submit`` -> waiting list -> a slot, with what of its prompt is there already -> its prompt is
computed, perhaps over several steps -> one token a step -> the slot is released and keeps its content.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction

from oracle.plain_engine import Live, PlainEngine, Request, StepRecord
from servewise.types import StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The server's settings; ``context`` is that of a slot, ``cells`` are those of a stream, which may be more;
    ``block_size_tokens`` is the workload's.

    ``is_ollama`` takes waiting requests first in, first out. ``keep_alive_s`` is infinite for a server that never
    unloads. ``host_tokens`` tokens of contents may be in the host's memory, each copied in ``copy_s``.
    """

    num_slots: int
    cells: int
    context: int
    n_batch: int
    n_ubatch: int
    is_unified: bool
    has_windows: bool = False
    context_shift: bool = False
    n_keep: int = 1
    is_ollama: bool = False
    keep_alive_s: float = math.inf
    load_s: float = 0.0
    starts_loaded: bool = True
    block_size_tokens: int = 1
    host_tokens: int = 0
    copy_s: float = 0.0

    @property
    def is_split(self) -> bool:
        """Whether every slot has a stream of its own."""
        return self.num_slots > 1 and not self.is_unified


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A content on the host: ``content`` tokens of ``owner``'s prompt and output, if ``matches``."""

    content: int
    owner: Request
    matches: bool


@dataclass(slots=True, eq=False)
class Slot:
    """A slot: ``content`` tokens in its cache, of ``owner``'s prompt and output if ``matches``."""

    id: int
    live: Live | None = None
    content: int = 0
    owner: Request | None = None
    matches: bool = True
    released: int = -1

    @property
    def prompt_left(self) -> int:
        """Tokens of its request's prompt to compute; 0 once one token was delivered."""
        if self.live is None or self.live.generated > 0:
            return 0
        return self.live.request.input_tokens - self.content

    @property
    def generates(self) -> bool:
        """Whether its request has its first token."""
        return self.live is not None and self.live.generated > 0

    def clear(self) -> None:
        """Forget the content."""
        self.content, self.owner = 0, None


@dataclass(slots=True, eq=False)
class Entry:
    """A slot's part of a batch: ``tokens`` to compute, of its prompt or the last one sampled."""

    slot: Slot
    tokens: int
    is_prompt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A slot's part of one pass: ``tokens`` after ``start`` others."""

    slot: Slot
    tokens: int
    start: int
    is_prompt: bool
    samples: bool


class Engine(PlainEngine):
    """One replica."""

    def __init__(self, params: Params, times: StepTable) -> None:
        super().__init__(params, times)
        self.waiting: list[Live] = []
        self.slots = [Slot(i) for i in range(params.num_slots)]
        self.num_released = 0  # slots released by the last step
        self.clock = 0  # counts releases
        self.idle_since_s = math.inf if params.starts_loaded else -math.inf
        self.passes: list[list[tuple[int, int]]] = []  # of every step: slot and tokens of every part of every pass
        self.num_loads = 0
        self.host: list[Saved] = []  # oldest first
        self.copied_tokens = 0  # since the plan began

    def _new_live(self, request: Request) -> Live:
        return Live(request)

    # ---------------------------------------------------------------- time

    def _load(self, now_s: float) -> None:
        self.num_loads += 1
        self.slots = [Slot(i) for i in range(self.params.num_slots)]
        self.host = []
        self.begin_s = now_s + self.params.load_s

    def _begin(self, now_s: float) -> None:
        if self.begin_s == math.inf and now_s - self.idle_since_s > self.params.keep_alive_s:
            self._load(now_s)
            return
        self.begin_s = math.inf
        while True:
            self._fill_slots(now_s)
            if self.copied_tokens:  # the plan goes on when all is copied, and sees who has come meanwhile
                self.begin_s = now_s + self.copied_tokens * self.params.copy_s
                self.copied_tokens = 0
                return
            if not any(slot.live for slot in self.slots):
                assert not self.waiting, "a request waits for an empty server"
                return
            for slot in self.slots:
                self._shift(slot)
            batch = self._batch()
            if self._find_room(sum(entry.tokens for entry in batch)):
                break
            self._fail_all(now_s)
        self.step = [Entry(entry.slot, entry.tokens, entry.is_prompt) for entry in batch]
        passes = self._split_passes(batch) if self.params.is_split else self._simple_passes(batch)
        duration_s = math.fsum(self._pass_duration(parts) for parts in passes)
        self.step_end_s = now_s + duration_s
        rows = tuple((entry.slot.live.request.id, entry.tokens) for entry in self.step if entry.slot.live)
        self.steps.append(StepRecord(start_s=now_s, duration_s=duration_s, rows=rows))
        self.passes.extend([(part.slot.id, part.tokens) for part in parts] for parts in passes)
        busy = [slot for slot in self.slots if slot.live]
        self.peak_running = max(self.peak_running, len(busy))
        self.peak_blocks = max(self.peak_blocks, sum(slot.content for slot in busy))

    def _process_outputs(self) -> None:
        """Deliver the tokens of the step that ends now and release the slots of what has ended."""
        now_s = self.step_end_s
        self.num_released = 0
        for slot in self.slots:
            live = slot.live
            if live is None or not any(entry.slot is slot for entry in self.step) or slot.prompt_left > 0:
                continue
            live.emit(now_s)
            if live.finished:
                self._release(slot, now_s)
        self._end_step()

    def _release(self, slot: Slot, now_s: float) -> None:
        slot.live = None
        slot.released = self.clock
        self.clock += 1
        self.num_released += 1
        self.idle_since_s = now_s

    # ---------------------------------------------------------------- slots

    def _fill_slots(self, now_s: float) -> None:
        """Give free slots to those who waited, then to those who have come."""
        first = self.waiting[: self.num_released]
        del self.waiting[: self.num_released]
        self.num_released = 0
        if not self.params.is_ollama:
            first.reverse()
        first += self._arrived(now_s)
        for live in first:
            free = [slot for slot in self.slots if slot.live is None]
            if free:
                self._take(free, live, now_s)
            else:
                self.waiting.append(live)

    def _common(self, content: Slot | Saved, request: Request) -> int:
        """Tokens at the prompt's start that are the content, as far as whole blocks tell."""
        return min(self._alike(content, request), request.input_tokens)

    def _alike(self, content: Slot | Saved, request: Request) -> int:
        """Tokens of the content with which the request's prompt and output begin, as far as whole blocks tell."""
        if content.owner is None or not content.matches:
            return 0
        blocks = 0
        for mine, other in zip(request.block_ids, content.owner.block_ids, strict=False):
            if mine != other:
                break
            blocks += 1
        return min(blocks * self.params.block_size_tokens, content.content)

    def _begins_with(self, longer: Slot | Saved, shorter: Slot | Saved) -> bool:
        """Whether one content is the start of another."""
        assert longer.owner is not None
        if longer.owner is shorter.owner:  # a request ends once, with one content
            return True
        return longer.matches and min(self._alike(shorter, longer.owner), longer.content) == shorter.content

    def _choose(self, free: list[Slot], request: Request) -> tuple[Slot, bool]:
        """The slot for a request, and whether much of its content would be lost."""
        alike = [slot for slot in free if 10 * self._common(slot, request) > request.input_tokens]
        if alike:
            best = max(alike, key=lambda slot: self._common(slot, request))  # max keeps the first of equals
            return best, self._common(best, request) < best.content / 2
        return min(reversed(free), key=lambda slot: slot.released), True

    def _take(self, free: list[Slot], live: Live, now_s: float) -> None:
        slot, loses = self._choose(free, live.request)
        if self.params.host_tokens and loses:
            self._save(slot)
            self._load_saved(slot, live.request)
        common = self._common(slot, live.request)
        if common == live.request.input_tokens:
            common -= 1
        slot.live, slot.content, slot.owner, slot.matches = live, common, live.request, True
        live.cached_tokens, live.scheduled_s = common, now_s
        if self.params.host_tokens:
            for idle in self.slots:
                if idle.live is None:
                    self._save(idle)
                    if not self.params.is_split:
                        idle.clear()

    # ---------------------------------------------------------------- the host

    def _save(self, slot: Slot) -> None:
        """Copy a content to the host, if it is not the start of one there."""
        if slot.owner is None or slot.content > self.params.host_tokens:
            return
        if any(self._begins_with(saved, slot) for saved in self.host):
            return
        self.host = [saved for saved in self.host if not self._begins_with(slot, saved)]
        while sum(saved.content for saved in self.host) + slot.content > self.params.host_tokens:
            self.host.pop(0)
        self.host.append(Saved(content=slot.content, owner=slot.owner, matches=slot.matches))
        self.copied_tokens += slot.content

    def _load_saved(self, slot: Slot, request: Request) -> None:
        """Take a content from the host that has more of the prompt, and less beside it, than the slot's own."""
        best: Saved | None = None
        most = self._common(slot, request)
        share = Fraction(most, slot.content) if slot.content else Fraction(-1)
        for saved in self.host:
            common = self._common(saved, request)
            kept = Fraction(common, saved.content)
            if kept >= Fraction(1, 4) and kept > share and common > most:
                best, most, share = saved, common, kept
        if best is None:
            return
        others = sum(other.content for other in self.slots if other is not slot)
        if not self.params.is_split and others + best.content > self.params.cells:
            slot.clear()
            return
        self.host.remove(best)
        slot.content, slot.owner, slot.matches = best.content, best.owner, best.matches
        self.copied_tokens += best.content

    def _shift(self, slot: Slot) -> None:
        """Drop half of a full context."""
        if self.params.context_shift and slot.generates and slot.content + 1 >= self.params.context:
            keep = min(self.params.n_keep, self.params.context - 4)
            slot.content -= (slot.content - keep) // 2
            slot.matches = False

    # ---------------------------------------------------------------- a step

    def _batch(self) -> list[Entry]:
        batch = [Entry(slot, 1, False) for slot in self.slots if slot.generates]
        room = self.params.n_batch - len(batch)
        for slot in self.slots:
            tokens = min(self._chunk(slot), room)
            if tokens > 0:
                batch.append(Entry(slot, tokens, True))
                room -= tokens
        return batch

    def _chunk(self, slot: Slot) -> int:
        """Most tokens of a prompt in one step."""
        left = slot.prompt_left
        if self.params.has_windows:
            for rest in (4 + self.params.n_ubatch, 4):
                rest = min(rest, self.params.n_batch)
                if left > rest:
                    return left - rest
        return left

    def _find_room(self, num_tokens: int) -> bool:
        """Whether the cells of a unified cache suffice, perhaps after some idle slots are cleared."""
        if self.params.is_split or self.params.num_slots == 1:
            return True
        for slot in self.slots:
            if sum(s.content for s in self.slots) + num_tokens <= self.params.cells:
                return True
            if slot.live is None:
                slot.clear()
        return sum(s.content for s in self.slots) + num_tokens <= self.params.cells

    def _fail_all(self, now_s: float) -> None:
        self.num_released = 0
        for slot in self.slots:
            if slot.live is not None:
                slot.live.finished = slot.live.rejected = True
                slot.live.last_token_s = now_s
                self._release(slot, now_s)
                slot.clear()

    # ---------------------------------------------------------------- passes

    def _part(self, entry: Entry, tokens: int) -> Part:
        """Compute some of an entry's tokens."""
        start = entry.slot.content
        entry.slot.content += tokens
        entry.tokens -= tokens
        samples = not entry.is_prompt or entry.slot.prompt_left == 0
        return Part(slot=entry.slot, tokens=tokens, start=start, is_prompt=entry.is_prompt, samples=samples)

    def _simple_passes(self, batch: list[Entry]) -> list[list[Part]]:
        """The batch's tokens in order, ``n_ubatch`` a pass. The cells in use are noted as each pass is made."""
        passes: list[list[Part]] = []
        self._kv: list[float] = []
        left = list(batch)
        while left:
            room, parts = self.params.n_ubatch, []
            while left and room > 0:
                parts.append(self._part(left[0], min(left[0].tokens, room)))
                room -= parts[-1].tokens
                if left[0].tokens == 0:
                    left.pop(0)
            passes.append(parts)
            self._note_context(parts)
        return passes

    def _split_passes(self, batch: list[Entry]) -> list[list[Part]]:
        """Neighbouring slots with equally many tokens."""
        passes: list[list[Part]] = []
        self._kv = []
        while any(entry.tokens for entry in batch):
            chosen: list[Entry] = []
            for entry in batch:
                if entry.tokens and (not chosen or entry.slot.id == chosen[-1].slot.id + 1):
                    chosen.append(entry)
            tokens = min(min(entry.tokens for entry in chosen), self.params.n_ubatch // len(chosen))
            passes.append([self._part(entry, tokens) for entry in chosen])
            self._note_context(passes[-1])
        return passes

    def _note_context(self, parts: list[Part]) -> None:
        """Total context of the rows of a pass that has just been made."""
        used = max(part.slot.content for part in parts)
        if not self.params.is_split:
            used = sum(slot.content for slot in self.slots)
        padded = min(math.ceil(used / 256) * 256, self.params.cells)
        rows = sum(not part.is_prompt for part in parts)
        self._kv.append(padded * (rows if self.params.is_split else 1))

    def _pass_duration(self, parts: list[Part]) -> float:
        t = self.times
        n = sum(not part.is_prompt for part in parts)
        prompts = [part for part in parts if part.is_prompt]
        context = self._kv.pop(0)
        attention = 0.0
        if n:
            piece = bisect_right(t.context_knots, context / n) - 1
            attention = t.attention_base_s[n, piece] + t.attention_slope_s[n, piece] * context
        if not prompts:
            return float(t.decode_fixed_s[n] + attention)
        p = sum(part.tokens for part in prompts)
        pairs = sum(sum(range(part.start + 1, part.start + part.tokens + 1)) for part in prompts)
        beside = t.mixed_row_attention_fixed_s * n + t.mixed_row_attention_s_per_token * context if n else 0.0
        sampled = sum(part.samples for part in parts)
        return float(
            t.mixed_tokens_s[n + p]
            + max(attention, beside)
            + t.sample_s[sampled]
            + t.prefill_fixed_s
            + t.prefill_s_per_token * p
            + t.prefill_s_per_pair * pairs
        )
