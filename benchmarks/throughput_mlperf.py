"""MLPerf Inference results of language models: what was run, and what servewise says of it.

Offline queues the whole data set; Server sends single requests by a Poisson process at ``target_qps``. The logs do not
say how the GPUs were split: independent copies are assumed, each of the fewest tensor parallel GPUs that leave half of
their memory to the KV cache, in the narrowest floating point precision the GPU multiplies in.

Sources: mlcommons/inference_results_v4.1; mean output tokens as its accuracy checker expects them
(``TOKENS_PER_SAMPLE`` 294.45 of Llama 2 70B, 145.9 of Mixtral 8x7B); lengths of OpenOrca's 24,576 prompts from
openshift-psap/performance-dashboard@7cd1065 ``mlperf-data/summaries/llama2-70b-99.csv`` (read 2026-11-29).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.throughput_names import place_gpu, place_model
from benchmarks.throughput_rows import Row, Unplaceable, note
from benchmarks.throughput_runs import poisson, queued, replaying_every_size, run
from servewise.engines import trtllm, vllm
from servewise.errors import InputError
from servewise.perf import StepFormula, memory, weights_bytes
from servewise.types import (
    Deployment,
    EngineParams,
    GpuSpec,
    ModelSpec,
    Parallelism,
    Precision,
    Provenance,
    TrtllmParams,
    Workload,
)

__all__ = ["Lengths", "lengths_of", "predict"]

VLLM_VERSION = "0.11.0"
"""The oldest vLLM that servewise describes stands for the older ones that were run."""
MAX_BATCH, MAX_TOKENS = 1024, 8192
KV_FRACTION = 0.95
SIZES = (1, 2, 4, 8)
WEIGHTS_FRAC = 0.5
"""Most of a GPU's memory that weights take before another GPU is added."""
NUM_OFFLINE, SERVER_S, MIN_SERVER, MAX_SERVER = 8192, 600.0, 1000, 60000
"""Requests of a copy in an offline run; seconds of arrivals in a server run, MLPerf's least, and their bounds."""
SEED = 41
BOARD_WITHOUT_SWITCH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lengths of a data set, drawn as log-normal and cut off [tokens].

    Parameters
    ----------
    mean_input, mean_output, max_input, max_output : float
    spread_input, spread_output : float
        Standard deviation of the logarithm.
    beams : int
        Sequences that a beam search keeps of each request.
    """

    mean_input: float
    mean_output: float
    max_input: int
    max_output: int
    spread_input: float
    spread_output: float
    beams: int = 1

    def draw(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Inputs and outputs of ``count`` requests, the same every time."""
        rng = np.random.default_rng(SEED)
        return (
            _draw(rng, count, self.mean_input, self.spread_input, self.max_input),
            _draw(rng, count, self.mean_output, self.spread_output, self.max_output),
        )


def _draw(rng: np.random.Generator, count: int, mean: float, spread: float, most: int) -> NDArray[np.int64]:
    drawn = np.exp(spread * rng.standard_normal(count))
    for _ in range(50):  # the cut lowers the mean: scale until it is kept
        cut = np.clip(drawn, 1.0, most)
        drawn = cut * mean / cut.mean()
    return np.clip(np.rint(drawn), 1, most).astype(np.int64)


DATA_SETS: dict[str, Lengths] = {
    "llama2-70b": Lengths(
        mean_input=217, mean_output=294.45, max_input=1024, max_output=1024, spread_input=0.63, spread_output=0.9
    ),
    "llama-2-7b": Lengths(
        mean_input=217, mean_output=294.45, max_input=1024, max_output=1024, spread_input=0.63, spread_output=0.9
    ),
    "mixtral-8x7b": Lengths(
        mean_input=477, mean_output=145.9, max_input=2048, max_output=1024, spread_input=0.8, spread_output=0.9
    ),
    "gptj": Lengths(
        mean_input=870, mean_output=69, max_input=1919, max_output=128, spread_input=0.5, spread_output=0.25, beams=4
    ),
}
"""By workload. OpenOrca's inputs are an estimate from 400 of the listed lengths, of each of its four parts (means 121,
160, 271 and 296 tokens); its outputs are spread like the reference answers, by about a factor of e. Assumed: for
Mixtral's inputs a third each of OpenOrca (230 tokens in its own tokenizer), GSM8K with examples (1,000) and MBXP (200);
for GPT-J articles of CNN/DailyMail (870), of which it searches answers with 4 beams."""


