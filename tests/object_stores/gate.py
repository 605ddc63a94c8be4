"""What stands before an emulator: it can refuse, fail and lose answers, and lets one change pass at a time.

    python -m tests.object_stores.gate EMULATOR_PORT PORT [KIND]     # prints its own port, any if PORT is 0

Of KIND ``google`` it translates: delta-rs speaks the storage's XML API, the emulator most of its JSON API.

A process of its own, because delta-rs does not let other threads run while it waits for storage. Given what to
do at ``/-/faults``.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import unescape

_TIMEOUT_S = 60.0
_OF_A_CONNECTION = frozenset({"connection", "content-length", "transfer-encoding"})
_NOT_PASSED_BACK = _OF_A_CONNECTION | {"server", "date"}


class Answer(NamedTuple):
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes


def ask(
    port: int, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b""
) -> Answer:
    """One request to a server on the loopback interface."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request(method, path, body=body or None, headers=headers or {})
        answer = connection.getresponse()
        found = {name.lower(): text for name, text in answer.getheaders()}
        return Answer(answer.status, found, answer.read())
    finally:
        connection.close()


def _refused(status: int, code: str, about: str = "") -> Answer:
    """An error as S3 words it."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}.</Message>{about}</Error>"
    return Answer(status, {"content-type": "application/xml"}, body.encode())


class Gate:
    """Decides about requests, and counts them."""

    def __init__(self, port: int) -> None:
        self._port = port
        # moto looks whether an object exists, and then writes it.
        self._changes = threading.Lock()
        self._guard = threading.Lock()
        self._faults: dict[str, Any] = {}
        self._seen: list[str] = []

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer | None:
        """None: close the connection."""
        if path == "/-/faults":
            with self._guard:
                if method == "PUT":
                    self._faults, self._seen = json.loads(body), []
                return Answer(200, {}, json.dumps({"faults": self._faults, "seen": self._seen}).encode())
        with self._guard:
            self._seen.append(f"{method} {path}")
            fault = next((one for one in self._faults.get("at", ()) if self._is_at(one, method, path)), None)
            if fault is not None:
                fault["times"] -= 1
        key = re.search("Credential=([^/]+)/", headers.get("authorization", ""))
        accepted = self._faults.get("accepted")
        if accepted is not None and (key is None or key[1] not in accepted):
            return _refused(403, "ExpiredToken", f"<AWSAccessKeyId>{key[1]}</AWSAccessKeyId>" if key else "")
        if fault is not None and "status" in fault:
            return _refused(fault["status"], fault["code"])
        if fault is not None and "delay_s" in fault:
            time.sleep(fault["delay_s"])
            fault = None
        answer = self._passed_on(method, path, headers, body)
        return answer if fault is None else None

    @staticmethod
    def _is_at(fault: dict[str, Any], method: str, path: str) -> bool:
        return fault["times"] > 0 and re.search(fault["where"], f"{method} {unquote(path)}") is not None

    def _passed_on(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if method in ("GET", "HEAD"):
            answer = ask(self._port, method, path, headers, body)
            start = parse_qs(urlsplit(path).query).get("startFrom")
            return answer if start is None else _listed_from(start[0], answer)
        with self._changes:
            return ask(self._port, method, path, headers, body)


GOOGLE_HOST = "storage.googleapis.com"
"""What the emulator takes for its own name."""


class GoogleGate(Gate):
    """Before fake-gcs-server."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._numbers = itertools.count()
        self._uploads: dict[str, dict[int, bytes]] = {}

    def _passed_on(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        place = urlsplit(path)
        _, bucket, *rest = place.path.split("/", 2)
        name = quote(unquote(rest[0]), safe="") if rest and rest[0] else None
        if name is None:
            answer = ask(self._port, method, f"/?{place.query}", {"host": f"{bucket}.{GOOGLE_HOST}"})
            start = parse_qs(place.query).get("start-after")
            return answer if start is None else _contents_after(start[0], answer)
        if method in ("GET", "HEAD"):
            return ask(self._port, method, f"/download/storage/v1/b/{bucket}/o/{name}?alt=media", headers)
        with self._changes:
            query = parse_qs(place.query, keep_blank_values=True)
            if "uploads" in query or "uploadId" in query:
                return self._in_parts(method, bucket, name, query, body)
            if method == "DELETE":
                return ask(self._port, method, f"/storage/v1/b/{bucket}/o/{name}")
            return self._stored(bucket, name, headers.get("x-goog-if-generation-match"), body)

    def _in_parts(
        self, method: str, bucket: str, name: str, query: dict[str, list[str]], body: bytes
    ) -> Answer:
        """An upload in parts, which are kept here until it ends."""
        if "uploads" in query:
            upload = str(next(self._numbers))
            self._uploads[upload] = {}
            told = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId>"
            return Answer(200, {}, f"{told}</InitiateMultipartUploadResult>".encode())
        [upload] = query["uploadId"]
        if method == "PUT":
            [number] = query["partNumber"]
            self._uploads[upload][int(number)] = body
            return Answer(200, {"etag": f'"{number}"'}, b"")
        if method == "DELETE":
            self._uploads.pop(upload, None)
            return Answer(204, {}, b"")
        parts = self._uploads[upload]
        stored = self._stored(bucket, name, None, b"".join(parts[number] for number in sorted(parts)))
        if stored.status != 200:
            return stored
        told = f"<CompleteMultipartUploadResult><ETag>{stored.headers['etag']}</ETag>"
        return stored._replace(body=f"{told}</CompleteMultipartUploadResult>".encode())

    def _stored(self, bucket: str, name: str, generation: str | None, body: bytes) -> Answer:
        condition = "" if generation is None else f"&ifGenerationMatch={generation}"
        query = f"uploadType=media&name={name}{condition}"
        stored = ask(self._port, "POST", f"/upload/storage/v1/b/{bucket}/o?{query}", {}, body)
        if stored.status != 200:
            return stored
        about = json.loads(stored.body)
        return Answer(200, {"etag": about["etag"], "x-goog-generation": str(about["generation"])}, b"")


def _contents_after(start: str, answer: Answer) -> Answer:
    """A bucket's list behind a name: the emulator does not know ``start-after``, and lists all."""

    def kept(found: re.Match[bytes]) -> bytes:
        name = re.search(rb"<Key>(.*?)</Key>", found[0])
        return found[0] if name is not None and unescape(name[1].decode()) > start else b""

    return answer._replace(body=re.sub(rb"<Contents>.*?</Contents>", kept, answer.body, flags=re.DOTALL))


def _listed_from(start: str, answer: Answer) -> Answer:
    """A container's list from a name on: Azurite does not know ``startFrom``, and lists all."""

    def kept(found: re.Match[bytes]) -> bytes:
        name = re.search(rb"<Name>(.*?)</Name>", found[0])
        return found[0] if name is not None and name[1].decode() >= start else b""

    return answer._replace(body=re.sub(rb"<Blob>.*?</Blob>", kept, answer.body, flags=re.DOTALL))


def main(own_port: int, gate: Gate) -> None:
    """Serve until the process is ended."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body in one packet: the second of two would wait for the first one's acknowledgement.
        wbufsize = -1

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {k.lower(): v for k, v in self.headers.items() if k.lower() not in _OF_A_CONNECTION}
            answer = gate.answer(self.command, self.path, headers, body)
            if answer is None:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, text in answer.headers.items():
                if name not in _NOT_PASSED_BACK:
                    self.send_header(name, text)
            length = answer.headers.get("content-length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815 - the base's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            """Nothing."""

    class Server(ThreadingHTTPServer):
        # Of five, Python's default, the sixth of a burst waits for half a minute.
        request_queue_size = 512

    server = Server(("127.0.0.1", own_port), Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    _, emulator, own, *kind = sys.argv
    main(int(own), {"google": GoogleGate}.get("".join(kind), Gate)(int(emulator)))
