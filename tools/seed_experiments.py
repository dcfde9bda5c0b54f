"""Simulated experiments that docs/seeds.toml sets against published claims. Each returns figures by name.

All of them use the product's own step times and schedulers with default settings; nothing is fitted to a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from servewise import catalog, formulas
from servewise.compare import strategies
from servewise.engines import ollama, tgi
from servewise.metrics import e2e_s, good, tpot_s, ttft_s
from servewise.perf import memory, step_model
from servewise.quality import expected_recovery, size_class
from servewise.sim import memory_use, simulate, simulate_closed_loop, to_log
from servewise.traffic import (
    Arrivals,
    FixedLength,
    SynthesisSpec,
    SystemPrompts,
    assume_max_tokens,
    load_profile,
    rescale,
    select_requests,
    synthesize,
)
from servewise.types import Deployment, Precision, Promise, RequestLog, Workload

__all__ = ["EXPERIMENTS"]

Figures = Mapping[str, float]

SMALL, LARGE, HUGE = (f"meta-llama/Llama-3.1-{size}-Instruct" for size in ("8B", "70B", "405B"))
H100, A100 = "H100-SXM-80GB", "A100-SXM-80GB"
PROMPT_TOKENS, ANSWER_TOKENS = 1024, 256
CONTEXT_TOKENS = 8192
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def weights_in(weights: str, kv: str = "bf16") -> Precision:
    return Precision(weights=weights, kv=kv)  # type: ignore[arg-type]


def replica(
    model: str = SMALL,
    gpu: str = H100,
    *,
    engine: str = "vllm",
    weights: str = "bf16",
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
) -> Deployment:
    """One replica with an engine's defaults for requests of up to ``CONTEXT_TOKENS``."""
    spec, card = catalog.get_model(model), catalog.get_gpu(gpu)
    named = strategies(spec, card, weights_in(weights), tensor_parallel_size, CONTEXT_TOKENS)
    if engine in named:
        spread = replace(named[engine].parallelism, pipeline_parallel_size=pipeline_parallel_size)
        return replace(named[engine], parallelism=spread)
    module = {"tgi": tgi, "ollama": ollama}[engine]
    version = module.default_version()
    params = module.default_params(version, card, spec)
    precision = weights_in("q8_0") if engine == "ollama" else weights_in(weights)
    return replace(
        named["vllm"],
        engine=module.__name__.rpartition(".")[2],
        engine_version=version,
        params=params,
        precision=precision,
    )  # type: ignore[arg-type]


def requests(num: int, input_tokens: int = PROMPT_TOKENS, output_tokens: int = ANSWER_TOKENS) -> Workload:
    """So many equal requests, one a second."""
    spec = SynthesisSpec(
        num_requests=num,
        arrivals=Arrivals(process="constant", rate_rps=1.0),
        input_tokens=FixedLength(tokens=input_tokens),
        output_tokens=FixedLength(tokens=output_tokens),
        max_tokens=output_tokens,
    )
    return synthesize(spec, 0)


def azure(rate_rps: float) -> Workload:
    """Traffic of Azure's conversation trace at another rate."""
    workload = rescale(load_profile("azure-conversation-2023", seed=0), rate_rps, method="thinning", seed=0)
    return assume_max_tokens(workload, None, CONTEXT_TOKENS)


def at_concurrency(deployment: Deployment, concurrency: int, num: int = 0, **lengths: int) -> tuple[RequestLog, float]:
    """A closed loop: its log without the first batch, and output tokens per second."""
    workload = requests(num or 4 * concurrency, **lengths)
    outcome = simulate_closed_loop(
        workload, deployment, step_model(deployment), memory(deployment), concurrency=concurrency
    )
    log = to_log(workload, outcome)
    span_s = float(np.max(log.last_token_s) - np.min(log.intended_s))
    return log, float(np.sum(log.output_tokens)) / span_s


def on_trace(deployment: Deployment, workload: Workload) -> RequestLog:
    outcome = simulate(workload, deployment, step_model(deployment), memory(deployment))
    return to_log(workload, outcome)


def p(values: np.ndarray, q: float) -> float:
    return float(np.nanpercentile(values, q))


