"""A scripted local server: every path has an answer, every request is kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Mapping[str, str], bytes]
Page = Mapping[str, Any] | list[Any] | str | Reply | Callable[[dict[str, Any]], Any]


@dataclass
class Script:
    """What the server answers, and what it was asked."""

    pages: dict[str, Page]
    url: str = ""
    asked: list[tuple[str, str, dict[str, str], dict[str, Any]]] = field(default_factory=list)

    def paths(self) -> list[str]:
        return [path for _, path, _, _ in self.asked]


@contextmanager
def serve(pages: Mapping[str, Page]) -> Iterator[Script]:
    """Serve pages by ``path``: a document, a text, (status, headers, body), or a function of the request's body."""
    script = Script(dict(pages))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: two wait for each other (Nagle)

        def do_GET(self) -> None:
            self._reply("GET", {})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            self._reply("POST", json.loads(body))

        def log_message(self, *args: object) -> None:
            pass

        def _reply(self, method: str, asked: dict[str, Any]) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            script.asked.append((method, self.path, headers, asked))
            page = script.pages.get(self.path, (404, {}, b'{"error": "not found"}'))
            if callable(page):
                page = page(asked)
            if not isinstance(page, tuple):
                page = (200, {}, page.encode() if isinstance(page, str) else json.dumps(page).encode())
            status, extra, body = page
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **extra}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
