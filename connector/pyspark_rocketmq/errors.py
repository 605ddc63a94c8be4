"""Every error this package raises, in one tree.

A Spark worker passes only an error's *text* to the driver. So each class has its facts as attributes and
includes all of them in its sentence: what happened, where (topic, broker, queue, offset, address), what to
do.

Whether to retry is decided by ``may_pass``, and not by lists of classes.  Strings from servers are formatted
by ``peer_text``.  docs/errors.md is generated from the classes' docstrings, which contain when an error is
raised and what to do.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from typing import Any, ClassVar, Final, TypeVar, cast

from pyspark_rocketmq.display import MOST_CHARACTERS, masked, masking_logger, peer_text

logger = masking_logger(__name__)

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_MAX_REASON: Final = 500
_SEE_FAQ: Final = re.compile(r"\.? See https?://\S+ for further details,?\.?", re.IGNORECASE)
"""RocketMQ's link to its FAQ (``FAQUrl``) at the end of a remark."""
_RESET: Final = "`pyspark-rocketmq offsets reset --to OFFSET --topic TOPIC --queue BROKER:ID --conf FILE`"
_AT_THE_END_OF_A_TRACEBACK: Final = re.compile(
    r"^pyspark_rocketmq\.errors\.(\w+): ((?:(?!^pyspark_rocketmq\.errors\.|\n\s*\n).)*?)"
    r"\s*(?:SQLSTATE: \w+\s*)?(?:JVM stacktrace:.*)?\Z",
    re.MULTILINE | re.DOTALL,
)
"""Matches an error of this package in Spark's report of a worker's failure."""


class RocketMQError(Exception):
    """Root of every error of this package; it shows URIs without their secrets, and no ``password=``."""

    retryable: ClassVar[bool] = False
    """Whether the error usually passes by itself. Then callers retry even their first request."""
    passes_later: ClassVar[bool] = False
    """Whether the error usually passes by itself if the same request has succeeded before. If that request
    has never succeeded, the error is raised after a few tries."""

    def may_pass(self, *, has_worked: bool) -> bool:
        """Return whether to wait and send the failed request again.

        Args:
            has_worked: Whether the query has succeeded with the same request before, in this run or an
                earlier one.
        """
        return self.retryable or (has_worked and self.passes_later)

    def __str__(self) -> str:
        return masked(super().__str__())

    def __repr__(self) -> str:
        return masked(super().__repr__())


class OptionError(RocketMQError, ValueError):
    """One or more options are wrong, unknown or in conflict; ``problems`` holds one sentence for each.

    Do: Correct them.
    """

    def __init__(self, problems: tuple[str, ...], *, where: str = "RocketMQ options") -> None:
        super().__init__(problems, where)
        self.problems = problems
        self.where = where

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), where=self.where), (self.problems,)

    def __str__(self) -> str:
        return f"Invalid {self.where}:" + "".join(f"\n  - {masked(problem)}" for problem in self.problems)


class WireError(RocketMQError):
    """Bytes do not follow the protocol."""

    def __str__(self) -> str:
        return peer_text(super().__str__())


class LocalProtocolError(WireError):
    """A value to send or to decode, such as a message's property, breaks the protocol or a limit.

    Do: Correct the value that the error names; if you did not set it, report a bug.
    """


class RemoteProtocolError(WireError):
    """The peer sent bytes that do not follow the RocketMQ remoting protocol.

    Do: Check that the address is a RocketMQ server's remoting port, not a proxy's or a web server's; if it
    is, look at that server's log.
    """

    passes_later: ClassVar[bool] = True


class TransportError(RocketMQError):
    """A connection failed; trying again may help.

    Do: Check that the server at the address is running and can be reached, then run the same again.
    """

    retryable: ClassVar[bool] = True

    def __init__(self, address: str, detail: str = "") -> None:
        super().__init__(address, detail)
        self.address = peer_text(address)
        self.detail = peer_text(detail)

    def __str__(self) -> str:
        return f"Connection to {self.address} failed: {_sentence(self.detail)}"


class ConnectFailed(TransportError):
    """The connection could not be opened.

    Do: Check address, server and firewall. If brokers announce an address that cannot be reached from here
    (``brokerIP1``), set ``brokerAddresses``.
    """

    def __str__(self) -> str:
        return (
            f"Could not connect to {self.address}: {_sentence(self.detail)} "
            "Check the address, that the server is running, and that no firewall is in between. Brokers "
            "announce their own addresses (brokerIP1). If this machine cannot reach an announced address, "
            "give the address to use instead in option brokerAddresses."
        )


