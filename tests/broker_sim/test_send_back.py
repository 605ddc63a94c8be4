"""Messages a consumer sends back: retry topic, delay levels, dead letters."""

from __future__ import annotations

from dataclasses import replace
from zlib import compress

import pytest

from broker_sim.bodies import SubscriptionGroupConfig
from broker_sim.broker import Broker
from broker_sim.topics import Topic
from pyspark_rocketmq.model import MessageExt
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from tests.broker_sim.exchange import GROUP, TOPIC, ask, make_broker, request, send
from tests.broker_sim.stored_messages import stored_messages
from tests.helpers.fake_clock import FakeClock

_RETRY, _DLQ = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"


@pytest.fixture
def broker(clock: FakeClock) -> Broker:
    broker = make_broker(clock)
    ask(
        broker,
        send(compress(b"one"), i="TAGS\x01TagA\x02KEYS\x01k\x02UNIQ_KEY\x01AB\x02u\x01v\x02", f=0x301, h=7),
    )
    return broker


def _send_back(
    message: MessageExt, *, level: int = 0, most: int | None = 16, **changes: object
) -> RemotingCommand:
    fields = {
        "offset": message.commit_log_offset,
        "group": GROUP,
        "delayLevel": level,
        "originMsgId": message.msg_id,
        "originTopic": TOPIC,
        "unitMode": "false",
        "maxReconsumeTimes": most,
    }
    return request(RequestCode.CONSUMER_SEND_MSG_BACK, {**fields, **changes}, version=479)


def _only(broker: Broker, topic: str) -> MessageExt:
    (message,) = stored_messages(broker, topic)
    return message


def test_a_message_comes_back_in_the_retry_topic_after_ten_seconds(broker: Broker, clock: FakeClock) -> None:
    """G1: level 3 + reconsumeTimes, one attempt more, everything else kept."""
    first = _only(broker, TOPIC)
    assert ask(broker, _send_back(first)).code == ResponseCode.SUCCESS

    clock.advance(9.9)
    broker.look_at_clock()
    assert stored_messages(broker, _RETRY) == []
    clock.advance(0.1)
    broker.look_at_clock()

    again = _only(broker, _RETRY)
    assert (again.reconsume_times, again.body, again.flag, again.sys_flag) == (1, b"one", 7, first.sys_flag)
    assert again.born_timestamp == first.born_timestamp
    assert again.properties == {
        **first.properties,
        "DELAY": "3",
        "ORIGIN_MESSAGE_ID": f"7F00000100002A9F{first.commit_log_offset:016X}",
        "REAL_QID": "0",
        "REAL_TOPIC": _RETRY,
        "RETRY_TOPIC": TOPIC,
        "WAIT": "false",
    }


def test_each_attempt_waits_one_level_longer_and_the_origin_stays(broker: Broker, clock: FakeClock) -> None:
    """G1: reconsumeTimes 0..max, levels 3, 4, …; then the dead letters (golden fact 21)."""
    origin = _only(broker, TOPIC)
    message = origin
    for attempt, seconds in enumerate((10, 30, 60)):
        ask(broker, _send_back(message, most=3))
        clock.advance(seconds)
        broker.look_at_clock()
        message = stored_messages(broker, _RETRY)[-1]
        assert (message.reconsume_times, message.properties["DELAY"]) == (attempt + 1, str(attempt + 3))

    ask(broker, _send_back(message, most=3))

    dead = _only(broker, _DLQ)
    assert (dead.reconsume_times, dead.properties["DELAY"]) == (4, "0")
    assert dead.properties["RETRY_TOPIC"] == TOPIC
    assert dead.properties["ORIGIN_MESSAGE_ID"].endswith(f"{origin.commit_log_offset:016X}")


def test_a_negative_level_goes_straight_to_the_dead_letters(broker: Broker) -> None:
    """G1."""
    ask(broker, _send_back(_only(broker, TOPIC), level=-1))
    dead = _only(broker, _DLQ)
    assert (dead.reconsume_times, "REAL_TOPIC" in dead.properties) == (1, False)


def test_a_level_of_the_consumers_own_is_taken_as_it_is(broker: Broker, clock: FakeClock) -> None:
    """G1."""
    ask(broker, _send_back(_only(broker, TOPIC), level=1))
    clock.advance(1)
    broker.look_at_clock()
    assert _only(broker, _RETRY).properties["DELAY"] == "1"


@pytest.mark.parametrize(("version", "topic"), [(121, _DLQ), (120, "SCHEDULE_TOPIC_XXXX")])
def test_the_requests_own_maximum_counts_only_from_a_client_that_knows_it(
    broker: Broker, version: int, topic: str
) -> None:
    """G1: before 3.4.9 the group's configuration decides."""
    command = replace(_send_back(_only(broker, TOPIC), most=0), version=version)
    ask(broker, command)
    assert len(stored_messages(broker, topic)) == 1


def test_without_a_maximum_the_groups_configuration_decides(broker: Broker) -> None:
    """G1: retryMaxTimes."""
    broker.state.groups.put(SubscriptionGroupConfig(group_name=GROUP, retry_max_times=0))
    ask(broker, _send_back(_only(broker, TOPIC), most=None))
    _only(broker, _DLQ)


def test_a_group_without_retry_queues_loses_the_message_silently(broker: Broker) -> None:
    """G1: retryQueueNums 0."""
    broker.state.groups.put(SubscriptionGroupConfig(group_name=GROUP, retry_queue_nums=0))
    assert ask(broker, _send_back(_only(broker, TOPIC))).code == ResponseCode.SUCCESS
    assert broker.state.topics.find(_RETRY) is None


def test_a_group_that_may_not_be_made_is_refused(broker: Broker) -> None:
    broker.state.settings = replace(broker.state.settings, auto_create_subscription_group=False)
    assert ask(broker, _send_back(_only(broker, TOPIC))).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_an_offset_without_a_message_is_refused(broker: Broker) -> None:
    answer = ask(broker, _send_back(_only(broker, TOPIC), offset=10**9))
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "look message by offset failed, 1000000000",
    )


def test_a_broker_or_a_retry_topic_without_write_permission_refuses(broker: Broker) -> None:
    """Section 2.8: unlike sends (golden fact 18), what is sent back is checked."""
    command = _send_back(_only(broker, TOPIC))
    broker.state.topics.put(Topic(topic_name=_RETRY, read_queue_nums=1, write_queue_nums=1, perm=4))
    assert ask(broker, command).code == ResponseCode.NO_PERMISSION
    broker.state.settings = replace(broker.state.settings, broker_permission=4)
    assert ask(broker, command).code == ResponseCode.NO_PERMISSION
