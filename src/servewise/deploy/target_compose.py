"""Target ``compose``: all processes of one machine as a Compose file."""

from __future__ import annotations

from typing import Any

from servewise.deploy.artefact import Artefact, Rendered, label, undollared, yaml_text
from servewise.deploy.containers import (
    FILES_DIR,
    Container,
    instance_container,
    model_container,
    place_in,
    router_container,
)
from servewise.deploy.facts import engine_facts, router_facts, table
from servewise.deploy.machines import machines_of
from servewise.deploy.marks import container_marks
from servewise.deploy.parts import Fleet, Member, Part
from servewise.deploy.scrape import scrape_config
from servewise.deploy.serving import Place, side_channel
from servewise.errors import InputError

__all__ = ["render"]

MODELS = "models"
"""The volume of downloaded models."""
PROMETHEUS_PORT = 9090


def render(fleet: Fleet, *, name: str, port: int) -> Rendered:
    """A Compose file.

    Raises
    ------
    InputError
        When the fleet takes more than one machine, or no image is known for its GPU.
    """
    machines, where = machines_of(fleet)
    if len(machines) > 1:
        raise InputError(
            f"the fleet takes {len(machines)} machines, a Compose file describes one; use --target command or "
            "kubernetes"
        )
    services: dict[str, Any] = {}
    configs: dict[str, Any] = {}
    for part in fleet.parts:
        for index in range(part.count):
            member = Member(part.name, index)
            services |= _instance(part, member, where[member][0][1], configs)
    for router in fleet.routers:
        container = router_container(fleet, router, _place, place_in(router.name))
        after = {_name(member): {"condition": "service_healthy"} for pool in router.pools.values() for member in pool}
        service = _service(container, router.name, configs) | {"depends_on": after}
        service["healthcheck"]["start_period"] = f"{round(router.start_s)}s"
        if router_facts(router.program).needs_driver:
            gpus = where[router.pools["prefill"][0]][0][1]
            service["deploy"] = {"resources": {"reservations": {"devices": [_devices(gpus)]}}}
        services[router.name] = service
    entry = _name(fleet.entry)
    services[entry]["ports"] = [f"127.0.0.1:{port}:{_place(fleet.entry).port}"]
    services["prometheus"] = _prometheus(fleet, configs)
    document: dict[str, Any] = {"name": label(name), "services": services, "configs": configs}
    if any(part.keeps_models for part in fleet.parts):
        document["volumes"] = {MODELS: {}}
    checked = (f"Compose: {table('compose')['checked']}", *container_marks(fleet))
    notes = [
        f"docker compose up -d; it serves at 127.0.0.1:{port}, and asks for no key",
        "docker compose --profile metrics up -d starts Prometheus as well, at 127.0.0.1:9090",
    ]
    if any(part.role != "replica" for part in fleet.parts):
        notes.append("whether containers exchange KV caches over NVLink depends on how the runtime isolates them")
    return Rendered(
        target="compose",
        files=(Artefact(name="compose.yaml", text=yaml_text(document), checked=checked),),
        notes=tuple(notes),
    )


def _name(member: Member) -> str:
    return member.part if member.part.endswith("router") else f"{member.part}-{member.index}"


def _place(member: Member) -> Place:
    return place_in(_name(member))


def _instance(part: Part, member: Member, gpus: tuple[int, ...], configs: dict[str, Any]) -> dict[str, Any]:
    """The service of an instance, after the one that makes its model where it needs one."""
    name, place, facts = _name(member), _place(member), engine_facts(part.instance.engine)
    service = _service(instance_container(part, place), part.name, configs)
    service["environment"] |= dict(side_channel(part, place))
    volumes: list[dict[str, Any]] = []
    if part.keeps_models:
        volumes.append({"type": "volume", "source": MODELS, "target": facts.cache})
    paths = map(undollared, part.paths)
    volumes += [{"type": "bind", "source": path, "target": path, "read_only": True} for path in paths]
    if part.downloads:
        service["environment"]["HF_TOKEN"] = None  # of the shell that starts it
    service["volumes"] = volumes
    found = {}
    maker = model_container(part, place)
    if maker is not None:
        once = _service(maker, part.name, configs) | {"volumes": volumes, "restart": "no"}
        del once["healthcheck"]
        found[f"{name}-model"] = once
        service["depends_on"] = {f"{name}-model": {"condition": "service_completed_successfully"}}
    if facts.shm_gib:
        service["shm_size"] = f"{facts.shm_gib:g}gb"
    service["healthcheck"]["start_period"] = f"{round(part.first_start_s)}s"
    memory_gib = part.memory_gib + part.weights_gib + round(facts.shm_gib)
    limits = {"limits": {"memory": f"{memory_gib}g"}, "reservations": {"cpus": str(part.num_cpus)}}
    if part.instance.gpu.vendor == "nvidia":
        limits["reservations"] |= {"devices": [_devices(gpus)]}  # type: ignore[dict-item]
    else:  # AMD's driver has no reservations; every device is seen, and a variable chooses
        service |= {"devices": ["/dev/kfd", "/dev/dri"], "group_add": ["video"]}
        service["environment"]["HIP_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    service["deploy"] = {"resources": limits}
    return found | {name: service}


def _devices(gpus: tuple[int, ...]) -> dict[str, Any]:
    return {"driver": "nvidia", "device_ids": [str(gpu) for gpu in gpus], "capabilities": ["gpu"]}


def _service(container: Container, owner: str, configs: dict[str, Any]) -> dict[str, Any]:
    """What every service has; its files become configs of their own."""
    mounted = []
    for path, text in container.files.items():
        source = f"{owner}-{path.removeprefix(f'{FILES_DIR}/').lower().replace('.', '-')}"
        configs[source] = {"content": undollared(text)}
        mounted.append({"source": source, "target": path})
    service: dict[str, Any] = {
        "image": container.image,
        "entrypoint": [undollared(container.args[0])],
        "command": [undollared(arg) for arg in container.args[1:]],
        "environment": {name: undollared(value) for name, value in container.env.items()},
        "restart": "unless-stopped",
        "healthcheck": {
            "test": ["CMD", *map(undollared, container.probe)],
            "interval": "10s",
            "timeout": "10s",
            "retries": 3,
        },
    }
    if mounted:
        service["configs"] = mounted
    return service


def _prometheus(fleet: Fleet, configs: dict[str, Any]) -> dict[str, Any]:
    configs["prometheus"] = {"content": undollared(scrape_config(fleet, _place))}
    return {
        "image": table("prometheus")["image"],
        "profiles": ["metrics"],
        "configs": [{"source": "prometheus", "target": "/etc/prometheus/prometheus.yml"}],
        "ports": [f"127.0.0.1:{PROMETHEUS_PORT}:{PROMETHEUS_PORT}"],
    }
