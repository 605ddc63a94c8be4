"""Ranges as they arrive: the same as when they are read whole, and those without an end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.consume.generations import Witnesses
from pyspark_rocketmq.errors import DataLoss, NoPermission, RequestTimeout, RocketMQError, UndecodableMessage
from pyspark_rocketmq.model import OPEN_END, MessageQueue, QueueBounds, QueueRange, QueueState
from pyspark_rocketmq.source import range_arrivals
from pyspark_rocketmq.source.message_lookup import Found
from pyspark_rocketmq.source.range_arrivals import RangeArrivals, closed_arrivals
from pyspark_rocketmq.source.range_reader import FEW, RangeReader
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.source.reader import read_ranges
from pyspark_rocketmq.source.schema import Arrival, EndReason, RangeEnd
from pyspark_rocketmq.stored_values import LastMessage
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from tests.helpers.partitions import changed, partition_of
from tests.helpers.scripted_server import Peer, ScriptedServer
from tests.helpers.wait import PATIENCE_S, wait_until
from tests.source.conftest import Topics
from tests.source.test_queue_reader import QUEUE, Log

OTHER_QUEUE = QUEUE._replace(queue_id=4)


class GrowingLog(Log):
    """A queue whose end is answered as such; it holds no pull."""

    def _answer(
        self,
        peer: Peer,
        request: RemotingCommand,
        code: int,
        next_begin_offset: int,
        body: bytes = b"",
        **facts: Any,
    ) -> None:
        if code == ResponseCode.PULL_RETRY_IMMEDIATELY and next_begin_offset == self.max_offset:
            code = ResponseCode.PULL_NOT_FOUND
        super()._answer(peer, request, code, next_begin_offset, body, **facts)


@pytest.fixture
def log() -> Log:
    made = GrowingLog()
    made.max_offset = 60
    return made


@pytest.fixture
def server(log: Log) -> Iterator[ScriptedServer]:
    with ScriptedServer(log) as server:
        yield server
        close_idle_connections()


def partition(
    server: ScriptedServer, queue: MessageQueue = QUEUE, *, end: int = OPEN_END, **changes: Any
) -> QueuePartition:
    planned = QueueRange(queue, QueueState(10, epoch=7, reconsume_times=2), end)
    made = partition_of(planned, server.address, is_group_read=True, retry_timeout_s=0.0)
    return changed(made, **changes)


def offsets_of(arrival: Arrival) -> list[int]:
    offsets: list[int] = []
    for messages in arrival.messages:
        if isinstance(messages, pa.RecordBatch):
            offsets += messages.column("queueOffset").to_pylist()
        else:
            offsets += [message.queue_offset for message in messages]
    return offsets


def until(ranges: RangeArrivals, is_enough: Callable[[list[Arrival]], bool]) -> list[Arrival]:
    """All arrivals until they are enough, and then the ends of ranges that are open."""
    found: list[Arrival] = []
    for arrivals in ranges.arrivals(within_s=0.01):
        found += arrivals
        if is_enough(found):
            ranges.end()
    return found


def by_queue(found: list[Arrival]) -> dict[MessageQueue, list[int]]:
    offsets: dict[MessageQueue, list[int]] = {}
    for each in found:
        offsets.setdefault(each.queue, []).extend(offsets_of(each))
    return offsets


def ends_of(found: list[Arrival]) -> dict[MessageQueue, RangeEnd]:
    ends = [each.end for each in found if each.end is not None]
    assert len({end.planned.queue for end in ends}) == len(ends)
    return {end.planned.queue: end for end in ends}


def test_an_open_range_arrives_in_order_and_shows_how_far_it_is(server: ScriptedServer, log: Log) -> None:
    """D1, A4"""
    ranges = RangeArrivals([partition(server)])
    found: list[Arrival] = []
    for arrivals in ranges.arrivals(within_s=0.01):
        found += arrivals
        reached = found[-1].reached
        if reached == log.max_offset and log.max_offset < 63:
            log.max_offset += 1
        elif reached == 63:
            ranges.end()

    assert by_queue(found) == {QUEUE: list(range(10, 63))}
    begun, *arrived, last = found
    assert (begun.messages, begun.reached) == ([], 10)
    assert last.end is not None
    assert (last.end.planned.end, last.end.reason, last.end.rows) == (63, EndReason.STOPPED, 53)
    assert last.end.pulls > 0
    for each in arrived:
        assert each.reached == offsets_of(each)[-1] + 1
    assert last.bounds == (0, 63)


def test_few_messages_are_objects_and_many_are_rows(server: ScriptedServer, log: Log) -> None:
    log.scan, log.max_offset = 1000, 10 + FEW
    ranges = RangeArrivals([partition(server, pull_batch_size=1000)])
    kinds = []
    for arrivals in ranges.arrivals(within_s=0.01):
        kinds += [type(messages) for each in arrivals for messages in each.messages]
        if not kinds:
            continue
        if len(kinds) == 2:
            ranges.end()
        log.max_offset = 9 + 2 * FEW

    assert kinds == [pa.RecordBatch, list]


def test_no_ranges_bring_nothing() -> None:
    """C5: a task whose queues are all given up before it begins."""
    assert list(closed_arrivals([])) == []


@pytest.mark.parametrize("few_as_objects", [True, False])
def test_few_messages_come_as_objects_only_on_demand(
    server: ScriptedServer, log: Log, few_as_objects: bool
) -> None:
    log.scan, log.max_offset = 1000, 12
    ranges = RangeArrivals([partition(server)], few_as_objects=few_as_objects)
    _, first, *_ = until(ranges, lambda found: len(found) > 1)

    assert [isinstance(each, list) for each in first.messages] == [few_as_objects]
    assert offsets_of(first) == [10, 11]


def test_a_tag_filter_brings_an_open_range_to_the_queue_s_end(server: ScriptedServer, log: Log) -> None:
    """A4: with offset 59 the last one, which is odd; what is behind it is even."""
    log.max_offset = 61
    ranges = RangeArrivals([partition(server, subscription="odd")])
    found = until(ranges, lambda found: bool(found) and found[-1].reached == 61)

    assert by_queue(found) == {QUEUE: list(range(11, 60, 2))}
    assert ends_of(found)[QUEUE].planned.end == 61


def test_an_engine_gets_how_far_a_filter_has_brought_an_open_range(
    server: ScriptedServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A4: its offsets are committed although no message comes for hours."""
    monkeypatch.setattr(range_arrivals, "_SHOWN_EVERY_S", 0.01)
    log.max_offset = 61
    ranges = RangeArrivals([partition(server, subscription="odd")])
    in_vain = threading.Timer(PATIENCE_S, ranges.end)
    in_vain.start()
    found: list[Arrival] = []
    for arrivals in ranges.arrivals():
        found += arrivals
        if found[-1].reached == 61:
            ranges.end()
    in_vain.cancel()

    assert any(each.reached == 61 and not each.is_end for each in found)


