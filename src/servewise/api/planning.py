"""Verbs that need no endpoint: plan, compare, simulate, and what the catalog and traffic hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from servewise import __version__, catalog, quality, search, traffic
from servewise.api.endpoint import WORKLOAD_FILE
from servewise.catalog import gpu_rows as list_gpus
from servewise.catalog import model_rows as list_models
from servewise.compare import compare_strategies
from servewise.config import Service, load_service, read_prices
from servewise.deploy import launches, notes, render_launch
from servewise.errors import InputError
from servewise.metrics import e2e_s, tpot_s, ttft_s
from servewise.perf import calibrated_step_model
from servewise.report import PlanReport, advice, plan_html
from servewise.sim import run
from servewise.store import (
    check_run_parent,
    digest,
    new_run_dir,
    plan_meta,
    plan_to_json,
    read_calibration,
    write_text_atomic,
    write_workload,
)
from servewise.types import (
    DESCRIBED,
    Candidate,
    Comparison,
    GpuOffer,
    GpuSpec,
    Plan,
    Promise,
    Provenance,
    RequestLog,
    Search,
    Workload,
)

__all__ = [
    "PlanResult",
    "compare",
    "describe_traffic",
    "list_gpus",
    "list_models",
    "list_profiles",
    "plan",
    "replay",
    "resolve",
    "simulate",
    "traffic_statistics",
]

NUM_REASONS = 3
"""Most reasons that are given for a model that cannot be had in any precision."""
CDF_POINTS = 400
"""Points of the latency distributions in a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """A plan with what was written of it.

    Parameters
    ----------
    plan : Plan
    service : Service
    run_dir : Path or None
        The new folder with plan.json and plan.html; None when nothing was to be written.
    report : PlanReport
    json_text : str
        The text of plan.json.
    """

    plan: Plan
    service: Service
    run_dir: Path | None
    report: PlanReport
    json_text: str


def plan(
    service: Service,
    *,
    out_dir: Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    threads: int | None = None,
    with_what_if: bool = True,
) -> PlanResult:
    """Find the deployments that keep a service's promise, cheapest first in $ per million tokens at goodput.

    Parameters
    ----------
    service : Service
        See :func:`servewise.config.load_service`.
    out_dir : Path, optional
        Where to make a new run folder; nothing is written without it.
    progress : callable, optional
        Called with the stage, the steps done and the steps in all.
    threads : int, optional
    with_what_if : bool
        Also plan again with other promises, loads and choices, for the recommendation and what the promise costs.

    Returns
    -------
    PlanResult

    Raises
    ------
    InputError
        When a name, a trace or a price is wrong, or nothing can be written to ``out_dir``.
    KeyboardInterrupt
        On Ctrl-C, after what was found so far has been written to ``out_dir``.
    """
    if out_dir is not None:
        check_run_parent(out_dir)
    asked = resolve(service)
    found = search.plan(asked, progress=progress, threads=threads, with_what_if=with_what_if)
    found = replace(found, advice=advice(found, asked.promise))
    hashes = _input_hashes(service)
    meta = plan_meta(asked, name=service.name, input_hashes=hashes, seeds={"traffic": service.traffic.seed})
    document = plan_to_json(found, meta)
    report = _report(service, asked, found, hashes)
    text = json.dumps(document, indent=1) + "\n"
    run_dir = None
    if out_dir is not None:
        page = plan_html(report)
        run_dir = new_run_dir(out_dir, service.name)
        write_text_atomic(run_dir / "plan.json", text)
        write_text_atomic(run_dir / "plan.html", page)
        write_workload(run_dir / WORKLOAD_FILE, asked.workload)
    if not found.complete:
        raise KeyboardInterrupt("" if run_dir is None else f"what was found until then is in {run_dir}")
    return PlanResult(plan=found, service=service, run_dir=run_dir, report=report, json_text=text)


