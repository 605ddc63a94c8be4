"""A plain stream whose topic is made again while the query is stopped, or its broker away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.errors import ConnectFailed, DataLoss, LogTailLost, OffsetsBeganAgain, SystemBusy
from pyspark_rocketmq.model import BrokerAddress, MessageQueue
from tests.source.test_planner import A0, A1, B0, Planning
from tests.source.test_queue_generations import FakeLog

Ranges = list[tuple[MessageQueue, int, int]]


class Stream:
    """A plain stream over logs of messages, each known by the millisecond it was stored in."""

    def __init__(self, stored: Mapping[MessageQueue, list[int]], **options: Any) -> None:
        self.log = FakeLog()
        self.log.stored = {queue: list(times) for queue, times in stored.items()}
        bounds = {queue: self.log.bounds(queue) for queue in stored}
        self.planning = Planning(bounds, message_lookup=self.log, **options)
        self._look()
        self.planning.offset = self.planning.planner.initial()

    def next(self) -> Ranges | None:
        self._look()
        return self.planning.next()

    def _look(self) -> None:
        view = self.planning.view
        view.bounds = {queue: self.log.bounds(queue) for queue in self.log.stored}
        view.updated_ms = {queue: times[-1] for queue, times in self.log.stored.items() if times}

    @property
    def now_ms(self) -> int:
        return int(self.planning.clock.now_s() * 1000)

    def again(self) -> Ranges:
        """Part of the newest plan that is read after a restart."""
        self.restart()
        self._look()
        ranges = self.planning.planner.runnable(self.planning.offset)
        assert self.planning.planner.runnable(self.planning.offset) == ranges
        return [(each.queue, each.start, each.end) for each in ranges]

    def restart(self) -> None:
        self.planning.clock.advance(60)
        self.planning.restart()

    def pass_unseen(self, sign: str) -> None:
        """Let something happen at broker-a between two plans that may have changed its log."""
        addresses = self.planning.view.addresses
        if sign == "another address":
            addresses["broker-a"] = BrokerAddress(addresses["broker-a"] + "1")
        elif sign == "another connection":
            self.log.connections[addresses["broker-a"]] += 1
        else:
            self.planning.clock.advance(5)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_a_topic_made_again_while_the_query_was_stopped_is_read_from_its_first_message(count: int) -> None:
    """F4: also where its offsets hide it."""
    stream = Stream({A0: [1, 2, 3], A1: [1]}, failOnDataLoss="false")
    assert stream.next() == [(A0, 0, 3), (A1, 0, 1)]
    stream.restart()
    stream.log.stored[A0] = [stream.now_ms + at for at in range(count)]

    assert stream.next() == [(A0, 0, count)]

    stream.log.stored[A0] += [stream.now_ms + 100]
    assert stream.next() == [(A0, count, count + 1)]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 9])
def test_a_topic_made_again_while_the_query_runs_is_read_from_its_first_message(count: int) -> None:
    """F4: its end went back, or another message has the last one's place."""
    stream = Stream({A0: [1, 2, 3]}, failOnDataLoss="false")
    stream.next()
    stream.log.stored[A0] = [4 + at for at in range(count)]
    first = stream.next()

    stream.log.stored[A0] += [99]
    assert [*_offsets(first), *_offsets(stream.next())] == list(range(count + 1))


def test_of_a_topic_made_again_while_the_query_runs_each_queue_is_read_from_its_first_message() -> None:
    """F4: one look shows it of all, and the other topic's queues go on."""
    stream = Stream({A0: [1, 2], A1: [1, 2, 3], B0: [1]}, failOnDataLoss="false")
    stream.next()
    stream.log.stored |= {A0: [4, 5, 6], A1: [4, 5, 6, 7], B0: [1, 8]}

    assert stream.next() == [(A0, 0, 3), (A1, 0, 4), (B0, 1, 2)]


def test_one_queue_of_a_topic_and_broker_is_looked_at_for_each_plan() -> None:
    """F4: not one for each queue."""
    stream = Stream({A0: [1, 2], A1: [1, 2, 3], B0: [1]}, failOnDataLoss="false")
    stream.next()
    stream.log.stored[A0] += [4]
    stream.log.stored[A1] += [4]
    stream.log.looks.clear()

    assert stream.next() == [(A0, 2, 3), (A1, 3, 4)]

    assert stream.log.looks == [{A0: 1}]


