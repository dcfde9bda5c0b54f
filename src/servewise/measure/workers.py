"""One load, several processes: each runs a part of it, from the same instant on."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from time import monotonic_ns

import numpy as np
from numpy.typing import NDArray

from servewise.errors import MeasurementError
from servewise.measure.loop import Ended, LoadLoop
from servewise.measure.progress import Progress, Seen, progress_of
from servewise.measure.record import Record
from servewise.measure.sketch import Sketch
from servewise.measure.trust import ClientFacts
from servewise.net import raise_file_limit
from servewise.types import Endpoint, Load, Prompts

__all__ = ["Part", "PartPrompts", "parts_of", "run_in_workers", "together"]

START_AHEAD_NS = 50_000_000
"""The common start lies this far ahead, so that every worker hears of it in time."""
ASK_S = 0.05
PROGRESS_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one worker sends.

    Parameters
    ----------
    load : Load
    requests : int64 array, shape (load.num_requests,)
        Which requests of the whole load these are.
    """

    load: Load
    requests: NDArray[np.int64]


def parts_of(load: Load, workers: int) -> list[Part]:
    """Deal a load out: requests that follow each other stay together, places are shared out evenly."""
    first = np.where(load.after < 0, np.arange(load.num_requests), load.after)
    while not np.array_equal(first, first[first]):
        first = first[first]
    chain = np.unique(first, return_inverse=True)[1]
    parts = []
    for worker in range(workers):
        requests = np.flatnonzero(chain % workers == worker)
        if len(requests) == 0:
            continue
        position = np.zeros(load.num_requests, dtype=np.int64)
        position[requests] = np.arange(len(requests))
        after = load.after[requests]
        places = load.concurrency
        if places is not None:
            places = places // workers + (worker < places % workers)
        part = replace(
            load,
            send_s=load.send_s[requests],
            after=np.where(after < 0, -1, position[after]),
            think_s=load.think_s[requests],
            concurrency=places,
        )
        parts.append(Part(load=part, requests=requests))
    return parts


class _PartAnswers(Mapping[int, str]):
    """Answers by the numbers of the whole load."""

    def __init__(self, own_number: dict[int, int]) -> None:
        self._own_number = own_number
        self.answers: Mapping[int, str] = {}

    def __getitem__(self, request: int) -> str:
        return self.answers[self._own_number[request]]

    def __iter__(self) -> Iterator[int]:
        return (request for request, own in self._own_number.items() if own in self.answers)

    def __len__(self) -> int:
        return len(self.answers)


class PartPrompts:
    """Prompts of a part, asked for by the part's own numbers."""

    def __init__(self, prompts: Prompts, requests: NDArray[np.int64]) -> None:
        self._prompts = prompts
        self._requests: list[int] = requests.tolist()
        self._answers = _PartAnswers({request: own for own, request in enumerate(self._requests)})

    def body(self, request: int, answers: Mapping[int, str]) -> bytes:
        self._answers.answers = answers
        return self._prompts.body(self._requests[request], self._answers)

    def keeps_answer(self, request: int) -> bool:
        return self._prompts.keeps_answer(self._requests[request])

    def intended_input_tokens(self, request: int) -> int:
        return self._prompts.intended_input_tokens(self._requests[request])


def _work(pipe: Connection, endpoint: Endpoint, part: Part, prompts: Prompts, api_key: str | None) -> None:
    """A worker's life: get ready, say so, wait for the start, run, hand over."""
    raise_file_limit()
    loop = LoadLoop(
        endpoint,
        part.load,
        PartPrompts(prompts, part.requests),
        api_key=api_key,
        report=pipe.send,
        stop=pipe.poll,  # after the start, all that the parent ever says is: stop
    )
    loop.open()
    pipe.send(None)
    ended = loop.run(pipe.recv())
    ended.record.renumber(part.requests)
    pipe.send(ended)


def run_in_workers(
    endpoint: Endpoint,
    load: Load,
    prompts: Prompts,
    *,
    api_key: str | None,
    workers: int,
    progress: Callable[[Progress], None],
    stop: Callable[[], bool],
) -> Ended:
    """Run a load in several processes, and put together what they measured.

    Raises
    ------
    MeasurementError
        When a worker cannot start; what it said is on stderr.
    """
    context = multiprocessing.get_context("spawn")
    team: list[tuple[SpawnProcess, Connection]] = []
    try:
        with _not_for_children():
            for part in parts_of(load, workers):
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(theirs, endpoint, part, prompts, api_key), daemon=True)
                process.start()
                theirs.close()
                team.append((process, ours))
        pipes = [pipe for _, pipe in team]
        try:
            for pipe in pipes:
                pipe.recv()
            start_ns = monotonic_ns() + START_AHEAD_NS
            for pipe in pipes:
                pipe.send(start_ns)
        except (EOFError, OSError):
            raise MeasurementError("a worker process ended before the run began; its own words are above") from None
        return _gather(pipes, load, start_ns, progress, stop)
    finally:
        for process, pipe in team:
            process.kill()
            process.join()
            pipe.close()


def _gather(
    pipes: list[Connection],
    load: Load,
    start_ns: int,
    progress: Callable[[Progress], None],
    stop: Callable[[], bool],
) -> Ended:
    """Listen to the workers until all have handed over or died."""
    open_pipes, seen, ended = list(pipes), dict[Connection, Seen](), list[Ended]()
    lost = 0
    is_told = False
    progress_ns = start_ns + PROGRESS_NS
    while open_pipes:
        for pipe in wait(open_pipes, ASK_S):
            assert isinstance(pipe, Connection)  # noqa: S101 - for the type checker
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                lost += 1
                open_pipes.remove(pipe)
                continue
            if isinstance(message, Seen):
                seen[pipe] = message
            else:
                ended.append(message)
                open_pipes.remove(pipe)
        if not is_told and stop():
            is_told = True
            for pipe in open_pipes:
                _tell_to_stop(pipe)
        if seen and monotonic_ns() >= progress_ns:
            progress_ns += PROGRESS_NS
            progress(progress_of(list(seen.values()), load.num_requests))
    return together(ended, start_ns, lost=lost)


def _tell_to_stop(pipe: Connection) -> None:
    try:
        pipe.send(None)
    except OSError:
        return  # it has died, as receiving will tell


def together(ended: list[Ended], start_ns: int, *, lost: int) -> Ended:
    """What several workers measured as if one had; ``lost`` of them handed nothing over."""
    record, lag = Record(), Sketch()
    for each in ended:
        record.extend(each.record)
        lag.merge(each.client.lag)
    client = ClientFacts(
        lag=lag,
        num_reads=sum(each.client.num_reads for each in ended),
        num_stamped=sum(each.client.num_stamped for each in ended),
        can_stamp=all(each.client.can_stamp for each in ended),
        clock_steps=max((each.client.clock_steps for each in ended), default=0),
        lost_workers=lost,
    )
    interrupted = any(each.interrupted for each in ended)
    return Ended(record=record, client=client, start_ns=start_ns, interrupted=interrupted)


@contextmanager
def _not_for_children() -> Iterator[None]:
    """Processes started meanwhile ignore Ctrl-C: the parent tells them to stop."""
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
