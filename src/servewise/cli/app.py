"""The ``servewise`` command: finds the command, and turns every ending into an exit code and one line."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Final

import click

from servewise import __version__
from servewise.errors import InfeasibleError, MeasurementError, ServewiseError, SimulationError

__all__ = ["cli", "main"]

EXIT_DONE: Final = 0
EXIT_BUG: Final = 1
EXIT_BAD_INPUT: Final = 2
EXIT_INFEASIBLE: Final = 3
EXIT_MEASUREMENT: Final = 4
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141

COMMANDS: Final = {
    "calibrate": ("servewise.cli.calibrate", "calibrate"),
    "catalog": ("servewise.cli.catalog", "catalog"),
    "compare": ("servewise.cli.compare", "compare"),
    "deploy": ("servewise.cli.deploy", "deploy"),
    "init": ("servewise.cli.init", "init"),
    "measure": ("servewise.cli.measure", "measure"),
    "plan": ("servewise.cli.plan", "plan"),
    "quality": ("servewise.cli.quality", "quality"),
    "runs": ("servewise.cli.runs", "runs"),
    "verify": ("servewise.cli.verify", "verify"),
    "traffic": ("servewise.cli.traffic", "traffic"),
}


class _LazyGroup(click.Group):
    """Imports a command's module when the command is needed, and not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}.{attribute} is not a command")
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="servewise")
@click.option("--debug", is_flag=True, help="Show the full trace of an unexpected error.")
def cli(debug: bool) -> None:
    """Decide how to serve a large language model: a plan computed for your own traffic.

    Results go to stdout, progress and diagnostics to stderr. Exit codes: 0 done, 2 bad input, 3 no deployment
    keeps the promise, 4 a measurement failed or cannot be trusted.
    """


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    sys.exit(_run(list(sys.argv[1:] if args is None else args)))


def _run(args: list[str]) -> int:
    debug = False
    try:
        with cli.make_context("servewise", args) as context:
            debug = bool(context.params["debug"])
            cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_BAD_INPUT
    except click.UsageError as error:
        where = "servewise" if error.ctx is None else error.ctx.command_path
        return _fail(f"{error.format_message()} (see '{where} --help')", EXIT_BAD_INPUT)
    except click.ClickException as error:
        return _fail(error.format_message(), EXIT_BAD_INPUT)
    except (KeyboardInterrupt, click.Abort) as error:
        return _fail(f"interrupted; {error}" if str(error) else "interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the exit's flush would complain
        return EXIT_BROKEN_PIPE
    except ServewiseError as error:
        if debug:
            traceback.print_exc()
        return _fail(str(error), _exit_code(error))
    except OSError as error:
        if debug:
            traceback.print_exc()
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", EXIT_BAD_INPUT)
    except Exception as error:  # noqa: BLE001 - the last stop: users get a sentence, not a stack trace
        if debug:
            traceback.print_exc()
        hint = "" if debug else "; 'servewise --debug ...' shows where"
        return _fail(f"unexpected {type(error).__name__}: {error}; please report this as a bug{hint}", EXIT_BUG)
    return EXIT_DONE


def _exit_code(error: ServewiseError) -> int:
    if isinstance(error, InfeasibleError):
        return EXIT_INFEASIBLE
    if isinstance(error, MeasurementError):
        return EXIT_MEASUREMENT
    return EXIT_BUG if isinstance(error, SimulationError) else EXIT_BAD_INPUT


def _fail(message: str, code: int) -> int:
    from servewise.cli.terminal import diagnose

    diagnose("error", message)
    return code
