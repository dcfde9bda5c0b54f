"""What a plan's numbers consist of, as text for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from servewise.report import effort_words
from servewise.report import explanation_words as words
from servewise.report.blocks import facts, heading, line
from servewise.types import Explanation, Plan

__all__ = ["engine_blocks", "explanation_blocks"]


def explanation_blocks(explanation: Explanation) -> list[RenderableType]:
    """Parts of each number, their sources, what is known less well, and the nearest measured runs."""
    blocks: list[RenderableType] = [
        heading("What the numbers consist of"),
        Padding(line(words.point_words(explanation)), (0, 0, 0, 2)),
    ]
    for number in explanation.numbers:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(overflow="fold")
        for name, total, of in words.group_rows(number):
            table.add_row(line(name), line(total), line(of))
        blocks += [
            Padding(line(words.number_words(number)), (1, 0, 0, 2)),
            Padding(table, (0, 0, 0, 4)),
            Padding(line(number.note, "dim"), (0, 0, 0, 4)),
        ]
    blocks += _sources(explanation)
    blocks.append(heading("What is known less well"))
    if not explanation.caveats:
        nothing = "nothing of it is known to be extrapolated, transferred or unvalidated"
        blocks.append(Padding(line(nothing), (0, 0, 0, 2)))
    blocks += [Padding(line(f"- {words.caveat_words(caveat)}"), (0, 0, 0, 2)) for caveat in explanation.caveats]
    return blocks + _nearest(explanation)


def engine_blocks(plan: Plan) -> list[RenderableType]:
    """The engines of a plan side by side in four columns, then the reasons for each cell."""
    if not plan.engines:
        return []
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for name in effort_words.COLUMNS_HEAD:
        table.add_column(Text(name), overflow="fold")
    for row in effort_words.level_rows(plan):
        table.add_row(*map(line, row))
    blocks: list[RenderableType] = [heading("The engines side by side"), table]
    for name, *cells in effort_words.reason_rows(plan):
        reasons = list(zip((head.lower() for head in effort_words.COLUMNS_HEAD[1:]), cells, strict=True))
        blocks += [Padding(line(name, "bold"), (1, 0, 0, 2)), facts(reasons)]
    return blocks


def _sources(explanation: Explanation) -> list[RenderableType]:
    blocks: list[RenderableType] = [heading("Where the coefficients come from")]
    for names, source in words.source_rows(explanation):
        blocks.append(Padding(line(f"{names}: {words.source_words(source)}"), (0, 0, 0, 2)))
    return blocks


def _nearest(explanation: Explanation) -> list[RenderableType]:
    title = heading("Nearest public runs (errors of predictions that were fitted without them)")
    if not explanation.nearest:
        return [title, Padding(line("none is known"), (0, 0, 0, 2))]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for name in words.NEAREST_HEAD:
        table.add_column(Text(name), overflow="fold")
    for runs in explanation.nearest:
        table.add_row(*map(line, words.nearest_row(runs)))
    return [title, table]
