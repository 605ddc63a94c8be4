"""A Spark program that reads and writes with credentials in every way
there is and prints everything about it that it can.

``python -m tests.helpers.secrets_driver FOLDER < GIVEN_JSON``: its output, logs and files below FOLDER
are searched for the credentials by the test that runs it. It prints ``done`` when all went as it should.
"""

from __future__ import annotations

import contextlib
import functools
import html
import io
import json
import logging
import os
import pickle
import re
import sqlite3
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from prometheus_client import CollectorRegistry, generate_latest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from pyspark_rocketmq.cli.main import main as main_of_jobs
from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.format import DefaultSource, register
from pyspark_rocketmq.listeners.context import ConsumeConcurrentlyContext, ConsumeOrderlyContext
from pyspark_rocketmq.model import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    MessageExt,
)
from pyspark_rocketmq.monitoring.prometheus import QueryCollector
from pyspark_rocketmq.monitoring.query_monitor import QueryMonitor
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.open import open_offset_store
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.options.write import WriteOptions
from pyspark_rocketmq.sinks.base import Sink
from pyspark_rocketmq.sinks.database import DatabaseSink
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.multi import MultiSink, Route
from tests.helpers.quick_jvm import QUICK_JVM
from tests.helpers.secured import RETRYING_GROUP, STORING_GROUP
from tests.helpers.spark_session import make_session

_PARAMETERS = ("nameServers", "topic")
_WRITTEN = 20
_LOG_CONF = """\
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c: %m%n%ex
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
logger.spark.name = org.apache.spark
logger.spark.level = info
"""
_SQL = "CREATE TEMPORARY VIEW secured USING rocketmq OPTIONS ({})"


