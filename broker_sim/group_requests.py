"""Requests about the configuration of consumer groups: 200, 201, 207, 225 and 352 (``AdminBrokerProcessor``)."""

from __future__ import annotations

from broker_sim.json_shapes import data_version
from broker_sim.replies import Refused, reply
from broker_sim.state import BrokerState
from broker_sim.topics import MOST_QUEUES
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import dumps_java, read_object
from pyspark_rocketmq.wire.requests.admin import (
    DeleteSubscriptionGroupRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
)
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields
from pyspark_rocketmq.wire.requests.topics import (
    SubscriptionGroupConfig,
    decode_group_config,
    encode_group_config,
    group_config_from_json,
    group_config_to_json,
)


def handle_put_group(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """200: create or replace a group; 5.3.3 takes any name."""
    if command.body:
        state.groups.put(_checked(decode_group_config(command.body)))
    return reply(command)


def handle_put_groups(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """225: create or replace several groups."""
    body = read_object(command.body, "SubscriptionGroupList")
    for group in [_checked(group_config_from_json(each)) for each in body.objects("groupConfigList")]:
        state.groups.put(group)
    return reply(command)


def handle_all_groups(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """201: every group."""
    body = {
        "dataVersion": data_version(state),
        "forbiddenTable": {},
        "subscriptionGroupTable": {group.group_name: group_config_to_json(group) for group in state.groups},
    }
    return reply(command, body=dumps_java(body))


def handle_group(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """352: one group, made on demand where that is allowed."""
    name = from_ext_fields(GetSubscriptionGroupConfigRequestHeader, command.ext_fields).group
    group = state.groups.find_or_create(name, may_create=state.settings.auto_create_subscription_group)
    if group is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
    return reply(command, body=encode_group_config(group))


def handle_delete_group(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """207: forget a group, its offsets only if asked to."""
    header = from_ext_fields(DeleteSubscriptionGroupRequestHeader, command.ext_fields)
    state.groups.delete(header.group_name)
    if header.clean_offset:
        state.offsets.forget_group(header.group_name)
    return reply(command)


def _checked(group: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
    if group.retry_queue_nums > MOST_QUEUES:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"The retry topic of group {group.group_name} would have {group.retry_queue_nums} queues; the simulator "
            f"takes at most {MOST_QUEUES}.",
        )
    return group
