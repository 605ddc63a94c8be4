"""Ranges without an end, over real sockets: held pulls, and what other threads say to the one that waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.client import pull_connection
from pyspark_rocketmq.client.pull_connection import (
    PullConnection,
    acquire_connection,
    close_idle_connections,
)
from pyspark_rocketmq.client.transport import Wake, await_readable
from pyspark_rocketmq.consume.fetch_window import FetchedChunks, QueueReset
from pyspark_rocketmq.errors import ConnectFailed, OptionError
from pyspark_rocketmq.model import OPEN_END, MessageQueue, QueueRange
from pyspark_rocketmq.source import fetcher as fetcher_module
from pyspark_rocketmq.source.fetcher import Fetcher
from pyspark_rocketmq.source.range_arrivals import RangeArrivals
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.source.schema import Arrival, EndReason
from pyspark_rocketmq.wire.codes import PullSysFlag, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.messages import decode_messages
from tests.helpers.partitions import changed, partition_of
from tests.helpers.scripted_server import Peer, ScriptedServer
from tests.helpers.wait import PATIENCE_S, wait_until
from tests.source.conftest import Topics


class Broker:
    """Queues whose messages are their queue offsets, in text; holds pulls as a broker does."""

    def __init__(self) -> None:
        self.server = ScriptedServer(self._answer)
        self.ends: dict[int, int] = {}
        self.asked: list[tuple[int, int, bool]] = []
        """Queue, offset and whether it may be held, of each pull."""
        self._held: dict[int, tuple[Peer, RemotingCommand]] = {}
        self._guard = threading.Lock()

    def partition(self, queue_id: int = 0, *, end: int = OPEN_END, **changes: object) -> QueuePartition:
        planned = QueueRange.between(MessageQueue("orders", "broker-a", queue_id), 0, end)
        return partition_of(planned, self.server.address, **{"is_group_read": True, **changes})

    def put(self, count: int = 1, queue_id: int = 0) -> None:
        with self._guard:
            self.ends[queue_id] = self.ends.get(queue_id, 0) + count
            held = self._held.pop(queue_id, None)
        if held is not None:
            self._give(*held)

    def held(self) -> set[int]:
        with self._guard:
            return set(self._held)

    def _answer(self, peer: Peer, request: RemotingCommand) -> None:
        fields = request.ext_fields
        queue_id, start = int(fields["queueId"]), int(fields["queueOffset"])
        may_hold = bool(int(fields["sysFlag"]) & PullSysFlag.SUSPEND)
        assert fields["suspendTimeoutMillis"] == ("15000" if may_hold else "0")
        with self._guard:
            self.asked.append((queue_id, start, may_hold))
            end = self.ends.get(queue_id, 0)
            if start == end and may_hold:
                self._held[queue_id] = peer, request
                return
        self._give(peer, request)

    def _give(self, peer: Peer, request: RemotingCommand) -> None:
        fields = request.ext_fields
        start, end = int(fields["queueOffset"]), self.ends.get(int(fields["queueId"]), 0)
        stop = min(end, start + int(fields["maxMsgNums"]))
        answer = {
            "nextBeginOffset": str(stop),
            "minOffset": "0",
            "maxOffset": str(end),
            "suggestWhichBrokerId": "0",
        }
        code = ResponseCode.SUCCESS if stop > start else ResponseCode.PULL_NOT_FOUND
        body = "".join(f"{offset} " for offset in range(start, stop)).encode()
        peer.answer(request, code, ext_fields=answer, body=body)


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    with made.server:
        yield made
        close_idle_connections()


def offsets_of(fetched: list[FetchedChunks]) -> list[tuple[int, int]]:
    """Range and offset of each message."""
    return [
        (each.range_index, int(text))
        for each in fetched
        for chunk in each.chunks
        for text in bytes(chunk.body).split()
    ]


def some_of(arrivals: Generator[list[FetchedChunks]], count: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while len(found) < count:
        found += offsets_of(next(arrivals))
    return found


class Reading:
    """A thread that reads; the test is another one."""

    def __init__(self, fetcher: Fetcher) -> None:
        self.fetcher = fetcher
        self.found: list[tuple[int, int]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for fetched in self.fetcher.arrivals():
            self.found += offsets_of(fetched)

    def join(self) -> bool:
        self._thread.join(PATIENCE_S)
        return not self._thread.is_alive()


def test_messages_come_when_they_are_stored_and_the_next_pull_is_sent_before(broker: Broker) -> None:
    broker.put(2)
    arrivals = Fetcher([broker.partition()]).arrivals()

    assert offsets_of(next(arrivals)) == [(0, 0), (0, 1)]
    for offset in range(2, 6):
        # The answer to the one before was handed out, and nothing else is asked of the generator.
        wait_until(lambda: broker.held() == {0})
        broker.put()
        assert offsets_of(next(arrivals)) == [(0, offset)]
    wait_until(lambda: broker.held() == {0})
    arrivals.close()

    assert broker.asked == [(0, 0, True), *[(0, offset, True) for offset in range(2, 7)]]
    assert broker.server.connection_count == 1


def test_a_backlog_is_read_by_many_pulls_and_the_rest_as_it_comes(broker: Broker) -> None:
    broker.put(2000)
    arrivals = Fetcher([broker.partition(pulls_in_flight=8)]).arrivals()

    assert some_of(arrivals, 2000) == [(0, offset) for offset in range(2000)]
    wait_until(lambda: broker.held() == {0})
    assert [may_hold for *_, may_hold in broker.asked].count(True) == 2
    arrivals.close()


def test_a_caller_gets_an_empty_list_when_nothing_comes(broker: Broker) -> None:
    arrivals = Fetcher([broker.partition()]).arrivals(within_s=0.01)

    assert [next(arrivals) for _ in range(3)] == [[], [], []]
    # The connection is reset at the end, with what the broker has not read.
    wait_until(lambda: broker.asked == [(0, 0, True)])
    arrivals.close()
    assert broker.asked == [(0, 0, True)]


def test_the_end_comes_from_another_thread_while_a_pull_is_held(broker: Broker) -> None:
    reading = Reading(Fetcher([broker.partition()]))
    wait_until(lambda: broker.held() == {0})
    peer = broker.server.next_peer()
    began_s = time.monotonic()
    reading.fetcher.end()

    assert reading.join()
    # A pull is held for 15 s, and a silent socket is looked at every second.
    assert time.monotonic() - began_s < 0.9
    # Its answer must not reach the next task.
    assert peer.has_ended.wait(PATIENCE_S)


def test_an_end_before_the_beginning_reads_nothing(broker: Broker) -> None:
    fetcher = Fetcher([broker.partition()])
    fetcher.end()

    assert list(fetcher.arrivals()) == []
    assert broker.asked == []


def test_a_queue_on_hold_is_not_pulled_from_until_it_goes_on(broker: Broker) -> None:
    reading = Reading(Fetcher([broker.partition(0), broker.partition(1)]))
    wait_until(lambda: broker.held() == {0, 1})
    reading.fetcher.hold(MessageQueue("orders", "broker-a", 0))
    for queue_id in (0, 1):
        broker.put(3, queue_id)
    wait_until(lambda: len(reading.found) == 6 and broker.held() == {1})
    broker.put(3, 1)
    wait_until(lambda: len(reading.found) == 9 and broker.held() == {1})
    assert [asked for asked in broker.asked if asked[0] == 0] == [(0, 0, True)]

    reading.fetcher.go_on(MessageQueue("orders", "broker-a", 0))
    wait_until(lambda: broker.held() == {0, 1})
    broker.put(1, 0)
    wait_until(lambda: (0, 3) in reading.found)
    reading.fetcher.end()
    assert reading.join()


def test_a_reader_whose_queues_are_all_on_hold_waits_and_can_be_woken(broker: Broker) -> None:
    queue = MessageQueue("orders", "broker-a", 0)
    fetcher = Fetcher([broker.partition()])
    fetcher.hold(queue)
    reading = Reading(fetcher)
    broker.put(2)
    time.sleep(0.05)
    assert broker.asked == []

    fetcher.go_on(queue)
    wait_until(lambda: reading.found == [(0, 0), (0, 1)])
    fetcher.hold(queue)
    broker.put()
    wait_until(lambda: reading.found[-1] == (0, 2))
    time.sleep(0.05)
    assert broker.held() == set()
    fetcher.end()
    assert reading.join()


def test_a_queue_on_hold_stays_so_when_it_is_pulled_again(broker: Broker) -> None:
    queue = MessageQueue("orders", "broker-a", 0)
    fetcher = Fetcher([broker.partition(0), broker.partition(1)])
    arrivals = fetcher.arrivals(within_s=0.01)
    next(arrivals)
    wait_until(lambda: next(arrivals) is not None and broker.held() == {0, 1})
    fetcher.hold(queue)
    next(arrivals)
    fetcher.ranges[0].stop()
    next(arrivals)
    fetcher.add(broker.partition(0))
    broker.asked.clear()
    for _ in range(3):
        next(arrivals)
    assert broker.asked == []

    fetcher.go_on(queue)
    broker.put(1, 0)
    assert (2, 0) in some_of(arrivals, 1)
    arrivals.close()


def test_a_connection_that_breaks_while_pulls_are_held_is_made_again(broker: Broker) -> None:
    """A2"""
    reading = Reading(Fetcher([broker.partition(0), broker.partition(1)]))
    for _ in range(3):
        wait_until(lambda: broker.held() == {0, 1})
        broker._held.clear()
        broker.server.next_peer().close()
    wait_until(lambda: broker.held() == {0, 1})
    broker.put(1, 0)
    broker.put(1, 1)
    wait_until(lambda: sorted(reading.found) == [(0, 0), (1, 0)])
    reading.fetcher.end()

    assert reading.join()
    assert broker.server.connection_count == 4


class Unreachable:
    """Connects nowhere while it is shut: as to an address that drops packets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
        self.opens = threading.Event()
        self.is_tried = threading.Event()
        self.error: Exception | None = None
        self._acquire = acquire_connection
        self._address = address
        monkeypatch.setattr(fetcher_module, "acquire_connection", self)

    def __call__(self, address: str, *args: Any, **named: Any) -> PullConnection[Any]:
        if address == self._address:
            self.is_tried.set()
            assert self.opens.wait(PATIENCE_S)
            if self.error is not None:
                raise self.error
        return self._acquire(address, *args, **named)


