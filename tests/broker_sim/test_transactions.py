"""Half messages: kept apart, delivered or forgotten, and asked for."""

from __future__ import annotations

import pytest

from broker_sim.broker import Broker
from broker_sim.transactions import HALF_TOPIC
from pyspark_rocketmq.model import MessageExt
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import dumps_java
from pyspark_rocketmq.wire.message_ids import decode_offset_message_id
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.bodies import HeartbeatData
from tests.broker_sim.exchange import PEER, TOPIC, ask, make_broker, request, send
from tests.broker_sim.stored_messages import stored_messages
from tests.helpers.fake_clock import FakeClock

_COMMIT, _ROLLBACK, _UNKNOWN = 8, 12, 0
_TIMEOUT_S, _INTERVAL_S, _MOST_CHECKS = 6, 30, 15


@pytest.fixture
def broker(clock: FakeClock) -> Broker:
    made = make_broker(clock)
    heartbeat = HeartbeatData(client_id="c1", producers=("producers",))
    ask(made, request(RequestCode.HEART_BEAT, body=dumps_java(heartbeat)))
    return made


def send_half(broker: Broker) -> tuple[int, int]:
    """Commit log offset and queue offset of a half message for queue 2."""
    properties = {"UNIQ_KEY": "AB", "TRAN_MSG": "true", "PGROUP": "producers", "TAGS": "paid"}
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    answer = ask(broker, send(b"half", e=2, f=4, i=text))
    assert answer.code == 0
    return decode_offset_message_id(answer.ext_fields["msgId"])[1], int(answer.ext_fields["queueOffset"])


def end(broker: Broker, offsets: tuple[int, int], flags: int, **fields: object) -> RemotingCommand:
    own = {
        "producerGroup": "producers",
        "commitLogOffset": offsets[0],
        "tranStateTableOffset": offsets[1],
        "commitOrRollback": flags,
        "msgId": "AB",
    }
    return ask(broker, request(RequestCode.END_TRANSACTION, own | fields))


def asked(broker: Broker) -> list[tuple[RemotingCommand, MessageExt]]:
    """What the broker asks for now."""
    found = [
        each for each in broker.look_at_clock() if each.request_code == RequestCode.CHECK_TRANSACTION_STATE
    ]
    assert all(each.peer == PEER and each.command.is_oneway for each in found)
    return [(each.command, decode_messages(each.command.body, broker.name)[0]) for each in found]


def test_a_half_message_is_seen_by_nobody_until_it_is_committed(broker: Broker) -> None:
    half = send_half(broker)
    assert stored_messages(broker, TOPIC) == []
    assert len(stored_messages(broker, HALF_TOPIC)) == 1

    assert end(broker, half, _COMMIT).code == 0

    (message,) = stored_messages(broker, TOPIC)
    assert (message.body, message.queue_id, message.tags, message.sys_flag) == (b"half", 2, "paid", _COMMIT)
    assert message.properties["__transactionId__"] == message.msg_id == "AB"
    assert message.properties.items() >= {"REAL_TOPIC": TOPIC, "REAL_QID": "2", "TRAN_MSG": "true"}.items()


def test_a_half_message_that_is_rolled_back_is_forgotten(broker: Broker, clock: FakeClock) -> None:
    half = send_half(broker)

    assert end(broker, half, _ROLLBACK).code == 0
    clock.advance(1000)

    assert (stored_messages(broker, TOPIC), asked(broker)) == ([], [])
    assert end(broker, half, _COMMIT).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    "wrong", [{"producerGroup": "others"}, {"tranStateTableOffset": 7}, {"commitLogOffset": 1}]
)
def test_an_end_that_does_not_fit_changes_nothing(broker: Broker, wrong: dict[str, object]) -> None:
    half = send_half(broker)

    assert end(broker, half, _COMMIT, **wrong).code == ResponseCode.SYSTEM_ERROR
    assert stored_messages(broker, TOPIC) == []
    assert end(broker, half, _COMMIT).code == 0


def test_a_member_is_asked_for_what_is_not_known(broker: Broker, clock: FakeClock) -> None:
    """The message is stored again for each question, as ``putBackHalfMsgQueue`` does."""
    half = send_half(broker)
    end(broker, half, _UNKNOWN)
    assert broker.next_deadline_s() == clock.monotonic_s() + _TIMEOUT_S

    clock.advance(_TIMEOUT_S - 0.1)
    assert asked(broker) == []
    clock.advance(0.1)
    ((command, message),) = asked(broker)
    fields = command.ext_fields
    assert (message.topic, message.queue_id, message.body) == (TOPIC, 2, b"half")
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert fields["msgId"] == fields["transactionId"] == "AB"
    again = int(fields["commitLogOffset"]), int(fields["tranStateTableOffset"])
    assert again != half
    assert message.commit_log_offset == again[0]

    assert end(broker, half, _COMMIT).code == ResponseCode.SYSTEM_ERROR
    assert end(broker, again, _COMMIT, fromTransactionCheck="true").code == 0
    assert [each.body for each in stored_messages(broker, TOPIC)] == [b"half"]


def test_a_message_is_asked_for_at_intervals_and_in_the_end_given_up(
    broker: Broker, clock: FakeClock
) -> None:
    send_half(broker)
    clock.advance(_TIMEOUT_S)

    times = []
    for _ in range(_MOST_CHECKS + 3):
        times += [int(message.properties["TRANSACTION_CHECK_TIMES"]) for _, message in asked(broker)]
        heartbeat = HeartbeatData(client_id="c1", producers=("producers",))
        ask(broker, request(RequestCode.HEART_BEAT, body=dumps_java(heartbeat)))
        clock.advance(_INTERVAL_S)

    assert times == list(range(1, _MOST_CHECKS + 1))
