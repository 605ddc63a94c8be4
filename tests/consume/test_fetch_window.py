"""The window: everything of each range, in order, once, under any behaviour of brokers;
and what all ranges share.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.fetch_window import (
    FetchWindow,
    PullTask,
    RangeWindow,
    TailLost,
)
from pyspark_rocketmq.consume.generations import NO_WITNESSES, NewestStored, Witnesses
from pyspark_rocketmq.consume.read_range import ReadRange
from pyspark_rocketmq.consume.segments import PullChunk
from pyspark_rocketmq.consume.slave_reads import MASTER_ID
from pyspark_rocketmq.errors import (
    ChannelClosed,
    ConnectFailed,
    LogTailLost,
    MessagesExpired,
    NoPermission,
    RocketMQError,
    SystemBusy,
)
from pyspark_rocketmq.model import OPEN_END, BrokerAddress, MessageQueue, QueueRange
from pyspark_rocketmq.stored_values import LastMessage
from pyspark_rocketmq.wire.requests.pull import PullResult, PullStatus
from tests.helpers.partitions import DEFAULT_SETTINGS, changed

KIB = 1024


WANTED = ReadRange(
    planned=QueueRange.between(MessageQueue("orders", "broker-a", 0), 0, 0),
    address=BrokerAddress("broker-a:10911"),
    subscription="*",
    settings=DEFAULT_SETTINGS._replace(
        consumer_group="g", fail_on_data_loss=False, retry_timeout_s=1.0, replaces_master=False
    ),
)


def wanted(start: int, end: int, *, queue_id: int = 0, before: int = 0, **changes: Any) -> ReadRange:
    """A range; pulls begin ``before`` offsets ahead of it."""
    planned = QueueRange.between(MessageQueue("orders", "broker-a", queue_id), start, end)
    witnesses = Witnesses(LastMessage(start - before, 0, 0)) if before else NO_WITNESSES
    return changed(WANTED, planned=planned, witnesses=witnesses, **changes)


def window(
    start: int,
    end: int,
    *,
    segment: int = 4,
    depth: int = 2,
    max_ahead_bytes: int = 1 << 20,
    **changes: Any,
) -> RangeWindow:
    return RangeWindow(
        0,
        wanted(start, end, **changes),
        segment=segment,
        depth=depth,
        max_ahead_bytes=max_ahead_bytes,
        log=lambda *_: None,
    )


class Asker:
    """A range's window and the tasks that it gave out."""

    def __init__(self, start: int, end: int, **changes: Any) -> None:
        self.window = window(start, end, **changes)
        self._out: dict[int, PullTask] = {}

    def ask(self) -> list[tuple[int, int, int]]:
        """Segment, queue offset and count of each."""
        tasks = self.window.tasks(1000, 0.0)
        self._out |= {task.segment_id: task for task in tasks}
        return [(task.segment_id, task.queue_offset, task.max_msg_nums) for task in tasks]

    def answer(self, segment_id: int, next_begin_offset: int, body: bytes) -> None:
        self.window.answered(self._out[segment_id], found(next_begin_offset, body), 0.0)

    def answer_with(self, segment_id: int, result: PullResult) -> None:
        self.window.answered(self._out[segment_id], result, 0.0)
        self.window.settle(0.0)

    def lose(self, segment_id: int) -> None:
        self.window.lost(self._out[segment_id], None, 0.0)

    def take(self) -> list[int]:
        return offsets_of(self.window.take())

    @property
    def is_done(self) -> bool:
        """Whether the range is read and every chunk taken."""
        return self.window.is_over and not self.window.segments.buffered_bytes


def found(next_begin_offset: int, body: bytes, *, suggest: int = 0) -> PullResult:
    status = PullStatus.FOUND if body else PullStatus.NO_MATCHED_MSG
    return PullResult(status, next_begin_offset, 0, 1000, suggest, body)


def body(*offsets: int) -> bytes:
    return b"".join(offset.to_bytes(4, "big") for offset in offsets)


def offsets_of(chunks: list[PullChunk]) -> list[int]:
    """Decode as the shell does: drop what lies outside the chunk's own bounds."""
    return [
        offset
        for chunk in chunks
        for at in range(0, len(chunk.body), 4)
        if chunk.start <= (offset := int.from_bytes(chunk.body[at : at + 4], "big")) < chunk.limit
    ]


def test_an_empty_range_is_done_and_asks_for_nothing() -> None:
    empty = Asker(7, 7)

    assert empty.is_done
    assert empty.ask() == []


