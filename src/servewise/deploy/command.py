"""Launch commands: lists of arguments, turned into text for a shell once, at the edge."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from servewise.engines import Launch, needs_other_checkpoint, ollama, sglang, tgi, trtllm, vllm
from servewise.errors import InputError
from servewise.types import ROLES, Deployment, EngineName, Role

__all__ = ["command", "commands", "launch", "launches", "notes", "render_launch", "render_shell"]

LAUNCHES: Mapping[EngineName, Callable[[Deployment], Launch]] = {
    "vllm": vllm.launch,
    "sglang": sglang.launch,
    "tensorrt-llm": trtllm.launch,
    "tgi": tgi.launch,
    "ollama": ollama.launch,
}
VLLM_TRANSFER = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
TRTLLM_TRANSFER = "cache_transceiver_config:\n  backend: DEFAULT\n"

FIRST_PORT = 8000
"""vLLM's and TensorRT-LLM's own default port."""
LAST_PORT = 65535


def launch(deployment: Deployment) -> Launch:
    """What starts one replica of a deployment; which GPUs it uses is left to where it is run.

    Raises
    ------
    InputError
        When the engine has no launch command, would refuse a setting, or would take the model's name for an
        option.
    """
    if deployment.disaggregation is not None:
        raise InputError("there is no launch command for a disaggregated deployment yet")
    make = LAUNCHES.get(deployment.engine)
    if make is None:
        raise InputError(
            f"there is no launch command for the engine {deployment.engine!r}; known: {', '.join(LAUNCHES)}"
        )
    return make(deployment)


def command(deployment: Deployment) -> list[str]:
    """Command that starts one replica of a deployment, as arguments for the operating system.

    Returns
    -------
    list of str
        ``["vllm", "serve", MODEL, ...]``

    Raises
    ------
    InputError
        As :func:`launch`.
    """
    return launch(deployment).args


def launches(deployment: Deployment) -> tuple[tuple[str, Launch], ...]:
    """What starts one replica, by what it is: one server, or a prefill and a decode instance of a group.

    Sources
    -------
    vLLM 0.33.0, ``--kv-transfer-config`` (NixlConnector); SGLang 0.5.23, ``--disaggregation-mode``; TensorRT-LLM,
    ``cache_transceiver_config`` (docs/source/features/disagg-serving.md). Their routers are separate programs.
    """
    if deployment.disaggregation is None:
        return (("replica", launch(deployment)),)
    return tuple((role, _with_role(launch(deployment.pool(role)), deployment, role)) for role in ROLES)


def _with_role(start: Launch, deployment: Deployment, role: Role) -> Launch:
    """An instance's command with what makes it a part of a group."""
    match deployment.engine:
        case "vllm":
            return replace(start, args=[*start.args, "--kv-transfer-config", VLLM_TRANSFER])
        case "sglang":
            return replace(start, args=[*start.args, "--disaggregation-mode", role])
        case _:
            files = {name: text + TRTLLM_TRANSFER for name, text in start.files.items()}
            return replace(start, files=files)


def commands(deployment: Deployment, *, first_port: int = FIRST_PORT) -> list[list[str]]:
    """Commands of all replicas, each with a port of its own from ``first_port`` on.

    Raises
    ------
    InputError
        As :func:`command`, or when the ports run out.
    """
    last_port = first_port + deployment.num_replicas - 1
    if first_port < 1 or last_port > LAST_PORT:
        raise InputError(
            f"{deployment.num_replicas} replicas need the ports {first_port} to {last_port}; ports are 1 to {LAST_PORT}"
        )
    shared = command(deployment)
    if deployment.engine == "ollama":  # has a variable for it
        return [["env", f"OLLAMA_HOST=127.0.0.1:{port}", *shared] for port in range(first_port, last_port + 1)]
    return [[*shared, "--port", str(port)] for port in range(first_port, last_port + 1)]


def notes(deployment: Deployment) -> tuple[str, ...]:
    """What the commands leave to the reader, in words; empty when nothing."""
    words = []
    group = deployment.disaggregation
    if group is not None:
        counts = f"{group.prefill.num_instances} prefill and {group.decode.num_instances} decode instances"
        words.append(
            f"a group has {counts}, each on GPUs of its own, behind {deployment.engine}'s router for disaggregated "
            "serving; how they find each other is left to it"
        )
    model, weights, num_gpus = deployment.model, deployment.precision.weights, deployment.parallelism.num_gpus
    if deployment.engine == "ollama":
        words.append(
            f"put a GGUF file of {model.name} in {weights} behind FROM, and run: ollama create NAME -f Modelfile"
        )
    elif needs_other_checkpoint(deployment.engine, model, weights):
        words.append(
            f"replace {model.name} by a checkpoint of it in {weights}: {deployment.engine} does not make one at start"
        )
    if group is None and num_gpus > deployment.gpu.gpus_per_node:
        words.append(_nodes_words(deployment))
    if deployment.num_replicas > 1 and group is None:
        gpus = "a GPU of its own" if num_gpus == 1 else f"{num_gpus} GPUs of its own"
        words.append(
            f"start each of the {deployment.num_replicas} replicas on {gpus}, behind a {deployment.router} router"
        )
    return tuple(words)


def _nodes_words(deployment: Deployment) -> str:
    """How an engine is started on several nodes (the helps of vLLM 0.32's ``serve``, SGLang 0.5.23's server)."""
    spread, node = deployment.parallelism, deployment.gpu.gpus_per_node
    num_nodes = -(-spread.num_gpus // node)
    if deployment.engine == "sglang":
        return (
            f"a replica takes {num_nodes} nodes: run its command on each with --nnodes {num_nodes} --node-rank RANK "
            "--dist-init-addr FIRST_NODE:PORT"
        )
    if spread.data_parallel_size == 1:
        return (
            f"a replica takes {num_nodes} nodes: run its command on each with --nnodes {num_nodes} --node-rank RANK "
            "--master-addr FIRST_NODE, and with --headless on all but the first"
        )
    local = spread.data_parallel_size // num_nodes
    return (
        f"a replica takes {num_nodes} nodes: run its command on each with --data-parallel-size-local {local} "
        f"--data-parallel-address FIRST_NODE, and on node N, counted from 0, but the first also with --headless "
        f"--data-parallel-start-rank {local}*N"
    )


def render_shell(args: Sequence[str]) -> str:
    """Quote arguments for a POSIX shell: what it runs is exactly ``args``."""
    return shlex.join(args)


def render_launch(start: Launch) -> str:
    """What starts one replica as lines for a POSIX shell: its files are written first, then it is run."""
    lines = [f"printf %s {shlex.quote(text)} > {shlex.quote(name)}" for name, text in start.files.items()]
    variables = [f"{name}={value}" for name, value in start.env.items()]
    return "\n".join([*lines, shlex.join(["env", *variables, *start.args] if variables else start.args)])
