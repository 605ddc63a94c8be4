"""Apache RocketMQ's consumer and ordered producer as PySpark Structured Streaming.

Importing this package loads nothing heavy: Spark looks every ``pyspark_*`` package up for its data source, so
the public names below come in on first use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME_OF = {
    "ArrowListener": "streaming.arrow_listener",
    "BrokerError": "errors",
    "ConsumeConcurrentlyContext": "streaming.listener",
    "ConsumeConcurrentlyStatus": "model",
    "ConsumeFromWhere": "model",
    "ConsumeMessageContext": "streaming.consume_hooks",
    "ConsumeOrderlyContext": "streaming.listener",
    "ConsumeOrderlyStatus": "model",
    "DataLoss": "errors",
    "DatabaseSink": "streaming.database_sink",
    "DefaultSource": "datasource.format",
    "DeltaOffsetStore": "offsets.delta",
    "DeltaSink": "streaming.delta_sink",
    "FileOffsetStore": "offsets.file",
    "Message": "model",
    "MessageExt": "model",
    "MessageModel": "model",
    "MessageQueue": "model",
    "OptionError": "errors",
    "PandasListener": "streaming.pandas_listener",
    "PrometheusEndpoint": "monitoring.prometheus",
    "PushConsumer": "streaming.push_consumer",
    "QueryMonitor": "monitoring.query_monitor",
    "Replay": "replay.replay",
    "RocketMQError": "errors",
    "Route": "streaming.several_sinks",
    "UndecodableMessage": "errors",
    "UndecodableMessages": "model",
    "by_sharding_key": "datasource.key_order",
    "consume_orderly": "streaming.orderly_engine",
    "json_body": "streaming.message_table",
    "register": "datasource.format",
    "reset_to_sink": "streaming.lost_offsets",
    "run_listener": "streaming.listener_trial",
}

_SPARKS = ("pyspark", "delta")
"""Packages that the extra ``spark`` brings."""

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
            f"{__name__}.{name} needs Spark and Delta Lake, and this Python ({sys.executable}) has no module '{error.name}'. Install "
            "them with pip install 'pyspark-rocketmq[spark]', or start Python where Spark is.",
            name=error.name,
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
