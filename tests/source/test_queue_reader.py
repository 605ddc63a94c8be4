from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.consume.generations import NewestStored, Witnesses
from pyspark_rocketmq.errors import (
    BrokerError,
    ConsumptionForbidden,
    DataLoss,
    ExpressionInvalid,
    LogTailLost,
    NoPermission,
    RemoteProtocolError,
    SystemBusy,
)
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueRange, QueueState
from pyspark_rocketmq.source.marker_rows import spark_rows
from pyspark_rocketmq.source.range_arrivals import RangeArrivals, closed_arrivals
from pyspark_rocketmq.source.range_reader import gaps_before
from pyspark_rocketmq.source.ranges import MOST_COUNTED, QueuePartition, Ticket, tasks_of, ticket_rows
from pyspark_rocketmq.source.reader import read_queue, read_queues, read_ranges, read_tickets
from pyspark_rocketmq.source.schema import EndReason, RangeEnd
from pyspark_rocketmq.stored_values import LastMessage
from pyspark_rocketmq.wire import compression
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.columnar.schema import MESSAGE_SCHEMA
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.compression import CompressionType, compress
from pyspark_rocketmq.wire.messages import StoredMessage, body_crc
from tests.helpers.partitions import changed, partition_of
from tests.helpers.scripted_server import Peer, ScriptedServer
from tests.helpers.source_rows import end_of
from tests.helpers.stored_messages import encode_stored_message
from tests.helpers.wait import PATIENCE_S

QUEUE = MessageQueue("orders", "broker-a", 3)


def stored(queue_offset: int, text: bytes | None = None) -> bytes:
    """A message whose body is its offset, or else the text, compressed; its tag distinguishes odd and even."""
    body, sys_flag = str(queue_offset).encode(), 0
    if text is not None:
        body, sys_flag = compress(text, CompressionType.ZSTD)
    tag = "odd" if queue_offset % 2 else "even"
    return encode_stored_message(
        StoredMessage(
            topic=QUEUE.topic,
            queue_id=QUEUE.queue_id,
            queue_offset=queue_offset,
            commit_log_offset=queue_offset * 100,
            body=body,
            sys_flag=sys_flag,
            properties_data=f"TAGS\x01{tag}\x02".encode(),
            born_timestamp=1_700_000_000_000,
            born_host="127.0.0.1:1",
            store_timestamp=1_700_000_000_001,
            store_host="127.0.0.1:2",
            body_crc=body_crc(body),
        )
    )


class Log:
    """A broker's queue: what is in it, and how pulls are answered."""

    def __init__(self) -> None:
        self.missing: set[int] = set()
        self.scan = 8
        """Offsets looked at by one pull, whatever was asked for."""
        self.min_offset, self.max_offset = 0, 1000
        self.ends_at: dict[int, list[int]] = {}
        """Ends of the queue that the first pulls from an offset find, instead of ``max_offset``."""
        self.end_now = 1000
        """End that a request for only that gets."""
        self.reset_at: dict[int, int] = {}
        """Targets of resets that pulls from an offset find after those ends."""
        self.is_busy: Callable[[int], bool] = lambda start: False
        self.refusal: int = ResponseCode.SYSTEM_BUSY
        self.remark = ""
        self.body: Callable[[int], bytes | None] = lambda offset: None
        """Texts to be compressed."""
        self.damage: Callable[[int, bytes], bytes] = lambda offset, data: data
        """What is given for the stored bytes of a message."""
        self.attributes: dict[str, str] | None = {}
        """The topic's; None if the broker does not show them."""
        self.asked_for_attributes = 0
        self.busy_with_attributes = 0
        """How often the broker is too busy to show them."""

    def __call__(self, peer: Peer, request: RemotingCommand) -> None:
        if request.code == RequestCode.GET_TOPIC_CONFIG:
            self.asked_for_attributes += 1
            if self.asked_for_attributes <= self.busy_with_attributes:
                peer.answer(request, ResponseCode.SYSTEM_BUSY, remark="busy")
            elif self.attributes is None:
                peer.answer(request, ResponseCode.NO_PERMISSION, remark="no acl permission")
            else:
                body = json.dumps({"topicName": QUEUE.topic, "attributes": self.attributes})
                peer.answer(request, body=body.encode())
        elif request.code == RequestCode.GET_MAX_OFFSET:
            peer.answer(request, ext_fields={"offset": str(self.end_now)})
        else:
            self._pull(peer, request)

    def _pull(self, peer: Peer, request: RemotingCommand) -> None:
        start = int(request.ext_fields["queueOffset"])
        if self.is_busy(start):
            peer.answer(request, self.refusal, remark=self.remark)
        elif self.ends_at.get(start):
            end = self.ends_at[start].pop(0)
            self._answer(peer, request, ResponseCode.PULL_OFFSET_MOVED, end, end=end, remark="OVERFLOW")
        elif start in self.reset_at:
            target = self.reset_at[start]
            self._answer(peer, request, ResponseCode.PULL_OFFSET_MOVED, target, remark="OFFSET_RESET")
        elif start < self.min_offset or start > self.max_offset:
            corrected = self.min_offset if start < self.min_offset else self.max_offset
            self._answer(peer, request, ResponseCode.PULL_OFFSET_MOVED, corrected)
        else:
            end = min(start + self.scan, self.max_offset)
            found = [offset for offset in range(start, end) if offset not in self.missing]
            code = ResponseCode.SUCCESS if found else ResponseCode.PULL_RETRY_IMMEDIATELY
            data = (self.damage(offset, stored(offset, self.body(offset))) for offset in found)
            self._answer(peer, request, code, end, b"".join(data))

    def _answer(
        self,
        peer: Peer,
        request: RemotingCommand,
        code: int,
        next_begin_offset: int,
        body: bytes = b"",
        *,
        end: int | None = None,
        remark: str = "",
    ) -> None:
        fields = {
            "nextBeginOffset": str(next_begin_offset),
            "minOffset": str(self.min_offset),
            "maxOffset": str(self.max_offset if end is None else end),
            "suggestWhichBrokerId": "0",
        }
        peer.answer(request, code, ext_fields=fields, body=body, remark=remark)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def partition(log: Log) -> Iterator[QueuePartition]:
    """Offsets 10 to 60 of ``log``, in consumer mode; nothing is tried twice."""
    with ScriptedServer(log) as server:
        yield partition_of(
            QueueRange(QUEUE, QueueState(10, epoch=7, reconsume_times=2), 60),
            server.address,
            is_group_read=True,
            retry_timeout_s=0.0,
        )
        close_idle_connections()


