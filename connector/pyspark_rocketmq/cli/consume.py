"""Command ``consume``: runs a message listener as a streaming consumer into a Delta table."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

import pyspark_rocketmq as rmq
from pyspark_rocketmq.cli.options import ConsumeSettings
from pyspark_rocketmq.cli.running import (
    RowCounter,
    StopSignals,
    await_query,
    check_ended_well,
    delta_place,
    spark_session,
    storage_secrets,
)
from pyspark_rocketmq.cli.settings import JobFailed
from pyspark_rocketmq.consumer import preparation
from pyspark_rocketmq.delta.paths import TableName
from pyspark_rocketmq.delta.storage_options import StorageOptions
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.listeners.forms import form_of
from pyspark_rocketmq.model import DEFAULT_MESSAGE_COLUMNS
from pyspark_rocketmq.options.consumer import ConsumerOptions

_STOP_WITHIN_S: Final = 20.0
"""Maximum time for stopping the query. Kubernetes kills a process 30 s after SIGTERM, and leaving the group
takes some of these."""


def check_listener(name: str, py_files: Sequence[str], *, orderly: bool) -> None:
    """Import the object ``name`` (``module:name``) in this process, and check that it is a listener.

    The module is searched in ``py_files``, the current directory and PYTHONPATH.

    Raises:
        OptionError: If there is no such module or object, if the object is no listener, or if importing the
            module fails.
    """
    module_name, _, attribute = name.partition(":")
    _extend_path(py_files)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _unusable(
                name, f"its module needs {error.name!r}; install it, or add it to pyFiles"
            ) from error
        raise _unusable(
            name,
            f"there is no module {error.name!r} in pyFiles, in the current directory or on PYTHONPATH; "
            "correct the name, or add the module's file to pyFiles",
        ) from error
    except Exception as error:
        raise _unusable(
            name, f"importing its module failed: {type(error).__name__}: {error}; correct the module"
        ) from error
    if not hasattr(module, attribute):
        raise _unusable(name, f"module {module_name!r} has no {attribute!r}; correct the name")
    form_of(getattr(module, attribute), orderly=orderly)


def _extend_path(py_files: Sequence[str]) -> None:
    """Make ``py_files`` and the current directory importable: put them first on ``sys.path``.

    For an archive, its own path is added; for any other file, its folder. On the executors, Spark does the
    same.
    """
    folders = [path if path.endswith((".zip", ".egg")) else str(Path(path).parent) for path in py_files]
    sys.path[:0] = [*folders, str(Path.cwd())]


def _unusable(name: str, why: str) -> OptionError:
    return OptionError((f"option listener='{name}' cannot be used: {why}",))


def consume(settings: ConsumeSettings, console: Console) -> None:
    """Consume messages into a table until the query ends.

    With ``trigger=availableNow`` the query ends when it has consumed all messages that were there at its
    start. With another trigger it runs until it is stopped or fails.

    SIGINT and SIGTERM stop the query in good order: this function waits, for 20 s at most, for running calls
    of the listener, and commits what was consumed by then.

    Raises:
        SystemExit: After SIGINT or SIGTERM, with the exit code that shells give: 130 or 143.
        OptionError: If the listener or the configuration cannot be used.
        JobFailed: If the query failed, or metrics cannot be served.
        KeyboardInterrupt: After a second signal.
        ModuleNotFoundError: If metrics are to be served, and extra ``prometheus`` is not installed.
        RocketMQError: If the query cannot start.
    """
    # Before Spark starts: a wrong name should not cost ten seconds.
    if settings.listener is not None:
        check_listener(settings.listener, settings.py_files, orderly=settings.consume_orderly)
    if settings.metrics_port is not None:
        # Installed by a separate extra.
        import_module("prometheus_client")
    # This logger reports where the group continues.
    preparation.logger.setLevel(logging.INFO)
    counter = RowCounter()
    with spark_session("consume", needs_delta=TableName.of(settings.sink) is not None) as spark:
        for path in settings.py_files:
            spark.sparkContext.addPyFile(path)
        of_store, of_sink = with_storage(spark, settings)
        consumer = _consumer(of_store)
        consumer.register_batch_listener(counter)
        monitor = rmq.QueryMonitor()
        monitor.watch(spark, consumer)
        with StopSignals(spark) as signals:
            query = consumer.start(
                spark,
                sink=sink_of(of_sink),
                checkpoint=settings.checkpoint,
                trigger=settings.trigger.keywords(),
            )
            with _endpoint(settings, monitor):
                await_query(
                    query,
                    counter,
                    None,
                    console,
                    monitor=monitor,
                    is_enough=lambda: signals.received is not None,
                )
                if signals.received is not None:
                    _stop(consumer, query, signals.received, console)
    console.print(str(counter), markup=False, highlight=False)
    if signals.received is not None:
        sys.exit(128 + signals.received)


def with_storage(spark: SparkSession, settings: ConsumeSettings) -> tuple[ConsumeSettings, ConsumeSettings]:
    """Return the settings twice: with the storage options of the offset table, and with those of the sink."""
    given = settings.storage_secrets
    of_store = storage_secrets(spark, given, delta_place(settings.offset_store))
    of_sink = storage_secrets(spark, given, settings.sink_staging, settings.sink)
    return replace(settings, storage_secrets=of_store), replace(settings, storage_secrets=of_sink)


def sink_of(settings: ConsumeSettings) -> rmq.DeltaSink:
    """Return the Delta sink that the settings describe."""
    return rmq.DeltaSink(
        settings.sink,
        partition_by=settings.partition_by,
        merge_keys=settings.merge_keys,
        schema_evolution=settings.schema_evolution,
        compaction=settings.compaction,
        staging=settings.sink_staging,
        storage_options=StorageOptions.parse(settings.storage_secrets),
    )


def _stop(
    consumer: rmq.PushConsumer, query: StreamingQuery, received: signal.Signals, console: Console
) -> None:
    """Stop the query when the running calls of the listener have ended, after 20 s at most.

    Print whether the work of these calls was committed.

    Raises:
        JobFailed: If the query failed.
    """
    console.print(
        f"{received.name}: waiting for the running listener calls; a second signal ends the command "
        "immediately.",
        markup=False,
        highlight=False,
    )
    is_committed = consumer.stop(query, _STOP_WITHIN_S)
    check_ended_well(query)
    if is_committed:
        console.print("Stopped: the finished work is committed, and the queues are given back.")
    else:
        console.print("The running work could not be committed in time: its messages are consumed again.")


@contextmanager
def _endpoint(settings: ConsumeSettings, monitor: rmq.QueryMonitor) -> Iterator[None]:
    """Serve metrics at ``metricsPort``, if given, within the ``with`` block."""
    if settings.metrics_port is None:
        yield
        return
    where = f"metricsHost={settings.metrics_host}, metricsPort={settings.metrics_port}"
    try:
        endpoint = rmq.PrometheusEndpoint(monitor, settings.metrics_port, host=settings.metrics_host)
    except OSError as error:
        raise JobFailed(
            f"Metrics cannot be served at {where}: {error.strerror}. Choose another host or port."
        ) from error
    with closing(endpoint):
        yield


def _consumer(settings: ConsumeSettings) -> rmq.PushConsumer:
    consumer = rmq.PushConsumer(
        consumer_group=settings.consumer_group,
        name_servers=";".join(settings.name_servers),
        offset_store=settings.offset_store,
        message_model=settings.message_model,
        allocate_message_queue_strategy=settings.allocate_message_queue_strategy,
        instance_name=settings.instance_name,
        undecodable_messages=settings.undecodable_messages,
        options=settings.source_options(),
        **{each.name: getattr(settings, each.name) for each in fields(ConsumerOptions)},
    )
    for wanted in settings.subscribed():
        if wanted.is_sql92:
            consumer.subscribe(wanted.topic, sql=wanted.expression)
        else:
            consumer.subscribe(wanted.topic, wanted.expression)
    if settings.raw:
        consumer.register_message_columns(
            settings.message_columns or DEFAULT_MESSAGE_COLUMNS,
            body=settings.body_type,
            bad_record_column=settings.bad_record_column,
        )
    elif settings.body_schema is not None:
        consumer.register_message_table(
            rmq.json_body(settings.body_schema),
            message_columns=settings.message_columns,
            bad_record_column=settings.bad_record_column,
        )
    else:
        assert settings.output_schema is not None
        # By name, so that an administrator can have the planner consume single messages.
        consumer.register_message_listener(
            settings.listener, orderly=settings.consume_orderly, output_schema=settings.output_schema
        )
    return consumer
