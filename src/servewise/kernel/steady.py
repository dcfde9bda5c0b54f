"""A rank in lock step between its own events: nothing comes, ends or runs short, and the next plan is like the last.

What ``vllm.advance`` would do with such a rank, without loading and storing all of its state: ranks in lock step plan
whenever any of them has an event, which most of them do not have.
"""

from __future__ import annotations

from typing import Any

from servewise.kernel import layout as lo
from servewise.kernel.layout import Engine, Times, compiled
from servewise.kernel.rows import steps_before_shortage
from servewise.kernel.steps import knot_at, steps_to_knot

__all__ = ["is_idle", "is_steady", "may_go_on", "plan_on", "run_on"]


@compiled
def is_steady(ints: Any) -> bool:
    """Whether a rank has decode rows that all go on, and nothing else."""
    return bool(
        ints[lo.ROWS] > 0
        and ints[lo.PARTIAL] < 0
        and ints[lo.NUM_PENDING] == 0
        and ints[lo.NUM_WASTED] == 0
        and ints[lo.NUM_PREEMPTED_WAITING] == 0
    )


@compiled
def is_idle(ints: Any) -> bool:
    """Whether a rank has nothing at all, so that its plan would be empty."""
    return bool(
        ints[lo.ROWS] == 0
        and ints[lo.BUSY] == 0
        and ints[lo.NUM_RUNNING] == 0
        and ints[lo.NUM_PENDING] == 0
        and ints[lo.NUM_PREEMPTED_WAITING] == 0
        and ints[lo.QUEUE_HEAD] == ints[lo.QUEUE_END]
    )


@compiled
def may_go_on(ints: Any, turn: Any, count: int) -> bool:
    """Whether the next ``count`` steps of a planned rank are decode steps in which no row ends."""
    return bool(turn[lo.PREFILL_TOKENS] == 0 and is_steady(ints) and ints[lo.NEXT_FINISH] > ints[lo.STEP] + count)


@compiled
def run_on(ints: Any, floats: Any, phase: Any, turn: Any, eng: Engine, count: int, first: float, growth: float) -> None:
    """Run ``count`` planned decode steps, the first of which takes ``first``, each next one ``growth`` longer."""
    mask = len(phase) - 1
    rows, step = ints[lo.ROWS], ints[lo.STEP]
    extra = ((count - 1) >> eng.block_shift) * rows
    for i in range((count - 1) & ~mask, count - 1):
        extra += phase[(step + 1 + i) & mask]
    ints[lo.FREE] -= extra
    ints[lo.PEAK_BLOCKS] = max(ints[lo.PEAK_BLOCKS], eng.num_blocks - ints[lo.FREE])
    elapsed = count * first + 0.5 * growth * count * (count - 1)
    floats[lo.DECODE_TIME] += elapsed
    floats[lo.ROW_TIME] += rows * elapsed
    ints[lo.STEP] += count
    ints[lo.CONTEXT] += rows * count
    ints[lo.NUM_STEPS] += count
    ints[lo.NUM_WINDOWS] += 1
    ints[lo.BUSY] = 1
    turn[lo.PLANNED] = 0


@compiled
def plan_on(ints: Any, phase: Any, turn: Any, turn_floats: Any, times: Times, eng: Engine) -> bool:
    """Plan the next decode steps of a steady rank that nothing waits for; False if its blocks do not suffice."""
    mask = len(phase) - 1
    rows, step, context = ints[lo.ROWS], ints[lo.STEP], ints[lo.CONTEXT]
    demand = phase[step & mask]
    if demand > ints[lo.FREE]:
        return False
    free = ints[lo.FREE] - demand
    ints[lo.FREE] = free
    ints[lo.PEAK_BLOCKS] = max(ints[lo.PEAK_BLOCKS], eng.num_blocks - free)
    knot = knot_at(times, rows, context, ints[lo.KNOT])
    ints[lo.KNOT] = knot
    slope = times.attention_slope[rows, knot]
    count = 1
    if eng.single_step == 0:
        count = min(ints[lo.NEXT_FINISH] - step, steps_to_knot(times, rows, context, knot))
        if count > 1:
            count = 1 + steps_before_shortage(phase, step + 1, free, rows, count - 1)
    turn[lo.PLANNED] = 1
    turn[lo.PREFILL_TOKENS] = 0
    turn[lo.NUM_PREFILLED] = 0
    turn[lo.COUNT] = count
    turn[lo.BLOCKED] = 0
    turn[lo.NUM_ROWS] = rows
    attention = times.attention_base[rows, knot] + slope * context
    turn_floats[lo.FIRST] = times.decode_fixed[rows] + attention
    turn_floats[lo.GROWTH] = slope * rows
    return True
