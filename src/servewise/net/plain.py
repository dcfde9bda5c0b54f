"""Ordinary requests: bounded in time and size, without redirects, proxies or stored credentials."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import httpx

from servewise.errors import MeasurementError

__all__ = ["Answer", "PlainClient"]

MAX_BYTES: Final = 8 << 20
"""Largest answer that is read [bytes]: a metrics page of a large server has some hundred KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server said.

    Parameters
    ----------
    status : int
    headers : mapping of str to str
        Names in lower case.
    body : bytes
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON; None when it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def fields(self) -> Mapping[str, Any]:
        """The body as a JSON object; empty when it is none, or the answer was an error."""
        document = self.json() if self.status == httpx.codes.OK else None
        return document if isinstance(document, dict) else {}


class PlainClient:
    """A connection to one server for everything but the measured requests.

    Parameters
    ----------
    base_url : str
        See :func:`servewise.net.address.base_url`.
    api_key : str or None
        Sent as a bearer token to this server alone.
    timeout_s : float [s]
        For a whole answer.
    max_bytes : int [bytes]
        Longer answers are refused.
    """

    def __init__(
        self, base_url: str, *, api_key: str | None = None, timeout_s: float = 10.0, max_bytes: int = MAX_BYTES
    ) -> None:
        # compressed answers could grow a thousandfold before their size is seen
        headers = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "servewise"}
        if api_key is not None:
            headers["authorization"] = f"Bearer {api_key}"
        self._base_url = base_url
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        # trust_env would take proxies and passwords (.netrc) from the environment
        self._http = httpx.Client(headers=headers, timeout=timeout_s, follow_redirects=False, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str) -> Answer:
        """Ask for a page.

        Raises
        ------
        MeasurementError
            When the server cannot be reached, is too slow, sends too much or elsewhere.
        """
        return self._ask("GET", path, None)

    def post(self, path: str, document: Mapping[str, Any], *, timeout_s: float | None = None) -> Answer:
        """Send a JSON document; raises as :meth:`get` does."""
        return self._ask("POST", path, document, timeout_s)

    def _ask(
        self, method: str, path: str, document: Mapping[str, Any] | None, timeout_s: float | None = None
    ) -> Answer:
        url, limit_s = f"{self._base_url}{path}", timeout_s or self._timeout_s
        until_s = time.monotonic() + limit_s
        body = bytearray()
        try:
            with self._http.stream(method, url, json=document, timeout=limit_s) as response:
                for part in response.iter_bytes():
                    body += part
                    if len(body) > self._max_bytes:
                        raise MeasurementError(
                            f"{url} sent more than {self._max_bytes >> 20} MiB; is it the right address?"
                        )
                    if time.monotonic() > until_s:
                        raise MeasurementError(f"{url} did not answer within {limit_s:g} s")
        except httpx.TimeoutException as error:
            raise MeasurementError(f"{url} did not answer within {limit_s:g} s; is the server ready?") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise MeasurementError(f"{url} cannot be reached: {error}; is the server running?") from error
        if response.is_redirect:
            raise MeasurementError(
                f"{url} redirects to {response.headers.get('location', '?')!r}; keys are not sent on: give that address"
            )
        return Answer(status=response.status_code, headers=dict(response.headers), body=bytes(body))
