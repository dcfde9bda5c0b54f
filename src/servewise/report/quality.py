"""A comparison of a candidate with its base, as text for a terminal and as a JSON document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from servewise import __version__
from servewise.report.blocks import facts, heading, line
from servewise.report.escape import finite
from servewise.types import Endpoint, Estimate, PromptComparison, QualityComparison, QualityFigure, TaskScore, TaskSide

__all__ = ["QUALITY_SCHEMA", "quality_json", "quality_terminal"]

QUALITY_SCHEMA: Final = "servewise.quality/1"
NUM_WORST: Final = 5
SHOWN_CHARS: Final = 400
BEFORE_CHARS: Final = 80
FIGURES: Final[Mapping[str, str]] = {
    "agreement": "same next token",
    "kl_nats": "KL, nats per token",
    "exact_match": "same answer",
    "common_prefix": "same until",
    "length_ratio": "length",
    "hit_max": "cut at max tokens",
}
NOT_SHOWN: Final = (
    "Agreement is not the quality of a task: another token may be as good, and a rare wrong one may cost much. Standard"
    " tasks (--tasks) or your own tests show that."
)


def quality_terminal(found: QualityComparison) -> RenderableType:
    """Lay out a comparison: the verdict, the figures beside their noise, the worst prompts, and the caveats."""
    parts: list[RenderableType] = [line(verdict_words(found), "bold")]
    parts += [Padding(line(f"- {reason}"), (0, 0, 0, 2)) for reason in found.reasons]
    compared = f"{len(found.prompts):,} of {found.num_asked:,} compared, answers of at most"
    rows = [
        ("base", _server(found.base)),
        ("candidate", _server(found.candidate)),
        ("prompts", f"{compared} {found.settings['max_tokens']} tokens, greedy"),
    ]
    if found.min_agreement is not None:
        wanted = f"same next token at {found.min_agreement:.2%} of the positions at least"
        rows.append(("asked for", f"{wanted}: {found.standing}"))
    parts += [facts(rows), heading("Against the base (95% interval over prompts)"), _figures(found.figures)]
    parts += [heading("Where they differ most"), _worst(found)]
    parts += _texts(found)
    if found.tasks:
        parts += [heading("Standard tasks (lm-evaluation-harness; standard error in brackets)"), _tasks(found.tasks)]
    notes = (*found.notes, NOT_SHOWN)
    parts += [heading("Know before you use them"), *(Padding(line(f"- {note}"), (0, 0, 0, 2)) for note in notes)]
    return Group(*parts)


def verdict_words(found: QualityComparison) -> str:
    """How much is lost, and how sure that is."""
    if found.verdict == "not trustworthy":
        return "NOT TRUSTWORTHY: these figures do not stand for the prompts"
    by_name = {figure.name: figure for figure in found.figures}
    name = "agreement" if "agreement" in by_name else "exact_match"
    figure = by_name[name]
    what = "another next token at" if name == "agreement" else "another answer to"
    of_what = "the base's positions" if name == "agreement" else "the prompts"
    noise = f"the base against itself {_share(1.0 - figure.noise.value)}"
    size = f"{what} {_share(1.0 - figure.candidate.value)} of {of_what} ({_complement(figure.candidate)}; {noise})"
    if "kl_nats" in by_name:
        size += f", KL at least {_nats(by_name['kl_nats'].candidate.value)} nats per token"
    if found.verdict == "no loss seen":
        return f"No loss seen beyond the noise: {size}"
    return f"The candidate differs from its base: {size}"


def _complement(share: Estimate) -> str:
    return f"{_share(1.0 - share.high)} to {_share(1.0 - share.low)}"


def _server(endpoint: Endpoint) -> str:
    version = f"{endpoint.engine} {endpoint.engine_version}".strip()
    return f"{endpoint.model} at {endpoint.base_url} ({version})"


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", min_width=len(name.split()[0]))
    return table


def _figures(figures: Sequence[QualityFigure]) -> RenderableType:
    table = _table("figure", "candidate", "base again: noise", "beyond the noise")
    for figure in figures:
        cells = [_estimate(figure.name, one) for one in (figure.candidate, figure.noise)]
        table.add_row(FIGURES[figure.name], *cells, _estimate(figure.name, figure.excess, signed=True))
    return table


def _estimate(name: str, estimate: Estimate, *, signed: bool = False) -> str:
    def words(value: float) -> str:
        if math.isnan(value):
            return "?"
        sign = "+" if signed and value > 0 else ""
        if name == "kl_nats":
            return f"{sign}{_nats(value)}"
        return f"{sign}{_share(value)}"

    if math.isnan(estimate.low):
        return words(estimate.value)
    return f"{words(estimate.value)} [{words(estimate.low)}, {words(estimate.high)}]"


def _nats(value: float) -> str:
    return f"{value:.2g}" if abs(value) < 0.01 else f"{value:.3f}"


def _share(value: float) -> str:
    """Percent, with more digits near nothing and everything, where they say something."""
    if math.isnan(value):
        return "?"
    digits = 2 if 0.0 < abs(value) < 0.01 or 0.99 < abs(value) < 1.0 else 1
    return f"{100.0 * value:.{digits}f}%"


def worst(prompts: Sequence[PromptComparison]) -> list[PromptComparison]:
    """The prompts to look at first: by mean KL where it is known, else by how early the answers part."""
    if any(prompt.candidate.num_positions for prompt in prompts):
        return sorted(prompts, key=lambda prompt: -_mean_kl(prompt))[:NUM_WORST]
    return sorted(prompts, key=lambda prompt: (prompt.candidate.exact, prompt.candidate.common_frac))[:NUM_WORST]


def _mean_kl(prompt: PromptComparison) -> float:
    pair = prompt.candidate
    return pair.kl_sum_nats / pair.num_positions if pair.num_positions else 0.0


def _worst(found: QualityComparison) -> RenderableType:
    unit = found.unit.removesuffix("s")
    table = _table(
        "line", f"first other {unit}", "length, base", "candidate", "same next token", "KL mean", "KL worst, at"
    )
    for prompt in worst(found.prompts):
        pair = prompt.candidate
        known = pair.num_positions > 0
        table.add_row(
            f"{prompt.line}",
            "none" if pair.exact else f"{pair.common + 1}",
            f"{prompt.base_length:,}{'+' if prompt.base_hit_max else ''}",
            f"{pair.length:,}{'+' if pair.hit_max else ''}",
            f"{pair.num_agree} of {pair.num_positions}" if known else "-",
            f"{_mean_kl(prompt):.3g}" if known else "-",
            f"{pair.worst_kl_nats:.3g}, {pair.worst_position + 1}" if known else "-",
        )
    return table


def _texts(found: QualityComparison) -> list[RenderableType]:
    """Prompts and answers of the worst, where they were kept; control characters are shown."""
    parts: list[RenderableType] = []
    for prompt in worst(found.prompts):
        if prompt.texts is not None:
            base, candidate = prompt.texts.base, prompt.texts.candidate
            start = next((i for i, (a, b) in enumerate(zip(base, candidate, strict=False)) if a != b), 0)
            start = max(start - BEFORE_CHARS, 0)
            rows = [
                ("prompt", _cut(prompt.texts.prompt, 0)),
                ("base", _cut(base, start)),
                ("candidate", _cut(candidate, start)),
            ]
            parts += [heading(f"Line {prompt.line}"), facts(rows)]
    return parts


def _cut(text: str, start: int) -> str:
    end = start + SHOWN_CHARS
    return f"{'... ' if start else ''}{text[start:end]}{' ...' if len(text) > end else ''}"


def _tasks(tasks: Sequence[TaskScore]) -> RenderableType:
    table = _table("task", "metric", "base", "candidate", "recovery")
    for task in tasks:
        recovery = task.recovery_pct
        known = not math.isnan(recovery.value)
        ends = "" if math.isnan(recovery.low) else f" [{recovery.low:.1f}%, {recovery.high:.1f}%]"
        table.add_row(
            line(task.task),
            line(f"{task.metric}{'' if task.higher_is_better else ' (less is better)'}"),
            _score(task.base),
            _score(task.candidate),
            f"{recovery.value:.1f}%{ends}" if known else "-",
        )
    return table


def _score(side: TaskSide) -> str:
    error = "" if math.isnan(side.stderr) else f" ({side.stderr:.3g})"
    return f"{side.score:.4g}{error}"


def quality_json(found: QualityComparison) -> dict[str, Any]:
    """The same as a JSON document; null where a figure is not known."""
    document = asdict(found)
    for prompt in document["prompts"]:
        if prompt["texts"] is None:
            del prompt["texts"]
    return {"schema": QUALITY_SCHEMA, "servewise": __version__, **finite(document)}
