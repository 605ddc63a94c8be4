"""A Spark program that reads with credentials in every way there is and prints all it can about it.

``python -m tests.helpers.secrets_driver FOLDER < OPTIONS_JSON``: what it prints, logs and leaves below FOLDER is
searched for the credentials by the test that runs it. It prints ``done`` when all went as it should.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pyspark_rocketmq.datasource.format import DefaultSource, register
from pyspark_rocketmq.model import ConsumeFromWhere, ConsumeOrderlyStatus, MessageExt
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.streaming.delta_sink import DeltaSink
from pyspark_rocketmq.streaming.listener import ConsumeOrderlyContext
from pyspark_rocketmq.streaming.push_consumer import PushConsumer
from tests.helpers.quick_jvm import QUICK_JVM
from tests.helpers.spark_session import make_session

_PARAMETERS = ("nameServers", "topic")
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
    """The listener: bodies as rows."""
    for message in messages:
        context.emit(message, body=message.body.decode())
    return ConsumeOrderlyStatus.SUCCESS


def main(folder: Path, options: Mapping[str, str]) -> None:
    """Read as a batch, as a stream, as a consumer, and once with a wrong secret."""
    logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
    # At DEBUG it logs every argument of every call into the JVM, whosoever makes it.
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
    spark = make_session(folder, jvm=f"{QUICK_JVM} -Dlog4j2.configurationFile={log_conf.as_uri()}")
    register(spark)
    _batch(spark, options)
    _stream(spark, options, folder)
    _consumer(spark, options, folder)
    _refused(spark, options, folder)
    _objects(options)
    spark.stop()
    _say("done")


def _batch(spark: SparkSession, options: Mapping[str, str]) -> None:
    rows = spark.read.format("rocketmq").options(**options).load()
    _show_plans(rows)
    _say("batch", rows.count())
    spark.sql(_SQL.format(", ".join(f"{key} '{value}'" for key, value in options.items())))
    _show_plans(spark.table("secured"))


def _stream(spark: SparkSession, options: Mapping[str, str], folder: Path) -> None:
    rows = spark.readStream.format("rocketmq").options(**options, startingOffsets="earliest").load()
    _show_plans(rows)
    query = (
        rows.writeStream.format("noop")
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
    sink = DeltaSink(str(folder / "sink"))
    query = consumer.start(
        spark, sink=sink, checkpoint=str(folder / "checkpoint"), trigger={"availableNow": True}
    )
    _say(repr(consumer), repr(sink))
    _finish(query)
    _say("sink", spark.read.format("delta").load(str(folder / "sink")).count())


def _refused(spark: SparkSession, options: Mapping[str, str], folder: Path) -> None:
    """What users see when the broker does not believe them; the secrets are right but for their last letter."""
    wrong = {**options, "secretKey": f"{options['secretKey']}?", "retryTimeoutMs": "0"}
    malformed = {**options, "securityTokem": options["secretKey"], "tlsKeyPassword": " "}
    sealed = {**options, "tlsKeyPassword": f"{options['tlsKeyPassword']}?"}
    for bad in (wrong, malformed, sealed):
        _say_error(lambda bad=bad: spark.read.format("rocketmq").options(**bad).load().count())  # type: ignore[misc]
    rows = spark.readStream.format("rocketmq").options(**wrong).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(folder / "refused-checkpoint"))
    query = writer.start()
    _say_error(query.awaitTermination)
    _say(query.exception())


def _objects(options: Mapping[str, str]) -> None:
    """Every object that holds the options; what tasks get holds the secrets and does not show them."""
    parsed = ReadOptions.parse(options)
    source = DefaultSource(dict(options))
    reader = source.reader(source.schema())
    stream_reader = source.streamReader(source.schema())
    partition = reader.partitions()[0]
    for thing in (parsed, source, reader, stream_reader, partition, [partition], {"p": partition}):
        _say(repr(thing), str(thing))
    if options["secretKey"].encode() not in pickle.dumps(partition):
        raise AssertionError("A task could not sign its pulls: its partition has no secret.")


def _show_plans(rows: Any) -> None:
    for mode in ("extended", "formatted"):
        rows.explain(mode=mode)
    _say(rows, rows._jdf.queryExecution().toString(), rows._jdf.queryExecution().logical().toString())
    logical = rows._jdf.queryExecution().logical()
    _say(logical.treeString(), logical.prettyJson())


def _finish(query: Any) -> None:
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
    main(Path(sys.argv[1]), json.load(sys.stdin))
