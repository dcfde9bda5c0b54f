"""The same traffic on the same GPUs with each strategy of scheduling and memory, from the textbook's to today's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from servewise.catalog import supported_precisions
from servewise.engines import baselines, sglang, trtllm, vllm
from servewise.errors import InputError
from servewise.metrics import summarize
from servewise.perf import calibrated_step_model, memory
from servewise.sim import memory_use, simulate, to_log
from servewise.traffic import context_limit
from servewise.types import (
    Deployment,
    EngineName,
    EngineParams,
    GpuSpec,
    ModelSpec,
    Parallelism,
    Precision,
    Search,
    StrategyResult,
)

__all__ = ["compare_strategies", "smallest_tensor_parallel_size", "strategies"]


def precision_of(search: Search, model: ModelSpec, gpu: GpuSpec) -> Precision:
    """The model's own precision with a bf16 KV cache, where quality and GPU allow it, else the first that they do."""
    runnable = supported_precisions(gpu)
    allowed = [choice.precision for choice in search.precisions[model.name] if choice.precision in runnable]
    if not allowed:
        raise InputError(
            f"{gpu.name} runs {model.name} in no precision that passes the quality floor; name another --gpu"
        )
    own = Precision(weights=model.native_precision, kv="bf16")
    return own if own in allowed else allowed[0]


def deployment_of(
    model: ModelSpec,
    gpu: GpuSpec,
    precision: Precision,
    size: int,
    engine: EngineName,
    version: str,
    params: EngineParams,
) -> Deployment:
    """One replica."""
    return Deployment(
        model=model,
        gpu=gpu,
        engine=engine,
        engine_version=version,
        precision=precision,
        parallelism=Parallelism(tensor_parallel_size=size),
        params=params,
    )


def smallest_tensor_parallel_size(model: ModelSpec, gpu: GpuSpec, precision: Precision, longest: int) -> int:
    """Fewest GPUs that share each layer on which vLLM starts for requests of ``longest`` tokens.

    Raises
    ------
    InputError
        When none does.
    """
    reason = ""
    for size in vllm.supported_tensor_parallel_sizes(model, gpu, precision.weights):
        params = replace(vllm.default_params(vllm.default_version(), gpu, model), max_model_len=longest)
        report = memory(deployment_of(model, gpu, precision, size, "vllm", vllm.default_version(), params))
        if report.fits:
            return size
        reason = report.reason
    raise InputError(f"{model.name} does not fit on one node of {gpu.name}: {reason}; name another --gpu")


def strategies(model: ModelSpec, gpu: GpuSpec, precision: Precision, size: int, longest: int) -> dict[str, Deployment]:
    """One replica with each strategy, by name: defaults, but for the longest request.

    TensorRT-LLM cuts prompts where its default, whole ones, would reject those beyond ``max_num_tokens``.
    """

    def one(engine: EngineName, version: str, params: EngineParams) -> Deployment:
        return deployment_of(model, gpu, precision, size, engine, version, params)

    named: dict[str, Deployment] = {}
    for name in baselines.BASELINES:
        knobs = replace(baselines.default_params(name, gpu, model), max_seq_len=longest)
        named[name] = one(name, baselines.VERSION, knobs)
    paged = replace(vllm.default_params(vllm.default_version(), gpu, model), max_model_len=longest)
    uncached = replace(paged, enable_prefix_caching=False)
    named["vllm without cache"] = one("vllm", vllm.default_version(), uncached)
    named["vllm"] = one("vllm", vllm.default_version(), paged)
    spread = Parallelism(tensor_parallel_size=size)
    radix = replace(sglang.default_params(sglang.default_version(), gpu, model, spread), context_length=longest)
    named["sglang"] = one("sglang", sglang.default_version(), radix)
    reserving = trtllm.default_params(trtllm.default_version(), gpu, model, spread)
    cut = reserving.enable_chunked_prefill or longest > reserving.max_num_tokens
    reserving = replace(reserving, max_seq_len=longest, enable_chunked_prefill=cut)
    named["tensorrt-llm"] = one("tensorrt-llm", trtllm.default_version(), reserving)
    return named


def compare_strategies(
    search: Search,
    tensor_parallel_size: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[StrategyResult, ...]:
    """Simulate a search's traffic on one replica with each strategy.

    Parameters
    ----------
    search : Search
        Its first model on its first GPU.
    tensor_parallel_size : int, optional
        Default: the smallest that vLLM fits on.
    progress : callable, optional
        Called with the stage, the steps done and the steps in all.

    Returns
    -------
    tuple of StrategyResult
        What cannot run carries the reason.

    Raises
    ------
    InputError
        When the model fits on no node of the GPU, or not in this many parts.
    """
    model, gpu = search.models[0], search.gpus[0]
    longest, precision = context_limit(search.workload, model), precision_of(search, model, gpu)
    size = tensor_parallel_size or smallest_tensor_parallel_size(model, gpu, precision, longest)
    allowed = vllm.supported_tensor_parallel_sizes(model, gpu, precision.weights)
    if size not in allowed:
        raise InputError(
            f"{model.name} cannot be split over {size} GPUs of {gpu.name}; allowed: {', '.join(map(str, allowed))}"
        )
    named = strategies(model, gpu, precision, size, longest)
    results = []
    for number, (name, deployment) in enumerate(named.items()):
        if progress is not None:
            progress("simulate", number, len(named))
        results.append(run_strategy(name, deployment, search))
    if progress is not None:
        progress("simulate", len(named), len(named))
    return tuple(results)


def run_strategy(name: str, deployment: Deployment, search: Search) -> StrategyResult:
    """Simulate one strategy; what its engine refuses is its reason."""
    mean_tokens = int((search.workload.input_tokens + search.workload.output_tokens / 2).mean())
    unable = StrategyResult(
        name=name,
        deployment=deployment,
        memory=None,
        summary=None,
        memory_use=None,
        peak_running=0,
        held_back_by=(),
        reason="",
    )
    try:
        report = memory(deployment, mean_tokens)
        if not report.fits:
            return replace(unable, memory=report, reason=report.reason)
        times = calibrated_step_model(deployment, search.calibrations)
        outcome = simulate(search.workload, deployment, times, report)
    except InputError as error:
        return replace(unable, reason=str(error))
    bound = (("memory", outcome.memory_bound), ("seats", outcome.slots_bound), ("tokens", outcome.budget_bound))
    return replace(
        unable,
        memory=report,
        summary=summarize(to_log(search.workload, outcome), search.promise, with_intervals=False),
        memory_use=memory_use(search.workload, outcome, deployment, report),
        peak_running=outcome.peak_running,
        held_back_by=tuple(what for what, is_bound in bound if is_bound),
    )
