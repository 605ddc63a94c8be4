"""Counts the tests that ran on each backend, so that a green run cannot have left the real broker out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

BACKENDS = ("sim", "real")


class BackendCounts:
    """A pytest plugin: prints the counts and, when ``is_strict``, fails a run whose real tests never ran."""

    def __init__(self, *, is_strict: bool) -> None:
        self._is_strict = is_strict
        self._selected: Counter[str] = Counter()
        self._executed: Counter[str] = Counter()

    def select(self, markers_of_tests: Iterable[Iterable[str]]) -> None:
        """Note the tests of this run, deselected ones left out, each by the names of its markers."""
        for markers in markers_of_tests:
            self._selected.update(set(markers).intersection(BACKENDS))

    @property
    def has_skipped_the_real_broker(self) -> bool:
        """Whether tests of the real broker were chosen but not one was carried out."""
        return self._selected["real"] > 0 and self._executed["real"] == 0

    def summary(self) -> str:
        """One sentence with the counts."""
        counts = (f"{self._executed[name]} of {self._selected[name]} on {name}" for name in BACKENDS)
        return f"Tests run by backend: {', '.join(counts)}."

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count what is left after deselection."""
        if not session.config.option.collectonly:
            self.select([marker.name for marker in item.iter_markers()] for item in session.items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test whose body was entered, whatever came of it; a skip inside it is not a run."""
        if report.when == "call" and not report.skipped:
            self._executed.update(set(report.keywords).intersection(BACKENDS))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Turn a run without the real broker into a failed one where that matters."""
        if self._is_strict and self.has_skipped_the_real_broker:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the counts and, if need be, why the run has failed."""
        if not self._selected:
            return
        terminalreporter.write_line(self.summary())
        if self._is_strict and self.has_skipped_the_real_broker:
            terminalreporter.write_line(
                "FAILED: no test marked 'real' was carried out, and CI is set: the real broker must be tested.",
                red=True,
            )
