"""Old messages that go, and topics that grow or are made again."""

from __future__ import annotations

import pytest

from broker_sim.broker import Broker
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from tests.broker_sim.exchange import GROUP, TOPIC, ask, make_broker, message, pull, request
from tests.helpers.fake_clock import FakeClock

_QUEUE = MessageQueue(TOPIC, "broker-a", 0)
_HOUR_S = 3600.0


@pytest.fixture
def broker(clock: FakeClock) -> Broker:
    return make_broker(clock, settings=BrokerSettings(retention_s=_HOUR_S))


def _put(broker: Broker, count: int) -> None:
    broker.put(_QUEUE, [message()] * count)


def test_messages_older_than_the_retention_are_gone_and_a_pull_has_to_move(
    broker: Broker, clock: FakeClock
) -> None:
    """F4: code 21 OFFSET_TOO_SMALL with the oldest offset still held."""
    _put(broker, 3)
    clock.advance(_HOUR_S / 2)
    _put(broker, 2)
    clock.advance(_HOUR_S / 2 + 1)
    broker.look_at_clock()

    answer = ask(broker, pull(0))

    assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL")
    assert answer.ext_fields["nextBeginOffset"] == answer.ext_fields["minOffset"] == "3"
    assert ask(broker, pull(3)).code == ResponseCode.SUCCESS


def test_a_queue_that_lost_everything_keeps_its_end(broker: Broker, clock: FakeClock) -> None:
    """F4: offsets never start again."""
    _put(broker, 3)
    clock.advance(_HOUR_S + 1)
    broker.look_at_clock()
    assert ask(broker, pull(0)).ext_fields["nextBeginOffset"] == "3"
    assert ask(broker, pull(3)).code == ResponseCode.PULL_NOT_FOUND

    _put(broker, 1)

    assert ask(broker, pull(3)).ext_fields["nextBeginOffset"] == "4"
    assert (
        ask(broker, request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 0})).code == ResponseCode.SYSTEM_ERROR
    )


def test_what_is_gone_is_not_found_by_key_either(broker: Broker, clock: FakeClock) -> None:
    """The index holds no more than the log."""
    broker.put(_QUEUE, [Message(topic=TOPIC, body=b"x", properties={"KEYS": "k"})])
    query = request(
        RequestCode.QUERY_MESSAGE,
        {"topic": TOPIC, "key": "k", "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 1 << 62},
    )
    assert ask(broker, query).code == ResponseCode.SUCCESS
    clock.advance(_HOUR_S + 1)
    broker.look_at_clock()
    assert ask(broker, query).code == ResponseCode.QUERY_NOT_FOUND


def test_new_queues_of_a_topic_can_be_pulled_at_once_and_those_taken_away_no_more(broker: Broker) -> None:
    """B5: topic expansion while running."""
    assert ask(broker, pull(0, queueId=4)).code == ResponseCode.INVALID_PARAMETER
    _change_queues(broker, 6)
    assert ask(broker, pull(0, queueId=4)).code == ResponseCode.PULL_NOT_FOUND
    _change_queues(broker, 2)
    assert ask(broker, pull(0, queueId=2)).code == ResponseCode.INVALID_PARAMETER


def test_a_topic_deleted_and_made_again_begins_at_zero(broker: Broker) -> None:
    """Code 215 takes the queues and the committed offsets with it."""
    _put(broker, 3)
    broker.state.offsets.commit(GROUP, TOPIC, 0, 2)
    assert ask(broker, request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})).code == 0
    assert ask(broker, pull(0)).code == ResponseCode.TOPIC_NOT_EXIST

    _change_queues(broker, 1)

    assert ask(broker, pull(3)).ext_fields["maxOffset"] == "0"
    assert broker.state.offsets.query(GROUP, TOPIC, 0) is None


def _change_queues(broker: Broker, count: int) -> None:
    fields = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": count, "writeQueueNums": count}
    command = request(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        {**fields, "perm": 6, "topicFilterType": "SINGLE_TAG", "order": "false"},
    )
    assert ask(broker, command).code == ResponseCode.SUCCESS
