"""Target ``kubernetes``: plain manifests, with LeaderWorkerSet for replicas on several nodes."""

from __future__ import annotations

from typing import Any

from servewise.deploy.artefact import Artefact, Rendered, join_yaml, label, yaml_text
from servewise.deploy.containers import Container, instance_container, place_in, router_container
from servewise.deploy.facts import engine_facts, router_facts, table
from servewise.deploy.marks import container_marks
from servewise.deploy.objects import (
    config_map,
    gpu_notes,
    is_shared,
    kubernetes_object,
    meta,
    models_claim,
    needs_claim,
    pod_monitor,
    selector,
)
from servewise.deploy.parts import Fleet, Member, Part, RouterPart
from servewise.deploy.pods import POD_PLACE, TOKEN_SECRET, instance_pod, router_pod
from servewise.deploy.serving import DEFAULT_PORT, Place, node_args

__all__ = ["render"]

LEADER = "$(LWS_LEADER_ADDRESS)"
RANK = "$(LWS_WORKER_INDEX)"
LEADER_LABEL = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
NAMESPACE = "${POD_NAMESPACE}.svc.cluster.local"
"""HAProxy asks the cluster's DNS itself, which knows whole names only."""


def render(fleet: Fleet, *, name: str, port: int) -> Rendered:
    """Manifests.

    Parameters
    ----------
    fleet : Fleet
    name : str
    port : int
        Of the service that clients talk to; pods have ports of their own.

    Raises
    ------
    InputError
        When no image is known for a GPU, or an engine is not started by a command on each node.
    """
    app = label(name)
    documents: list[dict[str, Any]] = []
    claim = f"{app}-models"
    if needs_claim(fleet):
        documents.append(models_claim(fleet, claim))
    for part in fleet.parts:
        documents += _instances(part, app, claim)
    for router in fleet.routers:
        documents += _router(fleet, router, app)
    documents.append(_entry(fleet, app, port))
    checked = (f"manifests: {table('kubernetes')['checked']}", *container_marks(fleet))
    monitors = [
        pod_monitor(app, part.name, engine_facts(part.instance.engine).metrics, chosen=_serving(app, part))
        for part in fleet.parts
    ]
    monitors += [
        pod_monitor(app, router.name, router_facts(router.program).metrics, "metrics") for router in fleet.routers
    ]
    files = [Artefact(name="manifests.yaml", text=join_yaml([yaml_text(d) for d in documents]), checked=checked)]
    scraped = [yaml_text(monitor) for monitor in monitors if monitor is not None]
    if scraped:
        files.append(Artefact(name="podmonitors.yaml", text=join_yaml(scraped), checked=checked[:1]))
    return Rendered(target="kubernetes", files=tuple(files), notes=_notes(fleet, app, port))


def _instances(part: Part, app: str, claim: str) -> list[dict[str, Any]]:
    container = instance_container(part, POD_PLACE)
    found = [config_map(app, part.name, container.files)] if container.files else []
    if part.num_nodes > 1:
        return [*found, _group_of_pods(part, container, app, claim)]
    head = meta(app, part.name)
    pod = {"metadata": {"labels": selector(app, part.name)}}
    pod["spec"] = instance_pod(part, container, app=app, claim=claim)
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector(app, part.name)}
    found.append(kubernetes_object("v1", "Service", head, service | {"ports": [_port()]}))
    spec = {
        "serviceName": head["name"],
        "replicas": part.count,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": selector(app, part.name)},
        "template": pod,
    }
    found.append(kubernetes_object("apps/v1", "StatefulSet", head, spec))
    if part.count > 1:
        limits = {"maxUnavailable": 1, "selector": {"matchLabels": selector(app, part.name)}}
        found.append(kubernetes_object("policy/v1", "PodDisruptionBudget", head, limits))
    return found


