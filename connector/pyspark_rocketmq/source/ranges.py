"""The forms of a planned range: Spark's offset, a task's partition, a ticket.

Spark's offset of one micro-batch is the plan itself, as JSON: ``{"v": 1, "seq": 7, "plan": {topic:
{brokerName: {queueId: {"from": 0, "to": 5, "epoch": 3, "times": 1}}}}}``, where ``epoch``, ``times``
(reconsume times) and ``putBack`` (messages that the listener gave back, and how often) are left out if they
are 0 or empty. Plans of plain streams also have ``storedBy``: for each broker, the latest store time of a
message there when the plan was made. A queue may have had to wait, or its broker may have been out of sight.
Such a queue keeps an entry of its own with the time of its last plan, if that time is a different one.
``unread`` lists how many messages followed each range when the plan was made, in the order of the queues; for
more than 256 queues the list is packed as below. ``uncommitted`` in plans of earlier releases is ignored. The
ranges are explicit, so that a replay reads the same messages. ``seq`` grows with every batch, because Spark
compares offsets as text and a suspended queue may be planned twice with the same range. Keys are written
sorted, so that equal plans are equal strings.

A plan of more than 256 queues is packed: ten thousand queues take 60 KB, instead of 600 as JSON.  The form is
``{"v": 2, "seq": 7, "queues": 10000, "packed": text}``.  The text is a line of JSON followed by columns of
whole numbers, compressed with zlib and encoded in base 85. The line is ``{"brokers": [[topic, brokerName,
queues], …], "putBack": {index: text}}``. The columns are the queue id (as a difference to the one before),
``from``, ``to`` (as a difference to ``from``), ``epoch`` and ``times``. Each column has the lowest bytes of
all queues first, then the next ones, up to eight, because most of the higher bytes are 0.

In real time ranges are *open*: they have no end. A plan of open ranges is ``{"v": 3, "seq": 7, "for_s":
300.0, "live": …}``, where ``for_s`` is the length of the batch in seconds. Its ranges have no ``to``. The
range of a suspended queue has ``until``: the end of the suspension, in seconds since the epoch. Above 256
queues the plan has ``queues`` and ``packed`` instead of ``live``; then every ``to`` is 0, and the line also
has ``"until": {index: second}``. Only the process that made such a plan runs it; in Spark's log its ranges
are for people.

With option ``handOverRanges`` the source passes ranges on, not messages, and the next operator, the
consumer's engine, reads them. Otherwise every message would be decoded in one Python process, converted to
Spark's rows, and converted to Arrow again for the other process. Of the rows for ranges that are read
together, the first is a *ticket*: the pickled partitions of these ranges. The other rows are null, one for
each further offset of the ranges, up to ``MOST_COUNTED`` rows in all: Spark counts a stream's rows as its
input (``numInputRows``), and users watch that number. The null rows are dropped after Spark has counted them.
A ticket of open ranges has no null rows, because the number of their messages is not known.
"""

from __future__ import annotations

import base64
import json
import pickle
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from math import inf
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.datasource import InputPartition

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.cluster import Cluster
from pyspark_rocketmq.client.pool import ConnectionSettings, process_pool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.generations import NO_WITNESSES, NewestStored, Witnesses
from pyspark_rocketmq.consume.planning import Expected, deal, read_together, shared_tasks
from pyspark_rocketmq.consume.positions import EVERY_BROKER, NOTHING_STORED, StoredBy, StoredThen, Unread
from pyspark_rocketmq.consume.read_range import ReadRange, ReadSettings
from pyspark_rocketmq.errors import OffsetError, TransportError
from pyspark_rocketmq.model import (
    OPEN_END,
    BrokerAddress,
    MessageQueue,
    QueueBounds,
    QueueRange,
    QueueState,
    is_retry_topic,
)
from pyspark_rocketmq.options.read import ReadFrom, ReadOptions
from pyspark_rocketmq.source.schema import PLANNED_RANGE, range_from_json, range_to_json
from pyspark_rocketmq.stored_values import RetryCounts

MOST_COUNTED = 10_000_000
"""Maximum number of rows of a ticket; so many rows take 40 MB. A plan may have any number of offsets, but no
listener gets so many messages in a micro-batch."""
TICKET_SCHEMA = pa.schema([(PLANNED_RANGE, pa.binary())])
_VERSION = 1
_PACKED_VERSION = 2
_OPEN_VERSION = 3
"""Version of a plan with open ranges; earlier releases refuse it."""
_MOST_IN_JSON: Final = 256
_MOST_QUEUES: Final = 1_000_000
_MOST_BYTES_A_QUEUE: Final = 4096
"""Maximum number of unpacked bytes per queue on average, with names and retry counts; longer data counts as
damaged when it is read."""
_COLUMNS: Final = 5
_INT64_BYTES: Final = 8
_SHOWN = 200
_HIGHEST = (1 << 63) - 1
_LOWEST = -(1 << 31)
"""Lowest ``times`` (reconsume times) of a valid plan: a broker stores any number of 32 bits."""
Offset = dict[str, Any]
"""Spark's stored offset: a nested dict with str keys."""


