"""The real output shown in README.md. Run this file to write the present one into it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
COMMAND = "servewise plan examples/chatbot.yaml"
COLUMNS = 100
"""Width of the terminal that is shown."""

OUTPUT = re.compile(rf"(<!-- output of: {COMMAND} -->\n```text\n)(.*?)(```\n<!-- end of output -->)", re.DOTALL)


def shown() -> str:
    """What the README shows."""
    found = OUTPUT.search(README.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"README.md has no block marked as the output of: {COMMAND}")
    return found[2]


def actual() -> str:
    """What the command prints now."""
    program, *arguments = COMMAND.split()
    with tempfile.TemporaryDirectory() as runs:
        return subprocess.run(
            [str(Path(sys.executable).with_name(program)), *arguments, "--out", runs],
            cwd=ROOT,
            env=os.environ | {"COLUMNS": str(COLUMNS)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout


if __name__ == "__main__":
    shown()
    text = actual()
    lines = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    page = OUTPUT.sub(lambda found: found[1] + lines + found[3], README.read_text(encoding="utf-8"))
    README.write_text(page, encoding="utf-8")
