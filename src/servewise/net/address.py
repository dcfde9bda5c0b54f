"""Addresses of endpoints: what may stand in one, which are local, and where their key comes from."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import Final
from urllib.parse import urlsplit

from servewise.errors import InputError

__all__ = ["api_key", "base_url", "is_encrypted", "is_local", "path_of"]

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
        When the address has another scheme than http and https, no host, a user name or password, a query or a
        fragment, or characters that no address holds.
    """
    address = url if "://" in url else f"http://{url}"
    if re.search(r"[\x00-\x20\x7f\\]|[^\x00-\x7f]", address):
        raise InputError(f"{url!r} holds a character that no address does; give one such as http://localhost:8000")
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(f"{url!r} is no address ({error}); give one such as http://localhost:8000") from error
    if parts.username is not None or parts.password is not None:
        raise InputError(
            "the address holds a user name or a password, which would end up in logs; remove them, put the key into an"
            " environment variable and name that with --key-env"
        )
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(f"{url!r} is no http or https address; give one such as http://localhost:8000")
    if parts.query or parts.fragment:
        raise InputError(f"{url!r} holds a query or a fragment, which no API here needs; give the address before it")
    path = parts.path.rstrip("/")
    api = next((known for known in API_PATHS if path.endswith(known)), "")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}{'' if port is None else f':{port}'}{path.removesuffix(api)}"


def path_of(url: str) -> str:
    """The API's own part of an address, e.g. ``/v1/completions``; empty when there is none."""
    path = urlsplit(url if "://" in url else f"http://{url}").path.rstrip("/")
    return next((known for known in API_PATHS if path.endswith(known)), "")


def is_local(url: str) -> bool:
    """Whether the host is this machine: ``localhost`` or a loopback address."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def is_encrypted(url: str) -> bool:
    """Whether what is sent is encrypted on its way."""
    return urlsplit(url).scheme == "https"


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
