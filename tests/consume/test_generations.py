"""Where a queue's log differs from the one that was consumed, and where its next generation begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.generations import (
    NO_BOUNDARIES,
    Boundaries,
    LogChange,
    NewestStored,
    NextGeneration,
    Standing,
    Witnesses,
    find_change,
    next_generation,
    shows_later_log,
    witnesses,
)
from pyspark_rocketmq.consume.read_range import ReadRange, ReadSettings
from pyspark_rocketmq.errors import DamagedOffsets
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueBounds, QueueRange
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.stored_values import NO_MESSAGES, LastMessage, RememberedMessages

LAST = LastMessage(99, 5_000, 12_345)


def at(offset: int, stored: int, place: int | None = None) -> LastMessage:
    """A message, by default at a place in the log that its offset says."""
    return LastMessage(offset, stored, 10 * offset if place is None else place)


def change_in(
    log: Sequence[LastMessage], known: Sequence[LastMessage], first: int = 0
) -> tuple[LogChange | None, list[int]]:
    """Find the beginning in a log that begins at ``first``, and note where was looked."""
    looks: list[int] = []
    search = find_change(known, QueueBounds(first, first + len(log)))
    try:
        place = next(search)
        while True:
            looks.append(place)
            place = search.send(log[place - first])
    except StopIteration as end:
        return end.value, looks


OLD = [at(offset, 1_000 + offset) for offset in range(100)]


def test_the_same_log_takes_one_look() -> None:
    """F4: at the newest message consumed."""
    assert change_in(OLD, (OLD[99], OLD[90], OLD[3])) == (None, [99])


@pytest.mark.parametrize(
    ("found", "end", "is_later"),
    [
        (at(99, 5_000), 100, False),
        (at(99, 5_000), 300, False),
        (at(99, 5_001), 300, True),
        (at(99, 4_000), 300, False),
        (None, 300, False),
        (None, 99, True),
    ],
    ids=["the same", "grown", "stored later", "clock set back", "not decodable", "shorter"],
)
def test_the_last_message_of_a_plan_shows_whether_the_log_is_a_later_one(
    found: LastMessage | None, end: int, is_later: bool
) -> None:
    """F4: its store time is all that a broker's statistics have of it."""
    newest = NewestStored.of(QueueBounds(3, 100, 5_000))

    assert newest == (99, 5_000)
    assert shows_later_log(newest, found, QueueBounds(3, end)) == is_later


@pytest.mark.parametrize("bounds", [QueueBounds(0, 0), QueueBounds(7, 7, 5_000), QueueBounds(0, 5)])
def test_a_queue_without_a_known_last_message_shows_nothing(bounds: QueueBounds) -> None:
    """F4: it is empty, or its server has no statistics."""
    assert NewestStored.of(bounds) is None


def test_a_log_of_which_all_that_was_consumed_has_expired_counts_as_the_same() -> None:
    """F4: whether it is cannot be known, and need not."""
    assert change_in([at(200, 9_000)], (OLD[99],), first=200) == (None, [])


@pytest.mark.parametrize("count", [0, 1, 50, 99, 100, 300])
@pytest.mark.parametrize("clock", [5_000, 1_050, 3], ids=["ahead", "set back", "far back"])
def test_a_topic_made_again_is_another_log_from_its_first_message_on(count: int, clock: int) -> None:
    """F4: by its places in the broker's log, whatever the broker's clock says."""
    log = [at(offset, clock + offset, 5_000 + offset) for offset in range(count)]

    assert change_in(log, (OLD[99], OLD[90]))[0] == LogChange(0)
    assert change_in(log, (OLD[99],))[0] == LogChange(0)


@pytest.mark.parametrize("kept", [1, 50, 95, 99])
@pytest.mark.parametrize("count", [0, 1, 4, 200])
def test_a_promoted_slave_is_another_log_from_what_it_lacked_on(kept: int, count: int) -> None:
    """F4: it writes over the places that it lacked, later."""
    log = OLD[:kept] + [at(kept + number, 9_000 + number) for number in range(count)]

    assert change_in(log, (OLD[99],))[0] == LogChange(kept)
    assert change_in(log, (OLD[99], OLD[97], OLD[40]))[0] == LogChange(kept)


