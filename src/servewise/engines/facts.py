"""Reader of ``servewise/data/engines``: figures of an engine by version, each with its source."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from servewise.errors import CatalogError, InputError
from servewise.types import GpuSpec, Kind, Provenance

__all__ = ["cited", "default_version", "document", "library_gib", "range_of", "version_key"]


@cache
def document(engine: str) -> Mapping[str, Any]:
    """Parse an engine's data file."""
    text = resources.files("servewise.data").joinpath(f"engines/{engine}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def default_version(engine: str) -> str:
    """Version that is planned for when none is named."""
    return str(document(engine)["default_version"])


def cited(engine: str, keys: list[str]) -> Provenance:
    """Provenance of figures from the keys of their sources: measured, when a start-up log is among them;
    assumed, when all of them say so; else read in the engine."""
    sources = document(engine)["sources"]
    unknown = [key for key in keys if key not in sources]
    if unknown:
        raise CatalogError(f"engines/{engine}.toml: no [sources] entry for {', '.join(unknown)}")
    texts = [str(sources[key]) for key in keys]
    kind: Kind = "spec"
    if any("log" in key for key in keys):
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
            f"{document(engine)['name']} version {version!r} is not a version; "
            f"write one such as {default_version(engine)}"
        )
    return tuple(int(part or 0) for part in found.groups())


def range_of(engine: str, version: str, table: str = "range") -> Mapping[str, Any]:
    """Row that holds a version in one of the tables by version.

    Raises
    ------
    InputError
        When the version is older than the first one described.
    """
    rows = document(engine)[table]
    key = version_key(engine, version)
    known = [row for row in rows if version_key(engine, row["from"]) <= key]
    if not known:
        oldest = rows[0]["from"]
        raise InputError(
            f"{document(engine)['name']} {version} is older than {oldest}, the oldest described; name a newer version"
        )
    found: Mapping[str, Any] = known[-1]
    return found


def library_gib(engine: str, gpu: GpuSpec, num_gpus: int) -> tuple[float, Provenance]:
    """Memory of a GPU's driver context and of communication buffers [GiB] with ``num_gpus`` sharing each layer."""
    table = document(engine)["memory"]
    key = "one_gib" if num_gpus == 1 else "pcie_gib" if gpu.link_kind == "pcie" else "nvlink_gib"
    return float(table[key]), cited(engine, table["source"])
