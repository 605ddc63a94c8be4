"""The suites that every offset store and every sink passes, on an object store."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from deltalake import DeltaTable

from pyspark_rocketmq.delta.table import query_rows
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.open import open_offset_store
from pyspark_rocketmq.offsets.store import OffsetStore
from pyspark_rocketmq.sinks.base import Sink
from pyspark_rocketmq.sinks.delta_sink import DeltaSink
from tests.helpers.fake_clock import FakeClock
from tests.object_stores.server import Bucket
from tests.offsets.conformance import PositionConformance
from tests.sinks.sink_conformance import SCHEMA, SinkConformance, Stored


class TestOffsetStore(PositionConformance):
    """J1: an offset store on S3."""

    @pytest.fixture
    def store(self, s3: Bucket, clock: FakeClock) -> DeltaOffsetStore:
        return DeltaOffsetStore(s3.uri("off sets é"), storage_options=s3.storage_options(), clock=clock)

    @pytest.fixture
    def again(self, store: DeltaOffsetStore) -> Callable[[], OffsetStore]:
        return lambda: open_offset_store(store.spec, storage=store.storage)


class TestSink(SinkConformance):
    """J1: a sink on S3."""

    @pytest.fixture
    def sink(self, s3: Bucket) -> Sink:
        sink = DeltaSink(s3.uri("a table"), storage_options=s3.storage_options(), sleep=lambda _: None)
        sink.prepare(SCHEMA)
        return sink

    @pytest.fixture
    def stored(self, s3: Bucket) -> Stored:
        def read() -> list[tuple[object, ...]]:
            table = DeltaTable(s3.uri("a table"), storage_options=s3.storage_options())
            found = query_rows(table, 'SELECT "queueId", "queueOffset", step FROM rows').to_pylist()
            return sorted(tuple(row.values()) for row in found)

        return read
