"""How far a run is, while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from servewise.measure.sketch import Sketch

__all__ = ["Progress", "Seen", "progress_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is. Percentiles are of the answers that have ended; NaN when there are none.

    Parameters
    ----------
    elapsed_s : float [s]
    num_requests, done, in_flight, failed : int
        Requests of the load; those that have ended, failed ones included; those sent and not ended.
    ttft_p50_s, ttft_p99_s, itl_p50_s, itl_p99_s : float [s]
    """

    elapsed_s: float
    num_requests: int
    done: int
    in_flight: int
    failed: int
    ttft_p50_s: float
    ttft_p99_s: float
    itl_p50_s: float
    itl_p99_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one loop has seen so far.

    Parameters
    ----------
    elapsed_s : float [s]
    done, in_flight, failed : int
    ttft, itl : Sketch
    """

    elapsed_s: float
    done: int
    in_flight: int
    failed: int
    ttft: Sketch
    itl: Sketch


def progress_of(seen: Sequence[Seen], num_requests: int) -> Progress:
    """What one or more loops of a run have seen, together."""
    ttft, itl = Sketch(), Sketch()
    for each in seen:
        ttft.merge(each.ttft)
        itl.merge(each.itl)
    return Progress(
        elapsed_s=max(each.elapsed_s for each in seen),
        num_requests=num_requests,
        done=sum(each.done for each in seen),
        in_flight=sum(each.in_flight for each in seen),
        failed=sum(each.failed for each in seen),
        ttft_p50_s=ttft.percentile_s(50.0),
        ttft_p99_s=ttft.percentile_s(99.0),
        itl_p50_s=itl.percentile_s(50.0),
        itl_p99_s=itl.percentile_s(99.0),
    )
