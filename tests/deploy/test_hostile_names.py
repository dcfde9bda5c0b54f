"""Whatever a model, a path or a service is called: an artefact differs in that text only."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from deploy.fleets import CASES
from servewise.deploy import TARGETS, Rendered, Target, render
from servewise.deploy.artefact import label
from servewise.errors import InputError
from servewise.types import Deployment

PLAIN, PLAIN_SERVICE = "Zz.plain_zz", "yyserviceyy"
HOSTILE = [
    "a b", "it's", "say \"hi\"", "$(touch pwned)", "$((1+1))", "$(POD_IP)", "$$(POD_IP)", "a$", "$$", "${HOME}",
    "`touch pwned`", "x; touch pwned", "x && touch pwned", "x | tee pwned", "> pwned", "*", "~root", "!!", "\\",
    "a\\'b", "#comment", "{a,b}", "{{ .Values.x }}", "{% raw %}", "größe/模型", "yes", "NO", "on", "null", "~", "1e3",
    "0x10", "1_000", "12:30:45", "2026-01-01", "&anchor", "*alias", "!!python/object", "? key", "- item", "a: b",
    "a #b", "key:", "%YAML", "@x", "'", "\"", "trtllm.yaml", "haproxy.cfg", "=", "<<", ".", "---", "a,b", "[x]",
    "|", ">-", " leading", "trailing ", "/models/my $(x) model", "/models/a'b", "org/name",
]  # fmt: skip
NAMES = st.sampled_from(HOSTILE) | st.text(min_size=1, max_size=30) | st.text("$(){}'\"`\\-#:&* ab\n", max_size=12)
CASE_NAMES = (
    "vllm, a group", "sglang, several replicas", "tensorrt-llm, one GPU", "tgi, TP", "ollama, several replicas",
    "vllm, several nodes", "vllm, speculation",
)  # fmt: skip


def named(deployment: Deployment, name: str) -> Deployment:
    return dataclasses.replace(deployment, model=dataclasses.replace(deployment.model, name=name))


def expanded(text: str) -> str:
    """What Kubernetes makes of a command, argument or variable of a pod whose variables are called P...

    Sources
    -------
    Kubernetes, third_party/forked/golang/expansion/expand.go.
    """
    return re.sub(r"\$(?:(\$)|\(([^)]*)\)|)", lambda m: m[1] or (f"<{m[2]}>" if m[2] is not None else "$"), text)


def interpolated(text: str) -> str:
    """What Compose makes of a value."""
    assert not re.search(r"(?<!\$)(?:\$\$)*\$(?!\$)", text), f"{text!r} would be interpolated"
    return text.replace("$$", "$")


def as_read(tree: Any, target: Target, within: str = "") -> Any:
    """A tree as its reader takes it."""
    if isinstance(tree, dict):
        return {key: as_read(value, target, f"{within}/{key}") for key, value in tree.items()}
    if isinstance(tree, list):
        return [as_read(value, target, within) for value in tree]
    if isinstance(tree, str) and target == "compose":
        return interpolated(tree)
    if isinstance(tree, str) and re.search(r"/(command|args|env/value)\Z", within) and target != "ray-serve":
        return expanded(tree)
    return tree


def parsed(rendered: Rendered) -> Any:
    """All documents, as readers of YAML 1.1 and 1.2 both take them."""
    found = []
    for version in ((1, 1), (1, 2)):
        reader = YAML(typ="safe", pure=True)
        reader.version = version  # type: ignore[assignment]
        found.append([document for file in rendered.files for document in reader.load_all(file.text)])
    assert found[0] == found[1]
    return as_read(found[0], rendered.target)  # type: ignore[arg-type]


def replaced(tree: Any, change: Callable[[str], str]) -> Any:
    """A tree with its texts changed."""
    if isinstance(tree, dict):
        return {change(key): replaced(value, change) for key, value in tree.items()}
    if isinstance(tree, list):
        return [replaced(value, change) for value in tree]
    return change(tree) if isinstance(tree, str) else tree


def renamed(tree: Any, old: str, name: str) -> Any:
    """A tree of the model ``old`` as it is of ``name``; Ollama is told a name of its own for it."""
    own, new = label(old, "model"), label(name, "model")
    return replaced(tree, lambda text: text.replace(old, name).replace(own, new))


def is_refused_for(name: str, deployment: Deployment, target: Target) -> bool:
    """Whether no artefact can carry a name."""
    return (
        not name
        or name.startswith("-")
        or not name.isprintable()
        or (deployment.engine == "ollama" and ('"' in name or name != name.strip()))
        or (name.startswith(("./", "../")) and target in ("compose", "kubernetes", "kserve"))
        or (target == "dynamo" and deployment.parallelism.num_gpus > deployment.gpu.gpus_per_node)
    )


@pytest.mark.parametrize("case", CASE_NAMES)
@pytest.mark.parametrize("target", [target for target in TARGETS if target != "command"])
@given(name=NAMES)
@settings(max_examples=12, deadline=None)
def test_a_model_s_name_is_one_text_in_a_manifest(case: str, target: Target, name: str) -> None:
    path = "/" if name.startswith("/") else ""  # a path is mounted
    try:
        plain = parsed(render(named(CASES[case], path + PLAIN), target, name="chat"))
    except InputError:
        return  # the target has no such topology
    try:
        found = parsed(render(named(CASES[case], name), target, name="chat"))
    except InputError:
        assert is_refused_for(name, CASES[case], target)
        return
    assert found == renamed(plain, path + PLAIN, name)


@pytest.mark.parametrize("target", [target for target in TARGETS if target != "command"])
@given(name=NAMES)
@settings(max_examples=25, deadline=None)
def test_a_service_s_name_is_a_label(target: Target, name: str) -> None:
    deployment = CASES["vllm, several replicas"]
    plain = parsed(render(deployment, target, name=PLAIN_SERVICE))
    found = parsed(render(deployment, target, name=name))
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", label(name))
    assert found == replaced(plain, lambda text: text.replace(PLAIN_SERVICE, label(name)))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs that print their arguments."""
    folder = tmp_path_factory.mktemp("programs")
    for name in ("vllm", "python", "trtllm-serve", "text-generation-launcher", "ollama", "haproxy", "vllm-router"):
        program = folder / name
        program.write_text('#!/bin/sh\nprintf "%s\\0" "${0##*/}" "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def run(rendered: Rendered, programs: Path, folder: Path) -> dict[str, list[str]]:
    """What each script really starts, and that it does nothing else."""
    found = {}
    for file in rendered.files:
        (folder / file.name).write_text(file.text)
    before = sorted(path.name for path in folder.iterdir())
    for file in rendered.files:
        if file.name.endswith(".sh"):
            env = {"PATH": f"{programs}:{os.defpath}", "HOME": str(folder)}
            done = subprocess.run(["/bin/sh", file.name], capture_output=True, check=True, cwd=folder, env=env)
            found[file.name] = done.stdout.decode().split("\0")[:-1]
    assert sorted(path.name for path in folder.iterdir()) == before
    return found


@pytest.mark.parametrize("case", CASE_NAMES)
def test_a_real_shell_starts_exactly_what_was_planned(case: str, programs: Path, tmp_path: Path) -> None:
    plain = {}
    for folder, text in (("hub", PLAIN), ("path", f"/{PLAIN}")):  # a path is not downloaded, so starts are shorter
        (tmp_path / folder).mkdir()
        plain[folder] = run(render(named(CASES[case], text), "command", name="chat"), programs, tmp_path / folder)
    for number, name in enumerate(HOSTILE):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            rendered = render(named(CASES[case], name), "command", name="chat")
        except InputError:
            assert is_refused_for(name, CASES[case], "command")
            continue
        kind = "path" if name.startswith("/") else "hub"
        assert run(rendered, programs, folder) == renamed(plain[kind], "/" * (kind == "path") + PLAIN, name)


@given(name=NAMES)
@settings(max_examples=60, deadline=None)
def test_a_stream_for_a_shell_quotes_names(name: str) -> None:
    try:
        text = render(named(CASES["tensorrt-llm, one GPU"], name), "command", name="chat").stream
    except InputError:
        assert is_refused_for(name, CASES["tensorrt-llm, one GPU"], "command")
        return
    words = shlex.split(text, comments=True)
    assert words[words.index("trtllm-serve") + 1] == name
    assert words.count("printf") == 2 + (name == "printf")


@pytest.mark.parametrize("name", ["a\nb", "a\0b", "\x1b[31m", "", "--trust-remote-code", "a\u2028b", "a\u0085b"])
@pytest.mark.parametrize("target", TARGETS)
def test_names_that_nothing_can_carry_are_refused(name: str, target: Target) -> None:
    for case in ("vllm, TP", "ollama, one GPU"):
        with pytest.raises(InputError):
            render(named(CASES[case], name), target, name="chat")


@given(name=NAMES)
@example(name="/.")
@settings(max_examples=15, deadline=None)
def test_a_drafter_s_path_is_mounted_and_nothing_else(name: str) -> None:
    drafting = CASES["vllm, speculation"]
    assert drafting.speculation is not None

    def drafted(path: str) -> Any:
        drafter = dataclasses.replace(drafting.speculation, head_name=path)
        return parsed(render(dataclasses.replace(drafting, speculation=drafter), "kubernetes", name="chat"))

    path = f"/models/{name}"
    if not name.isprintable() or "eagle3" in name.lower():
        return
    if Path(path) == Path("/models"):  # where the other model is downloaded to
        with pytest.raises(InputError, match="is where the container keeps"):
            drafted(path)
        return
    found = drafted(path)
    assert {"name": "model-0", "hostPath": {"path": path}} in list(_volumes(found))
    plain = replaced(drafted(f"/models/{PLAIN}"), lambda text: text.replace(f"/models/{PLAIN}", path))
    assert _without(found, "args") == _without(plain, "args")


def _volumes(tree: Any) -> Any:
    for document in tree:
        yield from document.get("spec", {}).get("template", {}).get("spec", {}).get("volumes", ())


def _without(tree: Any, key: str) -> Any:
    """A tree without what is called so: a drafter stands in JSON within an argument."""
    if isinstance(tree, dict):
        return {name: _without(value, key) for name, value in tree.items() if name != key}
    return [_without(value, key) for value in tree] if isinstance(tree, list) else tree


def test_drafters_are_checked_alike() -> None:
    drafting = CASES["vllm, speculation"]
    assert drafting.speculation is not None
    hostile = dataclasses.replace(drafting.speculation, head_name="org/x\n--evil")
    with pytest.raises(InputError, match="model name"):
        render(dataclasses.replace(drafting, speculation=hostile), "compose", name="chat")
