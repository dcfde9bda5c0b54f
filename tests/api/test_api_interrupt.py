"""Ctrl-C: what was found until then is kept, and says that it is not everything."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from servewise import api
from servewise.api import planning
from servewise.store import plan_from_json

CODE = """
import sys, time
from servewise import search
stage, arguments = sys.argv[1], sys.argv[2:]
find = search.plan

def plan(asked, *, progress, **options):
    def tell(name, done, total):
        progress(name, done, total)
        if name == stage:
            print("at", name, file=sys.stderr, flush=True)
            time.sleep(60)
    return find(asked, progress=tell, **options)

search.plan = plan
from servewise.cli import main
main(arguments)
"""
"""The command, which waits in a stage of the search for its signal."""


def interrupted(stage: str, service: Path, runs: Path) -> tuple[int, str, str]:
    command = [sys.executable, "-c", CODE, stage, "plan", str(service), "--out", str(runs)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == f"at {stage}\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_ctrl_c_in_mid_search_keeps_what_was_found(write_service: Callable[..., Path], tmp_path: Path) -> None:
    service = write_service(hardware=["L40S-48GB", "H100-SXM-80GB"], quality={"min_recovery_pct": 99})
    code, out, err = interrupted("fleets", service, tmp_path / "runs")
    assert (code, out) == (130, "")
    (folder,) = (tmp_path / "runs").iterdir()
    assert err == f"error: interrupted; what was found until then is in {folder}\n"
    assert {path.name for path in folder.iterdir()} == {"plan.json", "plan.html", "workload.json", "workload.parquet"}
    document = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    found, _ = plan_from_json(document)
    assert document["complete"] is False
    assert not found.complete
    left = [c for c in found.candidates if c.status == "not_searched"]
    done = [c for c in found.candidates if c.status == "kept"]
    assert left
    assert done
    assert found.winner == found.ranking[0]
    page = (folder / "plan.html").read_text(encoding="utf-8")
    assert f"interrupted: {len(left):,} of {len(found.candidates):,} candidates were not searched" in page


def test_ctrl_c_after_the_search_keeps_the_plan(write_service: Callable[..., Path], tmp_path: Path) -> None:
    def progress(stage: str, _done: int, _total: int) -> None:
        if stage == "capacity":
            raise KeyboardInterrupt

    def plan() -> Any:
        return api.plan(api.load_service(write_service()), out_dir=tmp_path / "runs", progress=progress)

    with pytest.raises(KeyboardInterrupt):
        plan()
    (folder,) = (tmp_path / "runs").iterdir()
    document = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    assert document["winner"] is not None
    assert document["explanation"] is None
    assert {candidate["assurance"] for candidate in document["candidates"]} == {None}


def test_ctrl_c_before_the_search_leaves_nothing(
    write_service: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_source: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(planning.traffic, "load", interrupt)
    with pytest.raises(KeyboardInterrupt):
        api.plan(api.load_service(write_service()), out_dir=tmp_path / "runs")
    assert {path.name for path in tmp_path.iterdir()} == {"service.yaml"}
