"""``servewise init``: the three questions, and a service file with sensible limits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from servewise.api import Answers
    from servewise.config import Use
    from servewise.types import Effort

__all__ = ["init"]

Answer = TypeVar("Answer")
GPUS = ("H100-SXM-80GB", "A100-SXM-80GB", "L40S-48GB")
MAX_GPUS = 16
LOSS_PCT = 1.0
LIMITS = {
    "ttft_s": "Seconds to the first token",
    "tpot_s": "Seconds from token to token",
    "e2e_s": "Seconds to the whole answer",
    "attainment": "Share of the requests that keep this",
    "deadline_s": "Seconds until the job is done",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Answers from options, from defaults, or from a person.

    Parameters
    ----------
    take_defaults : bool
        Whether what is not given is as proposed.
    """

    take_defaults: bool

    def say(self, text: str) -> None:
        """Explain what is asked, to a person."""
        if not self.take_defaults and is_terminal():
            click.echo(f"\n{text}", err=True)

    def ask(
        self, option: str, given: Answer | None, proposed: Answer, text: str, read: Callable[[str], Answer]
    ) -> Answer:
        """The answer to one question.

        Raises
        ------
        click.UsageError
            When it is not given and there is nobody to ask.
        """
        if given is not None:
            return given
        if self.take_defaults:
            return proposed
        if not is_terminal():
            raise click.UsageError(
                f"stdin is no terminal, so nothing can be asked; give {option}, or --yes for what is proposed"
            )
        return self._prompt(text, _shown(proposed), read)

    def _prompt(self, text: str, shown: str, read: Callable[[str], Answer]) -> Answer:
        from servewise.errors import InputError

        def checked(answer: str) -> Answer:
            try:
                return read(answer)
            except (InputError, ValueError) as error:
                raise click.UsageError(str(error)) from error

        found: Answer = click.prompt(text, default=shown, value_proc=checked, err=True)
        return found


def _shown(proposed: object) -> str:
    """What is proposed, as it would be typed."""
    if isinstance(proposed, tuple):
        return ", ".join(proposed)
    return f"{proposed:g}" if isinstance(proposed, (int, float)) else str(proposed)


def is_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty()


@click.command()
@click.argument(
    "path", type=click.Path(path_type=Path, dir_okay=False), default=Path("service.yaml"), metavar="[FILE.yaml]"
)
@click.option("--use", help="Kind of use: chat, agent, rag, code, summarisation or offline.")
@click.option("--name", help="Name of the service.  [default: the file's]")
@click.option("--model", "models", multiple=True, help="Catalog name or path of a config.json; repeat it to compare.")
@click.option("--trace", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="File with your traffic.")
@click.option("--rate-rps", type=click.FloatRange(0, min_open=True), help="Mean rate, in requests per second.")
@click.option("--requests", type=click.IntRange(1, 10**7), help="Requests of an offline job.")
@click.option("--ttft-s", type=click.FloatRange(0, min_open=True), help="Limit on the time to first token.")
@click.option("--tpot-s", type=click.FloatRange(0, min_open=True), help="Limit on the time per output token.")
@click.option("--e2e-s", type=click.FloatRange(0, min_open=True), help="Limit on the time of a whole answer.")
@click.option("--attainment", type=click.FloatRange(0, 1, min_open=True, max_open=True), help="Share that keeps them.")
@click.option("--deadline-s", type=click.FloatRange(0, min_open=True), help="When an offline job must be done.")
@click.option("--loss-pct", type=click.FloatRange(0, 100), help="Share of the model's score that may be lost.")
@click.option("--effort", type=click.Choice(["low", "medium", "high"]), help="What your team can run.")
@click.option("--gpu", "gpus", multiple=True, help="GPU that may be rented; repeat it for each.")
@click.option("--max-gpus", type=click.IntRange(1, 100_000), help="Most GPUs of the fleet.")
@click.option("--usd-per-h", type=click.FloatRange(0, min_open=True), help="Most dollars an hour.  [default: no limit]")
@click.option("--yes", "-y", is_flag=True, help="Ask nothing: what is not given is as proposed.")
def init(
    path: Path,
    use: str | None,
    name: str | None,
    models: tuple[str, ...],
    trace: Path | None,
    rate_rps: float | None,
    requests: int | None,
    loss_pct: float | None,
    effort: str | None,
    gpus: tuple[str, ...],
    max_gpus: int | None,
    usd_per_h: float | None,
    yes: bool,
    **limits: float | None,
) -> None:
    """Ask the three questions and write a first service file with sensible limits, each explained.

    FILE.yaml is new, service.yaml by default; nothing is overwritten. Every question has an option, so that nothing
    need be asked; Enter takes what is proposed.
    """
    from servewise import api
    from servewise.cli.terminal import diagnose
    from servewise.errors import InputError

    if path.exists():
        raise InputError(f"{path} exists already and is not overwritten; choose another name")
    questions = Questions(take_defaults=yes)
    kind, facts = _use(questions, use)
    chosen = _models(questions, models, facts)
    rate, num_requests = _traffic(questions, facts, trace, rate_rps, requests)
    answers: Answers = api.Answers(
        use=kind,
        name=name or path.stem,
        models=chosen,
        trace=trace,
        rate_rps=rate,
        num_requests=num_requests,
        promise=_promise(questions, facts, limits),
        min_recovery_pct=100 - _loss(questions, loss_pct),
        max_effort=_effort(questions, effort),
        gpus=_gpus(questions, gpus),
        max_gpus=_max_gpus(questions, max_gpus),
        usd_per_h=usd_per_h,
    )
    api.start_service(answers, path)
    click.echo(str(path))
    diagnose("note", f"wrote {path}; change what is not yours in it, then: servewise plan {path}")


