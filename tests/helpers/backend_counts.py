"""Counts the tests that ran on each backend, so that a green run cannot have left one of them out."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

BACKENDS = ("sim", "real", "java")
"""The simulator, the real broker, and Java's own clients on the simulator."""

COUNTS_FILE = "BACKEND_COUNTS_FILE"
"""Environment variable: file to which a partial run writes the numbers of tests that it ran and skipped on
each backend.
"""
SKIPPED = "skipped"


class BackendCounts:
    """A pytest plugin: prints the counts and, when ``is_strict``, fails a run that left a backend out.

    A backend is left out when tests of it were chosen but not one was carried out.
    A strict run of everything, nothing deselected, must also have chosen some of each.
    """

    def __init__(self, *, is_strict: bool) -> None:
        self._is_strict = is_strict
        self._is_everything = False
        self._backends_of: dict[str, frozenset[str]] = {}
        self._selected: Counter[str] = Counter()
        self._executed: Counter[str] = Counter()
        self._skipped = 0

    def select(self, markers_of_tests: Mapping[str, Iterable[str]], *, is_everything: bool = False) -> None:
        """Note the tests of this run, deselected ones left out: id to the names of its markers."""
        self._is_everything = is_everything
        self._backends_of = {
            test_id: frozenset(markers).intersection(BACKENDS)
            for test_id, markers in markers_of_tests.items()
        }
        for backends in self._backends_of.values():
            self._selected.update(backends)

    def carried_out(self, test_id: str) -> None:
        """Note that the test's body was entered."""
        self._executed.update(self._backends_of.get(test_id, ()))

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the backends that should have been tested and were not."""
        return tuple(
            name
            for name in BACKENDS
            if (self._selected[name] or self._is_everything) and not self._executed[name]
        )

    def summary(self) -> str:
        """Return one sentence with the counts."""
        counts = (f"{self._executed[name]} of {self._selected[name]} on {name}" for name in BACKENDS)
        return f"Tests run by backend: {', '.join(counts)}."

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count what is left after deselection."""
        config, option = session.config, session.config.option
        if not option.collectonly:
            is_whole_suite = config.args_source is pytest.Config.ArgsSource.TESTPATHS
            is_everything = is_whole_suite and not (option.keyword or option.markexpr)
            markers = {item.nodeid: [mark.name for mark in item.iter_markers()] for item in session.items}
            self.select(markers, is_everything=is_everything)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test whose body was entered, whatever its outcome; a skip inside it is not a run."""
        self._skipped += report.skipped
        # The report's keywords would not do: they include the names of folders.
        if report.when == "call" and not report.skipped:
            self.carried_out(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Turn a run without one of the backends into a failed one where that matters;
        leave the counts if asked to.
        """
        if COUNTS_FILE in os.environ:
            Path(os.environ[COUNTS_FILE]).write_text(json.dumps({**self._executed, SKIPPED: self._skipped}))
        if self._is_strict and self.left_out:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the counts and, if the run has failed, why."""
        if not self._selected and not self._is_everything:
            return
        terminalreporter.write_line(self.summary())
        if self._is_strict:
            for name in self.left_out:
                terminalreporter.write_line(
                    f"FAILED: no test marked '{name}' was carried out, and CI is set: "
                    "simulator, real broker and Java clients must all be tested.",
                    red=True,
                )
