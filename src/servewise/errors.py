"""The exception tree. A message says what is wrong, the value, what is allowed and the next step.

ServewiseError
├── InputError            bad user input (exit code 2)
│   ├── TraceFormatError  a trace row or column, with its line number
│   └── UnknownNameError  a name that no catalog knows, with the nearest known ones
├── CatalogError          the built-in or user-supplied catalog data is wrong
├── InfeasibleError       no deployment can do what was asked (exit code 3)
├── OutOfRangeError       a model was asked outside the range it is valid in
├── MeasurementError      a measurement failed or cannot be trusted (exit code 4)
└── SimulationError       the simulator reached a state that must not exist
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CatalogError",
    "InfeasibleError",
    "InputError",
    "MeasurementError",
    "OutOfRangeError",
    "ServewiseError",
    "SimulationError",
    "TraceFormatError",
    "UnknownNameError",
]


class ServewiseError(Exception):
    """Base of every error that servewise raises on purpose."""


class InputError(ServewiseError):
    """The user's input is wrong."""


class TraceFormatError(InputError):
    """A trace file cannot be read.

    Parameters
    ----------
    message : str
        What is wrong and what is allowed.
    path : str
        The file.
    line : int or None
        The 1-based line, when one line is at fault.
    """

    def __init__(self, message: str, *, path: str, line: int | None = None) -> None:
        where = path if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {message}")
        self.path = path
        self.line = line


class UnknownNameError(InputError):
    """A name is not known; the nearest known names are offered."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        names = sorted(known)
        by_lower = {n.lower(): n for n in names}
        near = [by_lower[m] for m in difflib.get_close_matches(name.lower(), list(by_lower), n=3, cutoff=0.5)]
        suggestion = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
        super().__init__(f"unknown {kind} {name!r}; {suggestion}{' ' + hint if hint else ''}")
        self.name = name
        self.near = tuple(near)


class CatalogError(ServewiseError):
    """Catalog data is missing or contradicts itself."""


class InfeasibleError(ServewiseError):
    """No deployment can do what was asked."""


class OutOfRangeError(ServewiseError):
    """A value lies outside the range in which a model or a formula is valid."""


class MeasurementError(ServewiseError):
    """A measurement failed or cannot be trusted."""


class SimulationError(ServewiseError):
    """The simulator reached a state that must not exist."""