def test_each_open_segment_has_one_pull_and_no_more_than_depth_are_open() -> None:
    pulls = Asker(0, 100, segment=32, depth=2)

    assert pulls.ask() == [(0, 0, 32), (1, 32, 32)]
    assert pulls.ask() == []


def test_a_pull_never_asks_for_more_than_its_segment_has_left() -> None:
    pulls = Asker(10, 13, segment=32, depth=4)

    assert pulls.ask() == [(0, 10, 3)]


def test_a_short_answer_is_asked_further_and_never_taken_for_the_end() -> None:
    """A4: a broker may answer 8 messages, or none, where 32 were asked for."""
    pulls = Asker(0, 32, segment=32, depth=1)
    pulls.ask()

    pulls.answer(0, 8, body(*range(8)))
    assert pulls.ask() == [(0, 8, 24)]
    pulls.answer(0, 30, b"")
    assert not pulls.is_done
    assert pulls.ask() == [(0, 30, 2)]
    pulls.answer(0, 32, body(31))
    assert pulls.take() == [*range(8), 31]
    assert pulls.is_done


def test_a_later_segment_waits_for_the_earlier_ones() -> None:
    pulls = Asker(0, 8)
    pulls.ask()
    pulls.answer(1, 8, body(4, 5, 6, 7))

    assert pulls.take() == []
    pulls.answer(0, 2, body(0, 1))
    assert pulls.take() == [0, 1]
    pulls.ask()
    pulls.answer(0, 4, body(2, 3))
    assert pulls.take() == [2, 3, 4, 5, 6, 7]
    assert pulls.is_done


def test_surplus_past_a_segments_end_is_cut_by_the_limit() -> None:
    pulls = Asker(0, 8)
    pulls.ask()
    pulls.answer(0, 6, body(3, 4, 5))
    pulls.answer(1, 8, body(4, 5, 7))

    assert pulls.take() == [3, 4, 5, 7]


def test_an_inner_batch_that_begins_before_the_offset_asked_for_is_cut_by_the_start() -> None:
    pulls = Asker(0, 8)
    pulls.ask()
    pulls.answer(0, 6, body(0, 1, 2, 3, 4, 5))
    pulls.answer(1, 8, body(2, 3, 4, 5, 6, 7))

    assert pulls.take() == list(range(8))


@pytest.mark.parametrize("before", [1, 3, 9])
def test_what_is_pulled_before_the_range_is_gone_and_the_range_is_pulled(before: int) -> None:
    """F4: whether its beginning is there its own pulls show."""
    pulls = Asker(10, 18, before=before, fail_on_data_loss=True)
    seen: list[int] = []
    while not pulls.is_done:
        for segment_id, asked, _ in pulls.ask():
            if asked < 10:
                pulls.answer_with(segment_id, PullResult(PullStatus.OFFSET_ILLEGAL, 10, 10, 18, 0, b""))
            else:
                pulls.answer(segment_id, asked + 1, body(asked))
        seen += pulls.take()

    assert pulls.window.failure is None
    assert seen == list(range(10, 18))


def test_a_failed_pull_is_given_out_again() -> None:
    pulls = Asker(0, 8)
    pulls.ask()
    pulls.lose(0)

    assert pulls.ask() == [(0, 0, 4)]


@pytest.mark.parametrize(("next_begin_offset", "answer"), [(4, b""), (0, b""), (4, body(4))])
def test_an_answer_without_progress_is_trouble_and_its_task_comes_again(
    next_begin_offset: int, answer: bytes
) -> None:
    pulls = Asker(4, 8)
    pulls.ask()

    pulls.answer(0, next_begin_offset, answer)
    pulls.window.settle(0.0)

    assert pulls.take() == []
    assert pulls.window.pause_left_s(0.0) == pytest.approx(0.05)
    assert pulls.ask() == [(0, 4, 4)]


def test_with_too_many_bytes_waiting_only_the_first_open_segment_goes_on() -> None:
    pulls = Asker(0, 100, segment=4, depth=3, max_ahead_bytes=16)
    pulls.ask()
    pulls.answer(1, 6, body(4, 5))
    pulls.answer(2, 12, body(8, 9))
    assert pulls.window.segments.buffered_bytes == 16

    assert pulls.ask() == []
    pulls.answer(0, 2, b"")
    assert pulls.ask() == [(0, 2, 2)]
    pulls.answer(0, 4, b"")
    assert pulls.ask() == [(1, 6, 2)]
    assert pulls.take() == [4, 5]
    assert pulls.ask() == [(3, 12, 4), (4, 16, 4)]


