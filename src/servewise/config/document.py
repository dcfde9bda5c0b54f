"""Read an untrusted YAML file into plain values that remember their lines.

Values are built from the parser's events, with explicit limits on size, depth and the number of values after
aliases are expanded, so that no file can cost more than a moment or a few megabytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from servewise.errors import InputError

__all__ = ["Document", "Location", "read_document"]

MAX_FILE_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 16
MAX_VALUES: Final = 20_000
MAX_SCALAR_CHARS: Final = 4096

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = re.compile(r"([-+]?\.(inf|Inf|INF))|(\.(nan|NaN|NAN))")

Location = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A YAML file as plain values.

    Parameters
    ----------
    path : Path
    values : mapping of str to object
        Dicts, lists, str, int, float, bool and None.
    lines : mapping of location to int
        1-based line of every value, by the keys and indices that lead to it.
    """

    path: Path
    values: Mapping[str, Any]
    lines: Mapping[Location, int]

    def line_of(self, location: Location) -> int:
        """The line of a value, or of the nearest enclosing one that is in the file."""
        for end in range(len(location), 0, -1):
            if location[:end] in self.lines:
                return self.lines[location[:end]]
        return 1

    def existing_file(self, location: Location, name: str) -> Path:
        """The file that a value names, relative to the document's folder.

        Raises
        ------
        InputError
            When there is none.
        """
        path = self.path.parent / name
        try:
            found = path.is_file()
        except (OSError, ValueError):  # a name too long or with a null character
            found = False
        if not found:
            raise self.error(location, f"no file {name!r} in {self.path.parent} (paths start at this file's folder)")
        return path

    def error(self, location: Location, message: str) -> InputError:
        """An error that names the file, the line and the key."""
        key = ".".join(str(part) for part in location)
        return InputError(f"{self.path}, line {self.line_of(location)}: {key + ': ' if key else ''}{message}")


@dataclass(slots=True)
class _Node:
    """A value with its line; children are nodes, shared where the file uses aliases."""

    line: int
    value: Any = None
    keys: dict[str, int] = field(default_factory=dict)
    num_values: int = 1


def read_document(path: Path) -> Document:
    """Read a YAML file whose top level is a mapping.

    Parameters
    ----------
    path : Path
        UTF-8, at most 256 KiB.

    Returns
    -------
    Document

    Raises
    ------
    InputError
        The file cannot be read, is too large, or is not the YAML that servewise accepts.
    """
    text = _read_text(path)
    try:
        root = _Builder(path).build(_events(text))
    except MarkedYAMLError as error:
        raise _syntax_error(path, text, error) from error
    except YAMLError as error:
        first = str(error).splitlines()[0]
        raise InputError(f"{path}: not YAML: {first}") from error
    if root is None or root.value is None:
        raise InputError(f"{path}: the file is empty; it needs 'key: value' lines")
    if not isinstance(root.value, dict):
        kind = "a list" if isinstance(root.value, list) else "a single value"
        raise InputError(f"{path}, line {root.line}: the top level is {kind}; it must be 'key: value' lines")
    lines: dict[Location, int] = {}
    return Document(path=path, values=_plain(root, (), lines), lines=lines)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise InputError(f"{path}: larger than the {MAX_FILE_BYTES // 1024} KiB a configuration file may have")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from error


def _events(text: str) -> Iterator[Event]:
    yaml = YAML(typ="safe", pure=True)
    yield from yaml.parse(text)


def _syntax_error(path: Path, text: str, error: MarkedYAMLError) -> InputError:
    mark = error.problem_mark or error.context_mark
    line = 1 if mark is None else mark.line + 1
    rows = text.splitlines()
    if line <= len(rows) and re.match(r"\s*\t", rows[line - 1]):
        return InputError(f"{path}, line {line}: indented with a tab; YAML is indented with spaces")
    problem = str(error.problem).splitlines()[0]
    return InputError(f"{path}, line {line}: not YAML: {problem}")


