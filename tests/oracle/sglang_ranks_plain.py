"""SGLang's ranks in lock step, step by step and in plain Python; see "Ranks" in ``docs/sglang-scheduler.md``.

Every rank is a plain SGLang engine (``sglang_plain``) whose clock is set from outside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from oracle.plain_engine import Request, RequestResult, Result, Row, step_duration
from oracle.sglang_plain import Engine, Live, Params, StuckError
from servewise.types import Router, StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFleetResult:
    """``replica[i]`` and ``rank[i]`` served request i, whose tokens were processed at ``token_s[i]``; ``ranks`` are the
    runs, those of the first replica first."""

    replica: tuple[int, ...]
    rank: tuple[int, ...]
    requests: tuple[RequestResult, ...]
    token_s: tuple[tuple[float, ...], ...]
    ranks: tuple[Result, ...]


def joint_duration(times: StepTable, steps: Sequence[Sequence[Row]]) -> float:
    """Duration of a step of all ranks [s]; a rank without rows adds nothing."""
    tokens = [sum(row.tokens for row in rows) for rows in steps]
    most, total, everywhere = max(tokens), sum(tokens), len(steps) * max(tokens)
    prompts = any(row.is_prefill for rows in steps for row in rows)
    if prompts:
        together = float(times.mixed_tokens_s[most])
        padded = most <= times.padded_mixed_tokens
    else:
        together = float(times.decode_fixed_s[most]) - float(times.sample_s[most])
        padded = most <= times.padded_decode_tokens or 2 * total >= everywhere
    if not padded:
        together -= float(times.experts_s[everywhere] - times.experts_s[total])
    own = []
    for rows in steps:
        if any(row.is_prefill for row in rows):
            own.append(step_duration(times, rows) - float(times.mixed_tokens_s[sum(row.tokens for row in rows)]))
        elif rows:
            shared = float(times.decode_fixed_s[len(rows)]) - float(times.sample_s[len(rows)])
            own.append(step_duration(times, rows) - shared)
    return together + max(own)


class Ranks:
    """The ranks of one replica. Time passes only in :meth:`run_until`, step by step."""

    def __init__(self, params: Params, times: StepTable, *, num_ranks: int, by_load: bool) -> None:
        own = replace(params, schedule_conservativeness=params.schedule_conservativeness * 0.3)
        self.times, self.by_load = times, by_load
        self.engines = [Engine(own, times) for _ in range(num_ranks)]
        self.inbox: list[Request] = []
        self.lives: list[Live] = []
        self.rank_of: list[int] = []
        self.boundary_s = 0.0  # a step ended then, or nothing has run since

    def submit(self, request: Request) -> None:
        """Hand over a request, in order of arrival."""
        self.inbox.append(request)

    def run_until(self, limit_s: float) -> None:
        """Run every step that starts before ``limit_s``."""
        while self.boundary_s < limit_s:
            self._route()
            steps = [engine.planned for engine in self.engines]
            if not any(steps):
                steps = [engine._plan() for engine in self.engines]
            if not any(steps):
                self._rest()
                if not self.inbox or self.inbox[0].arrival_s >= limit_s:
                    return
                self.boundary_s = self.inbox[0].arrival_s
                continue
            end_s = self.boundary_s + joint_duration(self.times, steps)
            for engine, rows in zip(self.engines, steps, strict=True):
                if rows:
                    engine._start_step(rows, self.boundary_s)
            for engine in self.engines:
                engine.planned = engine._plan()
            for engine, rows in zip(self.engines, steps, strict=True):
                if rows:
                    engine.step_end_s = end_s
                    engine._process_outputs()
            self.boundary_s = end_s

    def _route(self) -> None:
        """Send what has arrived to a rank, where it waits."""
        while self.inbox and self.inbox[0].arrival_s <= self.boundary_s:
            rank = len(self.rank_of) % len(self.engines)
            if self.by_load:
                rank = min(range(len(self.engines)), key=lambda i: self._num_unfinished(self.engines[i]))
            engine = self.engines[rank]
            live = engine.submit(self.inbox.pop(0))
            engine.waiting.append(engine.inbox.pop(0))
            self.lives.append(live)
            self.rank_of.append(rank)

    def _num_unfinished(self, engine: Engine) -> int:
        return sum(not live.finished for live in engine.lives)

    def _rest(self) -> None:
        for engine in self.engines:
            if engine.running or engine.waiting or engine.chunked:
                raise StuckError
            engine.ratio_start, engine.ratio_steps = engine.init, 0

    def num_finished(self, now_s: float) -> int:
        """Requests whose last token is out at ``now_s``."""
        return sum(live.finished and live.last_token_s <= now_s for live in self.lives)


def simulate_rank_fleet(
    requests: Sequence[Request],
    params: Params,
    times: StepTable,
    *,
    num_replicas: int,
    num_ranks: int,
    by_load: bool,
    router: Router,
) -> RankFleetResult:
    """Run replicas of several ranks each behind a router (in turns, or to the fewest requests in flight)."""
    fleet = [Ranks(params, times, num_ranks=num_ranks, by_load=by_load) for _ in range(num_replicas)]
    chosen: list[int] = []
    pointer = 0
    for number, request in enumerate(requests):
        now_s = request.arrival_s
        for ranks in fleet:
            ranks.run_until(now_s)
        scan = [(pointer + j) % num_replicas for j in range(num_replicas)]
        best = number % num_replicas
        if router == "least_requests":
            best = min(scan, key=lambda i: chosen.count(i) - fleet[i].num_finished(now_s))
        pointer = (best + 1) % num_replicas
        fleet[best].submit(request)
        chosen.append(best)
    for ranks in fleet:
        ranks.run_until(math.inf)
    queues = [list(ranks.lives) for ranks in fleet]
    lives = [queues[i].pop(0) for i in chosen]
    rank_of = [list(ranks.rank_of) for ranks in fleet]
    return RankFleetResult(
        replica=tuple(chosen),
        rank=tuple(rank_of[i].pop(0) for i in chosen),
        requests=tuple(live.result() for live in lives),
        token_s=tuple(tuple(live.token_s) for live in lives),
        ranks=tuple(engine.result() for ranks in fleet for engine in ranks.engines),
    )
