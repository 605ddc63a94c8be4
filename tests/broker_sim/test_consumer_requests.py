from __future__ import annotations

import json
from dataclasses import replace

import pytest

from broker_sim.broker import Broker
from broker_sim.groups import CHANNEL_EXPIRED_TIMEOUT_S
from broker_sim.replies import Outgoing
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import dumps_java
from pyspark_rocketmq.wire.requests.bodies import LockBatchRequest, decode_consumer_list, decode_lock_response
from tests.broker_sim.exchange import (
    GROUP,
    OTHER_PEER,
    PEER,
    TOPIC,
    ask,
    heartbeat,
    make_broker,
    message,
    request,
)
from tests.helpers.fake_clock import FakeClock

_QUEUE = MessageQueue(TOPIC, "broker-a", 0)


@pytest.fixture
def broker(clock: FakeClock) -> Broker:
    return make_broker(clock)


def _query(**fields: object) -> RemotingCommand:
    defaults = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0}
    return request(RequestCode.QUERY_CONSUMER_OFFSET, {**defaults, **fields})


def _update(queue_offset: int, **fields: object) -> RemotingCommand:
    defaults = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "commitOffset": queue_offset}
    return request(RequestCode.UPDATE_CONSUMER_OFFSET, {**defaults, **fields})


def _list() -> RemotingCommand:
    return request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP})


def _notified(outgoing: list[Outgoing]) -> list[int]:
    """Connections that were asked to rebalance, all of them oneway."""
    pushes = [each for each in outgoing if not each.command.is_response]
    assert all(each.command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED for each in pushes)
    assert all(each.command.is_oneway for each in pushes)
    assert all(each.command.ext_fields == {"consumerGroup": GROUP} for each in pushes)
    return sorted(each.peer.connection_id for each in pushes)


# --- offsets ---


def test_a_new_group_on_a_young_queue_starts_at_0(broker: Broker) -> None:
    """F2: CONSUME_FROM_LAST_OFFSET reads history there, unless the client forbids it."""
    broker.put(_QUEUE, [message()])
    assert ask(broker, _query()).ext_fields == {"offset": "0"}
    forbidden = ask(broker, _query(setZeroIfNotFound="false"))
    assert forbidden.code == ResponseCode.QUERY_NOT_FOUND
    assert forbidden.remark == "Not found, do not set to zero, maybe this group boot first"


@pytest.mark.parametrize("fields", [{}, {"topic": "NoSuch"}, {"queueId": 99}])
def test_without_a_first_message_there_is_no_offset(broker: Broker, fields: dict[str, object]) -> None:
    """F3: "not found" is an answer of its own."""
    answer = ask(broker, _query(**fields))
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert answer.remark == "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


def test_a_new_group_on_a_queue_that_lost_its_first_message_has_no_offset(clock: FakeClock) -> None:
    """F2: minOffset > 0 gives 22."""
    broker = make_broker(clock, settings=BrokerSettings(retention_bytes=5_000))
    for _ in range(100):
        broker.put(_QUEUE, [message()])
    assert broker.state.store.min_offset(TOPIC, 0) > 0
    assert ask(broker, _query()).code == ResponseCode.QUERY_NOT_FOUND


def test_commits_are_taken_as_they_are_last_write_wins(broker: Broker) -> None:
    broker.state.groups.find_or_create(GROUP, may_create=True)
    for queue_offset in (5, 99_999, 3):
        assert ask(broker, _update(queue_offset)).code == ResponseCode.SUCCESS
        assert ask(broker, _query()).ext_fields == {"offset": str(queue_offset)}
    assert ask(broker, _update(7, queueId=77)).code == ResponseCode.SUCCESS


def test_a_committed_minus_one_counts_as_nothing(broker: Broker) -> None:
    """F3: -1 is what Java clients write for "unknown"."""
    broker.state.groups.find_or_create(GROUP, may_create=True)
    assert ask(broker, _update(-1)).code == ResponseCode.SUCCESS
    assert ask(broker, _query()).code == ResponseCode.QUERY_NOT_FOUND


def test_a_commit_needs_group_and_topic(broker: Broker) -> None:
    unknown_group = ask(broker, _update(5))
    assert unknown_group.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert broker.state.groups.find(GROUP) is None
    broker.state.groups.find_or_create(GROUP, may_create=True)
    assert ask(broker, _update(5, topic="NoSuch")).code == ResponseCode.TOPIC_NOT_EXIST


# --- membership ---


def test_a_heartbeat_makes_group_and_retry_topic_and_notifies_every_member(broker: Broker) -> None:
    first = broker.handle(PEER, heartbeat("c1"))
    assert first[0].command.ext_fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert _notified(first) == [1]
    retry = broker.state.topics.find(f"%RETRY%{GROUP}")
    assert retry is not None
    assert (retry.read_queue_nums, retry.perm) == (1, 6)
    assert _notified(broker.handle(OTHER_PEER, heartbeat("c2"))) == [1, 2]
    assert _notified(broker.handle(OTHER_PEER, heartbeat("c2"))) == []
    assert sorted(decode_consumer_list(ask(broker, _list()).body)) == ["c1", "c2"]


def test_a_heartbeat_replaces_the_groups_subscriptions(broker: Broker) -> None:
    """A3: a topic missing from the last heartbeat of any member is gone."""
    broker.handle(PEER, heartbeat("c1", TOPIC, "other"))
    outgoing = broker.handle(OTHER_PEER, heartbeat("c2", TOPIC))
    assert _notified(outgoing) == [1, 2]
    assert set(broker.state.membership.subscriptions(GROUP)) == {TOPIC}