class _Builder:
    """Builds a node tree from events with an explicit stack (no recursion on the file's nesting)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack: list[_Node] = []
        self._pending_key: list[str | None] = []
        self._anchors: dict[str, _Node] = {}
        self._open_anchors: dict[int, str] = {}
        self._num_documents = 0
        self._root: _Node | None = None

    def build(self, events: Iterator[Event]) -> _Node | None:
        for event in events:
            line = event.start_mark.line + 1
            if isinstance(event, DocumentStartEvent):
                self._num_documents += 1
                if self._num_documents > 1:
                    raise self._error(line, "a second document starts; a configuration file holds one")
            elif isinstance(event, AliasEvent):
                self._add(self._alias(event.anchor, line), line)
            elif isinstance(event, ScalarEvent):
                self._scalar(event, line)
            elif isinstance(event, MappingStartEvent | SequenceStartEvent):
                self._open(event, line)
            elif isinstance(event, MappingEndEvent | SequenceEndEvent):
                self._close()
        return self._root

    def _error(self, line: int, message: str) -> InputError:
        return InputError(f"{self._path}, line {line}: {message}")

    def _alias(self, anchor: str, line: int) -> _Node:
        if anchor not in self._anchors:
            raise self._error(line, f"alias *{anchor} refers to no finished value above it")
        return self._anchors[anchor]

    def _open(self, event: MappingStartEvent | SequenceStartEvent, line: int) -> None:
        if event.tag is not None:
            raise self._error(line, f"tag {event.tag} is not allowed; write plain values")
        if len(self._stack) >= MAX_DEPTH:
            raise self._error(line, f"nested deeper than {MAX_DEPTH} levels")
        if self._expects_key():
            raise self._error(line, "a key must be a word, not a list or mapping")
        node = _Node(line, {} if isinstance(event, MappingStartEvent) else [])
        if event.anchor is not None:
            self._open_anchors[id(node)] = event.anchor
        self._stack.append(node)
        self._pending_key.append(None)

    def _close(self) -> None:
        node = self._stack.pop()
        self._pending_key.pop()
        anchor = self._open_anchors.pop(id(node), None)
        if anchor is not None:
            self._anchors[anchor] = node
        self._add(node, node.line)

    def _expects_key(self) -> bool:
        return bool(self._stack) and isinstance(self._stack[-1].value, dict) and self._pending_key[-1] is None

    def _scalar(self, event: ScalarEvent, line: int) -> None:
        if event.tag is not None and event.tag != "!":
            raise self._error(line, f"tag {event.tag} is not allowed; write plain values")
        text = str(event.value)
        if len(text) > MAX_SCALAR_CHARS:
            raise self._error(line, f"a value of {len(text)} characters; at most {MAX_SCALAR_CHARS} are allowed")
        if self._expects_key():
            self._key(text, line)
            return
        node = _Node(line, _scalar_value(text) if event.implicit[0] else text)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        self._add(node, line)

    def _key(self, key: str, line: int) -> None:
        parent = self._stack[-1]
        if key == "<<":
            raise self._error(line, "merge keys (<<) are not allowed; repeat the values")
        if key in parent.keys:
            raise self._error(line, f"key {key!r} is given twice, first on line {parent.keys[key]}")
        parent.keys[key] = line
        self._pending_key[-1] = key

    def _add(self, node: _Node, line: int) -> None:
        if not self._stack:
            self._root = node
            return
        parent = self._stack[-1]
        parent.num_values += node.num_values
        if parent.num_values > MAX_VALUES:
            raise self._error(line, f"more than {MAX_VALUES} values once aliases are expanded")
        if isinstance(parent.value, list):
            parent.value.append(node)
            return
        key = self._pending_key[-1]
        if key is None:
            raise self._error(line, "a key must be a word, not an alias")
        parent.value[key] = node
        self._pending_key[-1] = None


def _scalar_value(text: str) -> str | int | float | bool | None:
    """Resolve a plain scalar by the YAML 1.2 core schema (so ``yes`` and ``no`` stay words)."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL_FLOAT.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def _plain(node: _Node, location: Location, lines: dict[Location, int]) -> Any:
    """Strip the nodes off the values; recursion is bounded by the depth and size limits."""
    lines.setdefault(location, node.line)
    if isinstance(node.value, dict):
        for key, line in node.keys.items():
            lines[(*location, key)] = line
        return {key: _plain(child, (*location, key), lines) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [_plain(child, (*location, i), lines) for i, child in enumerate(node.value)]
    return node.value
