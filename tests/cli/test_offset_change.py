"""Jobs ``pyspark-rocketmq offsets reset``, ``skip`` and ``clone``: seen before they are done,
refused where they would harm, fenced.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import json
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from rich.console import Console

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.cli.offsets.change import ChangeOptions, SinkWatermarks, accept_gap, clone, reset, skip
from pyspark_rocketmq.cli.offsets.cluster import ClusterInspector
from pyspark_rocketmq.cli.offsets.moves import (
    AtTime,
    AtVersion,
    QueueChoice,
    ToBound,
    ToOffset,
    ToSink,
    ToTime,
)
from pyspark_rocketmq.cli.options import OffsetsChangeSettings
from pyspark_rocketmq.cli.output import OutputForm
from pyspark_rocketmq.cli.settings import JobFailed
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.cluster import stored_at_s
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.commit.recovery import check_sink, reset_to_sink
from pyspark_rocketmq.delta.snapshot import TableSnapshot
from pyspark_rocketmq.errors import OffsetError, OptionError, RequestTimeout, SinkConflict, SinkSetBack
from pyspark_rocketmq.group.join import client_id, join_group, offset_key
from pyspark_rocketmq.group.member import RunningMember
from pyspark_rocketmq.model import Message, MessageQueue, QueueState
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.file import FileOffsetStore
from pyspark_rocketmq.offsets.store import NewGeneration, OffsetStore, QueueCommit, new_owner
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.sinks.against_offsets import SinkStanding, recorded_sinks
from pyspark_rocketmq.sinks.delta.rules import NUMBER, WATERMARKS, SinkCommit, app_id, group_app_id
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.delta.table import SinkTable
from pyspark_rocketmq.sinks.multi import MultiSink
from pyspark_rocketmq.wire.columnar.schema import POSITION_FIELDS
from tests.helpers import stored_texts
from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.retries import but_retries
from tests.helpers.sending import patient_producer
from tests.helpers.sink_rows import files_of
from tests.helpers.wait import PATIENCE_S, wait_until

GROUP = "etl"
PATIENCE_MS = int(PATIENCE_S * 1000)
A0, A1 = (MessageQueue("orders", "broker-a", number) for number in (0, 1))
LATER_S = 4e9
GET_CONSUMER_LIST_BY_GROUP = 38
GET_CONSUMER_RUNNING_INFO = 307


def options(**given: Any) -> ChangeOptions:
    return ChangeOptions(**{"choice": QueueChoice(), "form": OutputForm.JSON, **given})


class Shop:
    """A group in a store, and the commands an operator gives."""

    def __init__(self, store: DeltaOffsetStore | FileOffsetStore, **settings: Any) -> None:
        self.store = store
        given: dict[str, Any] = {"consumer_group": GROUP, "request_timeout_ms": PATIENCE_MS} | settings
        self.settings = OffsetsChangeSettings(offset_store=store.spec, **given)
        self.shown = ""

    def stands_at(self, *, at: Mapping[MessageQueue, int]) -> None:
        """Let the group have claimed queues, committed, and stopped long ago."""
        rows = self.store.claim(GROUP, "", dict.fromkeys(at, 0))
        commits = [
            QueueCommit(queue=queue, state=QueueState(offset, rows[queue].epoch))
            for queue, offset in at.items()
        ]
        self.store.commit(GROUP, commits, query_id="q", batch_id=0)

    def do(self, job: Callable[..., object], *arguments: object, **given: Any) -> list[tuple[int, int]]:
        output = io.StringIO()
        try:
            job(self.settings, *arguments, options(**given), Console(file=output, width=200))
        finally:
            self.shown = output.getvalue()
        return [(move["queueId"], move["newOffset"]) for move in json.loads(self.shown)]

    def now(self, group: str = GROUP) -> dict[MessageQueue, int]:
        return {queue: row.next_offset for queue, row in self.store.read(group).items()}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Without a cluster."""
    shop = Shop(DeltaOffsetStore(tmp_path / "offsets"))
    shop.stands_at(at={A0: 20, A1: 30})
    return shop


def test_a_group_is_set_to_an_offset_under_a_new_epoch(shop: Shop) -> None:
    """F5: a commit planned before is refused."""
    shop.do(reset, ToOffset(7), choice=QueueChoice(queues=frozenset({("broker-a", 0)})))

    assert shop.now() == {A0: 7, A1: 30}
    assert shop.store.read(GROUP)[A0].was_reset
    assert json.loads(shop.shown)[0]["epoch"] == 2
    late = QueueCommit(queue=A0, state=QueueState(25, 1))
    assert shop.store.commit(GROUP, [late], query_id="q", batch_id=1).refused


def test_a_dry_run_shows_everything_and_changes_nothing(shop: Shop) -> None:
    """F5"""
    before = shop.store.read(GROUP)

    assert shop.do(reset, ToOffset(7), is_dry_run=True) == [(0, 7), (1, 7)]

    assert shop.store.read(GROUP) == before
    assert [move["moved"] for move in json.loads(shop.shown)] == [-13, -23]


def test_a_dry_run_says_what_would_be_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """F5: on stderr, beside the table."""
    store = DeltaOffsetStore(tmp_path / "offsets")
    store.claim(GROUP, "host@one", {A0: 20})

    assert Shop(store).do(reset, ToOffset(30), is_dry_run=True) == [(0, 30)]

    assert "Without --dry-run this is refused: 1 of 1 queue is being consumed" in capsys.readouterr().err


