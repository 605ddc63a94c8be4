"""An orderly consumer as a job on Databricks; see docs/how-to/databricks.md and conf/databricks.yml.

consumer_on_databricks.py NAME_SERVERS TABLE STAGING STATE SECRET_SCOPE
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

import pyspark_rocketmq as rmq


def on_orders(
    messages: Sequence[rmq.MessageExt], context: rmq.ConsumeOrderlyContext
) -> rmq.ConsumeOrderlyStatus:
    """Emit one row per message."""
    for message in messages:
        context.emit(order_id=message.keys, step=message.body.decode())
    return rmq.ConsumeOrderlyStatus.SUCCESS


def main(name_servers: str, table: str, staging: str, state: str, secret_scope: str) -> None:
    """Consume until the job is cancelled.

    Args:
        name_servers: host:port of each, separated by ``;``.
        table: Name of the sink, ``CATALOG.SCHEMA.TABLE``; Spark writes it.
        staging: Volume in which rows wait for Spark.
        state: URI of a folder of an object store, for offset table and checkpoint.
        secret_scope: Its secret ``storage`` is a JSON object with delta-rs' options for ``state``.
    """
    # This module exists only on Databricks.
    from databricks.sdk.runtime import dbutils  # type: ignore[import-not-found]

    keys = json.loads(dbutils.secrets.get(secret_scope, "storage"))
    consumer = rmq.PushConsumer(
        consumer_group="order-etl",
        name_servers=name_servers,
        consume_from_where=rmq.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        consume_message_batch_max_size=32,
        offset_store=rmq.DeltaOffsetStore(f"{state}/_offsets", storage_options=keys),
    )
    consumer.subscribe("orders", "*")
    consumer.register_message_listener(on_orders, output_schema="order_id string, step string")
    query = consumer.start(
        SparkSession.builder.getOrCreate(),
        sink=rmq.DeltaSink(table, staging=staging),
        checkpoint=f"{state}/_checkpoints/order-etl",
        trigger={"processingTime": "5 seconds"},
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
