"""Give a message back to its broker, to be delivered again or kept among the group's dead letters.

Rule 1: when a call returns, a broker has stored a copy; when it raises, the message must not be skipped.
Rule 2: a copy may be stored twice if an answer was lost, so a message may come back twice.
Rule 3: a broker that was silent costs further messages no time for 30 s, as long as another broker answers.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from pyspark_rocketmq.client.cluster import SILENT_TIMEOUT_S, Cluster, SilentBrokers
from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.pool import ConnectionSettings, process_pool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import Clock, Deadline, SystemClock
from pyspark_rocketmq.errors import (
    BrokerError,
    ConnectFailed,
    DeadLetterRefused,
    RequestTimeout,
    RocketMQError,
    TopicNotFound,
    TransportError,
)
from pyspark_rocketmq.model import Message, MessageExt, retry_topic
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
"""Producer group of messages that a consumer sends (``MixAll.CLIENT_INNER_PRODUCER_GROUP``)."""
FIRST_RETRY_LEVEL: Final = 3
"""Delay level of a message's first retry, 10 s with a broker's defaults; each further retry is one level
higher."""
_DEAD_LETTER_LEVEL: Final = -1


class _NotAsked(TransportError):
    """The storing broker was not asked, because it did not answer lately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBackSettings:
    """Settings with which a worker sends messages back; picklable, and printed without secrets."""

    name_servers: tuple[str, ...]
    consumer_group: str
    """The group's name without its namespace."""
    namespace: str = ""
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    back_timeout_s: float = 5.0
    """Time-out of the request to the storing broker, and of looking up its address
    (``consumerSendMessageBack``)."""
    send_timeout_s: float = 3.0
    """Time-out of an ordinary send to the retry topic, with all attempts."""

    @classmethod
    def of(cls, options: ReadOptions) -> SendBackSettings:
        """Return the settings in a consumer's options; ``options`` must name a group."""
        assert options.consumer_group is not None
        return cls(
            name_servers=options.name_servers,
            consumer_group=options.consumer_group,
            namespace=options.namespace or "",
            connection=ConnectionSettings.of(options),
        )


