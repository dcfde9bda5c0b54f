"""Reader of ``servewise/data/engines``: figures of an engine by version, each with its source."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from servewise.errors import CatalogError, InputError
from servewise.types import Kind, Provenance

__all__ = ["cited", "default_version", "document", "range_of", "version_key"]


@cache
def document(engine: str) -> Mapping[str, Any]:
    """Parse an engine's data file."""
    text = resources.files("servewise.data").joinpath(f"engines/{engine}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def default_version(engine: str) -> str:
    """Version that is planned for when none is named."""
    return str(document(engine)["default_version"])


def cited(engine: str, keys: list[str]) -> Provenance:
    """Provenance of figures from the keys of their sources: measured, when all of them are logs; assumed, when
    all of them say so; else read in the engine."""
    sources = document(engine)["sources"]
    unknown = [key for key in keys if key not in sources]
    if unknown:
        raise CatalogError(f"engines/{engine}.toml: no [sources] entry for {', '.join(unknown)}")
    texts = [str(sources[key]) for key in keys]
    kind: Kind = "spec"
    if all("log" in key for key in keys):
        kind = "measured"
    elif all(text.startswith("assumed") for text in texts):
        kind = "assumed"
    return Provenance(kind=kind, source="; ".join(texts))


def version_key(engine: str, version: str) -> tuple[int, ...]:
    """Sort key of a version such as ``0.19.0``, ``0.19.1rc2`` or llama.cpp's ``b10488``.

    Raises
    ------
    InputError
        When the text does not start with numbers.
    """
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version) or re.match(r"b(\d+)()()", version)
    if found is None:
        raise InputError(
            f"{engine} version {version!r} is not a version; write one such as {default_version(engine)}"
        )
    return tuple(int(part or 0) for part in found.groups())


def range_of(engine: str, version: str) -> Mapping[str, Any]:
    """Table of the range that holds a version.

    Raises
    ------
    InputError
        When the version is older than the first one described.
    """
    tables = document(engine)["range"]
    key = version_key(engine, version)
    known = [t for t in tables if version_key(engine, t["from"]) <= key]
    if not known:
        oldest = tables[0]["from"]
        raise InputError(f"{engine} {version} is older than {oldest}, the oldest described; name a newer version")
    found: Mapping[str, Any] = known[-1]
    return found
