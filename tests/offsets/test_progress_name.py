"""Names under which progress is stored: parts in, parts out."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.offsets.store import ProgressName


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("etl", ProgressName("", "etl")),
        ("shop%etl", ProgressName("shop", "etl")),
        ("etl@one", ProgressName("", "etl", "one")),
        ("shop%etl@one", ProgressName("shop", "etl", "one")),
        ("etl@50%off", ProgressName("", "etl", "50%off")),
    ],
)
def test_a_stored_name_tells_namespace_group_and_instance(text: str, name: ProgressName) -> None:
    """A6, B3: groups of one name in two namespaces may share a store; each broadcasting instance stands alone."""
    assert ProgressName.parse(text) == name
    assert str(name) == text
