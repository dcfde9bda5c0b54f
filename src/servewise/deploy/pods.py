"""Pods of a fleet's processes, as Kubernetes describes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from servewise.deploy.artefact import undollared
from servewise.deploy.containers import FILES_DIR, Container, model_container, place_in
from servewise.deploy.facts import engine_facts, gpu_label, router_facts
from servewise.deploy.parts import Part, RouterPart
from servewise.deploy.serving import side_channel
from servewise.types import GpuSpec

__all__ = ["GPU_RESOURCE", "POD_PLACE", "TOKEN_SECRET", "instance_pod", "router_pod"]

GPU_RESOURCE: Mapping[str, str] = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
DRIVER: Mapping[str, str] = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
"""Has NVIDIA's container runtime put the driver into a container that asks for no GPU."""
PRODUCT_LABEL = "nvidia.com/gpu.product"
TOKEN_SECRET, TOKEN = "hf-token", "HF_TOKEN"
POD_PLACE = place_in("$(POD_IP)")
"""An instance's pod, as it sees itself: Kubernetes fills in its address."""
POD: Mapping[str, Any] = {"automountServiceAccountToken": False, "enableServiceLinks": False}
"""A service called `vllm` would set VLLM_PORT, which vLLM reads as its own."""
PERIOD_S = 10


def instance_pod(
    part: Part, container: Container, *, app: str, claim: str, more_args: Sequence[str] = (), serves: bool = True
) -> dict[str, Any]:
    """Pod of an instance, or of one of its nodes.

    Parameters
    ----------
    part : Part
    container : Container
    app : str
        Name of the service's objects.
    claim : str
        Claim of the volume of downloaded models.
    more_args : sequence of str
        Options in which Kubernetes fills in variables.
    serves : bool
        Whether it answers requests, so that it can be asked for its health.
    """
    facts = engine_facts(part.instance.engine)
    volumes, mounts = _volumes(part, container, f"{app}-{part.name}", claim)
    main = _container(part.name, container, mounts, more_args)
    channel = side_channel(part, POD_PLACE)
    main["env"] += _token(part) + (_field("POD_IP", "status.podIP") if channel else [])
    main["env"] += [{"name": name, "value": value} for name, value in channel.items()]
    gpus = {GPU_RESOURCE[part.instance.gpu.vendor]: str(part.gpus_per_node)}
    shm_gib = math.ceil(facts.shm_gib)
    main["resources"] = {
        "requests": {"cpu": str(part.num_cpus), "memory": f"{part.memory_gib + shm_gib}Gi", **gpus},
        "limits": {"memory": f"{part.memory_gib + part.weights_gib + shm_gib}Gi", **gpus},
    }
    if serves:
        main |= _probes(container, part.first_start_s)
    spec: dict[str, Any] = {**POD, "containers": [main], "volumes": volumes}
    maker = model_container(part, POD_PLACE)
    if maker is not None:
        spec["initContainers"] = [_container("model", maker, mounts)]
    return spec | _on_gpus(part.instance.gpu)


def router_pod(router: RouterPart, container: Container, app: str, gpu: GpuSpec) -> dict[str, Any]:
    """Pod of a router; ``gpu`` is that of its nodes, where its program needs the driver."""
    name = router.name
    mounts, volumes = [], []
    if container.files:
        mounts = [{"name": "files", "mountPath": FILES_DIR, "readOnly": True}]
        volumes = [{"name": "files", "configMap": {"name": f"{app}-{name}"}}]
    main = _container(name, container, mounts)
    main["env"] += _field("POD_NAMESPACE", "metadata.namespace")
    main["resources"] = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    main |= _probes(container, router.start_s)
    spec: dict[str, Any] = {**POD, "containers": [main], "volumes": volumes}
    if not router_facts(router.program).needs_driver:
        return spec
    main["env"] += [{"name": name, "value": value} for name, value in DRIVER.items()]
    return spec | _on_gpus(gpu)


def _container(
    name: str, container: Container, mounts: Sequence[dict[str, Any]], more_args: Sequence[str] = ()
) -> dict[str, Any]:
    ports = [{"name": "http", "containerPort": container.port}]
    if container.metrics_port:
        ports.append({"name": "metrics", "containerPort": container.metrics_port})
    return {
        "name": name,
        "image": container.image,
        "command": [undollared(container.args[0])],
        "args": [*map(undollared, container.args[1:]), *more_args],
        "env": [{"name": key, "value": undollared(value)} for key, value in container.env.items()],
        "ports": ports,
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": list(mounts),
    }


def _field(name: str, path: str) -> list[dict[str, Any]]:
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}]


def _token(part: Part) -> list[dict[str, Any]]:
    """Token of the hub, from a secret."""
    if not part.downloads:
        return []
    reference = {"name": TOKEN_SECRET, "key": TOKEN, "optional": True}
    return [{"name": TOKEN, "valueFrom": {"secretKeyRef": reference}}]


def _volumes(part: Part, container: Container, files: str, claim: str) -> tuple[list[Any], list[Any]]:
    facts = engine_facts(part.instance.engine)
    found: list[tuple[dict[str, Any], str, bool]] = []
    if container.files:
        found.append(({"name": "files", "configMap": {"name": files}}, FILES_DIR, True))
    if facts.shm_gib:
        size = {"medium": "Memory", "sizeLimit": f"{math.ceil(facts.shm_gib)}Gi"}
        found.append(({"name": "shm", "emptyDir": size}, "/dev/shm", False))  # noqa: S108
    for number, path in enumerate(part.paths):
        found.append(({"name": f"model-{number}", "hostPath": {"path": path}}, path, True))
    if part.keeps_models:  # Ollama's store is one server's own
        kept = {"persistentVolumeClaim": {"claimName": claim}} if part.downloads else {"emptyDir": {}}
        found.append(({"name": "models", **kept}, facts.cache, False))
    mounts = [
        {"name": volume["name"], "mountPath": path} | ({"readOnly": True} if read_only else {})
        for volume, path, read_only in found
    ]
    return [volume for volume, _, _ in found], mounts


def _probes(container: Container, first_start_s: float) -> dict[str, Any]:
    """Asked every ten seconds: failures end a start that takes too long, and a server that hangs for a minute."""
    port = container.health_port
    ready, alive = ({"httpGet": {"path": path, "port": port}} for path in (container.ready, container.health))
    return {
        "startupProbe": ready | {"periodSeconds": PERIOD_S, "failureThreshold": math.ceil(first_start_s / PERIOD_S)},
        "readinessProbe": ready | {"periodSeconds": PERIOD_S, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": alive | {"periodSeconds": PERIOD_S, "timeoutSeconds": 10, "failureThreshold": 6},
    }


def _on_gpus(gpu: GpuSpec) -> dict[str, Any]:
    tolerated = [{"key": GPU_RESOURCE[gpu.vendor], "operator": "Exists", "effect": "NoSchedule"}]
    product = gpu_label(gpu)
    return {"tolerations": tolerated} | ({"nodeSelector": {PRODUCT_LABEL: product}} if product else {})
