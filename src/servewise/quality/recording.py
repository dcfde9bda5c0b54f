"""What a base said, kept in a file: base and candidate need not be up at once, as on a GPU that holds one of them.

Requests are kept as digests and keys not at all, but answers hold more than the model's: a rendered chat template and
the tokens of a prompt are the prompt, so that a recording must be kept as the prompts are. All that a base is asked
depends on the prompts, the settings and how it can be compared: asked again, the recording answers as the server did,
the first time and the second.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from servewise.errors import InputError, MeasurementError
from servewise.net.plain import Answer, PlainClient
from servewise.store.files import write_bytes_atomic
from servewise.types import Endpoint

__all__ = ["RecordedClient", "RecordingClient"]

RECORDING_SCHEMA: Final = "servewise.quality-recording/1"
MAX_RECORDING_BYTES: Final = 4 << 30
ENCODING: Final = ("utf-8", "surrogateescape")
"""Keeps bytes that are no UTF-8."""


class RecordingClient(PlainClient):
    """A client that remembers what was said, see :class:`servewise.net.plain.PlainClient`."""

    def __init__(self, base_url: str, *, api_key: str | None, timeout_s: float, max_bytes: int) -> None:
        super().__init__(base_url, api_key=api_key, timeout_s=timeout_s, max_bytes=max_bytes)
        self._lock = threading.Lock()
        self._rows: list[str] = []

    def get(self, path: str) -> Answer:
        """Ask for a page."""
        return self._kept(path, None, super().get(path))

    def post(self, path: str, document: Mapping[str, Any], *, timeout_s: float | None = None) -> Answer:
        """Send a JSON document."""
        return self._kept(path, document, super().post(path, document, timeout_s=timeout_s))

    def _kept(self, path: str, document: Mapping[str, Any] | None, answer: Answer) -> Answer:
        body, server = answer.body.decode(*ENCODING), answer.headers.get("server", "")
        row = {"request": _digest(path, document), "status": answer.status, "server": server, "body": body}
        with self._lock:
            self._rows.append(json.dumps(row))
        return answer

    def write(self, path: Path, endpoint: Endpoint) -> None:
        """Write the recording of a server as a new file.

        Raises
        ------
        InputError
            When the file exists already or cannot be written.
        """
        head = json.dumps({"schema": RECORDING_SCHEMA, "base_url": endpoint.base_url, "model": endpoint.model})
        write_bytes_atomic(path, gzip.compress("\n".join([head, *self._rows]).encode("ascii"), mtime=0))


class RecordedClient(PlainClient):
    """Answers from a recording.

    Attributes
    ----------
    base_url, model : str
        Of the server that was recorded.

    Raises
    ------
    InputError
        When the file is no recording.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._said: dict[str, list[Answer]] = {}
        self._num_asked: dict[str, int] = {}
        wrong = f"{path} is no recording of servewise quality --record; give one, or the base's address"
        try:
            with gzip.open(path) as file:
                lines = file.read(MAX_RECORDING_BYTES).decode("ascii").split("\n")
            head, *rows = (json.loads(line) for line in lines)
            if head["schema"] != RECORDING_SCHEMA:
                raise InputError(wrong)
            self.base_url, self.model = str(head["base_url"]), str(head["model"])
            for row in rows:
                headers, body = {"server": row["server"]}, row["body"].encode(*ENCODING)
                answer = Answer(status=row["status"], headers=headers, body=body)
                self._said.setdefault(row["request"], []).append(answer)
        except (
            OSError,
            EOFError,
            zlib.error,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            raise InputError(wrong) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_ending: object) -> None:
        pass

    def get(self, path: str) -> Answer:
        """What the server said."""
        return self._answer(path, None)

    def post(self, path: str, document: Mapping[str, Any], *, timeout_s: float | None = None) -> Answer:  # noqa: ARG002
        """What the server said."""
        return self._answer(path, document)

    def _answer(self, path: str, document: Mapping[str, Any] | None) -> Answer:
        digest = _digest(path, document)
        with self._lock:
            said = self._said.get(digest)
            if said is None:
                raise MeasurementError(
                    f"the recording {self._path} does not hold this question to {path}; ask with the prompts,"
                    " --max-tokens, --top-logprobs, --positions, --seed and --raw that it was made with, and candidates"
                    " that are compared as it was: made with token ids, it serves none that is compared by texts alone,"
                    " which needs the base itself"
                )
            turn = self._num_asked.get(digest, 0)
            self._num_asked[digest] = turn + 1
        return said[min(turn, len(said) - 1)]


def _digest(path: str, document: Mapping[str, Any] | None) -> str:
    return hashlib.sha256(json.dumps([path, document], sort_keys=True).encode()).hexdigest()
