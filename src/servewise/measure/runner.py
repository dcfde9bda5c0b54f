"""Run a load against an endpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from servewise.errors import InputError
from servewise.measure.loop import Ended, LoadLoop
from servewise.measure.progress import Progress, Seen, progress_of
from servewise.measure.schedule import check_load
from servewise.measure.trust import judge
from servewise.net import raise_file_limit
from servewise.types import Chunks, Endpoint, Load, Prompts, RequestDetails, RequestLog, Trust

__all__ = ["Run", "Team", "run_load"]


class Team(Protocol):
    """Several workers that run a load together; parameters as those of :func:`run_load`."""

    def __call__(
        self,
        endpoint: Endpoint,
        load: Load,
        prompts: Prompts,
        *,
        api_key: str | None,
        workers: int,
        progress: Callable[[Progress], None],
        stop: Callable[[], bool],
    ) -> Ended:
        """Run the load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a load met.

    Parameters
    ----------
    log : RequestLog
        Gaps are those between chunks. An answer in one piece has no first token, and its last
        is the end of the answer.
    details : RequestDetails
    chunks : Chunks
    trust : Trust
    interrupted : bool
        Stopped before its end; what was in flight is UNFINISHED.
    start_ns : int [ns]
        Start of the run by the machine's monotonic clock, to lay other records beside it.
    """

    log: RequestLog
    details: RequestDetails
    chunks: Chunks
    trust: Trust
    interrupted: bool
    start_ns: int


def run_load(
    endpoint: Endpoint,
    load: Load,
    prompts: Prompts,
    *,
    api_key: str | None = None,
    workers: int = 1,
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
    team: Team | None = None,
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

    team : Team, optional
        How several workers run; processes of this machine by default.

    Returns
    -------
    Run

    Raises
    ------
    InputError
        When the URL or the load is wrong.
    MeasurementError
        When the host is not known, or a worker cannot start. A server that refuses or breaks is no exception: its
        requests have failed.
    """
    check_load(load)
    most = min(load.num_requests, load.concurrency or load.num_requests)
    if not 1 <= workers <= most:
        raise InputError(f"workers is {workers}; it must be 1 to {most}: each needs a request and a place of its own")
    raise_file_limit()
    with _stopped_by_ctrl_c() as was_pressed:

        def asked() -> bool:
            return was_pressed() or (stop is not None and stop())

        if workers > 1 or team is not None:
            from servewise.measure.workers import run_in_workers  # one loop needs no multiprocessing

            ended = (team or run_in_workers)(
                endpoint, load, prompts, api_key=api_key, workers=workers, progress=progress or _no_progress, stop=asked
            )
        else:

            def report(seen: Seen) -> None:
                if progress is not None:
                    progress(progress_of([seen], load.num_requests))

            loop = LoadLoop(endpoint, load, prompts, api_key=api_key, report=report, stop=asked)
            loop.open()
            ended = loop.run()
        # pressed when everything had been answered already, it still stops what was to come after this run
        interrupted = ended.interrupted or was_pressed()
    log, details, chunks = ended.record.tables(ended.start_ns, streamed=endpoint.stream)
    trust = judge(ended.client, load, log, details, chunks, streamed=endpoint.stream, interrupted=interrupted)
    return Run(
        log=log,
        details=details,
        chunks=chunks,
        trust=trust,
        interrupted=interrupted,
        start_ns=ended.start_ns,
    )


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
