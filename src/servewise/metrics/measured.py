"""The part of a measured log that counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servewise.types import Chunks, ItlSegments, Measurement, RequestLog, RequestStatus

__all__ = ["chunk_gaps", "counted", "counted_log"]


def counted(measurement: Measurement) -> NDArray[np.bool_]:
    """Which requests of the log count: those whose intended send lies in ``counted_s``.

    Returns
    -------
    bool array, shape (num_requests,)
    """
    low, high = measurement.counted_s
    intended_s = measurement.log.intended_s
    return np.asarray((intended_s >= low) & (intended_s <= high), dtype=np.bool_)


def counted_log(measurement: Measurement) -> RequestLog:
    """The log of the requests that count, with the gaps between the chunks of those that finished."""
    log, mask = measurement.log, counted(measurement)
    if bool(mask.all()):
        return log
    done = mask & (log.status == RequestStatus.OK)
    return RequestLog(
        intended_s=log.intended_s[mask],
        sent_s=log.sent_s[mask],
        first_token_s=log.first_token_s[mask],
        last_token_s=log.last_token_s[mask],
        input_tokens=log.input_tokens[mask],
        output_tokens=log.output_tokens[mask],
        cached_tokens=log.cached_tokens[mask],
        num_preemptions=log.num_preemptions[mask],
        replica=log.replica[mask],
        status=log.status[mask],
        itl=None if log.itl is None else chunk_gaps(measurement.chunks, done),
    )


def chunk_gaps(chunks: Chunks, requests: NDArray[np.bool_]) -> ItlSegments:
    """Gaps between consecutive chunks of the answers of these requests, in order of the log.

    Parameters
    ----------
    chunks : Chunks
    requests : bool array, shape (num_requests,)
    """
    row = np.repeat(np.arange(len(requests)), np.diff(chunks.offsets))
    gaps_s = np.diff(chunks.time_s)[(row[1:] == row[:-1]) & requests[row[1:]]]
    ones = np.ones(len(gaps_s), dtype=np.int64)
    return ItlSegments(first_s=gaps_s, increment_s=np.zeros_like(gaps_s), steps=ones, weight=ones)
