"""Every request this package makes of a broker, as one typed call each.

A call takes the broker's address first and waits at most ``request_timeout_s`` for connection and answer
together. Nothing here retries, caches or chooses a broker: that is the caller's decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from pyspark_rocketmq.client.answers import checked
from pyspark_rocketmq.client.channel import Channel
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.client.pull import PullRequest, PullResult, PullStatus, pull_result
from pyspark_rocketmq.client.sending import (
    Batch,
    SendResult,
    SendTerms,
    batch_command,
    send_command,
    send_result,
)
from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import Message, MessageExt, MessageQueue, QueueBounds
from pyspark_rocketmq.wire import bodies, headers
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.header_fields import Header
from pyspark_rocketmq.wire.topic_stats import decode_topic_stats

__all__ = ["Batch", "BrokerClient", "PullRequest", "PullResult", "PullStatus", "SendResult", "SendTerms"]

_HOLD_SCAN_S: Final = 5.0
"""How late a broker may end the suspension of a pull (``PullRequestHoldService.run``)."""

T = TypeVar("T")

OnPull = Callable[[PullResult | RocketMQError], object]
OnSend = Callable[[SendResult | RocketMQError], object]


class BrokerClient:
    """Calls to brokers through a pool. Shared by any number of threads.

    Every blocking call raises ``TransportError`` (retryable) when no answer comes, ``BrokerError`` or a subclass
    when the broker says no, and ``RemoteProtocolError`` when the answer makes no sense.
    """

    def __init__(self, pool: ChannelPool, clock: Clock, request_timeout_s: float = 3.0) -> None:
        self._pool = pool
        self._clock = clock
        self._request_timeout_s = request_timeout_s

    # --- pull ------------------------------------------------------------------------------------------------

    def pull(self, address: str, request: PullRequest) -> PullResult:
        """Pull once; waits as long as the broker may hold the request."""
        deadline = self._pull_deadline(request)
        answer = self._channel(address, deadline).request(request, deadline)
        return _value(pull_result(request, answer, address))

    def pull_async(self, address: str, request: PullRequest, on_result: OnPull) -> None:
        """Pull without waiting; ``on_result`` is called exactly once, normally on the channel's reader thread.

        It must not block: while it runs, no other answer of this broker is taken in. It may pull again. It is
        called on this thread if there is no connection and none can be made.
        """
        deadline = self._pull_deadline(request)
        try:
            channel = self._channel(address, deadline)
        except RocketMQError as error:
            on_result(error)
            return
        channel.submit(request, lambda outcome: on_result(pull_result(request, outcome, address)), deadline)

    # --- send ------------------------------------------------------------------------------------------------

    def send(
        self,
        address: str,
        message: Message,
        queue: MessageQueue,
        terms: SendTerms,
        deadline: Deadline | None = None,
    ) -> SendResult:
        """Send one message, as it is, to ``queue``."""
        command = send_command(message, queue, terms, self._now_ms())
        return self._send(address, command, queue, (message,), deadline)

    def send_async(
        self, address: str, message: Message, queue: MessageQueue, terms: SendTerms, on_result: OnSend
    ) -> None:
        """As :meth:`send`, without waiting; ``on_result`` is called exactly once and must not block."""
        command = send_command(message, queue, terms, self._now_ms())
        self._send_async(address, command, queue, (message,), on_result)

    def send_oneway(self, address: str, message: Message, queue: MessageQueue, terms: SendTerms) -> None:
        """Send one message without learning whether it was stored."""
        self._oneway(address, send_command(message, queue, terms, self._now_ms()))

    def send_batch(
        self, address: str, batch: Batch, terms: SendTerms, deadline: Deadline | None = None
    ) -> SendResult:
        """Send messages to one queue, where they get consecutive queue offsets."""
        command = batch_command(batch, terms, self._now_ms())
        return self._send(address, command, batch.queue, batch.messages, deadline)

    def send_batch_async(self, address: str, batch: Batch, terms: SendTerms, on_result: OnSend) -> None:
        """As :meth:`send_batch`, without waiting; ``on_result`` is called exactly once and must not block.

        Batches for one queue keep their order only if each is sent after the one before was answered: a broker
        works on several requests of one connection at once.
        """
        command = batch_command(batch, terms, self._now_ms())
        self._send_async(address, command, batch.queue, batch.messages, on_result)

    def send_message_back(
        self,
        address: str,
        message: MessageExt,
        consumer_group: str,
        delay_level: int,
        max_reconsume_times: int,
    ) -> None:
        """Have a message delivered again through the group's retry topic; ``address`` must be where it is stored.

        ``delay_level`` 0: the broker decides by the number of attempts; -1: straight to the dead-letter topic.
        """
        header = headers.ConsumerSendMsgBackRequestHeader(
            offset=message.commit_log_offset,
            group=consumer_group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            unit_mode=False,
            max_reconsume_times=max_reconsume_times,
            broker_name=message.broker_name,
        )
        self._ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)

    # --- offsets ---------------------------------------------------------------------------------------------

    def min_offset(self, address: str, queue: MessageQueue) -> int:
        """The first queue offset the broker still has."""
        header = headers.GetMinOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        return self._offset(address, RequestCode.GET_MIN_OFFSET, header)

    def max_offset(self, address: str, queue: MessageQueue) -> int:
        """The last queue offset + 1; 0 for a topic or queue that does not exist."""
        header = headers.GetMaxOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, committed=True, broker_name=queue.broker_name
        )
        return self._offset(address, RequestCode.GET_MAX_OFFSET, header)

    def search_offset(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        """The queue offset of the first message stored at or after ``timestamp_ms`` (since the epoch).

        After the last message: the maximum. Before the first one it may be below the minimum.
        """
        header = headers.SearchOffsetRequestHeader(
            topic=queue.topic,
            queue_id=queue.queue_id,
            timestamp=timestamp_ms,
            boundary_type="LOWER",
            broker_name=queue.broker_name,
        )
        return self._offset(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    def topic_stats(self, address: str, topic: str) -> dict[MessageQueue, QueueBounds]:
        """The bounds of all of the topic's write queues on this broker, in one request."""
        header = headers.GetTopicStatsInfoRequestHeader(topic=topic)
        return decode_topic_stats(self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, header).body)

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
            consumer_group=consumer_group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=set_zero_if_not_found,
            broker_name=queue.broker_name,
        )
        return self._offset(address, RequestCode.QUERY_CONSUMER_OFFSET, header)

    def update_consumer_offset(
        self,
        address: str,
        consumer_group: str,
        queue: MessageQueue,
        commit_offset: int,
        *,
        oneway: bool = False,
    ) -> None:
        """Store the next offset to consume; the broker takes any value, lower ones too.

        ``oneway`` is what Java does; then nobody learns of an error.
        """
        header = headers.UpdateConsumerOffsetRequestHeader(
            consumer_group=consumer_group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=commit_offset,
            broker_name=queue.broker_name,
        )
        self._ask_or_tell(address, _command(RequestCode.UPDATE_CONSUMER_OFFSET, header), oneway=oneway)

    # --- membership and locks --------------------------------------------------------------------------------

    def heartbeat(self, address: str, heartbeat: bodies.HeartbeatData) -> None:
        """Show this client's groups and their whole subscriptions: what is missing is unsubscribed."""
        body = bodies.encode_heartbeat(heartbeat)
        self._checked(address, RemotingCommand(code=RequestCode.HEART_BEAT, body=body))

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
            client_id=client_id, consumer_group=consumer_group, producer_group=producer_group
        )
        self._ask(address, RequestCode.UNREGISTER_CLIENT, header)

    def consumer_list(self, address: str, consumer_group: str) -> tuple[str, ...]:
        """The client ids this broker knows of the group, in any order, an id perhaps twice.

        Raises:
            BrokerError: If the group has no member here (code 1).
        """
        header = headers.GetConsumerListByGroupRequestHeader(consumer_group=consumer_group)
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
        """Lock queues, or renew their locks, for 60 s; the queues that are now held, refused ones being absent."""
        command = _lock_command(RequestCode.LOCK_BATCH_MQ, consumer_group, client_id, queues)
        return bodies.decode_lock_response(self._checked(address, command, deadline).body)

    def unlock_batch(
        self,
        address: str,
        consumer_group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        *,
        oneway: bool = False,
    ) -> None:
        """Give queues free; those not held by this client stay as they are."""
        command = _lock_command(RequestCode.UNLOCK_BATCH_MQ, consumer_group, client_id, queues)
        self._ask_or_tell(address, command, oneway=oneway)

    # --- administration --------------------------------------------------------------------------------------

    def create_topic(
        self,
        address: str,
        topic: str,
        queue_nums: int,
        *,
        perm: int = 6,
        order: bool = False,
        attributes: str = "",
    ) -> None:
        """Create the topic on this broker, or change it, with ``queue_nums`` queues to read and to write.

        ``perm``: 2 write, 4 read. ``attributes``: ``+message.type=FIFO,…``.
        """
        header = headers.CreateTopicRequestHeader(
            topic=topic,
            read_queue_nums=queue_nums,
            write_queue_nums=queue_nums,
            perm=perm,
            topic_sys_flag=0,
            order=order,
            attributes=attributes,
            force=False,
        )
        self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    # --- how -------------------------------------------------------------------------------------------------

    def _deadline(self) -> Deadline:
        return Deadline.after(self._clock, self._request_timeout_s)

    def _pull_deadline(self, request: PullRequest) -> Deadline:
        held_s = request.held_s
        slack_s = _HOLD_SCAN_S if held_s else 0.0
        return Deadline.after(self._clock, held_s + slack_s + self._request_timeout_s)

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

    def _ask(self, address: str, code: RequestCode, header: Header) -> RemotingCommand:
        return self._checked(address, _command(code, header))

    def _offset(self, address: str, code: RequestCode, header: Header) -> int:
        answer = self._ask(address, code, header)
        return headers.from_ext_fields(headers.OffsetResponseHeader, answer.ext_fields).offset

    def _oneway(self, address: str, command: RemotingCommand) -> None:
        self._channel(address, self._deadline()).oneway(command)

    def _ask_or_tell(self, address: str, command: RemotingCommand, *, oneway: bool) -> None:
        if oneway:
            self._oneway(address, command)
        else:
            self._checked(address, command)

    def _send(
        self,
        address: str,
        command: RemotingCommand,
        queue: MessageQueue,
        messages: Sequence[Message],
        deadline: Deadline | None,
    ) -> SendResult:
        answer = self._answer(address, command, deadline)
        return _value(send_result(command, answer, address, queue, messages))

    def _send_async(
        self,
        address: str,
        command: RemotingCommand,
        queue: MessageQueue,
        messages: Sequence[Message],
        on_result: OnSend,
    ) -> None:
        deadline = self._deadline()
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


def _value(outcome: T | RocketMQError) -> T:
    if isinstance(outcome, RocketMQError):
        raise outcome
    return outcome


def _command(code: RequestCode, header: Header) -> RemotingCommand:
    return RemotingCommand(code=code, ext_fields=headers.to_ext_fields(header))


def _lock_command(
    code: RequestCode, consumer_group: str, client_id: str, queues: Iterable[MessageQueue]
) -> RemotingCommand:
    request = bodies.LockBatchRequest(
        consumer_group=consumer_group, client_id=client_id, queues=frozenset(queues)
    )
    return RemotingCommand(code=code, body=bodies.encode_lock_request(request))
