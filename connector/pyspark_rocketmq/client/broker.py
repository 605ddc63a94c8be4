"""Every request that sending and consuming make of a broker, as one typed call each.

A call takes the broker's address first. Nothing here retries, caches or chooses a broker: that is the
caller's decision. What administrators ask is in ``admin``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from pyspark_rocketmq.client.calls import (
    BrokerCalls,
    command_of,
    named_batch,
    named_heartbeat,
    named_pull,
    named_settings,
    raise_or_return,
)
from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import Message, MessageExt, MessageQueue, QueueBounds
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests import bodies, headers
from pyspark_rocketmq.wire.requests.header_fields import Header, from_ext_fields
from pyspark_rocketmq.wire.requests.pull import PullRequest, PullResult, PullStatus, pull_result
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

__all__ = [
    "Batch",
    "BrokerClient",
    "PullRequest",
    "PullResult",
    "PullStatus",
    "SendResult",
    "SendSettings",
]

_HOLD_SCAN_S: Final = 5.0
"""How late a broker may end the suspension of a pull (``PullRequestHoldService.run``)."""

OnPull = Callable[[PullResult | RocketMQError], object]
OnSend = Callable[[SendResult | RocketMQError], object]


_BOUNDARY: Final = "LOWER"
"""A search by time finds the first message at or after the time (``BoundaryType.LOWER``)."""


class BrokerClient(BrokerCalls):
    """What producers and consumers ask of brokers; errors as of :class:`BrokerCalls`."""

    # --- pull -----------------------------------------------------------------------------------------------

    def pull(self, address: str, request: PullRequest) -> PullResult:
        """Pull once; waits as long as the broker may hold the request."""
        named = named_pull(self._namespace, request)
        deadline = self._pull_deadline(request)
        answer = self._channel(address, deadline).request(named, deadline)
        return raise_or_return(pull_result(named, answer, address))

    def pull_async(self, address: str, request: PullRequest, on_result: OnPull) -> None:
        """Pull without waiting; ``on_result`` is called once, normally on the channel's reader thread.

        It must not block: while it runs, no other answer of this broker is taken in. It may pull again. It is
        called on this thread if there is no connection and none can be made.
        """
        named = named_pull(self._namespace, request)
        deadline = self._pull_deadline(request)
        try:
            channel = self._channel(address, deadline)
        except RocketMQError as error:
            on_result(error)
            return
        channel.submit(named, lambda outcome: on_result(pull_result(named, outcome, address)), deadline)

    # --- send -----------------------------------------------------------------------------------------------

    def send(
        self,
        address: str,
        message: Message,
        queue: MessageQueue,
        settings: SendSettings,
        deadline: Deadline | None = None,
    ) -> SendResult:
        """Send one message, as it is, to ``queue``."""
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
        """As :meth:`send`, without waiting; ``on_result`` is called exactly once and must not block."""
        command = self._send_command(message, queue, settings)
        self._send_async(address, command, queue, (message,), on_result, deadline=deadline)

    def send_oneway(
        self, address: str, message: Message, queue: MessageQueue, settings: SendSettings
    ) -> None:
        """Send one message without learning whether it was stored."""
        self._oneway(address, self._send_command(message, queue, settings))

    def send_batch(
        self, address: str, batch: Batch, settings: SendSettings, deadline: Deadline | None = None
    ) -> SendResult:
        """Send messages to one queue, where they get consecutive queue offsets."""
        command = self._batch_command(batch, settings)
        return self._send(address, command, batch.queue, batch.messages, deadline)

    def send_batch_async(self, address: str, batch: Batch, settings: SendSettings, on_result: OnSend) -> None:
        """As :meth:`send_batch`, without waiting; ``on_result`` is called exactly once and must not block.

        Batches for one queue keep their order only if each is sent after the one before was answered: a
        broker works on several requests of one connection at once.
        """
        command = self._batch_command(batch, settings)
        self._send_async(address, command, batch.queue, batch.messages, on_result)

    def send_encoded(
        self, address: str, batch: EncodedBatch, settings: SendSettings, on_result: OnSend
    ) -> None:
        """As :meth:`send_batch_async`, of a batch that is bytes already."""
        named = named_settings(self._namespace, settings)
        full = replace(batch, queue=self._named_queue(batch.queue))
        command = encoded_batch_command(full, named, self._now_ms())
        self._send_async(address, command, batch.queue, (), on_result)

    def end_transaction(self, address: str, header: headers.EndTransactionRequestHeader) -> None:
        """Have a half message delivered or forgotten, oneway; ``address`` must be where it is stored.

        A loss is no harm: the broker asks for the message's state later.
        """
        topic = None if header.topic is None else self._named(header.topic)
        named = replace(header, producer_group=self._named(header.producer_group), topic=topic)
        self._oneway(address, command_of(RequestCode.END_TRANSACTION, named))

    def send_message_back(
        self,
        address: str,
        message: MessageExt,
        consumer_group: str,
        delay_level: int,
        max_reconsume_times: int,
    ) -> None:
        """Have a message delivered again through the group's retry topic, by the broker that stores it.

        ``delay_level`` 0: the broker decides by the number of attempts; -1: straight to the dead-letter
        topic.
        """
        header = headers.ConsumerSendMsgBackRequestHeader(
            offset=message.commit_log_offset,
            group=self._named(consumer_group),
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=self._named(message.topic),
            unit_mode=False,
            max_reconsume_times=max_reconsume_times,
            broker_name=message.broker_name,
        )
        self._ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)

    # --- offsets --------------------------------------------------------------------------------------------

    def min_offset(self, address: str, queue: MessageQueue) -> int:
        """The first queue offset the broker still has."""
        header = headers.GetMinOffsetRequestHeader(
            topic=self._named(queue.topic), queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        return self._offset(address, RequestCode.GET_MIN_OFFSET, header)

    def max_offset(self, address: str, queue: MessageQueue) -> int:
        """The last queue offset + 1; 0 for a topic or queue that does not exist."""
        header = headers.GetMaxOffsetRequestHeader(
            topic=self._named(queue.topic),
            queue_id=queue.queue_id,
            committed=True,
            broker_name=queue.broker_name,
        )
        return self._offset(address, RequestCode.GET_MAX_OFFSET, header)

    def search_offset(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        """The queue offset of the first message stored at or after ``timestamp_ms`` (since the epoch).

        After the last message: the maximum. Before the first one it may be below the minimum.
        """
        header = headers.SearchOffsetRequestHeader(
            topic=self._named(queue.topic),
            queue_id=queue.queue_id,
            timestamp=timestamp_ms,
            boundary_type=_BOUNDARY,
            broker_name=queue.broker_name,
        )
        return self._offset(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    def topic_stats(self, address: str, topic: str) -> dict[MessageQueue, QueueBounds]:
        """The bounds of all of the topic's write queues on this broker, in one request."""
        header = headers.GetTopicStatsInfoRequestHeader(topic=self._named(topic))
        answer = self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, header)
        return self._bare_queues(decode_topic_stats(answer.body))

    def query_consumer_offset(
        self,
        address: str,
        consumer_group: str,
        queue: MessageQueue,
        *,
        set_zero_if_not_found: bool | None = None,
    ) -> int:
        """The next offset to consume that is stored for the group.

        With ``set_zero_if_not_found=False`` the broker never makes up a 0 for a new group on a young topic.

        Raises:
            OffsetNotFound: If none is stored: a first start. No other error ever means that.
        """
        header = headers.QueryConsumerOffsetRequestHeader(
            consumer_group=self._named(consumer_group),
            topic=self._named(queue.topic),
            queue_id=queue.queue_id,
            set_zero_if_not_found=set_zero_if_not_found,
            broker_name=queue.broker_name,
        )
        return self._offset(address, RequestCode.QUERY_CONSUMER_OFFSET, header)

    def update_consumer_offset(
        self, address: str, consumer_group: str, queue: MessageQueue, commit_offset: int
    ) -> None:
        """Store the next offset to consume; the broker takes any value, lower ones too."""
        header = headers.UpdateConsumerOffsetRequestHeader(
            consumer_group=self._named(consumer_group),
            topic=self._named(queue.topic),
            queue_id=queue.queue_id,
            commit_offset=commit_offset,
            broker_name=queue.broker_name,
        )
        self._ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    # --- membership and locks -------------------------------------------------------------------------------

    def heartbeat(self, address: str, heartbeat: bodies.HeartbeatData) -> None:
        """Show this client's groups and their whole subscriptions: what is missing is unsubscribed."""
        body = bodies.encode_heartbeat(named_heartbeat(self._namespace, heartbeat))
        self._checked(address, command_of(RequestCode.HEART_BEAT, body=body))

    def unregister(
        self,
        address: str,
        client_id: str,
        *,
        consumer_group: str | None = None,
        producer_group: str | None = None,
    ) -> None:
        """Leave a group; the others rebalance at once. Queue locks stay: unlock them first."""
        header = headers.UnregisterClientRequestHeader(
            client_id=client_id,
            consumer_group=self._named(consumer_group) if consumer_group is not None else None,
            producer_group=self._named(producer_group) if producer_group is not None else None,
        )
        self._ask(address, RequestCode.UNREGISTER_CLIENT, header)

    def consumer_list(self, address: str, consumer_group: str) -> tuple[str, ...]:
        """The client ids this broker knows of the group, in any order, an id perhaps twice.

        Raises:
            BrokerError: If the group has no member here (code 1).
        """
        header = headers.GetConsumerListByGroupRequestHeader(consumer_group=self._named(consumer_group))
        answer = self._ask(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        return bodies.decode_consumer_list(answer.body)

    def lock_batch(
        self,
        address: str,
        consumer_group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        deadline: Deadline | None = None,
    ) -> frozenset[MessageQueue]:
        """Lock queues for 60 s, or renew their locks; returns the queues that are now held."""
        command = self._lock_command(RequestCode.LOCK_BATCH_MQ, consumer_group, client_id, queues)
        locked = bodies.decode_lock_response(self._checked(address, command, deadline).body)
        return frozenset(self._bare_queues(dict.fromkeys(locked)))

    def unlock_batch(
        self, address: str, consumer_group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> None:
        """Give queues free; those not held by this client stay as they are."""
        command = self._lock_command(RequestCode.UNLOCK_BATCH_MQ, consumer_group, client_id, queues)
        self._checked(address, command)

    # --- how ------------------------------------------------------------------------------------------------

    def _pull_deadline(self, request: PullRequest) -> Deadline:
        held_s = request.held_s
        slack_s = _HOLD_SCAN_S if held_s else 0.0
        return Deadline.after(self._clock, held_s + slack_s + self._request_timeout_s)

    def _offset(self, address: str, code: RequestCode, header: Header) -> int:
        answer = self._ask(address, code, header)
        return from_ext_fields(headers.OffsetResponseHeader, answer.ext_fields).offset

    def _send_command(self, message: Message, queue: MessageQueue, settings: SendSettings) -> RemotingCommand:
        named = named_settings(self._namespace, settings)
        return send_command(message, self._named_queue(queue), named, self._now_ms())

    def _batch_command(self, batch: Batch, settings: SendSettings) -> RemotingCommand:
        named = named_settings(self._namespace, settings)
        return batch_command(named_batch(self._namespace, batch), named, self._now_ms())

    def _lock_command(
        self, code: RequestCode, consumer_group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> RemotingCommand:
        request = bodies.LockBatchRequest(
            consumer_group=self._named(consumer_group),
            client_id=client_id,
            queues=frozenset(map(self._named_queue, queues)),
        )
        return command_of(code, body=bodies.encode_lock_request(request))

    def _send(
        self,
        address: str,
        command: RemotingCommand,
        queue: MessageQueue,
        messages: Sequence[Message],
        deadline: Deadline | None,
    ) -> SendResult:
        answer = self._answer(address, command, deadline)
        return raise_or_return(send_result(command, answer, address, queue, messages))

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
        deadline = deadline or self._deadline()
        try:
            channel = self._channel(address, deadline)
        except RocketMQError as error:
            on_result(error)
            return
        channel.submit(
            command,
            lambda outcome: on_result(send_result(command, outcome, address, queue, messages)),
            deadline,
        )