class TlsFailed(ConnectFailed):
    """One side does not trust the other, or one side does not speak TLS; trying again does not help.

    Do: See [security](how-to/security.md).
    """

    retryable: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"No secure connection to {self.address}: {_sentence(self.detail)}"


class ChannelClosed(TransportError):
    """The connection ended while a request was under way, or the client was closed before it.

    Do: Nothing, if it passes; else check ``useTls``, since a server that requires TLS closes plain
    connections.
    """

    def __str__(self) -> str:
        return f"The connection to {self.address} was closed: {_sentence(self.detail)}"


class RequestTimeout(TransportError):
    """No answer came within the request's deadline.

    Do: Raise ``requestTimeoutMs`` if the server is slow; correct the address if it is another server's.
    """

    def __init__(self, address: str, request: str, timeout_s: float) -> None:
        super().__init__(address, request)
        self.args = (address, request, timeout_s)
        self.request = peer_text(request)
        self.timeout_s = timeout_s

    def __str__(self) -> str:
        return (
            f"{self.address} did not answer {self.request} within {self.timeout_s:.3g} s. "
            "If this RocketMQ server is slow, raise requestTimeoutMs. If another kind of server has this "
            "address, correct the address."
        )


class WrongBroker(TransportError):
    """Another broker answers at a broker's address: brokers have restarted and exchanged addresses.

    Do: Nothing, if it passes; else check whether two brokers announce the same address (``brokerIP1``).
    """

    def __str__(self) -> str:
        return (
            f"Another broker is at {self.address}: {self.detail}. Nothing was read, stored or sent there. "
            "Name servers announce the new addresses when the brokers have registered again. If the error "
            "does not pass, check whether two brokers announce the same address (brokerIP1)."
        )


class BrokerError(RocketMQError):
    """The server answered with an error code that has no class of its own, such as SYSTEM_ERROR (1).

    Do: Read its remark for the reason; a query that has worked before waits ([answers](answers.md)).
    """

    passes_later: ClassVar[bool] = True

    advice: ClassVar[str] = "If the error does not pass, look at that server's log."
    """Advice shown after the server's remark."""

    server: ClassVar[str] = "The server"
    """Kind of server, shown where its address is unknown."""

    def __init__(self, code: int, remark: str, *, request: str = "", address: str = "") -> None:
        remark = remark[:MOST_CHARACTERS]
        super().__init__(code, remark, request, address)
        self.code = code
        self.remark = remark
        """Beginning of the server's remark, unchanged."""
        self.request = request
        self.address = address

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), request=self.request, address=self.address), (self.code, self.remark)

    def __str__(self) -> str:
        # RocketMQ's remarks contain line breaks and whole stack traces.
        remark = _sentence(peer_text(_SEE_FAQ.sub(".", " ".join(self.remark.split()))))
        who = peer_text(self.address) or self.server
        how = f" with code {self.code}: " if self.code else ", but "
        answer = f"{who} answered {peer_text(self.request)}{how}{remark}"
        return f"{answer} {self.advice}" if self.advice else answer


class SystemBusy(BrokerError):
    """The server is overloaded for a time (SYSTEM_BUSY, FLOW_CONTROL, SERVICE_NOT_AVAILABLE).

    Do: Usually nothing; if it lasts, lower ``pullsInFlight``, or send less.
    """

    retryable: ClassVar[bool] = True

    advice: ClassVar[str] = "If the server stays overloaded, lower pullsInFlight, or send less."


class TopicNotFound(BrokerError):
    """The topic is unknown to the name server or to the broker.

    Do: Create it, or correct the option.
    """

    advice: ClassVar[str] = "Create the topic, or correct the topic's name, for example in option 'topic'."


class BatchRefused(BrokerError):
    """The cluster does not accept batches of messages (SEND_BATCH_MESSAGE).

    Do: Set ``batchSend=false``.
    """

    passes_later: ClassVar[bool] = False

    advice: ClassVar[str] = (
        "This cluster takes no batches: set option batchSend=false, or Producer(batch_send=False), and "
        "messages go one by one."
    )


class MessageRefused(BrokerError):
    """The broker does not accept the message: too large, a wrong property or delay (MESSAGE_ILLEGAL).

    Do: Read its remark; the broker's ``maxMessageSize`` limits the size, and ``batchBytes`` here that of a
    batch.
    """

    passes_later: ClassVar[bool] = False

    advice: ClassVar[str] = (
        "If the size is the reason, let the broker accept larger messages (maxMessageSize), or send smaller "
        "batches (batchBytes, batchSize)."
    )


