"""Where options say that queues start and end, at brokers of this test."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.errors import (
    ConnectFailed,
    LogTailLost,
    OffsetsBeganAgain,
    OptionError,
    TransportError,
)
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueBounds, QueueState
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit
from pyspark_rocketmq.options.connection import PLAIN_SOURCE_GROUP
from pyspark_rocketmq.options.positions import EARLIEST, LATEST, QueuePositions
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source import start_positions
from pyspark_rocketmq.source.cluster_view import Snapshot
from pyspark_rocketmq.source.start_positions import OptionPositions
from pyspark_rocketmq.stored_values import LastMessage, RememberedMessages
from pyspark_rocketmq.wire.messages import StoredMessage, body_crc
from pyspark_rocketmq.wire.requests.pull import PullRequest, PullResult, PullStatus
from tests.helpers.fake_clock import FakeClock
from tests.helpers.stored_messages import encode_stored_message

Q0, Q1 = (MessageQueue("orders", "a", at) for at in (0, 1))
BOUNDS = {Q0: QueueBounds(2, 9), Q1: QueueBounds(0, 5)}
GROUP = {"consumerGroup": "g", "offsetStore": "/s"}
ADDRESSES = {"a": BrokerAddress("a:10911")}


class Brokers:
    """Brokers that answer searches by time, and pulls of messages whose store times are known."""

    def __init__(self) -> None:
        self.found: dict[MessageQueue, int] = {}
        self.stored_ms: dict[MessageQueue, Sequence[int]] = {}
        self.groups: set[str] = set()
        """The groups in whose names messages were pulled."""

    def search_offset(self, _: str, queue: MessageQueue, __: int) -> int:
        return self.found[queue]

    def pull(self, _: str, request: PullRequest) -> PullResult:
        queue, offset = request.queue, request.queue_offset
        self.groups.add(request.consumer_group)
        low, high = BOUNDS[queue].min_offset, BOUNDS[queue].max_offset
        if queue not in self.stored_ms:
            return PullResult(PullStatus.NO_MATCHED_MSG, offset + 1, low, high)
        stored_ms = self.stored_ms[queue][offset - low]
        if stored_ms < 0:
            # It is in the queue, but a filter or a damaged file hides it.
            return PullResult(PullStatus.NO_MATCHED_MSG, offset + 1, low, high)
        return PullResult(PullStatus.FOUND, offset + 1, low, high, body=_stored(queue, offset, stored_ms))


def _stored(queue: MessageQueue, offset: int, stored_ms: int) -> bytes:
    return encode_stored_message(
        StoredMessage(
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            commit_log_offset=offset * 100,
            body=b"",
            sys_flag=0,
            properties_data=b"",
            born_timestamp=0,
            born_host="127.0.0.1:1",
            store_timestamp=stored_ms,
            store_host="127.0.0.1:2",
            body_crc=body_crc(b""),
        )
    )


def positions(
    default: QueuePositions = LATEST, brokers: Brokers | None = None, **options: str
) -> OptionPositions:
    parsed = ReadOptions.parse({"nameServers": "n:1", "topic": "orders"} | options)
    return OptionPositions(parsed, cast("BrokerClient", brokers or Brokers()), default)


def seen(bounds: dict[MessageQueue, QueueBounds] = BOUNDS, **unreachable: ConnectFailed) -> Snapshot:
    return Snapshot(bounds=bounds, addresses=ADDRESSES, unreachable=unreachable)


def of_slave() -> Snapshot:
    down = {"a": ConnectFailed("a:1", "refused")}
    whole = Snapshot(bounds={}, addresses={}, unreachable=down, slaves=ADDRESSES, slave_bounds=BOUNDS)
    return whole.with_slaves()


def for_queues(**offsets: int) -> str:
    return json.dumps({"orders": {"a": {key[1:]: offset for key, offset in offsets.items()}}})


@pytest.mark.parametrize(("default", "found"), [(EARLIEST, {Q0: 2, Q1: 0}), (LATEST, {Q0: 9, Q1: 5})])
def test_queues_start_at_the_default_if_no_option_says_where(
    default: QueuePositions, found: dict[MessageQueue, int]
) -> None:
    assert positions(default).starts(seen(), BOUNDS) == found


def test_only_the_queues_asked_for_get_a_start() -> None:
    assert positions(startingOffsets="earliest").starts(seen(), [Q1]) == {Q1: 0}


def test_a_queue_that_does_not_exist_is_refused_unless_loss_is_allowed() -> None:
    wanted = for_queues(q0=4, q7=1)

    with pytest.raises(OptionError, match=r"startingOffsets names .*which does not exist"):
        positions(startingOffsets=wanted).starts(seen(), BOUNDS)
    assert positions(startingOffsets=wanted, failOnDataLoss="false").starts(seen(), [Q0]) == {Q0: 4}


def test_a_queue_of_a_broker_out_of_sight_is_not_taken_for_one_that_does_not_exist() -> None:
    snapshot = seen(b=ConnectFailed("b:1", "refused"))

    assert positions(startingOffsets=for_queues(q0=4, q7=1)).starts(snapshot, [Q0]) == {Q0: 4}


def test_times_are_searched_for_at_the_brokers_and_kept_within_their_bounds() -> None:
    brokers = Brokers()
    brokers.found = {Q0: 0, Q1: 3}

    found = positions(brokers=brokers, startingTimestamp="1700000000000").starts(seen(), BOUNDS)

    assert found == {Q0: 2, Q1: 3}


@pytest.mark.parametrize("answer", range(7))
@pytest.mark.parametrize("time_ms", [1, 10, 15, 20, 25, 30, 35])
def test_an_answer_that_is_only_near_a_time_moves_no_start_and_no_end(time_ms: int, answer: int) -> None:
    """F2: brokers before 5.1.1 answer with the nearest message, or any of those with the very time."""
    times = [10, 20, 20, 20, 30]
    brokers = Brokers()
    brokers.found, brokers.stored_ms = {Q1: answer}, {Q1: times}
    exact = {Q1: sum(at_ms < time_ms for at_ms in times)}
    snapshot = seen({Q1: BOUNDS[Q1]})

    assert positions(brokers=brokers, startingTimestamp=str(time_ms)).starts(snapshot, [Q1]) == exact
    assert brokers.groups <= {PLAIN_SOURCE_GROUP}
    of_group = positions(LATEST, brokers, startingTimestamp=str(time_ms), **GROUP)
    assert of_group.starts(snapshot, [Q1]) == exact
    assert brokers.groups <= {PLAIN_SOURCE_GROUP, "g"}
    assert positions(brokers=brokers, endingTimestamp=str(time_ms)).ends(snapshot) == exact


def test_a_batch_ends_at_the_last_message_or_where_the_option_says() -> None:
    assert positions().ends(seen()) == {Q0: 9, Q1: 5}
    assert positions(endingOffsets=for_queues(q0=4, q1=5)).ends(seen()) == {Q0: 4, Q1: 5}


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., MemoryOffsetStore]:
    """Makes the options' offset table: group ``g`` stands in Q1, and remembers the message before."""

    def make(next_offset: int, stored_ms: int) -> MemoryOffsetStore:
        store = MemoryOffsetStore("test", clock=FakeClock())
        monkeypatch.setattr(start_positions, "open_offset_store", lambda *_, **__: store)
        epoch = store.claim("g", "me", {Q1: 0})[Q1].epoch
        last = LastMessage(next_offset - 1, stored_ms, (next_offset - 1) * 100)
        state = QueueState(next_offset, epoch, last_message=RememberedMessages.of(last))
        assert store.commit("g", [QueueCommit(queue=Q1, state=state)], query_id="q", batch_id=1).accepted
        return store

    return make


