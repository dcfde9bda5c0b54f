"""AIPerf's ``profile_export.jsonl``: one request a line (``--export-level records``)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from servewise.measure.formats.document import Value
from servewise.measure.formats.rows import Row, tables
from servewise.types import ImportedRun, RequestStatus

__all__ = ["read_aiperf"]

DEFINITIONS = {
    "ttft": "send to the first content, reasoning included; here from the time at which the request was released",
    "itl": "its own is a mean a request; the gaps between chunks, its inter chunk latency, are taken, pooled",
    "tpot": "none of its own; here (last content - first content) / (output tokens - 1)",
    "e2e": "its request latency, send to the last content; here from the release",
}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


def read_aiperf(documents: Sequence[Value], name: str) -> ImportedRun:
    """Read the requests of a run; those of a warm-up are left out."""
    counted = [d for d in documents if d.get("metadata").get("benchmark_phase").text() in ("", "profiling")]
    if not counted:
        raise documents[0].get("metadata").fail("a request of the phase 'profiling' in some line; there is none")
    # Nanoseconds since 1970 do not fit into a float: count from the first one.
    start_ns = min(_start_ns(document) for document in counted)
    rows = [_row(document, start_ns) for document in counted]
    log, details, chunks = tables(rows, one_clock=True)
    missing = ["finish reasons", "tool version", "model"]
    notes = []
    if chunks is None:
        missing.append("times of single chunks")
    if len(counted) < len(documents):
        notes.append(f"{len(documents) - len(counted)} requests of other phases than profiling are left out")
    own = sum(d.get("metrics").has("output_sequence_length") and not _has_usage(d) for d in counted)
    if own:
        notes.append(f"output tokens of {own} requests are counted by AIPerf's own tokenizer: the server gave no usage")
    return ImportedRun(
        tool="aiperf",
        tool_version="unknown",
        name=name,
        model="unknown",
        log=log,
        details=details,
        chunks=chunks,
        one_clock=True,
        definitions=DEFINITIONS,
        missing=tuple(missing),
        notes=tuple(notes),
    )


def _has_usage(document: Value) -> bool:
    return document.get("metrics").has("usage_completion_tokens")


def _start_ns(document: Value) -> int:
    return document.get("metadata").get("request_start_ns").nanoseconds()


def _row(document: Value, start_ns: int) -> Row:
    metadata, metrics = document.get("metadata"), document.get("metrics")
    sent_s = (_start_ns(document) - start_ns) * 1e-9
    credit = metadata.get("credit_issued_ns")
    end = metadata.get("request_end_ns")
    first_s = sent_s + _seconds(metrics, "time_to_first_token")
    error = document.get("error")
    failure = "" if error.raw is None else f"{error.get('type').text()}: {error.get('message').text()}"
    status = RequestStatus.FAILED if failure else RequestStatus.OK
    if metadata.get("was_cancelled").raw is True:
        status = RequestStatus.UNFINISHED
    gaps = metrics.get("inter_chunk_latency")
    chunks_s = None
    if gaps.raw is not None and not math.isnan(first_s):
        gaps_s = gaps.get("value").all_seconds() * _unit(gaps)
        chunks_s = first_s + np.concatenate(([0.0], np.cumsum(gaps_s)))
    last_s = sent_s + _seconds(metrics, "request_latency")
    if chunks_s is None and last_s == first_s:
        chunks_s = np.array([first_s])
    code = error.get("code") if error.raw is not None else error
    return Row(
        where=document.where,
        sent_s=sent_s,
        intended_s=math.nan if credit.raw is None else (credit.nanoseconds() - start_ns) * 1e-9,
        first_s=first_s,
        last_s=last_s,
        first_answer_s=sent_s + _seconds(metrics, "time_to_first_output_token"),
        end_s=math.nan if end.raw is None else (end.nanoseconds() - start_ns) * 1e-9,
        input_tokens=_tokens(metrics, "usage_prompt_tokens", "input_sequence_length"),
        output_tokens=_tokens(metrics, "usage_completion_tokens", "output_sequence_length"),
        cached_tokens=_tokens(metrics, "usage_prompt_cache_read_tokens"),
        status=status,
        http_status=code.count(optional=True),
        failure=failure,
        chunks_s=chunks_s,
    )


def _unit(metric: Value) -> float:
    unit = metric.get("unit")
    if unit.text() not in SECONDS:
        raise unit.fail(f"a unit of time: {', '.join(SECONDS)}")
    return SECONDS[unit.text()]


def _seconds(metrics: Value, name: str) -> float:
    metric = metrics.get(name)
    return math.nan if metric.raw is None else metric.get("value").seconds() * _unit(metric)


def _tokens(metrics: Value, *names: str) -> int:
    """The first of these counts that is there."""
    for name in names:
        if metrics.has(name):
            return metrics.get(name).get("value").count()
    return -1