def test_with_too_many_bytes_waiting_and_nothing_open_one_segment_is_opened() -> None:
    pulls = Asker(0, 100, segment=4, depth=3, max_ahead_bytes=4)
    for segment_id, *_ in pulls.ask():
        pulls.answer(segment_id, segment_id * 4 + 4, body(segment_id))

    assert pulls.ask() == [(3, 12, 4)]


@pytest.mark.parametrize("report", [lambda pulls: pulls.answer(0, 4, b""), lambda pulls: pulls.lose(0)])
def test_a_second_report_of_one_pull_is_refused(report: Callable[[Asker], None]) -> None:
    pulls = Asker(0, 8)
    pulls.ask()
    pulls.answer(0, 4, b"")

    with pytest.raises(ValueError, match="Segment 0 has no pull in flight"):
        report(pulls)


def test_a_range_that_was_stopped_is_over_with_what_it_has() -> None:
    pulls = Asker(0, 100)
    pulls.ask()
    pulls.answer(0, 4, body(0, 1, 2, 3))

    pulls.window.stop()

    assert pulls.window.is_over
    assert pulls.window.failure is None
    assert pulls.take() == [0, 1, 2, 3]


class ModelBroker:
    """A queue with a filter that gives fewer messages than asked and scans beyond them, as brokers may.

    Its first offsets may be gone; its replica may lag; now and then it is busy, or loses what it was asked.
    For so many pulls it is down, or it is a slave itself, which lags for as long.
    """

    def __init__(
        self,
        matching: set[int],
        bounds: range,
        replica_end: int,
        rng: random.Random,
        *,
        outage: int = 0,
        is_slave: bool = False,
    ) -> None:
        self.outage = outage
        self.is_slave = is_slave
        self.matching = matching
        self.bounds = bounds
        self.replica_end = replica_end
        self.rng = rng

    def pull(self, task: PullTask) -> PullResult | RocketMQError | None:
        """The answer; None if the pull was lost."""
        luck = self.rng.random()
        is_home = task.broker_id == MASTER_ID
        is_out = is_home and self.outage > 0
        self.outage -= is_out
        if is_out and not self.is_slave:
            return ConnectFailed("broker-a:10911", "refused")
        if luck < 0.1:
            return None
        if luck < 0.2:
            return SystemBusy(2, "busy", request="PULL_MESSAGE", address="broker-a:10911")
        lags = not is_home or is_out
        bounds = range(self.bounds.start, self.replica_end) if lags else self.bounds
        if not is_home or self.is_slave:
            return self._slaves_answer(task, bounds, luck)
        return self._answer(task, bounds)

    def _slaves_answer(self, task: PullTask, bounds: range, luck: float) -> PullResult:
        """Also 20 for an offset that is not there, or that is not read yet; the remark shows it."""
        if luck < 0.3:
            return PullResult(PullStatus.NO_MATCHED_MSG, task.queue_offset + 5, bounds.start, bounds.stop)
        answer = self._answer(task, bounds)
        is_hidden = task.queue_offset not in bounds and luck < 0.6
        return answer._replace(status=PullStatus.NO_MATCHED_MSG) if is_hidden else answer

    def _answer(self, task: PullTask, bounds: range) -> PullResult:
        asked, suggest = task.queue_offset, self.rng.randint(0, 2)
        if asked not in bounds:
            code = PullStatus.NO_NEW_MSG if asked == bounds.stop else PullStatus.OFFSET_ILLEGAL
            corrected = bounds.start if asked < bounds.start else bounds.stop
            return PullResult(code, corrected, bounds.start, bounds.stop, suggest)
        most = self.rng.randint(0, task.max_msg_nums)
        scan_end = min(bounds.stop, asked + self.rng.randint(1, 20))
        matching = [o for o in range(asked, scan_end) if o in self.matching]
        if len(matching) > most:
            scan_end, matching = matching[most], matching[:most]
        status = PullStatus.FOUND if matching else PullStatus.NO_MATCHED_MSG
        remark = "" if matching else "NO_MATCHED_MESSAGE"
        return PullResult(status, scan_end, bounds.start, bounds.stop, suggest, body(*matching), remark)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[ReadRange], list[ModelBroker], random.Random]:
    """Ranges to read, and the broker of each."""
    rng = random.Random(draw(st.integers(0, 1 << 32)))
    ranges, brokers = [], []
    for queue_id in range(draw(st.integers(1, 5))):
        start, length = draw(st.integers(0, 40)), draw(st.integers(0, 60))
        end = start + length
        share = draw(st.sampled_from([0.0, 0.2, 1.0]))
        beginning = draw(st.sampled_from([0, 0, start + length // 2]))
        bounds = range(beginning, end + draw(st.integers(1, 20)))
        is_slave = not beginning and draw(st.booleans())
        ranges.append(
            wanted(
                start,
                end,
                queue_id=queue_id,
                replicas={1: "r"} if not is_slave and draw(st.booleans()) else {},
                replaces_master=draw(st.booleans()),
                is_slave=is_slave,
                prefers_replica=draw(st.booleans()),
                subscription=draw(st.sampled_from(["*", "paid"])),
                newest=draw(st.sampled_from([None, NewestStored(bounds.stop - 1, 0)])),
                pull_batch_size=draw(st.integers(1, 10)),
                retry_timeout_s=float("inf"),
            )
        )
        matching = {o for o in bounds if rng.random() < share}
        replica_end, outage = draw(st.integers(beginning, bounds.stop)), draw(st.sampled_from([0, 5, 50]))
        brokers.append(ModelBroker(matching, bounds, replica_end, rng, outage=outage, is_slave=is_slave))
    return ranges, brokers, rng


class ModelShell:
    """A fetcher without connections, whose answers come in any order; checks what it is asked to send."""

    def __init__(
        self, pulls: FetchWindow, ranges: list[ReadRange], brokers: list[ModelBroker], rng: random.Random
    ) -> None:
        self.pulls = pulls
        self.received: list[list[int]] = [[] for _ in brokers]
        self.ended: set[int] = set()
        self._brokers = brokers
        self._rng = rng
        self._in_flight: list[PullTask] = []
        self._now_s = 0.0
        self.newest = {
            index: each.newest.queue_offset for index, each in enumerate(ranges) if each.newest is not None
        }
        self.log_checks: list[int] = []
        """Ranges whose planned log was looked at."""
        self.unknown: set[int] = set()
        """Ranges in ``log_checks`` whose broker did not answer."""

    def step(self, depth: int, max_bytes: int) -> None:
        """Receive some answers, send, and take or wait."""
        for _ in range(self._rng.randint(0, len(self._in_flight))):
            self._receive()
        self.pulls.settle(self._now_s)
        tasks = self.pulls.tasks(self._now_s)
        self._in_flight += tasks
        self._check(tasks, depth, max_bytes)
        if self.pulls.is_ready():
            self._take()
        elif not tasks and not self._in_flight:
            pause_s = self.pulls.shortest_pause_s(self._now_s)
            assert pause_s is not None, "stands still"
            self._now_s += pause_s

    def _receive(self) -> None:
        task = self._in_flight.pop(self._rng.randrange(len(self._in_flight)))
        outcome = self._brokers[task.range_index].pull(task)
        if task.is_log_check and not isinstance(outcome, PullResult):
            self.unknown.add(task.range_index)
        if outcome is None:
            self.pulls.lost(task, None, self._now_s)
        else:
            self.pulls.answered(task, outcome, self._now_s)

    def _check(self, tasks: list[PullTask], depth: int, max_bytes: int) -> None:
        in_flight = self._in_flight
        assert self.pulls.in_flight == len(in_flight) <= depth
        assert len({(task.range_index, task.segment_id) for task in in_flight}) == len(in_flight)
        held = sum(each.segments.buffered_bytes for each in self.pulls.ranges) + len(in_flight) * 256 * KIB
        assert not tasks or held <= max_bytes or len(in_flight) == 1
        assert all(self.pulls.ranges[task.range_index].may_ask(self._now_s) for task in tasks)
        for task in tasks:
            if task.is_log_check:
                own = [each for each in in_flight if each.range_index == task.range_index]
                assert own == [task], "the log may change before the others are answered"
                assert (task.broker_id, task.queue_offset) == (MASTER_ID, self.newest[task.range_index])
                self.log_checks.append(task.range_index)

    def _take(self) -> None:
        for each in self.pulls.take():
            assert each.range_index not in self.ended
            assert each.failure is None
            self.received[each.range_index] += offsets_of(each.chunks)
            self.ended |= {each.range_index} if each.is_last else set()


@given(
    world=worlds(),
    depth=st.integers(1, 8),
    max_bytes=st.sampled_from([1, 256 * KIB, 600 * KIB, 4 << 20]),
)
def test_any_broker_gives_exactly_the_messages_of_each_range_in_order_once(
    world: tuple[list[ReadRange], list[ModelBroker], random.Random], depth: int, max_bytes: int
) -> None:
    """A4, D1, F4, L3: random batch limits, filters, gaps, masters that are down, slaves in their places,
    order, troubles. A range of a batch read asks for its queue's last message when all else is answered.
    """
    ranges, brokers, rng = world
    shell = ModelShell(
        FetchWindow(ranges, depth=depth, max_bytes=max_bytes, log=lambda *_: None), ranges, brokers, rng
    )
    for _ in range(100_000):
        if not shell.pulls.is_open:
            break
        shell.step(depth, max_bytes)

    assert shell.ended == set(range(len(ranges)))
    for of, broker, offsets in zip(ranges, brokers, shell.received, strict=True):
        assert offsets == sorted(o for o in broker.matching if of.planned.start <= o < of.planned.end)
    assert sorted(shell.log_checks) == list(shell.newest)
    answered = [each.index for each in shell.pulls.ranges if each.newest_answer is not None]
    assert answered == [index for index in shell.newest if index not in shell.unknown]


def refused(code: int = 16) -> RocketMQError:
    return NoPermission(code, "no", request="PULL_MESSAGE", address="broker-a:10911")


@given(depth=st.integers(2, 16), count=st.integers(2, 8), refusing=st.integers(0, 7), data=st.data())
def test_a_failed_range_takes_nothing_from_the_others(
    depth: int, count: int, refusing: int, data: st.DataObject
) -> None:
    """One range is refused at some time; the others are read to their end,
    and its later answers change nothing.
    """
    refusing %= count
    pulls = FetchWindow(
        [wanted(0, 40, queue_id=index, pull_batch_size=4) for index in range(count)],
        depth=depth,
        max_bytes=64 << 20,
        log=lambda *_: None,
    )
    in_flight: list[PullTask] = []
    received: list[list[int]] = [[] for _ in range(count)]
    failures: dict[int, RocketMQError | None] = {}
    while pulls.is_open:
        in_flight += pulls.tasks(0.0)
        task = in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1)))
        if task.range_index == refusing and task.queue_offset >= 16:
            pulls.answered(task, refused(), 0.0)
        else:
            end = task.queue_offset + task.max_msg_nums
            pulls.answered(task, found(end, body(*range(task.queue_offset, end))), 0.0)
        pulls.settle(0.0)
        if pulls.is_ready():
            for each in pulls.take():
                received[each.range_index] += offsets_of(each.chunks)
                if each.is_last:
                    failures[each.range_index] = each.failure

    assert [index for index, failure in failures.items() if failure is not None] == [refusing]
    assert isinstance(failures[refusing], NoPermission)
    for index, offsets in enumerate(received):
        assert offsets == list(range(len(offsets)))
        assert len(offsets) == 40 or (index == refusing and len(offsets) <= 16)


