"""The page on ``servewise deploy``: its table is what the code does."""

from __future__ import annotations

from pathlib import Path

from deploy.fleets import TOPOLOGIES
from servewise.deploy import TARGETS, render
from servewise.errors import InputError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "deploy.md"


def table() -> str:
    """Engines that each target takes, by topology."""
    lines = [f"| topology | {' | '.join(f'`{target}`' for target in TARGETS)} |", "|---" * (len(TARGETS) + 1) + "|"]
    for topology, (engines, make) in TOPOLOGIES.items():
        cells = []
        for target in TARGETS:
            taken = []
            for engine in engines:
                try:
                    render(make(engine), target, name="chat")
                except InputError:
                    continue
                taken.append(engine)
            cells.append("all" if taken == list(engines) else ", ".join(taken) or "-")
        lines.append(f"| {topology}: {', '.join(engines)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_table_is_what_the_code_does() -> None:
    assert table() in PAGE.read_text(encoding="utf-8")
