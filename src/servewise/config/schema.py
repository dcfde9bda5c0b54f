"""The keys of a service file and what each may hold. ``docs/service-file.md`` explains them to users."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from servewise.config.check import Section
from servewise.config.traffic import TrafficSection
from servewise.types import Router, SpeculationMethod, TaskKind

__all__ = [
    "BudgetSection",
    "OperationsSection",
    "PromiseSection",
    "QualitySection",
    "ServiceSection",
    "SpeculationSection",
]

PERCENTILE_KEY = re.compile(r"(ttft|tpot|e2e|itl)_p(\d{1,2}(?:\.\d{1,3})?)_s")


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _unique(names: list[str]) -> list[str]:
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ValueError(f"{name!r} is listed twice")
    return names


def _attainment(value: float) -> float:
    if 0 < value < 1:
        return value
    if value == 1:
        raise ValueError("1 promises every request, which no finite sample can show; write a share below 1, e.g. 0.999")
    if value == 0:
        raise ValueError("0 promises nothing; write the share of requests that must meet the limits, e.g. 0.99")
    if 1 < value < 100:
        raise ValueError(f"{value:g} is not a share between 0 and 1; for {value:g} percent write {value / 100:g}")
    raise ValueError(f"{value:g} is not a share between 0 and 1, e.g. 0.99")


def _recovery(value: float) -> float:
    if 0 < value <= 1:
        raise ValueError(f"{value:g} is read as a percentage; for {value:g} of the score write {100 * value:g}")
    return value


def _score(value: float) -> float:
    if 0 < value <= 1:
        raise ValueError(f"{value:g} is read as a percentage; for a score of {value:g} of 1 write {100 * value:g}")
    return value


Name = Annotated[str, Field(min_length=1, max_length=1024)]
Names = Annotated[list[Name], BeforeValidator(_one_or_many), Field(min_length=1), AfterValidator(_unique)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveInt = Annotated[int, Field(ge=1)]
ScorePct = Annotated[float, Field(ge=0, le=100), AfterValidator(_score)]


class PromiseSection(Section):
    """Question 1: limits on latency and the share of requests that must meet them."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Positive]
    key_pattern: ClassVar[re.Pattern[str] | None] = PERCENTILE_KEY
    pattern_examples: ClassVar[tuple[str, ...]] = ("ttft_p99_s", "tpot_p99_s", "e2e_p99_s", "itl_p99_s")

    ttft_s: Positive | None = None
    tpot_s: Positive | None = None
    e2e_s: Positive | None = None
    attainment: Annotated[float, AfterValidator(_attainment)] | None = None
    deadline_s: Positive | None = None
    objective: Literal["throughput"] | None = None


class QualitySection(Section):
    """Question 2: how much of the bf16 model's score must be kept, on which kinds of task, and which score."""

    min_recovery_pct: Annotated[float, Field(ge=0, le=100), AfterValidator(_recovery)] = 99.0
    tasks: Annotated[list[TaskKind], BeforeValidator(_one_or_many), AfterValidator(_unique)] = Field(
        default_factory=list
    )
    scores: dict[Name, dict[Name, ScorePct]] = Field(default_factory=dict)
    min_scores: dict[Name, ScorePct] = Field(default_factory=dict)


class OperationsSection(Section):
    """Question 3: how much the team can run."""

    max_effort: Literal["low", "medium", "high"] = "medium"
    router: Router = "round_robin"
    price_kind: Literal["on_demand", "spot", "reserved"] = "on_demand"
    start_up_s: Positive | None = None
    expected_growth_pct: Positive | None = None


class BudgetSection(Section):
    """Upper limits of the fleet."""

    max_gpus: PositiveInt | None = None
    usd_per_h: Positive | None = None


class SpeculationSection(Section):
    """A drafter to try, and how much of what it proposes is accepted."""

    method: SpeculationMethod
    num_speculative_tokens: Annotated[int, Field(ge=1, le=32)]
    acceptance: Share | list[Share]
    draft_model: Name | None = None
    head_name: Name = ""


class HostedSection(Section):
    """What a provider charges by the token."""

    provider: Name
    usd_per_mtok_input: Positive
    usd_per_mtok_output: Positive


class ServiceSection(Section):
    """The whole file."""

    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    model: Names
    traffic: TrafficSection
    promise: PromiseSection
    quality: QualitySection = QualitySection()
    operations: OperationsSection = OperationsSection()
    hardware: Names
    engines: Names = Field(default_factory=lambda: ["vllm", "sglang", "tensorrt-llm", "tgi", "ollama"])
    speculation: list[SpeculationSection] = Field(default_factory=list)
    budget: BudgetSection = BudgetSection()
    prices: Name | None = None
    hosted: list[HostedSection] = Field(default_factory=list)
    calibration: Names = Field(default_factory=list)
