"""The verdict over rows, watermarks and identities: which sink lacks what, and which gaps are wanted."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.errors import SinkSetBack
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.rules import new_row
from pyspark_rocketmq.offsets.store import RESET, OffsetRow
from pyspark_rocketmq.sinks.against_offsets import (
    SinkStanding,
    check_has_all,
    find_gaps,
    is_behind_since_a_kill,
    left_out_sinks,
    recorded_sinks,
    replayed_messages,
)
from tests.helpers import stored_texts
from tests.helpers.sink_rows import GROUP, Q0, Q1

LAKE = SinkStanding("/lake/orders", "table-1", {Q0: 9, Q1: 4}, "/lake/orders")
DATABASE = SinkStanding("database table rocketmq_watermarks", "token-1", {Q0: 9, Q1: 4})
STORE = "delta:/lake/_offsets"


def row(queue: MessageQueue, next_offset: int, *sinks: SinkStanding, batch_id: int = 3) -> OffsetRow:
    return new_row(GROUP, queue, next_offset)._replace(
        state=QueueState(next_offset, 1), batch_id=batch_id, sinks=recorded_sinks(sinks)
    )


def rows(*each: OffsetRow) -> dict[MessageQueue, OffsetRow]:
    return {one.queue: one for one in each}


def refusal(found: dict[MessageQueue, OffsetRow], *standings: SinkStanding) -> str:
    with pytest.raises(SinkSetBack) as refused:
        check_has_all(GROUP, found, standings, store=STORE)
    return str(refused.value)


@pytest.mark.parametrize("at", [0, 8, 9])
def test_a_sink_at_or_ahead_of_a_row_lacks_nothing(at: int) -> None:
    """H7: a batch that was killed before its offsets leaves the sink ahead."""
    assert not find_gaps(rows(row(Q0, at, LAKE)), [LAKE])


@pytest.mark.parametrize(
    "found",
    [
        row(Q0, 99),
        row(Q0, 99, batch_id=RESET),
        row(Q0, 99, DATABASE),
        row(Q0, 99, LAKE._replace(name="/lake/other", identity="table-2")),
        row(Q0, 99)._replace(sinks=stored_texts.sinks("no JSON")),
        row(Q0, 99)._replace(sinks=stored_texts.sinks("[1]")),
    ],
    ids=["without a sink", "reset", "another kind", "another table", "damaged", "another form"],
)
def test_a_row_that_was_moved_without_this_sink_may_be_ahead_of_it(found: OffsetRow) -> None:
    """H7: by an operator, another member of the group, or a batch with other sinks."""
    assert not find_gaps(rows(found), [LAKE])


def test_a_sink_that_has_begun_a_later_generation_lacks_nothing_of_the_one_before() -> None:
    """H7, H10: the offset store was put back; another table has begun nothing."""
    ahead = LAKE._replace(watermarks={Q0: 2, Q1: 4}, later=frozenset({Q0}))
    found = rows(row(Q0, 9, LAKE), row(Q1, 4, LAKE))

    assert not find_gaps(found, [ahead])
    [lost] = find_gaps(found, [ahead._replace(identity="table-2")])
    assert lost.behind.keys() == {Q0, Q1}


def test_a_sink_without_a_watermark_lacks_even_the_first_message() -> None:
    """H7"""
    [lost] = find_gaps(rows(row(Q0, 1, LAKE), row(Q1, 0, LAKE)), [LAKE._replace(watermarks={})])

    assert lost.targets == {Q0: 0}


def test_a_sink_whose_watermarks_were_forgotten_is_looked_at_before_messages_are_consumed_again() -> None:
    """H7, H10: its rows may be there, and would be doubled."""
    forgotten = LAKE._replace(watermarks={Q1: 0})

    text = refusal(rows(row(Q0, 12, LAKE), row(Q1, 4, LAKE)), forgotten)

    remedy = f"DeltaSink('/lake/orders').rewind('{GROUP}', {{queue: highest queueOffset + 1}})"
    assert text.index(remedy) < text.index("offsets reset --to sink")
    assert "setTransactionRetentionDuration" in text
    for other in (LAKE, LAKE._replace(identity="table-2"), LAKE._replace(identity=None, watermarks={})):
        assert "First check whether" not in refusal(rows(row(Q0, 12, LAKE)), other)


def test_a_sink_that_shows_nothing_since_offsets_began_again_may_have_earlier_rows_only() -> None:
    """H7, F4: an offset of these would be taken for one of the new log."""
    found = rows(row(Q0, 3, LAKE)._replace(generation=1), row(Q1, 4, LAKE))

    text = refusal(found, LAKE._replace(watermarks={}))

    assert "highest queueOffset" not in text
    assert f"Offsets have begun again in {Q0}, so rows of earlier messages have the same offsets" in text
    assert "such as storeTimestamp. If there are rows of the messages that the sink lacks, choose (3)" in text


def test_a_table_that_was_rewritten_may_have_all_rows() -> None:
    """H7, H10: a copy has them, and no watermarks; a copy's id is another one whatever is set in it."""
    rewritten = LAKE._replace(identity="table-2", watermarks={Q0: 0})

    text = refusal(rows(row(Q0, 12, LAKE)), rewritten)

    assert f"The sink /lake/orders may lack rows of messages that group {GROUP} has consumed" in text
    assert "First check whether the rows are in /lake/orders after all: a table that was rewritten" in text
    steps = f"DeltaSink('/lake/orders').rewind('{GROUP}', {{queue: highest queueOffset + 1}}) for every queue"
    assert f"{steps}, accept the gap by (3), and start the query again. (1) would then write the" in text
    assert text.index(steps) < text.index("offsets reset --to sink")
    assert "(3) Accept the gap, also if the sink has all rows, and go on" in text