def engine_speed() -> Figures:
    """Output tokens/s of each engine, 8B on one H100, 64 requests in flight of 1,024 + 256 tokens."""
    engines = {name: replica(engine=name) for name in ("vllm", "sglang", "tensorrt-llm", "tgi", "ollama")}
    reserving = engines["tensorrt-llm"]
    engines["tensorrt-llm, cuda_graph_padding"] = replace(
        reserving, params=replace(reserving.params, cuda_graph_padding=True)
    )
    return {f"{name} [tokens/s]": at_concurrency(deployment, 64, 256)[1] for name, deployment in engines.items()}


def memory_waste() -> Figures:
    """Azure's conversations on one H100 with an 8B model, more than it can serve: KV memory set aside and empty."""
    named = strategies(catalog.get_model(SMALL), catalog.get_gpu(H100), weights_in("bf16"), 1, CONTEXT_TOKENS)
    workload = select_requests(azure(200.0), np.arange(4000))
    figures: dict[str, float] = {}
    for name in ("static", "orca", "vllm"):
        report = memory(named[name])
        outcome = simulate(workload, named[name], step_model(named[name]), report)
        log = to_log(workload, outcome)
        use = memory_use(workload, outcome, named[name], report)
        figures[f"{name}: reserved and unused [%]"] = 100 * use.unused_of_reserved_frac
        span_s = float(np.nanmax(log.last_token_s) - log.intended_s[0])
        figures[f"{name} [tokens/s]"] = float(np.sum(log.output_tokens)) / span_s
    for name in ("static", "orca"):
        figures[f"vllm over {name}"] = figures["vllm [tokens/s]"] / figures[f"{name} [tokens/s]"]
    return figures


def shared_prefix() -> Figures:
    """32 requests that share 256 tokens and have 256 of their own, on one H100 with an 8B model."""
    spec = SynthesisSpec(
        num_requests=32,
        arrivals=Arrivals(process="constant", rate_rps=20.0),
        input_tokens=FixedLength(tokens=256),
        output_tokens=FixedLength(tokens=128),
        system_prompts=SystemPrompts(tokens=256),
        max_tokens=128,
    )
    workload = synthesize(spec, 0)
    figures: dict[str, float] = {}
    for engine in ("sglang", "vllm"):
        deployment = replica(engine=engine)
        report = memory(deployment)
        outcome = simulate(workload, deployment, step_model(deployment), report)
        use = memory_use(workload, outcome, deployment, report)
        figures[f"{engine}: prompt tokens not computed"] = float(use.prefix_tokens_saved or 0)
        figures[f"{engine}: KV saved [MiB]"] = float(use.prefix_bytes_saved or 0) / 2**20
    for name, deployment in (("8B", replica()), ("70B in 4 parts, each", replica(LARGE, tensor_parallel_size=4))):
        per_token = memory(deployment).kv_bytes_per_token
        figures[f"{name}: KV of a token [KiB]"] = per_token / 1024
        figures[f"{name}: formula [MiB]"] = formulas.prefix_savings_bytes(32, 256, per_token) / 2**20
    return figures


def short_answers() -> Figures:
    """Share of the latency after the first token, for answers of 20 tokens, one request at a time, 8B on one H100."""
    figures = {}
    for prompt in (64, 1024, 8000):
        log, _ = at_concurrency(replica(), 1, 4, input_tokens=prompt, output_tokens=20)
        share = formulas.decode_share(float(ttft_s(log)[1]), float(tpot_s(log)[1]), 20)
        figures[f"prompt of {prompt:,} tokens: after the first token [%]"] = 100 * share
        figures[f"prompt of {prompt:,} tokens: TTFT [ms]"] = 1e3 * float(ttft_s(log)[1])
    return figures


def tail_by_load() -> Figures:
    """Azure's conversations on one H100 with an 8B model: P99 of TTFT and TPOT over the median."""
    figures = {}
    for rate_rps in (3.0, 8.0, 12.0):
        log = on_trace(replica(), azure(rate_rps))
        for name, values in (("TTFT", ttft_s(log)), ("TPOT", tpot_s(log)), ("E2E", e2e_s(log))):
            figures[f"{rate_rps:g} requests/s: {name} P99 / P50"] = p(values, 99) / p(values, 50)
    return figures


def one_slow_request() -> Figures:
    """999 latencies of 50 ms and one of 500 ms, by the product's definition of a percentile [ms]."""
    values = np.append(np.full(999, 50.0), 500.0)
    return {"mean [ms]": float(values.mean())} | {f"P{q:g} [ms]": p(values, q) for q in (50, 99, 99.9, 100)}


