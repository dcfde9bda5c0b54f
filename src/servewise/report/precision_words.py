"""The winner's replica in every precision, in words and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from servewise.report import words
from servewise.report.table import TextTable
from servewise.types import Candidate, Plan, PrecisionRow, PrecisionTable, WeightPrecision
from servewise.units import GIB, format_duration, format_usd

__all__ = ["precision_table"]

SIXTEEN_BITS: WeightPrecision = "bf16"


def precision_table(plan: Plan) -> TextTable | None:
    """Memory, speed and quality of each precision; None where there is nothing to compare."""
    found = plan.precisions
    by_index = {candidate.index: candidate for candidate in plan.candidates}
    if found is None or plan.winner is None:
        return None
    unfit = list(_unfit(by_index, found, by_index[plan.winner]))
    if len(found.rows) + len(unfit) < 2:
        return None
    head = (
        *("weights/KV", "weights GiB", "KV tokens", "N", "$/Mtok at load", "TTFT p50 p99", "TPOT p50 p99"),
        *("quality % [low, high]", "one prompt", f"decode x1 x{found.num_rows}"),
    )
    rows = tuple(_cells(by_index[row.index], row) for row in found.rows)
    notes = (_basis(found), *_weight_only(by_index, found), *_unkept(by_index, found), *unfit)
    return TextTable(head=head, rows=rows, notes=notes)


def _cells(candidate: Candidate, row: PrecisionRow) -> tuple[str, ...]:
    memory, summary, cost = candidate.memory, candidate.summary, candidate.cost
    recovery = candidate.quality_recovery_pct

    def both(metric: str) -> str:
        return " ".join(words.percentile_words(summary, metric, name) for name in ("p50", "p99"))

    return (
        words.precision_words(candidate),
        "-" if memory is None else f"{memory.weights_bytes / GIB:.1f}",
        "-" if memory is None else f"{memory.kv_capacity_tokens / 1000:,.0f}k",
        "-" if summary is None else f"{candidate.deployment.num_replicas}",
        "-" if cost is None else format_usd(cost.usd_per_mtok_output_at_load),
        both("ttft"),
        both("tpot"),
        "?" if recovery is None else "{1:.4g} [{0:.4g}, {2:.4g}]".format(*(round(pct, 1) for pct in recovery)),
        format_duration(row.prompt_s),
        f"{format_duration(row.decode_alone_s)} {format_duration(row.decode_batch_s)}",
    )


def _basis(found: PrecisionTable) -> str:
    return (
        "N replicas, weights on a GPU and KV tokens of a replica; one prompt: the median of"
        f" {found.prompt_tokens:,} tokens, alone; decode: a step of 1 and of {found.num_rows} rows (the winner's"
        f" average) with {found.context_tokens:,.0f} tokens of context each"
    )


def _weight_only(by_index: Mapping[int, Candidate], found: PrecisionTable) -> Iterator[str]:
    """What weights that are only stored in few bits change, against the same KV cache with 16-bit weights."""
    precisions = {by_index[row.index].deployment.precision: row for row in found.rows}
    told: set[str] = set()
    for precision, row in precisions.items():
        base = precisions.get(replace(precision, weights=SIXTEEN_BITS))
        if row.weight_only and base is not None and precision.weights not in told:
            told.add(precision.weights)
            helps = row.decode_alone_s < base.decode_alone_s and row.prompt_s >= base.prompt_s
            yield (
                f"{precision.weights} weights are only stored so here: unpacked, then computed in 16 bits. Against"
                f" {SIXTEEN_BITS} weights a prompt takes {_change(row.prompt_s, base.prompt_s)}, a decode step"
                f" alone {_change(row.decode_alone_s, base.decode_alone_s)}, of {found.num_rows} rows"
                f" {_change(row.decode_batch_s, base.decode_batch_s)}"
                f"{': it helps TPOT while batches are small, not TTFT' if helps else ''}"
            )


def _change(new_s: float, old_s: float) -> str:
    percent = round(100 * (new_s / old_s - 1))
    return "the same time" if percent == 0 else f"{abs(percent)}% {'more' if percent > 0 else 'less'}"


def _unkept(by_index: Mapping[int, Candidate], found: PrecisionTable) -> Iterator[str]:
    """Precisions whose replica does not keep the promise."""
    for row in found.rows:
        candidate = by_index[row.index]
        if candidate.status == "broken":
            yield f"{words.precision_words(candidate)} does not keep the promise: {words.shortfall_words(candidate)}"


def _unfit(by_index: Mapping[int, Candidate], found: PrecisionTable, winner: Candidate) -> Iterator[str]:
    """Precisions in which the replica cannot be built."""
    mine = winner.deployment
    shown = {by_index[row.index].deployment.precision for row in found.rows}
    for candidate in by_index.values():
        other = candidate.deployment
        alike = (other.model.name, other.gpu.name, other.engine, other.parallelism, other.disaggregation) == (
            *(mine.model.name, mine.gpu.name, mine.engine, mine.parallelism, mine.disaggregation),
        )
        if alike and candidate.status == "infeasible" and other.precision not in shown:
            shown.add(other.precision)
            yield f"{words.precision_words(candidate)} cannot run: {candidate.reason}"
