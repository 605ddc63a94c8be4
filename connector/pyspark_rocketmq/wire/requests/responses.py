"""Turn answers into success or an error, and describe requests in errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from pyspark_rocketmq.errors import (
    BatchRefused,
    BrokerError,
    ConsumerNotOnline,
    ConsumptionForbidden,
    ExpressionInvalid,
    GoAway,
    GroupNotFound,
    MessageRefused,
    NoPermission,
    NotANameServer,
    OffsetNotFound,
    RemoteProtocolError,
    SubscriptionNotLatest,
    SystemBusy,
    TopicNotFound,
    WrongMessageType,
)
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.header_fields import Header, from_ext_fields

HeaderT = TypeVar("HeaderT", bound=Header)

_PLACE_FIELDS = (
    ("consumerGroup", "consumerGroup"),
    ("group", "consumerGroup"),
    ("groupName", "consumerGroup"),
    ("clientId", "clientId"),
    ("a", "producerGroup"),
    ("producerGroup", "producerGroup"),
    ("topic", "topic"),
    ("b", "topic"),
    ("bname", "broker"),
    ("n", "broker"),
    ("queueId", "queue"),
    ("e", "queue"),
    ("queueOffset", "queueOffset"),
    ("commitOffset", "commitOffset"),
)
"""Ext fields that show what a request is about, with their names in errors."""

_REQUESTS: Final = frozenset(map(int, RequestCode))
_CODES: Final = frozenset(map(int, ResponseCode))
_ERRORS: Final[Mapping[int, type[BrokerError]]] = {
    ResponseCode.SYSTEM_BUSY: SystemBusy,
    ResponseCode.SERVICE_NOT_AVAILABLE: SystemBusy,
    ResponseCode.FLOW_CONTROL: SystemBusy,
    ResponseCode.NO_PERMISSION: NoPermission,
    ResponseCode.TOPIC_NOT_EXIST: TopicNotFound,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: ExpressionInvalid,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: SubscriptionNotLatest,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: SubscriptionNotLatest,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: GroupNotFound,
    # Like SUBSCRIPTION_NOT_EXIST and SUBSCRIPTION_NOT_LATEST, for a compiled SQL92 expression.
    ResponseCode.FILTER_DATA_NOT_EXIST: SubscriptionNotLatest,
    ResponseCode.FILTER_DATA_NOT_LATEST: SubscriptionNotLatest,
    ResponseCode.CONSUMER_NOT_ONLINE: ConsumerNotOnline,
    ResponseCode.CONSUME_MSG_TIMEOUT: ConsumerNotOnline,
    ResponseCode.GO_AWAY: GoAway,
    ResponseCode.MESSAGE_ILLEGAL: MessageRefused,
}
"""Error by response code, unless request or remark show a more exact one. Every other code becomes a plain
``BrokerError``, after which a query that has worked before tries again."""
_ACL_1: Final = "AclException"
"""Text in the remark of a SYSTEM_ERROR by which access control 1.0 refuses (``PlainAccessValidator``)."""
_NO_FILTER: Final = "does not support consumer to filter message by"
"""Text in the remark of a SYSTEM_ERROR from a broker with ``enablePropertyFilter=false``."""
_ACL_2: Final = ("check signature failed", "username cannot be null")
"""Texts by which access control 2.0 refuses a wrong secret or none (``DefaultAuthenticationHandler``).

A broker sends them with NO_PERMISSION, a proxy with SYSTEM_ERROR
(``AbstractRemotingActivity.writeErrResponse``). A proxy's other refusals do not count: while it reaches no
broker, it knows no user and no rights, and refuses everybody.
"""
_PAGE_CACHE_BUSY: Final = "[PC_SYNCHRONIZED]"
"""Text in the remark of a SYSTEM_ERROR from a busy broker before 5.3.0.

Source: ``SendMessageProcessor.handlePutMessageResult``.
"""
_TOO_FEW_REPLICAS: Final = "in-sync replicas not enough"
"""Remark of a SYSTEM_ERROR from a master that waits for a replica, as after an election; nothing is stored.

Source: ``SendMessageProcessor.handlePutMessageResult``.
"""
_NO_SUCH_QUEUE: Final = "queueId["
"""Beginning of the remark of a SYSTEM_ERROR from a broker before 5.3.2 whose topic lacks the queue.

