"""Services small enough to plan in a moment, and the command line run on them in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SERVICE = {
    "name": "small",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "traffic": {"profile": "azure-conversation-2023", "num_requests": 300},
    "promise": {"ttft_s": 1.0, "tpot_s": 0.05, "attainment": 0.95},
    "quality": {"min_recovery_pct": 100},
    "hardware": ["L40S-48GB"],
    "budget": {"max_gpus": 2},
    "engines": ["vllm"],
}
"""Two families of settings; planned in half a second."""


@dataclass
class Ended:
    """A finished command; ``documents`` are the plans it wrote, by folder."""

    code: int
    out: str
    err: str
    folders: tuple[Path, ...]

    @property
    def error(self) -> str:
        """The one line that says what went wrong."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0].removeprefix("error: ")

    @property
    def document(self) -> Any:
        """The plan of a command that made one run folder."""
        (folder,) = self.folders
        return json.loads((folder / "plan.json").read_text(encoding="utf-8"))


@pytest.fixture
def write_service(tmp_path: Path) -> Callable[..., Path]:
    """Write the small service with some keys changed (JSON is YAML); None removes a key."""

    def write(**changes: Any) -> Path:
        keys = {key: value for key, value in (SERVICE | changes).items() if value is not None}
        path = tmp_path / "service.yaml"
        path.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in keys.items()) + "\n")
        return path

    return write


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run a command line."""

    def call(*args: str | Path, out: Path | None = None) -> Ended:
        from servewise.cli import main

        before = set(out.iterdir()) if out is not None and out.is_dir() else set()
        options = () if out is None else ("--out", str(out))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ending:
            main([*map(str, args), *options])
        captured = capsys.readouterr()
        after = set(out.iterdir()) if out is not None and out.is_dir() else set()
        code = ending.value.code
        assert isinstance(code, int)
        return Ended(code=code, out=captured.out, err=captured.err, folders=tuple(sorted(after - before)))

    return call


@pytest.fixture
def plan(run: Callable[..., Ended], write_service: Callable[..., Path], tmp_path: Path) -> Callable[..., Ended]:
    """Plan the small service with some keys changed, into ``tmp_path / "runs"``."""

    def call(*options: str, **changes: Any) -> Ended:
        return run("plan", write_service(**changes), *options, out=tmp_path / "runs")

    return call
