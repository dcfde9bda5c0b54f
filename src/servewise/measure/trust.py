"""Whether the client kept up, so that what it measured is the server's doing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from servewise.measure.sketch import Sketch
from servewise.types import Chunks, Load, RequestDetails, RequestLog, RequestStatus, Trust

__all__ = [
    "MAX_FAILED_FRAC",
    "MAX_LAG_KERNEL_S",
    "MAX_LAG_USER_S",
    "MAX_SEND_LAG_S",
    "MAX_STALL_S",
    "MIN_HELD_FRAC",
    "MIN_RATE_FRAC",
    "ClientFacts",
    "judge",
]

MAX_LAG_KERNEL_S = 0.025
"""P99 lateness of the loop that kernel stamps make up for: tokens closer together than that share a stamp."""
MAX_LAG_USER_S = 0.005
"""P99 lateness where times are taken on reading: each is late by up to that."""
MAX_STALL_S = 0.1
"""Longest lateness: a single stall holds up every request in flight."""
MAX_SEND_LAG_S = 0.02
"""P99 of actual minus intended send: TTFT counts from the intended one."""
MIN_RATE_FRAC = 0.98
"""Offered of requested rate below which another load was measured."""
MIN_HELD_FRAC = 0.95
"""The same of held concurrency, as far as the client left places empty."""
MAX_FAILED_FRAC = 0.01
"""Share of failed requests above which the latencies of the rest say little of the load that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFacts:
    """What the client saw of itself.

    Parameters
    ----------
    lag : Sketch
        Lateness of the loop, sampled evenly in time.
    num_reads, num_stamped : int
        Reads, and those that the kernel stamped.
    can_stamp : bool
        Whether the kernel was asked for stamps.
    clock_steps : int
        Times that the wall clock was set meanwhile.
    lost_workers : int
        Worker processes that ended without handing over what they had measured.
    """

    lag: Sketch
    num_reads: int
    num_stamped: int
    can_stamp: bool
    clock_steps: int = 0
    lost_workers: int = 0


def judge(
    client: ClientFacts,
    load: Load,
    log: RequestLog,
    details: RequestDetails,
    chunks: Chunks,
    *,
    streamed: bool,
    interrupted: bool,
) -> Trust:
    """Find what speaks against the numbers of a run.

    Returns
    -------
    Trust
        Facts, reasons against and notes: see ``docs/measuring.md`` for each limit.
    """
    facts, reasons, notes = _client(client)
    if log.num_requests == 0:
        return Trust(reasons=("no request was sent", *reasons), notes=tuple(notes), facts=facts)
    _sending(load, log, details, facts, reasons, notes)
    failed = np.isin(log.status, (RequestStatus.FAILED, RequestStatus.REJECTED))
    facts["failed_frac"] = float(np.mean(failed))
    if facts["failed_frac"] > MAX_FAILED_FRAC:
        reasons.append(
            f"{int(failed.sum())} of {log.num_requests} requests failed ({facts['failed_frac']:.1%}), "
            f"most often: {Counter(filter(None, details.failure)).most_common(1)[0][0]}"
        )
    counted = (log.status == RequestStatus.OK) & (log.output_tokens > 0)
    num_chunks = int(np.diff(chunks.offsets)[counted].sum())
    if num_chunks:
        facts["tokens_per_chunk"] = float(log.output_tokens[counted].sum() / num_chunks)
    if not streamed:
        notes.append("answers came in one piece: only E2E was measured")
    ok = log.status == RequestStatus.OK
    if (unknown := int((ok & (log.output_tokens < 0)).sum())) > 0:
        notes.append(f"the server did not count the tokens of {unknown} of {int(ok.sum())} answers: they are unknown")
    if streamed and (silent := int((ok & np.isnan(log.first_token_s)).sum())) > 0:
        notes.append(f"{silent} answers held no token: they have no TTFT")
    if interrupted:
        notes.append("the run was stopped before its end")
    return Trust(reasons=tuple(reasons), notes=tuple(notes), facts=facts)


