"""Requests to a broker: :class:`BrokerClient` has one method for each kind.

Only two kinds are sent by other modules: a Spark task's pulls
(:mod:`~pyspark_rocketmq.client.pull_connection`) and the request for a broker's name
(:mod:`~pyspark_rocketmq.client.identity`).

Each method takes the broker's address first. This module never retries a call, caches an answer or chooses a
broker: callers do. It only remembers, for each connection, the server's name and the conditions that the
server accepts. Callers name topics and groups as users do; :mod:`~pyspark_rocketmq.client.names` adds and
removes the namespace, and :mod:`~pyspark_rocketmq.client.calls` sends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from pyspark_rocketmq.client.calls import BrokerCalls, command_of
from pyspark_rocketmq.client.filter_checks import confirm_filter
from pyspark_rocketmq.client.identity import WHO, is_slave_in
from pyspark_rocketmq.client.names import Names
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import RemoteProtocolError, RocketMQError
from pyspark_rocketmq.model import Message, MessageExt, MessageQueue, QueueBounds
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import decode_body, dumps_java, read_object
from pyspark_rocketmq.wire.requests import admin, bodies, headers
from pyspark_rocketmq.wire.requests.client_info import ConsumerRunningInfo
from pyspark_rocketmq.wire.requests.pull import PullRequest, PullResult, pull_result
from pyspark_rocketmq.wire.requests.responses import header_of
from pyspark_rocketmq.wire.requests.send import (
    Batch,
    EncodedBatch,
    SendResult,
    SendSettings,
    batch_command,
    encoded_batch_command,
    send_command,
    send_result,
)
from pyspark_rocketmq.wire.requests.topics import decode_topic_stats
from pyspark_rocketmq.wire.subscription import SubscriptionData

_LAST_OF_4: Final = 409
"""Ordinal of V4_9_8 in ``MQVersion``: servers with a larger one are 5.0 or later."""
_READ_AND_WRITE: Final = 6
"""A topic's permissions: 4 to read and 2 to write."""

OnPull = Callable[[PullResult | RocketMQError], object]
OnSend = Callable[[SendResult | RocketMQError], object]
T = TypeVar("T")


