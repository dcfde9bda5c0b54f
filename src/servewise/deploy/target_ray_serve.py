"""Target ``ray-serve``: the configuration of a Ray Serve application that serves with vLLM."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from servewise.deploy.artefact import Artefact, Rendered, label, yaml_text
from servewise.deploy.containers import EVERYWHERE
from servewise.deploy.facts import ray_accelerator, table
from servewise.deploy.machines import machines_of
from servewise.deploy.parts import Fleet, Part
from servewise.errors import InputError

__all__ = ["engine_kwargs", "render"]

ROUTERS: Mapping[str, str | None] = {
    "round_robin": "ray.serve.experimental.round_robin_router:RoundRobinRouter",
    "least_requests": None,  # Ray's own: the less busy of two drawn at random
    "prefix_aware": "ray.serve.llm.request_router:PrefixCacheAffinityRouter",
}
JSON_OPTIONS = ("kv_transfer_config", "speculative_config")


def render(fleet: Fleet, *, name: str, port: int) -> Rendered:
    """A Serve configuration for ``serve deploy`` and for the ``serveConfigV2`` of a RayService.

    Raises
    ------
    InputError
        For other engines than vLLM, data parallel ranks, and routers that Ray lacks.
    """
    deployment = fleet.deployment
    if deployment.engine != "vllm":
        raise InputError(
            f"Ray Serve's applications run vLLM, not {deployment.engine}; use --target command, compose or kubernetes"
        )
    if any(part.instance.parallelism.data_parallel_size > 1 for part in fleet.parts):
        raise InputError("data parallel ranks are not written for Ray Serve; use --target command or kubernetes")
    if deployment.router not in ROUTERS:
        raise InputError(f"Ray Serve has no {deployment.router} router; use --target command, compose or kubernetes")
    groups = deployment.disaggregation is not None
    if groups:
        parts = {part.role: part for part in reversed(fleet.parts)}
        copies = deployment.num_replicas
        arguments: dict[str, Any] = {
            f"{role}_config": _config(parts[role], copies * parts[role].count, None) for role in ("prefill", "decode")
        }
        builder = "ray.serve.llm:build_pd_openai_app"
    else:
        part = fleet.parts[0]
        arguments = {"llm_configs": [_config(part, part.count, ROUTERS[deployment.router])]}
        builder = "ray.serve.llm:build_openai_app"
    application = {"name": label(name), "route_prefix": "/", "import_path": builder, "args": arguments}
    several = len(machines_of(fleet)[0]) > 1
    host = EVERYWHERE if several else "127.0.0.1"
    document = {"http_options": {"host": host, "port": port}, "applications": [application]}
    checked = (f"Ray Serve: {table('ray')['checked']}",)
    return Rendered(
        target="ray-serve",
        files=(Artefact(name="serve.yaml", text=yaml_text(document), checked=checked),),
        notes=_notes(fleet, several),
    )


def _config(part: Part, count: int, router: str | None) -> dict[str, Any]:
    name = part.instance.model.name
    options: dict[str, Any] = {"num_replicas": count}
    if router is not None and count > 1:
        options["request_router_config"] = {"request_router_class": router}
    config: dict[str, Any] = {
        "model_loading_config": {"model_id": name, "model_source": name},
        "engine_kwargs": engine_kwargs(part.start.args[3:]),
        "deployment_config": options,
    }
    accelerator = ray_accelerator(part.instance.gpu)
    return config if accelerator is None else config | {"accelerator_type": accelerator}


def engine_kwargs(args: Sequence[str]) -> dict[str, Any]:
    """Options of ``vllm serve`` as the data that they are read as, by their names in Python."""
    found: dict[str, Any] = {}
    position = 0
    while position < len(args):
        option = args[position].removeprefix("--").replace("-", "_")
        position += 1
        if position == len(args) or args[position].startswith("--"):
            found[option.removeprefix("no_")] = not option.startswith("no_")
            continue
        found[option] = json.loads(args[position]) if option in JSON_OPTIONS else _value(args[position])
        position += 1
    return found


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _notes(fleet: Fleet, several: bool) -> tuple[str, ...]:
    ray, deployment = table("ray"), fleet.deployment
    words = [
        "serve deploy serve.yaml, or the text as serveConfigV2 of a RayService",
        "it listens on all addresses of its machines and asks for no key: keep the port within a private network"
        if several
        else f"it listens at 127.0.0.1 of its machine; for a RayService, reached from others, set host to {EVERYWHERE}",
        f"Ray {ray['version']} brings vLLM {ray['vllm']}, the plan is for {deployment.engine_version}",
        "the replicas' metrics come with Ray's own, on each node; HF_TOKEN is taken from the environment of its nodes",
    ]
    words += [
        f"Ray has no name for {name}: nothing chooses the nodes"
        for name in sorted({part.instance.gpu.name for part in fleet.parts if not ray_accelerator(part.instance.gpu)})
    ]
    if deployment.disaggregation is not None:
        words.append(
            "Ray draws a request's prefill and decode replicas from all of them, the less busy of two: it has no groups"
        )
    elif deployment.router == "least_requests" and deployment.num_replicas > 2:
        words.append("Ray takes the less busy of two replicas drawn at random, the plan the least busy of all")
    elif deployment.router == "prefix_aware":
        words.append("Ray's PrefixCacheAffinityRouter compares prompts as texts and balances by rules of its own")
    return tuple(words)
