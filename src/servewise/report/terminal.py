"""A plan as text that reads well at 100 columns."""

from __future__ import annotations

import math

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from servewise.report import sureness, words
from servewise.report.blocks import facts, heading, line
from servewise.report.effort_words import effort_words
from servewise.report.escape import visible
from servewise.report.explain import engine_blocks, explanation_blocks
from servewise.report.operation_words import autoscaling_words, failure_words
from servewise.report.precision_words import precision_table
from servewise.report.promise_cost import promise_cost_blocks
from servewise.report.quality_words import score_table
from servewise.report.table import TextTable
from servewise.report.view import PlanReport
from servewise.types import Candidate
from servewise.units import format_duration, format_usd

__all__ = ["plan_terminal"]

NUM_RANKED = 10
NUM_FRONTIER = 10
NUM_REJECTIONS = 8
NUM_FILTERED = 6
NUM_WORDS = 2
"""Of a figure with its unit."""
FIGURES_WIDTH = 13
"""Fits ``[80.8, 100.0]``."""
NAME_WIDTH = 11
"""Fits ``nvfp4/bf16!``."""
PRECISIONS = "Precisions: the winner's replica in each, with its best settings"
SCORES = "Quality: scores of the published models x what each precision keeps, typical [low, high]"


def plan_terminal(report: PlanReport, *, explain: bool = False) -> RenderableType:
    """Lay out a plan for a terminal: the answer first, then what it was chosen from, then the caveats.

    Parameters
    ----------
    report : PlanReport
    explain : bool
        Also show the engines side by side, and what the winner's numbers consist of and rest on.

    Returns
    -------
    rich renderable
        Names in it are shown, not obeyed: it holds no markup and no control characters of theirs.
    """
    by_index = {c.index: c for c in report.plan.candidates}
    parts: list[RenderableType] = []
    winner = None if report.plan.winner is None else by_index[report.plan.winner]
    parts += _answer(report, winner) if winner else _no_answer(report, by_index)
    if not report.plan.complete:
        parts.append(heading(words.unfinished_words(report.plan)))
    if winner:
        best = [by_index[i] for i in report.plan.alternatives][:NUM_RANKED]
        frontier = words.spread([by_index[i] for i in report.plan.frontier], NUM_FRONTIER)
        parts += _ranking(report, best)
        parts += _frontier(report, frontier, winner)
        parts += _text_table(PRECISIONS, precision_table(report.plan), 1)
        parts += _text_table(SCORES, score_table(report.plan, [by_index[i] for i in report.plan.alternatives]), 2)
        notes = words.risk_notes([*best, *frontier], with_model=words.several_models(report.plan))
        if notes:
            parts += [Text(), *(line(note) for note in notes)]
    parts += _rejected(report)
    parts += _filtered(report)
    if explain:
        parts += engine_blocks(report.plan)
    if explain and report.plan.explanation is not None:
        parts += explanation_blocks(report.plan.explanation)
    parts += _warnings(report, winner)
    parts += promise_cost_blocks(report.plan, report.promise) + _recommendation(report)
    parts.append(_footer(report, winner))
    return Group(*parts)


def _answer(report: PlanReport, winner: Candidate) -> list[RenderableType]:
    rows = [("model", winner.deployment.model.name), ("cost", words.cost_words(winner))]
    rows.append(("promise", words.promise_words(report.promise)))
    if winner.summary is not None:
        summary = winner.summary
        if words.has_joint_limit(report.promise):
            rows.append(("kept by", sureness.kept_by_words(summary, winner.assurance)))
        rows += _sure(winner)
        rows.append(("latency", words.latency_words(summary, report.promise)))
        if winner.assurance is not None:
            rows.append(("  sampling", f"{sureness.sampling_words(summary, report.promise)} (95%)"))
            rows.append(("  model", f"{sureness.model_words(summary, winner.assurance, report.promise)} (90%)"))
            rows.append(("means", sureness.means_words(winner.assurance)))
    if winner.quality_recovery_pct is not None:
        low, typical, high = winner.quality_recovery_pct
        risk = "; at risk" if words.at_risk(winner) else ""
        basis = f" ({winner.quality_basis})" if winner.quality_basis else ""
        rows.append(("quality", f"{typical:.1f}% [{low:.1f}, {high:.1f}] of the bf16 score expected{basis}{risk}"))
    if winner.effort is not None:
        rows.append(("effort", effort_words(winner.effort)))
    rows.append(("limited by", winner.limited_by or "-"))
    if report.plan.failure is not None:
        rows.append(("failure", failure_words(report.plan.failure, winner.deployment)))
    if report.plan.autoscaling is not None:
        rows.append(("following", autoscaling_words(report.plan.autoscaling, winner.deployment)))
    if report.traffic:
        rows.append(("traffic", report.traffic))
    parts: list[RenderableType] = [
        line(f"{report.name}: {words.candidate_words(winner)}", "bold"),
        facts(rows),
    ]
    if report.launch_command:
        command = Text(visible(report.launch_command, keep="\n"), overflow="fold", no_wrap=False)
        replicas = winner.deployment.num_replicas
        where = f" (each of {replicas} replicas)" if replicas > 1 else ""
        parts += [heading(f"Launch{where}"), Padding(command, (0, 0, 0, 2))]
    return parts


