"""Give a message back to its broker, to be delivered again or kept among the group's dead letters.

Rule 1: when a call returns, a broker has stored a copy; when it raises, the message must not be passed.
Rule 2: a copy may be stored twice, where an answer was lost: what comes back may come back twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.pool import ConnectionSettings, process_pool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import Clock, Deadline, SystemClock
from pyspark_rocketmq.errors import ConnectFailed, RocketMQError, TopicNotFound, TransportError
from pyspark_rocketmq.model import Message, MessageExt, TopicRoute, retry_topic
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.wire.compression import MAX_BODY_BYTES
from pyspark_rocketmq.wire.namespace import with_namespace
from pyspark_rocketmq.wire.properties import (
    DELAY,
    MAX_RECONSUME_TIMES,
    ORIGIN_MESSAGE_ID,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TRAN_MSG,
)

logger = logging.getLogger(__name__)

CLIENT_INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
"""Producer group of what a consumer sends (``MixAll.CLIENT_INNER_PRODUCER_GROUP``)."""
FIRST_RETRY_LEVEL: Final = 3
"""Delay level of a message's first retry, 10 s with a broker's defaults; each further one waits a level
longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBackSettings:
    """What a worker needs to send messages back; picklable, and silent about its secrets when printed."""

    name_servers: tuple[str, ...]
    consumer_group: str
    """Without its namespace."""
    namespace: str = ""
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    back_timeout_s: float = 5.0
    """For the request to the storing broker and the routes it needs (``consumerSendMessageBack``)."""
    send_timeout_s: float = 3.0
    """For the ordinary send that follows when that failed, all its attempts together."""

    @classmethod
    def of(cls, options: ReadOptions) -> SendBackSettings:
        """The settings that a consumer's options ask for; ``options`` must name a group."""
        assert options.consumer_group is not None
        return cls(
            name_servers=options.name_servers,
            consumer_group=options.consumer_group,
            namespace=options.namespace or "",
            connection=ConnectionSettings.of(options),
        )

    def open(self) -> SendBack:
        """Calls on this process's own connections; nothing is connected yet."""
        return SendBack(self)