@pytest.mark.parametrize("identity", ["table-1", "table-2"])
@pytest.mark.parametrize("generation", [0, 1])
def test_consuming_again_doubles_no_row_of_a_change_table(identity: str, generation: int) -> None:
    """H7, H10: its rows have no offsets, and changes are merged by their positions."""
    found = row(Q0, 12, LAKE)._replace(generation=generation)

    text = refusal(rows(found), LAKE._replace(identity=identity, watermarks={}, merges_changes=True))

    assert "queueOffset" not in text
    assert "twice" not in text
    assert "If the rows are in /lake/orders after all" in text
    assert "(1) changes nothing in them" in text


@pytest.mark.parametrize("identity", ["table-1", "table-2"])
def test_a_sink_without_a_path_may_have_all_rows_too(identity: str) -> None:
    """H7, H10: a catalog's table whose commits of the group were cleaned up; a database's table, made again."""
    named = SinkStanding("main.shop.orders", "table-1", {})

    text = refusal(rows(row(Q0, 12, named)), named._replace(identity=identity))

    assert "main.shop.orders may lack rows" in text
    assert "First check whether the rows are in main.shop.orders after all" in text
    assert "DeltaSink.rewind(consumer_group, {queue: highest queueOffset + 1}) for every queue" in text
    assert "accept the gap by (3)" in text


def test_a_sink_that_was_set_back_is_named_with_queue_and_both_offsets() -> None:
    """H7"""
    text = refusal(rows(row(Q0, 12, LAKE), row(Q1, 4, LAKE)), LAKE)

    assert f"The sink /lake/orders lacks rows of messages that group {GROUP} has consumed" in text
    assert "restored to an earlier state, or failed over to a replica" in text
    assert f"{Q0}: the sink is at 9, the group at 12." in text
    assert str(Q1) not in text


def test_a_queue_that_the_sink_knows_nothing_of_any_more_is_named() -> None:
    """H7: absent although a batch with this sink has moved the row."""
    text = refusal(rows(row(Q0, 12, LAKE)), LAKE._replace(watermarks={}))

    assert "the sink is at 0, the group at 12" in text


