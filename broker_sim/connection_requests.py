"""Requests about who is connected: consumers 203, producers 204 and 328 (``AdminBrokerProcessor``)."""

from __future__ import annotations

from broker_sim.admin_headers import ProducerGroupHeader
from broker_sim.membership import Client
from broker_sim.replies import Refused, reply
from broker_sim.state import BrokerState
from pyspark_rocketmq.wire.codes import LanguageCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import dumps_java
from pyspark_rocketmq.wire.requests.admin import (
    ClientConnection,
    ConsumerConnection,
    connection_to_json,
    encode_consumer_connection,
)
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields
from pyspark_rocketmq.wire.requests.headers import GetConsumerListByGroupRequestHeader


def handle_consumer_connections(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """203: who consumes in the group, and how."""
    header = from_ext_fields(GetConsumerListByGroupRequestHeader, command.ext_fields)
    data = state.membership.consumer_data(header.consumer_group)
    if data is None:
        raise Refused(
            ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{header.consumer_group}] not online"
        )
    connection = ConsumerConnection(
        connections=tuple(map(_connection, state.membership.members(header.consumer_group))),
        consume_type=data.consume_type,
        message_model=data.message_model,
        consume_from_where=data.consume_from_where,
        subscriptions=state.membership.subscriptions(header.consumer_group),
    )
    return reply(command, body=encode_consumer_connection(connection))


def handle_producer_connections(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """204: who produces in the group."""
    header = from_ext_fields(ProducerGroupHeader, command.ext_fields)
    members = state.producers.members(header.producer_group)
    if not members:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{header.producer_group}] not exist")
    return reply(
        command,
        body=dumps_java({"connectionSet": [connection_to_json(_connection(each)) for each in members]}),
    )


def handle_all_producers(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """328: every producer group."""
    table = {
        group: [
            {
                "clientId": each.client_id,
                "language": LanguageCode(each.language).name,
                "lastUpdateTimestamp": state.now_ms(),
                "remoteIP": str(each.peer.host),
                "version": each.version,
            }
            for each in members
        ]
        for group, members in state.producers.groups().items()
    }
    return reply(command, body=dumps_java({"data": table}))


def _connection(client: Client) -> ClientConnection:
    return ClientConnection(
        client_id=client.client_id,
        client_addr=str(client.peer.host),
        language=LanguageCode(client.language).name,
        version=client.version,
    )
