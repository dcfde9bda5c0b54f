"""Kinds of use and what is sensible to promise for each: facts with sources in ``data/uses.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, get_args

from servewise.errors import CatalogError
from servewise.types import EFFORTS, Effort, Kind, Provenance, TaskKind

__all__ = ["Limit", "Use", "effort_permits", "uses"]

USES = "uses.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit of a promise.

    Parameters
    ----------
    value : float
        In the unit of its key in a service file.
    why : str
    provenance : Provenance
    """

    value: float
    why: str
    provenance: Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A kind of use.

    Parameters
    ----------
    title : str
    model : str
        Catalog name of a model to begin with.
    tasks : tuple of TaskKind
        Kinds of task that the quality floor is judged on.
    profile : str
        Built-in traffic profile; empty where traffic is made up.
    synthesis : mapping of str to object
        Traffic as in a service file, without its rate; empty where there is a profile.
    at_once : bool
        Whether all requests are there from the start, so that their number is asked and not their rate.
    traffic_why : str
    promise : mapping of str to Limit
        By key of a service file.
    """

    title: str
    model: str
    tasks: tuple[TaskKind, ...]
    profile: str
    synthesis: Mapping[str, Any]
    at_once: bool
    traffic_why: str
    promise: Mapping[str, Limit]


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(resources.files("servewise.data").joinpath(USES).read_text(encoding="utf-8"))


@cache
def uses() -> Mapping[str, Use]:
    """The kinds of use by name, in the order of the file.

    Raises
    ------
    CatalogError
        When a limit lacks its reason, source, date or kind.
    """
    return MappingProxyType({name: _use(name, facts) for name, facts in _table()["use"].items()})


def _use(name: str, facts: Mapping[str, Any]) -> Use:
    return Use(
        title=facts["title"],
        model=facts["model"],
        tasks=tuple(facts["tasks"]),
        profile=facts.get("profile", ""),
        synthesis=facts.get("synthesis", {}),
        at_once=facts.get("at_once", False),
        traffic_why=facts["traffic_why"],
        promise={key: _limit(f"{name}.{key}", fact) for key, fact in facts["promise"].items()},
    )


def _limit(name: str, fact: Mapping[str, Any]) -> Limit:
    kind: Kind | None = next((kind for kind in get_args(Kind) if kind == fact.get("kind")), None)
    if kind is None or not all(fact.get(key) for key in ("why", "source", "accessed")):
        raise CatalogError(f"{USES}: {name} needs a reason, a source, a date and a kind of {get_args(Kind)}")
    origin = Provenance(kind=kind, source=fact["source"], accessed=fact["accessed"])
    return Limit(value=fact["value"], why=fact["why"], provenance=origin)


def effort_permits() -> Mapping[Effort, str]:
    """What each effort permits, in words."""
    return {effort: _table()["effort"][effort] for effort in EFFORTS}
