"""An orderly consumer as a job of a platform with its own Spark session; see docs/how-to/databricks.md.

consumer_on_databricks.py NAME_SERVERS FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

import pyspark_rocketmq as rmq


def on_orders(
    messages: Sequence[rmq.MessageExt], context: rmq.ConsumeOrderlyContext
) -> rmq.ConsumeOrderlyStatus:
    """One row for each message."""
    for message in messages:
        context.emit(order_id=message.keys, step=message.body.decode())
    return rmq.ConsumeOrderlyStatus.SUCCESS


def main(name_servers: str, folder: str) -> None:
    """Consume until the job is cancelled."""
    consumer = rmq.PushConsumer(
        consumer_group="order-etl",
        name_servers=name_servers,
        consume_from_where=rmq.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        consume_message_batch_max_size=32,
        offset_store=rmq.DeltaOffsetStore(f"{folder}/_offsets"),
    )
    consumer.subscribe("orders", "*")
    consumer.register_message_listener(on_orders, output_schema="order_id string, step string")
    query = consumer.start(
        SparkSession.builder.getOrCreate(),
        sink=rmq.DeltaSink(f"{folder}/orders"),
        checkpoint=f"{folder}/_checkpoints/order-etl",
        trigger={"processingTime": "5 seconds"},
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
