"""A topic to which messages are sent at a steady rate while queries read it."""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.cluster import QUEUES, real_cluster
from bench.session import bench_session
from bench.streams import Backlog
from pyspark_rocketmq.client.producer import Producer
from pyspark_rocketmq.model import ConsumeOrderlyStatus, Message, MessageExt
from pyspark_rocketmq.streaming.listener import ConsumeOrderlyContext

_BODY = b"." * 1024
_JOIN_S = 60.0


@contextmanager
def live_topic(topic: str) -> Iterator[Backlog]:
    """A real broker with the topic, empty, and a session."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, real_cluster() as cluster:
        work = Path(folder)
        cluster.create_topic(topic, QUEUES)
        with bench_session(work) as spark:
            yield Backlog(
                spark=spark,
                name_servers=cluster.name_servers,
                topic=topic,
                work=work,
                per_trigger=100_000,
                batches=0,
            )


@contextmanager
def fed(backlog: Backlog, *, per_second: int, each: int) -> Iterator[None]:
    """Messages of 1 KiB as long as the block runs, ``each`` at a time, to one queue after the other.

    Raises:
        RocketMQError: If one could not be sent.
    """
    is_over = threading.Event()
    failures: list[Exception] = []

    def send() -> None:
        batch = [Message(topic=backlog.topic, body=_BODY)] * each
        with Producer(backlog.name_servers, producer_group="bench-producer") as producer:
            queues = itertools.cycle(producer.queues(backlog.topic))
            began_s = time.monotonic()
            for number in itertools.count():
                due_s = began_s + number * each / per_second
                if is_over.wait(max(0.0, due_s - time.monotonic())):
                    return
                producer.send_batch(batch, next(queues))

    def send_or_tell() -> None:
        try:
            send()
        except Exception as error:  # noqa: BLE001 - raised where the feeding was asked for
            failures.append(error)

    sender = threading.Thread(target=send_or_tell, daemon=True)
    sender.start()
    try:
        yield
    finally:
        is_over.set()
        sender.join(_JOIN_S)
    for failure in failures:
        raise failure


def emit_body_size(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    """A row for each message."""
    for message in messages:
        context.emit(message, size=len(message.body))
    return ConsumeOrderlyStatus.SUCCESS
