"""Machines that a fleet takes, and which of their GPUs each instance gets."""

from __future__ import annotations

from servewise.deploy.parts import Fleet, Member

__all__ = ["Machine", "machines_of"]


class Machine:
    """A machine of one kind of GPU that is being filled.

    Parameters
    ----------
    gpu : str
    num_gpus : int
    """

    def __init__(self, gpu: str, num_gpus: int) -> None:
        self.gpu, self.free_gpus = gpu, list(range(num_gpus))
        self.num_processes = 0

    def take(self, num_gpus: int) -> tuple[int, ...]:
        """Take so many of its GPUs, and a place among its processes."""
        taken, self.free_gpus = tuple(self.free_gpus[:num_gpus]), self.free_gpus[num_gpus:]
        return taken


def machines_of(fleet: Fleet) -> tuple[list[Machine], dict[Member, list[tuple[int, tuple[int, ...]]]]]:
    """Where each instance goes: first fit, one kind of GPU a machine.

    Returns
    -------
    list of Machine
    dict of Member to list of (machine, GPUs)
        One entry for each node of the instance.
    """
    machines: list[Machine] = []
    where: dict[Member, list[tuple[int, tuple[int, ...]]]] = {}
    for part in fleet.parts:
        gpu, need = part.instance.gpu, part.gpus_per_node
        for index in range(part.count):
            own = where.setdefault(Member(part.name, index), [])
            for _ in range(part.num_nodes):
                fits = (n for n, m in enumerate(machines) if m.gpu == gpu.name and len(m.free_gpus) >= need)
                number = next(fits, len(machines))
                if number == len(machines):
                    machines.append(Machine(gpu.name, gpu.gpus_per_node))
                own.append((number, machines[number].take(need)))
    return machines, where
