"""A run that another load generator measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from servewise.types.log import RequestLog
from servewise.types.measurement import Chunks, RequestDetails

__all__ = ["ImportedRun", "Tool"]

Tool = Literal["aiperf", "guidellm", "inference-perf", "sglang", "vllm"]
"""A load generator whose files are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """A run as another load generator's file tells it, in servewise's terms. What the file lacks stays unknown.

    Parameters
    ----------
    tool : Tool
    tool_version : str
        ``unknown`` when the file does not name it.
    name : str
        The file, and which of its runs.
    model : str
        ``unknown`` when the file does not name it.
    log : RequestLog
        Times from the first intended send, in order of intended send. Token counts are -1 when unknown.
    details : RequestDetails
        -1, NaN and empty where the file does not say.
    chunks : Chunks or None
        None when the file does not hold the times of single chunks; the log has no gaps then.
    one_clock : bool
        False when the file does not say when requests were sent: the times of each request count from its own
        send, so nothing can be said about rates.
    definitions : mapping of str to str
        What the tool means by TTFT, ITL, TPOT and E2E, and what became of it here.
    missing : tuple of str
        What the file does not hold.
    notes : tuple of str
        What a reader must know of this file's numbers.
    """

    tool: Tool
    tool_version: str
    name: str
    model: str
    log: RequestLog
    details: RequestDetails
    chunks: Chunks | None
    one_clock: bool
    definitions: Mapping[str, str]
    missing: tuple[str, ...]
    notes: tuple[str, ...]