class WrongMessageType(MessageRefused):
    """The topic accepts one type of messages (NORMAL, FIFO, DELAY, TRANSACTION), and this one has another.

    Do: Send the type that the error names, or create a topic of another type
    ([managed clusters](how-to/clouds.md#topics-of-one-message-type)).
    """

    advice: ClassVar[str] = (
        "The topic takes messages of one type only. FIFO: each has a sharding key and goes by itself (column "
        "shardingKey and batchSend=false; Producer: property __SHARDINGKEY). DELAY: each has a delayLevel or "
        "deliverTimestamp. TRANSACTION: send by TransactionProducer. NORMAL: none of these. Or write to a "
        "topic of another type."
    )


class NotANameServer(BrokerError):
    """A broker was asked for a topic's route: option ``nameServers`` has a broker's address.

    Do: Give a name server's address; its port is 9876 by default.
    """

    advice: ClassVar[str] = (
        "This is a broker. Set option 'nameServers' to the address of a name server, whose port is 9876 by "
        "default (a broker's is 10911)."
    )


class TopicAway(TopicNotFound):
    """The server does not know a topic that was there before; it may be back soon.

    Do: Start the brokers that had it, or create it again.
    """

    retryable: ClassVar[bool] = True

    advice: ClassVar[str] = "Start the brokers that had the topic, or create it again."


class NameServerNotReady(BrokerError):
    """A name server answered with an error that does not concern the topic; it may have just started.

    Do: Nothing, if it passes; else read the remark, and the name server's log.
    """

    retryable: ClassVar[bool] = True

    advice: ClassVar[str] = "If the error does not pass, look at the name server's log."

    server: ClassVar[str] = "The name server"


class NoPermission(BrokerError):
    """Topic, group or broker does not allow the operation, or the credentials are wrong.

    Do: See [security](how-to/security.md).
    """

    passes_later: ClassVar[bool] = False

    advice: ClassVar[str] = (
        "Check accessKey and secretKey, what the user may do with this topic and "
        "group (mqadmin listAcl), and the permissions of the topic and the group themselves."
    )


class ConsumptionForbidden(NoPermission):
    """An operator has switched reading off for a broker, a topic or a group; a consumer waits, a read ends.

    Do: Allow it again: ``mqadmin updateTopicPerm``, ``updateSubGroup -s true``, or ``brokerPermission``.

    Source: ``PullMessageProcessor.processRequest``, ``ForbiddenType``.
    """

    passes_later: ClassVar[bool] = True

    advice: ClassVar[str] = (
        "Give the permission back: for a topic by `mqadmin updateTopicPerm -n NAMESRV -c CLUSTER -t TOPIC -p "
        "6`, for a group by `mqadmin updateSubGroup -n NAMESRV -c CLUSTER -g GROUP -s true` with the group's "
        "other settings, for a broker by its setting brokerPermission=6."
    )


class GroupNotFound(BrokerError):
    """The broker has no such consumer group and does not create it (SUBSCRIPTION_GROUP_NOT_EXIST).

    Do: Create it with ``mqadmin updateSubGroup``.
    """

    advice: ClassVar[str] = (
        "Create the group (`mqadmin updateSubGroup -n NAMESRV -c CLUSTER -g GROUP`), or let the broker "
        "create groups (autoCreateSubscriptionGroup=true in its configuration)."
    )


class ConsumerNotOnline(BrokerError):
    """The member is not connected to this broker or did not answer (CONSUMER_NOT_ONLINE, …_TIMEOUT).

    Do: Query a running member.
    """

    advice: ClassVar[str] = "Only a consumer that is running and connected to this broker can be asked."


class ExpressionInvalid(BrokerError):
    """The broker cannot parse the subscription's expression (SUBSCRIPTION_PARSE_FAILED).

    Do: Correct it; SQL92 needs ``enablePropertyFilter=true`` at the broker, and ``STARTSWITH``, ``ENDSWITH``
    and ``CONTAINS`` need RocketMQ 5.1.3 there.
    """

    passes_later: ClassVar[bool] = False

    advice: ClassVar[str] = (
        "Correct the expression; SQL92 also needs enablePropertyFilter=true on the broker, and STARTSWITH, "
        "ENDSWITH and CONTAINS need RocketMQ 5.1.3 there."
    )


