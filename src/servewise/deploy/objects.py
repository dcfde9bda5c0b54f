"""Kubernetes objects around pods: names and labels, files, the volume of models, the scrape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servewise.deploy.containers import FILES_DIR
from servewise.deploy.facts import gpu_label
from servewise.deploy.parts import Fleet
from servewise.units import GIB

__all__ = [
    "config_map",
    "gpu_notes",
    "is_shared",
    "kubernetes_object",
    "meta",
    "models_claim",
    "needs_claim",
    "pod_monitor",
    "selector",
]


def meta(app: str, part: str) -> dict[str, Any]:
    """Name and labels of an object that belongs to a part."""
    return {"name": f"{app}-{part}", "labels": selector(app, part) | {"app.kubernetes.io/managed-by": "servewise"}}


def selector(app: str, part: str) -> dict[str, str]:
    """Labels of a part's pods."""
    return {"app.kubernetes.io/name": app, "app.kubernetes.io/component": part}


def config_map(app: str, part: str, files: Mapping[str, str]) -> dict[str, Any]:
    """The files of a start."""
    data = {path.removeprefix(f"{FILES_DIR}/"): text for path, text in files.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(app, part), "data": data}


def kubernetes_object(version: str, kind: str, head: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """An object with a specification."""
    return {"apiVersion": version, "kind": kind, "metadata": head, "spec": spec}


def needs_claim(fleet: Fleet) -> bool:
    """Whether models are downloaded into a volume that all pods share."""
    return fleet.parts[0].downloads


def is_shared(fleet: Fleet) -> bool:
    """Whether several pods read the downloaded models."""
    return sum(part.count * part.num_nodes for part in fleet.parts) > 1


def models_claim(fleet: Fleet, name: str) -> dict[str, Any]:
    """Volume of downloaded models: twice the weights, as a hub's cache may hold a file twice while it loads it."""
    size_gib = 2 * -(-max(part.weights_bytes for part in fleet.parts) // GIB) + 10
    mode = "ReadWriteMany" if is_shared(fleet) else "ReadWriteOnce"
    spec = {"accessModes": [mode], "resources": {"requests": {"storage": f"{size_gib}Gi"}}}
    return kubernetes_object("v1", "PersistentVolumeClaim", {"name": name}, spec)


def pod_monitor(
    app: str, part: str, path: str, port: str | int = "http", chosen: dict[str, str] | None = None
) -> dict[str, Any] | None:
    """Scrape of a part's pods, each for itself, at a port that they declare; None when it has no metrics page."""
    if not path:
        return None
    endpoint = {"path": path, "interval": "15s", "port" if isinstance(port, str) else "targetPort": port}
    spec = {"selector": {"matchLabels": chosen or selector(app, part)}, "podMetricsEndpoints": [endpoint]}
    return kubernetes_object("monitoring.coreos.com/v1", "PodMonitor", meta(app, part), spec)


def gpu_notes(fleet: Fleet) -> list[str]:
    """GPUs whose nodes nothing selects."""
    gpus = {part.instance.gpu.name: part.instance.gpu for part in fleet.parts}
    return [
        f"no node label of {name} is known: add a nodeSelector where the cluster has several kinds of GPU"
        for name, gpu in gpus.items()
        if gpu_label(gpu) is None
    ]
