"""36 CONSUMER_SEND_MSG_BACK: a consumer could not handle a message (``AbstractSendMessageProcessor``)."""

from __future__ import annotations

from dataclasses import replace

from broker_sim.delay import postponement
from broker_sim.layout import MAX_PROPERTIES_LENGTH, offset_message_id
from broker_sim.replies import SEE_FAQ, Refused, reply
from broker_sim.retries import most_retries
from broker_sim.state import BrokerState
from broker_sim.stored import StoredParts, read_stored
from broker_sim.storing import encode_properties, postpone, store_run
from broker_sim.topics import PERM_WRITE
from pyspark_rocketmq.model import dlq_topic, retry_topic
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields
from pyspark_rocketmq.wire.requests.headers import ConsumerSendMsgBackRequestHeader

_FIRST_RETRY_LEVEL = 3


def handle_send_back(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """Store a copy of the message for a later attempt, or among the group's dead letters."""
    header = from_ext_fields(ConsumerSendMsgBackRequestHeader, command.ext_fields)
    group = state.groups.find_or_create(
        header.group, may_create=state.settings.auto_create_subscription_group
    )
    if group is None:
        raise Refused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group not exist, {header.group} {SEE_FAQ}",
        )
    if not state.settings.broker_permission & PERM_WRITE:
        raise Refused(ResponseCode.NO_PERMISSION, f"the broker[{state.host.ip}] sending message is forbidden")
    if group.retry_queue_nums <= 0:
        return reply(command)  # nothing is kept, and nobody is told
    topic = state.topics.ensure(retry_topic(header.group), group.retry_queue_nums)
    if not topic.perm & PERM_WRITE:
        raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{topic.name}] sending message is forbidden")
    stored = state.store.message_at(header.offset)
    if stored is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
    message = read_stored(stored)
    most = most_retries(group, command.version, header.max_reconsume_times)
    if message.run.reconsume_times >= most or header.delay_level < 0:
        dead_letters = state.topics.ensure(dlq_topic(header.group), 1)
        _store_copy(state, message, dead_letters.name, 0, delay_level=0)
    else:
        queue_id = next(state.numbers) % group.retry_queue_nums
        level = header.delay_level or _FIRST_RETRY_LEVEL + message.run.reconsume_times
        _store_copy(state, message, topic.name, queue_id, delay_level=level)
    return reply(command)


def _store_copy(
    state: BrokerState, message: StoredParts, topic: str, queue_id: int, *, delay_level: int
) -> None:
    origin = offset_message_id(message.store_host, message.commit_log_offset)
    first = {"RETRY_TOPIC": message.run.topic, "ORIGIN_MESSAGE_ID": origin}
    properties = {**first, **message.properties, "WAIT": "false", "DELAY": str(delay_level)}
    wait = postponement(topic, queue_id, properties, settings=state.settings, now_ms=state.now_ms())
    encoded = encode_properties(properties if wait is None else wait.properties)
    if len(encoded) > MAX_PROPERTIES_LENGTH:
        raise Refused(ResponseCode.SYSTEM_ERROR, "PROPERTIES_SIZE_EXCEEDED")
    copy = replace(
        message.run,
        topic=topic,
        queue_id=queue_id,
        members=(message.member._replace(properties=encoded),),
        reconsume_times=message.run.reconsume_times + 1,
    )
    if wait is None:
        store_run(state, copy)
    else:
        postpone(state, copy, wait)
