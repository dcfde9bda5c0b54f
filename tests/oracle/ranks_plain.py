"""Data parallel ranks in lock step, step by step and in plain Python; see "Ranks" in ``docs/vllm-scheduler.md``.

Every rank is a plain vLLM engine (``vllm_plain``) whose clock is set from outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oracle.plain_engine import Request, RequestResult, Result, Row, step_duration
from oracle.vllm_plain import Engine, Live, Params
from servewise.types import Router, StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksResult:
    """``rank[i]`` served request i; ``ranks`` are the runs of the ranks."""

    rank: tuple[int, ...]
    requests: tuple[RequestResult, ...]
    ranks: tuple[Result, ...]


def num_tokens(rows: Sequence[Row]) -> int:
    """Tokens of a rank's step; a rank without rows runs a dummy one."""
    return sum(row.tokens for row in rows) or 1


def joint_duration(times: StepTable, steps: Sequence[Sequence[Row]]) -> float:
    """Duration of a step of all ranks [s]: see ``StepTable``."""
    tokens = [num_tokens(rows) for rows in steps]
    prompts = any(row.is_prefill for rows in steps for row in rows)
    own = [0.0]
    for rows in steps:
        if not rows:
            continue
        alone = step_duration(times, rows)
        if any(row.is_prefill for row in rows):
            own.append(alone - float(times.mixed_tokens_s[num_tokens(rows)]))
        else:
            own.append(alone - float(times.decode_fixed_s[len(rows)]) + float(times.sample_s[len(rows)]))
    if prompts:
        together, padded = float(times.mixed_tokens_s[max(tokens)]), times.padded_mixed_tokens
    else:
        together = float(times.decode_fixed_s[max(tokens)]) - float(times.sample_s[max(tokens)])
        padded = times.padded_decode_tokens
    if max(tokens) > padded:
        together -= float(times.experts_s[len(steps) * max(tokens)] - times.experts_s[sum(tokens)])
    return together + max(own)


class Ranks:
    """The ranks of one replica. Time passes only in :meth:`run_until`, step by step."""

    def __init__(self, params: Params, times: StepTable, *, num_ranks: int, kv_aware: bool) -> None:
        self.params, self.times, self.kv_aware = params, times, kv_aware
        self.engines = [Engine(params, times) for _ in range(num_ranks)]
        self.inbox: list[Request] = []
        self.lives: list[Live] = []
        self.rank_of: list[int] = []
        self.last = num_ranks - 1
        self.boundary_s = 0.0  # a step ended then, or nothing has run since

    def submit(self, request: Request) -> None:
        """Hand over a request, in order of arrival."""
        self.inbox.append(request)

    def run_until(self, limit_s: float) -> None:
        """Run every step that starts before ``limit_s``."""
        while self.boundary_s < limit_s:
            self._route()
            steps = [self._begin(engine) for engine in self.engines]
            if not any(steps):
                if not self.inbox or self.inbox[0].arrival_s >= limit_s:
                    return
                self.boundary_s = self.inbox[0].arrival_s
                continue
            end_s = self.boundary_s + joint_duration(self.times, steps)
            for engine, rows in zip(self.engines, steps, strict=True):
                if rows:
                    engine.step_end_s = end_s
                    engine._process_outputs()
            self.boundary_s = end_s

    def _begin(self, engine: Engine) -> list[Row]:
        engine._begin(self.boundary_s)
        return engine.step

    def _route(self) -> None:
        """Send what has arrived to the rank with the lowest score, the next one after the last choice among equals."""
        while self.inbox and self.inbox[0].arrival_s <= self.boundary_s:
            request = self.inbox.pop(0)
            scan = [(self.last + 1 + j) % len(self.engines) for j in range(len(self.engines))]
            self.last = min(scan, key=lambda i: self._score(self.engines[i]))
            self.lives.append(self.engines[self.last].submit(request))
            self.rank_of.append(self.last)

    def _score(self, engine: Engine) -> float:
        unfinished = sum(not live.finished for live in engine.lives)
        waiting = sum(not live.finished and live not in engine.running for live in engine.lives)
        if not self.kv_aware:
            return 4 * waiting + (unfinished - waiting)
        used = (self.params.num_kv_blocks - len(engine.pool.free)) / self.params.num_kv_blocks
        return unfinished + waiting * 6 * max(0.0, used - 0.5)

    def num_finished(self, now_s: float) -> int:
        """Requests whose last token is out at ``now_s``."""
        return sum(live.finished and live.last_token_s <= now_s for live in self.lives)

    def result(self) -> RanksResult:
        """What has happened so far, requests in order of submission."""
        runs = tuple(engine.result() for engine in self.engines)
        by_live = {
            id(live): result
            for engine, run in zip(self.engines, runs, strict=True)
            for live, result in zip(engine.lives, run.requests, strict=True)
        }
        return RanksResult(
            rank=tuple(self.rank_of), requests=tuple(by_live[id(live)] for live in self.lives), ranks=runs
        )


def simulate_ranks(
    requests: Sequence[Request], params: Params, times: StepTable, *, num_ranks: int, kv_aware: bool
) -> RanksResult:
    """Run the ranks of one replica over requests sorted by arrival until all are done."""
    ranks = Ranks(params, times, num_ranks=num_ranks, kv_aware=kv_aware)
    for request in requests:
        ranks.submit(request)
    ranks.run_until(math.inf)
    return ranks.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFleetResult:
    """``replica[i]`` served request i; ``requests`` are in order of arrival, ``replicas`` the runs."""

    replica: tuple[int, ...]
    requests: tuple[RequestResult, ...]
    replicas: tuple[RanksResult, ...]


def simulate_rank_fleet(
    requests: Sequence[Request],
    params: Params,
    times: StepTable,
    *,
    num_replicas: int,
    num_ranks: int,
    kv_aware: bool,
    router: Router,
    new_ranks: Callable[..., Ranks] = Ranks,
) -> RankFleetResult:
    """Run replicas of several ranks each behind a router (in turns, or to the fewest requests in flight)."""
    fleet = [new_ranks(params, times, num_ranks=num_ranks, kv_aware=kv_aware) for _ in range(num_replicas)]
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
    results = [ranks.result() for ranks in fleet]
    left = [list(result.requests) for result in results]
    return RankFleetResult(
        replica=tuple(chosen), requests=tuple(left[i].pop(0) for i in chosen), replicas=tuple(results)
    )
