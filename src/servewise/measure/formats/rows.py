"""From one request after the other to the tables of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.metrics import chunk_gaps
from servewise.types import Chunks, RequestDetails, RequestLog, RequestStatus

__all__ = ["Row", "tables"]

MAX_FAILURE_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request; times [s] on the file's clock, NaN and -1 where unknown. ``chunks_s`` is None when unknown."""

    where: str
    sent_s: float
    intended_s: float = math.nan
    first_s: float = math.nan
    last_s: float = math.nan
    first_answer_s: float = math.nan
    end_s: float = math.nan
    input_tokens: int = -1
    output_tokens: int = -1
    cached_tokens: int = -1
    status: RequestStatus = RequestStatus.OK
    http_status: int = -1
    failure: str = ""
    chunks_s: NDArray[np.float64] | None = None


def tables(rows: Sequence[Row], *, one_clock: bool) -> tuple[RequestLog, RequestDetails, Chunks | None]:
    """Put requests into the order of their intended send, which is the actual one where the file knows no other.

    Parameters
    ----------
    rows : sequence of Row
    one_clock : bool
        Whether the times of all requests count from one instant; else each request's start with its send.

    Raises
    ------
    InputError
        When there is no request, or one got its tokens before it was sent.
    """
    if not rows:
        raise InputError("the file holds no requests; nothing can be imported")
    for row in rows:
        if row.first_s < row.sent_s or row.last_s < row.first_s or row.last_s < row.sent_s:
            raise InputError(
                f"{row.where}: sent at {row.sent_s:.6f} s, first token at {row.first_s:.6f} s, last token at "
                f"{row.last_s:.6f} s; these must ascend"
            )
        if row.chunks_s is not None and np.any(np.diff(row.chunks_s) < 0.0):
            raise InputError(f"{row.where}: a gap between chunks is negative; times must ascend")
    intended_s = np.array([row.sent_s if math.isnan(row.intended_s) else row.intended_s for row in rows])
    order = np.argsort(intended_s, kind="stable")
    start_s = float(intended_s[order[0]]) if one_clock else 0.0
    ordered = [rows[i] for i in order]

    def times(name: str) -> NDArray[np.float64]:
        return np.array([getattr(row, name) for row in ordered], dtype=np.float64) - start_s

    def counts(name: str) -> NDArray[np.int64]:
        return np.array([getattr(row, name) for row in ordered], dtype=np.int64)

    status = counts("status").astype(np.int8)
    chunks = _chunks(ordered, start_s)
    unknown = np.full(len(ordered), -1, dtype=np.int64)
    log = RequestLog(
        intended_s=intended_s[order] - start_s,
        sent_s=times("sent_s"),
        first_token_s=times("first_s"),
        last_token_s=times("last_s"),
        input_tokens=counts("input_tokens"),
        output_tokens=counts("output_tokens"),
        cached_tokens=counts("cached_tokens"),
        num_preemptions=unknown,
        replica=unknown,
        status=status,
        itl=None if chunks is None else chunk_gaps(chunks, status == RequestStatus.OK),
    )
    details = RequestDetails(
        request=np.asarray(order, dtype=np.int64),
        intended_input_tokens=unknown,
        first_answer_s=times("first_answer_s"),
        end_s=times("end_s"),
        http_status=counts("http_status"),
        retries=unknown,
        finish_reason=[""] * len(ordered),
        failure=[" ".join(row.failure.split())[:MAX_FAILURE_CHARACTERS] for row in ordered],
    )
    return log, details, chunks


def _chunks(rows: Sequence[Row], start_s: float) -> Chunks | None:
    """None when the chunks of a request that was answered are unknown."""
    if any(row.chunks_s is None and row.status == RequestStatus.OK for row in rows):
        return None
    parts = [np.empty(0) if row.chunks_s is None else row.chunks_s - start_s for row in rows]
    return Chunks(offsets=np.concatenate(([0], np.cumsum([len(part) for part in parts]))), time_s=np.concatenate(parts))
