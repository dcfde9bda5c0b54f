"""The reference of all commands, made from the commands themselves: ``python -m servewise.cli.reference``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from servewise.cli.app import cli

__all__ = ["reference"]

HEAD = """# Commands

Made by `make cli-docs` from the commands; a test holds this page against them.
"""


def reference() -> str:
    """Markdown with every command, argument and option."""
    context = click.Context(cli, info_name="servewise", **cli.context_settings)
    return HEAD + "".join(_sections(cli, context))


def _sections(command: click.Command, context: click.Context) -> Iterator[str]:
    usage = [context.command_path, *command.collect_usage_pieces(context)]
    parts = [f"\n## {context.command_path}\n", f"```text\n{' '.join(usage)}\n```\n"]
    parts.append(inspect.cleandoc(command.help or "") + "\n")
    options = [row for parameter in command.get_params(context) for row in _option(parameter, context)]
    if options:
        parts.append("\n".join(["| option | meaning |", "|---|---|", *options]) + "\n")
    yield "\n".join(parts)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from _sections(inner, click.Context(inner, info_name=name, parent=context))


def _option(parameter: click.Parameter, context: click.Context) -> Iterator[str]:
    if isinstance(parameter, click.Option):
        record = parameter.get_help_record(context)
        if record is not None:
            names, meaning = (text.replace("|", "\\|") for text in record)
            yield f"| `{names}` | {' '.join(meaning.split())} |"


if __name__ == "__main__":
    click.echo(reference(), nl=False)
