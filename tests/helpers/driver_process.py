"""Programs of the tests in separate processes: drivers that are killed, die, or must leave no trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

REPO = Path(__file__).parent.parent.parent
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{REPO / 'connector'}{os.pathsep}{REPO}"}
"""Environment in which the tests' modules can be imported."""


def run_driver(module: str, config: Mapping[str, object], log: Path, *, timeout_s: float) -> int:
    """Run ``module`` with its configuration until it ends, and return its exit code, negative for a signal.

    Its output is added to ``log``.
    """
    command = [sys.executable, "-m", module, json.dumps(config)]
    with running(command, log, folder=REPO, environment=ENVIRONMENT) as driver:
        return driver.wait(timeout=timeout_s)


def consume_command(options: Mapping[str, str]) -> list[str]:
    """Runs job ``consume`` as a user does."""
    words = [word for key, value in options.items() for word in ("--option", f"{key}={value}")]
    return [str(REPO / "spark-submit.sh"), "consume", *words]


@contextmanager
def running(
    command: Sequence[str], log: Path, *, folder: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in ``folder`` in its own process group until the block ends.

    Its output is added to ``log``.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
