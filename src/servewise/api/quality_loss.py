"""What a candidate loses against its base at real endpoints, on the user's own prompts and in standard tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from servewise.errors import InputError, MeasurementError
from servewise.measure.discover import discover
from servewise.measure.job import Target
from servewise.net.address import api_key
from servewise.net.plain import PlainClient
from servewise.quality.comparison import compare_quality
from servewise.quality.prompts import read_prompts
from servewise.quality.recording import RecordedClient, RecordingClient
from servewise.quality.servers import MAX_ANSWER_BYTES
from servewise.quality.tasks import TaskRun, find_harness, run_tasks
from servewise.quality.way import Asked, Side
from servewise.report import quality_json
from servewise.store import check_run_parent, digest, new_run_dir, write_text_atomic
from servewise.types import Api, Endpoint, QualityComparison

__all__ = ["QualityResult", "quality"]

Client = TypeVar("Client", bound=PlainClient)


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityResult:
    """A comparison with where it is kept.

    Parameters
    ----------
    comparison : QualityComparison
    run_dir : Path or None
    not_recorded : str
        Why the recording that was asked for was not written; else empty.
    """

    comparison: QualityComparison
    run_dir: Path | None
    not_recorded: str = ""


def quality(
    base: Target | Path,
    candidate: Target,
    prompts_path: Path,
    asked: Asked,
    *,
    num_prompts: int | None = None,
    timeout_s: float = 600.0,
    tasks: TaskRun | None = None,
    record: Path | None = None,
    out_dir: Path | None = None,
    progress: Callable[[str, int, int], None] = lambda _stage, _done, _total: None,
) -> QualityResult:
    """Compare a candidate's answers with its base's.

    Parameters
    ----------
    base : Target or Path
        A recording stands for the server it was made of.
    candidate : Target
    prompts_path : Path
        See :func:`servewise.quality.prompts.read_prompts`.
    asked : Asked
    num_prompts : int, optional
        Draw so many prompts at random.
    timeout_s : float [s]
        Of one request.
    tasks : TaskRun, optional
        Standard tasks to run afterwards.
    record : Path, optional
        New file for a recording of the base.
    out_dir : Path, optional
        Where to make a new run folder; nothing is written without it.
    progress : callable, optional
        Called with the stage, the prompts done and in all.

    Raises
    ------
    InputError
        When the prompts cannot be read, a server wants a key, or the harness of the tasks is not installed.
    MeasurementError
        When a server does not answer, or no prompt could be compared.
    """
    prompts = read_prompts(prompts_path, raw=asked.raw, num_prompts=num_prompts, seed=asked.seed)
    hashes = {"prompts_file": prompts_path.name, "prompts_digest": digest(prompts_path)}
    if out_dir is not None:
        check_run_parent(out_dir)
    if record is not None and isinstance(base, Path):
        raise InputError("the base is a recording already; --record makes one of a server")
    if record is not None:
        _check_new(record)
    if tasks is not None:
        if isinstance(base, Path):
            raise InputError("standard tasks ask both servers; a recording of the base does not know what they ask")
        find_harness()
    with ExitStack() as stack:
        if isinstance(base, Path):
            recorded = RecordedClient(base)
            first: PlainClient = recorded
            first_target = Target(url=recorded.base_url, model=recorded.model)
        else:
            first = stack.enter_context(_client(RecordingClient if record else PlainClient, base, timeout_s))
            first_target = base
        second = stack.enter_context(_client(PlainClient, candidate, timeout_s))
        found = compare_quality(
            _side("base", first, first_target, raw=asked.raw),
            _side("candidate", second, candidate, raw=asked.raw),
            prompts,
            asked,
            progress=lambda done, total: progress("prompts", done, total),
        )
    is_whole = not found.interrupted
    found = replace(found, settings={**found.settings, **hashes})
    if isinstance(base, Path):
        found = replace(found, notes=(f"the base is the recording {base.name}", *found.notes))
    elif tasks is not None and not found.interrupted:
        found = _with_tasks(found, (api_key(base.key_env), api_key(candidate.key_env)), tasks, progress)
    run_dir = None
    if out_dir is not None:
        run_dir = new_run_dir(out_dir, f"{found.candidate.model}-quality")
        write_text_atomic(run_dir / "quality.json", json.dumps(quality_json(found), indent=1) + "\n")
    not_recorded = ""
    if record is not None and isinstance(first, RecordingClient):
        # last, as nothing of the comparison may be lost with it
        not_recorded = _write_recording(first, record, found.base) if is_whole else "the run was interrupted"
    return QualityResult(comparison=found, run_dir=run_dir, not_recorded=not_recorded)


def _check_new(record: Path) -> None:
    """Find out before long work whether a recording can be written."""
    if record.exists():
        raise InputError(f"{record} exists already and is not overwritten; choose another name")
    if not record.parent.is_dir():
        raise InputError(f"there is no folder {record.parent} for the recording; make it, or choose another")
    check_run_parent(record.parent)


def _write_recording(client: RecordingClient, record: Path, base: Endpoint) -> str:
    """Why it could not be written, if so."""
    try:
        client.write(record, base)
    except InputError as error:
        return str(error)
    return ""


def _client(kind: type[Client], target: Target, timeout_s: float) -> Client:
    key = api_key(target.key_env)
    return kind(target.base_url, api_key=key, timeout_s=timeout_s, max_bytes=MAX_ANSWER_BYTES)


def _side(name: str, client: PlainClient, target: Target, *, raw: bool) -> Side:
    """Recognise a server."""
    api: Api | None = "openai-completions" if raw else target.api
    try:
        endpoint = discover(client, target.base_url, model=target.model, api=api, stream=False).endpoint
    except InputError as error:
        raise InputError(f"{error} (of the {name}: --{name}-model, --{name}-key-env)") from error
    return Side(endpoint=replace(endpoint, temperature=0.0), client=client)


def _with_tasks(
    found: QualityComparison,
    keys: tuple[str | None, str | None],
    tasks: TaskRun,
    progress: Callable[[str, int, int], None],
) -> QualityComparison:
    """The same with scores; without them, and with the reason, when the harness fails: the rest is not lost."""
    try:
        scores = run_tasks((found.base, found.candidate), keys, tasks, progress=progress)
    except (MeasurementError, OSError) as error:
        return replace(found, notes=(*found.notes, f"there are no scores of standard tasks: {error}"))
    except KeyboardInterrupt:
        return replace(found, interrupted=True)
    return replace(found, tasks=scores)
