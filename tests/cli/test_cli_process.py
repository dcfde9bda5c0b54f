"""The command as a process: what it imports, pipes and signals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from servewise.cli.reference import reference

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
HEAVY = ("numpy", "numba", "polars", "pydantic", "ruamel", "plotly", "rich", "scipy", "llvmlite")


@pytest.mark.parametrize("args", [["--help"], ["plan", "--help"], ["traffic", "show", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    code = (
        "import sys\n"
        "from servewise.cli import main\n"
        "try:\n"
        f"    main({args!r})\n"
        "finally:\n"
        "    names = {name.partition('.')[0] for name in sys.modules}\n"
        f"    print('heavy:', sorted(names & set({HEAVY!r})), file=sys.stderr)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0
    assert "servewise" in ended.stdout
    assert ended.stderr == "heavy: []\n"


def test_help_imports_only_the_command_that_was_asked_for() -> None:
    code = (
        "import sys\n"
        "from servewise.cli import main\n"
        "try:\n"
        "    main(['plan', '--help'])\n"
        "finally:\n"
        "    print(sorted(n for n in sys.modules if n.startswith('servewise.cli.')), file=sys.stderr)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stderr == "['servewise.cli.app', 'servewise.cli.plan']\n"


def test_a_closed_pipe_is_silent() -> None:
    code = "from servewise.cli import main; main(['--help'])"
    process = subprocess.Popen(
        [sys.executable, "-c", f"import time; time.sleep(0.5); {code}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()  # the reader leaves before anything is written
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 141


def test_ctrl_c_ends_with_130_and_one_line(tmp_path: Path) -> None:
    service = tmp_path / "service.yaml"
    service.write_text(
        "model: openai/gpt-oss-20b\ntraffic: {profile: azure-code-2023}\npromise: {ttft_s: 1}\n"
        "hardware: [H100-SXM-80GB]\n"
    )
    code = (
        "import os, signal, sys, types\n"
        "import servewise\n"
        "def plan(*args, **options): os.kill(os.getpid(), signal.SIGINT)\n"
        "servewise.api = types.SimpleNamespace(plan=plan)\n"
        "from servewise.cli import main\n"
        f"main(['plan', {str(service)!r}])\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == "error: interrupted\n"


def test_the_reference_in_the_docs_is_current() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == reference(), "run make cli-docs"


def test_the_reference_has_every_option() -> None:
    text = reference()
    for option in (
        "--out",
        "--json",
        "--threads",
        "--format",
        "--columns",
        "--rate-rps",
        "--debug",
        "--version",
    ):
        assert f"`{option}" in text
