"""What is sent to a real endpoint, and what came back beside the request log."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from servewise.types.log import RequestLog

__all__ = ["Api", "Chunks", "Endpoint", "Load", "Measurement", "Prompts", "RequestDetails", "Trust"]

Api = Literal["openai-chat", "openai-completions", "ollama-chat", "ollama-generate", "tgi-generate"]
"""How an endpoint is spoken to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server that answers requests.

    Parameters
    ----------
    base_url : str
        Scheme, host, port and path before the API's own, without user name or password.
    api : Api
    model : str
        As the server names it.
    engine : str
        What the server was recognised as, e.g. ``vllm``; ``unknown`` otherwise.
    engine_version : str
        Empty when unknown.
    stream : bool
        False asks for the answer in one piece: only E2E is measured then.
    temperature : float or None
        Of sampling, asked for in every request; None leaves the server's own.
    """

    base_url: str
    api: Api
    model: str
    engine: str = "unknown"
    engine_version: str = ""
    stream: bool = True
    temperature: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests to send, and when. Times count from the start of the run. Arrays have shape (num_requests,).

    A request is sent at its time, or later where it must wait: for the end of an earlier request (the previous
    turn of its conversation), for a free place when ``concurrency`` is limited, in order. The instant at which
    nothing keeps it waiting any more is its intended send time.

    Parameters
    ----------
    send_s : float64 [s]
        Earliest send time, ascending; all 0 in a closed loop.
    after : int64
        Earlier request whose end this one waits for; -1 for none.
    think_s : float64 [s]
        Pause after that end.
    concurrency : int or None
        Requests in flight at most (closed loop); None has no limit (open loop).
    duration_s : float or None [s]
        No request is sent later than this; those not sent are not part of the result.
    timeout_s : float [s]
        A request that has not ended this long after it was sent has failed.
    """

    send_s: NDArray[np.float64]
    after: NDArray[np.int64]
    think_s: NDArray[np.float64]
    concurrency: int | None
    duration_s: float | None
    timeout_s: float

    @property
    def num_requests(self) -> int:
        """Number of requests."""
        return len(self.send_s)


class Prompts(Protocol):
    """What each request of a load says. Called on the sending side: must be quick."""

    def body(self, request: int, answers: Mapping[int, str]) -> bytes:
        """JSON body of a request; ``answers`` holds the texts of earlier requests that were to be kept."""

    def keeps_answer(self, request: int) -> bool:
        """Whether a later request repeats this one's answer."""

    def intended_input_tokens(self, request: int) -> int:
        """Tokens that the prompt was meant to have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """When the parts of each answer that carry tokens arrived (CSR: row ``i`` is ``offsets[i]:offsets[i + 1]``).

    Parameters
    ----------
    offsets : int64 array, shape (num_requests + 1,)
    time_s : float64 array, shape (offsets[-1],) [s]
        From the start of the run.
    """

    offsets: NDArray[np.int64]
    time_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDetails:
    """What a client knows of each request beside the log, in the log's order. Arrays have shape (num_requests,).

    Parameters
    ----------
    request : int64
        Index into the load.
    intended_input_tokens : int64 [tokens]
    first_answer_s : float64 [s]
        First token of the answer itself, reasoning not counted; NaN when there was none.
    end_s : float64 [s]
        End of the response, or when the request failed: what the client waited for.
    http_status : int64
        0 when no response arrived.
    retries : int64
        Connections that the server had closed before it saw the request, and that were opened again.
    finish_reason, failure : sequence of str
        Empty when unknown and when nothing failed.
    """

    request: NDArray[np.int64]
    intended_input_tokens: NDArray[np.int64]
    first_answer_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    http_status: NDArray[np.int64]
    retries: NDArray[np.int64]
    finish_reason: Sequence[str]
    failure: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Whether the client kept up, so that the numbers are the server's.

    Parameters
    ----------
    reasons : tuple of str
        What makes the numbers not trustworthy, in words with figures; empty when they are.
    notes : tuple of str
        What a reader must know of numbers that can be trusted, e.g. that they hold E2E only.
    facts : mapping of str to float
        ``client_lag_p99_s``, ``client_lag_max_s`` (lateness of the event loop), ``send_lag_p99_s`` (actual minus
        intended send), ``held_concurrency`` and ``requested_concurrency``, ``offered_rps`` and ``requested_rps``,
        ``kernel_stamped_frac`` (share of receive times stamped by the kernel), ``failed_frac``,
        ``tokens_per_chunk``. A fact that does not apply is absent.
    """

    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    facts: Mapping[str, float]

    @property
    def trustworthy(self) -> bool:
        """True when nothing speaks against the numbers."""
        return not self.reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One run against an endpoint.

    Parameters
    ----------
    name : str
    endpoint : Endpoint
    load_words : str
        The load in words: at which concurrency or rate, of which workload.
    started : str
        ISO time in UTC.
    log : RequestLog
        Times from the start of the run, in order of intended send time. Token counts are -1 when unknown.
    details : RequestDetails
    chunks : Chunks
    trust : Trust
    server_metrics : mapping of str to float64 array, shape (num_samples,)
        The engine's own metrics page beside the run, ``time_s`` among them; empty when it has none.
    counted_s : tuple of (float, float) [s]
        Requests whose intended send lies in it, ends included, count; those of the warm-up are kept and do not.
    interrupted : bool
        Whether the run was stopped before its end; what was measured until then is kept.
    """

    name: str
    endpoint: Endpoint
    load_words: str
    started: str
    log: RequestLog
    details: RequestDetails
    chunks: Chunks
    trust: Trust
    server_metrics: Mapping[str, NDArray[np.float64]]
    counted_s: tuple[float, float] = (-math.inf, math.inf)
    interrupted: bool = False
