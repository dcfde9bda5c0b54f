"""What running a deployment asks of a team, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from servewise.types.deployment import EngineName
from servewise.types.provenance import Provenance

__all__ = ["EFFORTS", "Effort", "EffortAspect", "EffortFact", "EffortReport", "EngineColumns", "Topology"]

Effort = Literal["low", "medium", "high"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)
"""From least to most."""
EffortAspect = Literal[
    "install",
    "conversion",
    "model_swap",
    "parallelism",
    "multi_node",
    "disaggregation",
    "observability",
    "upgrades",
    "project",
    "models",
    "hardware",
]
Topology = Literal[
    "several_replicas",
    "tensor_parallel",
    "pipeline_parallel",
    "data_parallel",
    "expert_parallel",
    "expert_all_to_all",
    "several_nodes",
    "disaggregated",
    "drafter_with_weights",
    "other_checkpoint",
]
"""Properties of a deployment that facts apply to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffortFact:
    """One thing that an engine or a topology asks of a team.

    Parameters
    ----------
    id : str
    engine : EngineName or None
        The engine it is about; None: any.
    topology : Topology or None
        The property of a deployment it is about; None: it holds for every deployment of the engine.
    aspect : EffortAspect
    text : str
        One sentence without its full stop.
    demand : Effort
    provenance : Provenance
    grade : Effort or None
        Of an engine's own facts: how convenient it is here, how flexible in its models, or how dependent on hardware.
    warn : bool
        Whether a plan warns of it.
    """

    id: str
    engine: EngineName | None
    topology: Topology | None
    aspect: EffortAspect
    text: str
    demand: Effort
    provenance: Provenance
    grade: Effort | None = None
    warn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EffortReport:
    """A level and the facts it follows from.

    Parameters
    ----------
    level : Effort
        Of a deployment the highest demand among the facts, of an engine's column the middle grade; low without any.
    facts : tuple of EffortFact
        All that apply.
    """

    level: Effort
    facts: tuple[EffortFact, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineColumns:
    """How an engine compares, beside its performance.

    Parameters
    ----------
    engine : EngineName
    convenience : EffortReport
        To install, watch and upgrade it.
    model_flexibility : EffortReport
        Which models it runs, and how they are exchanged.
    hardware_dependence : EffortReport
    """

    engine: EngineName
    convenience: EffortReport
    model_flexibility: EffortReport
    hardware_dependence: EffortReport
