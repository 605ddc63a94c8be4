"""A JVM with RocketMQ's own clients in it,
driven line by line (``tests/real_broker/java/JavaClients.java``).
"""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from pyspark_rocketmq.client.transport import Closing
from tests.real_broker.artifacts import compile_java, fetch_jars
from tests.real_broker.java_process import java_command, java_environment

ANSWER_S = 180.0
"""Time limit, longer than any call needs, so that a slow machine never fails a test."""
_HEAP = ("-Xmx256m",)
_LOG_TAIL = 3000


class JavaError(AssertionError):
    """A call of the Java client threw; the text is Java's stack trace."""


class JavaClients(Closing):
    """The process; calls may be made from any thread and may overlap."""

    def __init__(self, name_servers: str, home: Path, *, rebalance_interval_ms: int = 20_000) -> None:
        """Start the JVM.

        Args:
            name_servers: of the cluster the clients work with.
            home: where the clients may keep files.
            rebalance_interval_ms: how often a member looks at its group unasked; 20 s is RocketMQ's own.
        """
        lib = fetch_jars()
        self._home = home
        self._environment = java_environment([lib / "*", compile_java(lib)])
        rebalance = f"-Drocketmq.client.rebalance.waitInterval={rebalance_interval_ms}"
        command = java_command(home, "JavaClients", [name_servers], heap=(*_HEAP, rebalance))
        self._log = home / "java-clients.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
                # Some commands of mqadmin leave files where they run.
                cwd=home,
                start_new_session=True,
            )
        self._ids = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read_answers, name="java-clients", daemon=True)
        self._reader.start()

    def submit(self, op: str, **arguments: object) -> Future[Any]:
        """Begin a call; the future has its result, or a :class:`JavaError`."""
        future: Future[Any] = Future()
        with self._lock:
            call_id = next(self._ids)
            self._waiting[call_id] = future
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"id": call_id, "op": op, **arguments}) + "\n")
            self._process.stdin.flush()
        return future

    def call(self, op: str, **arguments: object) -> Any:
        """Make a call and wait for its result."""
        return self.submit(op, **arguments).result(ANSWER_S)

    def mqadmin(self, *arguments: str) -> str:
        """Run a command of mqadmin in this JVM and return its output; :class:`JavaError` if it fails."""
        return str(self.call("mqadmin", arguments=arguments))

    def run_program(self, main_class: str, *arguments: str) -> str:
        """Run a program of RocketMQ in a separate JVM, which must end with code 0; return its output."""
        done = subprocess.run(
            java_command(self._home, main_class, arguments, heap=_HEAP),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self._environment,
            cwd=self._home,
            timeout=ANSWER_S,
            check=False,
        )
        if done.returncode != 0:
            raise JavaError(f"{main_class} {arguments} ended with code {done.returncode}:\n{done.stderr}")
        return done.stdout

    def log_tail(self) -> str:
        """Return the end of the clients' log."""
        return self._log.read_bytes()[-_LOG_TAIL:].decode(errors="replace")

    def close(self) -> None:
        """End the JVM and wait for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(ANSWER_S)
        finally:
            self._process.kill()
            self._process.wait()
        self._reader.join(ANSWER_S)
        self._process.stdout.close()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            future = self._waiting.pop(answer["id"])
            if "error" in answer:
                future.set_exception(JavaError(answer["error"]))
            else:
                future.set_result(answer["result"])
        for future in tuple(self._waiting.values()):
            future.set_exception(JavaError(f"The JVM has ended. Its log ends with:\n{self.log_tail()}"))
