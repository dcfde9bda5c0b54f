"""The command line: parse, print, exit codes."""

from servewise.cli.app import main

__all__ = ["main"]
