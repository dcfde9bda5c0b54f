"""Runs in files: other load generators' results read, kept and written, and runs compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from servewise.errors import InputError
from servewise.measure.formats import read_runs, write_run
from servewise.metrics import counted_log, difference
from servewise.store import check_run_parent, new_run_dir, read_run_dir, write_imported
from servewise.types import Difference, ImportedRun, Measurement, Promise, RequestLog

__all__ = ["compare_runs", "export_run", "import_runs", "read_run"]


def import_runs(path: Path, *, tool: str | None = None, out_dir: Path) -> list[tuple[ImportedRun, Path]]:
    """Read another load generator's result file and keep each of its runs in a new run folder.

    Parameters
    ----------
    path : Path
        A file of AIPerf, GuideLLM, inference-perf, SGLang or vLLM.
    tool : str or None
        Whose file it is; told from its content by default.
    out_dir : Path
        Where to make the run folders.

    Returns
    -------
    list of (ImportedRun, Path)
        The runs, and the folder of each.

    Raises
    ------
    InputError
        When the file cannot be read or understood, or nothing can be written.
    """
    check_run_parent(out_dir)
    kept = []
    for run in read_runs(path, tool):
        folder = new_run_dir(out_dir, f"{run.tool}-{run.name}")
        write_imported(folder, run)
        kept.append((run, folder))
    return kept


def read_run(path: Path) -> Measurement | ImportedRun:
    """Read a run: the folder of a measurement or an import, or another load generator's file with one run.

    Raises
    ------
    InputError
        When it is none of these, or the file holds several runs.
    """
    if path.is_dir():
        return read_run_dir(path)
    runs = read_runs(path)
    if len(runs) > 1:
        raise InputError(
            f"{path} holds {len(runs)} runs; import it with 'servewise runs import' and give one of their folders"
        )
    return runs[0]


def export_run(run: Path, *, format: str, out: Path) -> None:  # noqa: A002 (the option's name)
    """Write a run in another load generator's format.

    Parameters
    ----------
    run : Path
        See :func:`read_run`.
    format : str
        ``vllm`` or ``aiperf``.
    out : Path
        A new file.

    Raises
    ------
    InputError
        When the run cannot be read, the format cannot hold it, or the file exists already.
    """
    write_run(out, read_run(run), format)


def compare_runs(a: Sequence[Path], b: Sequence[Path], promise: Promise | None = None, *, seed: int = 0) -> Difference:
    """Compare two runs, or two groups of repeated runs, and say which figures differ beyond noise.

    Parameters
    ----------
    a, b : sequence of Path
        See :func:`read_run`.
    promise : Promise or None
        Whose joint limits decide attainment.
    seed : int
        Of the bootstrap.

    Raises
    ------
    InputError
        When a run cannot be read or holds no request that counts.
    """
    runs = [read_run(path) for path in (*a, *b)]
    one_clock = all(isinstance(run, Measurement) or run.one_clock for run in runs)
    logs = [_log(run, path) for run, path in zip(runs, (*a, *b), strict=True)]
    found = difference(logs[: len(a)], logs[len(a) :], promise, with_rates=one_clock, seed=seed)
    return replace(found, notes=(*found.notes, *_notes(runs, one_clock=one_clock)))


def _log(run: Measurement | ImportedRun, path: Path) -> RequestLog:
    log = counted_log(run) if isinstance(run, Measurement) else run.log
    if log.num_requests == 0:
        raise InputError(f"{path}: no request of this run counts; nothing can be compared")
    return log


def _notes(runs: Sequence[Measurement | ImportedRun], *, one_clock: bool) -> list[str]:
    """What makes these runs less than comparable."""
    notes = []
    tools = sorted({"servewise" if isinstance(run, Measurement) else run.tool for run in runs})
    if len(tools) > 1:
        notes.append(
            f"measured with different tools ({', '.join(tools)}): they start and stop the clock at different chunks, "
            "and a difference may be theirs"
        )
    if not one_clock:
        notes.append("a file does not say when requests were sent: no rate is compared, and waves of load are not seen")
    measured = [run for run in runs if isinstance(run, Measurement)]
    notes += [f"{run.name} is not trustworthy: {'; '.join(run.trust.reasons)}" for run in measured if run.trust.reasons]
    return notes
