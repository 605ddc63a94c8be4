"""Lets several processes that collected the same tests share them, file by file."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.real_broker.harness import RealCluster

TAKEN_FOLDER = "TAKEN_FILES_FOLDER"
"""Environment variable: folder in which processes that share tests note the files they take."""
PART = "PART"
"""Environment variable: which part of the files to run, such as ``2/3``; unset or empty for all."""
RUN = "run"
"""Name of the number of tests that were run, among the counts that a process leaves."""

REAL_CLUSTER = pytest.StashKey[RealCluster]()
"""The run's real RocketMQ, while it runs."""
LONGEST = (
    "tests/end_to_end/test_connect.py",
    "tests/end_to_end/test_kill_with_spark_s_writer.py",
    "tests/packaging/test_clusters.py",
    "tests/end_to_end/test_kill.py",
    "tests/end_to_end/test_secrets.py",
    "tests/sinks/delta/test_by_name.py",
    "tests/packaging/test_kubernetes.py",
    "tests/notebooks/test_notebooks.py",
    "tests/guarantees/test_storage.py",
    "tests/guarantees/test_processes.py",
    "tests/java/test_beside_spark.py",
    "tests/end_to_end/test_orderly_consumer.py",
    "tests/sinks/delta/test_by_spark.py",
    "tests/applications/test_handover.py",
    "tests/guarantees/test_random_histories.py",
    "tests/packaging/test_stopped_job.py",
    "tests/docs/test_quickstart.py",
    "tests/docs/test_snippets.py",
    "tests/consumer/test_orderly_explored.py",
    "tests/suite/test_option_tests.py",
)
"""Files that take a minute or more, the longest first: begun last, one of them would be waited for."""


class Part(NamedTuple):
    """One of several parts of the files, such as the second of three; without arguments all files."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Part:
        """Read ``2/3``; an empty text means all files.

        Raises:
            ValueError: If it is no part.
        """
        if not text:
            return cls()
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ValueError(f"PART={text} is none: write 2/3 for the second of three parts.")
        return cls(int(found[1]), int(found[2]))

    def has(self, name: str) -> bool:
        """Return whether a file is in this part; each file is in one, whatever other files there are."""
        return zlib.crc32(name.encode()) % self.of == self.number - 1


ALL_FILES = Part()


class Taken:
    """Folder in which processes note the files that they take."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._collected = folder / "collected"

    def begin(self, tests: int, files: Sequence[str]) -> None:
        """Note all files; processes that start later may have collected only those that were left."""
        self._folder.mkdir(exist_ok=True)
        if not self._collected.exists():
            part = self._folder / f"collected.{os.getpid()}"
            part.write_text(json.dumps({"tests": tests, "files": files}))
            part.replace(self._collected)

    def take(self, name: str) -> bool:
        """Take a file; False when another process has taken it."""
        try:
            self._note(name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def end(self, tests: int) -> None:
        """Note how many tests this process has run."""
        self._folder.mkdir(exist_ok=True)
        (self._folder / f"{os.getpid()}.json").write_text(json.dumps({RUN: tests}))

    def collected(self) -> int:
        """Return the number of tests to run; 0 before :meth:`begin`."""
        return int(json.loads(self._collected.read_text())["tests"]) if self._collected.exists() else 0

    def left(self) -> list[str] | None:
        """Return the files that no process has taken; None if no process has noted any files."""
        if not self._collected.exists():
            return None
        files = json.loads(self._collected.read_text())["files"]
        return [name for name in files if not self._note(name).exists()]

    def _note(self, name: str) -> Path:
        return self._folder / f"{name.replace('/', '+')}.taken"


class TakenFiles:
    """A pytest plugin: runs the tests of each file that no other process has taken, the longest ones first.

    Then come those with tests on the real RocketMQ, and after the last of them its servers end: even without
    any request each broker takes a twentieth of a core.
    """

    def __init__(self, taken: Taken, part: Part = ALL_FILES) -> None:
        self._taken = taken
        self._part = part
        self._run = 0
        self._real_left: set[str] = set()
        """Files with tests on the real RocketMQ that this process has not come to the end of."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run the files that can be taken; pytest's own loop reports errors of collection."""
        if session.testsfailed or session.config.option.collectonly:
            return None
        files = [each for each in in_order(session.items) if self._part.has(each[0])]
        self._taken.begin(sum(len(items) for _, items in files), [name for name, _ in files])
        self._real_left = {name for name, items in files if has_real(items)}
        items = self._items(files)
        item = next(items, None)
        while item is not None:
            # Take the next file before the last test of this one: pytest ends fixtures by the next test.
            following = next(items, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self._run += 1
            if not self._real_left and not (following is not None and is_real(following)):
                self._end_real(session.config)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following
        return True

    def pytest_sessionfinish(self) -> None:
        """Leave the number of tests that were run."""
        self._taken.end(self._run)

    def _items(self, files: Iterable[tuple[str, Sequence[pytest.Item]]]) -> Iterator[pytest.Item]:
        for name, items in files:
            if self._taken.take(name):
                yield from items
            self._real_left.discard(name)

    def _end_real(self, config: pytest.Config) -> None:
        cluster = config.stash.get(REAL_CLUSTER, None)
        if cluster is not None:
            del config.stash[REAL_CLUSTER]
            cluster.close()


def in_order(items: Iterable[pytest.Item]) -> list[tuple[str, Sequence[pytest.Item]]]:
    """Group the tests by file: the longest files first, then those with tests on the real RocketMQ."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    first = [name for name in LONGEST if name in files]
    others = sorted((name for name in files if name not in first), key=lambda name: not has_real(files[name]))
    return [(name, files[name]) for name in (*first, *others)]


def has_real(items: Iterable[pytest.Item]) -> bool:
    """Return whether one of the tests needs the real RocketMQ."""
    return any(map(is_real, items))


def is_real(item: pytest.Item) -> bool:
    """Return whether a test needs the real RocketMQ."""
    return item.get_closest_marker("real") is not None
