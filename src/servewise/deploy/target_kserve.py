"""Target ``kserve``: an InferenceService with the engine's own container."""

from __future__ import annotations

from servewise.deploy.artefact import Artefact, Rendered, join_yaml, label, yaml_text
from servewise.deploy.containers import instance_container
from servewise.deploy.facts import engine_facts, table
from servewise.deploy.marks import container_marks
from servewise.deploy.objects import config_map, gpu_notes, models_claim, needs_claim, pod_monitor
from servewise.deploy.parts import Fleet
from servewise.deploy.pods import POD_PLACE, instance_pod
from servewise.errors import InputError

__all__ = ["render"]

PART = "replica"
SPREAD_ROUTERS = ("round_robin", "least_requests")


def render(fleet: Fleet, *, name: str) -> Rendered:
    """An InferenceService in standard mode.

    Raises
    ------
    InputError
        For groups, replicas on several nodes, and routers that choose a replica for what it remembers: an
        LLMInferenceService has them for vLLM, but its presets put the options through ``eval`` in a shell
        (kserve/kserve config/llmisvcconfig/config-llm-decode-template.yaml@01b12410).
    """
    part, deployment = fleet.parts[0], fleet.deployment
    if part.role != "replica" or part.num_nodes > 1:
        what = "groups of prefill and decode instances" if part.role != "replica" else "replicas on several nodes"
        raise InputError(f"an InferenceService has no {what}; use --target kubernetes or dynamo")
    if part.count > 1 and deployment.router not in SPREAD_ROUTERS:
        raise InputError(f"KServe has no {deployment.router} router for its replicas; use --target kubernetes")
    app = label(name)
    container = instance_container(part, POD_PLACE)
    documents = [models_claim(fleet, f"{app}-models")] if needs_claim(fleet) else []
    documents += [config_map(app, PART, container.files)] if container.files else []
    pod = instance_pod(part, container, app=app, claim=f"{app}-models")
    pod["containers"][0] |= {"name": "kserve-container", "ports": [{"containerPort": container.port}]}
    documents.append(
        {
            "apiVersion": "serving.kserve.io/v1beta1",
            "kind": "InferenceService",
            "metadata": {"name": app, "annotations": {"serving.kserve.io/deploymentMode": "Standard"}},
            "spec": {"predictor": {"minReplicas": part.count, "maxReplicas": part.count, **pod}},
        }
    )
    checked = (f"InferenceService: {table('kserve')['checked']}", *container_marks(fleet))
    files = [Artefact(name="inferenceservice.yaml", text=join_yaml([yaml_text(d) for d in documents]), checked=checked)]
    chosen = {"serving.kserve.io/inferenceservice": app}
    facts = engine_facts(deployment.engine)
    monitor = pod_monitor(app, PART, facts.metrics, container.port, chosen)
    if monitor is not None:
        files.append(Artefact(name="podmonitors.yaml", text=yaml_text(monitor), checked=checked[:1]))
    words = ["the path of a request within the service is the engine's own: /v1/chat/completions", *gpu_notes(fleet)]
    if part.count > 1:
        words.append(
            f"KServe spreads connections over the replicas at random: it is not the plan's {deployment.router} router"
        )
    return Rendered(target="kserve", files=tuple(files), notes=tuple(words))