def offsets_of(batches: list[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("queueOffset").to_pylist()]


def read(partition: QueuePartition) -> tuple[list[int], QueueRange]:
    """Offsets of the messages, and the range the marker row speaks of."""
    *messages, marker = read_queue(partition)
    seen, end = offsets_of(messages), end_of(marker)
    assert (offsets_of([marker]), end.rows) == ([end.planned.end], len(seen))
    return seen, end.planned


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[int, int]]:
    """The holes in the log's warnings."""
    return [record.args[1:] for record in caplog.records if "offset hole" in record.message]  # type: ignore[misc, index]


def test_a_range_is_its_messages_in_order_and_its_marker_row(partition: QueuePartition) -> None:
    """D1"""
    assert read(partition) == (list(range(10, 60)), partition.planned)


BEFORE = LastMessage(9, 1_700_000_000_001, 900)


@pytest.mark.parametrize("before", [BEFORE, LastMessage(3, BEFORE.store_timestamp, 300)], ids=["next", "far"])
@pytest.mark.parametrize("subscription", ["*", "odd"])
def test_a_range_is_read_whole_behind_the_message_that_was_consumed_before_it(
    partition: QueuePartition, before: LastMessage, subscription: str
) -> None:
    """F4: which is compared, and not read again."""
    partition = replace(partition, witnesses=Witnesses(before), subscription=subscription)

    wanted = range(10, 60) if subscription == "*" else range(11, 60, 2)
    assert read(partition) == (list(wanted), partition.planned)


@pytest.mark.parametrize("place", [0, -1, 1], ids=["other time", "earlier", "later"])
@pytest.mark.parametrize("scan", [1, 8])
@pytest.mark.parametrize("subscription", ["*", "odd", "even"])
def test_a_range_of_another_log_ends_where_it_begins(
    partition: QueuePartition, log: Log, place: int, scan: int, subscription: str
) -> None:
    """F4: another message has the place of the one consumed before it, though offsets do not show it.

    Nor does a pull with the filter that leaves out what is there now: offset 9 is not even.
    """
    log.scan = scan
    time_ms = BEFORE.store_timestamp if place else BEFORE.store_timestamp + 5
    other = LastMessage(9, time_ms, BEFORE.commit_log_offset + place)

    witnessed = replace(partition, witnesses=Witnesses(other), subscription=subscription)
    *messages, marker = read_queue(witnessed)
    end = end_of(marker)

    assert messages == []
    assert end.reason is EndReason.ANOTHER_LOG
    assert (end.rows, end.planned) == (0, replace(partition.planned, end=10))


@pytest.mark.parametrize(
    ("ahead", "max_offset", "reason"),
    [
        (LastMessage(70, BEFORE.store_timestamp, 7000), 1000, EndReason.WHOLE),
        (LastMessage(10, BEFORE.store_timestamp, 1000), 1000, EndReason.WHOLE),
        (LastMessage(70, BEFORE.store_timestamp, 6999), 1000, EndReason.ANOTHER_LOG),
        (LastMessage(70, BEFORE.store_timestamp, 7000), 70, EndReason.ANOTHER_LOG),
    ],
)
def test_a_range_before_the_newest_consumed_message_is_read_only_if_that_is_there(
    partition: QueuePartition, log: Log, ahead: LastMessage, max_offset: int, reason: EndReason
) -> None:
    """F4, F5: a group that was set back, or a sink that is ahead of it."""
    log.max_offset, log.scan = max_offset, 1

    *messages, marker = read_queue(replace(partition, witnesses=Witnesses(None, ahead)))
    end = end_of(marker)

    assert end.reason is reason
    assert offsets_of(messages) == list(range(10, 60 if reason is EndReason.WHOLE else 10))


def test_a_range_waits_for_a_broker_that_does_not_show_the_newest_consumed_message(
    partition: QueuePartition, log: Log
) -> None:
    """F4, A8: nothing of it is read."""
    log.is_busy = lambda start: start == 70
    ahead = LastMessage(70, BEFORE.store_timestamp, 7000)

    *messages, marker = read_queue(replace(partition, witnesses=Witnesses(None, ahead)))

    assert messages == []
    assert end_of(marker).reason is EndReason.EARLY


