"""Namespaces of version 1: servers see the names of topics and groups with a namespace in front.

A namespace exists only in the clients: ``orders`` of namespace ``shop`` is the topic ``shop%orders`` to every
server, and the retry topic of its group ``billing`` is ``%RETRY%shop%billing``.  Users never see the longer
names.

Source: RocketMQ 5.3.3 ``remoting/protocol/NamespaceUtil``, ``TopicValidator.isSystemTopic``,
``MixAll.isSysConsumerGroup``.
"""

from __future__ import annotations

from typing import Final

from pyspark_rocketmq.model import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, MessageQueue

_SEPARATOR: Final = "%"
SYSTEM_TOPICS: Final = frozenset(
    {
        "BenchmarkTest",
        "CHECKPOINT_TOPIC",
        "OFFSET_MOVED_EVENT",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "SELF_TEST_TOPIC",
        "TBW102",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
"""RocketMQ's own topics; they get no namespace, and users cannot create them."""
_SYSTEM_PREFIXES: Final = (
    "rmq_sys_",
    "CID_RMQ_SYS_",
    "RMQ_SYS_ROCKSDB_TRANS_",  # two topics that each broker has since 5.5.0
)


def is_system_resource(resource: str) -> bool:
    """Return whether this topic or group is RocketMQ's own."""
    return resource in SYSTEM_TOPICS or resource.startswith(_SYSTEM_PREFIXES)


def with_namespace(namespace: str, resource: str) -> str:
    """Return a topic's or group's name with the namespace, as servers have it; never add the namespace twice.

    An empty namespace changes nothing. The names of RocketMQ's own topics and groups are never changed.
    """
    if not namespace or not resource or is_system_resource(resource):
        return resource
    prefix, bare = _split_prefix(resource)
    if bare.startswith(namespace + _SEPARATOR):
        return resource
    return f"{prefix}{namespace}{_SEPARATOR}{bare}"


def without_namespace(namespace: str, resource: str) -> str:
    """Return a topic's or group's name without the namespace, as users write it.

    A name with another namespace, or with none, is not changed.
    """
    if not namespace or not resource:
        return resource
    prefix, bare = _split_prefix(resource)
    return prefix + bare.removeprefix(namespace + _SEPARATOR)


def queue_with_namespace(namespace: str, queue: MessageQueue) -> MessageQueue:
    """Return the queue with the namespace added to its topic by :func:`with_namespace`."""
    return queue._replace(topic=with_namespace(namespace, queue.topic)) if namespace else queue


def queue_without_namespace(namespace: str, queue: MessageQueue) -> MessageQueue:
    """Return the queue with the namespace removed from its topic by :func:`without_namespace`."""
    return queue._replace(topic=without_namespace(namespace, queue.topic)) if namespace else queue


def _split_prefix(resource: str) -> tuple[str, str]:
    for prefix in (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX):
        if resource.startswith(prefix):
            return prefix, resource.removeprefix(prefix)
    return "", resource