def test_every_range_gets_its_share_of_the_pulls_in_flight() -> None:
    ranges = [wanted(0, 1000, queue_id=index, pull_batch_size=4) for index in range(4)]
    pulls = FetchWindow(ranges, depth=8, max_bytes=64 << 20, log=lambda *_: None)

    tasks = pulls.tasks(0.0)

    assert sorted(task.range_index for task in tasks) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert pulls.tasks(0.0) == []


def test_more_pulls_are_sent_after_the_answers_to_the_next_burst() -> None:
    """A4: so a reader may wait for them together."""
    ranges = [wanted(0, 1000, queue_id=index, pull_batch_size=4) for index in range(4)]
    pulls = FetchWindow(ranges, depth=8, max_bytes=64 << 20, log=lambda *_: None)
    first_of = {task.range_index: task for task in reversed(pulls.tasks(0.0))}

    assert pulls.answers_to_next_burst == len(first_of) == 4
    for task in first_of.values():
        assert pulls.tasks(0.0) == []
        pulls.answered(task, found(4, b"x"), 0.0)
    assert pulls.answers_to_next_burst == 1
    assert len(pulls.tasks(0.0)) == 4


def test_no_pull_is_sent_that_there_is_no_room_for() -> None:
    """What an answer takes is guessed by the largest so far."""
    pulls = FetchWindow(
        [wanted(0, 1000, pull_batch_size=4)], depth=8, max_bytes=1200 * KIB, log=lambda *_: None
    )

    first, *others = pulls.tasks(0.0)
    assert len(others) == 3
    for task in others:
        pulls.answered(task, found(task.queue_offset + 4, b"x" * 300 * KIB), 0.0)

    assert pulls.tasks(0.0) == []
    pulls.answered(first, found(4, b"x" * 300 * KIB), 0.0)
    assert pulls.is_ready()


