"""A deployment as the processes that serve it: instances of the engine, and the routers before them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from servewise.deploy.command import launches
from servewise.deploy.facts import table
from servewise.engines import Launch
from servewise.errors import InputError
from servewise.perf import memory, start_up_s
from servewise.types import ROLES, Deployment, Role
from servewise.units import GIB

__all__ = ["Fleet", "Member", "Part", "RouterPart", "RouterProgram", "fleet", "is_path"]

MAX_INSTANCES = 1000
ROUTER_START_S = 60.0
"""Of a router itself, generously."""
RouterProgram = Literal["haproxy", "vllm-router", "sglang-router", "trtllm-serve"]

GROUP_ROUTERS: Mapping[str, RouterProgram] = {
    "vllm": "vllm-router",
    "sglang": "sglang-router",
    "tensorrt-llm": "trtllm-serve",
}
"""Routers that send a request through a prefill and a decode instance."""
PREFIX_ROUTERS: Mapping[str, RouterProgram] = {"vllm": "vllm-router", "sglang": "sglang-router"}
"""Routers that remember the prompts they sent, by the engine they are made for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Equal instances of the engine.

    Parameters
    ----------
    name : str
        ``replica``, ``prefill`` or ``decode``, with the group before it where there are several.
    role : ``replica`` or Role
    instance : Deployment
        One of them, as a deployment of its own.
    start : Launch
        What starts one, but for where it listens.
    count : int
    weights_bytes : int [bytes]
        Of all GPUs of an instance.
    start_up_s : float [s]
        Until an instance serves, once the weights are on its machine's disk.
    """

    name: str
    role: Literal["replica"] | Role
    instance: Deployment
    start: Launch
    count: int
    weights_bytes: int
    start_up_s: float

    @property
    def num_nodes(self) -> int:
        """Machines of one instance."""
        return -(-self.instance.parallelism.num_gpus // self.instance.gpu.gpus_per_node)

    @property
    def gpus_per_node(self) -> int:
        """GPUs of one instance on each of its machines."""
        return self.instance.parallelism.num_gpus // self.num_nodes

    @property
    def paths(self) -> tuple[str, ...]:
        """Models that are files or folders of the machine: the served one, the drafter's."""
        return tuple(name for name in self._sources if is_path(name))

    @property
    def downloads(self) -> bool:
        """Whether a model comes from a hub; Ollama and llama.cpp serve what is there."""
        engines = ("ollama", "llama.cpp")
        return self.instance.engine not in engines and len(self.paths) < len(self._sources)

    @property
    def keeps_models(self) -> bool:
        """Whether it writes models to a folder: what it downloads, or what Ollama makes of a file."""
        return self.downloads or self.instance.engine == "ollama"

    @property
    def _sources(self) -> tuple[str, ...]:
        drafter, names = self.instance.speculation, [self.instance.model.name]
        if drafter is not None:
            names += [drafter.head_name, drafter.draft_model.name if drafter.draft_model else ""]
        return tuple(name for name in names if name)

    @property
    def first_start_s(self) -> float:
        """Time that the first start is given [s]: longer than it should take, with a download from a hub."""
        known = table("resources")
        load = self.start_up_s * float(known["start_up_factor"])
        return load if not self.downloads else load + self.weights_bytes / float(known["download_bytes_per_s"])

    @property
    def num_cpus(self) -> int:
        """Cores that a node of an instance asks for."""
        known = table("resources")
        return int(known["cpu_base"]) + int(known["cpu_per_gpu"]) * self.gpus_per_node

    @property
    def memory_gib(self) -> int:
        """Main memory that a node of an instance asks for [GiB], shared memory not included."""
        known = table("resources")
        return round(float(known["memory_gib_base"]) + float(known["memory_gib_per_gpu"]) * self.gpus_per_node)

    @property
    def weights_gib(self) -> int:
        """Weights on one node of an instance [GiB], rounded up: they pass through its main memory."""
        return -(-self.weights_bytes // (self.num_nodes * GIB))


@dataclass(frozen=True, slots=True)
class Member:
    """One instance of a part, or a router."""

    part: str
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterPart:
    """A router and what it chooses from.

    Parameters
    ----------
    name : str
    program : RouterProgram
    policy : str
        As the plan calls it.
    pools : mapping of str to tuple of Member
        ``replica`` alone, or ``prefill`` and ``decode``.
    health : str
        Path at its members.
    start_s : float [s]
        How long it waits for its members, and answers nothing until they are there.
    """

    name: str
    program: RouterProgram
    policy: str
    pools: Mapping[str, tuple[Member, ...]]
    health: str
    start_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All processes of a deployment; the last router, or else the only instance, is what clients talk to."""

    deployment: Deployment
    parts: tuple[Part, ...]
    routers: tuple[RouterPart, ...]

    @property
    def entry(self) -> Member:
        """What clients talk to."""
        return Member(self.routers[-1].name if self.routers else self.parts[0].name)


def is_path(name: str) -> bool:
    """Whether a model's name is a file or folder, rather than the id of a hub."""
    return name.startswith(("/", "./", "../"))


def fleet(deployment: Deployment, health: str, *, fronted: bool = True) -> Fleet:
    """The processes of a deployment.

    Parameters
    ----------
    deployment : Deployment
    health : str
        Path at which an instance says that it is well.
    fronted : bool
        Whether routers are needed; a target may bring its own.

    Raises
    ------
    InputError
        When the engine would refuse the parameters, or no router does what the plan assumes.
    """
    starts = dict(_checked_launches(deployment))
    parts: list[Part] = []
    routers: list[RouterPart] = []
    for number in range(deployment.num_replicas if deployment.disaggregation else 1):
        prefix = f"g{number}-" if deployment.disaggregation and deployment.num_replicas > 1 else ""
        own = [_part(prefix, role, deployment, start) for role, start in starts.items()]
        parts += own
        if fronted and deployment.disaggregation is not None:
            routers.append(
                RouterPart(
                    name=f"{prefix}router",
                    program=GROUP_ROUTERS[deployment.engine],
                    policy=deployment.disaggregation.router,
                    pools={part.role: _members(part) for part in own},
                    health=health,
                    start_s=max(part.first_start_s for part in own) + ROUTER_START_S,
                )
            )
    members = tuple(Member(router.name) for router in routers) or _members(parts[0])
    if fronted and len(members) > 1:
        start_s = routers[0].start_s if routers else parts[0].first_start_s
        routers.append(_front(deployment, members, "/health" if routers else health, start_s + ROUTER_START_S))
    return Fleet(deployment=deployment, parts=tuple(parts), routers=tuple(routers))


def _checked_launches(deployment: Deployment) -> tuple[tuple[str, Launch], ...]:
    """What starts the instances, once their numbers make sense: a plan's file may say anything."""
    group, instances, counts = deployment.disaggregation, [deployment], [1]
    if group is not None:
        if deployment.engine not in GROUP_ROUTERS:
            raise InputError(
                f"{deployment.engine} has no prefill and decode instances; {', '.join(GROUP_ROUTERS)} have"
            )
        instances = [deployment.pool(role) for role in ROLES]
        counts = [group.prefill.num_instances, group.decode.num_instances]
    if min(counts) < 1 or not 1 <= deployment.num_replicas * sum(counts) <= MAX_INSTANCES:
        raise InputError(
            f"{deployment.num_replicas} times {' and '.join(map(str, counts))} instances make no fleet of 1 to "
            f"{MAX_INSTANCES}"
        )
    for instance in instances:
        gpus, node = instance.parallelism.num_gpus, instance.gpu.gpus_per_node
        if gpus < 1 or node < 1 or (gpus > node and gpus % node):
            raise InputError(f"{gpus} GPUs do not fill whole nodes of {node} {instance.gpu.name}")
    return launches(deployment)


def _members(part: Part) -> tuple[Member, ...]:
    return tuple(Member(part.name, index) for index in range(part.count))


def _part(prefix: str, role: str, deployment: Deployment, start: Launch) -> Part:
    group = deployment.disaggregation
    if group is None:
        instance, count = deployment, deployment.num_replicas
    else:
        instance = deployment.pool(cast(Role, role))
        count = (group.prefill if role == "prefill" else group.decode).num_instances
    found, num_gpus = memory(instance), instance.parallelism.num_gpus
    return Part(
        name=f"{prefix}{role}",
        role=cast(Role, role),
        instance=instance,
        start=start,
        count=count,
        weights_bytes=found.weights_bytes * num_gpus,
        start_up_s=start_up_s(found, num_gpus)[0],
    )


def _front(deployment: Deployment, members: tuple[Member, ...], health: str, start_s: float) -> RouterPart:
    """The router before the replicas; HAProxy but for prompts that are remembered."""
    program: RouterProgram = "haproxy"
    if deployment.router == "prefix_aware":
        if deployment.engine not in PREFIX_ROUTERS or deployment.disaggregation is not None:
            raise InputError(
                f"no router that can be written here is prefix_aware for {deployment.engine}; plan with "
                "operations: {router: least_requests}, or use --target dynamo where it has the engine"
            )
        program = PREFIX_ROUTERS[deployment.engine]
    return RouterPart(
        name="router",
        program=program,
        policy=deployment.router,
        pools={"replica": members},
        health=health,
        start_s=start_s,
    )