@pytest.mark.parametrize("missing", [set[int](), {30}], ids=["whole", "hole"])
def test_a_message_that_hides_the_next_one_stops_no_other_open_range(
    server: ScriptedServer, log: Log, missing: set[int]
) -> None:
    """L7: its range is pulled again from behind it, while the other one goes on."""
    log.missing = missing
    log.damage = lambda offset, data: b"\0\0\0\7" + data[4:] if offset == 20 else data
    wanted = [
        partition(server, queue, keeps_undecodable=True, fail_on_data_loss=False)
        for queue in (QUEUE, OTHER_QUEUE)
    ]
    ranges = RangeArrivals(wanted)
    found = until(
        ranges, lambda found: {each.queue for each in found if each.reached == 60} == {QUEUE, OTHER_QUEUE}
    )

    whole = [offset for offset in range(10, 60) if offset not in missing]
    assert by_queue(found) == {QUEUE: whole, OTHER_QUEUE: whole}
    assert {end.reason for end in ends_of(found).values()} == {EndReason.STOPPED}


def test_a_message_that_cannot_be_decoded_ends_an_open_range_before_it(
    server: ScriptedServer, log: Log
) -> None:
    """L7: planned again from there, it is an error."""
    log.damage = lambda offset, data: b"\0\0\0\7" + data[4:] if offset == 20 else data

    found = [each for arrivals in RangeArrivals([partition(server)]).arrivals() for each in arrivals]
    assert by_queue(found) == {QUEUE: list(range(10, 20))}
    assert ends_of(found)[QUEUE].reason is EndReason.UNDECODABLE
    at_once = partition(server)
    at_once = replace(at_once, planned=at_once.planned.starting_at(20))
    with pytest.raises(UndecodableMessage, match="offset 20"):
        list(RangeArrivals([at_once]).arrivals())


