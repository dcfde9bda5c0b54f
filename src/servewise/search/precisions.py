"""The winner's replica in every precision: memory, speed and quality at once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace

import numpy as np

from servewise.catalog import weights_only_stored
from servewise.search.families import fleet_of
from servewise.search.operating_point import decode_s, prefill_s
from servewise.search.results import Result
from servewise.types import Candidate, Deployment, Explanation, Precision, PrecisionRow, PrecisionTable, Search

__all__ = ["by_precision"]


def by_precision(
    search: Search, winner: Result, explanation: Explanation, results: list[Result], pool: Executor
) -> PrecisionTable | None:
    """Compare the precisions of the winner's replica.

    Parameters
    ----------
    search : Search
    winner : Result
    explanation : Explanation
        Of the winner.
    results : list of Result
        Of the whole search. Where a precision has no candidate that was simulated, one gets the figures of its fleet.
    pool : Executor

    Returns
    -------
    PrecisionTable or None
        None for a group of prefill and decode instances, and for a drafter.
    """
    deployment = winner.candidate.deployment
    if deployment.disaggregation is not None or deployment.speculation is not None:
        return None
    places: dict[Precision, list[int]] = {}
    for place, result in enumerate(results):
        other = result.candidate.deployment
        if _replica(other) == _replica(deployment):
            places.setdefault(other.precision, []).append(place)
    chosen = [_best(results, found, winner) for found in places.values()]

    def filled(place: int) -> Result:
        result = results[place]
        return result if result.candidate.summary is not None else _with_fleet(search, result)

    for place, result in zip(chosen, pool.map(filled, chosen), strict=True):
        results[place] = result
    prompt_tokens = int(np.median(search.workload.input_tokens))
    num_rows = max(1, round(explanation.num_rows))
    context_tokens = explanation.context_tokens / explanation.num_rows if explanation.num_rows else prompt_tokens
    rows = (_row(results[place], prompt_tokens, context_tokens, num_rows) for place in chosen)
    return PrecisionTable(
        prompt_tokens=prompt_tokens, context_tokens=context_tokens, num_rows=num_rows, rows=tuple(rows)
    )


def _replica(d: Deployment) -> tuple[object, ...]:
    """What a deployment is but for precision, settings and number."""
    return d.model.name, d.gpu.name, d.engine, d.engine_version, d.parallelism, d.disaggregation, d.speculation


def _best(results: Sequence[Result], places: Sequence[int], winner: Result) -> int:
    """The cheapest candidate that keeps the promise; without any, one with the winner's settings, else the first."""

    def key(place: int) -> tuple[bool, float, float, bool, int]:
        candidate = results[place].candidate
        kept = candidate.status == "kept" and candidate.cost is not None
        dollars = candidate.cost.usd_per_mtok_output_at_load if kept and candidate.cost is not None else 0.0
        latency_s = candidate.latency_s if kept else 0.0
        same = candidate.deployment.params == winner.candidate.deployment.params
        return not kept, dollars, latency_s, not same, candidate.index

    return min(places, key=key)


def _with_fleet(search: Search, result: Result) -> Result:
    """A result that nothing was simulated for, with the figures of its fleet and the verdict it had."""
    found = fleet_of(search, result)
    before: Candidate = result.candidate
    if before.status != "broken":  # ruled out by other fleets, and still
        candidate = replace(found.candidate, status=before.status, reason=before.reason)
        found = replace(found, candidate=candidate)
    return replace(found, num_requests_simulated=result.num_requests_simulated + found.num_requests_simulated)


def _row(result: Result, prompt_tokens: int, context_tokens: float, num_rows: int) -> PrecisionRow:
    """Step times of one precision, each step alone on a replica."""
    deployment, table = result.candidate.deployment, result.load.step_model.table
    none, one, batch = (np.array([float(n)]) for n in (0, 1, min(num_rows, table.max_rows)))
    tokens = np.array([float(prompt_tokens)])
    _, prompt_s = prefill_s(table, deployment, none, none, tokens, tokens * (tokens + 1) / 2, one)
    return PrecisionRow(
        index=result.candidate.index,
        weight_only=weights_only_stored(deployment.gpu, deployment.engine, deployment.precision.weights),
        prompt_s=float(prompt_s[0]),
        decode_alone_s=float(decode_s(table, one, one * context_tokens)[0]),
        decode_batch_s=float(decode_s(table, batch, batch * context_tokens)[0]),
    )
