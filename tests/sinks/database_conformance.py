"""What a ``DatabaseSink`` promises on every database, with connections that are lost at each statement."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest

from pyspark_rocketmq.commit.recovery import check_sink, reset_to_sink
from pyspark_rocketmq.errors import OffsetError, OptionError, SinkConflict, SinkMoved, SinkSetBack
from pyspark_rocketmq.model import QueueState
from pyspark_rocketmq.offsets.file import FileOffsetStore
from pyspark_rocketmq.offsets.store import OffsetStore, QueueCommit
from pyspark_rocketmq.sinks.against_offsets import recorded_sinks
from pyspark_rocketmq.sinks.base import QueueGeneration
from pyspark_rocketmq.sinks.database import DatabaseSink
from pyspark_rocketmq.sinks.multi import MultiSink
from tests.helpers.failing_connection import (
    Connecting,
    ConnectionLost,
    ExecutesNothing,
    FailingConnection,
    Faults,
)
from tests.helpers.sink_rows import GROUP, Q0, Q1
from tests.sinks.group_conformance import Batch, GroupConformance
from tests.sinks.sink_conformance import (
    SCHEMA,
    Stored,
    newest_in,
    rows,
    run,
    with_newest,
    written_by,
)

OLD_TABLE = (
    "CREATE TABLE rocketmq_watermarks (consumer_group VARCHAR(255) NOT NULL, topic VARCHAR(255) NOT NULL, "
    "broker_name VARCHAR(127) NOT NULL, queue_id INTEGER NOT NULL, next_offset BIGINT NOT NULL, "
    "PRIMARY KEY (consumer_group, topic, broker_name, queue_id))"
)
"""As it was once made."""
_COLUMNS = (
    "consumer_group VARCHAR(255) NOT NULL, topic VARCHAR(255) NOT NULL, broker_name VARCHAR(127) NOT NULL, "
    "queue_id INTEGER NOT NULL, next_offset BIGINT NOT NULL, generation BIGINT DEFAULT 0 NOT NULL, "
    "attempt VARCHAR(36) DEFAULT '' NOT NULL"
)
_NAMES = "consumer_group, topic, broker_name, queue_id, next_offset, generation, attempt"


class Database(Protocol):
    """One that a test has for itself, with the table ``orders``."""

    placeholder: str

    def connect(self) -> Any:
        """A connection of the driver without autocommit."""

    def connect_autocommit(self) -> Any:
        """One that commits each statement."""

    def clear(self) -> None:
        """As before the first start: no watermarks, no orders."""


def execute(database: Database, *statements: str) -> list[Any]:
    """Run them in one transaction; the last one's rows, if it has any."""
    with closing(database.connect()) as connection:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        found = cursor.fetchall() if cursor.description else []
        connection.commit()
    return list(found)


def stored_in(database: Database, table: str = "orders") -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in execute(database, f"SELECT * FROM {table}"))


def inserting(database: Database, table: str = "orders") -> Callable[[Any, pa.Table], None]:
    """What a user writes."""
    marks = ", ".join([database.placeholder] * 3)

    def insert(cursor: Any, new: pa.Table) -> None:
        columns = [new.column(name).to_pylist() for name in ("queueId", "queueOffset", "step")]
        cursor.executemany(f"INSERT INTO {table} VALUES ({marks})", list(zip(*columns, strict=True)))

    return insert


def committing(database: Database) -> Callable[[Any, pa.Table], None]:
    """Insert rows and break the rule."""
    insert = inserting(database)

    def insert_and_commit(cursor: Any, new: pa.Table) -> None:
        insert(cursor, new)
        cursor.connection.commit()

    return insert_and_commit


def unreachable() -> Any:
    """Fail to connect."""
    raise ConnectionLost("no route to host")


