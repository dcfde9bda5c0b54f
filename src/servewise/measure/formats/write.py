"""Writing a run in the format of another load generator, for scripts that read it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError, UnknownNameError
from servewise.metrics import counted, tpot_s, ttft_sent_s
from servewise.store import write_text_atomic
from servewise.types import ImportedRun, Measurement, RequestStatus

__all__ = ["FORMATS", "write_run"]

FORMATS: Final = ("aiperf", "vllm")
VLLM_PERCENTILES = (90, 95, 99)
NS = 1e9

Floats = NDArray[np.float64]


def write_run(path: Path, run: Measurement | ImportedRun, format: str) -> None:  # noqa: A002 (the option's name)
    """Write a run as ``vllm bench serve --save-detailed`` or as AIPerf's ``profile_export.jsonl`` has it.

    The times are taken from the actual send, as those tools do. What the run does not hold is null or left out.

    Parameters
    ----------
    path : Path
        A new file.
    run : Measurement or ImportedRun
    format : str
        One of ``FORMATS``.

    Raises
    ------
    InputError
        When the format cannot hold the run, or the file exists already or cannot be written.
    """
    if format not in FORMATS:
        raise UnknownNameError("format", format, FORMATS)
    log = run.log
    whole = (log.status == RequestStatus.OK) & np.isnan(log.first_token_s)
    if whole.any():
        raise InputError(
            f"{int(whole.sum())} answers of {run.name} came in one piece, without a first token; {format}'s format "
            "cannot say that. Export a run of streamed answers"
        )
    if format == "vllm":
        text = json.dumps(_vllm(run), allow_nan=False) + "\n"
    else:
        text = "".join(json.dumps(record, allow_nan=False) + "\n" for record in _aiperf(run))
    write_text_atomic(path, text)


def _counted(run: Measurement | ImportedRun) -> NDArray[np.bool_]:
    return counted(run) if isinstance(run, Measurement) else np.ones(run.log.num_requests, dtype=np.bool_)


def _model(run: Measurement | ImportedRun) -> str:
    return run.endpoint.model if isinstance(run, Measurement) else run.model


def _started(run: Measurement | ImportedRun) -> datetime | None:
    if isinstance(run, ImportedRun) or not run.started:
        return None
    try:
        started = datetime.fromisoformat(run.started)
    except ValueError as error:
        raise InputError(f"the start of {run.name} is {run.started!r}; an ISO time is expected") from error
    return started if started.tzinfo else started.replace(tzinfo=UTC)


def _one_clock(run: Measurement | ImportedRun) -> bool:
    return isinstance(run, Measurement) or run.one_clock


def _gaps(run: Measurement | ImportedRun, i: int) -> list[float] | None:
    """Gaps between the chunks of a request; None when unknown."""
    if run.chunks is None:
        return None
    low, high = run.chunks.offsets[i], run.chunks.offsets[i + 1]
    return [float(gap) for gap in np.diff(run.chunks.time_s[low:high])]


def _failure(run: Measurement | ImportedRun, i: int) -> str:
    """Why a request has no whole answer; empty when it has."""
    status = RequestStatus(int(run.log.status[i]))
    return "" if status == RequestStatus.OK else run.details.failure[i] or status.name.lower()


def _known(count: int) -> int | None:
    return None if count < 0 else int(count)


def _vllm(run: Measurement | ImportedRun) -> dict[str, Any]:
    """The document of ``vllm bench serve``; its aggregates by vLLM's own definitions."""
    log, started = run.log, _started(run)
    rows = np.flatnonzero(_counted(run)).tolist()
    failures = [_failure(run, i) for i in rows]
    done = np.array([i for i, failure in zip(rows, failures, strict=True) if not failure], dtype=np.int64)
    inputs = [_known(log.input_tokens[i]) for i in rows]
    outputs = [0 if failure else _known(log.output_tokens[i]) for i, failure in zip(rows, failures, strict=True)]
    ends_s = np.fmax(log.last_token_s[rows], log.sent_s[rows])
    duration_s = float(np.max(ends_s) - np.min(log.sent_s[rows])) if rows and _one_clock(run) else None
    total_in = _total([tokens for tokens, failure in zip(inputs, failures, strict=True) if not failure])
    total_out = _total(outputs)
    total = None if total_in is None or total_out is None else total_in + total_out
    gaps = [_gaps(run, i) for i in rows]
    pooled = [gap for own, failure in zip(gaps, failures, strict=True) if own and not failure for gap in own]
    e2es_s = log.last_token_s - log.sent_s
    return {
        "date": None if started is None else f"{started:%Y%m%d-%H%M%S}",
        "backend": "servewise",
        "label": run.name,
        "model_id": _model(run),
        "tokenizer_id": None,
        "num_prompts": len(rows),
        "duration": duration_s,
        "completed": len(done),
        "failed": len(rows) - len(done),
        "total_input_tokens": total_in,
        "total_output_tokens": total_out,
        "request_throughput": _rate(len(done), duration_s),
        "output_throughput": _rate(total_out, duration_s),
        "total_token_throughput": _rate(total, duration_s),
        "input_lens": inputs,
        "output_lens": outputs,
        "ttfts": [_first_s(run, i) for i in rows],
        "itls": [own or [] for own in gaps],
        "latencies": [0.0 if failure else float(e2es_s[i]) for i, failure in zip(rows, failures, strict=True)],
        **({"start_times": log.sent_s[rows].tolist()} if _one_clock(run) else {}),
        "generated_texts": ["" for _ in rows],
        "errors": failures,
        **_aggregates("ttft", ttft_sent_s(log)[done]),
        **_aggregates("tpot", tpot_s(log)[done]),
        **_aggregates("itl", np.array(pooled, dtype=np.float64)),
        **_aggregates("e2el", e2es_s[done]),
    }


