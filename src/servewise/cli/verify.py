"""``servewise verify``: whether an endpoint keeps what a plan promised."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["verify"]


@click.command()
@click.argument("plan_path", type=click.Path(path_type=Path), metavar="PLAN.json")
@click.argument("url", metavar="URL")
@click.option(
    "--duration-s",
    type=click.FloatRange(min=0, min_open=True),
    help="Send the plan's traffic for so long.  [default: 300, or all of it where --num-requests is given]",
)
@click.option("--num-requests", type=click.IntRange(min=1), help="Send no more than so many requests.")
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    help="Replicas behind URL; they get their share of the traffic.  [default: all of the plan's]",
)
@click.option("--model", help="Model as the server names it, when it has several.")
@click.option("--key-env", metavar="VARIABLE", help="Environment variable that holds the endpoint's key.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="Folder in which a new run folder with the measurement and verification.json is made.",
)
@click.option("--yes", is_flag=True, help="Do not ask before sending load to a host that is not this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print the verification as one JSON document and nothing else.")
@click.pass_context
def verify(
    ctx: click.Context,
    plan_path: Path,
    url: str,
    duration_s: float | None,
    num_requests: int | None,
    replicas: int | None,
    model: str | None,
    key_env: str | None,
    out: Path,
    yes: bool,
    as_json: bool,
) -> None:
    """Send a plan's own traffic to the endpoint that serves it, and see whether the promise is kept.

    PLAN.json is the file of a run folder of `servewise plan`; the traffic is in the same folder. The exit code is 0
    when the promise is kept, 3 when it is not, 4 when the measurement cannot be trusted or is too short to tell.
    """
    from servewise import api
    from servewise.cli.app import EXIT_DONE, EXIT_INFEASIBLE, EXIT_MEASUREMENT
    from servewise.cli.measure import confirm
    from servewise.cli.terminal import diagnose, live, show, show_json
    from servewise.report import verification_json, verification_terminal

    target = api.Target(url=url, model=model, key_env=key_env)
    confirm(target, yes=yes)
    with live() as report_progress:
        result = api.verify(
            plan_path,
            target,
            duration_s=duration_s,
            num_requests=num_requests,
            replicas=replicas,
            out_dir=out,
            progress=report_progress,
        )
    found = result.verification
    if as_json:
        show_json(verification_json(found))
    else:
        show(verification_terminal(found))
    if result.run_dir is not None:
        diagnose("note", f"the measurement and verification.json are in {result.run_dir}")
    ctx.exit({"kept": EXIT_DONE, "broken": EXIT_INFEASIBLE}.get(found.verdict, EXIT_MEASUREMENT))
