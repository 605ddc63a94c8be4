from __future__ import annotations

import pytest

from broker_sim.layout import Host, Member, MessageRun
from broker_sim.message_store import GetMessageResult, GetMessageStatus, MessageStore, PullLimits
from pyspark_rocketmq.wire.messages import decode_stored_messages
from tests.helpers.fake_clock import FakeClock

_HOST = Host("127.0.0.1", 10911)
_START_MS = 1_700_000_000_000


def _put(store: MessageStore, *bodies: bytes, queue_id: int = 0) -> None:
    members = tuple(Member(0, body, b"") for body in bodies)
    store.append(MessageRun(topic="T", queue_id=queue_id, members=members), _HOST)


def _get(store: MessageStore, queue_offset: int, queue_id: int = 0) -> GetMessageResult:
    return store.get("T", queue_id, queue_offset, 32, limits=PullLimits(), wanted=None)


@pytest.mark.parametrize(
    ("queue_offset", "status", "following"),
    [
        (-5, GetMessageStatus.OFFSET_TOO_SMALL, 0),
        (0, GetMessageStatus.FOUND, 3),
        (2, GetMessageStatus.FOUND, 3),
        (3, GetMessageStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 3),
    ],
)
def test_an_offset_outside_the_queue_is_corrected(
    clock: FakeClock, queue_offset: int, status: GetMessageStatus, following: int
) -> None:
    store = MessageStore(clock)
    _put(store, b"a", b"b", b"c")
    result = _get(store, queue_offset)
    assert (result.status, result.next_begin_offset) == (status, following)
    assert (result.min_offset, result.max_offset) == (0, 3)


@pytest.mark.parametrize("queue_offset", [0, 5])
def test_a_queue_never_written_has_no_message(clock: FakeClock, queue_offset: int) -> None:
    result = _get(MessageStore(clock), queue_offset)
    assert result.status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
    assert (result.next_begin_offset, result.min_offset, result.max_offset) == (0, 0, 0)


def test_messages_of_queues_that_share_the_log_come_back_in_queue_order(clock: FakeClock) -> None:
    store = MessageStore(clock)
    for number in range(10):
        _put(store, b"even %d" % number, queue_id=0)
        _put(store, b"odd %d" % number, queue_id=1)
    stored = decode_stored_messages(_get(store, 3).body)
    assert [each.body for each in stored] == [b"even %d" % number for number in range(3, 10)]
    assert [each.queue_offset for each in stored] == list(range(3, 10))


def test_retention_drops_the_oldest_and_a_pull_below_is_sent_to_the_new_minimum(clock: FakeClock) -> None:
    store = MessageStore(clock, retention_bytes=20_000)
    for number in range(1000):
        _put(store, b"%04d" % number, queue_id=number % 2)
    lowest = store.min_offset("T", 0)
    assert 0 < lowest < store.max_offset("T", 0) == 500
    assert _get(store, 0).status is GetMessageStatus.OFFSET_TOO_SMALL
    assert _get(store, 0).next_begin_offset == lowest
    first = decode_stored_messages(_get(store, lowest).body)[0]
    assert (first.queue_offset, first.body) == (lowest, b"%04d" % (lowest * 2))


def test_a_queue_whose_messages_are_all_gone_keeps_its_position(clock: FakeClock) -> None:
    store = MessageStore(clock, retention_bytes=5_000)
    _put(store, b"old")
    for _ in range(200):
        _put(store, b"new", queue_id=1)
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (1, 1)
    assert _get(store, 1).status is GetMessageStatus.OFFSET_OVERFLOW_ONE


def test_offsets_are_found_by_store_time(clock: FakeClock) -> None:
    store = MessageStore(clock)
    for _ in range(5):  # stored at 0, 10, 20, 30 and 40 s
        _put(store, b"x")
        clock.advance(10)
    lower = [store.first_at_or_after("T", 0, _START_MS + ms) for ms in (-1, 0, 1, 10_000, 39_999, 40_001)]
    upper = [store.last_at_or_before("T", 0, _START_MS + ms) for ms in (-1, 0, 1, 10_000, 39_999, 40_001)]
    assert lower == [0, 0, 1, 1, 4, 5]
    assert upper == [0, 0, 0, 1, 3, 4]


def test_equal_store_times_give_the_first_and_the_last_of_them(clock: FakeClock) -> None:
    store = MessageStore(clock)
    _put(store, b"a", b"b", b"c")
    assert store.first_at_or_after("T", 0, _START_MS) == 0
    assert store.last_at_or_before("T", 0, _START_MS) == 2


def test_a_message_is_found_by_its_commit_log_offset(clock: FakeClock) -> None:
    store = MessageStore(clock)
    _put(store, b"a", b"b")
    second = decode_stored_messages(_get(store, 1).body)[0]
    found = store.message_at(second.commit_log_offset)
    assert found is not None
    assert decode_stored_messages(found) == [second]
    assert store.message_at(10_000_000) is None
    assert store.message_at(-1) is None


def test_no_message_begins_in_the_middle_of_one(clock: FakeClock) -> None:
    store = MessageStore(clock)
    _put(store, bytes(200), b"b")
    first, second = decode_stored_messages(_get(store, 0).body)
    between = range(first.commit_log_offset + 1, second.commit_log_offset)
    assert [place for place in between if store.message_at(place) is not None] == []
