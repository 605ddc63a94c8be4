"""A PostgreSQL server of its own on the loopback interface, with a fresh database.

    python -m tests.postgres.server     # its programs into .cache/, as `make test` does

It refuses to run as root: started by root it runs as ``nobody``, who need not be able to see the cache,
so the programs are copied into the server's folder.
"""

from __future__ import annotations

import os
import platform
import pwd
import shutil
import signal
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import psycopg

from tests.real_broker.artifacts import CACHE, fetch_once
from tests.real_broker.errors import HarnessError
from tests.real_broker.ports import free_ports
from tests.real_broker.server import await_condition

_POM = Path(__file__).parent / "pom.xml"
_USER = "postgres"
_INITDB_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 60.0
_PORT_ATTEMPTS = 3


def fetch_postgres() -> Path:
    """Folder with ``bin``, ``lib`` and ``share``; downloads them if they are not there yet.

    Raises:
        HarnessError: If there are none for this machine, or they could not be fetched.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise HarnessError(
            "The PostgreSQL of the tests is for Linux on x86_64: name another one in its pom.xml."
        )
    return fetch_once("PostgreSQL", _POM, CACHE / "postgres", _unpack)


def _unpack(folder: Path) -> None:
    [jar] = folder.glob("*.jar")
    with zipfile.ZipFile(jar) as outer:
        [archive] = [name for name in outer.namelist() if name.endswith(".txz")]
        with outer.open(archive) as stream, tarfile.open(fileobj=stream, mode="r:xz") as inner:
            inner.extractall(folder, filter="data")
    jar.unlink()


class Postgres:
    """A running server; use it as a context manager.

    Raises:
        HarnessError: If it could not be fetched or did not come up within a minute.
    """

    def __init__(self, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self._settings = settings
        self._programs = fetch_postgres()
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    def __enter__(self) -> Self:
        try:
            programs = self._folder / "programs"
            shutil.copytree(self._programs, programs)
            programs.chmod(0o755)
            self._give_away()
            self._initialise()
            self._start_on_a_free_port()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Text with which a client in any process connects."""
        return f"host=127.0.0.1 port={self._port} dbname=postgres connect_timeout=10 user={_USER}"

    def connect(self, user: str = _USER, **options: Any) -> psycopg.Connection[Any]:
        """A new connection."""
        return psycopg.connect(self.address, user=user, **options)

    def close(self) -> None:
        """End the server and remove its files."""
        if self._process is not None:
            # "Immediate shutdown": nobody needs the data any more.
            self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _give_away(self) -> None:
        """Give the folder to the user the server runs as."""
        identity = self._identity()
        if identity:
            os.chown(self._folder, identity["user"], identity["group"])

    def _identity(self) -> dict[str, Any]:
        if os.geteuid() != 0:
            return {}
        nobody = pwd.getpwnam("nobody")
        return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def _initialise(self) -> None:
        options = ["--auth=trust", f"--username={_USER}", "--no-sync", "--encoding=UTF8", "--locale=C"]
        done = subprocess.run(
            [self._program("initdb"), f"--pgdata={self._folder / 'data'}", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
            timeout=_INITDB_TIMEOUT_S,
            check=False,
            **self._identity(),
        )
        if done.returncode != 0:
            raise HarnessError(f"initdb failed: {done.stdout.decode(errors='replace')[-2000:]}")

    def _start_on_a_free_port(self) -> None:
        for _ in range(_PORT_ATTEMPTS):
            if self._start():
                return
        raise HarnessError(f"PostgreSQL did not start. Its output ends with:\n{self._log()}")

    def _start(self) -> bool:
        """Start it; False if it ended, for its port was taken in the meantime."""
        self._port = free_ports(0)
        # No sockets in the file system, and no fsync: a test kills its sessions, never the machine.
        options = ["-h", "127.0.0.1", "-p", str(self._port), "-k", "", "-F"]
        options += [f"--{name}={value}" for name, value in self._settings.items()]
        with (self._folder / "log").open("wb") as log:
            self._process = process = subprocess.Popen(
                [self._program("postgres"), "-D", str(self._folder / "data"), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                **self._identity(),
            )
        await_condition(lambda: process.poll() is not None or self._answers(), "PostgreSQL was not up")
        return process.poll() is None

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _program(self, name: str) -> str:
        return str(self._folder / "programs" / "bin" / name)

    def _log(self) -> str:
        return (self._folder / "log").read_text(encoding="utf-8", errors="replace")[-2000:]


if __name__ == "__main__":
    fetch_postgres()
