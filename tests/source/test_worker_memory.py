from __future__ import annotations

import gc
import importlib
import os
import sys
import zipfile
import zipimport
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext

from pyspark_rocketmq.source import reader
from pyspark_rocketmq.source.reader import freeze_gc_after
from pyspark_rocketmq.spark import version


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


def _archive(path: Path, number: int, *modules: str) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name in modules:
            file.writestr(f"{name}.py", f"NUMBER = {number}\n")
    os.utime(path, (number, number))


def test_archives_of_modules_are_read_again_only_where_they_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark before 4.2 has Python forget all of them before each task."""
    same, changed = tmp_path / "same.zip", tmp_path / "changed.zip"
    _archive(same, 1, "in_the_same_archive")
    _archive(changed, 1, "in_the_changed_archive")
    monkeypatch.setattr(sys, "path", [str(same), str(changed), *sys.path])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    assert importlib.import_module("in_the_same_archive").NUMBER == 1
    assert importlib.import_module("in_the_changed_archive").NUMBER == 1
    read: list[str] = []
    real = zipimport.zipimporter.invalidate_caches

    def counted(self: Any) -> None:
        read.append(Path(self.archive).name)
        real(self)

    monkeypatch.setattr(zipimport.zipimporter, "invalidate_caches", counted)
    monkeypatch.setattr(TaskContext, "get", classmethod(lambda _: object()))
    monkeypatch.setattr(version, "SPARK_PASSES_TRIGGER", False)
    assert list(freeze_gc_after(iter([1]))) == [1]

    importlib.invalidate_caches()
    assert read == []

    _archive(changed, 2, "in_the_changed_archive", "new_in_it")
    importlib.invalidate_caches()
    assert list(freeze_gc_after(iter([1]))) == [1]
    importlib.invalidate_caches()
    assert read == ["changed.zip"]
    assert importlib.import_module("new_in_it").NUMBER == 2


def test_newer_sparks_forget_nothing_so_archives_are_left_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _archive(tmp_path / "some.zip", 1, "in_some_archive")
    monkeypatch.setattr(TaskContext, "get", classmethod(lambda _: object()))
    monkeypatch.setattr(version, "SPARK_PASSES_TRIGGER", True)
    finder = zipimport.zipimporter(str(tmp_path / "some.zip"))
    monkeypatch.setattr(sys, "path_importer_cache", {"archive": finder})

    assert list(freeze_gc_after(iter([1]))) == [1]

    assert "invalidate_caches" not in vars(finder)
