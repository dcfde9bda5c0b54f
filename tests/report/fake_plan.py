"""A made-up plan whose names are hostile where names come from users."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from servewise import catalog
from servewise.effort import columns, effort
from servewise.report import PlanReport
from servewise.types import (
    Assurance,
    Breakdown,
    Candidate,
    Caveat,
    Cost,
    Deployment,
    Estimate,
    Explanation,
    GpuSpec,
    Interval,
    LoadPoint,
    MeanEstimate,
    MeasuredRuns,
    ModelSpec,
    Parallelism,
    Part,
    Plan,
    Precision,
    Promise,
    Provenance,
    SafetyMargin,
    Summary,
    VllmParams,
)

SOURCE = Provenance(kind="assumed", source="assumed: made up for tests")
PROMISE = Promise(ttft_s=1.0, tpot_s=0.05, attainment=0.99)


def model(name: str = "meta-llama/Llama-3.1-70B-Instruct") -> ModelSpec:
    return dataclasses.replace(catalog.get_model("meta-llama/Llama-3.1-70B-Instruct"), name=name)


def gpu(name: str) -> GpuSpec:
    return dataclasses.replace(catalog.get_gpu("H100-SXM-80GB"), name=name)


def deployment(gpu_name: str, tp: int, replicas: int, weights: str = "fp8", seqs: int = 256) -> Deployment:
    return Deployment(
        model=model(),
        gpu=gpu(gpu_name),
        engine="vllm",
        engine_version="0.11.0",
        precision=Precision(weights=weights),  # type: ignore[arg-type]
        parallelism=Parallelism(tensor_parallel_size=tp),
        params=VllmParams(
            max_num_seqs=seqs,
            max_num_batched_tokens=8192,
            max_model_len=32768,
            gpu_memory_utilization=0.9,
            block_size_tokens=16,
            enable_prefix_caching=True,
            enable_chunked_prefill=True,
            async_scheduling=True,
            scheduler_reserve_full_isl=True,
        ),
        num_replicas=replicas,
    )


def estimate(value: float) -> Estimate:
    return Estimate(
        value=value,
        low=value * 0.97,
        high=min(value * 1.02, 1.0) if value < 1 else value * 1.05,
        num_samples=19366,
    )


def summary(attainment: float, ttft_p99_s: float, tpot_p99_s: float, e2e_p99_s: float) -> Summary:
    spread = {"p50": 0.3, "p90": 0.7, "p95": 0.85, "p99": 1.0, "p99.9": 1.6}
    p99 = {"ttft": ttft_p99_s, "tpot": tpot_p99_s, "e2e": e2e_p99_s, "itl": tpot_p99_s * 1.3}
    kept = attainment >= PROMISE.attainment
    return Summary(
        num_requests=19366,
        num_ok=19366,
        num_good=round(19366 * attainment),
        attainment=Estimate(
            value=attainment, low=attainment - 0.004, high=min(1, attainment + 0.003), num_samples=19366
        ),
        promise_kept=kept,
        broken=() if kept else (f"attainment {attainment:.3f} < 0.99",),
        duration_s=3600.0,
        drain_s=12.0,
        throughput_tokens_per_s=1161.0,
        goodput_tokens_per_s=1161.0 * attainment,
        throughput_rps=5.5,
        goodput_rps=5.5 * attainment,
        total_tokens_per_s=7500.0,
        total_goodput_tokens_per_s=7500.0 * attainment,
        percentiles={m: {k: estimate(f * v) for k, f in spread.items()} for m, v in p99.items()},
        means={"ttft": ttft_p99_s / 3, "tpot": tpot_p99_s / 2, "e2e": e2e_p99_s / 3},
        cached_tokens_frac=None,
        num_preemptions=3,
    )


def cost(usd_per_h: float, num_gpus: int) -> Cost:
    per_mtok = usd_per_h / 3600 / 1161 * 1e6
    return Cost(
        usd_per_h=usd_per_h,
        usd_per_month=usd_per_h * 730,
        nodes=((num_gpus, 1),),
        num_gpus_rented=num_gpus,
        usd_per_mtok_output_at_load=per_mtok,
        usd_per_mtok_total_at_load=per_mtok / 6,
        usd_per_mtok_output_at_capacity=per_mtok * 0.6,
        usd_per_mtok_total_at_capacity=per_mtok * 0.1,
        price_date="2026-10-01",
        price_source="test-provider",
    )


def load_curve() -> tuple[LoadPoint, ...]:
    return tuple(
        LoadPoint(
            scale=scale,
            offered_rps=5.5 * scale,
            attainment=1 / (1 + math.exp(6 * (scale - 2.2))),
            promise_kept=scale < 1.5,
            goodput_tokens_per_s=1161 * scale / (1 + math.exp(6 * (scale - 2.2))),
            throughput_tokens_per_s=min(1161 * scale, 2700.0),
        )
        for scale in (0.25, 0.5, 0.75, 1, 1.25, 1.4, 1.6, 1.8, 2, 2.5, 3)
    )


def kept(
    index: int, gpu_name: str, tp: int, replicas: int, usd_gpu_h: float, e2e_s: float, **extra: object
) -> Candidate:
    shape = deployment(gpu_name, tp, replicas, **extra)  # type: ignore[arg-type]
    return Candidate(
        index=index,
        deployment=shape,
        status="kept",
        reason="",
        summary=summary(0.9962 - 0.0003 * (index % 7), 0.05 * e2e_s, 0.003 * e2e_s, e2e_s),
        cost=cost(usd_gpu_h * shape.num_gpus, shape.num_gpus),
        latency_s=e2e_s,
        quality_recovery_pct=(99.0, 99.6, 100.2),
        quality_basis="all tasks: 79 results of 13 large models",
        limited_by="memory bandwidth",
    )


def plan(num_fillers: int = 24) -> Plan:
    shapes = [
        ("L40S-48GB", 4, 2, 1.55, 16.5),
        ("H100-SXM-80GB", 2, 2, 2.95, 12.3),
        ("H200-SXM-141GB", 2, 2, 3.5, 10.1),
        ("H100-SXM-80GB", 4, 1, 2.95, 9.0),
        ("H100-SXM-80GB", 8, 1, 2.95, 5.2),
        ("A100-SXM-80GB", 4, 2, 1.8, 14.0),
    ]
    found = [kept(i, *shape) for i, shape in enumerate(shapes)]
    for i in range(len(found), len(found) + num_fillers):
        shape = shapes[i % len(shapes)]
        found.append(kept(i, *shape[:4], shape[4] * (1.02 + 0.03 * (i % 9)), seqs=64 * (1 + i % 5)))
    kept_count = len(found)
    reasons = [
        ("infeasible", "weights 131.4 GiB > 72.9 GiB usable on H100-SXM-80GB at TP1"),
        ("infeasible", "weights 131.4 GiB > 43.1 GiB usable on L40S-48GB at TP1"),
        ("infeasible", "quality 97.8% expected < 99% asked (int4)"),
        ("broken", "saturated: 2.3 x the load that 32 GPUs carry"),
        ("dominated", "lower bound $14.20 per Mtok > $5.64 already found"),
    ]
    for i, (status, reason) in enumerate(reasons * 3):
        found.append(
            Candidate(
                index=kept_count + i,
                deployment=deployment("L40S-48GB" if "L40S" in reason else "H100-SXM-80GB", 1, 1),
                status=status,  # type: ignore[arg-type]
                reason=reason,
            )
        )
    ranking = sorted(range(kept_count), key=lambda i: (found[i].cost.usd_per_h, found[i].latency_s))  # type: ignore[union-attr]
    frontier, best = [], math.inf
    for i in ranking:
        if found[i].latency_s < best:
            best = found[i].latency_s
            frontier.append(i)
    winner = ranking[0]
    for i in frontier:
        found[i] = dataclasses.replace(found[i], on_frontier=True, load_curve=load_curve())
    found[winner] = dataclasses.replace(found[winner], warnings=("prefill coefficients transferred from H100 to A100",))
    return Plan(
        candidates=tuple(found),
        winner=winner,
        ranking=tuple(ranking),
        frontier=tuple(frontier),
        nearest=None,
        pruned_by_reason={"memory": 6, "quality": 3, "budget": 3, "bound": 3},
        num_simulated=30,
        num_simulated_requests=30 * 19366,
        wall_s=4.2,
    )


def assurance(num_kept: int, of: Summary, margin: SafetyMargin | None = None, tried: str = "") -> Assurance:
    def drawn(value: float) -> Interval:
        return Interval(low=0.9 * value, high=1.2 * value)

    return Assurance(
        num_draws=32,
        kept_frac=num_kept / 32,
        attainment=Interval(low=of.attainment.value - 0.02, high=of.attainment.value + 0.001),
        percentiles={
            metric: {name: drawn(estimate.value) for name, estimate in by_name.items()}
            for metric, by_name in of.percentiles.items()
        },
        means={
            name: MeanEstimate(
                value=of.means[name],
                low=0.8 * of.means[name],
                high=1.5 * of.means[name],
                error_class="other model",
                num_runs=1234,
            )
            for name in ("ttft", "tpot")
        },
        margin=margin,
        margin_tried=tried,
    )


def judged(num_kept: int, margin: SafetyMargin | None = None, tried: str = "") -> Plan:
    """The plan with a verdict on its winner, the next of the frontier very likely, and the winner explained."""
    base = plan()
    candidates = list(base.candidates)
    for index, kept_draws in zip(base.frontier[:2], (num_kept, 32), strict=True):
        found = candidates[index]
        assert found.summary is not None
        verdict = assurance(kept_draws, found.summary, margin, tried)
        candidates[index] = dataclasses.replace(found, assurance=verdict)
    return dataclasses.replace(base, candidates=tuple(candidates), explanation=explanation())


def compared() -> Plan:
    """The plan with what each candidate asks of a team, and two engines side by side, of which one was not kept."""
    base = plan()
    candidates = [dataclasses.replace(c, effort=effort(c.deployment)) for c in base.candidates]
    last = candidates[-1]
    candidates[-1] = dataclasses.replace(last, deployment=dataclasses.replace(last.deployment, engine="tgi"))
    engines = (columns("vllm"), columns("tgi"), columns("ollama"))
    return dataclasses.replace(base, candidates=tuple(candidates), engines=engines)


MARGIN = SafetyMargin(num_replicas=3, kept_frac=31 / 32, extra_usd_per_h=3.1, usd_per_mtok_output_at_load=3.25)


def explanation() -> Explanation:
    operators = Provenance(kind="measured", source="https://example.org/ops.csv", note="within 4% of the table")
    fitted = Provenance(kind="derived", source="https://example.org/<b>fits</b>")
    return Explanation(
        num_rows=12.94,
        context_tokens=16264.2,
        prompt_tokens=1156.0,
        numbers=(
            Breakdown(
                number="ttft",
                value=0.15,
                unit="s",
                parts=(
                    Part(group="queue", name="queue", value=0.05),
                    Part(group="prefill", name="weights", value=0.02, sources=(operators,)),
                    Part(group="prefill", name="compute", value=0.06, sources=(operators,)),
                    Part(group="network", name="network", value=0.015, sources=(fitted,)),
                    Part(group="network", name="tokenizer", value=0.005, sources=(fitted,)),
                ),
                note="queue is what is left",
            ),
            Breakdown(
                number="memory",
                value=80.0 * 2**30,
                unit="bytes",
                parts=(
                    Part(group="engine", name="weights", value=30.0 * 2**30, sources=(fitted,)),
                    Part(group="engine", name="kv", value=44.0 * 2**30, sources=(fitted,)),
                    Part(group="left free", name="unused", value=6.0 * 2**30, sources=(fitted,)),
                ),
                note="the KV cache holds 500,000 tokens a replica",
            ),
        ),
        caveats=(
            Caveat(kind="unvalidated", text="unvalidated: no public run with <i>pipelines</i>"),
            Caveat(kind="extrapolated", text="contexts above 131072 tokens extrapolate attention"),
        ),
        nearest=(
            MeasuredRuns(
                engine="vllm",
                engine_version="0.11.0",
                model="meta-llama/Llama-3.1-70B-Instruct",
                gpu="H100-SXM-80GB",
                precision="fp8/bf16",
                parallelism="TP4",
                num_runs=12,
                lowest_concurrency=4,
                highest_concurrency=64,
                tpot_median_error_pct=6.14,
                tpot_bias_pct=-2.0,
                ttft_median_error_pct=math.nan,
                ttft_bias_pct=math.nan,
                source="https://example.org/runs",
                differs=("precision", "gpu"),
            ),
        ),
    )


def plan_without_winner() -> Plan:
    shape = deployment("H100-SXM-80GB", 8, 4)
    nearest = Candidate(
        index=0,
        deployment=shape,
        status="broken",
        reason="no fleet within the budget keeps the promise",
        summary=summary(0.942, 1.8, 0.061, 21.0),
        cost=cost(94.4, 32),
        latency_s=21.0,
    )
    return Plan(
        candidates=(nearest,),
        winner=None,
        ranking=(),
        frontier=(),
        nearest=0,
        pruned_by_reason={},
        num_simulated=1,
        num_simulated_requests=19366,
        wall_s=0.4,
    )


def report(of: Plan | None = None, **changes: object) -> PlanReport:
    rng = np.random.default_rng(1)
    samples = {
        "ttft": rng.lognormal(-1.6, 0.5, 400),
        "tpot": rng.lognormal(-3.5, 0.15, 400),
        "e2e": rng.lognormal(1.5, 0.6, 400),
    }
    base = PlanReport(
        name="support-chatbot",
        plan=of if of is not None else plan(),
        promise=PROMISE,
        traffic="azure-conversation-2023: 19,366 requests in 58.6 min, 5.5 requests/s",
        launch_command=(
            "vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 4 --quantization fp8 \\\n"
            "  --max-num-seqs 256 --max-num-batched-tokens 8192 --max-model-len 32768"
        ),
        warnings=("max_tokens is assumed (P99 of output: 512); 4096 does not change the winner",),
        provenance={
            "gemm": Provenance(kind="measured", source="https://example.org/ops.csv", accessed="2026-10-01"),
            "price A100-SXM-80GB": Provenance(kind="spec", source="https://example.org/prices", note="on demand"),
        },
        facts={"servewise": "0.1.0", "seed": "1", "price date": "2026-10-01"},
        latency_cdf={k: (np.sort(v), np.arange(1, 401) / 400) for k, v in samples.items()},
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]