class SendBack:
    """Sends a consumer group's messages back. Shared by any number of threads.

    Source: RocketMQ 5.3.3 ``DefaultMQPushConsumerImpl.sendMessageBack``.
    """

    def __init__(self, settings: SendBackSettings, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.consumer_group = settings.consumer_group
        """Whose retry and dead-letter topics take the messages."""
        self._namespace = settings.namespace
        self._back_timeout_s = settings.back_timeout_s
        pool = process_pool(settings.connection)
        self._name_servers = NameServerClient(
            settings.name_servers, pool, self._clock, settings.back_timeout_s, namespace=settings.namespace
        )
        self._brokers = BrokerClient(pool, self._clock, settings.back_timeout_s, namespace=settings.namespace)
        self._producer = Producer(
            settings.name_servers,
            CLIENT_INNER_PRODUCER_GROUP,
            send_timeout_s=settings.send_timeout_s,
            # A broker has stored the message, and stores it compressed again.
            max_message_size=MAX_BODY_BYTES,
            pool=pool,
            clock=self._clock,
            namespace=settings.namespace,
        )

    def send(self, message: MessageExt, *, delay_level: int, max_reconsume_times: int) -> None:
        """Have ``message`` delivered again, or made a dead letter; it is safely stored when this returns.

        The broker that stores it copies it. When that fails the message is sent to the group's retry topic
        like any other, always with delay level 3 + its reconsume times, wherever a broker takes it.

        Args:
            message: As it was consumed: with its own topic, also when it came through the retry topic.
            delay_level: 0: the broker decides, 3 + reconsume times; -1: a dead letter at once; else the
                level.
            max_reconsume_times: A message tried more often becomes a dead letter; at least 0.

        Raises:
            RocketMQError: If neither way stored the message, as far as is known.
        """
        try:
            self._send_to_storing_broker(message, delay_level, max_reconsume_times)
        except RocketMQError as error:
            logger.warning(
                "message not sent back, sending it to the retry topic group=%s %s queueOffset=%d: %s",
                self.consumer_group,
                message.message_queue,
                message.queue_offset,
                error,
            )
            self.send_as_retry(message, max_reconsume_times=max_reconsume_times)

    def send_as_retry(self, message: MessageExt, *, max_reconsume_times: int) -> None:
        """Send ``message`` to the group's retry topic; it is stored when this returns.

        This is how orderly consumers give a message up: with one attempt more than it had, which is more than
        ``max_reconsume_times``, so that its broker keeps it as a dead letter. Brokers where the group holds a
        lock do so whatever the number.

        Raises:
            RocketMQError: If it is not known to be stored.

        Source: RocketMQ 5.3.3 ``ConsumeMessageOrderlyService.sendMessageBack``.
        """
        self._producer.send(self._as_retry(message, max_reconsume_times))

    def _send_to_storing_broker(
        self, message: MessageExt, delay_level: int, max_reconsume_times: int
    ) -> None:
        try:
            self._brokers.send_message_back(
                self._storing_broker(message), message, self.consumer_group, delay_level, max_reconsume_times
            )
        except TransportError:
            for topic in self._routed_topics(message):
                self._name_servers.invalidate(topic)
            raise

    def _storing_broker(self, message: MessageExt) -> str:
        """Address of the message's master; its store host may be one that clients cannot reach."""
        if not message.broker_name:
            return message.store_host
        for route in self._routes(message):
            for broker in route.brokers:
                if broker.broker_name == message.broker_name and broker.master is not None:
                    return broker.master
        raise ConnectFailed(message.broker_name, "no route names a master for this broker")

    def _routes(self, message: MessageExt) -> Iterator[TopicRoute]:
        deadline = Deadline.after(self._clock, self._back_timeout_s)
        for topic in self._routed_topics(message):
            with suppress(TopicNotFound):
                yield self._name_servers.lasting_route(topic, deadline)

    def _routed_topics(self, message: MessageExt) -> tuple[str, str]:
        # A message that comes back may lie on a broker that its own topic has no queue on.
        return message.topic, retry_topic(self.consumer_group)

    def _as_retry(self, message: MessageExt, max_reconsume_times: int) -> Message:
        """Source: RocketMQ 5.3.3 ``DefaultMQPushConsumerImpl.sendMessageBackAsNormalMessage``."""
        properties = {
            **message.properties,
            ORIGIN_MESSAGE_ID: message.properties.get(ORIGIN_MESSAGE_ID) or message.msg_id,
            RETRY_TOPIC: with_namespace(self._namespace, message.topic),
            RECONSUME_TIME: str(message.reconsume_times + 1),
            MAX_RECONSUME_TIMES: str(max_reconsume_times),
            DELAY: str(FIRST_RETRY_LEVEL + message.reconsume_times),
        }
        properties.pop(TRAN_MSG, None)
        return Message(
            topic=retry_topic(self.consumer_group),
            body=message.body,
            properties=properties,
            flag=message.flag,
        )


class _Sender:
    """Sends messages back; connects when the first one fails, on the executor."""

    def __init__(self, settings: SendBackSettings, max_reconsume_times: int) -> None:
        self._settings = settings
        self._max_reconsume_times = max_reconsume_times
        self._opened: SendBack | None = None

    def __call__(self, message: MessageExt, delay_level: int) -> None:
        if self._opened is None:
            # Two threads may open one each; neither has a connection of its own.
            self._opened = self._settings.open()
        self._opened.send(message, delay_level=delay_level, max_reconsume_times=self._max_reconsume_times)


class DeadLetterSender:
    """Sends messages to the group's retry topic, whose broker keeps them as dead letters.

    Pickled to the executors, where it connects when there is a first message to send. A micro-batch that runs
    again sends its dead letters again: like everything a listener does, they are there at least once.
    """

    def __init__(self, settings: SendBackSettings, max_reconsume_times: int) -> None:
        self._settings = settings
        self._max_reconsume_times = max_reconsume_times
        self._send_back: SendBack | None = None

    def __call__(self, message: MessageExt) -> None:
        """Send ``message``, which was consumed with the reconsume times it has.

        Raises:
            RocketMQError: If it is not known to be stored.
        """
        if self._send_back is None:
            self._send_back = self._settings.open()
        self._send_back.send_as_retry(message, max_reconsume_times=self._max_reconsume_times)
