"""The page's sections on how sure the figures are, what they consist of and how the engines compare."""

from __future__ import annotations

from servewise.report import effort_words, sureness
from servewise.report import explanation_words as words
from servewise.report.escape import html_text
from servewise.report.table import html_table
from servewise.types import Candidate, Explanation, Plan

__all__ = ["engine_section", "explanation_section", "sure_section"]


def sure_section(shown: Candidate) -> str:
    """Both intervals of every figure; empty where nothing was drawn."""
    assurance, summary = shown.assurance, shown.summary
    if assurance is None or summary is None:
        return ""
    caption = (
        f"Sampling: what the length of this traffic leaves open (95%). Model: {assurance.num_draws} simulations with"
        " step times drawn from what the measurements leave open (90%). Neither contains the other"
    )
    rows = sureness.figure_rows(summary, assurance)
    table = html_table(caption, ["Figure", "Value", "Sampling", "Model"], rows, numeric={1, 2, 3})
    means = html_text(sureness.means_words(assurance))
    return f'<h2>How sure</h2>{table}<p class="soft">Means, with the errors of comparable predictions: {means}.</p>'


def explanation_section(explanation: Explanation) -> str:
    """Parts of the numbers, their sources, what is known less well, and the nearest measured runs."""
    parts = [
        ["" if place else words.number_words(number), group, total, of]
        for number in explanation.numbers
        for place, (group, total, of) in enumerate(words.group_rows(number))
    ]
    notes = "".join(
        f'<p class="soft">{html_text(n.number.upper())}: {html_text(n.note)}.</p>' for n in explanation.numbers
    )
    sources = [[names, s.kind, s.source, s.note] for names, s in words.source_rows(explanation)]
    caveats = "".join(f"<li>{html_text(words.caveat_words(c))}</li>" for c in explanation.caveats)
    return (
        "<h2>What the numbers consist of</h2>"
        + html_table(
            f"At the operating point: {words.point_words(explanation)}", ["Number", "Part", "", "Of it"], parts
        )
        + notes
        + html_table("Sources of the coefficients", ["Part", "Kind", "Source", "Note"], sources)
        + (f'<h3>Known less well</h3><ul class="warnings">{caveats}</ul>' if caveats else "")
        + _nearest(explanation)
    )


def engine_section(plan: Plan) -> str:
    """The engines side by side, each cell with its reasons, and where these come from."""
    if not plan.engines:
        return ""
    caption = (
        "Convenience: to install, watch and upgrade. Model flexibility: which models run, and how they are exchanged."
        " Hardware dependence: high binds to one maker's GPUs. Each level is the middle of its facts' grades"
    )
    reports = [r for of in plan.engines for r in (of.convenience, of.model_flexibility, of.hardware_dependence)]
    sources = [
        [fact.text, fact.provenance.source, fact.provenance.accessed] for report in reports for fact in report.facts
    ]
    return (
        "<h2>The engines side by side</h2>"
        + html_table(caption, list(effort_words.COLUMNS_HEAD), effort_words.reason_rows(plan))
        + html_table("Where this comes from", ["Fact", "Source", "Read on"], sources)
    )


def _nearest(explanation: Explanation) -> str:
    if not explanation.nearest:
        return ""
    caption = "Nearest public runs: median absolute error and bias of predictions that were fitted without them"
    rows = [words.nearest_row(runs) for runs in explanation.nearest]
    return html_table(caption, list(words.NEAREST_HEAD), rows, numeric={0})
