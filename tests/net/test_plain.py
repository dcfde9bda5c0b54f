"""Ordinary requests: addresses, keys, limits."""

from __future__ import annotations

import pytest
from tests.measure.server import serve

from servewise.errors import InputError, MeasurementError
from servewise.net.address import api_key, base_url, path_of
from servewise.net.plain import PlainClient
from servewise.net.server import is_local, parse_server


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://localhost:8000", "http://localhost:8000"),
        ("localhost:8000/", "http://localhost:8000"),
        ("http://localhost:8000/v1", "http://localhost:8000"),
        ("https://Host.example/team/v1/chat/completions", "https://host.example/team"),
        ("http://[::1]:8080/api/chat", "http://[::1]:8080"),
    ],
)
def test_addresses_are_cut_before_the_api(given: str, base: str) -> None:
    assert base_url(given) == base


@pytest.mark.parametrize(
    "given",
    ["ftp://host", "http://", "http://u:secret@host", "http://host/?k=v", "http://host\r\nX: y", "http://h:99999"],
)
def test_other_addresses_are_refused_without_showing_passwords(given: str) -> None:
    with pytest.raises(InputError) as caught:
        base_url(given)
    assert "secret" not in str(caught.value)


def test_the_api_of_a_pasted_address() -> None:
    assert path_of("http://host/v1/completions/") == "/v1/completions"
    assert path_of("http://host") == ""


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://localhost", True),
        ("http://127.0.0.9:1", True),
        ("http://[::1]", True),
        ("http://10.0.0.1", False),
        ("http://localhost.example.com", False),
        ("http://0.0.0.0", False),
    ],
)
def test_only_this_machine_is_local(url: str, local: bool) -> None:
    assert is_local(parse_server(url)) is local


def test_keys_come_from_the_environment_and_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert api_key(None) is None
    monkeypatch.setenv("SOME_KEY", "sk-1\n")
    assert api_key("SOME_KEY") == "sk-1"
    monkeypatch.setenv("SOME_KEY", "sk-1\r\nx: y")
    with pytest.raises(InputError) as caught:
        api_key("SOME_KEY")
    assert "sk-1" not in str(caught.value)
    monkeypatch.delenv("SOME_KEY")
    with pytest.raises(InputError, match="not set"):
        api_key("SOME_KEY")


def test_the_key_goes_to_the_server_and_no_further() -> None:
    with serve({"/there": "there"}) as other:
        pages = {"/a": {"x": 1}, "/moved": (302, {"location": f"{other.url}/there"}, b"")}
        with serve(pages) as script, PlainClient(script.url, api_key="sk-1") as asked:
            assert asked.get("/a").fields() == {"x": 1}
            assert script.asked[0][2]["authorization"] == "Bearer sk-1"
            with pytest.raises(MeasurementError, match="redirects to"):
                asked.get("/moved")
        assert other.asked == []


def test_answers_are_bounded() -> None:
    with (
        serve({"/big": "x" * 2000}) as script,
        PlainClient(script.url, max_bytes=1000) as asked,
        pytest.raises(MeasurementError, match="sent more than"),
    ):
        asked.get("/big")


def test_what_is_no_object_has_no_fields() -> None:
    with (
        serve({"/list": [1], "/text": "{", "/bad": (500, {}, b'{"x": 1}')}) as script,
        PlainClient(script.url) as asked,
    ):
        assert [asked.get(path).fields() for path in ("/list", "/text", "/bad")] == [{}, {}, {}]


def test_an_unreachable_server_is_a_measurement_error() -> None:
    with serve({}) as script:
        url = script.url
    with PlainClient(url, timeout_s=2.0) as asked, pytest.raises(MeasurementError, match="cannot be reached"):
        asked.get("/")
