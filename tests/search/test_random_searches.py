"""Random small searches: what pruning leaves out is never part of the answer, and never called broken."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from servewise import catalog, quality, traffic
from servewise.search import fleet, plan
from servewise.types import (
    Budget,
    Candidate,
    GpuOffer,
    PercentileLimit,
    Plan,
    Promise,
    Provenance,
    Search,
    Speculation,
    Workload,
    chain_acceptance,
)

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
GPUS = (
    "L4-24GB",
    "A10G-24GB",
    "RTX-4090-24GB",
    "A100-SXM-40GB",
    "L40S-48GB",
    "A100-SXM-80GB",
    "H100-PCIe-80GB",
    "H100-SXM-80GB",
    "H200-SXM-141GB",
    "B200-SXM-180GB",
)
ENGINES = (
    ("vllm", "0.33.0"),
    ("sglang", "0.5.23"),
    ("tensorrt-llm", "1.2.1"),
    ("tgi", "3.3.5"),
    ("ollama", "0.33.0"),
)
ROUTERS = ("round_robin", "least_requests", "prefix_aware")
DRAFTERS = (
    Speculation(method="ngram", num_speculative_tokens=2, acceptance=(0.6, 0.3)),
    Speculation(method="eagle", num_speculative_tokens=3, acceptance=chain_acceptance(0.75, 3), head_name="a/head"),
)
SEEDS = (1, 8, 17, 20, 27, 31, 36)
"""Chosen for speed, and because together they have every status, router and kind of traffic."""


@pytest.fixture(scope="module")
def workloads() -> tuple[Workload, Workload]:
    """Traffic without and with known prefixes."""
    chat = traffic.load(traffic.TrafficSource(profile="azure-conversation-2023", num_requests=700))
    shared = traffic.load(traffic.TrafficSource(profile="mooncake-conversation", num_requests=150))
    return chat, shared


def draw_arrivals(rng: np.random.Generator, num: int, span_s: float) -> np.ndarray:
    """Poisson arrivals, in half of the draws with a burst at the start."""
    gaps = rng.exponential(1.0, num)
    if rng.random() < 0.5:
        gaps[: int(rng.uniform(0.1, 0.4) * num)] /= rng.uniform(1.0, 2.5)
    arrival_s = np.cumsum(gaps) - gaps[0]
    return arrival_s * span_s / arrival_s[-1]


def draw_promise(rng: np.random.Generator, span_s: float, slower: float) -> Promise:
    """One of every form of promise, from hardly to easily kept; limits are ``slower`` times as long."""

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    attainment = float(rng.choice((0.9, 0.95, 0.99)))
    ttft_s, tpot_s, e2e_s = slower * between(0.3, 3.0), between(0.02, 0.08), slower * between(6.0, 25.0)
    percentiles = (
        PercentileLimit(metric="ttft", percentile=100.0 * attainment, limit_s=ttft_s),
        PercentileLimit(metric="tpot", percentile=95.0, limit_s=tpot_s),
    )
    forms = (
        Promise(ttft_s=ttft_s, tpot_s=tpot_s, attainment=attainment),
        Promise(ttft_s=ttft_s, attainment=attainment),
        Promise(e2e_s=e2e_s, attainment=attainment),
        Promise(percentiles=percentiles),
        Promise(ttft_s=ttft_s, attainment=attainment, percentiles=percentiles[1:]),
        Promise(deadline_s=span_s + between(3.0, 40.0)),
    )
    return forms[rng.integers(len(forms))]


def draw_search(seed: int, workloads: tuple[Workload, Workload]) -> Search:
    """A search over a few GPUs at prices near what their bandwidth is worth, so that many nearly win."""
    rng = np.random.default_rng(seed)
    workload = workloads[int(rng.random() < 0.3)]
    span_s = float(rng.uniform(30.0, 200.0))
    workload = replace(workload, arrival_s=draw_arrivals(rng, workload.num_requests, span_s))
    promise = draw_promise(rng, span_s, 1.0 if workload.prefix is None else 5.0)
    model = catalog.get_model(MODEL)
    gpus = tuple(catalog.get_gpu(str(name)) for name in rng.choice(GPUS, size=rng.integers(4, 7), replace=False))
    runnable = tuple(dict.fromkeys(p for gpu in gpus for p in catalog.supported_precisions(gpu)))
    choices = quality.precision_choices(model, runnable, quality.Floor(min_recovery_pct=99.0))
    chosen = sorted(rng.choice(len(choices), size=rng.integers(1, 3), replace=False))
    largest = int(rng.choice((1, 1, 2)))
    provenance = Provenance(kind="assumed", source="assumed: drawn for the test")
    offers = {}
    for gpu in gpus:
        usd_per_gpu_h = float(rng.uniform(0.7, 1.4)) * gpu.mem_bw_bytes_per_s / 1e12
        offers[gpu.name] = tuple(
            GpuOffer(
                gpu=gpu.name,
                num_gpus=num_gpus,
                usd_per_gpu_h=usd_per_gpu_h,
                kind="on_demand",
                provider="test",
                date="2026-01-01",
                provenance=provenance,
            )
            for num_gpus in range(1, largest + 1)
        )
    return Search(
        workload=workload,
        models=(model,),
        precisions={model.name: tuple(choices[i] for i in chosen)},
        gpus=gpus,
        offers=offers,
        engines=tuple(ENGINES[i] for i in np.random.default_rng(seed).choice(5, size=2, replace=False)),
        promise=promise,
        budget=Budget(max_gpus=int(rng.choice((8, 32))), usd_per_h=None if rng.random() < 0.7 else 20.0),
        router=ROUTERS[rng.integers(len(ROUTERS))],
        speculations=DRAFTERS[: 1 + seed % 2],
    )


def figures(found: Plan) -> list[tuple[object, ...]]:
    """What the frontier says, winner first."""
    best = [found.candidates[i] for i in found.frontier]
    return [(c.index, c.deployment.num_replicas, c.latency_s, c.cost, c.summary) for c in best]


def at_least_as_good(one: Candidate, other: Candidate) -> bool:
    """Whether a kept candidate is no worse than another in cost and in latency."""
    assert one.cost is not None
    assert other.cost is not None
    return (
        one.cost.usd_per_mtok_output_at_load <= other.cost.usd_per_mtok_output_at_load
        and one.latency_s <= other.latency_s
    )


def test_pruned_and_unpruned_searches_agree(workloads: tuple[Workload, Workload]) -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        search = draw_search(seed, workloads)
        found, everything = plan(search), plan(search, prune=False)
        assert figures(found) == figures(everything), f"seed {seed}"
        kept = [c for c in everything.candidates if c.status == "kept"]
        for candidate, truth in zip(found.candidates, everything.candidates, strict=True):
            seen[candidate.status] += 1
            where = f"seed {seed}, candidate {candidate.index}: {candidate.reason}"
            if candidate.status == "broken":
                assert truth.status == "broken", where
            elif candidate.status == "dominated" and truth.status == "kept":
                assert any(at_least_as_good(k, truth) for k in kept if k.index != truth.index), where
            elif candidate.status == "same_schedule":
                base = everything.candidates[int(candidate.reason.rsplit(" ", 1)[1])]
                assert truth.status == base.status, where
                assert truth.deployment.num_replicas == base.deployment.num_replicas, where
                if truth.summary is not None and base.summary is not None:
                    assert truth.latency_s == base.latency_s, where
                    assert truth.summary.means == base.summary.means, where
    assert min(seen[status] for status in ("kept", "broken", "dominated", "same_schedule")) >= 30


@pytest.mark.parametrize("engine", ENGINES[:3], ids=lambda engine: engine[0])
def test_pruned_and_unpruned_searches_of_groups_agree(
    workloads: tuple[Workload, Workload], engine: tuple[str, str]
) -> None:
    """Prefill and decode apart, on two kinds of GPU, beside whole replicas."""
    search = draw_search(8, workloads)
    chat = workloads[0]
    gpus = tuple(catalog.get_gpu(name) for name in ("L40S-48GB", "H100-SXM-80GB"))
    search = replace(
        search,
        workload=replace(chat, arrival_s=chat.arrival_s / 4),
        gpus=gpus,
        offers={gpu.name: catalog.offers(gpu) for gpu in gpus},
        precisions={MODEL: search.precisions[MODEL][:1]},
        engines=(engine,),  # type: ignore[arg-type]
        promise=Promise(ttft_s=1.0, tpot_s=0.03, attainment=0.95),
        budget=Budget(max_gpus=12),
        max_effort="high",
        router="least_requests",
    )
    found, everything = plan(search), plan(search, prune=False)
    assert figures(found) == figures(everything)
    groups = [c for c in everything.candidates if c.deployment.disaggregation is not None]
    assert sum(c.status == "kept" for c in groups) >= 5
    assert {c.deployment.disaggregation.prefill.gpu.name for c in groups} == {gpu.name for gpu in gpus}
    none = [c for c in plan(replace(search, max_effort="medium")).candidates if c.deployment.disaggregation]
    assert none == []


def test_a_fleet_that_was_jumped_over_is_not_given_up(
    workloads: tuple[Workload, Workload], monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 replicas break at once, so 10 are tried next; that 10 cannot matter says nothing of 9."""
    tried = []

    def fake(_shape: object, _memory: object, load: fleet.Load, num_replicas: int) -> fleet.Trial:
        tried.append(num_replicas)
        outcome = FakeOutcome(load.workload.num_requests if num_replicas >= 9 else 1)
        return fleet.Trial(num_replicas=num_replicas, kept=num_replicas >= 9, stopped=num_replicas < 9, outcome=outcome)

    monkeypatch.setattr(fleet, "try_fleet", fake)
    load = fleet.Load(workload=workloads[0], promise=Promise(), rule=None, packed=None, step_model=None)
    found = fleet.find_fleet(
        None, None, load, fewest=8, most=64, worth=lambda num: num <= 9, matters=lambda _trial: True
    )
    assert tried[0] == 8
    assert found.found
    assert found.trial.num_replicas == 9


class FakeOutcome:
    """A run of which only the number of finished requests matters."""

    peak_running = needed_kv_blocks = peak_batched_tokens = 1
    slots_bound = budget_bound = memory_bound = False

    def __init__(self, num_simulated: int) -> None:
        self.num_simulated = num_simulated
