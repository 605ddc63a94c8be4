"""One Spark application of a group: ``python -m tests.applications.application CONFIG_JSON``.

Consumes until its standard input ends; then stops its query as an operator would and exits.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql.streaming.query import StreamingQuery

from pyspark_rocketmq.consume.membership import MembershipTiming
from pyspark_rocketmq.consumer import push_consumer
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeFromWhere, ConsumeOrderlyStatus, MessageExt
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.store import CommitResult, QueueCommit
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.applications.quick_source import source_with
from tests.applications.running_application import DIE, DIES
from tests.applications.storage import KeysInFile
from tests.helpers.spark_session import make_session

OUTPUT_SCHEMA = "order_id string, step string, delivered_ns bigint, stored_ms bigint, instance string"


class Listener:
    """Emits each message with the instance that read it and the time."""

    def __init__(self, instance: str) -> None:
        self._instance = instance

    def __call__(
        self, messages: Sequence[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        (message,) = messages
        order_id, _, step = message.body.decode().partition(":")
        context.emit(
            order_id=order_id,
            step=step,
            delivered_ns=time.time_ns(),
            stored_ms=message.store_timestamp,
            instance=self._instance,
        )
        return ConsumeOrderlyStatus.SUCCESS


class DyingStore(DeltaOffsetStore):
    """Ends this process between the commits of sink and offsets, when a test asks for it."""

    def __init__(self, folder: Path, offsets: str, keys: KeysInFile | None) -> None:
        """Die once ``folder`` holds a file :data:`DIE` with the name of a broker whose queue is committed."""
        super().__init__(offsets, storage_options=keys)
        self._wanted = folder / DIE

    def commit(
        self, consumer_group: str, commits: Sequence[QueueCommit], *, query_id: str, batch_id: int
    ) -> CommitResult:
        brokers = {commit.queue.broker_name for commit in commits}
        with suppress(FileNotFoundError):
            if self._wanted.read_text() in brokers:
                # Only one application gets it.
                self._wanted.rename(self._wanted.with_name(f"{DIE}-{os.getpid()}"))
                logging.getLogger(__name__).warning(DIES)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().commit(consumer_group, commits, query_id=query_id, batch_id=batch_id)


def main(config: Mapping[str, Any]) -> None:
    """Run until the standard input ends."""
    work = Path(config["work"])
    work.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # The number of attempts that a cluster gives a task.
    spark = make_session(work, max_failures=4)
    spark.sparkContext.setLogLevel("WARN")
    source = source_with(MembershipTiming(**config["timing"]))
    patch.object(push_consumer, "register", lambda spark: spark.dataSource.register(source)).start()
    keys = KeysInFile(Path(config["keys"])) if config["keys"] else None
    consumer = push_consumer.PushConsumer(
        consumer_group=config["group"],
        name_servers=config["nameServers"],
        offset_store=DyingStore(Path(config["folder"]), config["offsets"], keys),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        max_offsets_per_trigger=2_000,
        instance_name=config["instance"],
        commit_interval=config["commitInterval"],
        # Offsets begin again where a topic is made again; the sink shows what is lost all the same.
        options={"failOnDataLoss": "false"} if config["topicsChange"] else None,
    )
    for topic in config["topics"]:
        consumer.subscribe(topic)
    consumer.register_message_listener(Listener(config["instance"]), output_schema=OUTPUT_SCHEMA)
    query = consumer.start(
        spark,
        sink=DeltaSink(config["sink"], storage_options=keys),
        checkpoint=config["checkpoint"],
        trigger=config["trigger"],
    )
    stopping = threading.Thread(target=_stop_at_the_end_of_input, args=(query,), daemon=True)
    stopping.start()
    query.awaitTermination()
    # Spark must not stop before the query has.
    stopping.join()
    spark.stop()


def _stop_at_the_end_of_input(query: StreamingQuery) -> None:
    sys.stdin.read()
    query.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
