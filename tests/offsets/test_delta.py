from __future__ import annotations

import errno
import json
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType

from pyspark_rocketmq.delta import partition as partition_module
from pyspark_rocketmq.delta.log import CommitFile, LogFiles
from pyspark_rocketmq.errors import (
    OffsetCommitConflict,
    OffsetError,
    OffsetStoreUnavailable,
    OptionError,
    SchemaError,
)
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets import delta as delta_module
from pyspark_rocketmq.offsets import delta_rows
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.delta_rows import NEWEST_VERSION, SCHEMA, VERSION_PROPERTY
from pyspark_rocketmq.offsets.open import open_offset_store
from pyspark_rocketmq.offsets.store import OffsetStore, SinkRecord
from tests.helpers import stored_texts
from tests.helpers.fake_clock import FakeClock
from tests.offsets.conformance import (
    GROUP,
    Q0,
    Q1,
    START_S,
    OffsetStoreConformance,
    PositionConformance,
    committed,
)
from tests.offsets.store_workers import claim_and_commit


class TestDeltaOffsetStore(OffsetStoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path, clock: FakeClock) -> DeltaOffsetStore:
        return DeltaOffsetStore(tmp_path / "off sets é", clock=clock)

    @pytest.fixture
    def again(self, store: DeltaOffsetStore) -> Callable[[], OffsetStore]:
        return lambda: open_offset_store(store.spec)


