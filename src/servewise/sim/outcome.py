"""What a simulation saw, and the log that is made of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servewise.kernel import layout
from servewise.sim.pack import Packed
from servewise.types import ItlSegments, RequestLog, RequestStatus, Timeline, Workload

__all__ = ["Handover", "Outcome", "gaps_of", "schedulers", "to_log"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """How requests went from prefill to decode instances. Arrays have shape (num_accepted,).

    Parameters
    ----------
    prefill_of, decode_of : int32
        Instances, numbered as the rows of ``Outcome.counters``; -1 where no decode instance had the request.
    prefill_end_s : float64 [s]
        When the prompt was finished.
    asked_s, start_s, end_s : float64 [s]
        When the transfer of the KV cache (its last part, where chunks are sent) was asked for, was on the wire, and had
        arrived; NaN where there was none.
    """

    prefill_of: NDArray[np.int32]
    decode_of: NDArray[np.int32]
    prefill_end_s: NDArray[np.float64]
    asked_s: NDArray[np.float64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one simulation saw, before it is made into a log.

    Parameters
    ----------
    broken : bool
        The run was stopped because more requests than allowed had missed the limits.
    num_bad : int
        Accepted requests that missed them (so far, when broken) plus the rejected ones.
    packed : Packed
    outputs : layout.Outputs
    replica_of : int32 array, shape (num_accepted,)
    scheduler_of : int32 array, shape (num_accepted,)
        Data parallel rank, those of the first replica first; the replica where it has no ranks.
    counters : int64 array, shape (num_replicas, layout.NUM_INTS)
    times : float64 array, shape (num_replicas, layout.NUM_FLOATS)
        Of every rank of a replica, one after the other, where a replica has several.
    recorder : layout.Recorder
    num_kv_blocks : int
    handover : Handover or None
        Of groups of prefill and decode instances.
    """

    broken: bool
    num_bad: int
    packed: Packed
    outputs: layout.Outputs
    replica_of: NDArray[np.int32]
    scheduler_of: NDArray[np.int32]
    counters: NDArray[np.int64]
    times: NDArray[np.float64]
    recorder: layout.Recorder
    num_kv_blocks: int
    handover: Handover | None = None

    @property
    def num_simulated(self) -> int:
        """Requests that finished in the simulation."""
        return int(self.counters[:, layout.NUM_FINISHED].sum())

    @property
    def num_preemptions(self) -> int:
        """Preemptions over all replicas."""
        return int(self.counters[:, layout.NUM_PREEMPTIONS].sum())

    @property
    def peak_running(self) -> int:
        """Most requests a replica ran at once."""
        return int(self.counters[:, layout.PEAK_RUNNING].max())

    @property
    def peak_kv_blocks(self) -> int:
        """Most blocks a replica's running requests held."""
        return int(self.counters[:, layout.PEAK_BLOCKS].max())

    @property
    def peak_batched_tokens(self) -> int:
        """Most tokens of a step with prefill."""
        return int(self.counters[:, layout.PEAK_TOKENS].max())

    @property
    def budget_bound(self) -> bool:
        """Whether the token budget ever held anything back."""
        return bool(self.counters[:, layout.BUDGET_BOUND].any())

    @property
    def slots_bound(self) -> bool:
        """Whether ``max_num_seqs`` ever held anything back."""
        return bool(self.counters[:, layout.SLOTS_BOUND].any())

    @property
    def needed_kv_blocks(self) -> int:
        """Fewest blocks with which a replica would have run the same, if memory never held anything back."""
        return max(self.peak_kv_blocks, int(self.counters[:, layout.PEAK_GATE].max()))

    @property
    def memory_bound(self) -> bool:
        """Whether the number of KV blocks ever held anything back."""
        return bool(self.counters[:, layout.MEMORY_BOUND].any())


def to_log(workload: Workload, outcome: Outcome) -> RequestLog:
    """Make a log of a finished simulation; rejected requests are rows without times.

    In a closed loop a request is sent when the engine has it, a rejected one with the next that is accepted.
    """
    n = workload.num_requests
    where = outcome.packed.accepted if outcome.packed.accepted is not None else np.arange(n)

    def times(values: NDArray[np.float64]) -> NDArray[np.float64]:
        full = np.full(n, np.nan)
        full[where] = values
        return full

    def counts(values: NDArray[np.int32], missing: int = 0) -> NDArray[np.int64]:
        full = np.full(n, missing, np.int64)
        full[where] = values
        return full

    sent_s = workload.arrival_s
    if outcome.packed.requests.think >= 0.0 and len(where):
        sent_s = outcome.packed.requests.arrival[np.minimum(np.searchsorted(where, np.arange(n)), len(where) - 1)]
    status = np.full(n, RequestStatus.REJECTED, np.int8)
    status[where] = np.where(np.isnan(outcome.outputs.last), RequestStatus.UNFINISHED, RequestStatus.OK)
    status[where[outcome.outputs.rejected != 0]] = RequestStatus.REJECTED
    knows_prefix = workload.prefix is not None
    return RequestLog(
        intended_s=sent_s,
        sent_s=sent_s,
        first_token_s=times(outcome.outputs.first),
        last_token_s=times(outcome.outputs.last),
        input_tokens=workload.input_tokens,
        output_tokens=counts(outcome.packed.requests.output_tokens),
        cached_tokens=counts(outcome.outputs.cached) if knows_prefix else np.full(n, -1, np.int64),
        num_preemptions=counts(outcome.outputs.preemptions),
        replica=counts(outcome.replica_of, -1),
        status=status,
        itl=gaps_of(outcome.recorder),
        timeline=_timeline(outcome),
    )


def schedulers(workload: Workload, outcome: Outcome) -> NDArray[np.int64]:
    """Data parallel rank (or replica) that served each request of a workload; -1 for those that were rejected."""
    full = np.full(workload.num_requests, -1, np.int64)
    full[slice(None) if outcome.packed.accepted is None else outcome.packed.accepted] = outcome.scheduler_of
    return full


def gaps_of(recorder: layout.Recorder) -> ItlSegments | None:
    """Gaps between tokens that were recorded; None when none were to be."""
    if recorder.gaps.shape[1] == 0:
        return None
    rows = np.concatenate([recorder.gaps[i, : recorder.counts[i, 0]] for i in range(len(recorder.gaps))])
    return ItlSegments(
        first_s=rows[:, 0],
        increment_s=rows[:, 1],
        steps=rows[:, 2].astype(np.int64),
        weight=rows[:, 3].astype(np.int64),
    )


def _timeline(outcome: Outcome) -> Timeline | None:
    """Sum the replicas' samples on one grid of times; each replica holds its last sampled state."""
    recorder = outcome.recorder
    if recorder.samples.shape[1] == 0:
        return None
    rows = [recorder.samples[i, : recorder.counts[i, 1]] for i in range(len(recorder.samples))]
    end = max((float(r[-1, 0]) for r in rows if len(r)), default=0.0)
    grid = np.arange(0.0, end + recorder.sample_every, recorder.sample_every)
    total = np.zeros((3, len(grid)))
    for samples in rows:
        places = np.searchsorted(samples[:, 0], grid, side="right") - 1
        seen = places >= 0
        total[:, seen] += samples[places[seen], 1:].T
    return Timeline(
        time_s=grid,
        running=total[0],
        waiting=total[1],
        kv_used_frac=total[2] / (outcome.num_kv_blocks * len(rows)),
    )
