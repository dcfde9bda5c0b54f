"""Reading a result file: which tool wrote it, and the runs in it."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from servewise.errors import InputError, UnknownNameError
from servewise.measure.formats.aiperf import read_aiperf
from servewise.measure.formats.document import Value, read_documents
from servewise.measure.formats.guidellm import read_guidellm
from servewise.measure.formats.inference_perf import read_inference_perf
from servewise.measure.formats.vllm import read_sglang, read_vllm
from servewise.types import ImportedRun, Tool

__all__ = ["read_runs"]


def read_runs(path: Path, tool: str | None = None) -> tuple[ImportedRun, ...]:
    """Read the runs in a result file of AIPerf, GuideLLM, inference-perf, SGLang or vLLM.

    Parameters
    ----------
    path : Path
        ``profile_export.jsonl``, ``benchmarks.json``, ``per_request_lifecycle_metrics.json``, or what
        ``bench_serving --output-details`` and ``vllm bench serve --save-detailed`` wrote.
    tool : str or None
        Whose file it is; told from its content by default.

    Returns
    -------
    tuple of ImportedRun
        At least one.

    Raises
    ------
    InputError
        When the file cannot be read, holds no single requests, or something in it is not what it should be.
    """
    if tool is not None and tool not in get_args(Tool):
        raise UnknownNameError("load generator", tool, get_args(Tool))
    documents = read_documents(path)
    found = tool or _tool(documents[0])
    if found == "aiperf":
        return (read_aiperf(documents, path.name),)
    runs: list[ImportedRun] = []
    for i, document in enumerate(documents):
        name = path.name if len(documents) == 1 else f"{path.name}, run {i + 1} of {len(documents)}"
        if found == "guidellm":
            runs += read_guidellm(document, name)
        elif found == "inference-perf":
            runs.append(read_inference_perf(document, name))
        elif found == "sglang":
            runs.append(read_sglang(document, name))
        else:
            runs.append(read_vllm(document, name))
    if not runs:
        raise InputError(f"{path}: holds no run; give a file with at least one benchmark")
    return tuple(runs)


def _tool(document: Value) -> Tool:
    """Whose file this is, by fields that only one of the tools writes."""
    raw = document.raw
    if (
        isinstance(raw, list)
        and raw
        and isinstance(raw[0], dict)
        and {"start_time", "end_time", "info"} <= raw[0].keys()
    ):
        return "inference-perf"
    fields = raw.keys() if isinstance(raw, dict) else set()
    if "benchmarks" in fields:
        return "guidellm"
    if {"metadata", "metrics"} <= fields:
        return "aiperf"
    if {"backend", "model_id"} <= fields:
        return "vllm"
    if {"backend", "dataset_name"} <= fields:
        return "sglang"
    raise InputError(
        f"{document.file}: not recognised as a result of {', '.join(get_args(Tool))}; "
        "name the tool with --tool, or give the file that holds the single requests"
    )
