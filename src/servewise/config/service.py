"""A service: the question that a plan answers, as the user asked it (names not yet resolved)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from servewise.catalog import DEVICE_SUFFIX, get_gpu, get_model
from servewise.config.check import validate
from servewise.config.document import Document, Location, read_document
from servewise.config.schema import (
    PERCENTILE_KEY,
    PromiseSection,
    QualitySection,
    ServiceSection,
    SpeculationSection,
)
from servewise.config.traffic import traffic_source
from servewise.engines import checked_name
from servewise.errors import InputError, UnknownNameError
from servewise.quality import benchmarks
from servewise.traffic import TrafficSource
from servewise.types import (
    Budget,
    Effort,
    EngineName,
    GpuSpec,
    HostedPrice,
    Metric,
    ModelSpec,
    PercentileLimit,
    PriceKind,
    Promise,
    Provenance,
    Router,
    Speculation,
    TaskKind,
    chain_acceptance,
)

__all__ = ["Service", "load_service"]

ENGINES: Final[tuple[EngineName, ...]] = ("vllm", "sglang", "tensorrt-llm", "tgi", "ollama")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What a service file asks for.

    Parameters
    ----------
    name : str
        The file's stem when it names none.
    path : Path
        The service file.
    models : tuple of str
        Catalog names, or paths to a ``config.json`` (from the file's folder).
    traffic : TrafficSource
    promise : Promise
    min_recovery_pct : float [%]
        Least share of the bf16 score that a precision must keep.
    quality_tasks : tuple of TaskKind
        Kinds of task that must each keep it; empty: all kinds taken together.
    scores : mapping of model to mapping of benchmark to float [%]
        The user's own, which replace published ones.
    min_scores : mapping of benchmark to float [%]
        Least score that a model in a precision must be expected to reach.
    max_effort : Effort
    router : Router
    price_kind : PriceKind
    hardware : tuple of str
        Canonical GPU names, or paths of files that describe a device.
    engines : tuple of str
        Those that can be simulated.
    speculations : tuple of Speculation
        Drafters to try with vLLM.
    budget : Budget
    prices_path : Path or None
        File with the user's own prices.
    calibration_paths : tuple of Path
        Files that ``servewise calibrate`` wrote.
    expected_growth_pct : float or None [%]
        How much more traffic than this the recommendation is to plan for, too.
    hosted_prices : tuple of HostedPrice
        What the user's providers charge for the model; empty: the built-in prices count.
    """

    name: str
    path: Path
    models: tuple[str, ...]
    traffic: TrafficSource
    promise: Promise
    min_recovery_pct: float
    quality_tasks: tuple[TaskKind, ...]
    max_effort: Effort
    router: Router
    price_kind: PriceKind
    start_up_s: float | None
    hardware: tuple[str, ...]
    engines: tuple[EngineName, ...]
    speculations: tuple[Speculation, ...]
    budget: Budget
    prices_path: Path | None
    calibration_paths: tuple[Path, ...] = ()
    hosted_prices: tuple[HostedPrice, ...] = ()
    expected_growth_pct: float | None = None
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    min_scores: Mapping[str, float] = field(default_factory=dict)