def goodput_by_limit() -> Figures:
    """Azure's conversations at 10 requests/s on one H100 with an 8B model: goodput by the limit on TPOT."""
    log = on_trace(replica(), azure(10.0))
    span_s = float(np.nanmax(log.last_token_s) - log.intended_s[0])
    figures = {}
    for limit_ms in (10, 15, 20, 25, 50, 100):
        kept = good(log, Promise(tpot_s=limit_ms / 1e3))
        figures[f"TPOT <= {limit_ms} ms [tokens/s]"] = float(np.sum(log.output_tokens[kept])) / span_s
    return figures


def splits() -> Figures:
    """A 70B model on 8 H100: one request alone, and 256 in flight, by how layers are split."""
    figures = {}
    for tensor, pipeline in ((8, 1), (4, 2), (2, 4)):
        deployment = replica(LARGE, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
        alone, _ = at_concurrency(deployment, 1, 4)
        figures[f"TP{tensor} PP{pipeline}: TPOT alone [ms]"] = 1e3 * float(tpot_s(alone)[1])
        figures[f"TP{tensor} PP{pipeline}: 256 in flight [tokens/s]"] = at_concurrency(deployment, 256)[1]
    for tensor in (1, 2, 4, 8):
        deployment = replica(tensor_parallel_size=tensor)
        alone, _ = at_concurrency(deployment, 1, 4)
        figures[f"8B TP{tensor}: TPOT alone [ms]"] = 1e3 * float(tpot_s(alone)[1])
        figures[f"8B TP{tensor}: 64 in flight, a GPU [tokens/s]"] = at_concurrency(deployment, 64)[1] / tensor
    return figures


@cache
def batches() -> dict[int, tuple[float, float]]:
    """TPOT [s] and output tokens/s by requests in flight, 8B on one A100."""
    found = {}
    for batch in BATCHES:
        log, rate = at_concurrency(replica(gpu=A100), batch)
        found[batch] = p(tpot_s(log), 99), rate
    return found


def batch_curve() -> Figures:
    """TPOT P99 and throughput by requests in flight, 8B on one A100, 1,024 + 256 tokens."""
    figures = {}
    for batch, (tpot, rate) in batches().items():
        figures[f"{batch} in flight: TPOT P99 [ms]"] = 1e3 * tpot
        figures[f"{batch} in flight [tokens/s]"] = rate
    slope = np.polyfit(np.log(BATCHES), np.log([batches()[b][0] for b in BATCHES]), 1)[0]
    figures["exponent of TPOT over the batch, fitted"] = float(slope)
    return figures


def price_of_a_limit() -> Figures:
    """$ per million output tokens at the largest batch that keeps a limit on TPOT, 8B on an A100 at $1.50 an hour."""
    figures = {}
    for limit_ms in (15, 20, 30, 50, 100):
        kept = [rate for tpot, rate in batches().values() if tpot <= limit_ms / 1e3]
        if kept:
            figures[f"TPOT P99 <= {limit_ms} ms [$]"] = formulas.usd_per_mtok(1.5, max(kept))
    figures["dearest over cheapest"] = max(figures.values()) / min(figures.values())
    return figures


def precisions() -> Figures:
    """An 8B model on one H100 by the precision of its weights."""
    figures = {}
    for weights in ("bf16", "fp8", "int8", "int4"):
        deployment = replica(weights=weights)
        alone, _ = at_concurrency(deployment, 1, 4)
        figures[f"{weights}: weights [GiB]"] = memory(deployment).weights_bytes / 2**30
        figures[f"{weights}: TTFT of 1,024 tokens alone [ms]"] = 1e3 * float(ttft_s(alone)[1])
        figures[f"{weights}: TPOT alone [ms]"] = 1e3 * float(tpot_s(alone)[1])
        figures[f"{weights}: 128 in flight [tokens/s]"] = at_concurrency(deployment, 128)[1]
    return figures


def quality_kept() -> Figures:
    """Share of the bf16 score that published results keep (median and 10th percentile), by size of the model."""
    figures = {}
    for name in ("meta-llama/Llama-3.2-1B-Instruct", SMALL, LARGE):
        spec = catalog.get_model(name)
        for weights in ("fp8", "int8", "int4"):
            found = expected_recovery(spec, weights_in(weights))
            if found is not None:
                words = f"{size_class(spec)} models in {weights}, {found.num_results} results"
                figures[f"{words}: median [%]"] = found.pct[1]
                figures[f"{words}: 10th percentile [%]"] = found.pct[0]
    return figures


def model_sizes() -> Figures:
    """Models of 8, 70 and 405 billion parameters on 8 H100 in fp8."""
    figures = {}
    for name, model in (("8B", SMALL), ("70B", LARGE), ("405B", HUGE)):
        deployment = replica(model, weights="fp8", tensor_parallel_size=8)
        report = memory(deployment)
        figures[f"{name}: weights of a GPU [GiB]"] = report.weights_bytes / 2**30
        figures[f"{name}: KV capacity [tokens]"] = float(report.kv_capacity_tokens)
        figures[f"{name}: 128 in flight [tokens/s]"] = at_concurrency(deployment, 128)[1]
    return figures


def waiting_for_a_batch() -> Figures:
    """Azure's conversations at 3 requests/s on one H100 with an 8B model: whole batches against continuous ones."""
    named = strategies(catalog.get_model(SMALL), catalog.get_gpu(H100), weights_in("bf16"), 1, CONTEXT_TOKENS)
    figures = {}
    for name, seconds in (("static", 0.0), ("static", 1.0), ("vllm", None)):
        deployment = named[name]
        if seconds is not None:
            deployment = replace(deployment, params=replace(deployment.params, max_wait_s=seconds))
        log = on_trace(deployment, azure(3.0))
        how = name if seconds is None else f"{name}, waits up to {seconds:g} s"
        figures[f"{how}: TTFT P50 [ms]"] = 1e3 * p(ttft_s(log), 50)
        figures[f"{how}: TTFT P99 [ms]"] = 1e3 * p(ttft_s(log), 99)
    return figures


def first_token() -> Figures:
    """TTFT of one request alone by the length of its prompt, 8B and 70B on H100s."""
    figures = {}
    for name, deployment in (("8B on one", replica()), ("70B on four", replica(LARGE, tensor_parallel_size=4))):
        for prompt in (128, 1024, 2048, 4096, 8000):
            log, _ = at_concurrency(deployment, 1, 3, input_tokens=prompt, output_tokens=20)
            figures[f"{name}: {prompt:,} tokens [ms]"] = 1e3 * float(ttft_s(log)[1])
    return figures


def skewed_experts() -> Figures:
    """Tokens of the busiest of 8 GPUs over the mean, 128 experts of which each token takes 8, 4,096 tokens a step."""
    figures = {}
    for exponent in (0.0, 0.5, 1.0):
        weight = np.random.default_rng(0).permutation(np.arange(1, 129) ** -exponent)
        draws = np.random.default_rng(1).multinomial(4096 * 8, weight / weight.sum(), size=200)
        load = draws.reshape(200, 8, 16).sum(axis=2)
        figures[f"Zipf exponent {exponent:g}: busiest / mean"] = float((load.max(axis=1) / load.mean(axis=1)).mean())
    return figures


def bubbles() -> Figures:
    """Idle share of 8 pipeline stages that are filled and drained once, by micro-batches [%]."""
    return {f"{m} micro-batches [%]": 100 * formulas.pipeline_bubble(8, m) for m in (8, 63, 64, 70, 71)}


def pool_prices() -> Figures:
    """70% of an H100 and 30% of an L40S against two A100, at the built-in on-demand prices of one GPU."""
    usd = {name: catalog.offers(name)[0].usd_per_gpu_h for name in (H100, "L40S-48GB")}
    figures = {f"{name} [$/h]": price for name, price in usd.items()}
    for two_a100 in (2 * 1.5, 2 * 2.0):
        saved = formulas.disaggregation_saving(usd[H100], usd["L40S-48GB"], 0.7, two_a100)
        figures[f"saved against two A100 at ${two_a100:g} [%]"] = 100 * saved
    return figures


EXPERIMENTS: Mapping[str, Callable[[], Figures]] = {
    f.__name__: f
    for f in (
        batch_curve,
        bubbles,
        engine_speed,
        first_token,
        goodput_by_limit,
        memory_waste,
        model_sizes,
        one_slow_request,
        pool_prices,
        precisions,
        price_of_a_limit,
        quality_kept,
        shared_prefix,
        short_answers,
        skewed_experts,
        splits,
        tail_by_load,
        waiting_for_a_batch,
    )
}
