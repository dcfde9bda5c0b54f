"""From service files to artefacts: is each plan made, do its numbers agree, and does every program know its options?

    python -m benchmarks.decide [NAME ...]

Plans every file of ``examples/decide``, writes what each target that can express it needs for the winner and for the
best candidates of each other engine, and looks up every option, variable and setting: in the recorded lists, and in the
parsers of the engines that are installed (``python -m benchmarks.engine_installs vllm sglang llama-server``). Manifests
are held against their schemas. The last line printed is one JSON document; the exit code is 1 when an option or a
manifest is refused or a number disagrees.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from benchmarks import advice_numbers, plan_numbers
from benchmarks.artefacts import documents, starts, verdicts
from benchmarks.manifests import validate_manifest
from benchmarks.parsers import COMMANDS, asked, program_of
from servewise import api
from servewise.deploy import TARGETS, Rendered
from servewise.engines import ollama
from servewise.errors import InputError
from servewise.report import plan_terminal
from servewise.types import Deployment

SERVICES = Path(__file__).resolve().parents[1] / "examples" / "decide"
WIDTH = 500
"""Columns of the printed plan, so that none of its lines is broken."""


@dataclass(slots=True)
class Findings:
    """What was found in all services."""

    verdicts: Counter[str] = field(default_factory=Counter)
    unverified: Counter[str] = field(default_factory=Counter)
    artefacts: int = 0
    manifests: int = 0
    commands: dict[str, dict[tuple[str, ...], str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    disagreeing: list[str] = field(default_factory=list)


def candidates(result: api.PlanResult) -> Iterator[tuple[int, Deployment]]:
    """The winner, and the best candidate of each other engine, whole and with prefill and decode apart."""
    by_index = {candidate.index: candidate for candidate in result.plan.candidates}
    seen = set()
    for index in result.plan.ranking:
        deployment = by_index[index].deployment
        kind = (deployment.engine, deployment.disaggregation is not None)
        if kind not in seen:
            seen.add(kind)
            yield index, deployment


def decide(path: Path, folder: Path, found: Findings) -> None:
    """Plan a service, and look at what it says and writes."""
    begun = time.perf_counter()
    result = api.plan(api.load_service(path), out_dir=folder)
    took_s = time.perf_counter() - begun
    if result.plan.winner is None or result.run_dir is None:
        found.faults.append(f"{path.stem}: no deployment keeps the promise")
        return
    printed = io.StringIO()
    Console(file=printed, width=WIDTH, color_system=None).print(plan_terminal(result.report))
    document = json.loads(result.json_text)
    numbers = plan_numbers.disagreeing_numbers(document, printed.getvalue())
    numbers += advice_numbers.disagreeing_numbers(document)
    if not document["advice"]:
        found.faults.append(f"{path.stem}: the plan recommends nothing")
    found.disagreeing += [f"{path.stem}: {number}" for number in numbers]
    written = []
    for index, deployment in candidates(result):
        for target, llama_server in itertools.product(TARGETS, (False, True)):
            if llama_server and deployment.engine != "ollama":
                continue
            served = ollama.as_llama_server(deployment) if llama_server else deployment
            try:
                plan = result.run_dir / "plan.json"
                rendered = api.deploy(plan, target, candidate=index, llama_server=llama_server).rendered
            except InputError:
                continue  # the target cannot express it, and says so
            written.append(f"{served.engine}{'/apart' if served.disaggregation else ''}/{target}")
            look(f"{path.stem}, {served.engine}, {target}", rendered, served, found)
    print(f"{path.stem}: planned in {took_s:.0f} s; {', '.join(written)}", flush=True)


def look(where: str, rendered: Rendered, deployment: Deployment, found: Findings) -> None:
    """Count what the lists say, keep the commands for the real parsers, and validate the manifests."""
    found.artefacts += len(rendered.files)
    for source, verdict in verdicts(rendered, deployment):
        found.verdicts[verdict.verdict] += 1
        if verdict.verdict == "rejected":
            found.faults.append(f"{where}, {source}: {verdict.flag}: {verdict.reason}")
        elif verdict.verdict == "unverified":
            found.unverified[verdict.reason] += 1
    for start in starts(rendered):
        program = program_of(start.args)
        if program is not None:
            arguments = start.args[len(COMMANDS[program]) :]
            found.commands.setdefault(program, {}).setdefault(arguments, f"{where}, {start.source}")
    for source, document in documents(rendered):
        found.manifests += 1
        found.faults += [f"{where}, {source}: {fault}" for fault in validate_manifest(document)]


def ask_parsers(found: Findings) -> None:
    """Let the installed engines' own parsers read the commands."""
    for program, commands in found.commands.items():
        try:
            said = asked(program, list(commands))
        except FileNotFoundError as error:
            print(f"{program}: {len(commands)} commands checked by the recorded lists only: {error}", flush=True)
            continue
        refused = [(where, words) for where, words in zip(commands.values(), said, strict=True) if words]
        print(
            f"{program}: its own parser accepts {len(commands) - len(refused)} of {len(commands)} commands", flush=True
        )
        found.verdicts["rejected"] += len(refused)
        found.faults += [f"{where}: {program} says: {words}" for where, words in refused]


def main() -> int:
    """Look at all services."""
    parser = argparse.ArgumentParser(description="Plan the services of examples/decide and check all that is written.")
    parser.add_argument("names", nargs="*", help="services, without .yaml  [default: all]")
    names = parser.parse_args().names
    files = sorted(path for path in SERVICES.glob("*.yaml") if not names or path.stem in names)
    found = Findings()
    with tempfile.TemporaryDirectory() as folder:
        for path in files:
            decide(path, Path(folder), found)
    ask_parsers(found)
    print(f"{found.manifests} manifests against their schemas")
    for reason, number in found.unverified.most_common():
        print(f"unverified, {number} times: {reason}")
    for fault in [*found.faults, *found.disagreeing]:
        print(f"FAULT {fault}")
    document = {
        "services": len(files),
        "artefacts": found.artefacts,
        "flags_checked": sum(found.verdicts.values()),
        "flags_rejected": found.verdicts["rejected"],
        "flags_unverified": found.verdicts["unverified"],
        "numbers_disagreeing": len(found.disagreeing),
    }
    print(json.dumps(document))
    return 1 if found.faults or found.disagreeing else 0


if __name__ == "__main__":
    sys.exit(main())
