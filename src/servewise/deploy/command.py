"""Launch commands: lists of arguments, turned into text for a shell once, at the edge."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from servewise.engines import Launch, llamacpp, needs_other_checkpoint, ollama, sglang, tgi, trtllm, vllm
from servewise.errors import InputError
from servewise.types import ROLES, Deployment, EngineName, Role

__all__ = [
    "LAUNCHES",
    "checkpoint_notes",
    "command",
    "file_line",
    "launch",
    "launches",
    "notes",
    "render_launch",
    "render_shell",
    "shell_line",
]

LAUNCHES: Mapping[EngineName, Callable[[Deployment], Launch]] = {
    "vllm": vllm.launch,
    "sglang": sglang.launch,
    "tensorrt-llm": trtllm.launch,
    "tgi": tgi.launch,
    "ollama": ollama.launch,
    "llama.cpp": llamacpp.launch,
}
VLLM_TRANSFER = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
SGLANG_TRANSFER = ("--disaggregation-transfer-backend", "nixl")
"""Mooncake, the default, needs the names of the machine's InfiniBand devices."""
TRTLLM_TRANSFER = "cache_transceiver_config:\n  backend: DEFAULT\n"
TRTLLM_CONTEXT = "disable_overlap_scheduler: true\n"
"""Not yet supported by servers that compute prompts only."""


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
    ``cache_transceiver_config`` (docs/source/features/disagg-serving.md) and ``disable_overlap_scheduler``
    (examples/disaggregated/README.md). Their routers are separate programs.
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
            return replace(start, args=[*start.args, "--disaggregation-mode", role, *SGLANG_TRANSFER])
        case _:
            added = TRTLLM_TRANSFER + (TRTLLM_CONTEXT if role == "prefill" else "")
            files = {name: text + added for name, text in start.files.items()}
            return replace(start, files=files)


def notes(deployment: Deployment) -> tuple[str, ...]:
    """What the commands leave to the reader, in words; empty when nothing."""
    words = list(checkpoint_notes(deployment))
    group, num_gpus = deployment.disaggregation, deployment.parallelism.num_gpus
    if group is not None:
        counts = f"{group.prefill.num_instances} prefill and {group.decode.num_instances} decode instances"
        words.append(f"a group has {counts}, each on GPUs of its own: servewise deploy writes them with their router")
    elif num_gpus > deployment.gpu.gpus_per_node:
        num_nodes = -(-num_gpus // deployment.gpu.gpus_per_node)
        words.append(f"a replica takes {num_nodes} nodes: servewise deploy writes the command of each")
    if deployment.num_replicas > 1 and group is None:
        gpus = "a GPU of its own" if num_gpus == 1 else f"{num_gpus} GPUs of its own"
        words.append(
            f"start each of the {deployment.num_replicas} replicas on {gpus}, behind a {deployment.router} router"
        )
    return tuple(words)


def checkpoint_notes(deployment: Deployment) -> tuple[str, ...]:
    """What has to stand where the commands name the model, in words; empty when the model itself."""
    model, weights, engine = deployment.model, deployment.precision.weights, deployment.engine
    if engine in ("ollama", "llama.cpp"):
        where = "behind FROM, and run: ollama create NAME -f Modelfile" if engine == "ollama" else "behind --model"
        return (f"put a GGUF file of {model.name} in {weights} {where}",)
    if needs_other_checkpoint(engine, model, weights):
        return (f"replace {model.name} by a checkpoint of it in {weights}: {engine} does not make one at start",)
    return ()


def render_shell(args: Sequence[str]) -> str:
    """Quote arguments for a POSIX shell: what it runs is exactly ``args``."""
    return shlex.join(args)


def shell_line(start: Launch) -> str:
    """A start's program as one line for a POSIX shell; its files have to be there."""
    variables = [f"{name}={value}" for name, value in start.env.items()]
    return shlex.join(["env", *variables, *start.args] if variables else start.args)


def file_line(name: str, text: str) -> str:
    """A line for a POSIX shell that writes a file."""
    return f"printf %s {shlex.quote(text)} > {shlex.quote(name)}"


def render_launch(start: Launch) -> str:
    """What starts one replica as lines for a POSIX shell: its files are written first, then it is run."""
    return "\n".join([*(file_line(name, text) for name, text in start.files.items()), shell_line(start)])