class GoAway(BrokerError):
    """The server is about to stop and wants its clients on other connections (GO_AWAY).

    Do: Nothing.
    """

    retryable: ClassVar[bool] = True
    advice: ClassVar[str] = (
        "That server is shutting down. Do nothing if the error passes; otherwise start the server again."
    )


class OffsetNotFound(BrokerError):
    """The group has no stored offset for the queue (QUERY_NOT_FOUND).

    Do: Nothing: users never see it.
    """

    passes_later: ClassVar[bool] = False


class SubscriptionNotLatest(BrokerError):
    """The broker does not have the group's newest subscription (SUBSCRIPTION_NOT_EXIST, …_NOT_LATEST).

    Do: Nothing; all members must have the same subscriptions.
    """

    retryable: ClassVar[bool] = True

    advice: ClassVar[str] = (
        "The group's next heartbeat corrects this. If the error does not pass, give all members of the group "
        "the same subscriptions."
    )


class StaticTopic(RocketMQError):
    """The topic's queues are mapped to brokers (``mqadmin updateStaticTopic``), which is not supported.

    Do: Use an ordinary topic.
    """

    def __init__(self, topic: str, brokers: Sequence[str]) -> None:
        super().__init__(topic, brokers)
        self.topic = topic
        self.brokers = brokers

    def __str__(self) -> str:
        return (
            f"Topic {self.topic} is a static topic: its queues are mapped to brokers "
            f"({peer_text(', '.join(self.brokers))}). This client does not follow the mapping: once a queue "
            "is remapped (mqadmin remappingStaticTopic), its reads and sends would fail or miss messages. "
            "Read and write an ordinary topic; `mqadmin updateTopic -n NAMESRV -c CLUSTER -t TOPIC` creates "
            "one."
        )


class NoWritableQueue(RocketMQError):
    """The topic exists, but no living master offers a queue of it for writing.

    Do: Start its brokers, or set the topic's permission to 6 (read and write).
    """

    retryable: ClassVar[bool] = True

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return (
            f"Topic {self.topic} has no queue to write to: its brokers are down or have no master, or the "
            "topic is read-only. Start the brokers' masters, or allow writing: `mqadmin updateTopicPerm -n "
            f"NAMESRV -c CLUSTER -t {self.topic} -p 6`."
        )


class TargetQueueAway(RocketMQError):
    """A replay cannot go on in the queue to which earlier runs sent a source queue's messages.

    Do: Start its broker's master, or make the queue writable again; if it is gone for good, use a new record
    ([replay](how-to/replay.md#when-a-target-queue-is-away)).
    """

    retryable: ClassVar[bool] = True

    def __init__(self, source: str, target: str, starting_offsets: str) -> None:
        super().__init__(source, target, starting_offsets)
        self.source = source
        self.target = target
        self.starting_offsets = starting_offsets
        """Value of ``startingOffsets`` for a run with a new record; empty if the run reads no queue."""

    def __str__(self) -> str:
        start = f" and startingOffsets={self.starting_offsets}" if self.starting_offsets else ""
        return (
            f"The replay of {self.source} cannot go on in {self.target}, to which an earlier run sent: its "
            "broker is away or has no master, or the topic is read-only or has fewer queues there. This run "
            "has sent nothing, because newer messages might overtake older ones if they went to another "
            "queue. Start the broker's master, or give the topic its queue back (`mqadmin updateTopic`), and "
            "run the replay again. If the queue is gone for good, let the target's consumers finish with all "
            f"that was replayed, then replay with a new record{start}: messages go to other queues then."
        )


class TooManySends(RocketMQError):
    """The limit of asynchronous sends that wait for answers is reached.

    Do: Keep fewer sends under way, or allow more ([producer](how-to/sending.md)).
    """

    retryable: ClassVar[bool] = True

    def __init__(self, sends: int, size: int, waited_s: float) -> None:
        super().__init__(sends, size, waited_s)
        self.sends = sends
        self.size = size
        self.waited_s = waited_s

    def __str__(self) -> str:
        return (
            f"{self.sends} sends with {self.size} bytes in total were under way for {self.waited_s:g} s "
            "without room for another one: the brokers are slower than the sender. Send less, or allow more "
            "with max_sends and max_bytes of AsyncSends."
        )


