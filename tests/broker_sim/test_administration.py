"""Administrators' requests, as far as tests/both does not compare them with the real broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker_sim import replies
from broker_sim.bodies import SubscriptionGroupConfig
from broker_sim.broker import Broker
from broker_sim.replies import Outgoing
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.codes import LanguageCode, RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import dumps_java, loads, read_object
from pyspark_rocketmq.wire.requests.bodies import HeartbeatData, decode_offset_table
from tests.broker_sim.exchange import (
    GROUP,
    OTHER_PEER,
    PEER,
    TOPIC,
    ask,
    heartbeat,
    held_pull,
    make_broker,
    message,
    pull,
    request,
)
from tests.helpers.fake_clock import FakeClock
from tests.helpers.golden import golden

_QUEUES = 2


@pytest.fixture
def broker(clock: FakeClock) -> Broker:
    broker = make_broker(clock, queues=_QUEUES)
    for queue_id in range(_QUEUES):
        broker.put(MessageQueue(TOPIC, "broker-a", queue_id), [message()] * 5)
        broker.state.offsets.commit(GROUP, TOPIC, queue_id, 3)
    broker.state.groups.put(SubscriptionGroupConfig(group_name=GROUP))
    return broker


def _configure(broker: Broker, text: str) -> int:
    return ask(broker, request(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())).code


def _config(broker: Broker) -> dict[str, str]:
    lines = ask(broker, request(RequestCode.GET_BROKER_CONFIG)).body.decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def _reset(**fields: object) -> RemotingCommand:
    defaults = {"topic": TOPIC, "group": GROUP, "timestamp": 0, "isForce": "true", "queueId": -1}
    return request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**defaults, **fields})


@pytest.mark.parametrize("code", [315, 401, 2001, 2002, 2003, 2004])
def test_what_is_not_served_is_answered_as_not_supported(broker: Broker, code: int) -> None:
    """Never with silence, which would cost the other side its time-out."""
    assert ask(broker, request(code)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_the_log_says_once_what_is_not_simulated(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    replies._tell_not_supported.cache_clear()
    for code in (401, 401, 9999):
        ask(broker, request(code))

    assert [record.getMessage() for record in caplog.records] == [
        "Request 401 (SET_MESSAGE_REQUEST_MODE) is not simulated; see docs/how-to/simulator.md.",
        "Request 9999 (unknown) is not simulated; see docs/how-to/simulator.md.",
    ]


def test_queues_whose_messages_are_all_gone_begin_again_when_cleaned(
    broker: Broker, clock: FakeClock
) -> None:
    """306: not so before; queues with messages, and those never written, stay as they are."""
    clock.advance(10)
    broker.state.store.drop_stored_before(broker.state.now_ms())
    broker.put(MessageQueue(TOPIC, "broker-a", 1), [message()])
    offsets = [(5, 5), (5, 6)]
    assert _bounds(broker) == offsets

    assert ask(broker, request(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
    assert _bounds(broker) == [(0, 0), (5, 6)]


def _bounds(broker: Broker) -> list[tuple[int, int]]:
    store = broker.state.store
    return [(store.min_offset(TOPIC, each), store.max_offset(TOPIC, each)) for each in range(_QUEUES)]


def test_only_topics_that_are_kept_in_order_are_counted_if_asked_so(broker: Broker) -> None:
    """317: isOrder."""
    code = RequestCode.GET_BROKER_CONSUME_STATS
    (everything, ordered) = (
        read_object(ask(broker, request(code, {"isOrder": is_order})).body, "ConsumeStatsList")
        for is_order in ("false", "true")
    )

    assert (everything.integer("totalDiff", 0), everything.integer("totalInflightDiff", 0)) == (4, -6)
    assert ordered.integer("totalDiff", 0) == 0


def test_a_reply_waits_for_the_producer_that_asked(broker: Broker, clock: FakeClock) -> None:
    """324, 326: its answer becomes the broker's, or that there is none; the reply is stored either way."""
    known = dumps_java(HeartbeatData(client_id="client", producers=("asker",)))
    ask(broker, request(RequestCode.HEART_BEAT, body=known), OTHER_PEER)
    fields = {
        "producerGroup": "p", "topic": "DefaultCluster_REPLY_TOPIC", "defaultTopic": "TBW102", "queueId": 0,
        "defaultTopicQueueNums": 4, "sysFlag": 0, "bornTimestamp": 1, "flag": 7,
        "properties": "REPLY_TO_CLIENT\x01client\x02CORRELATION_ID\x01c\x02",
    }  # fmt: skip
    command = request(RequestCode.SEND_REPLY_MESSAGE, fields, body=b"seven")
    answers = []
    for code in (0, 1, None):
        (push,) = broker.handle(PEER, command)
        assert (push.peer, push.command.code, push.command.body) == (OTHER_PEER, 326, b"seven")
        assert push.command.ext_fields["flag"] == "7"
        assert "CORRELATION_ID\x01c\x02" in push.command.ext_fields["properties"]
        if code is None:
            clock.advance(10)
            (answer,) = broker.look_at_clock()
        else:
            (answer,) = broker.handle(OTHER_PEER, replies.reply(push.command, code))
        answers.append((answer.command.code, answer.command.ext_fields["queueOffset"]))

    assert answers == [(0, "0"), (1, "1"), (1, "2")]


