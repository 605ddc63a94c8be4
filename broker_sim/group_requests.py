"""Requests about the configuration of consumer groups: 200, 201, 207, 225 and 352 (``AdminBrokerProcessor``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from broker_sim.groups import SubscriptionGroup
from broker_sim.json_shapes import data_version
from broker_sim.replies import Refused, reply
from broker_sim.state import BrokerState
from broker_sim.topics import MOST_QUEUES
from pyspark_rocketmq.wire.admin_headers import (
    DeleteSubscriptionGroupRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
)
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.header_fields import from_ext_fields
from pyspark_rocketmq.wire.json_fields import JsonObject, read_object
from pyspark_rocketmq.wire.json_quirks import dumps_java

_NAME_BESIDE: Mapping[str, str] = {"name": "groupName"}


def handle_put_group(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """200: create or replace a group; 5.3.3 takes any name."""
    if command.body:
        state.groups.put(_read_group(read_object(command.body, "SubscriptionGroupConfig")))
    return reply(command)


def handle_put_groups(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """225: create or replace several groups."""
    body = read_object(command.body, "SubscriptionGroupList")
    for group in [_read_group(each) for each in body.objects("groupConfigList")]:
        state.groups.put(group)
    return reply(command)


def handle_all_groups(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """201: every group."""
    body = {
        "dataVersion": data_version(state),
        "forbiddenTable": {},
        "subscriptionGroupTable": {group.name: _group_json(group) for group in state.groups},
    }
    return reply(command, body=dumps_java(body))


def handle_group(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """352: one group, made on demand where that is allowed."""
    name = from_ext_fields(GetSubscriptionGroupConfigRequestHeader, command.ext_fields).group
    group = state.groups.find_or_create(name, may_create=state.settings.auto_create_subscription_group)
    if group is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
    return reply(command, body=dumps_java(_group_json(group)))


def handle_delete_group(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """207: forget a group, its offsets only if asked to."""
    header = from_ext_fields(DeleteSubscriptionGroupRequestHeader, command.ext_fields)
    state.groups.delete(header.group_name)
    if header.clean_offset:
        state.offsets.forget_group(header.group_name)
    return reply(command)


def _read_group(config: JsonObject) -> SubscriptionGroup:
    values: dict[str, Any] = {}
    for each in fields(SubscriptionGroup):
        java_name = _java_name(each.name)
        if each.default is not MISSING and config.members.get(java_name) is None:
            continue
        if isinstance(each.default, bool):
            values[each.name] = config.flag(java_name, default=each.default)
        elif isinstance(each.default, int):
            values[each.name] = config.integer(java_name)
        else:
            values[each.name] = config.text(java_name)
    group = SubscriptionGroup(**values)
    if group.retry_queue_nums > MOST_QUEUES:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"The retry topic of group {group.name} would have {group.retry_queue_nums} queues; the simulator takes "
            f"at most {MOST_QUEUES}.",
        )
    return group


def _group_json(group: SubscriptionGroup) -> dict[str, object]:
    shown: dict[str, object] = {_java_name(each.name): getattr(group, each.name) for each in fields(group)}
    return dict(sorted({**shown, "attributes": {}, "groupRetryPolicy": {"type": "CUSTOMIZED"}}.items()))


def _java_name(attribute: str) -> str:
    first, *others = attribute.split("_")
    return _NAME_BESIDE.get(attribute, first + "".join(map(str.capitalize, others)))
