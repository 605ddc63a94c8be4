"""Programs of the tests in processes of their own: drivers that are killed, die, or must leave no trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

REPO = Path(__file__).parent.parent.parent
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{REPO / 'connector'}{os.pathsep}{REPO}"}
"""In which the tests' modules can be imported."""


def run_driver(module: str, config: Mapping[str, object], log: Path, *, timeout_s: float) -> int:
    """Run ``module`` with its configuration until it ends; its exit code, negative for a signal.

    What it prints is added to ``log``. It has a group of processes of its own, which ends with it.
    """
    with log.open("ab") as output:
        driver = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(config)],
            cwd=REPO,
            env=ENVIRONMENT,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return driver.wait(timeout=timeout_s)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
