"""The suites that every offset store and every sink passes, on object stores."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from deltalake import DeltaTable

from pyspark_rocketmq.delta.paths import table_uri
from pyspark_rocketmq.delta.table import query_rows
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.open import open_offset_store
from pyspark_rocketmq.offsets.store import OffsetStore
from pyspark_rocketmq.sinks.base import Sink
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.fake_clock import FakeClock
from tests.helpers.sink_rows import Q0, run_batch
from tests.object_stores.server import COMMIT, AzureServer, Bucket, GoogleServer
from tests.offsets.conformance import PositionConformance
from tests.sinks.group_conformance import GroupConformance
from tests.sinks.sink_conformance import SCHEMA, Stored, rows

Place = tuple[str, dict[str, str]]
"""URI of a table, and how to reach it."""


def made_sink(place: Place) -> DeltaSink:
    uri, options = place
    sink = DeltaSink(uri, storage_options=options, sleep=lambda _: None)
    sink.prepare(SCHEMA)
    return sink


def rows_in(place: Place) -> list[tuple[object, ...]]:
    uri, options = place
    table = DeltaTable(table_uri(uri), storage_options=options)
    found = query_rows(table, 'SELECT "queueId", "queueOffset", step FROM rows').to_pylist()
    return sorted(tuple(row.values()) for row in found)


class OnAStore:
    """Subclasses have the fixture ``place``."""

    @pytest.fixture
    def store(self, place: Place, clock: FakeClock) -> DeltaOffsetStore:
        uri, options = place
        return DeltaOffsetStore(uri, storage_options=options, clock=clock)

    @pytest.fixture
    def again(self, store: DeltaOffsetStore) -> Callable[[], OffsetStore]:
        return lambda: open_offset_store(store.spec, storage=store.storage)

    @pytest.fixture
    def sink(self, place: Place) -> Sink:
        return made_sink(place)

    @pytest.fixture
    def stored(self, place: Place) -> Stored:
        return lambda: rows_in(place)


class OnS3(OnAStore):
    @pytest.fixture
    def place(self, s3: Bucket) -> Place:
        return s3.uri("a table é"), s3.storage_options()


class OnAzure(OnAStore):
    @pytest.fixture
    def place(self, azure_server: AzureServer) -> Place:
        return f"{azure_server.make_place()}/a table é", azure_server.storage_options()


class OnGoogle(OnAStore):
    @pytest.fixture
    def place(self, google_server: GoogleServer) -> Place:
        return f"{google_server.make_place()}/a table é", google_server.storage_options()


class TestOffsetStoreOnS3(OnS3, PositionConformance):
    """J1"""


class TestSinkOnS3(OnS3, GroupConformance):
    """J1"""


class TestOffsetStoreOnAzure(OnAzure, PositionConformance):
    """J1"""


class TestSinkOnAzure(OnAzure, GroupConformance):
    """J1"""


@pytest.mark.long
class TestOffsetStoreOnGoogle(OnGoogle, PositionConformance):
    """J1"""


@pytest.mark.long
class TestSinkOnGoogle(OnGoogle, GroupConformance):
    """J1"""


@pytest.mark.parametrize("status", [None, 503], ids=["answers lost", "busy"])
@pytest.mark.parametrize("storage", ["azure_server", pytest.param("google_server", marks=pytest.mark.long)])
def test_what_fails_for_a_moment_is_stored_once(
    storage: str, status: int | None, request: pytest.FixtureRequest
) -> None:
    """J1, H1: as on S3, for files and commits."""
    server: AzureServer | GoogleServer = request.getfixturevalue(storage)
    place = f"{server.make_place()}/t", server.storage_options()
    sink = made_sink(place)
    fault = {"times": 2} if status is None else {"times": 2, "status": status, "code": "ServerBusy"}
    try:
        for end, where in enumerate(("PUT|POST", COMMIT, "GET"), 1):
            server.behave({"where": where, **fault})
            run_batch(sink, {Q0: end}, rows(Q0, end - 1, end))
            assert server.faults_left() < 2, server.seen()
    finally:
        server.behave()

    assert [offset for _, offset, _ in rows_in(place)] == [0, 1, 2]


@pytest.mark.parametrize(
    "form",
    [
        "az://{}/t",
        "adl://{}/t",
        "abfss://{}@devstoreaccount1.dfs.core.windows.net/t",
        "wasbs://{}@devstoreaccount1.blob.core.windows.net/t",
    ],
)
def test_a_container_of_azure_has_several_names(azure_server: AzureServer, form: str) -> None:
    """J1: in the driver and in tasks."""
    place = form.format(azure_server.make_container()), azure_server.storage_options()

    run_batch(made_sink(place), {Q0: 2}, rows(Q0, 0, 2))

    assert rows_in(place) == [(0, 0, "created"), (0, 1, "created")]