class RowNotSent(RocketMQError):
    """Rows are not valid messages, not acknowledged, or not stored as ``requireSendOk`` demands.

    Do: Correct what the error names; [writing](how-to/writing.md#delivery).
    """

    def __init__(
        self, rows: str, problem: str, *, is_no_message: bool = False, is_stored: bool | None = False
    ) -> None:
        super().__init__(rows, problem)
        self.rows = rows
        self.problem = problem
        self.is_no_message = is_no_message
        """Whether the row itself is no valid message, so that every retry fails at it."""
        self.is_stored = is_stored
        """Whether the broker has stored the rows in spite of the error; None if that is unknown."""

    def __str__(self) -> str:
        about = f"{self.rows}: {self.problem.rstrip('.')}."
        if self.is_stored:
            return (
                f"Stored less durably than the broker is set up for: {about} A retry sends all rows of the "
                "task up to here again."
            )
        if self.is_stored is None:
            return (
                f"Not acknowledged: {about} All rows of the task up to here may be stored, and a retry sends "
                "them again."
            )
        if self.is_no_message:
            return (
                f"Not sent: {about} The rows before it may be stored. Each retry sends them again, and fails "
                "at this row: correct it, or leave it out."
            )
        return f"Not sent: {about} Earlier rows of the task may be stored, and a retry sends them again."


class DeadLetterRefused(RocketMQError):
    """No broker accepts a message that a group gives up; its queue waits, and nothing is lost.

    Do: Remove what the error names: give the user the right to send to ``%RETRY%GROUP``, shorten the group's
    name to 120 characters, send fewer properties; or stop the group's queries and skip the message, which is
    then neither consumed nor kept as a dead letter
    (``pyspark-rocketmq offsets skip --messages 1 --topic TOPIC --queue BROKER:ID --conf FILE``).
    """

    def __init__(self, consumer_group: str, queue: str, queue_offset: int, sent: str, copied: str) -> None:
        super().__init__(consumer_group, queue, queue_offset, sent, copied)
        self.consumer_group = consumer_group
        self.queue = queue
        self.queue_offset = queue_offset
        self.sent = sent
        """Text of the first attempt's error: the message was sent to the group's retry topic."""
        self.copied = copied
        """Text of the second attempt's error: the broker that stores the message was asked to copy it."""

    def __str__(self) -> str:
        return masked(
            f"{self.queue} queueOffset={self.queue_offset}: no broker takes this message as a dead letter of "
            f"group {self.consumer_group}, so the queue waits at this message. It was refused when sent to "
            f"the group's retry topic: {_sentence(self.sent)} The broker that stores the message did not "
            f"copy it either: {_sentence(self.copied)} Correct the cause. Or stop the group's queries and "
            "skip the message, which is then neither consumed nor kept as a dead letter: `pyspark-rocketmq "
            "offsets skip --messages 1 --topic TOPIC --queue BROKER:ID --conf FILE`."
        )


class KeysOutOfOrder(RocketMQError):
    """Several tasks of a write sent rows of one sharding key: their order is unknown. All rows are stored.

    Do: Use ``by_sharding_key``, or set ``checkShardingKeys=false`` ([order](how-to/writing.md#order)).
    """

    def __init__(self, sharding_keys: Sequence[str]) -> None:
        super().__init__(sharding_keys)
        self.sharding_keys = sharding_keys

    def __str__(self) -> str:
        examples = ", ".join(map(repr, self.sharding_keys[:3]))
        return (
            "All rows are stored, but several tasks sent rows with the same sharding key (for example "
            f"{examples}), so their order is unknown. Writing them again stores every row once more. To "
            "keep the order, write by_sharding_key(df); in a stream, do this in foreachBatch. A DataFrame "
            "that has all rows of a key in one partition works, too. If their order does not matter, set "
            "checkShardingKeys=false."
        )


class BadRecord(RocketMQError):
    """A message's body cannot be decoded by its schema; trying again does not help.

    Do: Keep the body elsewhere and go on ([bad records](how-to/decoding.md#with-a-schema-registry)).
    """


class FrameDamaged(BadRecord):
    """A body does not begin with a schema's id in the form of the given framing.

    Do: If the error names another framing, give that one; a single damaged body is a bad record.
    """

    def __init__(self, framing: str, found: str, looks_like: str = "") -> None:
        super().__init__(framing, found, looks_like)
        self.framing = framing
        self.found = found
        self.looks_like = looks_like
        """Name of another framing that the body seems to have; empty if none fits."""

    def __str__(self) -> str:
        other = f" It looks like {self.looks_like}." if self.looks_like else ""
        return peer_text(
            f"The message is not in framing {self.framing}: {self.found}.{other} Correct the decoder's "
            "framing, or keep this body as a bad record."
        )


