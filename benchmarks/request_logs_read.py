"""Request logs of real vLLM runs: what served, what arrived, and what happened to it.

One run is a folder with ``vllm/meta.json`` (versions, engine arguments and, from newer recorders, the resolved
configuration and the device), ``vllm/requests.jsonl`` (one line a request) and ``vllm/timeseries.csv`` (the state of
the scheduler, sampled). A ``config.json`` beside ``vllm`` names the hardware where ``meta.json`` does not.

Of the time stamps of a request, ``arrival_time`` is the API process's wall clock; ``queued_ts``, ``scheduled_ts``,
``first_token_ts`` and ``last_token_ts`` are the engine core's monotonic clock (vLLM 0.19, ``v1/metrics/stats.py``:
events of the scheduler, and the core's time when it sends a step's outputs). So nothing outside the engine is in
them. ``queued_ts`` is stamped when the core reads its inbox, between two steps: it follows the real run's steps, and
the wait for the end of the running step is missing from it. Requests are therefore taken to arrive at
``arrival_time``, moved to the core's clock by the smallest difference any request shows.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.places import find_model, weight_precision
from servewise.catalog import get_gpu, list_gpus
from servewise.engines import vllm
from servewise.errors import InputError
from servewise.types import (
    CudagraphMode,
    Deployment,
    GpuSpec,
    KvPrecision,
    ModelSpec,
    Parallelism,
    Precision,
    Provenance,
    Workload,
)
from servewise.units import GB

__all__ = ["LoggedRun", "read_run", "run_folders"]

Array = NDArray[np.float64]

TIME_FIELDS = ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
SETTINGS = {
    "gpu_memory_utilization": ("gpu_memory_utilization", "cache_config"),
    "block_size_tokens": ("block_size", "cache_config"),
    "enable_prefix_caching": ("enable_prefix_caching", "cache_config"),
    "enable_chunked_prefill": ("enable_chunked_prefill", "scheduler_config"),
    "async_scheduling": ("async_scheduling", "scheduler_config"),
    "scheduler_reserve_full_isl": ("scheduler_reserve_full_isl", "scheduler_config"),
    "max_num_seqs": ("max_num_seqs", "scheduler_config"),
    "max_num_batched_tokens": ("max_num_batched_tokens", "scheduler_config"),
    "max_model_len": ("max_model_len", "model_config"),
}
"""Settings of the engine: vLLM's name for each, and the part of the resolved configuration that holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """A run as it was recorded. Times are seconds after the first arrival; arrays are in order of arrival.

    Parameters
    ----------
    name : str
    deployment : Deployment
        Ranks that serve on their own (a dense model's data parallel ranks) are replicas; those of a model with
        experts are ``parallelism.data_parallel_size``.
    workload : Workload
    first_s, last_s : float64 array, shape (num_requests,) [s]
    tick_s, running, waiting : float64 array, shape (num_ticks,)
        When the scheduler's state was sampled [s], and its requests over all ranks.
    kv_bytes : int or None
        Size of the KV cache of a GPU, where the operator set it by hand.
    logged_kv_tokens : int or None
        KV capacity that the engine logged, for comparison only.
    """

    name: str
    deployment: Deployment
    workload: Workload
    first_s: Array
    last_s: Array
    tick_s: Array
    running: Array
    waiting: Array
    kv_bytes: int | None
    logged_kv_tokens: int | None


def run_folders(folder: Path) -> list[Path]:
    """Sub-folders of ``folder``, each one run, by name.

    Raises
    ------
    InputError
        When there is none.
    """
    found = sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
    if not found:
        raise InputError(f"{folder} holds no run; give a folder whose sub-folders each hold vllm/meta.json")
    return found


def read_run(folder: Path) -> LoggedRun:
    """Read one run.

    Parameters
    ----------
    folder : Path

    Returns
    -------
    LoggedRun

    Raises
    ------
    InputError
        Why the run cannot be placed: a file or field is missing or wrong, a name is unknown, or the engine was
        set to something that is not modelled.
    """
    meta = read_json(folder / "vllm" / "meta.json")
    deployment = deployment_of(meta, hardware_of(meta, folder))
    columns = read_requests(folder / "vllm" / "requests.jsonl")
    to_core_s = float(np.min(columns["queued_ts"] - columns["arrival_time"]))
    order = np.argsort(columns["arrival_time"], kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    start_s = float(columns["arrival_time"][0])
    ticks = read_ticks(folder / "vllm" / "timeseries.csv")
    kv_cache = meta.get("kv_cache") or {}
    set_bytes = setting(meta, "kv_cache_memory_bytes", "cache_config")
    return LoggedRun(
        name=folder.name,
        deployment=deployment,
        workload=workload_of(folder.name, columns),
        first_s=columns["first_token_ts"] - to_core_s - start_s,
        last_s=columns["last_token_ts"] - to_core_s - start_s,
        tick_s=ticks["t"] + started_s(meta) - start_s,
        running=ticks["running"],
        waiting=ticks["waiting"],
        kv_bytes=None if set_bytes is None else int(typed(set_bytes, "kv_cache_memory_bytes", 0)),
        logged_kv_tokens=kv_cache.get("num_kv_tokens"),
    )


def read_json(path: Path) -> Mapping[str, Any]:
    """Read an object from a JSON file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path.name} is missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path.name} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InputError(f"{path.name} must hold an object, not {type(document).__name__}")
    return document


