"""The real broker of the benchmarks, and topics filled for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.model import Message, SendStatus
from tests.helpers.cluster import ClusterUnderTest
from tests.real_broker.harness import RealCluster

QUEUES = 8
_BATCH = 64
SERVER_OPTIONS = "-Xms1g -Xmx1g -XX:MaxDirectMemorySize=1g -XX:TieredStopAtLevel=4"
"""Options of a production server; the servers of tests are small and compile little."""


@contextmanager
def real_cluster() -> Iterator[ClusterUnderTest]:
    """One name server and one broker with 1 GiB heap (serial collector, full compilation)."""
    # _JAVA_OPTIONS overrides the command line. The servers' environment is copied when the cluster is made,
    # so Spark's own JVM never sees it.
    os.environ["_JAVA_OPTIONS"] = SERVER_OPTIONS
    try:
        cluster = RealCluster(brokers=1)
    finally:
        del os.environ["_JAVA_OPTIONS"]
    with cluster:
        yield ClusterUnderTest(cluster, "real")


def fill(
    name_servers: str, topic: str, *, queues: int, per_queue: int, message: Callable[[int], Message]
) -> None:
    """Send ``message(n)`` for n = 0, 1 … in batches, ``per_queue`` to each queue."""
    numbers = iter(range(queues * per_queue))
    with Producer(name_servers, producer_group="bench-producer") as producer:
        found = producer.queues(topic)
        if len(found) != queues:
            raise RuntimeError(f"Topic {topic} has {len(found)} queues instead of {queues}.")
        for begun in range(0, per_queue, _BATCH):
            size = min(_BATCH, per_queue - begun)
            for queue in found:
                batch = [message(next(numbers)) for _ in range(size)]
                result = producer.send_batch(batch, queue)
                if result.status is not SendStatus.SEND_OK:
                    raise RuntimeError(f"A batch for {queue} was stored with {result.status.name}.")
