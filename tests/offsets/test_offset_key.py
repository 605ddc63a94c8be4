"""Names under which progress is stored and claimed: parts in, parts out."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.offsets.store import OffsetKey, client_id_of, new_owner


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


@pytest.mark.parametrize("client_id", ["host@one", "host@east/one", "host@42#1f2e", ""])
def test_each_run_of_a_query_claims_under_a_name_of_its_own(client_id: str) -> None:
    """C5, B3: two runs may have one client id; what an earlier release stored is only this."""
    one, two = new_owner(client_id), new_owner(client_id)

    assert one != two
    assert client_id_of(one) == client_id_of(two) == client_id_of(client_id) == client_id
