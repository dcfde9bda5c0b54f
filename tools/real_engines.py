"""Send a burst of requests to a real serving engine, and see what it did.

Used by ``compare_with_engines.py``. Requests are prompts of token numbers, so their lengths are exact, and run to their
limit. A request's first token is timed when the first chunk of its stream arrives.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.engines import HOST, MODEL_NAME

REQUEST_TIMEOUT_S = 300.0
FIRST_TOKEN_ID = 1000
VOCABULARY = 40_000
"""Prompts are made of tokens from FIRST_TOKEN_ID on, so that none is a special one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request of a burst: its lengths [tokens] and its priority."""

    input_tokens: int
    output_tokens: int
    priority: int = 0


@dataclass(slots=True, kw_only=True)
class Answer:
    """When a request was sent and when its chunks came [s], on one clock, and its tokens by the engine's own count."""

    sent_s: float
    output_tokens: int
    chunk_s: list[float]

    @property
    def first_s(self) -> float:
        """When its first token came [s]."""
        return self.chunk_s[0]

    @property
    def last_s(self) -> float:
        """When its last token came [s]."""
        return self.chunk_s[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A burst as it was served: the answers, and the change of every figure of the metrics page."""

    answers: tuple[Answer, ...]
    counters: dict[str, float]


def scrape(port: int) -> dict[str, float]:
    """The metrics page: values summed over labels, by name."""
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    values: dict[str, float] = {}
    for line in text.splitlines():
        found = re.match(r"([\w:]+)(?:\{.*\})? ([-+.\deE]+)$", line)
        if found and not found[1].endswith("_bucket"):
            values[found[1]] = values.get(found[1], 0.0) + float(found[2])
    return values


def _body(number: int, burst: int, request: Sent, ignore_eos: bool) -> bytes:
    """A prompt that shares no block with that of any other request."""
    start = (burst * 997 + number * 131) % VOCABULARY
    prompt = [FIRST_TOKEN_ID + (start + 7 * i * (number + 1)) % VOCABULARY for i in range(request.input_tokens)]
    body: dict[str, object] = {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": request.output_tokens,
        "temperature": 0.0,
        "ignore_eos": ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.priority:
        body["priority"] = request.priority
    return json.dumps(body).encode()


def _ask(port: int, body: bytes, answer: Answer) -> None:
    """Send one request and read its stream; the first event with a choice is the first token."""
    connection = http.client.HTTPConnection(HOST, port, timeout=REQUEST_TIMEOUT_S)
    answer.sent_s = time.perf_counter()
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"the server answered {response.status}: {response.read()[:300]!r}")
    for line in response:
        now_s = time.perf_counter()
        if not line.startswith(b"data:") or b"[DONE]" in line:
            continue
        event = json.loads(line[5:])
        if event.get("choices"):
            answer.chunk_s.append(now_s)
        if event.get("usage"):
            answer.output_tokens = event["usage"]["completion_tokens"]
    connection.close()


def send_burst(
    port: int, burst: int, requests: Sequence[Sent], *, head_start: bool, ignore_eos: bool, gap_s: float
) -> Observed:
    """Send a burst to an idle server, a request every ``gap_s``, and wait for all answers.

    With ``head_start`` the second request waits for the first one's first token.
    """
    before = scrape(port)
    answers = tuple(Answer(sent_s=0.0, output_tokens=0, chunk_s=[]) for _ in requests)
    bodies = [_body(number, burst, request, ignore_eos) for number, request in enumerate(requests)]
    threads = [
        threading.Thread(target=_ask, args=(port, body, answer)) for body, answer in zip(bodies, answers, strict=True)
    ]
    for i, thread in enumerate(threads):
        thread.start()
        while i == 0 and head_start and thread.is_alive() and not answers[0].chunk_s:
            time.sleep(0.001)
        time.sleep(gap_s)
    for thread in threads:
        thread.join()
    after = scrape(port)
    return Observed(answers=answers, counters={name: value - before.get(name, 0.0) for name, value in after.items()})
