from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker_sim.bodies import SubscriptionGroupConfig
from broker_sim.broker import Broker
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.model import Message, MessageModel, MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import dumps_java
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.subscription import build_subscription
from tests.broker_sim.exchange import (
    GROUP,
    OTHER_PEER,
    PEER,
    TOPIC,
    add_topic,
    answer_in,
    ask,
    heartbeat,
    held_pull,
    make_broker,
    message,
    pull,
    request,
    send,
)
from tests.helpers.fake_clock import FakeClock

_QUEUE = MessageQueue(TOPIC, "broker-a", 0)


@pytest.fixture
def broker(clock: FakeClock) -> Broker:
    return make_broker(clock)


def _bodies(answer: RemotingCommand) -> list[bytes]:
    return [each.body for each in decode_messages(answer.body, "broker-a")]


def _set(broker: Broker, **changes: Any) -> None:
    broker.state.settings = replace(broker.state.settings, **changes)


# --- outcomes ---


def test_messages_come_in_queue_order_with_the_next_offset(broker: Broker) -> None:
    broker.put(_QUEUE, [message(b"%d" % number) for number in range(40)])
    answer = ask(broker, pull(3))
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert _bodies(answer) == [b"%d" % number for number in range(3, 35)]
    assert answer.ext_fields == {
        "suggestWhichBrokerId": "0",
        "groupSysFlag": "0",
        "nextBeginOffset": "35",
        "minOffset": "0",
        "maxOffset": "40",
        "topicSysFlag": "0",
    }


