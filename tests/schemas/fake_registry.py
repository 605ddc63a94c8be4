"""A schema registry on a thread: Confluent's REST form, and everything that may go wrong with it."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import urlsplit

from pyspark_rocketmq.schemas.registry import SchemaRegistry
from tests.helpers.wait import PATIENCE_S

Reaction = Callable[["_Handler"], bool]
"""Answers a request in another way; returns whether it did."""


class FakeRegistry:
    """Use it as a context manager; ``stop`` and ``start`` make it go away and come back at its address."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.schemas: dict[str, dict[str, Any]] = {}
        """Answers by the last parts of their paths, such as ``ids/7``; queries are ignored."""
        self.requests: list[str] = []
        """Paths that were asked for, with their queries."""
        self.authorizations: list[str | None] = []
        self.reaction: Reaction | None = None
        self._tls = tls
        self._server: ThreadingHTTPServer | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """The base URL."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}"

    def client(self, **settings: Any) -> SchemaRegistry:
        """A registry for this server that waits as long as a loaded machine needs."""
        patient = {"wait_s": PATIENCE_S, "request_timeout_s": PATIENCE_S, "not_found_s": 0.0}
        return SchemaRegistry(self.url, **patient | settings)

    def add(self, schema_id: int, schema: object, **more: Any) -> None:
        """Register a schema; ``schema`` is made JSON unless it is text."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.schemas[f"ids/{schema_id}"] = {"schema": text, **more}

    def start(self) -> Self:
        """Listen, at the same port as before."""
        server = _Server(("127.0.0.1", self._port), _Handler)
        server.registry = self
        if self._tls is not None:
            server.socket = self._tls.wrap_socket(server.socket, server_side=True)
        self._port = server.server_address[1]
        self._server = server
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Refuse connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    __enter__ = start

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Server(ThreadingHTTPServer):
    registry: FakeRegistry
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent: clients go away in these tests."""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        registry = cast("_Server", self.server).registry
        registry.requests.append(self.path)
        registry.authorizations.append(self.headers.get("Authorization"))
        if registry.reaction is not None and registry.reaction(self):
            return
        path = urlsplit(self.path).path
        found = next((value for end, value in registry.schemas.items() if path.endswith("/" + end)), None)
        if found is None:
            self.answer(404, {"error_code": 40403, "message": "Schema not found"})
        else:
            self.answer(200, found)

    def answer(self, status: int, value: object) -> None:
        """Send an answer; bytes as they are, anything else as JSON."""
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Log nothing."""


def answers(status: int, value: object) -> Reaction:
    """Answer every request so."""

    def react(handler: _Handler) -> bool:
        handler.answer(status, value)
        return True

    return react


def first(count: int, reaction: Reaction) -> Reaction:
    """React so to the first ``count`` requests."""
    left = iter(range(count))

    def react(handler: _Handler) -> bool:
        return next(left, None) is not None and reaction(handler)

    return react


def drips(status: int) -> Reaction:
    """Begin an answer that does not end."""

    def react(handler: _Handler) -> bool:
        handler.send_response(status)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        try:
            while not handler.wfile.closed:
                handler.wfile.write(b" ")
                handler.wfile.flush()
                threading.Event().wait(0.02)
        except OSError:
            pass
        return True

    return react


def hangs_until(event: threading.Event) -> Reaction:
    """Answer as usual once ``event`` is set."""

    def react(_: _Handler) -> bool:
        assert event.wait(60)
        return False

    return react