SIGNS = ["another address", "another connection", "a long time"]


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("whole", [A0, A1])
def test_a_log_that_lost_the_ends_of_some_queues_between_two_plans_is_found(
    sign: str, whole: MessageQueue
) -> None:
    """F4: a slave had one queue whole; in the other, later messages have the places of those it lacked."""
    [cut] = {A0, A1} - {whole}
    stream = Stream({A0: [1, 2, 3], A1: [1, 2, 3], B0: [1]}, failOnDataLoss="false")
    stream.next()
    stream.pass_unseen(sign)
    stream.log.stored |= {whole: [1, 2, 3, 10], cut: [1, 11, 12, 13, 14], B0: [1, 15]}

    assert stream.next() == sorted([(whole, 3, 4), (cut, 1, 5), (B0, 1, 2)])


@pytest.mark.parametrize("sign", SIGNS)
def test_a_log_that_lost_the_end_of_one_queue_ends_a_query_that_is_to_fail_on_data_loss(sign: str) -> None:
    """F4"""
    stream = Stream({A0: [1, 2, 3], A1: [1, 2, 3]})
    stream.next()
    stream.pass_unseen(sign)
    stream.log.stored |= {A0: [1, 2, 3, 10], A1: [1, 2, 11, 12]}

    with pytest.raises(OffsetsBeganAgain, match="offset 2 was consumed"):
        stream.next()


def test_a_switch_that_one_plan_shows_costs_later_plans_nothing() -> None:
    """F4: and the other brokers' queues are not looked at."""
    stream = Stream({A0: [1], A1: [1], B0: [1]})
    stream.next()
    stream.pass_unseen("another address")
    stream.log.looks.clear()
    for log in stream.log.stored.values():
        log.append(10)
    stream.next()
    for log in stream.log.stored.values():
        log.append(20)
    stream.next()

    assert stream.log.looks == [{B0: 0}, {A0: 0, A1: 0}, {A0: 1, B0: 1}]


def test_a_queue_whose_broker_does_not_show_its_log_after_a_switch_waits_until_it_does() -> None:
    """F4, A8: the others go on meanwhile, with later times."""
    stream = Stream({A0: [1, 2], A1: [1, 2]}, failOnDataLoss="false")
    stream.next()
    stream.pass_unseen("another address")
    stream.log.stored |= {A0: [1, 2, 10], A1: [1, 11, 12]}
    stream.log.failures[A1] = SystemBusy(2, "busy")
    assert stream.next() == [(A0, 2, 3)]
    stream.log.stored[A0] += [20]
    assert stream.next() == [(A0, 3, 4)]
    stream.log.failures.clear()

    assert stream.next() == [(A1, 1, 3)]


@given(data=st.data(), most=st.integers(1, 9))
def test_whatever_logs_lose_between_plans_every_later_message_is_planned(
    data: st.DataObject, most: int
) -> None:
    """F4: each message of the last logs is in a plan that was made while it was there."""
    stream = Stream({A0: [1], A1: [2]}, failOnDataLoss="false", maxOffsetsPerTrigger=str(most))
    seen: set[int] = set()
    now_ms = 2

    def plan() -> bool:
        ranges = stream.next() or []
        seen.update(at for queue, start, end in ranges for at in stream.log.stored[queue][start:end])
        return bool(ranges)

    counts = st.integers(0, 5)
    for _ in range(data.draw(st.integers(1, 6))):
        if data.draw(st.booleans()):
            stream.pass_unseen(data.draw(st.sampled_from(SIGNS)))
            for log in stream.log.stored.values():
                del log[max(1, len(log) - data.draw(counts)) :]
        for log in stream.log.stored.values():
            count = data.draw(counts)
            log.extend(range(now_ms + 1, now_ms + 1 + count))
            now_ms += count
        plan()
    while plan():
        pass

    assert seen.issuperset(at for log in stream.log.stored.values() for at in log)


def test_a_topic_made_again_is_found_once_a_broker_that_refuses_the_look_answers_again() -> None:
    """F4, A8: until then its queues wait, and the times by which it is found are kept."""
    stream = Stream({A0: [1, 2], A1: [1, 2, 3], B0: [1]}, failOnDataLoss="false")
    stream.next()
    stream.log.failure = SystemBusy(2, "busy")
    stream.log.stored |= {A0: [4, 5, 6], A1: [4, 5, 6, 7]}
    assert stream.next() is None
    stream.log.failure = None

    assert stream.next() == [(A0, 0, 3), (A1, 0, 4)]


