"""What artefacts hold beside an engine's own options: images, paths, labels, routers.

The values live in ``servewise/data/deploy.toml`` with their sources.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any

from servewise.errors import CatalogError, InputError
from servewise.types import EngineName, GpuSpec

__all__ = [
    "EngineFacts",
    "RouterFacts",
    "engine_facts",
    "gpu_label",
    "image",
    "ray_accelerator",
    "router_facts",
    "table",
]

TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """An engine as a server.

    Parameters
    ----------
    health, metrics : str
        Paths; no metrics page when empty.
    cache : str
        Folder in which it keeps models; empty when it downloads none.
    cache_env : str
        Variable that tells it so; empty where its image does.
    shm_gib : float [GiB]
        Shared memory.
    images : mapping of str to str
        By the GPU's vendor, with ``{version}``.
    source : str
    checked : str
        What of its commands was tried.
    """

    health: str
    metrics: str
    cache: str
    cache_env: str
    shm_gib: float
    images: Mapping[str, str]
    source: str
    checked: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterFacts:
    """A router, as :class:`EngineFacts`; health and metrics may have ports of their own, 0 where they have none.

    Parameters
    ----------
    version : str
        The one whose options are written; empty for the engine's own.
    ready : str
        Path that tells whether anything is there to send requests to.
    needs_driver : bool
        Whether its program starts only where the GPU's driver is, though it computes nothing.
    """

    version: str
    image: str
    health: str
    ready: str
    health_port: int
    metrics: str
    metrics_port: int
    needs_driver: bool
    source: str
    checked: str


@cache
def _document() -> Mapping[str, Any]:
    text = resources.files("servewise.data").joinpath("deploy.toml").read_text(encoding="utf-8")
    found = tomllib.loads(text)
    for kind, needed in (("engine", EngineFacts), ("router", RouterFacts)):
        for name, entry in found[kind].items():
            if entry.keys() != {field.name for field in fields(needed)}:
                raise CatalogError(f"deploy.toml: {kind} {name} has the keys {sorted(entry)}")
    for name, entry in found["gpu"].items():
        if not {"product", "source"} <= entry.keys() <= {"product", "ray", "source"}:
            raise CatalogError(f"deploy.toml: gpu {name} has the keys {sorted(entry)}")
    return found


def table(name: str) -> Mapping[str, Any]:
    """A table of the file by its name, e.g. ``resources``."""
    found: Mapping[str, Any] = _document()[name]
    return found


def engine_facts(engine: EngineName) -> EngineFacts:
    """What is known of an engine as a server."""
    return EngineFacts(**_document()["engine"][engine])


def router_facts(program: str) -> RouterFacts:
    """What is known of a router program."""
    return RouterFacts(**_document()["router"][program])


def image(engine: EngineName, version: str, vendor: str) -> str | None:
    """Image of an engine for a vendor's GPUs, pinned; None when none is known."""
    if not TAG.fullmatch(version):
        raise InputError(f"version {version!r} of {engine} is no tag of an image")
    known = engine_facts(engine).images.get(vendor)
    return None if known is None else known.format(version=version)


def gpu_label(gpu: GpuSpec) -> str | None:
    """Value of the node label ``nvidia.com/gpu.product``; None when it is not known."""
    entry = _document()["gpu"].get(gpu.name)
    return None if entry is None else str(entry["product"])


def ray_accelerator(gpu: GpuSpec) -> str | None:
    """Ray's name of a GPU; None when it has none."""
    name = _document()["gpu"].get(gpu.name, {}).get("ray")
    return None if name is None else str(name)
