"""A scripted engine with known delays, loads for it, and what it says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tests.net.scripted import SSE_HEAD, Scripted, Wire, chunk

from servewise.types import Api, Endpoint, Load

TTFT_S, ITL_S, NUM_TOKENS = 0.06, 0.01, 5


def event(text: str) -> bytes:
    return chunk(b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % text.encode())


END = (
    chunk(b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n')
    + chunk(b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":%d}}\n\n' % NUM_TOKENS)
    + chunk(b"data: [DONE]\n\n")
    + b"0\r\n\r\n"
)


def stream(wire: Wire) -> None:
    """Answer as an engine does: the first token after TTFT_S, then one every ITL_S."""
    wire.send(SSE_HEAD)
    wire.wait(TTFT_S)
    for i in range(NUM_TOKENS):
        if i:
            wire.wait(ITL_S)
        wire.send(event(f"{wire.number}.{i} "))
    wire.send(END)


@dataclass
class PlainPrompts:
    """Each request says its number, and the earlier answers that it repeats."""

    repeats: Mapping[int, Sequence[int]]

    def body(self, request: int, answers: Mapping[int, str]) -> bytes:
        return json.dumps(
            {"request": request, "repeats": [answers.get(i) for i in self.repeats.get(request, ())]}
        ).encode()

    def keeps_answer(self, request: int) -> bool:
        return any(request in earlier for earlier in self.repeats.values())

    def intended_input_tokens(self, request: int) -> int:
        return 10 + request


PROMPTS = PlainPrompts({})


def endpoint(server: Scripted, api: Api = "openai-chat", *, streamed: bool = True) -> Endpoint:
    return Endpoint(base_url=server.url, api=api, model="m", stream=streamed)


def make_load(
    send_s: Sequence[float],
    *,
    after: Sequence[int] | None = None,
    think_s: float = 0.0,
    concurrency: int | None = None,
    duration_s: float | None = None,
    timeout_s: float = 20.0,
) -> Load:
    num = len(send_s)
    return Load(
        send_s=np.array(send_s, dtype=np.float64),
        after=np.array(after if after is not None else [-1] * num, dtype=np.int64),
        think_s=np.full(num, think_s),
        concurrency=concurrency,
        duration_s=duration_s,
        timeout_s=timeout_s,
    )


def requests_of(server: Scripted) -> list[int]:
    """Numbers of the load's requests, in the order in which the server read them."""
    return [int(json.loads(body)["request"]) for body in server.bodies]
