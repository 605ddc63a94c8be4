"""An S3, an Azure and a Google Cloud Storage of their own on the loopback interface, each behind a gate.

    python -m tests.object_stores.server     # their programs into .cache/, as `make test` does

moto needs versions of packages that the connector's environment has not, so it runs as a process with its
own.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping
from email.utils import formatdate
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from pyspark_rocketmq.client.transport import Closing
from tests.go_client.program import fake_gcs_server
from tests.object_stores.gate import ask
from tests.real_broker.artifacts import CACHE, fetch_node_packages, fetch_packages, require_program
from tests.real_broker.errors import HarnessError
from tests.real_broker.ports import free_ports
from tests.real_broker.server import await_condition

_REPO = Path(__file__).parents[2]
_PORT_ATTEMPTS = 3
KEY, SECRET = "AKIAMARKERFORTESTS", "marker-of-a-secret-8f2e"
_AZURE_ACCOUNT = "devstoreaccount1"
_AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Those of every Azurite, from its documentation."""
COMMIT = r"PUT /.*/_delta_log/\d{20}\.json"
"""A request that commits."""


def fetch_moto() -> Path:
    """Folder of its packages; downloads them if they are not there yet.

    Raises:
        HarnessError: If they could not be fetched.
    """
    return fetch_packages("moto", _REPO / "requirements" / "emulators.txt", CACHE / "moto")


def fetch_azurite() -> Path:
    """The same of Azurite.

    Raises:
        HarnessError: If npm is missing, or they could not be fetched.
    """
    return fetch_node_packages("Azurite", _REPO / "requirements" / "azurite", CACHE / "azurite")


