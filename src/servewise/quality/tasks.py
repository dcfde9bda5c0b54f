"""Standard tasks through EleutherAI's lm-evaluation-harness, which is called and whose figures are set side by side.

The harness runs as a program of its own, with one server at a time. Seen with lm_eval 0.4.13.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from servewise.errors import InputError, MeasurementError
from servewise.metrics.bootstrap import CONFIDENCE
from servewise.metrics.student import NORMAL, student_quantile
from servewise.types import Endpoint, Estimate, TaskScore, TaskSide

__all__ = ["HarnessResult", "TaskRun", "find_harness", "read_scores", "run_tasks"]

KEY_VARIABLE: Final = "OPENAI_API_KEY"
"""Where the harness takes a server's key from, whichever server it is."""
SHOWN_CHARS: Final = 600
UNKNOWN: Final = Estimate(value=math.nan, low=math.nan, high=math.nan, num_samples=0)
_NAME: Final = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.+-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRun:
    """Tasks to run.

    Parameters
    ----------
    names : tuple of str
        As the harness lists them (``lm_eval ls tasks``).
    folder : Path or None
        With task files of the user's own.
    limit : int or None
        Questions of each task at most.
    tokenizer : str or None
        Name or folder of a Hugging Face tokenizer: tasks that score given answers need one, and ``--raw``.
    concurrency : int
        Requests at once.

    Raises
    ------
    InputError
        When a name is none.
    """

    names: tuple[str, ...]
    folder: Path | None = None
    limit: int | None = None
    tokenizer: str | None = None
    concurrency: int = 4

    def __post_init__(self) -> None:
        for name in self.names:
            if not _NAME.fullmatch(name):
                raise InputError(f"{name!r} is no name of a task; give names as 'lm_eval ls tasks' lists them")


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessResult:
    """What the harness found at one server.

    Parameters
    ----------
    document : mapping
        Its result file.
    questions : mapping of (task, metric with its filter) to mapping of int to float
        Score of each question, where it has one.
    """

    document: Mapping[str, Any]
    questions: Mapping[tuple[str, str], Mapping[int, float]]


def find_harness() -> list[str]:
    """The program of the harness: of this environment, or on the path.

    Raises
    ------
    InputError
        When it is not installed.
    """
    if importlib.util.find_spec("lm_eval") is not None:
        return [sys.executable, "-m", "lm_eval"]
    found = shutil.which("lm_eval")
    if found is None:
        raise InputError(
            "standard tasks need EleutherAI's lm-evaluation-harness, which is not installed: pip install"
            " 'servewise[eval]', or 'lm_eval[api]' in an environment whose lm_eval is on the path"
        )
    return [found]


def run_tasks(
    sides: tuple[Endpoint, Endpoint],
    keys: tuple[str | None, str | None],
    asked: TaskRun,
    *,
    progress: Callable[[str, int, int], None],
) -> tuple[TaskScore, ...]:
    """Run tasks on base and candidate.

    Parameters
    ----------
    sides : pair of Endpoint
    keys : pair of str or None
        Each goes to the harness in its environment and to its server alone.
    asked : TaskRun
    progress : callable
        Called with the stage, the servers done and in all.

    Raises
    ------
    InputError
        When the harness is not installed.
    MeasurementError
        When it fails, or says nothing that can be read.
    """
    program = find_harness()
    found = []
    for done, (side, key) in enumerate(zip(sides, keys, strict=True)):
        progress("standard tasks", done, len(sides))
        found.append(_run(program, side, key, asked))
    progress("standard tasks", len(sides), len(sides))
    return read_scores(found[0], found[1])


