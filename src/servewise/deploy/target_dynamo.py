"""Target ``dynamo``: a DynamoGraphDeployment with NVIDIA Dynamo's frontend and its workers."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from servewise.deploy.artefact import Artefact, Rendered, join_yaml, label, renamed_files, yaml_text
from servewise.deploy.containers import EVERYWHERE, FILES_DIR, Container
from servewise.deploy.facts import engine_facts, table
from servewise.deploy.marks import UNTRIED, start_mark
from servewise.deploy.objects import config_map, gpu_notes, models_claim, needs_claim
from servewise.deploy.parts import Fleet, Part
from servewise.deploy.pods import instance_pod
from servewise.deploy.serving import DEFAULT_PORT
from servewise.errors import InputError

__all__ = ["render", "worker_args"]

ROUTER_MODES: Mapping[str, str] = {
    "round_robin": "round-robin",
    "least_requests": "least-loaded",
    "prefix_aware": "kv",
}
MODULES: Mapping[str, str] = {"vllm": "dynamo.vllm", "sglang": "dynamo.sglang", "tensorrt-llm": "dynamo.trtllm"}
TRTLLM_OPTIONS: Mapping[str, str] = {
    "--tp_size": "--tensor-parallel-size",
    "--pp_size": "--pipeline-parallel-size",
    "--ep_size": "--expert-parallel-size",
    "--max_batch_size": "--max-batch-size",
    "--max_num_tokens": "--max-num-tokens",
    "--max_seq_len": "--max-seq-len",
    "--kv_cache_free_gpu_memory_fraction": "--free-gpu-memory-fraction",
    "--extra_llm_api_options": "--extra-engine-args",
}
"""Options of trtllm-serve and those of Dynamo's worker that mean the same; the backend is always PyTorch's."""


def render(fleet: Fleet, *, name: str) -> Rendered:
    """A DynamoGraphDeployment.

    Raises
    ------
    InputError
        For engines and routers that Dynamo lacks, and GPUs that are not NVIDIA's.
    """
    deployment, engine = fleet.deployment, fleet.deployment.engine
    if engine not in MODULES:
        raise InputError(f"Dynamo runs {', '.join(MODULES)}, not {engine}; use --target command, compose or kubernetes")
    if any(part.instance.gpu.vendor != "nvidia" for part in fleet.parts):
        raise InputError("Dynamo's images are for NVIDIA's GPUs; use --target command, compose or kubernetes")
    group = deployment.disaggregation
    policy = deployment.router if group is None else group.router
    if policy not in ROUTER_MODES:
        raise InputError(f"Dynamo has no {policy} router; use --target command, compose or kubernetes")
    app = label(name)
    parts = fleet.parts if group is None else fleet.parts[:2]  # of all groups alike: Dynamo has one pool of each
    copies = 1 if group is None else deployment.num_replicas
    documents = [models_claim(fleet, f"{app}-models")] if needs_claim(fleet) else []
    workers, marks = [], [f"DynamoGraphDeployment: {table('dynamo')['checked']}"]
    for part in parts:
        part = replace(part, name=part.role, count=part.count * copies)
        worker, container = _worker(part, app)
        documents += [config_map(app, part.name, container.files)] if container.files else []
        marks.append(start_mark(MODULES[engine], container.start, table("dynamo")["version"], UNTRIED))
        workers.append(worker)
    documents.append(
        {
            "apiVersion": "nvidia.com/v1beta1",
            "kind": "DynamoGraphDeployment",
            "metadata": {"name": app},
            "spec": {
                "backendFramework": "trtllm" if engine == "tensorrt-llm" else engine,
                "components": [_frontend(engine, policy), *workers],
            },
        }
    )
    text = join_yaml([yaml_text(document) for document in documents])
    return Rendered(
        target="dynamo",
        files=(Artefact(name="dynamo.yaml", text=text, checked=tuple(dict.fromkeys(marks))),),
        notes=_notes(fleet, app, policy),
    )


def _frontend(engine: str, policy: str) -> dict[str, Any]:
    env = [{"name": "DYN_ROUTER_MODE", "value": ROUTER_MODES[policy]}]
    if policy == "prefix_aware":  # knows what it sent, as the plan's router does, and not what workers evicted
        env.append({"name": "DYN_ROUTER_USE_KV_EVENTS", "value": "false"})
    container = {"name": "main", "image": table("dynamo")["images"][engine], "env": env}
    return {
        "name": "Frontend",
        "type": "frontend",
        "replicas": 1,
        "podTemplate": {"spec": {"enableServiceLinks": False, "containers": [container]}},
    }


def _worker(part: Part, app: str) -> tuple[dict[str, Any], Container]:
    engine = part.instance.engine
    facts = engine_facts(engine)
    risky = [arg for arg in part.start.args if shlex.quote(arg) != arg]
    if part.num_nodes > 1 and risky:
        raise InputError(
            f"{risky[0]!r} cannot be an option of a worker on several nodes: versions of Dynamo's operator put them "
            "through a shell without quotes; use --target kubernetes"
        )
    start = renamed_files(part.start, f"{FILES_DIR}/")
    container = Container(
        image=table("dynamo")["images"][engine],
        args=["python3", "-m", MODULES[engine], *worker_args(replace(part, start=start))],
        env={facts.cache_env: facts.cache} if part.keeps_models else {},
        files=start.files,
        port=DEFAULT_PORT,
        health="/health",
        ready="/health",
        health_port=DEFAULT_PORT,
        probe=(),
    )
    pod = instance_pod(part, container, app=app, claim=f"{app}-models", serves=False)
    main = pod["containers"][0] | {"name": "main"}
    del main["ports"], pod["automountServiceAccountToken"]  # the operator's own, as are probes and shared memory
    main["volumeMounts"] = [mount for mount in main["volumeMounts"] if mount["name"] != "shm"]
    pod |= {"containers": [main], "volumes": [volume for volume in pod["volumes"] if volume["name"] != "shm"]}
    worker: dict[str, Any] = {
        "name": part.name,
        "type": "worker" if part.role == "replica" else part.role,
        "replicas": part.count,
        "podTemplate": {"spec": pod},
    }
    return worker | ({"multinode": {"nodeCount": part.num_nodes}} if part.num_nodes > 1 else {}), container


def worker_args(part: Part) -> list[str]:
    """Options of Dynamo's worker for what a part's own program is started with."""
    args, model = part.start.args, part.instance.model.name
    role = [] if part.role == "replica" else ["--disaggregation-mode", part.role]
    match part.instance.engine:
        case "vllm":
            return ["--model", model, "--served-model-name", model, *args[3:], *role]
        case "sglang":  # knows its role already; the others ask it for its cache
            return [*args[3:], "--served-model-name", model, *(["--host", EVERYWHERE] if role else [])]
        case _:
            found = ["--model", model, "--served-model-name", model]
            for option, value in zip(args[2::2], args[3::2], strict=True):
                found += [TRTLLM_OPTIONS[option], value] if option in TRTLLM_OPTIONS else []
            return [*found, *role]


def _notes(fleet: Fleet, app: str, policy: str) -> tuple[str, ...]:
    known, deployment = table("dynamo"), fleet.deployment
    words = [
        f"kubectl apply -f dynamo.yaml; Dynamo's operator makes the service {app}-frontend, probes and the scrape",
        f"Dynamo {known['version']} brings {deployment.engine} {known[deployment.engine]}, the plan is for "
        f"{deployment.engine_version}",
        *gpu_notes(fleet),
    ]
    if deployment.disaggregation is not None and deployment.num_replicas > 1:
        words.append(
            f"the plan has {deployment.num_replicas} groups, Dynamo one pool of prefill and one of decode workers"
        )
    if policy == "prefix_aware":
        words.append("Dynamo weighs cached prompts against load by rules of its own, from the prompts that it sent")
    if any(part.num_nodes > 1 for part in fleet.parts):
        words.append("the operator adds the options that join the nodes of a worker")
    return tuple(words)
