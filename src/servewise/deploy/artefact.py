"""What is written to deploy a service: files with what was checked of them; names and texts that are safe in them."""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.scalarstring import LiteralScalarString, SingleQuotedScalarString

from servewise.deploy.command import file_line
from servewise.engines import Launch

__all__ = ["Artefact", "Rendered", "join_yaml", "label", "renamed_files", "undollared", "yaml_text"]

SCRIPT = ".sh"
PLAIN = re.compile(r"(?i)(?!(?:y|n|yes|no|on|off|true|false|null|nan|inf)\Z)-{0,2}[a-z/][a-z0-9/._-]*")
"""Texts that no reader of YAML 1.1 or 1.2 takes for something else without quotes."""
MAX_LABEL_CHARS = 36
"""Leaves room for ``-g999-prefill`` and the hash of a StatefulSet's revision within the 63 of a label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """A file.

    Parameters
    ----------
    name : str
        In the folder of the deployment; no path.
    text : str
    checked : tuple of str
        What of it was checked, and how; for each program or format in it.
    """

    name: str
    text: str
    checked: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """Everything that a target needs, and what it leaves to the reader."""

    target: str
    files: tuple[Artefact, ...]
    notes: tuple[str, ...] = ()

    @property
    def stream(self) -> str:
        """All files as one text: lines for a POSIX shell, or YAML documents."""
        if not any(file.name.endswith(SCRIPT) for file in self.files):
            return join_yaml([file.text for file in self.files])
        return "".join(_shell_lines(file) for file in self.files)


def _shell_lines(file: Artefact) -> str:
    if not file.name.endswith(SCRIPT):
        return f"{file_line(file.name, file.text)}\n"
    _, title, command = file.text.splitlines()
    return f"{title}\n{command.removeprefix('exec ')}\n"


def label(name: str, fallback: str = "servewise") -> str:
    """A DNS-1123 label that starts with a letter, from any text; never the text itself where it is none."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode("ascii").lower()
    found = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    found = found if found[:1].isalpha() else f"{fallback}-{found}"
    return found[:MAX_LABEL_CHARS].strip("-")


def undollared(text: str) -> str:
    """A text that Kubernetes (in commands, arguments and variables) and Compose read as ``text``.

    Both replace ``$(NAME)`` and ``${NAME}``, and read ``$$`` as one dollar.

    Sources
    -------
    Kubernetes, third_party/forked/golang/expansion/expand.go; compose-spec, 12-interpolation.md.
    """
    return text.replace("$", "$$")


class _Yaml(YAML):
    """Plain data as block YAML; every string is a scalar that reads back as itself."""

    def __init__(self) -> None:
        super().__init__(typ="rt", pure=True)
        self.default_flow_style = False
        self.allow_unicode = True
        self.width = 4096
        self.indent(mapping=2, sequence=4, offset=2)


def _plain(value: Any) -> Any:
    """Data with texts marked to be quoted, or written as several lines."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if not isinstance(value, str) or PLAIN.fullmatch(value):
        return value
    if "\n" in value and value.isascii() and not re.search(r"[ \t]\n|\A\s|\r", value):
        return LiteralScalarString(value)
    return SingleQuotedScalarString(value)


def yaml_text(document: Any) -> str:
    """A document as YAML."""
    out = io.StringIO()
    writer = _Yaml()
    writer.representer.add_representer(type(None), SafeRepresenter.represent_none)
    writer.dump(_plain(document), out)
    return out.getvalue()


def join_yaml(documents: Sequence[str]) -> str:
    """Documents as one stream."""
    return "---\n".join(documents)


def renamed_files(start: Launch, prefix: str) -> Launch:
    """The same start with its files named ``prefix + name``, and so the options that name them.

    A file is named by an option's value; an argument that is called the same but stands elsewhere is not touched.
    """
    args = [
        f"{prefix}{arg}" if arg in start.files and before.startswith("-") else arg
        for before, arg in zip(["", *start.args], start.args, strict=False)
    ]
    return replace(start, args=args, files={f"{prefix}{name}": text for name, text in start.files.items()})
