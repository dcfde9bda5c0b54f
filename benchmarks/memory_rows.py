"""Turns a row of a table of start-up logs into a deployment."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from benchmarks.memory_hybrids import find_hybrid
from servewise import perf
from servewise.catalog import get_gpu, get_model, read_facts
from servewise.engines import llamacpp, sglang, trtllm, vllm
from servewise.errors import InputError
from servewise.types import (
    Deployment,
    EngineName,
    EngineParams,
    GpuSpec,
    KvPrecision,
    ModelSpec,
    Parallelism,
    Precision,
    Provenance,
    VllmParams,
    WeightPrecision,
)
from servewise.units import GIB

__all__ = ["Placed", "UnplacedError", "place"]

ENGINES: Mapping[str, EngineName] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "tensorrt-llm": "tensorrt-llm",
    "trtllm": "tensorrt-llm",
    "llama.cpp": "llama.cpp",
    "ollama": "llama.cpp",
}
DEFAULT_VERSIONS = {
    "vllm": vllm.default_version,
    "sglang": sglang.default_version,
    "tensorrt-llm": trtllm.default_version,
    "llama.cpp": llamacpp.default_version,
}
FIRST_ENGINE_LAST_VERSION = "0.7.3"
"""Last release of vLLM whose default was its first engine ("V0"): memory of rows that say so."""
LONG_CONTEXT_TOKENS = 32768
"""Contexts beyond it turned chunked prefill on in vLLM's first engine."""
NOISE = re.compile(
    r"^(instruct|chat|it|hf|base|meta|thinking|preview|quantized|dynamic|block|sym|gguf|mlx|bnb|awq|gptq|marlin|modelopt|"
    r"autoround|autofp8|mtp|qat|fp8|fp16|bf16|nvfp4|mxfp4|nf4|int4|int8|4bit|8bit|w4a16|w8a8|w8a16|g\d+|kv|[12]\d\d\d|\d{4})$"
)
"""Parts of a name that say how a checkpoint was tuned, stored or dated, not which shapes it has."""
PRECISIONS: tuple[tuple[str, WeightPrecision], ...] = (
    (r"nvfp4", "nvfp4"),
    (r"mxfp4", "mxfp4"),
    (r"awq|gptq|int4|w4a16|4.?bit|q4_|\bq4\b|autoround", "int4"),
    (r"int8|w8a8|q8_0", "int8"),
    (r"fp8", "fp8"),
    (r"bf16|fp16|f16|float16", "bf16"),
)
PCIE_NAMES = re.compile(
    r"rtx|geforce|titan|\bl4\b|\bl20\b|\bl40s?\b|\ba10g?\b|\ba40\b|\bt4\b|\b24gb class|\b48gb class|gb10|pcie"
)
GGUF_CACHES = {"q8_0": 34 / 64, "q4_0": 18 / 64}
"""llama.cpp's quantized caches, in bytes for each byte of f16: blocks of 32 values with one f16 scale."""
SPECULATION = re.compile(r"dspark|mtp|eagle", re.IGNORECASE)
"""Rows that say so speculate with the draft module of the checkpoint, which is loaded then."""
FULL_NODE_GPUS = 16
"""Stand-in for GPUs of a node where a row spreads a layer over more GPUs than the catalog's node has."""


class UnplacedError(Exception):
    """A row that no deployment of servewise stands for; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A row as a deployment.

    Parameters
    ----------
    deployment : Deployment
    width, kv_width : float
        Bytes of weights and of the KV cache for each byte of the deployment's: 2 for fp32, which servewise does not
        plan for; less than 1 for llama.cpp's quantized caches.
    weights_bytes : float or None [bytes]
        Weights of a GPU, where the deployment's model stands in for one that servewise does not describe.
    assumed : tuple of str
        What the row leaves open and how it was filled in.
    """

    deployment: Deployment
    width: float
    kv_width: float
    weights_bytes: float | None
    assumed: tuple[str, ...]


def number(row: Mapping[str, str], field: str) -> float | None:
    """Figure of a row, None when it is blank.

    Raises
    ------
    UnplacedError
        When the cell is no number.
    """
    text = (row.get(field) or "").strip()
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise UnplacedError(f"{field} {text!r} is no number") from None


def whole(row: Mapping[str, str], field: str, default: int = 1) -> int:
    """Count of a row, or the default when it is blank."""
    value = number(row, field)
    return default if value is None else int(value)