@pytest.mark.parametrize(
    ("queue_offset", "code", "remark", "following"),
    [
        (2, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", "2"),
        (3, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", "2"),
        (-5, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", "0"),
    ],
)
def test_an_offset_without_message_is_answered_with_a_correction(
    broker: Broker, queue_offset: int, code: int, remark: str, following: str
) -> None:
    broker.put(_QUEUE, [message(), message()])
    answer = ask(broker, pull(queue_offset))
    assert (answer.code, answer.remark, answer.ext_fields["nextBeginOffset"]) == (code, remark, following)


@pytest.mark.parametrize(
    ("queue_offset", "code"), [(0, ResponseCode.PULL_NOT_FOUND), (9, ResponseCode.PULL_OFFSET_MOVED)]
)
def test_an_empty_queue_has_nothing_at_0_and_moves_every_other_offset(
    broker: Broker, queue_offset: int, code: int
) -> None:
    answer = ask(broker, pull(queue_offset))
    assert (answer.code, answer.remark) == (code, "NO_MESSAGE_IN_QUEUE")
    assert answer.ext_fields["nextBeginOffset"] == "0"


def test_the_broker_filters_by_tag_hash_and_passes_what_does_not_match(broker: Broker) -> None:
    """A4: filter at the broker by hash code; a range without match advances with code 20."""
    broker.put(_QUEUE, [message(b"a", "TagA"), message(b"b", "TagB"), message(b"none")])
    answer = ask(broker, pull(0, subscription="TagB || TagC"))
    assert (_bodies(answer), answer.ext_fields["nextBeginOffset"]) == ([b"b"], "3")
    nothing = ask(broker, pull(0, subscription="TagX"))
    assert (nothing.code, nothing.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert (nothing.body, nothing.ext_fields["nextBeginOffset"]) == (b"", "3")


def test_tags_with_the_same_hash_pass_the_broker(broker: Broker) -> None:
    """A4: only the client can distinguish "Aa" and "BB"; their hash codes are equal."""
    broker.put(_QUEUE, [message(b"wanted", "Aa"), message(b"lookalike", "BB")])
    assert _bodies(ask(broker, pull(0, subscription="Aa"))) == [b"wanted", b"lookalike"]


def test_a_pull_can_commit_an_offset_on_its_way(broker: Broker) -> None:
    ask(broker, pull(0, sysFlag=4 | 1, commitOffset=17))
    assert broker.state.offsets.query(GROUP, TOPIC, 0) == 17
    ask(broker, pull(0, sysFlag=4, commitOffset=99))
    assert broker.state.offsets.query(GROUP, TOPIC, 0) == 17


# --- refusals, in the order of the checks ---


def test_each_check_comes_before_the_next(broker: Broker, clock: FakeClock) -> None:
    """Every obstacle at once; they are removed one by one, and the answers name them in Java's order."""
    _set(
        broker,
        broker_permission=2,
        lite_pull_message_enable=False,
        auto_create_subscription_group=False,
    )
    state = broker.state
    bad = pull(0, code=RequestCode.LITE_PULL_MESSAGE, topic="late", queueId=9, sysFlag=0, subVersion=5)

    def refusal() -> tuple[int, str | None]:
        answer = ask(broker, bad)
        return answer.code, answer.ext_fields.get("forbiddenType")

    assert refusal() == (ResponseCode.NO_PERMISSION, "1")
    _set(broker, broker_permission=6)
    assert refusal() == (ResponseCode.NO_PERMISSION, "1")
    _set(broker, lite_pull_message_enable=True)
    assert refusal() == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, None)
    state.groups.put(
        SubscriptionGroupConfig(group_name=GROUP, consume_enable=False, consume_broadcast_enable=False)
    )
    assert refusal() == (ResponseCode.NO_PERMISSION, "2")
    state.groups.put(SubscriptionGroupConfig(group_name=GROUP, consume_broadcast_enable=False))
    assert refusal() == (ResponseCode.TOPIC_NOT_EXIST, None)
    add_topic(broker, "late", 4, perm=2)
    assert refusal() == (ResponseCode.NO_PERMISSION, "3")
    add_topic(broker, "late", 4)
    assert refusal() == (ResponseCode.INVALID_PARAMETER, None)
    add_topic(broker, "late", 10)
    assert refusal() == (ResponseCode.SUBSCRIPTION_NOT_EXIST, None)  # no group info
    broker.handle(PEER, _broadcasting_heartbeat())
    assert refusal() == (ResponseCode.NO_PERMISSION, "4")
    broker.handle(PEER, heartbeat("c1", TOPIC))
    assert refusal() == (ResponseCode.SUBSCRIPTION_NOT_EXIST, None)  # not this topic
    broker.handle(PEER, heartbeat("c1", "late", sub_version=4))
    assert refusal() == (ResponseCode.SUBSCRIPTION_NOT_LATEST, None)
    broker.handle(PEER, heartbeat("c1", "late", sub_version=5))
    assert refusal() == (ResponseCode.PULL_NOT_FOUND, None)


def _broadcasting_heartbeat() -> RemotingCommand:
    consumer = ConsumerData(
        group_name=GROUP,
        message_model=MessageModel.BROADCASTING,
        subscriptions=(build_subscription(TOPIC, "*", sub_version=1),),
    )
    body = dumps_java(HeartbeatData(client_id="c1", consumers=(consumer,)))
    return request(RequestCode.HEART_BEAT, body=body)


@pytest.mark.parametrize("queue_id", [-1, 4])
def test_a_queue_id_outside_the_topic_is_refused(broker: Broker, queue_id: int) -> None:
    answer = ask(broker, pull(0, queueId=queue_id))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert answer.remark is not None
    assert f"queueId[{queue_id}]" in answer.remark


def test_an_expression_of_separators_only_cannot_be_parsed(broker: Broker) -> None:
    assert ask(broker, pull(0, subscription="||")).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_sql92_is_refused_as_by_a_broker_without_property_filter(broker: Broker) -> None:
    answer = ask(broker, pull(0, subscription="a > 5", expressionType="SQL92"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "The broker does not support consumer to filter message by SQL92"


def test_a_pull_without_a_required_field_is_a_system_error(broker: Broker) -> None:
    answer = ask(broker, pull(0, queueId=None))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert "queueId" in answer.remark


# --- long polling ---


def test_a_held_pull_is_answered_by_the_message_it_waited_for(broker: Broker) -> None:
    waiting = held_pull(opaque=41)
    assert broker.handle(PEER, waiting) == []
    outgoing = broker.handle(OTHER_PEER, send(b"late"))
    answer = answer_in(outgoing, waiting)
    assert answer is not None
    assert _bodies(answer) == [b"late"]
    assert [each.peer for each in outgoing] == [OTHER_PEER, PEER]
    assert len(broker.state.held_pulls) == 0


def test_a_message_of_another_tag_or_queue_wakes_nobody(broker: Broker) -> None:
    broker.handle(PEER, held_pull(subscription="TagA", opaque=41))
    broker.put(_QUEUE, [message(b"other tag", "TagB")])
    broker.put(_QUEUE._replace(queue_id=1), [message(b"other queue", "TagA")])
    assert len(broker.state.held_pulls) == 1
    outgoing = broker.handle(OTHER_PEER, send(b"mine"))
    answer = answer_in(outgoing, held_pull(opaque=41))
    assert answer is not None
    assert (_bodies(answer), answer.ext_fields["nextBeginOffset"]) == ([b"mine"], "2")


def test_a_held_pull_is_answered_with_19_when_its_time_is_over(broker: Broker, clock: FakeClock) -> None:
    waiting = held_pull(timeout_ms=2000, opaque=41)
    broker.handle(PEER, waiting)
    assert broker.next_deadline_s() == clock.monotonic_s() + 2
    clock.advance(1.999)
    assert broker.look_at_clock() == []
    clock.advance(0.001)
    answer = answer_in(broker.look_at_clock(), waiting)
    assert answer is not None
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "0")
    assert broker.next_deadline_s() is None


def test_pulls_end_in_the_order_of_their_deadlines(broker: Broker, clock: FakeClock) -> None:
    for opaque, timeout_ms in ((1, 3000), (2, 1000), (3, 2000)):
        broker.handle(PEER, held_pull(timeout_ms=timeout_ms, opaque=opaque))
    clock.advance(5)
    assert [each.command.opaque for each in broker.look_at_clock()] == [2, 3, 1]


def test_a_pull_is_run_again_only_once(broker: Broker) -> None:
    """Two pulls of one queue wait; both are answered by the first message, none is held again."""
    broker.put(_QUEUE, [message(tag="TagA")])
    broker.handle(PEER, held_pull(1, opaque=1))
    broker.handle(PEER, held_pull(1, opaque=2))
    outgoing = broker.handle(OTHER_PEER, send())
    assert {each.command.opaque for each in outgoing if each.peer == PEER} == {1, 2}
    assert len(broker.state.held_pulls) == 0


def test_a_pull_whose_topic_was_closed_meanwhile_gets_that_answer(broker: Broker, clock: FakeClock) -> None:
    waiting = held_pull(timeout_ms=1000)
    broker.handle(PEER, waiting)
    add_topic(broker, TOPIC, 4, perm=2)
    clock.advance(1)
    answer = answer_in(broker.look_at_clock(), waiting)
    assert answer is not None
    assert answer.code == ResponseCode.NO_PERMISSION


def test_nothing_is_held_without_the_suspend_flag_or_where_an_answer_exists(broker: Broker) -> None:
    assert ask(broker, pull(0)).code == ResponseCode.PULL_NOT_FOUND
    broker.put(_QUEUE, [message()])
    assert ask(broker, held_pull(0)).code == ResponseCode.SUCCESS
    assert ask(broker, held_pull(9)).code == ResponseCode.PULL_OFFSET_MOVED
    assert ask(broker, held_pull(0, subscription="TagX")).code == ResponseCode.PULL_RETRY_IMMEDIATELY


def test_a_broker_without_long_polling_holds_a_pull_for_a_second(clock: FakeClock) -> None:
    """shortPollingTimeMills: a message that comes meanwhile is found then."""
    broker = make_broker(clock, settings=BrokerSettings(long_polling_enable=False))
    waiting = held_pull(0)
    broker.handle(PEER, waiting)
    broker.put(_QUEUE, [message()])
    assert len(broker.state.held_pulls) == 1
    clock.advance(0.999)
    assert broker.look_at_clock() == []
    clock.advance(0.001)
    answer = answer_in(broker.look_at_clock(), waiting)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS


def test_the_pull_of_a_closed_connection_is_run_again_and_takes_a_reset_with_it(
    broker: Broker, clock: FakeClock
) -> None:
    """F5: the broker has no hook for closed connections; a younger pull gets nothing of the reset."""
    broker.handle(PEER, held_pull(timeout_ms=1000))
    broker.connection_closed(PEER)
    broker.handle(OTHER_PEER, held_pull(timeout_ms=2000, opaque=8))
    broker.state.offsets.reset(GROUP, TOPIC, 0, 0)

    clock.advance(1)
    assert [(each.peer, each.command.remark) for each in broker.look_at_clock()] == [(PEER, "OFFSET_RESET")]
    clock.advance(1)
    assert [each.command.code for each in broker.look_at_clock()] == [ResponseCode.PULL_NOT_FOUND]


def test_a_batch_wakes_who_waits_for_any_of_its_tags(broker: Broker) -> None:
    waiting = held_pull(subscription="TagB")
    broker.handle(PEER, waiting)
    messages = [Message(topic=TOPIC, body=tag.encode(), properties={"TAGS": tag}) for tag in ("TagA", "TagB")]
    broker.put(_QUEUE, messages)
    assert len(broker.state.held_pulls) == 0