def of_group(stored_ms: Sequence[int], **options: str) -> OptionPositions:
    brokers = Brokers()
    brokers.stored_ms = {Q1: stored_ms}
    starts = {"startingOffsets": "group", "startingGroup": "g"}
    ends = {"endingOffsets": "group", "endingGroup": "g"}
    return positions(LATEST, brokers, offsetStore="/s", **starts | ends | options)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_group_stands_where_its_offset_table_says_while_the_log_is_the_same(
    committed: Callable[..., MemoryOffsetStore], fails: str
) -> None:
    """F4: or while it cannot be seen whether it is."""
    committed(3, 30)
    for stored_ms in ([10, 20, 30, 40, 50], [10, 20, -1, 40, 50]):
        found = of_group(stored_ms, failOnDataLoss=fails)
        assert found.starts(seen(), [Q1]) == {Q1: 3}
        assert found.ends(seen()) == {Q0: 2, Q1: 3}


@pytest.mark.parametrize(
    ("next_offset", "stored_ms", "start"),
    [(3, [60, 70, 80, 90, 99], 0), (8, [60, 70, 80, 90, 99], 0), (4, [10, 20, 31, 32, 33], 2)],
    ids=["longer", "shorter", "promoted slave"],
)
def test_what_a_group_consumed_of_another_log_does_not_count(
    committed: Callable[..., MemoryOffsetStore], next_offset: int, stored_ms: list[int], start: int
) -> None:
    """F4: the topic was made again, or a slave without the log's end became master."""
    committed(next_offset, 30)

    found = of_group(stored_ms, failOnDataLoss="false")
    assert found.starts(seen(), [Q1]) == {Q1: start}
    assert found.ends(seen()) == {Q0: 2, Q1: start}
    found = of_group(stored_ms)
    error = LogTailLost if next_offset > 5 else OffsetsBeganAgain
    with pytest.raises(error, match="orders broker=a queue=1"):
        found.starts(seen(), [Q1])
    with pytest.raises(error, match="orders broker=a queue=1"):
        found.ends(seen())


def test_a_group_that_was_reset_in_a_topic_made_again_stands_there(
    committed: Callable[..., MemoryOffsetStore],
) -> None:
    """F4: an operator knows of the loss."""
    committed(5, 30).reset("g", {Q1: 2})

    assert of_group([60, 70, 80, 90, 99]).starts(seen(), [Q1]) == {Q1: 2}


def test_a_slave_that_lacks_what_a_group_consumed_proves_nothing(
    committed: Callable[..., MemoryOffsetStore],
) -> None:
    """F4, A8"""
    committed(8, 30)

    with pytest.raises(TransportError, match="the master is down"):
        of_group([10, 20, 30, 40, 50], failOnDataLoss="false").starts(of_slave(), [Q1])


def test_an_offset_that_the_slave_lacks_waits_for_its_master() -> None:
    with pytest.raises(TransportError, match="the master is down") as caught:
        positions(startingOffsets=for_queues(q0=50, q1=1)).starts(of_slave(), BOUNDS)

    assert caught.value.retryable
    assert positions(startingOffsets="earliest").starts(of_slave(), BOUNDS) == {Q0: 2, Q1: 0}