# --- configuration ------------------------------------------------------------------------------------------


def test_every_setting_that_is_shown_can_be_set_to_what_is_shown(broker: Broker) -> None:
    """25 and 26 are each other's reverse."""
    settings, shown = broker.state.settings, _config(broker)
    assert _configure(broker, "".join(f"{name}={text}\n" for name, text in shown.items())) == 0
    assert broker.state.settings == settings


@pytest.mark.parametrize(
    ("text", "attribute", "value"),
    [
        ("brokerPermission=2", "broker_permission", 2),
        ("enablePropertyFilter=true", "enable_property_filter", True),
        ("fileReservedTime=48", "retention_s", 48 * 3600.0),
        ("messageDelayLevel=1s 2m 1h", "delay_levels_s", (1, 120, 3600)),
        ("timerWheelEnable=false", "timer_wheel_enable", False),
    ],
)
def test_a_setting_changes_while_the_broker_runs(
    broker: Broker, text: str, attribute: str, value: object
) -> None:
    """25."""
    assert _configure(broker, f"# a comment\n{text}\n") == ResponseCode.SUCCESS
    assert getattr(broker.state.settings, attribute) == value


def test_pull_limits_are_settings_too(broker: Broker) -> None:
    """A4: an operator raises them for more than 32 messages a pull."""
    broker.put(MessageQueue(TOPIC, "broker-a", 0), [message()] * 100)
    _configure(broker, "maxTransferCountOnMessageInMemory=64\nmaxFilterMessageSize=32000\n")
    assert ask(broker, pull(0, maxMsgNums=100)).ext_fields["nextBeginOffset"] == "64"
    assert broker.state.settings.pull_limits.scanned_entries == 1600


@pytest.mark.parametrize(
    "text", ["brokerPermission=none", "messageDelayLevel=1x", "noSuchSetting=1", "fileReservedTime="]
)
def test_what_is_no_value_or_no_setting_changes_nothing(broker: Broker, text: str) -> None:
    """25: as in Java the answer is 0 all the same."""
    before = broker.state.settings
    assert _configure(broker, text) == ResponseCode.SUCCESS
    assert broker.state.settings == before


def test_the_black_list_cannot_be_configured(broker: Broker) -> None:
    assert _configure(broker, "configBlackList=\n") == ResponseCode.NO_PERMISSION


# --- groups and topics --------------------------------------------------------------------------------------


def test_a_group_is_shown_with_java_s_names_and_defaults(broker: Broker) -> None:
    """352, 201."""
    expected = golden("numbers.json")["defaults_SubscriptionGroupConfig_json"]
    fields = {"group": GROUP}
    shown = loads(ask(broker, request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, fields)).body)
    everything = loads(ask(broker, request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body)
    assert shown == {**loads(expected.encode()), "groupName": GROUP}
    assert everything["subscriptionGroupTable"] == {GROUP: shown}


def test_several_groups_and_topics_come_in_one_request(broker: Broker) -> None:
    """225, 18 and 21."""
    groups = {"groupConfigList": [{"groupName": "one"}, {"groupName": "two", "retryMaxTimes": 3}]}
    topics = {"topicConfigList": [{"topicName": "three", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}]}
    ask(broker, request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=dumps_java(groups)))
    ask(broker, request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=dumps_java(topics)))

    two = broker.state.groups.find("two")
    shown = loads(ask(broker, request(RequestCode.GET_ALL_TOPIC_CONFIG)).body)["topicConfigTable"]
    assert (two and two.retry_max_times, shown["three"]["readQueueNums"]) == (3, 3)


