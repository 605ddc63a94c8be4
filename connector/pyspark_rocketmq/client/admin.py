"""What administrators ask of brokers, as one typed call each: topics, groups, progress, single messages.

As in ``broker``: a call takes the broker's address first; nothing here retries, caches or chooses a broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark_rocketmq.client.calls import BrokerCalls, command_of
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import MessageExt, MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests import admin as admin_headers
from pyspark_rocketmq.wire.requests import headers
from pyspark_rocketmq.wire.requests.admin import (
    ConsumerConnection,
    ConsumeStats,
    decode_broker_config,
    decode_consume_stats,
    decode_consumer_connection,
    decode_group_list,
    encode_client_config_check,
)
from pyspark_rocketmq.wire.requests.bodies import decode_offset_table
from pyspark_rocketmq.wire.requests.client_info import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    decode_directly_result,
    decode_group_status,
    decode_running_info,
)
from pyspark_rocketmq.wire.requests.responses import error_of
from pyspark_rocketmq.wire.requests.topics import (
    SubscriptionGroupConfig,
    TopicConfig,
    decode_group_config,
    decode_topic_config,
    encode_group_config,
)
from pyspark_rocketmq.wire.subscription import SubscriptionData

_END_OF_TIME_MS = (1 << 63) - 1
_EVERY_QUEUE = -1
_TO_TIMESTAMP = -1


class AdminClient(BrokerCalls):
    """Administration of one cluster's brokers; errors as of :class:`BrokerCalls`."""

    # --- topics ---------------------------------------------------------------------------------------------

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
            topic=self._named(topic),
            read_queue_nums=queue_nums,
            write_queue_nums=queue_nums,
            perm=perm,
            topic_sys_flag=0,
            order=order,
            attributes=attributes,
            force=False,
        )
        self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    def topic_config(self, address: str, topic: str) -> TopicConfig:
        """How the topic is set up on this broker.

        Raises:
            TopicNotFound: If it is not there.
        """
        header = admin_headers.GetTopicConfigRequestHeader(topic=self._named(topic), lo=True)
        config = decode_topic_config(self._ask(address, RequestCode.GET_TOPIC_CONFIG, header).body)
        return replace(config, topic_name=self._bare(config.topic_name))

    def delete_topic(self, address: str, topic: str) -> None:
        """Delete the topic and its messages on this broker."""
        header = admin_headers.DeleteTopicRequestHeader(topic=self._named(topic))
        self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, header)

    def groups_of_topic(self, address: str, topic: str) -> tuple[str, ...]:
        """The consumer groups this broker knows to be, or to have been, interested in the topic."""
        header = admin_headers.QueryTopicConsumeByWhoRequestHeader(topic=self._named(topic))
        answer = self._ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
        return tuple(map(self._bare, decode_group_list(answer.body)))

    # --- groups ---------------------------------------------------------------------------------------------

    def create_group(self, address: str, config: SubscriptionGroupConfig) -> None:
        """Create the consumer group on this broker, or change it."""
        named = replace(config, group_name=self._named(config.group_name))
        command = command_of(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_group_config(named))
        self._checked(address, command)

    def group_config(self, address: str, consumer_group: str) -> SubscriptionGroupConfig:
        """How the group is set up on this broker.

        Raises:
            GroupNotFound: If it is not there and the broker makes none.
        """
        header = admin_headers.GetSubscriptionGroupConfigRequestHeader(group=self._named(consumer_group))
        config = decode_group_config(
            self._ask(address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header).body
        )
        return replace(config, group_name=self._bare(config.group_name))

    def delete_group(self, address: str, consumer_group: str, *, clean_offset: bool = False) -> None:
        """Delete the group on this broker, with ``clean_offset`` its stored offsets too."""
        header = admin_headers.DeleteSubscriptionGroupRequestHeader(
            group_name=self._named(consumer_group), clean_offset=clean_offset
        )
        self._ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    def consumer_connection(self, address: str, consumer_group: str) -> ConsumerConnection:
        """Who of the group is connected to this broker, and with which subscriptions.

        Raises:
            ConsumerNotOnline: If nobody is.
        """
        header = admin_headers.GetConsumerConnectionListRequestHeader(
            consumer_group=self._named(consumer_group)
        )
        answer = self._ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        connection = decode_consumer_connection(answer.body)
        subscriptions = {
            self._bare(topic): replace(subscription, topic=self._bare(subscription.topic))
            for topic, subscription in connection.subscriptions.items()
        }
        return replace(connection, subscriptions=subscriptions)

    def check_subscription(
        self, address: str, client_id: str, consumer_group: str, subscription: SubscriptionData
    ) -> None:
        """Ask whether the broker can filter by this subscription: only so is a bad SQL92 expression refused.

        Raises:
            ExpressionInvalid: If the expression does not compile.
            BrokerError: If the broker does not filter by SQL92 (``enablePropertyFilter=false``, code 1).
        """
        named = replace(subscription, topic=self._named(subscription.topic))
        body = encode_client_config_check(client_id, self._named(consumer_group), named)
        self._checked(address, command_of(RequestCode.CHECK_CLIENT_CONFIG, body=body))

    # --- progress -------------------------------------------------------------------------------------------

    def consume_stats(self, address: str, consumer_group: str, topic: str | None = None) -> ConsumeStats:
        """How far the group is with every queue of a topic, or of all its topics, on this broker."""
        header = admin_headers.GetConsumeStatsRequestHeader(
            consumer_group=self._named(consumer_group),
            topic=None if topic is None else self._named(topic),
        )
        stats = decode_consume_stats(self._ask(address, RequestCode.GET_CONSUME_STATS, header).body)
        return replace(stats, offsets=self._bare_queues(dict(stats.offsets)))

    def reset_offset(
        self, address: str, consumer_group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Set the group back, or forward, to the first message stored at or after ``timestamp_ms``, queue by queue.

        -1 is the end of each queue. Without ``force`` an offset is never moved forward. Members that are
        online are told; with ``useServerSideResetOffset`` the broker tells them at their next pull instead.

        Returns:
            The new next offsets.
        """
        header = headers.ResetOffsetRequestHeader(
            topic=self._named(topic),
            group=self._named(consumer_group),
            queue_id=_EVERY_QUEUE,
            offset=_TO_TIMESTAMP,
            timestamp=timestamp_ms,
            is_force=force,
        )
        answer = self._ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        return self._bare_queues(decode_offset_table(answer.body))

    def consumer_status(
        self, address: str, consumer_group: str, topic: str, client_id: str | None = None
    ) -> Mapping[str, dict[MessageQueue, int]]:
        """The next offsets each member has in memory, by client id; of one member if ``client_id`` is given.

        Raises:
            ConsumerNotOnline: If nobody of the group is connected to this broker.
        """
        header = admin_headers.GetConsumerStatusRequestHeader(
            topic=self._named(topic), group=self._named(consumer_group), client_addr=client_id
        )
        answer = self._ask(address, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
        by_client = decode_group_status(answer.body)
        return {member: self._bare_queues(offsets) for member, offsets in by_client.items()}

    # --- one consumer ---------------------------------------------------------------------------------------

    def running_info(
        self, address: str, consumer_group: str, client_id: str, *, with_stacks: bool = False
    ) -> ConsumerRunningInfo:
        """What a running consumer tells of itself, under the names it uses itself.

        Raises:
            BrokerError: If it is not connected to this broker (code 1).
            ConsumerNotOnline: If it did not answer the broker.
            RemoteProtocolError: If it answered something else, or nothing but a remark.
        """
        header = admin_headers.GetConsumerRunningInfoRequestHeader(
            consumer_group=self._named(consumer_group), client_id=client_id, jstack_enable=with_stacks
        )
        answer = self._ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        return decode_running_info(_told(answer, client_id))

    def consume_directly(
        self, address: str, consumer_group: str, client_id: str, message: MessageExt, offset_msg_id: str
    ) -> ConsumeMessageDirectlyResult:
        """Have one stored message consumed by one consumer, now and whatever its offsets are.

        ``address`` must be where the consumer is connected and the message is stored.
        """
        header = admin_headers.ConsumeMessageDirectlyRequestHeader(
            consumer_group=self._named(consumer_group),
            client_id=client_id,
            msg_id=offset_msg_id,
            stored_on=message.broker_name,
            topic=self._named(message.topic),
        )
        answer = self._ask(address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        return decode_directly_result(_told(answer, client_id))

    # --- messages -------------------------------------------------------------------------------------------

    def view_message(
        self, address: str, commit_log_offset: int, broker_name: str, topic: str | None = None
    ) -> MessageExt:
        """The message stored at a commit log offset.

        ``topic`` is needed where access control is on.

        Raises:
            BrokerError: If there is none (code 1).
        """
        header = admin_headers.ViewMessageRequestHeader(
            offset=commit_log_offset, topic=None if topic is None else self._named(topic)
        )
        messages = self._messages(
            self._ask(address, RequestCode.VIEW_MESSAGE_BY_ID, header).body, broker_name
        )
        if len(messages) != 1:
            raise RemoteProtocolError(
                f"{address} answered with {len(messages)} messages to a look at commit log offset "
                f"{commit_log_offset}."
            )
        return messages[0]

    def query_messages(
        self,
        address: str,
        topic: str,
        key: str,
        broker_name: str,
        *,
        is_unique_key: bool = False,
        max_num: int = 32,
        begin_ms: int = 0,
        end_ms: int = _END_OF_TIME_MS,
    ) -> tuple[MessageExt, ...]:
        """Messages by one of their ``KEYS``, or by UNIQ_KEY, stored within a time (both ends inclusive).

        The broker finds keys by hash, so a message with another key may be among them; it is left out here.
        """
        command = command_of(
            RequestCode.QUERY_MESSAGE,
            admin_headers.QueryMessageRequestHeader(
                topic=self._named(topic),
                key=key,
                max_num=max_num,
                begin_timestamp=begin_ms,
                end_timestamp=end_ms,
                is_unique_key=is_unique_key,
            ),
        )
        answer = self._answer(address, command)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return ()
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(command, answer, address)
        found = self._messages(answer.body, broker_name)
        if is_unique_key:
            return tuple(message for message in found if message.msg_id == key)
        return tuple(message for message in found if key in (message.keys or "").split(" "))

    def _messages(self, body: bytes, broker_name: str) -> list[MessageExt]:
        return [
            message._replace(topic=self._bare(message.topic))
            for message in decode_messages(body, broker_name)
        ]

    # --- the broker itself ----------------------------------------------------------------------------------

    def broker_config(self, address: str) -> dict[str, str]:
        """The broker's properties by name; secrets of its configuration may be among them."""
        return decode_broker_config(self._ask(address, RequestCode.GET_BROKER_CONFIG).body)


def _told(answer: RemotingCommand, client_id: str) -> bytes:
    """What a member has answered through its broker.

    Raises:
        RemoteProtocolError: If that is nothing, as of a Go client whose own call failed: its remark says why.
    """
    if not answer.body:
        raise RemoteProtocolError(
            f"Member {peer_text(client_id)} answered with nothing but {peer_text(repr(answer.remark or ''))}."
        )
    return answer.body