@dataclass(frozen=True, kw_only=True)
class QueuePartition(ReadRange, InputPartition):
    """One range as it is pickled to the executor, with everything that reading needs."""

    connection: ConnectionSettings
    """Settings of connections; their repr, and therefore the partition's, leaves out the credentials."""

    def with_columns(self, columns: tuple[str, ...] | None) -> QueuePartition:
        """Return the range with only these columns of a group's messages; None: all columns.

        A retry topic's messages keep all columns: one of their properties has the topic they were sent to.
        """
        if columns is None or is_retry_topic(self.planned.queue.topic):
            return self
        return replace(self, settings=self.settings._replace(columns=columns))


def brokers_of(partition: QueuePartition) -> BrokerClient:
    """Return the client with which a task asks the partition's broker."""
    pool, settings = process_pool(partition.connection), partition.settings
    return Cluster((), pool, SystemClock(), settings.request_timeout_s, settings.namespace).brokers()


def partitions_of(
    planned: Iterable[QueueRange],
    options: ReadOptions,
    addresses: Mapping[str, BrokerAddress],
    replicas: Mapping[str, Mapping[int, BrokerAddress]],
    slaves: Mapping[str, BrokerAddress] | None = None,
    *,
    has_worked: bool = False,
    consumed: Mapping[MessageQueue, Witnesses] = MappingProxyType({}),
    newest: Mapping[MessageQueue, NewestStored | None] = MappingProxyType({}),
) -> list[QueuePartition]:
    """Return one partition per non-empty range.

    Args:
        planned: The ranges.
        options: The query's options.
        addresses: Addresses of masters, by broker name.
        replicas: Addresses of these masters' replicas, by broker name and broker id.
        slaves: Addresses of the slaves to read from, by broker name, for brokers without a master.
        has_worked: Whether messages of the query have been read before.
        consumed: Consumed messages, by which tasks check that logs are still the same.
        newest: The last messages of a batch's queues, for the same check.

    Raises:
        TransportError: If the name server no longer knows an address of a range's broker.
    """
    partitions = []
    settings = ReadSettings.of(options, has_worked=has_worked)
    uses_replicas = options.read_from is not ReadFrom.MASTER
    connection = ConnectionSettings.of(options)
    # Topics have up to a thousand queues.
    subscription_of = lru_cache(maxsize=None)(options.subscription_of)
    for queue_range in planned:
        if queue_range.count <= 0:
            continue
        broker_name = queue_range.queue.broker_name
        is_slave = broker_name not in addresses
        address = (addresses if not is_slave else slaves or {}).get(broker_name)
        if address is None:
            raise TransportError(
                broker_name,
                f"{queue_range.queue} is planned from {queue_range.extent}, but the name "
                "server knows no living broker of that name. Start the broker",
            )
        wanted = subscription_of(queue_range.queue.topic)
        partitions.append(
            QueuePartition(
                planned=queue_range,
                address=address,
                subscription=wanted.expression,
                is_sql92=wanted.is_sql92,
                settings=settings,
                witnesses=consumed.get(queue_range.queue, NO_WITNESSES),
                newest=newest.get(queue_range.queue),
                replicas=replicas.get(broker_name, {}) if uses_replicas and not is_slave else {},
                is_slave=is_slave,
                connection=connection,
            )
        )
    return partitions


class Ticket(NamedTuple):
    """Ranges that the source passes on to the consumer's engine, which reads their messages."""

    partitions: tuple[QueuePartition, ...]
    """The partitions of ranges that are read together; at least one."""
    tasks: int = 1
    """Number of tasks that the whole batch has."""
    open_for_s: float | None = None
    """Length of the batch in seconds if the ranges are open (without an end); None if they have an end.

    A task with open ranges has only this ticket.
    """
    at_end: frozenset[MessageQueue] = frozenset()
    """Queues that had no message at the start of their open range when it was planned."""


@dataclass(frozen=True)
class SharedTask(InputPartition):
    """The input of a task that does not read its ranges but passes them on as tickets (pickled ranges)."""

    tickets: tuple[Ticket, ...]