def test_attributes_of_a_topic_are_added_and_taken_away(broker: Broker) -> None:
    """17."""
    queues = {"readQueueNums": 1, "writeQueueNums": 1}

    def change(attributes: str) -> int:
        fields = {"topic": "new", **queues, "attributes": attributes}
        return ask(broker, request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code

    assert change("-message.type") == ResponseCode.SYSTEM_ERROR
    assert change("+message.type=FIFO,+queue.type=SimpleCQ") == ResponseCode.SUCCESS
    assert change("-queue.type") == ResponseCode.SUCCESS
    topic = broker.state.topics.find("new")
    assert topic is not None
    assert topic.attributes == {"message.type": "FIFO"}
    assert "attributes={message.type=FIFO}" in str(topic)


def test_without_timers_a_topic_is_deleted_but_the_answer_is_an_error(broker: Broker) -> None:
    """Golden fact 26."""
    _configure(broker, "timerWheelEnable=false\n")
    answer = ask(broker, request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}))
    assert answer.code == ResponseCode.SYSTEM_ERROR


# --- resets -------------------------------------------------------------------------------------------------


def test_a_reset_wakes_no_held_pull(broker: Broker, clock: FakeClock) -> None:
    """F5, golden fact 11: the consumer learns it when its long poll ends."""
    command = held_pull(5)
    assert broker.handle(PEER, command) == []
    assert [each.peer for each in broker.handle(OTHER_PEER, _reset())] == [OTHER_PEER]
    clock.advance(15)
    (ended,) = broker.look_at_clock()
    assert (ended.command.remark, ended.command.ext_fields["nextBeginOffset"]) == ("OFFSET_RESET", "0")


def test_a_reset_is_answered_once_and_shuts_out_commits_until_then(broker: Broker) -> None:
    """F5, section 2.9; the pull that takes it still commits what it brings."""
    queue = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0}
    commit = request(RequestCode.UPDATE_CONSUMER_OFFSET, {**queue, "commitOffset": 4})
    ask(broker, _reset())
    assert ask(broker, commit).remark == "Offset has been previously reset"
    assert broker.state.offsets.query(GROUP, TOPIC, 0) == 0

    pulls = [ask(broker, pull(5, sysFlag=5, commitOffset=3)).remark for _ in range(2)]

    assert pulls == ["OFFSET_RESET", "OFFSET_OVERFLOW_ONE"]
    assert broker.state.offsets.query(GROUP, TOPIC, 0) == 3


def test_one_queue_is_reset_to_an_offset(broker: Broker) -> None:
    """222 with queueId and offset; the end + 1 is still allowed."""
    body = ask(broker, _reset(queueId=1, offset=6)).body
    assert decode_offset_table(body) == {MessageQueue(TOPIC, "broker-a", 1): 6}
    assert ask(broker, _reset(queueId=1, offset=7)).code == ResponseCode.SYSTEM_ERROR


def test_a_reset_to_now_is_the_end_of_each_queue(broker: Broker) -> None:
    assert set(decode_offset_table(ask(broker, _reset(timestamp=-1)).body).values()) == {5}


@pytest.fixture
def pushing(broker: Broker) -> Broker:
    """A broker that notifies the members at once."""
    _configure(broker, "useServerSideResetOffset=false\n")
    return broker


@pytest.mark.parametrize(
    ("timestamp", "is_force", "expected"), [(0, "true", 0), (-1, "true", 5), (-1, "false", 3)]
)
def test_the_older_reset_reaches_every_member(
    pushing: Broker, timestamp: int, is_force: str, expected: int
) -> None:
    """220; without force nothing moves forward."""
    for peer, client_id in ((PEER, "one"), (OTHER_PEER, "two")):
        pushing.handle(peer, replace(heartbeat(client_id), version=479))

    outgoing = pushing.handle(PEER, _reset(timestamp=timestamp, isForce=is_force))

    answer, *pushes = [each.command for each in outgoing]
    assert set(decode_offset_table(answer.body).values()) == {expected}
    assert [(push.code, push.is_oneway, push.body == answer.body) for push in pushes] == [
        (220, True, True)
    ] * 2


def test_the_older_reset_sends_c_plus_plus_a_list(pushing: Broker) -> None:
    """Section 2.9."""
    pushing.handle(PEER, replace(heartbeat("one"), version=479))
    outgoing = pushing.handle(OTHER_PEER, replace(_reset(), language=int(LanguageCode.CPP)))
    assert isinstance(loads(_pushed(outgoing).body)["offsetTable"], list)
    assert set(decode_offset_table(_pushed(outgoing).body).values()) == {0}


