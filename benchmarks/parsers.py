"""The real parsers of the engines that are installed, asked about many commands at once.

    verdicts = asked("vllm", [["some/model", "--max-num-seqs", "256"]])

One process an engine reads all commands: importing an engine takes seconds. No server is started, no model is loaded.
The engines must be installed: ``python -m benchmarks.engine_installs``.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import engine_installs

__all__ = ["COMMANDS", "asked", "program_of"]

PARSE_ARGUMENTS = Path(__file__).with_name("parse_arguments.py")
TIMEOUT_S = 300.0
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "vllm": ("vllm", "serve"),
    "sglang": ("python", "-m", "sglang.launch_server"),
    "llama-server": ("llama-server",),
}
"""How the programs are called whose parsers can be asked."""
NO_MODEL = "/nonexistent"
"""Stands for the model of a ``llama-server`` that must not serve: it ends once it has read its arguments."""
REFUSALS = ("error: invalid argument", "error while handling argument", "to show complete usage")
"""What ``llama-server`` says when it does not read its arguments."""


def program_of(args: Sequence[str]) -> str | None:
    """The program of a command whose parser can be asked; None for another."""
    program = args[0].rsplit("/", 1)[-1] if args else ""
    words = ["python" if program == "python3" else program, *args[1:]]
    return next((name for name, start in COMMANDS.items() if tuple(words[: len(start)]) == start), None)


def asked(program: str, commands: Sequence[Sequence[str]]) -> list[str]:
    """What a program's own parser says of each command.

    Parameters
    ----------
    program : str
        A key of :data:`COMMANDS`.
    commands : sequence of sequence of str
        Arguments, without the program.

    Returns
    -------
    list of str
        The parser's message for each command; empty where it accepts it.

    Raises
    ------
    FileNotFoundError
        The engine is not installed.
    RuntimeError
        It did not get as far as its parser.
    """
    if not commands:
        return []
    if program == "llama-server":
        binary = engine_installs.llama_server()
        return [_llama_server(binary, list(command)) for command in commands]
    python = engine_installs.find(program) / "bin" / "python"
    unwanted = ("PYTHONPATH", "HF_HUB_OFFLINE")  # offline, vLLM looks for the model's files while it reads arguments
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    done = subprocess.run(
        [str(python), str(PARSE_ARGUMENTS), program],
        input=json.dumps([list(command) for command in commands]),
        env=environment | {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "SGLANG_USE_CPU_ENGINE": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{program}'s parser could not be asked:\n{done.stderr[-2000:]}")
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def _llama_server(binary: Path, arguments: list[str]) -> str:
    """What ``llama-server`` says of its arguments; when it has read them all it misses the model."""
    words = [str(binary), *arguments, "--model", NO_MODEL, "--port", "0", "--offline"]
    with tempfile.TemporaryDirectory() as folder:  # it may write files
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    said = (done.stdout + done.stderr).splitlines()
    return next((line for line in said if any(words in line for words in REFUSALS)), "")
