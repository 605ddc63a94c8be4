"""How a broker is called, and under which names: what ``BrokerClient`` and ``AdminClient`` share.

The namespace is put on and taken off here and nowhere else: callers name topics and groups as users do,
brokers get and give the names they know.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.namespace import (
    queue_with_namespace,
    queue_without_namespace,
    with_namespace,
    without_namespace,
)
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.requests.header_fields import Header, to_ext_fields
from pyspark_rocketmq.wire.requests.pull import PullRequest
from pyspark_rocketmq.wire.requests.responses import checked
from pyspark_rocketmq.wire.requests.send import Batch, SendSettings


def named_pull(namespace: str, request: PullRequest) -> PullRequest:
    """The pull of the same queue for the same group, under their full names."""
    if not namespace:
        return request
    return replace(
        request,
        consumer_group=with_namespace(namespace, request.consumer_group),
        queue=queue_with_namespace(namespace, request.queue),
    )


def named_settings(namespace: str, settings: SendSettings) -> SendSettings:
    """The settings under the producer group's full name; the template of new topics has no namespace."""
    if not namespace:
        return settings
    return replace(settings, producer_group=with_namespace(namespace, settings.producer_group))


def named_batch(namespace: str, batch: Batch) -> Batch:
    """The batch for the same queue under its full name."""
    if not namespace:
        return batch
    messages = [replace(one, topic=with_namespace(namespace, one.topic)) for one in batch.messages]
    return replace(batch, queue=queue_with_namespace(namespace, batch.queue), messages=messages)


def named_heartbeat(namespace: str, heartbeat: HeartbeatData) -> HeartbeatData:
    """The heartbeat with the full names of all groups and of the topics they subscribe to."""
    if not namespace:
        return heartbeat
    return replace(
        heartbeat,
        consumers=tuple(_named_consumer(namespace, consumer) for consumer in heartbeat.consumers),
        producers=tuple(with_namespace(namespace, group) for group in heartbeat.producers),
    )


def _named_consumer(namespace: str, consumer: ConsumerData) -> ConsumerData:
    return replace(
        consumer,
        group_name=with_namespace(namespace, consumer.group_name),
        subscriptions=tuple(
            replace(one, topic=with_namespace(namespace, one.topic)) for one in consumer.subscriptions
        ),
    )


T = TypeVar("T")


class BrokerCalls:
    """Calls to brokers through a pool. Shared by any number of threads.

    Every blocking call raises ``TransportError`` (retryable) when no answer comes, ``BrokerError`` or a
    subclass when the broker says no, and ``RemoteProtocolError`` when the answer makes no sense.  It waits at
    most ``request_timeout_s`` for connection and answer together, unless it takes a deadline of its own.
    """

    def __init__(
        self, pool: ChannelPool, clock: Clock, request_timeout_s: float = 3.0, *, namespace: str = ""
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._request_timeout_s = request_timeout_s
        self._namespace = namespace

    # --- names ----------------------------------------------------------------------------------------------

    def _named(self, resource: str) -> str:
        """The name brokers know a topic or group by."""
        return with_namespace(self._namespace, resource)

    def _bare(self, resource: str) -> str:
        """The name users know a topic or group by."""
        return without_namespace(self._namespace, resource)

    def _named_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue_with_namespace(self._namespace, queue)

    def _bare_queues(self, by_queue: dict[MessageQueue, T]) -> dict[MessageQueue, T]:
        if not self._namespace:
            return by_queue
        return {queue_without_namespace(self._namespace, queue): value for queue, value in by_queue.items()}

    # --- requests -------------------------------------------------------------------------------------------

    def _deadline(self) -> Deadline:
        return Deadline.after(self._clock, self._request_timeout_s)

    def _now_ms(self) -> int:
        return int(self._clock.now_s() * 1000)

    def _channel(self, address: str, deadline: Deadline) -> Channel:
        return self._pool.get(address, deadline)

    def _answer(
        self, address: str, command: RemotingCommand, deadline: Deadline | None = None
    ) -> RemotingCommand:
        deadline = deadline or self._deadline()
        return self._channel(address, deadline).request(command, deadline)

    def _checked(
        self, address: str, command: RemotingCommand, deadline: Deadline | None = None
    ) -> RemotingCommand:
        return checked(command, self._answer(address, command, deadline), address)

    def _ask(self, address: str, code: RequestCode, header: Header | None = None) -> RemotingCommand:
        return self._checked(address, command_of(code, header))

    def _oneway(self, address: str, command: RemotingCommand) -> None:
        self._channel(address, self._deadline()).oneway(command)


def command_of(code: RequestCode, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
    """A request from its header's fields."""
    ext_fields = {} if header is None else to_ext_fields(header)
    return RemotingCommand(code=code, ext_fields=ext_fields, body=body)


def raise_or_return(outcome: T | RocketMQError) -> T:
    """The outcome, raised if it is an error."""
    if isinstance(outcome, RocketMQError):
        raise outcome
    return outcome