def test_the_older_reset_needs_members_offsets_and_a_topic(pushing: Broker) -> None:
    assert ask(pushing, _reset()).code == ResponseCode.CONSUMER_NOT_ONLINE
    assert ask(pushing, _reset(group="other")).code == ResponseCode.SYSTEM_ERROR
    assert ask(pushing, _reset(topic="other")).code == ResponseCode.TOPIC_NOT_EXIST
    pushing.handle(PEER, replace(heartbeat("one"), version=27))
    assert ask(pushing, _reset()).code == ResponseCode.SYSTEM_ERROR


def _pushed(outgoing: list[Outgoing]) -> RemotingCommand:
    return next(each.command for each in outgoing if not each.command.is_response)


# --- members ------------------------------------------------------------------------------------------------


def _beat(fingerprint: int, *, without_sub: bool) -> RemotingCommand:
    full = loads(heartbeat("one").body)
    if without_sub:
        full["consumerDataSet"][0]["subscriptionDataSet"] = []
    body = {**full, "heartbeatFingerprint": fingerprint, "withoutSub": without_sub}
    return request(RequestCode.HEART_BEAT, body=dumps_java(body))


def test_a_heartbeat_without_subscriptions_leaves_them_as_they_are(broker: Broker) -> None:
    """B1: version 2; a fingerprint the broker does not know asks for a full one."""
    changes = [
        ask(broker, _beat(fingerprint, without_sub=without_sub)).ext_fields["IS_SUB_CHANGE"]
        for fingerprint, without_sub in ((0, False), (7, False), (7, True), (8, True))
    ]
    assert changes == ["true", "true", "false", "true"]
    assert TOPIC in broker.state.membership.subscriptions(GROUP)


def test_members_that_broadcast_are_not_notified_of_each_other(broker: Broker) -> None:
    """B1: they share no queues."""
    body = loads(heartbeat("one").body)
    body["consumerDataSet"][0]["messageModel"] = "BROADCASTING"
    outgoing = broker.handle(PEER, request(RequestCode.HEART_BEAT, body=dumps_java(body)))
    assert [each.command.is_response for each in outgoing] == [True]


def test_a_group_may_be_configured_not_to_be_notified(broker: Broker) -> None:
    """notifyConsumerIdsChangedEnable; a connection that breaks is notified all the same, as in Java."""
    broker.state.groups.put(
        SubscriptionGroupConfig(group_name=GROUP, notify_consumer_ids_changed_enable=False)
    )
    assert len(broker.handle(PEER, heartbeat("one"))) == 1
    assert len(broker.handle(OTHER_PEER, heartbeat("two"))) == 1
    fields = {"clientID": "two", "consumerGroup": GROUP}
    assert len(broker.handle(OTHER_PEER, request(RequestCode.UNREGISTER_CLIENT, fields))) == 1
    broker.handle(OTHER_PEER, heartbeat("two"))
    assert len(broker.connection_closed(OTHER_PEER)) == 1


def test_producers_go_as_they_came_or_after_two_minutes_of_silence(broker: Broker, clock: FakeClock) -> None:
    """204, 328."""
    body = dumps_java({"clientID": "one", "producerDataSet": [{"groupName": "P"}], "consumerDataSet": []})
    ask_for = request(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "P"})
    leave = request(RequestCode.UNREGISTER_CLIENT, {"clientID": "one", "producerGroup": "P"})

    def fall_silent() -> None:
        clock.advance(121)
        broker.look_at_clock()

    codes = []
    for go in (
        lambda: broker.handle(PEER, leave),
        lambda: broker.connection_closed(PEER),
        fall_silent,
        broker.restarted,
    ):
        broker.handle(PEER, request(RequestCode.HEART_BEAT, body=body))
        codes.append(ask(broker, ask_for, OTHER_PEER).code)
        assert list(loads(ask(broker, request(RequestCode.GET_ALL_PRODUCER_INFO)).body)["data"]) == ["P"]
        go()
        codes.append(ask(broker, ask_for, OTHER_PEER).code)
    assert codes == [ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR] * 4


def test_offsets_and_figures_are_shown(broker: Broker) -> None:
    """43 and 28."""
    offsets = loads(ask(broker, request(RequestCode.GET_ALL_CONSUMER_OFFSET)).body)
    figures = loads(ask(broker, request(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
    assert offsets["offsetTable"] == {f"{TOPIC}@{GROUP}": {"0": 3, "1": 3}}
    assert (figures["brokerVersionDesc"], figures["commitLogMinOffset"]) == ("V5_3_3", "0")
    assert int(figures["commitLogMaxOffset"]) > 0
