"""Administrators' requests about the broker and the configuration of consumer groups.

The broker's configuration 25 and 26, its state 28; groups 200, 201, 207, 225 and 352
(``AdminBrokerProcessor``).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from broker_sim.bodies import SubscriptionGroupConfig
from broker_sim.replies import SERVER_VERSION, Refused, reply
from broker_sim.request_headers import (
    DeleteSubscriptionGroupRequestHeader,
)
from broker_sim.settings import BrokerSettings
from broker_sim.state import CLUSTER_NAME, BrokerState
from broker_sim.topic_requests import data_version
from broker_sim.topics import MOST_QUEUES
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import decode_body, dumps_java, from_json, read_object
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields
from pyspark_rocketmq.wire.requests.headers import GroupConfigRequestHeader

_logger = logging.getLogger(__name__)

_BLACK_LIST = frozenset({"brokerConfigPath", "configBlackList"})
_ENTRY_BYTES = 20
_MOST_BEHIND_IN_SYNC = 256 * 1024 * 1024
"""Bytes that a replica may lack and still count as in sync (haMaxGapNotInSync)."""
_HOUR_S = 3600
_UNIT_S = {"s": 1, "m": 60, "h": _HOUR_S, "d": 24 * _HOUR_S}
_POOL_FIGURES = ("Size", "Capacity", "HeadWaitTimeMills")
_DAYS = ("YesterdayMorning", "TodayMorning", "TodayNow")


def handle_put_group(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: create or replace a group; any name is accepted.

    Raises:
        Refused: If a retry topic would have more queues than the simulator takes.
    """
    if command.body:
        state.groups.put(_checked(decode_body(SubscriptionGroupConfig, command.body)))
    return reply(command)


