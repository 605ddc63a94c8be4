"""The tests in several processes at a time, each of which takes the next file that no other has taken.

    python -m tests.at_once           # what `make test` runs: the tests that are not marked ``long``
    python -m tests.at_once --sparks  # what CI runs: the same, and `make spark-test` for the oldest and newest
    python -m tests.at_once --long    # what `make long-test` runs: those that are, and the rest of `spark-test`
    python -m tests.at_once --all     # what `make all-tests` runs: all of them

Much of their time is waited for, so they use both cores of a small machine only together. A process has a
Spark session or never has one; whoever finds nothing left of its kind starts another process for the other
kind. Each has clusters of its own. With arguments for pytest, one process runs what they choose. With
``PART=2/3`` in the environment only the second of three parts of the files is run; the first part has the
other Sparks.

A run that takes too long fails: each process prints the stacks of its threads, and is ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.helpers.backend_counts import BACKENDS, COUNTS_FILE, SKIPPED
from tests.helpers.stacks import ASKS_FOR_STACKS
from tests.helpers.taken_files import ALL_FILES, PART, RUN, TAKEN_FOLDER, Part, Taken

_SHORT = "not long"
_CHOICES = {"--sparks": _SHORT, "--long": "long", "--all": "(long or not long)"}
"""Options, and the tests that they choose."""
_SPARK_TEST = ("make", "--no-print-directory", "spark-test")
_OTHERS = {
    "--sparks": (*_SPARK_TEST, "SPARKS=4.0 4.3", "ENDS=--ends"),
    "--long": (*_SPARK_TEST, "SPARKS=4.1"),
    "--all": _SPARK_TEST,
}
"""Options, and the command that tries other Sparks and Pythons beside the tests."""
_WITH_SPARK, _WITHOUT = "spark", "not spark"
_LONGEST_S = 80 * 60.0
"""Maximum duration of a run without the long tests."""
_LONGEST_WITH_WORLDS_S = 180 * 60.0
"""The same with the long tests, which have the worlds of ``tests.simulation``."""
_STACKS_S, _END_S = 5.0, 60.0
"""Time for a process to print its stacks, and then to end before it is killed."""


def main(arguments: list[str]) -> int:
    """Run pytest; its exit code, or of several processes the first that is not 0."""
    options = [each for each in arguments if each in _CHOICES]
    chosen = _CHOICES[options[0]] if options else _SHORT
    for_pytest = [each for each in arguments if each not in _CHOICES]
    if for_pytest:
        marker = ["-m", chosen] if options else []
        return subprocess.call([sys.executable, "-m", "pytest", *marker, *for_pytest])
    is_first = _part().number == 1
    with TemporaryDirectory(prefix="tests-") as folder:
        return _run(chosen, Path(folder), _OTHERS[options[0]] if options and is_first else None)


def _part() -> Part:
    return Part.parse(os.environ.get(PART, ""))


def _run(chosen: str, folder: Path, others: Sequence[str] | None = None) -> int:
    lines = [Line("with Spark", folder, chosen), Line("without Spark", folder, chosen)]
    of_kinds: list[list[str | Sequence[str]]] = [[_WITH_SPARK, _WITHOUT], [_WITHOUT, _WITH_SPARK]]
    if others is not None:
        lines.append(Line("other Sparks", folder, chosen))
        of_kinds.append([others, _WITHOUT, _WITH_SPARK])
    elif chosen != _SHORT:
        # The long tests wait more than others, for processes that die or fall silent.
        lines.append(Line("also without Spark", folder, chosen))
        of_kinds.append([_WITHOUT, _WITH_SPARK])

    def on_signal(number: int, _: object) -> None:
        for line in lines:
            # Ctrl-C reaches all processes, and each cleans up after itself.
            line.end(terminate=number == signal.SIGTERM)

    # Not SIG_IGN, which the processes would inherit.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    for line, steps in zip(lines, of_kinds, strict=True):
        line.start(steps, shown=line is lines[0])
    longest_s = _LONGEST_S if chosen == _SHORT else _LONGEST_WITH_WORLDS_S
    took_too_long = _end_within(longest_s, lines)
    codes = [line.wait() for line in lines]
    return next(filter(None, codes), 0) or int(took_too_long) or _judge(folder)


def _end_within(longest_s: float, lines: Sequence[Line]) -> bool:
    """Wait for the lines, and end those that take longer; whether one did."""
    end_s = time.monotonic() + longest_s
    late = [line for line in lines if not line.has_ended_within(end_s - time.monotonic())]
    for line in late:
        _say(f"FAILED: {line.name} was not done after {longest_s / 60:g} minutes.")
        line.end_where_it_stands()
    return bool(late)


class Line:
    """Steps that run one after another beside those of other lines: commands, and kinds of tests."""

    def __init__(self, name: str, folder: Path, chosen: str) -> None:
        self.name = name
        self._folder = folder
        self._chosen = chosen
        self._output = folder / f"{name}.output"
        self._is_shown = False
        self._ends = threading.Event()
        self._running: subprocess.Popen[bytes] | None = None
        self._codes: list[int] = []
        self._thread: threading.Thread | None = None

    def start(self, steps: Sequence[str | Sequence[str]], *, shown: bool) -> None:
        """Begin; the output is ``shown`` as it comes, or by :meth:`wait`."""
        self._is_shown = shown
        self._thread = threading.Thread(target=self._run, args=(steps,), name=self.name)
        self._thread.start()

    def wait(self) -> int:
        """Wait for the last step; the first exit code that is not 0."""
        assert self._thread is not None
        self._thread.join()
        if not self._is_shown:
            _say(f"\n{'=' * 20} {self.name} {'=' * 20}\n\n{self._output.read_text(errors='replace')}")
        return next(filter(None, self._codes), 0)

    def has_ended_within(self, seconds: float) -> bool:
        """Wait for the last step; whether it ended in time."""
        assert self._thread is not None
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def end_where_it_stands(self) -> None:
        """Have the tests that run print their stacks to standard error, and end them; make prints none."""
        running = self._running
        self._ends.set()
        if running is None:
            return
        if "pytest" in running.args:  # type: ignore[operator]
            running.send_signal(ASKS_FOR_STACKS)
            time.sleep(_STACKS_S)
        running.terminate()
        if not self.has_ended_within(_END_S):
            running.kill()

    def end(self, *, terminate: bool) -> None:
        """Begin no other step, and perhaps end the one that runs."""
        self._ends.set()
        if terminate and self._running is not None:
            self._running.terminate()

    def _run(self, steps: Sequence[str | Sequence[str]]) -> None:
        with self._output.open("wb") as file:
            stdout = None if self._is_shown else file
            for number, step in enumerate(steps):
                if not isinstance(step, str):
                    self._call(step, os.environ, stdout)
                    continue
                left = Taken(self._folder / step).left() if number else None
                if left is None or left:
                    command = _pytest(step, self._chosen, self.name, left or ())
                    self._call(command, self._environment(step), stdout)

    def _call(self, command: Sequence[str], environment: Mapping[str, str], stdout: object) -> None:
        if self._ends.is_set():
            return
        with subprocess.Popen(command, env=environment, stdout=stdout) as self._running:  # type: ignore[call-overload]
            # Asked to end while it was started.
            if self._ends.is_set():
                self._running.terminate()
            self._codes.append(self._running.wait())

    def _environment(self, kind: str) -> Mapping[str, str]:
        counts = self._folder / f"{self.name} {kind}.json"
        return {**os.environ, COUNTS_FILE: str(counts), TAKEN_FOLDER: str(self._folder / kind)}


def _pytest(kind: str, chosen: str, line: str, files: Sequence[str]) -> list[str]:
    return [
        sys.executable,
        "-m",
        "pytest",
        "--durations=12",
        "-m",
        f"{kind} and {chosen}",
        "-o",
        # It shows how much of everything has been run, and this process runs only a part.
        "console_output_style=classic",
        "-o",
        f"cache_dir=.pytest_cache/{line} {kind}",
        *files,
    ]


def _judge(folder: Path) -> int:
    """Together they must have run everything and tested on each backend; what was skipped is counted."""
    carried_out: Counter[str] = Counter()
    for counts in folder.rglob("*.json"):
        carried_out.update(json.loads(counts.read_text()))
    on_backends = ", ".join(f"{carried_out[name]} on {name}" for name in BACKENDS)
    _say(f"All {carried_out[RUN]} tests: {on_backends}; {carried_out[SKIPPED]} skipped.")
    # A part need not have tests of each.
    expected = BACKENDS if _part() == ALL_FILES else ()
    left_out = [f"no test marked '{name}' was carried out." for name in expected if not carried_out[name]]
    collected = sum(Taken(folder / kind).collected() for kind in (_WITH_SPARK, _WITHOUT))
    if carried_out[RUN] != collected:
        left_out.append(f"of {collected} tests {carried_out[RUN]} were run.")
    for reason in left_out:
        _say(f"FAILED: {reason}")
    return 1 if left_out else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
