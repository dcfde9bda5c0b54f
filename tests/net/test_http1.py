"""The answer side of HTTP/1.1."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.net.scripted import chunk, with_length

from servewise.errors import MeasurementError
from servewise.net import HttpAnswer, request_head
from servewise.net.http1 import MAX_HEAD_BYTES


def read(*parts: bytes) -> tuple[HttpAnswer, bytes]:
    answer = HttpAnswer()
    return answer, b"".join([answer.feed(part) for part in parts])


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE = [
    (with_length(b"hello"), b"hello", True),
    (with_length(b""), b"", True),
    (with_length(b"hello", headers="Connection: close\r\n"), b"hello", False),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi", False),
    (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    (b"HTTP/1.1 100 Continue\r\n\r\n" + with_length(b"hi"), b"hi", True),
    (CHUNKED + chunk(b"a\r\nb") + chunk(b"0\r\n\r\n") + b"0\r\n\r\n", b"a\r\nb0\r\n\r\n", True),
    (CHUNKED + b"5;name=value\r\nhello\r\n0\r\nTrailer: x\r\n\r\n", b"hello", True),
    (CHUNKED + b"00005\r\nhello\r\n0\r\n\r\n", b"hello", True),
]


@pytest.mark.parametrize(("sent", "body", "keeps_alive"), WHOLE)
def test_whole_answers_in_any_two_pieces(sent: bytes, body: bytes, keeps_alive: bool) -> None:
    for at in range(len(sent)):
        answer, got = read(sent[:at], sent[at:])
        assert (answer.done, got, answer.keeps_alive) == (True, body, keeps_alive)


@given(st.lists(st.binary(min_size=1, max_size=200), max_size=6), st.data())
@settings(deadline=None)
def test_chunks_of_any_bytes_in_any_pieces(bodies: list[bytes], data: st.DataObject) -> None:
    sent = CHUNKED + b"".join(chunk(body) for body in bodies) + b"0\r\n\r\n"
    cuts = sorted(data.draw(st.sets(st.integers(1, len(sent) - 1), max_size=30)))
    answer, got = read(*(sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)))
    assert answer.done
    assert got == b"".join(bodies)


def test_headers_are_known_by_lower_case_names() -> None:
    answer, _ = read(b"HTTP/1.1 429 Too Many\r\nRETRY-After:  7 \r\ncontent-length: 0\r\n\r\n")
    assert answer.status == 429
    assert answer.headers["retry-after"] == "7"


def test_a_body_that_ends_with_the_connection() -> None:
    answer, body = read(b"HTTP/1.1 200 OK\r\n\r\nab", b"cd")
    assert body == b"abcd"
    assert not answer.done
    assert answer.close()
    assert not answer.keeps_alive


@pytest.mark.parametrize(
    "sent", [with_length(b"hello")[:-1], CHUNKED + chunk(b"hello"), CHUNKED + b"5\r\nhel", b"HTTP/1.1"]
)
def test_a_cut_is_noticed(sent: bytes) -> None:
    answer, _ = read(sent)
    assert not answer.done
    assert not answer.close()


def test_bytes_after_the_answer_end_the_connection() -> None:
    answer, body = read(with_length(b"hi") + b"more")
    assert answer.done
    assert body == b"hi"
    assert not answer.keeps_alive


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not answer in HTTP/1"),
        (b"HTTP/2 200 OK\r\n\r\n", "does not answer in HTTP/1"),
        (b"HTTP/1.1 abc OK\r\n\r\n", "does not answer in HTTP/1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999\r\n\r\n", "Content-Length"),
        (CHUNKED + b"-5\r\nhello\r\n", "size of a chunk"),
        (CHUNKED + b"0x5\r\nhello\r\n", "size of a chunk"),
        (CHUNKED + b"fffffffffffff\r\n", "size of a chunk"),
        (CHUNKED + b"2\r\nhello\r\n", "longer than it says"),
        (CHUNKED + b"2" * 5000, "chunked framing is longer"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000, "headers are longer"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 20, "informational"),
    ],
)
def test_what_is_no_http_is_refused(sent: bytes, words: str) -> None:
    with pytest.raises(MeasurementError, match=words):
        read(sent)


def test_a_head_that_comes_byte_by_byte_is_bounded() -> None:
    parts = [b"x: yyyy"] * MAX_HEAD_BYTES
    with pytest.raises(MeasurementError, match="headers are longer"):
        read(b"HTTP/1.1 200 OK\r\n", *parts)


@given(st.lists(st.binary(max_size=60), max_size=6))
@settings(deadline=None)
def test_no_bytes_break_it(parts: list[bytes]) -> None:
    with suppress(MeasurementError):
        answer, _ = read(*parts)
        assert answer.status < 1000


def test_request_heads() -> None:
    assert (
        request_head("POST", "/v1", "h:1", {"A": "b"}) == b"POST /v1 HTTP/1.1\r\nHost: h:1\r\nA: b\r\nContent-Length: "
    )


@pytest.mark.parametrize("headers", [{"Authorization": "Bearer x\r\nEvil: 1"}, {"Authorization": "Bearer \u4e00"}])
def test_a_header_cannot_smuggle_another(headers: dict[str, str]) -> None:
    with pytest.raises(MeasurementError, match="headers"):
        request_head("POST", "/v1", "h", headers)
