"""What administrators ask of brokers, as one typed call each: topics, groups and their members.

As in ``broker``: a call takes the broker's address first; nothing here retries, caches or chooses a broker.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pyspark_rocketmq.client.calls import BrokerCalls, command_of
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests import admin as admin_headers
from pyspark_rocketmq.wire.requests import headers
from pyspark_rocketmq.wire.requests.admin import (
    ConsumerConnection,
    decode_consumer_connection,
    encode_client_config_check,
)
from pyspark_rocketmq.wire.requests.client_info import (
    ConsumerRunningInfo,
    decode_running_info,
)
from pyspark_rocketmq.wire.subscription import SubscriptionData

_READ_AND_WRITE: Final = 6
"""A topic's permissions: 4 to read and 2 to write."""


class AdminClient(BrokerCalls):
    """Administration of one cluster's brokers; errors as of :class:`BrokerCalls`."""

    def create_topic(self, address: str, topic: str, queue_nums: int) -> None:
        """Create the topic on this broker, or change it, with ``queue_nums`` queues to read and to write."""
        header = headers.CreateTopicRequestHeader(
            topic=self._named(topic),
            read_queue_nums=queue_nums,
            write_queue_nums=queue_nums,
            perm=_READ_AND_WRITE,
            topic_sys_flag=0,
            order=False,
            attributes="",
            force=False,
        )
        self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

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

    def running_info(self, address: str, consumer_group: str, client_id: str) -> ConsumerRunningInfo:
        """What a running consumer tells of itself, under the names it uses itself.

        Raises:
            BrokerError: If it is not connected to this broker (code 1).
            ConsumerNotOnline: If it did not answer the broker.
            RemoteProtocolError: If it answered something else, or nothing but a remark.
        """
        header = admin_headers.GetConsumerRunningInfoRequestHeader(
            consumer_group=self._named(consumer_group), client_id=client_id
        )
        answer = self._ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        return decode_running_info(_member_body(answer, client_id))


def _member_body(answer: RemotingCommand, client_id: str) -> bytes:
    """What a member has answered through its broker.

    Raises:
        RemoteProtocolError: If that is nothing, as of a Go client whose own call failed: its remark says why.
    """
    if not answer.body:
        raise RemoteProtocolError(
            f"Member {peer_text(client_id)} answered with nothing but {peer_text(repr(answer.remark or ''))}."
        )
    return answer.body
