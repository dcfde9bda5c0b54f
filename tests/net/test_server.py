"""Base URLs taken apart."""

from __future__ import annotations

import pytest

from servewise.errors import InputError, MeasurementError
from servewise.net import Server, addresses, is_local, parse_server


@pytest.mark.parametrize(
    ("url", "server", "host_header"),
    [
        ("http://localhost:8000", Server(tls=False, host="localhost", port=8000, path=""), "localhost:8000"),
        ("https://api.example.com/", Server(tls=True, host="api.example.com", port=443, path=""), "api.example.com"),
        ("http://h/a b/", Server(tls=False, host="h", port=80, path="/a%20b"), "h"),
        ("http://[::1]:8000/x", Server(tls=False, host="::1", port=8000, path="/x"), "[::1]:8000"),
        (
            "http://bücher.example",
            Server(tls=False, host="xn--bcher-kva.example", port=80, path=""),
            "xn--bcher-kva.example",
        ),
    ],
)
def test_urls(url: str, server: Server, host_header: str) -> None:
    assert parse_server(url) == server
    assert parse_server(url).host_header == host_header


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://h",
        "http://",
        "http://h:99999",
        "http://h:x",
        "http://[::1",
        "http://h?key=s",
        "http://h#f",
        "",
    ],
)
def test_what_is_no_base_url_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(InputError, match="write it like") as caught:
        parse_server(url)
    assert "key=s" not in str(caught.value)


def test_a_url_with_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(InputError) as caught:
        parse_server("http://me:secret@h:8000")
    assert "secret" not in str(caught.value)


def test_local_servers() -> None:
    for url in ("http://localhost:1", "http://127.0.0.1", "http://[::1]:1", "http://127.8.0.1"):
        assert is_local(parse_server(url)), url
    for url in ("http://localhost.example.com", "http://10.0.0.1", "https://api.example.com"):
        assert not is_local(parse_server(url)), url


def test_unknown_hosts() -> None:
    with pytest.raises(MeasurementError, match="cannot be found"):
        addresses(parse_server("http://no-such-host.invalid"))
