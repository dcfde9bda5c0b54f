"""What starts an engine: arguments, environment and files, never a shell line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from servewise.errors import InputError

__all__ = ["Launch", "checked_name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What starts one replica.

    Parameters
    ----------
    args : list of str
        Program and arguments, for the operating system.
    env : mapping of str to str
        Environment variables to set.
    files : mapping of str to str
        Text files that the arguments name, by their name in the working directory.
    """

    args: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


def checked_name(name: str, program: str) -> str:
    """A model's name as an argument.

    Raises
    ------
    InputError
        When it would be read as an option or cannot be an argument.
    """
    if not name or name.startswith("-") or not name.isprintable():
        raise InputError(f"model name {name!r} cannot be passed to {program}; use a hub id or a path")
    return name