def on_order(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
    """Emit bodies as rows."""
    for message in messages:
        context.emit(message, body=message.body.decode())
    return ConsumeOrderlyStatus.SUCCESS


def on_any_order(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
    """Emit bodies as rows, in concurrent calls; give the first message back."""
    for message in messages:
        context.emit(message, attempt=message.reconsume_times)
        if message.queue_id == message.queue_offset == 0:
            return ConsumeConcurrentlyStatus.RECONSUME_LATER
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def main(folder: Path, options: Mapping[str, str], storage: Mapping[str, Any]) -> None:
    """Read and write as batch, stream, consumers and jobs, and in every way with a wrong secret."""
    logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
    # At DEBUG it logs every argument of every call into the JVM.
    logging.getLogger("py4j").setLevel(logging.INFO)
    events = folder / "events"
    events.mkdir()
    confs = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    log_conf = folder / "log4j2.properties"
    log_conf.write_text(_LOG_CONF)
    conf_arguments = " ".join(f"--conf {key}={value}" for key, value in confs.items())
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{conf_arguments} pyspark-shell"
    pages = {"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.ui.killEnabled": "false"}
    jvm = f"{QUICK_JVM} -Dlog4j2.configurationFile={log_conf.as_uri()}"
    spark = make_session(folder, jvm=jvm, settings=pages)
    register(spark)
    _batch(spark, options)
    _consumer(spark, options, folder)
    _concurrent(spark, options, folder)
    _object_store(spark, options, storage, folder)
    _stream(spark, options, folder)
    _write(spark, options)
    _refused(spark, options, folder)
    _objects(options)
    _jobs(options, folder)
    _web_pages(spark, folder / "web")
    spark.stop()
    _say("done")


def _batch(spark: SparkSession, options: Mapping[str, str]) -> None:
    rows = spark.read.format("rocketmq").options(**options).load()
    _show_plans(rows)
    _say("batch", rows.count())
    spark.sql(_SQL.format(", ".join(f"{key} '{value}'" for key, value in options.items())))
    _show_plans(spark.table("secured"))


def _stream(spark: SparkSession, options: Mapping[str, str], folder: Path) -> None:
    """Replay the topic into itself."""
    rows = spark.readStream.format("rocketmq").options(**options, startingOffsets="earliest").load()
    _show_plans(rows)
    query = (
        rows.select("body")
        .writeStream.format("rocketmq")
        .options(**options)
        .option("checkpointLocation", str(folder / "stream-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    _finish(query)


def _consumer(spark: SparkSession, options: Mapping[str, str], folder: Path) -> None:
    consumer = PushConsumer(
        consumer_group="billing",
        name_servers=options["nameServers"],
        offset_store=DeltaOffsetStore(str(folder / "offsets")),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        options={key: value for key, value in options.items() if key not in _PARAMETERS},
    )
    consumer.subscribe(options["topic"])
    consumer.register_message_listener(on_order, output_schema="body string")
    connect = functools.partial(_connect, options["secretKey"], folder / "rows.sqlite")
    with contextlib.closing(connect()) as connection:
        connection.execute("CREATE TABLE bodies (body TEXT)")
    sinks: list[Sink | Route] = [DeltaSink(str(folder / "sink")), DatabaseSink(connect, _insert)]
    query = consumer.start(
        spark, sink=sinks, checkpoint=str(folder / "checkpoint"), trigger={"availableNow": True}
    )
    _say(repr(consumer), consumer._settings, repr(sinks), MultiSink(sinks))
    _finish(query)
    with contextlib.closing(connect()) as connection:
        _say("database", connection.execute("SELECT count(*) FROM bodies").fetchone()[0])
    _say_error(lambda: MultiSink([DatabaseSink(connect, _insert), DatabaseSink(connect, _insert)]))
    _say("sink", spark.read.format("delta").load(str(folder / "sink")).count())


def _connect(password: str, file: Path) -> sqlite3.Connection:
    """Connect as to a database that asks for a password."""
    if not password:
        raise PermissionError("There is no password.")
    return sqlite3.connect(file)


def _insert(cursor: sqlite3.Cursor, rows: pa.Table) -> None:
    cursor.executemany("INSERT INTO bodies VALUES (?)", [(body,) for body in rows["body"].to_pylist()])


def _concurrent(spark: SparkSession, options: Mapping[str, str], folder: Path) -> None:
    """One message goes back to its broker, by a signed request of a worker."""
    reports: list[BatchReport] = []
    consumer = PushConsumer(
        consumer_group=RETRYING_GROUP,
        name_servers=options["nameServers"],
        offset_store=DeltaOffsetStore(str(folder / "concurrent-offsets")),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        options={key: value for key, value in options.items() if key not in _PARAMETERS},
    )
    consumer.subscribe(options["topic"])
    consumer.register_message_listener(on_any_order, orderly=False, output_schema="attempt int")
    consumer.register_batch_listener(reports.append)
    query = consumer.start(
        spark,
        sink=DeltaSink(str(folder / "concurrent-sink")),
        checkpoint=str(folder / "concurrent-checkpoint"),
        trigger={"availableNow": True},
    )
    _say(repr(consumer))
    _finish(query)
    _say("sent back", sum(ack.sent_back for report in reports for ack in report.acks))


def _object_store(
    spark: SparkSession, options: Mapping[str, str], storage: Mapping[str, Any], folder: Path
) -> None:
    """Offset store and sink on an object store, whose keys a callable renews; then with a key it refuses."""
    uri, keys = storage["uri"], storage["options"]
    store = DeltaOffsetStore(f"{uri}/offsets", storage_options=lambda: keys)
    sink = DeltaSink(f"{uri}/sink", storage_options=lambda: keys)
    consumer = PushConsumer(
        consumer_group=STORING_GROUP,
        name_servers=options["nameServers"],
        offset_store=store,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        options={key: value for key, value in options.items() if key not in _PARAMETERS},
    )
    consumer.subscribe(options["topic"])
    consumer.register_message_listener(on_order, output_schema="body string")
    monitor = QueryMonitor()
    monitor.watch(spark, consumer)
    query = consumer.start(
        spark, sink=sink, checkpoint=str(folder / "storage-checkpoint"), trigger={"availableNow": True}
    )
    _say(repr(consumer), consumer._settings, sink, store)
    _finish(query)
    registry = CollectorRegistry()
    registry.register(QueryCollector(monitor))
    _say(generate_latest(registry).decode(), monitor.queries())
    _say("object store", sum(row.next_offset for row in store.read(STORING_GROUP).values()))
    read = {
        **options,
        "offsetStore": f"{uri}/offsets",
        "endingOffsets": "group",
        "endingGroup": STORING_GROUP,
        "storageSecrets": json.dumps(keys),
    }
    rows = spark.read.format("rocketmq").options(**read).load()
    _show_plans(rows)
    _say("up to the group", rows.count(), ReadOptions.parse(read))
    refused = DeltaSink(f"{uri}/sink", storage_options=storage["refused"])
    _say_error(lambda: refused.begin(STORING_GROUP, {}))
    _say_error(
        lambda: DeltaOffsetStore(f"{uri}/offsets", storage_options=storage["refused"]).read(STORING_GROUP)
    )
    wrong = {**read, "storageSecrets": json.dumps(storage["refused"])}
    _say_error(lambda: spark.read.format("rocketmq").options(**wrong).load().count())


def _write(spark: SparkSession, options: Mapping[str, str]) -> None:
    """Write a DataFrame; then one with a queue that does not exist, and one that the broker refuses."""
    rows = spark.range(_WRITTEN).selectExpr("cast(id AS string) AS body")
    nowhere = spark.sql("SELECT 'lost' AS body, 99 AS queueId")
    _show_plans(rows)
    _write_to(rows, options)
    _say("written", _WRITTEN)
    for frame, some in ((nowhere, options), (rows, _with_wrong_secret(options))):
        _say_error(lambda frame=frame, some=some: _write_to(frame, some))  # type: ignore[misc]


def _write_to(rows: DataFrame, options: Mapping[str, str]) -> None:
    rows.write.format("rocketmq").options(**options).mode("append").save()


def _with_wrong_secret(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with one letter behind the right secret."""
    return {**options, "secretKey": f"{options['secretKey']}?", "retryTimeoutMs": "0"}


def _jobs(options: Mapping[str, str], folder: Path) -> None:
    """Run a job with a file of settings, which is not searched,
    and with settings that are misspelt or nearly right.
    """
    conf = folder.parent / "job.toml"
    entries = [f"{key} = {json.dumps(value)}" for key, value in options.items() if key != "topic"]
    conf.write_text(
        "\n".join([*entries, f'offsetStore = "{folder / "concurrent-offsets"}"']), encoding="utf-8"
    )
    secret = options["secretKey"]
    refused = {
        "misspelt": ["--option", f"secretKei={secret}"],
        "colon": ["--option", f"secretKey:{secret}"],
        "blank": ["--option", f"secretKey {secret}"],
        "in two words": ["--option", "secretKey", secret],
        "nameless": ["--option", f"={secret}"],
        "beside a server": ["--option", f"nameServers=user:{secret}@host"],
        "in a URI": ["--option", f"offsetStore=postgres://user:{secret}@host/offsets"],
    }
    for name, arguments in {"lag": [], **refused}.items():
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            exit_code = main_of_jobs(["offsets", "lag", "--conf", str(conf), *arguments])
        _say(f"{name} ended with {exit_code}", told.getvalue())
    conf.unlink()


def _refused(spark: SparkSession, options: Mapping[str, str], folder: Path) -> None:
    """Provoke the errors that users see when the broker rejects them;
    the secrets are wrong in their last letter.
    """
    wrong = _with_wrong_secret(options)
    malformed = {**options, "securityTokem": options["secretKey"], "tlsKeyPassword": " "}
    sealed = {**options, "tlsKeyPassword": f"{options['tlsKeyPassword']}?"}
    for bad in (wrong, malformed, sealed):
        _say_error(lambda bad=bad: spark.read.format("rocketmq").options(**bad).load().count())  # type: ignore[misc]
    rows = spark.readStream.format("rocketmq").options(**wrong).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(folder / "refused-checkpoint"))
    query = writer.start()
    _say_error(query.awaitTermination)
    _say(query.exception())
    uri = f"s3://user:{options['secretKey']}@bucket/offsets"
    _say(
        ReadOptions.parse({**options, "consumerGroup": "billing", "offsetStore": uri}),
        DeltaSink(uri),
        DeltaOffsetStore(uri),
    )
    _say_error(lambda: open_offset_store(f"postgres{uri[2:]}"))


def _objects(options: Mapping[str, str]) -> None:
    """Show every object that holds the options; objects for tasks hold the secrets and do not show them."""
    parsed = ReadOptions.parse(options)
    to_write = WriteOptions.parse(options)
    source = DefaultSource(dict(options))
    reader = source.reader(source.schema())
    stream_reader = source.streamReader(source.schema())
    partition = reader.partitions()[0]
    writer = source.writer(StructType().add("body", "string"), overwrite=False)
    things = (
        parsed,
        to_write,
        source,
        reader,
        stream_reader,
        writer,
        partition,
        [partition],
        {"p": partition},
    )
    for thing in things:
        _say(repr(thing), str(thing))
    if options["secretKey"].encode() not in pickle.dumps(partition):
        raise AssertionError("A task could not sign its pulls: its partition has no secret.")


def _web_pages(spark: SparkSession, folder: Path) -> None:
    """Save Spark's web pages, each in a file: all that are linked, and the answers of its REST API."""
    folder.mkdir()
    base = spark.sparkContext.uiWebUrl
    told = f"/api/v1/applications/{spark.sparkContext.applicationId}"
    to_read = ["/", *(f"{told}/{what}" for what in ("environment", "sql?details=true", "jobs", "stages"))]
    read: set[str] = set()
    while to_read:
        link = to_read.pop()
        if link in read or link.startswith("/static") or ".sort=" in link:
            continue
        read.add(link)
        with urllib.request.urlopen(f"{base}{link}", timeout=60) as answer:
            page = answer.read()
        (folder / str(len(read))).write_bytes(link.encode() + b"\n" + page)
        to_read += map(html.unescape, re.findall(r'href="(/[^"#]*)', page.decode()))
    for name in ("environment", "SQL/execution", "StreamingQuery/statistics", "stages/stage", "executors"):
        if not any(link.startswith(f"/{name}") for link in read):
            raise AssertionError(f"There is no page of {name} among {sorted(read)}.")
    _say("web pages", len(read))


def _show_plans(rows: DataFrame) -> None:
    for mode in ("extended", "formatted"):
        rows.explain(mode=mode)
    _say(rows, rows._jdf.queryExecution().toString(), rows._jdf.queryExecution().logical().toString())
    logical = rows._jdf.queryExecution().logical()
    _say(logical.treeString(), logical.prettyJson())


def _finish(query: StreamingQuery) -> None:
    query.awaitTermination()
    query.explain(extended=True)
    _say(*(progress.json for progress in query.recentProgress), query.status, query.exception())


def _say_error(action: Callable[[], object]) -> None:
    try:
        action()
    except Exception as error:  # whatever reaches the user
        _say("refused", type(error), str(error), repr(error))
        logging.getLogger(__name__).exception("refused")
    else:
        raise AssertionError("Nothing was refused.")


def _say(*things: object) -> None:
    sys.stdout.write(" ".join(map(str, things)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    given = json.load(sys.stdin)
    main(Path(sys.argv[1]), given["options"], given["storage"])
