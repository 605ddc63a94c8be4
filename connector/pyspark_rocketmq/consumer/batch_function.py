"""Makes a consumer's ``foreachBatch`` function (``batch.BatchRunner``) in the process where Spark calls it.

A classic session calls the function in the process that has started the query. Spark Connect pickles the
function into a process of the server, a new one for each run of the query. There the first batch makes its
``BatchRunner`` and the hub: the server to which the tasks connect. A query whose messages Spark decodes
(``register_message_table``) has no hub.

Spark Connect lets the job of a batch run on even if the query is stopped, or the function's process dies. If
the query was then started again, two jobs would call its listener at the same time. So tasks connect to the
function's process: without a connection they deliver nothing, and when that process ends, they end, too.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.commit.pipeline import BatchListener
from pyspark_rocketmq.consumer.batch import BatchRunner
from pyspark_rocketmq.consumer.engine.pickling import why_not_picklable
from pyspark_rocketmq.consumer.engine.task import Engine
from pyspark_rocketmq.consumer.failure_summary import FailureSummary, RefusedLetters
from pyspark_rocketmq.delta.paths import local_path
from pyspark_rocketmq.errors import OptionError, RocketMQError, StorageNotShared
from pyspark_rocketmq.group.broker_offsets import open_group_store
from pyspark_rocketmq.group.join import offset_key
from pyspark_rocketmq.group.offset_mirror import OffsetMirror
from pyspark_rocketmq.hub.driver_end import DriverControl
from pyspark_rocketmq.hub.state import CALLS_END_S, Slots
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.store import OffsetStore, RenewsStorage, is_at_brokers
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.sinks.base import Sink
from pyspark_rocketmq.sinks.shared_storage import Look
from pyspark_rocketmq.spark.session import driver_address, encrypts_network
from pyspark_rocketmq.spark.version import SPARK_PASSES_TRIGGER

_LOOKS: Final = 8
"""Number of tasks that look for a folder: several, to reach several executors, whose number is unknown."""


def storage_secrets_of(store: OffsetStore) -> dict[str, str]:
    """Renew the store's storage options, such as credentials, and return them; empty if none can expire."""
    return store.renew_storage() if isinstance(store, RenewsStorage) else {}


def read_epochs(store: OffsetStore, consumer_group: str) -> dict[MessageQueue, int]:
    """Return the epoch of each queue of a group; empty for a store at the brokers, which has none."""
    rows = {} if is_at_brokers(store) else store.read(consumer_group)
    return {queue: row.epoch for queue, row in rows.items()}


@dataclass(frozen=True, kw_only=True)
class CommitterParts:
    """Settings and objects from which a query's ``BatchRunner`` is made; picklable if each of them is."""

    options: ReadOptions
    store: OffsetStore | None
    """The offset store; None for the one that option ``offsetStore`` names."""
    sink: Sink | None
    """The sink; None if the listener's rows are not stored."""
    engine: Engine | None
    """The engine that calls the listener; None if a batch comes with its rows and acks."""
    listeners: tuple[BatchListener, ...]
    """Objects that are called after each batch."""
    is_mirrored: bool
    """Whether committed offsets are also sent to the brokers."""
    tries_for_ever: bool
    """Whether a message that always fails is tried again without limit."""
    drains: bool
    """Whether the query ends by itself once everything is consumed (trigger ``availableNow``)."""
    commit_interval_s: float | None = None
    """Shortest time between two commits of a batch, in seconds.

    None: commits are made only at the batch's end, and when queues go to other members.
    """

    def opened_store(self) -> OffsetStore:
        """Return :attr:`store`; if it is None, open the store that option ``offsetStore`` names."""
        return open_group_store(self.options) if self.store is None else self.store

    def committer(
        self, store: OffsetStore, query_id: Callable[[], str], hub: DriverControl | None
    ) -> BatchRunner:
        """Return the ``BatchRunner``, which Spark is to call for each micro-batch.

        ``query_id`` returns the query's id. ``hub`` is None if tasks do not connect to the driver. If offsets
        are copied to the brokers, the hub also has them copied when queues go to other members, and when the
        query ends.
        """
        options, name = self.options, offset_key(self.options)
        is_shown = self.is_mirrored and not is_at_brokers(store)
        assert options.consumer_group is not None
        summary = FailureSummary(
            options.consumer_group, SystemClock(), tries_for_ever=self.tries_for_ever, drains=self.drains
        )
        refused = [] if hub is None else [RefusedLetters(hub.held_up)]
        mirror = OffsetMirror(options, store, name) if is_shown else None
        if hub is not None and mirror is not None:
            hub.when_ended(mirror.query_ended)
            hub.when_leaving(mirror.hurry)
            hub.answers_by(mirror.lately_arrived)
        return BatchRunner(
            consumer_group=name,
            store=store,
            sink=self.sink,
            query_id=query_id,
            listeners=[summary, *refused, *self.listeners],
            mirror=mirror,
            engine=self.engine,
            hub=hub,
            before_batch=partial(storage_secrets_of, store),
            keeps_others=self.commit_interval_s is not None,
        )


