"""Kubernetes' schemas, and a linter of Dockerfiles.

python -m tests.helpers.kubernetes     # both into .cache/, as `make test` does
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.real_broker.artifacts import CACHE, fetch_packages

_LOCK = Path(__file__).parents[2] / "requirements" / "kubernetes.txt"
_VERSION = "1.34"
"""Version of Kubernetes; older ones in use have all fields of the manifest, too."""
_TIMEOUT_S = 120.0


def fetch_tools() -> Path:
    """Return the folder of their packages; download them if they are missing.

    Raises:
        HarnessError: If they could not be fetched.
    """
    return fetch_packages("Kubernetes' schemas", _LOCK, CACHE / "kubernetes")


def what_schemas_say(manifest: Path) -> str:
    """Return what is wrong with a manifest's objects, unknown fields included; empty if nothing is."""
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", "-k", _VERSION, str(manifest)]
    return _complaints(command)


def what_the_linter_says(dockerfile: Path) -> str:
    """Return what is wrong with a Dockerfile; empty if nothing is."""
    return _complaints([str(fetch_tools() / "bin" / "hadolint"), "--no-color", str(dockerfile)])


def _complaints(command: list[str]) -> str:
    environment = os.environ | {"PYTHONPATH": str(fetch_tools())}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=_TIMEOUT_S, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


if __name__ == "__main__":
    fetch_tools()
