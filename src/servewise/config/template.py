"""Write a service file with the reasons of its values as comments."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from servewise.catalog import DEVICE_SUFFIX
from servewise.config.uses import Use, effort_permits, uses
from servewise.errors import InputError, UnknownNameError
from servewise.types import Effort

__all__ = ["Answers", "service_text"]

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS: Final = frozenset({"null", "true", "false"})
_COLUMNS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What ``servewise init`` asked.

    Parameters
    ----------
    use : str
        One of :func:`servewise.config.uses`.
    name : str
        Of the service.
    models : sequence of str
        Names of the catalog, or paths of files that describe a model.
    promise : mapping of str to float
        By key of a service file; what is not given is as the use has it.
    rate_rps : float [requests/s]
        Of a profile, of a trace or of what is made up; 0 leaves a profile or a trace as it is.
    num_requests : int
        Of a job whose requests are there from the start.
    trace : Path or None
        Of the user's own traffic, instead of what the use has.
    min_recovery_pct : float [%]
    max_effort : Effort
    gpus : sequence of str
        Names of the catalog, or paths of files that describe a GPU.
    max_gpus : int or None
    usd_per_h : float or None
    """

    use: str
    name: str
    models: Sequence[str]
    gpus: Sequence[str]
    promise: Mapping[str, float] = field(default_factory=dict)
    rate_rps: float = 0.0
    num_requests: int = 0
    trace: Path | None = None
    min_recovery_pct: float = 99.0
    max_effort: Effort = "medium"
    max_gpus: int | None = None
    usd_per_h: float | None = None


def service_text(answers: Answers, folder: Path) -> str:
    """The YAML of a service file, with the reason and the source of each value as comments.

    Parameters
    ----------
    answers : Answers
    folder : Path
        Where the file will stand: paths in it start there.

    Raises
    ------
    InputError
        When a name or a path holds characters that do not print.
    UnknownNameError
        When there is no such use.
    """
    if answers.use not in uses():
        raise UnknownNameError("use", answers.use, uses())
    use = uses()[answers.use]
    lines = [
        *_comment(
            f"{answers.use}: {use.title}. Written by servewise init; every key is explained in docs/service-file.md."
        ),
        f"name: {_text(answers.name)}",
        *_comment("what is served: a catalog name, or the path of a config.json; a list compares models"),
        f"model: {_names([_placed(name, folder) for name in answers.models])}",
        "",
        *_comment("the requests: what a plan is computed for"),
        *_traffic(use, answers, folder),
        "",
        *_comment("question 1: what is promised, in seconds"),
        *_promise(use, answers),
        "",
        *_comment("question 2: how much of the 16-bit model's score a precision must keep, in percent"),
        *_quality(use, answers),
        "",
        *_comment("question 3: what the team can run"),
        *_effort(answers),
        "",
        *_comment("what may be rented; servewise catalog gpus lists more"),
        f"hardware: {_names([_placed(name, folder) for name in answers.gpus])}",
        *_budget(answers),
    ]
    return "\n".join(lines) + "\n"


def _traffic(use: Use, answers: Answers, folder: Path) -> list[str]:
    lines = ["traffic:"]
    if answers.trace is not None:
        path = _text(_relative(answers.trace, folder))
        lines += [*_comment("your own traffic; its path starts at this file's folder", 1), f"  trace: {path}"]
    elif use.profile:
        lines += [*_comment(use.traffic_why, 1), f"  profile: {use.profile}"]
    else:
        lines += [*_comment(f"{use.traffic_why}; a trace of your own is better", 1), "  synthesis:"]
        num_requests = answers.num_requests or use.synthesis["num_requests"]
        rate_rps = float(num_requests) if use.at_once else answers.rate_rps or 1.0
        arrivals = {**use.synthesis["arrivals"], "rate_rps": rate_rps}
        made_up = {**use.synthesis, "num_requests": num_requests, "arrivals": arrivals}
        return [*lines, *(f"    {key}: {_flow(value)}" for key, value in made_up.items())]
    if answers.rate_rps:
        lines += [
            *_comment("rescaled to this mean rate, in requests per second", 1),
            f"  rate_rps: {answers.rate_rps!r}",
        ]
    return lines


def _promise(use: Use, answers: Answers) -> list[str]:
    lines = ["promise:"]
    for key in dict.fromkeys((*use.promise, *answers.promise)):
        limit, value = use.promise.get(key), answers.promise.get(key)
        if limit is None:
            lines += _comment("yours", 1)
        elif value is None or value == limit.value:
            value = limit.value
            lines += _comment(f"{limit.why} ({limit.provenance.source})", 1)
        else:
            lines += _comment(f"yours; proposed was {limit.value:g}: {limit.why}", 1)
        lines.append(f"  {key}: {value!r}")
    return lines


def _quality(use: Use, answers: Answers) -> list[str]:
    lines = ["quality:", f"  min_recovery_pct: {answers.min_recovery_pct!r}"]
    if use.tasks:
        kinds = f"judged on the kinds of task that {answers.use} is made of (assumed); docs/quality.md has the results"
        lines += [*_comment(kinds, 1), f"  tasks: {_names(use.tasks, always=True)}"]
    return lines


def _effort(answers: Answers) -> list[str]:
    levels = "; ".join(f"{effort}: {permits}" for effort, permits in effort_permits().items())
    return ["operations:", *_comment(f"{levels} (docs/effort.md)", 1), f"  max_effort: {answers.max_effort}"]


def _budget(answers: Answers) -> list[str]:
    limits = {"max_gpus": answers.max_gpus, "usd_per_h": answers.usd_per_h}
    lines = [f"  {key}: {value!r}" for key, value in limits.items() if value is not None]
    return [*_comment("no fleet beyond this is tried"), "budget:", *lines] if lines else []


def _comment(text: str, depth: int = 0) -> list[str]:
    indent = "  " * depth
    return [f"{indent}# {line}" for line in textwrap.wrap(text, _COLUMNS - len(indent) - 2, break_on_hyphens=False)]


def _placed(name: str, folder: Path) -> str:
    """A name, or the path of a file from the folder."""
    return _relative(Path(name), folder) if name.endswith((".json", DEVICE_SUFFIX)) else name


def _relative(path: Path, folder: Path) -> str:
    return os.path.relpath(path.absolute(), folder.absolute())


def _text(value: str) -> str:
    """A string as a scalar that reads back as the same string."""
    if not value.isprintable():
        raise InputError(f"{value!r:.80} holds characters that do not print; names and paths may not")
    plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    return value if plain else json.dumps(value, ensure_ascii=False)


def _names(names: Sequence[str], *, always: bool = False) -> str:
    if len(names) == 1 and not always:
        return _text(names[0])
    return f"[{', '.join(map(_text, names))}]"


def _flow(value: Any) -> str:
    """A value of a use's synthesis."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    return value if isinstance(value, str) else repr(value)
