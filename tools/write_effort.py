"""Write docs/effort.md from src/servewise/data/effort.toml.

python -m tools.write_effort
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from servewise.effort import columns, effort_facts
from servewise.types import EffortFact, EffortReport

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "effort.md"

HEAD = """# What a deployment asks of a team

Written by `python -m tools.write_effort` from `src/servewise/data/effort.toml`; a test holds the page against it.

The third question of a service file, `operations: {max_effort: ...}`, is how complex an infrastructure a team can run.
servewise answers it with facts, each with its source: what an engine asks for, and what a way of spreading it asks for.

| level | means |
|---|---|
| `low` | the engine's own server, and nothing beside it |
| `medium` | something more is set up, watched, upgraded or kept alike: a router, a second node, kernels on the host |
| `high` | a distributed system with a network of its own and parts that depend on each other |

A deployment's effort is **the highest demand among the facts that apply to it**. A candidate above `max_effort` is
turned down with the fact that lifts it there; where several replicas are too much, a fleet is one replica. Nothing else
decides: change a fact in the file, and the level changes with it. Which level a fact asks for is a judgment
([why](why.md)), made from what its source says.

What cannot be known stays low and is said instead: whether somebody has published the checkpoint or the drafter that a
deployment needs. Making one is more work than loading one. A replica counts as on several nodes when it has more GPUs
than a node of its kind can hold; smaller nodes that a provider rents are not looked at.
"""
ENGINES_HEAD = """
## The engines side by side

A plan adds their performance on its own traffic (`servewise plan --explain`, and the page). All of them are low effort
on one GPU; within it they differ, and their facts are graded for that. *Convenience*: to install, watch and upgrade.
*Model flexibility*: which models run, and how they are exchanged. *Hardware dependence*: high binds to one maker's
GPUs. The level of a column is the middle of its facts' grades, the lower of two middles; the grades are judgments, too.

| engine | convenience | model flexibility | hardware dependence |
|---|---|---|---|
"""


def page() -> str:
    """The text of docs/effort.md."""
    facts = effort_facts()
    engines = list(dict.fromkeys(f.engine for f in facts if f.engine is not None))
    spread = [f for f in facts if f.topology is not None]
    parts = [HEAD, "\n## What a topology asks for\n\n", _table("where", [(_where(f), f) for f in spread]), ENGINES_HEAD]
    for engine in engines:
        of = columns(engine)
        cells = (of.convenience, of.model_flexibility, of.hardware_dependence)
        parts.append(f"| {engine} | {' | '.join(map(_cell, cells))} |\n")
    for engine in engines:
        own = [(_graded(f), f) for f in facts if f.engine == engine and f.topology is None]
        parts += [f"\n### {engine}\n\n", _table("aspect, grade", own)]
    return "".join(parts)


def _where(fact: EffortFact) -> str:
    place = str(fact.topology).replace("_", " ")
    return place if fact.engine is None else f"{place}, {fact.engine}"


def _cell(report: EffortReport) -> str:
    return f"{report.level} ({', '.join(map(_graded, report.facts))})"


def _graded(fact: EffortFact) -> str:
    aspect = fact.aspect.replace("_", " ")
    return aspect if fact.grade is None else f"{aspect} {fact.grade}"


def _table(first: str, rows: Iterable[tuple[str, EffortFact]]) -> str:
    lines = [f"| {first} | asks for | fact | source | read on |\n|---|---|---|---|---|\n"]
    for name, fact in rows:
        origin = fact.provenance
        lines.append(f"| {name} | {fact.demand} | {fact.text} | {origin.source} | {origin.accessed} |\n")
    return "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
