"""The tests of a module as pytest finds them, with their parameters: without running any."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_NOT_RUN = ("skip", "skipif", "xfail", "long")


def parameters_of(session: pytest.Session, test: str) -> list[Mapping[str, Any]]:
    """Return the parameters of each item of ``tests/folder/module.py::Class::function``.

    An item that is skipped, expected to fail, or left to the long tests does not count.
    """
    file, _, name = test.partition("::")
    return [
        item.callspec.params if hasattr(item, "callspec") else {}
        for item in _items(session, _ROOT / file)
        if item.nodeid.partition("::")[2].partition("[")[0] == name
        and not any(map(item.get_closest_marker, _NOT_RUN))
    ]


def sources_of(session: pytest.Session, file: str) -> list[str]:
    """Return the text of each test of a module that runs."""
    functions = {
        item.function: inspect.getsource(item.function)
        for item in _items(session, _ROOT / file)
        if isinstance(item, pytest.Function) and not any(map(item.get_closest_marker, _NOT_RUN))
    }
    return list(functions.values())


def _items(session: pytest.Session, path: Path) -> list[pytest.Item]:
    cache = session.stash.setdefault(_COLLECTED, {})
    if path not in cache:
        cache[path] = list(_walk(pytest.Module.from_parent(session, path=path)))
    return cache[path]


_COLLECTED = pytest.StashKey[dict[Path, list[pytest.Item]]]()


def _walk(collector: pytest.Collector) -> Iterator[pytest.Item]:
    for node in collector.collect():
        if isinstance(node, pytest.Item):
            yield node
        elif isinstance(node, pytest.Collector):
            yield from _walk(node)
