"""What is read from an answer, in whatever pieces it comes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.measure.streams import DONE, STREAMS, A, B, Stream
from tests.net.scripted import chunk

from servewise.errors import MeasurementError
from servewise.measure import answer as answer_module
from servewise.measure import framing
from servewise.measure.answer import Answer, error_message
from servewise.net import HttpAnswer
from servewise.types import Api, Endpoint


def endpoint(api: Api = "openai-chat", *, stream: bool = True) -> Endpoint:
    return Endpoint(base_url="http://localhost", api=api, model="m", stream=stream)


def read(stream: Stream, packets: list[bytes]) -> Answer:
    """Read packets that come at 1, 2, ... ns."""
    answer = Answer(endpoint(stream.api, stream=stream.stream), keeps_text=True)
    for at_ns, packet in enumerate(packets, start=1):
        answer.feed(at_ns, packet, {"content-type": stream.content_type})
    answer.close()
    return answer


def said(answer: Answer) -> dict[str, object]:
    """Everything but times."""
    return {
        "chunks": len(answer.times_ns),
        "text": answer.text,
        "input_tokens": answer.input_tokens,
        "output_tokens": answer.output_tokens,
        "cached_tokens": answer.cached_tokens,
        "finish_reason": answer.finish_reason,
        "is_complete": answer.is_complete,
        "has_answer": answer.first_answer_ns > 0,
        "error": answer.error,
    }


@pytest.mark.parametrize("stream", STREAMS, ids=lambda s: s.name)
def test_stream_cases(stream: Stream) -> None:
    answer = read(stream, list(stream.packets))
    assert list(answer.times_ns) == [number + 1 for number in stream.chunks]
    assert answer.text == stream.text
    assert answer.input_tokens == stream.input_tokens
    assert answer.output_tokens == stream.output_tokens
    assert answer.cached_tokens == stream.cached_tokens
    assert answer.finish_reason == stream.finish_reason
    assert answer.is_complete == stream.is_complete
    assert (stream.error in answer.error) if stream.error else answer.error == ""
    if stream.chunks and (stream.text or stream.first_answer is not None):
        first = stream.chunks[0] if stream.first_answer is None else stream.first_answer
        assert answer.first_answer_ns == first + 1
    assert (answer.whole_ns > 0) == (not stream.chunks and bool(stream.text))


@pytest.mark.parametrize("stream", STREAMS, ids=lambda s: s.name)
def test_a_split_at_any_byte_changes_nothing(stream: Stream) -> None:
    body = b"".join(stream.packets)
    whole = said(read(stream, list(stream.packets)))
    places = range(1, len(body)) if len(body) < 5_000 else range(1, len(body), 997)
    for at in places:
        assert said(read(stream, [body[:at], body[at:]])) == whole, at


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_pieces_of_http_and_body_say_the_same(data: st.DataObject) -> None:
    stream = data.draw(st.sampled_from([s for s in STREAMS if len(b"".join(s.packets)) < 5_000]))
    sent = b"HTTP/1.1 200 OK\r\nContent-Type: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    sent += b"".join(chunk(packet) for packet in stream.packets) + b"0\r\n\r\n"
    cuts = sorted(data.draw(st.sets(st.integers(1, len(sent) - 1), max_size=40)))
    http = HttpAnswer()
    bodies = [http.feed(sent[a:b]) for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert http.done
    assert http.keeps_alive
    assert b"".join(bodies) == b"".join(stream.packets)
    assert said(read(stream, [body for body in bodies if body])) == said(read(stream, list(stream.packets)))


def test_byte_by_byte() -> None:
    for stream in STREAMS:
        body = b"".join(stream.packets)
        if len(body) < 5_000:
            assert said(read(stream, [body[i : i + 1] for i in range(len(body))])) == said(read(stream, [body]))


def test_an_event_is_timed_by_its_data_not_by_the_empty_line_after_it() -> None:
    answer = read(STREAMS[0], [A[:-1], A[-1:], B, DONE])
    assert list(answer.times_ns) == [1, 3]


@pytest.mark.parametrize(
    ("name", "api", "text", "chunks", "output_tokens", "finish"),
    [
        ("vllm", "openai-chat", "The capital of France is Paris.", 8, 8, "stop"),
        ("vllm-continuous-usage", "openai-chat", None, 8, 8, "length"),
        ("vllm-completions", "openai-completions", None, 8, 8, "length"),
        ("sglang", "openai-chat", "The capital of France is Paris.", 7, 8, "stop"),
        ("sglang-completions", "openai-completions", None, 8, 8, "length"),
        ("llamacpp", "openai-chat", None, 16, 16, "length"),
        ("transformers", "openai-chat", "The capital of France is Paris.", 7, 8, "stop"),
    ],
)
@pytest.mark.shared
def test_captured_answers(
    shared_dir: Path, name: str, api: Api, text: str | None, chunks: int, output_tokens: int, finish: str
) -> None:
    body = (shared_dir / "captures" / f"{name}.sse").read_bytes()
    for size in (len(body), 1000, 61, 1):
        answer = Answer(endpoint(api), keeps_text=True)
        for at in range(0, len(body), size):
            answer.feed(at + 1, body[at : at + size], {"content-type": "text/event-stream"})
        answer.close()
        assert answer.error == ""
        assert len(answer.times_ns) == chunks
        assert answer.output_tokens == output_tokens
        assert answer.input_tokens > 0
        assert answer.finish_reason == finish
        if text is not None:
            assert answer.text == text


@given(st.lists(st.binary(max_size=300), max_size=8), st.sampled_from(["openai-chat", "ollama-chat", "tgi-generate"]))
@settings(max_examples=200, deadline=None)
def test_no_bytes_break_the_reader(packets: list[bytes], api: Api) -> None:
    answer = Answer(endpoint(api), keeps_text=True)
    for at_ns, packet in enumerate(packets, start=1):
        answer.feed(at_ns, packet, {})
    answer.close()
    assert len(answer.error) < 300
    assert answer.error.isprintable()


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "delta", "content", "usage", "message", "token", "details", "error", "done"]),
            inner,
        )
    ),
    max_leaves=12,
)


@given(_json, st.sampled_from(["openai-chat", "openai-completions", "ollama-generate", "tgi-generate"]), st.booleans())
@settings(max_examples=300, deadline=None)
def test_no_json_breaks_the_reader(document: object, api: Api, stream: bool) -> None:
    import json

    answer = Answer(endpoint(api, stream=stream), keeps_text=True)
    text = json.dumps(document).encode()
    answer.feed(1, text if "ollama" in api or not stream else b"data: " + text + b"\n\n", {})
    answer.close()
    assert answer.output_tokens >= -1


def check_given_up(packets: list[bytes]) -> None:
    with pytest.raises(MeasurementError, match="longer than 1 MiB"):
        read(STREAMS[0], packets)


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_DOCUMENT_BYTES", 1 << 20)
    check_given_up([b"data: " + b"x" * 65_536] * 40)
    monkeypatch.setattr(answer_module, "MAX_ANSWER_BYTES", 1 << 20)
    check_given_up([A] * 40_000)


def test_texts_are_kept_only_when_they_are_needed() -> None:
    answer = Answer(endpoint(), keeps_text=False)
    answer.feed(1, A, {})
    assert answer.text == ""
    assert list(answer.times_ns) == [1]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"too long","code":400}}', "too long"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"error":"busy\\u001b[31m"}', "busy?[31m"),
        (b"<html>Bad Gateway</html>", "<html>Bad Gateway</html>"),
        (b"", ""),
    ],
)
def test_error_messages(body: bytes, words: str) -> None:
    assert error_message(body) == words