def test_a_gap_is_passed_and_reported_once_or_is_an_error() -> None:
    """F4"""
    told: list[tuple[object, ...]] = []
    gone = PullResult(PullStatus.OFFSET_ILLEGAL, 24, 24, 1000)
    for fails in (False, True):
        pulls = RangeWindow(
            0,
            wanted(0, 100, pull_batch_size=4, fail_on_data_loss=fails),
            segment=4,
            depth=4,
            log=lambda *what: told.append(what),
        )
        for task in pulls.tasks(4, 0.0):
            pulls.answered(task, gone, 0.0)
        pulls.settle(0.0)
        if fails:
            assert isinstance(pulls.failure, MessagesExpired)
            assert pulls.failure.wanted == 0
        else:
            assert pulls.failure is None
            assert pulls.skipped == range(24)

    assert len(told) == 1


@pytest.mark.parametrize("is_group_read", [True, False])
@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize(
    ("status", "remark", "is_repeated"),
    [
        pytest.param(PullStatus.NO_MATCHED_MSG, "MESSAGE_WAS_REMOVING", False, id="a file of the log"),
        pytest.param(PullStatus.NO_NEW_MSG, "OFFSET_FOUND_NULL", True, id="a file of the queue"),
        pytest.param(PullStatus.OFFSET_ILLEGAL, "OFFSET_TOO_SMALL", False, id="tiered storage"),
    ],
)
def test_offsets_that_a_broker_reports_to_be_gone_within_the_queue_are_a_gap(
    status: PullStatus, remark: str, is_repeated: bool, fails: bool, is_group_read: bool
) -> None:
    """F4: under a filter, nothing else would show it. An answer that may pass is asked for again first."""
    gone = PullResult(status, 24, 0, 1000, 0, b"", remark)
    pulls = window(
        0,
        100,
        segment=100,
        subscription="paid",
        fail_on_data_loss=fails,
        is_group_read=is_group_read,
        retry_timeout_s=1.0,
    )

    for now_s in (0.0, 1.0) if is_repeated else (0.0,):
        assert pulls.failure is None
        assert not pulls.skipped
        (task,) = pulls.tasks(1, now_s)
        pulls.answered(task, gone, now_s)
        pulls.settle(now_s)

    if fails:
        assert isinstance(pulls.failure, MessagesExpired)
        assert (pulls.failure.wanted, pulls.failure.available) == (0, "24 (inclusive) to 1000 (exclusive)")
    else:
        assert pulls.failure is None
        assert pulls.skipped == range(24)
        assert [task.queue_offset for task in pulls.tasks(1, 2.0)] == [24]