def tasks_of(
    ranges: Sequence[QueuePartition], listener_ms: Callable[[MessageQueue], float | None], slots: int = 0
) -> list[SharedTask]:
    """Divide ranges among tasks by the time that they will take; each task passes its ranges on as tickets.

    Args:
        ranges: The ranges of one micro-batch.
        listener_ms: Returns about how long the listener takes for a message of a queue, in milliseconds; None
            if unknown.
        slots: How many tasks can run at the same time; 0 if unknown.
    """
    expected = [Expected(each.planned.count, listener_ms(each.planned.queue)) for each in ranges]
    tasks = shared_tasks(expected, slots)
    return [
        SharedTask(
            tuple(
                Ticket(tuple(ranges[task[place]] for place in together), len(tasks))
                for together in read_together([expected[index] for index in task])
            )
        )
        for task in tasks
    ]


def open_tasks_of(
    ranges: Sequence[QueuePartition],
    bounds: Mapping[MessageQueue, QueueBounds],
    *,
    slots: int,
    open_for_s: float,
) -> list[SharedTask]:
    """Divide open ranges among tasks by their waiting messages; each task passes its ranges on as one ticket.

    Args:
        ranges: One range for each queue.
        bounds: Bounds of the queues, which show how many messages wait in each.
        slots: Number of tasks that can run at the same time; 0 if unknown.
        open_for_s: Length of the batch in seconds.
    """
    backlogs = [
        bounds[each.planned.queue].max_offset - each.planned.start if each.planned.queue in bounds else 0
        for each in ranges
    ]
    tasks = deal(backlogs, slots)

    def ticket(task: Sequence[int]) -> Ticket:
        queues = (ranges[index].planned.queue for index in task if backlogs[index] <= 0)
        at_end = frozenset(queue for queue in queues if queue in bounds)
        return Ticket(tuple(ranges[index] for index in task), len(tasks), open_for_s, at_end)

    return [SharedTask((ticket(task),)) for task in tasks]


def ticket_rows(ticket: Ticket) -> pa.RecordBatch:
    """Return the rows of a ticket: the pickled ticket, then null rows that Spark counts.

    There are no null rows for open ranges.
    """
    is_open = ticket.open_for_s is not None
    offsets = 1 if is_open else sum(max(1, each.planned.count) for each in ticket.partitions)
    row = pa.array([pickle.dumps(ticket)], pa.binary())
    counted = pa.nulls(min(offsets, MOST_COUNTED) - 1, pa.binary())
    return pa.RecordBatch.from_arrays([pa.concat_arrays([row, counted])], schema=TICKET_SCHEMA)


def tickets_alone(rows: DataFrame) -> DataFrame:
    """Keep the rows of a stream that hold tickets (pickled ranges), and drop the null rows.

    Null rows exist only so that Spark's ``numInputRows`` is right.
    """
    return rows.where(sf.col(PLANNED_RANGE).isNotNull())


def plan_to_offset(
    seq: int,
    ranges: Iterable[QueueRange],
    *,
    then: StoredThen = NOTHING_STORED,
    open_for_s: float | None = None,
) -> Offset:
    """Return the offset that holds ``ranges``; empty ranges are kept, because they hold a position.

    Args:
        seq: The plan's number.
        ranges: One range for each queue.
        then: Facts about the brokers' logs when the plan is made; ``NOTHING_STORED`` for a group.
        open_for_s: Length of a batch of open ranges in seconds; None for closed ranges.
    """
    in_order = sorted(ranges, key=attrgetter("queue"))
    known: dict[str, Any] = {"storedBy": dict(then.times)} if then.times else {}
    if then.times and then.unread:
        counts = [then.unread.get(planned.queue, 0) for planned in in_order]
        known["unread"] = counts if len(counts) <= _MOST_IN_JSON else _compressed(_in_planes(counts))
    if open_for_s is not None:
        known["for_s"] = open_for_s
    if len(in_order) > _MOST_IN_JSON:
        version = _PACKED_VERSION if open_for_s is None else _OPEN_VERSION
        return {"v": version, "seq": seq, **known, "queues": len(in_order), "packed": _packed(in_order)}
    plan: dict[str, dict[str, dict[str, dict[str, int | float | str]]]] = {}
    for planned in in_order:
        topic, broker_name, queue_id = planned.queue
        plan.setdefault(topic, {}).setdefault(broker_name, {})[str(queue_id)] = range_to_json(planned)
    if open_for_s is None:
        return {"v": _VERSION, "seq": seq, **known, "plan": plan}
    return {"v": _OPEN_VERSION, "seq": seq, **known, "live": plan}


