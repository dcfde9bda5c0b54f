"""``servewise deploy``: what deploys a plan."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["deploy"]


@click.command()
@click.argument("plan_path", type=click.Path(path_type=Path), metavar="PLAN.json")
@click.option(
    "--target",
    type=click.Choice(["command", "compose", "kubernetes", "kserve", "ray-serve", "dynamo"]),
    default="command",
    show_default=True,
    help="What to write.",
)
@click.option(
    "--candidate", type=int, metavar="INDEX", help="Another candidate that keeps the promise than the winner."
)
@click.option("--model", help="Hub id or path of the checkpoint to serve, instead of the plan's name of the model.")
@click.option("--llama-server", is_flag=True, help="Of a plan for Ollama, the llama-server that Ollama starts.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="A machine of target command; once for each.  [default: this one, or node-0 ...]",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8000,
    show_default=True,
    help="Where clients reach the service; kserve and dynamo choose it themselves.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder in which a new folder with the files is made; without it they are printed.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the files with what was checked as one JSON document.")
def deploy(
    plan_path: Path,
    target: str,
    candidate: int | None,
    model: str | None,
    llama_server: bool,
    hosts: tuple[str, ...],
    port: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Write what deploys a plan: commands, a Compose file, or manifests.

    PLAN.json is the file of a run folder of `servewise plan`. Nothing is started, and no secret is written: manifests
    name where one is kept. The exit code is 3 when no deployment keeps the plan's promise.
    """
    from servewise import api
    from servewise.cli.terminal import diagnose, show_json

    result = api.deploy(
        plan_path,
        target,  # type: ignore[arg-type]  # one of the choices
        candidate=candidate,
        model=model,
        llama_server=llama_server,
        hosts=hosts,
        port=port,
        out_dir=out,
    )
    if as_json:
        show_json(result.document)
    elif result.run_dir is None:
        click.echo(result.rendered.stream, nl=False)
    for note in result.rendered.notes:
        diagnose("note", note)
    for words in dict.fromkeys(words for file in result.rendered.files for words in file.checked):
        diagnose("checked", words)
    if result.run_dir is not None:
        diagnose("note", f"{', '.join(file.name for file in result.rendered.files)} are in {result.run_dir}")
