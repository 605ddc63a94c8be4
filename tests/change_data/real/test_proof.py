"""Change tables equal the tables of a real PostgreSQL, fed by Debezium's engine through a real RocketMQ."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.change_data.real.proof import LakeTable, prove
from tests.change_data.real.source_tables import DOCUMENTS, ORDERS

pytestmark = [pytest.mark.long, pytest.mark.real, pytest.mark.driver, pytest.mark.timeout(1500)]


def test_tables_equal_those_of_postgresql(tmp_path: Path) -> None:
    """K1, K5: swapped and repeated messages, unchanged big values, interleaved transactions, a new column.

    Meanwhile applications, brokers and Debezium are killed. The order of queues gives other tables, so
    differences are seen.
    """
    tables = (LakeTable(ORDERS), LakeTable(ORDERS, has_history=True), LakeTable(DOCUMENTS))
    wrong, by_queue, counts = prove(tmp_path, seed=7, seconds=60, tables=tables, by_queue=True)

    assert wrong == []
    assert by_queue
    assert counts["rows of orders"] > 0
    assert counts["versions of orders"] > counts["rows of orders"]
    assert counts["messages"] > counts["committed transactions"]
