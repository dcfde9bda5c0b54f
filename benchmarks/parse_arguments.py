"""An engine's own parser on many commands, for ``benchmarks.parsers``; runs in the environment of the engine.

    VENV/bin/python benchmarks/parse_arguments.py vllm|sglang < commands.json

Reads a JSON list of argument lists (of ``vllm serve`` and of ``sglang.launch_server``, without the program), and prints
on its last line a JSON list: an empty text for arguments that are accepted, else what the parser says. No server is
started and no model is loaded.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import sys
from collections.abc import Callable


def vllm() -> Callable[[list[str]], object]:
    """Parser, validation and engine arguments of ``vllm serve``."""
    serve = importlib.import_module("vllm.entrypoints.cli.serve")
    engine_args = importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs
    parser = serve.make_arg_parser(serve.FlexibleArgumentParser(prog="vllm serve"))

    def parse(arguments: list[str]) -> object:
        found = parser.parse_args(arguments)
        serve.validate_parsed_serve_args(found)
        return engine_args.from_cli_args(found)

    return parse


def sglang() -> Callable[[list[str]], object]:
    """Parser and server arguments of ``sglang.launch_server``."""
    server_args = importlib.import_module("sglang.srt.server_args").ServerArgs
    parser = argparse.ArgumentParser(prog="sglang.launch_server")
    server_args.add_cli_args(parser)
    return lambda arguments: server_args.from_cli_args(parser.parse_args(arguments))


def verdict(parse: Callable[[list[str]], object], arguments: list[str]) -> str:
    """What the parser says of a command; empty when it accepts it."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            parse(arguments)
    except SystemExit as ended:
        words = said.getvalue().strip().splitlines()
        return "" if not ended.code else (words[-1] if words else f"ended with code {ended.code}")
    except Exception as error:  # noqa: BLE001 (whatever it raises is its verdict)
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    """Parse all commands."""
    parse = {"vllm": vllm, "sglang": sglang}[sys.argv[1]]()
    print(json.dumps([verdict(parse, arguments) for arguments in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