def _run(program: Sequence[str], side: Endpoint, key: str | None, asked: TaskRun) -> HarnessResult:
    with tempfile.TemporaryDirectory(prefix="servewise-tasks-") as folder:
        environment = {name: value for name, value in os.environ.items() if name != KEY_VARIABLE}
        # it asks for one even where the server does not
        environment[KEY_VARIABLE] = key or "none"
        ended = subprocess.run(  # noqa: S603 - a list, no shell; names are checked and model arguments are JSON
            [*program, *_arguments(side, asked, folder)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        files = sorted(Path(folder).rglob("results_*.json"))
        if ended.returncode != 0 or not files:
            # a key that is cut in two would not be found
            said = ended.stdout if key is None else ended.stdout.replace(key, "***")
            said = said.strip()[-SHOWN_CHARS:]
            raise MeasurementError(f"lm_eval ended with code {ended.returncode} on {side.base_url}: {said}")
        try:
            document = json.loads(files[-1].read_bytes())
        except ValueError as error:
            raise MeasurementError(f"lm_eval wrote results that are not JSON ({error})") from error
        questions = _questions(Path(folder))
    if not isinstance(document, dict):
        raise MeasurementError("lm_eval wrote results that are no JSON object")
    return HarnessResult(document=document, questions=questions)


def _questions(folder: Path) -> dict[tuple[str, str], dict[int, float]]:
    """Scores of the single questions in the harness's sample files; what cannot be read is left out."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for path in folder.rglob("samples_*.jsonl"):
        task = path.stem.removeprefix("samples_").rpartition("_")[0]
        for line in path.read_bytes().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            for metric in row.get("metrics", ()) if isinstance(row, dict) else ():
                if _is_number(row.get(metric)):
                    scores = found.setdefault((task, f"{metric},{row.get('filter')}"), {})
                    scores[_count(row.get("doc_id"))] = float(row[metric])
    return found


def _arguments(side: Endpoint, asked: TaskRun, folder: str) -> list[str]:
    """Arguments of the harness. The model's are one JSON document: a name from a server cannot add others."""
    is_raw = side.api == "openai-completions"
    path = "/v1/completions" if is_raw else "/v1/chat/completions"
    model: dict[str, Any] = {
        "model": side.model,
        "base_url": f"{side.base_url}{path}",
        "num_concurrent": asked.concurrency,
        "max_retries": 3,
        "tokenizer_backend": "none" if asked.tokenizer is None else "huggingface",
        "tokenized_requests": False,
    }
    if asked.tokenizer is not None:
        model["tokenizer"] = asked.tokenizer
    arguments = [
        f"--model={'local-completions' if is_raw else 'local-chat-completions'}",
        f"--model_args={json.dumps(model)}",
        f"--tasks={','.join(asked.names)}",
        f"--output_path={folder}",
        "--log_samples",
    ]
    if not is_raw:
        arguments.append("--apply_chat_template")
    if asked.folder is not None:
        arguments.append(f"--include_path={asked.folder.resolve()}")
    if asked.limit is not None:
        arguments.append(f"--limit={asked.limit}")
    return arguments


def read_scores(base: HarnessResult, candidate: HarnessResult) -> tuple[TaskScore, ...]:
    """Scores that two results of the harness have in common.

    Raises
    ------
    MeasurementError
        When there is none.
    """
    found = []
    theirs = _results(candidate.document)
    for task, row in _results(base.document).items():
        for key, value in row.items():
            name, _, kind = key.partition(",")
            other = theirs.get(task, {}).get(key)
            # metrics have a filter behind a comma, e.g. acc,none
            if not kind or name.endswith("_stderr") or not (_is_number(value) and _is_number(other)):
                continue
            sides = [
                TaskSide(score=float(scores[key]), stderr=_number(scores.get(f"{name}_stderr,{kind}")))
                for scores in (row, theirs[task])
            ]
            higher = _inner(base.document, "higher_is_better", task).get(name) is not False
            pairs = _pairs(base.questions.get((task, key), {}), candidate.questions.get((task, key), {}), sides)
            found.append(
                TaskScore(
                    task=task,
                    metric=key.removesuffix(",none"),
                    higher_is_better=higher,
                    num_samples=_count(_inner(base.document, "n-samples", task).get("effective")),
                    base=sides[0],
                    candidate=sides[1],
                    recovery_pct=_recovery(sides[0], sides[1], pairs) if higher else UNKNOWN,
                )
            )
    if not found:
        raise MeasurementError("lm_eval gave no score of any task to both servers")
    return tuple(found)


def _pairs(
    base: Mapping[int, float], candidate: Mapping[int, float], sides: Sequence[TaskSide]
) -> tuple[tuple[float, float], ...]:
    """Scores of each question from both, where their means are the scores; none where a metric is no mean."""
    pairs = tuple((base[question], candidate[question]) for question in base.keys() & candidate.keys())
    if len(pairs) < 2 or len(pairs) != max(len(base), len(candidate)):
        return ()
    means = (math.fsum(values) / len(pairs) for values in zip(*pairs, strict=True))
    is_mean = all(math.isclose(mean, side.score, rel_tol=1e-6) for mean, side in zip(means, sides, strict=True))
    return pairs if is_mean else ()


def _recovery(base: TaskSide, candidate: TaskSide, pairs: Sequence[tuple[float, float]]) -> Estimate:
    """Candidate's score in percent of the base's, with a 95% interval (linearization of the ratio).

    Question by question where their scores are known, as both answer the same ones; else from the two standard errors
    as if they were independent.
    """
    if base.score <= 0.0:
        return UNKNOWN
    ratio = candidate.score / base.score
    if pairs:
        num = len(pairs)
        residuals = math.fsum((theirs - ratio * mine) ** 2 for mine, theirs in pairs)
        error = math.sqrt(num / (num - 1.0) * residuals) / (num * base.score)
        reach = student_quantile(CONFIDENCE, num - 1.0) * error
    else:
        reach = NORMAL * math.hypot(candidate.stderr, ratio * base.stderr) / base.score
    ends = max(ratio - reach, 0.0), ratio + reach
    return Estimate(value=100.0 * ratio, low=100.0 * ends[0], high=100.0 * ends[1], num_samples=len(pairs))


def _results(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    results = document.get("results")
    rows = results.items() if isinstance(results, dict) else ()
    return {task: row for task, row in rows if isinstance(row, dict)}


def _inner(document: Mapping[str, Any], name: str, task: str) -> Mapping[str, Any]:
    outer = document.get(name)
    inner = outer.get(task) if isinstance(outer, dict) else None
    return inner if isinstance(inner, dict) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(value: Any) -> float:
    return float(value) if _is_number(value) else math.nan


def _count(value: Any) -> int:
    return value if isinstance(value, int) else -1