def test_of_a_slave_with_a_late_clock_only_messages_that_surely_are_old_are_passed_over() -> None:
    """F4: neither number separates them; some come again, none is lost."""
    log = OLD[:95] + [at(95 + number, 900 + number, 941 + number) for number in range(9)]

    assert change_in(log, (OLD[99], OLD[90], OLD[3])) == (LogChange(91), [99, 90])


def test_what_only_an_old_sink_has_is_known_to_be_lost_where_the_queue_ends_before_it() -> None:
    """H10: and where it does not, the messages before it decide."""
    assert change_in(OLD[:50], (LastMessage.unknown(60), OLD[40]))[0] == LogChange(41, is_certain=False)
    assert change_in(OLD[:70], (LastMessage.unknown(60), OLD[40]))[0] is None
    again = [at(offset, 9_000 + offset, 7_000 + offset) for offset in range(70)]
    assert change_in(again, (LastMessage.unknown(60), OLD[40]))[0] == LogChange(0)


def test_a_search_takes_few_looks() -> None:
    """F4: in a queue of a million messages."""
    old = [at(offset, offset) for offset in range(1_000_000)]
    log = old[:999_990] + [at(offset, 2_000_000 + offset) for offset in range(999_990, 1_000_000)]

    change, looks = change_in(log, (old[999_999],))

    assert change == LogChange(999_990)
    assert len(looks) <= 22


BOUNDS = QueueBounds(0, 300)


@pytest.mark.parametrize(
    ("standing", "bounds", "change", "expected"),
    [
        (Standing(100, (LAST,)), (0, 300), None, None),
        (Standing(100, (LAST,)), (0, 300), LogChange(0), NextGeneration(0)),
        (Standing(100, (LAST,)), (0, 98), LogChange(95), NextGeneration(95)),
        (Standing(50, (LAST,)), (0, 98), LogChange(95), NextGeneration(95, is_later=True)),
        (Standing(95, (LAST,)), (0, 98), LogChange(95), NextGeneration(95)),
        (Standing(10, (LAST,), was_reset=True), (0, 98), LogChange(95), NextGeneration(95, is_later=True)),
        (Standing(97, (LAST,), was_reset=True), (0, 98), LogChange(95), NextGeneration(97, is_wanted=True)),
        (Standing(900, (LAST,), was_reset=True), (0, 98), LogChange(95), NextGeneration(98, is_wanted=True)),
        (Standing(900, (LAST,), was_reset=True), (0, 300), None, None),
        (Standing(40, (LAST,), was_followed=True), (0, 50), LogChange(0), NextGeneration(40, is_wanted=True)),
        (Standing(0, (LAST,), was_followed=True), (0, 50), LogChange(0), NextGeneration(0, is_wanted=True)),
        (Standing(90, (LAST,), was_followed=True), (0, 98), LogChange(95), NextGeneration(95)),
        (Standing(95, (LAST,), was_followed=True), (0, 98), LogChange(95), NextGeneration(95)),
        (Standing(120, (LAST,), was_followed=True), (0, 50), LogChange(0), NextGeneration(0)),
        (Standing(120, (LAST,)), (0, 110), None, NextGeneration(100)),
        (Standing(100, ()), (0, 20), None, NextGeneration(20)),
        (Standing(100, ()), (0, 100), None, None),
        (
            Standing(30, (LAST,)),
            (0, 98),
            LogChange(20, is_certain=False),
            NextGeneration(20, is_certain=False),
        ),
    ],
    ids=[
        "the same log",
        "topic made again",
        "end lost",
        "consumed again up to 50, and the end lost",
        "consumed again up to the change",
        "reset back, and the end lost",
        "reset into the new log",
        "reset beyond the end of the new log",
        "reset beyond the end",
        "another member has consumed of the new log",
        "an operator wants all of the new log",
        "the broker has an old offset",
        "the broker has an old offset, by chance the change",
        "the broker has an offset of the old log",
        "lost where a filter had passed over",
        "nothing consumed, and lost",
        "nothing consumed",
        "only a sink shows it",
    ],
)
def test_the_next_generation_begins_with_the_change_or_where_somebody_wants_it(
    standing: Standing, bounds: tuple[int, int], change: LogChange | None, expected: NextGeneration | None
) -> None:
    """F4, F5: below the change the old generation goes on."""
    found = next_generation(standing, QueueBounds(*bounds), change)

    assert found == (expected and expected._replace(boundary=change and change.offset))


