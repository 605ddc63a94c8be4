"""Requests about who is connected: consumers 203, producers 204 and 328 (``AdminBrokerProcessor``)."""

from __future__ import annotations

from broker_sim.admin_headers import ProducerGroupHeader
from broker_sim.membership import Client
from broker_sim.replies import Refused, reply
from broker_sim.state import BrokerState
from pyspark_rocketmq.wire.bodies import subscription_to_json
from pyspark_rocketmq.wire.codes import LanguageCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.headers import GetConsumerListByGroupRequestHeader, from_ext_fields
from pyspark_rocketmq.wire.json_quirks import dumps_java


def handle_consumer_connections(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """203: who consumes in the group, and how."""
    header = from_ext_fields(GetConsumerListByGroupRequestHeader, command.ext_fields)
    data = state.membership.consumer_data(header.consumer_group)
    if data is None:
        raise Refused(
            ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{header.consumer_group}] not online"
        )
    body = {
        "connectionSet": [_connection(each) for each in state.membership.members(header.consumer_group)],
        "consumeFromWhere": data.consume_from_where,
        "consumeType": data.consume_type,
        "messageModel": data.message_model,
        "subscriptionTable": {
            topic: subscription_to_json(subscription)
            for topic, subscription in state.membership.subscriptions(header.consumer_group).items()
        },
    }
    return reply(command, body=dumps_java(body))


def handle_producer_connections(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """204: who produces in the group."""
    header = from_ext_fields(ProducerGroupHeader, command.ext_fields)
    members = state.producers.members(header.producer_group)
    if not members:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{header.producer_group}] not exist")
    return reply(command, body=dumps_java({"connectionSet": [_connection(each) for each in members]}))


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


def _connection(client: Client) -> dict[str, object]:
    return {
        "clientAddr": str(client.peer.host),
        "clientId": client.client_id,
        "language": LanguageCode(client.language).name,
        "version": client.version,
    }