def open_for_s_of(offset: Mapping[str, Any]) -> float | None:
    """Return the length in seconds of the batch in Spark's ``offset``; None if its ranges have an end."""
    return offset.get("for_s")


def stored_then_of(offset: Mapping[str, Any], planned: Sequence[QueueRange]) -> StoredThen:
    """Return what Spark's ``offset`` notes of the brokers' logs: its ``storedBy`` and ``unread``.

    ``planned`` are the offset's ranges. Invalid values count as missing. The single store time in a
    checkpoint of an earlier release is returned under ``EVERY_BROKER``.
    """
    return StoredThen(_stored_by_of(offset), _unread_of(offset, planned))


def _unread_of(offset: Mapping[str, Any], planned: Sequence[QueueRange]) -> Unread:
    counts = offset.get("unread", [])
    try:
        if isinstance(counts, str):
            counts = _from_planes(_decompressed(counts, len(planned) * _INT64_BYTES))
        known = [_whole(count, 0) for count in counts]
    except (TypeError, ValueError, struct.error, zlib.error):
        return {}
    if len(known) != len(planned):
        return {}
    return {each.queue: count for each, count in zip(planned, known, strict=True) if count}


def _stored_by_of(offset: Mapping[str, Any]) -> StoredBy:
    times = offset.get("storedBy", {})
    if not isinstance(times, dict):
        times = {EVERY_BROKER: times}
    return {
        name: time
        for name, time in times.items()
        if isinstance(time, int) and not isinstance(time, bool) and 0 < time <= _HIGHEST
    }


def is_plan(offset: object) -> bool:
    """Return whether an offset in a checkpoint is from this source; those of other sources are any JSON."""
    return isinstance(offset, Mapping) and "v" in offset and "seq" in offset


def is_open_plan(offset: Mapping[str, Any]) -> bool:
    """Return whether a plan in Spark's offset has open ranges, for a batch in real time."""
    return bool(offset["v"] == _OPEN_VERSION)


def offset_to_plan(offset: Mapping[str, Any]) -> tuple[int, tuple[QueueRange, ...]]:
    """Return the plan in Spark's offset: its sequence number, and its ranges sorted by queue.

    Raises:
        OffsetError: If the checkpoint was written by a newer version or by another query, or is damaged.
    """
    if not is_plan(offset):
        raise OffsetError(
            "The query's checkpoint (option checkpointLocation) is another query's: the offset in it, "
            f"{_shortened(offset)}, is not one of format('rocketmq'). Take a new folder for the checkpoint: "
            "a consumer group continues from its offset store, any other query where startingOffsets says."
        )
    if offset["v"] not in {_VERSION, _PACKED_VERSION, _OPEN_VERSION}:
        raise OffsetError(
            f"The checkpoint holds a RocketMQ offset of version {offset['v']!r}; this release reads versions "
            f"{_VERSION} to {_OPEN_VERSION}. Use the release that wrote it, or a new checkpoint location: "
            "a consumer group continues from its offset store, any other query where startingOffsets says."
        )
    try:
        is_open = is_open_plan(offset)
        if is_open:
            _check_seconds(offset["for_s"])
        if offset["v"] == _PACKED_VERSION or (is_open and "packed" in offset):
            ranges = _unpacked(_text(offset["packed"]), _whole(offset["queues"], 0), is_open=is_open)
        else:
            ranges = _ranges_of(offset["live" if is_open else "plan"], is_open=is_open)
        return _whole(offset["seq"], 0), tuple(sorted(ranges, key=attrgetter("queue")))
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        struct.error,
        zlib.error,
    ) as error:
        raise OffsetError(
            f"The checkpoint's offset is damaged ({type(error).__name__}: {error}): {_shortened(offset)}. "
            "Use a new checkpoint location: a consumer group continues from its offset store, any other "
            "query where startingOffsets says."
        ) from error


def _ranges_of(plan: Mapping[str, Any], *, is_open: bool) -> Iterable[QueueRange]:
    return (
        _checked(
            range_from_json(MessageQueue(topic, broker_name, int(queue_id)), entry, is_open=is_open),
            is_open=is_open,
        )
        for topic, brokers in plan.items()
        for broker_name, queues in brokers.items()
        for queue_id, entry in queues.items()
    )