def shape_key(name: str) -> str:
    """A name without vendor, notes, quantization, tuning and dates."""
    plain = re.sub(r"\(.*?\)", "", name).strip().split(" ")[0].rsplit("/", 1)[-1].lower()
    plain = re.sub(r"[-._](iq|q)\d_\w+", "", plain)
    return "-".join(part for part in re.split(r"[-_]|\.(?!\d)", plain) if part and not NOISE.match(part))


@cache
def shape_keys() -> Mapping[str, str]:
    """Catalog models by their names and aliases without what does not change shapes; the first of equals counts."""
    keys: dict[str, str] = {}
    for name, fields in read_facts("catalog/models.csv").items():
        for text in (name, *json.loads(fields["aliases"].value)):
            keys.setdefault(shape_key(text), name)
    return keys


def find_model(name: str) -> ModelSpec:
    """Catalog model of a name with vendor, notes and quantization in it."""
    plain = re.sub(r"\(.*?\)", "", name).strip().split(" ")[0]
    for candidate in (plain, plain.rsplit("/", 1)[-1]):
        with suppress(InputError):
            return get_model(candidate)
    known = shape_keys().get(shape_key(name))
    if known is None:
        raise UnplacedError(f"model {name!r} is not in the catalog")
    return get_model(known)


def find_precision(row: Mapping[str, str], model: ModelSpec, *, mixed: bool) -> tuple[WeightPrecision, int]:
    """Weights of a row and whether they are twice as wide as bf16; ``mixed`` models keep experts in 4 bits anyway."""
    said = row["weights_precision"].lower()
    if row["engine"].strip().lower() in ("llama.cpp", "ollama"):
        return "q4_0", 1  # the KV cache has the size that was asked for, whatever the weights leave
    if mixed and (not said or "fp8" in said):
        return "fp8_block", 1
    if "fp32" in said or "float32" in said:
        return "bf16", 2
    if "fp4" in said and "fp8" in said:
        raise UnplacedError(f"weights in {row['weights_precision']!r} are a mix that is not modelled")
    for text in (said, row["model"].lower()):
        for pattern, precision in PRECISIONS:
            if re.search(pattern, text):
                block = precision == "fp8" and (model.native_precision == "fp8_block" or "block" in text)
                return ("fp8_block" if block else precision), 1
        if text.strip() and text is said:
            raise UnplacedError(f"weights in {row['weights_precision']!r} are not modelled")
    return model.native_precision, 1


def find_kv(row: Mapping[str, str], *, matters: bool) -> KvPrecision:
    """KV cache precision of a row; it does not matter where GiB are compared."""
    text = row["kv_dtype"].lower() if matters else ""
    if "fp8" in text:
        return "fp8"
    if not text or re.search(r"auto|bf16|fp16|f16", text):
        return "bf16"
    raise UnplacedError(f"a KV cache in {row['kv_dtype']!r} is not modelled")


def find_version(text: str, engine: EngineName) -> str:
    """Version of a row: its first number; a pull request stands for the next release, an open one for the newest."""
    usual = DEFAULT_VERSIONS[engine]()
    if engine == "llama.cpp":
        found = re.search(r"\bb\d+", text)
        return found.group() if found else usual
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+|x))?", text)
    if found is None:
        return usual
    major, minor, patch = found.groups()
    if engine == "vllm" and "(V0)" in text and int(major) == 0 and int(minor) >= 8:
        return FIRST_ENGINE_LAST_VERSION
    if patch == "x" and usual.startswith(f"{major}.{minor}."):
        return usual
    number_of_patch = int(patch) if patch and patch != "x" else 0
    if "(pr)" in text.lower():
        number_of_patch += 1
    return f"{major}.{minor}.{number_of_patch}"


def find_gpu(row: Mapping[str, str], engine: EngineName) -> GpuSpec:
    """GPU of a row by name with the memory that the row gives; memory decides, so unknown cards have a stand-in."""
    name, mem_gib = row["gpu"], number(row, "gpu_mem_gib")
    gpu = catalog_gpu(name)
    if gpu is None:
        if mem_gib is None:
            raise UnplacedError(f"GPU {name!r} is not in the catalog and the row gives no memory")
        gpu = stand_in(name)
    if mem_gib is None:
        return gpu
    if engine == "sglang" and "avail_after_load" in row["other"] and "mem" in row["inferred_fields"]:
        # the row's memory is what SGLang found free before loading: its context is not in it any more
        ranks = whole(row, "tp") * (whole(row, "dp") if whole(row, "num_gpus") > whole(row, "tp") else 1)
        mem_gib += sglang.library_gib(gpu, ranks)[0]
    return replace(gpu, mem_bytes=int(mem_gib * GIB))


