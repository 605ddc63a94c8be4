"""Converts a DataFrame's rows to messages: body and encoded properties, and where to send them.

A row that cannot be a message is found before it is sent; errors identify the row by its keys.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import LocalProtocolError, RowNotSent, SchemaError
from pyspark_rocketmq.model import OF_ONE_DELIVERY
from pyspark_rocketmq.options.parsers import MAX_TOPIC_LENGTH, UNBOUNDED, closest, resource_name
from pyspark_rocketmq.options.write import WriteOptions
from pyspark_rocketmq.wire import properties as names
from pyspark_rocketmq.wire.properties import MAX_MEMBER_PROPERTIES_BYTES, encode_properties
from pyspark_rocketmq.wire.requests.send import JavaInteger, ShardingKey, check_body

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

_TEXTS: Final = (pa.string(), pa.large_string(), pa.string_view())
"""Arrow types of a column of strings; ``spark.sql.execution.arrow.useLargeVarTypes`` chooses the second."""
_TOPIC_NAME: Final = resource_name("topic", MAX_TOPIC_LENGTH)


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
    """Return the position of each of the sink's columns in ``schema``, whose names may differ in case.

    Columns whose value an option fixes are left out.

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
            problems.append(f"column '{name}' occurs twice; drop one of them")
        positions[name] = position
    problems += _missing(positions, options)
    if problems:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        raise SchemaError(f'Rows cannot be written with format("rocketmq"):{lines}')
    for name in fixed_values(options):
        positions.pop(name, None)
    return positions


def fixed_values(options: WriteOptions) -> dict[str, str | int]:
    """Return the values that options give to columns in every row, by column."""
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
        problems.append(
            "there is a column 'brokerName', but no queue id: add a column 'queueId', or drop 'brokerName'"
        )
    return problems


def _unknown(name: str) -> str:
    close = closest(name, _TYPES, cutoff=0.75)
    hint = f"did you mean '{close}'?" if close else f"known ones: {', '.join(_TYPES)}."
    return f"column '{name}' means nothing here; {hint} Select the columns to send"


_SURELY_SHORT: Final = MAX_MEMBER_PROPERTIES_BYTES // 4
"""Number of characters that always fit: UTF-8 takes at most four bytes for each."""


class SinkRow(NamedTuple):
    """One message to send."""

    number: int
    """Number of the row in its task, from 0."""
    topic: str
    body: bytes
    properties_data: bytes
    sharding_key: ShardingKey | None
    queue_id: int | None
    broker_name: str | None
    delay: tuple[str, str] | None
    """Property and value that make the broker delay the message."""
    keys: str | None = None
    msg_id: str | None = None

    @property
    def shown(self) -> str:
        """Number, keys, sharding key and message id of the row, for an error's text."""
        return _shown(self.number, self.keys, self.sharding_key, self.msg_id)


class RowKeys:
    """The UNIQ_KEYs of a task's rows: the same for equal record batches at the same place.

    The place is made of the write, the batch, the partition and the row's number. The content of the row's
    record batch is in the key, too: a batch or task that runs again may get its rows in another order. If the
    key were that of the place, a row that was not sent yet would then get the key of one that was, and
    readers would ignore it. One hash for a whole record batch takes a third of the time of a hash per row:
    about 1 µs per row of 1 KiB.

    A key has 32 hexadecimal digits, as in Java: 20 of a hash, then 12 of the row's number. In Java, the first
    eight of these 12 are the time since the beginning of the month. Here they are almost zero, so ``mqadmin
    queryMsgByUniqueKey`` searches from the beginning of the month.
    """

    def __init__(self, write_id: str, batch_id: int, partition_id: int) -> None:
        name = f"{write_id}/{batch_id}/{partition_id}\1".encode()
        self._of_task = hashlib.sha1(name, usedforsecurity=False)

    def of_batch(self, content: Iterable[bytes]) -> Callable[[int], str]:
        """Return a function from the number of a row in its task to its key.

        It is for the rows of one record batch, which ``content`` describes completely.
        """
        found = self._of_task.copy()
        for part in content:
            found.update(part)
        return f"{found.hexdigest()[:20].upper()}{{:012X}}".format


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """Reads the rows of one task."""

    options: WriteOptions
    positions: Mapping[str, int]
    """Positions of the columns, by :func:`column_positions`."""
    row_keys: RowKeys

    def rows(self, batch: pa.RecordBatch, first: int) -> Iterator[SinkRow]:
        """Yield the rows of ``batch`` as messages; ``first`` is the number in the task of its first row.

        Raises:
            RowNotSent: At the first row that cannot be a message.
        """
        fixed, namespace = fixed_values(self.options), self.options.namespace
        has_groups, most_bytes = not self.options.batch_send, self.options.max_message_size
        columns = {name: self._column(batch, fixed, name) for name in _TYPES}
        own_of_rows = [_own_properties(given) if given else {} for given in columns.pop(PROPERTIES)]
        has_ids = all(columns[MSG_ID])
        content = () if has_ids else self._content(columns, own_of_rows)
        key_of = self.row_keys.of_batch(content)
        for number, (values, own) in enumerate(
            zip(zip(*columns.values(), strict=True), own_of_rows, strict=True), first
        ):
            # In the order of _TYPES.
            name, body, keys, tags, sharding_key, broker, queue_id, level, deliver_ms, msg_id = values
            try:
                topic = _topic(name, namespace)
                if not body or len(body) > most_bytes:
                    check_body(_required(body, BODY), f"topic {topic}", most_bytes)
                unique_key = msg_id or key_of(number)
                yield SinkRow(
                    number,
                    topic,
                    body,
                    self._encode(own, keys, tags, unique_key, sharding_key if has_groups else None),
                    sharding_key,
                    queue_id,
                    broker,
                    None if level is None and deliver_ms is None else _delay(level, deliver_ms),
                    keys,
                    msg_id,
                )
            except (LocalProtocolError, _BadRow) as problem:
                shown = _shown(number, keys, sharding_key, msg_id)
                raise RowNotSent(shown, str(problem), is_no_message=True) from problem

    def _content(
        self, columns: Mapping[str, Sequence[Any]], own_of_rows: Sequence[Mapping[str, str]]
    ) -> Iterator[bytes]:
        """Yield all values of the rows, so that other rows, or rows in another order, give other bytes.

        Properties of one delivery are left out: they change whenever a message is read. ``msgId`` is left
        out, because rows that have one need no other.
        """
        for name, values in columns.items():
            if name == BODY:
                bodies = [body or b"" for body in values]
                yield array("q", map(len, bodies)).tobytes()
                yield from bodies
            elif name != MSG_ID:
                is_column = name in self.positions
                yield repr(values if is_column else values[:1]).encode(errors="surrogatepass")
        if any(own_of_rows):
            yield repr([sorted(own.items()) for own in own_of_rows]).encode(errors="surrogatepass")

    def _column(self, batch: pa.RecordBatch, fixed: Mapping[str, Any], name: str) -> Sequence[Any]:
        position = self.positions.get(name)
        if position is None:
            return [fixed.get(name)] * batch.num_rows
        column = batch.column(position)
        if name == BODY and column.type in _TEXTS:
            column = column.cast(pa.large_binary())
        if name == DELIVER_TIMESTAMP:
            column = pc.divide(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()), 1000)
        values: list[Any] = column.to_pylist()
        if name == SHARDING_KEY and pa.types.is_integer(column.type) and column.type.bit_width < 64:
            return [None if value is None else JavaInteger(value) for value in values]
        return values

    def _encode(
        self,
        own: Mapping[str, str],
        keys: str | None,
        tags: str | None,
        unique_key: str,
        message_group: ShardingKey | None,
    ) -> bytes:
        if message_group is None and not own and not self.options.properties:
            return _encode_usual(keys, tags, unique_key)
        properties = {**dict(self.options.properties), **own}
        if message_group not in {None, ""}:
            properties[names.SHARDING_KEY] = str(message_group)
        return _encode_all(properties, keys, tags, unique_key)