def needed(document: Mapping[str, Any], field: str) -> Any:
    """A field that must be there."""
    if document.get(field) is None:
        raise InputError(f"meta.json lacks {field}")
    return document[field]


def setting(meta: Mapping[str, Any], name: str, section: str) -> Any:
    """What the engine was given, or what it resolved that to; None when neither is recorded."""
    given = (meta.get("engine_kwargs") or {}).get(name)
    if given is not None:
        return given
    resolved = ((meta.get("resolved_config") or {}).get(section) or {}).get(name)
    return resolved if resolved is not None else (meta.get("kv_cache") or {}).get(name)


def typed(value: object, name: str, like: float) -> float:
    """A setting as a number of the same type as ``like``."""
    if isinstance(value, bool) != isinstance(like, bool) or not isinstance(value, (int, float)):
        raise InputError(f"meta.json: {name} is {value!r}, which is no {type(like).__name__}")
    return type(like)(value)


def started_s(meta: Mapping[str, Any]) -> float:
    """When the recorder started, on the wall clock [s]: its samples count from there."""
    text = str(needed(meta, "started_at"))
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise InputError(f"meta.json: started_at {text!r} is not an ISO time stamp") from None


def read_requests(path: Path) -> dict[str, Array]:
    """Columns of the requests, in the order of the file."""
    if not path.is_file():
        raise InputError(f"{path.name} is missing")
    rows: list[tuple[float, ...]] = []
    fields = ("input_toks", "output_toks", *TIME_FIELDS)
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            entry = json.loads(line)
            row = tuple(float(entry[field]) for field in fields)
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path.name}, line {number}: {type(error).__name__} {error}") from None
        if not all(map(math.isfinite, row)) or min(row[:2]) < 1 or not row[3] <= row[4] <= row[5]:
            raise InputError(f"{path.name}, line {number}: tokens below 1 or times out of order")
        rows.append(row)
    if not any(row[1] > 1 for row in rows):
        raise InputError(f"{path.name} holds no request with two output tokens")
    return dict(zip(fields, np.array(rows).T, strict=True))


def read_ticks(path: Path) -> dict[str, Array]:
    """Samples of the scheduler's state."""
    if not path.is_file():
        raise InputError(f"{path.name} is missing")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = ("t", "running", "waiting")
    if not rows or any(name not in rows[0] for name in names):
        raise InputError(f"{path.name} needs rows with the columns {', '.join(names)}")
    try:
        columns = {name: np.array([float(row[name]) for row in rows]) for name in names}
    except (TypeError, ValueError) as error:
        raise InputError(f"{path.name}: {error}") from None
    if not all(np.isfinite(values).all() for values in columns.values()) or not columns["running"].any():
        raise InputError(f"{path.name} holds numbers that are not finite, or no running request")
    return columns


def workload_of(name: str, columns: Mapping[str, Array]) -> Workload:
    """What arrived. Output lengths were pinned by the client, so every answer ends by length."""
    outputs = columns["output_toks"].astype(np.int64)
    return Workload(
        name=name,
        arrival_s=columns["arrival_time"] - columns["arrival_time"][0],
        input_tokens=columns["input_toks"].astype(np.int64),
        output_tokens=outputs,
        max_tokens=outputs,
        max_tokens_kind="declared",
        prefix=None,
        session=None,
        provenance=Provenance(kind="measured", source=f"request log {name}"),
    )


def hardware_of(meta: Mapping[str, Any], folder: Path) -> GpuSpec:
    """The GPU, with the memory its driver reported where that was recorded."""
    hardware = meta.get("hardware") or {}
    if hardware.get("device_name"):
        gpu = gpu_named(str(hardware["device_name"]), None)
        memory = hardware.get("device_total_memory_bytes")
        return gpu if memory is None else replace(gpu, mem_bytes=int(memory))
    try:
        config = read_json(folder / "config.json")
        instance = config["nodes"][0]["instances"][0]
        name, bandwidth = str(instance["hardware"]), instance.get("npu_mem", {}).get("mem_bw")
    except (InputError, KeyError, IndexError, TypeError):
        raise InputError("neither meta.json (hardware.device_name) nor config.json names the GPU") from None
    return gpu_named(name, None if bandwidth is None else float(bandwidth) * GB)


