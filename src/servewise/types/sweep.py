"""Runs of several loads against a real endpoint, and the highest load that keeps a promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from servewise.types.measurement import Endpoint, Trust
from servewise.types.promise import Promise, Summary

__all__ = ["Edge", "Sweep", "SweepPoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """A run of one load.

    Parameters
    ----------
    load : float
        Concurrency, or requests/s.
    repeat : int
        From 0.
    summary : Summary or None
        None when no request counted.
    trust : Trust
    folder : str
        Name of the folder with its measurement; empty when nothing is kept.
    """

    load: float
    repeat: int
    summary: Summary | None
    trust: Trust
    folder: str = ""

    @property
    def kept(self) -> bool:
        """Whether the promise was kept."""
        return self.summary is not None and self.summary.promise_kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Between which loads the highest one lies that keeps the promise.

    Parameters
    ----------
    low : float or None
        Highest load below ``high`` that was run; None when there is none.
    high : float or None
        Lowest load that broke the promise in most of its runs; None when none did.
    low_kept, high_kept : tuple of (int, int)
        Runs at each side that kept the promise, and runs.
    points : tuple of SweepPoint
        All runs, in the order in which they were made.
    stopped : str
        Why the search ended before the edge was found, in words; empty when it was.
    """

    low: float | None
    high: float | None
    low_kept: tuple[int, int]
    high_kept: tuple[int, int]
    points: tuple[SweepPoint, ...]
    stopped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Runs of several loads.

    Parameters
    ----------
    name : str
    endpoint : Endpoint
    kind : {"concurrency", "rate"}
        What a load is.
    load_words : str
        The first load in words.
    promise : Promise or None
    points : tuple of SweepPoint
    edge : Edge or None
        When the highest load that keeps the promise was searched.
    """

    name: str
    endpoint: Endpoint
    kind: Literal["concurrency", "rate"]
    load_words: str
    promise: Promise | None
    points: tuple[SweepPoint, ...]
    edge: Edge | None