def _packed(ranges: Sequence[QueueRange]) -> str:
    brokers: list[list[str | int]] = []
    ids: list[int] = []
    for (topic, broker_name), some in groupby(ranges, key=lambda planned: planned.queue[:2]):
        of_broker = [planned.queue.queue_id for planned in some]
        brokers.append([topic, broker_name, len(of_broker)])
        ids += [number - before for before, number in zip([0, *of_broker], of_broker, strict=False)]
    states = [planned.state for planned in ranges]
    retry_counts = {
        str(at): state.retry_counts.to_text() for at, state in enumerate(states) if state.retry_counts
    }
    facts: dict[str, Any] = {"brokers": brokers, "putBack": retry_counts}
    due = {str(at): state.suspended_until_s for at, state in enumerate(states) if state.suspended_until_s}
    if due:
        facts["until"] = due
    line = json.dumps(facts)
    columns = (
        ids,
        [state.next_offset for state in states],
        [0 if planned.has_open_end else planned.count for planned in ranges],
        [state.epoch for state in states],
        [state.reconsume_times for state in states],
    )
    data = b"".join([line.encode(), b"\n", *map(_in_planes, columns)])
    return _compressed(data)


def _compressed(data: bytes) -> str:
    return base64.b85encode(zlib.compress(data, 9)).decode()


def _decompressed(text: str, most_bytes: int) -> bytes:
    """Return the bytes from which :func:`_compressed` made ``text``.

    Raises:
        ValueError, zlib.error: If the text is damaged, or is of more than ``most_bytes`` bytes.
    """
    unpacking = zlib.decompressobj()
    # To zlib, a limit of 0 is no limit.
    data = unpacking.decompress(base64.b85decode(text), max(most_bytes, 1))
    if not unpacking.eof or unpacking.unused_data:
        raise ValueError(f"the packed numbers are not whole, or of more than {most_bytes} bytes")
    return data


def _unpacked(text: str, queues: int, *, is_open: bool) -> Iterable[QueueRange]:
    if queues > _MOST_QUEUES:
        raise ValueError(f"the number of queues is {queues}, but at most {_MOST_QUEUES} are possible")
    data = _decompressed(text, queues * _MOST_BYTES_A_QUEUE)
    line, _, numbers = data.partition(b"\n")
    size = queues * _INT64_BYTES
    if len(numbers) != _COLUMNS * size:
        raise ValueError(f"the packed ranges are not those of {queues} queues")
    facts = json.loads(line)
    ids, starts, counts, epochs, times = (
        _from_planes(numbers[at : at + size]) for at in range(0, len(numbers), size or 1)
    )
    names = [(_text(topic), _text(name), _whole(count, 1)) for topic, name, count in facts["brokers"]]
    if sum(count for *_, count in names) != queues:
        raise ValueError(f"the brokers do not have {queues} queues together")
    at = 0
    for topic, broker_name, count in names:
        queue_id = 0
        for index in range(at, at + count):
            queue_id += ids[index]
            retry_counts = RetryCounts.from_text(facts["putBack"].get(str(index), ""))
            due_s = facts.get("until", {}).get(str(index))
            state = QueueState(starts[index], epochs[index], times[index], due_s, retry_counts)
            queue = MessageQueue(topic, broker_name, queue_id)
            end = OPEN_END if is_open else starts[index] + counts[index]
            yield _checked(QueueRange(queue, state, end), is_open=is_open)
        at += count


def _in_planes(numbers: Sequence[int]) -> bytes:
    data = struct.pack(f"<{len(numbers)}q", *numbers)
    return b"".join(data[plane::_INT64_BYTES] for plane in range(_INT64_BYTES))


def _from_planes(data: bytes) -> Sequence[int]:
    count = len(data) // _INT64_BYTES
    numbers = bytearray(len(data))
    for plane in range(_INT64_BYTES):
        numbers[plane::_INT64_BYTES] = data[plane * count : (plane + 1) * count]
    return struct.unpack(f"<{count}q", numbers)


def _checked(planned: QueueRange, *, is_open: bool) -> QueueRange:
    state = planned.state
    _whole(state.next_offset, 0)
    if not is_open and _whole(planned.end, state.next_offset) == OPEN_END:
        raise ValueError("a closed range has no end")
    if state.suspended_until_s is not None:
        _check_seconds(state.suspended_until_s)
    _whole(state.epoch, 0)
    _whole(state.reconsume_times, _LOWEST)
    _text(state.retry_counts.to_text())
    return planned


def _whole(value: object, at_least: int) -> int:
    if type(value) is not int or not at_least <= value <= _HIGHEST:
        raise ValueError(f"{value!r:.{_SHOWN}} is not a number from {at_least} to {_HIGHEST}")
    return value


def _check_seconds(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise ValueError(f"{value!r:.{_SHOWN}} is not a number of seconds")


def _text(value: object) -> str:
    if type(value) is not str:
        raise TypeError(f"{type(value).__name__} in place of a string")
    return value


def _shortened(offset: object) -> str:
    text = str(offset)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