def _group_of_pods(part: Part, container: Container, app: str, claim: str) -> dict[str, Any]:
    """Several nodes a replica; its controller makes the headless service."""

    def pod(rank: int | str) -> dict[str, Any]:
        more = node_args(part, rank, LEADER)
        spec = instance_pod(part, container, app=app, claim=claim, more_args=more, serves=rank == 0)
        return {"metadata": {"labels": selector(app, part.name)}, "spec": spec}

    template = {
        "size": part.num_nodes,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": pod(0),
        "workerTemplate": pod(RANK),
    }
    spec = {"replicas": part.count, "leaderWorkerTemplate": template}
    return kubernetes_object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", meta(app, part.name), spec)


def _router(fleet: Fleet, router: RouterPart, app: str) -> list[dict[str, Any]]:
    container = router_container(
        fleet, router, lambda member: _place(fleet, app, member, router.program), place_in(router.name)
    )
    head = meta(app, router.name)
    pods = {"labels": selector(app, router.name)}
    gpu = fleet.parts[0].instance.gpu
    spec = {
        "replicas": 1,  # it counts requests and remembers prompts: two would each know half
        "selector": {"matchLabels": selector(app, router.name)},
        "template": {"metadata": pods, "spec": router_pod(router, container, app, gpu)},
    }
    found = [config_map(app, router.name, container.files)] if container.files else []
    found.append(kubernetes_object("apps/v1", "Deployment", head, spec))
    if router.name != fleet.entry.part:  # another router has to find it
        service = {"selector": selector(app, router.name), "ports": [_port()]}
        found.append(kubernetes_object("v1", "Service", head, service))
    return found


def _place(fleet: Fleet, app: str, member: Member, program: str) -> Place:
    """Where a router finds an instance, or another router."""
    name = f"{app}-{member.part}"
    if any(part.name == member.part for part in fleet.parts):
        name = f"{name}-{member.index}.{name}"
    return place_in(f"{name}.{NAMESPACE}" if program == "haproxy" else name)


def _entry(fleet: Fleet, app: str, port: int) -> dict[str, Any]:
    """The service that clients talk to."""
    chosen = selector(app, fleet.entry.part) if fleet.routers else _serving(app, fleet.parts[0])
    return kubernetes_object(
        "v1", "Service", meta(app, "entry") | {"name": app}, {"selector": chosen, "ports": [_port(port)]}
    )


def _serving(app: str, part: Part) -> dict[str, str]:
    """Labels of a part's pods that answer requests."""
    return selector(app, part.name) | (LEADER_LABEL if part.num_nodes > 1 else {})


def _port(number: int = DEFAULT_PORT) -> dict[str, Any]:
    return {"name": "http", "port": number, "targetPort": DEFAULT_PORT}


def _notes(fleet: Fleet, app: str, port: int) -> tuple[str, ...]:
    words = [
        f"kubectl apply -f manifests.yaml; within the cluster it serves at http://{app}:{port}, without a key",
        "podmonitors.yaml needs the Prometheus Operator",
        *gpu_notes(fleet),
    ]
    if needs_claim(fleet):
        if is_shared(fleet):
            words.append(f"the claim {app}-models needs a storage class that several nodes may write to")
        words.append(
            f"models with a licence to accept: kubectl create secret generic {TOKEN_SECRET} --from-literal=HF_TOKEN=..."
        )
    if fleet.parts[0].paths:
        words.append("a model's path has to exist on every node that may run a pod")
    if any(router_facts(router.program).needs_driver for router in fleet.routers):
        words.append(
            "a router of TensorRT-LLM needs the GPU's driver: it runs on a node with GPUs and asks for none; that "
            "works where NVIDIA's runtime is the default and honours NVIDIA_VISIBLE_DEVICES; elsewhere give it a GPU"
        )
    if any(part.num_nodes > 1 for part in fleet.parts):
        words.append("replicas on several nodes need the LeaderWorkerSet controller")
    return tuple(words)