def lengths_of(workload: str) -> Lengths:
    """Lengths of an MLPerf workload.

    Raises
    ------
    Unplaceable
        When the workload is not known.
    """
    name = workload.lower()
    for known, lengths in DATA_SETS.items():
        if known in name:
            return lengths
    raise Unplaceable(f"data set of the workload not known: {workload}")


def refuse_altered(row: Row) -> None:
    """Refuse systems whose speed something that is not modelled decides, by their name in the path.

    Raises
    ------
    Unplaceable
        For power caps, changed models, and the reference harness, whose fixed number of workers limits the load.
    """
    path = row.path.lower()
    for words, reason in (
        (("maxq",), "power cap (MaxQ) is not modelled"),
        (("depthpruned", "pruned", "sparse"), "altered model (pruned or sparse)"),
        (("reference-cpu", "reference-gpu", "-reference-"), "reference harness: its workers limit the load"),
        (("speculative", "eagle", "medusa"), "speculative decoding is not modelled"),
    ):
        if any(word in path for word in words):
            raise Unplaceable(reason)
    if row.num_gpus == 0 or not row.gpu:
        raise Unplaceable("hardware unknown: no accelerator named")


def precision_of(gpu: GpuSpec) -> Precision:
    """What submitters serve in: the narrowest floating point the GPU multiplies in, KV cache in FP8 where it can."""
    peaks = gpu.peak_flops_per_s
    if "fp4" in peaks and gpu.architecture == "blackwell":
        return Precision(weights="nvfp4", kv="fp8")
    if "fp8" in peaks:
        return Precision(weights="fp8", kv="fp8")
    return Precision()


def on_its_board(gpu: GpuSpec, num_gpus: int, parallelism: Parallelism) -> GpuSpec:
    """The GPU with the links that a replica has: on a board of four there is no switch, each pair of GPUs shares a
    third of a GPU's links, and fewer than four use only those; H100 NVL are bridged in pairs.

    Sources
    -------
    NVIDIA HGX H100 4-GPU: point-to-point NVLink, 300 of 900 GB/s between each pair. H100 NVL: bridges of 600 GB/s, both
    directions together.
    """
    size = parallelism.tensor_parallel_size
    if size == 2 and gpu.name.startswith("H100-NVL"):
        return replace(gpu, link_kind="nvlink", link_bytes_per_s=300e9)
    if num_gpus != BOARD_WITHOUT_SWITCH or gpu.link_kind != "nvlink" or not 1 < size < num_gpus:
        return gpu
    share = (size - 1) / (num_gpus - 1)
    return replace(gpu, name=f"4x {gpu.name}", link_bytes_per_s=gpu.link_bytes_per_s * share)


def parallelism_of(model: ModelSpec, gpu: GpuSpec, precision: Precision, num_gpus: int) -> Parallelism:
    """Fewest tensor parallel GPUs whose memory the weights fill by half at most; all of a node when none do."""
    sizes = [n for n in SIZES if num_gpus % n == 0 and n <= gpu.gpus_per_node and model.num_heads % n == 0]
    if not sizes:
        raise Unplaceable(f"{num_gpus} GPUs cannot be divided into copies")
    for size in sizes:
        split = Parallelism(tensor_parallel_size=size)
        if weights_bytes(model, precision.weights, split) <= WEIGHTS_FRAC * gpu.mem_bytes:
            return split
    return Parallelism(tensor_parallel_size=sizes[-1])


