"""Decisions of a Delta sink: whether rows fit a table, and the ids and records of its commits. No I/O.

A Delta commit may store *application ids*, each with a version: its transaction ids. A sink's application id
names one generation of a queue, and the version is the queue's watermark. A commit's *record* is the part of
its ``userMetadata`` that a sink writes: the progress of the whole consumer group.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from pyspark_rocketmq.delta.ddl import names_within
from pyspark_rocketmq.delta.features import PARTITION_TYPES, writable_columns
from pyspark_rocketmq.delta.table import TableForm, column_differences, sql_literal
from pyspark_rocketmq.errors import OptionError, SchemaError
from pyspark_rocketmq.model import MESSAGE_COLUMNS, POSITION_COLUMNS, MessageQueue
from pyspark_rocketmq.sinks.change_table.columns import ONLY_COLUMN
from pyspark_rocketmq.sinks.change_table.compaction import POSITION

Q = TypeVar("Q")
V = TypeVar("V")

POSITION_TYPES = {name: str(MESSAGE_COLUMNS[name]) for name in POSITION_COLUMNS}
"""Columns that every sink table has, except change tables, with Delta's type names.

They identify the message of a row.
"""
_REMOVE_FEATURES: Final = (
    "remove these features from the table (ALTER TABLE delta.`PATH` DROP FEATURE, DROP CONSTRAINT, or ALTER "
    "COLUMN … TYPE STRING)"
)
_FORBIDDEN: Final = frozenset(" ,;{}()\n\t=")
"""Characters that Delta forbids in names of columns and fields, except with column mapping."""
REACHED: Final = "reached"
"""Field in the ``userMetadata`` of a commit of files: watermarks of the group's queues, by application id."""
WATERMARKS: Final = "watermarks"
"""Field in the ``userMetadata`` of a commit by Spark, or one of the same form: the group's watermarks.

The keys are application ids. These watermarks count, and not the versions of the queues' transaction ids.
"""
NUMBER: Final = "commits"
"""Field beside ``watermarks``: number of the group's commits in this form, including this one.

The commit also stores the number as the version of :func:`group_app_id`.
"""
NEWEST: Final = "newest"
"""Field in a commit's ``userMetadata``: the newest message of each queue, by application id."""
WHOLE_AT: Final = "wholeAt"
"""Field of a commit that records all queues of a group with very many queues: the commit's time in ms.

Later commits of the group may record only what has changed since this one.
"""
CHANGED_SINCE: Final = "changedSince"
"""Field of a commit that records only watermarks that have changed since an earlier commit with all queues.

Its value is the table version of that earlier commit, which has the field ``wholeAt``.
"""

NEWER_ROWS_ONLY: Final = (
    "Where a queue's offsets have begun again, use only its newer rows, chosen by another column such as "
    "storeTimestamp: earlier ones have the same offsets."
)
"""Last sentence of advice to take an offset from a table's rows, which do not show a queue's generation."""


def app_id(consumer_group: str, queue: MessageQueue, generation: int = 0) -> str:
    """Return the Delta application id whose version is the watermark of one generation of a queue.

    Its form is ``rocketmq:GROUP:TOPIC:BROKER:QUEUE``, and from the second generation on
    ``rocketmq:GROUP:TOPIC:BROKER:QUEUE.GENERATION``. It is unique: RocketMQ allows no colon in groups and
    topics, and the queue id is digits, so any other colon belongs to the broker's name.
    """
    first = f"rocketmq:{consumer_group}:{queue.topic}:{queue.broker_name}:{queue.queue_id}"
    return f"{first}.{generation}" if generation else first


def group_app_id(consumer_group: str) -> str:
    """Return the application id whose version counts a group's commits by Spark.

    Commits of this package in the form of Spark's commits are counted, too. The id is ``rocketmq:GROUP``,
    which no application id of a queue equals.
    """
    return f"rocketmq:{consumer_group}"


def check_columns(path: str, form: TableForm, wanted: TableForm, *, may_differ: bool = False) -> None:
    """Refuse a table that rows with the columns of ``wanted`` do not fit.

    The table may have further columns that Delta computes. With ``may_differ`` it may also have further
    nullable columns, which are null in these rows.

    Raises:
        SchemaError: If columns, types or partitioning differ; every difference is named.
    """
    asked = wanted.column_types
    found = {
        column.name: column.type
        for column in form.columns
        if column.name in asked
        or (column.name in writable_columns(form) and not (may_differ and column.is_nullable))
    }
    differences = list(column_differences(asked, found, "the table"))
    if wanted.partition_by and wanted.partition_by != form.partition_by:
        differences.append(
            f"partitioned by ({', '.join(form.partition_by)}) instead of ({', '.join(wanted.partition_by)})"
        )
    if differences:
        can_evolve = not may_differ and asked.keys() != found.keys()
        remedy = (
            " Or let the sink add the columns that the table lacks, and write nulls into columns that only "
            "the table has: DeltaSink(schema_evolution=True), or option schemaEvolution=true of "
            "`pyspark-rocketmq consume`."
            if can_evolve
            else ""
        )
        raise SchemaError(
            f"The rows do not fit the Delta table {path}: {'; '.join(differences)}. "
            f"Change the listener's output schema or the table (ALTER TABLE), or name another path.{remedy}"
        )


