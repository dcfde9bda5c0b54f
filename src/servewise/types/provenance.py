"""Where a figure comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Kind", "Provenance"]

Kind = Literal["spec", "measured", "derived", "assumed"]
"""How a figure was obtained: a vendor's specification, a measurement, computed from others, or assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The origin of one figure or of one set of figures.

    Parameters
    ----------
    kind : Kind
        Spec, measured, derived or assumed.
    source : str
        URL, or file@commit, or ``assumed: why``.
    accessed : str
        ISO date on which the source was read; empty when it is part of the project.
    note : str
        What a reader must know before using the figure.
    """

    kind: Kind
    source: str
    accessed: str = ""
    note: str = ""