def resolve(service: Service) -> Search:
    """Look up a service's names: models, GPUs, prices, precisions and traffic.

    Raises
    ------
    InputError
        When a name is unknown or ambiguous, a file cannot be read, or no precision passes the quality floor.
    """
    workload = traffic.load(service.traffic)
    models = tuple(catalog.get_model(name) for name in service.models)
    longest = max(model.max_context_tokens for model in models)
    if workload.max_tokens_kind == "assumed":
        workload = traffic.assume_max_tokens(workload, service.traffic.max_tokens, longest)
    gpus = tuple(catalog.get_gpu(name) for name in service.hardware)
    offered = (catalog.supported_precisions(gpu, engine) for engine in service.engines for gpu in gpus)
    floor = quality.Floor(
        min_recovery_pct=service.min_recovery_pct, tasks=service.quality_tasks, min_scores=service.min_scores
    )
    runnable = [precision for found in offered for precision in found]
    precisions, below = quality.choices_of_models(models, runnable, floor, service.scores)
    filtered = (*below, *quality.not_run(models, gpus, service.engines))
    models = tuple(model for model in models if precisions[model.name])
    if not models:
        raise InputError(
            f"no precision that {', '.join(gpu.name for gpu in gpus)} can run passes the quality floor: "
            f"{'; '.join(filtered[:NUM_REASONS]) or 'the model is not to be had in one that they run'}; "
            "lower the floor, or add hardware or engines"
        )
    return Search(
        workload=workload,
        models=models,
        precisions=precisions,
        gpus=gpus,
        offers={gpu.name: _offers(service, gpu, name) for gpu, name in zip(gpus, service.hardware, strict=True)},
        engines=tuple((engine, search.default_version(engine)) for engine in service.engines),
        promise=service.promise,
        budget=service.budget,
        max_effort=service.max_effort,
        router=service.router,
        price_kind=service.price_kind,
        start_up_s=service.start_up_s,
        speculations=service.speculations,
        calibrations=tuple(read_calibration(path) for path in service.calibration_paths),
        hosted_prices={m.name: service.hosted_prices or catalog.hosted_prices(m.name) for m in models},
        filtered=filtered,
        expected_load=None if service.expected_growth_pct is None else 1 + service.expected_growth_pct / 100,
    )


