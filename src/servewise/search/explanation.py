"""What the numbers of a fleet consist of, at the operating point of its simulated run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from servewise import perf
from servewise.search.families import Result
from servewise.search.fleet import summary_of, try_fleet
from servewise.search.operating_point import Run, observe
from servewise.sim import schedulers
from servewise.types import (
    Breakdown,
    Caveat,
    CaveatKind,
    Cost,
    Deployment,
    Explanation,
    GpuOffer,
    MeasuredRuns,
    MemoryReport,
    Part,
    Provenance,
    Search,
    StepModel,
)

__all__ = ["explained"]

NUM_PROMPT_GROUPS = 8
"""Groups of prompts of like length whose mean prompt is taken apart: short ones read weights, long ones compute."""
NUM_NEAREST = 3
SOURCES: Mapping[str, tuple[str, ...]] = {
    "weights": ("gemm", "moe"),
    "compute": ("gemm", "moe"),
    "head": ("gemm",),
    "kv": ("attention",),
    "prefill_attention": ("attention",),
    "all_reduce": ("all_reduce",),
    "elementwise": ("elementwise",),
    "overhead": ("overhead", "eager_launch"),
    "prompts": ("gemm", "moe", "attention", "all_reduce"),
    "network": ("request",),
    "tokenizer": ("request",),
}
"""Coefficients behind each part, as a step model's provenance names them."""


def explained(search: Search, result: Result) -> Explanation:
    """Take the numbers of a kept candidate apart.

    Parameters
    ----------
    search : Search
    result : Result
        Of a candidate that keeps the promise.
    """
    candidate, shape, load = result.candidate, result.shape, result.load
    memory, price = shape.memory, candidate.cost
    assert memory is not None  # noqa: S101 (it was simulated)
    assert price is not None  # noqa: S101 (it was priced)
    trial = try_fleet(shape, memory, load, candidate.deployment.num_replicas, stop=False)
    log, summary = summary_of(trial, load, with_intervals=False)
    by_scheduler = replace(log, replica=schedulers(load.workload, trial.outcome))
    run = observe(by_scheduler, load.step_model.table, candidate.deployment)
    steps = _Steps(deployment=candidate.deployment, model=load.step_model)
    numbers = [
        steps.ttft(run, summary.means["ttft"]),
        *([steps.tpot(run, summary.means["tpot"])] if len(run.decoding.rows) else []),
        _memory(memory),
        _cost(price, candidate.deployment, search.offers[candidate.deployment.gpu.name]),
    ]
    nearest = perf.nearest_runs(candidate.deployment, NUM_NEAREST)
    return Explanation(
        num_rows=float(run.decoding.rows.mean()) if len(run.decoding.rows) else 0.0,
        context_tokens=float(run.decoding.context_tokens.mean()) if len(run.decoding.rows) else 0.0,
        prompt_tokens=float(run.prompts.tokens.mean()),
        numbers=tuple(numbers),
        caveats=(*caveats(load.step_model.warnings), *_unseen_engine(candidate.deployment, nearest)),
        nearest=nearest,
    )


def caveats(warnings: Iterable[str]) -> tuple[Caveat, ...]:
    """A step model's warnings by kind, as their words tell it."""

    def kind(text: str) -> CaveatKind:
        if text.startswith("unvalidated"):
            return "unvalidated"
        if text.startswith("transferred"):
            return "transferred"
        return "extrapolated" if "extrapolat" in text else "note"

    return tuple(Caveat(kind=kind(text), text=text) for text in warnings)


