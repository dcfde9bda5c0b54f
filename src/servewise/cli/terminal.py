"""What the commands print: results on stdout, diagnostics and progress on stderr."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

    from servewise.measure import Progress

__all__ = ["diagnose", "live", "progress", "show", "show_json", "show_rows"]

PLAIN_COLUMNS: Final = 100
MIN_COLUMNS: Final = 80
MAX_NAME_COLUMNS: Final = 44
LIVE_S: Final = 0.5
_FIGURE: Final = re.compile(r"[0-9][0-9,.]*(e[+-]?[0-9]+)?")


def diagnose(kind: str, message: str) -> None:
    """Print one line about the run on stderr, e.g. ``error: ...``; control characters are shown as text."""
    from servewise.report import visible

    click.echo(f"{kind}: {visible(' '.join(message.split()))}", err=True)


def show(renderable: RenderableType) -> None:
    """Print a result on stdout: as wide as the terminal; 100 columns, without styles, when it is none."""
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    columns = max(MIN_COLUMNS, shutil.get_terminal_size().columns) if is_terminal else PLAIN_COLUMNS
    text = io.StringIO()
    console = Console(
        file=text,
        force_terminal=is_terminal,
        width=columns,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )
    console.print(renderable)
    lines = text.getvalue().splitlines()
    click.echo("\n".join(lines if is_terminal else [line.rstrip() for line in lines]))


def show_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def show_rows(rows: Sequence[Mapping[str, str]]) -> None:
    """Print rows with the same keys as a table; the keys are the head, and figures stand on the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from servewise.report import visible

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for position, name in enumerate(rows[0] if rows else ()):
        cells = [row[name] for row in rows]
        longest = max(map(len, cells))
        figures = position > 0 and all(cell == "-" or _FIGURE.fullmatch(cell) for cell in cells)
        table.add_column(
            Text(_folded(name, longest)),
            overflow="fold",
            justify="right" if figures else "left",
            min_width=min(longest, MAX_NAME_COLUMNS) if position == 0 else None,
        )
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row.values()))
    show(table)


def _folded(head: str, width: int) -> str:
    """A head on several lines, none much wider than its column's cells; a unit in brackets stays whole."""
    unit = head.find("[")
    words = [*head.split()] if unit < 0 else [*head[:unit].split(), head[unit:]]
    lines = words[:1]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(lines)


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show progress on stderr while the block runs; nothing when stderr is not a terminal.

    Yields
    ------
    callable
        ``(stage, done, total)``; a total of 0 means unknown.
    """
    if not sys.stderr.isatty():
        yield lambda _stage, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total or None)
            bars.update(tasks[stage], completed=done, total=total or None)

        yield report


@contextlib.contextmanager
def live() -> Iterator[Callable[[str, Progress], None]]:
    """Show how far a measurement is on stderr while the block runs; nothing when stderr is not a terminal.

    The line is written by a thread of its own: a terminal that does not take it must not hold up the sender.

    Yields
    ------
    callable
        ``(load in words, Progress)``; quick.
    """
    if not sys.stderr.isatty():
        yield lambda _words, _how_far: None
        return
    latest: list[str] = []
    is_over = threading.Event()

    def write() -> None:
        while not is_over.wait(LIVE_S):
            if latest:
                columns = shutil.get_terminal_size().columns
                click.echo(f"\r\x1b[K{latest[-1][: columns - 1]}", nl=False, err=True)
        click.echo("\r\x1b[K", nl=False, err=True)

    def report(words: str, how_far: Progress) -> None:
        latest[:] = [_progress_words(words, how_far)]

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield report
    finally:
        is_over.set()
        writer.join(timeout=LIVE_S)


def _progress_words(words: str, how_far: Progress) -> str:
    from servewise.units import format_duration

    latencies = "; ".join(
        f"{name} p50 {format_duration(p50)} p99 {format_duration(p99)}"
        for name, p50, p99 in (
            ("TTFT", how_far.ttft_p50_s, how_far.ttft_p99_s),
            ("ITL", how_far.itl_p50_s, how_far.itl_p99_s),
        )
    )
    return (
        f"{words}: {how_far.elapsed_s:.0f} s, {how_far.done:,} done, {how_far.in_flight:,} in flight,"
        f" {how_far.failed:,} failed; {latencies}"
    )
