"""What strategies do with the same traffic on the same GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from servewise.types.deployment import Deployment
from servewise.types.perf import MemoryReport
from servewise.types.promise import Promise, Summary

__all__ = ["Comparison", "MemoryUse", "StrategyResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What a fleet's KV cache was set aside for, over a run (definitions: docs/glossary.md).

    Parameters
    ----------
    capacity_tokens : int [tokens]
        KV capacity of the whole fleet.
    span_s : float [s]
        From the first arrival to the last token.
    reserved_token_s, used_token_s : float [token s]
        Integrals over time of the tokens for which memory was set aside, and of the tokens in it.
    peak_reserved_tokens, peak_unused_tokens : float [tokens]
        The most that was set aside at once, and the most of it that was empty.
    prefix_tokens_saved : int or None [tokens]
        Prompt tokens that the prefix cache spared; None when unknown.
    prefix_bytes_saved : float or None [bytes]
        Their KV cache on all GPUs of a replica.
    """

    capacity_tokens: int
    span_s: float
    reserved_token_s: float
    used_token_s: float
    peak_reserved_tokens: float
    peak_unused_tokens: float
    prefix_tokens_saved: int | None
    prefix_bytes_saved: float | None

    @property
    def unused_of_reserved_frac(self) -> float:
        """Share of what was set aside that was empty, weighted by time; 0 when nothing was set aside."""
        return 1.0 - self.used_token_s / self.reserved_token_s if self.reserved_token_s else 0.0

    @property
    def mean_unused_frac(self) -> float:
        """Share of the KV cache that was set aside and empty, on average over the run."""
        return (self.reserved_token_s - self.used_token_s) / (self.capacity_tokens * self.span_s)

    @property
    def peak_unused_frac(self) -> float:
        """Largest share of the KV cache that was set aside and empty."""
        return self.peak_unused_tokens / self.capacity_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyResult:
    """One strategy on the traffic.

    Parameters
    ----------
    name : str
    deployment : Deployment
    memory : MemoryReport or None
    summary : Summary or None
        None when it could not be simulated; then ``reason`` says why.
    memory_use : MemoryUse or None
    peak_running : int
        Most requests at once.
    held_back_by : tuple of str
        What ever held a request or a prompt back: ``memory``, ``seats``, ``tokens`` (of a step).
    reason : str
    """

    name: str
    deployment: Deployment
    memory: MemoryReport | None
    summary: Summary | None
    memory_use: MemoryUse | None
    peak_running: int
    held_back_by: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Strategies on the same traffic and GPUs.

    Parameters
    ----------
    name : str
        Of the service.
    traffic : str
        In words.
    promise : Promise
    context_tokens : int [tokens]
        Longest request that every strategy is set to.
    results : tuple of StrategyResult
    notes : tuple of str
        What to know before trusting it.
    """

    name: str
    traffic: str
    promise: Promise
    context_tokens: int
    results: tuple[StrategyResult, ...]
    notes: tuple[str, ...]