def test_messages_are_kept_as_text() -> None:
    """F4"""
    both = RememberedMessages.of(OLD[3]).with_newest_of(RememberedMessages.of(LAST))
    assert both.to_text() == "[99,5000,12345,3,1003,30]"
    assert RememberedMessages.from_text(both.to_text()).messages == both.messages == (LAST, OLD[3])
    assert RememberedMessages.from_text("").newest is None


@pytest.mark.parametrize("text", ["[1,2]", "[]", "{}", "[1,2,3,4]", "1", '["a",1,2]'])
def test_a_damaged_text_is_refused(text: str) -> None:
    """F4, H9"""
    with pytest.raises(DamagedOffsets):
        assert RememberedMessages.from_text(text).messages


def test_the_newest_message_is_remembered_however_far_a_group_went_back() -> None:
    """F4, F5: else the end of the log could be lost unnoticed behind the place it went back to."""
    last, older = RememberedMessages.of(LAST), RememberedMessages.of(LastMessage(7, 100, 5))

    assert last.with_newest_of(older).messages == (LAST, LastMessage(7, 100, 5))
    assert NO_MESSAGES.with_newest_of(older) == older.with_newest_of(NO_MESSAGES) == older
    assert NO_MESSAGES.with_newest_of(NO_MESSAGES) == NO_MESSAGES
    assert last.with_newest_of(RememberedMessages.of(LastMessage.unknown(99))) == last


@given(
    known=st.sets(st.integers(0, 30), max_size=3),
    passed=st.sets(st.integers(0, 30), min_size=1, max_size=2),
)
def test_the_newest_message_and_those_passed_are_remembered(known: set[int], passed: set[int]) -> None:
    """F4, F5: also if a move passed one message ahead of those remembered, and one among them."""
    before, found = (
        RememberedMessages(tuple(at(offset, offset) for offset in sorted(offsets, reverse=True)))
        for offsets in (known, passed)
    )

    remembered = [message.queue_offset for message in before.with_passed(found).messages]

    assert remembered == sorted(remembered, reverse=True)
    assert {max(known | passed), *passed} <= set(remembered) <= known | passed
    assert len(remembered) == min(3, len(known | passed))


@given(st.lists(st.integers(1, 50), min_size=3, max_size=300))
def test_of_many_messages_the_newest_one_before_it_and_a_far_one_are_remembered(steps: list[int]) -> None:
    """F4"""
    known, offset, offsets = NO_MESSAGES, 0, []
    for step in steps:
        offset += step
        offsets.append(offset)
        known = known.with_newest_of(RememberedMessages.of(at(offset, offset)))

    newest, before, far = (message.queue_offset for message in known.messages)

    assert [newest, before] == [offsets[-1], offsets[-2]]
    assert far in offsets[:-2]


@pytest.mark.parametrize(
    ("start", "first", "pulled"),
    [
        (100, 0, 99),
        (100, 99, 99),
        (100, 100, None),
        (101, 0, 99),
        (899, 0, 99),
        (900, 0, 99),
        (60, 0, 50),
        (50, 0, 7),
        (7, 0, None),
    ],
)
def test_the_nearest_message_before_a_range_is_its_witness(
    start: int, first: int, pulled: int | None
) -> None:
    """F4: unless it has expired."""
    known = [at(offset, offset) for offset in (99, 50, 7)]

    message = witnesses(known, start, first=first).before

    assert (None if message is None else message.queue_offset) == pulled