def test_moving_a_group_back_reports_that_its_sink_writes_nothing_twice(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    """F5: once, on stderr, unless the sink was named; and not whoever moves it forth."""
    shop.do(reset, ToOffset(40))
    assert capsys.readouterr().err == ""

    shop.do(reset, ToOffset(7), is_dry_run=True)
    assert capsys.readouterr().err.startswith(
        "Messages are consumed again, but a sink drops those rows that it has already. --sink PATH shows"
    )


def test_a_table_says_whether_it_is_so_or_would_be(shop: Shop) -> None:
    for is_dry_run, words in ((True, "as they would be"), (False, "as they are now")):
        output = io.StringIO()
        reset(
            shop.settings, ToOffset(7), options(form=OutputForm.TABLE, is_dry_run=is_dry_run),
            Console(file=output, width=200),
        )  # fmt: skip

        assert f"Offsets of consumer group etl, {words}" in output.getvalue()
        assert "brokerMinOffset" not in output.getvalue()


def test_a_change_as_csv_is_read_by_any_tool(shop: Shop) -> None:
    output = io.StringIO()
    reset(shop.settings, ToOffset(7), options(form=OutputForm.CSV), Console(file=output, width=40))

    records = list(csv.DictReader(io.StringIO(output.getvalue())))
    assert [(record["queueId"], record["newOffset"], record["heldBy"]) for record in records] == [
        ("0", "7", ""), ("1", "7", ""),
    ]  # fmt: skip


def test_a_group_goes_back_to_where_it_was(shop: Shop) -> None:
    """F5: by version, by time, and over a mistaken reset."""
    assert isinstance(shop.store, DeltaOffsetStore)
    before = shop.store.changes(GROUP)[-1]
    shop.do(reset, ToOffset(0))

    shop.do(reset, AtVersion(before.version))
    assert shop.now() == {A0: 20, A1: 30}

    shop.do(reset, ToOffset(0))
    shop.do(reset, AtTime(before.at_s))
    assert shop.now() == {A0: 20, A1: 30}
    with pytest.raises(JobFailed, match="nothing to change: group 'etl' has these offsets already"):
        shop.do(reset, AtTime(LATER_S))


def test_a_group_goes_back_to_the_beginning_of_a_queue_that_has_begun_again_since(shop: Shop) -> None:
    """F5: an offset of the log before it is none of this log, of which nothing was consumed then."""
    assert isinstance(shop.store, DeltaOffsetStore)
    then = shop.store.changes(GROUP)[-1]
    shop.store.begin_generations(GROUP, {A0: NewGeneration(1, 0)})
    back = functools.partial(shop.do, reset, AtVersion(then.version))

    with pytest.raises(JobFailed, match="give option 'nameServers'"):
        back()
    with SimCluster() as cluster:
        cluster.create_topic("orders", 2)
        with patient_producer(cluster.name_servers) as producer:
            producer.send_batch([Message(topic="orders", body=b"x")] * 40, A0)
            producer.send_batch([Message(topic="orders", body=b"x")] * 40, A1)
        shop.settings = dataclasses.replace(shop.settings, name_servers=(cluster.name_servers,))
        shop.do(reset, ToOffset(25))
        back()

    assert shop.now() == {A0: 0, A1: 30}


def test_a_version_that_is_not_there_yet_is_refused(shop: Shop) -> None:
    """F5: it is a mistaken one; the newest was taken for it."""
    assert isinstance(shop.store, DeltaOffsetStore)
    newest = shop.store.changes(GROUP)[-1].version

    with pytest.raises(
        JobFailed,
        match=rf"no version 99 yet, its newest is {newest}\. `pyspark-rocketmq offsets history --conf FILE`",
    ):
        shop.do(reset, AtVersion(99))
    shop.store.claim("another", "me", {A0: 0})
    with pytest.raises(JobFailed, match="nothing to change"):
        shop.do(reset, AtVersion(newest + 1))


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (
            QueueChoice(topics=frozenset({"ordrs"})),
            "The group has no topic 'ordrs'; did you mean 'orders'?",
        ),
        (
            QueueChoice(topics=frozenset({"orders", "x"})),
            "The group has no topic 'x'; its topics are orders.",
        ),
        (
            QueueChoice(queues=frozenset({("broker-a", 0), ("broker-a", 9)})),
            "The group has no queue 'broker-a:9'; its queues are broker-a:0, broker-a:1.",
        ),
    ],
)
def test_a_topic_or_queue_the_group_does_not_consume_is_reported(
    shop: Shop, choice: QueueChoice, said: str
) -> None:
    """F5: of several, what is right is not moved either."""
    before = shop.now()

    changes: tuple[Callable[[], object], ...] = (
        lambda: shop.do(reset, ToOffset(7), choice=choice),
        lambda: shop.do(clone, GROUP, choice=choice),
        lambda: shop.do(accept_gap, choice=choice),
    )
    for change in changes:
        with pytest.raises(JobFailed, match=re.escape(f"{said} Nothing was changed.")):
            change()
    assert shop.now() == before


def test_a_group_that_is_not_there_is_not_made_by_mistake(shop: Shop) -> None:
    """F5: only where that is said; a group of a clone may be new."""
    shop.settings = OffsetsChangeSettings(offset_store=shop.store.spec, consumer_group="elt")

    changes: tuple[Callable[[], object], ...] = (
        lambda: shop.do(reset, ToOffset(7)),
        lambda: shop.do(reset, AtVersion(1), is_new_group=True),
        lambda: shop.do(skip, None),
        lambda: shop.do(accept_gap),
    )
    for change in changes:
        with pytest.raises(JobFailed, match=r"holds nothing of consumer group 'elt'.*Did you mean 'etl'\?"):
            change()
    assert shop.store.groups() == (GROUP,)


def test_a_store_without_a_past_says_so(tmp_path: Path) -> None:
    shop = Shop(FileOffsetStore(tmp_path / "offsets"))
    shop.stands_at(at={A0: 20})

    with pytest.raises(JobFailed, match="keeps no history, which this command needs; only a Delta table"):
        shop.do(reset, AtVersion(1))
    assert shop.do(reset, ToOffset(3)) == [(0, 3)]


def test_a_group_is_cloned_with_another_s_offsets(shop: Shop) -> None:
    """F5: clone, into a group that is not there yet."""
    copy = Shop(shop.store)
    copy.settings = OffsetsChangeSettings(offset_store=shop.store.spec, consumer_group="copy")

    copy.do(clone, GROUP)

    assert copy.now("copy") == {A0: 20, A1: 30}
    with pytest.raises(JobFailed, match=r"holds nothing of consumer group 'elt'.*Did you mean 'etl'"):
        copy.do(clone, "elt")


def test_another_group_s_place_says_nothing_of_the_broker_s_log(shop: Shop) -> None:
    """F5, F4: so its generation and messages come with it, which show a topic that was created again."""
    epoch = shop.store.read(GROUP)[A0].epoch
    epoch = shop.store.begin_generations(GROUP, {A0: NewGeneration(epoch, 0)})[A0].epoch
    known = stored_texts.messages("[8,100,9]")
    state = QueueState(9, epoch, last_message=known)
    shop.store.commit(GROUP, [QueueCommit(queue=A0, state=state)], query_id="q", batch_id=1)
    shop.store.claim("copy", "", {A1: 4})

    copy = named(shop, "copy")
    copy.do(clone, GROUP)

    rows = shop.store.read("copy")
    assert all(row.was_reset and not row.was_reset_by_operator for row in rows.values())
    assert {queue: (row.next_offset, row.generation) for queue, row in rows.items()} == {
        A0: (9, 1), A1: (30, 0),
    }  # fmt: skip
    assert rows[A0].state.last_message == known
    with pytest.raises(JobFailed, match="nothing to change"):
        copy.do(clone, GROUP)


def named(shop: Shop, group: str, **settings: Any) -> Shop:
    """Return the same store with another group in the options."""
    texts = {"offsetStore": shop.store.spec, "consumerGroup": group, **settings}
    other = Shop(shop.store)
    other.settings = OffsetsChangeSettings.parse(texts)
    return other


