"""Folders of several runs, which can be gone on with: finished runs are found again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from servewise.errors import InputError
from servewise.store.documents import read_document
from servewise.store.files import new_run_dir, write_json
from servewise.store.measurements import read_measurement, write_measurement
from servewise.types import Measurement, Promise, Summary

__all__ = ["SWEEP_SCHEMA", "SweepFolder"]

SWEEP_SCHEMA = "servewise.sweep/1"
"""Name and version of the schema of sweep.json."""

MAX_ATTEMPTS = 1000


class SweepFolder:
    """A folder with ``sweep.json`` (what was asked) and a folder of each run.

    Attributes
    ----------
    path : Path
    asked : mapping
        What sweep.json holds beside its schema.
    """

    def __init__(self, path: Path, asked: Mapping[str, Any]) -> None:
        self.path = path
        self.asked = asked

    @classmethod
    def create(cls, parent: Path, name: str, asked: Mapping[str, Any]) -> SweepFolder:
        """Make a new folder.

        Raises
        ------
        InputError
            When it cannot be made.
        """
        path = new_run_dir(parent, name)
        write_json(path / "sweep.json", {"schema": SWEEP_SCHEMA, **asked})
        return cls(path, asked)

    @classmethod
    def open(cls, path: Path) -> SweepFolder:
        """Open a folder to go on with it.

        Raises
        ------
        InputError
            When it holds no sweep.json of this version.
        """
        document = read_document(path / "sweep.json", "give the folder of a sweep")
        found = document.pop("schema", None) if isinstance(document, dict) else None
        if found != SWEEP_SCHEMA:
            raise InputError(f"{path / 'sweep.json'}: schema is {found!r}, this version reads {SWEEP_SCHEMA!r}")
        return cls(path, document)

    def find(self, load: float, repeat: int) -> tuple[Measurement, Path] | None:
        """The finished run of a load; None when there is none, or it was interrupted."""
        for folder in self._folders(load, repeat):
            if not folder.exists():
                return None
            if (folder / "measurement.json").exists():
                measured = read_measurement(folder)
                if not measured.interrupted:
                    return measured, folder
        return None

    def write(
        self, load: float, repeat: int, measured: Measurement, summary: Summary | None, promise: Promise | None
    ) -> Path:
        """Keep a run; an interrupted one beside it stays."""
        for folder in self._folders(load, repeat):
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            write_measurement(folder, measured, summary=summary, promise=promise)
            return folder
        raise InputError(f"{self.path} holds {MAX_ATTEMPTS} runs at {load:g}; start another sweep")

    def _folders(self, load: float, repeat: int) -> Iterator[Path]:
        stem = f"load-{load:.6g}-run-{repeat + 1}"
        yield self.path / stem
        for attempt in range(2, MAX_ATTEMPTS + 1):
            yield self.path / f"{stem}-again-{attempt}"
