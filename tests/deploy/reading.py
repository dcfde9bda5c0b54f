"""Artefacts read back: documents, commands and what is in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML

from servewise.deploy import Rendered


def documents(rendered: Rendered) -> list[Any]:
    """All YAML documents of a target."""
    return [found for file in rendered.files for found in YAML(typ="safe").load_all(file.text)]


def commands(rendered: Rendered) -> dict[str, list[str]]:
    """What each script runs, without its variables."""
    found = {}
    for file in rendered.files:
        if file.name.endswith(".sh"):
            args = shlex.split(file.text.splitlines()[-1])[1:]
            if args[0] == "env":
                args = [arg for arg in args[1:] if not re.match(r"[A-Z_]+=", arg)]
            found[file.name.removesuffix(".sh")] = args
    return found


def values(tree: Any, key: str) -> Iterator[Any]:
    """Everything that is called ``key`` in a tree."""
    if isinstance(tree, dict):
        yield from (found for name, found in tree.items() if name == key)
        tree = list(tree.values())
    if isinstance(tree, list):
        for branch in tree:
            yield from values(branch, key)


def option(args: list[str], name: str) -> str:
    return args[args.index(name) + 1]
