"""Ordered messages on a cluster, and the oracle that reads a sink."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, QueryBuilder

from pyspark_rocketmq.cli.demo.report import OrderReport, check_order
from pyspark_rocketmq.model import Message
from tests.helpers.sending import patient_producer

OUTPUT_SCHEMA = "order_id string, step string, delivered_ns bigint"
"""Output schema of listeners whose sink :func:`check_sink` reads;
``delivered_ns`` is :func:`time.time_ns` at the delivery.
"""
STEPS = ("created", "paid", "packed", "shipped", "delivered")

Orders = Mapping[str, Sequence[str]]
Row = tuple[str, str, int, int, str, str]
"""Topic, broker name, queue id, queue offset, order id and step."""


def produce_orders(
    name_servers: str,
    topic: str,
    count: int,
    *,
    first: int = 0,
    body_bytes: int = 0,
    shows_keys: bool = False,
) -> Orders:
    """Send ``count`` orders of five steps each by sharding key, wait until they can be read,
    and return the steps by order id.

    Steps of different orders are interleaved; bodies read ``orderId:step``, filled up to ``body_bytes``.
    ``shows_keys``: consumers see the sharding keys, too.
    """
    order_ids = [f"order-{number}" for number in range(first, first + count)]
    with patient_producer(name_servers) as producer:
        producer.send_ordered(
            (
                order_id,
                Message(
                    topic=topic,
                    body=_body(order_id, step, body_bytes),
                    properties=_tagged(order_id, step) | ({"__SHARDINGKEY": order_id} if shows_keys else {}),
                ),
            )
            for step in STEPS
            for order_id in order_ids
        )
    return dict.fromkeys(order_ids, STEPS)


def _tagged(order_id: str, step: str) -> dict[str, str]:
    return {"KEYS": order_id, "TAGS": step}


def _body(order_id: str, step: str, size: int) -> bytes:
    return f"{order_id}:{step}".encode().ljust(size, b".")


def check_sink(
    path: Path | str,
    expected: Orders,
    *,
    but: str = "",
    lost: Collection[Row] = (),
    storage_options: dict[str, str] | None = None,
) -> OrderReport:
    """Check the order in a sink's table with columns ``order_id``, ``step`` and ``delivered_ns``, except for
    topic ``but``. Rows of messages that a broker ``lost`` after they were consumed may be there, once.

    Rows are read in the order in which listeners got their messages, which a table does not keep by itself:
    sorted by position they would always be in order.
    """
    table = (
        QueryBuilder()
        .register("sink", DeltaTable(str(path), storage_options=storage_options))
        .execute(
            'SELECT topic, "brokerName", "queueId", "queueOffset", order_id, step FROM sink '
            f"WHERE topic <> '{but}' "
            'ORDER BY delivered_ns, "queueOffset"'
        )
        .read_all()
    )
    rows = zip(*(table.column(index).to_pylist() for index in range(table.num_columns)), strict=True)
    return check_order(_without(rows, set(lost)), expected)


def _without(rows: Iterable[tuple[Any, ...]], lost: set[Row]) -> Iterator[Row]:
    """Leave out the first row of each lost message."""
    for row in rows:
        position: Row = (row[0], row[1], row[2], row[3], row[4], row[5])
        if position in lost:
            lost.discard(position)
        else:
            yield position
