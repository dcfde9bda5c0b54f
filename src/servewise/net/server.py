"""Where a server is: its URL taken apart, its addresses found."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urlsplit

from servewise.errors import InputError, MeasurementError

__all__ = ["Server", "addresses", "is_local", "parse_server"]

PORTS = {"http": 80, "https": 443}
_PATH_SAFE = "/:@!$&'()*+,;=-._~%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One origin and the path before the API's own.

    Parameters
    ----------
    tls : bool
    host : str
        Name or address, without brackets.
    port : int
    path : str
        Without a slash at its end.
    """

    tls: bool
    host: str
    port: int
    path: str

    @property
    def host_header(self) -> str:
        """What HTTP calls it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS["https" if self.tls else "http"] else f"{host}:{self.port}"


def parse_server(url: str) -> Server:
    """Take a base URL apart.

    Raises
    ------
    InputError
        When it is no http or https URL, or holds a user name, a password, a query or a fragment.
    """
    wanted = "write it like http://localhost:8000"
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port
        host = parts.hostname or ""
        if ":" not in host:
            host = host.encode("idna").decode("ascii")
    except (ValueError, UnicodeError) as error:
        raise InputError(f"{_without_secrets(url)} is not a URL ({error}); {wanted}") from None
    if parts.scheme not in PORTS or not host:
        raise InputError(f"{_without_secrets(url)} is not an http or https URL; {wanted}")
    if "@" in parts.netloc:
        raise InputError("the URL holds a user name or password; give the key in the environment instead")
    if parts.query or parts.fragment:
        raise InputError(f"{_without_secrets(url)} holds a query or fragment; give the base URL only: {wanted}")
    path = quote(parts.path.rstrip("/"), safe=_PATH_SAFE)
    return Server(tls=parts.scheme == "https", host=host, port=port or PORTS[parts.scheme], path=path)


def _without_secrets(url: str) -> str:
    return repr(url.rsplit("@", 1)[-1].split("?", 1)[0][:200])


def addresses(server: Server) -> list[tuple[int, tuple[str, int]]]:
    """Address family and socket address of each way to reach the server, best first.

    Raises
    ------
    MeasurementError
        When the name is not known.
    """
    try:
        found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise MeasurementError(f"the host {server.host!r} cannot be found ({error}); check its name") from None
    return [(int(family), (str(address[0]), int(address[1]))) for family, _, _, _, address in found]


def is_local(server: Server) -> bool:
    """Whether the server is on this machine, as far as its name says."""
    if server.host == "localhost" or server.host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(server.host).is_loopback
    except ValueError:
        return False