def _unseen_engine(deployment: Deployment, nearest: Sequence[MeasuredRuns]) -> tuple[Caveat, ...]:
    """That the engine has no public runs; those of the same engine would be the nearest."""
    if not nearest or any("engine" not in runs.differs for runs in nearest):
        return ()
    text = f"unvalidated: no public run of {deployment.engine} was available to compare with"
    return (Caveat(kind="unvalidated", text=text),)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Steps of a deployment, taken apart."""

    deployment: Deployment
    model: StepModel

    def ttft(self, run: Run, mean_s: float) -> Breakdown:
        """Mean TTFT: time outside the engine, the steps that compute the prompt, and waiting."""
        prompts, table = run.prompts, self.model.table
        fixed_s = table.request_fixed_s
        tokenizer_s = table.request_s_per_input_token * float(run.input_tokens.mean())
        prefill_s = float(prompts.alone_s.mean())
        of_prefill: dict[str, float] = {}
        groups = np.array_split(np.argsort(prompts.tokens, kind="stable"), min(NUM_PROMPT_GROUPS, len(prompts.tokens)))
        for members in groups:
            chunks = float(prompts.num_steps[members].mean())
            parts = self._parts(
                float(prompts.rows[members].mean()),
                float(prompts.context_tokens[members].mean()),
                float(prompts.tokens[members].mean()) / chunks,
                float(prompts.pairs[members].mean()) / chunks,
            )
            for name, value in parts.items():
                of_prefill[name] = of_prefill.get(name, 0.0) + value * chunks * len(members) / len(prompts.tokens)
        of_prefill["spread"] = prefill_s - sum(of_prefill.values())
        return Breakdown(
            number="ttft",
            value=mean_s,
            unit="s",
            parts=(
                self._part("queue", "queue", mean_s - fixed_s - tokenizer_s - prefill_s),
                *(self._part("prefill", name, value) for name, value in of_prefill.items() if value),
                self._part("network", "network", fixed_s),
                self._part("network", "tokenizer", tokenizer_s),
            ),
            note=(
                "queue is what is left: waiting for the step under way, for other prompts and for room; "
                "spread is what steps vary around the operating point"
            ),
        )

    def tpot(self, run: Run, mean_s: float) -> Breakdown:
        """Mean TPOT: a decode step at the operating point, and what other requests' prompts add to it."""
        decoding = run.decoding
        parts = self._parts(float(decoding.rows.mean()), float(decoding.context_tokens.mean()), 0.0, 0.0)
        parts = {name: value for name, value in parts.items() if value}
        stall_s = float(decoding.stall_s.mean())
        spread_s = mean_s - stall_s - sum(parts.values())
        return Breakdown(
            number="tpot",
            value=mean_s,
            unit="s",
            parts=(
                *(self._part("decode step", name, value) for name, value in parts.items()),
                self._part("other prompts", "prompts", stall_s),
                self._part("decode step", "spread", spread_s),
            ),
            note=(
                "prompts is what steps take longer that compute prompts of other requests, too; "
                "spread is what steps vary around the operating point"
            ),
        )

    def _parts(self, rows: float, context_tokens: float, prefill_tokens: float, pairs: float) -> dict[str, float]:
        """Parts of a step [s] with a fraction of a row: between those of the whole numbers beside it."""
        low = int(rows) if prefill_tokens else max(1, int(rows))
        above = min(max(rows - low, 0.0), 1.0)
        found: dict[str, float] = {}
        for num_rows, share in ((low, 1.0 - above), (low + 1, above)):
            if share:
                context = context_tokens * num_rows / rows if rows else 0.0
                tokens = round(prefill_tokens) or int(prefill_tokens > 0)
                step = perf.explain(
                    self.deployment,
                    num_rows,
                    max(context, num_rows),
                    tokens,
                    pairs if tokens else None,
                    self.model.correction,
                )
                for name, value in step.items():
                    found[name] = found.get(name, 0.0) + share * value
        return found

    def _part(self, group: str, name: str, value: float) -> Part:
        return Part(group=group, name=name, value=value, sources=_sources(self.model.provenance, SOURCES.get(name, ())))


def _sources(provenance: Mapping[str, Provenance], names: Iterable[str]) -> tuple[Provenance, ...]:
    return tuple(dict.fromkeys(provenance[name] for name in names if name in provenance))


def _memory(memory: MemoryReport) -> Breakdown:
    """Memory of the fullest GPU."""
    sizes = {
        "weights": memory.weights_bytes,
        "activation": memory.activation_bytes,
        "non_torch": memory.non_torch_bytes,
        "graph": memory.graph_bytes,
        "kv": memory.kv_bytes,
    }
    parts = [
        Part(group="engine", name=name, value=float(size), sources=_sources(memory.provenance, (name,)))
        for name, size in sizes.items()
    ]
    rest = float(memory.mem_bytes - sum(sizes.values()))
    free = Part(group="left free", name="unused", value=rest, sources=_sources(memory.provenance, ("budget",)))
    return Breakdown(
        number="memory",
        value=float(memory.mem_bytes),
        unit="bytes",
        parts=(*parts, free),
        note=f"the KV cache holds {memory.kv_capacity_tokens:,} tokens a replica",
    )


def _cost(price: Cost, deployment: Deployment, offers: Iterable[GpuOffer]) -> Breakdown:
    """Dollars per million output tokens at load: what full replicas would cost, and what is paid beside."""
    at_load, at_capacity = price.usd_per_mtok_output_at_load, price.usd_per_mtok_output_at_capacity
    used_frac = deployment.num_gpus / price.num_gpus_rented
    full = at_capacity if at_capacity <= at_load else at_load  # NaN where no capacity was searched
    parts = {
        "serving": full * used_frac,
        "spare_capacity": (at_load - full) * used_frac,
        "idle_gpus": at_load * (1.0 - used_frac),
    }
    rented = [o for o in offers if price.price_source.startswith(f"{o.provider}: ") and o.num_gpus in dict(price.nodes)]
    sources = tuple(dict.fromkeys(offer.provenance for offer in rented))
    nodes = " + ".join(f"{count} x {size} GPU{'s' * (size > 1)}" for size, count in price.nodes)
    return Breakdown(
        number="cost",
        value=at_load,
        unit="usd_per_mtok",
        parts=tuple(Part(group="fleet", name=name, value=v, sources=sources) for name, v in parts.items() if v),
        note=f"${price.usd_per_h:.2f} an hour for {nodes}, prices of {price.price_date}",
    )