def load_service(path: Path | str) -> Service:
    """Read a service file.

    Parameters
    ----------
    path : Path or str
        A YAML file as ``docs/service-file.md`` describes it.

    Returns
    -------
    Service

    Raises
    ------
    InputError
        With file, line, key and what is allowed.
    """
    document = read_document(Path(path))
    section = validate(document, ServiceSection)
    models = _each(document, "model", section.model, _model)
    return Service(
        name=section.name or document.path.stem,
        path=document.path,
        models=models,
        traffic=traffic_source(document, section.traffic),
        promise=_promise(document, section.promise),
        min_recovery_pct=section.quality.min_recovery_pct,
        quality_tasks=tuple(section.quality.tasks),
        max_effort=section.operations.max_effort,
        router=section.operations.router,
        price_kind=section.operations.price_kind,
        start_up_s=section.operations.start_up_s,
        expected_growth_pct=section.operations.expected_growth_pct,
        hardware=_each(document, "hardware", section.hardware, _gpu),
        engines=_engines(document, section.engines),
        speculations=_speculations(document, section),
        budget=Budget(max_gpus=section.budget.max_gpus, usd_per_h=section.budget.usd_per_h),
        prices_path=None if section.prices is None else document.existing_file(("prices",), section.prices),
        calibration_paths=tuple(
            document.existing_file(_location(document, "calibration", i), name)
            for i, name in enumerate(section.calibration)
        ),
        hosted_prices=_hosted(document, section),
        scores=_scores(document, section.quality, models),
        min_scores=_min_scores(document, section.quality),
    )


def _hosted(document: Document, section: ServiceSection) -> tuple[HostedPrice, ...]:
    """The user's own prices by the token; they are one model's."""
    if section.hosted and len(section.model) > 1:
        raise document.error(("hosted",), "prices by the token belong to one model; list one in model")
    origin = Provenance(kind="spec", source=f"{document.path.name}, key hosted", accessed="")
    return tuple(
        HostedPrice(
            provider=asked.provider,
            model=section.model[0],
            usd_per_mtok_input=asked.usd_per_mtok_input,
            usd_per_mtok_output=asked.usd_per_mtok_output,
            provenance=origin,
        )
        for asked in section.hosted
    )


