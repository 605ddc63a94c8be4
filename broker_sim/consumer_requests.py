"""Requests of consumer groups: offsets 14, 15; membership 34, 35, 38, 46; locks 41, 42.

Sources: ``ConsumerManageProcessor``, ``ClientManageProcessor``, ``AdminBrokerProcessor.lockBatchMQ``.
"""

from __future__ import annotations

from broker_sim.bodies import encode_consumer_list, encode_lock_response
from broker_sim.filters import is_by_tags
from broker_sim.groups import Client
from broker_sim.replies import Outgoing, Peer, Refused, reply
from broker_sim.sql92 import Sql92Error
from broker_sim.sql92_parser import compile_expression
from broker_sim.state import BrokerState, to_client
from pyspark_rocketmq.model import MessageModel, retry_topic
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import ONEWAY_FLAG, RemotingCommand
from pyspark_rocketmq.wire.fastjson import as_object, decode_body, from_json, read_object
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData, LockBatchRequest
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields
from pyspark_rocketmq.wire.requests.headers import (
    GroupRequestHeader,
    QueryConsumerOffsetRequestHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from pyspark_rocketmq.wire.subscription import SQL92, SubscriptionData


def handle_query_offset(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 14 QUERY_CONSUMER_OFFSET: the committed offset.

    Without one, answer 0 if the queue still has its first message and the client does not forbid it.

    Raises:
        Refused: If there is no offset to answer with (QUERY_NOT_FOUND).
    """
    header = from_ext_fields(QueryConsumerOffsetRequestHeader, command.ext_fields)
    queue_offset = state.offsets.query(header.consumer_group, header.topic, header.queue_id)
    if queue_offset is not None:
        return reply(command, ext_fields={"offset": str(queue_offset)})
    if header.set_zero_if_not_found is False:
        raise Refused(
            ResponseCode.QUERY_NOT_FOUND, "Not found, do not set to zero, maybe this group boot first"
        )
    # Everything counts as being in memory, so only a deleted or missing first message prevents this.
    if state.store.store_timestamp(header.topic, header.queue_id, 0) >= 0:
        return reply(command, ext_fields={"offset": "0"})
    raise Refused(
        ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
    )


def handle_update_offset(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 15 UPDATE_CONSUMER_OFFSET: store an offset unchanged.

    While an operator's reset waits for the group's next pull of the queue, nothing is stored. Group and topic
    must exist, but the queue need not, as recorded from a real broker (golden fact 13).
    """
    header = from_ext_fields(UpdateConsumerOffsetRequestHeader, command.ext_fields)
    if state.groups.find(header.consumer_group) is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.consumer_group} not exist!")
    if state.topics.find(header.topic) is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
    queue = (header.consumer_group, header.topic, header.queue_id)
    if state.settings.use_server_side_reset_offset and state.offsets.is_reset(*queue):
        return reply(command, remark="Offset has been previously reset")
    state.offsets.commit(*queue, header.commit_offset)
    return reply(command)


def handle_heartbeat(state: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Answer 34 HEART_BEAT: renew memberships, replace subscriptions, create groups and retry topics."""
    heartbeat = decode_body(HeartbeatData, command.body)
    client = Client(peer, heartbeat.client_id, command.language, command.version)
    is_known = True
    for data in heartbeat.consumers:
        if state.membership.note_fingerprint(data.group_name, heartbeat.fingerprint):
            is_known = False
        _join(state, client, data, replaces_subscriptions=not heartbeat.without_sub)
    for producer_group in heartbeat.producers:
        state.producers.register(client, producer_group)
    # Answers to version 1 heartbeats always report a change.
    changed = "false" if heartbeat.fingerprint and is_known else "true"
    return reply(command, ext_fields={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": changed})


def handle_unregister(state: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Answer 35 UNREGISTER_CLIENT: remove the connection from its groups; its locks stay.

    A consumer group that does not exist is created, if that is allowed.
    """
    header = from_ext_fields(UnregisterClientRequestHeader, command.ext_fields)
    if header.producer_group:
        state.producers.unregister(peer, header.producer_group)
    if header.consumer_group:
        may_create = state.settings.auto_create_subscription_group
        group = state.groups.find_or_create(header.consumer_group, may_create=may_create)
        is_gone = state.membership.unregister(peer, header.consumer_group)
        if is_gone and (group is None or group.notify_consumer_ids_changed_enable):
            notify_members(state, header.consumer_group)
    return reply(command)


def handle_check_client(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 46 CHECK_CLIENT_CONFIG with success if the broker can filter by the consumer's expression.

    Raises:
        Refused: If it cannot.
    """
    body = read_object(command.body, "CheckClientRequestBody")
    if body.members.get("subscriptionData") is None:
        return reply(command)
    subscription = from_json(SubscriptionData, as_object(body.members["subscriptionData"], body.where))
    if is_by_tags(subscription):
        return reply(command)
    if not state.settings.enable_property_filter:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {subscription.expression_type}",
        )
    if subscription.expression_type != SQL92:
        raise Refused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"there is no filter of type {subscription.expression_type}",
        )
    try:
        compile_expression(subscription.sub_string)
    except Sql92Error as error:
        raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None
    return reply(command)


def handle_consumer_list(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 38 GET_CONSUMER_LIST_BY_GROUP: client ids of the group's members on this broker.

    Raises:
        Refused: If there are none.
    """
    header = from_ext_fields(GroupRequestHeader, command.ext_fields)
    members = state.membership.members(header.consumer_group)
    if not members:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}")
    return reply(command, body=encode_consumer_list(tuple(member.client_id for member in members)))


def handle_lock(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 41 LOCK_BATCH_MQ: lock queues; the answer lists those that the client holds now."""
    request = decode_body(LockBatchRequest, command.body)
    granted = state.locks.lock_batch(request.consumer_group, request.client_id, request.queues)
    return reply(command, body=encode_lock_response(granted))


def handle_unlock(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 42 UNLOCK_BATCH_MQ: release those of the queues that the client holds."""
    request = decode_body(LockBatchRequest, command.body)
    state.locks.unlock_batch(request.consumer_group, request.client_id, request.queues)
    return reply(command)


def notify_members(state: BrokerState, consumer_group: str) -> None:
    """Notify every member, including the one that caused it, that the group changed (code 40).

    Broadcasting members share nothing and are not notified.
    """
    data = state.membership.consumer_data(consumer_group)
    if data is None or data.message_model is MessageModel.BROADCASTING:
        return
    for member in state.membership.members(consumer_group):
        command = to_client(
            state,
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            {"consumerGroup": consumer_group},
            flag=ONEWAY_FLAG,
        )
        state.outbox.append(Outgoing(member.peer, command, int(command.code)))


def _join(state: BrokerState, client: Client, data: ConsumerData, *, replaces_subscriptions: bool) -> None:
    """Register the client in one consumer group of its heartbeat; notify the members if that is a change.

    ``replaces_subscriptions`` is False if the heartbeat has no subscriptions; then the known ones stay. Do
    nothing if the group is missing and must not be created, as recorded from a real broker (golden fact 15).
    """
    may_create = state.settings.auto_create_subscription_group
    group = state.groups.find_or_create(data.group_name, may_create=may_create)
    if group is None:
        return
    state.topics.ensure(retry_topic(data.group_name), group.retry_queue_nums)
    changed = state.membership.register(client, data, replaces_subscriptions=replaces_subscriptions)
    if replaces_subscriptions:
        state.filters.register(data.group_name, data.subscriptions)
    if changed and group.notify_consumer_ids_changed_enable:
        notify_members(state, data.group_name)
