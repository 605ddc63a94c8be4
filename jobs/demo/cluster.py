"""The embedded cluster of a demo run: ``broker_sim`` as a child process."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from jobs.errors import JobFailed

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 5.0


@contextmanager
def embedded_cluster(brokers: int) -> Iterator[str]:
    """Start a cluster, yield its name server's address, stop it whatever happened.

    Raises:
        JobFailed: If it does not come up.
    """
    # --exit-with-parent: a demo that is killed cannot stop it.
    command = [
        sys.executable,
        "-m",
        "broker_sim",
        "--port",
        "0",
        "--brokers",
        str(brokers),
        "--exit-with-parent",
        str(os.getpid()),
    ]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)  # noqa: S603 - our own
    assert process.stdout is not None
    try:
        yield _read_addresses(process.stdout)
    finally:
        _stop(process)
        process.stdout.close()


def _read_addresses(output: IO[bytes]) -> str:
    """The name server's address, from the JSON in the first line."""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        line = output.readline() if selector.select(_START_TIMEOUT_S) else b""
    try:
        return str(json.loads(line)["nameServers"])
    except (ValueError, KeyError) as error:
        raise JobFailed(
            f"The embedded cluster did not come up within {_START_TIMEOUT_S:g} s; its first line was {line!r}. "
            "Start `python -m broker_sim` by hand to see why, or give option nameServers."
        ) from error


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