def test_without_a_filter_the_reader_judges_a_file_of_the_log_that_is_gone() -> None:
    """F4: a compacted topic has gaps by design."""
    pulls = window(0, 100, segment=100, fail_on_data_loss=True, is_group_read=True)

    (task,) = pulls.tasks(1, 0.0)
    gone = PullResult(PullStatus.NO_MATCHED_MSG, 24, 0, 1000, 0, b"", "MESSAGE_WAS_REMOVING")
    pulls.answered(task, gone, 0.0)
    pulls.settle(0.0)

    assert pulls.failure is None
    assert [task.queue_offset for task in pulls.tasks(1, 0.0)] == [24]


@pytest.mark.parametrize("end", [OPEN_END, 10_000], ids=["open", "closed"])
def test_successes_behind_a_hole_do_not_make_its_time_begin_again(end: int) -> None:
    """F4: a queue to which producers send would stand at the hole for ever."""
    of = wanted(0, end, pull_batch_size=4, is_group_read=True, fail_on_data_loss=True, retry_timeout_s=10.0)
    pulls = FetchWindow([of], depth=4, max_bytes=64 << 20, log=lambda *_: None)
    (of_queue,) = pulls.ranges
    now_s, queue_end = 0.0, 8 if end == OPEN_END else end

    while of_queue.failure is None:
        assert now_s < 12.0
        queue_end += 4
        for task in pulls.tasks(now_s):
            asked = task.queue_offset
            if asked < 4:
                gone = PullResult(PullStatus.NO_NEW_MSG, 4, 0, queue_end, 0, b"", "OFFSET_FOUND_NULL")
                pulls.answered(task, gone, now_s)
            else:
                stop = min(asked + 4, queue_end)
                status = PullStatus.FOUND if stop > asked else PullStatus.NO_NEW_MSG
                answer = PullResult(status, stop, 0, queue_end, 0, body(*range(asked, stop)))
                pulls.answered(task, answer, now_s)
        pulls.settle(now_s)
        now_s += 0.25

    assert isinstance(of_queue.failure, MessagesExpired)
    assert now_s >= 10.0