def test_a_topic_made_again_ends_a_query_that_is_to_fail_on_data_loss() -> None:
    """F4"""
    stream = Stream({A0: [1, 2, 3]})
    stream.next()
    stream.restart()
    stream.log.stored[A0] = [stream.now_ms + at for at in range(7)]

    with pytest.raises(OffsetsBeganAgain, match="offset 2 was consumed"):
        stream.next()


def test_a_reset_of_the_streams_group_does_not_hide_that_a_topic_was_made_again() -> None:
    """F4: a broker reports it once, in the place of the message that is looked at."""
    stream = Stream({A0: [1, 2, 3]}, failOnDataLoss="false")
    stream.next()
    stream.restart()
    stream.log.stored[A0] = [stream.now_ms + at for at in range(9)]
    stream.log.reset_to[A0] = 1

    assert stream.next() == [(A0, 0, 9)]


def test_a_slave_that_lacked_the_end_of_the_log_is_read_from_the_first_message_stored_since() -> None:
    """F4"""
    stream = Stream({A0: [1, 2, 3, 4]}, failOnDataLoss="false")
    stream.next()
    stream.restart()
    stream.log.stored[A0] = [1, 2, stream.now_ms, stream.now_ms + 1, stream.now_ms + 2]

    assert stream.next() == [(A0, 2, 5)]


def test_a_new_beginning_holds_until_a_plan_says_so() -> None:
    """F4: the plan that found it was too small to be run (minOffsetsPerTrigger)."""
    stream = Stream({A0: [1, 2, 3]}, failOnDataLoss="false", minOffsetsPerTrigger="3")
    stream.next()
    stream.restart()
    stream.log.stored[A0] = [stream.now_ms + at for at in range(4)]
    stream.planning.view.down = {"broker-a": ConnectFailed("broker-a:1", "refused")}
    assert stream.next() is None
    stream.planning.view.down = {}

    assert stream.next() == [(A0, 0, 4)]
    assert len(stream.log.looks) == 1


def test_a_broker_that_was_away_is_looked_at_when_it_is_back() -> None:
    """F4"""
    stream = Stream({A0: [1, 2], B0: [1, 2]}, failOnDataLoss="false")
    stream.next()
    stream.restart()
    stream.planning.view.down = {"broker-b": ConnectFailed("broker-b:1", "refused")}
    stream.log.stored[A0] += [stream.now_ms]
    assert stream.next() == [(A0, 2, 3)]
    stream.planning.view.down = {}
    stream.planning.clock.advance(1)
    stream.log.stored[B0] = [stream.now_ms + at for at in range(5)]

    assert stream.next() == [(B0, 0, 5)]


def test_a_broker_that_does_not_say_what_it_has_is_asked_again_before_anything_is_planned() -> None:
    """F4"""
    stream = Stream({A0: [1, 2]}, failOnDataLoss="false")
    stream.next()
    stream.restart()
    stream.log.stored[A0] = [stream.now_ms + at for at in range(3)]
    stream.log.failure = ConnectFailed("broker-a:1", "refused")
    assert stream.next() is None
    stream.log.failure = None

    assert stream.next() == [(A0, 0, 3)]


@given(
    before=st.integers(0, 6),
    added=st.integers(0, 6),
    expired=st.integers(0, 12),
    restarts=st.integers(0, 2),
    most=st.integers(1, 9),
)
def test_the_same_log_is_never_taken_for_another_one(
    before: int, added: int, expired: int, restarts: int, most: int
) -> None:
    """F4: whatever has expired or was left for a later plan."""
    stream = Stream({A0: [], A1: [1]}, maxOffsetsPerTrigger=str(most))
    now_ms = stream.now_ms
    stream.log.stored[A0] = [now_ms + at for at in range(before)]
    read: list[int] = []
    for _ in range(restarts + 1):
        read += _offsets(stream.next())
        stream.restart()
    stream.log.stored[A0] += [now_ms + 1_000 + at for at in range(added)]
    gone = min(expired, len(read))
    stream.log.first[A0] = gone
    stream.log.stored[A0] = stream.log.stored[A0][gone:]
    while (ranges := stream.next()) is not None:
        read += _offsets(ranges)
        stream.restart()

    assert read == list(range(before + added))


