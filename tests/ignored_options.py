"""Shows that each option's test would fail if the option were ignored: ``python -m tests.ignored_options [KEY …]``.

Each test of ``option_tests.toml`` is carried out as it is, which must succeed, and with its option dropped before it is
parsed, as if nobody had written it, which must fail.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pyspark_rocketmq import option_set

TABLE = Path(__file__).parent / "option_tests.toml"


def load_table() -> dict[str, dict[str, str]]:
    """The node id of a test by what the option is of, ``reading`` or ``writing``, and its key."""
    return tomllib.loads(TABLE.read_text())


class Ignoring:
    """A pytest plugin under which an option has no effect: it is parsed, and its default is what comes of it."""

    def __init__(self, key: str) -> None:
        self._key = key.lower()

    def pytest_sessionstart(self) -> None:
        self._original = option_set._parse_values
        option_set._parse_values = self._parse_values

    def pytest_sessionfinish(self) -> None:
        option_set._parse_values = self._original

    def _parse_values(
        self, raw: Mapping[str, str], specs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[str]]:
        values, problems = self._original(raw, specs)
        if self._key in specs:
            values.pop(specs[self._key][0], None)
        return values, problems


def main(keys: list[str]) -> int:
    """Try the tests of these options, by default of all; how many did not show anything."""
    silent = 0
    for kind, tests in load_table().items():
        for key, test in tests.items():
            if not keys or key in keys:
                silent += not _is_shown(kind, key, test)
    return silent


def _is_shown(kind: str, key: str, test: str) -> bool:
    with_it, without_it = _outcome(test), _outcome(test, Ignoring(key))
    is_shown = with_it == pytest.ExitCode.OK and without_it == pytest.ExitCode.TESTS_FAILED
    sys.stdout.write(
        f"{'ok    ' if is_shown else 'SILENT'} {kind} {key:32} {test} {with_it!r} {without_it!r}\n"
    )
    sys.stdout.flush()
    return is_shown


def _outcome(node_id: str, *plugins: object) -> int:
    with contextlib.redirect_stdout(io.StringIO()):
        return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", node_id], plugins=list(plugins)))


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
