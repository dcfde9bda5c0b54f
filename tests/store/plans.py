"""A plan with every kind of candidate, and its description."""

from __future__ import annotations

import math

import numpy as np

from servewise.effort import columns, effort
from servewise.store import PlanMeta, plan_meta
from servewise.types import (
    Assurance,
    Autoscaling,
    Breakdown,
    Budget,
    Candidate,
    Caveat,
    Cost,
    Deployment,
    Estimate,
    ExpectedScore,
    Explanation,
    Failure,
    GpuSpec,
    Interval,
    LoadPoint,
    MeanEstimate,
    MeasuredRuns,
    MemoryReport,
    ModelSpec,
    MoeSpec,
    Outage,
    Parallelism,
    Part,
    PercentileLimit,
    Plan,
    Precision,
    PrecisionRow,
    PrecisionTable,
    Promise,
    Provenance,
    SafetyMargin,
    Search,
    Summary,
    VllmParams,
    Workload,
)

NAN, INF = math.nan, math.inf
SPEC = Provenance(kind="spec", source="https://example.org/sheet", accessed="2026-01-02")
MEASURED = Provenance(kind="measured", source="run@1234", note="one run")

MODEL = ModelSpec(
    name="example/dense-8b",
    architecture="LlamaForCausalLM",
    num_layers=32,
    hidden_size=4096,
    vocab_size=128256,
    intermediate_size=14336,
    attention="gqa",
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    v_head_dim=128,
    tie_word_embeddings=False,
    max_context_tokens=131072,
    native_precision="bf16",
    provenance=SPEC,
    moe=MoeSpec(num_experts=8, top_k=2, intermediate_size=1024, num_moe_layers=4),
    unquantized_modules=("attention", "router"),
)
GPU = GpuSpec(
    name="H100-SXM-80GB",
    vendor="nvidia",
    architecture="hopper",
    compute_capability=9.0,
    mem_bytes=85_017_624_576,
    mem_bw_bytes_per_s=3.35e12,
    peak_flops_per_s={"bf16": 989e12, "fp8": 1979e12},
    link_bytes_per_s=450e9,
    link_kind="nvlink",
    link_gpus=8,
    nic_bytes_per_s=50e9,
    nic_latency_s=10e-6,
    gpus_per_node=8,
    tdp_w=700.0,
    provenance={"mem_bytes": MEASURED, "tdp_w": SPEC},
)
PARAMS = VllmParams(
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    max_model_len=131072,
    gpu_memory_utilization=0.92,
    block_size_tokens=16,
    enable_prefix_caching=True,
    enable_chunked_prefill=True,
    async_scheduling=True,
    scheduler_reserve_full_isl=True,
)


def deployment(**changes: object) -> Deployment:
    fields: dict = {
        "model": MODEL,
        "gpu": GPU,
        "engine": "vllm",
        "engine_version": "0.33.0",
        "precision": Precision(weights="fp8", kv="fp8"),
        "parallelism": Parallelism(tensor_parallel_size=2),
        "params": PARAMS,
        "num_replicas": 3,
        "router": "prefix_aware",
    }
    return Deployment(**(fields | changes))


def estimate(value: float, low: float = NAN, high: float = NAN, num: int = 9) -> Estimate:
    return Estimate(value=value, low=low, high=high, num_samples=num)