def _scores(document: Document, section: QualitySection, models: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """The user's own scores, by the names of the models; a model that is not planned for is an error on its line."""
    found = {}
    for name, scores in section.scores.items():
        location: Location = ("quality", "scores", name)
        model = _model(document, location, name)
        if model not in models:
            raise document.error(location, f"scores of a model that `model` does not list: {', '.join(models)}")
        found[get_model(model).name] = scores
    return found


def _min_scores(document: Document, section: QualitySection) -> dict[str, float]:
    """Floors of scores; a benchmark on which nobody has a score is an error on its line."""
    known = dict.fromkeys((*(b for scores in section.scores.values() for b in scores), *benchmarks()))
    for name in section.min_scores:
        if name not in known:
            hint = "(give scores of your own as quality.scores)"
            unknown = UnknownNameError("benchmark", name, known, hint)
            raise document.error(("quality", "min_scores", name), str(unknown)) from unknown
    return section.min_scores


def _speculations(document: Document, section: ServiceSection) -> tuple[Speculation, ...]:
    """The drafters to try."""
    if section.speculation and "vllm" not in section.engines:
        raise document.error(("speculation",), "drafters are simulated with vllm only; add it to engines")
    return tuple(
        _speculation(document, ("speculation", i), asked, len(section.model))
        for i, asked in enumerate(section.speculation)
    )


def _speculation(document: Document, location: Location, asked: SpeculationSection, num_models: int) -> Speculation:
    """A drafter; one that was made for a model is an error beside several models."""
    if asked.method in ("draft_model", "eagle") and num_models > 1:
        raise document.error(location, f"a drafter of method {asked.method!r} belongs to one model; list one in model")
    if asked.method == "eagle" and not asked.head_name:
        raise document.error(location, "vLLM loads an EAGLE head by its hub id; give it as head_name")
    rates, name = asked.acceptance, _draft_model(document, location, asked)
    try:
        if asked.head_name:  # now, not after the search
            checked_name(asked.head_name, "vllm serve")
        return Speculation(
            method=asked.method,
            num_speculative_tokens=asked.num_speculative_tokens,
            acceptance=tuple(rates)
            if isinstance(rates, list)
            else chain_acceptance(rates, asked.num_speculative_tokens),
            draft_model=None if name is None else get_model(name),
            head_name=asked.head_name,
        )
    except InputError as error:
        raise document.error(location, str(error)) from error


def _draft_model(document: Document, location: Location, asked: SpeculationSection) -> str | None:
    draft = asked.draft_model
    return None if draft is None else _model(document, (*location, "draft_model"), draft)


def _each(
    document: Document, key: str, names: list[str], resolve: Callable[[Document, Location, str], str]
) -> tuple[str, ...]:
    """Canonical names of a key's one or many names; an unknown, ambiguous or repeated one is an error on its line."""
    found: dict[str, str] = {}
    for i, name in enumerate(names):
        location = _location(document, key, i)
        canonical = resolve(document, location, name)
        if canonical in found:
            raise document.error(location, f"{name!r} is {found[canonical]!r} again; list it once")
        found[canonical] = name
    return tuple(found)


def _location(document: Document, key: str, i: int) -> Location:
    """Where the value ``i`` of a key with one or many stands."""
    return (key, i) if isinstance(document.values[key], list) else (key,)


def _model(document: Document, location: Location, model: str) -> str:
    folder = document.path.parent / model
    if (folder / "config.json").is_file():
        return str(folder / "config.json")
    if model.endswith(".json"):
        return str(document.existing_file(location, model))
    return _known(document, location, get_model, model)


def _gpu(document: Document, location: Location, gpu: str) -> str:
    if gpu.endswith(DEVICE_SUFFIX):
        path = str(document.existing_file(location, gpu))
        _known(document, location, get_gpu, path)
        return path
    return _known(document, location, get_gpu, gpu)


def _known(document: Document, location: Location, find: Callable[[str], ModelSpec | GpuSpec], name: str) -> str:
    try:
        return find(name).name
    except InputError as error:
        raise document.error(location, str(error)) from error


def _engines(document: Document, names: list[str]) -> tuple[EngineName, ...]:
    for name in names:
        if name not in ENGINES:
            unknown = UnknownNameError("engine", name, ENGINES)
            raise document.error(("engines",), str(unknown)) from unknown
    return tuple(name for name in ENGINES if name in names)


def _promise(document: Document, section: PromiseSection) -> Promise:
    joint = [limit for limit in (section.ttft_s, section.tpot_s, section.e2e_s) if limit is not None]
    percentiles = tuple(_percentile(document, key, limit) for key, limit in (section.__pydantic_extra__ or {}).items())
    if section.attainment is not None and not joint:
        raise document.error(
            ("promise", "attainment"),
            "a share of requests needs limits to meet; give ttft_s, tpot_s or e2e_s",
        )
    if section.objective == "throughput" and (joint or percentiles):
        raise document.error(
            ("promise", "objective"),
            "throughput promises no latency; remove it, or remove the latency limits (deadline_s may stay)",
        )
    if not (joint or percentiles or section.deadline_s or section.objective):
        raise document.error(
            ("promise",),
            "promises nothing; give ttft_s, tpot_s, e2e_s, a percentile such as ttft_p99_s, deadline_s,"
            " or 'objective: throughput' for work that nobody waits for",
        )
    return Promise(
        ttft_s=section.ttft_s,
        tpot_s=section.tpot_s,
        e2e_s=section.e2e_s,
        attainment=0.99 if section.attainment is None else section.attainment,
        percentiles=percentiles,
        deadline_s=section.deadline_s,
    )


_METRICS: Final[dict[str, Metric]] = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2e", "itl": "itl"}


def _percentile(document: Document, key: str, limit_s: float) -> PercentileLimit:
    match = PERCENTILE_KEY.fullmatch(key)
    if match is None:
        raise InputError(f"{document.path}: promise.{key} is not a percentile such as ttft_p99_s")
    percentile = float(match[2])
    if percentile == 0:
        raise document.error(("promise", key), "a percentile of 0 promises nothing; it must be above 0, below 100")
    return PercentileLimit(metric=_METRICS[match[1]], percentile=percentile, limit_s=limit_s)
