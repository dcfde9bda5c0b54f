"""The workers of one load on several machines, by Ray (the extra ``ray``).

Each worker is an actor with a part of the load, as in :mod:`servewise.measure.workers`. Machines have monotonic clocks
of their own: the distance of each to this one's is taken from the quickest of several round trips. All start at the
same instant of this one's, and their times are brought to it.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import Any, Final

from servewise.errors import InputError, MeasurementError
from servewise.measure.loop import Ended, LoadLoop
from servewise.measure.progress import Progress, Seen, progress_of
from servewise.measure.workers import Part, PartPrompts, parts_of, together
from servewise.net import raise_file_limit
from servewise.types import Endpoint, Load, Prompts

__all__ = ["RayTeam"]

START_AHEAD_NS: Final = 500_000_000
"""The common start lies this far ahead: a call takes some milliseconds between machines."""
NUM_ROUND_TRIPS: Final = 20
MAX_ROUND_TRIP_NS: Final = 5_000_000
"""The distance of two clocks is known to half of this."""
ASK_S: Final = 0.2
PROGRESS_NS: Final = 1_000_000_000


class _Sender:
    """A part of the load on some machine; two threads, so that it can be asked while it runs."""

    def __init__(self, endpoint: Endpoint, part: Part, prompts: Prompts, api_key: str | None) -> None:
        raise_file_limit()
        self._requests = part.requests
        self._seen: Seen | None = None
        self._is_stopped = False
        own = PartPrompts(prompts, part.requests)
        self._loop = LoadLoop(
            endpoint, part.load, own, api_key=api_key, report=self._keep, stop=lambda: self._is_stopped
        )

    def _keep(self, seen: Seen) -> None:
        self._seen = seen

    def clock_ns(self) -> int:
        return monotonic_ns()

    def open(self) -> None:
        self._loop.open()

    def run(self, start_ns: int, offset_ns: int) -> Ended:
        ended = self._loop.run(start_ns + offset_ns)
        ended.record.renumber(self._requests)
        ended.record.shift(-offset_ns)
        return ended

    def ask(self, stop: bool) -> Seen | None:
        self._is_stopped |= stop
        return self._seen


class RayTeam:
    """Runs a load on a Ray cluster (:class:`servewise.measure.runner.Team`); one worker a machine, or more when asked.

    Parameters
    ----------
    address : str
        Of the cluster, e.g. ``auto``, ``10.0.0.1:6379`` or ``ray://10.0.0.1:10001``; ``local`` starts one here.

    Raises
    ------
    InputError
        When Ray is not installed, or no cluster answers.
    """

    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError as error:
            raise InputError("Ray is not installed; install servewise[ray] on every machine of the cluster") from error
        self._ray: Any = ray
        try:
            self._ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(f"no Ray cluster answers at {address!r} ({error}); is it started?") from error

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()

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
        """Run a load; at least one worker on each machine, as far as there are requests and places for them."""
        ray = self._ray
        machines = sum(bool(node["Alive"]) for node in ray.nodes())
        most = min(load.num_requests, load.concurrency or load.num_requests)
        parts = parts_of(load, min(max(workers, machines), most))
        actor = ray.remote(_Sender).options(max_concurrency=2, num_cpus=1, scheduling_strategy="SPREAD")
        shared = ray.put(prompts)
        senders = [actor.remote(endpoint, part, shared, api_key) for part in parts]
        try:
            ray.get([sender.open.remote() for sender in senders], timeout=60.0)
            offsets = [self._offset_ns(sender) for sender in senders]
            start_ns = monotonic_ns() + START_AHEAD_NS
            running = [sender.run.remote(start_ns, offset) for sender, offset in zip(senders, offsets, strict=True)]
            return self._gather(senders, running, load, start_ns, progress, stop)
        except ray.exceptions.RayError as error:
            first = str(error).strip().splitlines()[-1][:200]
            raise MeasurementError(f"the workers on Ray did not start: {first}") from error
        finally:
            for sender in senders:
                ray.kill(sender)

    def _offset_ns(self, sender: Any) -> int:
        """That machine's clock minus this one's [ns]."""
        found = []
        for _ in range(NUM_ROUND_TRIPS):
            before_ns = monotonic_ns()
            there_ns = self._ray.get(sender.clock_ns.remote(), timeout=60.0)
            after_ns = monotonic_ns()
            found.append((after_ns - before_ns, there_ns - (before_ns + after_ns) // 2))
        round_trip_ns, offset_ns = min(found)
        if round_trip_ns > MAX_ROUND_TRIP_NS:
            raise MeasurementError(
                f"a machine of the cluster takes {round_trip_ns / 1e6:.1f} ms to answer, too long to know its clock;"
                f" it must be below {MAX_ROUND_TRIP_NS / 1e6:.0f} ms"
            )
        return int(offset_ns)

    def _gather(
        self,
        senders: list[Any],
        running: list[Any],
        load: Load,
        start_ns: int,
        progress: Callable[[Progress], None],
        stop: Callable[[], bool],
    ) -> Ended:
        """Wait for the workers, and tell them to stop; those that died are counted."""
        ray = self._ray
        waiting, is_told, progress_ns = list(running), False, start_ns + PROGRESS_NS
        while waiting:
            _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=ASK_S)
            must_stop = stop() and not is_told
            if waiting and (must_stop or monotonic_ns() >= progress_ns):
                progress_ns = monotonic_ns() + PROGRESS_NS
                is_told |= must_stop
                answers = [self._got(sender.ask.remote(must_stop)) for sender in senders]
                seen = [answer for answer in answers if answer is not None]
                if seen:
                    progress(progress_of(seen, load.num_requests))
        ended = [self._got(result) for result in running]
        there = [each for each in ended if each is not None]
        return together(there, start_ns, lost=len(running) - len(there))

    def _got(self, reference: Any) -> Any:
        """A worker's answer; None when it has died."""
        try:
            return self._ray.get(reference, timeout=60.0)
        except self._ray.exceptions.RayError:
            return None
