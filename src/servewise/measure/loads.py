"""Loads: which requests are sent, and when they may be.

In a closed loop a fixed number of requests is in flight; the next is sent when one ends. That is what
:func:`servewise.sim.simulate_closed_loop` simulates, from the same workload and concurrency. In an open loop requests
come at their times, however many are in flight, as users do.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.traffic import Arrivals, LengthDistribution
from servewise.traffic.arrivals import draw_arrival_times
from servewise.traffic.lengths import draw_lengths_of
from servewise.types import Load, PrefixBlocks, Provenance, Workload

__all__ = ["MAX_REQUESTS", "arrivals", "closed_loop", "made_up", "open_loop", "ramp", "turn_before"]

MAX_REQUESTS: Final = 1_000_000
NUM_RAMP_STEPS: Final = 50
CLOSED_LOOP_RPS: Final = 100.0
"""Requests that one place of a closed loop can end in a second at most: enough are made for that."""
BLOCK_SIZE_TOKENS: Final = 16


def arrivals(rate_rps: float, burstiness: float = 1.0) -> Arrivals:
    """Arrivals of a steady rate.

    Parameters
    ----------
    rate_rps : float [requests/s]
    burstiness : float
        Coefficient of variation of the gaps: 0 is a constant gap, 1 Poisson, more is burstier.
    """
    if burstiness == 0.0:
        return Arrivals(process="constant", rate_rps=rate_rps)
    if burstiness == 1.0:
        return Arrivals(process="poisson", rate_rps=rate_rps)
    return Arrivals(process="gamma", rate_rps=rate_rps, cv=burstiness)


def ramp(first_rps: float, last_rps: float, duration_s: float, burstiness: float = 1.0) -> Arrivals:
    """Arrivals whose rate goes from one to the other in small steps."""
    rates = first_rps + (last_rps - first_rps) * (np.arange(NUM_RAMP_STEPS) + 0.5) / NUM_RAMP_STEPS
    curve = tuple((duration_s / NUM_RAMP_STEPS, float(rate)) for rate in rates)
    return replace(arrivals(first_rps, burstiness), rate_rps=None, curve=curve)


def made_up(
    input_tokens: LengthDistribution,
    output_tokens: LengthDistribution,
    *,
    when: Arrivals | None = None,
    concurrency: int | None = None,
    num_requests: int | None = None,
    duration_s: float | None = None,
    seed: int = 0,
) -> Workload:
    """Requests that share nothing, as many as the limits on number and time can use.

    Parameters
    ----------
    input_tokens, output_tokens : LengthDistribution [tokens]
    when : Arrivals or None
        Of an open loop; in a closed loop (``concurrency``) all are there from the start.
    concurrency, num_requests, duration_s : optional
    seed : int

    Raises
    ------
    InputError
        When neither number nor time is limited, or no request arrives in time.
    """
    if num_requests is None and duration_s is None:
        raise InputError("the load has no end; give a duration or a number of requests")
    rng = np.random.default_rng(seed)
    num = min(MAX_REQUESTS, num_requests or MAX_REQUESTS)
    if duration_s is not None:
        most = CLOSED_LOOP_RPS * (concurrency or 1) * duration_s if when is None else _expected(when, duration_s)
        num = min(num, math.ceil(most))
    arrival_s = np.zeros(num) if when is None else draw_arrival_times(when, num, rng)
    if duration_s is not None:
        arrival_s = arrival_s[arrival_s <= duration_s]
    if len(arrival_s) == 0:
        raise InputError(f"no request arrives within {duration_s:g} s; give a longer duration or a higher rate")
    count = len(arrival_s)
    outputs = draw_lengths_of(output_tokens, count, rng)
    return Workload(
        name="made up",
        arrival_s=arrival_s,
        input_tokens=draw_lengths_of(input_tokens, count, rng),
        output_tokens=outputs,
        max_tokens=outputs,
        max_tokens_kind="declared",
        prefix=PrefixBlocks(
            offsets=np.zeros(count + 1, dtype=np.int64),
            ids=np.zeros(0, dtype=np.int64),
            num_ids=0,
            block_size_tokens=BLOCK_SIZE_TOKENS,
        ),
        session=None,
        provenance=Provenance(kind="assumed", source="assumed: synthetic traffic", note=f"seed {seed}"),
    )


def _expected(when: Arrivals, duration_s: float) -> float:
    """So many arrivals that fewer than one run in a million has more."""
    if when.rate_rps is not None:
        mean = when.rate_rps * duration_s
    else:
        mean = sum(step_s * rate for step_s, rate in when.curve) * max(duration_s / sum(s for s, _ in when.curve), 1.0)
    return mean + 5.0 * max(when.cv, 1.0) * math.sqrt(mean) + 10.0


def closed_loop(
    workload: Workload,
    concurrency: int,
    *,
    duration_s: float | None = None,
    ramp_up_s: float = 0.0,
    timeout_s: float = 600.0,
) -> Load:
    """A fixed number of requests in flight, the workload's in order; its times are not used.

    Parameters
    ----------
    workload : Workload
    concurrency : int
    duration_s : float or None [s]
        No request is sent later.
    ramp_up_s : float [s]
        The first ``concurrency`` requests start evenly over this time, not all at once.
    timeout_s : float [s]
    """
    num = workload.num_requests
    send_s = np.zeros(num)
    first = min(concurrency, num)
    send_s[:first] = ramp_up_s * np.arange(first) / max(concurrency, 1)
    send_s[first:] = send_s[first - 1]
    return Load(
        send_s=send_s,
        after=turn_before(workload),
        think_s=np.zeros(num),
        concurrency=concurrency,
        duration_s=duration_s,
        timeout_s=timeout_s,
    )


def open_loop(workload: Workload, *, duration_s: float | None = None, timeout_s: float = 600.0) -> Load:
    """The workload at its own times; a turn of a conversation waits for the answer to the one before."""
    return Load(
        send_s=workload.arrival_s - workload.arrival_s[0],
        after=turn_before(workload),
        think_s=np.zeros(workload.num_requests),
        concurrency=None,
        duration_s=duration_s,
        timeout_s=timeout_s,
    )


def turn_before(workload: Workload) -> NDArray[np.int64]:
    """The request before each in its session; -1 for none."""
    before = np.full(workload.num_requests, -1, dtype=np.int64)
    if workload.session is not None:
        order = np.argsort(workload.session, kind="stable")
        follows = workload.session[order[1:]] == workload.session[order[:-1]]
        before[order[1:][follows]] = order[:-1][follows]
    return before
