"""The tests in two processes at a time: those with a Spark session, and all others.

    python -m tests.in_two           # what `make test` runs: the tests that are not marked ``long``
    python -m tests.in_two --long    # what `make long-test` runs: those that are

Two at a time take little more than half as long, and use both cores of a small machine. Each process has
clusters of its own. With arguments for pytest, one process runs what they choose.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.helpers.backend_counts import BACKENDS, COUNTS_FILE, SKIPPED

_LONG = "--long"


def main(arguments: list[str]) -> int:
    """Run pytest; its exit code, or of two processes the first that is not 0."""
    chosen = "long" if _LONG in arguments else "not long"
    for_pytest = [each for each in arguments if each != _LONG]
    if for_pytest:
        marker = ["-m", chosen] if _LONG in arguments else []
        return subprocess.call([sys.executable, "-m", "pytest", *marker, *for_pytest])
    with TemporaryDirectory(prefix="tests-") as folder:
        return _run_both(chosen, Path(folder))


def _run_both(chosen: str, folder: Path) -> int:
    output = folder / "output"
    with output.open("wb") as file:
        others = _start(f"not spark and {chosen}", folder, stdout=file)
        with_spark = _start(f"spark and {chosen}", folder)
        signal.signal(signal.SIGTERM, lambda *_: _terminate(others, with_spark))
        # Ctrl-C reaches all three; each of the two cleans up after itself.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        codes = [with_spark.wait(), others.wait()]
    _say(f"\n{'=' * 20} the tests without a Spark session {'=' * 20}\n\n{output.read_text()}")
    return next(filter(None, codes), 0) or _judge(folder)


def _terminate(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        process.terminate()


def _start(marker: str, folder: Path, **streams: object) -> subprocess.Popen[bytes]:
    counts = folder / f"{marker}.json"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--durations=12",
        "-m",
        marker,
        "-o",
        f"cache_dir=.pytest_cache/{marker}",
    ]
    return subprocess.Popen(command, env={**os.environ, COUNTS_FILE: str(counts)}, **streams)  # type: ignore[call-overload,no-any-return]


def _judge(folder: Path) -> int:
    """Together they must have tested on each backend; what was skipped is counted."""
    carried_out: Counter[str] = Counter()
    for counts in folder.glob("*.json"):
        carried_out.update(json.loads(counts.read_text()))
    on_backends = ", ".join(f"{carried_out[name]} on {name}" for name in BACKENDS)
    _say(f"All tests: {on_backends}; {carried_out[SKIPPED]} skipped.")
    left_out = [name for name in BACKENDS if not carried_out[name]]
    for name in left_out:
        _say(f"FAILED: no test marked '{name}' was carried out.")
    return 1 if left_out else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
