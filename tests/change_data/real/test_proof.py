"""Change tables equal the tables of a real PostgreSQL, fed by Debezium's engine through a real RocketMQ."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.change_data.real.lake import QUERIES
from tests.change_data.real.proof import prove
from tests.change_data.real.source_tables import Alter

pytestmark = [pytest.mark.long, pytest.mark.real, pytest.mark.driver, pytest.mark.timeout(1500)]


def test_tables_equal_those_of_postgresql(tmp_path: Path) -> None:
    """K1, K5: swapped and repeated messages, unchanged big values, interleaved transactions, altered tables.

    Meanwhile applications, brokers and Debezium are killed. The order of queues gives other tables, so
    differences are seen.
    """
    wrong, by_queue, counts = prove(tmp_path, seed=7, seconds=60, queries=QUERIES, by_queue=True)

    assert wrong == []
    assert by_queue
    assert counts["rows in orders"] > 0
    assert counts["rows in all/carts"] > 0
    assert counts["versions in orders-history"] > counts["rows in orders"]
    assert counts["messages"] > counts["committed transactions"]
    happened = {
        *Alter,
        "keys changed",
        "moves to another shard",
        "sends swapped",
        "sends repeated",
        "messages without a big value",
        "messages by Canal's classes",
    }
    assert not {what for what in happened if counts[what] == 0}
