"""What a plan's numbers consist of, and what they rest on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from servewise.types.provenance import Provenance

__all__ = ["Breakdown", "Caveat", "CaveatKind", "Explanation", "MeasuredRuns", "Part"]

CaveatKind = Literal["unvalidated", "transferred", "extrapolated", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a number.

    Parameters
    ----------
    group : str
        What it belongs to, e.g. ``queue``, ``prefill`` or ``network`` of a TTFT.
    name : str
    value : float
        In the unit of the number.
    sources : tuple of Provenance
        Of the coefficients behind it; empty where the simulation alone decides.
    """

    group: str
    name: str
    value: float
    sources: tuple[Provenance, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """A number with parts that sum to it.

    Parameters
    ----------
    number : str
        What it is: ``ttft`` and ``tpot`` (means), ``memory`` (of the fullest GPU; of a decode instance's where prefill
        and decode are apart, ``prefill_memory`` of a prefill instance's), ``cost`` (per million output tokens at load).
    value : float
    unit : str
        ``s``, ``bytes`` or ``usd_per_mtok``.
    parts : tuple of Part
    note : str
        How the parts were found, in words.
    """

    number: Literal["ttft", "tpot", "memory", "prefill_memory", "cost"]
    value: float
    unit: Literal["s", "bytes", "usd_per_mtok"]
    parts: tuple[Part, ...]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Caveat:
    """What is known less well, and how: carried over from other hardware, beyond what was measured, never compared."""

    kind: CaveatKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRuns:
    """Public serving runs of one deployment, and how predictions that were fitted without them compared.

    Parameters
    ----------
    engine, engine_version, model, gpu, precision, parallelism : str
    num_runs : int
    lowest_concurrency, highest_concurrency : int
    tpot_median_error_pct, tpot_bias_pct, ttft_median_error_pct, ttft_bias_pct : float [%]
        Of means over a run; the error is absolute, the bias positive when predicted too slow.
    source : str
    differs : tuple of str
        In what they differ from the deployment that they are near to; empty when in nothing.
    """

    engine: str
    engine_version: str
    model: str
    gpu: str
    precision: str
    parallelism: str
    num_runs: int
    lowest_concurrency: int
    highest_concurrency: int
    tpot_median_error_pct: float
    tpot_bias_pct: float
    ttft_median_error_pct: float
    ttft_bias_pct: float
    source: str
    differs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Parts of a fleet's numbers at the operating point of its simulated run, and what they rest on.

    Parameters
    ----------
    num_rows : float
        Requests that decode together on a replica, as a token of the average request meets them.
    context_tokens : float [tokens]
        Their contexts, summed.
    prompt_tokens : float [tokens]
        Mean prompt.
    numbers : tuple of Breakdown
    caveats : tuple of Caveat
    nearest : tuple of MeasuredRuns
        Nearest first.
    scheduler : str
        What ``num_rows`` and ``context_tokens`` are of: a replica, or a decode instance of a group.
    """

    num_rows: float
    context_tokens: float
    prompt_tokens: float
    numbers: tuple[Breakdown, ...]
    caveats: tuple[Caveat, ...]
    nearest: tuple[MeasuredRuns, ...]
    scheduler: Literal["replica", "decode instance"] = "replica"