def cannot_take_files(path: str, refused: Iterable[str], why_not_by_spark: str) -> OptionError:
    """Return the error for a table with ``refused`` features that Spark's writer cannot write either."""
    problem = (
        f"The connector cannot add files to the Delta table {path}, because of: {', '.join(refused)}. "
        f"Spark's own writer could, but cannot be used, because {why_not_by_spark}. If that cannot be "
        f"changed, {_REMOVE_FEATURES}, or let the sink create its own table under another path and copy "
        "from there."
    )
    return OptionError((problem,), where="Delta sink")


def cannot_merge(path: str, refused: Iterable[str]) -> OptionError:
    """Return the error for a change table with ``refused`` features, which only Spark could write."""
    problem = (
        f"The connector cannot write the change table {path}, because of: {', '.join(refused)}. Only Spark "
        "can write a table with these, and a change table is never written by Spark. To continue with this "
        f"table, {_REMOVE_FEATURES}. Otherwise begin a table under another path, and load the source's table "
        "into it."
    )
    return OptionError((problem,), where="change table")


def check_wanted(path: str, wanted: TableForm, *, has_positions: bool = True) -> None:
    """Refuse columns that no sink table can have.

    Raises:
        SchemaError: If, with ``has_positions``, a column of the message's position is missing or of another
            type.
        OptionError: If a partition column is missing, or its type does not allow partitioning.
    """
    types = wanted.column_types
    differences = column_differences(
        POSITION_TYPES, {name: types[name] for name in POSITION_TYPES if name in types}, "the rows"
    )
    if differences and has_positions:
        raise SchemaError(
            f"Rows for the Delta table {path} must carry the position of their message: "
            f"{'; '.join(differences)}. Correct the listener's output schema."
        )
    problems = tuple(
        f"partition column {name!r} has type {types.get(name, 'none: the rows have no such column')}; "
        f"a partition column must be one of {', '.join(sorted(PARTITION_TYPES))}"
        for name in wanted.partition_by
        if types.get(name) not in PARTITION_TYPES
    )
    if problems:
        raise OptionError(problems, where="Delta sink")


def check_characters(path: str, schema_json: str) -> None:
    """Refuse names that Delta forbids: Spark would read such a table, but refuse to ALTER it.

    Raises:
        SchemaError: If there are such names, also of fields within columns; the error lists them.
    """
    forbidden = [repr(name) for name in names_within(schema_json) if _FORBIDDEN & set(name)]
    if forbidden:
        raise SchemaError(
            f"The Delta table {path} cannot have {', '.join(forbidden)}: Delta forbids spaces, tabs, line "
            "ends and the characters ,;{}()= in the name of a column or field. Rename it in the listener's "
            "output schema, or create the table in Spark with column mapping (TBLPROPERTIES "
            "('delta.columnMapping.mode' = 'name')), for which Spark's writer adds the rows."
        )


def merges_changes(columns: Iterable[str]) -> bool:
    """Return whether a table with these columns is a change table, or has the watermarks of some.

    Changes are merged by their positions in the source's log, so consuming them again doubles no row. The
    rows do not have the positions of their messages.
    """
    names = list(columns)
    return POSITION in names or names == [ONLY_COLUMN]


def rows_condition(queue: MessageQueue, begin: int, quote: str = '"') -> str:
    """Return the SQL condition for a queue's rows from an offset on; ``quote`` is put around names."""
    topic, broker, queue_id, offset = (f"{quote}{name}{quote}" for name in POSITION_COLUMNS)
    return (
        f"({topic} = {sql_literal(queue.topic)} AND {broker} = {sql_literal(queue.broker_name)} "
        f"AND {queue_id} = {queue.queue_id} AND {offset} >= {begin})"
    )


