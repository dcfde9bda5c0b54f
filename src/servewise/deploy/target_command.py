"""Target ``command``: a shell script for each process, with the files that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from servewise.deploy.artefact import Artefact, Rendered, renamed_files
from servewise.deploy.command import shell_line
from servewise.deploy.facts import table
from servewise.deploy.machines import Machine, machines_of
from servewise.deploy.marks import instance_mark, router_mark
from servewise.deploy.parts import Fleet, Member, Part
from servewise.deploy.routers import router_launch
from servewise.deploy.scrape import scrape_config
from servewise.deploy.serving import DEFAULT_PORT, Place, node_args, served, served_name, side_channel
from servewise.engines import Launch
from servewise.errors import InputError

__all__ = ["render"]

LOCAL = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104 (only where a machine is named, or several reach each other; a note says so)
LOCAL_NAMES = (LOCAL, "localhost")
LAST_PORT = 65535
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
VISIBLE: Mapping[str, str] = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}


def render(fleet: Fleet, *, hosts: Sequence[str] = (), port: int = DEFAULT_PORT) -> Rendered:
    """Scripts that start the fleet.

    Parameters
    ----------
    fleet : Fleet
    hosts : sequence of str
        Names or addresses of the machines; ``node-0`` and so on by default, or this one when there is one only. A
        machine that is named is reached from others, unless it is called 127.0.0.1 or localhost.
    port : int
        Of what clients talk to; the others follow.

    Raises
    ------
    InputError
        When hosts are missing or no names, or the ports run out.
    """
    machines, where = machines_of(fleet)
    hosts = _checked_hosts(hosts, len(machines))
    places = _places(fleet, machines, where, hosts, port)
    files: dict[str, Artefact] = {}
    for part in fleet.parts:
        for index in range(part.count):
            for artefact in _instance(part, Member(part.name, index), where, hosts, places):
                files.setdefault(artefact.name, artefact)
    for router in fleet.routers:
        place = places[Member(router.name)]
        start = renamed_files(router_launch(router, places.__getitem__, place), f"{router.name}-")
        checked = (router_mark(fleet, router, start),)
        files |= {file: Artefact(name=file, text=text, checked=checked) for file, text in start.files.items()}
        script = _script(f"{router.name} on {place.address}", start)
        files[f"{router.name}.sh"] = Artefact(name=f"{router.name}.sh", text=script, checked=checked)
    scrape = scrape_config(fleet, places.__getitem__)
    files["prometheus.yml"] = Artefact(
        name="prometheus.yml", text=scrape, checked=(f"prometheus.yml: {table('prometheus')['checked']}",)
    )
    shared = any(places[member].position for member in where)
    return Rendered(target="command", files=tuple(files.values()), notes=_notes(fleet, hosts, shared))


def _checked_hosts(hosts: Sequence[str], num_machines: int) -> Sequence[str]:
    if not hosts:
        return [LOCAL] if num_machines == 1 else [f"node-{number}" for number in range(num_machines)]
    if len(hosts) != num_machines:
        raise InputError(f"the fleet takes {num_machines} machines; give --host {num_machines} times, not {len(hosts)}")
    for host in hosts:
        if not HOST.fullmatch(host):
            raise InputError(f"host {host!r} is no name or IPv4 address of a machine")
    if any(host in LOCAL_NAMES for host in hosts) and num_machines > 1:
        raise InputError(f"{num_machines} machines cannot reach each other at {', '.join(hosts)}; name each")
    return [LOCAL if host in LOCAL_NAMES else host for host in hosts]


def _places(
    fleet: Fleet,
    machines: Sequence[Machine],
    where: Mapping[Member, list[tuple[int, tuple[int, ...]]]],
    hosts: Sequence[str],
    port: int,
) -> dict[Member, Place]:
    """Where everything listens: routers on the first machine, what clients talk to at ``port``."""
    bind = LOCAL if LOCAL in hosts else EVERYWHERE
    members = [Member(router.name) for router in reversed(fleet.routers)]
    found: dict[Member, Place] = {}
    for member in [*members, *where]:
        number = where[member][0][0] if member in where else 0
        machine = machines[number]
        free = port + machine.num_processes + (number > 0 and bool(members))
        if not 1 <= port <= free <= LAST_PORT:
            raise InputError(f"port {free} does not exist; ports are 1 to {LAST_PORT}, choose another --port")
        found[member] = Place(bind=bind, address=hosts[number], port=free, position=machine.num_processes)
        machine.num_processes += 1
    return found


def _instance(
    part: Part,
    member: Member,
    where: Mapping[Member, list[tuple[int, tuple[int, ...]]]],
    hosts: Sequence[str],
    places: Mapping[Member, Place],
) -> list[Artefact]:
    place, nodes = places[member], where[member]
    start = renamed_files(served(part, place), f"{part.name}-")
    engine = part.instance.engine
    checked = (instance_mark(part, start),)
    found = [Artefact(name=file, text=text, checked=checked) for file, text in start.files.items()]
    visible = VISIBLE.get(part.instance.gpu.vendor)
    for rank, (number, gpus) in enumerate(nodes):
        env = dict(start.env) | dict(side_channel(part, place))
        if visible is not None and len(gpus) < part.instance.gpu.gpus_per_node:
            env[visible] = ",".join(map(str, gpus))
        own = replace(start, args=[*start.args, *node_args(part, rank, hosts[nodes[0][0]])], env=env)
        title = f"{member.part}-{member.index}" + (f"-node-{rank}" if len(nodes) > 1 else "")
        script = _script(f"{title} on {hosts[number]}", own)
        found.append(Artefact(name=f"{title}.sh", text=script, checked=(instance_mark(part, own),)))
    if engine == "ollama":
        create = Launch(
            args=["ollama", "create", served_name(part), "-f", f"{part.name}-Modelfile"],
            env={"OLLAMA_HOST": start.env["OLLAMA_HOST"]},
        )
        title = f"{member.part}-{member.index}-model"
        script = _script(f"{title} on {place.address}, once {member.part}-{member.index} is up", create)
        found.append(Artefact(name=f"{title}.sh", text=script, checked=checked))
    return found


def _script(title: str, start: Launch) -> str:
    return f"#!/bin/sh\n# {title}\nexec {shell_line(start)}\n"


def _notes(fleet: Fleet, hosts: Sequence[str], shared: bool) -> tuple[str, ...]:
    words = ["start each process in the folder of the files, on the machine that it names, the instances first"]
    if LOCAL not in hosts:
        several = f"the {len(hosts)} machines ({', '.join(hosts)}) reach each other at these names"
        one = f"it listens on all addresses of {hosts[0]}; without --host at 127.0.0.1 only"
        words.append(
            f"{several if len(hosts) > 1 else one}; nothing is encrypted or asks for a key, so keep the ports within a "
            "private network"
        )
    if fleet.deployment.engine == "tgi" and shared:
        words.append("that text-generation-launcher has --prometheus-port, so that several share a machine, is assumed")
    if fleet.parts[0].downloads:
        words.append("models with a licence to accept need HF_TOKEN in the environment")
    return tuple(words)
