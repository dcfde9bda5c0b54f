"""``servewise runs``: runs in files, also those of other load generators."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["runs"]

_run = click.Path(path_type=Path, exists=True)


@click.group()
def runs() -> None:
    """Read and write runs of other load generators, and compare runs.

    RUN is the folder that 'servewise measure' or 'servewise runs import' made, or a result file with one run.
    """


@runs.command("import")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option(
    "--tool", help="Whose file it is: aiperf, guidellm, inference-perf, sglang or vllm.  [default: its content]"
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="Folder in which a new run folder is made for each run in the file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def import_file(file: Path, tool: str | None, out: Path, as_json: bool) -> None:
    """Read the result FILE of AIPerf, GuideLLM, inference-perf, SGLang or vLLM into run folders.

    Says what the tool means by its figures, what became of them, and what the file does not hold. The file must hold
    the single requests: AIPerf's profile_export.jsonl, GuideLLM's benchmarks.json, inference-perf's
    per_request_lifecycle_metrics.json, bench_serving --output-details, vllm bench serve --save-detailed.
    """
    from servewise import api
    from servewise.cli.terminal import show, show_json
    from servewise.report import imported_json, imported_terminal

    kept = api.import_runs(file, tool=tool, out_dir=out)
    if as_json:
        show_json([imported_json(run, folder) for run, folder in kept])
        return
    for run, folder in kept:
        show(imported_terminal(run, folder))


@runs.command()
@click.argument("run", type=_run, metavar="RUN")
@click.option("--format", "file_format", required=True, help="vllm or aiperf.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The new file.")
def export(run: Path, file_format: str, out: Path) -> None:
    """Write RUN as another load generator would, for scripts that read its files.

    vllm: the document of 'vllm bench serve --save-detailed'. aiperf: the lines of profile_export.jsonl.
    """
    from servewise import api
    from servewise.cli.terminal import diagnose

    api.export_run(run, format=file_format, out=out)
    diagnose("note", f"written to {out}")


@runs.command()
@click.argument("run_a", type=_run, metavar="RUN_A")
@click.argument("run_b", type=_run, metavar="RUN_B")
@click.option("--more-a", type=_run, multiple=True, help="A repeat of RUN_A; may be given several times.")
@click.option("--more-b", type=_run, multiple=True, help="A repeat of RUN_B; may be given several times.")
@click.option("--promise", "promise_text", metavar="LIMITS", help="Also compare attainment, e.g. ttft_s=1,tpot_s=0.05.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the bootstrap.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def compare(
    run_a: Path,
    run_b: Path,
    more_a: tuple[Path, ...],
    more_b: tuple[Path, ...],
    promise_text: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Say whether RUN_B differs from RUN_A by more than noise.

    Each figure's change has a 95% interval; "slower" and "faster" are said only where that is not one of the chances
    that so many figures offer. Where the runs are too short to tell, that is said.
    """
    from servewise import api
    from servewise.cli.terminal import show, show_json
    from servewise.config import parse_promise
    from servewise.report import difference_json, difference_terminal

    promise = None if promise_text is None else parse_promise(promise_text)
    found = api.compare_runs((run_a, *more_a), (run_b, *more_b), promise, seed=seed)
    if as_json:
        show_json(difference_json(found, str(run_a), str(run_b)))
    else:
        show(difference_terminal(found, str(run_a), str(run_b), promise))
