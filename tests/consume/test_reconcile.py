"""Where a claimed queue goes on, by the offset store and by what its broker says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.metrics import NO_METRICS, MetricsSnapshot
from pyspark_rocketmq.consume.positions import MOST_SHOWN, NEVER_SHOWN, ShownOffsets, resolve_start_offset
from pyspark_rocketmq.consume.recent_offsets import Outage, Outages, PassedOffset, RecentOffsets
from pyspark_rocketmq.errors import DamagedOffsets
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.stored_values import RememberedMessages, RetryCounts


def shown_of(*offsets: int) -> ShownOffsets:
    return ShownOffsets(offsets)


@pytest.mark.parametrize(
    ("stored", "shown", "at_broker", "was_reset", "expected"),
    [
        (90, (90,), None, False, 90),
        (90, (90,), 90, False, 90),
        (90, (80, 90), 80, False, 90),
        (90, (80, 90), 85, False, 85),
        (90, (80, 90), 10, False, 10),
        (90, (80, 90), 120, False, 120),
        (90, (), 10, False, 10),
        (10, (80, 90), 90, True, 10),
        (10, (80, 90), 120, True, 10),
        (10, (80, 90, 10), 50, True, 50),
        (90, None, 10, False, 90),
        (90, None, 120, False, 120),
        (10, None, 120, True, 10),
    ],
    ids=[
        "the broker has none",
        "both agree",
        "the last one was not sent",
        "somebody went back between two of ours",
        "somebody went far back",
        "a Java member went on",
        "nothing was ever shown",
        "a reset that the broker did not get",
        "a reset, and a member that did not see it",
        "a reset that the broker got, and another one",
        "an earlier release's row, before it",
        "an earlier release's row, behind it",
        "an earlier release's reset",
    ],
)
def test_where_a_claimed_queue_goes_on(
    stored: int, shown: tuple[int, ...] | None, at_broker: int | None, was_reset: bool, expected: int
) -> None:
    """C3, F5: where somebody else has put the group, if anybody has; else where the store is."""
    known = NEVER_SHOWN if shown is None else ShownOffsets(shown)
    assert resolve_start_offset(stored, known, at_broker, was_reset=was_reset) == expected


DAMAGED = ["{", "nonsense", "12", '["x"]', "[null]", "[Infinity]", '{"a": 1}', "[" * 100_000]


@pytest.mark.parametrize("text", DAMAGED, ids=lambda text: text[:8])
def test_a_text_that_somebody_has_changed_is_reported_with_its_column(text: str) -> None:
    """H9, H2: of a table that people write into as well."""
    for column, read in (
        ("shown", lambda text: ShownOffsets.from_text(text).offsets),
        ("last_message", lambda text: RememberedMessages.from_text(text).newest),
        ("put_back", lambda text: QueueState(5, retry_counts=RetryCounts.from_text(text)).retry_spans),
    ):
        with pytest.raises(
            DamagedOffsets, match=rf"in {column}, which cannot be read.* {column} of that row to NULL"
        ) as told:
            read(text)
        assert len(str(told.value)) < 2_000


@pytest.mark.parametrize(
    "text", [*DAMAGED, '{"at": 1, "minute": ["x"], "hour": [], "seconds": [1, 1]}'], ids=lambda text: text[:8]
)
def test_figures_that_somebody_has_changed_are_none(text: str) -> None:
    """H9, D11: nothing goes by them, and the next batch writes new ones."""
    assert MetricsSnapshot.from_text(text).as_of(5.0) == NO_METRICS.as_of(5.0)


def test_broker_may_hold_the_last_confirmed_offset_or_any_later_one() -> None:
    """F5"""
    shown = shown_of(10, 20, 30)

    assert shown.since(20) == shown_of(20, 30)
    assert shown.since(25) == shown.since(None) == shown
    assert NEVER_SHOWN.since(10) == shown_of()


def test_an_offset_seen_again_becomes_the_newest() -> None:
    """F5: a group that goes back and forth."""
    assert shown_of(10, 20).followed_by(10, None) == shown_of(20, 10)
    assert NEVER_SHOWN.followed_by(5) == shown_of(5)


def test_without_an_answer_the_first_and_the_newest_stay() -> None:
    """F5: a broker that takes nothing for long; what it had before is what it has."""
    shown = shown_of()
    for offset in range(100):
        shown = shown.followed_by(offset)

    assert shown == shown_of(0, *range(101 - MOST_SHOWN, 100))


@given(st.none() | st.lists(st.integers(0, 2**63 - 1)).map(tuple))
def test_mirrored_offsets_survive_their_text_form(offsets: tuple[int, ...] | None) -> None:
    """F5: and a row in which nothing was is distinguished from one that was never looked at."""
    shown = ShownOffsets(offsets)
    again = ShownOffsets.from_text(shown.to_text())

    assert (again.offsets, again.is_known) == (offsets or (), offsets is not None)


_EVENTS = st.lists(
    st.tuples(st.sampled_from(["spark", "java", "operator"]), st.integers(0, 9), st.booleans()), max_size=12
)


@given(_EVENTS)
def test_each_claim_goes_on_where_the_last_one_to_move_the_group_has_left_it(
    events: list[tuple[str, int, bool]],
) -> None:
    """B5, F5: Spark members whose last word may be lost on its way, Java members,
    and operators at the broker.
    """
    stored, shown = 0, shown_of(0)
    at_broker = truth = 0
    for who, offset, arrives in [*events, ("spark", 0, True)]:
        if who == "operator":
            at_broker = truth = offset
        elif who == "java":
            # Java begins where the broker says, and its own last word is there when it gives the queue up.
            at_broker = truth = at_broker + offset
        else:
            begins_at = resolve_start_offset(stored, shown, at_broker, was_reset=False)
            # The one thing that cannot be found out: somebody has put there just what this side had shown before.
            assert begins_at == truth or at_broker in shown
            shown = shown.found(at_broker)
            stored = truth = begins_at + offset
            shown = shown.followed_by(stored)
            if arrives:
                at_broker = stored
                shown = shown.since(stored)


def seconds(*offsets: tuple[float, int]) -> list[PassedOffset]:
    return [PassedOffset(at_s, offset) for at_s, offset in offsets]


def test_a_broker_that_answers_some_requests_while_it_restarts_has_one_outage() -> None:
    """F5: its offset is still that from before the crash."""
    outages = Outages()
    outages.answered(["a", "b"], 100.0)
    outages.away(["a"], 101.0)
    outages.away(["a"], 130.0)
    outages.answered(["a"], 144.0)
    outages.away(["a"], 145.0)
    assert (outages.of("a"), outages.of("b")) == (Outage(100.0, 145.0), None)

    outages.answered(["a"], 160.0)
    outages.away(["a"], 161.0)
    assert outages.of("a") == Outage(160.0, 161.0)


@pytest.mark.parametrize(
    ("outage", "offset", "is_forgotten"),
    [
        (Outage(11.0, 12.0), 7, True),
        (Outage(11.0, 12.0), 8, True),
        (Outage(11.0, 12.0), 9, False),
        (Outage(11.0, 12.0), 5, False),
        (Outage(8.0, 9.0), 7, False),
        (Outage(30.0, 31.0), 7, False),
        (Outage(30.0, 31.0), 8, True),
        (None, 7, False),
    ],
    ids=[
        "it was replaced before the outage",
        "the newest one",
        "never there",
        "only in the last plan, long before",
        "a newer one arrived after the outage",
        "replaced more than 15 s before the outage",
        "the newest one, though it is old",
        "there was no outage",
    ],
)
def test_offsets_that_have_arrived_since_the_last_plan_count_as_if_a_plan_had_seen_them(
    outage: Outage | None, offset: int, is_forgotten: bool
) -> None:
    """F5: two witnesses, and each may have seen what the other has not."""
    queue = MessageQueue("T", "a", 0)
    recent = RecentOffsets()
    recent.note({queue: 5}, ["a"], -90.0)
    recent.note_arrivals(queue, seconds((-80.0, 6), (0.0, 7), (10.0, 8), (50.0, 9)), until_s=40.0)
    recent.note_outage("a", outage)

    assert recent.has(queue, offset) is is_forgotten
    assert recent.was_away("a") is (outage is not None)


def test_the_planner_and_the_member_see_the_same_outage_at_different_times() -> None:
    """F5: a plan long before the outage does not make all offsets since then recent."""
    queue = MessageQueue("T", "a", 0)
    recent = RecentOffsets()
    recent.note({queue: 5}, ["a"], 0.0)
    recent.note_arrivals(queue, seconds((270.0, 7), (275.0, 8), (299.0, 9)), until_s=340.0)
    recent.note({}, [], 310.0)
    recent.note_outage("a", Outage(295.0, 302.0))

    assert [offset for offset in range(10) if recent.has(queue, offset)] == [8, 9]
