"""One Spark application that keeps tables of the lake: ``python -m tests.change_data.real.consume CONFIG_JSON``.

It has several queries, each with a group of its own. It runs until its standard input ends.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_rocketmq.change_data.routes import TableRoute
from pyspark_rocketmq.consume.membership import MembershipTiming
from pyspark_rocketmq.consumer import push_consumer
from pyspark_rocketmq.model import ConsumeFromWhere
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.change_table.sink import ChangeTable
from pyspark_rocketmq.sinks.change_table.tables import ChangeTables
from tests.applications.quick_source import source_with
from tests.helpers.spark_session import make_session


def main(config: Mapping[str, Any]) -> None:
    """Run until the standard input ends, or a query fails."""
    work = Path(config["work"])
    work.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    spark = make_session(work, max_failures=4)
    spark.sparkContext.setLogLevel("WARN")
    source = source_with(MembershipTiming(**config["timing"]))
    patch.object(push_consumer, "register", lambda spark: spark.dataSource.register(source)).start()
    queries = [_start(spark, config, query) for query in config["queries"]]
    stopping = threading.Thread(target=_stop_at_the_end_of_input, args=(queries,), daemon=True)
    stopping.start()
    spark.streams.awaitAnyTermination()
    for query in queries:
        query.awaitTermination()
    # Spark must not stop before the queries have.
    stopping.join()
    spark.stop()


def _start(spark: SparkSession, config: Mapping[str, Any], query: Mapping[str, Any]) -> StreamingQuery:
    consumer = push_consumer.PushConsumer(
        consumer_group=query["group"],
        name_servers=config["nameServers"],
        offset_store=DeltaOffsetStore(query["offsets"]),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        # Many batches, so that more of them are killed.
        max_offsets_per_trigger=600,
        instance_name=config["instance"],
    )
    consumer.subscribe(query["topic"])
    return consumer.start(
        spark,
        sink=_sink(query),
        checkpoint=f"{config['checkpoint']}/{query['name']}",
        trigger=config["trigger"],
    )


def _sink(query: Mapping[str, Any]) -> ChangeTable | ChangeTables:
    settings = dict(query["sink"])
    if not query["isForMany"]:
        return ChangeTable(query["folder"], **settings)
    routes = [TableRoute(**route) for route in settings.pop("routes")]
    return ChangeTables(query["folder"], routes=routes, **settings)


def _stop_at_the_end_of_input(queries: Sequence[StreamingQuery]) -> None:
    sys.stdin.read()
    for query in queries:
        query.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