def test_an_older_subscription_version_changes_nothing(broker: Broker) -> None:
    broker.handle(PEER, heartbeat("c1", expression="TagA", sub_version=2))
    broker.handle(PEER, heartbeat("c1", expression="TagB", sub_version=1))
    assert broker.state.membership.subscriptions(GROUP)[TOPIC].sub_string == "TagA"
    broker.handle(PEER, heartbeat("c1", expression="TagB", sub_version=3))
    assert broker.state.membership.subscriptions(GROUP)[TOPIC].sub_string == "TagB"


def test_a_heartbeat_is_answered_even_when_its_group_may_not_be_made(clock: FakeClock) -> None:
    broker = make_broker(clock, settings=BrokerSettings(auto_create_subscription_group=False))
    outgoing = broker.handle(PEER, heartbeat("c1"))
    assert [each.command.code for each in outgoing] == [ResponseCode.SUCCESS]
    assert ask(broker, _list()).code == ResponseCode.SYSTEM_ERROR


def test_who_unregisters_leaves_and_the_others_are_notified(broker: Broker) -> None:
    broker.handle(PEER, heartbeat("c1"))
    broker.handle(OTHER_PEER, heartbeat("c2"))
    leave = request(RequestCode.UNREGISTER_CLIENT, {"clientID": "c2", "consumerGroup": GROUP})
    assert _notified(broker.handle(OTHER_PEER, leave)) == [1]
    assert decode_consumer_list(ask(broker, _list()).body) == ("c1",)
    assert _notified(broker.handle(OTHER_PEER, leave)) == []


def test_a_closed_connection_leaves_its_groups_and_keeps_its_locks(broker: Broker) -> None:
    """C2: nothing but unlocking or 60 s releases a lock."""
    broker.handle(PEER, heartbeat("c1"))
    broker.handle(OTHER_PEER, heartbeat("c2"))
    broker.state.locks.lock_batch(GROUP, "c2", [_QUEUE])
    assert _notified(broker.connection_closed(OTHER_PEER)) == [1]
    assert broker.state.locks.holder(GROUP, _QUEUE) == "c2"


def test_a_silent_member_leaves_after_120_seconds(broker: Broker, clock: FakeClock) -> None:
    broker.handle(PEER, heartbeat("c1"))
    clock.advance(60)
    broker.handle(OTHER_PEER, heartbeat("c2"))
    clock.advance(CHANNEL_EXPIRED_TIMEOUT_S - 60)
    assert broker.look_at_clock() == []
    clock.advance(0.001)
    assert _notified(broker.look_at_clock()) == [2]
    assert decode_consumer_list(ask(broker, _list()).body) == ("c2",)


def test_a_group_without_members_has_no_consumer_list_and_no_connections(broker: Broker) -> None:
    empty = ask(broker, _list())
    assert (empty.code, empty.remark) == (ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {GROUP}")
    connections = request(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": GROUP})
    assert ask(broker, connections).code == ResponseCode.CONSUMER_NOT_ONLINE
    broker.handle(PEER, heartbeat("c1", expression="TagA"))
    body = json.loads(ask(broker, connections).body)
    assert body["connectionSet"] == [
        {"clientAddr": "127.0.0.1:50001", "clientId": "c1", "language": "PYTHON", "version": 409}
    ]
    assert body["subscriptionTable"][TOPIC]["tagsSet"] == ["TagA"]


def test_a_restarted_broker_has_lost_members_locks_and_held_pulls_but_no_offsets(broker: Broker) -> None:
    broker.handle(PEER, heartbeat("c1"))
    ask(broker, _update(5))
    broker.state.locks.lock_batch(GROUP, "c1", [_QUEUE])
    broker.restarted()
    assert ask(broker, _list()).code == ResponseCode.SYSTEM_ERROR
    assert broker.state.locks.holder(GROUP, _QUEUE) is None
    assert ask(broker, _query()).ext_fields == {"offset": "5"}


# --- locks ---


def _lock_request(code: int, client_id: str, *queues: MessageQueue) -> RemotingCommand:
    body = dumps_java(LockBatchRequest(consumer_group=GROUP, client_id=client_id, queues=frozenset(queues)))
    return request(code, body=body)


def test_locks_are_granted_by_request_and_freed_by_request(broker: Broker) -> None:
    """C1: also for queues that do not exist."""
    nowhere = MessageQueue("NoSuch", "broker-a", 500)
    first = ask(broker, _lock_request(RequestCode.LOCK_BATCH_MQ, "c1", _QUEUE, nowhere))
    assert decode_lock_response(first.body) == {_QUEUE, nowhere}
    second = ask(broker, _lock_request(RequestCode.LOCK_BATCH_MQ, "c2", _QUEUE))
    assert decode_lock_response(second.body) == frozenset()
    assert ask(broker, _lock_request(RequestCode.UNLOCK_BATCH_MQ, "c1", _QUEUE)).code == 0
    third = ask(broker, _lock_request(RequestCode.LOCK_BATCH_MQ, "c2", _QUEUE))
    assert decode_lock_response(third.body) == {_QUEUE}


@pytest.mark.parametrize("body", [b"", b"not json", b"[]"])
def test_a_lock_request_that_cannot_be_read_is_a_system_error(broker: Broker, body: bytes) -> None:
    assert ask(broker, request(RequestCode.LOCK_BATCH_MQ, body=body)).code == ResponseCode.SYSTEM_ERROR


def test_an_unknown_request_is_answered_with_3(broker: Broker) -> None:
    """A1: never with a dropped connection."""
    answer = ask(broker, request(9999))
    assert (answer.code, answer.remark) == (
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        " request type 9999 not supported",
    )


def test_a_clients_answer_to_a_push_is_taken_silently(broker: Broker) -> None:
    assert broker.handle(PEER, replace(request(3), flag=1)) == []
