"""The measured runs that a calibration is fitted to, checked."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError, MeasurementError
from servewise.metrics import finished, ttft_s
from servewise.types import Deployment, Measurement, Provenance, RequestLog, Workload

__all__ = ["MeasuredRun", "checked", "measured_run", "workload_of"]

MIN_POINTS = 3
"""Load points: with one of them left out two remain, the fewest that tell a step's time from a row's."""
MIN_REQUESTS = 20
"""Answered requests of a run, for medians that mean something."""
MOST_FAILED_FRAC = 0.05
MOST_CACHED_FRAC = 0.5
NOTED_CACHED_FRAC = 0.01
OVERLOAD_GROWTH = 3.0
"""A median TTFT of the last third of an open-loop run above this multiple of the first third's: the queue grew."""
NARROW_SPAN = 4.0
"""Less between the smallest and the largest load is noted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One load point of a sweep.

    Parameters
    ----------
    name : str
    load : str
        In words; runs with the same words are one load point.
    log : RequestLog
    concurrency : int or None
        Requests that the client kept in flight (closed loop); None for a run in which they came by themselves.
    engine : str
        What the server was recognised as; ``unknown`` otherwise.
    distrust : tuple of str
        Reasons not to trust the run.
    counted_s : tuple of (float, float) [s]
        Requests that were meant to be sent within count.
    queue_grew : bool
        Whether the load was more than the server could take: first tokens then say how long the run was.
    """

    name: str
    load: str
    log: RequestLog
    concurrency: int | None
    engine: str = "unknown"
    distrust: tuple[str, ...] = ()
    counted_s: tuple[float, float] = (-math.inf, math.inf)
    queue_grew: bool = False

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which of the log's requests are compared; those of the warm-up are only simulated."""
        low, high = self.counted_s
        return np.asarray((self.log.intended_s >= low) & (self.log.intended_s <= high), dtype=np.bool_)


def measured_run(measurement: Measurement) -> MeasuredRun:
    """A measurement as a load point."""
    concurrency = measurement.trust.facts.get("requested_concurrency")
    return MeasuredRun(
        name=measurement.name,
        load=re.sub(r", seed \d+$", "", measurement.load_words),
        log=measurement.log,
        concurrency=None if concurrency is None else round(concurrency),
        engine=measurement.endpoint.engine,
        distrust=measurement.trust.reasons,
        counted_s=measurement.counted_s,
    )


def checked(runs: Sequence[MeasuredRun], deployment: Deployment) -> tuple[tuple[MeasuredRun, ...], tuple[str, ...]]:
    """The runs with their answered requests only, and what a user must know of them.

    Raises
    ------
    InputError
        When the runs are too few, too short, of another engine, or lack what is fitted.
    MeasurementError
        When a run cannot be trusted.
    """
    points = {run.load for run in runs}
    if len(points) < MIN_POINTS:
        raise InputError(
            f"{len(points)} load point{'s' * (len(points) != 1)} cannot be fitted and held out; measure at least "
            f"{MIN_POINTS} loads, from about four requests at once to as many as you expect"
        )
    engines = sorted({run.engine for run in runs} - {"unknown"})
    if len(engines) > 1:
        raise InputError(f"the runs are of several engines: {', '.join(engines)}; calibrate one engine at a time")
    if engines and engines != [deployment.engine]:
        raise InputError(
            f"the runs are of {engines[0]}, the deployment is of {deployment.engine}; give one that was measured"
        )
    notes = [] if engines else ["the engine of the endpoint was not recognised: it is taken to be the deployment's"]
    kept = []
    for run in runs:
        sound, found = checked_run(run)
        kept.append(sound)
        notes += found
    loads = [mean_running(run.log) for run in kept]
    if max(loads) < NARROW_SPAN * min(loads):
        notes.append(
            f"the runs span {min(loads):.1f} to {max(loads):.1f} requests at once, less than {NARROW_SPAN:g} times: "
            "what a row adds to a step is hard to tell from the step itself"
        )
    return tuple(kept), tuple(notes)