def test_a_busy_broker_is_asked_again_for_the_newest_consumed_message(
    partition: QueuePartition, log: Log
) -> None:
    """A5, F4: as for a pull, so that the range is read in this batch."""
    asked: list[int] = []

    def is_busy(start: int) -> bool:
        asked.append(start)
        return asked == [70]

    log.is_busy = is_busy
    ahead = LastMessage(70, BEFORE.store_timestamp, 7000)
    patient = changed(partition, retry_timeout_s=PATIENCE_S)

    assert read(replace(patient, witnesses=Witnesses(None, ahead))) == (
        list(range(10, 60)),
        partition.planned,
    )
    assert asked[:2] == [70, 70]


def test_a_range_is_read_whole_although_the_message_before_it_has_expired(
    partition: QueuePartition, log: Log
) -> None:
    """F4: since its range was planned."""
    log.min_offset = 10

    assert read(replace(partition, witnesses=Witnesses(BEFORE))) == (list(range(10, 60)), partition.planned)


def test_a_range_is_read_whole_although_compaction_took_the_message_before_it(
    partition: QueuePartition, log: Log
) -> None:
    """F4, L9: nothing shows another log."""
    log.missing = {9}

    assert read(replace(partition, witnesses=Witnesses(BEFORE))) == (list(range(10, 60)), partition.planned)


ANOTHER = LastMessage(9, BEFORE.store_timestamp + 5, BEFORE.commit_log_offset)
"""A message that another one has replaced at the broker."""


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize(
    ("before", "ends", "end_now", "is_read"),
    [
        pytest.param(ANOTHER, [9], 1000, False, id="grown again"),
        pytest.param(ANOTHER, [9, 9], 1000, False, id="grown again a moment later"),
        pytest.param(ANOTHER, [9, 9], 9, False, id="shorter again"),
        pytest.param(BEFORE, [9], 1000, True, id="a wrong answer"),
        pytest.param(BEFORE, [9, 9], 1000, True, id="two wrong answers"),
        pytest.param(BEFORE, [9, 9, 9], 1000, True, id="tiered storage without the message"),
    ],
)
def test_a_range_whose_first_pull_did_not_bring_the_message_before_it_is_read_only_if_its_log_is_the_same(
    partition: QueuePartition,
    log: Log,
    before: LastMessage,
    ends: list[int],
    *,
    end_now: int,
    is_read: bool,
    few: bool,
) -> None:
    """F4: the log ended before this message at first, and has grown past it by the next pull."""
    log.ends_at, log.end_now = {9: list(ends)}, end_now

    witnessed = replace(partition, witnesses=Witnesses(before))
    arrivals = list(RangeArrivals([witnessed], few_as_objects=few).arrivals())
    end = next(each.end for each in arrivals[-1] if each.end is not None)

    assert end.rows == (50 if is_read else 0)
    assert end.reason is (EndReason.WHOLE if is_read else EndReason.ANOTHER_LOG)
    assert end.planned.end == (60 if is_read else 10)


def test_a_range_waits_for_a_broker_that_does_not_show_the_message_before_it(
    partition: QueuePartition, log: Log
) -> None:
    """F4, A8: nothing of it is read."""
    log.ends_at = {9: [9]}
    log.is_busy = lambda start: start == 9 and not log.ends_at[9]

    *messages, marker = read_queue(replace(partition, witnesses=Witnesses(BEFORE)))

    assert messages == []
    assert end_of(marker).reason is EndReason.EARLY
    assert end_of(marker).planned.end == 10


def test_a_reset_that_the_look_for_the_message_before_the_range_meets_is_passed_on(
    partition: QueuePartition, log: Log
) -> None:
    """F4, F5: a broker reports it once."""
    log.ends_at, log.reset_at = {9: [9]}, {9: 4}

    *messages, marker = read_queue(replace(partition, witnesses=Witnesses(BEFORE)))

    assert messages == []
    assert (end_of(marker).reason, end_of(marker).reset_to) == (EndReason.EARLY, 4)


def test_a_range_whose_queue_is_shorter_than_it_was_is_lost_from_its_beginning(
    partition: QueuePartition, log: Log
) -> None:
    """F4: as without the message before it. The planner judges whether messages are lost."""
    log.max_offset = 4

    *messages, marker = read_queue(replace(partition, witnesses=Witnesses(BEFORE)))

    assert messages == []
    assert (end_of(marker).reason, end_of(marker).planned.end) == (EndReason.EARLY, 10)


@pytest.mark.parametrize("missing", [set[int](), {10}], ids=["whole", "hole"])
def test_a_message_before_the_range_that_cannot_be_decoded_changes_nothing(
    partition: QueuePartition, log: Log, missing: set[int]
) -> None:
    """F4, L7"""
    log.missing = missing
    log.damage = lambda offset, data: data[:4] + b"\x00" * 4 + data[8:] if offset == 9 else data

    seen, _ = read(changed(partition, witnesses=Witnesses(BEFORE), fail_on_data_loss=False))

    assert seen == [offset for offset in range(10, 60) if offset not in missing]


STORED_MS = BEFORE.store_timestamp


