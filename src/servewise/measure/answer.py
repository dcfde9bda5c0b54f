"""What an answer said: its tokens' times, its counts, how it ended. Answers are untrusted."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from servewise.errors import MeasurementError
from servewise.measure.framing import EventFraming, Framing, LineFraming, WholeFraming
from servewise.types import Endpoint

__all__ = ["Answer", "api_path", "error_message", "printable"]

MAX_ANSWER_BYTES = 512 << 20
MAX_MESSAGE_CHARS = 200

_PATHS = {
    "openai-chat": "/v1/chat/completions",
    "openai-completions": "/v1/completions",
    "ollama-chat": "/api/chat",
    "ollama-generate": "/api/generate",
    "tgi-generate": "/generate_stream",
}
_FAILED_REASONS = ("abort", "error")
"""Finish reasons of requests that the engine gave up."""


def api_path(endpoint: Endpoint) -> str:
    """Path that requests are posted to, after the base URL's own."""
    if endpoint.api == "tgi-generate" and not endpoint.stream:
        return "/generate"
    return _PATHS[endpoint.api]


class Answer:
    """One answer, read as it comes.

    Parameters
    ----------
    endpoint : Endpoint
    keeps_text : bool

    Attributes
    ----------
    times_ns : array of int [ns]
        When each chunk that carries tokens came.
    first_answer_ns : int [ns]
        First chunk of the answer itself, reasoning not counted; 0 when there was none.
    whole_ns : int [ns]
        When the answer came in one piece; 0 when it was streamed.
    input_tokens, output_tokens, cached_tokens : int
        As the server counts them; -1 when it does not say.
    finish_reason, error : str
        Empty when there was none.
    is_complete : bool
        The stream said that it is complete.
    text : str
        Of the answer itself, when it is kept.
    """

    __slots__ = (
        "_endpoint",
        "_ends_blank",
        "_framing",
        "_left_bytes",
        "_num_blank",
        "_take",
        "_texts",
        "cached_tokens",
        "error",
        "finish_reason",
        "first_answer_ns",
        "input_tokens",
        "is_complete",
        "output_tokens",
        "times_ns",
        "whole_ns",
    )

    def __init__(self, endpoint: Endpoint, *, keeps_text: bool) -> None:
        self._endpoint = endpoint
        self._framing: Framing | None = None
        self._take: _Take = _chat
        self._texts: list[str] | None = [] if keeps_text else None
        self._num_blank = 0
        self._ends_blank = False
        self._left_bytes = MAX_ANSWER_BYTES
        self.times_ns = array("q")
        self.first_answer_ns = 0
        self.whole_ns = 0
        self.input_tokens = self.output_tokens = self.cached_tokens = -1
        self.finish_reason = self.error = ""
        self.is_complete = False

    @property
    def text(self) -> str:
        return "".join(self._texts or ())

    def feed(self, at_ns: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Read the next part of the body; the answer's headers say what it is.

        Raises
        ------
        MeasurementError
            When the answer is too large to go on.
        """
        self._left_bytes -= len(body)
        if self._left_bytes < 0:
            raise MeasurementError(f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB")
        if self._framing is None:
            self._framing = self._begin(headers.get("content-type", ""))
        for at, document in self._framing.feed(at_ns, body):
            self._read(at, document)

    def _begin(self, content_type: str) -> Framing:
        """Choose how to read: a server may answer in one piece although a stream was asked for."""
        api = self._endpoint.api
        is_lines = api in ("ollama-chat", "ollama-generate")
        if self._endpoint.stream and (is_lines or not content_type.startswith("application/json")):
            self._take = _TAKE[api]
            return LineFraming() if is_lines else EventFraming()
        self._take = _TAKE_WHOLE[api]
        return WholeFraming()

    def close(self) -> None:
        """Read what the body's end completes.

        Chunks of empty text at either end are tokens only where the server's count of tokens says so: they may be
        tokens that show no text, or fillers.
        """
        if self._framing is None:
            return
        for at, document in self._framing.close():
            self._read(at, document)
        surplus = len(self.times_ns) - self.output_tokens
        if surplus > 0 and self._ends_blank and len(self.times_ns) > self._num_blank:
            self.times_ns.pop()
            surplus -= 1
        if surplus > 0:
            del self.times_ns[: self._num_blank]

    def _read(self, at_ns: int, document: bytes) -> None:
        try:
            parsed = orjson.loads(document)
        except orjson.JSONDecodeError:
            self._read_odd(at_ns, document.strip())
            return
        try:
            if parsed.get("error") or parsed.get("object") == "error":
                self.fail(_message(parsed))
            else:
                self._take(self, at_ns, parsed)
        except (AttributeError, IndexError, KeyError, TypeError):
            self.fail(f"the answer has an unexpected form: {printable(document)}")

    def _read_odd(self, at_ns: int, document: bytes) -> None:
        if document == b"[DONE]":
            self.is_complete = True
            return
        lines = document.split(b"\n")
        if len(lines) > 1:  # events that no empty line parts
            for line in lines:
                self._read(at_ns, line)
            return
        text = document.decode("utf-8", "replace")
        if "\ufffd" in text:
            try:
                orjson.loads(text)
            except orjson.JSONDecodeError:
                pass
            else:
                self._read(at_ns, text.encode())
                return
        if document:
            self.fail(f"a part of the answer is not JSON: {printable(document)}")

    def fail(self, error: str) -> None:
        """Take note of what went wrong; the first counts."""
        self.error = self.error or error

    def token(self, at_ns: int, text: object) -> None:
        """A chunk of the answer itself with tokens."""
        self.thought(at_ns)
        if not self.first_answer_ns:
            self.first_answer_ns = at_ns
        if self._texts is not None and isinstance(text, str):
            self._texts.append(text)

    def thought(self, at_ns: int) -> None:
        """A chunk of reasoning."""
        self.times_ns.append(at_ns)
        self._ends_blank = False

    def blank(self, at_ns: int) -> None:
        """A chunk of empty text."""
        self._ends_blank = True
        if self._num_blank == len(self.times_ns):
            self._num_blank += 1
        self.times_ns.append(at_ns)

    def whole(self, at_ns: int, text: object) -> None:
        """The answer in one piece."""
        self.whole_ns = at_ns
        self.is_complete = True
        if self._texts is not None and isinstance(text, str):
            self._texts.append(text)

    def finish(self, reason: object) -> None:
        """How the answer ended."""
        if isinstance(reason, dict):
            reason = reason.get("type")
        if isinstance(reason, str):
            self.finish_reason = printable(reason)[:40]
            if reason in _FAILED_REASONS:
                self.fail(f"the engine ended the request: {reason}")


def _chat(answer: Answer, at_ns: int, document: dict[str, Any]) -> None:
    for choice in document.get("choices") or ():
        delta = choice["delta"]
        content = delta.get("content")
        if content:
            answer.token(at_ns, content)
        elif delta.get("reasoning_content") or delta.get("reasoning"):
            answer.thought(at_ns)
        elif delta.get("tool_calls"):
            answer.token(at_ns, "")
        elif content == "" and "role" not in delta:
            answer.blank(at_ns)
        if choice.get("finish_reason"):
            answer.finish(choice["finish_reason"])
    if document.get("usage"):
        _usage(answer, document["usage"])


def _completions(answer: Answer, at_ns: int, document: dict[str, Any]) -> None:
    for choice in document.get("choices") or ():
        text = choice.get("text")
        if text:
            answer.token(at_ns, text)
        elif text == "":
            answer.blank(at_ns)
        if choice.get("finish_reason"):
            answer.finish(choice["finish_reason"])
    if document.get("usage"):
        _usage(answer, document["usage"])


def _ollama(answer: Answer, at_ns: int, document: dict[str, Any]) -> None:
    said = document.get("message", document)
    text = said.get("content") if "message" in document else said.get("response")
    done = document.get("done") is True
    if text:
        answer.token(at_ns, text)
    elif said.get("thinking"):
        answer.thought(at_ns)
    elif said.get("tool_calls"):
        answer.token(at_ns, "")
    elif text == "" and not done:
        answer.blank(at_ns)
    if done:
        _ollama_end(answer, document)


def _ollama_end(answer: Answer, document: dict[str, Any]) -> None:
    answer.is_complete = True
    answer.finish(document.get("done_reason"))
    answer.input_tokens = _count(document.get("prompt_eval_count"))
    answer.output_tokens = _count(document.get("eval_count"))


def _tgi(answer: Answer, at_ns: int, document: dict[str, Any]) -> None:
    token = document.get("token")
    if token:
        answer.token(at_ns, token.get("text"))
    if document.get("generated_text") is not None:
        answer.is_complete = True
        _tgi_end(answer, document)
        if answer.output_tokens < 0:
            answer.output_tokens = len(answer.times_ns)  # TGI sends one event a token


def _tgi_end(answer: Answer, document: dict[str, Any]) -> None:
    details = document.get("details") or {}
    answer.finish(details.get("finish_reason"))
    answer.output_tokens = _count(details.get("generated_tokens"))
    answer.input_tokens = _count(details.get("input_length"))
    if answer.input_tokens < 0 and details.get("prefill"):
        answer.input_tokens = len(details["prefill"])


def _usage(answer: Answer, usage: dict[str, Any]) -> None:
    """Counts so far. Servers that send them with every chunk may send zeros until the last."""
    input_tokens, output_tokens = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if input_tokens > 0:
        answer.input_tokens = input_tokens
    if output_tokens > 0 or (answer.output_tokens < 0 and answer.finish_reason):
        answer.output_tokens = output_tokens
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        answer.cached_tokens = max(answer.cached_tokens, _count(details.get("cached_tokens")))


def _whole_openai(answer: Answer, at_ns: int, document: dict[str, Any]) -> None:
    for choice in document["choices"]:
        said = choice.get("message", choice)
        answer.whole(at_ns, said.get("content", said.get("text")))
        answer.finish(choice.get("finish_reason"))
    if document.get("usage"):
        _usage(answer, document["usage"])


def _whole_ollama(answer: Answer, at_ns: int, document: dict[str, Any]) -> None:
    answer.whole(at_ns, document["message"].get("content") if "message" in document else document["response"])
    _ollama_end(answer, document)


def _whole_tgi(answer: Answer, at_ns: int, document: dict[str, Any]) -> None:
    answer.whole(at_ns, document["generated_text"])
    _tgi_end(answer, document)


_Take = Callable[[Answer, int, dict[str, Any]], None]
_TAKE: dict[str, _Take] = {
    "openai-chat": _chat,
    "openai-completions": _completions,
    "ollama-chat": _ollama,
    "ollama-generate": _ollama,
    "tgi-generate": _tgi,
}
_TAKE_WHOLE: dict[str, _Take] = {
    "openai-chat": _whole_openai,
    "openai-completions": _whole_openai,
    "ollama-chat": _whole_ollama,
    "ollama-generate": _whole_ollama,
    "tgi-generate": _whole_tgi,
}


def _count(value: object) -> int:
    """A count of tokens; -1 for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40 else -1


def error_message(body: bytes) -> str:
    """What an answer with an error status says, in one printable line."""
    try:
        return _message(orjson.loads(body))
    except (orjson.JSONDecodeError, AttributeError, TypeError):
        return printable(body)


def _message(document: Any) -> str:
    error = document.get("error") or document.get("message") or document.get("detail") or document
    if isinstance(error, dict):
        error = error.get("message") or error
    return printable(str(error))


def printable(text: str | bytes) -> str:
    """A server's words in one line without control characters, cut to a readable length."""
    words = text[: 4 * MAX_MESSAGE_CHARS]
    words = words.decode("utf-8", "replace") if isinstance(words, bytes) else words
    return "".join(c if c.isprintable() else "?" for c in " ".join(words.split()))[:MAX_MESSAGE_CHARS]