def catalog_gpu(name: str) -> GpuSpec | None:
    """Catalog GPU of a name such as ``H100 80GB``; the SXM board where a name stands for several."""
    plain = re.sub(r"\s+", "-", re.sub(r"\(.*?\)", "", name).strip())
    size = re.search(r"-(\d+)GB$", plain)
    for text in (plain, re.sub(r"-(\d+)GB$", "", plain), plain.removesuffix("-Blackwell")):
        try:
            return get_gpu(text)
        except InputError as error:
            options = re.search(r"may mean (.*?);", str(error))
            if options:
                boards = [b for b in options.group(1).split(", ") if size is None or b.endswith(f"-{size.group(1)}GB")]
                if boards:
                    return get_gpu(boards[0])
    return None


def stand_in(name: str) -> GpuSpec:
    """Card that the catalog lacks: everything but maker and link is blank, memory comes from the row."""
    lower = name.lower()
    amd, apple = re.search(r"\bmi\d", lower), "apple" in lower
    blackwell = re.search(r"\bg?b[23]00", lower)
    return GpuSpec(
        name=name,
        vendor="amd" if amd else "apple" if apple else "nvidia",
        architecture="",
        compute_capability=10.0 if blackwell else 0.0,
        mem_bytes=0,
        mem_bw_bytes_per_s=0.0,
        peak_flops_per_s=MappingProxyType({}),
        link_bytes_per_s=0.0,
        link_kind="pcie" if PCIE_NAMES.search(lower) else "xgmi" if amd else "nvlink",
        link_gpus=FULL_NODE_GPUS,
        nic_bytes_per_s=0.0,
        nic_latency_s=0.0,
        gpus_per_node=FULL_NODE_GPUS,
        tdp_w=0.0,
        provenance=MappingProxyType({"mem_bytes": Provenance(kind="measured", source="the row")}),
    )


def find_parallelism(row: Mapping[str, str], engine: EngineName, model: ModelSpec) -> Parallelism:
    """How a row is spread. SGLang counts data parallel attention ranks in its tensor parallel size, vLLM beside it."""
    tp, pp, dp = whole(row, "tp"), whole(row, "pp"), whole(row, "dp")
    if engine == "llama.cpp":
        return Parallelism()
    if dp > 1 and whole(row, "num_gpus", tp * pp * dp) == tp * pp:
        tp //= dp
    if model.moe is None:
        dp = 1
    return Parallelism(tensor_parallel_size=tp, pipeline_parallel_size=pp, data_parallel_size=dp)


def vllm_params(row: Mapping[str, str], version: str, gpu: GpuSpec, model: ModelSpec) -> tuple[VllmParams, list[str]]:
    """vLLM's parameters: the row's, else the version's defaults.

    Releases before 0.11 are not planned for and have no defaults in servewise. From vLLM's ``arg_utils.py``, as
    remembered: 256 sequences before 0.9; the first engine cut prompts into chunks (2,048 tokens, 512 before 0.7)
    only for contexts beyond 32K and else took whole prompts; from 0.8 on the size classes of 0.11.
    """
    key, assumed = vllm.version_key(version), []
    base = vllm.default_params(version if key >= (0, 11, 0) else "0.11.0", gpu, model)
    length = whole(row, "max_model_len", model.max_context_tokens)
    changes: dict[str, object] = {"max_model_len": length}
    if key < (0, 9, 0):
        changes["max_num_seqs"] = 256
    if key < (0, 8, 0):
        chunked = length > LONG_CONTEXT_TOKENS and not model.vision_num_params
        tokens = (2048 if key >= (0, 7, 0) else 512) if chunked else max(length, 2048)
        changes |= {"enable_chunked_prefill": chunked, "max_num_batched_tokens": tokens}
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        if number(row, name) is None:
            assumed.append(f"{name}: the version's default")
        else:
            changes[name] = whole(row, name)
    fraction = number(row, "mem_fraction")
    if fraction is not None:
        changes["gpu_memory_utilization"] = fraction
    if number(row, "enforce_eager"):
        changes["cudagraph_mode"] = "NONE"
    params = replace(base, **changes)  # type: ignore[arg-type]
    if params.max_num_batched_tokens < length and not params.enable_chunked_prefill:
        params = replace(params, enable_chunked_prefill=True)
    return replace(params, max_num_seqs=min(params.max_num_seqs, params.max_num_batched_tokens)), assumed