Source: ``PullMessageProcessor.processRequest``.
"""
_SAID_BY_CODE_1: Final[Mapping[str, type[BrokerError]]] = {
    _ACL_1: NoPermission,
    _NO_FILTER: ExpressionInvalid,
    _PAGE_CACHE_BUSY: SystemBusy,
    _TOO_FEW_REPLICAS: SystemBusy,
    **dict.fromkeys(_ACL_2, NoPermission),
}
"""Error of a SYSTEM_ERROR (code 1), by a text in its remark."""
_OTHER_TYPE: Final = "TopicMessageType validate failed"
"""Text in the remark of a proxy's MESSAGE_ILLEGAL (``DefaultTopicMessageTypeValidator``)."""
_UNSUPPORTED: Final[Mapping[int, type[BrokerError]]] = {
    # Proxies also support it: only a broker does not.
    RequestCode.GET_ROUTEINFO_BY_TOPIC: NotANameServer,
    RequestCode.SEND_BATCH_MESSAGE: BatchRefused,
}
"""Error by request code, for the answer that the server does not support the request. Brokers serve no
routes, some managed clusters no batches. For every other request it is ``BrokerError``."""
_SWITCHED_OFF: Final = ("pulling message is forbidden", "subscription group no permission")
"""Texts in the remark of a NO_PERMISSION if an operator has switched reading off. Access control and refused
broadcasting groups have other remarks."""


def describe_request(command: RemotingCommand) -> str:
    """Describe a request for an error text: the code's name, group, topic, broker, queue and offset."""
    fields = command.ext_fields
    # The one-letter names are unambiguous: only the header of SEND_MESSAGE_V2 has fields such as "b" or "e".
    places = [f"{label}={fields[name]}" for name, label in _PLACE_FIELDS if name in fields]
    return " ".join([request_name(command.code), *places])


def request_name(code: int) -> str:
    """Return Java's name of a request code, or the number if it is unknown."""
    return RequestCode(code).name if code in _REQUESTS else f"request {code}"


def error_of(request: RemotingCommand, answer: RemotingCommand, address: str) -> BrokerError:
    """Return the error that ``answer`` stands for; its text names the request and the server."""
    code = answer.code
    remark = answer.remark or (ResponseCode(code).name if code in _CODES else "no reason given")
    kind = _kind_of(request, code, remark)
    return kind(code, remark, request=describe_request(request), address=address)


def checked(request: RemotingCommand, answer: RemotingCommand, address: str) -> RemotingCommand:
    """Return ``answer`` if its code is SUCCESS, whatever its remark.

    A broker may answer SUCCESS with the remark "not set any response code".

    Raises:
        BrokerError: If the answer has any other code; the common codes have their own subclasses.
    """
    if answer.code != ResponseCode.SUCCESS:
        raise error_of(request, answer, address)
    return answer


def lacks_queue(code: int, remark: str) -> bool:
    """Return whether a broker refuses a pull because the topic has no queue of that number."""
    return code == ResponseCode.INVALID_PARAMETER or (
        code == ResponseCode.SYSTEM_ERROR and remark.startswith(_NO_SUCH_QUEUE)
    )


def _kind_of(request: RemotingCommand, code: int, remark: str) -> type[BrokerError]:
    if code == ResponseCode.QUERY_NOT_FOUND and request.code == RequestCode.QUERY_CONSUMER_OFFSET:
        return OffsetNotFound  # for other requests the code does not mean a first start
    if code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return _UNSUPPORTED.get(request.code, BrokerError)
    if code == ResponseCode.MESSAGE_ILLEGAL and _OTHER_TYPE in remark:
        return WrongMessageType
    if code == ResponseCode.SYSTEM_ERROR:
        return next((kind for text, kind in _SAID_BY_CODE_1.items() if text in remark), BrokerError)
    if code == ResponseCode.NO_PERMISSION and any(text in remark for text in _SWITCHED_OFF):
        return ConsumptionForbidden
    return _ERRORS.get(code, BrokerError)


def header_of(header_class: type[HeaderT], answer: RemotingCommand, address: str) -> HeaderT:
    """Read the header of an answer that came from ``address``.

    Raises:
        RemoteProtocolError: If a required field is missing or a field has a wrong value.
    """
    try:
        return from_ext_fields(header_class, answer.ext_fields)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"The answer of {address} cannot be read: {error}") from error
