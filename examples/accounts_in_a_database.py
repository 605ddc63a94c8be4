r"""Account balances in an external database: each message counts once, whatever is killed.

Messages are delivered at least once: a batch runs again when a worker or the driver dies after the listener's
work and before its commit. A balance must not count a message twice, so the database remembers which messages
it has, in the same transaction as their effect. A message's position (topic, broker, queue, offset) is its
only unique key: all messages of one producer batch have the same ``msg_id``.

SQLite here; for PostgreSQL write ``%s`` for ``?`` and connect with psycopg, the statements are the same.

    PYTHONPATH=. ./spark-submit.sh consume --option nameServers=… --option topic=payments \\
        --option listener=examples.accounts_in_a_database:listener …
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Sequence

from pyspark_rocketmq import ConsumeOrderlyContext, ConsumeOrderlyStatus, MessageExt

_BUSY_S = 30.0
_TABLES = """
CREATE TABLE IF NOT EXISTS accounts (account TEXT PRIMARY KEY, balance INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS consumed (
    topic TEXT, broker_name TEXT, queue_id INTEGER, queue_offset INTEGER,
    PRIMARY KEY (topic, broker_name, queue_id, queue_offset)
);
"""
_REMEMBER = "INSERT INTO consumed VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_ADD = """
INSERT INTO accounts VALUES (?, ?)
ON CONFLICT (account) DO UPDATE SET balance = accounts.balance + excluded.balance
"""


class AccountsInDatabase:
    """Adds payments, ``{"account": "a", "amount": 5}``, to balances; opened once per worker process."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path or os.environ.get("ACCOUNTS_DATABASE", "accounts.sqlite")

    def open(self, context: object) -> None:  # noqa: ARG002 - every listener gets it
        """Connect. What is opened here is never pickled."""
        self._connection = sqlite3.connect(self._path, timeout=_BUSY_S)
        self._connection.executescript(_TABLES)

    def consume_message(
        self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        """Use one transaction per delivery; an exception rolls it back, and the delivery is repeated."""
        with self._connection:
            for message in messages:
                if self._is_new(message):
                    payment = json.loads(message.body)
                    self._connection.execute(_ADD, (payment["account"], payment["amount"]))
        context.logger.debug("balances are up to date")
        return ConsumeOrderlyStatus.SUCCESS

    def close(self) -> None:
        """Close the connection; a worker that is killed does not call this."""
        self._connection.close()

    def _is_new(self, message: MessageExt) -> bool:
        position = (*message.message_queue, message.queue_offset)
        return self._connection.execute(_REMEMBER, position).rowcount == 1
