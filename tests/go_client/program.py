"""Programs in Go: Apache's client for RocketMQ, run as a process of its own, and an emulator of storage.

    python -m tests.go_client.program     # Go and the programs into .cache/, as `make long-test` does

Go's own module proxy brings all: the tool chain as a module of a known digest, the rest by ``go.sum``.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.real_broker.artifacts import CACHE
from tests.real_broker.errors import HarnessError

_HERE: Final = Path(__file__).parent
_FAKE_GCS: Final = _HERE.parent / "object_stores" / "fake_gcs"
_GO: Final = "golang.org/toolchain@v0.0.1-go1.26.8.linux-amd64"
_GO_URL: Final = f"https://proxy.golang.org/{_GO.replace('@', '/@v/')}.zip"
_GO_SHA256: Final = "30c2b1bf7dcc88d3eb0a1364e47ddd9128edb3110a30e8a0ef61cd5856b31de7"
_DOWNLOAD_TIMEOUT_S: Final = 60.0
_BUILD_TIMEOUT_S: Final = 600.0
_RUN_TIMEOUT_S: Final = 240.0


class GoMessage(NamedTuple):
    """A message as the Go client saw it: where it lies, and what it is."""

    broker: str
    queue: int
    offset: int
    tag: str
    body: str


def go_program() -> Path:
    """The client's program; fetches Go and the client, and builds it, if that was not done yet.

    Raises:
        HarnessError: If there is no Go for this machine, or something could not be fetched or built.
    """
    return _built("client", _HERE, ".")


def fake_gcs_server() -> Path:
    """The same of an emulator of Google's Cloud Storage."""
    return _built("fake-gcs-server", _FAKE_GCS, "github.com/fsouza/fake-gcs-server")


def _built(name: str, folder: Path, package: str) -> Path:
    sources = sorted(file for file in folder.iterdir() if file.name.startswith("go.") or file.suffix == ".go")
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    program = CACHE / "go" / f"{name}-{digest}"
    if not program.is_file():
        go = _tool_chain() / "bin" / "go"
        with tempfile.TemporaryDirectory(dir=program.parent, prefix="partial-") as partial:
            built = Path(partial) / name
            _build(go, folder, package, built)
            built.rename(program)
    return program


def _tool_chain() -> Path:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise HarnessError(
            "The Go of the tests is for Linux on x86_64: name another one in tests/go_client/program.py."
        )
    found = CACHE / "go" / _GO.rpartition("-")[0].rpartition("-")[2]
    if found.is_dir():
        return found
    found.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.write(f"Fetching Go into {found} ...\n")
    with tempfile.TemporaryDirectory(
        dir=found.parent, prefix="partial-", ignore_cleanup_errors=True
    ) as partial:
        archive = Path(partial) / "go.zip"
        try:
            with (
                urllib.request.urlopen(_GO_URL, timeout=_DOWNLOAD_TIMEOUT_S) as answer,
                archive.open("wb") as file,
            ):
                shutil.copyfileobj(answer, file)
        except OSError as error:
            raise HarnessError(f"Go could not be fetched from {_GO_URL}: {error}.") from error
        with archive.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != _GO_SHA256:
            raise HarnessError(
                f"{_GO_URL} has the SHA-256 {digest}, and {_GO_SHA256} was expected; nothing of it is used."
            )
        with zipfile.ZipFile(archive) as inner:
            inner.extractall(partial)
        go = Path(partial) / _GO
        # A module's archive says of no file that it is a program.
        for program in (*(go / "bin").iterdir(), *(go / "pkg" / "tool").rglob("*")):
            program.chmod(0o755)
        go.rename(found)
    return found


def _build(go: Path, folder: Path, package: str, program: Path) -> None:
    environment = os.environ | {
        "GOCACHE": str(CACHE / "go" / "build"),
        "GOPATH": str(CACHE / "go" / "path"),
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false",
        "CGO_ENABLED": "0",
    }
    environment.pop("GOROOT", None)
    done = subprocess.run(
        [str(go), "build", "-o", str(program), package],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise HarnessError(f"{program.name} did not build:\n{done.stdout.decode(errors='replace')[-2000:]}")


def produced_by_go(name_servers: str, topic: str, count: int, tags: str) -> list[GoMessage]:
    """Have Go send ``count`` messages whose tags are ``tags`` in turn, in order of ten keys;
    where they are stored.
    """
    done = subprocess.run(
        [str(go_program()), "produce", name_servers, topic, str(count), tags],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_RUN_TIMEOUT_S,
        check=False,
    )
    messages = list(_messages(done.stdout.decode().splitlines()))
    assert not done.returncode, done.stderr.decode()[-2000:]
    assert len(messages) == count
    return messages


class GoConsumer:
    """An orderly Go consumer in a group; everything it was given is in :meth:`messages`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._seen: list[GoMessage] = []
        self._reader = threading.Thread(target=self._read, daemon=True, name="go-consumer")
        self._reader.start()

    def messages(self) -> list[GoMessage]:
        """What it has consumed so far, in the order in which it said so."""
        lines = []
        while not self._lines.empty():
            lines.append(self._lines.get())
        self._seen += _messages(lines)
        return list(self._seen)

    def leave(self) -> list[GoMessage]:
        """Have it leave its group and end; all it has consumed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(_RUN_TIMEOUT_S) == 0
        self._reader.join(_RUN_TIMEOUT_S)
        return self.messages()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)


@contextmanager
def go_consumer(
    name_servers: str, topic: str, expression: str, group: str, instance: str
) -> Iterator[GoConsumer]:
    """A consumer that runs as long as the context; it is killed at the end unless it has left."""
    with subprocess.Popen(
        [str(go_program()), "consume", name_servers, topic, expression, group, instance],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield GoConsumer(process)
        finally:
            process.kill()


def _messages(lines: list[str]) -> Iterator[GoMessage]:
    for line in lines:
        # The client's own log is among them.
        if line.startswith('{"broker"'):
            fields: dict[str, Any] = json.loads(line)
            yield GoMessage(**fields)


if __name__ == "__main__":
    sys.stderr.write(f"The Go client is {go_program()}, the emulator {fake_gcs_server()}.\n")
