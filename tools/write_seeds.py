"""Write docs/seeds.md from docs/seeds.toml: each claim, its formula, its experiment and the verdict.

    python -m tools.write_seeds

Takes half a minute, most of it compiling when the simulator is new.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.seed_experiments import EXPERIMENTS

__all__ = ["PAGE", "Claim", "claims", "page"]

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "seeds.md"
VERDICTS = ("follows", "conditional", "wrong", "outside serving")

HEAD = """# The founding articles, computed

Written by `python -m tools.write_seeds` from `docs/seeds.toml`; a test holds the page against it.

The project began with two articles on the trade-offs of serving. Here is each of their claims and numbers with what
servewise makes of it: the textbook formula (`servewise.formulas`), a simulated experiment (`tools/seed_experiments.py`:
default settings, the product's own step times, nothing fitted), and a verdict. *Conditional* means that it holds under
conditions that the article does not name; *outside serving* that there is nothing to compute. What is simulated has the
errors that [accuracy](accuracy.md) states.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim of an article, as docs/seeds.toml has it."""

    id: str
    article: int
    quote: Sequence[str]
    numbers: Sequence[str]
    says: str
    verdict: str
    because: str
    formula: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    experiment: str = ""


def claims() -> list[Claim]:
    """All claims, in the articles' order."""
    document = tomllib.loads((DOCS / "seeds.toml").read_text(encoding="utf-8"))
    return [Claim(**entry) for entry in document["claim"]]


def page(found: Sequence[Claim]) -> str:
    """The text of docs/seeds.md; runs all experiments."""
    rows = [f"| [{c.says}](#{c.id}) | {c.verdict} |" for c in found]
    count = ", ".join(f"{sum(c.verdict == v for c in found)} {v}" for v in VERDICTS)
    parts = [HEAD + f"{len(found)} claims: {count}.\n", "| claim | verdict |\n|---|---|\n" + "\n".join(rows) + "\n"]
    for article in (1, 2):
        parts.append(f"## Article {article}\n")
        parts += [section(c) for c in found if c.article == article]
    parts.append("## Experiments\n")
    parts += [experiment(name) for name in sorted({c.experiment for c in found if c.experiment})]
    return "\n".join(parts)


def section(claim: Claim) -> str:
    """One claim."""
    lines = [f"({claim.id})=", f"### {claim.says}", "", f"**{claim.verdict.capitalize()}.** {claim.because}", ""]
    for call in claim.formula:
        given = ", ".join(f"{value:.15g}" for value in call["with"])
        lines += [f"- `{call['call']}({given})` = {call['gives']:.10g}"]
    if claim.experiment:
        lines += [f"- experiment: [{claim.experiment}](#experiment-{claim.experiment.replace('_', '-')})"]
    return "\n".join(lines).rstrip() + "\n"


def experiment(name: str) -> str:
    """An experiment with its figures."""
    run = EXPERIMENTS[name]
    words = (run.__doc__ or "").strip()
    rows = [f"| {figure} | {value:,.4g} |" for figure, value in run().items()]
    anchor = f"(experiment-{name.replace('_', '-')})="
    return "\n".join([anchor, f"### {name}", "", words, "", "| figure | value |", "|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(claims()), encoding="utf-8")