MEMORY = MemoryReport(
    mem_bytes=85_017_624_576,
    budget_bytes=78_000_000_000,
    weights_bytes=8_000_000_000,
    activation_bytes=1,
    non_torch_bytes=2,
    graph_bytes=3,
    kv_bytes=-5,
    kv_bytes_per_token=65536.5,
    block_size_tokens=16,
    num_kv_blocks=0,
    fits=False,
    reason="weights 8.0 GiB > 7.0 GiB usable",
    provenance={"weights": SPEC, "activation": MEASURED, "graph": SPEC},
)
SUMMARY = Summary(
    num_requests=10,
    num_ok=9,
    num_good=8,
    attainment=estimate(0.8, 0.7, 0.9, 10),
    promise_kept=False,
    broken=("attainment 0.800 < 0.99",),
    duration_s=20.0,
    drain_s=1.0 / 3.0,
    throughput_tokens_per_s=INF,
    goodput_tokens_per_s=4.0,
    throughput_rps=0.5,
    goodput_rps=0.4,
    total_tokens_per_s=50.0,
    total_goodput_tokens_per_s=40.0,
    percentiles={
        "ttft": {"p50": estimate(0.1, 0.05, 0.2), "p99": estimate(0.3, 0.2, INF)},
        "tpot": {"p50": estimate(NAN, num=0)},
        "e2e": {"p50": estimate(2.0)},
    },
    means={"ttft": 0.1, "tpot": NAN},
    cached_tokens_frac=None,
    num_preemptions=4,
)
COST = Cost(
    usd_per_h=16.0,
    usd_per_month=11680.0,
    nodes=((8, 1), (1, 2)),
    num_gpus_rented=10,
    usd_per_mtok_output_at_load=INF,
    usd_per_mtok_total_at_load=0.1,
    usd_per_mtok_output_at_capacity=NAN,
    usd_per_mtok_total_at_capacity=0.05,
    price_date="2026-01-01",
    price_source="cloud: https://example.org/prices",
)
POINT = LoadPoint(
    scale=1.5,
    offered_rps=8.25,
    attainment=0.995,
    promise_kept=True,
    goodput_tokens_per_s=1000.0,
    throughput_tokens_per_s=1010.0,
)
ASSURANCE = Assurance(
    num_draws=32,
    kept_frac=25 / 32,
    attainment=Interval(low=0.75, high=0.99),
    percentiles={
        "ttft": {"p50": Interval(low=0.09, high=0.15), "p99": Interval(low=0.25, high=0.5)},
        "tpot": {"p50": Interval(low=NAN, high=NAN)},
    },
    means={
        "ttft": MeanEstimate(value=0.1, low=0.08, high=0.14, error_class="other model", num_runs=321),
        "tpot": MeanEstimate(value=NAN, low=NAN, high=NAN, error_class="other model", num_runs=0),
    },
    margin=SafetyMargin(num_replicas=4, kept_frac=31 / 32, extra_usd_per_h=3.1, usd_per_mtok_output_at_load=0.5),
    margin_tried="up to 4 replicas",
)
EXPLANATION = Explanation(
    num_rows=12.5,
    context_tokens=16000.0,
    prompt_tokens=90.0,
    numbers=(
        Breakdown(
            number="tpot",
            value=0.03,
            unit="s",
            parts=(
                Part(group="decode step", name="weights", value=0.04, sources=(SPEC, MEASURED)),
                Part(group="decode step", name="spread", value=-0.01),
            ),
            note="what steps vary",
        ),
    ),
    caveats=(Caveat(kind="transferred", text="transferred from h100_sxm"),),
    nearest=(
        MeasuredRuns(
            engine="vllm",
            engine_version="0.11.0",
            model="example/dense-8b",
            gpu="H100-SXM-80GB",
            precision="bf16/bf16",
            parallelism="TP1",
            num_runs=7,
            lowest_concurrency=1,
            highest_concurrency=64,
            tpot_median_error_pct=5.0,
            tpot_bias_pct=-1.0,
            ttft_median_error_pct=NAN,
            ttft_bias_pct=NAN,
            source="https://example.org/runs",
            differs=("model",),
        ),
    ),
)
PLAN = Plan(
    candidates=(
        Candidate(
            index=0,
            deployment=deployment(),
            status="kept",
            reason="",
            memory=MEMORY,
            summary=SUMMARY,
            cost=COST,
            latency_s=2.5,
            quality_recovery_pct=(98.0, 99.5, 100.0),
            quality_basis="math: 20 results of 8 large models",
            expected_scores=(
                ExpectedScore(
                    benchmark="MMLU",
                    published_pct=80.0,
                    expected_pct=(78.4, 79.6, 80.0),
                    is_estimate=False,
                    report="card",
                    source="https://example.org/card",
                ),
                ExpectedScore(
                    benchmark="ours",
                    published_pct=60.0,
                    expected_pct=None,
                    is_estimate=True,
                    report="the service file",
                    source="the service file",
                ),
            ),
            on_frontier=True,
            limited_by="memory bandwidth",
            load_curve=(POINT,),
            warnings=("coefficients were transferred",),
            assurance=ASSURANCE,
            effort=effort(deployment()),
        ),
        Candidate(
            index=1,
            deployment=deployment(num_replicas=1, precision=Precision()),
            status="infeasible",
            reason='weights <b>131.4</b> GiB > "72.9" GiB',
        ),
    ),
    winner=0,
    ranking=(0,),
    frontier=(0,),
    nearest=None,
    pruned_by_reason={"memory": 1},
    num_simulated=1,
    num_simulated_requests=10,
    wall_s=0.5,
    explanation=EXPLANATION,
    failure=Failure(
        at_s=120.5,
        start_up_s=90.0,
        planned=Outage(num_replicas=2, attainment=0.95, promise_kept=False, num_retries=12, usd_per_h=13.2),
        one_more=Outage(num_replicas=3, attainment=0.998, promise_kept=True, num_retries=9, usd_per_h=19.8),
    ),
    autoscaling=Autoscaling(
        headroom=1.5,
        fewest=1,
        most=3,
        mean_replicas=1.75,
        num_starts=4,
        attainment=0.992,
        promise_kept=True,
        usd_per_month=7300.0,
        fixed_usd_per_month=9636.0,
    ),
    engines=(columns("vllm"), columns("tgi")),
    filtered=("m in int4/bf16: MMLU 70.0 expected, below the 75 that is asked",),
    precisions=PrecisionTable(
        prompt_tokens=900,
        context_tokens=1000.5,
        num_rows=12,
        rows=(PrecisionRow(index=0, weight_only=True, prompt_s=0.08, decode_alone_s=0.007, decode_batch_s=0.009),),
    ),
)
WORKLOAD = Workload(
    name="ten requests",
    arrival_s=np.arange(10, dtype=np.float64),
    input_tokens=np.full(10, 90),
    output_tokens=np.full(10, 10),
    max_tokens=np.full(10, 10),
    max_tokens_kind="assumed",
    prefix=None,
    session=None,
    provenance=MEASURED,
)
SEARCH = Search(
    workload=WORKLOAD,
    models=(MODEL,),
    precisions={},
    gpus=(GPU,),
    offers={},
    engines=(("vllm", "0.33.0"),),
    promise=Promise(
        ttft_s=1.0,
        tpot_s=0.05,
        percentiles=(PercentileLimit(metric="e2e", percentile=99.0, limit_s=60.0),),
    ),
    budget=Budget(max_gpus=32),
    max_effort="high",
    router="prefix_aware",
)


def meta() -> PlanMeta:
    return plan_meta(SEARCH, name="support", input_hashes={"chat.yaml": "sha256:00"}, seeds={"bootstrap": 7})