def sink_on(
    database: Database,
    write: Callable[[Any, pa.Table], None] | None = None,
    *,
    connect: Callable[[], Any] | None = None,
    watermark_table: str = "rocketmq_watermarks",
) -> DatabaseSink:
    """Not prepared; it does not wait between tries."""
    return DatabaseSink(
        connect or database.connect,
        write or inserting(database),
        placeholder=database.placeholder,
        watermark_table=watermark_table,
        sleep=lambda _: None,
    )


def prepared(database: Database, write: Callable[[Any, pa.Table], None] | None = None) -> DatabaseSink:
    made = sink_on(database, write)
    made.prepare(SCHEMA)
    return made


def begun(folder: Path, sink: DatabaseSink) -> OffsetStore:
    """Let a batch bring rows of the first three messages; return a store with its offsets."""
    run(sink, {Q0: 3}, rows(Q0, 0, 3))
    store = FileOffsetStore(folder / "offsets")
    epoch = store.claim(GROUP, "member", {Q0: 0})[Q0].epoch
    named = recorded_sinks(sink.standings(GROUP, {Q0: 0}))
    commit = QueueCommit(queue=Q0, state=QueueState(3, epoch), sinks=named)
    assert not store.commit(GROUP, [commit], query_id="query", batch_id=1).refused
    return store


def each_fault(database: Database, *, is_down_then: bool) -> Iterator[tuple[Faults, DatabaseSink]]:
    """A sink for every statement and commit of a batch at which the connection can be lost,
    before and after it.
    """
    for number, is_done in ((number, is_done) for number in itertools.count() for is_done in (False, True)):
        database.clear()
        prepared(database)
        faults = Faults()
        sink = sink_on(
            database, connect=partial(lambda these: FailingConnection(database.connect(), these), faults)
        )
        sink.prepare(SCHEMA)
        faults.seen.clear()
        faults.at, faults.is_done, faults.is_down_then = number, is_done, is_down_then
        yield faults, sink
        if len(faults.seen) <= number:
            return


