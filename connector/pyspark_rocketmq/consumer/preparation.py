"""Checks before a query starts: the cluster has the topics, tasks see the tables, offsets fit the sink.

A query that starts again continues at its group's progress in the offset store or, if the store has lost it,
at the progress of its sink (:mod:`~pyspark_rocketmq.commit.recovery`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.commit.recovery import check_sink, note_sink_ahead, seed_offsets_from_sink
from pyspark_rocketmq.consumer.batch_function import check_server_has
from pyspark_rocketmq.consumer.task_checks import check_reached
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.group.join import offset_key
from pyspark_rocketmq.group.retry_queues import warn_of_dropped_retries
from pyspark_rocketmq.model import ConsumeFromWhere, MessageModel
from pyspark_rocketmq.offsets.store import OffsetStore
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.options.store_spec import StoreKind, StoreSpec
from pyspark_rocketmq.sinks.base import (
    CommitsGroups,
    KeepsTablesBelow,
    PreparesForManyCommits,
    Sink,
    UsesSession,
    WritesFolders,
)
from pyspark_rocketmq.sinks.multi import single_sinks
from pyspark_rocketmq.sinks.shared_storage import check_not_nested, check_shared
from pyspark_rocketmq.source.first_contact import check_topics
from pyspark_rocketmq.spark.session import is_classic
from pyspark_rocketmq.spark.version import arrow_schema

logger = logging.getLogger(__name__)


def _expect_many_commits(sink: Sink) -> None:
    for each in single_sinks(sink):
        if isinstance(each, PreparesForManyCommits):
            each.expect_many_commits()


def check_and_prepare(
    spark: SparkSession,
    options: ReadOptions,
    store: OffsetStore,
    sink: Sink | None,
    schema: StructType,
    *,
    is_orderly: bool,
    states: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Check cluster, tables and offsets before the query starts; create the sink's table if it is missing.

    If the offset store has lost queues of the group, it gets their offsets again from the sink's watermarks.

    Args:
        spark: The session that runs the query.
        options: The query's options.
        store: The query's offset store.
        sink: The query's sinks, joined into one; None without a sink.
        schema: Columns of the sink's rows.
        is_orderly: Whether the listener is orderly; messages of a concurrent one go back to retry queues.
        states: Paths of further folders where tasks write, by their names in errors.

    Raises:
        RocketMQError: If the query cannot run; see ``PushConsumer.start``.
    """
    tables = table_places(sink, store)
    folders = folders_of_tables(sink)
    check_not_nested(tables, folders)
    # Check the topics before a table or folder is made, so that nothing is left behind after an error.
    key = offset_key(options)
    check_topics(options, lambda topic: _brokers_of(topic, key, store))
    if not is_orderly and options.message_model is MessageModel.CLUSTERING:
        warn_of_dropped_retries(options, SystemClock())
    check = check_shared if is_classic(spark) else check_server_has
    check(spark, {**tables, **states})
    if sink is not None:
        check_sink(store, sink, key)
        if options.real_time_ms is not None:
            _expect_many_commits(sink)
        sink.prepare(arrow_schema(schema))
        if is_classic(spark):
            check_reached(spark, sink)
        seed_offsets_from_sink(store, sink, key)
        note_sink_ahead(store, sink, key)
        # By now the folders of tables named in a catalog are known.
        found = table_places(sink, store)
        check_not_nested(found, folders)
        check(spark, {name: path for name, path in found.items() if path not in tables.values()})


def check_commits_groups(sink: Sink, consumer_group: str, *, what: str = "commit_interval") -> None:
    """Refuse sinks that cannot commit parts of a micro-batch while it runs.

    ``what`` names the setting or method that needs this.

    Raises:
        OptionError: If there is such a sink.
    """
    unfit = [
        each for each in single_sinks(sink) if not isinstance(each.begin(consumer_group, {}), CommitsGroups)
    ]
    if unfit:
        raise OptionError(
            tuple(
                f"{what} cannot be used with {each!r}, which commits once in a micro-batch: its "
                f"batches have no method commit_group. Use DeltaSink or DatabaseSink, or leave out {what}"
                for each in unfit
            ),
            where=f"configuration of consumer group '{consumer_group}'",
        )


def log_unused_start(store: OffsetStore, consumer_group: str, where: ConsumeFromWhere) -> None:
    """Log that ``where`` is ignored if the group already has progress.

    Nothing is logged for the default, CONSUME_FROM_LAST_OFFSET.

    Raises:
        OffsetStoreUnavailable: If the store cannot be read.
    """
    if where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
        return
    rows = store.read(consumer_group)
    if rows:
        logger.info(
            "group %s goes on where it was: %r has its progress in %d queues, so consume_from_where=%s is "
            "not used. To consume messages again, stop the query and reset the group's offsets "
            "(`pyspark-rocketmq offsets reset --to POSITION --conf FILE`)",
            consumer_group,
            store,
            len(rows),
            where,
        )


def use_session(sink: Sink, spark: SparkSession) -> None:
    """Pass the query's session to those of its sinks that use it."""
    for each in single_sinks(sink):
        if isinstance(each, UsesSession):
            each.use_session(spark)


def table_places(sink: Sink | None, store: OffsetStore) -> dict[str, str]:
    """Return the paths of the query's tables; the keys name them in errors, such as ``sink 2``."""
    sinks = () if sink is None else single_sinks(sink)
    paths = [path for each in sinks if isinstance(each, WritesFolders) for path in each.folders]
    tables = {"sink" if number == 1 else f"sink {number}": path for number, path in enumerate(paths, 1)}
    spec = StoreSpec.parse(store.spec)
    return tables if spec.kind is not StoreKind.DELTA else tables | {"offset_store": spec.place}


def folders_of_tables(sink: Sink | None) -> dict[str, str]:
    """Return the folders below which sinks keep tables; the keys name them in errors (``change tables``)."""
    sinks = () if sink is None else single_sinks(sink)
    folders = [each.tables_folder for each in sinks if isinstance(each, KeepsTablesBelow)]
    return {
        f"change tables{'' if number == 1 else f' {number}'}": path for number, path in enumerate(folders, 1)
    }


def _brokers_of(topic: str, key: str, store: OffsetStore) -> set[str]:
    """Return the brokers of a topic's queues that the offset store knows for a group.

    The result is empty if the group has no rows there. A store that is missing is not created.
    """
    rows = store.read(key) if key in store.groups() else {}
    return {queue.broker_name for queue in rows if queue.topic == topic}