def _client(client: ClientFacts) -> tuple[dict[str, float], list[str], list[str]]:
    facts: dict[str, float] = {}
    reasons, notes = [], []
    by_kernel = client.num_stamped / client.num_reads if client.num_reads else 0.0
    if client.num_reads:
        facts["kernel_stamped_frac"] = by_kernel
    lag_s, stall_s = client.lag.percentile_s(99.0), client.lag.largest_ns / 1e9
    facts["client_lag_p99_s"], facts["client_lag_max_s"] = lag_s, stall_s
    limit_s = MAX_LAG_KERNEL_S if by_kernel > 0.99 else MAX_LAG_USER_S
    if lag_s > limit_s:
        reasons.append(
            f"the client was late: by {lag_s * 1e3:.1f} ms at P99, more than {limit_s * 1e3:.0f} ms; "
            "use a less busy machine, or more workers"
        )
    if stall_s > MAX_STALL_S:
        reasons.append(f"the client stood still for {stall_s * 1e3:.0f} ms, more than {MAX_STALL_S * 1e3:.0f} ms")
    if client.lost_workers:
        reasons.append(f"{client.lost_workers} worker processes ended early, and what they had measured is lost")
    if client.clock_steps:
        notes.append(f"the wall clock was set {client.clock_steps} times: for a second, times were taken on reading")
    if not client.can_stamp:
        notes.append("times were taken on reading: the kernel stamps plain TCP on Linux only")
    elif client.num_reads and by_kernel < 0.99:
        notes.append(f"the kernel stamped only {by_kernel:.0%} of what was received: other times were taken on reading")
    return facts, reasons, notes


def _sending(
    load: Load,
    log: RequestLog,
    details: RequestDetails,
    facts: dict[str, float],
    reasons: list[str],
    notes: list[str],
) -> None:
    """Whether requests were sent when they should have been."""
    late_s = log.sent_s - log.intended_s
    facts["send_lag_p99_s"] = float(np.percentile(late_s, 99.0))
    if facts["send_lag_p99_s"] > MAX_SEND_LAG_S:
        reasons.append(
            f"requests were sent late: by {facts['send_lag_p99_s'] * 1e3:.1f} ms at P99, "
            f"more than {MAX_SEND_LAG_S * 1e3:.0f} ms"
        )
    span_s = float(log.sent_s.max() - log.intended_s.min())
    if load.concurrency is None:
        intended_s = float(log.intended_s.max() - log.intended_s.min())
        if intended_s > 0.0:
            sent_s = float(log.sent_s.max() - log.sent_s.min())
            facts["requested_rps"] = (log.num_requests - 1) / intended_s
            facts["offered_rps"] = (log.num_requests - 1) / sent_s
            if facts["offered_rps"] < MIN_RATE_FRAC * facts["requested_rps"]:
                reasons.append(
                    f"the client offered {facts['offered_rps']:.2f} requests/s, "
                    f"not the {facts['requested_rps']:.2f} that were asked for"
                )
        return
    facts["requested_concurrency"] = float(load.concurrency)
    if log.num_requests <= load.concurrency:  # nothing was there to fill a place again
        return
    # Until the last request was sent: afterwards nothing is there to fill the places.
    last_s = float(log.sent_s.max())
    in_flight_s = np.minimum(details.end_s, last_s) - log.sent_s
    facts["held_concurrency"] = float(in_flight_s.sum() / span_s)
    empty = float(late_s.sum() / span_s)
    if empty > (1.0 - MIN_HELD_FRAC) * load.concurrency:
        reasons.append(
            f"the client held {facts['held_concurrency']:.1f} requests in flight, not {load.concurrency}: "
            f"it left {empty:.1f} places empty"
        )
    elif facts["held_concurrency"] < MIN_HELD_FRAC * load.concurrency:
        notes.append(
            f"{facts['held_concurrency']:.1f} requests were in flight on average, not {load.concurrency}: "
            "the load had no more to send"
        )