def test_a_new_group_of_a_namespace_is_not_the_stored_one_without_it(shop: Shop) -> None:
    """F5, L8: its full name is the one that the other commands show."""
    shop.store.reset("other", {A0: 7})

    with pytest.raises(JobFailed, match=r"There is nothing to change: group 'shop%etl'"):
        named(shop, "shop%etl").do(reset, ToOffset(3), is_new_group=True)
    named(shop, "shop%etl").do(clone, "other")

    assert shop.now() == {A0: 20, A1: 30}
    assert shop.now("shop%etl") == {A0: 7}


def test_a_name_that_may_be_a_new_group_or_a_stored_one_is_refused(shop: Shop) -> None:
    """F5, L8: a group that is stored under exactly this name is preferred."""
    shop.store.reset("shop%other", {A0: 7})
    shop.store.reset("bc@one", {A0: 8})

    for name in ("other", "bc"):
        with pytest.raises(
            JobFailed, match=rf"'{name}' may mean a new group '{name}' or one .*--new-group --topic"
        ):
            named(shop, name).do(clone, GROUP)
    named(shop, "bc@two").do(clone, "bc@one")
    shop.store.reset("other", {A0: 3})
    named(shop, "other").do(reset, ToOffset(4))

    assert shop.now("bc@two") == {A0: 8}
    assert shop.now("other") == {A0: 4}
    assert shop.now("shop%other") == {A0: 7}


def test_one_of_several_instances_is_chosen_by_the_name_that_the_error_gives(shop: Shop) -> None:
    """F5, D3"""
    for instance, offset in (("w1", 7), ("east/w2", 8)):
        shop.store.reset(f"bc@{instance}", {A0: offset})

    with pytest.raises(JobFailed, match="Give one of these names: bc@east/w2, bc@w1"):
        named(shop, "bc").do(reset, ToOffset(1))
    named(shop, "bc@east/w2").do(reset, ToOffset(1))

    assert shop.now("bc@w1") == {A0: 7}
    assert shop.now("bc@east/w2") == {A0: 1}


def test_a_name_of_another_namespace_than_the_options_is_refused(shop: Shop) -> None:
    """L8"""
    with pytest.raises(
        JobFailed,
        match=r"'shop%etl' names namespace 'shop', but the options name 'mall'\. Correct option 'consumerGroup'",
    ):
        named(shop, "shop%etl", namespace="mall").do(reset, ToOffset(3), is_new_group=True)


def test_targets_that_only_brokers_know_need_the_brokers(shop: Shop) -> None:
    commands: tuple[Callable[[], object], ...] = (
        lambda: shop.do(reset, ToBound("earliest")),
        lambda: shop.do(skip, None),
        lambda: shop.do(reset, ToTime(1.0)),
    )
    for command in commands:
        with pytest.raises(JobFailed, match="give option 'nameServers'"):
            command()


def test_a_group_that_changed_a_moment_ago_is_taken_for_running(tmp_path: Path) -> None:
    """C5: where nobody can be asked."""
    store = DeltaOffsetStore(tmp_path / "offsets")
    store.claim(GROUP, new_owner("host@one"), {A0: 20})
    shop = Shop(store)

    with pytest.raises(
        JobFailed, match=r"1 of 1 queue is being consumed by host@one \(its offset changed \d+ s ago"
    ):
        shop.do(reset, ToOffset(0))
    assert shop.now() == {A0: 20}

    shop.do(reset, ToOffset(0), is_forced=True)
    assert shop.now() == {A0: 0}


@pytest.mark.parametrize("away", [("broker-a", "broker-b"), ("broker-b",)])
def test_a_group_is_judged_by_its_offsets_while_brokers_are_away(
    tmp_path: Path, away: tuple[str, ...]
) -> None:
    """C5, A2: brokers are away, which is not to say that nobody waits for them."""
    store = DeltaOffsetStore(tmp_path / "offsets")
    store.claim(GROUP, "host@one", {A0: 20})
    with SimCluster(brokers=2) as cluster:
        cluster.create_topic("orders", 1)
        for name in away:
            cluster.refuse_connections(name)
        shop = Shop(store, name_servers=(cluster.name_servers,))

        with pytest.raises(JobFailed, match=r"being consumed by host@one \(its offset changed \d+ s ago"):
            shop.do(reset, ToOffset(0))
    assert shop.now() == {A0: 20}


# ------------------------------------------------------------------------------------------ the sink


POSITIONS = pa.schema(POSITION_FIELDS)


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    """A sink that has the group's rows up to where it stands."""
    sink = DeltaSink(tmp_path / "sink")
    sink.prepare(POSITIONS)
    sink.rewind(GROUP, {A0: 20, A1: 30})
    rows = [
        {"topic": "orders", "brokerName": "broker-a", "queueId": 0, "queueOffset": offset}
        for offset in range(20)
    ]
    write_deltalake(sink.path, pa.Table.from_pylist(rows, schema=POSITIONS), mode="append")
    return sink


def watermarks(sink: DeltaSink) -> dict[MessageQueue, int]:
    return SinkWatermarks(sink.path).of(GROUP, {A0: 0, A1: 0})


def test_the_rows_that_a_sink_would_drop_are_shown(shop: Shop, sink: DeltaSink) -> None:
    """H1, F5: going back does not write them again by itself."""
    shop.do(reset, ToOffset(25), sink=sink.path)

    assert [move["note"] for move in json.loads(shop.shown)] == [None, "the sink drops rows below 30"]
    assert watermarks(sink) == {A0: 20, A1: 30}


def test_a_sink_is_not_set_back_while_its_rows_would_be_there_twice(shop: Shop, sink: DeltaSink) -> None:
    """H1"""
    with pytest.raises(
        JobFailed,
        match=(r"10 rows that group etl would write a second time. Remove them first, in Spark: DELETE FROM"),
    ):
        shop.do(reset, ToOffset(10), sink=sink.path, rewinds_sink=True)

    assert (shop.now(), watermarks(sink)) == ({A0: 20, A1: 30}, {A0: 20, A1: 30})


@pytest.mark.parametrize("is_stored", [True, False], ids=["in the row", "only in the sink"])
def test_no_delete_is_shown_that_would_remove_rows_of_an_earlier_topic(
    shop: Shop, sink: DeltaSink, is_stored: bool
) -> None:
    """H1, F4: they have the same offsets, and their messages are gone."""
    batch = sink.begin(GROUP, {A0: 1})
    batch.commit([], {A0: 20})
    if is_stored:
        epoch = shop.store.read(GROUP)[A0].epoch
        epoch = shop.store.begin_generations(GROUP, {A0: NewGeneration(epoch, 0)})[A0].epoch
        shop.store.commit(
            GROUP, [QueueCommit(queue=A0, state=QueueState(20, epoch))], query_id="q", batch_id=1
        )
    back = functools.partial(shop.do, reset, ToOffset(10), sink=sink.path, rewinds_sink=True)

    with pytest.raises(JobFailed) as refused:
        back()
    DeltaTable(sink.path).delete('"queueOffset" >= 10')

    text = str(refused.value)
    assert "DELETE" not in text
    assert f"10 rows at or above the new offsets in queues whose offsets have begun again: {A0}." in text
    assert re.search(r"such as storeTimestamp\. Then give .* without --rewind-sink.*rewind\('etl', ", text)
    assert back() == [(0, 10), (1, 10)]


