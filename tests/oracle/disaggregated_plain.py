"""A group of prefill and decode instances, step by step and in plain Python.

To be read beside ``docs/disaggregation.md``. One object a request, lists for queues, one event after another; no
code is shared with the numba kernel.

Life of a request: ``arrive`` -> queue of a P (SGLang: first of a D) -> its prompt is computed, perhaps in chunks ->
queue of a D -> incoming -> ready -> one row a step -> its last token is processed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from oracle.plain_engine import Request, Row, step_duration
from servewise.types import StepTable

SGLANG_PAGES_MORE = 3
"""Pages beyond the prompt's own that must be free on P."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolParams:
    """Settings of all instances of one kind; ``cut`` is what prompts are cut at (0: they are not)."""

    num_instances: int
    max_rows: int
    max_step_tokens: int
    num_kv_blocks: int
    block_size_tokens: int
    lag: bool = True
    cut: int = 1
    charge: int = 1
    reserve_full: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupParams:
    """A group; ``s_per_block`` is the time of one block of the prompt on the wire."""

    engine: Literal["vllm", "sglang", "tensorrt-llm"]
    prefill: PoolParams
    decode: PoolParams
    router: Literal["round_robin", "least_requests"] = "round_robin"
    latency_s: float = 0.0
    s_per_block: float = 0.0
    reserved_tokens: int = 512


@dataclass(slots=True, eq=False)
class Live:
    """A request: ``generated`` tokens are delivered, ``in_flight`` more are being computed."""

    request: Request
    p: int = -1
    d: int = -1
    computed: int = 0  # tokens with a place in the KV cache of the instance that works on it
    target: int = 0  # below so many, what is computed is prefill
    generated: int = 0
    in_flight: int = 0
    p_blocks: int = 0
    d_blocks: int = 0
    sent_blocks: int = 0
    prompt_finished_s: float = math.nan
    arrived_on_d_s: float = math.nan
    first_row_s: float = math.nan
    finished: bool = False
    token_s: list[float] = field(default_factory=list)
    num_preemptions: int = 0

    @property
    def known(self) -> int:
        return self.request.input_tokens + self.generated + self.in_flight

    @property
    def last_token_is_known(self) -> bool:
        """Whether, by length, its last token is on its way."""
        return self.in_flight > 0 and self.generated + self.in_flight >= self.request.max_tokens


class Instance:
    """What P and D share: steps."""

    def __init__(self, group: Group, params: PoolParams, times: StepTable) -> None:
        self.group = group
        self.params = params
        self.times = times
        self.free = params.num_kv_blocks
        self.step: list[Row] = []
        self.step_end_s = math.inf
        self.planned: list[Row] = []
        self.has_ended = False  # a step ended at this instant; the next has not begun
        self.has_let_go = False  # the last plan took blocks from somebody
        self.num_steps = 0
        self.peak_blocks = 0
        self.peak_running = 0

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.params.block_size_tokens)

    def end_step(self, now_s: float) -> None:
        rows, self.step, self.step_end_s = self.step, [], math.inf
        self.has_ended = True
        self.process(rows, now_s)

    def go_on(self, now_s: float) -> None:
        """Begin the planned step, or what can be planned now, and plan the next; nothing while a step runs."""
        if self.step:
            return
        self.has_ended = False
        rows = self.planned or self.make_plan(now_s)
        self.planned = []
        while not rows and self.has_let_go:
            rows = self.make_plan(now_s)
        if rows:
            self.step = rows
            self.step_end_s = now_s + step_duration(self.times, rows)  # type: ignore[arg-type]
            self.num_steps += 1
            if self.params.lag:
                self.planned = self.make_plan(now_s)

    def make_plan(self, now_s: float) -> list[Row]:
        self.has_let_go = False
        rows = self.plan(now_s)
        self.peak_blocks = max(self.peak_blocks, self.params.num_kv_blocks - self.free)
        self.peak_running = max(self.peak_running, self.num_seated())
        assert self.free >= 0
        return rows

    def num_seated(self) -> int:
        raise NotImplementedError

    def plan(self, now_s: float) -> list[Row]:
        raise NotImplementedError

    def process(self, rows: list[Row], now_s: float) -> None:
        raise NotImplementedError