def test_another_table_in_the_place_is_reported_whatever_its_watermarks_are() -> None:
    """H7: CREATE OR REPLACE TABLE leaves them and takes the rows."""
    text = refusal(rows(row(Q0, 9, LAKE)), LAKE._replace(identity="table-2"))

    assert "another table (id table-2) than before (id table-1)" in text


def test_a_missing_table_is_reported() -> None:
    """H7: it is not made again in silence."""
    text = refusal(rows(row(Q0, 9, LAKE)), SinkStanding("/lake/orders", None, {}, "/lake/orders"))

    assert "the sink is not there any more" in text


def test_a_table_is_known_under_another_name_by_its_identity() -> None:
    """H7: a folder that was moved, or mounted elsewhere."""
    moved = LAKE._replace(name="/mnt/orders")
    assert not find_gaps(rows(row(Q0, 9, LAKE)), [moved])

    assert find_gaps(rows(row(Q0, 10, LAKE)), [moved])


def test_a_sink_without_identity_is_compared_by_watermark() -> None:
    """H7: one of a user's own."""
    own = SinkStanding("own", "", {Q0: 9})
    assert not find_gaps(rows(row(Q0, 9, own)), [own])

    assert find_gaps(rows(row(Q0, 10, own)), [own])


def test_two_sinks_of_one_name_are_distinguished_by_their_identities() -> None:
    """H7: two databases, each with the table of watermarks that is the default."""
    other = DATABASE._replace(identity="token-2")
    found = rows(row(Q0, 9, DATABASE, other))
    assert not find_gaps(found, [DATABASE, other])
    assert not find_gaps(found, [other, DATABASE])

    [behind] = find_gaps(found, [DATABASE, other._replace(watermarks={Q0: 2})])
    assert (behind.standing.identity, behind.is_another) == ("token-2", False)
    [anew] = find_gaps(found, [DATABASE, other._replace(identity="token-3")])
    assert (anew.standing.identity, anew.is_another) == ("token-3", True)


def test_a_second_sink_of_the_same_name_is_new_to_the_group() -> None:
    """H7: a second database, whose table of watermarks may not be there yet."""
    found = rows(row(Q0, 9, DATABASE))
    for other in (
        DATABASE._replace(identity="token-2", watermarks={}),
        DATABASE._replace(identity="", watermarks={}),
    ):
        for both in ([DATABASE, other], [other, DATABASE]):
            assert not find_gaps(found, both)
            assert [each.standing for each in left_out_sinks(found, both)] == [other]
            assert not replayed_messages(rows(row(Q0, 9, DATABASE)), both)

        [lost] = find_gaps(found, [other])
        assert lost.standing is other


def test_each_of_several_sinks_is_judged_by_itself() -> None:
    """H7: the offsets go back to where the one is that lacks most; the others leave out what they have."""
    behind = DATABASE._replace(watermarks={Q0: 2})

    [lost] = find_gaps(rows(row(Q0, 9, LAKE, DATABASE)), [LAKE, behind])

    assert lost.standing is behind
    assert lost.targets == {Q0: 2}


def test_the_error_names_three_ways_forward() -> None:
    """H7"""
    delta = refusal(rows(row(Q0, 12, LAKE)), LAKE)
    assert (
        f"`pyspark-rocketmq offsets reset --to sink --sink /lake/orders --option offsetStore={STORE} "
        in delta
    )
    assert f"--option consumerGroup={GROUP} --option nameServers=HOST:PORT`" in delta
    assert "`pyspark-rocketmq offsets reset --to earliest --option" in delta
    assert "`pyspark-rocketmq offsets accept-gap --option" in delta
    assert "remove the sink's table, and run `pyspark-rocketmq offsets reset --to earliest" in delta

    database = refusal(rows(row(Q0, 12, DATABASE)), DATABASE)
    assert "`pyspark_rocketmq.reset_to_sink(store, sink, consumer_group)` in Python" in database
    # Its own tables keep their rows, and others may have watermarks in its table of watermarks.
    assert "delete the rows that the group has written, and the group's rows in the table" in database


