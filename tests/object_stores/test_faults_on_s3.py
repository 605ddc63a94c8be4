"""What goes wrong with object storage: nothing is lost or doubled, and errors say it without secrets."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pyspark_rocketmq.delta.storage_options import StorageOptions
from pyspark_rocketmq.delta.table import query_rows
from pyspark_rocketmq.errors import OffsetStoreUnavailable, RocketMQError
from pyspark_rocketmq.model import MessageQueue, QueueRange
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.replay.ranges import Sending
from pyspark_rocketmq.replay.record import ReplayRecord
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.sink_rows import GROUP, Q0, files_of, run_batch
from tests.object_stores.server import COMMIT, KEY, SECRET, Bucket, RenewedKeys
from tests.offsets.conformance import committed
from tests.sinks.sink_conformance import SCHEMA, rows

SLOW_DOWN = {"where": "", "status": 503, "code": "SlowDown"}


def sink_on(s3: Bucket, storage_options: Any = None) -> DeltaSink:
    given = storage_options or s3.storage_options(KEY, SECRET)
    sink = DeltaSink(s3.uri("sink"), storage_options=given, sleep=lambda _: None)
    sink.prepare(SCHEMA)
    return sink


def store_on(s3: Bucket, storage_options: Any = None) -> DeltaOffsetStore:
    given = storage_options or s3.storage_options(KEY, SECRET)
    return DeltaOffsetStore(s3.uri("offsets"), storage_options=given, sleep=lambda _: None)


def offsets_in(s3: Bucket) -> list[int]:
    table = DeltaTable(s3.uri("sink"), storage_options=s3.storage_options())
    return sorted(query_rows(table, 'SELECT "queueOffset" FROM rows').column(0).to_pylist())


def versions(s3: Bucket, table: str) -> list[int]:
    return sorted(
        int(found[1]) for key in s3.objects() if (found := re.match(rf"{table}/_delta_log/(\d+)\.json", key))
    )


def shown(error: BaseException) -> str:
    """An error with its causes, as a traceback has them."""
    texts: list[str] = []
    seen: BaseException | None = error
    while seen is not None:
        texts.append(f"{seen!r} {seen}")
        seen = seen.__cause__ or seen.__context__
    return " ".join(texts)


def check_told(error: BaseException) -> None:
    assert str(error).endswith(".")
    assert KEY not in shown(error)
    assert SECRET not in shown(error)


def test_a_commit_whose_answer_is_lost_is_made_once(s3: Bucket) -> None:
    """J1, H1: the commit is stored, and the connection ends before the answer."""
    sink, store = sink_on(s3), store_on(s3)
    store.claim(GROUP, "client", {Q0: 0})
    s3.behave({"where": COMMIT, "times": 1})
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    s3.behave({"where": COMMIT, "times": 1})
    store.commit(GROUP, [committed(Q0, 3)], query_id="q", batch_id=0)

    assert offsets_in(s3) == [0, 1, 2]
    assert versions(s3, "sink") == [0, 1]
    assert store.read(GROUP)[Q0].next_offset == 3
    run_batch(sink, {Q0: 4}, rows(Q0, 3, 4))
    assert offsets_in(s3) == [0, 1, 2, 3]


def test_storage_that_is_busy_for_a_moment_is_asked_again(s3: Bucket) -> None:
    """J1: 503 SlowDown, for files, commits and reads alike."""
    sink, store = sink_on(s3), store_on(s3)
    store.claim(GROUP, "client", {Q0: 0})
    for where in ("POST", "PUT", COMMIT, "GET"):
        s3.behave({**SLOW_DOWN, "where": where, "times": 2})
        end = len(offsets_in(s3)) + 1
        s3.behave({**SLOW_DOWN, "where": where, "times": 2})
        run_batch(sink, {Q0: end}, rows(Q0, end - 1, end))
        store.commit(GROUP, [committed(Q0, end)], query_id="q", batch_id=end)

    assert offsets_in(s3) == [0, 1, 2, 3]
    assert store.read(GROUP)[Q0].next_offset == 4


def test_storage_that_is_away_for_longer_than_delta_rs_waits_is_asked_again(s3: Bucket) -> None:
    """J1: when a query starts, a batch begins and commits, and offsets are read and stored."""
    sink, store = sink_on(s3), store_on(s3)
    store.claim(GROUP, "client", {Q0: 0})
    run_batch(sink, {Q0: 1}, rows(Q0, 0, 1))

    def away() -> None:
        # delta-rs gives up after four requests.
        s3.behave({**SLOW_DOWN, "times": 10})

    away()
    (standing,) = sink.standings(GROUP, {Q0: 0})
    away()
    sink.prepare(SCHEMA)
    away()
    batch = sink.begin(GROUP, {Q0: 0})
    files = files_of(batch.task_writer(), iter([rows(Q0, 1, 2)]))
    away()
    batch.commit(files, {Q0: 2})
    away()
    store.commit(GROUP, [committed(Q0, 2)], query_id="q", batch_id=0)
    away()
    read = store.read(GROUP)

    s3.behave()
    assert standing.watermarks == {Q0: 1}
    assert offsets_in(s3) == [0, 1]
    assert read[Q0].next_offset == 2


@pytest.mark.parametrize("where", ["POST", COMMIT, "HEAD .*parquet"])
def test_a_batch_that_storage_refuses_for_long_fails_and_may_run_again(s3: Bucket, where: str) -> None:
    """J1, H7"""
    sink = sink_on(s3)
    s3.behave({**SLOW_DOWN, "where": where, "times": 1000})
    with pytest.raises((RocketMQError, OSError)) as failure:
        run_batch(sink, {Q0: 2}, rows(Q0, 0, 2))
    s3.behave()

    if isinstance(failure.value, RocketMQError):
        check_told(failure.value)
    assert offsets_in(s3) == []
    run_batch(sink, {Q0: 2}, rows(Q0, 0, 2))
    assert offsets_in(s3) == [0, 1]


def test_keys_that_expire_are_renewed(s3: Bucket) -> None:
    """J1: between two batches, and while tasks wrote for longer than a key is good for."""
    keys = RenewedKeys(s3)
    sink, store = sink_on(s3, keys), store_on(s3, keys)
    store.claim(GROUP, "client", {Q0: 0})
    run_batch(sink, {Q0: 1}, rows(Q0, 0, 1))
    keys.expire()
    run_batch(sink, {Q0: 2}, rows(Q0, 1, 2))
    batch = sink.begin(GROUP, {Q0: 0})
    files = files_of(batch.task_writer(), iter([rows(Q0, 2, 3)]))
    keys.expire()
    batch.commit(files, {Q0: 3})
    store.commit(GROUP, [committed(Q0, 3)], query_id="q", batch_id=0)
    keys.expire()

    assert store.read(GROUP)[Q0].next_offset == 3
    s3.behave()
    assert offsets_in(s3) == [0, 1, 2]
    assert versions(s3, "sink") == [0, 1, 2, 3]


@pytest.mark.parametrize("are_always_new", [False, True])
def test_keys_are_renewed_twice_a_batch(s3: Bucket, are_always_new: bool) -> None:
    """J1: an authority is asked when a batch begins and when it commits, however many requests it makes."""
    keys = RenewedKeys(s3)
    keys.are_always_new = are_always_new
    sink = sink_on(s3, keys)
    run_batch(sink, {Q0: 1}, rows(Q0, 0, 1))
    before = keys.calls
    run_batch(sink, {Q0: 2}, rows(Q0, 1, 2))
    run_batch(sink, {Q0: 3}, rows(Q0, 2, 3))

    assert keys.calls - before == 4
    assert offsets_in(s3) == [0, 1, 2]


def test_keys_that_are_refused_are_not_shown(s3: Bucket) -> None:
    """J1: S3 answers with the key that it does not take."""
    sink, store = sink_on(s3), store_on(s3)
    store.claim(GROUP, "client", {Q0: 0})
    batch = sink.begin(GROUP, {Q0: 0})
    files = files_of(batch.task_writer(), iter([rows(Q0, 0, 1)]))
    s3.behave(accepted=[])
    with pytest.raises(OffsetStoreUnavailable) as unread:
        store.read(GROUP)
    with pytest.raises(RocketMQError) as unwritten:
        batch.commit(files, {Q0: 1})
    with pytest.raises(RocketMQError) as unknown:
        sink.watermarks(GROUP)

    for failure in (unread, unwritten, unknown):
        check_told(failure.value)
    assert "***" in str(unread.value)


def test_a_start_while_storage_does_not_answer_is_reported(s3: Bucket) -> None:
    """J1: how far the sink has come, and whether its table is there."""
    sink = sink_on(s3)
    run_batch(sink, {Q0: 1}, rows(Q0, 0, 1))
    s3.behave({**SLOW_DOWN, "times": 1000})
    with pytest.raises(RocketMQError) as unknown:
        sink.standings(GROUP, {Q0: 0})
    with pytest.raises(RocketMQError) as unprepared:
        sink.prepare(SCHEMA)

    for failure in (unknown, unprepared):
        check_told(failure.value)
        assert "SlowDown" in str(failure.value)


def test_a_bucket_that_is_gone_ends_a_batch(s3: Bucket) -> None:
    """J1, J7: nothing is begun again in silence."""
    sink, store = sink_on(s3), store_on(s3)
    store.claim(GROUP, "client", {Q0: 0})
    run_batch(sink, {Q0: 1}, rows(Q0, 0, 1))
    batch = sink.begin(GROUP, {Q0: 0})
    files = files_of(batch.task_writer(), iter([rows(Q0, 1, 2)]))
    s3.lose()
    with pytest.raises(RocketMQError) as uncommitted:
        batch.commit(files, {Q0: 2})
    with pytest.raises(RocketMQError) as unbegun:
        sink.begin(GROUP, {Q0: 0})
    with pytest.raises(RocketMQError) as unread:
        store.read(GROUP)

    for failure in (uncommitted, unbegun, unread):
        check_told(failure.value)


def test_a_batch_makes_few_requests(s3: Bucket) -> None:
    """J1: each takes tens of milliseconds."""
    sink, store = sink_on(s3), store_on(s3)
    store.claim(GROUP, "client", {Q0: 0})
    run_batch(sink, {Q0: 1}, rows(Q0, 0, 1))
    store.commit(GROUP, [committed(Q0, 1)], query_id="q", batch_id=1)

    s3.behave()
    run_batch(sink, {Q0: 2}, rows(Q0, 1, 2))
    assert len(s3.seen) <= 21
    s3.behave()
    store.commit(GROUP, [committed(Q0, 2)], query_id="q", batch_id=2)
    assert len(s3.seen) <= 12


def test_a_start_warns_that_spark_could_overwrite_commits(
    s3: Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """J1: by Delta's default log store."""
    DeltaSink(tmp_path / "here").prepare(SCHEMA)
    assert "overwrite" not in caplog.text

    sink_on(s3)
    assert (
        "if Spark also writes path=s3://lake/sink, for example by OPTIMIZE, its commits on S3 could"
        in caplog.text
    )