def compare(
    service: Service,
    *,
    gpu: str | None = None,
    tensor_parallel_size: int | None = None,
    rate_rps: float | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Comparison:
    """Simulate a service's traffic on one replica with each strategy of scheduling and memory.

    Parameters
    ----------
    service : Service
        Its first model, its promise and its traffic.
    gpu : str, optional
        GPU to compare on; the first of the service's hardware by default.
    tensor_parallel_size : int, optional
        The fewest GPUs on which the model fits by default.
    rate_rps : float, optional [requests/s]
        Rescale the traffic to this rate first.
    progress : callable, optional
        Called with the stage, the steps done and the steps in all.

    Raises
    ------
    InputError
        When a name or a trace is wrong, or the model does not fit.
    """
    if gpu is not None:
        service = replace(service, hardware=(catalog.get_gpu(gpu).name,))
    if rate_rps is not None:
        service = replace(service, traffic=replace(service.traffic, rate_rps=rate_rps))
    asked = resolve(service)
    results = compare_strategies(asked, tensor_parallel_size=tensor_parallel_size, progress=progress)
    warnings = {
        warning
        for result in results
        for warning in calibrated_step_model(result.deployment, asked.calibrations).warnings
    }
    return Comparison(
        name=service.name,
        traffic=_traffic_words(asked),
        promise=asked.promise,
        context_tokens=traffic.context_limit(asked.workload, asked.models[0]),
        results=results,
        notes=(*_warnings(service, asked), *sorted(warnings)),
    )


def simulate(candidate: Candidate, asked: Search) -> RequestLog:
    """Simulate a candidate's fleet on the whole workload, gaps between tokens and the fleet's state included."""
    if candidate.memory is None:
        raise InputError("the candidate has no memory report, so it cannot be simulated")
    if candidate.deployment.disaggregation is not None:
        return search.group_log(asked, candidate.deployment)
    times = calibrated_step_model(candidate.deployment, asked.calibrations)
    return run(asked.workload, candidate.deployment, times, candidate.memory)


def traffic_statistics(
    name_or_path: str,
    format: str | None = None,  # noqa: A002 (the option's name)
    columns: Mapping[str, str] | None = None,
    rate_rps: float | None = None,
) -> traffic.TrafficStatistics:
    """Statistics of a built-in profile or of a trace file.

    Raises
    ------
    InputError
        When it is neither, or the file cannot be read.
    """
    return traffic.statistics(traffic.load(traffic.named_source(name_or_path, format, columns, rate_rps)))


def replay(name_or_path: str) -> tuple[Workload, Promise | None]:
    """Traffic to replay: of a service file, with its promise; or a trace file or a built-in profile, without.

    Raises
    ------
    InputError
        When it is none of them, or the file cannot be read.
    """
    if Path(name_or_path).suffix in (".yaml", ".yml"):
        service = load_service(name_or_path)
        return traffic.load(service.traffic), service.promise
    return traffic.load(traffic.named_source(name_or_path)), None


def describe_traffic(statistics: traffic.TrafficStatistics) -> list[tuple[str, str]]:
    """Statistics in words: labels and values."""
    return traffic.describe(statistics)


def list_profiles() -> list[str]:
    """Names of the built-in traffic profiles."""
    return list(traffic.profile_names())


def _offers(service: Service, gpu: GpuSpec, name: str) -> tuple[GpuOffer, ...]:
    """Prices of a GPU: the user's own where the file has some, else the built-in ones, else none."""
    if gpu.vendor == DESCRIBED:
        offer = catalog.device_offer(name, service.price_kind)
        return () if offer is None else (offer,)
    if service.prices_path is not None:
        own = tuple(
            offer
            for offer in read_prices(service.prices_path)
            if offer.gpu == gpu.name and offer.kind == service.price_kind
        )
        if own:
            return own
    if any(offer.gpu == gpu.name and offer.kind == service.price_kind for offer in catalog.all_offers()):
        return catalog.offers(gpu, service.price_kind)
    return ()


def _input_hashes(service: Service) -> dict[str, str]:
    """Digest of every file that was read, by its path from the service file's folder."""
    folder = service.path.parent
    files = [service.path, service.traffic.trace, service.prices_path, *service.calibration_paths]
    files += [Path(gpu) for gpu in service.hardware if gpu.endswith(catalog.DEVICE_SUFFIX)]
    drafters = [s.draft_model.name for s in service.speculations if s.draft_model is not None]
    files += [Path(model) for model in (*service.models, *drafters) if model.endswith(".json")]
    hashes = {}
    for path in files:
        if path is not None:
            name = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
            hashes[name] = digest(path)
    return hashes


def _report(service: Service, asked: Search, found: Plan, hashes: Mapping[str, str]) -> PlanReport:
    """What the reports show beside the plan."""
    shown = found.winner if found.winner is not None else found.nearest
    candidate = None if shown is None else found.candidates[shown]
    start = ""
    warnings = list(_warnings(service, asked))
    if found.winner is not None and candidate is not None:
        parts = launches(candidate.deployment)
        titled = [f"# {role} instance\n{render_launch(part)}" for role, part in parts]
        start = "\n".join(titled) if len(parts) > 1 else render_launch(parts[0][1])
        warnings += notes(candidate.deployment)
    return PlanReport(
        name=service.name,
        plan=found,
        promise=asked.promise,
        traffic=_traffic_words(asked),
        launch_command=start,
        warnings=tuple(warnings),
        provenance={} if candidate is None else _provenance(asked, candidate),
        facts=_facts(service, asked, hashes),
        latency_cdf={} if candidate is None or candidate.summary is None else _cdf(simulate(candidate, asked)),
    )


def _traffic_words(asked: Search) -> str:
    workload = asked.workload
    rate = workload.num_requests / max(workload.span_s, 1e-9)
    return f"{workload.name}, {workload.num_requests:,} requests, {rate:.2f} requests/s"


def _warnings(service: Service, asked: Search) -> list[str]:
    warnings = []
    if service.traffic.max_tokens is not None:
        warnings.append(f"clients are assumed to declare max_tokens {service.traffic.max_tokens}, as the service says")
    elif asked.workload.max_tokens_kind == "assumed":
        warnings.append("the trace does not declare max_tokens; the 99th percentile of its outputs is assumed")
    if asked.workload.prefix is None:
        warnings.append("shared prefixes are unknown for this traffic; no prefix-cache hits are counted")
    return warnings


def _facts(service: Service, asked: Search, hashes: Mapping[str, str]) -> dict[str, str]:
    facts = {"servewise": __version__, "traffic seed": str(service.traffic.seed)}
    facts |= {f"engine {engine}": version for engine, version in asked.engines}
    facts |= {f"input {name}": digest for name, digest in hashes.items()}
    return facts


def _provenance(asked: Search, candidate: Candidate) -> dict[str, Provenance]:
    """Origin of everything a candidate's figures rest on."""
    deployment = candidate.deployment
    if deployment.disaggregation is not None:
        deployment = deployment.pool("decode")
    origins = {"traffic": asked.workload.provenance, "model": deployment.model.provenance}
    origins |= {f"GPU {name}": origin for name, origin in deployment.gpu.provenance.items()}
    if candidate.memory is not None:
        origins |= {f"memory {name}": origin for name, origin in candidate.memory.provenance.items()}
    times = calibrated_step_model(deployment, asked.calibrations)
    origins |= {f"step time {name}": origin for name, origin in times.provenance.items()}
    for offer in asked.offers.get(deployment.gpu.name, ()):
        if candidate.cost is not None and candidate.cost.price_source.startswith(f"{offer.provider}: "):
            origins[f"price of {offer.num_gpus}"] = offer.provenance
    return origins


def _cdf(log: RequestLog) -> dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Sorted latencies [s] and the share at or below each, thinned to a few hundred points."""
    curves = {}
    shares = np.linspace(0.0, 1.0, CDF_POINTS)
    for name, values in (("ttft", ttft_s(log)), ("tpot", tpot_s(log)), ("e2e", e2e_s(log))):
        known = values[~np.isnan(values)]
        if len(known):
            curves[name] = (np.quantile(known, shares), shares)
    return curves
