"""The ``traffic`` part of a service file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from servewise.config.check import Section
from servewise.config.document import Document, Location
from servewise.errors import InputError, UnknownNameError
from servewise.traffic import (
    Arrivals,
    Conversations,
    EmpiricalLength,
    FixedLength,
    LengthDistribution,
    LognormalLength,
    SynthesisSpec,
    SystemPrompts,
    TrafficSource,
    UniformLength,
    profile_names,
)

__all__ = ["TrafficSection", "traffic_source"]

Name = Annotated[str, Field(min_length=1, max_length=1024)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
PositiveInt = Annotated[int, Field(ge=1)]


class UniformSection(Section):
    """Every whole number from low to high equally likely."""

    low: PositiveInt
    high: PositiveInt


class LognormalSection(Section):
    """Lognormal lengths, cut at ``max_tokens``."""

    median: Positive
    sigma: NonNegative
    max_tokens: PositiveInt


class LengthSection(Section):
    """A distribution of lengths: exactly one of its keys."""

    fixed: PositiveInt | None = None
    uniform: UniformSection | None = None
    lognormal: LognormalSection | None = None
    empirical: Annotated[list[PositiveInt], Field(min_length=1)] | None = None


class ArrivalsSection(Section):
    """When requests come: a process with a rate or a curve of [duration_s, rate_rps] steps."""

    process: Literal["constant", "poisson", "gamma"] = "poisson"
    rate_rps: Positive | None = None
    cv: Positive = 1.0
    curve: list[Annotated[list[NonNegative], Field(min_length=2, max_length=2)]] | None = None


class SystemPromptsSection(Section):
    """Beginnings that many prompts share."""

    tokens: PositiveInt
    num_groups: PositiveInt = 1
    zipf_exponent: NonNegative = 1.0


class ConversationsSection(Section):
    """Turns whose prompt is everything before plus new tokens."""

    turns: LengthSection
    turn_gap_s: Positive
    turn_gap_sigma: NonNegative = 1.0


class SynthesisSection(Section):
    """Traffic made up from distributions."""

    num_requests: PositiveInt
    arrivals: ArrivalsSection
    input_tokens: LengthSection
    output_tokens: LengthSection
    system_prompts: SystemPromptsSection | None = None
    conversations: ConversationsSection | None = None
    max_tokens: PositiveInt | None = None


class TrafficSection(Section):
    """Where the traffic comes from, and how it is cut and rescaled."""

    profile: Name | None = None
    trace: Name | None = None
    synthesis: SynthesisSection | None = None
    format: Name | None = None
    columns: dict[str, str] | None = None
    block_size_tokens: PositiveInt | None = None
    rate_rps: Positive | None = None
    rescale: Literal["thinning", "time"] = "thinning"
    num_requests: PositiveInt | None = None
    duration_s: Positive | None = None
    max_tokens: PositiveInt | None = None
    seed: Annotated[int, Field(ge=0)] = 0


def traffic_source(document: Document, section: TrafficSection) -> TrafficSource:
    """Turn the section into a source; a trace's path is relative to the document's folder."""
    location: Location = ("traffic",)
    if section.profile is not None and section.profile not in profile_names():
        unknown = UnknownNameError("profile", section.profile, profile_names(), "(a file is given as trace: FILE)")
        raise document.error((*location, "profile"), str(unknown)) from unknown
    trace = None if section.trace is None else document.existing_file((*location, "trace"), section.trace)
    synthesis = None if section.synthesis is None else _synthesis(document, section.synthesis)
    try:
        return TrafficSource(
            profile=section.profile,
            trace=trace,
            format=section.format,
            columns=section.columns,
            block_size_tokens=section.block_size_tokens or 0,
            synthesis=synthesis,
            rate_rps=section.rate_rps,
            rescale_method=section.rescale,
            num_requests=section.num_requests,
            duration_s=section.duration_s,
            max_tokens=section.max_tokens,
            seed=section.seed,
        )
    except InputError as error:
        raise document.error(location, str(error)) from error


def _synthesis(document: Document, section: SynthesisSection) -> SynthesisSpec:
    location: Location = ("traffic", "synthesis")
    prompts, talks = section.system_prompts, section.conversations
    try:
        arrivals = Arrivals(
            process=section.arrivals.process,
            rate_rps=section.arrivals.rate_rps,
            cv=section.arrivals.cv,
            curve=tuple((duration_s, rate_rps) for duration_s, rate_rps in section.arrivals.curve or ()),
        )
    except InputError as error:
        raise document.error((*location, "arrivals"), str(error)) from error
    return SynthesisSpec(
        num_requests=section.num_requests,
        arrivals=arrivals,
        input_tokens=_length(document, (*location, "input_tokens"), section.input_tokens),
        output_tokens=_length(document, (*location, "output_tokens"), section.output_tokens),
        system_prompts=None
        if prompts is None
        else SystemPrompts(tokens=prompts.tokens, num_groups=prompts.num_groups, zipf_exponent=prompts.zipf_exponent),
        conversations=None
        if talks is None
        else Conversations(
            turns=_length(document, (*location, "conversations", "turns"), talks.turns),
            turn_gap_s=talks.turn_gap_s,
            turn_gap_sigma=talks.turn_gap_sigma,
        ),
        max_tokens=section.max_tokens,
    )


def _length(document: Document, location: Location, section: LengthSection) -> LengthDistribution:
    given = [name for name in LengthSection.model_fields if getattr(section, name) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise document.error(location, f"needs exactly one of {', '.join(LengthSection.model_fields)}; given: {found}")
    try:
        if section.fixed is not None:
            return FixedLength(tokens=section.fixed)
        if section.uniform is not None:
            return UniformLength(low=section.uniform.low, high=section.uniform.high)
        if section.lognormal is not None:
            lognormal = section.lognormal
            return LognormalLength(median=lognormal.median, sigma=lognormal.sigma, max_tokens=lognormal.max_tokens)
        return EmpiricalLength(values=tuple(section.empirical or ()))
    except InputError as error:
        raise document.error((*location, given[0]), str(error)) from error
