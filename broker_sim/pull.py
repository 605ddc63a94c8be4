"""PULL_MESSAGE and LITE_PULL_MESSAGE (``PullMessageProcessor``).

The checks run in the real broker's order, because the first failure determines the answer. Then the store is
queried, and an answer "nothing yet" may be held until a message arrives.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_sim.filters import (
    HeldPull,
    MessageFilter,
    RegisteredFilter,
    compile_or_none,
    is_by_tags,
    tag_filter,
)
from broker_sim.message_store import GetMessageResult, GetMessageStatus
from broker_sim.replies import SEE_FAQ, Outgoing, Peer, Refused, reply
from broker_sim.state import BrokerState
from broker_sim.topics import PERM_READ
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import MessageModel
from pyspark_rocketmq.wire.codes import PullSysFlag, RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields
from pyspark_rocketmq.wire.requests.headers import PullMessageRequestHeader
from pyspark_rocketmq.wire.subscription import TAG, SubscriptionData, build_subscription

_FORBIDDEN_BROKER = {"forbiddenType": "1"}
_FORBIDDEN_GROUP = {"forbiddenType": "2"}
_FORBIDDEN_TOPIC = {"forbiddenType": "3"}
_FORBIDDEN_BROADCAST = {"forbiddenType": "4"}

_COMMIT_OFFSET = int(PullSysFlag.COMMIT_OFFSET)
_SUSPEND = int(PullSysFlag.SUSPEND)
_SUBSCRIPTION = int(PullSysFlag.SUBSCRIPTION)
_SHORT_POLLING_S = 1.0
"""How long a pull is held without long polling (shortPollingTimeMills)."""

_CODES: Mapping[GetMessageStatus, ResponseCode] = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}


def handle_pull(state: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand | None:
    """Return the answer to a pull; None if the pull is held until there are messages or its time is up.

    Raises:
        Refused: If broker, group, topic, queue or subscription do not allow the pull.
    """
    header = from_ext_fields(PullMessageRequestHeader, command.ext_fields)
    wanted = _check(state, peer, command.code, header)
    result = _look(state, header, wanted)
    if header.sys_flag & _COMMIT_OFFSET:  # after the query: a reset is returned by it, not overwritten
        state.offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
    code = _code(header, result)
    if code is not ResponseCode.PULL_NOT_FOUND or not header.sys_flag & _SUSPEND:
        return _answer(command, code, result)
    is_long = state.settings.long_polling_enable
    held_s = header.suspend_timeout_millis / 1000 if is_long else _SHORT_POLLING_S
    pull = HeldPull(
        peer=peer,
        command=command,
        topic=header.topic,
        queue_id=header.queue_id,
        wanted=wanted,
        deadline_s=state.clock.monotonic_s() + held_s,
    )
    state.held_pulls.hold(pull)
    return None


def release_held_pull(state: BrokerState, pull: HeldPull) -> Outgoing:
    """Run a held pull a second and last time; return the answer to send, with or without messages."""
    header = from_ext_fields(PullMessageRequestHeader, pull.command.ext_fields)
    try:
        wanted = _check(state, pull.peer, pull.command.code, header)
        result = _look(state, header, wanted)
        answer = _answer(pull.command, _code(header, result), result)
    except Refused as refused:  # the subscription or the topic changed meanwhile
        answer = reply(pull.command, refused.code, refused.remark, ext_fields=refused.ext_fields)
    return Outgoing(pull.peer, answer, pull.command.code)


def _look(state: BrokerState, header: PullMessageRequestHeader, wanted: MessageFilter) -> GetMessageResult:
    group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
    reset_to = state.offsets.take_reset(group, topic, queue_id)
    if reset_to is not None and state.settings.use_server_side_reset_offset:
        result = GetMessageResult(
            status=GetMessageStatus.OFFSET_RESET,
            next_begin_offset=reset_to,
            min_offset=state.store.min_offset(topic, queue_id),
            max_offset=state.store.max_offset(topic, queue_id),
        )
    else:
        result = state.store.get(
            topic,
            queue_id,
            header.queue_offset,
            header.max_msg_nums,
            limits=state.settings.pull_limits,
            wanted=wanted.codes,
            accepts=wanted.accepts if wanted.expression else None,
        )
    state.offsets.note_pull(group, topic, queue_id, result.next_begin_offset)
    return result


def _code(header: PullMessageRequestHeader, result: GetMessageResult) -> ResponseCode:
    if result.status is GetMessageStatus.NO_MESSAGE_IN_QUEUE and header.queue_offset == 0:
        return ResponseCode.PULL_NOT_FOUND
    return _CODES[result.status]


def _answer(command: RemotingCommand, code: ResponseCode, result: GetMessageResult) -> RemotingCommand:
    fields = {
        "suggestWhichBrokerId": "0",
        "groupSysFlag": "0",
        "nextBeginOffset": str(result.next_begin_offset),
        "maxOffset": str(result.max_offset),
        "minOffset": str(result.min_offset),
        "topicSysFlag": "0",
    }
    return reply(command, code, result.status.name, ext_fields=fields, body=result.body)


def _check(
    state: BrokerState, peer: Peer, request_code: int, header: PullMessageRequestHeader
) -> MessageFilter:
    """Return the filter of the pull's messages.

    Raises:
        Refused: If broker, group, topic, queue or subscription do not allow the pull.
    """
    _check_broker(state, request_code)
    _check_group(state, header.consumer_group)
    _check_queue(state, peer, header)
    return _filter(state, header)


def _check_broker(state: BrokerState, request_code: int) -> None:
    if not state.settings.broker_permission & PERM_READ:
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"the broker[{state.host.ip}] pulling message is forbidden",
            _FORBIDDEN_BROKER,
        )
    if request_code == RequestCode.LITE_PULL_MESSAGE and not state.settings.lite_pull_message_enable:
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"the broker[{state.host.ip}] for lite pull consumer is forbidden",
            _FORBIDDEN_BROKER,
        )


def _check_group(state: BrokerState, consumer_group: str) -> None:
    group = state.groups.find_or_create(
        consumer_group, may_create=state.settings.auto_create_subscription_group
    )
    if group is None:
        raise Refused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group [{consumer_group}] does not exist, {SEE_FAQ}",
        )
    if not group.consume_enable:
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"subscription group no permission, {consumer_group}",
            _FORBIDDEN_GROUP,
        )


def _check_queue(state: BrokerState, peer: Peer, header: PullMessageRequestHeader) -> None:
    topic = state.topics.find(header.topic)
    if topic is None:
        raise Refused(
            ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please! {SEE_FAQ}"
        )
    if not topic.is_readable:
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"the topic[{header.topic}] pulling message is forbidden",
            _FORBIDDEN_TOPIC,
        )
    if not 0 <= header.queue_id < topic.read_queue_nums:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
            f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{peer.host}]",
        )


def _filter(state: BrokerState, header: PullMessageRequestHeader) -> MessageFilter:
    """Return the filter of the pull's own subscription, or else of that from the group's heartbeats.

    Raises:
        Refused: If there is no subscription, if the group's is older than the version in the pull, or if the
            broker does not support it.
    """
    brings_its_own = bool(header.sys_flag & _SUBSCRIPTION)
    subscription = _own_subscription(header) if brings_its_own else _registered_subscription(state, header)
    if is_by_tags(subscription):
        return tag_filter(subscription)
    registered = None if brings_its_own else _registered_filter(state, header)
    if not state.settings.enable_property_filter:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {subscription.expression_type}",
        )
    if registered is not None:
        return MessageFilter(expression=registered.compiled)
    # Golden fact 9: an expression that does not compile filters nothing.
    return MessageFilter(expression=compile_or_none(subscription.expression_type, subscription.sub_string))


def _own_subscription(header: PullMessageRequestHeader) -> SubscriptionData:
    try:
        return build_subscription(
            header.topic,
            header.subscription,
            sub_version=header.sub_version,
            expression_type=header.expression_type or TAG,
        )
    except OptionError:
        raise Refused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
        ) from None


def _registered_filter(state: BrokerState, header: PullMessageRequestHeader) -> RegisteredFilter:
    registered = state.filters.find(header.topic, header.consumer_group)
    if registered is None:
        raise Refused(
            ResponseCode.FILTER_DATA_NOT_EXIST,
            "The broker's consumer filter data is not exist!Your expression may be wrong!",
        )
    if registered.version < header.sub_version:
        raise Refused(ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest")
    return registered


def _registered_subscription(state: BrokerState, header: PullMessageRequestHeader) -> SubscriptionData:
    data = state.membership.consumer_data(header.consumer_group)
    if data is None:
        raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{SEE_FAQ}")
    group = state.groups.find(header.consumer_group)
    if group and not group.consume_broadcast_enable and data.message_model == MessageModel.BROADCASTING:
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            _FORBIDDEN_BROADCAST,
        )
    subscription = state.membership.subscriptions(header.consumer_group).get(header.topic)
    if subscription is None:
        raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{SEE_FAQ}")
    if subscription.sub_version < header.sub_version:
        raise Refused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
    return subscription