def params_of(engine: str, gpu: GpuSpec, model: ModelSpec, lengths: Lengths) -> tuple[str, EngineParams]:
    """Version and settings of an engine that was tuned for throughput."""
    length = min(lengths.max_input + lengths.beams * lengths.max_output, model.max_context_tokens)
    if engine == "vllm":
        base = vllm.default_params(VLLM_VERSION, gpu, model)
        return VLLM_VERSION, replace(
            base,
            max_num_seqs=MAX_BATCH,
            max_num_batched_tokens=MAX_TOKENS,
            max_model_len=length,
            gpu_memory_utilization=KV_FRACTION,
        )
    version = trtllm.default_version()
    return version, TrtllmParams(
        max_batch_size=MAX_BATCH,
        max_num_tokens=MAX_TOKENS,
        max_seq_len=length,
        free_gpu_memory_fraction=KV_FRACTION,
        tokens_per_block=32,
        enable_chunked_prefill=True,
        cuda_graph_padding=True,
        cuda_graph_max_batch_size=MAX_BATCH,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a run gave, of all copies."""

    samples_per_s: float
    ttft_s: NDArray[np.float64]
    tpot_s: NDArray[np.float64]


def serve(deployment: Deployment, lengths: Lengths, rate_rps: float) -> Served:
    """Run one copy, offline when ``rate_rps`` is 0.

    Raises
    ------
    Unplaceable
        With the reason.
    """
    try:
        report = memory(deployment)
        if not report.fits:
            raise Unplaceable(f"does not fit by the memory model: {report.reason}")
        sequences = deployment
        if isinstance(deployment.params, TrtllmParams) and lengths.beams > 1:
            params = replace(deployment.params, max_batch_size=lengths.beams * MAX_BATCH)
            sequences = replace(deployment, params=params)
        formula = replaying_every_size(StepFormula(sequences), max(sequences.max_step_tokens, sequences.max_rows))
        outcome = run(_workload(lengths, rate_rps), deployment, formula, report, beams=lengths.beams)
    except InputError as error:
        raise Unplaceable(str(error)) from None
    out, arrival = outcome.outputs, outcome.packed.requests.arrival
    tokens = outcome.packed.requests.output_tokens
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = (out.last - out.first) / (tokens - 1)
    return Served(
        samples_per_s=len(arrival) / float(np.nanmax(out.last) - arrival[0]),
        ttft_s=out.first - arrival,
        tpot_s=tpot[tokens > 1],
    )


def _workload(lengths: Lengths, rate_rps: float) -> Workload:
    source = Provenance(kind="assumed", source="mlcommons/inference_results_v4.1: mean lengths; spreads assumed")
    if rate_rps <= 0:
        workload = queued("offline", *lengths.draw(NUM_OFFLINE), source)
    else:
        count = int(np.clip(rate_rps * SERVER_S, MIN_SERVER, MAX_SERVER))
        workload = poisson("server", rate_rps, *lengths.draw(count), source)
    # each beam has its own output in the cache, all share the prompt
    return replace(workload, max_tokens=lengths.beams * workload.output_tokens)


@cache
def served_by(workload: str, engine: str, gpu_name: str, num_gpus: int, target_rps: float) -> Served:
    """The run on all GPUs, offline when ``target_rps`` is 0.

    Raises
    ------
    Unplaceable
        With the reason.
    """
    gpu, model, lengths = place_gpu(gpu_name), place_model(model_name(workload)), lengths_of(workload)
    if lengths.beams > 1 and engine == "vllm":
        raise Unplaceable("beam search of vLLM is not modelled")
    if lengths.beams > 1:  # all beams of a request are booked as one sequence
        model = replace(model, max_context_tokens=lengths.beams * model.max_context_tokens)
    precision = precision_of(gpu)
    parallelism = parallelism_of(model, gpu, precision, num_gpus)
    version, params = params_of(engine, gpu, model, lengths)
    deployment = Deployment(
        model=model,
        gpu=on_its_board(gpu, num_gpus, parallelism),
        engine="vllm" if engine == "vllm" else "tensorrt-llm",
        engine_version=version,
        precision=precision,
        parallelism=parallelism,
        params=params,
    )
    copies = num_gpus // parallelism.num_gpus
    served = serve(deployment, lengths, target_rps / copies)
    rate = copies * served.samples_per_s
    return replace(served, samples_per_s=min(rate, target_rps) if target_rps > 0 else rate)


def model_name(workload: str) -> str:
    """Model of a workload's name such as ``llama2-70b-99.9``."""
    return re.sub(r"-99(\.9)?$", "", workload.removeprefix("neuralmagic_").replace("llama2-", "llama-2-"))


def predict(row: Row) -> float:
    """Predicted value of a row, in its metric's unit.

    Raises
    ------
    Unplaceable
        With the reason.
    """
    refuse_altered(row)
    found = re.search(r"target_qps=([0-9.]+)", row.load)
    if note(row, "scenario").lower() == "server" and not found:
        raise Unplaceable("server run without its rate")
    engine = "vllm" if "vllm" in row.engine.lower() else "tensorrt-llm"
    served = served_by(row.model, engine, row.gpu, row.num_gpus, float(found.group(1)) if found else 0.0)
    if row.metric == "samples_per_s":
        return served.samples_per_s
    if row.metric == "output_tokens_per_s":
        return served.samples_per_s * lengths_of(row.model).mean_output
    kind, _, statistic = row.metric.partition("_")
    if not found:
        raise Unplaceable(f"{row.metric} of an offline run")
    values = served.ttft_s if kind == "ttft" else served.tpot_s
    if statistic == "mean":
        return float(values.mean())
    percentile = re.fullmatch(r"p(\d+(?:\.\d+)?)", statistic)
    if percentile is None:
        raise Unplaceable(f"statistic not known: {row.metric}")
    result = float(np.percentile(values, float(percentile.group(1))))
    assert math.isfinite(result)
    return result
