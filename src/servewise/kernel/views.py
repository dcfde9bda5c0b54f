"""One replica's part of the arrays of a fleet."""

from __future__ import annotations

from servewise.kernel.layout import Prefix, Recorder, Replica, Turn, compiled

__all__ = ["prefix_at", "recorder_at", "replica_at", "turn_at"]


@compiled
def replica_at(fleet: Replica, i: int) -> Replica:
    """State of replica ``i``."""
    return Replica(
        fleet.ints[i],
        fleet.floats[i],
        fleet.queue[i],
        fleet.ring[i],
        fleet.phase[i],
        fleet.running[i],
        fleet.preempted[i],
        fleet.pending[i],
        fleet.prefilled[i],
        fleet.finish_times[i],
        fleet.next_same,
        fleet.finish_step,
        fleet.generated,
        fleet.state,
        fleet.position,
        fleet.last_emit,
    )


@compiled
def prefix_at(px: Prefix, i: int) -> Prefix:
    """Prefix cache of replica ``i``."""
    return Prefix(
        px.offsets,
        px.nodes,
        px.span_shift,
        px.num_shared,
        px.names_output,
        px.node_ends[i],
        px.extents[i],
        px.entries[i],
        px.counters[i],
        px.users,
    )


@compiled
def recorder_at(rec: Recorder, i: int) -> Recorder:
    """What is recorded of replica ``i``."""
    return Recorder(rec.gaps[i], rec.samples[i], rec.counts[i], rec.sample_every)


@compiled
def turn_at(turns: Turn, i: int) -> Turn:
    """The step that rank ``i`` has planned."""
    return Turn(turns.ints[i], turns.floats[i])
