"""The lists of options that ship, held against the programs that are installed."""

from __future__ import annotations

import json
import os
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from benchmarks import engine_installs
from benchmarks.parsers import COMMANDS, asked
from servewise.deploy.options import Option, check_command, option_lists

RECORD = Path(__file__).resolve().parents[2] / "tools" / "record_options.py"
RECORDED = {"vllm": "vllm-serve-0.32.0", "sglang": "sglang-launch-server-0.5.23", "llama-server": "llama-server-b10434"}
SAMPLES = {"int": "7", "size": "4096", "float": "1", "json": "{}", "text": "abc"}
WRONG = {"int": "seven", "size": "seven", "float": "half", "json": "{"}
MODEL = {"vllm": ["some/model"], "sglang": ["--model-path", "some/model"], "llama-server": []}
NOT_ALONE = {
    "vllm": {
        "--chat-template",  # a file, as is the next
        "--config",
        "--data-parallel-multi-port-external-lb",  # need another option beside them
        "--enable-auto-tool-choice",
        "--enable-log-outputs",
        "--grpc-port",
        "--lora-modules",  # two forms, of which a text without = is neither
    },
    "sglang": set(),
    "llama-server": set(),
}
"""Options that the program refuses by themselves or with any text."""
LATER = {"vllm": {"--quantization"}, "sglang": set(), "llama-server": set()}
"""Options whose wrong values a program refuses only when it has read its arguments."""

PROGRAMS = [
    pytest.param("vllm", marks=pytest.mark.engines),
    pytest.param("llama-server", marks=pytest.mark.engines),
    pytest.param("sglang", marks=pytest.mark.sglang),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_list_is_what_the_program_has_now(program: str) -> None:
    """Recorded again, it is the file that ships, byte for byte."""
    text = resources.files("servewise.data").joinpath(f"engines/options/{RECORDED[program]}.json").read_text()
    shipped = json.loads(text)
    told = ["--command", " ".join(shipped["command"]), "--source", shipped["source"], "--accessed", shipped["accessed"]]
    if program == "llama-server":
        told = [str(engine_installs.llama_server()), "--version", shipped["version"], *told]
    if shipped["holds_for"]:
        told += ["--holds-for", *shipped["holds_for"]]
    python = engine_installs.find(program) / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), str(RECORD), program, *told],
        env=environment | {"VLLM_NO_USAGE_STATS": "1", "SGLANG_USE_CPU_ENGINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == text


def sample(option: Option, *, wrong: bool) -> list[str] | None:
    """A command's words for an option with a good or a wrong value; None where there is none to try."""
    if option.value == "switch":
        return None if wrong else [option.name]
    if option.choices:
        return [option.name, "no-such-choice" if wrong else option.choices[0]]
    if wrong:
        return [option.name, WRONG[option.value]] if option.value in WRONG else None
    return [option.name, SAMPLES[option.value]] if option.value in SAMPLES else None


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_agrees_on_every_option(program: str) -> None:
    """A good value of each option that is accepted here is accepted by the program, a wrong one refused by both."""
    version = RECORDED[program].rsplit("-", 1)[1]
    known = next(each for each in option_lists() if each.command == COMMANDS[program] and each.version == version)
    cases = [
        (wrong, [*MODEL[program], *words])
        for option in known.options
        for wrong in (False, True)
        if (words := sample(option, wrong=wrong)) is not None
        and option.name not in (LATER if wrong else NOT_ALONE)[program]
    ]
    assert len(cases) > len(known.options)
    said = asked(program, [words for _, words in cases])
    here = [
        any(found.verdict == "rejected" for found in check_command([*COMMANDS[program], *words], version))
        for _, words in cases
    ]
    assert [words for (wrong, words), rejects in zip(cases, here, strict=True) if wrong != rejects] == []
    disagreed = [
        (words, message) for (wrong, words), message in zip(cases, said, strict=True) if wrong != bool(message)
    ]
    assert disagreed == []
