"""Run a load against an endpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic_ns
from types import FrameType

from servewise.errors import InputError
from servewise.measure.loop import LoadLoop, Progress
from servewise.measure.record import Record
from servewise.measure.schedule import check_load
from servewise.measure.trust import ClientFacts, judge
from servewise.net import raise_file_limit
from servewise.types import Chunks, Endpoint, Load, Prompts, RequestDetails, RequestLog, Trust

__all__ = ["Run", "run_load"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a load met.

    Parameters
    ----------
    log : RequestLog
        Gaps are those between chunks, of failed requests too. An answer in one piece has no first token, and its last
        is the end of the answer.
    details : RequestDetails
    chunks : Chunks
    trust : Trust
    interrupted : bool
        Stopped before its end; what was in flight is UNFINISHED.
    """

    log: RequestLog
    details: RequestDetails
    chunks: Chunks
    trust: Trust
    interrupted: bool


def run_load(
    endpoint: Endpoint,
    load: Load,
    prompts: Prompts,
    *,
    api_key: str | None = None,
    workers: int = 1,
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Run:
    """Send a load to an endpoint, to its end or until it is stopped, and keep all that was measured.

    Ctrl-C stops it like ``stop`` does; a second one raises KeyboardInterrupt.

    Parameters
    ----------
    endpoint : Endpoint
    load : Load
    prompts : Prompts
        With several workers it is pickled, and each has a copy.
    api_key : str, optional
        Sent as a bearer token to the endpoint's host, and never elsewhere: redirects are not followed.
    workers : int
        Processes that share the load. Requests that follow each other stay in one.
    progress : callable taking a Progress, optional
        Called about once a second; with one worker on the sending thread: must take less than a millisecond.
    stop : callable returning bool, optional
        Asked every 5 ms, quickly; True stops the run.

    Returns
    -------
    Run

    Raises
    ------
    InputError
        When the URL or the load is wrong.
    MeasurementError
        When the host is not known. A server that refuses or breaks is no exception: its requests have failed.
    """
    check_load(load)
    if not 1 <= workers <= load.num_requests:
        raise InputError(f"workers is {workers}; it must be between 1 and the number of requests, {load.num_requests}")
    raise_file_limit()
    with _stopped_by_ctrl_c() as was_pressed:

        def asked() -> bool:
            return was_pressed() or (stop is not None and stop())

        loop = LoadLoop(endpoint, load, prompts, api_key=api_key, progress=progress or _no_progress, stop=asked)
        loop.open()
        start_ns = monotonic_ns()
        client = loop.run(start_ns)
    return _run(endpoint, load, loop.record, client, start_ns, interrupted=loop.interrupted)


def _run(
    endpoint: Endpoint, load: Load, record: Record, client: ClientFacts, start_ns: int, *, interrupted: bool
) -> Run:
    log, details, chunks = record.tables(start_ns, streamed=endpoint.stream)
    trust = judge(client, load, log, details, chunks, streamed=endpoint.stream, interrupted=interrupted)
    return Run(log=log, details=details, chunks=chunks, trust=trust, interrupted=interrupted)


def _no_progress(_: Progress) -> None:
    """Nobody looks."""


@contextmanager
def _stopped_by_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Gives what says whether Ctrl-C was pressed meanwhile."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return

    def press(_: int, __: FrameType | None) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
