"""Pieces of text that the terminal's parts are made of."""

from __future__ import annotations

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from servewise.report.escape import visible

__all__ = ["facts", "heading", "line"]


def line(text: str, style: str = "") -> Text:
    """Text whose control characters are shown."""
    return Text(visible(text), style=style)


def heading(text: str) -> Text:
    """A bold line after an empty one."""
    return Text(f"\n{visible(text)}", style="bold")


def facts(rows: list[tuple[str, str]]) -> RenderableType:
    """Names and values, indented; values are folded, not cut."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), line(value))
    return Padding(table, (0, 0, 0, 2))