def test_no_queue_waits_for_a_connection_to_another_broker(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A7: a broker that cannot be reached costs 3 s for each attempt."""
    other = Broker()
    with other.server:
        shut = Unreachable(monkeypatch, other.server.address)
        reading = Reading(Fetcher([other.partition(0), broker.partition(1)]))
        assert shut.is_tried.wait(PATIENCE_S)
        for _ in range(3):
            wait_until(lambda: broker.held() == {1})
            broker.put(1, 1)
        wait_until(lambda: reading.found == [(1, 0), (1, 1), (1, 2)])
        shut.error = ConnectFailed(other.server.address, "no answer")
        shut.is_tried.clear()
        shut.opens.set()
        # It is tried again after a pause.
        assert shut.is_tried.wait(PATIENCE_S)
        shut.error = None
        other.put(2, 0)
        wait_until(lambda: reading.found[3:] == [(0, 0), (0, 1)])
        reading.fetcher.end()
        assert reading.join()


def test_a_connection_that_is_made_too_late_is_kept_for_the_next_task(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    shut = Unreachable(monkeypatch, broker.server.address)
    reading = Reading(Fetcher([broker.partition()]))
    assert shut.is_tried.wait(PATIENCE_S)
    reading.fetcher.end()
    assert reading.join()
    shut.opens.set()
    wait_until(lambda: any(pull_connection._idle.values()))

    broker.put()
    arrivals = Fetcher([broker.partition()]).arrivals()
    assert offsets_of(next(arrivals)) == [(0, 0)]
    arrivals.close()
    assert broker.server.connection_count == 1


@pytest.mark.parametrize("error", [OptionError(("no such certificate",)), ZeroDivisionError("a bug")])
def test_a_connection_that_cannot_be_made_at_all_ends_the_range_or_the_reading(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    shut = Unreachable(monkeypatch, broker.server.address)
    shut.error = error
    shut.opens.set()
    arrivals = Fetcher([broker.partition()]).arrivals()

    if isinstance(error, OptionError):
        ((ended,),) = arrivals
        assert ended.failure is error
    else:
        with pytest.raises(ZeroDivisionError):
            next(arrivals)


def test_a_closed_range_beside_an_open_one_ends(broker: Broker) -> None:
    broker.put(100, 0)
    arrivals = Fetcher([broker.partition(0, end=100), broker.partition(1)]).arrivals()

    fetched: list[FetchedChunks] = []
    while not any(each.is_last for each in fetched):
        fetched += next(arrivals)
    assert offsets_of(fetched) == [(0, offset) for offset in range(100)]
    broker.put(1, 1)
    assert some_of(arrivals, 1) == [(1, 0)]
    arrivals.close()


def test_a_wake_ends_one_wait_however_often_it_is_set() -> None:
    with Wake() as wake:
        assert await_readable([wake], 0.0) == []
        for _ in range(100_000):
            wake.set()
        assert await_readable([wake], PATIENCE_S) == [wake]
        wake.clear()
        assert await_readable([wake], 0.0) == []
        wake.set()
        assert await_readable([wake], PATIENCE_S) == [wake]
    # Others may be late.
    wake.set()


def open_partitions(topics: Topics, topic: str, **options: str) -> list[QueuePartition]:
    return [
        replace(each, planned=replace(each.planned, end=OPEN_END))
        for each in topics.planned(topic, **options)
    ]


def numbers_of(fetched: list[FetchedChunks]) -> list[tuple[int, int]]:
    return [
        (each.range_index, message.queue_offset)
        for each in fetched
        for chunk in each.chunks
        for message in decode_messages(bytes(chunk.body), "broker-a")
    ]


def test_a_simulated_broker_holds_one_pull_of_each_queue_and_wakes_it(sim: SimCluster) -> None:
    """A4"""
    topics = Topics(sim)
    topic = topics.make(5, 700)
    arrivals = Fetcher(open_partitions(topics, topic)).arrivals()
    found: list[tuple[int, int]] = []
    while len(found) < 705:
        found += numbers_of(next(arrivals))

    for offset in range(5, 25):
        wait_until(lambda: sim.held_pulls() == 2)
        topics.put(topic, 0, 1)
        found += numbers_of(next(arrivals))
        assert found[-1] == (0, offset)
    arrivals.close()

    assert sorted(found) == [*((0, at) for at in range(25)), *((1, at) for at in range(700))]


def test_a_filter_wakes_a_held_pull_only_for_its_tags(sim: SimCluster) -> None:
    """A4: as at a broker, by the tags' hashes."""
    topics = Topics(sim)
    topic = topics.make(2)
    arrivals = Fetcher(open_partitions(topics, topic, subscription="odd")).arrivals()
    assert numbers_of(next(arrivals)) == [(0, 1)]
    wait_until(lambda: sim.held_pulls() == 1)
    topics.put(topic, 0, 1)
    assert sim.held_pulls() == 1
    topics.put(topic, 0, 1)

    assert numbers_of(next(arrivals)) == [(0, 3)]
    arrivals.close()


def test_a_restarted_broker_has_lost_the_held_pulls_and_gets_them_again(sim: SimCluster) -> None:
    """A2, A7"""
    topics = Topics(sim)
    topic = topics.make(1)
    partitions = open_partitions(topics, topic)
    arrivals = Fetcher(partitions).arrivals(within_s=0.02)
    found: list[tuple[int, int]] = []
    while not found:
        found += numbers_of(next(arrivals))
    sim.stop_broker("broker-a")
    for _ in range(3):
        assert next(arrivals) == []
    sim.start_broker("broker-a")
    topics.put(topic, 0, 1)
    while len(found) < 2:
        found += numbers_of(next(arrivals))
    arrivals.close()

    assert found == [(0, 0), (0, 1)]


def test_an_open_range_of_a_group_is_planned_again_where_its_broker_is_restarted(sim: SimCluster) -> None:
    """F4: a broker that lost the end of its log stores other messages at offsets that were read."""
    topics = Topics(sim)
    topic = topics.make(1)
    partitions = [changed(each, is_group_read=True) for each in open_partitions(topics, topic)]
    arrivals = RangeArrivals(partitions).arrivals(within_s=0.02)
    found: list[Arrival] = []
    while not any(each.messages for each in found):
        found += next(arrivals)
    sim.stop_broker("broker-a")
    for _ in range(3):
        assert next(arrivals) == []
    sim.start_broker("broker-a")
    topics.put(topic, 0, 1)
    found += [each for some in arrivals for each in some]

    assert sum(len(messages) for each in found for messages in each.messages) == 1
    end = found[-1].end
    assert end is not None
    assert (end.reason, end.planned.end) == (EndReason.EARLY, 1)


class Operator:
    """Resets queue 0 of a topic to offset 3; the open ranges of a group that read the topic."""

    def __init__(self, sim: SimCluster, *counts: int) -> None:
        self._sim, self._topics = sim, Topics(sim)
        self._topic = self._topics.make(*counts)
        self.queue = MessageQueue(self._topic, "broker-a", 0)
        self.partitions = [
            changed(each, is_group_read=True, consumer_group="g")
            for each in open_partitions(self._topics, self._topic)
        ]
        self.found: list[tuple[MessageQueue, int]] = []
        """Resets that were reported."""

    def begun(self) -> tuple[RangeArrivals, Generator[list[Arrival]]]:
        """Ranges that are read until the broker holds a pull of each."""
        ranges = RangeArrivals(self.partitions, reset_found=self._reset_found)
        arrivals = ranges.arrivals(within_s=0.01)
        held = self._sim.held_pulls() + len(self.partitions)
        wait_until(lambda: next(arrivals) is not None and self._sim.held_pulls() == held)
        return ranges, arrivals

    def _reset_found(self, queue: MessageQueue, target: int) -> None:
        self.found.append((queue, target))

    def reset(self) -> None:
        offsets = self._sim.broker("broker-a").state.offsets
        self._sim.call(lambda: offsets.reset("g", self._topic, 0, 3))

    def put(self) -> None:
        """Store a message in queue 0, which wakes its pulls."""
        self._topics.put(self._topic, 0, 1)


def ends_of(arrivals: Iterable[list[Arrival]]) -> list[tuple[EndReason, int | None]]:
    return [
        (each.end.reason, each.end.reset_to) for some in arrivals for each in some if each.end is not None
    ]


def test_a_reset_that_the_last_pull_of_a_batch_takes_is_reported_after_the_batch(sim: SimCluster) -> None:
    """F5: its pull is older than those of the next batch, and the broker answers it first."""
    operator = Operator(sim, 10)
    first, arrivals = operator.begun()
    first.end()
    assert ends_of(arrivals) == [(EndReason.STOPPED, None)]
    second, later = operator.begun()
    assert sim.held_pulls() == 2

    operator.reset()
    operator.put()

    wait_until(lambda: operator.found == [(operator.queue, 3)])
    assert sum(len(messages) for each in next(later) for messages in each.messages) == 1
    # The connection is used again: nothing is in flight on it any more.
    wait_until(lambda: any(pull_connection._idle.values()))
    second.end()
    assert ends_of(later) == [(EndReason.STOPPED, None)]


def test_a_message_that_comes_after_the_batch_is_left_to_the_next_one(sim: SimCluster) -> None:
    operator = Operator(sim, 10)
    ranges, arrivals = operator.begun()
    ranges.end()
    list(arrivals)
    operator.put()

    wait_until(lambda: any(pull_connection._idle.values()))
    assert operator.found == []


def test_a_reset_of_a_queue_that_was_left_is_reported(sim: SimCluster) -> None:
    """F5, B5: the pull of a queue that went to another member is still held."""
    operator = Operator(sim, 10, 10)
    ranges, arrivals = operator.begun()
    ranges.leave(operator.queue)
    next(arrivals)
    operator.reset()
    operator.put()

    wait_until(lambda: next(arrivals) is not None and operator.found == [(operator.queue, 3)])
    ranges.end()
    assert ends_of(arrivals) == [(EndReason.STOPPED, None)]


def test_a_reset_that_ends_its_range_is_in_the_ranges_end_only(sim: SimCluster) -> None:
    """F5"""
    operator = Operator(sim, 10)
    _, arrivals = operator.begun()
    operator.reset()
    operator.put()

    assert ends_of(arrivals) == [(EndReason.EARLY, 3)]
    assert operator.found == []


def test_a_reset_that_was_read_and_not_yielded_is_reported(sim: SimCluster) -> None:
    """F5: the batch has ended meanwhile."""
    operator = Operator(sim, 10)
    ranges, arrivals = operator.begun()
    ranges._fetcher.ranges[0].failure = QueueReset("reset", 3)
    ranges.end()

    assert ends_of(arrivals) == [(EndReason.STOPPED, None)]
    assert operator.found == [(operator.queue, 3)]


def test_a_connection_that_breaks_after_the_batch_is_not_used_again(sim: SimCluster) -> None:
    operator = Operator(sim, 10)
    ranges, arrivals = operator.begun()
    ranges.end()
    list(arrivals)
    name = f"rocketmq-late-{sim.broker_addresses['broker-a']}"
    [late] = [thread for thread in threading.enumerate() if thread.name == name]
    sim.stop_broker("broker-a")

    late.join(PATIENCE_S)
    assert not any(pull_connection._idle.values())


@pytest.fixture
def sim() -> Iterator[SimCluster]:
    with SimCluster() as cluster:
        yield cluster
        close_idle_connections()
