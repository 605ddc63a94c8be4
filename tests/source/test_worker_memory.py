from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from pyspark import TaskContext

from pyspark_rocketmq.source import reader
from pyspark_rocketmq.source.reader import freeze_gc_after


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reader, "_is_frozen", False)
    # What the tests' own process has frozen; see tests/conftest.py.
    gc.unfreeze()
    yield
    gc.freeze()


def test_a_worker_no_longer_looks_at_what_its_first_task_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", classmethod(lambda _: object()))
    rows = freeze_gc_after(iter([1, 2]))

    assert next(rows) == 1
    assert gc.get_freeze_count() == 0
    assert list(rows) == [2]
    frozen = gc.get_freeze_count()
    assert frozen > 0
    assert list(freeze_gc_after(iter([3]))) == [3]
    assert gc.get_freeze_count() <= frozen


def test_another_process_is_left_as_it_is() -> None:
    assert list(freeze_gc_after(iter([1, 2]))) == [1, 2]
    assert gc.get_freeze_count() == 0
