"""A topic to which messages are sent at a steady rate while queries read it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from bench.streams import Backlog, real_backlog
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeOrderlyStatus, Message, MessageExt

_BODY = b"." * 1024
_JOIN_S = 60.0
_PER_TRIGGER = 100_000
"""Limit that is never reached."""


def live_topic(topic: str) -> AbstractContextManager[Backlog]:
    """A real broker with the topic, empty, and a session."""
    return real_backlog(
        topic, lambda _: Message(topic=topic, body=_BODY), per_trigger=_PER_TRIGGER, batches=0
    )


@contextmanager
def fed(backlog: Backlog, *, per_second: int, each: int) -> Iterator[None]:
    """Send messages of 1 KiB during the block, ``each`` at a time, to one queue after the other.

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
