"""Columns that the sink takes: which there may be, of which types, and what is wrong with those that there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.option_parsers import closest
from pyspark_rocketmq.write_options import WriteOptions

TOPIC: Final = "topic"
BODY: Final = "body"
KEYS: Final = "keys"
TAGS: Final = "tags"
SHARDING_KEY: Final = "shardingKey"
BROKER_NAME: Final = "brokerName"
QUEUE_ID: Final = "queueId"
DELAY_LEVEL: Final = "delayLevel"
DELIVER_TIMESTAMP: Final = "deliverTimestamp"
MSG_ID: Final = "msgId"
PROPERTIES: Final = "properties"


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _is_number(kind: DataType) -> bool:
    return isinstance(kind, IntegralType)


_TYPES: Final[Mapping[str, tuple[str, Callable[[DataType], bool]]]] = {
    TOPIC: ("string", _is_text),
    BODY: ("binary or string", lambda kind: isinstance(kind, (BinaryType, StringType))),
    KEYS: ("string", _is_text),
    TAGS: ("string", _is_text),
    SHARDING_KEY: ("string or an integer", lambda kind: _is_text(kind) or _is_number(kind)),
    BROKER_NAME: ("string", _is_text),
    QUEUE_ID: ("int", _is_number),
    DELAY_LEVEL: ("int", _is_number),
    DELIVER_TIMESTAMP: ("timestamp", lambda kind: isinstance(kind, TimestampType)),
    MSG_ID: ("string", _is_text),
    PROPERTIES: (
        "map<string,string>",
        lambda kind: isinstance(kind, MapType) and _is_text(kind.keyType) and _is_text(kind.valueType),
    ),
}


def column_positions(schema: StructType, options: WriteOptions) -> dict[str, int]:
    """Where each column of the sink is among the rows' columns, whose names may differ in case.

    A column whose value an option fixes is not among them.

    Raises:
        SchemaError: With a sentence for every problem.
    """
    names = {name.lower(): name for name in _TYPES}
    positions: dict[str, int] = {}
    problems: list[str] = []
    for position, field in enumerate(schema.fields):
        name = names.get(field.name.lower())
        if name is None:
            problems.append(_unknown(field.name))
            continue
        wanted, fits = _TYPES[name]
        if not fits(field.dataType):
            problems.append(f"column '{field.name}' is {field.dataType.simpleString()}, but must be {wanted}")
        if name in positions:
            problems.append(f"column '{name}' is there twice; drop one of them")
        positions[name] = position
    problems += _missing(positions, options)
    if problems:
        raise SchemaError(
            'Rows cannot be written with format("rocketmq"):'
            + "".join(f"\n  - {problem}" for problem in problems)
        )
    for name in fixed_values(options):
        positions.pop(name, None)
    return positions


def fixed_values(options: WriteOptions) -> dict[str, str | int]:
    """The columns that options give the same value in every row."""
    fixed = {
        TOPIC: options.topic,
        KEYS: options.keys,
        TAGS: options.tags,
        SHARDING_KEY: options.sharding_key,
        QUEUE_ID: options.queue_id,
        DELAY_LEVEL: options.delay_level,
    }
    return {name: value for name, value in fixed.items() if value is not None}


def _missing(positions: Mapping[str, int], options: WriteOptions) -> list[str]:
    problems = []
    if BODY not in positions:
        problems.append("there is no column 'body', the content of the messages")
    if TOPIC not in positions and options.topic is None:
        problems.append("there is neither a column 'topic' nor an option 'topic'")
    if BROKER_NAME in positions and QUEUE_ID not in positions and options.queue_id is None:
        problems.append("there is a column 'brokerName', but no queue: add a column 'queueId' or drop it")
    return problems


def _unknown(name: str) -> str:
    close = closest(name, _TYPES, cutoff=0.75)
    hint = f"did you mean '{close}'?" if close else f"known ones: {', '.join(_TYPES)}."
    return f"column '{name}' means nothing here; {hint} Select what is to be sent"