class Prefill(Instance):
    """A prefill instance."""

    def __init__(self, group: Group, params: PoolParams, times: StepTable) -> None:
        super().__init__(group, params, times)
        self.queue: list[Live] = []
        self.seated: list[Live] = []
        self.routed = 0  # requests sent here whose prompt is not finished
        self.egress_free_s = 0.0

    def num_seated(self) -> int:
        return len(self.seated)

    def plan(self, now_s: float) -> list[Row]:
        del now_s
        rows: list[Row] = []
        budget = self.params.max_step_tokens
        while True:
            unfinished = [live for live in self.seated if live.computed < live.request.input_tokens]
            if unfinished:
                live = unfinished[0]
            elif self.queue and self.fits(self.queue[0]):
                live = self.queue[0]
            else:
                return rows
            tokens = live.request.input_tokens - live.computed
            charged = -(-tokens // self.params.charge) * self.params.charge
            if charged > budget:
                tokens = budget // self.params.cut * self.params.cut if self.params.cut else 0
                charged = budget
            if tokens == 0:
                return rows
            if live not in self.seated:
                self.queue.remove(live)
                self.seated.append(live)
                live.p_blocks = self.needed(live)
                self.free -= live.p_blocks
            budget -= charged
            start = live.computed
            live.computed += tokens
            is_done = live.computed == live.request.input_tokens
            rows.append(Row(live=live, tokens=tokens, start=start, is_prefill=True, samples=is_done))
            if not is_done:
                return rows

    def needed(self, live: Live) -> int:
        extra = 1 if self.group.params.engine == "tensorrt-llm" else 0
        return self.blocks(live.request.input_tokens + extra)

    def fits(self, live: Live) -> bool:
        more = SGLANG_PAGES_MORE if self.group.params.engine == "sglang" else 0
        return len(self.seated) < self.params.max_rows and self.needed(live) + more <= self.free

    def process(self, rows: list[Row], now_s: float) -> None:
        engine = self.group.params.engine
        for row in rows:
            live = row.live
            if row.samples:
                live.prompt_finished_s = now_s
                self.routed -= 1
                if engine != "sglang":
                    self.seated.remove(live)
            if engine == "sglang":
                self.group.send(live, row.start + row.tokens, now_s, is_last=row.samples)
            elif row.samples and engine == "tensorrt-llm":
                live.generated = 1
                live.token_s.append(now_s)
                if live.request.output_tokens == 1:
                    self.release(live)
                    self.group.finish(live, now_s)
                    continue
            if row.samples and engine != "sglang":
                self.group.choose_decode(live)
                self.group.decodes[live.d].queue.append(live)

    def release(self, live: Live) -> None:
        self.free += live.p_blocks
        live.p_blocks = 0
        if live in self.seated:
            self.seated.remove(live)


class Decode(Instance):
    """A decode instance."""

    def __init__(self, group: Group, params: PoolParams, times: StepTable) -> None:
        super().__init__(group, params, times)
        self.queue: list[Live] = []
        self.incoming: list[Live] = []
        self.ready: list[Live] = []
        self.returned: list[Live] = []  # preempted or retracted
        self.running: list[Live] = []
        self.routed = 0  # requests sent here whose last token is not out
        self.ingress_free_s = 0.0

    @property
    def seated(self) -> list[Live]:
        """Who has a seat: with vLLM only who runs."""
        if self.group.params.engine == "vllm":
            return self.running
        return self.incoming + self.ready + self.running

    def num_seated(self) -> int:
        return len(self.seated)

    def plan(self, now_s: float) -> list[Row]:
        match self.group.params.engine:
            case "vllm":
                return self.plan_vllm(now_s)
            case "sglang":
                return self.plan_sglang(now_s)
            case _:
                return self.plan_tensorrt_llm(now_s)

    def take(self, live: Live, blocks: int) -> None:
        assert blocks <= self.free
        self.free -= blocks
        live.d_blocks += blocks

    def release(self, live: Live) -> None:
        self.has_let_go = True
        self.free += live.d_blocks
        live.d_blocks = 0

    def decode_row(self, live: Live) -> Row:
        assert live.arrived_on_d_s <= self.group.now_s
        if math.isnan(live.first_row_s):
            live.first_row_s = self.group.now_s
        return self.row(live, 1)

    def row(self, live: Live, tokens: int) -> Row:
        start = live.computed
        samples = start + tokens == live.known
        live.computed += tokens
        live.in_flight += samples
        return Row(live=live, tokens=tokens, start=start, is_prefill=start < live.target, samples=samples)

    # ---------------------------------------------------------------- vLLM

    def plan_vllm(self, now_s: float) -> list[Row]:
        rows: list[Row] = []
        budget = self.params.max_step_tokens
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            live = self.running[index]
            index += 1
            if live.last_token_is_known:
                continue
            tokens = min(live.known - live.computed, budget)
            failed = False
            while (short := self.blocks(live.computed + tokens) - live.d_blocks) > self.free:
                victim = self.running.pop()
                preempted = True
                self.release(victim)
                victim.computed = 0
                victim.num_preemptions += 1
                self.returned.insert(0, victim)
                if victim is live:
                    failed = True
                    break
            if failed:
                break
            self.take(live, max(short, 0))
            budget -= tokens
            rows.append(self.row(live, tokens))
        if not preempted:
            self.admit_vllm(rows, budget, now_s)
        return rows

    def admit_vllm(self, rows: list[Row], budget: int, now_s: float) -> None:
        while budget > 0 and len(self.running) < self.params.max_rows:
            if self.ready:
                live = self.ready.pop(0)
                self.running.append(live)
                live.computed = live.request.input_tokens - 1
                live.target = 0  # the last token of its prompt is a decode row
                rows.append(self.decode_row(live))
                budget -= 1
            elif self.returned:
                live = self.returned[0]
                assert live.in_flight == 0
                tokens = min(live.known, budget)
                if self.blocks(live.known if self.params.reserve_full else tokens) > self.free:
                    return
                self.running.append(self.returned.pop(0))
                live.target = live.known
                self.take(live, self.blocks(tokens))
                rows.append(self.row(live, tokens))
                budget -= tokens
            elif self.queue:
                if self.blocks(self.queue[0].request.input_tokens) > self.free:
                    return
                live = self.queue.pop(0)
                self.take(live, self.blocks(live.request.input_tokens))
                self.incoming.append(live)
                self.group.send(live, live.request.input_tokens, now_s, is_last=True)
            else:
                return

    # ---------------------------------------------------------------- SGLang

    def is_within_reserve(self, tokens: int) -> bool:
        reserved = self.group.params.reserved_tokens
        free = self.free * self.params.block_size_tokens
        return tokens + reserved <= free - reserved * len(self.seated)

    def plan_sglang(self, now_s: float) -> list[Row]:
        while self.returned:
            live = self.returned[0]
            assert live.in_flight == 0
            tokens = live.request.input_tokens + live.generated - 1
            if len(self.seated) >= self.params.max_rows or not self.is_within_reserve(tokens):
                break
            self.take(live, self.blocks(tokens))
            live.computed = tokens
            self.running.append(self.returned.pop(0))
        while not self.returned and self.queue and len(self.seated) < self.params.max_rows:
            live = self.queue[0]
            if not self.is_within_reserve(live.request.input_tokens):
                break
            self.take(live, self.blocks(live.request.input_tokens))
            self.incoming.append(self.queue.pop(0))
            self.group.prefills[live.p].queue.append(live)
        while self.ready:
            live = self.ready.pop(0)
            live.generated = 1
            live.token_s.append(now_s)
            live.computed = live.request.input_tokens
            if live.request.output_tokens == 1:
                self.release(live)
                self.group.finish(live, now_s)
            else:
                self.running.append(live)
        decoding = [live for live in self.running if not live.last_token_is_known]
        is_ending = any(live.generated + live.in_flight >= live.request.output_tokens for live in self.running)
        while sum(self.growth(live) for live in decoding) > self.free:
            if is_ending:
                return []
            # of equals the one that became a row last
            victim = min(
                reversed(decoding), key=lambda live: (live.generated + live.in_flight, -live.request.input_tokens)
            )
            decoding.remove(victim)
            self.running.remove(victim)
            self.release(victim)
            victim.num_preemptions += 1
            self.returned.append(victim)
        for live in decoding:
            self.take(live, self.growth(live))
        return [self.decode_row(live) for live in decoding]

    def growth(self, live: Live) -> int:
        return self.blocks(live.computed + 1) - live.d_blocks

    # ---------------------------------------------------------------- TensorRT-LLM

    def plan_tensorrt_llm(self, now_s: float) -> list[Row]:
        while self.ready:
            live = self.ready.pop(0)
            live.computed = live.request.input_tokens
            self.running.append(live)
        while self.queue and len(self.seated) < self.params.max_rows:
            live = self.queue[0]
            needed = self.blocks(live.request.input_tokens + live.request.max_tokens)
            if needed > self.free:
                break
            self.take(live, needed)
            self.incoming.append(self.queue.pop(0))
            self.group.send(live, live.request.input_tokens, now_s, is_last=True)
        return [self.decode_row(live) for live in self.running if not live.last_token_is_known]

    # ---------------------------------------------------------------- outputs

    def process(self, rows: list[Row], now_s: float) -> None:
        for row in rows:
            live = row.live
            if live.finished or not row.samples:
                continue
            live.in_flight -= 1
            live.generated += 1
            live.token_s.append(now_s)
            if live.generated == live.request.output_tokens:
                (self.running if live in self.running else self.returned).remove(live)
                self.release(live)
                self.group.finish(live, now_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The end of a transfer that makes a request ready."""

    end_s: float
    live: Live


class Group:
    """The instances, the link, and the client in front."""

    def __init__(self, params: GroupParams, prefill_times: StepTable, decode_times: StepTable) -> None:
        self.params = params
        self.now_s = 0.0
        self.prefills = [Prefill(self, params.prefill, prefill_times) for _ in range(params.prefill.num_instances)]
        self.decodes = [Decode(self, params.decode, decode_times) for _ in range(params.decode.num_instances)]
        self.next_p = 0
        self.next_d = 0
        self.transfers: list[list[Transfer]] = [[] for _ in self.prefills]
        self.lives: list[Live] = []
        self.unsent: list[Request] = []
        self.arrivals: list[float] = []  # a heap: when the next requests arrive
        self.is_closed = False
        self.after_s = lambda request: 0.0  # noqa: ARG005
        self.audit = lambda: None

    # ---------------------------------------------------------------- the client

    def run(self, requests: Sequence[Request]) -> None:
        """Run until all are done, with their own arrivals."""
        self.unsent = list(requests)
        self.arrivals = [request.arrival_s for request in requests]
        self.run_events()

    def run_closed(self, requests: Sequence[Request], concurrency: int, after_s) -> None:  # type: ignore[no-untyped-def]
        """Run with ``concurrency`` in flight; the next one comes ``after_s(finished)`` later."""
        self.unsent = list(requests)
        self.arrivals = [0.0] * min(concurrency, len(self.unsent))
        self.is_closed = True
        self.after_s = after_s
        self.run_events()

    def run_events(self) -> None:
        heapq.heapify(self.arrivals)
        instances: list[Instance] = [*self.prefills, *self.decodes]
        while True:
            due = [instance.step_end_s for instance in instances]
            due += [queue[0].end_s for queue in self.transfers if queue]
            if self.unsent and self.arrivals:
                due.append(self.arrivals[0])
            self.now_s = min(due)
            if self.now_s == math.inf:
                assert all(live.finished for live in self.lives), "somebody waits for ever"
                assert not self.unsent
                return
            self.round(instances)
            self.audit()

    def round(self, instances: list[Instance]) -> None:
        now_s = self.now_s
        for instance in instances:
            if instance.step_end_s == now_s:
                instance.end_step(now_s)
        for queue in self.transfers:
            while queue and queue[0].end_s == now_s:
                live = queue.pop(0).live
                live.arrived_on_d_s = now_s
                self.prefills[live.p].release(live)
                decode = self.decodes[live.d]
                decode.incoming.remove(live)
                decode.ready.append(live)
        while self.unsent and self.arrivals and self.arrivals[0] == now_s:
            heapq.heappop(self.arrivals)
            self.arrive(replace(self.unsent.pop(0), arrival_s=now_s))
        for decode in self.decodes:
            decode.go_on(now_s)
        for prefill in self.prefills:
            prefill.go_on(now_s)

    def finish(self, live: Live, now_s: float) -> None:
        live.finished = True
        if live.d >= 0:
            self.decodes[live.d].routed -= 1
        if self.is_closed and self.unsent:
            heapq.heappush(self.arrivals, now_s + self.after_s(live.request))

    # ---------------------------------------------------------------- routing

    def arrive(self, request: Request) -> None:
        live = Live(request)
        self.lives.append(live)
        live.p = self.choose([prefill.routed for prefill in self.prefills], self.next_p)
        self.next_p = (live.p + 1) % len(self.prefills)
        self.prefills[live.p].routed += 1
        if self.params.engine == "sglang":
            self.choose_decode(live)
            self.decodes[live.d].queue.append(live)
        else:
            self.prefills[live.p].queue.append(live)

    def choose_decode(self, live: Live) -> None:
        live.d = self.choose([decode.routed for decode in self.decodes], self.next_d)
        self.next_d = (live.d + 1) % len(self.decodes)
        self.decodes[live.d].routed += 1

    def choose(self, routed: list[int], first: int) -> int:
        order = [(first + i) % len(routed) for i in range(len(routed))]
        return order[0] if self.params.router == "round_robin" else min(order, key=lambda i: routed[i])

    # ---------------------------------------------------------------- the link

    def send(self, live: Live, tokens: int, now_s: float, *, is_last: bool) -> None:
        """Send what of the first ``tokens`` tokens' blocks was not sent yet."""
        prefill, decode = self.prefills[live.p], self.decodes[live.d]
        size = self.params.prefill.block_size_tokens
        blocks = -(-tokens // size) if is_last else tokens // size
        wire_s = (blocks - live.sent_blocks) * self.params.s_per_block
        live.sent_blocks = blocks
        start_s = max(now_s, prefill.egress_free_s, decode.ingress_free_s)
        prefill.egress_free_s = decode.ingress_free_s = start_s + wire_s
        if is_last:
            self.transfers[live.p].append(Transfer(end_s=start_s + wire_s + self.params.latency_s, live=live))
