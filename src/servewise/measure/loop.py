"""The loop that sends a load to an endpoint and takes what comes back.

One thread. Its first duty is to send on time and to read what is there; what was read is decoded, and bodies are
prepared, when there is nothing else to do. The kernel stamps arrivals, so reading a little late does no harm.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic_ns

import numpy as np

from servewise.errors import MeasurementError
from servewise.measure.answer import Answer, api_path, error_message, printable
from servewise.measure.progress import Seen
from servewise.measure.record import Outcome, Record
from servewise.measure.schedule import NEVER_NS, Schedule
from servewise.measure.sketch import Sketch
from servewise.measure.trust import ClientFacts
from servewise.net import MAX_EVENTS, Client, Clock, Exchange, parse_server, request_head
from servewise.types import Endpoint, Load, Prompts, RequestStatus

__all__ = ["Ended", "LoadLoop"]

CONNECT_S = 5.0
"""For the connections that a closed loop opens before it starts."""
TICK_NS = 5_000_000
PROGRESS_NS = 1_000_000_000
SEND_NS = 2_000_000
"""Spent on sending before the sockets are looked at again."""
DECODE_AT_ONCE = 16
"""Answers decoded before the sockets are looked at again: some 50 us."""
DECODE_OVERDUE_NS = 250_000_000
"""What was read is decoded after this even when the client is busy, so that memory stays bounded."""
PREPARED = 2048
PREPARED_BYTES = 16 << 20
PREPARE_S = 0.1
"""For bodies before the start."""
PREPARE_MARGIN_NS = 300_000
"""No body is prepared when the next request is due within this."""
ERROR_BYTES = 4096
"""Kept of a body that is no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a loop hands over.

    Parameters
    ----------
    record : Record
    client : ClientFacts
    start_ns : int [ns]
    interrupted : bool
    """

    record: Record
    client: ClientFacts
    start_ns: int
    interrupted: bool


class _Request(Exchange):
    """A request in flight: what has come and was not yet decoded, and what was."""

    __slots__ = ("answer", "end_ns", "error_body", "failure", "intended_ns", "is_ended", "loop", "parts", "request")

    def __init__(self, message: bytes, loop: LoadLoop, request: int, answer: Answer) -> None:
        super().__init__(message)
        self.loop = loop
        self.request = request
        self.intended_ns = 0
        self.answer = answer
        self.parts: list[tuple[int, bytes]] = []
        self.error_body = b""
        self.end_ns = 0
        self.failure = ""
        self.is_ended = False

    def received(self, at_ns: int, body: bytes) -> None:
        if not self.parts:
            self.loop.undecoded.append(self)
        self.parts.append((at_ns, body))

    def ended(self, at_ns: int, failure: str) -> None:
        self.is_ended = True
        self.end_ns = at_ns
        self.failure = failure
        self.loop.ended(self)

    def decode(self) -> None:
        """Decode what has come."""
        parts, self.parts = self.parts, []
        if 200 <= self.status < 300:
            for at_ns, body in parts:
                self.answer.feed(at_ns, body, self.headers)
        else:
            self.error_body = b"".join((self.error_body, *(body for _, body in parts)))[:ERROR_BYTES]

    def verdict(self) -> tuple[RequestStatus, str]:
        """How it ended, and what went wrong."""
        if self.status and not 200 <= self.status < 300:
            status = RequestStatus.REJECTED if self.status == 429 else RequestStatus.FAILED
            return status, self._refusal()
        answer = self.answer
        failure = answer.error or ("" if answer.is_complete else self.failure)
        if not failure and not (answer.is_complete or answer.finish_reason or answer.times_ns):
            failure = "the answer holds no token, and does not say that it is complete"
        return (RequestStatus.FAILED if failure else RequestStatus.OK), failure

    def _refusal(self) -> str:
        words = f"HTTP {self.status}"
        if said := error_message(self.error_body):
            words += f": {said}"
        if "retry-after" in self.headers:
            words += f" (Retry-After: {printable(self.headers['retry-after'])[:40]})"
        if 300 <= self.status < 400:
            words += f" (redirects to {printable(self.headers.get('location', '?'))}; servewise does not follow it)"
        return words


class LoadLoop:
    """One thread's run of a load.

    Parameters
    ----------
    endpoint : Endpoint
    load : Load
        Checked.
    prompts : Prompts
    api_key : str or None
    report : callable taking a Seen
        About once a second, on the sending thread: must be quick.
    stop : callable returning bool
        Asked every 5 ms.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        load: Load,
        prompts: Prompts,
        *,
        api_key: str | None,
        report: Callable[[Seen], None],
        stop: Callable[[], bool],
    ) -> None:
        self._endpoint = endpoint
        self._load = load
        self._prompts = prompts
        self._report = report
        self._stop = stop
        server = parse_server(endpoint.base_url)
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "servewise",
        }
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._head = request_head("POST", server.path + api_path(endpoint), server.host_header, headers)
        self._clock = Clock()
        self._client = Client(server, self._clock)
        self._schedule = Schedule(load)
        self._timeout_ns = int(load.timeout_s * 1e9)
        self._start_ns = 0
        self._in_flight: dict[int, _Request] = {}
        """In the order of their sending."""
        self.undecoded: deque[_Request] = deque()
        self._answers: dict[int, str] = {}
        self._prepared: dict[int, _Request] = {}
        self._prepared_bytes = 0
        self._roots = iter(self._schedule.roots)
        self._followers: deque[int] = deque()
        self._was_sent = bytearray(load.num_requests)
        self._failed = 0
        self._ttft, self._itl, self._lag = Sketch(), Sketch(), Sketch()
        self._record = Record()
        self._interrupted = False

    def open(self) -> None:
        """Do what can be done before the start: connections, bodies."""
        self._client.open(min(self._load.concurrency or 0, self._load.num_requests), CONNECT_S)
        until = monotonic_ns() + int(PREPARE_S * 1e9)
        while self._prepare() and monotonic_ns() < until:
            pass

    def run(self, start_ns: int = 0) -> Ended:
        """Run the load to its end, or until it is stopped, from a given instant on: from now when there is none."""
        try:
            with _undisturbed():
                self._start_ns = start_ns or monotonic_ns()
                self._run()
        finally:
            self._client.close()
        client = ClientFacts(
            lag=self._lag,
            num_reads=self._client.num_reads,
            num_stamped=self._client.num_stamped,
            can_stamp=self._client.can_stamp,
            clock_steps=self._clock.steps,
        )
        return Ended(record=self._record, client=client, start_ns=self._start_ns, interrupted=self._interrupted)

    def _run(self) -> None:
        tick_ns = house_ns = self._start_ns
        progress_ns = self._start_ns + PROGRESS_NS
        now = decoded_ns = monotonic_ns()
        is_drained = can_prepare = True
        while not self._interrupted:
            can_prepare |= self._send_due(now)
            next_ns = self._schedule.next_ns(now - self._start_ns) + self._start_ns
            if next_ns >= NEVER_NS and not self._in_flight and not self.undecoded:
                break
            is_idle = is_drained and not self.undecoded and not can_prepare
            wait_ns = min(next_ns, tick_ns) - monotonic_ns() if is_idle else 0
            is_drained = self._client.poll(max(wait_ns, 0) / 1e9) < MAX_EVENTS
            now = monotonic_ns()
            if self.undecoded and (is_drained or now - decoded_ns > DECODE_OVERDUE_NS):
                self._decode(DECODE_AT_ONCE if is_drained else len(self.undecoded))
                now = decoded_ns = monotonic_ns()
            elif is_drained and can_prepare and next_ns - now > PREPARE_MARGIN_NS:
                can_prepare = self._prepare()
                now = monotonic_ns()
            if not self.undecoded:
                decoded_ns = now
            if is_drained:
                tick_ns = self._note_lag(tick_ns, now)
            if now >= house_ns:
                house_ns = now + TICK_NS
                self._keep_house(now)
            if now >= progress_ns:
                progress_ns = now + PROGRESS_NS
                self._report(self._seen(now))
        self._note_lag(tick_ns, now)

    def _send_due(self, now: int) -> bool:
        """Send what is due, for a while: reading must not wait for all of it; returns whether something was sent."""
        sent_any = False
        until = now + SEND_NS
        while now < until and (due := self._schedule.take(now - self._start_ns)) is not None:
            index, intended_ns = due
            request = self._prepared.pop(index, None)
            if request is None:
                request = self._make(index)
            else:
                self._prepared_bytes -= len(request.message)
            request.intended_ns = intended_ns + self._start_ns
            self._was_sent[index] = 1
            self._in_flight[index] = request
            self._client.submit(request)
            sent_any = True
            now = monotonic_ns()
        return sent_any

    def _make(self, index: int) -> _Request:
        earlier = int(self._load.after[index])
        if earlier >= 0 and earlier not in self._answers and self._prompts.keeps_answer(earlier):
            self._decode(len(self.undecoded))  # it ended just now
        body = self._prompts.body(index, self._answers)
        message = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
        return _Request(message, self, index, Answer(self._endpoint, keeps_text=self._prompts.keeps_answer(index)))

    def _prepare(self) -> bool:
        """Make a request ahead of its time; returns whether there may be more to make."""
        if len(self._prepared) >= PREPARED or self._prepared_bytes >= PREPARED_BYTES:
            return False
        index = self._followers.popleft() if self._followers else next(self._roots, -1)
        if index < 0:
            return False
        if not self._was_sent[index]:
            self._prepared[index] = request = self._make(index)
            self._prepared_bytes += len(request.message)
        return True

    def _note_lag(self, tick_ns: int, now: int) -> int:
        """Note for how long ticks have waited until all that was there was read; returns when the next tick is due."""
        while tick_ns <= now:
            self._lag.add(now - tick_ns)
            tick_ns += TICK_NS
        return tick_ns

    def _keep_house(self, now: int) -> None:
        """End what has waited too long; stop when told to."""
        while self._in_flight:
            request = next(iter(self._in_flight.values()))
            if now - request.sent_ns < self._timeout_ns:
                break
            self._client.abandon(request)
            request.ended(now, f"timed out after {self._load.timeout_s:g} s")
        if self._stop():
            self._interrupt(now)

    def _interrupt(self, now: int) -> None:
        """Stop: what is in flight is given up, and kept as far as it came."""
        self._interrupted = True
        while self.undecoded:
            self._decode(len(self.undecoded))
        for request in self._in_flight.values():
            self._client.abandon(request)
            request.end_ns = now
            self._finish(request, RequestStatus.UNFINISHED, "")
        self._in_flight.clear()

    def ended(self, request: _Request) -> None:
        """A request has ended, well or not: others may follow. It is decoded when there is time."""
        del self._in_flight[request.request]
        self._followers.extend(self._schedule.ended(request.request, request.end_ns - self._start_ns))
        if not request.parts:
            self.undecoded.append(request)

    def _decode(self, count: int) -> None:
        for _ in range(min(count, len(self.undecoded))):
            request = self.undecoded.popleft()
            try:
                request.decode()
                if request.is_ended:
                    request.answer.close()
            except MeasurementError as error:
                request.answer.fail(str(error))
                if not request.is_ended:  # too large to go on: it comes here again, as one that has ended
                    self._client.abandon(request)
                    request.ended(monotonic_ns(), str(error))
                    continue
            if request.is_ended:
                self._finish(request, *request.verdict())

    def _finish(self, request: _Request, status: RequestStatus, failure: str) -> None:
        answer = request.answer
        index, times = request.request, answer.times_ns
        if self._prompts.keeps_answer(index):
            self._answers[index] = answer.text
        if status == RequestStatus.OK and times:
            self._ttft.add(times[0] - request.intended_ns)
            stamps = np.frombuffer(times, dtype=np.int64)
            self._itl.add_all(stamps[1:] - stamps[:-1])
        self._failed += status in (RequestStatus.FAILED, RequestStatus.REJECTED)
        self._record.add(
            Outcome(
                request=index,
                intended_ns=request.intended_ns,
                sent_ns=request.sent_ns,
                first_answer_ns=answer.first_answer_ns,
                last_token_ns=times[-1] if times else answer.whole_ns,
                end_ns=request.end_ns,
                input_tokens=answer.input_tokens,
                output_tokens=answer.output_tokens,
                cached_tokens=answer.cached_tokens,
                intended_input_tokens=self._prompts.intended_input_tokens(index),
                status=status,
                http_status=request.status,
                retries=request.retries,
                finish_reason=answer.finish_reason,
                failure=failure,
                chunks_ns=times,
            )
        )

    def _seen(self, now: int) -> Seen:
        return Seen(
            elapsed_s=(now - self._start_ns) / 1e9,
            done=len(self._record),
            in_flight=len(self._in_flight),
            failed=self._failed,
            ttft=self._ttft,
            itl=self._itl,
        )


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No garbage collection: it stops the loop for milliseconds, and what a run makes dies with its last reference."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