class SinkCommit(NamedTuple):
    """A commit of a sink, with or without rows."""

    consumer_group: str
    watermarks: Mapping[str, int]
    """Watermarks that the commit moves, by application id."""
    commit_id: str
    """Id that no other commit in the log has."""
    newest: Mapping[str, str] = MappingProxyType({})
    """The newest message below each moved watermark, as text of ``RememberedMessages``, by application id.

    The text is empty if no newer message is known. The message that was known before is then kept.
    """
    record: Mapping[str, Any] = MappingProxyType({})
    """Fields that the commit records: the progress of the whole group; see ``watermarks.GroupCommit``."""

    @classmethod
    def of(
        cls, consumer_group: str, watermarks: Mapping[str, int], newest: Mapping[str, str] | None = None
    ) -> SinkCommit:
        """Return a commit with a new id; ``newest`` has the newest message of each queue that it moves."""
        return cls(consumer_group, watermarks, str(uuid.uuid4()), newest or {})

    def metadata(self, **more: Any) -> dict[str, str]:
        """Return the property ``userMetadata``, which every Delta writer can set: :meth:`own` as JSON."""
        return {"userMetadata": json.dumps(self.own(**more))}

    def own(self, **more: Any) -> dict[str, Any]:
        """Return the fields of the commit's ``userMetadata``, for :func:`own_metadata` to read.

        ``more`` are further fields.
        """
        return {"consumerGroup": self.consumer_group, "rocketmqCommit": self.commit_id, **more}

    def newest_after(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return the newest message of each queue after this commit, by application id.

        A message is a list: the numbers in its text of ``RememberedMessages``. ``known`` has the messages
        before the commit. Of a queue that the commit moves, only the moved generation is kept.
        """
        newest = dict(known)
        if not known.keys() <= self.newest.keys():
            moved = {_queue_part(name) for name in self.newest}
            for name in known.keys() - self.newest.keys():
                if _queue_part(name) in moved:
                    del newest[name]
        texts = {name: text for name, text in self.newest.items() if text}
        newest.update(zip(texts, json.loads(f"[{','.join(texts.values())}]"), strict=True))
        return newest

    def is_in(self, entry: Mapping[str, Any]) -> bool:
        """Return whether a history entry belongs to this commit."""
        return own_metadata(entry).get("rocketmqCommit") == self.commit_id


def message_text(numbers: Sequence[int]) -> str:
    """Return a message, given as numbers, as text of ``RememberedMessages``."""
    return json.dumps(numbers, separators=(",", ":"))


def last_generations(by_id: Mapping[str, V]) -> Mapping[str, V]:
    """Return the entries of each queue's last generation; the keys of ``by_id`` are application ids."""
    last = _last_of_each(by_id)
    if len(last) == len(by_id):
        return by_id
    return {name: value for name, value in by_id.items() if _is_last(name, last)}


def superseded(ids: Mapping[Q, str], by_id: Mapping[str, object]) -> frozenset[Q]:
    """Return the keys of those ``ids`` for which ``by_id`` has a later generation of the same queue.

    Both the values of ``ids`` and the keys of ``by_id`` are application ids of queues.
    """
    if by_id.keys() <= set(ids.values()):
        return frozenset()
    last = _last_of_each(by_id)
    asked = {key: _parts(name) for key, name in ids.items()}
    return frozenset(key for key, (queue, generation) in asked.items() if last.get(queue, 0) > generation)


def _last_of_each(names: Iterable[str]) -> dict[str, int]:
    last: dict[str, int] = {}
    for name in names:
        queue, generation = _parts(name)
        last[queue] = max(generation, last.get(queue, 0))
    return last


def _is_last(name: str, last: Mapping[str, int]) -> bool:
    queue, generation = _parts(name)
    return last[queue] == generation


def _queue_part(name: str) -> str:
    """Return an application id without the generation."""
    return _parts(name)[0]


@lru_cache(maxsize=1 << 16)
def _parts(name: str) -> tuple[str, int]:
    """Return an application id without the generation, and the generation."""
    before, colon, last = name.rpartition(":")
    queue_id, _, generation = last.partition(".")
    return f"{before}{colon}{queue_id}", int(generation) if generation.isdecimal() else 0


def is_restore_or_replacement(entry: Mapping[str, Any]) -> bool:
    """Return whether a history entry is of a RESTORE, or of a replacement that keeps the table's log."""
    return entry.get("operation") == "RESTORE" or is_replacement(entry)


def is_replacement(entry: Mapping[str, Any]) -> bool:
    """Return whether a history entry is of a statement that replaces the table but keeps its log."""
    operation = str(entry.get("operation"))
    return operation == "CLONE" or operation.startswith(("REPLACE TABLE", "CREATE OR REPLACE TABLE"))


def restored_to(entry: Mapping[str, Any]) -> int:
    """Return the version that a RESTORE brought back.

    Raises:
        ValueError: If the RESTORE names a time. Which version that means depends on the Delta writer.
    """
    parameters = entry["operationParameters"]
    if parameters.get("version") is None:
        raise ValueError(f"RESTORE names no version, only a time: {parameters}.")
    return int(parameters["version"])


def own_metadata(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields that a sink put into a history entry's ``userMetadata``; empty without a JSON object.

    An entry from the log has them as JSON text; in an entry that this process keeps they are parsed already.
    """
    metadata = entry.get("userMetadata") or "{}"
    if isinstance(metadata, dict):
        return metadata
    try:
        metadata = json.loads(metadata)
    except ValueError:
        return {}
    return metadata if isinstance(metadata, dict) else {}
