"""``vllm bench serve --save-result --save-detailed``, and SGLang's ``bench_serving --output-details``.

Both write one object a run whose lists hold an entry a request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from servewise.measure.formats.document import Value
from servewise.measure.formats.rows import Row, tables
from servewise.types import ImportedRun, RequestStatus, Tool

__all__ = ["read_sglang", "read_vllm"]

REQUIRED = ("itls", "input_lens", "output_lens", "errors")
OPTIONAL = ("start_times", "latencies", "cached_tokens")
VLLM_DEFINITIONS = {
    "ttft": "send to the first chunk with a choice, which may hold a role and no token; taken as the first token",
    "itl": "gaps between chunks with a choice, pooled; taken as they are",
    "tpot": "(last chunk - first chunk) / (output tokens - 1); the same here",
    "e2e": "send to the last chunk with a choice; taken as the last token. A wait for a free place is not in it",
}
SGLANG_DEFINITIONS = {
    "ttft": "send to the first chunk with text, content or reasoning; taken as the first token",
    "itl": "gaps between chunks with text, pooled; taken as they are",
    "tpot": "its own runs to [DONE]; here (last chunk - first chunk) / (output tokens - 1)",
    "e2e": "its own runs to [DONE] and is not in the file; here send to the last chunk with text",
}
VLLM_TOKENS = "output tokens are the server's usage; without usage vLLM counts the text with its own tokenizer, or 1"
SGLANG_TOKENS = "output tokens are the server's usage; without usage SGLang writes the number that was asked for"


def read_vllm(document: Value, name: str) -> ImportedRun:
    """Read one run of ``vllm bench serve``."""
    return _read(document, name, "vllm")


def read_sglang(document: Value, name: str) -> ImportedRun:
    """Read one run of SGLang's ``bench_serving``."""
    return _read(document, name, "sglang")


def _read(document: Value, name: str, tool: Tool) -> ImportedRun:
    rows = _rows(document, tool)
    one_clock = document.has("start_times")
    log, details, chunks = tables(rows, one_clock=one_clock)
    missing = ["intended send times", "first token of the answer", "end of the response", "finish reasons"]
    if not one_clock:
        missing.insert(0, "send times")
    if chunks is None:
        missing.append("times of single chunks")
    if not document.has("cached_tokens"):
        missing.append("cached tokens")
    notes = [VLLM_TOKENS if tool == "vllm" else SGLANG_TOKENS]
    surplus = sum(len(row.chunks_s) > row.output_tokens >= 0 for row in rows if row.chunks_s is not None)
    if surplus:
        notes.append(
            f"{surplus} of {len(rows)} answers have more chunks than tokens: chunks without a token are among them, "
            "and where the first is one (a role), TTFT is too short and TPOT too long"
        )
    return ImportedRun(
        tool=tool,
        tool_version="unknown",  # neither writes its version
        name=name,
        model=document.get("model_id").text() or "unknown",
        log=log,
        details=details,
        chunks=chunks,
        one_clock=one_clock,
        definitions=VLLM_DEFINITIONS if tool == "vllm" else SGLANG_DEFINITIONS,
        missing=tuple(missing),
        notes=tuple(notes),
    )


def _rows(document: Value, tool: Tool) -> list[Row]:
    if not document.has("ttfts"):
        option = "--save-result --save-detailed" if tool == "vllm" else "--output-details"
        raise document.get("ttfts").fail(f"the times of each request; run the benchmark with {option}")
    ttfts_s = [value.seconds() for value in document.get("ttfts").items()]
    names = [*REQUIRED, *(name for name in OPTIONAL if document.has(name))]
    columns = {name: list(document.get(name).items()) for name in names}
    for name, values in columns.items():
        if len(values) != len(ttfts_s):
            raise document.get(name).fail(f"{len(ttfts_s)} entries, as ttfts has, not {len(values)}")
    entries = [{name: values[i] for name, values in columns.items()} for i in range(len(ttfts_s))]
    return [_row(entry, ttft_s, tool) for entry, ttft_s in zip(entries, ttfts_s, strict=True)]


def _row(entry: Mapping[str, Value], ttft_s: float, tool: Tool) -> Row:
    """One request; a request that got no chunk has a TTFT of 0."""
    failure = entry["errors"].text()
    if tool == "vllm" and ttft_s == 0.0:
        failure = failure or "no chunk arrived"
    sent_s = entry["start_times"].seconds() if "start_times" in entry else 0.0
    gaps_s = entry["itls"].all_seconds()
    latency_s = entry["latencies"].seconds() if "latencies" in entry and not failure else 0.0
    chunks_s: NDArray[np.float64] | None = np.empty(0)
    first_s = last_s = math.nan
    if ttft_s != 0.0:
        chunks_s = sent_s + ttft_s + np.concatenate(([0.0], np.cumsum(gaps_s)))
        first_s, last_s = float(chunks_s[0]), float(chunks_s[-1])
        if not len(gaps_s) and latency_s > ttft_s:  # it ends later than its one chunk: the gaps were not known
            chunks_s, last_s = None, sent_s + latency_s
    return Row(
        where=entry["itls"].where,
        sent_s=sent_s,
        first_s=first_s,
        last_s=last_s,
        input_tokens=entry["input_lens"].count(optional=True),
        output_tokens=-1 if failure else entry["output_lens"].count(optional=True),
        cached_tokens=entry["cached_tokens"].count() if "cached_tokens" in entry else -1,
        status=RequestStatus.FAILED if failure else RequestStatus.OK,
        failure=failure,
        chunks_s=chunks_s,
    )
