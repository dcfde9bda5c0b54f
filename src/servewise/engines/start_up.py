"""What is known of the time that an engine takes to start.

The figures live in ``servewise/data/engines/start_up.toml`` with their sources.
"""

from __future__ import annotations

from dataclasses import dataclass

from servewise.engines.facts import cited, document
from servewise.types import Provenance

__all__ = ["StartUp", "facts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """Process and compiled code [s], warm-up [s], and so many GiB of weights in so many seconds."""

    process_s: float
    warm_up_s: float
    weights_gib: float
    weights_s: float


def facts() -> tuple[StartUp, Provenance]:
    """The figures and their origin."""
    known = dict(document("start_up")["start_up"])
    source = known.pop("source")
    return StartUp(**known), cited("start_up", source)