def _use(questions: Questions, given: str | None) -> tuple[str, Use]:
    from servewise import api
    from servewise.errors import UnknownNameError

    known = api.uses()
    questions.say("What is served?\n" + "\n".join(f"  {name:14} {use.title}" for name, use in known.items()))

    def read(answer: str) -> str:
        if answer not in known:
            raise UnknownNameError("use", answer, known)
        return answer

    name = read(questions.ask("--use", given, next(iter(known)), "Kind of use", read))
    return name, known[name]


def _models(questions: Questions, given: Sequence[str], use: Use) -> tuple[str, ...]:
    from servewise import api

    questions.say(
        "With which model? Catalog names (servewise catalog models) or paths of a config.json; several compare."
    )
    read = _several(api.check_model)
    found = questions.ask("--model", tuple(given) or None, (use.model,), "Model", read)
    return tuple(map(api.check_model, found))


def _traffic(
    questions: Questions, use: Use, trace: Path | None, rate_rps: float | None, requests: int | None
) -> tuple[float, int]:
    """Rate, and number of requests of a job; 0 where the traffic itself says."""
    if requests is not None and (trace is not None or not use.at_once):
        raise click.UsageError(
            "--requests is the size of an offline job without a trace; leave it out, or --use offline"
        )
    if rate_rps is not None and trace is None and use.at_once:
        raise click.UsageError("the requests of an offline job are all there at once; leave --rate-rps out")
    if trace is not None:
        return rate_rps or 0.0, 0
    questions.say(f"How much traffic? Without a trace of your own (--trace): {use.traffic_why}.")
    if use.at_once:
        return 0.0, questions.ask("--requests", requests, use.synthesis["num_requests"], "Requests in the job", _count)
    return questions.ask("--rate-rps", rate_rps, 1.0, "Requests per second, on average", _positive), 0


def _promise(questions: Questions, use: Use, given: dict[str, float | None]) -> dict[str, float]:
    questions.say("1. What do you promise?")
    found = {key: value for key, value in given.items() if value is not None}
    for key, limit in use.promise.items():
        if key not in found:
            questions.say(f"{key}: {limit.why}.")
        option = f"--{key.replace('_', '-')}"
        found[key] = questions.ask(
            option, found.get(key), limit.value, key, _share if key == "attainment" else _positive
        )
    return found


def _loss(questions: Questions, given: float | None) -> float:
    questions.say(
        "2. How much quality may you give up, in percent of the model's score? 0 allows only what loses nothing;"
        " typically 8-bit weights lose less than 1, 4-bit ones up to 4 (docs/quality.md); the plan says what is at risk"
    )

    def read(answer: str) -> float:
        loss = _number(answer)
        if not 0 <= loss <= 100:
            raise ValueError(f"{answer} is not a percentage from 0 to 100")
        return loss

    return questions.ask("--loss-pct", given, LOSS_PCT, "Percent", read)


def _effort(questions: Questions, given: str | None) -> Effort:
    from servewise import api

    permits = api.effort_permits()
    questions.say("3. What can your team run?\n" + "\n".join(f"  {name:8} {text}" for name, text in permits.items()))

    def read(answer: str) -> Effort:
        found = next((effort for effort in permits if effort == answer), None)
        if found is None:
            raise ValueError(f"{answer!r} is none of {', '.join(permits)}")
        return found

    return questions.ask("--effort", None if given is None else read(given), "medium", "Effort", read)


def _gpus(questions: Questions, given: Sequence[str]) -> tuple[str, ...]:
    from servewise import api

    questions.say("Which GPUs may be rented? Catalog names (servewise catalog gpus), with commas between.")
    found = questions.ask("--gpu", tuple(given) or None, GPUS, "GPUs", _several(api.check_gpu))
    return tuple(map(api.check_gpu, found))


def _max_gpus(questions: Questions, given: int | None) -> int:
    return questions.ask("--max-gpus", given, MAX_GPUS, "How many of them at most", _count)


def _several(check: Callable[[str], str]) -> Callable[[str], tuple[str, ...]]:
    def read(answer: str) -> tuple[str, ...]:
        return tuple(check(name.strip()) for name in answer.split(",") if name.strip())

    return read


def _number(answer: str) -> float:
    try:
        return float(answer)
    except ValueError:
        raise ValueError(f"{answer!r} is not a number") from None


def _positive(answer: str) -> float:
    value = _number(answer)
    if not 0 < value < float("inf"):
        raise ValueError(f"{answer} is not a number above 0")
    return value


def _share(answer: str) -> float:
    value = _number(answer)
    if not 0 < value < 1:
        raise ValueError(f"{answer} is not a share between 0 and 1, e.g. 0.99")
    return value


def _count(answer: str) -> int:
    if not answer.isdecimal() or int(answer) < 1:
        raise ValueError(f"{answer!r} is not a whole number above 0")
    return int(answer)
