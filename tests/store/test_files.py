"""Run folders and atomic writes, with hostile names and full disks."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servewise.errors import InputError
from servewise.store import new_run_dir, read_document, write_json, write_text_atomic

HOSTILE = [
    "..",
    "../../etc",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "",
    ".",
    "\x00",
    "\x1b[31mred",
    "-rf",
    "~",
    "ü" * 300,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_inside(tmp_path: Path, name: str) -> None:
    parent = tmp_path / "runs"
    path = new_run_dir(parent, name)
    assert path.resolve().parent == parent.resolve()
    assert path.is_dir()


@given(name=st.text(max_size=80))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_name_makes_a_plain_folder(tmp_path: Path, name: str) -> None:
    path = new_run_dir(tmp_path, name)
    assert path.parent == tmp_path
    assert path.name.isascii()
    assert set(path.name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert ".." not in path.name
    assert path.name[0].isdigit()
    assert len(path.name) < 100


def test_readable_names_stay_readable(tmp_path: Path) -> None:
    assert new_run_dir(tmp_path, "Support chatbot: v2").name.endswith("Z-Support-chatbot-v2")
    assert new_run_dir(tmp_path, "Größe/x").name.endswith("Z-Groe-x")


def test_runs_of_one_second_do_not_meet(tmp_path: Path) -> None:
    paths = [new_run_dir(tmp_path, "same") for _ in range(5)]
    assert len(set(paths)) == 5
    assert all(path.is_dir() for path in paths)


def test_a_file_in_the_place_of_the_parent(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("mine")
    with pytest.raises(InputError, match="runs"):
        new_run_dir(tmp_path / "runs", "x")
    assert (tmp_path / "runs").read_text() == "mine"


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("mine")
    with pytest.raises(InputError, match="exists already and is not overwritten"):
        write_text_atomic(path, "new")
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("has_links", [True, False])
def test_text_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool) -> None:
    if not has_links:

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(Path, "hardlink_to", refuse)
    path = tmp_path / "a.txt"
    write_text_atomic(path, "Zeile\nzwei ✓ \udc80")
    assert path.read_bytes() == "Zeile\nzwei ✓ \\udc80".encode()
    assert list(tmp_path.iterdir()) == [path]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    with pytest.raises(InputError, match="exists already"):
        write_text_atomic(path, "other")
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"cannot write .*a\.txt: No space left on device"):
        write_text_atomic(tmp_path / "a.txt", "text")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write .*gone"):
        write_text_atomic(tmp_path / "gone" / "a.txt", "text")


def test_json_has_no_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": [1.5, None, "ü"]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": [1.5, None, "ü"]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "b.json", {"x": float("nan")})
    assert not (tmp_path / "b.json").exists()


def test_a_document_that_is_nested_without_end_is_no_bug(tmp_path: Path) -> None:
    path = tmp_path / "nested.json"
    path.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(InputError, match=r"nested\.json is not JSON: .*; give another$"):
        read_document(path, "give another")
