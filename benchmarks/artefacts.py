"""What rendered artefacts would start, read back from their texts: commands, variables, settings and manifests.

    for start in starts(rendered):
        check_command(start.args, start.version(deployment), start.env)

Nothing of how the artefacts were made is used: what is checked is what a reader would run.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML

from servewise.deploy import Rendered
from servewise.deploy.facts import table
from servewise.deploy.options import FlagVerdict, check_command, check_settings, option_lists
from servewise.engines import trtllm
from servewise.types import Deployment

__all__ = ["Start", "documents", "settings", "starts", "verdicts"]

NO_MANIFESTS = ("prometheus.yml",)
SHELLS = ("/bin/sh", "sh")
FILLED_IN = re.compile(r"(?<!\$)\$\(\w+\)")
"""A variable of the pod, which Kubernetes puts in its place; a number in all that is written."""
PLANNED = (
    ("vllm",),
    ("python", "-m", "sglang.launch_server"),
    ("trtllm-serve",),
    ("text-generation-launcher",),
    ("ollama",),
    ("llama-server",),
)
"""Programs that are of the version that was planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A program with its arguments and variables, and the file that it is written in."""

    source: str
    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    def version(self, deployment: Deployment) -> str:
        """Version of the program: the plan's, or the one that is written for."""
        if any(self.args[: len(program)] == program for program in PLANNED):
            return deployment.engine_version
        if self.args[1:2] == ("-m",) and self.args[2].startswith("dynamo."):
            return str(table("dynamo")["version"])
        lists = [each for each in option_lists() if self.args[: len(each.command)] == each.command]
        return lists[0].version if lists else ""


def documents(rendered: Rendered) -> Iterator[tuple[str, Any]]:
    """YAML documents of a target's manifests, with the file; no configuration of a program."""
    for file in rendered.files:
        if rendered.target != "command" and file.name.endswith((".yaml", ".yml")) and file.name not in NO_MANIFESTS:
            for document in YAML(typ="safe", pure=True).load_all(file.text):
                yield file.name, document


def starts(rendered: Rendered) -> Iterator[Start]:
    """Every program that a target's artefacts run."""
    for file in rendered.files:
        if file.name.endswith(".sh"):
            yield _start(file.name, shlex.split(file.text.splitlines()[-1])[1:], {})
    for source, document in documents(rendered):
        if rendered.target == "ray-serve":
            yield from _ray(source, document)
        else:
            yield from _containers(source, document)


def _start(source: str, words: Sequence[str], env: Mapping[str, str]) -> Start:
    """A command, with what a leading ``env`` sets and with the program's usual name, without its folder."""
    args, variables = list(words), dict(env)
    if args[0] == "env":
        del args[0]
        while re.match(r"[A-Za-z_]\w*=", args[0]):
            name, value = args.pop(0).split("=", 1)
            variables[name] = value
    program = args[0].rsplit("/", 1)[-1]
    args[0] = "python" if program == "python3" else program
    return Start(source=source, args=tuple(args), env=variables)


def _containers(source: str, tree: Any) -> Iterator[Start]:
    """Containers of Compose and of Kubernetes, at any depth: what has a command and an image."""
    if isinstance(tree, list):
        for branch in tree:
            yield from _containers(source, branch)
    elif isinstance(tree, dict):
        words = (
            [*tree.get("entrypoint", []), *tree.get("command", []), *tree.get("args", [])] if "image" in tree else []
        )
        if words and words[0] not in SHELLS:
            env = tree.get("environment", {})
            env |= {each["name"]: each["value"] for each in tree.get("env", []) if "value" in each}
            texts = {name: str(value).replace("$$", "$") for name, value in env.items() if value is not None}
            yield _start(source, [FILLED_IN.sub("1", word).replace("$$", "$") for word in words], texts)
        for branch in tree.values():
            yield from _containers(source, branch)


def _ray(source: str, document: Mapping[str, Any]) -> Iterator[Start]:
    """Ray's engine arguments as the options of ``vllm serve`` that they are."""
    for application in document["applications"]:
        found = application["args"]
        configs = [*found.get("llm_configs", []), *(found[name] for name in found if name.endswith("_config"))]
        for config in configs:
            words = ["vllm", "serve", config["model_loading_config"]["model_source"]]
            for name, value in config["engine_kwargs"].items():
                option = name.replace("_", "-")
                match value:
                    case bool():
                        words.append(f"--{'' if value else 'no-'}{option}")
                    case dict():
                        words += [f"--{option}", json.dumps(value)]
                    case _:
                        words += [f"--{option}", str(value)]
            yield Start(source=source, args=tuple(words))


def settings(rendered: Rendered) -> Iterator[tuple[str, tuple[str, str], Mapping[str, object]]]:
    """Files of settings, within the artefacts or beside them: where, which program's, and the settings."""
    for source, name, text in _texts(rendered):
        if name.endswith("Modelfile"):
            lines = [line.split(maxsplit=2)[1:] for line in text.splitlines() if line.startswith("PARAMETER")]
            yield source, ("ollama", "Modelfile"), dict(lines)
        elif name.endswith(trtllm.CONFIG_FILE):
            yield source, ("trtllm-serve", "YAML"), YAML(typ="safe", pure=True).load(text)


def _texts(rendered: Rendered) -> Iterator[tuple[str, str, str]]:
    for file in rendered.files:
        if rendered.target == "command":
            yield file.name, file.name, file.text
    for source, document in documents(rendered):
        mounted = {each["source"]: each["target"] for each in _values(document, "configs") if "target" in each}
        for name, config in document.get("configs", {}).items():
            yield source, mounted.get(name, name), config["content"].replace("$$", "$")
        if document.get("kind") == "ConfigMap":
            for name, text in document["data"].items():
                yield source, name, text


def _values(document: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    for service in document.get("services", {}).values():
        yield from service.get(key, [])


def verdicts(rendered: Rendered, deployment: Deployment) -> list[tuple[str, FlagVerdict]]:
    """What the recorded lists say of every option, variable and setting, with the file that has it."""
    found = []
    for start in starts(rendered):
        version = str(table("ray")["vllm"]) if rendered.target == "ray-serve" else start.version(deployment)
        found += [(start.source, verdict) for verdict in check_command(start.args, version, start.env)]
    for source, program, values in settings(rendered):
        found += [(source, verdict) for verdict in check_settings(program, values, deployment.engine_version)]
    return found
