"""Plain routers over N plain replicas, one arrival at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from oracle import vllm_plain
from oracle.plain_engine import Live, PlainEngine, Request, RequestResult, Result
from servewise.types import Router, StepTable

PREFIX_AWARE_SLACK = 8
"""How many requests more than the least busy replica one may have and still be chosen for its cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetResult:
    """``replica[i]`` served request i; ``replicas`` are the runs, their requests in order of arrival."""

    replica: tuple[int, ...]
    requests: tuple[RequestResult, ...]
    replicas: tuple[Result, ...]


def _in_flight(assigned: Sequence[Live], now_s: float) -> int:
    """Requests sent to a replica (that has run until ``now_s``) and not finished at or before ``now_s``."""
    return sum(not (live.finished and live.last_token_s <= now_s) for live in assigned)


def _leading_matches(prompt_ids: Sequence[int], routed: set[int]) -> int:
    matched = 0
    while matched < len(prompt_ids) and prompt_ids[matched] in routed:
        matched += 1
    return matched


def simulate_fleet(
    requests: Iterable[Request],
    params: Any,
    times: StepTable,
    *,
    num_replicas: int,
    router: Router,
    engine: Callable[[], PlainEngine] | None = None,
) -> FleetResult:
    """Run ``num_replicas`` replicas behind a router over requests sorted by arrival until all are done.

    ``engine`` makes a replica; by default it is vLLM's.
    """
    engines = [engine() if engine else vllm_plain.Engine(params, times) for _ in range(num_replicas)]
    assigned: list[list[Live]] = [[] for _ in engines]
    routed: list[set[int]] = [set() for _ in engines]  # block identities of prompts sent to each replica
    replica: list[int] = []
    lives: list[Live] = []
    pointer = 0
    for number, request in enumerate(requests):
        now_s = request.arrival_s
        for one in engines:
            one.run_until(now_s)
        busy = [_in_flight(of_replica, now_s) for of_replica in assigned]
        scan = [(pointer + j) % num_replicas for j in range(num_replicas)]
        prompt_ids = request.block_ids[: request.input_tokens // params.block_size_tokens]
        if router == "round_robin":
            chosen = number % num_replicas
        elif router == "least_requests":
            chosen = min(scan, key=lambda r: busy[r])  # min keeps the first of equals
        else:
            near = [r for r in scan if busy[r] <= min(busy) + PREFIX_AWARE_SLACK]
            chosen = min(near, key=lambda r: (-_leading_matches(prompt_ids, routed[r]), busy[r]))
        pointer = (chosen + 1) % num_replicas
        routed[chosen].update(prompt_ids)
        live = engines[chosen].submit(request)
        assigned[chosen].append(live)
        lives.append(live)
        replica.append(chosen)
    for one in engines:
        one.run_until(math.inf)
    runs = tuple(one.result() for one in engines)
    by_live = {
        id(live): result
        for one, run in zip(engines, runs, strict=True)
        for live, result in zip(one.lives, run.requests, strict=True)
    }
    return FleetResult(replica=tuple(replica), requests=tuple(by_live[id(live)] for live in lives), replicas=runs)
