"""Requests about the configuration of topics: 17, 18, 21, 215 and 351 (``AdminBrokerProcessor``)."""

from __future__ import annotations

from collections.abc import Mapping

from broker_sim.json_shapes import data_version
from broker_sim.replies import Refused, reply
from broker_sim.state import BrokerState
from broker_sim.topics import MOST_QUEUES, PERM_READ_WRITE, Topic, is_system_topic, name_problem
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import JsonObject, dumps_java, read_object
from pyspark_rocketmq.wire.requests.admin import DeleteTopicRequestHeader, GetTopicConfigRequestHeader
from pyspark_rocketmq.wire.requests.header_fields import from_ext_fields
from pyspark_rocketmq.wire.requests.headers import CreateTopicRequestHeader
from pyspark_rocketmq.wire.requests.topics import encode_topic_config, topic_config_to_json


def handle_create_topic(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """17: create a topic or change its queue numbers and permission."""
    header = from_ext_fields(CreateTopicRequestHeader, command.ext_fields)
    _check_name(header.topic)
    _check_queues(header.topic, header.read_queue_nums, header.write_queue_nums)
    state.topics.put(
        Topic(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
            attributes=_attributes(state, header),
        )
    )
    return reply(command, remark="not set any response code")  # golden fact 25


def handle_create_topics(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """18: the same for several topics, or none if one of them is illegal."""
    body = read_object(command.body, "CreateTopicListRequestBody")
    configs = [_read_topic(each) for each in body.objects("topicConfigList")]
    for config in configs:
        _check_name(config.name)
        _check_queues(config.name, config.read_queue_nums, config.write_queue_nums)
    for config in configs:
        state.topics.put(config)
    return reply(command)


def handle_all_topics(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """21: every topic."""
    body = {
        "dataVersion": data_version(state),
        "mappingDataVersion": data_version(state),
        "topicConfigTable": {topic.name: topic_config_to_json(topic) for topic in state.topics},
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    }
    return reply(command, body=dumps_java(body))


def handle_topic(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """351: one topic."""
    name = from_ext_fields(GetTopicConfigRequestHeader, command.ext_fields).topic
    topic = state.topics.find(name)
    if topic is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
    return reply(command, body=encode_topic_config(topic))


def handle_delete_topic(state: BrokerState, command: RemotingCommand) -> RemotingCommand:
    """215: forget a topic, its queues and what groups committed for it; one that does not exist is no error."""
    name = from_ext_fields(DeleteTopicRequestHeader, command.ext_fields).topic
    if not name.strip():
        raise Refused(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    if is_system_topic(name):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")
    state.topics.delete(name)
    state.offsets.forget_topic(name)
    state.store.delete_topic(name)
    if not state.settings.timer_wheel_enable:  # golden fact 26: it stumbles over the timers it does not have
        raise Refused(ResponseCode.SYSTEM_ERROR, "java.lang.NullPointerException: there are no timers")
    return reply(command)


def _check_name(topic: str) -> None:
    problem = name_problem(topic)
    if problem:
        raise Refused(ResponseCode.INVALID_PARAMETER, problem)
    if is_system_topic(topic):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")


def _check_queues(topic: str, *counts: int) -> None:
    if max(counts) > MOST_QUEUES:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"The topic[{topic}] would have {max(counts)} queues; the simulator takes at most {MOST_QUEUES}.",
        )


def _attributes(state: BrokerState, header: CreateTopicRequestHeader) -> Mapping[str, str]:
    """The topic's attributes after ``+name=value,-name`` (``AttributeParser``, ``AttributeUtil``)."""
    known = state.topics.find(header.topic)
    attributes = dict(known.attributes) if known else {}
    for part in filter(None, (each.strip() for each in (header.attributes or "").split(","))):
        name, _, value = part[1:].partition("=")
        if part[0] == "+" and name and value:
            attributes[name] = value
        elif part[0] == "-" and name and known is not None:
            attributes.pop(name, None)
        else:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"only add attribute is supported while creating topic. key: {part}",
            )
    return attributes


def _read_topic(config: JsonObject) -> Topic:
    return Topic(
        topic_name=config.text("topicName"),
        read_queue_nums=config.integer("readQueueNums", 16),
        write_queue_nums=config.integer("writeQueueNums", 16),
        perm=config.integer("perm", PERM_READ_WRITE),
        topic_filter_type=config.text("topicFilterType", "SINGLE_TAG"),
        topic_sys_flag=config.integer("topicSysFlag", 0),
        order=config.flag("order", default=False),
    )
