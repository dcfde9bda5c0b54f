"""``servewise quality``: what a quantized or smaller model loses on the user's own prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from servewise.api import TaskRun

__all__ = ["quality"]


@click.command()
@click.argument("base_url")
@click.argument("candidate_url")
@click.option(
    "--prompts",
    "prompts_path",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="Your prompts: .jsonl with prompt or messages in each line, or plain text with one prompt a line.",
)
@click.option("--num-prompts", type=click.IntRange(min=1), help="Draw so many of them.  [default: all]")
@click.option(
    "--max-tokens", type=click.IntRange(1, 100_000), default=128, show_default=True, help="Of an answer, at most."
)
@click.option(
    "--positions",
    type=click.IntRange(min=1),
    help="Compare the next token at so many positions of each answer.  [default: all, 32 with llama.cpp]",
)
@click.option(
    "--top-logprobs",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="Most probable tokens that are asked for at each position; vLLM allows 20 unless started with more.",
)
@click.option(
    "--concurrency", type=click.IntRange(1, 100), default=4, show_default=True, help="Prompts under way at once."
)
@click.option("--min-agreement", type=click.FloatRange(0, 1), help="Same next token at least so often, e.g. 0.98.")
@click.option("--raw", is_flag=True, help="Send prompts as they are, without a chat template.")
@click.option("--show-text", is_flag=True, help="Show the texts of the worst, and keep all prompts and answers.")
@click.option("--tasks", metavar="A,B,...", help="Standard tasks to run, e.g. gsm8k,ifeval (needs servewise[eval]).")
@click.option(
    "--tasks-path",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder with task files of your own for lm-evaluation-harness.",
)
@click.option("--tasks-limit", type=click.IntRange(min=1), help="Questions of each task at most.")
@click.option("--tasks-tokenizer", metavar="NAME", help="Tokenizer for tasks that score given answers, with --raw.")
@click.option(
    "--record",
    type=click.Path(path_type=Path, dir_okay=False),
    help="New file for all that the base says: given as BASE_URL later, it stands for the base.",
)
@click.option("--base-model", metavar="NAME", help="The base, when its server has several models.")
@click.option("--candidate-model", metavar="NAME", help="The candidate, when its server has several models.")
@click.option("--base-key-env", metavar="VARIABLE", help="Environment variable that holds the base's key.")
@click.option("--candidate-key-env", metavar="VARIABLE", help="Environment variable that holds the candidate's key.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds until a request has failed.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Of the draw and the intervals."
)
@click.option("--yes", is_flag=True, help="Do not ask before sending prompts to another machine.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="Folder in which a new run folder with quality.json is made.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.pass_context
def quality(ctx: click.Context, /, base_url: str, candidate_url: str, **asked: Any) -> None:
    """Compare a quantized or smaller model with its base on your own prompts.

    Both servers answer each prompt greedily, the base twice: what it differs from itself is the noise. Where the
    engines give log probabilities, the next token is compared at each position of the base's answer. BASE_URL may be a
    file of --record, when only one of the two can be up at a time.

    The exit code is 3 when --min-agreement is missed, 4 when the figures cannot be trusted or are too few to tell.
    """
    from servewise import api
    from servewise.cli.app import EXIT_DONE, EXIT_INFEASIBLE, EXIT_INTERRUPTED, EXIT_MEASUREMENT
    from servewise.cli.measure import confirm
    from servewise.cli.terminal import diagnose, progress, show, show_json
    from servewise.report import quality_json, quality_terminal

    recording = Path(base_url)
    base = (
        recording
        if recording.is_file()
        else api.Target(url=base_url, model=asked["base_model"], key_env=asked["base_key_env"])
    )
    candidate = api.Target(url=candidate_url, model=asked["candidate_model"], key_env=asked["candidate_key_env"])
    tasks = _tasks(asked)
    for target in (base, candidate):
        if isinstance(target, api.Target):
            confirm(target, yes=asked["yes"])
    with progress() as report_progress:
        result = api.quality(
            base,
            candidate,
            asked["prompts_path"],
            api.Asked(
                max_tokens=asked["max_tokens"],
                top=asked["top_logprobs"],
                positions=asked["positions"],
                concurrency=asked["concurrency"],
                seed=asked["seed"],
                raw=asked["raw"],
                keep_text=asked["show_text"],
                min_agreement=asked["min_agreement"],
            ),
            num_prompts=asked["num_prompts"],
            timeout_s=asked["timeout"],
            tasks=tasks,
            record=asked["record"],
            out_dir=asked["out"],
            progress=report_progress,
        )
    found = result.comparison
    if asked["as_json"]:
        show_json(quality_json(found))
    else:
        show(quality_terminal(found))
    diagnose("note", f"quality.json is in {result.run_dir}")
    if result.not_recorded:
        diagnose("error", f"the recording was not written: {result.not_recorded}")
    if found.interrupted:
        diagnose("error", "interrupted; what was finished until then is kept")
        ctx.exit(EXIT_INTERRUPTED)
    if result.not_recorded:
        ctx.exit(EXIT_MEASUREMENT)
    if tasks is not None and not found.tasks:
        diagnose("error", "the standard tasks failed")
        ctx.exit(EXIT_MEASUREMENT)
    if found.verdict == "not trustworthy":
        diagnose("error", "the figures cannot be trusted")
        ctx.exit(EXIT_MEASUREMENT)
    ctx.exit({"": EXIT_DONE, "kept": EXIT_DONE, "broken": EXIT_INFEASIBLE}.get(found.standing, EXIT_MEASUREMENT))


def _tasks(asked: dict[str, Any]) -> TaskRun | None:
    from servewise import api
    from servewise.errors import InputError

    if asked["tasks"] is None:
        for option in ("tasks_path", "tasks_limit", "tasks_tokenizer"):
            if asked[option] is not None:
                raise InputError(f"--{option.replace('_', '-')} is about standard tasks; name them with --tasks")
        return None
    return api.TaskRun(
        names=tuple(name.strip() for name in asked["tasks"].split(",")),
        folder=asked["tasks_path"],
        limit=asked["tasks_limit"],
        tokenizer=asked["tasks_tokenizer"],
        concurrency=asked["concurrency"],
    )
