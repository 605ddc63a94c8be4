"""A table in a catalog between two looks; the catalog is a list of commits, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.delta.history import CatalogHistory
from pyspark_rocketmq.delta.paths import TableName
from pyspark_rocketmq.delta.storage_options import NO_OPTIONS
from pyspark_rocketmq.sinks.delta.catalog import CatalogSnapshot

_NAME = TableName(("spark_catalog", "shop", "orders"))


class _Table:
    """A table's commits and its id, as Spark shows them."""

    def __init__(self, versions: int) -> None:
        self.id = "first"
        self.commits: list[dict[str, Any]] = []
        for _ in range(versions):
            self.commit("WRITE", mode="Append")

    def commit(self, operation: str, *, by: str = "", **parameters: str) -> None:
        at = len(self.commits)
        self.commits.append(
            {
                "version": at,
                "timestamp": at * 1_000_000,
                "operation": operation,
                "operationParameters": parameters,
                "userMetadata": by,
            }
        )

    def read(self, limit: int | None) -> list[dict[str, Any]]:
        return self.commits[::-1][:limit]

    def table(self, name: str) -> Any:
        return SimpleNamespace(schema=StructType())

    def sql(self, statement: str) -> Any:
        return SimpleNamespace(collect=lambda: [{"id": self.id}])

    def look(self) -> CatalogSnapshot:
        history = CatalogHistory(str(_NAME), NO_OPTIONS, self.read)
        return CatalogSnapshot(self, _NAME, history, {"id": self.id})  # type: ignore[arg-type]


@pytest.mark.parametrize("later", [1, 2, 30])
def test_a_folder_that_was_put_back_is_noticed_although_others_have_committed_since(later: int) -> None:
    """H7, J7: the table's id is that of before, and its newest version is not lower."""
    table = _Table(3)
    seen = table.look()
    del table.commits[2:]
    for _ in range(later):
        table.commit("WRITE", by="another group", mode="Append")

    assert not seen.is_still_there()


@pytest.mark.parametrize(
    ("operation", "table_id", "is_there"),
    [("WRITE", "first", True), ("RESTORE", "first", True), ("REPLACE TABLE", "second", False)],
)
def test_after_later_commits_the_id_decides(operation: str, table_id: str, is_there: bool) -> None:
    """J7: a replaced table keeps the history."""
    table = _Table(3)
    seen = table.look()
    table.commit(operation)
    table.id = table_id

    assert seen.is_still_there() is is_there
    assert seen.may_have_newer()
