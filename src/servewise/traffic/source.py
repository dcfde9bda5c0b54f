"""One entry to all traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from servewise.errors import InputError
from servewise.traffic.max_tokens import assume_max_tokens
from servewise.traffic.profiles import load_profile, profile_names
from servewise.traffic.reader import read_trace
from servewise.traffic.rescale import RescaleMethod, rescale
from servewise.traffic.selection import limit
from servewise.traffic.synthesis import SynthesisSpec, synthesize
from servewise.types import Workload

__all__ = ["TrafficSource", "load", "named_source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSource:
    """Where traffic comes from: exactly one of ``profile``, ``trace`` and ``synthesis``.

    Parameters
    ----------
    profile : str or None
        Built-in profile, see :func:`servewise.traffic.profile_names`.
    trace : Path or None
        A file, see :func:`servewise.traffic.read_trace`, which takes ``format``, ``columns`` and
        ``block_size_tokens``.
    format : str or None
    columns : mapping of str to str or None
    block_size_tokens : int [tokens]
    synthesis : SynthesisSpec or None
    rate_rps : float or None [requests/s]
        Rescale to this mean rate, after the limits below.
    rescale_method : {"thinning", "time"}
    num_requests, duration_s : int or None, float or None [s]
        Use only the start.
    max_tokens : int or None [tokens]
        Limit that clients are assumed to declare, instead of the trace's own or the default.
    seed : int
        Of profiles, synthesis and rescaling.
    """

    profile: str | None = None
    trace: Path | None = None
    format: str | None = None
    columns: Mapping[str, str] | None = None
    block_size_tokens: int = 0
    synthesis: SynthesisSpec | None = None
    rate_rps: float | None = None
    rescale_method: RescaleMethod = "thinning"
    num_requests: int | None = None
    duration_s: float | None = None
    max_tokens: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        given = [name for name in ("profile", "trace", "synthesis") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise InputError(f"traffic needs exactly one of profile, trace and synthesis; given: {found}")
        if self.trace is None:
            extra = [name for name in ("format", "columns") if getattr(self, name) is not None]
            if extra:
                raise InputError(f"{extra[0]} describes a trace file, but traffic is a {given[0]}; remove it")


def load(source: TrafficSource) -> Workload:
    """Traffic as a workload: read or drawn, cut, rescaled, with limits on output.

    Raises
    ------
    InputError
        Anything wrong with the source; a bad row of a trace is named by its line.
    """
    if source.profile is not None:
        workload = load_profile(source.profile, seed=source.seed)
    elif source.synthesis is not None:
        workload = synthesize(source.synthesis, source.seed)
    elif source.trace is not None:
        workload = read_trace(
            source.trace,
            format=source.format,
            columns=source.columns,
            block_size_tokens=source.block_size_tokens,
            num_requests=source.num_requests,
            duration_s=source.duration_s,
        )
    else:
        raise InputError("traffic needs a profile, a trace or a synthesis")
    if source.trace is None:
        workload = limit(workload, source.num_requests, source.duration_s)
    if source.rate_rps is not None:
        workload = rescale(workload, source.rate_rps, method=source.rescale_method, seed=source.seed)
    if source.max_tokens is not None:
        workload = assume_max_tokens(workload, source.max_tokens)
    return workload


def named_source(
    name_or_path: str,
    format: str | None = None,  # noqa: A002 (the option's name)
    columns: Mapping[str, str] | None = None,
    rate_rps: float | None = None,
) -> TrafficSource:
    """The source that a name means: a built-in profile, or a trace file.

    Raises
    ------
    InputError
        When a profile is given the options of a file.
    """
    is_profile = name_or_path in profile_names()
    if is_profile and (format or columns):
        raise InputError(f"{name_or_path} is a built-in profile; --format and --columns are for trace files")
    is_file = Path(name_or_path).exists() or format or columns or "." in name_or_path or "/" in name_or_path
    if is_file and not is_profile:
        return TrafficSource(trace=Path(name_or_path), format=format, columns=columns, rate_rps=rate_rps)
    return TrafficSource(profile=name_or_path, rate_rps=rate_rps)
