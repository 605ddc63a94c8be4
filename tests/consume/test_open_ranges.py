"""Ranges that go on with their queues: what is pulled at the end, and what any brokers make of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.fetch_window import FetchWindow, PullTask, QueueReset, TailLost
from pyspark_rocketmq.consume.generations import NO_WITNESSES, Witnesses
from pyspark_rocketmq.consume.read_range import ReadRange
from pyspark_rocketmq.consume.segments import PullChunk
from pyspark_rocketmq.consume.slave_reads import MASTER_ID
from pyspark_rocketmq.errors import (
    ConnectFailed,
    ConsumptionForbidden,
    RocketMQError,
    SystemBusy,
)
from pyspark_rocketmq.model import OPEN_END, BrokerAddress, MessageQueue, QueueRange
from pyspark_rocketmq.stored_values import LastMessage
from pyspark_rocketmq.wire.requests.pull import PullResult, PullStatus
from tests.helpers.partitions import DEFAULT_SETTINGS, changed

HELD_S = 15.0
WANTED = ReadRange(
    planned=QueueRange.between(MessageQueue("orders", "broker-a", 0), 0, OPEN_END),
    address=BrokerAddress("broker-a:10911"),
    subscription="*",
    settings=DEFAULT_SETTINGS._replace(
        consumer_group="g",
        is_group_read=True,
        fail_on_data_loss=False,
        retry_timeout_s=60.0,
        replaces_master=False,
        pull_batch_size=4,
        has_worked=True,
    ),
)


def wanted(
    start: int = 0, end: int = OPEN_END, *, queue_id: int = 0, before: int = 0, **changes: Any
) -> ReadRange:
    planned = QueueRange.between(MessageQueue("orders", "broker-a", queue_id), start, end)
    witnesses = Witnesses(LastMessage(start - before, 0, 0)) if before else NO_WITNESSES
    return changed(WANTED, planned=planned, witnesses=witnesses, **changes)


def body(*offsets: int) -> bytes:
    return b"".join(offset.to_bytes(4, "big") for offset in offsets)


def offsets_of(chunks: list[PullChunk]) -> list[int]:
    return [
        offset
        for chunk in chunks
        for at in range(0, len(chunk.body), 4)
        if chunk.start <= (offset := int.from_bytes(chunk.body[at : at + 4], "big")) < chunk.limit
    ]


class Pulls:
    """A window whose broker is the test."""

    def __init__(self, *ranges: ReadRange, depth: int = 4, max_bytes: int = 64 << 20) -> None:
        self.logged: list[str] = []
        self.window = FetchWindow(
            ranges or (wanted(),),
            depth=depth,
            max_bytes=max_bytes,
            log=lambda level, text, *_: self.logged.append(text),
        )
        self.now_s = 0.0

    def ask(self) -> list[PullTask]:
        return self.window.tasks(self.now_s)

    def answer(self, task: PullTask, outcome: PullResult | RocketMQError) -> None:
        self.window.answered(task, outcome, self.now_s)
        self.window.settle(self.now_s)

    def found(self, task: PullTask, count: int, end: int) -> None:
        """Give ``count`` messages of a queue that ends at ``end``."""
        start = task.queue_offset
        offsets = range(start, start + count)
        self.answer(task, PullResult(PullStatus.FOUND, start + count, 0, end, 0, body(*offsets)))

    def take(self) -> list[int]:
        return [offset for each in self.window.take() for offset in offsets_of(each.chunks)]


def nothing(at: int, *, end: int | None = None) -> PullResult:
    return PullResult(PullStatus.NO_NEW_MSG, at, 0, at if end is None else end)


def asked(tasks: list[PullTask]) -> list[tuple[int, int, bool]]:
    return [(task.queue_offset, task.max_msg_nums, task.is_held) for task in tasks]


def test_the_first_pull_finds_the_end_and_the_rest_is_pulled_as_usual() -> None:
    pulls = Pulls()

    (first,) = pulls.ask()
    assert asked([first]) == [(0, 4, True)]
    assert pulls.window.in_flight == 0
    pulls.found(first, 2, 300)

    assert asked(pulls.ask()) == [(2, 2, False), (4, 4, False), (8, 4, False), (12, 4, False)]
    assert pulls.window.in_flight == 4


def test_at_the_end_one_pull_is_held_and_made_again_for_as_many_messages() -> None:
    pulls = Pulls()
    for at in range(20):
        (held,) = pulls.ask()
        assert asked([held]) == [(at, 4, True)]
        assert pulls.ask() == []
        pulls.found(held, 1, at + 1)
        assert pulls.window.is_ready()
        assert pulls.take() == [at]


def test_a_few_more_messages_at_the_end_are_pulled_without_waiting() -> None:
    pulls = Pulls()
    pulls.found(pulls.ask()[0], 3, 9)

    first, second, third = pulls.ask()
    assert asked([first, second, third]) == [(3, 1, False), (4, 4, False), (8, 4, False)]
    pulls.found(first, 1, 9)
    pulls.found(second, 4, 9)
    pulls.found(third, 1, 9)

    assert pulls.take() == list(range(9))
    assert asked(pulls.ask()) == [(9, 4, True)]


def test_an_end_without_messages_is_no_trouble_however_often_it_comes() -> None:
    pulls = Pulls()
    for _ in range(100):
        (held,) = pulls.ask()
        pulls.now_s += HELD_S
        pulls.answer(held, nothing(0))

    assert asked(pulls.ask()) == [(0, 4, True)]
    assert pulls.logged == []
    assert pulls.window.shortest_pause_s(pulls.now_s) is None
    assert not pulls.window.is_ready()


def test_a_server_that_holds_no_pulls_is_asked_every_two_seconds() -> None:
    pulls = Pulls()
    pauses = []
    for _ in range(8):
        (held,) = pulls.ask()
        pulls.answer(held, nothing(0))
        assert pulls.ask() == []
        pause_s = pulls.window.shortest_pause_s(pulls.now_s)
        assert pause_s is not None
        pauses.append(pause_s)
        pulls.now_s += pause_s
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])

    pulls.found(pulls.ask()[0], 1, 1)
    assert asked(pulls.ask()) == [(1, 4, True)]
    assert pulls.logged == []


def test_a_range_that_is_behind_is_gathered_and_its_last_messages_are_not() -> None:
    pulls = Pulls()
    pulls.found(pulls.ask()[0], 4, 1000)
    pulls.ask()
    assert not pulls.window.is_ready()

    pulls = Pulls()
    pulls.found(pulls.ask()[0], 4, 260)
    pulls.ask()
    assert pulls.window.is_ready()


def test_a_range_at_its_end_is_handed_out_although_another_is_gathered() -> None:
    pulls = Pulls(wanted(queue_id=0), wanted(queue_id=1))
    behind, at_end = pulls.ask()
    pulls.found(behind, 4, 1000)
    assert len(pulls.ask()) == 4
    assert not pulls.window.is_ready()
    pulls.found(at_end, 1, 1)

    assert pulls.window.is_ready()


def test_ranges_at_their_ends_leave_the_others_every_pull() -> None:
    pulls = Pulls(*(wanted(queue_id=index) for index in range(8)), depth=8)
    tasks = pulls.ask()
    pulls.found(tasks[3], 4, 1000)

    assert [(task.range_index, task.is_held) for task in pulls.ask()] == [(3, False)] * 8


def test_a_closed_range_beside_open_ones_is_read_as_always() -> None:
    pulls = Pulls(wanted(queue_id=0), wanted(0, 8, queue_id=1))
    held, first, second = pulls.ask()
    assert asked([held, first, second]) == [(0, 4, True), (0, 4, False), (4, 4, False)]
    pulls.found(first, 4, 100)
    pulls.found(second, 4, 100)

    (ended,) = pulls.window.take()
    assert (ended.range_index, ended.is_last, ended.reached) == (1, True, 8)
    assert pulls.window.is_open
    assert pulls.ask() == []


def test_nothing_is_pulled_for_a_range_on_hold_until_it_goes_on() -> None:
    pulls = Pulls(wanted(queue_id=0), wanted(queue_id=1))
    first, second = pulls.ask()
    pulls.window.ranges[0].is_on_hold = True
    pulls.found(first, 1, 1)
    pulls.found(second, 1, 1)

    assert [task.range_index for task in pulls.ask()] == [1]
    assert pulls.take() == [0, 0]
    pulls.window.ranges[0].is_on_hold = False
    assert [(task.range_index, task.queue_offset) for task in pulls.ask()] == [(0, 1)]


def test_trouble_of_the_transport_never_ends_an_open_range() -> None:
    """A closed one of a group ends after 10 s."""
    pulls = Pulls()
    pauses = []
    while pulls.now_s < 3600:
        (held,) = pulls.ask()
        pulls.answer(held, ConnectFailed("broker-a:10911", "refused"))
        pause_s = pulls.window.shortest_pause_s(pulls.now_s)
        assert pause_s is not None
        pauses.append(pause_s)
        pulls.now_s += pause_s

    assert max(pauses) == pytest.approx(2.0)
    assert pulls.window.ranges[0].failure is None
    # Every attempt of the first 10 s, then one each minute.
    assert 65 <= len(pulls.logged) <= 75
    pulls.found(pulls.ask()[0], 1, 1)
    assert pulls.take() == [0]


def test_an_open_range_ends_at_the_first_answer_on_another_connection() -> None:
    """F4: the broker may have lost the end of its log meanwhile; the next plan compares."""
    pulls = Pulls()
    pulls.found(pulls.ask()[0], 3, 3)
    assert pulls.take() == [0, 1, 2]
    error = ConnectFailed("broker-a:10911", "refused")
    for _ in range(100):
        (held,) = pulls.ask()
        pulls.answer(held, error)
        pulls.now_s += 2.0
    assert pulls.window.ranges[0].failure is None
    pulls.answer(pulls.ask()[0], SystemBusy(2, "busy", request="PULL_MESSAGE", address="broker-a:10911"))
    pulls.now_s += 2.0
    assert pulls.window.ranges[0].failure is None
    pulls.found(pulls.ask()[0], 4, 9)

    (ended,) = pulls.window.take()
    assert (offsets_of(ended.chunks), ended.is_last, ended.failure) == ([], True, error)
    assert pulls.ask() == []


def test_an_open_range_ends_on_another_connection_although_no_message_has_come_yet() -> None:
    """F4: those before the range were compared only with the first answer."""
    pulls = Pulls()
    pulls.answer(pulls.ask()[0], nothing(0))
    pulls.now_s += 2.0
    pulls.answer(pulls.ask()[0], ConnectFailed("broker-a:10911", "refused"))
    pulls.now_s += 2.0
    pulls.answer(pulls.ask()[0], nothing(0))

    assert [each.is_last for each in pulls.window.take()] == [True]


def test_an_open_range_ends_when_its_master_is_back_although_a_replica_was_read_meanwhile() -> None:
    """F4, L3"""
    pulls = Pulls(wanted(replicas={1: "r"}, replaces_master=True))
    pulls.answer(pulls.ask()[0], nothing(0))
    pulls.now_s += 2.0
    error = ConnectFailed("broker-a:10911", "refused")
    pulls.answer(pulls.ask()[0], error)
    brokers = set()
    while pulls.window.ranges[0].failure is None:
        for task in pulls.ask():
            brokers.add(task.broker_id)
            pulls.answer(task, nothing(0))
        pulls.now_s += 2.0

    assert brokers == {MASTER_ID, 1}
    assert pulls.window.ranges[0].failure is error


def test_a_reset_that_is_reported_on_another_connection_is_not_lost() -> None:
    """F5: the broker reports it only once."""
    pulls = Pulls()
    pulls.found(pulls.ask()[0], 3, 3)
    pulls.answer(pulls.ask()[0], ConnectFailed("broker-a:10911", "refused"))
    pulls.now_s += 2.0
    pulls.answer(pulls.ask()[0], PullResult(PullStatus.OFFSET_ILLEGAL, 1, 0, 4))

    (ended,) = pulls.window.take()
    assert isinstance(ended.failure, QueueReset)


@pytest.mark.parametrize("error", [ConsumptionForbidden(16, "no", request="PULL", address="a:1")])
def test_a_refusal_ends_an_open_range(error: RocketMQError) -> None:
    pulls = Pulls()
    pulls.answer(pulls.ask()[0], error)

    (ended,) = pulls.window.take()
    assert ended.failure is error
    assert not pulls.window.is_open


def test_a_reset_that_a_held_pull_brings_ends_the_range_with_its_target() -> None:
    """F5"""
    pulls = Pulls()
    pulls.found(pulls.ask()[0], 4, 4)
    pulls.answer(pulls.ask()[0], PullResult(PullStatus.OFFSET_ILLEGAL, 1, 0, 4))

    (ended,) = pulls.window.take()
    assert offsets_of(ended.chunks) == [0, 1, 2, 3]
    assert isinstance(ended.failure, QueueReset)
    assert ended.failure.target == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_log_that_lost_its_tail_ends_the_range(fails: bool) -> None:
    """F4, L3: also with failOnDataLoss, because the broker may have restarted, and not have its role yet."""
    pulls = Pulls(wanted(8, fail_on_data_loss=fails))
    pulls.answer(pulls.ask()[0], PullResult(PullStatus.OFFSET_ILLEGAL, 5, 0, 5))

    (ended,) = pulls.window.take()
    assert isinstance(ended.failure, TailLost)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    "shorter",
    [
        PullResult(PullStatus.NO_MATCHED_MSG, 8, 0, 5, 0, b"", "OFFSET_OVERFLOW_BADLY"),
        PullResult(PullStatus.NO_NEW_MSG, 5, 0, 5),
    ],
)
def test_a_master_that_became_a_slave_with_a_shorter_log_ends_the_range(
    shorter: PullResult, fails: bool
) -> None:
    """F4: it was pulled for ever, until other messages had the offsets of those consumed."""
    pulls = Pulls(wanted(8, before=1, fail_on_data_loss=fails))
    pulls.answer(pulls.ask()[0], shorter._replace(max_offset=7))
    pulls.answer(pulls.ask()[0], shorter)

    (ended,) = pulls.window.take()
    assert isinstance(ended.failure, TailLost)


def test_a_log_without_the_message_before_the_range_ends_it_too() -> None:
    """F4: the queue ends before the range, at the message that is only compared."""
    pulls = Pulls(wanted(8, before=1))
    pulls.answer(pulls.ask()[0], nothing(7))
    pulls.answer(pulls.ask()[0], PullResult(PullStatus.OFFSET_ILLEGAL, 7, 0, 7))

    (ended,) = pulls.window.take()
    assert isinstance(ended.failure, TailLost)


def test_a_gap_in_an_open_range_is_passed_on_demand() -> None:
    """F4"""
    pulls = Pulls()
    gone = PullResult(PullStatus.OFFSET_ILLEGAL, 24, 24, 30)
    while (tasks := pulls.ask())[0].queue_offset < 30:
        for task in tasks:
            if task.queue_offset < 24:
                pulls.answer(task, gone)
            else:
                pulls.found(task, min(4, 30 - task.queue_offset), 30)

    assert pulls.window.ranges[0].skipped == range(24)
    assert pulls.take() == list(range(24, 30))
    assert pulls.logged == ["offset gap %s wanted=%d available=%s continuing_at=%d"]


def test_nothing_where_the_queue_goes_on_is_asked_again_after_a_pause() -> None:
    """A damaged consume queue is answered like an end; no range may spin there."""
    pulls = Pulls()
    pulls.answer(pulls.ask()[0], nothing(0, end=50))

    assert pulls.ask() == []
    assert pulls.window.shortest_pause_s(0.0) == pytest.approx(0.05)
    assert pulls.logged == ["pull failed, trying again %s: %s"]


def test_offsets_without_matching_messages_bring_an_open_range_forward() -> None:
    """A4: the next list of chunks shows how far, though it has no message."""
    pulls = Pulls(wanted(subscription="paid"))
    (held,) = pulls.ask()
    pulls.answer(held, PullResult(PullStatus.NO_MATCHED_MSG, 10, 0, 10, 0, b"", "NO_MATCHED_MESSAGE"))

    assert not pulls.window.is_ready()
    ((index, chunks, is_last, failure, reached),) = pulls.window.take()
    assert (index, chunks, is_last, failure, reached) == (0, [], False, None, 10)
    assert pulls.window.take() == []


@pytest.mark.parametrize("status", [PullStatus.NO_NEW_MSG, PullStatus.NO_MATCHED_MSG])
def test_a_replica_with_nothing_more_leaves_the_queue_to_its_master(status: PullStatus) -> None:
    """A4: it may lag; there is no error to report, and no pause."""
    pulls = Pulls(wanted(replicas={1: "r"}, prefers_replica=True))
    (held,) = pulls.ask()
    pulls.answer(held, nothing(0)._replace(status=status))
    (waits,) = pulls.ask()
    pulls.now_s += HELD_S
    pulls.answer(waits, nothing(0))
    (waits_again,) = pulls.ask()
    pulls.found(waits_again, 1, 1)

    assert [each.broker_id for each in (held, waits, waits_again, *pulls.ask())] == [1, 0, 0, 1]
    assert pulls.logged == []


def test_messages_at_the_end_come_from_the_master_for_a_while_though_a_replica_is_preferred() -> None:
    """Else each of them would cost a pull of the replica, too."""
    pulls = Pulls(wanted(replicas={1: "r"}, prefers_replica=True))
    brokers = []
    for _ in range(8):
        (held,) = pulls.ask()
        brokers.append(held.broker_id)
        pulls.now_s += 2.0
        if held.broker_id == MASTER_ID:
            pulls.found(held, 1, held.queue_offset + 1)
        else:
            pulls.answer(held, nothing(held.queue_offset))

    assert brokers == [1, 0, 0, 0, 0, 0, 1, 0]


def test_a_slave_in_the_place_of_its_master_holds_pulls_too() -> None:
    """L3: 5.x holds them while the master is down; nothing is logged."""
    pulls = Pulls(wanted(is_slave=True))
    for _ in range(3):
        (held,) = pulls.ask()
        pulls.now_s += HELD_S
        pulls.answer(held, nothing(0))
    pulls.found(pulls.ask()[0], 1, 1)

    assert pulls.take() == [0]
    assert pulls.logged == []


def test_a_slave_that_holds_no_pulls_in_the_place_of_its_master_is_asked_every_two_seconds() -> None:
    """L3: as those of 5.x without an acting master."""
    pulls = Pulls(wanted(is_slave=True))
    pauses = pauses_at_end(pulls, 8, broker_id=MASTER_ID)

    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])
    assert pulls.logged == []


def test_a_replica_of_a_dead_master_is_asked_every_two_seconds_at_its_end() -> None:
    """L3: neither is asked without a pause, and the master only once in a while."""
    pulls = Pulls(wanted(replicas={1: "r"}, replaces_master=True))
    (held,) = pulls.ask()
    pulls.answer(held, ConnectFailed("broker-a:10911", "refused"))

    assert pauses_at_end(pulls, 7, broker_id=1) == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0])
    assert len(pulls.logged) == 1


def test_a_range_ends_where_a_replica_may_lack_messages_of_the_dead_master() -> None:
    """L3, F4: as the new master it would store others at their offsets; the next plan compares."""
    pulls = Pulls(wanted(replicas={1: "r"}, replaces_master=True))
    pulls.found(pulls.ask()[0], 3, 3)
    error = ConnectFailed("broker-a:10911", "refused")
    pulls.answer(pulls.ask()[0], error)

    (ended,) = pulls.window.take()
    assert (offsets_of(ended.chunks), ended.is_last, ended.failure) == ([0, 1, 2], True, error)


@pytest.mark.parametrize("before", [0, 1])
def test_a_filtered_range_ends_when_its_master_dies_after_offsets_without_messages(before: int) -> None:
    """L3, F4: a replica that lacks them would store others at their offsets."""
    pulls = Pulls(wanted(8, before=before, subscription="paid", replicas={1: "r"}, replaces_master=True))
    pulls.answer(
        pulls.ask()[0], PullResult(PullStatus.NO_MATCHED_MSG, 10, 0, 10, 0, b"", "NO_MATCHED_MESSAGE")
    )
    error = ConnectFailed("broker-a:10911", "refused")
    pulls.answer(pulls.ask()[0], error)

    (ended,) = pulls.window.take()
    assert (ended.is_last, ended.failure, ended.reached) == (True, error, 10)


def test_a_range_whose_consumed_message_only_the_master_has_shown_ends_when_the_master_dies() -> None:
    """L3, F4: with a filter no pull of the range shows whether the replica has it."""
    pulls = Pulls(wanted(8, before=1, subscription="paid", replicas={1: "r"}, replaces_master=True))
    (held,) = pulls.ask()
    pulls.now_s += 2.0
    pulls.answer(held, nothing(8))
    error = ConnectFailed("broker-a:10911", "refused")
    pulls.answer(pulls.ask()[0], error)

    (ended,) = pulls.window.take()
    assert (ended.is_last, ended.failure) == (True, error)


def test_a_range_goes_on_at_a_replica_whose_first_pull_asks_for_the_consumed_message() -> None:
    """L3, F4: the reader compares it."""
    pulls = Pulls(wanted(8, before=1, replicas={1: "r"}, replaces_master=True))
    pulls.answer(pulls.ask()[0], ConnectFailed("broker-a:10911", "refused"))
    (again,) = pulls.ask()

    assert (again.broker_id, again.queue_offset) == (1, 7)


def test_a_range_goes_on_at_a_replica_that_had_all_its_messages() -> None:
    """L3"""
    pulls = Pulls(wanted(replicas={1: "r"}, prefers_replica=True, replaces_master=True))
    pulls.found(pulls.ask()[0], 3, 3)
    pulls.answer(pulls.ask()[0], nothing(3))
    (at_master,) = pulls.ask()
    pulls.answer(at_master, ConnectFailed("broker-a:10911", "refused"))
    (again,) = pulls.ask()

    assert (at_master.broker_id, again.broker_id, again.queue_offset) == (MASTER_ID, 1, 3)
    assert pulls.window.ranges[0].failure is None


def pauses_at_end(pulls: Pulls, count: int, *, broker_id: int) -> list[float]:
    """Let a slave answer pulls at its end without holding them; return the pauses after each."""
    pauses = []
    for _ in range(count):
        (held,) = pulls.ask()
        assert (held.broker_id, held.is_held) == (broker_id, True)
        pulls.answer(held, PullResult(PullStatus.NO_MATCHED_MSG, 0, 0, 0, 0, b"", "OFFSET_OVERFLOW_ONE"))
        assert pulls.ask() == []
        pause_s = pulls.window.shortest_pause_s(pulls.now_s)
        assert pause_s is not None
        pauses.append(pause_s)
        pulls.now_s += pause_s
    return pauses


class OpenQueue:
    """A queue that grows, on a master and a replica that lags, with troubles of every kind that may pass."""

    def __init__(
        self, rng: random.Random, *, share: float, holds: bool, has_replica: bool, outage: int
    ) -> None:
        self.rng = rng
        self.end = rng.choice([0, 0, 3, 300, 900])
        self.replica_end = 0 if has_replica else self.end
        self.matching: set[int] = set()
        self.outage = outage
        self._share = share
        self._holds = holds
        self._note(range(self.end))

    def grow(self, count: int) -> None:
        self._note(range(self.end, self.end + count))
        self.end += count

    def _note(self, offsets: range) -> None:
        self.matching |= {offset for offset in offsets if self.rng.random() < self._share}

    def pull(self, task: PullTask, held_s: float) -> PullResult | RocketMQError | None:
        """The answer; None while the pull is held."""
        is_home = task.broker_id == MASTER_ID
        if is_home and self.outage:
            self.outage -= 1
            return ConnectFailed("broker-a:10911", "refused")
        if self.rng.random() < 0.05:
            return SystemBusy(2, "busy", request="PULL_MESSAGE", address="broker-a:10911")
        end = self.end if is_home else self.replica_end
        asked, suggest = task.queue_offset, self.rng.randint(0, 1)
        if asked > end or (asked == end and not is_home and self.rng.random() < 0.5):
            # The slave of a master that lives neither corrects an offset nor holds a pull.
            assert not is_home
            remark = "OFFSET_OVERFLOW_BADLY" if asked > end else "OFFSET_OVERFLOW_ONE"
            return PullResult(PullStatus.NO_MATCHED_MSG, end, 0, end, 0, b"", remark)
        if asked == end:
            may_hold = task.is_held and self._holds and held_s < HELD_S
            return None if may_hold else PullResult(PullStatus.NO_NEW_MSG, asked, 0, end, suggest)
        scan_end = min(end, asked + self.rng.randint(1, 20))
        found = [offset for offset in range(asked, scan_end) if offset in self.matching]
        most = self.rng.randint(1, task.max_msg_nums)
        if len(found) > most:
            scan_end, found = found[most], found[:most]
        if not found:
            return PullResult(PullStatus.NO_MATCHED_MSG, scan_end, 0, end, suggest, b"", "NO_MATCHED_MESSAGE")
        return PullResult(PullStatus.FOUND, scan_end, 0, end, suggest, body(*found))


class OpenShell:
    """A fetcher without connections, whose answers come in any order; checks what it is asked to send."""

    def __init__(self, window: FetchWindow, queues: list[OpenQueue], rng: random.Random) -> None:
        self.window = window
        self.received: list[list[int]] = [[] for _ in queues]
        self.reached = [0] * len(queues)
        self.sent = 0
        self.now_s = 0.0
        self._queues = queues
        self._rng = rng
        self._in_flight: list[PullTask] = []

    def step(self) -> None:
        has_answered = self._receive()
        self.window.settle(self.now_s)
        if self._rng.random() < 0.2:
            window = self._rng.choice(self.window.ranges)
            window.is_on_hold = not window.is_on_hold
        tasks = self.window.tasks(self.now_s)
        self.sent += len(tasks)
        self._in_flight += tasks
        self._check(tasks)
        if self.window.is_ready() or self._rng.random() < 0.1:
            self._take()
        elif not tasks and not has_answered:
            pause_s = self.window.shortest_pause_s(self.now_s)
            self.now_s += 1.0 if pause_s is None else pause_s

    def _receive(self) -> bool:
        self._rng.shuffle(self._in_flight)
        has_answered = False
        for task in self._in_flight[: self._rng.randint(0, len(self._in_flight))]:
            queue = self._queues[task.range_index]
            if self._rng.random() < 0.05:
                self._in_flight.remove(task)
                self.window.lost(task, None, self.now_s)
            elif (outcome := queue.pull(task, self.now_s - task.sent_at_s)) is not None:
                self._in_flight.remove(task)
                self.window.answered(task, outcome, self.now_s)
                has_answered = True
        return has_answered

    def _check(self, tasks: list[PullTask]) -> None:
        for index, window in enumerate(self.window.ranges):
            own = [task for task in self._in_flight if task.range_index == index]
            held = [task for task in own if task.is_held]
            assert len(own) == 1 if held else window.segments.in_flight == len(own)
            assert window.has_held_pull is bool(held)
            assert window.failure is None
        assert self.window.in_flight == sum(not task.is_held for task in self._in_flight)
        assert not any(self.window.ranges[task.range_index].is_on_hold for task in tasks)

    def _take(self) -> None:
        for each in self.window.take():
            assert not each.is_last
            self.received[each.range_index] += offsets_of(each.chunks)
            assert each.reached >= self.reached[each.range_index]
            self.reached[each.range_index] = each.reached

    def go_on(self) -> None:
        for window in self.window.ranges:
            window.is_on_hold = False


@st.composite
def worlds(draw: st.DrawFn) -> tuple[OpenShell, list[OpenQueue], random.Random]:
    rng = random.Random(draw(st.integers(0, 1 << 32)))
    ranges, queues = [], []
    for queue_id in range(draw(st.integers(1, 4))):
        has_replica = draw(st.booleans())
        share = draw(st.sampled_from([0.0, 0.2, 1.0]))
        ranges.append(
            wanted(
                queue_id=queue_id,
                replicas={1: "r"} if has_replica else {},
                prefers_replica=draw(st.booleans()),
                replaces_master=draw(st.booleans()),
                subscription="*" if share == 1.0 else "paid",
                pull_batch_size=draw(st.integers(1, 10)),
            )
        )
        queues.append(
            OpenQueue(
                rng,
                share=share,
                holds=draw(st.booleans()),
                has_replica=has_replica,
                outage=draw(st.sampled_from([0, 0, 20])),
            )
        )
    max_bytes = draw(st.sampled_from([1, 600 << 10, 4 << 20]))
    window = FetchWindow(ranges, depth=draw(st.integers(1, 8)), max_bytes=max_bytes, log=lambda *_: None)
    return OpenShell(window, queues, rng), queues, rng


def growth(rng: random.Random) -> Iterator[int]:
    for _ in range(rng.randint(0, 60)):
        yield rng.choice([0, 1, 1, 5, 400])


@given(world=worlds())
def test_any_brokers_give_every_message_once_in_order_and_one_pull_waits_at_the_end(
    world: tuple[OpenShell, list[OpenQueue], random.Random],
) -> None:
    """A4, D1: growing queues, filters, lagging replicas, servers that hold no pulls, lost answers, holds."""
    shell, queues, rng = world
    for count in growth(rng):
        queue = rng.choice(queues)
        queue.grow(count)
        queue.replica_end = rng.randint(min(queue.replica_end, queue.end), queue.end)
        for _ in range(rng.randint(0, 8)):
            shell.step()
    for queue in queues:
        queue.outage = 0
    for _ in range(20_000):
        if shell.reached == [queue.end for queue in queues]:
            break
        shell.go_on()
        shell.step()

    assert shell.received == [sorted(queue.matching) for queue in queues]


@given(world=worlds())
def test_nothing_spins_at_the_end_of_any_queue(
    world: tuple[OpenShell, list[OpenQueue], random.Random],
) -> None:
    """Ten minutes without messages cost few pulls, whatever the server does with those it is to hold."""
    shell, queues, _ = world
    for queue in queues:
        queue.outage, queue.replica_end = 0, queue.end
    while shell.reached != [queue.end for queue in queues]:
        shell.go_on()
        shell.step()
    sent, began_s = shell.sent, shell.now_s
    while shell.now_s < began_s + 600:
        shell.step()

    assert shell.sent - sent < 600 * len(queues)
