"""Statements that take columns away."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.change_data.statements import removed_columns


@pytest.mark.parametrize(
    ("statement", "removed"),
    [
        ("alter table `shop`.`orders` drop column a, add b int", ("a",)),
        ("ALTER TABLE orders DROP INDEX a, DROP PRIMARY KEY, DROP `b`", ("b",)),
        ("/* x */ ALTER TABLE o CHANGE COLUMN a b int, CHANGE c C bigint", ("a",)),
        ("ALTER TABLE o RENAME COLUMN `a``b` TO c, RENAME INDEX i TO j", ("a`b",)),
        ("ALTER TABLE o RENAME TO p", ()),
        ("ALTER TABLE o RENAME p, DROP COLUMN a", ("a",)),
        ("ALTER TABLE o RENAME `column`", ()),
        ("ALTER TABLE o RENAME = s.p", ()),
        ("ALTER TABLE o RENAME COLUMN IF EXISTS a TO b", ("a",)),
        ("ALTER TABLE o DROP IF EXISTS `key`, DROP KEY a", ("key",)),
        ("ALTER TABLE o ADD x decimal(10,2) COMMENT 'no, DROP b' # DROP c", ()),
        ("ALTER TABLE o ADD (x int, y int), DROP COLUMN IF EXISTS z;", ("z",)),
        ("ALTER TABLE IF EXISTS o MODIFY a bigint", ()),
        ("CREATE TABLE o (a int)", ()),
        ("DROP TABLE a", ()),
        ("alter", ()),
        ("", ()),
    ],
)
def test_the_columns_that_a_statement_takes_away(statement: str, removed: tuple[str, ...]) -> None:
    """K3: dropped and renamed ones, whatever else the statement has."""
    assert removed_columns(statement) == removed
