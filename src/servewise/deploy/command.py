"""Launch commands: lists of arguments, turned into text for a shell once, at the edge."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from servewise.engines import vllm
from servewise.errors import InputError
from servewise.types import Deployment

__all__ = ["command", "commands", "notes", "render_shell"]

FIRST_PORT = 8000
"""vLLM's own default port."""
LAST_PORT = 65535


def command(deployment: Deployment) -> list[str]:
    """Command that starts one replica of a deployment, as arguments for the operating system.

    Parameters
    ----------
    deployment : Deployment

    Returns
    -------
    list of str
        ``["vllm", "serve", MODEL, ...]``; which GPUs it uses is left to where it is run.

    Raises
    ------
    InputError
        When the engine has no launch command, would refuse a setting, or would take the model's name for an
        option.
    """
    if deployment.disaggregation is not None:
        raise InputError("there is no launch command for a disaggregated deployment yet")
    if deployment.engine != "vllm":
        raise InputError(f"there is no launch command for the engine {deployment.engine!r}; known: vllm")
    return vllm.launch_args(deployment)


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
    return [[*shared, "--port", str(port)] for port in range(first_port, last_port + 1)]


def notes(deployment: Deployment) -> tuple[str, ...]:
    """What the commands leave to the reader, in words; empty when nothing."""
    words = []
    model, weights, num_gpus = deployment.model, deployment.precision.weights, deployment.parallelism.num_gpus
    if vllm.needs_quantized_checkpoint(model, weights):
        words.append(f"replace {model.name} by a checkpoint of it in {weights}: vLLM does not make one at start")
    if deployment.num_replicas > 1:
        gpus = "a GPU of its own" if num_gpus == 1 else f"{num_gpus} GPUs of its own"
        words.append(
            f"start each of the {deployment.num_replicas} replicas on {gpus}, behind a {deployment.router} router"
        )
    return tuple(words)


def render_shell(args: Sequence[str]) -> str:
    """Quote arguments for a POSIX shell: what it runs is exactly ``args``."""
    return shlex.join(args)