def test_rows_of_other_queues_than_those_that_began_again_are_shown_with_their_delete(
    shop: Shop, sink: DeltaSink
) -> None:
    """H1, F4"""
    row = {"topic": "orders", "brokerName": "broker-a", "queueId": 1, "queueOffset": 25}
    write_deltalake(sink.path, pa.Table.from_pylist([row], schema=POSITIONS), mode="append")
    sink.begin(GROUP, {A0: 1}).commit([], {A0: 20})

    with pytest.raises(JobFailed, match=r"still has 1 row that group etl .*DELETE FROM") as refused:
        shop.do(reset, ToOffset(10), sink=sink.path, rewinds_sink=True)

    assert "`queueId` = 1 " in str(refused.value)
    assert "`queueId` = 0 " not in str(refused.value)


def test_group_and_sink_are_set_back_together(shop: Shop, sink: DeltaSink) -> None:
    """H1, F5: then the rows are written again, once."""
    shop.do(
        reset,
        ToOffset(20),
        sink=sink.path,
        rewinds_sink=True,
        choice=QueueChoice(queues=frozenset({("broker-a", 1)})),
    )

    assert (shop.now(), watermarks(sink)) == ({A0: 20, A1: 20}, {A0: 20, A1: 20})


def test_a_sink_follows_a_group_that_was_set_back_before_it(shop: Shop, sink: DeltaSink) -> None:
    """H1, F5: the sink is looked at, its rows are deleted,
    and the same command is given with --rewind-sink.
    """
    back = functools.partial(shop.do, reset, ToOffset(10), sink=sink.path)
    back()
    with pytest.raises(JobFailed, match="10 rows that group etl would write a second time"):
        back(rewinds_sink=True)
    DeltaTable(sink.path).delete('"queueOffset" >= 10')

    assert back(rewinds_sink=True) == [(0, 10), (1, 10)]

    assert (shop.now(), watermarks(sink)) == ({A0: 10, A1: 10}, {A0: 10, A1: 10})
    with pytest.raises(JobFailed, match="nothing to change"):
        back(rewinds_sink=True)


@pytest.fixture
def by_spark(tmp_path: Path) -> DeltaSink:
    """A sink whose table Spark writes: its commit has the watermarks, and ids only its number."""
    path = tmp_path / "by spark"
    ids = {app_id(GROUP, A0): 20, app_id(GROUP, A1): 30}
    rows = [(0, offset) for offset in range(20)]
    columns = {"topic": "orders", "brokerName": "broker-a"}
    table = pa.Table.from_pylist(
        [{**columns, "queueId": queue, "queueOffset": offset} for queue, offset in rows], schema=POSITIONS
    )
    metadata = SinkCommit.of(GROUP, ids).metadata(**{WATERMARKS: ids, NUMBER: 3})
    properties = CommitProperties(
        custom_metadata=metadata, app_transactions=[Transaction(group_app_id(GROUP), 3)]
    )
    write_deltalake(path, table, commit_properties=properties)
    DeltaTable(path).alter.add_constraint({"known": "topic != 'unknown'"})
    return DeltaSink(path)


def test_group_and_a_sink_that_spark_writes_are_set_back_together(shop: Shop, by_spark: DeltaSink) -> None:
    """H1, H10, J5: its watermarks are in the commits, and no session is needed to set them."""
    shop.do(reset, ToOffset(25), sink=by_spark.path)
    assert [move["note"] for move in json.loads(shop.shown)] == [None, "the sink drops rows below 30"]

    with pytest.raises(JobFailed, match="10 rows that group etl would write a second time"):
        shop.do(reset, ToOffset(10), sink=by_spark.path, rewinds_sink=True)
    DeltaTable(by_spark.path).delete('"queueOffset" >= 10')
    shop.do(reset, ToOffset(10), sink=by_spark.path, rewinds_sink=True)

    assert (shop.now(), watermarks(by_spark)) == ({A0: 10, A1: 10}, {A0: 10, A1: 10})
    [standing] = by_spark.standings(GROUP, {A0: 0, A1: 0})
    assert standing.watermarks == {A0: 10, A1: 10}
    table = TableSnapshot(DeltaTable(by_spark.path))
    assert table.all_transactions() == {group_app_id(GROUP): 4}, "Spark's next commit is not fenced"