@pytest.fixture
def at_replica(partition: QueuePartition) -> QueuePartition:
    """The range of a batch read, at a replica of a master that does not answer."""
    with ScriptedServer() as master:
        dead = BrokerAddress(master.address)
    return changed(
        partition,
        address=dead,
        replicas={1: partition.address},
        replaces_master=True,
        is_group_read=False,
    )


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize(
    ("newest", "text"),
    [
        pytest.param(NewestStored(70, STORED_MS), "", id="the same log"),
        pytest.param(NewestStored(70, STORED_MS - 1), "rows may be of two logs", id="another log"),
        pytest.param(NewestStored(1000, STORED_MS), "not known whether", id="the replica lags"),
    ],
)
def test_a_batch_read_whose_master_died_compares_the_log_of_the_replica_that_was_read(
    at_replica: QueuePartition,
    caplog: pytest.LogCaptureFixture,
    *,
    newest: NewestStored,
    text: str,
    fails: bool,
) -> None:
    """F4, L3: it may have become the master without the newest messages."""
    partition = changed(at_replica, newest=newest, fail_on_data_loss=fails)
    batches: list[pa.RecordBatch] = []

    if fails and "two logs" in text:
        with pytest.raises(DataLoss, match="belong to both logs"):
            batches.extend(read_queue(partition))
        return
    batches.extend(read_queue(partition))

    assert offsets_of(batches) == list(range(10, 60))
    warnings = [record.message for record in caplog.records if "log" in record.message.split(" queue=")[0]]
    assert len(warnings) == bool(text)
    assert all(text in warning and str(QUEUE) in warning for warning in warnings)


