"""A copy of the start-up scripts in a folder of its own, and a machine as poor as the test wants it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_COPIED = ("spark-submit.sh", "scripts", "requirements", "conf")
_TOOLS = (
    "bash", "cat", "cmp", "cp", "dirname", "env", "flock", "grep", "head", "mkdir", "mv", "rm", "sed", "sh",
    "touch",
)  # fmt: skip
_TIMEOUT_S = 280
"""A first start makes an environment, which takes a while on a busy machine."""


class Checkout:
    """Runs spark-submit.sh with nothing on PATH but basic tools and what the test put there."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a checkout"
        self.bin = folder / "bin"
        self.root.mkdir()
        self.bin.mkdir()
        for name in _COPIED:
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy2
            copy(source, self.root / name)
        for tool in _TOOLS:
            if found := shutil.which(tool):
                (self.bin / tool).symlink_to(found)

    def script(self, path: str | Path, body: str) -> Path:
        """Write an executable shell script."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"#!/bin/sh\n{body}\n")
        target.chmod(0o755)
        return target

    def command(self, name: str, body: str) -> Path:
        """Put a command on PATH."""
        return self.script(self.bin / name, body)

    def java(self, version: str = "17.0.15") -> None:
        """Put a java of ``version`` on PATH."""
        self.command("java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")

    def finished_environment(self) -> None:
        """As an earlier start leaves it: packages, Spark and the Delta jars, all of them stand-ins."""
        self.script(".venv/bin/python", 'echo "python: $*"')
        self.script(
            ".venv/lib/python3.11/site-packages/pyspark/bin/spark-submit",
            'echo "SPARK_HOME=$SPARK_HOME PYSPARK_PYTHON=$PYSPARK_PYTHON PYTHONPATH=$PYTHONPATH"\n'
            'for argument in "$@"; do echo "<$argument>"; done',
        )
        for name in ("runtime", "dev"):
            stamp = self.root / ".venv/stamps" / name
            stamp.parent.mkdir(exist_ok=True)
            shutil.copyfile(self.root / f"requirements/{name}.txt", stamp)
        jars = self.root / ".cache/delta-jars-4.4.0"
        jars.mkdir(parents=True)
        for name in ("one.jar", "two.jar"):
            (jars / name).touch()

    def spark_submit(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``spark-submit.sh`` from another directory, without a terminal."""
        return self._run(subprocess.PIPE, arguments, environment)

    def spark_submit_on_a_terminal(self, *arguments: str, **environment: str) -> str:
        """The same with a terminal for its output: what it shows."""
        ours, its = os.openpty()
        try:
            self._run(its, arguments, environment)
            return os.read(ours, 65536).decode()
        finally:
            os.close(its)
            os.close(ours)

    def _run(
        self, output: int, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.root / "spark-submit.sh"), *arguments],
            cwd=self.bin,
            env={"PATH": str(self.bin), "HOME": os.environ.get("HOME", "/"), **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