def _first_s(run: Measurement | ImportedRun, i: int) -> float:
    """Send to first token [s]; 0 without one, as vLLM has it."""
    first_s = float(run.log.first_token_s[i] - run.log.sent_s[i])
    return first_s if math.isfinite(first_s) else 0.0


def _total(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _rate(amount: int | None, duration_s: float | None) -> float | None:
    return amount / duration_s if amount is not None and duration_s else None


def _aggregates(metric: str, values_s: Floats) -> dict[str, float | None]:
    """Mean, median, deviation and percentiles [ms] under vLLM's names; null without a value."""
    defined = values_s[np.isfinite(values_s)] * 1e3
    names = ("mean", "median", "std", *(f"p{q}" for q in VLLM_PERCENTILES))
    if not len(defined):
        return {f"{name}_{metric}_ms": None for name in names}
    figures = (np.mean(defined), np.median(defined), np.std(defined), *np.percentile(defined, VLLM_PERCENTILES))
    return {f"{name}_{metric}_ms": float(figure) for name, figure in zip(names, figures, strict=True)}


def _aiperf(run: Measurement | ImportedRun) -> Iterator[Mapping[str, Any]]:
    """The lines of ``profile_export.jsonl``; requests of a warm-up are of that phase."""
    if not _one_clock(run):
        raise InputError(f"{run.name} does not say when requests were sent; AIPerf's format needs it. Use vllm")
    log, details, started = run.log, run.details, _started(run)
    start_ns = 0 if started is None else int(started.timestamp()) * int(NS)
    is_counted = _counted(run)
    tpots_s = tpot_s(log)
    for i in range(log.num_requests):
        failure, status = _failure(run, i), RequestStatus(int(log.status[i]))
        times_s = {
            "time_to_first_token": log.first_token_s[i] - log.sent_s[i],
            "time_to_first_output_token": details.first_answer_s[i] - log.sent_s[i],
            "request_latency": log.last_token_s[i] - log.sent_s[i],
            "inter_token_latency": tpots_s[i],
        }
        metrics: dict[str, Any] = {
            name: {"value": float(time_s) * 1e3, "unit": "ms"}
            for name, time_s in times_s.items()
            if math.isfinite(time_s)
        }
        gaps = _gaps(run, i)
        if gaps:
            metrics["inter_chunk_latency"] = {"value": [gap * 1e3 for gap in gaps], "unit": "ms"}
        counts = {
            "input_sequence_length": log.input_tokens[i],
            "usage_prompt_tokens": log.input_tokens[i],
            "output_sequence_length": log.output_tokens[i],
            "usage_completion_tokens": log.output_tokens[i],
            "usage_prompt_cache_read_tokens": log.cached_tokens[i],
        }
        metrics |= {name: {"value": int(count), "unit": "tokens"} for name, count in counts.items() if count >= 0}
        metadata: dict[str, Any] = {
            "session_num": i,
            "turn_index": 0,
            "credit_issued_ns": start_ns + _ns(log.intended_s[i]),
            "request_start_ns": start_ns + _ns(log.sent_s[i]),
            "request_end_ns": start_ns + _ns(np.fmax(np.fmax(details.end_s[i], log.last_token_s[i]), log.sent_s[i])),
            "worker_id": "servewise",
            "record_processor_id": "servewise",
            "benchmark_phase": "profiling" if is_counted[i] else "warmup",
            "was_cancelled": status == RequestStatus.UNFINISHED,
        }
        record: dict[str, Any] = {"metadata": metadata, "metrics": metrics}
        if failure:
            code = int(details.http_status[i])
            record["error"] = {"code": code if code > 0 else None, "type": status.name.lower(), "message": failure}
        yield record


def _ns(time_s: float) -> int:
    return round(float(time_s) * NS)
