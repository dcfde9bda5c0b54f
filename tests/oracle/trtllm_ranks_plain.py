"""TensorRT-LLM's ranks in lock step, step by step and in plain Python; see "Ranks" in ``docs/trtllm-scheduler.md``.

Every rank is a plain engine (``trtllm_plain``) whose clock is set from outside, as in ``ranks_plain``.
"""

from __future__ import annotations

import dataclasses
import heapq

from oracle.ranks_plain import Ranks
from oracle.trtllm_plain import Engine, Params
from servewise.types import StepTable


class TrtllmRanks(Ranks):
    """The ranks of one replica."""

    engines: list[Engine]

    def __init__(self, params: Params, times: StepTable, *, num_ranks: int, kv_aware: bool) -> None:
        assert not kv_aware
        self.params, self.times = dataclasses.replace(params, batch_wait_timeout_iters=0), times
        self.engines = [Engine(self.params, times) for _ in range(num_ranks)]
        self.inbox = []
        self.lives = []
        self.rank_of = []
        self.boundary_s = 0.0

    def _route(self) -> None:
        """Divide what has arrived: the longest prompts choose first, each the rank with the shortest ones."""
        active = [[live for live in engine.lives if not live.finished] for engine in self.engines]
        room = len(self.engines) * self.params.max_batch_size - sum(len(lives) for lives in active)
        new = [request for request in self.inbox if request.arrival_s <= self.boundary_s][: max(room, 0)]
        if not new:
            return
        total = len(new) + sum(len(lives) for lives in active)
        share = max(-(-total // len(self.engines)), *(len(lives) for lives in active))
        heap = [
            (sum(live.request.input_tokens for live in lives), len(lives), rank)
            for rank, lives in enumerate(active)
            if len(lives) < share
        ]
        heapq.heapify(heap)
        chosen = {}
        for request in sorted(new, key=lambda request: -request.input_tokens):
            tokens, count, rank = heapq.heappop(heap)
            chosen[request.id] = rank
            if count + 1 < share:
                heapq.heappush(heap, (tokens + request.input_tokens, count + 1, rank))
        for request in new:
            self.inbox.remove(request)
            rank = chosen[request.id]
            self.lives.append(self.engines[rank].submit(request))
            self.rank_of.append(rank)