def driver_control(
    options: ReadOptions,
    store: OffsetStore,
    host: str,
    bind_host: str,
    *,
    must_ask: bool,
    slots: Callable[[], Slots] = Slots,
    ends_tasks: bool = False,
    calls_end_s: float = CALLS_END_S,
    commit_interval_s: float | None = None,
    has_sink: bool = False,
    is_encrypted: bool = False,
) -> DriverControl:
    """Start the server to which a query's planner and tasks connect.

    ``has_sink``: whether the query has a sink. A sink records how far its rows go. So with a
    ``commit_interval_s`` offsets may be stored less often than rows, except in the store at brokers. The
    other parameters are those of ``DriverControl``, the query's ``options`` and its offset ``store``.

    Raises:
        OSError: If the server cannot listen at ``bind_host``, or cannot encrypt its connections as it must.
    """
    return DriverControl(
        host,
        bind_host,
        must_ask=must_ask,
        slots=slots,
        read_epochs=partial(read_epochs, store, offset_key(options)),
        storage_options=partial(storage_secrets_of, store),
        clock=SystemClock(),
        ends_tasks=ends_tasks,
        calls_end_s=calls_end_s,
        interval_s=commit_interval_s,
        may_offsets_wait=has_sink and not is_at_brokers(store),
        is_encrypted=is_encrypted,
    )


class ServerFunction:
    """The ``foreachBatch`` function of a query of Spark Connect; pickled into a process of the server."""

    def __init__(self, parts: CommitterParts, columns: pa.Schema, query_name: str) -> None:
        """Keep the arguments; the first batch makes a ``BatchRunner`` from them.

        Args:
            parts: Settings and objects of the ``BatchRunner``.
            columns: Columns of the sink's rows.
            query_name: Name of the query, unique in its session.
        """
        self._parts = parts
        self._columns = columns
        self._query_name = query_name
        self._committer: BatchRunner | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Evaluate a batch and commit it, with a ``BatchRunner`` that the first call makes.

        Raises:
            RocketMQError: If the session has no active query of this name, or for the reasons that
                ``BatchRunner.__call__`` names.
        """
        if self._committer is None:
            self._committer = self._made(batch.sparkSession)
        self._committer(batch, batch_id)

    def _made(self, spark: SparkSession) -> BatchRunner:
        ids = {query.name: str(query.id) for query in spark.streams.active}
        if self._query_name not in ids:
            raise RocketMQError(
                f"The session of Spark Connect has no query of the name {self._query_name!r} any more; start "
                "the consumer again."
            )
        if self._parts.sink is not None:
            self._parts.sink.prepare(self._columns)
        store = self._parts.opened_store()
        hub = None
        # Tasks of a message table do not use the hub.
        if self._parts.engine is not None:
            host, bind_host, _ = driver_address(spark)
            hub = driver_control(
                self._parts.options,
                store,
                host,
                bind_host,
                must_ask=True,
                ends_tasks=True,
                commit_interval_s=self._parts.commit_interval_s,
                has_sink=self._parts.sink is not None,
                is_encrypted=encrypts_network(spark),
            )
        return self._parts.committer(store, lambda: ids[self._query_name], hub)


def check_over_connect(parts: CommitterParts, known_problems: Sequence[str] = ()) -> None:
    """Refuse settings that are impossible with Spark Connect.

    Raises:
        OptionError: With all such settings, those in ``known_problems`` first.
    """
    problems = [*known_problems]
    if parts.drains and not SPARK_PASSES_TRIGGER:
        problems.append(
            "trigger availableNow is not possible: Spark before 4.2 does not pass the trigger to Python "
            "sources; use a processingTime trigger, or Spark 4.2 or newer"
        )
    if (
        parts.store is not None
        and isinstance(parts.store, RenewsStorage)
        and parts.store.has_renewable_storage
    ):
        problems.append(
            "the storage_options of the offset store are a callable, and the query's planner, a process of "
            "Spark's server, cannot call it for new credentials; give a mapping, or put the credentials into "
            "the server's environment"
        )
    for what, one in (
        ("offset_store", parts.store),
        ("sink", parts.sink),
        *(("batch listener", listener) for listener in parts.listeners),
    ):
        reason = why_not_picklable(one)
        if reason is not None:
            problems.append(
                f"the {what} cannot be sent to the server, where Spark Connect runs foreachBatch in a "
                f"process of its own: {reason}; remove that object, or use a classic session"
            )
    if problems:
        raise OptionError(tuple(problems), where="PushConsumer over Spark Connect")


def check_server_has(spark: SparkSession, places: Mapping[str, str]) -> None:
    """Check that the server's machines have the same folders as this machine; create missing ones here.

    Args:
        spark: A session of Spark Connect.
        places: Paths by their names in errors; URIs of shared storage are not checked.

    Raises:
        StorageNotShared: If a path names another folder there, or none; the error names the first such path.
    """
    for name, path in places.items():
        folder = local_path(path)
        if folder is not None and (host := _host_without(spark, Path(folder))) is not None:
            raise StorageNotShared(
                f"{name}={folder!r} is another folder on {host}, where Spark's server runs, or is missing "
                f"there. On {socket.gethostname()} this process checks the tables before the query starts, "
                "so both must have the same folder. Name storage that both share (an object store, HDFS, "
                "the same mount), or start the consumer on the server's machine."
            )


def _host_without(spark: SparkSession, folder: Path) -> str | None:
    """Return a host that does not see a new file in ``folder``; None if each host that was asked sees it.

    Only hosts on which one of a few tasks happens to run are asked. If this machine lacks the folder, the
    folder is created here.
    """
    marker = folder / f"_rocketmq_{uuid.uuid4()}"
    folder.mkdir(parents=True, exist_ok=True)
    marker.touch()
    try:
        looks = spark.range(0, _LOOKS, 1, _LOOKS).mapInArrow(
            Look([str(marker)]), "marker string, host string"
        )
        rows: Sequence[tuple[str, str]] = [(row["marker"], row["host"]) for row in looks.collect()]
    finally:
        marker.unlink(missing_ok=True)
    return rows[0][1] if rows else None


__all__ = [
    "CommitterParts",
    "ServerFunction",
    "check_over_connect",
    "check_server_has",
    "driver_control",
    "read_epochs",
    "storage_secrets_of",
]
