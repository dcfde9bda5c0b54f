"""Processes of a fleet as containers: what Compose and Kubernetes share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from servewise.deploy.artefact import renamed_files
from servewise.deploy.facts import engine_facts, image, router_facts
from servewise.deploy.parts import Fleet, Member, Part, RouterPart
from servewise.deploy.routers import router_launch
from servewise.deploy.serving import DEFAULT_PORT, Place, served, served_name
from servewise.engines import Launch
from servewise.errors import InputError

__all__ = [
    "EVERYWHERE",
    "FILES_DIR",
    "Container",
    "instance_container",
    "model_container",
    "place_in",
    "router_container",
]

EVERYWHERE = "0.0.0.0"  # noqa: S104 (within the container; what is published is chosen by the target)
FILES_DIR = "/servewise"
"""Where the files of a start are in its container."""
CREATE_MODEL = 'ollama serve & until ollama list >/dev/null 2>&1; do sleep 1; done; exec ollama create "$1" -f "$2"'
"""The name and the Modelfile are data: they are the shell's own arguments."""
PROBES: Mapping[str, tuple[str, ...]] = {
    "ollama": ("ollama", "list"),
    "llama.cpp": ("curl", "-fsS", "-o", "/dev/null", "{url}"),
    "haproxy": ("wget", "-q", "-O", "/dev/null", "{url}"),
}
PROGRAMS: Mapping[str, str] = {"python": "python3", "llama-server": "/app/llama-server"}
"""Programs that images have by another name, or not in the PATH (`deploy.toml`)."""
PYTHON_PROBE = ("python3", "-c", "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)", "{url}")
"""The images of the other programs have Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container.

    Parameters
    ----------
    image : str
    args : list of str
        Program and arguments.
    env : mapping of str to str
    files : mapping of str to str
        By their path in the container.
    port, health_port : int
        Where it serves, and where it is asked for its health.
    metrics_port : int
        Where its metrics page is, if not where it serves; else 0.
    health, ready : str
        Paths: whether it runs, and whether it can serve.
    probe : tuple of str
        Command in the container that succeeds when it can serve.
    """

    image: str
    args: list[str]
    port: int
    health: str
    ready: str
    health_port: int
    metrics_port: int = 0
    probe: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def start(self) -> Launch:
        """What starts it."""
        return Launch(args=self.args, env=self.env, files=self.files)


def place_in(address: str) -> Place:
    """A container of its own, which others reach by a name."""
    return Place(bind=EVERYWHERE, address=address, port=DEFAULT_PORT)


def instance_container(part: Part, place: Place) -> Container:
    """An instance of the engine.

    Raises
    ------
    InputError
        When no image of the engine is known for its GPU.
    """
    engine, gpu = part.instance.engine, part.instance.gpu
    facts = engine_facts(engine)
    found = image(engine, part.instance.engine_version, gpu.vendor)
    if found is None:
        raise InputError(f"no image of {engine} for {gpu.name} is known ({gpu.vendor}); use --target command")
    for path in part.paths:
        if not path.startswith("/"):
            raise InputError(f"model path {path!r} means nothing in a container; give an absolute one")
        if part.keeps_models and PurePosixPath(path) == PurePosixPath(facts.cache):
            raise InputError(f"model path {path!r} is where the container keeps what it makes or downloads; move it")
    start = served(part, place)
    if facts.cache_env and part.keeps_models:
        start = replace(start, env={**start.env, facts.cache_env: facts.cache})
    return _container(start, found, place, engine, facts.health, facts.health, 0)


def model_container(part: Part, place: Place) -> Container | None:
    """What has to end well before an instance starts; None when nothing has to."""
    if part.instance.engine != "ollama":
        return None
    server = instance_container(part, place)
    (modelfile,) = server.files
    return replace(server, args=["/bin/sh", "-c", CREATE_MODEL, "model", served_name(part), modelfile])


def router_container(fleet: Fleet, router: RouterPart, place_of: Callable[[Member], Place], place: Place) -> Container:
    """A router."""
    facts = router_facts(router.program)
    found = facts.image.format(version=fleet.deployment.engine_version)
    start = router_launch(router, place_of, place)
    made = _container(start, found, place, router.program, facts.health, facts.ready, facts.health_port)
    return replace(made, metrics_port=facts.metrics_port)


def _container(
    start: Launch, image: str, place: Place, program: str, health: str, ready: str, health_port: int
) -> Container:
    start = renamed_files(start, f"{FILES_DIR}/")
    asked = health_port or place.port
    url = f"http://127.0.0.1:{asked}{ready}"
    probe = tuple(url if arg == "{url}" else arg for arg in PROBES.get(program, PYTHON_PROBE))
    return Container(
        image=image,
        args=[PROGRAMS.get(start.args[0], start.args[0]), *start.args[1:]],
        env=start.env,
        files=start.files,
        port=place.port,
        health=health,
        ready=ready,
        health_port=asked,
        probe=probe,
    )
