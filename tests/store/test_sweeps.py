"""Folders of sweeps: finished runs are found again, interrupted ones are kept and measured again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.store.measurements import measurement

from servewise.errors import InputError
from servewise.store import SweepFolder


def test_finished_runs_are_found_again(tmp_path: Path) -> None:
    made = SweepFolder.create(tmp_path, "a sweep", {"kind": "rate", "seed": 3})
    whole, stopped = replace(measurement(), interrupted=False), measurement()
    made.write(2.5, 0, stopped, None, None)
    first = made.write(2.5, 1, whole, None, None)
    found = SweepFolder.open(made.path)
    assert found.asked == {"kind": "rate", "seed": 3}
    assert found.find(2.5, 0) is None
    assert found.find(3.0, 0) is None
    again = found.find(2.5, 1)
    assert again is not None
    assert again[1] == first
    second = found.write(2.5, 0, whole, None, None)
    assert second.name == "load-2.5-run-1-again-2"
    assert found.find(2.5, 0) is not None


def test_a_run_that_was_cut_off_while_writing_is_measured_again(tmp_path: Path) -> None:
    made = SweepFolder.create(tmp_path, "s", {})
    (made.path / "load-1-run-1").mkdir()
    assert made.find(1.0, 0) is None
    made.write(1.0, 0, replace(measurement(), interrupted=False), None, None)
    assert made.find(1.0, 0) is not None


@pytest.mark.parametrize("content", [None, "[]", "{", '{"schema": "servewise.sweep/7"}'])
def test_other_folders_are_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(InputError, match=r"sweep"):
        SweepFolder.open(tmp_path)
