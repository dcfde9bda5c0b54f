"""Drivers are compiled before they are needed, only those that are, and the compiled code is found again."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from servewise.sim import driver_name, not_compiled
from servewise.sim.warm import DRIVERS, sample


@pytest.mark.parametrize("name", DRIVERS)
def test_a_driver_is_compiled_by_what_it_simulates(name: str) -> None:
    assert driver_name(sample(name)) == name


def test_only_what_a_plan_needs_and_is_not_there_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 0)
    assert not_compiled(["vllm", "tgi", "disaggregated"]) == ("disaggregated", "vllm", "tgi")
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "tgi.advance-1.py311.nbi").touch()
    assert not_compiled(["vllm", "tgi"]) == ("vllm",)
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert not_compiled(["vllm", "tgi"]) == ()


def test_compiled_code_is_kept_and_used_by_the_next_process(tmp_path: Path) -> None:
    script = (
        "from servewise.sim import compile_drivers, not_compiled\n"
        "print(not_compiled(['tgi'])); compile_drivers(['tgi']); print(not_compiled(['tgi']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_DISABLE_JIT": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["('tgi',)", "()"]
    code = {path.name for path in tmp_path.rglob("*.nbc")}
    assert any(name.startswith("tgi.") for name in code)
    assert not any(name.startswith(("sglang.", "vllm.", "trtllm.", "llamacpp.")) for name in code)