def params_of(
    row: Mapping[str, str], engine: EngineName, version: str, gpu: GpuSpec, model: ModelSpec, spread: Parallelism
) -> tuple[EngineParams, list[str]]:
    """Parameters of a row's engine: the row's own, else the version's defaults."""
    if engine == "vllm":
        return vllm_params(row, version, gpu, model)
    length, seqs = whole(row, "max_model_len", model.max_context_tokens), number(row, "max_num_seqs")
    fraction, tokens = number(row, "mem_fraction"), number(row, "max_num_batched_tokens")
    assumed = [] if fraction is not None or engine == "llama.cpp" else ["mem_fraction: the version's default"]
    if engine == "sglang":
        params = sglang.default_params(version, gpu, model, spread)
        if tokens is not None:
            params = replace(params, chunked_prefill_size=int(tokens))
            usual = sglang.mem_fraction_static(version, gpu, model, spread, params)
            params = replace(params, mem_fraction_static=usual)
        if seqs is not None:
            params = replace(params, max_running_requests=int(seqs))
        if fraction is not None:
            params = replace(params, mem_fraction_static=fraction)
        return replace(params, context_length=length), assumed
    if engine == "tensorrt-llm":
        trt = replace(trtllm.default_params(version, gpu, model, spread), max_seq_len=length)
        if tokens is not None:
            trt = replace(trt, max_num_tokens=int(tokens))
        if seqs is not None:
            trt = replace(trt, max_batch_size=int(seqs))
        if fraction is not None:
            trt = replace(trt, free_gpu_memory_fraction=fraction)
        return trt, assumed
    slots = int(seqs) if seqs is not None else 1
    return replace(llamacpp.default_params(version, gpu, model), ctx_size=length, parallel=slots), assumed


def place(row: Mapping[str, str]) -> Placed:
    """Build the deployment of a row. Measured weights and reported memory are never inputs.

    Raises
    ------
    UnplacedError
        When the row names an engine, a model or a precision that servewise does not describe.
    """
    engine = ENGINES.get(row["engine"].strip().lower())
    if engine is None:
        raise UnplacedError(f"engine {row['engine']!r} is not modelled")
    hybrid = find_hybrid(row["model"])
    model = hybrid.spec if hybrid else find_model(row["model"])
    length = whole(row, "max_model_len", model.max_context_tokens)
    model = replace(model, max_context_tokens=max(length, model.max_context_tokens))
    weights, width = find_precision(row, model, mixed=hybrid is not None and hybrid.expert_params > 0)
    gpu, version = find_gpu(row, engine), find_version(row["engine_version"], engine)
    spread = find_parallelism(row, engine, model)
    if spread.tensor_parallel_size > gpu.gpus_per_node:
        gpu = replace(gpu, gpus_per_node=FULL_NODE_GPUS)
    params, assumed = params_of(row, engine, version, gpu, model, spread)
    if not re.search(r"\d", row["engine_version"]):
        assumed.append(f"engine_version: {version}")
    own = hybrid.weights_bytes(weights, spread) if hybrid else None
    if SPECULATION.search(f"{row['engine_version']} {row['other']}"):
        assumed.append("the checkpoint's draft module is loaded")
        own = own or float(perf.weights_bytes(model, weights, spread))
        draft = hybrid.draft_bytes if hybrid else 2.0 * model.mtp_num_params
        own += draft / spread.num_gpus
    deployment = Deployment(
        model=model,
        gpu=gpu,
        engine=engine,
        engine_version=version,
        precision=Precision(
            weights=weights,
            kv=find_kv(row, matters=hybrid is None and row["kv_dtype"].lower().strip() not in GGUF_CACHES),
        ),
        parallelism=spread,
        params=params,
    )
    cache = row["kv_dtype"].lower().strip() if engine == "llama.cpp" else ""
    kv_width = GGUF_CACHES.get(cache, 1.0) * width
    return Placed(deployment=deployment, width=width, kv_width=kv_width, weights_bytes=own, assumed=tuple(assumed))