def checked_run(run: MeasuredRun) -> tuple[MeasuredRun, list[str]]:
    """A run without its failed requests."""
    log, notes = run.log, []
    if run.distrust:
        raise MeasurementError(f"run {run.name} cannot be trusted: {'; '.join(run.distrust)}; measure it again")
    done = finished(log)
    failed = 1.0 - float(np.mean(done)) if log.num_requests else 1.0
    if failed > MOST_FAILED_FRAC:
        raise MeasurementError(
            f"run {run.name}: {failed:.0%} of {log.num_requests} requests were not answered, at most "
            f"{MOST_FAILED_FRAC:.0%} may fail; look at the server's log and measure again"
        )
    if failed:
        notes.append(f"run {run.name}: {failed:.1%} of the requests failed and are left out")
    num = int((done & run.counted).sum())
    if num < MIN_REQUESTS:
        raise InputError(
            f"run {run.name} has {num} answers that count, at least {MIN_REQUESTS} are needed; run it longer"
        )
    log = _rows(log, done)
    if np.isnan(log.first_token_s).any():
        raise InputError(f"run {run.name} has no times of first tokens; measure with streaming")
    if (log.input_tokens < 1).any() or (log.output_tokens < 1).any():
        raise InputError(f"run {run.name} has answers without token counts; use an endpoint that reports `usage`")
    if not (log.output_tokens > 1).any():
        raise InputError(f"run {run.name} has answers of one token only, which say nothing of TPOT; ask for more")
    notes += _prefix_notes(run.name, log)
    grew = run.concurrency is None and _queue_grew(log)
    if grew:
        notes.append(f"run {run.name} was overloaded: its queue grew to the end, so its TTFT and E2E are not fitted")
    return replace(run, log=log, queue_grew=grew), notes


def _prefix_notes(name: str, log: RequestLog) -> list[str]:
    known = log.cached_tokens >= 0
    if not known.any():
        return []
    frac = float(log.cached_tokens[known].sum() / log.input_tokens[known].sum())
    if frac > MOST_CACHED_FRAC:
        raise InputError(
            f"run {name}: {frac:.0%} of the prompt tokens came from the prefix cache, at most {MOST_CACHED_FRAC:.0%} "
            "may; measure with prompts that share nothing"
        )
    if frac > NOTED_CACHED_FRAC:
        return [
            f"run {name}: {frac:.1%} of the prompt tokens came from the prefix cache; they are left out of the prompts"
        ]
    return []


def _queue_grew(log: RequestLog) -> bool:
    third = max(log.num_requests // 3, 1)
    ttft = ttft_s(log)
    return bool(np.median(ttft[-third:]) > OVERLOAD_GROWTH * np.median(ttft[:third]))


def _rows(log: RequestLog, mask: NDArray[np.bool_]) -> RequestLog:
    """Some requests of a log."""
    names = [name for name in RequestLog.__slots__ if name not in ("itl", "timeline")]
    return RequestLog(**{name: getattr(log, name)[mask] for name in names})


def mean_running(log: RequestLog) -> float:
    """Requests in the engine at once, on average (Little's law)."""
    return float(np.sum(log.last_token_s - log.intended_s) / (np.max(log.last_token_s) - np.min(log.intended_s)))


def workload_of(run: MeasuredRun) -> Workload:
    """The requests of a run as the simulator takes them: those it had, when they were meant to be sent.

    Of prompts only what had to be computed; the few tokens of a template, which every request shares, are missing in
    the contexts.
    """
    log = run.log
    return Workload(
        name=run.name,
        arrival_s=log.intended_s - log.intended_s[0],
        input_tokens=np.maximum(log.input_tokens - np.maximum(log.cached_tokens, 0), 1),
        output_tokens=log.output_tokens,
        max_tokens=log.output_tokens,
        max_tokens_kind="declared",
        prefix=None,
        session=None,
        provenance=Provenance(kind="measured", source=f"run {run.name}"),
    )
