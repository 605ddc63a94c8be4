"""The whole suite in three processes at a time: tests with a Spark session, those that start Spark by themselves, all others.

Most tests wait for brokers and queries longer than they compute, so several at a time take little longer than the longest.
Each process has clusters of its own. With arguments, pytest runs as ever.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.helpers.backend_counts import BACKENDS, COUNTS_FILE

_WITH_SPARK = "spark"
_REST = {
    "start Spark by themselves": "driver and not spark",
    "need no Spark session": "not driver and not spark",
}
"""Markers of the other parts, whose output comes when all are done."""


def main(arguments: list[str]) -> int:
    """Run pytest; its exit code, or of several processes the first that is not 0."""
    if arguments:
        return subprocess.call([sys.executable, "-m", "pytest", *arguments])
    with TemporaryDirectory(prefix="tests-") as folder:
        return _run_all(Path(folder))


def _run_all(folder: Path) -> int:
    with ExitStack() as files:
        outputs = {what: files.enter_context((folder / what).open("wb")) for what in _REST}
        parts = [_start(marker, folder, stdout=outputs[what]) for what, marker in _REST.items()]
        parts.append(_start(_WITH_SPARK, folder))
        signal.signal(signal.SIGTERM, lambda *_: [each.terminate() for each in parts])
        # Ctrl-C reaches all of them; each cleans up after itself.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        codes = [each.wait() for each in parts]
    for what in _REST:
        _say(f"\n{'=' * 20} the tests that {what} {'=' * 20}\n\n{(folder / what).read_text()}")
    return next(filter(None, codes), 0) or _judge(folder)


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
    """Together they must have tested on each backend."""
    carried_out: Counter[str] = Counter()
    for counts in folder.glob("*.json"):
        carried_out.update(json.loads(counts.read_text()))
    _say(f"All tests: {', '.join(f'{carried_out[name]} on {name}' for name in BACKENDS)}.")
    left_out = [name for name in BACKENDS if not carried_out[name]]
    for name in left_out:
        _say(f"FAILED: no test marked '{name}' was carried out.")
    return 1 if left_out else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