def _sure(winner: Candidate) -> list[tuple[str, str]]:
    """The verdict, and the price of the safety margin where there is none."""
    if winner.assurance is None:
        return []
    rows = [("sure", sureness.verdict_words(winner.assurance))]
    margin = sureness.margin_words(winner)
    return [*rows, ("margin", margin)] if margin else rows


def _no_answer(report: PlanReport, by_index: dict[int, Candidate]) -> list[RenderableType]:
    parts: list[RenderableType] = [
        line(f"{report.name}: no deployment keeps the promise", "bold"),
        facts([("promise", words.promise_words(report.promise)), ("traffic", report.traffic or "-")]),
    ]
    if report.plan.nearest is not None:
        nearest = by_index[report.plan.nearest]
        rows = [("nearest", words.candidate_words(nearest)), ("how far", words.shortfall_words(nearest))]
        if nearest.cost is not None:
            rows.append(("cost", f"{format_usd(nearest.cost.usd_per_h)}/h"))
        if nearest.summary is not None:
            rows.append(("latency", words.latency_words(nearest.summary, report.promise)))
        parts.append(facts(rows))
    return parts


def _ranking(report: PlanReport, best: list[Candidate]) -> list[RenderableType]:
    compare_models = words.several_models(report.plan)
    with_attainment = words.has_joint_limit(report.promise)
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False, pad_edge=False)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("model\nGPU" if compare_models else "GPU", overflow="fold", min_width=14)
    table.add_column("engine", overflow="fold")
    table.add_column("fleet", overflow="fold")
    table.add_column("weights\n/KV", overflow="fold")
    table.add_column("seqs\n/tokens", overflow="fold")
    for name in ("$/h", "$/Mtok\n@load", "@cap", *(["attain\n%"] if with_attainment else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("TTFT\np99", "TPOT\np99"):
        table.add_column(name, justify="right", no_wrap=True)
    for rank, candidate in enumerate(best, start=1):
        gpu = visible(words.gpu_words(candidate.deployment))
        first = f"{visible(words.model_name(candidate))}\n{gpu}" if compare_models else gpu
        attainment = [words.attainment_cell(candidate, report.promise)] if with_attainment else []
        cells = _cells(candidate)
        row = [str(rank), *cells[:7], *attainment, *cells[7:]]
        table.add_row(row[0], Text(first), *(line(cell) for cell in row[1:]), style="bold" if rank == 1 else "")
    num_all = len(report.plan.alternatives)
    more = f", {len(best)} of {num_all}" if len(best) < num_all else ""
    title = (
        f"\nKeep the promise: {len(report.plan.ranking):,} of {len(report.plan.candidates):,} candidates\n"
        f"Best settings of each {'model, ' if compare_models else ''}GPU, engine and precision, cheapest first{more}"
        " ($ per Mtok of output)"
    )
    return [Text(title, style="bold"), table]


def _cells(candidate: Candidate) -> list[str]:
    cost, summary = candidate.cost, candidate.summary
    return [
        words.engine_words(candidate),
        f"{candidate.deployment.num_replicas} x {words.shape_words(candidate.deployment)}",
        words.precision_words(candidate),
        words.settings_words(candidate),
        "-" if cost is None else f"{cost.usd_per_h:,.2f}",
        "-" if cost is None else _money(cost.usd_per_mtok_output_at_load),
        "-" if cost is None else _money(cost.usd_per_mtok_output_at_capacity),
        words.percentile_words(summary, "ttft", "p99"),
        words.percentile_words(summary, "tpot", "p99"),
    ]


def _money(usd: float) -> str:
    return format_usd(usd).lstrip("$") if math.isfinite(usd) else "-"


def _frontier(report: PlanReport, frontier: list[Candidate], winner: Candidate) -> list[RenderableType]:
    compare_models = words.several_models(report.plan)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    if compare_models:
        table.add_column("model", overflow="fold")
    table.add_column("fleet", overflow="fold")
    table.add_column("$/Mtok\n@load", justify="right", no_wrap=True)
    table.add_column("latency", justify="right", no_wrap=True)
    drawn = next((c.assurance.num_draws for c in frontier if c.assurance is not None), 0)
    if drawn:
        table.add_column("sure", justify="right", no_wrap=True)
    table.add_column("against the cheapest", overflow="fold")
    for candidate in frontier:
        table.add_row(
            *([line(words.model_name(candidate))] if compare_models else []),
            line(words.fleet_words(candidate)),
            "-" if candidate.cost is None else _money(candidate.cost.usd_per_mtok_output_at_load),
            format_duration(candidate.latency_s),
            *([sureness.sure_cell(candidate)] if drawn else []),
            line(words.against_winner_words(candidate, winner)),
        )
    percent = f"{100 * report.promise.attainment:g}"
    num_all = len(report.plan.frontier)
    more = f"; {len(frontier)} of {num_all} points" if len(frontier) < num_all else ""
    sure = f"; sure: of {drawn} draws" if drawn else ""
    title = f"Frontier: nothing is both cheaper and faster (latency: E2E p{percent}{sure}{more})"
    return [heading(title), table]


def _text_table(title: str, found: TextTable | None, num_names: int) -> list[RenderableType]:
    """A table of narrow columns, its first ones names, with notes; a cell's first figure has a line of its own."""
    if found is None:
        return []
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for i, name in enumerate(found.head):
        if i < num_names:
            table.add_column(line(name), overflow="fold", min_width=NAME_WIDTH)
        else:
            table.add_column(_head(name), justify="right", no_wrap=True)
    for row in found.rows:
        names = [line(cell) for cell in row[:num_names]]
        table.add_row(*names, *(Text("\n").join(map(line, _lines(cell))) for cell in row[num_names:]))
    return [heading(title), table, *(Padding(line(f"- {note}"), (0, 0, 0, 2)) for note in found.notes)]


def _head(name: str) -> Text:
    """A column's name, a word a line; long words break at their hyphens."""
    parts = [part.replace("-", "-\n") if len(part) > FIGURES_WIDTH else part for part in name.split(" ")]
    return Text("\n").join(line(part) for part in "\n".join(parts).split("\n"))


def _lines(cell: str) -> list[str]:
    """``82.9 [80.8, 83.6]`` and ``52 ms 152 ms`` in two lines each, ``52 ms`` in one."""
    parts = cell.split(" ")
    half = 1 if "[" in cell else len(parts) // 2 if len(parts) > NUM_WORDS else len(parts)
    return [part for part in (" ".join(parts[:half]), " ".join(parts[half:])) if part]


def _rejected(report: PlanReport) -> list[RenderableType]:
    found = words.rejections(report.plan)
    if not found:
        return []
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for rejection in found[:NUM_REJECTIONS]:
        text = f"{words.STATUS_WORDS[rejection.status]}: e.g. {rejection.example}"
        table.add_row(f"{rejection.num_candidates}", line(text))
    if len(found) > NUM_REJECTIONS:
        rest = found[NUM_REJECTIONS:]
        table.add_row(f"{sum(r.num_candidates for r in rest)}", f"for {words.count(len(rest), 'other kind')} of reason")
    total = sum(r.num_candidates for r in found)
    return [
        heading(f"Turned down: {total:,} of {len(report.plan.candidates):,} candidates"),
        Padding(table, (0, 0, 0, 2)),
    ]


def _recommendation(report: PlanReport) -> list[RenderableType]:
    if not report.plan.advice:
        return []
    return [heading("Recommendation"), facts([(said.topic, said.text) for said in report.plan.advice])]


def _filtered(report: PlanReport) -> list[RenderableType]:
    """What never became a candidate."""
    found = report.plan.filtered
    if not found:
        return []
    shown = [*found[:NUM_FILTERED], *([f"and {len(found) - NUM_FILTERED} more"] if len(found) > NUM_FILTERED else [])]
    title = heading("Not tried: below the quality floor, or not run by the hardware")
    return [title, *(Padding(line(f"- {why}"), (0, 0, 0, 2)) for why in shown)]


def _warnings(report: PlanReport, winner: Candidate | None) -> list[RenderableType]:
    warnings = [*report.warnings, *((*sureness.worries(winner), *winner.warnings) if winner else ())]
    if not warnings:
        return []
    return [heading("Know before you trust it"), *(Padding(line(f"- {w}"), (0, 0, 0, 2)) for w in warnings)]


def _footer(report: PlanReport, winner: Candidate | None) -> RenderableType:
    plan = report.plan
    text = (
        f"{len(plan.candidates):,} candidates, {plan.num_simulated:,} simulated"
        f" ({plan.num_simulated_requests:,} requests) in {plan.wall_s:.1f} s"
    )
    if winner is not None and winner.cost is not None:
        text += f"; prices of {winner.cost.price_date} ({winner.cost.price_source})"
    return Text(f"\n{visible(text)}", style="dim")
