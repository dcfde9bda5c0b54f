"""What numbers consist of and rest on, in words that the terminal and the page share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from servewise.types import Breakdown, Caveat, Explanation, MeasuredRuns, Part, Provenance
from servewise.units import format_bytes, format_duration, format_usd

__all__ = [
    "NEAREST_HEAD",
    "NUMBERS",
    "caveat_words",
    "group_rows",
    "nearest_row",
    "number_words",
    "point_words",
    "source_rows",
    "source_words",
    "value_words",
]

NUMBERS: Final[Mapping[str, str]] = {
    "ttft": "mean TTFT",
    "tpot": "mean TPOT",
    "memory": "memory of a GPU",
    "prefill_memory": "memory of a GPU of a prefill instance",
    "cost": "cost per Mtok output at load",
}
PARTS: Final[Mapping[str, str]] = {
    "weights": "weights",
    "compute": "compute",
    "kv": "KV",
    "prefill_attention": "attention of the prompt",
    "all_reduce": "collectives",
    "elementwise": "elementwise",
    "head": "head",
    "overhead": "overhead",
    "prompts": "prompts of other requests",
    "spread": "spread",
    "queue": "waiting",
    "draft": "the drafter's passes",
    "decode_room": "waiting for room on a decode instance",
    "link_queue": "waiting for the link",
    "wire": "bytes on the link",
    "handshake": "latency of the link",
    "step_wait": "waiting for a step of the decode instance",
    "first_step": "the step that yields the first token",
    "activation": "activations",
    "non_torch": "buffers outside the allocator",
    "graph": "CUDA graphs",
    "unused": "left free",
    "serving": "at capacity",
    "spare_capacity": "capacity that this load leaves unused",
    "idle_gpus": "GPUs rented that no replica uses",
}
NEAREST_HEAD: Final = ("runs", "engine", "model, GPU", "precision", "conc.", "TPOT err/bias %", "TTFT", "differs in")


def number_words(number: Breakdown) -> str:
    """A number and its value, e.g. ``mean TTFT 170 ms``."""
    return f"{NUMBERS[number.number]} {value_words(number.value, number)}"


def value_words(value: float, number: Breakdown) -> str:
    """A value in the unit of its number."""
    match number.unit:
        case "s":
            return format_duration(value)
        case "bytes":
            return format_bytes(value)
        case "usd_per_mtok":
            return format_usd(value)


def group_rows(number: Breakdown) -> list[tuple[str, str, str]]:
    """The groups of a number's parts: name, sum, and the parts where there are several, the largest first."""
    groups: dict[str, list[Part]] = {}
    for part in number.parts:
        groups.setdefault(part.group, []).append(part)
    rows = []
    for name, parts in groups.items():
        several = sorted(parts, key=lambda part: -part.value) if len(parts) > 1 else []
        of = ", ".join(f"{part_name(part.name)} {value_words(part.value, number)}" for part in several)
        rows.append((name, value_words(math.fsum(part.value for part in parts), number), of))
    return rows


def part_name(name: str) -> str:
    """A part's name in words."""
    return PARTS.get(name, name)


def point_words(explanation: Explanation) -> str:
    """The operating point of a replica, or of a decode instance."""
    return (
        f"a {explanation.scheduler} decodes {explanation.num_rows:.1f} requests at once, with "
        f"{explanation.context_tokens:,.0f} tokens of context in all; "
        f"prompts of {explanation.prompt_tokens:,.0f} tokens"
    )


def caveat_words(caveat: Caveat) -> str:
    """A caveat with its kind once."""
    return caveat.text if caveat.text.startswith(caveat.kind) else f"{caveat.kind}: {caveat.text}"


def source_words(source: Provenance) -> str:
    """An origin with its kind once, and its note."""
    kind = "" if source.source.startswith(source.kind) else f"{source.kind}, "
    return f"{kind}{source.source}{f'; {source.note}' if source.note else ''}"


def source_rows(explanation: Explanation) -> list[tuple[str, Provenance]]:
    """Every origin once, with the numbers' parts that rest on it."""
    rests: dict[Provenance, dict[str, None]] = {}
    for number in explanation.numbers:
        prefix = f"{number.number} " if number.unit != "s" else ""
        for part in number.parts:
            for source in part.sources:
                rests.setdefault(source, {})[f"{prefix}{part_name(part.name)}"] = None
    return [(", ".join(names), source) for source, names in rests.items()]


def nearest_row(runs: MeasuredRuns) -> list[str]:
    """Measured runs as cells under ``NEAREST_HEAD``."""
    span = f"{runs.lowest_concurrency}-{runs.highest_concurrency}"
    return [
        str(runs.num_runs),
        f"{runs.engine} {runs.engine_version}".strip(),
        f"{runs.model.rsplit('/', 1)[-1]}, {runs.gpu}",
        f"{runs.precision} {runs.parallelism}",
        span.split("-")[0] if runs.lowest_concurrency == runs.highest_concurrency else span,
        _errors(runs.tpot_median_error_pct, runs.tpot_bias_pct),
        _errors(runs.ttft_median_error_pct, runs.ttft_bias_pct),
        ", ".join(runs.differs) or "nothing",
    ]


def _errors(median_pct: float, bias_pct: float) -> str:
    return "-" if math.isnan(median_pct) else f"{median_pct:.1f}/{bias_pct:+.1f}"
