"""The server's own metrics beside a run, and whether they agree with what the client saw."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from servewise.net.metrics_page import NAMES
from servewise.types import RequestDetails, RequestLog

__all__ = ["Scraper", "ServerView", "compare_views"]

INTERVAL_S: Final = 1.0
MAX_FOREIGN_FRAC: Final = 0.1
"""Share of the server's output tokens that nobody here asked for, above which it served others as well."""
MAX_APART_FRAC: Final = 0.2


class Scraper:
    """Samples a server's metrics page during runs, about once a second, in a process of its own.

    Parameters
    ----------
    base_url, engine : str
    api_key : str or None
        Handed over through a pipe.
    """

    def __init__(self, base_url: str, engine: str, *, api_key: str | None = None) -> None:
        self._asked = {"base_url": base_url, "engine": engine, "api_key": api_key, "interval_s": INTERVAL_S}
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        if self._asked["engine"] in NAMES:
            command = [sys.executable, "-m", "servewise.net.metrics_page"]
            self._child = subprocess.Popen(  # noqa: S603 (a fixed command)
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # Ctrl-C is the client's: the last sample comes after it
            )
            self._tell(json.dumps(self._asked))
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None

    def start(self) -> None:
        """Begin sampling; returns when the page was read once, so that a run's own requests are all in between."""
        self._tell("start")
        self._hear()

    def stop(self, start_s: float) -> dict[str, NDArray[np.float64]]:
        """End the sampling.

        Parameters
        ----------
        start_s : float [s]
            Start of the run, by ``time.monotonic()``.

        Returns
        -------
        mapping of str to float64 array, shape (num_samples,)
            ``time_s`` from the start of the run, and what the page has; empty when there is none.
        """
        self._tell("stop")
        samples = self._hear() or []
        names = sorted({name for sample in samples for name in sample} - {"at_s"})
        if not names:
            return {}
        columns = {name: np.array([sample.get(name, np.nan) for sample in samples]) for name in names}
        return {"time_s": np.array([sample["at_s"] for sample in samples]) - start_s, **columns}

    def _tell(self, text: str) -> None:
        if self._child is not None and self._child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has ended: the run goes on without it
                self._child.stdin.write(f"{text}\n")
                self._child.stdin.flush()

    def _hear(self) -> Any:
        """The child's next answer; None when it has ended."""
        line = "" if self._child is None or self._child.stdout is None else self._child.stdout.readline()
        return json.loads(line) if line else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """What the server's metrics say of a run.

    Parameters
    ----------
    facts : mapping of str to float
        Under ``server_`` names; a fact that is not known is absent.
    reasons, notes : tuple of str
        What makes the run's numbers not trustworthy, and what a reader must know.
    """

    facts: Mapping[str, float]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]


def compare_views(metrics: Mapping[str, NDArray[np.float64]], log: RequestLog, details: RequestDetails) -> ServerView:
    """Compare the server's metrics with the client's log: requests in flight, tokens, preemptions, prefix hits.

    Parameters
    ----------
    metrics : mapping of str to float64 array, shape (num_samples,)
        The first sample before the run, the last after it.
    log : RequestLog
    details : RequestDetails
    """
    facts: dict[str, float] = {}
    reasons: list[str] = []
    notes: list[str] = []
    if len(metrics.get("time_s", ())) < 2 or not log.num_requests:
        return ServerView(facts=facts, reasons=(), notes=())
    for name, values in metrics.items():
        if name.endswith("_total"):
            facts[f"server_{name.removesuffix('_total')}"] = float(values[-1] - values[0])
    if facts.get("server_prefix_queries"):
        facts["server_prefix_hit_frac"] = facts.get("server_prefix_hits", 0.0) / facts["server_prefix_queries"]
    if "kv_used_frac" in metrics:
        facts["server_kv_used_max_frac"] = float(np.nanmax(metrics["kv_used_frac"]))
    if facts.get("server_preemptions", 0.0) > 0.0:
        notes.append(f"the server preempted requests {facts['server_preemptions']:.0f} times")
    _in_flight(metrics, log, details, facts, notes)
    _tokens(log, facts, reasons, notes)
    return ServerView(facts=facts, reasons=tuple(reasons), notes=tuple(notes))


def _in_flight(
    metrics: Mapping[str, NDArray[np.float64]],
    log: RequestLog,
    details: RequestDetails,
    facts: dict[str, float],
    notes: list[str],
) -> None:
    """Running and waiting at the server against sent and not ended at the client, at the same instants."""
    if "running" not in metrics:
        return
    time_s, running = metrics["time_s"], metrics["running"]
    there = running + metrics.get("waiting", np.zeros_like(running))
    begun = np.searchsorted(np.sort(log.sent_s), time_s, side="right")
    here = begun - np.searchsorted(np.sort(details.end_s), time_s, side="right")
    within = (time_s >= log.sent_s.min()) & (time_s <= log.sent_s.max()) & np.isfinite(there)
    if np.count_nonzero(within) < 3:
        return
    facts["server_running_mean"] = float(np.mean(running[within]))
    facts["server_in_flight_mean"] = float(np.mean(there[within]))
    mine = float(np.mean(here[within]))
    if abs(facts["server_in_flight_mean"] - mine) > max(MAX_APART_FRAC * mine, 1.0):
        notes.append(
            f"the server counted {facts['server_in_flight_mean']:.1f} requests in flight, the client {mine:.1f}: the"
            " rest waits elsewhere, or others use the server"
        )


def _tokens(log: RequestLog, facts: dict[str, float], reasons: list[str], notes: list[str]) -> None:
    """Output tokens by both counts: others' requests show, and so do tokens that never came."""
    if "server_output_tokens" not in facts or np.any(log.output_tokens < 0):
        return  # what failed has no count either
    theirs, mine = facts["server_output_tokens"], float(np.sum(log.output_tokens))
    if theirs > (1.0 + MAX_FOREIGN_FRAC) * mine:
        reasons.append(
            f"the server generated {theirs:,.0f} tokens, of which {mine:,.0f} were asked for here: it served others too"
        )
    elif theirs < (1.0 - MAX_FOREIGN_FRAC) * mine:
        notes.append(
            f"the server counts {theirs:,.0f} generated tokens, its answers {mine:,.0f}: is it one of several?"
        )