class DatabaseConformance(GroupConformance):
    """Subclasses have the fixture ``database``."""

    @pytest.fixture
    def sink(self, database: Database) -> DatabaseSink:
        return prepared(database)

    @pytest.fixture
    def stored(self, database: Database) -> Stored:
        return lambda: stored_in(database)

    @pytest.mark.parametrize("generation", [0, 1], ids=["same generation", "next generation"])
    def test_a_member_of_an_earlier_release_leaves_no_message_of_before_beside_its_watermark(
        self, database: Database, sink: DatabaseSink, generation: int
    ) -> None:
        """H10: it moves offset and generation, and the message would be taken for the newest one below."""
        with_newest(sink, {Q0: 2, Q1: 5}, {Q0: "[1,1001,64]", Q1: "[4,1004,900]"})
        execute(
            database,
            f"UPDATE rocketmq_watermarks SET next_offset = 9, generation = {generation}, attempt = 'its own' "
            f"WHERE topic = '{Q0.topic}' AND queue_id = 0",
        )
        now = {Q0: generation, Q1: 0}

        assert newest_in(sink, now) == {Q1: "[4,1004,900]"}
        with_newest(sink, {Q0: 10}, {Q0: ""}, now)
        assert newest_in(sink, now) == {Q1: "[4,1004,900]"}
        with_newest(sink, {Q0: 11, Q1: 6}, {Q0: "[10,1010,960]", Q1: ""}, now)
        assert newest_in(sink, now) == {Q0: "[10,1010,960]", Q1: "[4,1004,900]"}

    @pytest.mark.parametrize("start", [0, 2], ids=["first commit of the queues", "later"])
    def test_a_connection_lost_at_any_statement_costs_no_row_and_doubles_none(
        self, database: Database, start: int
    ) -> None:
        """H7, H1: before, at and after each statement and commit;
        the try after it has a connection of its own.
        """
        tried = 0
        for faults, sink in each_fault(database, is_down_then=False):
            if start:
                run(prepared(database), {Q0: start, Q1: start}, rows(Q0, 0, start), rows(Q1, 0, start))
            run(sink, {Q0: start + 2, Q1: start + 1}, rows(Q0, start, start + 2), rows(Q1, start, start + 1))

            at = (
                f"{'after' if faults.is_done else 'before'} "
                f"{faults.seen[min(faults.at or 0, len(faults.seen) - 1)]}"
            )
            offsets = [row[:2] for row in stored_in(database)]
            expected = [(0, offset) for offset in range(start + 2)] + [
                (1, offset) for offset in range(start + 1)
            ]
            assert offsets == expected, at
            assert prepared(database).watermarks(GROUP) == {
                QueueGeneration(Q0, 0): start + 2,
                QueueGeneration(Q1, 0): start + 1,
            }, at
            tried += 1
        assert tried >= 16

    def test_a_server_that_stays_down_from_any_statement_on_loses_no_row_and_doubles_none(
        self, database: Database
    ) -> None:
        """H7, H1: the query ends; the next one goes on by the watermarks."""
        for faults, sink in each_fault(database, is_down_then=True):
            with suppress(OffsetError):
                run(sink, {Q0: 2}, rows(Q0, 0, 2))
            faults.is_down = False

            run(prepared(database), {Q0: 3}, rows(Q0, 0, 3, "again"))

            assert [offset for _, offset, _ in stored_in(database)] == [0, 1, 2]

    @pytest.mark.parametrize("then", ["the same group", "the group without a queue"])
    def test_a_group_whose_outcome_is_unknown_is_added_once(self, database: Database, then: str) -> None:
        """H1: the server is away for longer than the batch tries; the group comes again when it is back."""
        for faults, sink in each_fault(database, is_down_then=True):
            try:
                batch = Batch(sink)
            except OffsetError:
                continue
            group = batch.write(rows(Q0, 0, 2)), batch.write(rows(Q1, 0, 1))
            spans = {Q0: (0, 2), Q1: (0, 1)}
            with suppress(SinkConflict):
                batch.commit("group", spans, [*group[0], *group[1]])
            faults.is_down, faults.at = False, None

            if then == "the same group":
                batch.commit("group", spans, [*group[0], *group[1]])
            else:
                batch.commit("group", {Q0: (0, 2)}, group[0])
            batch.consume(Q0, 2, 3)

            found = [offset for queue_id, offset, _ in stored_in(database) if queue_id == 0]
            assert found == [0, 1, 2]

    @pytest.mark.parametrize("commits", ["before its rows", "between its rows", "after its rows"])
    @pytest.mark.parametrize("fails", [False, True], ids=["and returns", "and raises"])
    def test_a_function_that_commits_is_found_out_at_its_first_batch(
        self, database: Database, commits: str, *, fails: bool
    ) -> None:
        """H7: the query stops, and so does each one after it until somebody has looked;
        nothing counts as written.
        """
        insert = inserting(database)

        def commit(cursor: Any, at: str) -> None:
            if commits == at:
                cursor.connection.commit()

        def write(cursor: Any, new: pa.Table) -> None:
            commit(cursor, "before its rows")
            insert(cursor, new.slice(0, 1))
            commit(cursor, "between its rows")
            insert(cursor, new.slice(1))
            commit(cursor, "after its rows")
            if fails:
                raise ValueError("step is not known")

        run(prepared(database), {Q0: 1}, rows(Q0, 0, 1))
        sink = prepared(database, write)

        with pytest.raises(SinkConflict, match="commits by itself") as caught:
            run(sink, {Q0: 4}, rows(Q0, 1, 4))
        with pytest.raises(SinkConflict, match="an earlier attempt of group order-etl"):
            run(prepared(database), {Q0: 4}, rows(Q0, 1, 4))

        assert sink.watermarks(GROUP) == {QueueGeneration(Q0, 0): 1}
        assert f"remove the rows of {Q0} from offset 1 on" in str(caught.value)
        statement = str(caught.value).rpartition("then run: ")[2]
        execute(database, "DELETE FROM orders WHERE queue_offset >= 1", statement)
        assert run(prepared(database), {Q0: 4}, rows(Q0, 1, 4)) == 3
        assert [offset for _, offset, _ in stored_in(database)] == [0, 1, 2, 3]

    @pytest.mark.parametrize("generation", [0, 1], ids=["without a watermark", "of a new generation"])
    def test_the_next_start_names_the_rows_of_every_queue_that_a_too_early_commit_may_have_written(
        self, database: Database, generation: int
    ) -> None:
        """H7: a queue without rows that count has no watermark, or one of its earlier generation."""
        run(prepared(database), {Q0: 2}, rows(Q0, 0, 2))
        if generation:
            run(prepared(database), {Q1: 3}, rows(Q1, 0, 3, "old"))
        now = {Q0: 0, Q1: generation}
        with pytest.raises(SinkConflict):
            run(prepared(database, committing(database)), {Q1: 2}, rows(Q1, 0, 2), generations=now)

        with pytest.raises(SinkConflict, match="an earlier attempt") as caught:
            prepared(database).begin(GROUP, now)

        since = "(only of messages stored since its offsets began again)"
        named = f"{Q1} from offset 0 on {since}" if generation else f"{Q1} from offset 0 on"
        assert f"remove the rows of {Q0} from offset 2 on; {named}, and then run: " in str(caught.value)

    def test_a_queue_that_waits_no_longer_for_its_too_early_commit_is_named_all_the_same(
        self, database: Database
    ) -> None:
        """H7: the group is tried again without the queue, whose rows the first try has left."""
        connect = Connecting(database.connect)

        def write(cursor: Any, new: pa.Table) -> None:
            committing(database)(cursor, new)
            connect.by = unreachable

        sink = sink_on(database, write, connect=connect)
        sink.prepare(SCHEMA)
        batch = Batch(sink)
        both = batch.write(rows(Q0, 0, 2), rows(Q1, 0, 1))
        with pytest.raises(SinkConflict, match="the last error was: ConnectionLost"):
            batch.commit("group", {Q0: (0, 2), Q1: (0, 1)}, both)
        connect.by = database.connect

        with pytest.raises(SinkConflict, match="commits by itself") as caught:
            batch.commit("group", {Q1: (0, 1)}, batch.write(rows(Q1, 0, 1)))

        assert f"the rows of {Q0} from offset 0 on; {Q1} from offset 0 on" in str(caught.value)

    def test_what_one_query_advises_leaves_the_too_early_commit_of_another_one_in_evidence(
        self, database: Database
    ) -> None:
        """H7: each error names only the rows of its own batch."""
        batches = [Batch(prepared(database, committing(database))) for _ in range(2)]
        errors = []
        for batch, queue in zip(batches, (Q0, Q1), strict=True):
            with pytest.raises(SinkConflict, match="commits by itself") as caught:
                batch.consume(queue, 0, 2)
            errors.append(str(caught.value))

        execute(database, "DELETE FROM orders WHERE queue_id = 0", errors[0].rpartition("then run: ")[2])

        with pytest.raises(SinkConflict, match="an earlier attempt") as again:
            prepared(database).begin(GROUP, {Q0: 0, Q1: 0})
        execute(database, "DELETE FROM orders", str(again.value).rpartition("then run: ")[2])
        assert run(prepared(database), {Q0: 2, Q1: 2}, rows(Q0, 0, 2), rows(Q1, 0, 2)) == 4

    def test_a_look_at_what_a_sink_can_do_gives_no_list_of_rows_to_remove(self, database: Database) -> None:
        """H7: a start looks before it has the group's queues, and its list would lack those of them that have
        no watermark.
        """
        with pytest.raises(SinkConflict):
            run(prepared(database, committing(database)), {Q0: 2}, rows(Q0, 0, 2))

        prepared(database).begin(GROUP, {})

    def test_a_function_that_rolls_back_loses_no_row(self, database: Database) -> None:
        """H7: what it wrote before is gone, so the batch is not done."""
        insert = inserting(database)

        def write(cursor: Any, new: pa.Table) -> None:
            insert(cursor, new.slice(0, 1))
            cursor.connection.rollback()
            insert(cursor, new.slice(1))

        with pytest.raises(SinkConflict, match="must neither commit nor roll back"):
            run(prepared(database, write), {Q0: 2}, rows(Q0, 0, 2))

        assert stored_in(database) == []
        assert run(prepared(database), {Q0: 2}, rows(Q0, 0, 2)) == 2

    def test_a_connection_that_commits_by_itself_is_refused_at_the_start(self, database: Database) -> None:
        """H7: and leaves nothing in the table."""
        prepared(database)
        before = stored_in(database, "rocketmq_watermarks")
        sink = sink_on(database, connect=database.connect_autocommit)

        with pytest.raises(OptionError, match="commits each statement by itself"):
            sink.prepare(SCHEMA)

        assert stored_in(database, "rocketmq_watermarks") == before

    @pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises once"])
    def test_connections_that_begin_to_commit_by_themselves_lose_no_row(
        self, database: Database, *, fails: bool
    ) -> None:
        """H7: a pool that is shared with somebody who switches it; a batch is done or the query stops."""
        insert = inserting(database)
        left = [1] if fails else []

        def write(cursor: Any, new: pa.Table) -> None:
            if left:
                left.pop()
                raise ValueError("once")
            insert(cursor, new)

        connect = Connecting(database.connect)
        sink = sink_on(database, write, connect=connect)
        sink.prepare(SCHEMA)
        connect.by = database.connect_autocommit

        is_refused = False
        try:
            run(sink, {Q0: 2}, rows(Q0, 0, 2))
        except SinkConflict as error:
            is_refused = "commits by itself" in str(error)

        assert (len(stored_in(database)) == 2 and sink.watermarks(GROUP) == {QueueGeneration(Q0, 0): 2}) or (
            is_refused and sink.watermarks(GROUP) == {}
        )

    def test_two_sinks_with_one_table_of_watermarks_are_refused(self, database: Database) -> None:
        """H8: each connects by a function of its own, so that only the table can show it."""
        sinks = MultiSink(
            [
                sink_on(database),
                sink_on(database, connect=lambda: FailingConnection(database.connect(), Faults())),
            ]
        )

        with pytest.raises(OptionError, match="give each DatabaseSink a watermark_table=… of its own"):
            sinks.prepare(SCHEMA)

    def test_two_sinks_with_tables_of_their_own_get_all_rows_each(self, database: Database) -> None:
        """H8"""
        execute(database, "CREATE TABLE copies (queue_id INTEGER, queue_offset BIGINT, step TEXT)")
        sinks = MultiSink(
            [
                sink_on(database),
                sink_on(database, inserting(database, "copies"), watermark_table="rocketmq_copies"),
            ]
        )
        sinks.prepare(SCHEMA)

        run(sinks, {Q0: 2}, rows(Q0, 0, 2))

        assert stored_in(database) == stored_in(database, "copies") == [(0, 0, "created"), (0, 1, "created")]

    def test_another_sinks_attempt_is_not_taken_for_its_own(self, database: Database) -> None:
        """H7: the same queue, the same offsets, the same group; whose commit it was is shown by its id."""
        lost = Faults()
        one = sink_on(database, connect=lambda: FailingConnection(database.connect(), lost))
        one.prepare(SCHEMA)
        other = prepared(database)
        batches = one.begin(GROUP, {Q0: 0}), other.begin(GROUP, {Q0: 0})
        written = [
            written_by(batch, rows(Q0, 0, 2, step))
            for batch, step in zip(batches, ("one", "other"), strict=True)
        ]
        batches[1].commit(written[1], {Q0: 2})

        with pytest.raises(SinkMoved):
            batches[0].commit(written[0], {Q0: 2})

        assert [step for *_, step in stored_in(database)] == ["other", "other"]

    def test_a_later_generation_of_a_queue_begins_again(self, database: Database, sink: DatabaseSink) -> None:
        """F4, H7: offsets that begin again are new messages; who has not followed them is refused."""
        run(sink, {Q0: 5}, rows(Q0, 0, 5))
        batch = sink.begin(GROUP, {Q0: 1})
        late = sink.begin(GROUP, {Q0: 0})

        batch.commit(written_by(batch, rows(Q0, 0, 2, "anew")), {Q0: 2})

        assert [step for *_, step in stored_in(database)].count("anew") == 2
        assert sink.watermarks(GROUP) == {QueueGeneration(Q0, 1): 2}
        with pytest.raises(SinkMoved):
            late.commit(written_by(late, rows(Q0, 5, 9)), {Q0: 9})
        with pytest.raises(SinkMoved, match="generation 1"):
            sink.begin(GROUP, {Q0: 0})

    def test_a_table_of_an_earlier_release_is_taken_over(self, database: Database) -> None:
        """H7, H2: with its watermarks; and the next start finds it as it is."""
        execute(
            database,
            OLD_TABLE,
            f"INSERT INTO rocketmq_watermarks VALUES ('{GROUP}', '{Q0.topic}', '{Q0.broker_name}', 0, 3)",
        )

        sink = prepared(database)
        assert sink.watermarks(GROUP) == {QueueGeneration(Q0, 0): 3}
        assert run(sink, {Q0: 5}, rows(Q0, 0, 5)) == 2

        assert prepared(database).watermarks(GROUP) == {QueueGeneration(Q0, 0): 5}
        assert [offset for _, offset, _ in stored_in(database)] == [3, 4]

    def test_an_offset_store_put_back_before_a_generation_does_not_make_the_sink_look_behind(
        self, sink: DatabaseSink
    ) -> None:
        """H7, H10: the table has one row for each queue, of the last generation."""
        run(sink, {Q0: 9}, rows(Q0, 0, 9))
        run(sink, {Q0: 2}, rows(Q0, 0, 2), generations={Q0: 1, Q1: 0})

        [standing] = sink.standings(GROUP, {Q0: 0, Q1: 0})
        assert standing.later == {Q0}
        # The offset 2 is one of generation 1.
        assert standing.watermarks.get(Q0, 0) == 0
        assert sink.standings(GROUP, {Q0: 1, Q1: 0})[0].later == frozenset()

    def test_a_table_of_the_release_before_is_asked_how_far_it_is_before_it_is_prepared(
        self, database: Database
    ) -> None:
        """H7, H10: a query looks before it changes anything; a table seen as gone would end it."""
        run(prepared(database), {Q0: 3}, rows(Q0, 0, 3))
        [known] = prepared(database).standings(GROUP, {Q0: 0})
        before = execute(database, f"SELECT {_NAMES} FROM rocketmq_watermarks")
        key = "PRIMARY KEY (consumer_group, topic, broker_name, queue_id)"
        execute(
            database,
            "DROP TABLE rocketmq_watermarks",
            f"CREATE TABLE rocketmq_watermarks ({_COLUMNS}, {key})",
            *(f"INSERT INTO rocketmq_watermarks VALUES {tuple(row)!r}" for row in before),
        )

        sink = sink_on(database)
        assert sink.standings(GROUP, {Q0: 0}) == (known,)
        sink.prepare(SCHEMA)
        assert sink.standings(GROUP, {Q0: 0}) == (known,)
        assert run(sink, {Q0: 5}, rows(Q0, 0, 5)) == 2

    @pytest.mark.parametrize("statement", ["DROP TABLE", "DELETE FROM"])
    def test_a_table_of_watermarks_that_is_gone_or_empty_does_not_show_that_the_rows_are(
        self, database: Database, tmp_path: Path, statement: str
    ) -> None:
        """H7, H10: the rows are in the user's tables; to consume the messages again would double them."""
        store = begun(tmp_path, prepared(database))
        execute(database, f"{statement} rocketmq_watermarks")

        with pytest.raises(SinkSetBack, match=r"may lack rows .* First check whether the rows are in"):
            check_sink(store, sink_on(database), GROUP)
        with pytest.raises(SinkConflict, match="the sink's rows cannot be counted here"):
            reset_to_sink(store, sink_on(database), GROUP)

        assert store.read(GROUP)[Q0].next_offset == 3
        assert reset_to_sink(store, sink_on(database), GROUP, beside_rows=True) == {Q0: 0}

    def test_watermarks_count_though_the_identity_of_their_table_is_gone(
        self, database: Database, tmp_path: Path
    ) -> None:
        """H7, H10: the group goes on at them, when its owner has looked at the table."""
        store = begun(tmp_path, prepared(database))
        execute(database, "DELETE FROM rocketmq_watermarks WHERE consumer_group = ''")

        with pytest.raises(SinkSetBack, match=r"may lack rows .* the id of the sink's table, .* is lost"):
            check_sink(store, sink_on(database), GROUP)
        assert reset_to_sink(store, sink_on(database), GROUP) == {Q0: 3}

        for _ in range(2):
            check_sink(store, sink_on(database), GROUP)
            prepared(database)

    def test_a_database_that_executes_nothing_is_not_taken_for_one_without_a_table(
        self, database: Database, tmp_path: Path
    ) -> None:
        """H7, H10: a proxy takes connections while the database behind it is away."""
        store = begun(tmp_path, prepared(database))
        behind_proxy = sink_on(database, connect=lambda: ExecutesNothing(database.connect(), Faults()))

        with pytest.raises(ConnectionLost):
            check_sink(store, behind_proxy, GROUP)
        with pytest.raises(ConnectionLost):
            reset_to_sink(store, behind_proxy, GROUP)

        assert store.read(GROUP)[Q0].next_offset == 3

    def test_columns_in_another_order_are_taken_as_they_are(self, database: Database) -> None:
        """H7"""
        reordered = ", ".join(reversed(_COLUMNS.split(", ")))
        key = "PRIMARY KEY (queue_id, broker_name, topic, consumer_group)"
        execute(database, f"CREATE TABLE rocketmq_watermarks ({reordered}, {key})")

        run(prepared(database), {Q0: 2}, rows(Q0, 0, 2))

        [row] = execute(
            database, "SELECT consumer_group, topic, next_offset FROM rocketmq_watermarks WHERE topic <> ''"
        )
        assert tuple(row) == (GROUP, Q0.topic, 2)

    @pytest.mark.parametrize(
        ("columns", "says"),
        [
            (_COLUMNS, "its primary key is missing"),
            (f"{_COLUMNS}, PRIMARY KEY (consumer_group, topic, queue_id)", "differs in broker_name only"),
            (
                f"{_COLUMNS}, PRIMARY KEY (consumer_group, topic, broker_name, queue_id, next_offset)",
                "its primary key is missing or another one",
            ),
            ("name TEXT, place BIGINT", "cannot be used"),
        ],
        ids=["no key", "a key with too little", "a key with too much", "something else"],
    )
    def test_a_table_of_another_form_is_refused_at_the_start(
        self, database: Database, columns: str, says: str
    ) -> None:
        """H7: two first commits would both succeed, or a queue's watermark be taken for another's."""
        execute(database, f"CREATE TABLE rocketmq_watermarks ({columns})")

        with pytest.raises(OptionError, match=says) as caught:
            prepared(database)

        assert "PRIMARY KEY (consumer_group, topic, broker_name, queue_id)" in str(caught.value)
        assert stored_in(database, "rocketmq_watermarks") == []