def test_a_hole_in_an_open_range_is_data_loss(server: ScriptedServer, log: Log) -> None:
    """F4"""
    log.missing = {58}

    with pytest.raises(DataLoss):
        list(RangeArrivals([partition(server, fail_on_data_loss=True)]).arrivals())


def test_a_range_of_another_log_is_not_read_and_the_others_are(server: ScriptedServer, log: Log) -> None:
    """F5: the witness ahead of the range is another message."""
    other_log = Witnesses(None, LastMessage(50, 1, 1))
    ranges = RangeArrivals([partition(server, witnesses=other_log), partition(server, OTHER_QUEUE)])
    found = until(ranges, lambda found: found[-1].reached == 60)

    assert by_queue(found) == {QUEUE: [], OTHER_QUEUE: list(range(10, 60))}
    assert ends_of(found)[QUEUE].reason is EndReason.ANOTHER_LOG
    assert ends_of(found)[OTHER_QUEUE].reason is EndReason.STOPPED


def test_a_reset_met_by_a_look_up_is_reported_though_another_look_up_fails(
    server: ScriptedServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F5: a broker reports it only once."""
    consumed = Witnesses(None, LastMessage(50, 1, 1))
    resets: dict[MessageQueue, int] = {}
    found: dict[MessageQueue, Found | RocketMQError] = {
        QUEUE: NoPermission(16, "no acl permission"),
        OTHER_QUEUE: Found(QueueBounds(0, 100), None, reset_to=33),
    }

    def look_up(reader: RangeReader, *unused: object) -> Found:
        outcome = found[reader.partition.planned.queue]
        if isinstance(outcome, RocketMQError):
            raise outcome
        return outcome

    monkeypatch.setattr(RangeReader, "look_up", look_up)
    partitions = [partition(server, queue, witnesses=consumed) for queue in (QUEUE, OTHER_QUEUE)]
    ranges = RangeArrivals(partitions, reset_found=resets.__setitem__)

    with pytest.raises(NoPermission):
        list(ranges.arrivals())

    assert resets == {OTHER_QUEUE: 33}


def test_a_broker_that_does_not_answer_a_look_up_is_asked_no_more(
    server: ScriptedServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4: its other ranges wait for a later plan, too, without a time-out each."""
    asked: list[MessageQueue] = []

    def look_up(reader: RangeReader, *unused: object) -> Found:
        asked.append(reader.partition.planned.queue)
        raise RequestTimeout(server.address, "PULL_MESSAGE", 5.0)

    monkeypatch.setattr(RangeReader, "look_up", look_up)
    consumed = Witnesses(None, LastMessage(50, 1, 1))
    ranges = RangeArrivals([partition(server, queue, witnesses=consumed) for queue in (QUEUE, OTHER_QUEUE)])

    found = [arrival for arrivals in ranges.arrivals() for arrival in arrivals]

    assert asked == [QUEUE]
    assert {end.reason for end in ends_of(found).values()} == {EndReason.EARLY}
    assert by_queue(found) == {QUEUE: [], OTHER_QUEUE: []}


def test_a_queue_that_is_left_brings_nothing_more_and_no_end(server: ScriptedServer, log: Log) -> None:
    """B5: another member may read it by then."""
    ranges = RangeArrivals([partition(server), partition(server, OTHER_QUEUE)])
    found: list[Arrival] = []
    for arrivals in ranges.arrivals(within_s=0.01):
        found += arrivals
        if by_queue(found) == {QUEUE: list(range(10, 60)), OTHER_QUEUE: list(range(10, 60))}:
            ranges.leave(QUEUE)
            log.max_offset = 70
        elif by_queue(found)[OTHER_QUEUE] == list(range(10, 70)):
            ranges.end()

    assert by_queue(found)[QUEUE] == list(range(10, 60))
    assert set(ends_of(found)) == {OTHER_QUEUE}


def test_an_open_range_is_put_on_hold_and_never_full(server: ScriptedServer, log: Log) -> None:
    """D13"""
    ranges = RangeArrivals([partition(server, max_bytes=1)])
    found = until(ranges, lambda found: bool(found) and found[-1].reached == 60)

    assert by_queue(found) == {QUEUE: list(range(10, 60))}


def none_missing(log: Log) -> None:
    pass


def holes(log: Log) -> None:
    log.missing = {10, 31, 32, 59}


def few(log: Log) -> None:
    log.missing = set(range(14, 55))


def large_answers(log: Log) -> None:
    log.scan = 1000


def overlapping(log: Log) -> None:
    log.scan = 13


def undecodable(log: Log) -> None:
    log.damage = lambda offset, data: data[:40] + b"\0\0\0\1" + data[44:] if offset == 33 else data


def broken(log: Log) -> None:
    log.damage = lambda offset, data: b"\0\0\0\7" + data[4:] if offset == 33 else data


def short(log: Log) -> None:
    log.max_offset = 41


def refused(log: Log) -> None:
    log.is_busy = lambda start: start >= 40
    log.refusal = ResponseCode.NO_PERMISSION
    log.remark = "the topic[orders] pulling message is forbidden"


@pytest.mark.parametrize(
    "make", [none_missing, holes, few, large_answers, overlapping, undecodable, broken, short, refused]
)
@pytest.mark.parametrize("subscription", ["*", "odd"])
@pytest.mark.parametrize("max_bytes", [None, 40])
def test_closed_ranges_are_those_that_are_read_whole(
    server: ScriptedServer,
    log: Log,
    make: Callable[[Log], None],
    subscription: str,
    max_bytes: int | None,
) -> None:
    """D1, D11, D13, F4, L7: the same messages and the same ends; statistics grow up to those of the end."""
    make(log)
    changes = {"keeps_undecodable": True, "fail_on_data_loss": False, "has_worked": True}
    wanted = [
        partition(server, queue, end=60, subscription=subscription, max_bytes=max_bytes, **changes)
        for queue in (QUEUE, OTHER_QUEUE)
    ]
    whole: dict[MessageQueue, list[int]] = {}
    ends: dict[MessageQueue, RangeEnd] = {}
    read: list[int] = []
    for piece in read_ranges(wanted):
        if isinstance(piece, RangeEnd):
            ends[piece.planned.queue], whole[piece.planned.queue], read = piece, read, []
        else:
            read += piece.column("queueOffset").to_pylist()

    for few_as_objects in (True, False):
        ranges = RangeArrivals(wanted, few_as_objects=few_as_objects)
        found = [each for arrivals in ranges.arrivals() for each in arrivals]

        assert by_queue(found) == whole
        ended = {queue: replace(end, pulls=0, pull_ms=0.0) for queue, end in ends_of(found).items()}
        assert ended == {queue: replace(end, pulls=0, pull_ms=0.0) for queue, end in ends.items()}
        for queue, end in ends_of(found).items():
            counts = [each.reading for each in found if each.queue == queue and each.end is None]
            for before, after in pairwise([*counts, end.metrics]):
                assert min(after.minus(before)) >= 0, "pulls counted twice"


def test_a_queue_is_held_and_goes_on_from_another_thread(topics: Topics) -> None:
    topic = topics.make(3, 3)
    ranges = RangeArrivals(
        [
            changed(replace(each, planned=replace(each.planned, end=OPEN_END)), is_group_read=True)
            for each in topics.planned(topic)
        ]
    )
    first, second = (MessageQueue(topic, "broker-a", queue_id) for queue_id in (0, 1))
    found: list[Arrival] = []

    def read() -> None:
        for arrivals in ranges.arrivals():
            found.extend(arrivals)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    wait_until(lambda: by_queue(found) == {first: [0, 1, 2], second: [0, 1, 2]})
    ranges.hold(first)
    for queue_id in (0, 1):
        topics.put(topic, queue_id, 2)
    # The pull that was held when its queue was put on hold still brings something.
    wait_until(lambda: by_queue(found)[second] == [0, 1, 2, 3, 4])
    topics.put(topic, 0, 40)
    ranges.go_on(first)
    wait_until(lambda: by_queue(found)[first] == list(range(45)))
    ranges.end()
    thread.join(PATIENCE_S)

    assert not thread.is_alive()
    assert {queue: end.planned.end for queue, end in ends_of(found).items()} == {first: 45, second: 5}
