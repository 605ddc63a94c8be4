"""How far a range has come, by what its target shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_rocketmq.errors import DataLoss
from pyspark_rocketmq.model import MessageQueue, QueueBounds, QueueRange
from pyspark_rocketmq.replay.ranges import Sending, check_same_log
from pyspark_rocketmq.stored_values import LastMessage

A0, COPY = MessageQueue("orders", "a", 0), MessageQueue("copy", "a", 0)
SENDING = Sending(run="r1", source=QueueRange.between(A0, 100, 200), target=COPY, target_offset=50)


@pytest.mark.parametrize(
    ("replayed_by", "replayed_from", "offset"),
    [
        ("r1", "orders/a/0/100", 100),
        ("r1", "orders/a/0/199", 199),
        ("r1", "orders/a/0/99", None),
        ("r1", "orders/a/0/200", None),
        ("r2", "orders/a/0/150", None),
        ("r1", "orders/a/1/150", None),
        ("r1", "orders/a/0/", None),
        ("r1", "orders/a/0/x", None),
        ("r1", "150", None),
        ("r1", None, None),
        (None, None, None),
    ],
)
def test_only_messages_of_the_run_and_the_range_count(
    replayed_by: str | None, replayed_from: str | None, offset: int | None
) -> None:
    """H3: other writers, other replays of the same messages and other steps show nothing."""
    assert SENDING.offset_of(replayed_by, replayed_from) == offset


@pytest.mark.parametrize(
    ("highest", "bounds", "until"),
    [
        (None, (0, 50), 100),
        (None, (50, 70), 100),
        (149, (0, 100), 150),
        (149, (90, 100), 150),
    ],
    ids=["nothing came", "only others came", "its beginning", "of which the older part has expired"],
)
def test_the_recorded_range_ends_at_the_last_message_found(
    highest: int | None, bounds: tuple[int, ...], until: int
) -> None:
    """H3"""
    assert SENDING.stored_until(highest, QueueBounds(*bounds), fail_on_data_loss=True) == until


def test_a_target_that_lost_its_newest_messages_is_not_guessed_about() -> None:
    """H3: neither lost nor twice, but asked about."""
    with pytest.raises(DataLoss, match=r"queue=0 offsets=100 to 200 it had\. Set failOnDataLoss=false"):
        SENDING.stored_until(None, QueueBounds(51, 60), fail_on_data_loss=True)
    with pytest.raises(DataLoss, match="replay with a new record"):
        SENDING.stored_until(None, QueueBounds(0, 49), fail_on_data_loss=False)
    assert SENDING.stored_until(None, QueueBounds(51, 60), fail_on_data_loss=False) == 100


LAST = LastMessage(199, 1_700_000_000_000, 5_000)
KNOWN = replace(SENDING, last=LAST)


@pytest.mark.parametrize(
    ("found", "bounds"),
    [(LAST, (0, 200)), (LAST, (150, 900)), (None, (200, 200)), (None, (500, 900)), (None, (0, 900))],
    ids=["still the end", "more came", "all expired", "expired, and more came", "cannot be decoded"],
)
@pytest.mark.parametrize("recorded", [[KNOWN], [KNOWN, SENDING], [SENDING]], ids=["known", "both", "unknown"])
def test_a_source_that_goes_on_is_the_recorded_one(
    recorded: list[Sending], found: LastMessage | None, bounds: tuple[int, ...]
) -> None:
    """H3: what the broker deletes by age shows nothing."""
    check_same_log(recorded, found, QueueBounds(*bounds))


@pytest.mark.parametrize(
    ("recorded", "found", "bounds", "reason"),
    [
        ([KNOWN], None, (0, 199), "offset 199 was wanted, but the broker has offsets below 199 only"),
        ([SENDING], None, (0, 50), "offset 199 was wanted, but the broker has offsets below 50 only"),
        ([SENDING, KNOWN], LAST._replace(commit_log_offset=9_000), (0, 900), "has another message there"),
        ([KNOWN], LAST._replace(store_timestamp=1_700_000_000_001), (0, 900), "has another message there"),
        (
            [KNOWN, replace(SENDING, source=QueueRange.between(A0, 200, 400))],
            LAST,
            (0, 300),
            "offset 399 was wanted, but the broker has offsets below 300 only",
        ),
    ],
)
def test_a_source_that_was_made_again_is_not_passed_over(
    recorded: list[Sending], found: LastMessage | None, bounds: tuple[int, ...], reason: str
) -> None:
    """H3: its messages would count as replayed."""
    with pytest.raises(DataLoss, match=f"{reason}.* replay with a new record"):
        check_same_log(recorded, found, QueueBounds(*bounds))
