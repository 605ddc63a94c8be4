"""Shows that each option's test would fail if the option were ignored:
``python -m tests.ignored_options [KEY …]``.

Each test of ``option_tests.toml`` is carried out as it is, which must succeed, and once more for each
of its options with the option dropped when it is parsed, as if nobody had written it, which must
fail. ``--quick``, as the tests do it: only the second, since the first are tests like any other, and
without those that take their time to fail.
"""

from __future__ import annotations

import sys
import tomllib
from collections import defaultdict
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyspark_rocketmq.options import declare as option_set
from pyspark_rocketmq.options.declare import OptionSpec

TABLE = Path(__file__).parent / "option_tests.toml"
QUICK = "--quick"
SLOW = frozenset(
    {"namespace", "offsetStore", "requestTimeoutMs", "retryTimeoutMs", "routeRefreshMs", "subscriptions"}
)
"""Keys whose tests wait, without them, for what does not come."""


def load_table() -> dict[str, dict[str, str]]:
    """The node id of a test by what the option is of, ``reading`` or ``writing``, and its key."""
    return tomllib.loads(TABLE.read_text())


@contextmanager
def ignored(key: str) -> Iterator[None]:
    """An option has no effect meanwhile: it is parsed, and its default is what comes of it."""
    original = option_set._parse_values

    def parse_values(
        raw: Mapping[str, object], specs: Mapping[str, tuple[str, OptionSpec]]
    ) -> tuple[dict[str, Any], list[str]]:
        values, problems = original(raw, specs)
        if key.lower() in specs:
            values.pop(specs[key.lower()][0], None)
        return values, problems

    option_set._parse_values = parse_values
    try:
        yield
    finally:
        option_set._parse_values = original


class WithoutEach:
    """A pytest plugin that carries out tests without each of their options,
    and has them fail if they succeed.
    """

    def __init__(self, keys_of: Mapping[str, Collection[str]], *, as_they_are: bool) -> None:
        """``keys_of`` are options by the node id of their test; ``as_they_are``:
        tests with all options come first.
        """
        self._keys_of = keys_of
        self._as_they_are = as_they_are
        self._key_of: dict[pytest.Item, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        without = [self._without(item, key) for item in items for key in sorted(self._keys_of[item.nodeid])]
        items[:] = [*(items if self._as_they_are else ()), *without]

    def _without(self, item: pytest.Item, key: str) -> pytest.Item:
        assert isinstance(item, pytest.Function)
        another = pytest.Function.from_parent(
            item.parent,
            name=f"{item.name}-without-{key}",
            callspec=getattr(item, "callspec", None),
            callobj=item.obj,
            fixtureinfo=item._fixtureinfo,
            originalname=f"{item.originalname}-without-{key}",
        )
        self._key_of[another] = key
        return another

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        key = self._key_of.get(item)
        if key is None:
            return (yield)
        with ignored(key):
            try:
                yield
            except (Exception, pytest.fail.Exception):  # noqa: BLE001 - however it fails
                return None
        raise AssertionError(f"{item.nodeid} succeeds although option {key} is ignored")


def main(arguments: list[str]) -> int:
    """Try the tests of the options named, by default of all; pytest's exit code."""
    keys, is_quick = set(arguments) - {QUICK}, QUICK in arguments
    keys_of: dict[str, set[str]] = defaultdict(set)
    for tests in load_table().values():
        for key, test in tests.items():
            if (not keys or key in keys) and not (is_quick and key in SLOW):
                keys_of[test].add(key)
    plugin = WithoutEach(dict(keys_of), as_they_are=not is_quick)
    return int(pytest.main(["-q", "-p", "no:cacheprovider", "--durations=12", *keys_of], plugins=[plugin]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