def _own_properties(given: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """Return a row's properties as far as they are sent.

    A null means that the property is missing. An empty string stays, and is refused later, since readers
    would not receive it.
    """
    return {name: text for name, text in given if text is not None and name not in OF_ONE_DELIVERY}


def _encode_usual(keys: str | None, tags: str | None, unique_key: str) -> bytes:
    """Encode the properties of a message that has only these three; faster than :func:`_encode_all`."""
    text = f"{names.UNIQ_KEY}\1{unique_key}\2"
    count = 1
    if tags:
        text = f"{names.TAGS}\1{tags}\2{text}"
        count += 1
    if keys:
        text = f"{names.KEYS}\1{keys}\2{text}"
        count += 1
    if text.count("\1") != count or text.count("\2") != count or len(text) > _SURELY_SHORT:
        return _encode_all({}, keys, tags, unique_key)
    return text.encode()


def _encode_all(properties: dict[str, str], keys: str | None, tags: str | None, unique_key: str) -> bytes:
    own = {names.KEYS: keys, names.TAGS: tags, names.UNIQ_KEY: unique_key}
    properties.update({name: text for name, text in own.items() if text})
    data = encode_properties(properties)
    if len(data) > MAX_MEMBER_PROPERTIES_BYTES:
        raise _BadRow(
            f"its properties take {len(data)} bytes, and brokers store at most {MAX_MEMBER_PROPERTIES_BYTES} "
            "beside their own; move large values into the body"
        )
    return data


class _BadRow(Exception):
    """Raised for a row that cannot be a message; the error's text is the end of a sentence about the row."""


def _required(value: Any, column: str) -> Any:
    if value is None:
        raise _BadRow(f"its column '{column}' is null")
    return value


@lru_cache(maxsize=1024)
def _topic(name: str | None, namespace: str | None) -> str:
    """Return ``name`` if it is a valid name of a topic.

    Raises:
        _BadRow: If the name is null or not valid, or too long together with ``namespace``.
    """
    try:
        topic = _TOPIC_NAME(_required(name, TOPIC))
    except ValueError as problem:
        raise _BadRow(f"its topic '{peer_text(str(name))}' {problem}") from None
    if namespace is not None and len(namespace) + 1 + len(topic) > MAX_TOPIC_LENGTH:
        raise _BadRow(
            f"its topic '{topic}' is longer than {MAX_TOPIC_LENGTH} characters together with its namespace "
            f"'{namespace}%'"
        )
    return topic


def _delay(level: int | None, deliver_ms: int | None) -> tuple[str, str] | None:
    if level is not None and not 0 <= level <= UNBOUNDED:
        raise _BadRow(
            f"its delayLevel is {level}; it must be 1 or more (brokers have 18 levels by default), or "
            "0 or null for no delay"
        )
    if level and deliver_ms is not None:
        raise _BadRow("it has both a delayLevel and a deliverTimestamp; leave one of them null")
    if deliver_ms is not None:
        return names.TIMER_DELIVER_MS, str(deliver_ms)
    return (names.DELAY, str(level)) if level else None


def _shown(number: int, keys: str | None, sharding_key: ShardingKey | None, msg_id: str | None) -> str:
    parts = [("keys", keys), ("shardingKey", sharding_key), ("msgId", msg_id)]
    found = ", ".join(f"{name}={value!r}" for name, value in parts if value not in {None, ""})
    return f"row {number} of the task" + (f" ({found})" if found else "")
