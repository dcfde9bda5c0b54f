"""What the numbers of a fleet consist of, at the operating point of its simulated run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from servewise import perf
from servewise.search.breakdown import Steps, sources_of
from servewise.search.fleet import summary_of, try_fleet
from servewise.search.group_breakdown import group_numbers
from servewise.search.operating_point import observe
from servewise.search.results import Result
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
    Search,
)

__all__ = ["explained"]

NUM_NEAREST = 3
GROUP_WARNINGS = (
    "unvalidated: groups of prefill and decode instances were compared with one set of public runs, of SGLang, whose "
    "TTFT came out 40% too short (docs/disaggregation.md)",
    "the draws of step times leave the link between the instances as it is: what its bandwidth and latency leave open "
    "is in no interval",
)
DRAFTER_WARNING = (
    "the draws of step times leave the acceptance of proposals as it was given: measure it, what it leaves open is in "
    "no interval"
)


def explained(search: Search, result: Result) -> Explanation:
    """Take the numbers of a kept candidate apart.

    Parameters
    ----------
    search : Search
    result : Result
        Of a candidate that keeps the promise.
    """
    candidate, shape, load = result.candidate, result.shape, result.load
    deployment, memory, price = candidate.deployment, shape.memory, candidate.cost
    assert memory is not None  # noqa: S101 (it was simulated)
    assert price is not None  # noqa: S101 (it was priced)
    trial = try_fleet(shape, memory, load, deployment.num_replicas, stop=False)
    log, summary = summary_of(trial, load, with_intervals=False)
    memories = [_memory(memory, "a replica" if deployment.disaggregation is None else "an instance")]
    warnings = load.step_model.warnings
    if load.prefill_model is not None and shape.prefill_memory is not None:
        prompts, decoding, numbers = group_numbers(load, deployment, trial.outcome, summary)
        memories.append(replace(_memory(shape.prefill_memory, "an instance"), number="prefill_memory"))
        warnings = tuple(dict.fromkeys((*load.prefill_model.warnings, *warnings, *GROUP_WARNINGS)))
    else:
        by_scheduler = replace(log, replica=schedulers(load.workload, trial.outcome))
        run = observe(by_scheduler, load.step_model.table, deployment)
        steps = Steps(deployment=deployment, model=load.step_model)
        prompts, decoding, numbers = run.prompts, run.decoding, [steps.ttft(run, summary.means["ttft"])]
        if len(decoding.rows):
            numbers.append(steps.tpot(decoding, summary.means["tpot"]))
    if deployment.speculation is not None:
        warnings = (*warnings, DRAFTER_WARNING)
    nearest = perf.nearest_runs(deployment, NUM_NEAREST)
    return Explanation(
        num_rows=float(decoding.rows.mean()) if len(decoding.rows) else 0.0,
        context_tokens=float(decoding.context_tokens.mean()) if len(decoding.rows) else 0.0,
        prompt_tokens=float(prompts.tokens.mean()),
        numbers=(*numbers, *memories, _cost(price, deployment, _offers(search, deployment))),
        caveats=(*caveats(warnings), *_unseen_engine(deployment, nearest)),
        nearest=nearest,
        scheduler="replica" if deployment.disaggregation is None else "decode instance",
    )


def _offers(search: Search, deployment: Deployment) -> tuple[GpuOffer, ...]:
    """Offers of every kind of GPU that a deployment is made of."""
    group = deployment.disaggregation
    gpus = [deployment.gpu] if group is None else [group.prefill.gpu, group.decode.gpu]
    return tuple(offer for name in dict.fromkeys(gpu.name for gpu in gpus) for offer in search.offers[name])


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


def _memory(memory: MemoryReport, holder: str) -> Breakdown:
    """Memory of the fullest GPU."""
    sizes = {
        "weights": memory.weights_bytes,
        "activation": memory.activation_bytes,
        "non_torch": memory.non_torch_bytes,
        "graph": memory.graph_bytes,
        "kv": memory.kv_bytes,
    }
    parts = [
        Part(group="engine", name=name, value=float(size), sources=sources_of(memory.provenance, (name,)))
        for name, size in sizes.items()
    ]
    rest = float(memory.mem_bytes - sum(sizes.values()))
    free = Part(group="left free", name="unused", value=rest, sources=sources_of(memory.provenance, ("budget",)))
    return Breakdown(
        number="memory",
        value=float(memory.mem_bytes),
        unit="bytes",
        parts=(*parts, free),
        note=f"the KV cache holds {memory.kv_capacity_tokens:,} tokens {holder}",
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