def test_a_hole_is_a_gap_at_once_where_no_pull_is_repeated() -> None:
    """F4: with retryTimeoutMs=0, a group would plan the same range again for ever."""
    pulls = window(0, 100, segment=100, fail_on_data_loss=True, is_group_read=True, retry_timeout_s=0.0)

    (task,) = pulls.tasks(1, 0.0)
    gone = PullResult(PullStatus.NO_NEW_MSG, 24, 0, 1000, 0, b"", "OFFSET_FOUND_NULL")
    pulls.answered(task, gone, 0.0)
    pulls.settle(0.0)

    assert isinstance(pulls.failure, MessagesExpired)


@pytest.mark.parametrize("next_begin_offset", [0, 1001], ids=["another kind of queue", "no later file"])
def test_an_empty_place_of_a_queue_without_a_later_one_may_be_read_later(next_begin_offset: int) -> None:
    """F4: RocksDB's queues answer 0; nothing is known to be gone."""
    pulls = window(0, 100, segment=100, fail_on_data_loss=False, retry_timeout_s=1.0)

    for now_s in (0.0, 1.0):
        (task,) = pulls.tasks(1, now_s)
        empty = PullResult(PullStatus.NO_NEW_MSG, next_begin_offset, 0, 1000, 0, b"", "OFFSET_FOUND_NULL")
        pulls.answered(task, empty, now_s)
        pulls.settle(now_s)

    assert isinstance(pulls.failure, SystemBusy)
    assert not pulls.skipped


@pytest.mark.parametrize("end", [6, 0], ids=["shorter", "empty"])
@pytest.mark.parametrize("fails", [True, False])
def test_a_log_that_still_ends_within_the_range_after_the_patience_has_lost_its_tail(
    fails: bool, end: int
) -> None:
    """F4: a broker answers a pull at its queue's end as if nothing was lost."""
    pulls = window(0, 8, segment=8, fail_on_data_loss=fails, retry_timeout_s=1.0)
    if end:
        pulls.answered(pulls.tasks(1, 0.0)[0], found(end, body(*range(end))), 0.0)

    for now_s in (0.0, 1.0):
        assert pulls.failure is None
        assert not pulls.skipped
        (task,) = pulls.tasks(1, now_s)
        pulls.answered(task, PullResult(PullStatus.NO_NEW_MSG, end, 0, end), now_s)
        pulls.settle(now_s)

    assert offsets_of(pulls.take()) == list(range(end))
    if fails:
        assert isinstance(pulls.failure, LogTailLost)
        assert pulls.failure.wanted == end
    else:
        assert pulls.failure is None
        assert pulls.is_over
        assert pulls.skipped == range(end, 8)


@pytest.mark.parametrize(
    ("queue_end", "changes"),
    [
        pytest.param(8, {}, id="the queue has the offset"),
        pytest.param(6, {"is_group_read": True}, id="a group plans again"),
        pytest.param(6, {"is_slave": True}, id="a slave that lags"),
    ],
)
def test_nothing_at_an_offset_is_no_loss_where_the_broker_may_have_it_later(
    queue_end: int, changes: dict[str, Any]
) -> None:
    """F4"""
    pulls = window(6, 8, segment=8, retry_timeout_s=1.0, **changes)

    for now_s in (0.0, 1.0):
        (task,) = pulls.tasks(1, now_s)
        pulls.answered(task, PullResult(PullStatus.NO_NEW_MSG, 6, 0, queue_end), now_s)
        pulls.settle(now_s)

    assert isinstance(pulls.failure, SystemBusy)


def test_a_log_that_ends_within_the_range_once_after_other_errors_has_lost_nothing_yet() -> None:
    """F4: the broker may have just started."""
    pulls = window(6, 8, segment=8, retry_timeout_s=1.0, fail_on_data_loss=False)
    (task,) = pulls.tasks(1, 0.0)
    pulls.lost(task, ChannelClosed("broker-a:10911", "it restarts"), 0.0)
    pulls.settle(0.0)

    (task,) = pulls.tasks(1, 1.0)
    pulls.answered(task, PullResult(PullStatus.NO_NEW_MSG, 6, 0, 6), 1.0)
    pulls.settle(1.0)

    assert not pulls.skipped
    assert isinstance(pulls.failure, SystemBusy)