class SchemaNotFound(BadRecord):
    """The schema registry has no schema with the id in a body.

    Do: If there are many, correct the registry's address or the framing; one such body is a bad record.
    """

    def __init__(self, registry: str, schema: str) -> None:
        super().__init__(registry, schema)
        self.registry = registry
        self.schema = schema

    def __str__(self) -> str:
        return masked(
            f"Schema registry {self.registry} has no schema {self.schema}. If all messages end like this, "
            "correct the registry's address or the framing; otherwise keep the body as a bad record."
        )


class SchemaRegistryDown(RocketMQError):
    """The schema registry does not answer, or its answer is not a schema; in a consumer the messages wait.

    Do: Start it, or correct its address; nothing is lost meanwhile.
    """

    retryable: ClassVar[bool] = True

    def __init__(self, registry: str, detail: str) -> None:
        super().__init__(registry, detail)
        self.registry = registry
        self.detail = peer_text(detail)

    def __str__(self) -> str:
        return masked(
            f"Schema registry {self.registry} is not available: {self.detail.rstrip('.')}. In a consumer the "
            "messages wait until the registry answers. Start the registry, or correct its address."
        )


class SchemaRegistryRefused(SchemaRegistryDown):
    """The schema registry, or what is at its address, refuses the request; in a consumer the messages wait.

    Do: Correct the credentials, the authority's file, the user's rights or the address.
    """

    retryable: ClassVar[bool] = False

    def __str__(self) -> str:
        return masked(
            f"Schema registry {self.registry} refuses the request: {self.detail.rstrip('.')}. In a consumer "
            "the messages wait. Correct user, password or token, the user's rights, ca_file or the address."
        )


class OffsetError(RocketMQError):
    """Offsets cannot be used as they are.

    Do: Follow the advice in the error's text, which names the offsets and where they are stored.
    """


class UndecodableMessage(OffsetError):
    """A message exists, but its body cannot be decompressed, or its bytes are not a message.

    Do: Set ``undecodableMessages=keep``, or skip the message with the command that the error names
    ([how](listeners.md#messages-that-cannot-be-decoded)).
    """

    def __init__(
        self, queue: str, queue_offset: int, reason: str, *, before: int = 0, has_group: bool = True
    ) -> None:
        super().__init__(queue, queue_offset, reason)
        self.queue = queue
        self.queue_offset = queue_offset
        self.reason = reason
        self.before = before
        """Number of offsets between the group's position and the message. A listener received the messages
        there without a COMMIT, so a skip of this message also skips them."""
        self.has_group = has_group
        """Whether a consumer group reads the queue, which can be moved past the message."""

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), before=self.before, has_group=self.has_group), self.args

    def __str__(self) -> str:
        text = (
            f"{self.queue}: the message at offset {self.queue_offset} cannot be decoded: "
            f"{_sentence(self.reason[:_MAX_REASON])} Set undecodableMessages=keep: then you get the message "
            "with its stored bytes and property UNDECODABLE."
        )
        if not self.has_group:
            return text
        skipped = (
            "this message and the messages before it that wait for a COMMIT, which then come no more"
            if self.before
            else "this message, which is then not consumed"
        )
        return (
            f"{text} Or move the group past {skipped}: `pyspark-rocketmq offsets skip --messages "
            f"{self.before + 1} --topic TOPIC --queue BROKER:ID --conf FILE`."
        )


class DataLoss(OffsetError):
    """A broker no longer has messages that were to be read, or does not return them.

    Do: Set ``failOnDataLoss=false``, or reset the group.
    """

    def __init__(self, queue: str, wanted: int, available: str, remedy: str = "") -> None:
        super().__init__(queue, wanted, available, remedy)
        self.queue = queue
        self.wanted = wanted
        self.available = available
        self.remedy = remedy

    def __str__(self) -> str:
        remedy = self.remedy or (
            "Set failOnDataLoss=false to go on at the first available offset. Or, if a consumer group reads "
            f"this queue, reset the group's offset: {_RESET}."
        )
        return f"{self.queue}: offset {self.wanted} was wanted, but the broker has {self.available}. {remedy}"


