"""What one request experienced, as columns of a log."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.types import Promise, RequestLog, RequestStatus

__all__ = ["attainment", "count_good", "e2e_s", "finished", "good", "tpot_s", "ttft_s", "ttft_sent_s", "unjudged"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def finished(log: RequestLog) -> Bools:
    """Which requests were answered to the end: status OK and a last token.

    Returns
    -------
    bool array, shape (num_requests,)
    """
    return np.asarray((log.status == RequestStatus.OK) & np.isfinite(log.last_token_s), dtype=np.bool_)


def ttft_s(log: RequestLog) -> Floats:
    """Time to first token [s]: first token of any channel minus the *intended* send time.

    Returns
    -------
    float64 array, shape (num_requests,) [s]
        NaN for requests that did not finish, and for answers in one piece.
    """
    return np.where(finished(log), log.first_token_s - log.intended_s, np.nan)


def ttft_sent_s(log: RequestLog) -> Floats:
    """Time to first token [s] counted from the *actual* send time: what the server alone took.

    Returns
    -------
    float64 array, shape (num_requests,) [s]
        NaN for requests that did not finish.
    """
    return np.where(finished(log), log.first_token_s - log.sent_s, np.nan)


def tpot_s(log: RequestLog) -> Floats:
    """Time per output token after the first [s]: (last token - first token) / (output_tokens - 1).

    Returns
    -------
    float64 array, shape (num_requests,) [s]
        NaN for requests with one token, where it is undefined, for an unknown number of tokens, and for those
        that did not finish.
    """
    gaps = log.output_tokens - 1
    span_s = np.where(finished(log) & (gaps > 0), log.last_token_s - log.first_token_s, np.nan)
    return np.asarray(span_s / np.maximum(gaps, 1), dtype=np.float64)


def e2e_s(log: RequestLog) -> Floats:
    """End-to-end latency [s]: last token minus the intended send time = TTFT + (output_tokens - 1) x TPOT.

    Returns
    -------
    float64 array, shape (num_requests,) [s]
        NaN for requests that did not finish.
    """
    return np.where(finished(log), log.last_token_s - log.intended_s, np.nan)


def good(log: RequestLog, promise: Promise) -> Bools:
    """Which requests are good: finished, and within every joint limit of the promise (<=).

    A request of one token has no TPOT and skips that limit. One whose limit cannot be judged
    (:func:`unjudged`) is not good.

    Returns
    -------
    bool array, shape (num_requests,)
    """
    # NaN compares false, so a request without a first or last token is never good.
    mask = finished(log)
    if promise.ttft_s is not None:
        mask &= log.first_token_s - log.intended_s <= promise.ttft_s
    if promise.e2e_s is not None:
        mask &= log.last_token_s - log.intended_s <= promise.e2e_s
    if promise.tpot_s is not None:
        gaps = log.output_tokens - 1
        tpot = (log.last_token_s - log.first_token_s) / np.maximum(gaps, 1)
        mask &= (log.output_tokens >= 0) & ((tpot <= promise.tpot_s) | (gaps < 1))
    return mask


def unjudged(log: RequestLog, promise: Promise) -> tuple[str, ...]:
    """Why finished requests cannot be judged by the promise, in words; empty when all can.

    An answer in one piece has no first token, so neither TTFT nor TPOT; an unknown number of output tokens has
    no TPOT.
    """
    done = finished(log)
    limited = {limit.metric for limit in promise.percentiles}
    no_first = int(np.count_nonzero(done & np.isnan(log.first_token_s)))
    no_count = int(np.count_nonzero(done & ((log.output_tokens < 0) | np.isnan(log.first_token_s))))
    words = []
    if no_first and (promise.ttft_s is not None or "ttft" in limited):
        words.append(f"TTFT cannot be judged: {no_first} answers have no first token")
    if no_count and (promise.tpot_s is not None or "tpot" in limited):
        words.append(f"TPOT cannot be judged: unknown for {no_count} answers")
    return tuple(words)


def count_good(log: RequestLog, promise: Promise) -> int:
    """Number of good requests."""
    return int(np.count_nonzero(good(log, promise)))


def attainment(log: RequestLog, promise: Promise) -> float:
    """SLO attainment: good requests / all requests; those that failed or were rejected count as bad.

    Raises
    ------
    InputError
        When the log is empty.
    """
    refuse_empty(log)
    return count_good(log, promise) / log.num_requests


def refuse_empty(log: RequestLog) -> None:
    """Raise :class:`InputError` when the log holds no request."""
    if log.num_requests == 0:
        raise InputError("the request log is empty, so no metric is defined; it must hold at least 1 request")
