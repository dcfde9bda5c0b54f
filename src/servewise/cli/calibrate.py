"""``servewise calibrate``: correct the step model with measured runs."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["calibrate"]


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path, file_okay=False), metavar="RUN...")
@click.option("--plan", "plan_path", type=click.Path(path_type=Path), help="plan.json whose winner served the runs.")
@click.option("--engine", help="Engine that served the runs, when no plan names it.")
@click.option("--engine-version", default="", help="Its version.  [default: the one that is planned for]")
@click.option("--model", help="Model: a catalog name or the path of a config.json.")
@click.option("--gpu", help="GPU: a catalog name or the path of a .toml file that describes a device.")
@click.option("--tp", type=click.IntRange(1, 64), help="GPUs that share each layer.  [default: 1]")
@click.option("--weights", help="Precision of the weights.  [default: the model's own]")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SETTING=VALUE",
    help="Engine setting by its own name, where the server does not run with the default; repeat it for each.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File to write; must be new."
)
@click.option("--json", "as_json", is_flag=True, help="Print the calibration as one JSON document and nothing else.")
def calibrate(
    runs: tuple[Path, ...],
    plan_path: Path | None,
    engine: str | None,
    engine_version: str,
    model: str | None,
    gpu: str | None,
    tp: int | None,
    weights: str | None,
    settings: tuple[str, ...],
    out: Path,
    as_json: bool,
) -> None:
    """Fit the step model to a sweep of measured runs of one deployment.

    Each RUN is a folder that `servewise measure` wrote: at least three loads of the same server, from about four
    requests at once to as many as you expect. What served them is the winner of a plan, or --engine, --model and --gpu.
    The file goes into a service file as `calibration: FILE`.
    """
    from servewise import api
    from servewise.cli.terminal import diagnose, progress, show, show_json
    from servewise.report import calibration_terminal

    named = {"--engine": engine, "--model": model, "--gpu": gpu}
    if plan_path is not None:
        others = {"--engine-version": engine_version, "--tp": tp, "--weights": weights, "--set": settings}
        given = [name for name, value in (named | others).items() if value]
        if given:
            raise click.UsageError(f"{given[0]} contradicts --plan, whose winner names it; give one of the two")
        deployment = api.planned_deployment(plan_path)
    else:
        for name, value in named.items():
            if not value:
                raise click.UsageError(f"{name} is missing; name what served the runs, or give --plan")
        deployment = api.named_deployment(
            engine=engine or "",
            model=model or "",
            gpu=gpu or "",
            engine_version=engine_version,
            tensor_parallel_size=tp or 1,
            weights=weights,
            settings=dict(_setting(text) for text in settings),
        )
    with progress() as report_progress:
        found = api.calibrate(runs, deployment, out=out, progress=report_progress)
    if as_json:
        show_json(api.calibration_document(found))
    else:
        show(calibration_terminal(found))
    diagnose("note", f"the calibration is in {out}; a service file uses it with 'calibration: {out}'")


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{text!r} is not SETTING=VALUE, e.g. max_num_seqs=64", param_hint="--set")
    return name, value
