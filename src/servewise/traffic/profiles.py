"""Built-in traffic profiles: statistics derived from public traces, and workloads drawn from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

import numpy as np

from servewise.errors import UnknownNameError
from servewise.traffic.max_tokens import assumed_limits
from servewise.traffic.profile_arrivals import draw_arrivals
from servewise.traffic.profile_lengths import LengthTable, draw_lengths, segments_of
from servewise.traffic.profile_prefix import PrefixTable, draw_continuations, draw_prefix
from servewise.traffic.statistics import LengthStatistics, TrafficStatistics
from servewise.types import Provenance, Workload

__all__ = ["Profile", "draw", "load_profile", "profile_names", "read_profile", "to_json"]

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What is kept of a trace.

    Parameters
    ----------
    name : str
    provenance : Provenance
        The trace, its licence and what to know about it.
    num_requests : int
    duration_s, window_s : float [s]
    window_requests : tuple of int, shape (num_windows,)
        Rate curve: requests of each window; the last one ends at ``duration_s``.
    concentrations : tuple of float or None
        Burstiness below the window, see :func:`servewise.traffic.profile_arrivals.fit_concentrations`.
    lengths : tuple of LengthTable
        In each of as many equal parts of the duration: of all requests, or of those that continue no other
        when ``prefix`` is given.
    prefix : PrefixTable or None
    statistics : TrafficStatistics
        Of the trace itself.
    """

    name: str
    provenance: Provenance
    num_requests: int
    duration_s: float
    window_s: float
    window_requests: tuple[int, ...]
    concentrations: tuple[float | None, ...]
    lengths: tuple[LengthTable, ...]
    prefix: PrefixTable | None
    statistics: TrafficStatistics


def profile_names() -> list[str]:
    """Names of the built-in profiles."""
    folder = resources.files("servewise.data") / "traffic"
    return sorted(file.name.removesuffix(".json") for file in folder.iterdir() if file.name.endswith(".json"))


def read_profile(name: str) -> Profile:
    """A built-in profile.

    Raises
    ------
    UnknownNameError
        With the nearest names.
    """
    known = profile_names()
    if name not in known:
        raise UnknownNameError("traffic profile", name, known, "(or give trace: FILE)")
    text = (resources.files("servewise.data") / "traffic" / f"{name}.json").read_text(encoding="utf-8")
    return _from_json(json.loads(text))


def load_profile(name: str, *, seed: int = 0) -> Workload:
    """Draw a workload from a built-in profile, with as many requests and as long as the original.

    Parameters
    ----------
    name : str
        See :func:`profile_names`.
    seed : int
        The same seed gives the same workload, byte for byte.

    Raises
    ------
    UnknownNameError
        With the nearest names.
    """
    return draw(read_profile(name), seed)


def draw(profile: Profile, seed: int) -> Workload:
    """Draw a workload from a profile.

    Every draw has the trace's number of requests in each window of the rate curve; bursts below the window,
    lengths and shared prefixes are drawn anew.
    """
    rng = np.random.default_rng(seed)
    counts = np.asarray(profile.window_requests, dtype=np.int64)
    arrival_s = draw_arrivals(counts, profile.window_s, profile.duration_s, profile.concentrations, rng)
    segment = segments_of(arrival_s, profile.duration_s, len(profile.lengths))
    prefix = None
    if profile.prefix is None:
        input_tokens, output_tokens = draw_lengths(profile.lengths, segment, rng)
    else:
        lag_s = draw_continuations(profile.prefix, arrival_s, rng)
        input_tokens = np.empty(len(arrival_s), dtype=np.int64)
        output_tokens = np.empty(len(arrival_s), dtype=np.int64)
        for tables, is_member in (
            (profile.lengths, np.isnan(lag_s)),
            (profile.prefix.lengths, ~np.isnan(lag_s)),
        ):
            lengths = draw_lengths(tables, segment[is_member], rng)
            input_tokens[is_member], output_tokens[is_member] = lengths
        prefix = draw_prefix(profile.prefix, arrival_s, lag_s, input_tokens, rng)
    return Workload(
        name=profile.name,
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        max_tokens=assumed_limits(input_tokens, output_tokens),
        max_tokens_kind="assumed",
        prefix=prefix,
        session=None,
        provenance=profile.provenance,
    )


def to_json(profile: Profile) -> str:
    """A profile as the text of its file."""
    return json.dumps({"schema_version": SCHEMA_VERSION, **asdict(profile)}, separators=(",", ":")) + "\n"


def _from_json(data: Mapping[str, Any]) -> Profile:
    prefix = data["prefix"]
    return Profile(
        name=data["name"],
        provenance=Provenance(**data["provenance"]),
        num_requests=data["num_requests"],
        duration_s=data["duration_s"],
        window_s=data["window_s"],
        window_requests=tuple(data["window_requests"]),
        concentrations=tuple(data["concentrations"]),
        lengths=_lengths_from_json(data["lengths"]),
        prefix=None if prefix is None else _prefix_from_json(prefix),
        statistics=_statistics_from_json(data["statistics"]),
    )


def _lengths_from_json(data: Sequence[Mapping[str, Any]]) -> tuple[LengthTable, ...]:
    return tuple(
        LengthTable(
            input_tokens=tuple(part["input_tokens"]),
            output_tokens=tuple(tuple(row) for row in part["output_tokens"]),
        )
        for part in data
    )


def _prefix_from_json(data: Mapping[str, Any]) -> PrefixTable:
    return PrefixTable(
        block_size_tokens=data["block_size_tokens"],
        num_common_blocks=data["num_common_blocks"],
        num_continuations=data["num_continuations"],
        lag_s=tuple(data["lag_s"]),
        matched_frac=tuple(tuple(row) for row in data["matched_frac"]),
        lengths=_lengths_from_json(data["lengths"]),
    )


def _statistics_from_json(data: Mapping[str, Any]) -> TrafficStatistics:
    by_cache = data["prefix_hit_frac_by_cache"]
    pairs = None if by_cache is None else tuple((int(size), float(frac)) for size, frac in by_cache)
    return TrafficStatistics(
        **{
            **data,
            "input": LengthStatistics(**data["input"]),
            "output": LengthStatistics(**data["output"]),
            "prefix_hit_frac_by_cache": pairs,
        }
    )