class Emulator(Closing):
    """An emulator of storage and the gate before it, running; use it as a context manager.

    Raises:
        HarnessError: If it could not be fetched or did not come up.
    """

    gate_kind: tuple[str, ...] = ()
    """For the gate's command line."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self._processes: list[subprocess.Popen[bytes]] = []
        self.emulator_port = self.port = 0

    def __enter__(self) -> Self:
        if not any(self._start() for _ in range(_PORT_ATTEMPTS)):
            self._log.seek(0)
            told = self._log.read()[-2000:].decode(errors="replace")
            self.close()
            raise HarnessError(f"{type(self).__name__} did not start. Its output ends with:\n{told}")
        self.open_gate()
        return self

    def open_gate(self) -> None:
        """Start the gate, after :meth:`shut_gate` under the same port."""
        ports = [str(self.emulator_port), str(self.port)]
        command = [sys.executable, "-m", "tests.object_stores.gate", *ports, *self.gate_kind]
        self._gate = self._run(command)
        assert self._gate.stdout is not None
        self.port = int(self._gate.stdout.readline())

    def shut_gate(self) -> None:
        """End the gate: nobody listens where clients look for the storage."""
        self._end(self._gate)

    def hold_gate(self, *, is_held: bool) -> None:
        """Have the gate take connections and answer nothing, or go on."""
        self._gate.send_signal(signal.SIGSTOP if is_held else signal.SIGCONT)

    def behave(self, *faults: dict[str, Any], accepted: list[str] | None = None) -> None:
        """From now on take only these access keys (None: any), and fail as set; forget what was seen.

        A fault has ``where``, a pattern of ``METHOD PATH``, how many ``times``, and an error's ``status`` and
        ``code``, or ``delay_s``, after which it is answered; else the request is done and its answer lost.
        """
        self._control("PUT", {"at": faults, "accepted": accepted})

    def seen(self) -> list[str]:
        """Requests since then: ``METHOD PATH``."""
        found: list[str] = self._control("GET", {})["seen"]
        return found

    def faults_left(self) -> int:
        """How often faults are still to come."""
        return sum(fault["times"] for fault in self._control("GET", {})["faults"]["at"])

    def _control(self, method: str, state: dict[str, Any]) -> dict[str, Any]:
        answer = ask(self.port, method, "/-/faults", {}, json.dumps(state).encode())
        found: dict[str, Any] = json.loads(answer.body)
        return found

    def close(self) -> None:
        """End the processes."""
        for process in [*self._processes]:
            self._end(process)
        self._log.close()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        self._processes.remove(process)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def _start(self) -> bool:
        """Start it; False if it ended, for its port was taken in the meantime."""
        self.emulator_port = free_ports(0)
        process = self._launch(self.emulator_port)
        await_condition(
            lambda: process.poll() is not None or self._answers(), f"{type(self).__name__} was not up"
        )
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
            ask(self.emulator_port, "GET", "/")
        except OSError:
            return False
        return True


class S3Server(Emulator):
    """moto."""

    def __init__(self) -> None:
        self._packages = fetch_moto()
        super().__init__()

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        return self._run(command, PYTHONPATH=str(self._packages))


class AzureServer(Emulator):
    """Azurite; every test has a container of its own."""

    def __init__(self) -> None:
        self._packages = fetch_azurite()
        super().__init__()

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        program = self._packages / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
        place = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
        node = require_program("node", "install Node.js 20 or later")
        # It knows no version of the protocol that is younger than itself, and would report to its makers.
        quiet = ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        return self._run([node, str(program), *place, *quiet])

    def make_container(self) -> str:
        """Make a container; its name."""
        name = f"c{uuid.uuid4().hex}"
        account, query = _AZURE_ACCOUNT, "restype=container"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        lines = ["PUT", *[""] * 11, *(f"{key}:{text}" for key, text in headers.items())]
        text = "\n".join([*lines, f"/{account}/{account}/{name}", query.replace("=", ":")])
        digest = hmac.digest(base64.b64decode(_AZURE_KEY), text.encode(), "sha256")
        headers["Authorization"] = f"SharedKey {account}:{base64.b64encode(digest).decode()}"
        answer = ask(self.emulator_port, "PUT", f"/{account}/{name}?{query}", headers)
        assert answer.status == 201, answer
        return name

    def make_place(self) -> str:
        """Make a container; its URI."""
        return f"az://{self.make_container()}"

    def storage_options(self) -> dict[str, str]:
        """How to reach it."""
        return {
            "azure_storage_account_name": _AZURE_ACCOUNT,
            "azure_storage_account_key": _AZURE_KEY,
            "azure_storage_endpoint": f"http://127.0.0.1:{self.port}/{_AZURE_ACCOUNT}",
            "allow_http": "true",
        }


class GoogleServer(Emulator):
    """fake-gcs-server; every test has a bucket of its own."""

    gate_kind = ("google",)

    def __init__(self) -> None:
        self._program = fake_gcs_server()
        super().__init__()

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        place = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
        return self._run([str(self._program), *place])

    def make_place(self) -> str:
        """Make a bucket; its URI."""
        name = f"b{uuid.uuid4().hex}"
        body = json.dumps({"name": name}).encode()
        answer = ask(self.emulator_port, "POST", "/storage/v1/b", {"content-type": "application/json"}, body)
        assert answer.status == 200, answer
        return f"gs://{name}"

    def storage_options(self) -> dict[str, str]:
        """How to reach it."""
        account = {
            "gcs_base_url": f"http://127.0.0.1:{self.port}",
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return {"google_service_account_key": json.dumps(account), "allow_http": "true"}


class Bucket:
    """An empty bucket, for one test."""

    name = "lake"

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self.lose()
        self.behave()
        assert ask(server.emulator_port, "PUT", f"/{self.name}").status == 200

    def behave(self, *faults: dict[str, Any], accepted: list[str] | None = None) -> None:
        """See :meth:`Emulator.behave`."""
        self._server.behave(*faults, accepted=accepted)

    @property
    def seen(self) -> list[str]:
        """Requests since then: ``METHOD PATH``."""
        return self._server.seen()

    def faults_left(self) -> int:
        """See :meth:`Emulator.faults_left`."""
        return self._server.faults_left()

    def lose(self) -> None:
        """Remove the bucket with all that is in it."""
        ask(self._server.emulator_port, "POST", "/moto-api/reset")

    def objects(self) -> list[str]:
        """Of all objects."""
        return re.findall("<Key>(.*?)</Key>", self.get("?list-type=2").decode())

    def get(self, key: str) -> bytes:
        """An object."""
        # moto shows objects that are not public to whoever says who it is, and believes that.
        headers = {
            "authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/eu-central-1/s3/aws4_request"
        }
        answer = ask(self._server.emulator_port, "GET", f"/{self.name}/{key}", headers)
        assert answer.status == 200, answer
        return answer.body

    def uri(self, table: str) -> str:
        """Of a table."""
        return f"s3://{self.name}/{table}"

    def remove(self, table: str) -> None:
        """Remove a table."""
        # A list has a thousand at most, and so may one request to remove them.
        while found := re.findall(
            "<Key>(.*?)</Key>", self.get(f"?list-type=2&prefix={quote(table)}/").decode()
        ):
            objects = "".join(f"<Object><Key>{key}</Key></Object>" for key in found)
            body = f"<Delete>{objects}</Delete>".encode()
            digest = {"content-md5": base64.b64encode(hashlib.md5(body).digest()).decode()}
            answer = ask(self._server.emulator_port, "POST", f"/{self.name}?delete", digest, body)
            assert answer.status == 200, answer.body

    def patient_options(
        self, key: str = KEY, secret: str = SECRET, *, is_direct: bool = False
    ) -> dict[str, str]:
        """How to reach it, with delta-rs' own patience; ``is_direct``: past the gate, to look at it."""
        port = self._server.emulator_port if is_direct else self._server.port
        return {
            "AWS_ACCESS_KEY_ID": key,
            "aws_secret_access_key": secret,
            "aws_region": "eu-central-1",
            "aws_endpoint_url": f"http://127.0.0.1:{port}",
            "allow_http": "true",
        }

    def storage_options(self, key: str = KEY, secret: str = SECRET) -> dict[str, str]:
        """How to reach it."""
        return {
            **self.patient_options(key, secret),
            # Tests do not wait as long for what does not come back.
            "max_retries": "3",
            "retry_timeout": "10s",
            "backoff_config.init_backoff": "1ms",
            "backoff_config.max_backoff": "10ms",
        }


class RenewedKeys:
    """As of an authority that gives keys for an hour."""

    def __init__(self, s3: Bucket) -> None:
        self._s3 = s3
        self.number = 1
        self.calls = 0
        self.are_always_new = False

    def __call__(self) -> Mapping[str, str]:
        self.calls += 1
        token = {"aws_session_token": f"token-{self.calls}"} if self.are_always_new else {}
        return self._s3.storage_options(f"{KEY}{self.number}", f"{SECRET}{self.number}") | token

    def expire(self) -> None:
        """Only the next key is taken from now on."""
        self.number += 1
        self._s3.behave(accepted=[f"{KEY}{self.number}"])


if __name__ == "__main__":
    fetch_moto()
    fetch_azurite()
