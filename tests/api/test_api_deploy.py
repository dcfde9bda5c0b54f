"""``servewise deploy`` on a real plan, through the command line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

from servewise.cli.deploy import deploy as cli_deploy
from servewise.deploy import TARGETS

Command = Callable[..., Any]


@pytest.fixture
def plan_path(plan: Command) -> Path:
    (folder,) = plan().folders
    return Path(folder) / "plan.json"


def test_the_winner_s_command_is_printed(plan_path: Path, run: Command) -> None:
    ended = run("deploy", str(plan_path))
    assert ended.code == 0
    assert "vllm serve meta-llama/Llama-3.1-8B-Instruct" in ended.out
    assert ended.out.startswith("# replica-0 on 127.0.0.1\n")
    assert "checked: vllm 0.33.0: its own parser takes" in ended.err
    plan = json.loads(plan_path.read_text())
    params = plan["candidates"][plan["winner"]]["deployment"]["params"]
    args = shlex.split(ended.out, comments=True)
    assert args[args.index("--max-num-seqs") + 1] == str(params["max_num_seqs"])


def test_files_go_into_a_new_folder(plan_path: Path, run: Command, tmp_path: Path) -> None:
    out = tmp_path / "deploy"
    for count in (1, 2):
        ended = run("deploy", str(plan_path), "--target", "kubernetes", "--out", str(out))
        assert (ended.code, ended.out) == (0, "")
        assert len(list(out.iterdir())) == count
    folder = sorted(out.iterdir())[0]
    assert sorted(path.name for path in folder.iterdir()) == ["manifests.yaml", "podmonitors.yaml"]
    kinds = [document["kind"] for document in YAML(typ="safe").load_all((folder / "manifests.yaml").read_text())]
    assert "StatefulSet" in kinds


def test_json_holds_files_and_what_was_checked(plan_path: Path, run: Command) -> None:
    ended = run("deploy", str(plan_path), "--target", "compose", "--json")
    document = json.loads(ended.out)
    assert document["target"] == "compose"
    (file,) = document["files"]
    assert file["name"] == "compose.yaml"
    assert file["checked"]
    assert document["folder"] is None


def test_another_candidate_and_another_checkpoint(plan_path: Path, run: Command) -> None:
    plan = json.loads(plan_path.read_text())
    other = plan["ranking"][-1]
    ended = run("deploy", str(plan_path), "--candidate", str(other), "--model", "/models/my checkpoint")
    assert ended.code == 0
    assert "vllm serve '/models/my checkpoint' " in ended.out
    unkept = next(c["index"] for c in plan["candidates"] if c["index"] not in plan["ranking"])
    ended = run("deploy", str(plan_path), "--candidate", str(unkept))
    assert ended.code == 2
    assert f"candidate {unkept} is none that keeps the promise" in ended.error


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"winner": None, "ranking": []}, 3, "no deployment keeps the promise"),
        ({"schema": "other/1"}, 2, "schema"),
    ],
)
def test_plans_that_cannot_be_deployed(
    plan_path: Path, run: Command, tmp_path: Path, change: dict[str, Any], code: int, words: str
) -> None:
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(json.loads(plan_path.read_text()) | change))
    ended = run("deploy", str(path))
    assert ended.code == code
    assert words in ended.error


def test_the_command_line_offers_every_target() -> None:
    (target,) = [option for option in cli_deploy.params if option.name == "target"]
    assert isinstance(target.type, click.Choice)
    assert tuple(target.type.choices) == TARGETS


def test_llama_server_is_for_ollama(plan_path: Path, run: Command) -> None:
    ended = run("deploy", str(plan_path), "--llama-server")
    assert ended.code == 2
    assert "--llama-server is for plans for ollama" in ended.error


def test_an_ollama_plan_gives_llama_server_s_own_command(plan: Command, run: Command) -> None:
    lenient = {"ttft_s": 60.0, "tpot_s": 1.0, "attainment": 0.5}
    (folder,) = plan(engines=["ollama"], quality=None, promise=lenient, budget={"max_gpus": 8}).folders
    path = str(Path(folder) / "plan.json")
    ended = run("deploy", path)
    assert "ollama serve" in ended.out
    assert "put a GGUF file" in ended.err
    ended = run("deploy", path, "--llama-server", "--model", "/models/tiny.gguf")
    args = shlex.split(ended.out.splitlines()[1])
    assert args[args.index("llama-server") :][:3] == ["llama-server", "--model", "/models/tiny.gguf"]
    assert "--metrics" in args
    assert "GGUF" not in ended.err
