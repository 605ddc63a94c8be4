"""Other clients that pull: Java's, and the PyPI package over librocketmq,
each in its own process.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real_broker.artifacts import compile_java, fetch_jars
from tests.real_broker.java_process import java_command, java_environment

MESSAGES_PER_PULL = 32
_PACKAGE = "rocketmq==0.4.4"
_ENVIRONMENT = Path(__file__).parents[1] / ".cache" / "bench" / "librocketmq"
_SCRIPT = Path(__file__).parent / "librocketmq_pull.py"
_INSTALL_TIMEOUT_S = 300.0
_RUN_TIMEOUT_S = 300.0
JVM = ("-Xms512m", "-Xmx1g", "-XX:TieredStopAtLevel=4")
"""The last option matters: full compilation, unlike the programs of the tests."""

_groups = itertools.count(1)


class PeerFailed(Exception):
    """A peer is not available or did not read everything; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a topic."""

    messages: int
    body_bytes: int
    seconds: float
    seconds_after_first: float


class LitePull:
    """Java's ``DefaultLitePullConsumer``, as a new group in a new JVM each time."""

    def __init__(self, work: Path) -> None:
        lib = fetch_jars()
        self._environment = java_environment([lib / "*", compile_java(lib)])
        self._work = work

    def read(self, name_servers: str, topic: str, count: int) -> Reading:
        """Read ``count`` messages from the topic's beginning."""
        arguments = [name_servers, topic, _group(), str(count), str(MESSAGES_PER_PULL), "120"]
        return _run(java_command(self._work, "LitePullSpeed", arguments, heap=JVM), self._environment)


class OrderlyPush:
    """Java's ``DefaultMQPushConsumer`` with an orderly listener that does nothing, in a new JVM each time."""

    def __init__(self, work: Path) -> None:
        lib = fetch_jars()
        self._environment = java_environment([lib / "*", compile_java(lib)])
        self._work = work

    def read(self, name_servers: str, topic: str, count: int, *, listener_batch: int) -> Reading:
        """Take the topic's first ``count`` messages through the listener,
        at most ``listener_batch`` a call.
        """
        arguments = [name_servers, topic, _group(), str(count), str(MESSAGES_PER_PULL), "120"]
        command = java_command(self._work, "PushSpeed", [*arguments, str(listener_batch)], heap=JVM)
        return _run(command, self._environment)


class Librocketmq:
    """The package's ``PullConsumer``, in its own virtual environment."""

    def __init__(self) -> None:
        """Install the package from the configured index if it is not there yet.

        Raises:
            PeerFailed: If the installation failed.
        """
        self._python = _ENVIRONMENT / "bin" / "python"
        if not (_ENVIRONMENT / "complete").exists():
            shutil.rmtree(_ENVIRONMENT, ignore_errors=True)
            venv.create(_ENVIRONMENT, with_pip=True)
            checked_output(
                [self._python, "-m", "pip", "install", "-q", _PACKAGE], dict(os.environ), _INSTALL_TIMEOUT_S
            )
            (_ENVIRONMENT / "complete").touch()

    def read(self, name_servers: str, topic: str) -> Reading:
        """Read the topic from its beginning until no queue has more."""
        environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        # The library writes its log below the home directory.
        environment["HOME"] = str(_ENVIRONMENT)
        return _run([self._python, str(_SCRIPT), name_servers, topic, _group()], environment)


def _group() -> str:
    return f"bench-{os.getpid()}-{next(_groups)}"


def _run(command: list[Any], environment: dict[str, str]) -> Reading:
    facts = json.loads(checked_output(command, environment, _RUN_TIMEOUT_S).splitlines()[-1])
    return Reading(
        messages=facts["messages"],
        body_bytes=facts["bytes"],
        seconds=facts["seconds"],
        seconds_after_first=facts.get("afterFirst", facts["seconds"]),
    )


def checked_output(command: list[Any], environment: dict[str, str], timeout_s: float) -> str:
    """Return the output of a program.

    Raises:
        PeerFailed: If it failed or took too long.
    """
    try:
        done = subprocess.run(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PeerFailed(f"it took longer than {timeout_s:g} s") from error
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
        raise PeerFailed(f"exit code {done.returncode}: {lines[-1] if lines else 'no output'}")
    return done.stdout.decode()
