"""``servewise plan``: the main job."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["plan"]


@click.command()
@click.argument("service", type=click.Path(path_type=Path), metavar="SERVICE.yaml")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="Folder in which a new run folder with plan.json and plan.html is made.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as one JSON document and nothing else.")
@click.option(
    "--explain",
    is_flag=True,
    help="Also show the engines side by side, what the numbers consist of, their sources, and the nearest runs.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Leave out what would change the decision and what the promise costs, which are planned anew each.",
)
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads to simulate with.  [default: one per core]")
@click.pass_context
def plan(
    ctx: click.Context, service: Path, out: Path, as_json: bool, explain: bool, quick: bool, threads: int | None
) -> None:
    """Find the cheapest deployment that keeps the promise.

    SERVICE.yaml says what is promised to whom: traffic, model, promise, quality, hardware and prices. Without
    a deployment that keeps the promise the exit code is 3 and the nearest one is shown.
    """
    from servewise import api
    from servewise.cli.terminal import diagnose, progress, show
    from servewise.config import load_service
    from servewise.errors import InfeasibleError
    from servewise.report import plan_terminal, shortfall

    asked = load_service(service)
    with progress() as report_progress:
        result = api.plan(asked, out_dir=out, progress=report_progress, threads=threads, with_what_if=not quick)
    if as_json:
        click.echo(result.json_text)
    else:
        show(plan_terminal(result.report, explain=explain))
    if result.run_dir is not None:
        diagnose("note", f"plan.json and plan.html are in {result.run_dir}")
    if result.plan.winner is None:
        diagnose("error", str(InfeasibleError(f"no deployment keeps the promise; {shortfall(result.plan)}")))
        ctx.exit(3)