SHORTER = [
    PullResult(PullStatus.NO_MATCHED_MSG, 5, 0, 5, 0, b"", "OFFSET_OVERFLOW_BADLY"),
    PullResult(PullStatus.NO_MATCHED_MSG, 7, 0, 5, 0, b"", "OFFSET_OVERFLOW_BADLY"),
    PullResult(PullStatus.NO_MATCHED_MSG, 0, 0, 0, 0, b"", "NO_MESSAGE_IN_QUEUE"),
    PullResult(PullStatus.NO_NEW_MSG, 5, 0, 5),
]
"""Answers of a broker whose queue ends before offset 8; a master that has become a slave gives the first three.
"""


@pytest.mark.parametrize("shorter", SHORTER)
@pytest.mark.parametrize("fails", [True, False])
def test_a_groups_range_ends_as_soon_as_its_log_ends_before_an_offset_that_is_pulled(
    fails: bool, shorter: PullResult
) -> None:
    """F4: by the time of another try, other messages may have these offsets. The planner judges the loss."""
    pulls = window(4, 12, depth=3, before=1, is_group_read=True, fail_on_data_loss=fails)
    first, second, third = pulls.tasks(3, 0.0)
    pulls.answered(first, found(7, body(3, 4, 5, 6)), 0.0)
    pulls.answered(third, found(12, body(11)), 0.0)
    pulls.answered(second, shorter, 0.0)
    pulls.settle(0.0)

    assert isinstance(pulls.failure, TailLost)
    assert offsets_of(pulls.take()) == [3, 4, 5, 6]


@pytest.mark.parametrize("shorter", SHORTER)
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"is_group_read": False}, id="nothing plans the rest again"),
        pytest.param({"is_group_read": True, "is_slave": True}, id="the slave may lag"),
    ],
)
def test_another_range_waits_for_the_offset_that_is_pulled(
    shorter: PullResult, changes: dict[str, Any]
) -> None:
    """A8, F4"""
    pulls = window(8, 12, **changes)
    pulls.answered(pulls.tasks(1, 0.0)[0], shorter, 0.0)
    pulls.settle(0.0)

    assert pulls.failure is None
    assert pulls.pause_left_s(0.0) > 0


def test_the_next_pull_goes_to_the_replica_that_the_last_answer_suggests() -> None:
    """A4: to the slave, where it stays while that suggests itself, and back to the master."""
    pulls = window(0, 100, segment=100, depth=1, replicas={1: "broker-a-s:10911"})
    asked = []

    for at, suggested in enumerate((1, 1, 0, 0)):
        (task,) = pulls.tasks(1000, 0.0)
        asked.append(task.broker_id)
        pulls.answered(task, found(at + 1, body(at), suggest=suggested), 0.0)

    assert asked == [0, 1, 1, 0]


def test_the_answer_about_the_log_is_kept_when_its_buffer_is_used_again() -> None:
    """F4: the reader looks at it after other answers were received into the same memory."""
    pulls = FetchWindow(
        [wanted(0, 0, newest=NewestStored(7, 0))], depth=8, max_bytes=64 << 20, log=lambda *_: None
    )
    (task,) = pulls.tasks(0.0)
    received = bytearray(body(7))

    pulls.answered(task, found(8, b"")._replace(status=PullStatus.FOUND, body=memoryview(received)), 0.0)
    received[:] = b"\0" * len(received)

    (window,) = pulls.ranges
    assert window.newest_answer is not None
    assert window.newest_answer.body == body(7)
    assert window.is_over


def test_the_last_messages_are_handed_out_while_the_log_is_looked_at() -> None:
    """A4: they are decoded meanwhile."""
    pulls = FetchWindow(
        [wanted(0, 1, newest=NewestStored(0, 0))], depth=8, max_bytes=64 << 20, log=lambda *_: None
    )
    (task,) = pulls.tasks(0.0)
    pulls.answered(task, found(1, body(0)), 0.0)
    (check,) = pulls.tasks(0.0)

    assert pulls.is_ready()
    assert [(offsets_of(each.chunks), each.is_last) for each in pulls.take()] == [([0], False)]
    assert not pulls.is_ready()
    pulls.answered(check, found(1, body(0)), 0.0)
    assert pulls.is_ready()
    assert [(each.chunks, each.is_last) for each in pulls.take()] == [([], True)]
    assert not pulls.is_open
