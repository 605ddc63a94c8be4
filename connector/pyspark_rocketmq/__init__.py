"""Apache RocketMQ's consumer and ordered producer as PySpark Structured Streaming.

Importing this package loads nothing heavy. Spark imports every ``pyspark_*`` package to look for a data
source, so the public names below are loaded on first use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_ERRORS = (
    "BadRecord",
    "BatchRefused",
    "BrokerError",
    "BrokerOffsetUnavailable",
    "ChannelClosed",
    "ConnectFailed",
    "ConsumerNotOnline",
    "ConsumptionForbidden",
    "DamagedOffsets",
    "DataLoss",
    "DeadLetterRefused",
    "ExpressionInvalid",
    "FrameDamaged",
    "GoAway",
    "GroupNotFound",
    "KeysOutOfOrder",
    "ListenerError",
    "LocalProtocolError",
    "LogTailLost",
    "LostBehindSink",
    "MessageRefused",
    "MessagesExpired",
    "NameServerNotReady",
    "NoPermission",
    "NoWritableQueue",
    "NotANameServer",
    "OffsetCommitConflict",
    "OffsetError",
    "OffsetNotFound",
    "OffsetRegressed",
    "OffsetStoreUnavailable",
    "OffsetsBeganAgain",
    "OptionError",
    "QueueRemoved",
    "RemoteProtocolError",
    "RequestTimeout",
    "RocketMQError",
    "RowNotSent",
    "SchemaError",
    "SchemaNotFound",
    "SchemaRegistryDown",
    "SchemaRegistryRefused",
    "SinkConflict",
    "SinkMoved",
    "SinkSetBack",
    "StaticTopic",
    "StorageNotShared",
    "SubscriptionNotLatest",
    "SystemBusy",
    "TargetQueueAway",
    "TlsFailed",
    "TooManySends",
    "TopicAway",
    "TopicDeleted",
    "TopicNotFound",
    "TransportError",
    "UndecodableMessage",
    "WireError",
    "WrongBroker",
    "WrongMessageType",
)
"""Errors that a user may catch."""

_HOME_OF = {
    **dict.fromkeys(_ERRORS, "errors"),
    "ArrowListener": "listeners.arrow_listener",
    "AsyncSends": "client.producer.async_sends",
    "BatchMetrics": "monitoring.batch_metrics",
    "BatchReport": "commit.pipeline",
    "BodyDecoder": "schemas.decoding",
    "BodyType": "model",
    "ChangeTable": "sinks.change_table.sink",
    "ChangeTables": "sinks.change_table.tables",
    "CommitsGroups": "sinks.base",
    "CompressionType": "wire.compression",
    "ConnectionSettings": "client.pool",
    "ConsumeConcurrentlyContext": "listeners.context",
    "ConsumeConcurrentlyStatus": "model",
    "ConsumeFromWhere": "model",
    "ConsumeHooks": "listeners.context",
    "ConsumeMessageContext": "listeners.context",
    "ConsumeMessageHook": "listeners.context",
    "ConsumeOrderlyContext": "listeners.context",
    "ConsumeOrderlyStatus": "model",
    "CountsRows": "sinks.base",
    "DatabaseSink": "sinks.database",
    "DefaultSource": "format",
    "DeltaOffsetStore": "offsets.delta",
    "DeltaSink": "sinks.delta.sink",
    "FileOffsetStore": "offsets.file",
    "JavaInteger": "wire.requests.send",
    "LatencyHistogram": "consume.latencies",
    "LeavesOutQueues": "sinks.base",
    "ListenerContext": "listeners.forms",
    "ListenerRun": "consumer.listener_trial",
    "LocalTransactionState": "model",
    "Message": "model",
    "MessageExt": "model",
    "MessageModel": "model",
    "MessageQueue": "model",
    "OffsetRow": "offsets.store",
    "OffsetStore": "offsets.store",
    "OpensAgain": "offsets.store",
    "OrderlyBy": "model",
    "OrderlyEngineKind": "model",
    "OrderlySettings": "consume.orderly",
    "PandasListener": "listeners.arrow_listener",
    "Producer": "client.producer.producer",
    "PrometheusEndpoint": "monitoring.prometheus",
    "PushConsumer": "consumer.push_consumer",
    "QueryCollector": "monitoring.prometheus",
    "QueryMonitor": "monitoring.query_monitor",
    "QueueGeneration": "sinks.base",
    "RemembersMessages": "sinks.base",
    "RenewsStorage": "offsets.store",
    "Replay": "replay.replay",
    "ReplaySummary": "replay.replay",
    "Route": "sinks.multi",
    "RowWriter": "sinks.base",
    "SchemaRegistry": "schemas.registry",
    "SendBackSettings": "client.producer.send_back",
    "SendResult": "wire.requests.send",
    "SendStatus": "model",
    "Sink": "sinks.base",
    "SinkBatch": "sinks.base",
    "SinkStanding": "sinks.against_offsets",
    "Span": "sinks.base",
    "TableRoute": "change_data.routes",
    "TransactionProducer": "client.producer.transactions",
    "TransactionSendResult": "client.producer.transactions",
    "UndecodableMessages": "model",
    "UsesSession": "sinks.base",
    "WritesFolders": "sinks.base",
    "Writing": "sinks.base",
    "Written": "sinks.base",
    "by_sharding_key": "publish.keys",
    "change_columns": "spark.change_columns",
    "consume_orderly": "consumer.engine.state",
    "json_body": "consumer.message_table",
    "payload": "schemas.columns",
    "register": "format",
    "reset_to_sink": "commit.recovery",
    "run_listener": "consumer.listener_trial",
    "schema_id": "schemas.columns",
    "split_batch": "wire.requests.send",
    "storage_options_of_spark": "delta.hadoop_settings",
}

_SPARKS = ("pyspark", "delta")
"""Packages that the extra ``spark`` installs."""

__all__ = [*sorted(_HOME_OF), "__version__"]  # noqa: PLE0604 - the names are strings


def __getattr__(name: str) -> Any:
    try:
        home = _HOME_OF[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    try:
        value = getattr(import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _SPARKS:
            raise
        raise ModuleNotFoundError(
            f"{__name__}.{name} needs Spark and Delta Lake, and this Python ({sys.executable}) has no module "
            f"'{error.name}'. Install "
            "them with pip install 'pyspark-rocketmq[spark]', or start Python where Spark is.",
            name=error.name,
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
