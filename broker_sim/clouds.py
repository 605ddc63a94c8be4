"""Rules by which managed clusters differ from self-hosted brokers.

Each rule exists in some cloud: names that contain the instance's namespace, fields for it in every request,
no batch sends, a limit of messages per pull, topics with one message type, requests that proxies do not
serve, addresses that only the cloud's own machines reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from broker_sim.layout import Host
from broker_sim.replies import SEE_FAQ, Outgoing, Peer, Refused
from broker_sim.server import Around, Endpoint
from broker_sim.topics import AUTO_CREATE_TOPIC_KEY
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import decode_body
from pyspark_rocketmq.wire.namespace import is_system_resource
from pyspark_rocketmq.wire.properties import (
    DELAY,
    SHARDING_KEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    decode_properties,
)
from pyspark_rocketmq.wire.requests.bodies import HeartbeatData, LockBatchRequest

_SENDS: Final = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)
_TOPIC_FIELDS: Final = ("topic", "originTopic")
_GROUP_FIELDS: Final = ("consumerGroup", "producerGroup", "group")


class MessageType(StrEnum):
    """Kind of messages that a topic of a managed cluster accepts (``TopicMessageType``)."""

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudRules:
    """Rules of one managed cluster for requests; by default those of a self-hosted cluster."""

    namespace: str = ""
    """Namespace of version 1: topics and groups exist only under ``namespace%name``."""
    namespace_v2: str = ""
    """Instance that the fields ``ns`` and ``nsd`` of every request must name."""
    takes_batches: bool = True
    most_pulled: int | None = None
    """Maximum number of messages of one pull; None without a limit."""
    message_types: Mapping[str, MessageType] = field(default_factory=dict)
    """Message types by topic, with the server's topic names; other topics accept all types."""
    unserved: frozenset[int] = frozenset()
    """Codes of requests that are not supported."""
    advertised: Mapping[str, Host] = field(default_factory=dict)
    """Addresses that routes show for the masters of these broker names, in place of the true ones."""

    def refusal(self, command: RemotingCommand) -> Refused | None:
        """Return the refusal of a request that breaks one of the rules; None if it breaks none."""
        if command.code in self.unserved or (
            command.code == RequestCode.SEND_BATCH_MESSAGE and not self.takes_batches
        ):
            return Refused(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"request type {command.code} not supported"
            )
        return self._wrong_instance(command) or self._wrong_name(command) or self._wrong_type(command)

    def served(self, command: RemotingCommand) -> RemotingCommand:
        """Return the request to carry out: a pull for ``most_pulled`` messages at most, others unchanged."""
        if self.most_pulled is None or command.code != RequestCode.PULL_MESSAGE:
            return command
        most = min(self.most_pulled, int(command.ext_fields.get("maxMsgNums", self.most_pulled)))
        return replace(command, ext_fields={**command.ext_fields, "maxMsgNums": str(most)})

    def _wrong_instance(self, command: RemotingCommand) -> Refused | None:
        named = command.ext_fields.get("ns", "") if command.ext_fields.get("nsd") == "true" else ""
        if not self.namespace_v2 or named == self.namespace_v2:
            return None
        return Refused(ResponseCode.TOPIC_NOT_EXIST, f"instance not found: {named or 'none is named'}")

    def _wrong_name(self, command: RemotingCommand) -> Refused | None:
        if not self.namespace:
            return None
        for is_topic, name in _named_in(command):
            # The topics' template is missing, since clouds do not create topics when messages are sent.
            is_there = is_system_resource(name) and name != AUTO_CREATE_TOPIC_KEY
            if not is_there and not _bare(name).startswith(f"{self.namespace}%"):
                kind = "topic" if is_topic else "subscription group"
                code = ResponseCode.TOPIC_NOT_EXIST if is_topic else ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
                return Refused(code, f"{kind} {name} not exist, apply first please!{SEE_FAQ}")
        return None

    def _wrong_type(self, command: RemotingCommand) -> Refused | None:
        """Return the refusal of a send whose message has another type than its topic; None for all others.

        Source: RocketMQ 5.3.3 ``SendMessageActivity``, ``DefaultTopicMessageTypeValidator``.
        """
        fields = command.ext_fields
        is_v1 = command.code == RequestCode.SEND_MESSAGE
        wanted = self.message_types.get(fields.get("topic" if is_v1 else "b", ""))
        if command.code not in _SENDS or wanted is None:
            return None
        properties = decode_properties(fields.get("properties" if is_v1 else "i", "").encode())
        found = message_type(properties)
        if found is wanted:
            return None
        return Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"TopicMessageType validate failed, the expected type is {wanted}, but actual type is {found}",
        )


_DELAYS: Final = frozenset({DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS})


def message_type(properties: Mapping[str, str]) -> MessageType:
    """Return the type of a message with these properties; for a batch, pass the request's properties.

    Source: RocketMQ 5.3.3 ``TopicMessageType.parseFromMessageProperty``.
    """
    if properties.get(TRAN_MSG) == "true":
        return MessageType.TRANSACTION
    if not _DELAYS.isdisjoint(properties):
        return MessageType.DELAY
    return MessageType.FIFO if SHARDING_KEY in properties else MessageType.NORMAL


def _named_in(command: RemotingCommand) -> Iterator[tuple[bool, str]]:
    """Yield each topic (with True) and each group (with False) that a request names, also in its body."""
    is_v2 = command.code in {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
    topics, groups = (("b",), ("a",)) if is_v2 else (_TOPIC_FIELDS, _GROUP_FIELDS)
    for is_topic, keys in ((True, topics), (False, groups)):
        yield from ((is_topic, command.ext_fields[key]) for key in keys if key in command.ext_fields)
    if command.code == RequestCode.HEART_BEAT:
        heartbeat = decode_body(HeartbeatData, command.body)
        yield from ((False, group) for group in heartbeat.producers)
        for consumer in heartbeat.consumers:
            yield False, consumer.group_name
            yield from ((True, each.topic) for each in consumer.subscriptions)
    if command.code in {RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ}:
        asked = decode_body(LockBatchRequest, command.body)
        yield False, asked.consumer_group
        yield from ((True, queue.topic) for queue in asked.queues)


def _bare(name: str) -> str:
    return name.removeprefix(RETRY_TOPIC_PREFIX).removeprefix(DLQ_TOPIC_PREFIX)


class InCloud(Around):
    """Refuses requests that break a cloud's rules, and passes all others to an inner name server or broker.

    Like the inner one, this object is an :class:`broker_sim.server.Endpoint`.
    """

    def __init__(self, inner: Endpoint, rules: CloudRules, *, mirror_header_form: bool = False) -> None:
        super().__init__(inner, mirror_header_form=mirror_header_form)
        self._rules = rules

    def handle(self, peer: Peer, command: RemotingCommand) -> list[Outgoing]:
        """Refuse a request that breaks a rule; otherwise return the inner endpoint's commands."""
        if command.is_response:
            return self._inner.handle(peer, command)
        try:
            refused = self._rules.refusal(command)
        except RemoteProtocolError as error:
            refused = Refused(ResponseCode.SYSTEM_ERROR, str(error))
        if refused is not None:
            return self._refuse(peer, command, refused.code, refused.remark)
        return self._inner.handle(peer, self._rules.served(command))
