"""What a request needs: which actions on which topics and groups (``DefaultAuthorizationContextBuilder``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple

from pyspark_rocketmq.model import RETRY_TOPIC_PREFIX
from pyspark_rocketmq.wire.codes import RequestCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.bodies import decode_heartbeat, decode_lock_request

CLUSTER_RESOURCE = "DefaultCluster"


class Action(StrEnum):
    """What is done to a resource."""

    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"


class Kind(StrEnum):
    """What kind of resource."""

    CLUSTER = "Cluster"
    TOPIC = "Topic"
    GROUP = "Group"


class Need(NamedTuple):
    """One of ``actions`` must be allowed on the resource."""

    kind: Kind
    name: str
    actions: tuple[Action, ...]

    @property
    def resource(self) -> str:
        """As remarks name it."""
        return f"{self.kind}:{self.name}"


class _Rule(NamedTuple):
    actions: tuple[Action, ...]
    fields: Mapping[str, Kind]
    """Ext fields that name resources."""


_SUB = (Action.SUB,)
_GET = (Action.GET,)
_SUB_OR_GET = (Action.SUB, Action.GET)
_SUB_OR_UPDATE = (Action.SUB, Action.UPDATE)
_TOPIC = {"topic": Kind.TOPIC}
_GROUP = {"group": Kind.GROUP}
_CONSUMER_GROUP = {"consumerGroup": Kind.GROUP}
_RULES: Mapping[int, _Rule] = {
    RequestCode.CONSUMER_SEND_MSG_BACK: _Rule(_SUB, _GROUP),
    RequestCode.PULL_MESSAGE: _Rule(_SUB, _TOPIC | _CONSUMER_GROUP),
    RequestCode.QUERY_MESSAGE: _Rule(_SUB_OR_GET, _TOPIC),
    RequestCode.UNREGISTER_CLIENT: _Rule(_SUB, _CONSUMER_GROUP),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _Rule(_SUB_OR_GET, _CONSUMER_GROUP),
    RequestCode.QUERY_CONSUMER_OFFSET: _Rule(_SUB_OR_GET, _TOPIC | _CONSUMER_GROUP),
    RequestCode.UPDATE_CONSUMER_OFFSET: _Rule(_SUB_OR_UPDATE, _TOPIC | _CONSUMER_GROUP),
    RequestCode.END_TRANSACTION: _Rule((Action.PUB,), _TOPIC),
    RequestCode.RECALL_MESSAGE: _Rule((Action.PUB,), _TOPIC),
    # From here on by the annotations of the header classes.
    RequestCode.UPDATE_AND_CREATE_TOPIC: _Rule((Action.CREATE,), _TOPIC),
    RequestCode.DELETE_TOPIC_IN_BROKER: _Rule((Action.DELETE,), _TOPIC),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _Rule((Action.DELETE,), {"groupName": Kind.GROUP}),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _Rule(_GET, _TOPIC),
    RequestCode.GET_MAX_OFFSET: _Rule(_GET, _TOPIC),
    RequestCode.GET_MIN_OFFSET: _Rule(_GET, _TOPIC),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _Rule(_GET, _TOPIC),
    RequestCode.VIEW_MESSAGE_BY_ID: _Rule(_GET, _TOPIC),
    RequestCode.GET_TOPIC_STATS_INFO: _Rule(_GET, _TOPIC),
    RequestCode.GET_TOPIC_CONFIG: _Rule(_GET, _TOPIC),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _Rule(_GET, _TOPIC),
    RequestCode.QUERY_CONSUME_TIME_SPAN: _Rule(_GET, _TOPIC | _GROUP),
    RequestCode.QUERY_CONSUME_QUEUE: _Rule(_GET, _TOPIC | _CONSUMER_GROUP),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _Rule(_GET, _GROUP),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _Rule(_GET, _TOPIC | _GROUP),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _Rule(_GET, _GROUP),
    RequestCode.GET_CONSUME_STATS: _Rule(_GET, _TOPIC | _CONSUMER_GROUP),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _Rule(_GET, _CONSUMER_GROUP),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _Rule(_GET, _CONSUMER_GROUP),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _Rule(_GET, _TOPIC | _GROUP),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _Rule((Action.UPDATE,), _TOPIC | _GROUP),
    RequestCode.CLONE_GROUP_OFFSET: _Rule((Action.UPDATE,), _TOPIC | {"destGroup": Kind.GROUP}),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _Rule(_SUB, _TOPIC | _CONSUMER_GROUP),
}
_CLUSTER_RULES: Mapping[int, Action] = {
    RequestCode.GET_PRODUCER_CONNECTION_LIST: Action.GET,
    RequestCode.VIEW_BROKER_STATS_DATA: Action.GET,
    RequestCode.GET_BROKER_CONSUME_STATS: Action.GET,
    RequestCode.GET_ALL_PRODUCER_INFO: Action.GET,
}
_RETRY_SKIPS_TOPIC = frozenset(
    {RequestCode.PULL_MESSAGE, RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET}
)
"""Of these a retry topic needs nothing beyond the group; of the others it stands for its group."""


def needs_of(command: RemotingCommand) -> list[Need]:
    """What the sender must be allowed; empty for requests 5.3.3 does not look at, LITE_PULL_MESSAGE among them.

    Raises:
        RemoteProtocolError: The body that names the resources makes no sense.
    """
    special = _SPECIAL.get(command.code)
    if special is not None:
        return special(command)
    if command.code in _CLUSTER_RULES:
        return [Need(Kind.CLUSTER, CLUSTER_RESOURCE, (_CLUSTER_RULES[command.code],))]
    rule = _RULES.get(command.code)
    if rule is None:
        return []
    needs = []
    for field, kind in rule.fields.items():
        name = command.ext_fields.get(field)
        is_retry = kind is Kind.TOPIC and _is_retry(name)
        if name and not (is_retry and command.code in _RETRY_SKIPS_TOPIC):
            needs.append(_group(name, rule.actions) if is_retry else _need(kind, name, rule.actions))
    return needs


def _send(topic_field: str, group_field: str) -> Callable[[RemotingCommand], list[Need]]:
    def needs(command: RemotingCommand) -> list[Need]:
        topic = command.ext_fields.get(topic_field, "")
        if not _is_retry(topic):
            return [Need(Kind.TOPIC, topic, (Action.PUB,))]
        return [_group(command.ext_fields.get(group_field) or topic, _SUB)]

    return needs


def _heartbeat(command: RemotingCommand) -> list[Need]:
    needs = []
    for consumer in decode_heartbeat(command.body).consumers:
        needs.append(_group(consumer.group_name, _SUB))
        needs += [
            Need(Kind.TOPIC, subscription.topic, _SUB)
            for subscription in consumer.subscriptions
            if not _is_retry(subscription.topic)
        ]
    return needs


def _lock(command: RemotingCommand) -> list[Need]:
    request = decode_lock_request(command.body)
    topics = sorted({queue.topic for queue in request.queues if not _is_retry(queue.topic)})
    return [_group(request.consumer_group, _SUB), *(Need(Kind.TOPIC, topic, _SUB) for topic in topics)]


def _need(kind: Kind, name: str, actions: tuple[Action, ...]) -> Need:
    return _group(name, actions) if kind is Kind.GROUP else Need(kind, name, actions)


def _group(name: str, actions: tuple[Action, ...]) -> Need:
    return Need(Kind.GROUP, name.removeprefix(RETRY_TOPIC_PREFIX), actions)


def _is_retry(topic: str | None) -> bool:
    return topic is not None and topic.startswith(RETRY_TOPIC_PREFIX)


_SPECIAL: Mapping[int, Callable[[RemotingCommand], list[Need]]] = {
    RequestCode.SEND_MESSAGE: _send("topic", "group"),
    RequestCode.SEND_MESSAGE_V2: _send("b", "a"),
    RequestCode.SEND_BATCH_MESSAGE: _send("b", "a"),
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.LOCK_BATCH_MQ: _lock,
    RequestCode.UNLOCK_BATCH_MQ: _lock,
}
