from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from pyspark import TaskContext

from pyspark_rocketmq.source import worker as worker_memory
from pyspark_rocketmq.source.worker import settled


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_memory, "_is_settled", False)
    yield
    gc.unfreeze()


def test_a_worker_no_longer_looks_at_what_its_first_task_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", classmethod(lambda _: object()))
    rows = settled(iter([1, 2]))

    assert next(rows) == 1
    assert gc.get_freeze_count() == 0
    assert list(rows) == [2]
    frozen = gc.get_freeze_count()
    assert frozen > 0
    assert list(settled(iter([3]))) == [3]
    assert gc.get_freeze_count() <= frozen


def test_another_process_is_left_as_it_is() -> None:
    assert list(settled(iter([1, 2]))) == [1, 2]
    assert gc.get_freeze_count() == 0
