"""``vllm bench serve --save-result --save-detailed``, and SGLang's ``bench_serving --output-details``.

Both write one object a run whose lists hold an entry a request.
"""

from __future__ import annotations

import math

import numpy as np

from servewise.measure.formats.document import Value
from servewise.measure.formats.rows import Row, tables
from servewise.types import ImportedRun, RequestStatus, Tool

__all__ = ["read_sglang", "read_vllm"]

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
    if not document.has("ttfts"):
        option = "--save-result --save-detailed" if tool == "vllm" else "--output-details"
        raise document.get("ttfts").fail(f"the times of each request; run the benchmark with {option}")
    ttfts = [value.seconds() for value in document.get("ttfts").items()]
    columns = {key: list(document.get(key).items()) for key in ("itls", "input_lens", "output_lens", "errors")}
    optional = {key: list(document.get(key).items()) for key in OPTIONAL if document.has(key)}
    for key, values in {**columns, **optional}.items():
        if len(values) != len(ttfts):
            raise document.get(key).fail(f"{len(ttfts)} entries, as ttfts has, not {len(values)}")
    rows = []
    for i, ttft_s in enumerate(ttfts):
        failure = columns["errors"][i].text()
        sent_s = optional["start_times"][i].seconds() if "start_times" in optional else 0.0
        gaps_s = columns["itls"][i].all_seconds()
        latency_s = optional["latencies"][i].seconds() if "latencies" in optional and not failure else 0.0
        # A request that got no chunk has a time of 0; one that ends after its only chunk has gaps that are unknown.
        known = ttft_s == 0.0 or len(gaps_s) > 0 or latency_s <= ttft_s
        chunks_s = sent_s + ttft_s + np.concatenate(([0.0], np.cumsum(gaps_s))) if ttft_s else np.empty(0)
        if tool == "vllm" and not ttft_s:
            failure = failure or "no chunk arrived"
        rows.append(
            Row(
                where=columns["itls"][i].where,
                sent_s=sent_s,
                first_s=chunks_s[0] if ttft_s else math.nan,
                last_s=(chunks_s[-1] if known else sent_s + latency_s) if ttft_s else math.nan,
                input_tokens=columns["input_lens"][i].count(optional=True),
                output_tokens=-1 if failure else columns["output_lens"][i].count(optional=True),
                cached_tokens=optional["cached_tokens"][i].count() if "cached_tokens" in optional else -1,
                status=RequestStatus.FAILED if failure else RequestStatus.OK,
                failure=failure,
                chunks_s=chunks_s if known else None,
            )
        )
    log, details, chunks = tables(rows, one_clock="start_times" in optional)
    missing = ["intended send times", "first token of the answer", "end of the response", "finish reasons"]
    if "start_times" not in optional:
        missing.insert(0, "send times")
    if chunks is None:
        missing.append("times of single chunks")
    if "cached_tokens" not in optional:
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
        one_clock="start_times" in optional,
        definitions=VLLM_DEFINITIONS if tool == "vllm" else SGLANG_DEFINITIONS,
        missing=tuple(missing),
        notes=tuple(notes),
    )
