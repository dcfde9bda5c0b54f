"""What is known of a process's options, in words: what its own parser takes, what was only read, whether it was run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from ruamel.yaml import YAML

from servewise.deploy.containers import instance_container, place_in, router_container
from servewise.deploy.facts import engine_facts, router_facts
from servewise.deploy.options import FlagVerdict, check_command, check_settings
from servewise.deploy.parts import Fleet, Part, RouterPart
from servewise.engines import Launch

__all__ = ["UNTRIED", "container_marks", "instance_mark", "router_mark", "start_mark"]

UNTRIED = "not verified by running"
VARIABLES = ("VLLM_", "OLLAMA_")
PARAMETER = re.compile(r"^PARAMETER (\S+) (.*)$", re.MULTILINE)


def instance_mark(part: Part, start: Launch) -> str:
    """Of an instance, started like this."""
    engine = part.instance.engine
    own = {name: value for name, value in start.env.items() if name in part.start.env or name.startswith(VARIABLES)}
    start = replace(start, env=own)  # without those of drivers and hubs
    return start_mark(engine, start, part.instance.engine_version, engine_facts(engine).checked)


def router_mark(fleet: Fleet, router: RouterPart, start: Launch) -> str:
    """Of a router, started like this."""
    facts = router_facts(router.program)
    if router.program == "haproxy":  # its file says all, and no list is of that
        return f"{router.program}: {facts.checked}"
    return start_mark(router.program, start, facts.version or fleet.deployment.engine_version, facts.checked)


def container_marks(fleet: Fleet) -> tuple[str, ...]:
    """Of all programs of a fleet, each in a container."""
    somewhere = place_in("somewhere")
    found = [instance_mark(part, instance_container(part, somewhere).start) for part in fleet.parts]
    for router in fleet.routers:
        container = router_container(fleet, router, lambda _: somewhere, somewhere)
        found.append(router_mark(fleet, router, container.start))
    return tuple(dict.fromkeys(found))


def start_mark(title: str, start: Launch, version: str, ran: str) -> str:
    """Of a program, started like this.

    Parameters
    ----------
    title : str
        Name of the program.
    start : Launch
    version : str
        Of the program.
    ran : str
        Whether it was run, in words.
    """
    found = [*check_command(start.args, version, start.env), *_of_files(title, start.files, version)]
    words = [f"not known to it: {each.flag}, {each.reason}" for each in found if each.verdict == "rejected"]
    num_taken = sum(each.verdict == "accepted" for each in found)
    num_read = sum(each.verdict == "unverified" for each in found)
    if num_taken:
        words.append(f"its own parser takes {num_taken} options")
    if num_read:
        words.append(f"{num_read} known from documents, sources or another version only")
    return f"{title} {version}: {'; '.join([*words, ran])}"


def _of_files(title: str, files: Mapping[str, str], version: str) -> list[FlagVerdict]:
    """Of the settings in the files of a start."""
    found: list[FlagVerdict] = []
    for name, text in files.items():
        if name.endswith("Modelfile"):
            found += check_settings(("ollama", "Modelfile"), dict(PARAMETER.findall(text)), version)
        elif title == "tensorrt-llm":
            found += check_settings(("trtllm-serve", "YAML"), YAML(typ="safe").load(text), version)
    return found
