"""Requests of consumer groups: offsets 14, 15; membership 34, 35, 38, 203; locks 41, 42.

Sources: ``ConsumerManageProcessor``, ``ClientManageProcessor``, ``AdminBrokerProcessor.lockBatchMQ``.
"""

from __future__ import annotations

from broker_sim.peers import Outgoing, Peer
from broker_sim.replies import SERVER_VERSION, Refused, reply
from broker_sim.state import BrokerState
from pyspark_rocketmq.model import retry_topic
from pyspark_rocketmq.wire.bodies import (
    decode_heartbeat,
    decode_lock_request,
    encode_consumer_list,
    encode_lock_response,
    subscription_to_json,
)
from pyspark_rocketmq.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import ONEWAY_FLAG, RemotingCommand
from pyspark_rocketmq.wire.headers import (
    GetConsumerListByGroupRequestHeader,
    QueryConsumerOffsetRequestHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    from_ext_fields,
)
from pyspark_rocketmq.wire.json_quirks import dumps_java

_JAVA = int(LanguageCode.JAVA)


def handle_query_offset(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """14: the committed offset; without one 0 for a young queue, else "not found"."""
    header = from_ext_fields(QueryConsumerOffsetRequestHeader, command.ext_fields)
    queue_offset = state.offsets.query(header.consumer_group, header.topic, header.queue_id)
    if queue_offset is not None:
        return reply(command, ext_fields={"offset": str(queue_offset)})
    if header.set_zero_if_not_found is False:
        raise Refused(
            ResponseCode.QUERY_NOT_FOUND, "Not found, do not set to zero, maybe this group boot first"
        )
    # Everything counts as being in memory, so only a deleted or missing first message hinders.
    if state.store.store_timestamp(header.topic, header.queue_id, 0) >= 0:
        return reply(command, ext_fields={"offset": "0"})
    raise Refused(
        ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
    )


def handle_update_offset(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """15: store an offset as it is; group and topic must exist, the queue need not (golden fact 13)."""
    header = from_ext_fields(UpdateConsumerOffsetRequestHeader, command.ext_fields)
    if state.groups.find(header.consumer_group) is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.consumer_group} not exist!")
    if state.topics.find(header.topic) is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
    state.offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
    return reply(command)


def handle_heartbeat(state: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """34: renew memberships, replace subscriptions, make the groups and their retry topics."""
    heartbeat = decode_heartbeat(command.body)
    may_create = state.settings.auto_create_subscription_group
    for data in heartbeat.consumers:
        group = state.groups.find_or_create(data.group_name, may_create=may_create)
        if group is None:
            continue  # golden fact 15: the answer is 0 all the same
        state.topics.ensure(retry_topic(data.group_name), group.retry_queue_nums)
        if state.membership.register(peer, heartbeat.client_id, command.language, command.version, data):
            notify_members(state, data.group_name)
    return reply(command, ext_fields={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"})


def handle_unregister(state: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """35: leave a group; its locks stay, and a group never heard of exists from now on."""
    header = from_ext_fields(UnregisterClientRequestHeader, command.ext_fields)
    if header.consumer_group:
        may_create = state.settings.auto_create_subscription_group
        state.groups.find_or_create(header.consumer_group, may_create=may_create)
        if state.membership.unregister(peer, header.consumer_group):
            notify_members(state, header.consumer_group)
    return reply(command)


def handle_consumer_list(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """38: client ids of the group's members on this broker."""
    header = from_ext_fields(GetConsumerListByGroupRequestHeader, command.ext_fields)
    members = state.membership.members(header.consumer_group)
    if not members:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}")
    return reply(command, body=encode_consumer_list(tuple(member.client_id for member in members)))


def handle_consumer_connections(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """203: who consumes in the group, and how."""
    header = from_ext_fields(GetConsumerListByGroupRequestHeader, command.ext_fields)
    data = state.membership.consumer_data(header.consumer_group)
    if data is None:
        raise Refused(
            ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{header.consumer_group}] not online"
        )
    body = {
        "connectionSet": [
            {
                "clientAddr": str(member.peer.host),
                "clientId": member.client_id,
                "language": LanguageCode(member.language).name,
                "version": member.version,
            }
            for member in state.membership.members(header.consumer_group)
        ],
        "consumeFromWhere": data.consume_from_where,
        "consumeType": data.consume_type,
        "messageModel": data.message_model,
        "subscriptionTable": {
            topic: subscription_to_json(subscription)
            for topic, subscription in state.membership.subscriptions(header.consumer_group).items()
        },
    }
    return reply(command, body=dumps_java(body))


def handle_lock(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """41: lock queues; refused ones are absent from the answer."""
    request = decode_lock_request(command.body)
    granted = state.locks.lock_batch(request.consumer_group, request.client_id, request.queues)
    return reply(command, body=encode_lock_response(granted))


def handle_unlock(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """42: release the queues this client holds."""
    request = decode_lock_request(command.body)
    state.locks.unlock_batch(request.consumer_group, request.client_id, request.queues)
    return reply(command)


def notify_members(state: BrokerState, consumer_group: str) -> None:
    """Tell every member, the one that caused it included, to look at the group again (code 40)."""
    for member in state.membership.members(consumer_group):
        command = RemotingCommand(
            code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            opaque=next(state.numbers) & 0x7FFFFFFF,
            flag=ONEWAY_FLAG,
            language=_JAVA,
            version=SERVER_VERSION,
            ext_fields={"consumerGroup": consumer_group},
        )
        state.outbox.append(Outgoing(member.peer, command, int(command.code)))
