"""Users' own offset stores, sinks and batches: none needs what it may also have, and each is used by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rocketmq.commit.recovery import rows_problem
from pyspark_rocketmq.consumer.batch_function import (
    CommitterParts,
    check_over_connect,
    read_epochs,
    storage_secrets_of,
)
from pyspark_rocketmq.consumer.preparation import table_places, use_session
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.consumer.settings import start_problems
from pyspark_rocketmq.errors import OffsetError, OptionError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.open import MemoryOffsetStore, checked_rows
from pyspark_rocketmq.offsets.store import OffsetStore
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.sinks.against_offsets import SinkGap, SinkStanding
from pyspark_rocketmq.sinks.base import QueueGeneration, RowWriter, Sink, SinkBatch, note_newest
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.multi import MultiSink, Route
from tests.helpers.fake_clock import FakeClock
from tests.helpers.sink_rows import GROUP, Q0

OPTIONS = ReadOptions.parse(
    {"nameServers": "a:1", "topic": "orders", "consumerGroup": GROUP, "offsetStore": "/lake/_offsets"}
)


class OwnStore(MemoryOffsetStore):
    """Has only what ``OffsetStore`` requires; can be pickled."""

    def __init__(self) -> None:
        super().__init__("own", clock=FakeClock())
        self.calls: list[str] = []

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), ()

    @property
    def spec(self) -> str:
        return "delta:/lake/_offsets"


class RenewingStore(OwnStore):
    has_renewable_storage = False

    def renew_storage(self) -> dict[str, str]:
        self.calls.append("renewed")
        return {"token": str(len(self.calls))}


class StoreOfThisProcess(RenewingStore):
    has_renewable_storage = True


class OpenedStore(OwnStore):
    def open_anew(self) -> None:
        self.calls.append("opened")


class StoreAtBrokers(OwnStore):
    is_at_brokers = True


class OwnBatch:
    """Has only what ``SinkBatch`` requires."""

    standings = ()

    def task_writer(self) -> RowWriter:
        raise AssertionError("no task runs here")

    def commit(self, written: Sequence[Any], acked: Mapping[MessageQueue, int]) -> int | None:
        return None


class RememberingBatch(OwnBatch):
    def __init__(self) -> None:
        self.newest: dict[MessageQueue, str] = {}

    def note_newest(self, newest: Mapping[MessageQueue, str]) -> None:
        self.newest |= newest


class OwnSink:
    """Has only what ``Sink`` requires."""

    def __init__(self, place: str = "own", batch: SinkBatch | None = None) -> None:
        self.place = place
        self._batch = OwnBatch() if batch is None else batch

    def prepare(self, schema: pa.Schema) -> None:
        pass

    def standings(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> Sequence[SinkStanding]:
        return ()

    def watermarks(self, consumer_group: str) -> Mapping[QueueGeneration, int]:
        return {}

    def begin(self, consumer_group: str, queues: Mapping[MessageQueue, int]) -> SinkBatch:
        return self._batch


class CountingSink(OwnSink):
    count = 3

    def count_rows(self, from_offsets: Mapping[MessageQueue, int]) -> int:
        return self.count if from_offsets == {Q0: 0} else 0


class FileSink(OwnSink):
    folders = ("/lake/orders", "s3://lake/orders")


class SessionSink(OwnSink):
    session: object = None

    def use_session(self, spark: object) -> None:
        self.session = spark


def parts(store: OffsetStore) -> CommitterParts:
    return CommitterParts(
        options=OPTIONS,
        store=store,
        sink=None,
        engine=None,
        listeners=(),
        is_mirrored=True,
        tries_for_ever=False,
        drains=False,
    )


def test_storage_options_are_renewed_for_a_store_that_has_them() -> None:
    store = RenewingStore()

    assert storage_secrets_of(OwnStore()) == {}
    assert [storage_secrets_of(store), storage_secrets_of(store)] == [{"token": "1"}, {"token": "2"}]


def test_spark_connect_refuses_only_a_store_whose_options_this_process_renews() -> None:
    check_over_connect(parts(OwnStore()))
    check_over_connect(parts(RenewingStore()))

    with pytest.raises(OptionError, match="storage_options of the offset store are a callable"):
        check_over_connect(parts(StoreOfThisProcess()))


@pytest.mark.parametrize(
    ("store", "is_at_brokers"), [(OwnStore(), False), (StoreAtBrokers(), True)], ids=["unknown", "at_brokers"]
)
def test_an_unknown_store_is_fenced_and_shown_unless_it_is_at_the_brokers(
    store: OffsetStore, is_at_brokers: bool
) -> None:
    seen = store.claim(GROUP, "me", {Q0: 4})

    assert read_epochs(store, GROUP) == ({} if is_at_brokers else {Q0: 1})
    committer = parts(store).committer(store, str, None)
    assert (committer._parts._mirror is None) is is_at_brokers
    if is_at_brokers:
        assert checked_rows(store, "gone", {}, seen=seen) == {}
    else:
        with pytest.raises(OffsetError, match=r"are gone from .*the store was deleted or overwritten"):
            checked_rows(store, "gone", {}, seen=seen)


def test_a_store_that_opens_again_does_so_when_a_query_starts() -> None:
    found = []
    for store in (OwnStore(), OpenedStore()):
        consumer = PushConsumer(consumer_group=GROUP, name_servers="a:1", offset_store=store)
        assert consumer._store(OPTIONS) is store
        found.append(store.calls)

    assert found == [[], ["opened"]]


def test_the_newest_messages_reach_only_a_batch_that_stores_them() -> None:
    remembering = RememberingBatch()
    several = MultiSink([OwnSink("a"), OwnSink("b", remembering)])
    several.prepare(pa.schema([]))

    note_newest(several.begin(GROUP, {Q0: 0}), {Q0: "message"})

    assert remembering.newest == {Q0: "message"}


def test_rows_without_watermarks_are_found_in_a_sink_that_counts_them() -> None:
    """H7, H10: they might come twice, as those of a sink that cannot count them."""
    rows = OwnStore().claim(GROUP, "me", {Q0: 4})
    own = SinkStanding("own", "table-1", {})
    gap = SinkGap(own, "table-1", rows)
    counting = CountingSink()
    others: list[Sink] = [OwnSink(), DeltaSink("main.shop.orders")]

    assert "has 3 rows of the group's queues" in str(rows_problem(counting, GROUP, gap))
    for sink in others:
        problem = str(rows_problem(sink, GROUP, gap))
        assert "own shows no watermark of group" in problem
        assert "cannot be counted" in problem
        assert "beside_rows=True" in problem
    counting.count = 0
    for one in (gap._replace(remembered="table-2"), gap):
        assert rows_problem(counting, GROUP, one) is None
    for standing in (own._replace(watermarks={Q0: 2}), own._replace(identity=None)):
        assert rows_problem(OwnSink(), GROUP, gap._replace(standing=standing)) is None


def test_the_start_looks_at_the_folders_of_sinks_that_have_some() -> None:
    several = MultiSink([OwnSink("a"), Route(sink=FileSink("b"))])
    store = {"offset_store": "/lake/_offsets"}

    assert table_places(None, OwnStore()) == table_places(OwnSink(), OwnStore()) == store
    assert table_places(several, OwnStore()) == {
        "sink": "/lake/orders",
        "sink 2": "s3://lake/orders",
        **store,
    }


def test_the_session_reaches_each_sink_that_uses_it() -> None:
    alone, routed = SessionSink("a"), SessionSink("b")
    spark: Any = SimpleNamespace()

    use_session(alone, spark)
    use_session(MultiSink([OwnSink("c"), Route(sink=routed)]), spark)

    assert (alone.session, routed.session) == (spark, spark)


@pytest.mark.parametrize("sink", [OwnSink(), Route(sink=OwnSink()), [OwnSink("a"), Route(sink=OwnSink("b"))]])
def test_a_sink_with_no_more_than_the_protocol_requires_is_taken(sink: Sink | Route | list[Any]) -> None:
    assert start_problems(sink, "checkpoint", None) == []


def test_delta_stores_show_whether_options_are_renewed_and_delta_sinks_their_folder(tmp_path: Path) -> None:
    renewable = DeltaOffsetStore(tmp_path / "offsets", storage_options=lambda: {"token": "t"})
    fixed = DeltaOffsetStore(tmp_path / "offsets")
    sink = DeltaSink(tmp_path / "orders")

    assert (renewable.has_renewable_storage, fixed.has_renewable_storage) == (True, False)
    assert storage_secrets_of(fixed) == {}
    assert table_places(sink, fixed) == {
        "sink": str(tmp_path / "orders"),
        "offset_store": str(tmp_path / "offsets"),
    }