class MessagesExpired(DataLoss):
    """The broker deleted messages (``fileReservedTime``, disk space) before they were read.

    Do: As for ``DataLoss``; raise ``fileReservedTime``, or read faster.
    """

    def __str__(self) -> str:
        return (
            f"{self.queue}: offset {self.wanted} was wanted, but the broker has {self.available}: older "
            "messages were deleted before they were read. Set failOnDataLoss=false to go on at the first "
            "available offset. Or, if a consumer group reads this queue, reset the group's offset: "
            f"{_RESET}. To lose no more messages, let brokers keep them longer (fileReservedTime), or read "
            "faster."
        )


class LogTailLost(DataLoss):
    """A queue ends below an offset to read: a slave that lacks messages was promoted, or the topic recreated.

    Do: As for ``DataLoss`` ([where it continues](how-to/offsets.md#where-offsets-begin-again)).
    """

    def __str__(self) -> str:
        return (
            f"{self.queue}: offset {self.wanted} was wanted, but the broker has {self.available}: its log "
            "ends before what was read or planned. A slave that lacked the newest messages may have become "
            "master, or the topic was created again. New messages get offsets that were used before. Set "
            "failOnDataLoss=false: a consumer group then goes on with the first message that it has not "
            "consumed, a stream without a group with the first message stored after its last plan (behind "
            "a Proxy, at the queue's end). Or, if a group reads this queue, reset the group's offset: "
            f"{_RESET}."
        )


class OffsetsBeganAgain(DataLoss):
    """An offset that was consumed has another message now: the topic was recreated, or its log lost messages.

    Do: As for ``DataLoss``.
    """

    def __str__(self) -> str:
        return (
            f"{self.queue}: offset {self.wanted} was consumed, but has another message now (the broker has "
            f"{self.available}). The topic was deleted and created again, or a slave that lacked the newest "
            "messages became master. Messages that were not read may be lost. Set failOnDataLoss=false to "
            "go on with the first message that was not consumed. Or, if a consumer group reads this queue, "
            f"reset the group's offset at the broker or with {_RESET}: every message from that offset on is "
            "consumed and reaches the sink."
        )


class LostBehindSink(DataLoss):
    """The broker lost messages whose rows the sink has; the offset at which new ones begin is unknown.

    Do: Find the first new message by its store time, and reset the queue's offset to it
    (``pyspark-rocketmq offsets reset``). The error is raised even with ``failOnDataLoss=false``.
    """

    def __str__(self) -> str:
        return (
            f"{self.queue}: the sink has rows up to offset {self.wanted}, and the broker has "
            f"{self.available}: it lost messages that were consumed before their offsets were stored, and "
            "new messages get the same offsets. Where the new messages begin is unknown: the rows were "
            "written by a release, or into a sink, that kept no message beside the watermark. Nothing was "
            "consumed. Find the first new message by its store time, and reset the group's offset for this "
            f"queue to that message: {_RESET}. Every message from that offset on is consumed and reaches the "
            "sink."
        )


class TopicDeleted(DataLoss):
    """The topic is no longer on a broker that answers.

    Do: Leave the topic out, or set ``failOnDataLoss=false``; if it is created again, it is read from its
    start.
    """

    def __str__(self) -> str:
        return (
            f"{self.queue}: offset {self.wanted} was to be read next, but {self.available.rstrip('.')}. "
            "Messages that were not read are lost. Set failOnDataLoss=false to go on without the topic (if "
            "it is created again, it is read from its start), or leave the topic out of the query."
        )


class QueueRemoved(DataLoss):
    """The topic has fewer queues, and one of them was not read to its end.

    Do: Give the topic its queues back until they are read, or set ``failOnDataLoss=false``.
    """

    def __str__(self) -> str:
        return (
            f"{self.queue}: offset {self.wanted} was to be read next, but {self.available.rstrip('.')}. "
            "Give the topic its queues back until they are read (`mqadmin updateTopic -n NAMESRV -c CLUSTER "
            "-t TOPIC -r QUEUES -w QUEUES`), or set failOnDataLoss=false to go on without this queue and its "
            "unread messages."
        )


class DamagedOffsets(OffsetError):
    """Another program changed a string in an offset row, for example ``put_back`` or ``last_message``.

    Do: Stop the group, set that column of the row to NULL, start again: this clears what the column holds,
    such as attempts or the newest message, and keeps the offset.
    """

    def __init__(self, column: str, text: str) -> None:
        super().__init__(column, text[:_MAX_REASON])
        self.column = column
        self.text = text[:_MAX_REASON]

    def __str__(self) -> str:
        return (
            f"A row of the offset store has {peer_text(self.text)!r} in {self.column}, which cannot be read. "
            f"Stop the queries of the group, set {self.column} of that row to NULL (in a file: to an empty "
            "string) or restore the table, and start them again. With NULL the row loses what that column "
            "holds, such as attempts or the newest message, and keeps its offset."
        )


