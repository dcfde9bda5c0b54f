"""What became of the requests of a run, gathered as they end."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from servewise.metrics import chunk_gaps
from servewise.types import Chunks, RequestDetails, RequestLog, RequestStatus

__all__ = ["Outcome", "Record"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request. Times are of the clock [ns], 0 where there is none."""

    request: int
    intended_ns: int
    sent_ns: int
    first_answer_ns: int
    last_token_ns: int
    end_ns: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    intended_input_tokens: int
    status: RequestStatus
    http_status: int
    retries: int
    finish_reason: str
    failure: str
    chunks_ns: array[int]


_NUMBERS = [field.name for field in fields(Outcome) if field.type == "int"]


class Record:
    """Outcomes as columns: 100 bytes a request and 8 a chunk."""

    def __init__(self) -> None:
        self._numbers = {name: array("q") for name in _NUMBERS}
        self._status = array("b")
        self._num_chunks = array("q")
        self._chunks_ns = array("q")
        self._finish_reason: list[str] = []
        self._failure: list[str] = []

    def __len__(self) -> int:
        return len(self._status)

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome."""
        for name, column in self._numbers.items():
            column.append(getattr(outcome, name))
        self._status.append(outcome.status)
        self._num_chunks.append(len(outcome.chunks_ns))
        self._chunks_ns.extend(outcome.chunks_ns)
        self._finish_reason.append(outcome.finish_reason)
        self._failure.append(outcome.failure)

    def extend(self, other: Record) -> None:
        """Keep what another has kept."""
        for name, column in self._numbers.items():
            column.extend(other._numbers[name])
        self._status.extend(other._status)
        self._num_chunks.extend(other._num_chunks)
        self._chunks_ns.extend(other._chunks_ns)
        self._finish_reason += other._finish_reason
        self._failure += other._failure

    def renumber(self, requests: Ints) -> None:
        """Name each request ``i`` by ``requests[i]``: a part of a load becomes part of the whole."""
        own = np.frombuffer(self._numbers["request"], dtype=np.int64)
        self._numbers["request"] = array("q", requests[own].tobytes())

    def shift(self, by_ns: int) -> None:
        """Add to every time: another machine's clock becomes this one's."""
        for name, column in self._numbers.items():
            if name.endswith("_ns"):
                times = np.frombuffer(column, dtype=np.int64)
                self._numbers[name] = array("q", np.where(times > 0, times + by_ns, times).tobytes())
        self._chunks_ns = array("q", (_ints(self._chunks_ns) + by_ns).tobytes())

    def tables(self, start_ns: int, *, streamed: bool) -> tuple[RequestLog, RequestDetails, Chunks]:
        """Log, details and chunks in order of intended send time; times from ``start_ns`` [s]."""
        columns = {name: _ints(column) for name, column in self._numbers.items()}
        order = np.lexsort((columns["request"], columns["intended_ns"]))
        columns = {name: column[order] for name, column in columns.items()}
        status = np.frombuffer(self._status, dtype=np.int8)[order]
        counts, firsts = _ints(self._num_chunks)[order], _starts(_ints(self._num_chunks))[order]
        offsets = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts)))
        at = np.arange(offsets[-1]) + np.repeat(firsts - offsets[:-1], counts)
        time_s = (_ints(self._chunks_ns)[at] - start_ns) / 1e9

        def seconds(name: str) -> NDArray[np.float64]:
            return np.where(columns[name] > 0, (columns[name] - start_ns) / 1e9, np.nan)

        padded = np.append(time_s, np.nan)
        first_s = np.where(counts > 0, padded[offsets[:-1]], np.nan)
        chunks = Chunks(offsets=offsets, time_s=time_s)
        log = RequestLog(
            intended_s=seconds("intended_ns"),
            sent_s=seconds("sent_ns"),
            first_token_s=first_s,
            last_token_s=seconds("last_token_ns"),
            input_tokens=columns["input_tokens"],
            output_tokens=columns["output_tokens"],
            cached_tokens=columns["cached_tokens"],
            num_preemptions=np.full(len(order), -1, dtype=np.int64),
            replica=np.full(len(order), -1, dtype=np.int64),
            status=status,
            itl=chunk_gaps(chunks, status == RequestStatus.OK) if streamed else None,
        )
        details = RequestDetails(
            request=columns["request"],
            intended_input_tokens=columns["intended_input_tokens"],
            first_answer_s=seconds("first_answer_ns"),
            end_s=seconds("end_ns"),
            http_status=columns["http_status"],
            retries=columns["retries"],
            finish_reason=[self._finish_reason[i] for i in order],
            failure=[self._failure[i] for i in order],
        )
        return log, details, chunks


def _ints(column: array[int]) -> Ints:
    return np.frombuffer(column, dtype=np.int64)


def _starts(counts: Ints) -> Ints:
    return np.cumsum(counts) - counts