class SendBack:
    """Sends a consumer group's messages back. Shared by any number of threads.

    The object is pickled to the executors; it opens no connection before its first message.

    Source: RocketMQ 5.3.3 ``DefaultMQPushConsumerImpl.sendMessageBack``.
    """

    def __init__(self, settings: SendBackSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self.consumer_group = settings.consumer_group
        """The group whose retry and dead-letter topics take the messages."""
        self._silent = SilentBrokers(self._clock)
        """Storing brokers that did not answer lately."""

    @cached_property
    def _cluster(self) -> Cluster:
        settings = self._settings
        pool = process_pool(settings.connection)
        return Cluster(settings.name_servers, pool, self._clock, settings.back_timeout_s, settings.namespace)

    @cached_property
    def _name_servers(self) -> NameServerClient:
        return self._cluster.name_server()

    @cached_property
    def _producer(self) -> Producer:
        return Producer(
            self._settings.name_servers,
            CLIENT_INNER_PRODUCER_GROUP,
            send_timeout_s=self._settings.send_timeout_s,
            # A broker has stored this body before, perhaps compressed. A limit for uncompressed bodies could
            # refuse it now.
            max_message_size=MAX_BODY_BYTES,
            send_latency_fault_enable=True,
            pool=self._cluster.pool,
            clock=self._clock,
            namespace=self._settings.namespace,
        )

    def send(self, message: MessageExt, delay_level: int, *, max_reconsume_times: int) -> None:
        """Let ``message`` be delivered again or become a dead letter; a copy is stored when this returns.

        The broker that stores the message copies it. If that fails, the message is sent to the group's retry
        topic like any other message, to any broker. In this case its delay level is 3 + its reconsume times,
        whatever ``delay_level`` is, as in Java. A storing broker that did not answer in the last 30 s is not
        asked; then ``delay_level`` holds for the retry topic, too.

        Args:
            message: The message as it was consumed, with its own topic even if it came from the retry topic.
            delay_level: RocketMQ's delay level (1 or higher) for the next delivery. With 0 the broker chooses
                3 + reconsume times. With -1 the message becomes a dead letter immediately.
            max_reconsume_times: At least 0; a message that is given back more often than this, this time
                included, becomes a dead letter.

        Raises:
            RocketMQError: If neither way is known to have stored the message: the error of the second way.
                Its cause is the error of the first way.
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
            if message.broker_name in self._silent:
                # The retry topic may have a queue there, too.
                self._producer.avoid(message.broker_name)
            level = delay_level if isinstance(error, _NotAsked) else 0
            if level == _DEAD_LETTER_LEVEL:
                max_reconsume_times = min(max_reconsume_times, message.reconsume_times)
            try:
                self._producer.send(self._as_retry(message, max_reconsume_times, max(level, 0)))
            except RocketMQError as second:
                raise second from error

    def send_as_dead_letter(self, message: MessageExt, *, max_reconsume_times: int) -> None:
        """Let ``message`` be kept among the group's dead letters; a copy is stored when this returns.

        It is sent by :meth:`send_as_retry`, so ``max_reconsume_times`` must be at most its reconsume times.
        If that is refused for good, for example because the properties become too large or the group may
        not send, the broker that stores the message copies it.

        Raises:
            DeadLetterRefused: If brokers refuse both ways, so that the next attempt would also be refused.
            RocketMQError: If the message is not known to be stored; the next attempt may succeed.
        """
        try:
            self.send_as_retry(message, max_reconsume_times=max_reconsume_times)
        except RocketMQError as error:
            if error.retryable:
                raise
            refused = error
        else:
            return
        try:
            self._check_copies_are_kept(message)
            self._send_to_storing_broker(message, _DEAD_LETTER_LEVEL, max_reconsume_times)
        except RocketMQError as error:
            if error.retryable:
                raise
            raise DeadLetterRefused(
                self.consumer_group,
                str(message.message_queue),
                message.queue_offset,
                str(refused),
                str(error),
            ) from error
        logger.info(
            "dead letter copied by its broker, since it was refused as an ordinary send group=%s %s "
            "queueOffset=%d: %s",
            self.consumer_group,
            message.message_queue,
            message.queue_offset,
            refused,
        )

    def send_as_retry(self, message: MessageExt, *, max_reconsume_times: int) -> None:
        """Send ``message`` to the group's retry topic; a copy is stored when this returns.

        This is how orderly consumers give a message up. The copy counts one reconsume more than ``message``.
        If that exceeds ``max_reconsume_times``, or if the group holds a lock at the broker, the broker keeps
        the copy as a dead letter instead of delivering it again. A micro-batch that runs again sends its dead
        letters again.

        Raises:
            RocketMQError: If the message is not known to be stored.

        Source: RocketMQ 5.3.3 ``ConsumeMessageOrderlyService.sendMessageBack``.
        """
        self._producer.send(self._as_retry(message, max_reconsume_times))

    def _check_copies_are_kept(self, message: MessageExt) -> None:
        """Raise if the message's broker would answer SUCCESS to a message sent back but keep nothing.

        A server that refuses to report its retry queues (a proxy, missing rights) is assumed to have some.

        Raises:
            RocketMQError: If the group has no retry queues at the broker, or the broker has no known address,
                does not answer, or answers with a retryable error.
        """
        address = self._storing_broker(message)
        try:
            count = self._cluster.brokers().retry_queue_nums(address, self.consumer_group)
        except BrokerError as error:
            if error.retryable:
                raise
            logger.debug("retry queues not reported group=%s: %s", self.consumer_group, error)
            return
        if count <= 0:
            raise RocketMQError(
                f"Broker {address} drops messages that group {self.consumer_group} sends back, because the "
                "group has no retry queues there (retryQueueNums=0). Give the group one: `mqadmin "
                f"updateSubGroup -n NAMESRV -b {address} -g {self.consumer_group} -q 1`, with the group's "
                "other settings."
            )

    def _send_to_storing_broker(
        self, message: MessageExt, delay_level: int, max_reconsume_times: int
    ) -> None:
        name = message.broker_name or message.store_host
        if name in self._silent:
            raise _NotAsked(
                name, "the broker did not answer in the last 30 s, and is not asked again so soon"
            )
        try:
            self._ask_storing_broker(name, message, delay_level, max_reconsume_times)
        except TransportError:
            for topic in self._routed_topics(message):
                self._name_servers.invalidate(topic)
            raise

    def _ask_storing_broker(
        self, name: str, message: MessageExt, delay_level: int, max_reconsume_times: int
    ) -> None:
        address = self._storing_broker(message)
        begun_s = self._clock.monotonic_s()
        try:
            self._cluster.brokers().send_message_back(
                address, message, self.consumer_group, delay_level, max_reconsume_times
            )
        except TransportError as error:
            # An error that comes immediately costs the next message no time, either.
            lasted_s = self._clock.monotonic_s() - begun_s
            if isinstance(error, RequestTimeout) or lasted_s >= SILENT_TIMEOUT_S:
                self._silent.add(name)
            raise
        self._silent.discard(name)

    def _storing_broker(self, message: MessageExt) -> str:
        """Return the address of the master that stores the message.

        Without a broker name, return its store host, which clients may be unable to reach.
        """
        if not message.broker_name:
            return message.store_host
        deadline = Deadline.after(self._clock, self._settings.back_timeout_s)
        for topic in self._routed_topics(message):
            with suppress(TopicNotFound):
                route = self._name_servers.route(topic, deadline)
                if (master := route.master_of(message.broker_name)) is not None:
                    return master
        raise ConnectFailed(message.broker_name, "no route names a master for this broker; start its master")

    def _routed_topics(self, message: MessageExt) -> tuple[str, str]:
        # A message from the retry topic may be stored on a broker on which its own topic has no queue.
        return message.topic, retry_topic(self.consumer_group)

    def _as_retry(self, message: MessageExt, max_reconsume_times: int, delay_level: int = 0) -> Message:
        """Return a copy of the message for the retry topic, with one more reconsume time and a delay level.

        With a ``delay_level`` of 0, the level is 3 + the message's reconsume times.

        Source: RocketMQ 5.3.3 ``DefaultMQPushConsumerImpl.sendMessageBackAsNormalMessage``.
        """
        properties = {
            **message.properties,
            ORIGIN_MESSAGE_ID: message.properties.get(ORIGIN_MESSAGE_ID) or message.msg_id,
            RETRY_TOPIC: with_namespace(self._settings.namespace, message.topic),
            RECONSUME_TIME: str(message.reconsume_times + 1),
            MAX_RECONSUME_TIMES: str(max_reconsume_times),
            DELAY: str(delay_level or FIRST_RETRY_LEVEL + message.reconsume_times),
        }
        properties.pop(TRAN_MSG, None)
        return Message(
            topic=retry_topic(self.consumer_group),
            body=message.body,
            properties=properties,
            flag=message.flag,
        )
