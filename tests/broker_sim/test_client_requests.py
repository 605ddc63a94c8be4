"""Requests that a group's members answer, and how the broker waits for them."""

from __future__ import annotations

import pytest

from broker_sim.bodies import encode_group_status
from broker_sim.broker import Broker
from broker_sim.replies import Outgoing, Peer
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.client_info import encode_consumer_status
from tests.broker_sim.exchange import (
    GROUP,
    OTHER_PEER,
    PEER,
    TOPIC,
    answer_in,
    heartbeat,
    make_broker,
    request,
)
from tests.helpers.fake_clock import FakeClock

_ADMIN = Peer(9, PEER.host)
_INFO = request(
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    {"consumerGroup": GROUP, "clientId": "one", "jstackEnable": "false"},
    opaque=77,
)
_STATUS = request(
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": TOPIC, "group": GROUP}, opaque=78
)


@pytest.fixture
def broker(clock: FakeClock) -> Broker:
    broker = make_broker(clock)
    for peer, client_id in ((PEER, "one"), (OTHER_PEER, "two")):
        _join(broker, peer, client_id, version=479)
    return broker


def _join(broker: Broker, peer: Peer, client_id: str, *, version: int) -> None:
    command = heartbeat(client_id)
    broker.handle(peer, request(command.code, body=command.body, version=version))


def _ask(broker: Broker, command: RemotingCommand) -> list[Outgoing]:
    outgoing = broker.handle(_ADMIN, command)
    assert answer_in(outgoing, command) is None
    return outgoing


def test_the_member_s_answer_becomes_the_administrator_s(broker: Broker) -> None:
    """A4: 307 is forwarded under a number of the broker's own."""
    (push,) = _ask(broker, _INFO)
    assert (push.peer, push.command.ext_fields) == (PEER, _INFO.ext_fields)

    (given,) = broker.handle(push.peer, push.command.response(0, remark="fine", body=b"info"))

    assert given.peer == _ADMIN
    assert (given.command.opaque, given.command.remark, given.command.body) == (77, "fine", b"info")


def test_a_member_that_does_not_answer_costs_ten_seconds(broker: Broker, clock: FakeClock) -> None:
    """A4: 207; what comes later is for nobody."""
    (push,) = _ask(broker, _INFO)
    assert broker.next_deadline_s() == clock.monotonic_s() + 10
    clock.advance(10)

    answer = answer_in(broker.look_at_clock(), _INFO)

    assert answer is not None
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert broker.handle(push.peer, push.command.response(0)) == []


def test_a_member_that_goes_is_not_waited_for(broker: Broker) -> None:
    (push,) = _ask(broker, _INFO)
    answer = answer_in(broker.connection_closed(push.peer), _INFO)
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_an_answer_of_somebody_else_does_not_count(broker: Broker) -> None:
    """The number by itself says nothing: each connection has its own."""
    (push,) = _ask(broker, _INFO)
    assert broker.handle(OTHER_PEER, push.command.response(0)) == []


@pytest.mark.parametrize(("version", "is_asked"), [(62, True), (61, False)])
def test_an_old_client_is_not_asked(broker: Broker, version: int, is_asked: bool) -> None:
    """A4: before 3.1.8 a client does not know the request."""
    _join(broker, PEER, "one", version=version)
    outgoing = broker.handle(_ADMIN, _INFO)
    answer = answer_in(outgoing, _INFO)
    assert (answer is None) is is_asked
    assert answer is None or "too low" in str(answer.remark)


def test_all_members_are_asked_for_their_progress_and_the_silent_left_out(
    broker: Broker, clock: FakeClock
) -> None:
    """A4: 223 asks with 221 and waits 5 s."""
    first, second = _ask(broker, _STATUS)
    offsets = {MessageQueue(TOPIC, "broker-a", 0): 3}
    assert broker.handle(first.peer, first.command.response(0, body=encode_consumer_status(offsets))) == []
    clock.advance(5)

    answer = answer_in(broker.look_at_clock(), _STATUS)

    assert answer is not None
    assert answer.body == encode_group_status({"one": offsets})
    assert second.peer == OTHER_PEER


def test_an_answer_that_cannot_be_read_counts_as_none(broker: Broker) -> None:
    first, second = _ask(broker, _STATUS)
    assert broker.handle(first.peer, first.command.response(0, body=b"{")) == []
    answer = answer_in(broker.handle(second.peer, second.command.response(1)), _STATUS)
    assert answer is not None
    assert answer.body == encode_group_status({})


def test_a_message_that_is_not_there_cannot_be_consumed_directly(broker: Broker) -> None:
    """309."""
    fields = {"consumerGroup": GROUP, "clientId": "one", "msgId": "7F00000100002A9F" + "0" * 16}
    command = request(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    answer = answer_in(broker.handle(_ADMIN, command), command)
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