def test_sinks_that_have_lost_rows_together_are_gone_back_to_together() -> None:
    """H7: a reset to where one of them is forgets what the others lack."""
    other = LAKE._replace(name="/lake/other", identity="table-2", path="/lake/other", watermarks={Q0: 2})

    text = refusal(rows(row(Q0, 12, LAKE, other)), LAKE, other)

    assert (
        "`pyspark_rocketmq.reset_to_sink(store, [every sink of the query], consumer_group)` in Python" in text
    )
    assert "--to sink" not in text


def test_many_queues_are_counted() -> None:
    queues = [Q0._replace(queue_id=number) for number in range(8)]
    text = refusal(rows(*(row(queue, 5, LAKE) for queue in queues)), LAKE._replace(watermarks={}))

    assert text.count("the sink is at 0") == 5
    assert "and 3 more queues" in text


def test_a_sink_that_no_row_names_is_new_where_others_are_named() -> None:
    """H7: it begins in the middle, which is logged."""
    new = LAKE._replace(name="/lake/new", identity="table-9", watermarks={})

    [found] = left_out_sinks(rows(row(Q0, 9, LAKE), row(Q1, 4)), [new, LAKE])

    assert (found.standing, set(found.behind)) == (new, {Q0})
    assert left_out_sinks(rows(row(Q0, 9)), [new]) == []


def test_a_sink_that_was_not_in_the_query_for_a_while_lacks_rows_where_queues_moved_meanwhile() -> None:
    """H7: a queue that was idle meanwhile still names it."""
    back = DATABASE._replace(watermarks={Q0: 3, Q1: 4})
    found = rows(row(Q0, 6, LAKE), row(Q1, 4, LAKE, DATABASE))

    [lacking] = left_out_sinks(found, [LAKE, back])

    assert lacking.standing is back
    assert str(lacking) == f"{Q0}=3<6"
    assert not find_gaps(found, [LAKE, back])


@pytest.mark.parametrize(
    "standing",
    [
        DATABASE._replace(watermarks={Q0: 6}),
        DATABASE._replace(watermarks={Q0: 2}, later=frozenset({Q0})),
        LAKE._replace(watermarks={Q0: 2}),
    ],
    ids=["at the offset", "in a later generation", "named"],
)
def test_a_sink_that_was_not_left_out_is_not_reported(standing: SinkStanding) -> None:
    """H7: a sink that a row names and that is behind was set back, which is an error."""
    assert not left_out_sinks(rows(row(Q0, 6, LAKE)), [standing])


def test_offsets_that_are_behind_a_sink_are_reported_unless_an_operator_has_moved_them() -> None:
    """H2: as those of an offset store that was put back while nobody was there."""
    ahead = LAKE._replace(watermarks={Q0: 9, Q1: 4})

    assert replayed_messages(rows(row(Q0, 2, ahead), row(Q1, 4, ahead)), [ahead]) == {Q0: 7}
    assert replayed_messages(rows(row(Q0, 2)), [ahead]) == {}


@pytest.mark.parametrize(("stored_s", "is_ordinary"), [(900.0, True), (1_100.0, True), (1_121.0, False)])
def test_a_sink_whose_newest_message_is_hardly_newer_than_the_offsets_is_ahead_as_after_a_kill(
    stored_s: float, is_ordinary: bool
) -> None:
    """H2: offsets follow rows within seconds; those of a store that was put back are older."""
    found = rows(row(Q0, 2, LAKE)._replace(updated_at_s=1_000.0))
    ahead = LAKE._replace(newest={Q0: f"[8,{int(stored_s * 1_000)},64]"})

    assert is_behind_since_a_kill([Q0], found, [ahead]) is is_ordinary
    assert not is_behind_since_a_kill([Q0], found, [LAKE]), "it stores no message"
