"""A plan as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import math
from collections.abc import Mapping, Sequence
from typing import Any

from servewise import __version__
from servewise.report import sureness, words
from servewise.report.cost_figures import COST_FIGURE, cost_figures
from servewise.report.effort_words import effort_words
from servewise.report.escape import html_text, json_in_html
from servewise.report.figures import frontier_figure, latency_figures, load_figure
from servewise.report.operation_words import autoscaling_words, failure_words
from servewise.report.page_assurance import engine_section, explanation_section, sure_section
from servewise.report.precision_words import precision_table
from servewise.report.quality_words import score_table
from servewise.report.table import TextTable, html_table
from servewise.report.view import PlanReport
from servewise.types import Candidate
from servewise.units import format_duration, format_usd

__all__ = ["plan_html"]

NUM_RANKED = 25
NUM_FRONTIER = 10


def plan_html(report: PlanReport) -> str:
    """Render a plan as a self-contained page.

    The page loads nothing: plotly's own script is part of it, and its content security policy allows only the
    scripts it was made with (by their hashes). Everything untrusted is escaped.

    Parameters
    ----------
    report : PlanReport

    Returns
    -------
    str
        HTML, about 5 MB (plotly's script).
    """
    by_index = {c.index: c for c in report.plan.candidates}
    ranked = [by_index[i] for i in report.plan.alternatives]
    shown_index = report.plan.winner if report.plan.winner is not None else report.plan.nearest
    shown = None if shown_index is None else by_index[shown_index]
    figures = _figures(report, shown)
    body = [
        _answer(report, shown),
        _operation(report, shown),
        _launch(report),
        _figure_section(["frontier"], figures, "Cost against latency", _FRONTIER_NOTE),
        _frontier_table(report, by_index),
        _figure_section(["ttft", "tpot", "e2e"], figures, "Latency against the promise", _LATENCY_NOTE),
        _figure_section(["load"], figures, "Load against goodput", _LOAD_NOTE),
        _ranking_table(report, by_index),
        engine_section(report.plan),
        "" if shown is None else sure_section(shown),
        "" if report.plan.explanation is None else explanation_section(report.plan.explanation),
        _text_table("Precisions of the winner", _PRECISIONS_NOTE, precision_table(report.plan), 1),
        _text_table("Quality of the models", _SCORES_NOTE, score_table(report.plan, ranked), 2),
        _rejection_table(report),
        _filtered(report),
        _recommendation(report),
        _promise_cost(figures),
        _warnings(report, shown),
        _provenance_table(report),
        _facts_table(report),
    ]
    return _page(report, "\n".join(part for part in body if part), figures)


_FRONTIER_NOTE = (
    "Every candidate that keeps the promise. Large markers joined by the dotted line are the frontier:"
    " nothing is both cheaper and faster. The star is the cheapest."
)
_LATENCY_NOTE = (
    "The share of requests at or below each value. The dashed red line is the limit; the curve should be"
    " above the dotted line where they cross. A joint promise counts requests that meet all limits at once."
)
_PRECISIONS_NOTE = "The same replica in each precision with its best settings: memory, speed and quality at once"
_SCORES_NOTE = "Score of the published model x what the precision keeps: typical [10th, 90th percentile] in %"
_LOAD_NOTE = (
    "The same fleet under this traffic with its arrivals sped up or slowed down. Green circles keep the"
    " promise, red crosses break it; the knee is the highest load that keeps it."
)

_COST_NOTE = (
    "Dollars per million output tokens at load of the cheapest fleet, planned again for each value; the marker is this"
    " plan. Gaps: nothing keeps the promise. Over the load, the dotted lines are what providers charge by the token."
)


def _figures(report: PlanReport, shown: Candidate | None) -> dict[str, Any]:
    found = {"frontier": frontier_figure(report)}
    if shown is not None:
        found |= latency_figures(report, shown)
        found["load"] = load_figure(shown)
    found |= cost_figures(report)
    return {name: figure for name, figure in found.items() if figure is not None}


def _answer(report: PlanReport, shown: Candidate | None) -> str:
    promise = html_text(words.promise_words(report.promise))
    title = f"<h1>{html_text(report.name)}</h1>"
    traffic = f'<p class="soft">Traffic: {html_text(report.traffic)}</p>' if report.traffic else ""
    if shown is None:
        return f'{title}<p class="lead">No deployment could be tried: {promise}.</p>{traffic}'
    fleet = html_text(words.candidate_words(shown))
    if report.plan.winner is None:
        lead = (
            f"No deployment keeps the promise ({promise}). The nearest is <strong>{fleet}</strong>:"
            f" {html_text(words.shortfall_words(shown))}."
        )
    else:
        lead = f"The cheapest deployment that keeps the promise ({promise}) is <strong>{fleet}</strong>."
    unfinished = words.unfinished_words(report.plan)
    if unfinished:
        lead += f" <strong>{html_text(unfinished)}.</strong>"
    return f'{title}<p class="lead">{lead}</p>{traffic}{_cards(shown, report)}'


def _cards(shown: Candidate, report: PlanReport) -> str:
    cards: list[tuple[str, str, str]] = [("Model", words.model_name(shown), shown.deployment.model.name)]
    if shown.cost is not None:
        cost = shown.cost
        at_capacity = ""
        if math.isfinite(cost.usd_per_mtok_output_at_capacity):
            at_capacity = f"{format_usd(cost.usd_per_mtok_output_at_capacity)} at capacity"
        cards.append(("$ per Mtok output at load", format_usd(cost.usd_per_mtok_output_at_load), at_capacity))
        rented = words.count(cost.num_gpus_rented, "GPU")
        note = f"{format_usd(cost.usd_per_h)}/h x 730 h, this load always; {rented} rented"
        cards.append(("A month", format_usd(cost.usd_per_month), note))
    if shown.summary is not None:
        summary = shown.summary
        if words.has_joint_limit(report.promise):
            interval = f"95% interval {100 * summary.attainment.low:.2f} to {100 * summary.attainment.high:.2f}%"
            note = f"{interval}, {summary.num_requests:,} requests"
            cards.append(("Requests within the limits", f"{100 * summary.attainment.value:.2f}%", note))
        if shown.assurance is not None:
            note = f"{sureness.kept_in_words(shown.assurance)}. {sureness.margin_words(shown)}"
            cards.append(("Keeps the promise", shown.assurance.verdict, note.strip()))
        for metric in ("ttft", "tpot"):
            value = words.percentile_words(summary, metric, "p99")
            cards.append((f"{metric.upper()} p99", value, f"p50 {words.percentile_words(summary, metric, 'p50')}"))
    if shown.quality_recovery_pct is not None:
        low, typical, high = shown.quality_recovery_pct
        risk = "; at risk" if words.at_risk(shown) else ""
        basis = f"; {shown.quality_basis}" if shown.quality_basis else ""
        note = f"{low:.1f} to {high:.1f}% of the bf16 score expected{basis}{risk}"
        cards.append(("Quality kept", f"{typical:.1f}%", note))
    if shown.effort is not None:
        level, _, why = effort_words(shown.effort).partition(": ")
        cards.append(("Effort", level, why))
    if shown.limited_by:
        short = words.limit_words(shown)
        cards.append(("Limited by", short, "" if short == shown.limited_by else shown.limited_by))
    items = "".join(
        f'<div class="card"><dt>{html_text(name)}</dt><dd>{html_text(value)}</dd>'
        f'<dd class="note">{html_text(note)}</dd></div>'
        for name, value, note in cards
    )
    return f'<dl class="cards">{items}</dl>'


def _operation(report: PlanReport, winner: Candidate | None) -> str:
    rows = []
    if winner is not None and report.plan.failure is not None:
        rows.append(failure_words(report.plan.failure, winner.deployment))
    if winner is not None and report.plan.autoscaling is not None:
        following = autoscaling_words(report.plan.autoscaling, winner.deployment)
        rows.append(f"A fleet that follows the load: {following}")
    items = "".join(f"<li>{html_text(row)}</li>" for row in rows)
    return f"<h2>Failures and changing load</h2><ul>{items}</ul>" if rows else ""


def _launch(report: PlanReport) -> str:
    if not report.launch_command:
        return ""
    command = html_text(report.launch_command, keep="\n")
    return f'<h2>Launch</h2><p>On each replica:</p><pre tabindex="0"><code>{command}</code></pre>'


def _figure_section(names: list[str], figures: Mapping[str, Any], title: str, note: str) -> str:
    plots = "".join(
        f'<div class="plot" id="{name}" role="img" aria-label="{html_text(title)} ({name})"></div>'
        for name in names
        if name in figures
    )
    if not plots:
        return ""
    return (
        f'<h2>{html_text(title)}</h2><figure><div class="plots">{plots}</div>'
        f"<figcaption>{html_text(note)}</figcaption></figure>"
    )


def _frontier_table(report: PlanReport, by_index: Mapping[int, Candidate]) -> str:
    if report.plan.winner is None:
        return ""
    winner = by_index[report.plan.winner]
    compare_models = words.several_models(report.plan)
    shown = words.spread([by_index[i] for i in report.plan.frontier], NUM_FRONTIER)
    rows = [
        [
            *([words.model_name(c)] if compare_models else []),
            words.fleet_words(c),
            _usd(c, "usd_per_mtok_output_at_load"),
            format_duration(c.latency_s),
            sureness.sure_cell(c),
            words.against_winner_words(c, winner),
        ]
        for c in shown
    ]
    head = [*(["Model"] if compare_models else []), "Fleet", "$/Mtok output at load", "E2E", "Sure"]
    head.append("Against the cheapest")
    num_all = len(report.plan.frontier)
    some = f" ({len(shown)} of {num_all} points)" if len(shown) < num_all else ""
    caption = (
        f"The frontier: what each alternative gives up and gains{some}. Sure: share of the draws of the step times in"
        " which the promise is kept; a dash: not drawn"
    )
    numeric = {1 + int(compare_models), 2 + int(compare_models), 3 + int(compare_models)}
    return html_table(caption, head, rows, numeric=numeric) + _risk_notes(shown, report)


def _ranking_table(report: PlanReport, by_index: Mapping[int, Candidate]) -> str:
    best = [by_index[i] for i in report.plan.alternatives]
    if not best:
        return ""
    compare_models = words.several_models(report.plan)
    model = ["Model"] if compare_models else []
    head = ["#", *model, "GPUs", "Engine", "TP", "Weights/KV", "Seqs/tokens", "Replicas", "$/h", "$/Mtok out at load"]
    head += ["at capacity", "$/Mtok total at load"]
    with_attainment = words.has_joint_limit(report.promise)
    head += [*(["Attainment %"] if with_attainment else []), "TTFT p99", "TPOT p99", "Limited by"]
    rows = [
        [
            str(rank),
            *([words.model_name(c)] if compare_models else []),
            f"{c.deployment.num_gpus} x {words.gpu_words(c.deployment)}",
            words.engine_words(c),
            words.shape_words(c.deployment),
            words.precision_words(c),
            words.settings_words(c),
            str(c.deployment.num_replicas),
            _usd(c, "usd_per_h"),
            _usd(c, "usd_per_mtok_output_at_load"),
            _usd(c, "usd_per_mtok_output_at_capacity"),
            _usd(c, "usd_per_mtok_total_at_load"),
            *([words.attainment_cell(c, report.promise)] if with_attainment else []),
            words.percentile_words(c.summary, "ttft", "p99"),
            words.percentile_words(c.summary, "tpot", "p99"),
            words.limit_words(c),
        ]
        for rank, c in enumerate(best[:NUM_RANKED], start=1)
    ]
    shift = int(compare_models)
    numeric = {0, *range(6 + shift, len(head) - 1)}
    some = f", the cheapest {len(rows)} of {len(best)}" if len(rows) < len(best) else ""
    caption = (
        f"{len(report.plan.ranking):,} of {len(report.plan.candidates):,} candidates keep the promise. The best"
        f" settings of each {'model, ' if compare_models else ''}GPU, engine and precision, cheapest first{some}."
        " A dash: not searched."
    )
    table = html_table(caption, head, rows, numeric=numeric, best=True)
    return "<h2>What keeps the promise</h2>" + table + _risk_notes(best[:NUM_RANKED], report)


def _risk_notes(shown: Sequence[Candidate], report: PlanReport) -> str:
    notes = words.risk_notes(shown, with_model=words.several_models(report.plan))
    return "".join(f'<p class="soft">{html_text(note)}</p>' for note in notes)


def _recommendation(report: PlanReport) -> str:
    rows = [[said.topic, said.text] for said in report.plan.advice]
    return "<h2>Recommendation</h2>" + html_table("In words", ["About", "What"], rows) if rows else ""


def _promise_cost(figures: Mapping[str, Any]) -> str:
    names = [name for name in figures if name.startswith(COST_FIGURE)]
    return _figure_section(names, figures, "What the promise costs", _COST_NOTE)


def _rejection_table(report: PlanReport) -> str:
    found = words.rejections(report.plan)
    if not found:
        return ""
    rows = [[f"{r.num_candidates:,}", words.STATUS_WORDS[r.status], r.example] for r in found]
    total = sum(r.num_candidates for r in found)
    caption = f"{total:,} of {len(report.plan.candidates):,} candidates, by kind of reason"
    head = ["Candidates", "Why", "For example"]
    return "<h2>What was turned down</h2>" + html_table(caption, head, rows, numeric={0})


def _text_table(title: str, caption: str, found: TextTable | None, num_names: int) -> str:
    if found is None:
        return ""
    numeric = set(range(num_names, len(found.head)))
    table = html_table(caption, list(found.head), [list(row) for row in found.rows], numeric=numeric)
    notes = "".join(f'<p class="soft">{html_text(note)}</p>' for note in found.notes)
    return f"<h2>{html_text(title)}</h2>{table}{notes}"


def _filtered(report: PlanReport) -> str:
    items = "".join(f"<li>{html_text(why)}</li>" for why in report.plan.filtered)
    return f"<h2>What was not tried</h2><ul>{items}</ul>" if items else ""


def _warnings(report: PlanReport, shown: Candidate | None) -> str:
    warnings = [*report.warnings, *((*sureness.worries(shown), *shown.warnings) if shown else ())]
    if not warnings:
        return ""
    items = "".join(f"<li>{html_text(w)}</li>" for w in warnings)
    return f'<h2>Know before you trust it</h2><ul class="warnings">{items}</ul>'


def _provenance_table(report: PlanReport) -> str:
    if not report.provenance:
        return ""
    rows = [[name, p.kind, p.source, p.accessed, p.note] for name, p in sorted(report.provenance.items())]
    head = ["Figure", "Kind", "Source", "Read on", "Note"]
    return "<h2>Where the numbers come from</h2>" + html_table("Origin of every figure used", head, rows)


def _facts_table(report: PlanReport) -> str:
    plan = report.plan
    rows = [
        ["candidates", f"{len(plan.candidates):,}"],
        ["simulated", f"{plan.num_simulated:,} candidates, {plan.num_simulated_requests:,} requests"],
        ["search time", format_duration(plan.wall_s)],
        *([name, value] for name, value in report.facts.items()),
    ]
    return "<h2>To make this plan again</h2>" + html_table("Versions, inputs and search", ["What", "Value"], rows)


def _usd(candidate: Candidate, field: str) -> str:
    return "-" if candidate.cost is None else format_usd(getattr(candidate.cost, field))


def _page(report: PlanReport, body: str, figures: Mapping[str, Any]) -> str:
    files = importlib.resources.files("servewise.report")
    style = files.joinpath("page.css").read_text(encoding="utf-8")
    scripts: list[str] = []
    if figures:
        from plotly.offline import get_plotlyjs  # heavy, and only this page needs it

        scripts = [get_plotlyjs(), files.joinpath("page.js").read_text(encoding="utf-8")]
    allowed = " ".join(_hash(script) for script in scripts) or "'none'"
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:;"
        " base-uri 'none'; form-action 'none'"
    )
    code = "".join(f"<script>{script}</script>\n" for script in scripts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html_text(report.name)}: servewise plan</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n"
        f'<footer class="soft"><p>Made by servewise {html_text(__version__)}.</p></footer>\n'
        f'<script type="application/json" id="figures">{json_in_html(figures)}</script>\n{code}'
        "</body>\n</html>\n"
    )


def _hash(script: str) -> str:
    """The policy's name for a script: browsers hash its text with line ends as LF."""
    digest = hashlib.sha256(script.replace("\r\n", "\n").replace("\r", "\n").encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
