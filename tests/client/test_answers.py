from __future__ import annotations

import pickle

import pytest

from pyspark_rocketmq.errors import (
    BrokerError,
    ConsumerNotOnline,
    ConsumptionForbidden,
    ExpressionInvalid,
    GoAway,
    GroupNotFound,
    MessageRefused,
    NoPermission,
    OffsetNotFound,
    SubscriptionNotLatest,
    SystemBusy,
    TopicNotFound,
)
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.responses import checked, describe_request, error_of

REQUEST = RemotingCommand(
    code=RequestCode.QUERY_CONSUMER_OFFSET,
    ext_fields={"consumerGroup": "g", "topic": "orders", "queueId": "3", "bname": "broker-a"},
)
KNOWN = {
    2: SystemBusy,
    14: SystemBusy,
    215: SystemBusy,
    13: MessageRefused,
    16: NoPermission,
    17: TopicNotFound,
    22: OffsetNotFound,
    23: ExpressionInvalid,
    24: SubscriptionNotLatest,
    25: SubscriptionNotLatest,
    26: GroupNotFound,
    27: SubscriptionNotLatest,
    28: SubscriptionNotLatest,
    206: ConsumerNotOnline,
    207: ConsumerNotOnline,
    1500: GoAway,
}


def test_a_broker_that_is_taken_for_a_name_server_is_an_error_that_says_so() -> None:
    """A2: no name server and no proxy refuses to look up a route."""
    asked = RemotingCommand(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "orders"})
    refused = RemotingCommand(code=3, flag=1, remark="request type 105 not supported")

    assert str(error_of(asked, refused, "10.0.0.5:10911")) == (
        "10.0.0.5:10911 answered GET_ROUTEINFO_BY_TOPIC topic=orders with code 3: request type 105 not "
        "supported. This is a broker. Set option 'nameServers' to the address of a name server, whose port "
        "is 9876 by default (a broker's is 10911)."
    )
    assert type(error_of(REQUEST, refused, "10.0.0.5:10911")) is BrokerError


@pytest.mark.parametrize("code", [*map(int, ResponseCode), 4711, -3])
def test_every_code_but_success_is_an_error_of_its_class(code: int) -> None:
    """F3, broker answers: one table; a code nobody knows is an error too."""
    answer = RemotingCommand(code=code, flag=1, remark="because")
    if code == ResponseCode.SUCCESS:
        assert checked(REQUEST, answer, "b:1") is answer
        return
    with pytest.raises(BrokerError) as caught:
        checked(REQUEST, answer, "b:1")

    assert type(caught.value) is KNOWN.get(code, BrokerError)
    assert caught.value.retryable == (code in (2, 14, 215, 24, 25, 27, 28, 1500))
    for part in ("b:1", "QUERY_CONSUMER_OFFSET", "topic=orders", "queue=3", str(code), "because"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("code", "remark", "remedy"),
    [
        (16, "no right", "Check accessKey and secretKey"),
        (1, "org.apache.rocketmq.acl.common.AclException: No accessKey is configured", "Check accessKey"),
        (26, "group g", "autoCreateSubscriptionGroup=true"),
        (23, "parse", "enablePropertyFilter=true"),
        (206, "not online", "running and connected to this broker"),
        (17, "no topic", "Create the topic"),
    ],
)
def test_errors_a_user_can_fix_name_the_remedy(code: int, remark: str, remedy: str) -> None:
    """A5, broker answers: from a Spark worker only the text reaches the user."""
    assert remedy in str(error_of(REQUEST, RemotingCommand(code=code, flag=1, remark=remark), "b:1"))


def test_a_failed_message_query_is_not_taken_for_a_missing_offset() -> None:
    """F1: only the answer about a stored offset means that there is none."""
    query = RemotingCommand(code=RequestCode.QUERY_MESSAGE)

    assert type(error_of(query, RemotingCommand(code=22, flag=1), "b:1")) is BrokerError


def test_a_success_is_judged_only_by_its_code() -> None:
    """Broker answers: a success may carry a remark that sounds like a failure."""
    answer = RemotingCommand(code=0, flag=1, remark="not set any response code")

    assert checked(REQUEST, answer, "b:1") is answer


def test_an_answer_without_remark_is_named() -> None:
    """Broker answers: the text never ends in nothing."""
    assert "NO_PERMISSION" in str(error_of(REQUEST, RemotingCommand(code=16, flag=1), "b:1"))
    assert "no reason given" in str(error_of(REQUEST, RemotingCommand(code=999, flag=1), "b:1"))


@pytest.mark.parametrize("code", [1, 2, 16, 17, 22, 25])
def test_errors_survive_pickling(code: int) -> None:
    """Broker answers: Spark sends exceptions between processes."""
    error = error_of(REQUEST, RemotingCommand(code=code, flag=1, remark="because"), "b:1")
    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy)) == (type(error), str(error))


def test_requests_are_described_by_what_they_are_about() -> None:
    """Broker answers: the one-letter fields of a send are understood, credentials never shown."""
    send = RemotingCommand(
        code=RequestCode.SEND_MESSAGE_V2,
        ext_fields={"a": "P", "b": "orders", "e": "2", "n": "broker-a", "AccessKey": "k", "Signature": "s"},
    )

    assert describe_request(send) == "SEND_MESSAGE_V2 producerGroup=P topic=orders broker=broker-a queue=2"
    assert describe_request(RemotingCommand(code=4711)) == "request 4711"


@pytest.mark.parametrize(
    ("remark", "kind"),
    [
        ("the broker[127.0.0.1] pulling message is forbidden", ConsumptionForbidden),
        ("the topic[orders] pulling message is forbidden", ConsumptionForbidden),
        ("subscription group no permission, g", ConsumptionForbidden),
        ("the consumer group[g] can not consume by broadcast way", NoPermission),
        ("User:u has no permission to access Topic:orders from 127.0.0.1, no matched policies", NoPermission),
    ],
)
def test_reading_that_an_operator_has_switched_off_is_distinguished_from_missing_rights(
    remark: str, kind: type[BrokerError]
) -> None:
    """A5: only the former passes."""
    error = error_of(REQUEST, RemotingCommand(code=16, flag=1, remark=remark), "b:1")

    assert type(error) is kind
    assert ("accessKey" in str(error)) is (kind is NoPermission)


@pytest.mark.parametrize(
    ("remark", "kind"),
    [
        ("check signature failed.", NoPermission),
        ("username cannot be null.", NoPermission),
        ("User:u is not found.", BrokerError),
        ("User:u has no permission to access Topic:orders from 127.0.0.1, no matched policies", BrokerError),
        ("Authentication failed. Please verify the credentials and try again.", BrokerError),
    ],
)
def test_a_wrong_secret_is_recognized_by_the_code_of_a_proxy(remark: str, kind: type[BrokerError]) -> None:
    """A5: it answers with code 1 where a broker answers with 16, but also refuses while no broker answers it."""
    error = error_of(REQUEST, RemotingCommand(code=1, flag=1, remark=remark), "proxy:8080")

    assert type(error) is kind
