"""One target in its own process, watched from outside, so that crashes and hangs are findings too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from fuzz.engine import CurrentInput
from fuzz.judge import Finding

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / ".cache" / "fuzz"
CURRENT: Final = "current"
RESULT: Final = "result.json"
_STUCK_S: Final = 300.0
"""Seconds with one input after which the process can no longer end it from inside."""
_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one target's run."""

    target: str
    engine: str
    inputs: int
    seconds: float
    findings: tuple[Path, ...]

    @property
    def inputs_per_s(self) -> float:
        """Inputs per second, without the start of the process."""
        return self.inputs / self.seconds if self.seconds else 0.0


def run_target(name: str, *, seconds: float, seed: int, is_blind: bool) -> Outcome:
    """Fuzz ``name`` for ``seconds`` in a child process and wait for it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    # A separate folder, since two simultaneous runs must not write into each other's files.
    with TemporaryDirectory(prefix=f"{name}-", dir=FOLDER) as folder:
        return _run_in(Path(folder), name, seconds, seed, is_blind=is_blind)


def _run_in(work: Path, name: str, seconds: float, seed: int, *, is_blind: bool) -> Outcome:
    current = CurrentInput.create(work / CURRENT)
    command = [
        sys.executable, "-m", "fuzz.child", name, str(seconds), str(seed), str(int(is_blind)), str(work)
    ]  # fmt: skip
    with (work / "log").open("wb") as log:
        child = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        try:
            is_stuck = _wait(child, current)
        finally:
            child.kill()
            child.wait()
    if (work / RESULT).exists():
        found: dict[str, Any] = json.loads((work / RESULT).read_text(encoding="utf-8"))
        saved = tuple(map(Path, found["findings"]))
        return Outcome(name, found["engine"], found["inputs"], found["seconds"], saved)
    number, data = current.read()
    why = (
        "it was still running after five minutes"
        if is_stuck
        else f"the process ended with {child.returncode}"
    )
    log_end = (work / "log").read_text(encoding="utf-8", errors="replace")[-4000:]
    path = Finding(name, data, f"{log_end}\n{why}\n").save(FOLDER)
    return Outcome(name, "none", number, 0.0, (path,))


def _wait(child: subprocess.Popen[bytes], current: CurrentInput) -> bool:
    """Wait for the end; return True if one input took longer than the limits inside allow."""
    seen, since_s = 0, time.monotonic()
    while True:
        try:
            child.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            number, _ = current.read()
            if number != seen:
                seen, since_s = number, time.monotonic()
            elif time.monotonic() - since_s > _STUCK_S:
                # Its fault handler writes into the log where it hangs.
                os.kill(child.pid, signal.SIGABRT)
                return True
        else:
            return False