def gpu_named(name: str, bytes_per_s: float | None) -> GpuSpec:
    """GPU of the catalog by a driver's or a simulator's name, such as ``NVIDIA H100 80GB HBM3``.

    Words are dropped from the end until the catalog knows the rest; of several GPUs of that name the one with the
    nearest memory bandwidth is taken, where a bandwidth is known.
    """
    words = name.replace("NVIDIA ", "").replace("GeForce ", "").split()
    attempts = ["-".join(name.split()), *("-".join(words[:k]) for k in range(len(words), 0, -1))]
    known = set(list_gpus())
    for attempt in attempts:
        try:
            return get_gpu(attempt)
        except InputError as error:
            of_that_name = [get_gpu(other) for other in known if other in str(error)] if bytes_per_s else []
            if "ambiguous" in str(error) and of_that_name:
                return min(of_that_name, key=lambda gpu: abs(gpu.mem_bw_bytes_per_s - (bytes_per_s or 0.0)))
    raise InputError(f"GPU {name!r} is not in the catalog, or is ambiguous there")


def deployment_of(meta: Mapping[str, Any], gpu: GpuSpec) -> Deployment:
    """The deployment that the engine's arguments describe."""
    refuse_unmodelled(meta)
    name = str(needed(meta, "model"))
    model, version = find_model(name), str(needed(meta, "vllm_version"))
    quantization = setting(meta, "quantization", "model_config")
    cache_type = str(setting(meta, "kv_cache_dtype", "cache_config") or "auto")
    kv: KvPrecision = "fp8" if cache_type.startswith("fp8") else "bf16"
    parallelism, num_replicas = parallelism_of(meta, model)
    params = vllm.default_params(version, gpu, model)
    given = {name: setting(meta, key, section) for name, (key, section) in SETTINGS.items()}
    changes: dict[str, Any] = {
        name: typed(value, name, getattr(params, name)) for name, value in given.items() if value is not None
    }
    params = replace(params, **changes, cudagraph_mode=cudagraph_mode_of(meta))
    vllm.validate(params, model)
    return Deployment(
        model=model,
        gpu=gpu,
        engine="vllm",
        engine_version=version,
        precision=Precision(weights=weight_precision(str(quantization or "bf16"), model, name), kv=kv),
        parallelism=parallelism,
        params=params,
        num_replicas=num_replicas,
        router="least_requests",
    )


def cudagraph_mode_of(meta: Mapping[str, Any]) -> CudagraphMode:
    """Which steps replay CUDA graphs: recorded as vLLM's numbers for decode and for mixed steps."""
    recorded = ((meta.get("resolved_config") or {}).get("compilation_config") or {}).get("cudagraph_mode")
    if recorded is None:
        return "FULL_AND_PIECEWISE"
    modes: dict[str, CudagraphMode] = {"[2, 1]": "FULL_AND_PIECEWISE", "[2, 0]": "FULL_DECODE_ONLY", "1": "PIECEWISE"}
    if str(recorded) not in modes:
        raise InputError(f"the run used cudagraph_mode {recorded}, which is not modelled; known: {', '.join(modes)}")
    return modes[str(recorded)]


def parallelism_of(meta: Mapping[str, Any], model: ModelSpec) -> tuple[Parallelism, int]:
    """How a replica is spread, and the number of replicas."""
    kwargs = needed(meta, "engine_kwargs")
    tensor, data, pipeline = (
        int(typed(kwargs.get(name) or 1, name, 1))
        for name in ("tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size")
    )
    if model.moe is None:
        return Parallelism(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline), data
    spread = Parallelism(
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        data_parallel_size=data,
        expert_parallel_size=tensor * data if kwargs.get("enable_expert_parallel") else 1,
    )
    return spread, 1


def refuse_unmodelled(meta: Mapping[str, Any]) -> None:
    """Name what the step model and the simulator leave out."""
    resolved = meta.get("resolved_config") or {}
    scheduler = resolved.get("scheduler_config") or {}
    reasons = {
        "speculative decoding": (meta.get("engine_kwargs") or {}).get("speculative_config")
        or resolved.get("speculative_config"),
        "eager mode (no CUDA graphs)": setting(meta, "enforce_eager", "model_config"),
        "moving KV caches between engines": resolved.get("kv_transfer_config"),
        "scheduling by priority": scheduler.get("policy", "fcfs") != "fcfs",
        "a limit on long prefills": scheduler.get("long_prefill_token_threshold"),
    }
    for name, is_set in reasons.items():
        if is_set:
            raise InputError(f"the run used {name}, which is not modelled")
