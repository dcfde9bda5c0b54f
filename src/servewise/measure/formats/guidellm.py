"""GuideLLM's ``benchmarks.json``: a list of benchmarks, each with its requests by how they ended."""

from __future__ import annotations

from collections.abc import Iterator

from servewise.measure.formats.document import Value
from servewise.measure.formats.rows import Row, tables
from servewise.types import ImportedRun, RequestStatus

__all__ = ["read_guidellm"]

DEFINITIONS = {
    "ttft": "send to the first content, reasoning or tool call, wall clock; here from the targeted start where the "
    "strategy has a schedule, from the send otherwise",
    "itl": "its own is a mean a request, (last - first) / (output tokens - 1), which is TPOT here; no gaps",
    "tpot": "its own is (last token - send) / output tokens, first token included; here (last - first) / (n - 1)",
    "e2e": "its own runs to the end of the body; here to the last token",
}
STATUS = {
    "successful": RequestStatus.OK,
    "errored": RequestStatus.FAILED,
    "incomplete": RequestStatus.UNFINISHED,
}
AS_SOON_AS_POSSIBLE = ("synchronous", "concurrent", "throughput")
"""Strategies whose targeted start is no schedule: a request is sent when a place is free."""


def read_guidellm(document: Value, name: str) -> Iterator[ImportedRun]:
    """Read the benchmarks of a report, a run each. Reports of 0.3 to 0.8 are known."""
    version = document.get("metadata").get("guidellm_version").text() if document.has("metadata") else ""
    benchmarks = list(document.get("benchmarks").items())
    for i, benchmark in enumerate(benchmarks):
        which = name if len(benchmarks) == 1 else f"{name}, benchmark {i + 1} of {len(benchmarks)}"
        yield _read(benchmark, which, version or "unknown")


def _read(benchmark: Value, name: str, version: str) -> ImportedRun:
    config = benchmark.get("config" if benchmark.has("config") else "args")
    strategy = config.get("strategy").get("type_").text() if config.has("strategy") else "unknown"
    scheduled = strategy not in (*AS_SOON_AS_POSSIBLE, "unknown")
    requests = benchmark.get("requests")
    rows = [
        _row(value, status, scheduled=scheduled)
        for key, status in STATUS.items()
        if requests.has(key)
        for value in requests.get(key).items()
    ]
    if not rows:
        raise requests.fail("the requests themselves; GuideLLM was told to keep none of them")
    log, details, chunks = tables(rows, one_clock=True)
    missing = ["times of single chunks", "finish reasons"]
    if not scheduled:
        missing.append("intended send times")
    notes = ["times are wall-clock times of several processes", f"strategy {strategy}"]
    uncounted = sum(row.status == RequestStatus.OK and row.output_tokens < 0 for row in rows)
    if uncounted:
        notes.append(
            f"{uncounted} answers came without usage: GuideLLM takes a chunk for a token, here they are unknown"
        )
    made = benchmark.get("scheduler_metrics").get("requests_made") if benchmark.has("scheduler_metrics") else None
    if made is not None and made.has("total") and made.get("total").count() > len(rows):
        notes.append(f"the file holds {len(rows)} of {made.get('total').count()} requests: a sample")
    backend = config.get("backend") if config.has("backend") else None
    model = backend.get("model").text() if backend is not None and isinstance(backend.raw, dict) else ""
    return ImportedRun(
        tool="guidellm",
        tool_version=version,
        name=name,
        model=model or "unknown",
        log=log,
        details=details,
        chunks=chunks,
        one_clock=True,
        definitions=DEFINITIONS,
        missing=tuple(missing),
        notes=tuple(notes),
    )


def _row(value: Value, status: RequestStatus, *, scheduled: bool) -> Row:
    if value.has("scheduler_info"):
        return _row_of_0_3(value, status, scheduled=scheduled)
    info = value.get("info")
    timings = info.get("timings")
    output, inputs = value.get("output_metrics"), value.get("input_metrics")
    return Row(
        where=timings.where,
        # A request that never left has no start of its own.
        sent_s=timings.get("request_start" if timings.has("request_start") else "queued").seconds(),
        intended_s=timings.get("targeted_start" if scheduled else "request_start").seconds(optional=True),
        first_s=timings.get("first_token_iteration").seconds(optional=True),
        last_s=timings.get("last_token_iteration").seconds(optional=True),
        first_answer_s=timings.get("first_output_token_iteration").seconds(optional=True),
        end_s=timings.get("request_end" if timings.has("request_end") else "resolve_end").seconds(optional=True),
        input_tokens=inputs.get("total_tokens" if inputs.has("total_tokens") else "text_tokens").count(optional=True),
        output_tokens=output.get("total_tokens" if output.has("total_tokens") else "text_tokens").count(optional=True),
        cached_tokens=inputs.get("cached_tokens").count(optional=True),
        status=status,
        failure=info.get("error").text(),
    )


def _row_of_0_3(value: Value, status: RequestStatus, *, scheduled: bool) -> Row:
    """A request of 0.3, where -1 stands for a time that is not known."""
    targeted = value.get("scheduler_info").get("targeted_start_time")
    known = scheduled and targeted.seconds(optional=True) > 0
    return Row(
        where=value.where,
        sent_s=value.get("start_time").seconds(),
        intended_s=targeted.seconds() if known else value.get("start_time").seconds(),
        first_s=value.get("first_token_time").seconds(optional=True),
        last_s=value.get("last_token_time").seconds(optional=True),
        end_s=value.get("end_time").seconds(optional=True),
        input_tokens=value.get("prompt_tokens").count(optional=True),
        output_tokens=value.get("output_tokens").count(optional=True),
        status=status,
        failure=value.get("error").text(),
    )