def test_nothing_is_moved_if_a_sink_s_watermarks_could_not_follow(
    shop: Shop, by_spark: DeltaSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1, J5: such as on an object store, or with a feature that every commit must know."""
    monkeypatch.setattr(SinkTable, "_recorder", lambda *_: None)
    monkeypatch.setattr("pyspark_rocketmq.sinks.delta.spark_writer.spark_address", lambda spark, path: None)
    before = shop.now()

    with pytest.raises(OptionError, match="no Spark session here can read it"):
        shop.do(reset, ToOffset(0), sink=by_spark.path, rewinds_sink=True)

    assert shop.now() == before


def test_a_job_that_died_between_group_and_sink_is_run_again(
    shop: Shop, sink: DeltaSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1, F5"""
    back = functools.partial(shop.do, reset, ToOffset(20), sink=sink.path, rewinds_sink=True)
    with monkeypatch.context() as patch:
        patch.setattr(SinkWatermarks, "rewind", lambda *_: sys.exit("killed"))
        with pytest.raises(SystemExit):
            back()
    assert (shop.now(), watermarks(sink)) == ({A0: 20, A1: 20}, {A0: 20, A1: 30})

    assert back() == [(1, 20)]

    assert watermarks(sink) == {A0: 20, A1: 20}


def test_a_storage_that_fails_between_group_and_sink_is_reported_with_what_to_do(
    shop: Shop, sink: DeltaSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1, F5: the offsets are moved, and a query that starts now would leave rows out."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    back = functools.partial(shop.do, reset, ToOffset(20), sink=sink.path, rewinds_sink=True)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaSink, "rewind", full)
        with pytest.raises(JobFailed, match=r"watermarks of its sink .* were not.*No space.*same command"):
            back()

    assert back() == [(1, 20)]
    assert (shop.now(), watermarks(sink)) == ({A0: 20, A1: 20}, {A0: 20, A1: 20})


def test_a_missing_sink_is_reported(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match=r"There is no Delta table at .*nowhere; correct --sink"):
        shop.do(reset, ToOffset(20), sink=str(tmp_path / "nowhere"))


def test_a_sink_that_is_named_is_left_to_a_session(shop: Shop) -> None:
    """J5."""
    with pytest.raises(
        JobFailed, match=r"main\.shop\.orders is the name of a table.*pyspark_rocketmq\.reset_to_sink"
    ):
        shop.do(reset, ToOffset(20), sink="main.shop.orders")


def test_a_sink_is_not_set_back_under_a_running_query(tmp_path: Path, sink: DeltaSink) -> None:
    """C5: --force does not help, the query would go on writing."""
    store = DeltaOffsetStore(tmp_path / "offsets")
    store.claim(GROUP, "host@one", {A0: 20})

    with pytest.raises(JobFailed, match="Stop the query: a sink's watermarks cannot be set while it writes"):
        Shop(store).do(reset, ToOffset(0), sink=sink.path, rewinds_sink=True, is_forced=True)


RETRIES = MessageQueue("%RETRY%etl", "broker-a", 0)


class Lossy:
    """A group that has passed what its sink has lost, and the sink."""

    def __init__(
        self,
        shop: Shop,
        sink: DeltaSink,
        passed: dict[MessageQueue, int],
        others: tuple[SinkStanding, ...] = (),
    ) -> None:
        self.shop, self.sink = shop, sink
        standings = (*sink.standings(GROUP, dict.fromkeys(passed, 0)), *others)
        rows = shop.store.claim(GROUP, "", dict.fromkeys(passed, 0))
        commits = [
            QueueCommit(
                queue=queue, state=QueueState(offset, rows[queue].epoch), sinks=recorded_sinks(standings)
            )
            for queue, offset in passed.items()
        ]
        shop.store.commit(GROUP, commits, query_id="q", batch_id=7)

    def is_refused(self) -> bool:
        try:
            check_sink(self.shop.store, self.sink, GROUP)
        except SinkSetBack:
            return True
        return False


@pytest.fixture
def lossy(tmp_path: Path, sink: DeltaSink) -> Lossy:
    """The sink is at 20, 30 and nowhere."""
    return Lossy(Shop(DeltaOffsetStore(tmp_path / "offsets")), sink, passed={A0: 20, A1: 44, RETRIES: 3})


def test_a_group_goes_back_to_a_sink_that_has_lost_rows(lossy: Lossy) -> None:
    """H7: in the queues whose rows are gone; those of the retry topic, too."""
    assert lossy.is_refused()
    with pytest.raises(JobFailed, match="give option 'nameServers'"):
        lossy.shop.do(reset, ToSink(), sink=lossy.sink.path)
    only_a1 = QueueChoice(queues=frozenset({("broker-a", 1)}))

    assert lossy.shop.do(reset, ToSink(), sink=lossy.sink.path, choice=only_a1) == [(1, 30)]

    assert lossy.shop.now() == {A0: 20, A1: 30, RETRIES: 3}


@pytest.mark.parametrize("by_command", [True, False])
def test_a_sink_that_goes_back_once_more_is_noticed_again(
    tmp_path: Path, sink: DeltaSink, by_command: bool
) -> None:
    """H7: the first backup was the wrong one, say, and nothing was committed in between."""
    lossy = Lossy(Shop(DeltaOffsetStore(tmp_path / "offsets")), sink, passed={A0: 20, A1: 44})

    def go_back() -> None:
        if by_command:
            lossy.shop.do(reset, ToSink(), sink=lossy.sink.path)
        else:
            reset_to_sink(lossy.shop.store, lossy.sink, GROUP)

    go_back()
    assert lossy.shop.now()[A1] == 30
    assert not lossy.is_refused()

    lossy.sink.rewind(GROUP, {A1: 25})

    assert lossy.is_refused()
    go_back()
    assert lossy.shop.now()[A1] == 25
    assert not lossy.is_refused()


def test_a_group_does_not_go_back_to_the_beginning_of_a_sink_that_has_its_rows(
    shop: Shop, tmp_path: Path
) -> None:
    """H7, H10: with delta.setTransactionRetentionDuration writers forget watermarks, and rows stay."""
    sink = DeltaSink(tmp_path / "forgetful")
    sink.prepare(POSITIONS)
    row = {"topic": "orders", "brokerName": "broker-a", "queueId": 0, "queueOffset": 7}
    write_deltalake(sink.path, pa.Table.from_pylist([row], schema=POSITIONS), mode="append")
    lossy = Lossy(Shop(DeltaOffsetStore(tmp_path / "others")), sink, passed={A0: 8})

    with pytest.raises(
        JobFailed, match=r"has 1 row of the group.s queues.*rewind\('etl', .*_rocketmq\.reset_to_sink"
    ):
        lossy.shop.do(reset, ToSink(), sink=sink.path)
    for sinks in (sink, [MultiSink([sink])]):
        with pytest.raises(SinkConflict, match=r"has 1 row of the group.s queues.*beside_rows=True"):
            reset_to_sink(lossy.shop.store, sinks, GROUP)

    assert lossy.shop.now() == {A0: 8}
    assert reset_to_sink(lossy.shop.store, sink, GROUP, beside_rows=True) == {A0: 0}
    assert lossy.shop.now() == {A0: 0}


class Begun:
    """A group in the second generation of a queue, and its sink as it was before that began."""

    def __init__(self, path: Path, sink: DeltaSink) -> None:
        lossy = Lossy(Shop(DeltaOffsetStore(path)), sink, passed={A0: 8})
        self.store, self.sink = lossy.shop.store, sink
        self.shop = lossy.shop
        row = self.store.read(GROUP)[A0]
        epoch = self.store.begin_generations(GROUP, {A0: NewGeneration(row.epoch, 0)})[A0].epoch
        commit = QueueCommit(queue=A0, state=QueueState(3, epoch), sinks=row.sinks)
        self.store.commit(GROUP, [commit], query_id="q", batch_id=8)


@pytest.fixture
def earlier(tmp_path: Path) -> DeltaSink:
    """A sink with eight rows of a queue, and the newest message of the group's batch."""
    sink = DeltaSink(tmp_path / "earlier")
    sink.prepare(POSITIONS)
    batch = sink.begin(GROUP, {A0: 0})
    batch.note_newest({A0: "[7,8,9]"})
    rows = [
        {"topic": "orders", "brokerName": "broker-a", "queueId": 0, "queueOffset": offset}
        for offset in range(8)
    ]
    files = files_of(batch.task_writer(), iter(pa.Table.from_pylist(rows, schema=POSITIONS).to_batches()))
    batch.commit(files, {A0: 8})
    return sink


def test_rows_from_before_offsets_began_again_keep_no_group_from_going_back(
    earlier: DeltaSink, tmp_path: Path
) -> None:
    """H7, F4: a copy of the sink from before a topic was created again was put back."""
    begun = Begun(tmp_path / "others", earlier)

    assert reset_to_sink(begun.store, earlier, GROUP) == {A0: 0}

    assert begun.store.read(GROUP)[A0].generation == 1


def test_a_watermark_that_an_operator_set_does_not_show_which_rows_are_earlier(
    earlier: DeltaSink, tmp_path: Path
) -> None:
    """H7, F4: of a sink that had lost the watermarks of both generations, for example."""
    earlier.rewind(GROUP, {A0: 7})
    begun = Begun(tmp_path / "others", earlier)
    text = r"has 8 rows of the group.s queues, which .* Offsets have begun again in .*storeTimestamp.*accept-gap.*beside_rows"

    with pytest.raises(JobFailed, match=text) as refused:
        begun.shop.do(reset, ToSink(), sink=earlier.path)
    with pytest.raises(SinkConflict, match=text):
        reset_to_sink(begun.store, earlier, GROUP)

    assert "highest queueOffset" not in str(refused.value)
    assert begun.store.read(GROUP)[A0].next_offset == 3


def test_a_group_does_not_go_back_to_the_beginning_of_a_table_that_was_rewritten(
    shop: Shop, tmp_path: Path
) -> None:
    """H7, H10: it has another id and no watermarks, and all rows; and it goes on as the error says."""
    sink = DeltaSink(tmp_path / "rewritten")
    sink.prepare(POSITIONS)
    lossy = Lossy(Shop(DeltaOffsetStore(tmp_path / "others")), sink, passed={A0: 8})
    shutil.rmtree(sink.path)
    row = {"topic": "orders", "brokerName": "broker-a", "queueId": 0, "queueOffset": 7}
    write_deltalake(sink.path, pa.Table.from_pylist([row], schema=POSITIONS), partition_by=["topic"])
    assert lossy.is_refused()

    for refused in (
        lambda: lossy.shop.do(reset, ToSink(), sink=sink.path),
        lambda: reset_to_sink(lossy.shop.store, sink, GROUP),
    ):
        with pytest.raises(
            (JobFailed, SinkConflict), match=r"has 1 row of the group.s queues.*rewind\('etl', .*accept-gap"
        ):
            refused()
    assert lossy.shop.now() == {A0: 8}
    sink.rewind(GROUP, {A0: 8})
    assert lossy.is_refused()
    lossy.shop.do(accept_gap)

    assert not lossy.is_refused()
    assert (lossy.shop.now(), watermarks(sink)) == ({A0: 8}, {A0: 8})


def test_a_group_goes_back_to_each_of_its_sinks_that_has_lost_rows(tmp_path: Path, sink: DeltaSink) -> None:
    """H7: to the lowest of them, and to the beginning of an empty one."""
    empty = DeltaSink(tmp_path / "empty")
    empty.prepare(POSITIONS)
    generations = {A0: 0, A1: 0, RETRIES: 0}
    lossy = Lossy(
        Shop(DeltaOffsetStore(tmp_path / "offsets")),
        sink,
        passed={A0: 20, A1: 44},
        others=tuple(empty.standings(GROUP, generations)),
    )

    assert reset_to_sink(lossy.shop.store, [sink, empty], GROUP) == {A0: 0, A1: 0}


def test_a_group_of_several_sinks_does_not_go_back_to_one_of_them(tmp_path: Path, sink: DeltaSink) -> None:
    """H7: what the others lack would be forgotten."""
    store = DeltaOffsetStore(tmp_path / "offsets")
    other = SinkStanding("/lake/other", "table-2", {A1: 44})
    lossy = Lossy(Shop(store), sink, passed={A1: 44}, others=(other,))

    with pytest.raises(
        JobFailed, match=r"and into other sinks.*pyspark_rocketmq.reset_to_sink\(store, \[every sink"
    ):
        lossy.shop.do(reset, ToSink(), sink=sink.path)
    assert lossy.is_refused()


def test_a_group_whose_sink_lacks_nothing_is_not_moved_to_it(shop: Shop, sink: DeltaSink) -> None:
    with pytest.raises(JobFailed, match="has the rows of all messages up to the offsets of group etl"):
        shop.do(reset, ToSink(), sink=sink.path)
    with pytest.raises(JobFailed, match="--to sink needs --sink"):
        shop.do(reset, ToSink())


def test_a_gap_in_a_sink_is_accepted(lossy: Lossy) -> None:
    """H7: the group goes on where it is, and the sink is not asked for what came before."""
    before = lossy.shop.now()

    lossy.shop.do(accept_gap)

    assert not lossy.is_refused()
    assert lossy.shop.now() == before
    assert json.loads(lossy.shop.shown)[0]["note"] == "stays; its sink is no longer checked for earlier rows"
    with pytest.raises(JobFailed, match="nothing to change"):
        lossy.shop.do(accept_gap)


def test_a_sink_s_place_says_nothing_of_the_broker_s_log(lossy: Lossy) -> None:
    """H7, F3: a log that was lost too is noticed as before; only who names a position knows the log there."""
    only_a1 = QueueChoice(queues=frozenset({("broker-a", 1)}))
    lossy.shop.do(reset, ToSink(), sink=lossy.sink.path, choice=only_a1)
    lossy.shop.do(accept_gap)

    rows = lossy.shop.store.read(GROUP).values()
    assert all(row.was_reset and not row.was_reset_by_operator and row.sinks.to_text() == "" for row in rows)


def test_from_python_a_sink_s_place_says_nothing_of_the_broker_s_log_either(lossy: Lossy) -> None:
    """H7, F3"""
    assert reset_to_sink(lossy.shop.store, lossy.sink, GROUP) == {A1: 30, RETRIES: 0}

    rows = lossy.shop.store.read(GROUP)
    assert all(rows[queue].was_reset and not rows[queue].was_reset_by_operator for queue in (A1, RETRIES))
    assert lossy.shop.now() == {A0: 20, A1: 30, RETRIES: 0}


def test_from_python_a_queue_that_somebody_claims_meanwhile_keeps_its_place(
    lossy: Lossy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5, H7"""
    store = lossy.shop.store
    standings = lossy.sink.standings

    def claimed_meanwhile(*given: Any) -> tuple[SinkStanding, ...]:
        store.claim(GROUP, "host@two", {A1: 0})
        return standings(*given)

    monkeypatch.setattr(lossy.sink, "standings", claimed_meanwhile)
    with pytest.raises(OffsetError, match=r"not moved in topic=orders broker=broker-a queue=1: .*call reset"):
        reset_to_sink(store, lossy.sink, GROUP)
    assert lossy.shop.now()[A1] == 44


def test_an_earlier_place_of_the_group_says_nothing_of_the_broker_s_log(shop: Shop) -> None:
    """F5, F3: unlike a position that an operator names."""
    assert isinstance(shop.store, DeltaOffsetStore)
    then = shop.store.changes(GROUP)[-1]
    shop.do(reset, ToOffset(7))
    assert all(row.was_reset_by_operator for row in shop.store.read(GROUP).values())
    shop.do(reset, AtVersion(then.version))

    rows = shop.store.read(GROUP).values()
    assert all(row.was_reset and not row.was_reset_by_operator for row in rows)


def test_messages_are_skipped_from_an_earlier_place_of_the_group(shop: Shop) -> None:
    """F5, F4: which says nothing of the broker's log; the end of a queue is one of its log."""
    with SimCluster() as cluster:
        cluster.create_topic("orders", 2)
        with patient_producer(cluster.name_servers) as producer:
            for queue in (A0, A1):
                producer.send_batch([Message(topic="orders", body=b"x")] * 40, queue)
        shop.settings = dataclasses.replace(shop.settings, name_servers=(cluster.name_servers,))
        assert shop.do(skip, 1) == [(0, 21), (1, 31)]
        assert not any(row.was_reset_by_operator for row in shop.store.read(GROUP).values())
        assert shop.do(skip, None) == [(0, 40), (1, 40)]

    assert all(row.was_reset_by_operator for row in shop.store.read(GROUP).values())


def test_a_queue_that_somebody_claims_meanwhile_keeps_its_place(
    lossy: Lossy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5, F5: a position of a record is an old one by then."""
    store = lossy.shop.store
    stored = store.reset

    def claimed_before(group: str, targets: Mapping[MessageQueue, int], **given: Any) -> object:
        store.claim(GROUP, "host@two", {A1: 0})
        return stored(group, targets, **given)

    monkeypatch.setattr(DeltaOffsetStore, "reset", lambda _, *args, **given: claimed_before(*args, **given))
    before = lossy.shop.now()

    rest = r"broker-a queue=1. All others were moved. .* give the command again for these queues only, with --queue"
    with pytest.raises(JobFailed, match=rf"Another process claimed.*{rest}"):
        lossy.shop.do(accept_gap)

    assert lossy.shop.now() == before
    assert [queue for queue, row in store.read(GROUP).items() if row.sinks] == [A1]


# ------------------------------------------------------------------------------------------ with a cluster


def test_a_group_that_stays_beyond_the_end_of_a_log_forgets_its_sink_there(lossy: Lossy) -> None:
    """H7, F3: brokers have lost their log, too, which the query reports; the commands do not refuse it."""
    with SimCluster() as cluster:
        cluster.create_topic("orders", 2)
        cluster.create_topic(RETRIES.topic, 1)
        lossy.shop.settings = dataclasses.replace(lossy.shop.settings, name_servers=(cluster.name_servers,))
        only_a1 = QueueChoice(queues=frozenset({("broker-a", 1)}))
        assert lossy.shop.do(accept_gap, choice=only_a1) == [(1, 44)]
        lossy.shop.do(reset, ToBound("earliest"))

    assert lossy.shop.now() == {A0: 0, A1: 0, RETRIES: 3}
    assert not lossy.is_refused()


@SIM_ONLY
def test_a_group_starts_over_with_a_new_sink(cluster: ClusterUnderTest, topic: str, tmp_path: Path) -> None:
    """H7: whatever brokers still have; queues that stay where they are forget the sink as well."""
    sink = DeltaSink(tmp_path / "sink")
    sink.prepare(POSITIONS)
    queues = {MessageQueue(topic, "broker-a", number): 6 for number in (0, 1)}
    lossy = Lossy(
        Shop(DeltaOffsetStore(tmp_path / "offsets"), name_servers=(cluster.name_servers,)),
        sink,
        passed=queues | {RETRIES: 3},
    )
    assert lossy.is_refused()

    lossy.shop.do(reset, ToBound("earliest"))

    assert not lossy.is_refused()
    assert lossy.shop.now() == dict.fromkeys(queues, 0) | {RETRIES: 3}


@pytest.fixture
def topic(cluster: ClusterUnderTest) -> str:
    """Two queues on broker-a with six messages each."""
    topic = cluster.create_topic(queues=2, brokers=["broker-a"])
    with patient_producer(cluster.name_servers) as producer:
        for queue in producer.queues(topic):
            producer.send_batch([Message(topic=topic, body=b"x")] * 6, queue)
    return topic


@pytest.fixture
def live(cluster: ClusterUnderTest, topic: str, tmp_path: Path) -> Iterator[Shop]:
    """A group with a member that holds both queues at offset 4."""
    shop = Shop(DeltaOffsetStore(tmp_path / "offsets"), name_servers=(cluster.name_servers,))
    with joined(shop.store, cluster.name_servers, topic, GROUP, "one"):
        yield shop


@contextmanager
def joined(
    store: OffsetStore, name_servers: str, topic: str, group: str, instance: str, *, at: int = 4, **more: str
) -> Iterator[str]:
    """Have a member in the group that holds both queues of the topic at offset ``at``; yield its client id."""
    options = ReadOptions.parse(
        {
            "nameServers": name_servers, "topic": topic, "consumerGroup": group,
            "offsetStore": store.spec, "instanceName": instance, "requestTimeoutMs": str(PATIENCE_MS), **more,
        }
    )  # fmt: skip
    member_id, name = client_id(options), offset_key(options)
    member = join_group(options, member_id, store, SystemClock())
    member.start()
    try:
        rows = store.claim(name, new_owner(member_id), dict.fromkeys(both_queues_of(member), 0))
        commits = [QueueCommit(queue=queue, state=QueueState(at, row.epoch)) for queue, row in rows.items()]
        store.commit(name, commits, query_id="q", batch_id=0)
        yield member_id
    finally:
        member.stop(PATIENCE_S)


def both_queues_of(member: RunningMember) -> Collection[MessageQueue]:
    """What a member holds, once that is both queues; none may be given up in between."""

    def held() -> Collection[MessageQueue] | None:
        queues = but_retries(member.begin_plan())
        return queues if len(queues) == 2 else None

    return wait_until(held, reason="the member holds both queues")


def test_a_running_owner_is_not_harmed_unless_forced_and_then_fenced(live: Shop) -> None:
    """F5, C5: a live group; who had the queues cannot commit what it planned before."""
    with pytest.raises(
        JobFailed, match=r"2 of 2 queues are being consumed by .*@one\. Nothing was changed\. Stop"
    ):
        live.do(reset, ToBound("earliest"))
    assert set(live.now().values()) == {4}
    assert {move["newOffset"] for move in json.loads(live.shown)} == {0}

    assert live.do(reset, ToBound("earliest"), is_forced=True) == [(0, 0), (1, 0)]

    assert set(live.now().values()) == {0}
    late = [QueueCommit(queue=queue, state=QueueState(6, 1)) for queue in live.now()]
    assert len(live.store.commit(GROUP, late, query_id="q", batch_id=1).refused) == 2
    assert live.do(skip, 1, is_forced=True, choice=QueueChoice(queues=frozenset({("broker-a", 1)}))) == [
        (1, 1)
    ]
    assert live.do(skip, None, is_forced=True) == [(0, 6), (1, 6)]
    assert live.do(reset, ToTime(0.0), is_forced=True) == [(0, 0), (1, 0)]
    assert live.do(reset, ToTime(LATER_S), is_forced=True) == [(0, 6), (1, 6)]
    with pytest.raises(
        JobFailed, match=r"beyond the end of its queue.*: 7 \(beyond the end by 1: the broker ends at 6\)"
    ):
        live.do(reset, ToOffset(7), is_forced=True)


@pytest.mark.parametrize("answer", [0, 3, 5, 6])
def test_a_reset_to_a_time_begins_with_the_first_message_stored_then(
    answer: int, cluster: ClusterUnderTest, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F5, F2: brokers before 5.1.1 answer with any message of the very time, or with a near one."""
    shop = Shop(DeltaOffsetStore(tmp_path / "offsets"), name_servers=(cluster.name_servers,))
    queues = [MessageQueue(topic, "broker-a", number) for number in (0, 1)]
    shop.stands_at(at=dict.fromkeys(queues, 4))
    inspector = ClusterInspector(shop.settings, "", SystemClock())
    address = inspector.addresses({topic})["broker-a"]
    stored_s = [stored_at_s(inspector.brokers, address, queue, 0) for queue in queues]
    assert stored_s[0] is not None
    monkeypatch.setattr(BrokerClient, "search_offset", lambda *_: answer)

    # Each batch of six was stored at one time, the second queue's later or at the same time.
    assert shop.do(reset, ToTime(stored_s[0])) == [(0, 0), (1, 0)]
    assert shop.do(reset, ToTime(LATER_S)) == [(0, 6), (1, 6)]


def test_a_reset_to_a_time_that_one_queue_s_broker_does_not_look_up_changes_nothing(
    cluster: ClusterUnderTest, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F5, F3: it gives the bounds, and no answer later; half a reset would be worse than none."""
    shop = Shop(DeltaOffsetStore(tmp_path / "offsets"), name_servers=(cluster.name_servers,))
    queues = [MessageQueue(topic, "broker-a", number) for number in (0, 1)]
    shop.stands_at(at=dict.fromkeys(queues, 4))
    search = BrokerClient.search_offset

    def searches(self: BrokerClient, address: Any, queue: MessageQueue, at_ms: int) -> int:
        if queue == queues[1]:
            raise RequestTimeout(str(address), "SEARCH_OFFSET_BY_TIMESTAMP", 1.0)
        return search(self, address, queue, at_ms)

    monkeypatch.setattr(BrokerClient, "search_offset", searches)

    with pytest.raises(JobFailed, match=r"Nothing was changed: the brokers do not answer.*queue=1"):
        shop.do(reset, ToTime(LATER_S))
    assert set(shop.now().values()) == {4}


def test_an_instance_that_runs_is_not_harmed_although_others_have_its_queues_too(
    cluster: ClusterUnderTest, topic: str, tmp_path: Path
) -> None:
    """B3, C5: of a broadcasting group every instance consumes all queues."""
    store = DeltaOffsetStore(tmp_path / "offsets")
    shops = {
        name: Shop(store, name_servers=(cluster.name_servers,), consumer_group=f"{GROUP}@{name}")
        for name in ("one", "two")
    }
    with ExitStack() as members:
        for name in shops:
            members.enter_context(
                joined(store, cluster.name_servers, topic, GROUP, name, messageModel="BROADCASTING")
            )
        for name, shop in shops.items():
            with pytest.raises(JobFailed, match=f"2 of 2 queues are being consumed by .*@{name}"):
                shop.do(reset, ToOffset(2))

    assert shops["two"].do(reset, ToOffset(2)) == [(0, 2), (1, 2)]


@SIM_ONLY
def test_members_that_may_not_be_listed_are_not_taken_for_none(cluster: ClusterUnderTest, live: Shop) -> None:
    """C5: access control 1.0 refuses with the code that brokers also have for a group without members."""
    faults = cluster.faults
    remark = "org.apache.rocketmq.acl.common.AclException: No default permission"
    faults.add("answer-code", on=GET_CONSUMER_LIST_BY_GROUP, response_code=1, remark=remark, times=10)
    try:
        with pytest.raises(
            JobFailed, match=r"2 of 2 queues are being consumed by .*@one \(its offset changed"
        ):
            live.do(reset, ToOffset(2))
    finally:
        faults.clear()
    assert set(live.now().values()) == {4}


@SIM_ONLY
@pytest.mark.parametrize("rewinds_sink", [False, True])
def test_a_member_that_does_not_report_what_it_consumes_is_not_harmed_either(
    cluster: ClusterUnderTest, live: Shop, sink: DeltaSink, rewinds_sink: bool
) -> None:
    """C5, H1: a sink set back under a query that writes would have rows twice."""
    faults = cluster.faults
    faults.add("answer-code", on=GET_CONSUMER_RUNNING_INFO, response_code=1)
    try:
        with pytest.raises(
            JobFailed,
            match=(
                r"2 of 2 queues are being consumed by .*@one \(which did not report what it consumes\)\. "
                r"Nothing"
            ),
        ):
            live.do(reset, ToOffset(2), sink=sink.path, rewinds_sink=rewinds_sink, is_forced=rewinds_sink)
        assert not faults.pending
    finally:
        faults.clear()
    assert set(live.now().values()) == {4}


@SIM_ONLY
def test_a_broker_that_does_not_answer_leaves_everything_as_it_is(
    cluster: ClusterUnderTest, topic: str, tmp_path: Path
) -> None:
    """F3: half a reset would be worse than none."""
    shop = Shop(DeltaOffsetStore(tmp_path / "offsets"), name_servers=(cluster.name_servers,))
    shop.stands_at(at={MessageQueue(topic, "broker-a", 0): 4, MessageQueue(topic, "broker-z", 0): 4})

    with pytest.raises(JobFailed, match=r"Nothing was changed: the brokers do not answer.*broker-z"):
        shop.do(reset, ToBound("latest"))
    assert set(shop.now().values()) == {4}


@SIM_ONLY
def test_a_group_that_has_not_begun_may_be_given_its_beginning(
    cluster: ClusterUnderTest, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F5: skip before the first start, in a store that has other groups, and in one that is not there yet."""
    choice = QueueChoice(topics=frozenset({topic}))
    for name in ("used", "missing"):
        shop = Shop(DeltaOffsetStore(tmp_path / name), name_servers=(cluster.name_servers,))
        if name == "used":
            shop.store.claim("another", "me", {A0: 0})

        shop.do(reset, ToBound("latest"), choice=choice, is_new_group=True, is_dry_run=True)
        assert (tmp_path / name).exists() is (name == "used"), "a dry run makes no table"
        shop.do(reset, ToBound("latest"), choice=choice, is_new_group=True)

        assert set(shop.now().values()) == {6}
        is_said = f"first offsets of the store {shop.store.spec}" in capsys.readouterr().err
        assert is_said is (name == "missing"), "the path may be mistyped"