@pytest.mark.parametrize("count", [2, 3, 9])
def test_a_queue_that_waits_is_judged_by_its_own_time_after_a_restart_too(count: int) -> None:
    """A8, F4: another queue of its broker is planned meanwhile, with a later time."""
    stream = Stream({A0: [1, 2], A1: [1]}, failOnDataLoss="false")
    stream.next()
    stream.restart()
    stream.log.stored = {A0: [10 + at for at in range(count)], A1: [1, 30]}
    stream.log.failures[A0] = SystemBusy(2, "busy")
    assert stream.next() == [(A1, 1, 2)]
    stream.restart()
    assert stream.next() is None
    stream.log.stored[A1] += [40]
    assert stream.next() == [(A1, 2, 3)]
    stream.restart()

    stream.log.failures.clear()
    assert stream.next() == [(A0, 0, count)]
    stream.restart()
    stream.log.stored[A0] += [50]
    assert stream.next() == [(A0, count, count + 1)]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("count", [2, 3, 9])
def test_a_queue_that_was_out_of_sight_is_judged_by_its_own_time(count: int, restarts: bool) -> None:
    """F4: its topic was left out or switched off, or had fewer queues; its broker's others went on."""
    stream = Stream({A0: [1, 2, 3], A1: [1]}, failOnDataLoss="false")
    stream.next()
    del stream.log.stored[A0]
    stream.log.stored[A1] += [20]
    assert stream.next() == [(A1, 1, 2)]
    if restarts:
        stream.restart()
    stream.log.stored[A1] += [30]
    assert stream.next() == [(A1, 2, 3)]
    if restarts:
        stream.restart()

    stream.log.stored[A0] = [10 + at for at in range(count)]
    assert stream.next() == [(A0, 0, count)]
    stream.restart()
    stream.log.stored[A0] += [50]
    assert stream.next() == [(A0, count, count + 1)]


def test_a_queue_out_of_sight_with_the_same_log_goes_on_at_its_position() -> None:
    """F4"""
    stream = Stream({A0: [1, 2, 3], A1: [1]})
    stream.next()
    log = stream.log.stored.pop(A0)
    stream.log.stored[A1] += [20]
    stream.next()
    stream.restart()

    stream.log.stored[A0] = [*log, 10, 40]
    assert stream.next() == [(A0, 3, 5)]


def test_queues_of_a_broker_out_of_sight_need_no_times_of_their_own() -> None:
    """F4: the broker's holds for them, and a checkpoint stays small."""
    stream = Stream({A0: [1], B0: [1, 2]})
    stream.next()
    del stream.log.stored[B0]
    stream.log.stored[A0] += [20]
    stream.next()

    assert stream.planning.offset["storedBy"] == {"broker-a": 20, "broker-b": 2}


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_clock_that_was_set_back_within_a_backlog_repeats_and_stops_nothing(fails: str) -> None:
    """F4: the message before the position was stored later than the last one, whose time is remembered."""
    stream = Stream(
        {A0: [*range(1_000, 1_010), *range(100, 104)]}, failOnDataLoss=fails, maxOffsetsPerTrigger="4"
    )
    read: list[int] = []
    for at_ms in range(104, 110):
        read += _offsets(stream.next())
        stream.restart()
        stream.log.stored[A0] += [at_ms]

    assert read == list(range(19))


@pytest.mark.parametrize("count", [3, 4, 5, 9])
def test_a_topic_made_again_is_found_though_messages_followed_the_last_plan(count: int) -> None:
    """F4: the clock was set back among them, or not."""
    stream = Stream({A0: [7, 8, 9, 5, 6]}, failOnDataLoss="false", maxOffsetsPerTrigger="3")
    stream.next()
    stream.restart()
    stream.log.stored[A0] = [20 + at for at in range(count)]

    assert stream.next() == [(A0, 0, 3)]