def test_two_writers_at_once_make_one_history(s3: Bucket) -> None:
    """J1, H5: of two groups with their sinks, and of two members with one offset store."""
    batches = 6
    sink_on(s3)
    queues = [MessageQueue("orders", "broker-a", number) for number in range(2)]
    store_on(s3).claim(GROUP, "client", dict.fromkeys(queues, 0))

    def write(queue: MessageQueue) -> None:
        sink, store = sink_on(s3), store_on(s3)
        for end in range(1, batches + 1):
            run_batch(sink, {queue: end}, rows(queue, end - 1, end), queues=[queue])
            store.commit(GROUP, [committed(queue, end)], query_id=str(queue), batch_id=end)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, queues))

    table = DeltaTable(s3.uri("sink"), storage_options=s3.storage_options())
    found = query_rows(table, 'SELECT "queueId", "queueOffset" FROM rows').to_pylist()
    assert sorted(tuple(row.values()) for row in found) == [(q, o) for q in range(2) for o in range(batches)]
    assert versions(s3, "sink") == list(range(2 * batches + 1))
    assert [row.next_offset for row in store_on(s3).read(GROUP).values()] == [batches, batches]


def test_a_replay_s_record_is_kept(s3: Bucket) -> None:
    """J1: once, also when the answer to its commit is lost."""
    options = StorageOptions(s3.storage_options(KEY, SECRET))
    record = ReplayRecord(s3.uri("record"), "copy", lambda _: "*", storage=options, sleep=lambda _: None)
    sending = Sending(
        run="run", source=QueueRange.between(Q0, 0, 5), target=Q0._replace(topic="copy"), target_offset=0
    )
    record.begin([sending])
    s3.behave({"where": COMMIT, "times": 1})
    record.finish([sending])

    assert record.done() == [sending]
    assert not record.unfinished()
    s3.behave(accepted=[])
    with pytest.raises(RocketMQError) as failure:
        record.done()
    check_told(failure.value)