def test_a_batch_read_warns_if_neither_master_nor_replica_shows_which_log_was_read(
    at_replica: QueuePartition, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """F4, L3"""
    log.is_busy = lambda start: start == 70

    list(read_queue(changed(at_replica, newest=NewestStored(70, STORED_MS))))

    [warning] = [record for record in caplog.records if "not known whether" in record.message]
    assert warning.levelname == "WARNING"
    assert "offset=70" in warning.message
    assert str(QUEUE) in warning.message


def test_a_range_ends_with_the_bounds_of_its_queue(partition: QueuePartition, log: Log) -> None:
    """D1: as the newest answer has it, for the properties MIN_OFFSET and MAX_OFFSET."""
    *_, marker = read_queue(partition)

    told = end_of(marker).described_by_messages
    assert told == {"MIN_OFFSET": str(log.min_offset), "MAX_OFFSET": str(log.max_offset)}


def test_without_a_group_there_are_messages_only(partition: QueuePartition) -> None:
    batches = list(read_queue(changed(partition, is_group_read=False)))

    assert {batch.schema for batch in batches} == {MESSAGE_SCHEMA}
    assert offsets_of(batches) == list(range(10, 60))
    assert [body for batch in batches for body in batch.column("body").to_pylist()] == [
        str(offset).encode() for offset in range(10, 60)
    ]


def test_answers_that_expand_too_far_together_are_read_whole(
    partition: QueuePartition, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1: more compressed bytes than are decoded at once are decoded little by little."""
    monkeypatch.setattr(compression, "MAX_EXPANDED_BYTES", 1000)
    monkeypatch.setattr(compression, "MAX_EXPANSION", 0)
    log.body = lambda offset: b"%d " % offset * 100

    batches = list(read_queue(changed(partition, is_group_read=False)))

    assert offsets_of(batches) == list(range(10, 60))
    bodies = [body for batch in batches for body in batch.column("body").to_pylist()]
    assert bodies == [log.body(offset) for offset in range(10, 60)]
    assert max(batch.num_rows for batch in batches) <= 3


def test_answers_that_overlap_are_cut(partition: QueuePartition, log: Log) -> None:
    """D1: a pull may bring more than its own offsets."""
    log.scan = 30

    assert read(partition)[0] == list(range(10, 60))


def test_a_tag_filter_leaves_holes_and_the_whole_range_is_marked(partition: QueuePartition, log: Log) -> None:
    """A4: the broker filters by hash code, the tags themselves are compared here."""
    log.missing = set(range(30, 60))

    assert read(replace(partition, subscription="odd")) == (list(range(11, 30, 2)), partition.planned)


def test_offsets_that_go_back_are_refused(partition: QueuePartition, log: Log) -> None:
    def wrong(peer: Peer, request: RemotingCommand) -> None:
        log._answer(peer, request, 0, 60, stored(12) + stored(11))

    with ScriptedServer(wrong) as server, pytest.raises(RemoteProtocolError, match="not ascending from 10"):
        list(read_queue(replace(partition, address=BrokerAddress(server.address))))
    close_idle_connections()


HOLES = [
    pytest.param({10}, (10, 11), id="at the beginning"),
    pytest.param({23}, (23, 24), id="inside an answer"),
    pytest.param(set(range(26, 34)), (26, 34), id="a whole answer"),
    pytest.param({59}, (59, 60), id="at the end"),
    pytest.param(set(range(10, 60)), (10, 60), id="everything"),
]


@pytest.mark.parametrize(("missing", "hole"), HOLES)
def test_a_hole_is_data_loss(
    partition: QueuePartition, log: Log, missing: set[int], hole: tuple[int, int]
) -> None:
    """F4: a broker passes over removed log files without a word."""
    log.missing = missing

    with pytest.raises(
        DataLoss,
        match=rf"offset {hole[0]} was wanted.*no message for offsets? {hole[0]}.* go on at offset {hole[1]}\.",
    ):
        read(partition)


@pytest.mark.parametrize(("missing", "hole"), HOLES)
def test_a_hole_is_passed_and_reported_once_on_demand(
    partition: QueuePartition,
    log: Log,
    missing: set[int],
    hole: tuple[int, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """F4"""
    log.missing = missing

    seen, marked = read(changed(partition, fail_on_data_loss=False))

    assert seen == [offset for offset in range(10, 60) if offset not in missing]
    assert marked == partition.planned
    assert told(caplog) == [hole]


def test_a_gap_that_pulls_have_skipped_is_not_reported_again(
    partition: QueuePartition, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """F4"""
    log.min_offset = 40
    log.missing = {50}

    seen, marked = read(changed(partition, fail_on_data_loss=False))

    assert seen == [*range(40, 50), *range(51, 60)]
    assert marked == partition.planned
    assert told(caplog) == [(50, 51)]
    assert sum("offset gap" in record.message for record in caplog.records) == 1


def test_several_holes_are_found_at_once() -> None:
    assert gaps_before(np.array([12, 13, 15, 20]), 10) == [(10, 12), (14, 15), (16, 20)]
    assert gaps_before(np.array([10, 11]), 10) == []


def test_a_broker_that_fails_ends_a_group_s_range_where_it_was_reached(
    partition: QueuePartition, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """H1: other queues are committed, and the rest of this one is planned again."""
    log.is_busy = lambda start: start >= 42

    seen, marked = read(partition)

    assert seen == list(range(10, marked.end))
    assert marked == replace(partition.planned, end=marked.end)
    assert marked.end <= 42
    assert f"reached={marked.end}" in caplog.text


def test_a_broker_that_is_away_from_the_beginning_ends_a_group_s_range_empty(
    partition: QueuePartition, log: Log
) -> None:
    log.is_busy = lambda start: True

    assert read(partition) == ([], replace(partition.planned, end=10))


def test_a_broker_that_fails_ends_a_plain_read_with_its_error(partition: QueuePartition, log: Log) -> None:
    log.is_busy = lambda start: True

    with pytest.raises(SystemBusy):
        list(read_queue(changed(partition, is_group_read=False)))


def test_a_broker_that_refuses_ends_a_group_s_query(partition: QueuePartition, log: Log) -> None:
    log.is_busy = lambda start: True
    log.refusal = ResponseCode.NO_PERMISSION

    with pytest.raises(BrokerError):
        read(partition)


def test_a_topic_that_may_not_be_read_for_a_while_ends_a_group_s_range_where_it_was_reached(
    partition: QueuePartition, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """D3: only its queues wait, as long as the operator wants, and the reason is logged."""
    log.is_busy = lambda start: start >= 42
    log.refusal, log.remark = ResponseCode.NO_PERMISSION, "the topic[orders] pulling message is forbidden"

    *messages, marker = read_queue(partition)
    seen, end = offsets_of(messages), end_of(marker)

    assert seen == list(range(10, end.planned.end))
    assert end.reason is EndReason.REFUSED
    assert "pulling message is forbidden" in caplog.text
    with pytest.raises(ConsumptionForbidden, match="updateTopicPerm"):
        list(read_queue(changed(partition, is_group_read=False)))


@pytest.mark.parametrize("code", [1, 3, 12, 26, 29, 4711])
@pytest.mark.parametrize("start", [10, 42], ids=["from the start", "on its way"])
def test_an_answer_nobody_explains_ends_the_range_of_a_group_that_has_worked(
    partition: QueuePartition, log: Log, code: int, start: int
) -> None:
    """A8, D3: at once, so that the other queues of the micro-batch do not wait; the queue rests for 3 s."""
    log.is_busy = lambda offset: offset >= start
    log.refusal, log.remark = code, "store getMessage return null"

    *messages, marker = read_queue(changed(partition, has_worked=True, retry_timeout_s=3600.0))
    seen, end = offsets_of(messages), end_of(marker)

    assert seen == list(range(10, end.planned.end))
    assert end.planned.end <= start
    assert end.reason is EndReason.REFUSED


@pytest.mark.parametrize("is_group_read", [True, False], ids=["group", "batch"])
def test_one_answer_nobody_explains_ends_no_range(
    partition: QueuePartition, log: Log, is_group_read: bool
) -> None:
    """A8: the first answer of all, too."""
    refusals = iter([True])
    log.is_busy = lambda offset: next(refusals, False)
    log.refusal, log.remark = ResponseCode.SYSTEM_ERROR, "store getMessage return null"

    patient = changed(partition, is_group_read=is_group_read, retry_timeout_s=PATIENCE_S)
    pieces = list(read_queue(patient))

    messages, end = (pieces[:-1], end_of(pieces[-1]).planned.end) if is_group_read else (pieces, 60)
    assert offsets_of(messages) == list(range(10, end))
    assert next(refusals, False) is False


@pytest.mark.parametrize("is_group_read", [True, False], ids=["group", "batch"])
def test_an_answer_nobody_explains_is_an_error_where_nothing_has_ever_been_read(
    partition: QueuePartition, log: Log, is_group_read: bool
) -> None:
    """A8: after retryTimeoutMs."""
    log.is_busy = lambda offset: True
    log.refusal, log.remark = ResponseCode.SYSTEM_ERROR, "store getMessage return null"

    with pytest.raises(BrokerError, match="getMessage return null"):
        list(read_queue(changed(partition, is_group_read=is_group_read)))


@pytest.mark.parametrize("has_worked", [True, False])
@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (16, "no acl permission"),
        (1, "org.apache.rocketmq.acl.common.AclException: No acl config"),
        (1, "The broker does not support consumer to filter message by SQL92"),
        (23, "parse the consumer's subscription failed"),
    ],
)
def test_what_the_user_must_act_on_ends_the_query(
    partition: QueuePartition, log: Log, code: int, remark: str, has_worked: bool
) -> None:
    """A8: also of a group that has worked before."""
    log.is_busy = lambda offset: offset >= 42
    log.refusal, log.remark = code, remark

    with pytest.raises((NoPermission, ExpressionInvalid)):
        list(read_queue(changed(partition, has_worked=has_worked, retry_timeout_s=3600.0)))


@pytest.mark.parametrize(
    "how",
    [
        {"is_group_read": group, "fail_on_data_loss": fails}
        for group in (True, False)
        for fails in (True, False)
    ],
    ids=str,
)
@pytest.mark.parametrize("missing", [range(10, 36), range(20, 58), range(11, 60, 2)])
def test_a_compacted_topic_is_read_from_what_is_there(
    partition: QueuePartition,
    log: Log,
    missing: range,
    how: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """L9, F4: only the newest message of each key is kept, so gaps are no loss, not even the first one."""
    log.missing = set(missing)
    log.attributes = {"cleanup.policy": "COMPACTION"}

    pieces = list(read_queue(changed(partition, **how)))

    messages = pieces[:-1] if how["is_group_read"] else pieces
    assert offsets_of(messages) == [offset for offset in range(10, 60) if offset not in missing]
    assert log.asked_for_attributes == 1
    assert "offset hole" not in caplog.text


@pytest.mark.parametrize(("busy", "fails"), [(2, True), (2, False), (1000, True), (1000, False)])
def test_a_busy_broker_does_not_make_a_loss_of_the_gaps_of_a_compacted_topic(
    partition: QueuePartition, log: Log, busy: int, fails: bool
) -> None:
    """L9, A8: what it does not answer for now is not known."""
    log.missing = set(range(20, 30))
    log.attributes = {"cleanup.policy": "COMPACTION"}
    log.busy_with_attributes = busy
    patience_s = PATIENCE_S if busy < 1000 else 0.0
    part = changed(partition, retry_timeout_s=patience_s, fail_on_data_loss=fails)

    if busy == 1000 and fails:
        with pytest.raises(SystemBusy):
            read(part)
        return
    seen, _ = read(part)

    assert seen == [*range(10, 20), *range(30, 60)]


def test_a_topic_without_gaps_is_not_asked_for_its_attributes(partition: QueuePartition, log: Log) -> None:
    read(partition)

    assert log.asked_for_attributes == 0


@pytest.mark.parametrize("attributes", [{"cleanup.policy": "DELETE"}, {}, None])
def test_a_gap_of_a_topic_that_is_not_known_to_be_compacted_is_data_loss(
    partition: QueuePartition, log: Log, attributes: dict[str, str] | None
) -> None:
    """F4: brokers before 5 have no attributes, and one may not show them to this user."""
    log.missing = set(range(20, 30))
    log.attributes = attributes

    with pytest.raises(DataLoss, match="offset 20 was wanted") as raised:
        read(partition)

    is_unknown = attributes is None
    assert ("GET_TOPIC_CONFIG" in str(raised.value)) is is_unknown
    assert (
        "If the topic is compacted (cleanup.policy=COMPACTION), nothing" in str(raised.value)
    ) is is_unknown


def test_a_lost_tail_is_never_acknowledged(partition: QueuePartition, log: Log) -> None:
    """F4: messages that come later get those offsets again."""
    log.max_offset = 34

    seen, marked = read(changed(partition, fail_on_data_loss=False))

    assert seen == list(range(10, marked.end))
    assert marked.end <= 34


def test_a_lost_tail_is_data_loss(partition: QueuePartition, log: Log) -> None:
    """F4: a batch read has no planner that could judge later."""
    log.max_offset = 30

    with pytest.raises(LogTailLost, match="offset 34 was wanted"):
        list(read_queue(changed(partition, is_group_read=False)))


@pytest.mark.parametrize("fails", [True, False])
def test_a_group_s_range_ends_at_a_lost_tail_and_the_planner_judges(
    partition: QueuePartition, log: Log, fails: bool
) -> None:
    """F4, L3: a broker that has restarted answers so, too, as long as it does not have its role."""
    log.max_offset = 30

    *messages, marker = read_queue(changed(partition, fail_on_data_loss=fails))

    assert offsets_of(messages)[:1] == [10]
    assert end_of(marker).reason is EndReason.EARLY
    assert end_of(marker).planned.end <= 34


def test_the_marker_row_counts_the_messages(partition: QueuePartition) -> None:
    *_, marker = read_queue(partition)

    facts = json.loads(marker.column("plannedRange")[0].as_py())
    assert {name: facts[name] for name in ("from", "to", "epoch", "times", "rows")} == {
        "from": 10,
        "to": 60,
        "epoch": 7,
        "times": 2,
        "rows": 50,
    }


def test_the_end_of_a_range_has_the_time_of_its_pulls(partition: QueuePartition) -> None:
    """D11: those that brought something, from sending to answer."""
    began_s = time.monotonic()
    *_, marker = read_queue(partition)
    all_ms = (time.monotonic() - began_s) * 1000

    metrics = end_of(marker).metrics
    assert metrics.pulled == 50
    assert 1 <= metrics.pulls <= 50
    # Several are under way at once; shown to a tenth.
    assert 0 < metrics.pull_ms < metrics.pulls * all_ms + 0.1


def test_a_namespace_is_seen_by_the_broker_and_not_by_the_user(log: Log, partition: QueuePartition) -> None:
    """A6"""
    asked: set[tuple[str, str]] = set()

    def note(peer: Peer, request: RemotingCommand) -> None:
        asked.add((request.ext_fields["topic"], request.ext_fields["consumerGroup"]))
        log(peer, request)

    with ScriptedServer(note) as server:
        wanted = changed(
            partition, address=BrokerAddress(server.address), namespace="shop", is_group_read=False
        )
        batches = list(read_queue(wanted))
        close_idle_connections()

    assert asked == {("shop%orders", "shop%g")}
    assert {topic for batch in batches for topic in batch.column("topic").to_pylist()} == {"orders"}


def test_messages_that_filtered_pulls_return_twice_are_kept_once(log: Log, partition: QueuePartition) -> None:
    """A4: a filtered pull scans on into what its neighbour asks for."""
    log.scan = 40
    log.missing = {offset for offset in range(1000) if offset % 3}
    wanted = replace(partition, subscription="even", planned=QueueRange.between(QUEUE, 0, 800))

    seen, marked = read(changed(wanted, pull_batch_size=16, pulls_in_flight=4))

    assert seen == list(range(0, 800, 6))
    assert marked == wanted.planned


def test_several_ranges_are_read_at_once_each_in_order(log: Log, partition: QueuePartition) -> None:
    """D1"""
    ranges = [
        replace(
            partition, planned=replace(partition.planned, queue=QUEUE._replace(queue_id=queue_id), end=end)
        )
        for queue_id, end in enumerate((20, 100, 60))
    ]
    offsets: dict[int, list[int]] = {}
    for of, batch in read_queues(ranges):
        if batch.column("kind").to_pylist() != ["end"]:
            offsets.setdefault(of.planned.end, []).extend(offsets_of([batch]))

    assert offsets == {end: list(range(10, end)) for end in (20, 100, 60)}


@pytest.mark.parametrize(
    ("max_bytes", "last"), [(1, 10), (2, 10), (3, 11), (20, 19), (99, 59), (100, 59), (1000, 59)]
)
def test_a_range_ends_with_the_message_that_makes_it_as_large_as_it_may_be(
    partition: QueuePartition, max_bytes: int, last: int
) -> None:
    """D13: bodies are of two bytes here; the first message is read however large it is,
    or the queue would stand still.
    """
    seen, marked = read(changed(partition, max_bytes=max_bytes))

    assert seen == list(range(10, last + 1))
    assert marked == replace(partition.planned, end=last + 1)


def test_a_range_that_is_full_goes_on_in_the_next_micro_batch(partition: QueuePartition) -> None:
    """D13: nothing is lost or doubled between the two."""
    seen: list[int] = []
    planned = partition.planned
    while planned.count:
        part, marked = read(changed(partition, planned=planned, max_bytes=14))
        seen += part
        planned = planned.starting_at(marked.end)

    assert seen == list(range(10, 60))


def test_a_range_that_is_full_ends_no_other_range(partition: QueuePartition) -> None:
    """D13: the bound is each queue's own."""
    ranges = [
        changed(
            partition,
            max_bytes=size,
            planned=replace(partition.planned, queue=QUEUE._replace(queue_id=queue_id)),
        )
        for queue_id, size in enumerate((10, None, 50))
    ]
    offsets: dict[int | None, list[int]] = {}
    ends: dict[int | None, int] = {}
    for of, batch in read_queues(ranges):
        if batch.column("kind").to_pylist() == ["end"]:
            ends[of.settings.max_bytes] = offsets_of([batch])[0]
        else:
            offsets.setdefault(of.settings.max_bytes, []).extend(offsets_of([batch]))

    assert ends == {10: 15, None: 60, 50: 35}
    assert offsets == {size: list(range(10, end)) for size, end in ends.items()}


def test_ranges_of_several_subscriptions_keep_their_own_tags(partition: QueuePartition) -> None:
    """A4: their messages are decoded together."""
    ranges = [
        replace(
            partition,
            subscription=tag,
            planned=replace(partition.planned, queue=QUEUE._replace(queue_id=queue_id)),
        )
        for queue_id, tag in enumerate(("odd", "even", "*"))
    ]
    offsets: dict[str, list[int]] = {}
    for of, batch in read_queues(ranges):
        if batch.column("kind").to_pylist() != ["end"]:
            offsets.setdefault(of.subscription, []).extend(offsets_of([batch]))

    assert offsets == {
        "odd": list(range(11, 60, 2)),
        "even": list(range(10, 60, 2)),
        "*": list(range(10, 60)),
    }


def test_short_ranges_are_handed_over_by_one_task(partition: QueuePartition) -> None:
    """D1: only those of queues whose listener is known to be quick."""
    ranges = [
        replace(partition, planned=replace(partition.planned, queue=QUEUE._replace(queue_id=queue_id)))
        for queue_id in range(4)
    ]
    known_ms = {0: 0.1, 1: 100.0, 3: 0.1}

    tasks = tasks_of(ranges, lambda queue: known_ms.get(queue.queue_id))

    queue_ids = [
        [[each.planned.queue.queue_id for each in ticket.partitions] for ticket in task.tickets]
        for task in tasks
    ]
    assert queue_ids == [[[0], [1], [3]], [[2]]]
    assert {ticket.tasks for task in tasks for ticket in task.tickets} == {2}
    assert len(tasks_of(ranges, lambda queue: known_ms.get(queue.queue_id), slots=1)) == 1


def test_short_ranges_of_a_task_are_read_at_once(partition: QueuePartition) -> None:
    """D1"""
    ranges = [
        replace(partition, planned=replace(partition.planned, queue=QUEUE._replace(queue_id=queue_id)))
        for queue_id in range(3)
    ]

    (task,) = tasks_of(ranges, lambda _: 0.1)

    assert [ticket.partitions for ticket in task.tickets] == [tuple(ranges)]


def test_rows_of_ranges_that_are_read_at_once_come_one_range_after_the_other(
    partition: QueuePartition,
) -> None:
    """D1: pulls of 8 offsets, so that the ranges' answers come mixed."""
    ranges = [
        replace(
            partition, planned=replace(partition.planned, queue=QUEUE._replace(queue_id=queue_id), end=end)
        )
        for queue_id, end in enumerate((100, 20, 60))
    ]

    found: list[list[int]] = [[]]
    for piece in read_ranges(ranges):
        found[-1] += offsets_of([spark_rows(piece)])
        if isinstance(piece, RangeEnd):
            found.append([])

    assert sorted(found) == [[], *([*range(10, end), end] for end in (20, 60, 100))]


def test_pieces_of_ranges_come_as_they_are_read(partition: QueuePartition) -> None:
    """D1: the same messages and ends as of whole ranges, in order within each."""
    lengths = dict(enumerate((100, 20, 60)))
    ranges = [
        replace(
            partition, planned=replace(partition.planned, queue=QUEUE._replace(queue_id=queue_id), end=end)
        )
        for queue_id, end in lengths.items()
    ]

    found: dict[int, list[int]] = {queue_id: [] for queue_id in lengths}
    ends: dict[int, int] = {}
    for arrival in chain.from_iterable(closed_arrivals(ranges)):
        queue_id = arrival.queue.queue_id
        assert queue_id not in ends
        assert arrival.planned == ranges[queue_id].planned
        assert arrival.bounds is not None
        found[queue_id] += offsets_of(list(arrival.messages))
        if arrival.end is not None:
            ends[queue_id] = arrival.end.planned.end

    assert found == {queue_id: list(range(10, end)) for queue_id, end in lengths.items()}
    assert ends == lengths


@pytest.mark.parametrize(("max_bytes", "last"), [(30, 24), (16 << 20, 59)])
def test_ranges_that_are_read_at_once_have_their_share_of_memory(
    partition: QueuePartition, max_bytes: int, last: int
) -> None:
    """D13: at least 8 MiB, but no more than a single one may have; bodies are of two bytes here."""
    ranges = [
        changed(
            partition,
            max_bytes=max_bytes,
            planned=replace(partition.planned, queue=QUEUE._replace(queue_id=queue_id)),
        )
        for queue_id in range(2)
    ]

    offsets = offsets_of(list(map(spark_rows, read_ranges(ranges))))

    assert offsets == [*range(10, last + 1), last + 1] * 2


@pytest.mark.parametrize("size", [1, 7, 200])
def test_a_range_handed_over_unread_is_read_once_however_spark_cuts_its_rows(
    log: Log, partition: QueuePartition, size: int
) -> None:
    """D1: Spark counts a row for each offset, so that its numInputRows says what the micro-batch takes in."""
    next_range = QueueRange.between(QUEUE, 60, 61)
    tickets = [Ticket((partition,)), Ticket((replace(partition, planned=next_range),))]
    rows = pa.Table.from_batches(map(ticket_rows, tickets)).combine_chunks()

    read = list(read_tickets(rows.to_batches(max_chunksize=size)))

    assert rows.num_rows == 51
    assert offsets_of(list(map(spark_rows, read))) == [*range(10, 60), 60, 60, 61]
    assert isinstance(read[-1], RangeEnd)
    assert (read[-1].planned, read[-1].rows) == (next_range, 1)


def test_a_ticket_has_rows_for_no_more_offsets_than_fit_into_memory(partition: QueuePartition) -> None:
    """H9: a plan of the checkpoint may say any number."""
    endless = replace(partition, planned=replace(partition.planned, end=1 << 62))

    rows = ticket_rows(Ticket((endless, partition)))

    assert rows.num_rows == MOST_COUNTED
    assert rows.nbytes < 64 << 20
