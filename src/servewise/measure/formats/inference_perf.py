"""inference-perf's ``per_request_lifecycle_metrics.json`` (``report.request_lifecycle.per_request: true``)."""

from __future__ import annotations

import math

import numpy as np

from servewise.measure.formats.document import Value
from servewise.measure.formats.rows import Row, tables
from servewise.types import ImportedRun, RequestStatus

__all__ = ["read_inference_perf"]

DEFINITIONS = {
    "ttft": "send to the first chunk with text; taken as the first token",
    "itl": "its own is over re-tokenized tokens, 0 within a chunk; here the gaps between chunks, pooled",
    "tpot": "(last - first chunk) / (output tokens - 1), by its own tokenizer unless told otherwise; here by the "
    "server's usage where there is one. Its NTPOT, E2E / tokens, is not used",
    "e2e": "its own runs to the end of the response; here to the last chunk with text",
}


def read_inference_perf(document: Value, name: str) -> ImportedRun:
    """Read a run's requests."""
    values = list(document.items())
    rows = [_row(value) for value in values]
    log, details, chunks = tables(rows, one_clock=True)
    missing = ["intended send times", "finish reasons", "tool version", "model"]
    if chunks is None:
        missing.append("times of single chunks")
    notes = []
    own = sum(row.status == RequestStatus.OK and _usage(value) is None for row, value in zip(rows, values, strict=True))
    if own:
        notes.append(f"output tokens of {own} requests are counted by inference-perf's tokenizer: there was no usage")
    return ImportedRun(
        tool="inference-perf",
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


def _response(value: Value) -> Value | None:
    info = value.get("info")
    return info.get("response_metrics") if info.raw is not None and info.has("response_metrics") else None


def _usage(value: Value) -> Value | None:
    response = _response(value)
    usage = None if response is None else response.get("server_usage")
    return usage if usage is not None and usage.has("completion_tokens") else None


def _row(value: Value) -> Row:
    sent_s, end_s = value.get("start_time").seconds(), value.get("end_time").seconds()
    error = value.get("error")
    if error.raw is not None:
        failure = f"{error.get('error_type').text()}: {error.get('error_msg').text()}"
        return Row(where=value.where, sent_s=sent_s, end_s=end_s, status=RequestStatus.FAILED, failure=failure)
    response, usage = _response(value), _usage(value)
    if response is None:
        raise value.get("info").fail("response_metrics of a request without an error; write the report with info")
    times_s = np.empty(0)
    for name in ("output_token_times", "chunk_times"):
        if response.has(name) and not len(times_s):
            times_s = np.unique(response.get(name).all_seconds())
    streamed = len(times_s) > 0
    cached = usage.get("prompt_tokens_details") if usage is not None else None
    prompt = usage.get("prompt_tokens") if usage is not None else value.get("info").get("input_tokens")
    return Row(
        where=value.where,
        sent_s=sent_s,
        first_s=times_s[0] if streamed else math.nan,
        last_s=times_s[-1] if streamed else end_s,
        end_s=end_s,
        input_tokens=prompt.count(optional=True),
        output_tokens=(response.get("output_tokens") if usage is None else usage.get("completion_tokens")).count(),
        cached_tokens=-1 if cached is None or cached.raw is None else cached.get("cached_tokens").count(optional=True),
        chunks_s=times_s if streamed else None,
    )