class OffsetRegressed(OffsetError):
    """Progress would go back without a reset: another query or program changed the row.

    Do: Follow the error's advice for the queue.
    """


class OffsetCommitConflict(OffsetError):
    """Offsets were not stored: other writers of the group kept coming first, or writing kept failing.

    Do: Nothing, if it passes; else check the table's storage, and what else writes the table.
    """

    retryable: ClassVar[bool] = True


class SinkConflict(OffsetError):
    """The sink cannot add the batch, for example after RESTORE, a bad change or writes that kept failing.

    Do: Follow the error's advice;
    [guarantees](guarantees.md#the-sink-is-deleted-replaced-or-restored-to-an-earlier-version).
    """


class SinkMoved(SinkConflict):
    """Another consumer wrote rows of a queue while the batch ran; the batch runs again and leaves them out.

    Do: Nothing.
    """

    retryable: ClassVar[bool] = True

    def __init__(self, text: str, queues: Iterable[tuple[str, str, int]] = ()) -> None:
        super().__init__(text)
        self.queues = frozenset(queues)
        """Queues (topic, broker name, queue id) of which the sink can take nothing more in this batch; empty
        means all queues."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (*self.args, tuple(self.queues))


class SinkSetBack(SinkConflict):
    """The sink was deleted, replaced or restored: it lacks rows of messages that the group has passed.

    Do: Bring it back, or choose [one of three ways](sinks.md#a-sink-that-has-lost-rows).
    """


class OffsetStoreUnavailable(OffsetError):
    """The storage of the offset table does not answer; trying again may help.

    Do: Check the storage.
    """

    retryable: ClassVar[bool] = True


class BrokerOffsetUnavailable(OffsetError):
    """A group's offset at a broker could not be used, or a queue changed during a look-up: the queue waits.

    Do: Nothing, if it passes; else check the broker.
    """

    retryable: ClassVar[bool] = True


class StorageNotShared(RocketMQError):
    """A path names another folder on an executor than on the driver: rows written there would be lost.

    Do: Use [shared storage](how-to/deployment.md#settings-that-matter).
    """


class SchemaError(RocketMQError):
    """Columns are missing, superfluous or of another type.

    Do: Correct ``outputSchema``, the listener, the DataFrame or the table.
    """


class ListenerError(RocketMQError):
    """A message listener broke its contract, for example by raising ``SystemExit``.

    Do: Correct the listener.
    """


def _sentence(text: str) -> str:
    """Return the text with a full stop at its end, because another sentence may follow."""
    return text if not text or text.endswith((".", "!", "?", "…")) else f"{text}."


def without_frames(function: FunctionT) -> FunctionT:
    """Wrap a function or generator that Spark calls, so that Spark shows our errors without a long traceback.

    Spark prints a worker's traceback up to six times, above the error's sentence. So this package's errors
    are raised without their frames, which are logged at level DEBUG. Other exceptions and LocalProtocolError
    keep their frames, because they may be bugs.
    """

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except RocketMQError as error:
            raise _bare(error) from None

    @wraps(function)
    def generate(*args: Any, **kwargs: Any) -> Any:
        try:
            yield from function(*args, **kwargs)
        except RocketMQError as error:
            raise _bare(error) from None

    return cast("FunctionT", generate if inspect.isgeneratorfunction(function) else run)


def _bare(error: RocketMQError) -> RocketMQError:
    logger.debug("the frames of an error", exc_info=error)
    return error if isinstance(error, LocalProtocolError) else error.with_traceback(None)


def error_of_worker(text: str) -> RocketMQError | None:
    """Find the error of this package that ended a worker, and create it again in this process.

    Args:
        text: Spark's report of the failure, with the worker's traceback.

    Returns:
        The error, as :func:`named_error` creates it. None if the traceback ends with another error, or with
        a LocalProtocolError, whose traceback must be seen.
    """
    found = _AT_THE_END_OF_A_TRACEBACK.search(text)
    if found is None or found[1] == LocalProtocolError.__name__:
        return None
    return named_error(found[1], found[2])


def named_error(name: str, text: str) -> RocketMQError:
    """Create an error with this class name and text, from a process that reports only these two.

    Its class is a new subclass of ``RocketMQError``, not the class of that name.
    """
    return cast("RocketMQError", type(name, (RocketMQError,), {"__module__": __name__})(text))
