"""Addresses as people paste them, and where the key of an endpoint comes from."""

from __future__ import annotations

import os
import re
from typing import Final

from servewise.errors import InputError
from servewise.net.server import parse_server

__all__ = ["api_key", "base_url", "path_of"]

API_PATHS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/v1",
    "/api/chat",
    "/api/generate",
    "/api",
    "/generate_stream",
    "/generate",
)
"""What people paste behind the part of an address that all of a server's APIs share."""

_KEY: Final = re.compile(r"[\x21-\x7e]{1,4096}")


def base_url(url: str) -> str:
    """Scheme, host, port and path before the API's own, e.g. ``http://localhost:8000``.

    Raises
    ------
    InputError
        When it is no address of a server; see :func:`servewise.net.server.parse_server`.
    """
    if re.search(r"[\x00-\x20\x7f\\]", url):
        raise InputError(f"{url!r} holds a character that no URL does; write it like http://localhost:8000")
    address = (url if "://" in url else f"http://{url}").rstrip("/")
    server = parse_server(address.removesuffix(path_of(address)))
    return f"{'https' if server.tls else 'http'}://{server.host_header}{server.path}"


def path_of(url: str) -> str:
    """The API's own part of an address, e.g. ``/v1/completions``; empty when there is none."""
    return next((known for known in API_PATHS if url.rstrip("/").endswith(known)), "")


def api_key(variable: str | None) -> str | None:
    """The key that an environment variable holds; None when no variable is named.

    Raises
    ------
    InputError
        When the variable is not set, or its value cannot be a key. The value is never shown.
    """
    if variable is None:
        return None
    value = os.environ.get(variable, "").strip()
    if not value:
        raise InputError(f"the environment variable {variable!r} is not set; set it to the endpoint's key")
    if not _KEY.fullmatch(value):
        raise InputError(f"the environment variable {variable!r} holds characters that no key has; set it again")
    return value
