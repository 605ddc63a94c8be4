"""The example with an external database: every payment counts once."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from examples.accounts_in_a_database import AccountsInDatabase
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeOrderlyStatus, Message, MessageExt
from tests.end_to_end.test_orderly_consumer import Consumption
from tests.helpers.cluster import REAL_ONLY, ClusterUnderTest
from tests.helpers.sending import patient_producer

pytestmark = pytest.mark.spark

_ACCOUNTS = "abcde"
_EACH = 40


class DyingAccounts(AccountsInDatabase):
    """Kills its worker (-9, as far as anybody can see) once,
    after the database has the payments and nobody knows.
    """

    def __init__(self, path: str, marker: str) -> None:
        super().__init__(path)
        self._marker = marker

    def consume_message(
        self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        status: ConsumeOrderlyStatus = super().consume_message(messages, context)
        if messages[-1].queue_offset >= 5 and not Path(self._marker).exists():
            Path(self._marker).touch()
            os._exit(9)
        return status


@pytest.mark.long
@REAL_ONLY
def test_every_payment_counts_once_though_a_worker_dies_and_the_group_begins_again(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """H6: delivered twice after a death,
    and all of it again after the offsets and the checkpoint are gone.
    """
    consumption = Consumption(spark, cluster, tmp_path, cluster.create_topic(queues=2), "direct")
    with patient_producer(cluster.name_servers) as producer:
        for number in range(_EACH * len(_ACCOUNTS)):
            account = _ACCOUNTS[number % len(_ACCOUNTS)]
            body = json.dumps({"account": account, "amount": number}).encode()
            producer.send(Message(topic=consumption.topic, body=body, properties={"KEYS": account}))
    database = str(tmp_path / "accounts.sqlite")
    expected = {
        account: sum(range(at, _EACH * len(_ACCOUNTS), len(_ACCOUNTS)))
        for at, account in enumerate(_ACCOUNTS)
    }

    with pytest.raises(StreamingQueryException):
        consumption.drain(DyingAccounts(database, str(tmp_path / "died")))
    consumption.drain(AccountsInDatabase(database))
    assert _balances(database) == expected

    (tmp_path / "again").mkdir()
    again = Consumption(spark, cluster, tmp_path / "again", consumption.topic, "direct")
    again.drain(AccountsInDatabase(database))
    assert sum(again.next_offsets().values()) == _EACH * len(_ACCOUNTS)
    assert _balances(database) == expected


def _balances(database: str) -> dict[str, int]:
    with sqlite3.connect(database) as connection:
        return dict(connection.execute("SELECT account, balance FROM accounts"))