@pytest.mark.parametrize(
    ("start", "subscription", "is_pulled"),
    [(100, "*", True), (899, "*", True), (900, "*", False), (100, "paid", False), (900, "paid", False)],
)
def test_a_witness_that_a_pull_would_not_show_is_looked_up(
    start: int, subscription: str, is_pulled: bool
) -> None:
    """F4: a filter may leave out what is there now, and too many offsets may lie between."""
    witness = at(99, 99)
    reading = ReadRange(
        planned=QueueRange.between(MessageQueue("orders", "broker-a", 0), start, start + 10),
        address=BrokerAddress("127.0.0.1:1"),
        subscription=subscription,
        settings=ReadSettings.of(ReadOptions.parse({"topic": "orders", "nameServers": "127.0.0.1:1"})),
        witnesses=Witnesses(witness),
    )

    assert (reading.pulled_again, reading.looked_up) == ((witness, None) if is_pulled else (None, witness))
    assert reading.pulled_from == (99 if is_pulled else start)
    ahead = replace(reading, witnesses=Witnesses(witness, at(5000, 5000)))
    assert ahead.looked_up == at(5000, 5000)


def test_a_message_of_which_only_the_offset_is_known_is_not_pulled_again() -> None:
    """F4: no other one could differ from it."""
    assert witnesses([LastMessage.unknown(9)], 10, first=0) == (None, None)
    assert witnesses((), 10, first=0) == (None, None)


@pytest.mark.parametrize(("start", "before", "ahead"), [(0, None, 50), (50, None, 50), (51, 50, None)])
def test_of_an_ending_generation_only_messages_before_its_end_are_witnesses(
    start: int, before: int | None, ahead: int | None
) -> None:
    """F4: others have the places from there on."""
    known = (at(99, 99), at(50, 50))

    found = witnesses(known, start, first=0, end=60)

    assert [None if each is None else each.queue_offset for each in found] == [before, ahead]


@pytest.mark.parametrize(
    ("position", "count", "behind", "ahead"),
    [
        (9, 0, [8, 3], None),
        (8, 0, [8, 3], None),
        (7, 1, [3], 8),
        (3, 1, [3], 8),
        (2, 2, [], 3),
        (0, 2, [], 3),
    ],
)
def test_a_position_belongs_to_the_newest_generation_that_begins_at_or_below_it(
    position: int, count: int, behind: list[int], ahead: int | None
) -> None:
    """F4, F5: the next one begins again at the first boundary above it."""
    first, second = RememberedMessages.of(OLD[3]), RememberedMessages.of(OLD[8])
    boundaries = NO_BOUNDARIES.begun(3, first).begun(8, second)

    back, left, messages = boundaries.back_to(position)

    assert (back, [at for at, _ in left.behind], left.ahead) == (count, behind, ahead)
    assert messages == {0: None, 1: second, 2: first}[count]
    assert Boundaries.from_text(left.to_text()) == left


@pytest.mark.parametrize("text", ["x", "1", "[1]", "[[1],2]", "[[[1]],2]", '[[["a","b"]],2]', '[[],"a"]'])
def test_damaged_boundaries_are_refused(text: str) -> None:
    """F4"""
    with pytest.raises(DamagedOffsets):
        assert Boundaries.from_text(text).behind


@pytest.mark.parametrize(("start", "ahead"), [(0, 99), (51, 99), (99, 99), (100, None)])
def test_the_newest_message_is_looked_at_where_a_group_is_before_it(start: int, ahead: int | None) -> None:
    """F4, F5: it was set back, or its sink is ahead of it."""
    known = (at(99, 99), at(50, 50))

    message = witnesses(known, start, first=0).ahead

    assert (None if message is None else message.queue_offset) == ahead
