"""Moves to positions that were recorded, of a queue whose log has changed since."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.consume.generations import NO_BOUNDARIES
from pyspark_rocketmq.errors import OffsetsBeganAgain
from pyspark_rocketmq.offsets.recorded_positions import (
    RecordedPosition,
    move_to_recorded,
    position_of_sink,
)
from pyspark_rocketmq.offsets.rules import new_row
from pyspark_rocketmq.offsets.store import OffsetRow, SinkRecord
from pyspark_rocketmq.stored_values import NO_MESSAGES
from tests.helpers import stored_texts
from tests.source.test_planner import A0
from tests.source.test_queue_generations import Scenario

NEWEST = stored_texts.messages("[2,3,0]")


def stopped(fails: str) -> Scenario:
    """Return a group that has consumed six messages, and is away."""
    scenario = Scenario({A0: [1, 2, 3, 4, 5, 6]}, failOnDataLoss=fails)
    scenario.consume_all()
    scenario.restart()
    return scenario


@pytest.mark.parametrize("is_new", [False, True], ids=["a group with a row", "a new group"])
@pytest.mark.parametrize("count", [3, 9], ids=["shorter", "longer"])
def test_a_topic_created_again_is_read_from_its_first_message(count: int, is_new: bool) -> None:
    """F4, F5, H1: whatever offset was recorded of the log before."""
    scenario = stopped("false")
    store = scenario.planning.store
    rows = store.read("g")
    position = RecordedPosition(3, 0, rows[A0].state.last_message)
    if is_new:
        store._groups.clear()
        scenario.brokers.offsets.clear()
    move_to_recorded(store, "g", {A0: position}, store.read("g"))
    scenario.log.stored[A0] = [100 + at for at in range(count)]

    assert scenario.next() == [(A0, 0, count)]
    assert scenario.generations() == {A0: 1}


def test_with_fail_on_data_loss_it_is_reported() -> None:
    """F4: nobody has said where in the new log the group goes on."""
    scenario = stopped("true")
    store = scenario.planning.store
    move_to_recorded(store, "g", {A0: RecordedPosition(3)}, store.read("g"))
    scenario.log.stored[A0] = [100 + at for at in range(9)]

    with pytest.raises(OffsetsBeganAgain):
        scenario.next()


@pytest.mark.parametrize("at_broker", [None, 5])
def test_in_the_same_log_a_new_group_begins_there(at_broker: int | None) -> None:
    """F5: whatever an earlier group of this name has left at the broker."""
    scenario = stopped("true")
    store = scenario.planning.store
    known = store.read("g")[A0].state.last_message
    store._groups.clear()
    scenario.brokers.offsets = {} if at_broker is None else {A0: at_broker}
    move_to_recorded(store, "g", {A0: RecordedPosition(3, 2, known)}, {})

    assert scenario.next() == [(A0, 3, 6)]
    assert scenario.generations() == {A0: 2}


def test_the_end_of_a_log_that_was_lost_is_noticed_by_the_messages_of_the_record() -> None:
    """F4: which the row that is moved forth does not have."""
    scenario = Scenario({A0: [1, 2, 3, 4, 5, 6]}, failOnDataLoss="false")
    scenario.next()
    scenario.consume(A0, 2)
    scenario.restart()
    store = scenario.planning.store
    position = RecordedPosition(6, 0, stored_texts.messages("[5,6,0]"))
    move_to_recorded(store, "g", {A0: position}, store.read("g"))
    scenario.log.stored[A0] = [1, 2, 3, 4, 100, 101, 102]

    assert scenario.next() == [(A0, 4, 7)]


def in_generation(generation: int, *begun_at: int) -> OffsetRow:
    boundaries = NO_BOUNDARIES
    for offset in begun_at:
        boundaries = boundaries.begun(offset, NO_MESSAGES)
    return new_row("g", A0, 9)._replace(generation=generation, boundaries=boundaries)


@pytest.mark.parametrize(
    ("row", "position"),
    [
        (None, RecordedPosition(3, 1, NEWEST)),
        (in_generation(1), RecordedPosition(3, 1, NEWEST)),
        (in_generation(0), RecordedPosition(3, 1)),
        (in_generation(2, 0), RecordedPosition(0, 1)),
        (in_generation(2, 8), RecordedPosition(3, 1)),
        (in_generation(3, 2, 5), RecordedPosition(2, 1)),
        (in_generation(3, 2), RecordedPosition(0, 1)),
        (in_generation(2), RecordedPosition(0, 1)),
    ],
    ids=[
        "no row",
        "same",
        "sink is later",
        "created again",
        "tail lost",
        "two later",
        "one of two",
        "unknown",
    ],
)
def test_a_sink_s_offset_is_none_of_a_later_generation(
    row: OffsetRow | None, position: RecordedPosition
) -> None:
    """F4, H1: which is consumed from where it began, or from 0."""
    assert position_of_sink(row, SinkRecord(1, 3, NEWEST)) == position
