"""A plan's deployment as what a target deploys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

from servewise.deploy import (
    target_command,
    target_compose,
    target_dynamo,
    target_kserve,
    target_kubernetes,
    target_ray_serve,
)
from servewise.deploy.artefact import Rendered
from servewise.deploy.command import LAUNCHES, checkpoint_notes
from servewise.deploy.facts import engine_facts
from servewise.deploy.parts import Fleet, fleet
from servewise.deploy.routers import router_notes
from servewise.deploy.serving import DEFAULT_PORT, served_name
from servewise.errors import InputError
from servewise.types import Deployment

__all__ = ["TARGETS", "Target", "render"]

Target = Literal["command", "compose", "kubernetes", "kserve", "ray-serve", "dynamo"]
TARGETS: tuple[Target, ...] = get_args(Target)
OWN_ROUTER: tuple[Target, ...] = ("kserve", "ray-serve", "dynamo")
"""Targets that bring a router of their own, and say what it does."""
OWN_PORT: tuple[Target, ...] = ("kserve", "dynamo")
"""Targets that choose where clients reach them."""


def render(
    deployment: Deployment,
    target: Target,
    *,
    name: str,
    model: str | None = None,
    hosts: Sequence[str] = (),
    port: int = DEFAULT_PORT,
) -> Rendered:
    """What deploys a fleet.

    Parameters
    ----------
    deployment : Deployment
    target : Target
    name : str
        Of the service; names of objects are derived from it.
    model : str, optional
        Hub id or path of the checkpoint to serve, instead of the plan's name of the model.
    hosts : sequence of str
        Machines of target ``command``.
    port : int
        At which clients reach it: a machine's, or that of the service in Kubernetes.

    Returns
    -------
    Rendered

    Raises
    ------
    InputError
        When the engine would refuse the parameters, or the target cannot express the deployment; it says which can.
    """
    if deployment.engine not in LAUNCHES:
        raise InputError(f"{deployment.engine} is a textbook scheduler and no server; choose another candidate")
    if hosts and target != "command":
        raise InputError(f"--host is of --target command; {target} finds its machines itself")
    if port != DEFAULT_PORT and target in OWN_PORT:
        raise InputError(f"--port is of the other targets; {target} chooses the port of its service itself")
    if model is None and deployment.model.name.endswith(".json"):
        raise InputError(f"the plan knows {deployment.model.name}, which is no checkpoint; name one with --model")
    planned = deployment.model.name
    missing = [f"{note}; --model names it" for note in checkpoint_notes(deployment)]
    if model is not None:
        deployment, missing = replace(deployment, model=replace(deployment.model, name=model)), []
    found = fleet(deployment, engine_facts(deployment.engine).health, fronted=target not in OWN_ROUTER)
    rendered = _render(found, target, name, hosts, port)
    asked = served_name(found.parts[0]) if target != "dynamo" else deployment.model.name  # which is told the name
    notes = [*missing, *rendered.notes, *([f"clients ask for the model as {asked}"] if asked != planned else [])]
    if target not in OWN_ROUTER:
        notes += [note for router in found.routers for note in router_notes(router)]
    return replace(rendered, notes=tuple(dict.fromkeys(notes)))


def _render(fleet: Fleet, target: Target, name: str, hosts: Sequence[str], port: int) -> Rendered:
    match target:
        case "command":
            return target_command.render(fleet, hosts=hosts, port=port)
        case "compose":
            return target_compose.render(fleet, name=name, port=port)
        case "kubernetes":
            return target_kubernetes.render(fleet, name=name, port=port)
        case "kserve":
            return target_kserve.render(fleet, name=name)
        case "ray-serve":
            return target_ray_serve.render(fleet, name=name, port=port)
        case "dynamo":
            return target_dynamo.render(fleet, name=name)