class TestDeltaOffsetStoreAtAUri(PositionConformance):
    """Delta-rs makes the commits, as on an object store."""

    @pytest.fixture
    def store(self, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> DeltaOffsetStore:
        monkeypatch.setattr(LogFiles, "takes_commits", False)
        return DeltaOffsetStore((tmp_path / "off sets é").as_uri(), clock=clock)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "offsets"


def version(path: Path) -> int:
    return DeltaTable(path).version()


def test_a_new_table_has_the_columns_properties_and_protocol_of_the_design(path: Path) -> None:
    DeltaOffsetStore(path).claim(GROUP, "client-1", {Q0: 0})

    table = DeltaTable(path)
    protocol = table.protocol()
    assert pa.schema(table.schema().to_arrow()) == SCHEMA
    assert table.metadata().partition_columns == ["consumer_group"]
    assert table.metadata().configuration == {
        "delta.deletedFileRetentionDuration": "interval 1 hour",
        "delta.logRetentionDuration": "interval 1 hour",
        "delta.checkpointInterval": "100",
        VERSION_PROPERTY: str(NEWEST_VERSION),
    }
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


def test_a_change_of_nothing_makes_no_table_version(path: Path) -> None:
    store = DeltaOffsetStore(path)
    store.claim(GROUP, "client-1", {Q0: 0})
    store.commit(GROUP, [committed(Q0, 5)], query_id="q", batch_id=1)
    before = version(path)

    store.commit(GROUP, [committed(Q0, 5)], query_id="q", batch_id=2)
    store.commit(GROUP, [committed(Q0, 6, epoch=9)], query_id="q", batch_id=3)
    store.claim(GROUP, "client-1", {})

    assert version(path) == before


def test_the_history_says_which_batch_wrote_what(path: Path) -> None:
    store = DeltaOffsetStore(path)
    store.claim(GROUP, "client-1", {Q0: 0})
    store.commit(GROUP, [committed(Q0, 5)], query_id="q-7", batch_id=12)

    assert [commit.get("userMetadata") for commit in DeltaTable(path).history(2)] == [
        "group order-etl: commit of batch 12 of query q-7",
        "group order-etl: claim by client-1",
    ]


def test_each_group_has_one_growing_transaction_id(path: Path) -> None:
    """C5: two writers of one group always conflict."""
    store = DeltaOffsetStore(path)
    store.claim(GROUP, "client-1", {Q0: 0})
    store.commit(GROUP, [committed(Q0, 5)], query_id="q", batch_id=1)

    assert DeltaTable(path).transaction_version(f"offsets:{GROUP}") == 2


def test_another_store_object_sees_a_commit_at_once(path: Path) -> None:
    writer, reader = DeltaOffsetStore(path), DeltaOffsetStore(path)
    reader.read(GROUP)
    writer.claim(GROUP, "client-1", {Q0: 0})

    assert reader.read(GROUP)[Q0].epoch == 1


def test_a_pickled_store_reads_the_same_table(path: Path) -> None:
    store = DeltaOffsetStore(path)
    store.claim(GROUP, "client-1", {Q0: 4})

    assert pickle.loads(pickle.dumps(store)).read(GROUP)[Q0].next_offset == 4


def test_a_relative_path_means_the_same_table_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert DeltaOffsetStore("offsets").spec == f"delta:{tmp_path / 'offsets'}"


def test_rows_that_sql_inserted_with_the_key_and_offset_only_can_be_read(path: Path) -> None:
    store = DeltaOffsetStore(path)
    store.read(GROUP)
    bare = {"consumer_group": GROUP, **Q0._asdict(), "next_offset": 11, "epoch": 1}
    write_deltalake(path, pa.Table.from_pylist([bare], schema=SCHEMA), mode="append")

    row = store.claim(GROUP, "client-1", {Q0: 0})[Q0]

    assert (row.next_offset, row.epoch, row.state.reconsume_times, row.batch_id) == (11, 2, 0, -1)


def test_a_table_with_the_columns_in_another_order_is_used(path: Path) -> None:
    shuffled = pa.schema(list(reversed(list(SCHEMA))))
    DeltaTable.create(path, schema=shuffled, partition_by=["consumer_group"])
    store = DeltaOffsetStore(path, clock=FakeClock(START_S))

    claimed = store.claim(GROUP, "client-1", {Q0: 5, Q1: 6})

    assert DeltaOffsetStore(path).read(GROUP) == claimed


def test_checkpoints_keep_the_log_short_to_read(path: Path) -> None:
    store = DeltaOffsetStore(path)
    store.claim(GROUP, "client-1", {Q0: 0})
    for batch_id in range(110):
        store.commit(GROUP, [committed(Q0, batch_id + 1)], query_id="q", batch_id=batch_id)

    store.wait_for_upkeep(60)
    last_checkpoint = json.loads((path / "_delta_log" / "_last_checkpoint").read_text())
    assert last_checkpoint["version"] >= 99
    assert DeltaOffsetStore(path).read(GROUP)[Q0].next_offset == 110


def commit_and_clean_up(path: Path, store: DeltaOffsetStore) -> None:
    """Commit offsets 1 to 3; leave a checkpoint, and of the log only the last commit."""
    for batch_id in range(3):
        store.commit(GROUP, [committed(Q0, batch_id + 1)], query_id="q", batch_id=batch_id)
    DeltaTable(path).create_checkpoint()
    for log_file in sorted((path / "_delta_log").glob("*.json"))[:-1]:
        log_file.unlink()


def test_a_handle_whose_log_files_were_cleaned_up_opens_the_table_again(path: Path) -> None:
    idle, busy = DeltaOffsetStore(path), DeltaOffsetStore(path)
    idle.claim(GROUP, "client-1", {Q0: 0})
    commit_and_clean_up(path, busy)

    assert idle.read(GROUP)[Q0].next_offset == 3


def test_rows_are_read_without_a_query_after_the_log_was_cleaned_up(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1: each query of delta-rs keeps memory, and in real time a planner reads only after many commits."""
    busy, idle = DeltaOffsetStore(path), DeltaOffsetStore(path)
    busy.claim(GROUP, "client-1", {Q0: 0})
    assert idle.read(GROUP)[Q0].next_offset == 0
    monkeypatch.setattr("pyspark_rocketmq.delta.partition.query_rows", lambda *_: 1 / 0)
    commit_and_clean_up(path, busy)

    assert idle.read(GROUP)[Q0].next_offset == 3
    assert idle.commit(GROUP, [committed(Q0, 4)], query_id="q", batch_id=3).accepted
    assert DeltaTable(path).to_pyarrow_table().column("next_offset").to_pylist() == [4]


@pytest.mark.parametrize(
    "left_over", ["a data file", "a commit not yet named", "a checkpoint nobody points to"]
)
def test_files_left_by_a_killed_writer_are_ignored(path: Path, left_over: str) -> None:
    """H1: a commit is the one file operation that gives it its number;
    before that there are only files nobody names.
    """
    store = DeltaOffsetStore(path)
    store.claim(GROUP, "client-1", {Q0: 0})
    store.commit(GROUP, [committed(Q0, 5)], query_id="q", batch_id=1)
    log, newest = path / "_delta_log", version(path)
    if left_over == "a data file":
        written = next((path / f"consumer_group={GROUP}").glob("*.parquet"))
        shutil.copy(written, written.with_name("part-00000-left-over.snappy.parquet"))
    elif left_over == "a commit not yet named":
        # How delta-rs' storage writes a file on a disk: beside its place, then a hard link.
        shutil.copy(log / f"{newest:020d}.json", log / f"{newest + 1:020d}.json#1")
    else:
        DeltaTable(path).create_checkpoint()
        (log / "_last_checkpoint").unlink()

    assert DeltaOffsetStore(path).read(GROUP)[Q0].next_offset == 5
    assert DeltaOffsetStore(path).commit(GROUP, [committed(Q0, 6)], query_id="q", batch_id=2).accepted
    assert store.read(GROUP)[Q0].next_offset == 6


# ------------------------------------------------------------------------------------------ errors of a commi


class FailingWrites:
    """Stands for what makes a commit: fails as set, with or without having made the commit first."""

    def __init__(
        self, make: Callable[..., Any], error: Exception, *, failures: int, stores_first: bool
    ) -> None:
        self._make = make
        self._error = error
        self._failures = failures
        self._stores_first = stores_first

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._failures == 0:
            return self._make(*args, **kwargs)
        self._failures -= 1
        if self._stores_first:
            self._make(*args, **kwargs)
        raise self._error


FailWrites = Callable[..., Exception]


@pytest.fixture(params=["by a link", "by delta-rs"])
def fail_writes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FailWrites:
    """Lets commits fail, and returns the error that they raise."""
    if request.param == "by delta-rs":
        monkeypatch.setattr(LogFiles, "takes_commits", False)

    def fail(*, failures: int, stores_first: bool = False) -> Exception:
        if request.param == "by a link":
            error: Exception = OSError(errno.EIO, "Input/output error")
            put = FailingWrites(LogFiles.put, error, failures=failures, stores_first=stores_first)
            # A function, which gets the log as its first argument.
            monkeypatch.setattr(LogFiles, "put", lambda log, *args: put(log, *args))  # noqa: PLW0108
            return error
        error = CommitFailedError("a concurrent transaction")
        failing = FailingWrites(write_deltalake, error, failures=failures, stores_first=stores_first)
        monkeypatch.setattr(partition_module, "write_deltalake", failing)
        return error

    return fail


def test_a_conflict_is_tried_again_after_growing_pauses(path: Path, fail_writes: FailWrites) -> None:
    pauses: list[float] = []
    store = DeltaOffsetStore(path, sleep=pauses.append)
    store.claim(GROUP, "client-1", {Q0: 0})
    fail_writes(failures=4)

    result = store.commit(GROUP, [committed(Q0, 5)], query_id="q", batch_id=1)

    assert len(result.accepted) == 1
    assert pauses == [0.0, 0.005, 0.01, 0.02]


def test_an_error_of_a_commit_that_was_stored_does_not_store_it_twice(
    path: Path, fail_writes: FailWrites
) -> None:
    """H1: delta-rs#2279, an error means that the outcome is unknown."""
    store = DeltaOffsetStore(path, sleep=lambda _: None)
    store.claim(GROUP, "client-1", {Q0: 0})
    fail_writes(failures=1, stores_first=True)
    before = version(path)

    result = store.commit(GROUP, [committed(Q0, 5)], query_id="q", batch_id=1)

    assert len(result.accepted) == 1
    assert version(path) == before + 1


def test_a_conflict_that_does_not_end_is_reported_with_group_and_path(
    path: Path, fail_writes: FailWrites
) -> None:
    pauses: list[float] = []
    store = DeltaOffsetStore(path, sleep=pauses.append)
    store.claim(GROUP, "client-1", {Q0: 0})
    error = fail_writes(failures=10**6)

    with pytest.raises(
        OffsetCommitConflict,
        match=r"^Offsets of group order-etl could not be stored in .*offsets .*\(commit of batch 1 ",
    ) as failure:
        store.commit(GROUP, [committed(Q0, 5)], query_id="q", batch_id=1)

    assert failure.value.retryable
    assert sum(pauses) < 10
    assert failure.value.__cause__ is error


@pytest.mark.parametrize("other_by_link", [True, False], ids=["this release", "delta-rs"])
def test_a_commit_that_comes_between_is_followed(
    path: Path, monkeypatch: pytest.MonkeyPatch, other_by_link: bool
) -> None:
    """An earlier release, or a process elsewhere, commits by delta-rs; both find each other's commits."""
    store, other = DeltaOffsetStore(path), DeltaOffsetStore(path)
    store.claim(GROUP, "client-1", {Q0: 0, Q1: 0})
    other.read(GROUP)
    put = LogFiles.put
    between = [True]

    def put_after_another(log: LogFiles, *args: Any) -> CommitFile:
        if between and between.pop():
            with monkeypatch.context() as patch:
                patch.setattr(LogFiles, "put", put)
                patch.setattr(LogFiles, "takes_commits", other_by_link)
                other.claim(GROUP, "client-2", {Q1: 0})
        return put(log, *args)

    monkeypatch.setattr(LogFiles, "put", put_after_another)
    before = version(path)

    result = store.commit(GROUP, [committed(Q0, 5), committed(Q1, 9)], query_id="q", batch_id=1)

    assert [commit.queue for commit in result.accepted] == [Q0]
    assert [commit.queue for commit in result.refused] == [Q1]
    assert version(path) == before + 2
    rows = other.read(GROUP)
    assert (rows[Q0].next_offset, rows[Q1].next_offset, rows[Q1].owner) == (5, 0, "client-2")


def test_what_sql_changes_between_commits_of_another_group_is_seen(path: Path) -> None:
    store, other = DeltaOffsetStore(path), DeltaOffsetStore(path)
    store.claim(GROUP, "client-1", {Q0: 7})
    other.claim("other", "client-2", {Q0: 0})
    assert store.read(GROUP)[Q0].next_offset == 7

    other.commit("other", [committed(Q0, 1)], query_id="q", batch_id=1)
    DeltaTable(path).update({"next_offset": "8"}, predicate=f"consumer_group = '{GROUP}'")
    other.commit("other", [committed(Q0, 2)], query_id="q", batch_id=2)

    assert store.read(GROUP)[Q0].next_offset == 8
    store.commit(GROUP, [committed(Q0, 9)], query_id="q", batch_id=1)
    assert {group: other.read(group)[Q0].next_offset for group in (GROUP, "other")} == {GROUP: 9, "other": 2}
    assert DeltaTable(path).to_pyarrow_table().num_rows == 2


def test_commits_of_another_group_cost_no_reading_of_rows(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = DeltaOffsetStore(path), DeltaOffsetStore(path)
    store.claim(GROUP, "client-1", {Q0: 0})
    other.claim("other", "client-2", {Q0: 0})
    store.read(GROUP)
    for number in range(1, 4):
        other.commit("other", [committed(Q0, number)], query_id="q", batch_id=number)
    monkeypatch.setattr(partition_module, "query_rows", pytest.fail)

    store.commit(GROUP, [committed(Q0, 5)], query_id="q", batch_id=1)

    assert store.read(GROUP)[Q0].next_offset == 5


def test_a_file_outside_the_table_s_folder_is_removed_by_delta_rs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shallow clone has files of another table; the log names them by their whole address."""
    DeltaOffsetStore(path).claim(GROUP, "client-1", {Q0: 0})
    monkeypatch.setattr(partition_module, "is_below", lambda _: False)
    monkeypatch.setattr(LogFiles, "put", pytest.fail)

    DeltaOffsetStore(path).commit(GROUP, [committed(Q0, 5)], query_id="q", batch_id=1)

    assert DeltaTable(path).to_pyarrow_table().num_rows == 1


def test_delta_rs_makes_no_further_commits_once_no_file_is_outside_the_folder(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1: a shallow clone is soon as quick as any table."""
    DeltaOffsetStore(path).claim(GROUP, "client-1", {Q0: 0})
    clone = tmp_path / "clone"
    shutil.copytree(path / "_delta_log", clone / "_delta_log")
    for commit in (clone / "_delta_log").glob("*.json"):
        commit.write_text(commit.read_text().replace('"path": "', f'"path": "{path.as_uri()}/'))
    store = DeltaOffsetStore(clone)

    for batch_id in range(3):
        if batch_id == 1:
            monkeypatch.setattr(partition_module, "write_deltalake", pytest.fail)
        store.commit(GROUP, [committed(Q0, 5 + batch_id)], query_id="q", batch_id=batch_id)

    assert store.read(GROUP)[Q0].next_offset == 7
    assert DeltaOffsetStore(path).read(GROUP)[Q0].next_offset == 0


# ------------------------------------------------------------------------------------------ tables of others


def test_a_missing_table_is_reported_at_the_next_commit_and_not_recreated(path: Path) -> None:
    store = DeltaOffsetStore(path)
    store.claim(GROUP, "client-1", {Q0: 0})
    shutil.rmtree(path)

    with pytest.raises(OffsetError, match=r"is gone: .* start the query again"):
        store.commit(GROUP, [committed(Q0, 5)], query_id="q", batch_id=1)
    with pytest.raises(OffsetError, match="is gone"):
        store.read(GROUP)
    assert not DeltaTable.is_deltatable(str(path))

    store.open_anew()
    assert store.read(GROUP) == {}


@pytest.mark.parametrize("commits", [1, 3, 9], ids=["fewer", "as many", "more"])
def test_a_table_that_was_made_again_is_not_gone_on_with(path: Path, commits: int) -> None:
    """H2: its epochs begin at 1 again, so that they would not fence."""
    store = DeltaOffsetStore(path)
    for _ in range(3):
        store.claim(GROUP, "client-1", {Q0: 0})
    shutil.rmtree(path)
    other = DeltaOffsetStore(path)
    for _ in range(commits):
        other.claim(GROUP, "client-2", {Q0: 0})

    with pytest.raises(
        OffsetError, match=r"was replaced, or deleted and created again.* start the query again"
    ):
        store.read(GROUP)
    with pytest.raises(OffsetError, match="was replaced, or deleted and created again"):
        store.commit(GROUP, [committed(Q0, 5)], query_id="q", batch_id=1)

    assert other.read(GROUP)[Q0].next_offset == 0
    store.open_anew()
    assert store.read(GROUP)[Q0].epoch == commits


def test_the_same_table_put_back_to_an_earlier_state_is_read_as_it_is_now(path: Path, tmp_path: Path) -> None:
    """H2: what that means is for the planner to judge."""
    store = DeltaOffsetStore(path)
    store.claim(GROUP, "client-1", {Q0: 0})
    shutil.copytree(path, tmp_path / "backup")
    store.claim(GROUP, "client-1", {Q0: 0})
    assert store.read(GROUP)[Q0].epoch == 2
    shutil.rmtree(path)
    (tmp_path / "backup").rename(path)

    assert store.read(GROUP)[Q0].epoch == 1


def test_a_table_with_other_columns_is_refused_naming_each_difference(path: Path) -> None:
    others = SCHEMA.remove(SCHEMA.get_field_index("epoch")).append(pa.field("extra", pa.string()))
    others = others.set(others.get_field_index("queue_id"), pa.field("queue_id", pa.string()))
    DeltaTable.create(path, schema=others)

    with pytest.raises(SchemaError) as refusal:
        DeltaOffsetStore(path).read(GROUP)

    text = str(refusal.value)
    assert "missing in the table: epoch bigint" in text
    assert "only in the table: extra string" in text
    assert "of another type: queue_id is string instead of int" in text
    assert "partitioned by () instead of (consumer_group)" in text


@pytest.mark.parametrize(
    ("configuration", "feature"),
    [
        ({"delta.enableDeletionVectors": "true"}, "deletionVectors"),
        ({"delta.columnMapping.mode": "name"}, "columnMapping"),
        ({"delta.enableChangeDataFeed": "true"}, "changeDataFeed"),
        ({"delta.appendOnly": "true"}, "delta.appendOnly=true"),
    ],
)
def test_a_table_with_features_is_refused_naming_them(
    path: Path, configuration: dict[str, str], feature: str
) -> None:
    """H2: NULLs read silently through mapped columns would restart a group."""
    _create_with(path, configuration)

    with pytest.raises(OptionError, match=feature) as refusal:
        DeltaOffsetStore(path).read(GROUP)

    assert str(path) in str(refusal.value)
    assert "SET TBLPROPERTIES ('delta.appendOnly' = 'false')" in str(refusal.value)


def _create_with(path: Path, configuration: dict[str, str]) -> None:
    """Make the table as another writer would: delta-rs itself refuses to make some of these."""
    DeltaTable.create(path, schema=SCHEMA, partition_by=["consumer_group"])
    log_file = path / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in log_file.read_text().splitlines()]
    features = {
        "delta.enableDeletionVectors": "deletionVectors",
        "delta.columnMapping.mode": "columnMapping",
        "delta.enableChangeDataFeed": "changeDataFeed",
        "delta.appendOnly": "appendOnly",
    }
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"] = {**configuration}
            schema = json.loads(action["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"], start=1):
                field["metadata"] = {
                    "delta.columnMapping.id": number,
                    "delta.columnMapping.physicalName": field["name"],
                }
            action["metaData"]["schemaString"] = json.dumps(schema)
        if "protocol" in action:
            named = [features[key] for key in configuration]
            readers = [name for name in named if name in {"deletionVectors", "columnMapping"}]
            action["protocol"] = {
                "minReaderVersion": 3 if readers else 1,
                "minWriterVersion": 7,
                "writerFeatures": named,
                **({"readerFeatures": readers} if readers else {}),
            }
    log_file.write_text("\n".join(map(json.dumps, actions)))


# ------------------------------------------------------------------------------------------ tables of other r

ADDED_SINCE = ("put_back", "statistics", "generation", "last_message", "shown", "sinks", "boundaries")
FIRST_SCHEMA = pa.schema([field for field in SCHEMA if field.name not in ADDED_SINCE])


def make_first_table(path: Path) -> None:
    """As the first release left it, with one row."""
    DeltaTable.create(path, schema=FIRST_SCHEMA, partition_by=["consumer_group"])
    row = {"consumer_group": GROUP, **Q0._asdict(), "next_offset": 11, "epoch": 1}
    write_deltalake(path, pa.Table.from_pylist([row], schema=FIRST_SCHEMA), mode="append")


def test_a_table_of_an_earlier_release_is_read_as_it_is(path: Path) -> None:
    """F1: looking at it needs no right to write it."""
    make_first_table(path)
    before = version(path)

    row = DeltaOffsetStore(path).read(GROUP)[Q0]

    assert (row.next_offset, row.state.retry_counts.to_text(), row.statistics.to_text()) == (11, "", "")
    assert version(path) == before


def test_the_first_change_brings_a_table_to_the_newest_form(path: Path) -> None:
    """F1"""
    make_first_table(path)
    store = DeltaOffsetStore(path)

    store.claim(GROUP, "client-1", {Q0: 0})
    store.commit(
        GROUP,
        [committed(Q0, 12, epoch=2, retry_counts=stored_texts.retries("[[12,13,1]]"))],
        query_id="q",
        batch_id=1,
    )

    assert pa.schema(DeltaTable(path).schema().to_arrow()) == SCHEMA
    assert DeltaTable(path).metadata().configuration[VERSION_PROPERTY] == str(NEWEST_VERSION)
    assert DeltaOffsetStore(path).read(GROUP)[Q0].state.retry_counts.to_text() == "[[12,13,1]]"


def test_an_upgrade_that_was_killed_half_way_is_finished(path: Path) -> None:
    """H2: the column is there, the version is not."""
    make_first_table(path)
    DeltaTable(path).alter.add_columns([Field("put_back", PrimitiveType("string"))])

    DeltaOffsetStore(path).claim(GROUP, "client-1", {Q0: 0})

    assert DeltaTable(path).metadata().configuration[VERSION_PROPERTY] == str(NEWEST_VERSION)


THIRD_SCHEMA = SCHEMA.insert(SCHEMA.get_field_index("put_back"), pa.field("uncommitted", pa.string()))


def test_a_table_with_a_column_that_is_no_longer_used_is_read_and_written(path: Path) -> None:
    """F1, D4: version 3 kept there what was consumed without a commit;
    it is forgotten with the first change.
    """
    DeltaTable.create(path, schema=THIRD_SCHEMA, partition_by=["consumer_group"])
    DeltaTable(path).alter.set_table_properties({VERSION_PROPERTY: "3"}, raise_if_not_exists=False)
    row = {"consumer_group": GROUP, **Q0._asdict(), "next_offset": 11, "epoch": 1, "uncommitted": "no JSON"}
    write_deltalake(path, pa.Table.from_pylist([row], schema=THIRD_SCHEMA), mode="append")
    store = DeltaOffsetStore(path)

    assert store.read(GROUP)[Q0].next_offset == 11
    store.claim(GROUP, "client-1", {Q0: 0, Q1: 5})
    store.commit(GROUP, [committed(Q0, 12, epoch=2)], query_id="q", batch_id=1)

    assert {queue: row.next_offset for queue, row in DeltaOffsetStore(path).read(GROUP).items()} == {
        Q0: 12,
        Q1: 5,
    }
    assert DeltaTable(path).to_pyarrow_table().column("uncommitted").null_count == 2
    assert DeltaTable(path).metadata().configuration[VERSION_PROPERTY] == str(NEWEST_VERSION)


def test_an_earlier_release_does_not_go_on_with_rows_that_it_would_misread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4, C5: members of both releases at once; the earlier ones end at their next change.

    Of several remembered messages they would say that they are damaged; one of which only the offset is known
    they would take for another one, and consume the queue again.
    """
    monkeypatch.setattr(delta_rows, "NEWEST_VERSION", 4)
    monkeypatch.setattr(delta_module, "NEWEST_VERSION", 4)
    former = DeltaOffsetStore(path)
    epoch = former.claim(GROUP, "former", {Q0: 0})[Q0].epoch
    monkeypatch.undo()
    record = SinkRecord(generation=0, next_offset=6, last_message=stored_texts.messages(""))
    assert (
        DeltaOffsetStore(path).note_sinks(GROUP, {Q0: record})[Q0].state.last_message.to_text() == "[5,0,-1]"
    )
    monkeypatch.setattr(delta_rows, "NEWEST_VERSION", 4)
    monkeypatch.setattr(delta_module, "NEWEST_VERSION", 4)

    for store in (former, DeltaOffsetStore(path)):
        with pytest.raises(SchemaError, match=r"this release reads only versions 1 to 4\. Use the release"):
            store.claim(GROUP, "former", {Q0: 0})
        with pytest.raises(SchemaError, match=r"this release reads only versions 1 to 4\. Use the release"):
            store.commit(GROUP, [committed(Q0, 3, epoch=epoch)], query_id="q", batch_id=1)


def test_writers_that_upgrade_at_once_lose_nothing(path: Path) -> None:
    """C5"""
    make_first_table(path)
    with ThreadPoolExecutor(4) as executor:
        steps = [
            executor.submit(claim_and_commit, str(path), f"group-{number}", "o", 1, 9) for number in range(4)
        ]

        assert [step.result() for step in steps] == [1, 1, 1, 1]
    assert DeltaOffsetStore(path).read(GROUP)[Q0].next_offset == 11


@pytest.mark.parametrize("found", [str(NEWEST_VERSION + 1), "two"])
def test_a_table_of_a_newer_release_is_refused_saying_so(path: Path, found: str) -> None:
    store = DeltaOffsetStore(path)
    store.claim(GROUP, "client-1", {Q0: 0})
    DeltaTable(path).alter.set_table_properties({VERSION_PROPERTY: found}, raise_if_not_exists=False)

    with pytest.raises(
        SchemaError, match=f"has version '{found}' .* this release reads only versions 1 to {NEWEST_VERSION}"
    ):
        DeltaOffsetStore(path).read(GROUP)
    with pytest.raises(SchemaError, match="Use the release that wrote it"):
        store.claim(GROUP, "client-1", {Q0: 0})


# ------------------------------------------------------------------------------------------ several writers


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_writers_of_different_groups_do_not_disturb_each_other(path: Path, kind: str) -> None:
    """H5: no conflict of another group ever surfaces."""
    DeltaOffsetStore(path).read(GROUP)
    with _executor(kind) as executor:
        steps = [
            executor.submit(claim_and_commit, str(path), f"group-{number}", "owner", 20, 1000)
            for number in range(2)
        ]

        assert [step.result() for step in steps] == [20, 20]


def test_processes_that_write_one_group_lose_nothing(path: Path) -> None:
    """C5, H5: every accepted step is in the final offset, and only those."""
    DeltaOffsetStore(path).read(GROUP)
    with _executor("processes") as executor:
        steps = [
            executor.submit(claim_and_commit, str(path), GROUP, owner, 20, 5, shares_group=True)
            for owner in ("one", "two")
        ]
        accepted = [step.result() for step in steps]

    assert DeltaOffsetStore(path).read(GROUP)[Q0].next_offset == sum(accepted)


def test_two_stores_that_make_the_table_at_once_share_it(path: Path) -> None:
    with ThreadPoolExecutor(4) as executor:
        steps = [
            executor.submit(claim_and_commit, str(path), f"group-{number}", "o", 1, 9) for number in range(4)
        ]

        assert [step.result() for step in steps] == [1, 1, 1, 1]


def _executor(kind: str) -> Executor:
    if kind == "threads":
        return ThreadPoolExecutor(2)
    return ProcessPoolExecutor(2, mp_context=get_context("spawn"))


def test_storage_that_does_not_answer_is_an_error_that_may_pass(tmp_path: Path) -> None:
    """F3: delta-rs raises plain OSErrors then; the planner skips a trigger instead of ending the query."""
    store = DeltaOffsetStore(tmp_path / "offsets")
    store.claim("g", "me", {MessageQueue("t", "b", 0): 0})
    shutil.rmtree(tmp_path / "offsets")
    (tmp_path / "offsets").write_text("no folder any more", encoding="utf-8")

    with pytest.raises(
        OffsetStoreUnavailable, match=r"offsets of group g could not be read from .*/offsets"
    ) as caught:
        store.read("g")

    assert caught.value.retryable


def test_a_file_that_the_storage_does_not_give_is_an_error_that_may_pass(path: Path) -> None:
    """F3: delta-rs' SQL raises a bare ``Exception`` then."""
    DeltaOffsetStore(path).claim("g", "me", {MessageQueue("t", "b", 0): 0})
    for file in path.rglob("*.parquet"):
        file.unlink()

    with pytest.raises(OffsetStoreUnavailable, match="offsets of group g could not be read") as caught:
        DeltaOffsetStore(path).read("g")

    assert caught.value.retryable
