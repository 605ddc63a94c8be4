"""An S3 of its own on the loopback interface: moto's, behind a gate.

    python -m tests.object_stores.server     # its program into .cache/, as `make test` does

moto needs versions of packages that the connector's environment has not, so it runs as a process with its
own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pyspark_rocketmq.client.transport import Closing
from tests.object_stores.gate import ask
from tests.real_broker.artifacts import CACHE, fetch_packages
from tests.real_broker.errors import HarnessError
from tests.real_broker.ports import free_ports
from tests.real_broker.server import await_condition

_REPO = Path(__file__).parents[2]
_PORT_ATTEMPTS = 3
KEY, SECRET = "AKIAMARKERFORTESTS", "marker-of-a-secret-8f2e"
COMMIT = r"PUT /.*/_delta_log/\d{20}\.json$"
"""A request that commits."""


def fetch_moto() -> Path:
    """Folder of its packages; downloads them if they are not there yet.

    Raises:
        HarnessError: If they could not be fetched.
    """
    return fetch_packages("moto", _REPO / "requirements" / "emulators.txt", CACHE / "moto")


class S3Server(Closing):
    """moto and the gate, running; use it as a context manager.

    Raises:
        HarnessError: If it could not be fetched or did not come up.
    """

    def __init__(self) -> None:
        self._packages = fetch_moto()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self._processes: list[subprocess.Popen[bytes]] = []
        self.moto_port = self.port = 0

    def __enter__(self) -> Self:
        if not any(self._start_moto() for _ in range(_PORT_ATTEMPTS)):
            self._log.seek(0)
            told = self._log.read()[-2000:].decode(errors="replace")
            self.close()
            raise HarnessError(f"moto did not start. Its output ends with:\n{told}")
        gate = self._run([sys.executable, "-m", "tests.object_stores.gate", str(self.moto_port)])
        assert gate.stdout is not None
        self.port = int(gate.stdout.readline())
        return self

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self._log.close()

    def _start_moto(self) -> bool:
        """Start it; False if it ended, for its port was taken in the meantime."""
        self.moto_port = free_ports(0)
        packages = {"PYTHONPATH": str(self._packages)}
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.moto_port)]
        process = self._run(command, **packages)
        await_condition(lambda: process.poll() is not None or self._answers(), "moto was not up")
        return process.poll() is None

    def _run(self, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=_REPO,
            env={**os.environ, **environment},
        )
        self._processes.append(process)
        return process

    def _answers(self) -> bool:
        try:
            ask(self.moto_port, "GET", "/")
        except OSError:
            return False
        return True


class Bucket:
    """An empty bucket, for one test."""

    name = "lake"

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self.lose()
        self.behave()
        assert ask(server.moto_port, "PUT", f"/{self.name}").status == 200

    def behave(self, *faults: dict[str, Any], accepted: list[str] | None = None) -> None:
        """From now on take these access keys alone (None: any), and fail as told; forget what was seen.

        A fault has ``where``, a pattern of ``METHOD PATH``, how many ``times``, and an error's ``status`` and
        ``code``; without these the request is done and its answer lost.
        """
        self._control("PUT", {"at": faults, "accepted": accepted})

    @property
    def seen(self) -> list[str]:
        """Requests since then: ``METHOD PATH``."""
        found: list[str] = self._control("GET", {})["seen"]
        return found

    def lose(self) -> None:
        """Remove the bucket with all that is in it."""
        ask(self._server.moto_port, "POST", "/moto-api/reset")

    def objects(self) -> list[str]:
        """Of all objects."""
        return re.findall("<Key>(.*?)</Key>", self.get("?list-type=2").decode())

    def get(self, key: str) -> bytes:
        """An object."""
        return ask(self._server.moto_port, "GET", f"/{self.name}/{key}").body

    def uri(self, table: str) -> str:
        """Of a table."""
        return f"s3://{self.name}/{table}"

    def storage_options(self, key: str = KEY, secret: str = SECRET) -> dict[str, str]:
        """How to reach it."""
        return {
            "AWS_ACCESS_KEY_ID": key,
            "aws_secret_access_key": secret,
            "aws_region": "eu-central-1",
            "aws_endpoint_url": f"http://127.0.0.1:{self._server.port}",
            "allow_http": "true",
            # Tests do not wait as long for what does not come back.
            "max_retries": "3",
            "retry_timeout": "10s",
            "backoff_config.init_backoff": "1ms",
            "backoff_config.max_backoff": "10ms",
        }

    def _control(self, method: str, state: dict[str, Any]) -> dict[str, Any]:
        answer = ask(self._server.port, method, "/-/faults", {}, json.dumps(state).encode())
        found: dict[str, Any] = json.loads(answer.body)
        return found


class RenewedKeys:
    """As of an authority that gives keys for an hour."""

    def __init__(self, s3: Bucket) -> None:
        self._s3 = s3
        self.number = 1
        self.calls = 0

    def __call__(self) -> Mapping[str, str]:
        self.calls += 1
        return self._s3.storage_options(f"{KEY}{self.number}", f"{SECRET}{self.number}")

    def expire(self) -> None:
        """Only the next key is taken from now on."""
        self.number += 1
        self._s3.behave(accepted=[f"{KEY}{self.number}"])


if __name__ == "__main__":
    fetch_moto()
