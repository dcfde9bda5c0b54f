"""Tables of the page, and those that the terminal has, too."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from servewise.report.escape import html_text

__all__ = ["TextTable", "html_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A table in words.

    Parameters
    ----------
    head : tuple of str
    rows : tuple of tuple of str
        A cell may hold several figures with spaces between: ``82.9 [80.8, 83.6]``.
    notes : tuple of str
        What to read it with.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def html_table(
    caption: str,
    head: list[str],
    rows: Iterable[list[str]],
    *,
    numeric: Set[int] = frozenset(),
    best: bool = False,
) -> str:
    """A table with escaped cells; ``numeric`` columns stand on the right, ``best`` marks the first row."""

    def cell(tag: str, column: int, text: str) -> str:
        names = "num" if column in numeric else "long" if len(text) > 30 else "name"
        attributes = f' class="{names}"' + (' scope="col"' if tag == "th" else "")
        return f"<{tag}{attributes}>{html_text(text)}</{tag}>"

    header = "".join(cell("th", i, text) for i, text in enumerate(head))
    lines = []
    for number, row in enumerate(rows):
        mark = ' class="best"' if best and number == 0 else ""
        lines.append(f"<tr{mark}>{''.join(cell('td', i, text) for i, text in enumerate(row))}</tr>")
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{html_text(caption)}"><table>'
        f"<caption>{html_text(caption)}</caption><thead><tr>{header}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )
