"""Access control 2.0 of a broker (``auth`` module): a request's sender, the rights it needs, the decision.

The needed actions on topics and groups are those of ``DefaultAuthorizationContextBuilder``. Every refusal is
code 16. The name server of 5.3.3 has no access control, so this one has none either.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from broker_sim.replies import Outgoing, Peer
from broker_sim.server import Around, Endpoint
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import RETRY_TOPIC_PREFIX
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import ACCESS_KEY, SIGNATURE, RemotingCommand, signature
from pyspark_rocketmq.wire.fastjson import decode_body
from pyspark_rocketmq.wire.requests.bodies import HeartbeatData, LockBatchRequest

CLUSTER_RESOURCE = "DefaultCluster"

_RETRY_SKIPS_TOPIC = frozenset(
    {RequestCode.PULL_MESSAGE, RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET}
)
"""Requests in which a retry topic needs no right of its own: they also name the group, which needs one. In
all other requests, a retry topic needs a right to its group."""
_ANYTHING = "*"
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_NEWEST_THAT_LEAVES_IT_UNSIGNED = 399  # V4_9_3


class Action(StrEnum):
    """Action on a resource."""

    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"


class Kind(StrEnum):
    """Kind of a resource."""

    CLUSTER = "Cluster"
    TOPIC = "Topic"
    GROUP = "Group"


class Need(NamedTuple):
    """A right that a request needs: one of ``actions`` on a resource."""

    kind: Kind
    name: str
    actions: tuple[Action, ...]

    @property
    def resource(self) -> str:
        """The resource as policies and remarks name it, such as ``Topic:orders``."""
        return f"{self.kind}:{self.name}"


class _Rule(NamedTuple):
    actions: tuple[Action, ...]
    fields: Mapping[str, Kind]
    """Names of the ext fields that name resources, with the kind of each resource."""


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
    # The rest follows the annotations of the header classes.
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


def needs_of(command: RemotingCommand) -> list[Need]:
    """Return the rights that the sender needs; empty if 5.3.3 checks none, as for LITE_PULL_MESSAGE.

    Raises:
        RemoteProtocolError: The body that names the resources is malformed.
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
    for key, kind in rule.fields.items():
        name = command.ext_fields.get(key)
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
    for consumer in decode_body(HeartbeatData, command.body).consumers:
        needs.append(_group(consumer.group_name, _SUB))
        needs += [
            Need(Kind.TOPIC, subscription.topic, _SUB)
            for subscription in consumer.subscriptions
            if not _is_retry(subscription.topic)
        ]
    return needs


def _lock(command: RemotingCommand) -> list[Need]:
    request = decode_body(LockBatchRequest, command.body)
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


@dataclass(frozen=True, slots=True)
class Policy:
    """Actions that a user may, or may not, perform on some resources."""

    resource: str
    """``Topic:orders``, ``Topic:ord*``, ``Group:*``, ``Cluster:*`` or ``*``."""
    actions: frozenset[Action] = frozenset({Action.ALL})
    is_allowed: bool = True

    def fits(self, need: Need) -> bool:
        """Whether the policy concerns the resource and one of the actions of ``need``."""
        if self.actions.isdisjoint(need.actions) and Action.ALL not in self.actions:
            return False
        if self.resource.endswith(_ANYTHING):
            return need.resource.startswith(self.resource[:-1])
        return need.resource == self.resource

    @property
    def rank(self) -> tuple[bool, int, bool]:
        """Sort key: of several policies that fit, the one with the lowest rank decides.

        Exact names come before prefixes, long names before short ones, and refusals before permissions.
        """
        return self.resource.endswith(_ANYTHING), -len(self.resource), self.is_allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user that may sign requests, and the user's rights."""

    access_key: str
    secret_key: str = field(repr=False)
    is_super: bool = False
    """Whether everything is allowed."""
    is_enabled: bool = True
    policies: tuple[Policy, ...] = ()


class AccessControl:
    """Decides whether a request is allowed, by its signature, its user and the user's policies."""

    def __init__(self, users: Iterable[User]) -> None:
        self._users = {user.access_key: user for user in users}

    def problem(self, ip: str, command: RemotingCommand) -> str | None:
        """Return why a request from ``ip`` is refused, in the broker's words; None if it is not."""
        name = command.ext_fields.get(ACCESS_KEY)
        if not name:
            return "username cannot be null."
        user = self._users.get(name)
        if user is None:
            return f"User:{name} is not found."
        if not user.is_enabled:
            return f"User:{name} is disabled."
        if not _is_signed(user, command):
            return "check signature failed."
        return None if user.is_super else _first_denial(user, command, ip)


def _is_signed(user: User, command: RemotingCommand) -> bool:
    fields = command.ext_fields
    if command.version <= _NEWEST_THAT_LEAVES_IT_UNSIGNED:
        fields = {name: value for name, value in fields.items() if name != _UNIQUE_KEY_QUERY}
    expected = signature(user.secret_key.encode(), fields, command.body)
    return hmac.compare_digest(expected.encode(), fields.get(SIGNATURE, "").encode())


def _first_denial(user: User, command: RemotingCommand, ip: str) -> str | None:
    try:
        needs = needs_of(command)
    except RemoteProtocolError:
        return "parse authorization context error."
    return next((problem for need in needs if (problem := _denial(user, need, ip))), None)


def _denial(user: User, need: Need, ip: str) -> str | None:
    """Return why the user lacks a right, in the broker's words; None if the user has it.

    Source: ``AclAuthorizationHandler``.
    """
    fitting = sorted((policy for policy in user.policies if policy.fits(need)), key=lambda each: each.rank)
    if fitting and fitting[0].is_allowed:
        return None
    detail = "the decision is deny." if fitting else "no matched policies."
    return f"User:{user.access_key} has no permission to access {need.resource} from {ip}, {detail}"


class Guarded(Around):
    """Refuses requests that access control forbids, and passes all others to an inner broker.

    Like the inner one, this object is an :class:`broker_sim.server.Endpoint`.
    """

    def __init__(self, inner: Endpoint, access: AccessControl, *, mirror_header_form: bool = False) -> None:
        super().__init__(inner, mirror_header_form=mirror_header_form)
        self._access = access

    def handle(self, peer: Peer, command: RemotingCommand) -> list[Outgoing]:
        """Refuse a request that access control forbids; otherwise return the inner endpoint's commands."""
        problem = None if command.is_response else self._access.problem(peer.host.ip, command)
        if problem is None:
            return self._inner.handle(peer, command)
        return self._refuse(peer, command, ResponseCode.NO_PERMISSION, problem)