def handle_put_groups(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 225 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: create or replace several groups.

    Raises:
        Refused: If a retry topic would have more queues than the simulator takes; then no group is changed.
    """
    body = read_object(command.body, "SubscriptionGroupList")
    for group in [
        _checked(from_json(SubscriptionGroupConfig, each)) for each in body.objects("groupConfigList")
    ]:
        state.groups.put(group)
    return reply(command)


def handle_all_groups(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG: the configuration of every group."""
    body = {
        "dataVersion": data_version(state),
        "forbiddenTable": {},
        "subscriptionGroupTable": {group.group_name: group for group in state.groups},
    }
    return reply(command, body=dumps_java(body))


def handle_group(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 352 GET_SUBSCRIPTIONGROUP_CONFIG: one group's configuration; create the group if allowed.

    Raises:
        Refused: If the group is missing and is not created.
    """
    name = from_ext_fields(GroupConfigRequestHeader, command.ext_fields).group
    group = state.groups.find_or_create(name, may_create=state.settings.auto_create_subscription_group)
    if group is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
    return reply(command, body=dumps_java(group))


def handle_delete_group(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 207 DELETE_SUBSCRIPTIONGROUP: delete a group, and its offsets only on request."""
    header = from_ext_fields(DeleteSubscriptionGroupRequestHeader, command.ext_fields)
    state.groups.delete(header.group_name)
    if header.clean_offset:
        state.offsets.forget_group(header.group_name)
    return reply(command)


def _checked(group: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
    if group.retry_queue_nums > MOST_QUEUES:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"The retry topic of group {group.group_name} would have {group.retry_queue_nums} queues; the "
            f"simulator takes at most {MOST_QUEUES}.",
        )
    return group


class _Setting(NamedTuple):
    """Parser and formatter of one of the broker's properties."""

    read: Callable[[BrokerSettings, str], BrokerSettings]
    """Returns the settings with the property's value from a text; raises ValueError if it is invalid."""
    show: Callable[[BrokerSettings], str]


def handle_update_config(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 25 UPDATE_BROKER_CONFIG: change settings of the running broker.

    Unknown settings and invalid values are logged and ignored.

    Raises:
        Refused: If a setting may not be changed; then none is.
    """
    changes = _read_properties(command.body.decode("utf-8", "replace"))
    if _BLACK_LIST & changes.keys():
        raise Refused(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
    for name, text in changes.items():
        setting = _SETTINGS.get(name)
        if setting is None:
            _logger.warning(
                "The simulated broker %s has no setting %s; it ignores %r.", state.name, name, text
            )
            continue
        try:
            state.settings = setting.read(state.settings, text)
        except ValueError:
            _logger.warning("%s ignores %s=%r, which is not a value of it.", state.name, name, text)
    return reply(command)


def handle_config(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 26 GET_BROKER_CONFIG: all settings, as a properties file."""
    shown = {
        "brokerClusterName": CLUSTER_NAME,
        "brokerId": "0",
        "brokerIP1": state.host.ip,
        "brokerName": state.name,
        "brokerRole": "ASYNC_MASTER",
        "defaultTopicQueueNums": str(state.settings.default_queues),
        "listenPort": str(state.host.port),
        **{name: setting.show(state.settings) for name, setting in _SETTINGS.items()},
    }
    body = "".join(f"{name}={text}\n" for name, text in sorted(shown.items())).encode()
    version = json.dumps(data_version(state), separators=(",", ":"))
    return reply(command, ext_fields={"version": version}, body=body)


def handle_runtime_info(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 28 GET_BROKER_RUNTIME_INFO: figures by name; those of disks and thread pools are always 0."""
    idle_pools = ("send", "pull", "query", "litePull", "ack")
    table = {
        "EndTransactionQueueSize": "0",
        "brokerActive": "true",
        "brokerVersion": str(SERVER_VERSION),
        "brokerVersionDesc": "V5_3_3",
        "bootTimestamp": str(state.started_ms),
        "commitLogDiskRatio": "0.0",
        "commitLogMaxOffset": str(state.store.end_offset),
        "commitLogMinOffset": str(state.store.oldest_offset),
        "consumeQueueDiskRatio": "0.0",
        "dispatchBehindBytes": "0",
        "dispatchMaxBuffer": "0",
        "earliestMessageTimeStamp": str(state.store.earliest_timestamp()),
        "pageCacheLockTimeMills": "0",
        "startAcceptSendRequestTimeStamp": "0",
        **{f"{pool}ThreadPoolQueue{figure}": "0" for pool in idle_pools for figure in _POOL_FIGURES},
        **{
            f"{way}Tps": "0.0 0.0 0.0" for way in ("put", "getTotal", "getFound", "getMiss", "getTransferred")
        },
        **{f"timer{figure}": "0" for figure in ("ReadBehind", "OffsetBehind", "CongestNum")},
        **{f"timer{figure}": "0.0" for figure in ("EnqueueTps", "DequeueTps")},
        **{f"msg{way}Total{day}": "0" for way in ("Put", "Get") for day in _DAYS},
    }
    return reply(command, body=dumps_java({"table": dict(sorted(table.items()))}))


def handle_replicas(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Answer 907 GET_BROKER_HA_STATUS: how far each replica's copy of the log is behind its master.

    Source: ``DefaultHAService.getRuntimeInfo``.
    """
    end = state.store.end_offset
    copies = [
        {
            "addr": str(host),
            "diff": end - copied,
            "inSync": end - copied < _MOST_BEHIND_IN_SYNC,
            "slaveAckOffset": copied,
            "transferFromWhere": copied,
            "transferredByteInSecond": 0,
        }
        for host, copied in state.replicas().items()
    ]
    body = {
        "haConnectionInfo": copies,
        "inSyncSlaveNums": sum(bool(each["inSync"]) for each in copies),
        "master": True,
        "masterCommitLogMaxOffset": end,
    }
    return reply(command, body=dumps_java(body))


def _read_properties(text: str) -> dict[str, str]:
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith(("#", "!")))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _flag(attribute: str) -> _Setting:
    return _Setting(
        lambda settings, text: _changed(settings, attribute, text.lower() == "true"),
        lambda settings: str(getattr(settings, attribute)).lower(),
    )


def _number(attribute: str) -> _Setting:
    return _Setting(
        lambda settings, text: _changed(settings, attribute, int(text)),
        lambda settings: str(getattr(settings, attribute)),
    )


def _pull_limit(attribute: str, factor: int = 1) -> _Setting:
    """Create the setting of a field of ``PullLimits``; the property's value is ``factor`` times the field."""

    def read(settings: BrokerSettings, text: str) -> BrokerSettings:
        limits: Any = settings.pull_limits
        return replace(settings, pull_limits=replace(limits, **{attribute: int(text) // factor}))

    return _Setting(read, lambda settings: str(getattr(settings.pull_limits, attribute) * factor))


def _changed(settings: BrokerSettings, attribute: str, value: object) -> BrokerSettings:
    changes: dict[str, Any] = {attribute: value}
    return replace(settings, **changes)


def _read_levels(settings: BrokerSettings, text: str) -> BrokerSettings:
    try:
        levels = tuple(int(level[:-1]) * _UNIT_S[level[-1]] for level in text.split())
    except KeyError as error:
        raise ValueError(text) from error
    return replace(settings, delay_levels_s=levels)


_SETTINGS: Mapping[str, _Setting] = {
    "autoCreateSubscriptionGroup": _flag("auto_create_subscription_group"),
    "autoCreateTopicEnable": _flag("auto_create_topic_enable"),
    "brokerPermission": _number("broker_permission"),
    "enablePropertyFilter": _flag("enable_property_filter"),
    # 0 hours: for ever.
    "fileReservedTime": _Setting(
        lambda settings, text: replace(settings, retention_s=float(int(text) * _HOUR_S) or None),
        lambda settings: str(int((settings.retention_s or 0) // _HOUR_S)),
    ),
    "litePullMessageEnable": _flag("lite_pull_message_enable"),
    "longPollingEnable": _flag("long_polling_enable"),
    "maxFilterMessageSize": _pull_limit("scanned_entries", _ENTRY_BYTES),
    "maxMessageSize": _number("max_message_size"),
    "maxTransferBytesOnMessageInMemory": _pull_limit("total_bytes"),
    "maxTransferCountOnMessageInMemory": _pull_limit("messages"),
    "messageDelayLevel": _Setting(
        _read_levels, lambda settings: " ".join(f"{seconds:g}s" for seconds in settings.delay_levels_s)
    ),
    "timerMaxDelaySec": _number("timer_max_delay_s"),
    "timerWheelEnable": _flag("timer_wheel_enable"),
    "useServerSideResetOffset": _flag("use_server_side_reset_offset"),
}
