"""Names under which progress is stored: parts in, parts out."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.offsets.store import OffsetKey


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("etl", OffsetKey("", "etl")),
        ("shop%etl", OffsetKey("shop", "etl")),
        ("etl@one", OffsetKey("", "etl", "one")),
        ("shop%etl@one", OffsetKey("shop", "etl", "one")),
        ("etl@50%off", OffsetKey("", "etl", "50%off")),
    ],
)
def test_a_stored_name_has_namespace_group_and_instance(text: str, name: OffsetKey) -> None:
    """A6, B3: groups of one name in two namespaces may share a store;
    each broadcasting instance stands by itself.
    """
    assert OffsetKey.parse(text) == name
    assert str(name) == text
