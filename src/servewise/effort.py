"""The third question: what does a deployment ask of the team that runs it?

Everything follows from the facts in ``servewise/data/effort.toml``: which apply, and the highest demand among them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from statistics import median_low
from typing import Any, get_args

from servewise.engines import needs_other_checkpoint
from servewise.errors import CatalogError
from servewise.types import (
    EFFORTS,
    ROLES,
    Deployment,
    Effort,
    EffortAspect,
    EffortFact,
    EffortReport,
    EngineColumns,
    EngineName,
    Kind,
    Provenance,
    Topology,
)

__all__ = [
    "cautions",
    "columns",
    "effort",
    "effort_facts",
    "excess",
    "fleet_excess",
    "permits",
    "read_facts",
    "topology",
]

CONVENIENCE: tuple[EffortAspect, ...] = ("install", "observability", "upgrades", "project")
MODEL_FLEXIBILITY: tuple[EffortAspect, ...] = ("models", "conversion", "model_swap")
HARDWARE_DEPENDENCE: tuple[EffortAspect, ...] = ("hardware",)
GRADED = (*CONVENIENCE, *MODEL_FLEXIBILITY, *HARDWARE_DEPENDENCE)
KEYS = {"id", "engine", "topology", "aspect", "demand", "text", "source", "accessed", "kind", "grade", "warn"}
ALLOWED: Mapping[str, tuple[str, ...]] = {
    "engine": get_args(EngineName),
    "topology": get_args(Topology),
    "aspect": get_args(EffortAspect),
    "demand": EFFORTS,
    "grade": EFFORTS,
    "kind": get_args(Kind),
}


@cache
def effort_facts() -> tuple[EffortFact, ...]:
    """The built-in facts, in the order of their file."""
    return read_facts(resources.files("servewise.data").joinpath("effort.toml").read_text(encoding="utf-8"))


def read_facts(text: str) -> tuple[EffortFact, ...]:
    """Facts of a file like ``effort.toml``.

    Raises
    ------
    CatalogError
        When an entry lacks a key, has one too many or a value that is not allowed, or an id stands twice.
    """
    facts = tuple(_fact(entry) for entry in tomllib.loads(text).get("fact", ()))
    ids = [fact.id for fact in facts]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise CatalogError(f"effort.toml: {', '.join(twice)} stands twice; ids name one fact each")
    return facts


def _fact(entry: Mapping[str, Any]) -> EffortFact:
    name = f"effort.toml: fact {entry.get('id', '?')}"
    missing = {"id", "aspect", "demand", "text", "source", "accessed"} - entry.keys()
    if missing or not entry.keys() <= KEYS:
        raise CatalogError(f"{name}: lacks {sorted(missing)}, unknown {sorted(entry.keys() - KEYS)}")
    for key, allowed in ALLOWED.items():
        if key in entry and entry[key] not in allowed:
            raise CatalogError(f"{name}: {key} is {entry[key]!r}, must be one of {', '.join(allowed)}")
    if "engine" not in entry and "topology" not in entry:
        raise CatalogError(f"{name}: applies to nothing; give it an engine, a topology or both")
    compared = "topology" not in entry and entry["aspect"] in GRADED
    if ("grade" in entry) != compared:
        raise CatalogError(f"{name}: facts of an engine alone on {', '.join(GRADED)} have a grade, and no others")
    assumed = entry["source"].startswith("assumed")
    if assumed != (entry.get("kind") == "assumed"):
        raise CatalogError(f"{name}: kind assumed and a source that starts with `assumed:` go together")
    return EffortFact(
        id=entry["id"],
        engine=entry.get("engine"),
        topology=entry.get("topology"),
        aspect=entry["aspect"],
        text=entry["text"],
        demand=entry["demand"],
        provenance=Provenance(kind=entry.get("kind", "spec"), source=entry["source"], accessed=entry["accessed"]),
        grade=entry.get("grade"),
        warn=entry.get("warn", False),
    )


def topology(deployment: Deployment) -> frozenset[Topology]:
    """Properties of a deployment that facts apply to; of a group those of both pools.

    A replica counts as on several nodes when it has more GPUs than a node of its kind holds.
    """
    spread, drafter = deployment.parallelism, deployment.speculation
    own: dict[Topology, bool] = {
        "tensor_parallel": spread.tensor_parallel_size > 1,
        "pipeline_parallel": spread.pipeline_parallel_size > 1,
        "data_parallel": spread.data_parallel_size > 1,
        "expert_parallel": spread.expert_parallel_size > 1,
        "expert_all_to_all": spread.expert_all_to_all,
        "several_nodes": spread.num_gpus > deployment.gpu.gpus_per_node,
        "drafter_with_weights": drafter is not None and drafter.method in ("draft_model", "eagle"),
        "other_checkpoint": needs_other_checkpoint(deployment.engine, deployment.model, deployment.precision.weights),
        "several_replicas": deployment.num_replicas > 1,
        "disaggregated": deployment.disaggregation is not None,
    }
    found = {name for name, holds in own.items() if holds}
    if deployment.disaggregation is not None:
        found.update(*(topology(deployment.pool(role)) for role in ROLES))
    return frozenset(found)


def effort(deployment: Deployment, facts: Sequence[EffortFact] | None = None) -> EffortReport:
    """What a deployment asks of a team.

    Parameters
    ----------
    deployment : Deployment
    facts : sequence of EffortFact, optional
        The built-in ones by default.

    Returns
    -------
    EffortReport
        All facts that apply, and the highest demand among them.
    """
    properties = topology(deployment)
    if facts is None:
        return _known(deployment.engine, properties)
    return _report(facts, deployment.engine, properties)


@cache
def _known(engine: EngineName, properties: frozenset[Topology]) -> EffortReport:
    return _report(effort_facts(), engine, properties)


def _report(facts: Iterable[EffortFact], engine: EngineName, properties: frozenset[Topology]) -> EffortReport:
    applying = tuple(
        f for f in facts if f.engine in (None, engine) and (f.topology is None or f.topology in properties)
    )
    return EffortReport(level=_highest(f.demand for f in applying), facts=applying)


def _highest(levels: Iterable[Effort]) -> Effort:
    return max(levels, key=EFFORTS.index, default="low")


def permits(engine: EngineName, properties: Iterable[Topology], max_effort: Effort) -> bool:
    """Whether a team that can carry ``max_effort`` can run any deployment of an engine with these properties."""
    return EFFORTS.index(_known(engine, frozenset(properties)).level) <= EFFORTS.index(max_effort)


def excess(deployment: Deployment, max_effort: Effort) -> str:
    """Why a deployment asks for more than a team can carry, by the first fact that does; empty when it does not."""
    for fact in effort(deployment).facts:
        if EFFORTS.index(fact.demand) > EFFORTS.index(max_effort):
            return f"asks for {fact.demand} effort, more than max_effort {max_effort}: {fact.text}"
    return ""


def fleet_excess(deployment: Deployment, max_effort: Effort) -> str:
    """As :func:`excess`, of a second replica beside the first."""
    return excess(replace(deployment, num_replicas=2), max_effort)


def cautions(engine: EngineName) -> tuple[str, ...]:
    """What a plan warns of wherever an engine is used."""
    return tuple(fact.text for fact in _known(engine, frozenset()).facts if fact.warn)


def columns(engine: EngineName, facts: Sequence[EffortFact] | None = None) -> EngineColumns:
    """How convenient an engine is, how flexible in its models and how dependent on its hardware, with the facts.

    Parameters
    ----------
    engine : EngineName
    facts : sequence of EffortFact, optional
        The built-in ones by default.

    Returns
    -------
    EngineColumns
        The level of each is the middle of its facts' grades, the lower of two middles.
    """
    own = [f for f in (effort_facts() if facts is None else facts) if f.engine == engine and f.topology is None]

    def column(aspects: tuple[EffortAspect, ...]) -> EffortReport:
        of = tuple(f for f in own if f.aspect in aspects)
        places = [EFFORTS.index(f.grade) for f in of if f.grade is not None]
        return EffortReport(level=EFFORTS[median_low(places)] if places else "low", facts=of)

    return EngineColumns(
        engine=engine,
        convenience=column(CONVENIENCE),
        model_flexibility=column(MODEL_FLEXIBILITY),
        hardware_dependence=column(HARDWARE_DEPENDENCE),
    )