@given(
    logs=st.lists(st.lists(st.integers(1, 50), max_size=8), min_size=2, max_size=2),
    added=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 50)), max_size=12),
    restarts=st.lists(st.sampled_from(["", "restart", *SIGNS]), min_size=14, max_size=14),
    away=st.lists(st.booleans(), min_size=14, max_size=14),
    most=st.integers(1, 9),
)
def test_the_same_log_goes_on_whatever_the_clock_shows(
    logs: list[list[int]],
    added: list[tuple[int, int]],
    restarts: list[str],
    away: list[bool],
    most: int,
) -> None:
    """F4: also while another queue of the broker is out of sight."""
    stream = Stream({A0: logs[0], A1: logs[1]}, maxOffsetsPerTrigger=str(most))
    whole = stream.log.stored
    read: dict[MessageQueue, list[int]] = {A0: [], A1: []}
    rest = iter(added)
    for restart, hides in zip(restarts, away, strict=True):
        stream.log.stored = {queue: log for queue, log in whole.items() if queue != A1 or not hides}
        for queue, start, end in stream.next() or ():
            read[queue] += range(start, end)
        if restart == "restart":
            stream.restart()
        elif restart:
            stream.pass_unseen(restart)
        if (more := next(rest, None)) is not None:
            number, at_ms = more
            whole[(A0, A1)[number]].append(at_ms)
    stream.log.stored = whole
    while ranges := stream.next():
        for queue, start, end in ranges:
            read[queue] += range(start, end)

    assert read == {queue: list(range(len(log))) for queue, log in whole.items()}


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 6, 9])
def test_a_batch_that_runs_again_reads_nothing_of_a_topic_made_again(count: int) -> None:
    """F4: the next plan reads it, from its first message."""
    stream = Stream({A0: [1, 2], A1: [1]}, failOnDataLoss="false")
    stream.next()
    stream.log.stored |= {A0: [1, 2, 3, 4, 5], A1: [1, 6]}
    assert stream.next() == [(A0, 2, 5), (A1, 1, 2)]
    stream.log.stored[A0] = [10 + at for at in range(count)]

    assert stream.again() == [(A1, 1, 2)]
    assert stream.next() == ([(A0, 0, count)] if count else None)


def test_a_batch_that_runs_again_reads_what_is_left_of_its_log() -> None:
    """F4: a slave that lacks its end has become master."""
    stream = Stream({A0: [1, 2, 3, 4, 5]}, failOnDataLoss="false")
    stream.next()
    stream.log.stored[A0] = [1, 2, 3, 10, 11, 12]

    assert stream.again() == [(A0, 0, 3)]
    assert stream.next() == [(A0, 3, 6)]


def test_the_position_in_a_topic_made_again_needs_no_plan_of_the_process_that_found_it() -> None:
    """F4"""
    stream = Stream({A0: [1, 2, 3]}, failOnDataLoss="false")
    stream.next()
    stream.log.stored[A0] = [10, 11, 12, 13]

    assert stream.again() == []
    stream.restart()
    assert stream.next() == [(A0, 0, 4)]


@pytest.mark.parametrize(
    ("count", "error"), [(2, LogTailLost), (3, OffsetsBeganAgain), (9, OffsetsBeganAgain)]
)
def test_a_batch_does_not_run_again_on_another_log_if_the_query_is_to_fail(
    count: int, error: type[DataLoss]
) -> None:
    """F4"""
    stream = Stream({A0: [1, 2, 3]})
    stream.next()
    stream.log.stored[A0] = [10 + at for at in range(count)]

    with pytest.raises(error, match="offset 2 was"):
        stream.again()


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_batch_runs_again_as_it_was_after_the_clock_was_set_back(fails: str) -> None:
    """F4"""
    stream = Stream({A0: [7, 8, 9, 5, 6]}, failOnDataLoss=fails, maxOffsetsPerTrigger="3")
    stream.next()
    stream.log.stored[A0] += [20]

    assert stream.again() == [(A0, 0, 3)]
    assert stream.next() == [(A0, 3, 6)]


def test_a_batch_waits_only_once_for_a_broker_that_stays_away() -> None:
    """A8: its tasks would wait as long."""
    stream = Stream({A0: [1, 2, 3]}, retryTimeoutMs="5000")
    stream.next()
    stream.restart()
    stream.planning.view.not_in_route = {"broker-a"}
    planner, before_s = stream.planning.planner, stream.planning.clock.now_s()

    ranges = planner.runnable(stream.planning.offset)
    assert not planner.snapshot_for(ranges, can_wait=True).addresses.keys() & {"broker-a"}
    assert stream.planning.clock.now_s() - before_s == pytest.approx(5, abs=0.6)


def test_a_batch_waits_for_the_broker_that_shows_whether_its_log_is_the_same() -> None:
    """A8: up to ``retryTimeoutMs``, like its tasks."""
    stream = Stream({A0: [1, 2, 3]}, failOnDataLoss="false")
    stream.next()
    stream.log.stored[A0] = [10, 11, 12, 13]
    stream.log.failure = SystemBusy(2, "busy")
    with pytest.raises(SystemBusy):
        stream.again()
    stream.planning.on_pause.append(lambda: setattr(stream.log, "failure", None))

    assert stream.again() == []


def _offsets(ranges: Ranges | None) -> list[int]:
    return [at for queue, start, end in ranges or () if queue == A0 for at in range(start, end)]