class BrokerClient:
    """Calls to brokers through a pool. Shared by any number of threads.

    Every blocking call raises ``TransportError`` (retryable) if no answer comes, ``BrokerError`` or a
    subclass if the broker refuses, ``RemoteProtocolError`` if the answer is invalid, and
    ``LocalProtocolError`` if the request cannot be written. A blocking call waits at most
    ``request_timeout_s`` for connection and answer together, or until the deadline that it is given. A pull
    also waits while the broker may hold it.

    Asynchronous calls (``…_async``, ``send_encoded``) wait neither for a connection nor for the answer; they
    only write the request. They call back exactly once, normally on the thread that reads the broker's
    answers. The callback must not block: while it runs, no other answer of this broker is processed.

    A call that names a broker, by a queue, a message or ``broker_name``, is only made to that broker, or to a
    server that does not give its name. If another broker has the address, the call is not sent: it raises
    ``WrongBroker`` (retryable), or passes that error to its callback.
    """

    def __init__(
        self, pool: ChannelPool, clock: Clock, request_timeout_s: float = 3.0, *, namespace: str = ""
    ) -> None:
        self._calls = BrokerCalls(pool, clock, request_timeout_s)
        self._names = Names(namespace)

    # --- pull -----------------------------------------------------------------------------------------------

    def pull(self, address: str, request: PullRequest) -> PullResult:
        """Send one pull and return its result.

        The call lasts at most the request time-out. If the broker may hold the pull, the hold time and 5 s
        are added.
        """
        request = self._names.named_pull(request)
        deadline = self._calls.pull_deadline(request)
        answer = self._calls.channel(address, deadline, request.queue.broker_name).request(request, deadline)
        return _raise_or_return(pull_result(request, answer, address))

    def pull_async(self, address: str, request: PullRequest, on_result: OnPull) -> None:
        """Send one pull without waiting; ``on_result`` gets its result or the error, and may pull again."""
        named = self._names.named_pull(request)
        self._calls.submit(
            address,
            named,
            named.queue.broker_name,
            self._calls.pull_deadline(named),
            lambda outcome: on_result(pull_result(named, outcome, address)),
        )

    # --- send -----------------------------------------------------------------------------------------------

    def send(
        self,
        address: str,
        message: Message,
        queue: MessageQueue,
        settings: SendSettings,
        deadline: Deadline | None = None,
    ) -> SendResult:
        """Send one message to ``queue`` in one attempt, without compressing it or adding an id."""
        command = self._send_command(message, queue, settings)
        return self._send(address, command, queue, (message,), deadline)

    def send_async(
        self,
        address: str,
        message: Message,
        queue: MessageQueue,
        settings: SendSettings,
        on_result: OnSend,
        *,
        deadline: Deadline | None = None,
    ) -> None:
        """Send one message like :meth:`send`, without waiting; ``on_result`` gets the result or the error."""
        command = self._send_command(message, queue, settings)
        self._send_async(address, command, queue, (message,), on_result, deadline=deadline)

    def send_oneway(
        self, address: str, message: Message, queue: MessageQueue, settings: SendSettings
    ) -> None:
        """Send one message without waiting for an answer; it may or may not be stored."""
        self._calls.oneway(address, self._send_command(message, queue, settings), queue.broker_name)

    def send_batch(
        self, address: str, batch: Batch, settings: SendSettings, deadline: Deadline | None = None
    ) -> SendResult:
        """Send a batch to its queue in one request; its messages get consecutive queue offsets."""
        command = self._batch_command(batch, settings)
        return self._send(address, command, batch.queue, batch.messages, deadline)

    def send_batch_async(self, address: str, batch: Batch, settings: SendSettings, on_result: OnSend) -> None:
        """Send a batch in one request without waiting; ``on_result`` gets the result or the error.

        Batches for one queue keep their order only if each is sent after the answer to the one before: a
        broker works on several requests of one connection at the same time.
        """
        command = self._batch_command(batch, settings)
        self._send_async(address, command, batch.queue, batch.messages, on_result)

    def send_encoded(
        self, address: str, batch: EncodedBatch, settings: SendSettings, on_result: OnSend
    ) -> None:
        """Send an encoded batch in one request, without waiting; ``on_result`` gets result or error."""
        named = replace(batch, queue=self._names.named_queue(batch.queue))
        command = encoded_batch_command(named, self._names.named_settings(settings), self._calls.now_ms())
        self._send_async(address, command, batch.queue, (), on_result)

    def end_transaction(self, address: str, header: headers.EndTransactionRequestHeader) -> None:
        """Report the outcome of a half message (one-way); ``address`` must be the broker that stores it.

        If the request is lost, the broker later asks a member of the producer group for the outcome.
        """
        topic = None if header.topic is None else self._names.named(header.topic)
        named = replace(header, producer_group=self._names.named(header.producer_group), topic=topic)
        self._calls.oneway(address, command_of(RequestCode.END_TRANSACTION, named), header.broker_name or "")

    def send_message_back(
        self,
        address: str,
        message: MessageExt,
        consumer_group: str,
        delay_level: int,
        max_reconsume_times: int,
    ) -> None:
        """Ask the broker that stores a message to deliver it again through the group's retry topic.

        ``delay_level``: 0: the broker decides by the number of attempts; -1: immediately to the dead-letter
        topic; otherwise the level itself. After more attempts than ``max_reconsume_times`` the message goes
        to the dead-letter topic, too.
        """
        header = headers.ConsumerSendMsgBackRequestHeader(
            offset=message.commit_log_offset,
            group=self._names.named(consumer_group),
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=self._names.named(message.topic),
            unit_mode=False,
            max_reconsume_times=max_reconsume_times,
            broker_name=message.broker_name,
        )
        self._calls.ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, header, message.broker_name)

    # --- offsets --------------------------------------------------------------------------------------------

    def min_offset(self, address: str, queue: MessageQueue) -> int:
        """Return the first queue offset that the broker still has."""
        header = headers.QueueRequestHeader(
            topic=self._names.named(queue.topic), queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        return self._calls.offset(address, RequestCode.GET_MIN_OFFSET, header, queue.broker_name)

    def max_offset(self, address: str, queue: MessageQueue) -> int:
        """Return the last queue offset + 1; 0 for a topic or queue that does not exist."""
        header = headers.QueueRequestHeader(
            topic=self._names.named(queue.topic),
            queue_id=queue.queue_id,
            committed=True,
            broker_name=queue.broker_name,
        )
        return self._calls.offset(address, RequestCode.GET_MAX_OFFSET, header, queue.broker_name)

    def search_offset(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the queue offset of the first message stored at or after ``timestamp_ms`` (since the epoch).

        If all messages are older, return the maximum offset. For a time before the first message the result
        may be below the minimum offset. Brokers before 5.1.1 answer with the nearest message, which may be
        older than ``timestamp_ms``.
        """
        header = headers.SearchOffsetRequestHeader(
            topic=self._names.named(queue.topic),
            queue_id=queue.queue_id,
            timestamp=timestamp_ms,
            # LOWER: the first message at or after the time.
            boundary_type="LOWER",
            broker_name=queue.broker_name,
        )
        return self._calls.offset(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, queue.broker_name)

    def topic_stats(
        self, address: str, topic: str, *, broker_name: str = ""
    ) -> dict[MessageQueue, QueueBounds]:
        """Return the offset bounds of each of the topic's queues on this broker, by one request."""
        header = headers.TopicRequestHeader(topic=self._names.named(topic))
        answer = self._calls.ask(address, RequestCode.GET_TOPIC_STATS_INFO, header, broker_name)
        return self._names.bare_queues(decode_topic_stats(answer.body))

    def is_slave(self, address: str, broker_name: str) -> bool:
        """Return whether the broker is a slave now, or has no role yet.

        Return False if it does not show its role, for example a proxy.

        Raises:
            RocketMQError: Retryable, if the broker does not answer or is busy.
        """
        try:
            return is_slave_in(self._calls.call(address, WHO, broker_name=broker_name))
        except RocketMQError as error:
            if error.retryable:
                raise
            return False

    def is_compacted(self, address: str, topic: str) -> bool:
        """Return whether the broker keeps only the newest message of each key in this topic.

        The broker does so if the topic has ``cleanup.policy=COMPACTION``.
        """
        header = headers.TopicRequestHeader(topic=self._names.named(topic))
        answer = self._calls.ask(address, RequestCode.GET_TOPIC_CONFIG, header)
        return admin.decode_topic_attributes(answer.body).get("cleanup.policy") == "COMPACTION"

    def query_consumer_offset(
        self,
        address: str,
        consumer_group: str,
        queue: MessageQueue,
        *,
        set_zero_if_not_found: bool | None = None,
    ) -> int:
        """Return the next offset to consume that is stored for the group.

        A broker may return 0 instead of OffsetNotFound for a new group on a young topic. Brokers from 5.0 on
        do not if ``set_zero_if_not_found`` is False.

        Raises:
            OffsetNotFound: If none is stored, as at a group's first start. Only this error means that.
        """
        offset, _ = self._consumer_offset(address, consumer_group, queue, set_zero_if_not_found)
        return offset

    def find_consumer_offset(
        self, address: str, consumer_group: str, queue: MessageQueue
    ) -> tuple[int, bool]:
        """Return the group's next offset to consume, and whether this offset is known to be stored.

        A broker before 5.0 returns 0 for an empty or young queue even if no offset is stored. For such a 0
        the second value is False; :meth:`consumer_offsets` shows whether the 0 is stored.

        Raises:
            OffsetNotFound: If none is stored.
        """
        offset, version = self._consumer_offset(address, consumer_group, queue, False)
        return offset, offset != 0 or not 0 < version <= _LAST_OF_4

    def consumer_offsets(
        self, address: str, consumer_group: str, queues: Sequence[MessageQueue]
    ) -> dict[MessageQueue, int]:
        """Return the group's stored offsets of ``queues``, all of one broker; leave out queues without one.

        The broker sends the offsets of all its groups, which may be megabytes.
        """
        command = command_of(RequestCode.GET_ALL_CONSUMER_OFFSET)
        body = self._calls.call(address, command, broker_name=_one_broker(queues)).body
        group = self._names.named(consumer_group)
        topics = {queue.topic for queue in queues}
        of_topics = {topic: admin.offsets_of(body, self._names.named(topic), group) for topic in topics}
        return {
            queue: of_topics[queue.topic][queue.queue_id]
            for queue in queues
            if queue.queue_id in of_topics[queue.topic]
        }

    def _consumer_offset(
        self, address: str, consumer_group: str, queue: MessageQueue, set_zero_if_not_found: bool | None
    ) -> tuple[int, int]:
        """Return the stored offset and the broker's version."""
        header = headers.QueryConsumerOffsetRequestHeader(
            consumer_group=self._names.named(consumer_group),
            topic=self._names.named(queue.topic),
            queue_id=queue.queue_id,
            set_zero_if_not_found=set_zero_if_not_found,
            broker_name=queue.broker_name,
        )
        answer = self._calls.ask(address, RequestCode.QUERY_CONSUMER_OFFSET, header, queue.broker_name)
        return header_of(headers.OffsetResponseHeader, answer, address).offset, answer.version

    def update_consumer_offset(
        self, address: str, consumer_group: str, queue: MessageQueue, commit_offset: int
    ) -> None:
        """Store the next offset to consume; the broker accepts any ``commit_offset``, even a lower one."""
        header = headers.UpdateConsumerOffsetRequestHeader(
            consumer_group=self._names.named(consumer_group),
            topic=self._names.named(queue.topic),
            queue_id=queue.queue_id,
            commit_offset=commit_offset,
            broker_name=queue.broker_name,
        )
        self._calls.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, header, queue.broker_name)

    # --- membership and locks -------------------------------------------------------------------------------

    def heartbeat(self, address: str, heartbeat: bodies.HeartbeatData, *, broker_name: str = "") -> None:
        """Report this client's groups and all their subscriptions; a topic left out is unsubscribed."""
        body = dumps_java(self._names.named_heartbeat(heartbeat))
        self._calls.call(address, command_of(RequestCode.HEART_BEAT, body=body), broker_name=broker_name)

    def unregister(
        self,
        address: str,
        client_id: str,
        *,
        consumer_group: str | None = None,
        producer_group: str | None = None,
    ) -> None:
        """Leave a group; other members rebalance immediately. This frees no locks: unlock queues first."""
        header = headers.UnregisterClientRequestHeader(
            client_id=client_id,
            consumer_group=self._names.named(consumer_group) if consumer_group is not None else None,
            producer_group=self._names.named(producer_group) if producer_group is not None else None,
        )
        self._calls.ask(address, RequestCode.UNREGISTER_CLIENT, header)

    def consumer_list(self, address: str, consumer_group: str, *, broker_name: str = "") -> tuple[str, ...]:
        """Return the client ids of the group's members at this broker, in any order; an id may occur twice.

        Raises:
            BrokerError: If the group has no member at this broker (code 1).
        """
        header = headers.GroupRequestHeader(consumer_group=self._names.named(consumer_group))
        answer = self._calls.ask(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header, broker_name)
        return bodies.decode_consumer_list(answer.body)

    def lock_batch(
        self,
        address: str,
        consumer_group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        deadline: Deadline | None = None,
    ) -> frozenset[MessageQueue]:
        """Lock queues of one broker for 60 s, or renew their locks; return the queues that are now held."""
        wanted = tuple(queues)
        command = self._lock_command(RequestCode.LOCK_BATCH_MQ, consumer_group, client_id, wanted)
        answer = self._calls.call(address, command, deadline, broker_name=_one_broker(wanted))
        locked = bodies.decode_lock_response(answer.body)
        return frozenset(self._names.bare_queues(dict.fromkeys(locked)))

    def unlock_batch(
        self, address: str, consumer_group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> None:
        """Unlock queues of one broker; locks of other clients are not changed."""
        held = tuple(queues)
        command = self._lock_command(RequestCode.UNLOCK_BATCH_MQ, consumer_group, client_id, held)
        self._calls.call(address, command, broker_name=_one_broker(held))

    # --- administration -------------------------------------------------------------------------------------

    def create_topic(self, address: str, topic: str, queue_nums: int) -> None:
        """Create the topic on this broker, or change it to ``queue_nums`` queues to read and to write."""
        header = headers.CreateTopicRequestHeader(
            topic=self._names.named(topic),
            read_queue_nums=queue_nums,
            write_queue_nums=queue_nums,
            perm=_READ_AND_WRITE,
            topic_sys_flag=0,
            order=False,
            attributes="",
            force=False,
        )
        self._calls.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    def consumer_connection(self, address: str, consumer_group: str) -> admin.ConsumerConnection:
        """Return the group's clients that are connected to this broker, and their subscriptions.

        Raises:
            ConsumerNotOnline: If no client of the group is connected.
        """
        header = headers.GroupRequestHeader(consumer_group=self._names.named(consumer_group))
        answer = self._calls.ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        connection = decode_body(admin.ConsumerConnection, answer.body)
        subscriptions = {
            self._names.bare(topic): replace(subscription, topic=self._names.bare(subscription.topic))
            for topic, subscription in connection.subscriptions.items()
        }
        return replace(connection, subscriptions=subscriptions)

    def retry_queue_nums(self, address: str, consumer_group: str) -> int:
        """Return the configured number of the group's retry queues; with 0, messages sent back are dropped.

        Raises:
            BrokerError: If the broker does not know the group or the request, or the user lacks the right.
        """
        header = headers.GroupConfigRequestHeader(group=self._names.named(consumer_group))
        answer = self._calls.ask(address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
        return read_object(answer.body, "group configuration").integer("retryQueueNums", 1)

    def check_subscription(
        self,
        address: str,
        client_id: str,
        consumer_group: str,
        subscription: SubscriptionData,
        *,
        broker_name: str = "",
    ) -> None:
        """Check that the broker can filter by this subscription; only this request refuses a bad expression.

        A broker that has accepted it is asked again on its next connection only.

        Raises:
            ExpressionInvalid: If the expression does not compile.
            BrokerError: If the broker does not filter by SQL92 (``enablePropertyFilter=false``, code 1).
        """
        named = replace(subscription, topic=self._names.named(subscription.topic))
        body = admin.encode_client_config_check(client_id, self._names.named(consumer_group), named)
        deadline = self._calls.deadline()
        channel = self._calls.channel(address, deadline, broker_name)
        confirm_filter(channel, command_of(RequestCode.CHECK_CLIENT_CONFIG, body=body), deadline)

    def running_info(self, address: str, consumer_group: str, client_id: str) -> ConsumerRunningInfo:
        """Return what a running consumer reports about itself.

        Names of topics and groups in this report still have their namespace.

        Raises:
            BrokerError: If the consumer is not connected to this broker (code 1).
            ConsumerNotOnline: If it did not answer the broker.
            RemoteProtocolError: If its answer is invalid, or has no body.
        """
        header = admin.GetConsumerRunningInfoRequestHeader(
            consumer_group=self._names.named(consumer_group), client_id=client_id
        )
        answer = self._calls.ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        if not answer.body:
            # A Go client whose own call failed answers only with a remark, which is the reason.
            remark = peer_text(repr(answer.remark or ""))
            raise RemoteProtocolError(
                f"Consumer {peer_text(client_id)} did not report its figures and answered only {remark}. "
                "Look at the consumer's log."
            )
        return decode_body(ConsumerRunningInfo, answer.body)

    def _send(
        self,
        address: str,
        command: RemotingCommand,
        queue: MessageQueue,
        messages: Sequence[Message],
        deadline: Deadline | None,
    ) -> SendResult:
        deadline = deadline or self._calls.deadline()
        answer = self._calls.channel(address, deadline, queue.broker_name).request(command, deadline)
        return _raise_or_return(send_result(command, answer, address, queue, messages))

    def _send_async(
        self,
        address: str,
        command: RemotingCommand,
        queue: MessageQueue,
        messages: Sequence[Message],
        on_result: OnSend,
        *,
        deadline: Deadline | None = None,
    ) -> None:
        self._calls.submit(
            address,
            command,
            queue.broker_name,
            deadline or self._calls.deadline(),
            lambda outcome: on_result(send_result(command, outcome, address, queue, messages)),
        )

    def _send_command(self, message: Message, queue: MessageQueue, settings: SendSettings) -> RemotingCommand:
        named = self._names.named_settings(settings)
        return send_command(message, self._names.named_queue(queue), named, self._calls.now_ms())

    def _batch_command(self, batch: Batch, settings: SendSettings) -> RemotingCommand:
        return batch_command(
            self._names.named_batch(batch), self._names.named_settings(settings), self._calls.now_ms()
        )

    def _lock_command(
        self, code: RequestCode, consumer_group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> RemotingCommand:
        request = bodies.LockBatchRequest(
            consumer_group=self._names.named(consumer_group),
            client_id=client_id,
            queues=frozenset(map(self._names.named_queue, queues)),
        )
        return command_of(code, body=dumps_java(request))


def _one_broker(queues: Sequence[MessageQueue]) -> str:
    """Return the name of the queues' broker; empty if there are several or none."""
    names = {queue.broker_name for queue in queues}
    return names.pop() if len(names) == 1 else ""


def _raise_or_return(outcome: T | RocketMQError) -> T:
    if isinstance(outcome, RocketMQError):
        raise outcome
    return outcome
