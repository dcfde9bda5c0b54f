"""What the drivers share: windows of equal steps, what is recorded, and the client of a closed loop."""

from __future__ import annotations

import math

from servewise.kernel.layout import NUM_BAD, NUM_FINISHED, Limits, Outputs, Recorder, Replica, Requests, compiled

__all__ = ["misses", "record_finish", "record_gap", "record_sample", "send_next", "steps_starting_before"]


@compiled
def steps_starting_before(delay: float, first: float, growth: float) -> int:
    """Largest x with x * first + growth * x * (x - 1) / 2 < delay, for delay > 0."""
    half = 0.5 * growth
    if half <= 0.0:
        x = int(delay / first)
    else:
        b = first - half
        x = int(2.0 * delay / (b + math.sqrt(b * b + 4.0 * half * delay)))
    while x > 0 and x * first + half * x * (x - 1) >= delay:
        x -= 1
    while (x + 1) * first + half * x * (x + 1) < delay:
        x += 1
    return x


@compiled
def record_gap(rec: Recorder, first: float, increment: float, steps: int, weight: int) -> bool:
    """Write one row of gaps; False when there is no room for it."""
    i = rec.counts[0]
    if i == len(rec.gaps):
        return False
    rec.gaps[i, 0] = first
    rec.gaps[i, 1] = increment
    rec.gaps[i, 2] = steps
    rec.gaps[i, 3] = weight
    rec.counts[0] = i + 1
    return True


@compiled
def record_sample(
    rec: Recorder, rep: Replica, req: Requests, head: int, end: int, now: float, running: int, returned: int, used: int
) -> bool:
    """Write one row of the timeline, ``returned`` requests waiting beside the queue; False without room."""
    i = rec.counts[1]
    if i == len(rec.samples):
        return False
    come = head
    while come < end:
        middle = (come + end) >> 1
        if req.arrival[rep.queue[middle]] <= now:
            come = middle + 1
        else:
            end = middle
    rec.samples[i, 0] = now
    rec.samples[i, 1] = running
    rec.samples[i, 2] = returned + come - head
    rec.samples[i, 3] = used
    rec.counts[1] = i + 1
    return True


@compiled
def misses(req: Requests, out: Outputs, lim: Limits, r: int) -> bool:
    """Whether a finished request misses one of the limits."""
    tokens = req.output_tokens[r]
    return bool(
        out.first[r] - req.arrival[r] > lim.ttft
        or out.last[r] - req.arrival[r] > lim.e2e
        or (tokens > 1 and (out.last[r] - out.first[r]) / (tokens - 1) > lim.tpot)
    )


@compiled
def record_finish(rep: Replica, req: Requests, out: Outputs, lim: Limits, r: int, now: float, end: int) -> int:
    """The last token of a request is there; returns the queue's end, which a client in a closed loop moves on."""
    if len(rep.finish_times) > 0:
        rep.finish_times[rep.ints[NUM_FINISHED]] = now
    rep.ints[NUM_FINISHED] += 1
    out.last[r] = now + req.extra[r]
    if misses(req, out, lim, r):
        rep.ints[NUM_BAD] += 1
    if req.think >= 0.0:
        return send_next(req, end, out.last[r] + req.think)
    return end


@compiled
def send_next(req: Requests, num_sent: int, arrival: float) -> int:
    """Let the client of a closed loop send one more request, which reaches the engine at ``arrival``.

    Requests reach the engine in their order. One on its way that would arrive later takes the later time: it is
    the client's next slot that gets its next request, not the slot whose answer left the engine first. So when
    all are sent the last one may still be sent earlier. Returns the new number of requests sent.
    """
    num_requests = len(req.arrival)
    i = num_sent
    if num_sent == num_requests:
        i -= 1
        if req.arrival[i] <= arrival:
            return num_sent
    while i > 0 and req.arrival[i - 1] > arrival:
        req.arrival[i] = req.arrival[i - 1]
        i -= 1
    req.arrival[i] = arrival
    return min(num_sent + 1, num_requests)
