"""May files be added, do rows fit, whose commit is it: decisions without I/O.

The sink adds finished Parquet files to the log, so whatever Delta does to rows *while writing them* would be
skipped: such tables are left to Spark's own writer.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from pyspark_rocketmq.delta.ddl import names_within
from pyspark_rocketmq.delta.table import TableForm, column_differences, sql_literal
from pyspark_rocketmq.errors import OptionError, SchemaError
from pyspark_rocketmq.model import MessageQueue

Q = TypeVar("Q")
V = TypeVar("V")


def app_id(consumer_group: str, queue: MessageQueue, generation: int = 0) -> str:
    """The Delta application id whose version is the watermark of one generation of a queue.

    Shape ``rocketmq:GROUP:TOPIC:BROKER:QUEUE``, from the second generation on
    ``rocketmq:GROUP:TOPIC:BROKER:QUEUE.GENERATION``. Unique: RocketMQ allows no colon in
    groups and topics, and the queue id is digits, so colons in a broker name stay between them.
    """
    first = f"rocketmq:{consumer_group}:{queue.topic}:{queue.broker_name}:{queue.queue_id}"
    return f"{first}.{generation}" if generation else first


def group_app_id(consumer_group: str) -> str:
    """The transaction id that counts a group's commits; no queue's has this form."""
    return f"rocketmq:{consumer_group}"


POSITION_TYPES = {"topic": "string", "brokerName": "string", "queueId": "integer", "queueOffset": "long"}
"""Columns every sink table has, by Delta's type names: which message a row came from."""

_ALLOWED_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        # Harmless while no column or property uses them, which is looked at below.
        "checkConstraints",
        "columnMapping",
        "generatedColumns",
        "invariants",
    }
)
"""Features that do not touch the adding of files, of those that delta-rs 1.6 writes (tried one by one).

By ``PROTOCOL.md`` a commit that adds whole files, with their row counts, needs nothing more for any of them.
"""
_OF_ROWS_ONLY = frozenset(
    {
        "allowColumnDefaults",
        "clustering",
        "domainMetadata",
        "identityColumns",
        "rowTracking",
        "typeWidening",
        "typeWidening-preview",
        "vacuumProtocolCheck",
    }
)
"""Features that by ``PROTOCOL.md`` ask nothing of a commit that adds and removes no file."""
_COLUMN_FEATURES = {
    "delta.generationExpression": "generated column",
    "delta.identity.start": "identity column",
    "delta.invariants": "invariant of column",
    "__CHAR_VARCHAR_TYPE_STRING": "CHAR or VARCHAR column",
}
_COMPUTED = frozenset({"delta.generationExpression", "delta.identity.start"})
"""Of columns that Delta fills itself."""
TRANSACTION_RETENTION: Final = "delta.setTransactionRetentionDuration"
_UPKEEP_PROPERTIES = frozenset(
    {
        "delta.autoOptimize",
        "delta.autoOptimize.autoCompact",
        "delta.autoOptimize.optimizeWrite",
        "delta.checkpoint.writeStatsAsJson",
        "delta.checkpoint.writeStatsAsStruct",
        "delta.checkpointInterval",
        "delta.checkpointPolicy",
        "delta.deletedFileRetentionDuration",
        "delta.enableExpiredLogCleanup",
        "delta.enableFullRetentionRollback",
        "delta.isolationLevel",
        "delta.logRetentionDuration",
        "delta.minReaderVersion",
        "delta.minWriterVersion",
        "delta.randomizeFilePrefixes",
        "delta.sampling.enabled",
        TRANSACTION_RETENTION,
        "delta.targetFileSize",
        "delta.tuneFileSizesForRewrites",
    }
)
"""Properties that decide on the log, on old files and on the sizes of files."""
_PARTITION_TYPES = frozenset({"string", "byte", "short", "integer", "long", "boolean", "date"})
"""Types whose partition value has one text form only."""


def refused_features(form: TableForm) -> tuple[str, ...]:
    """Name what forbids adding files to the table; empty when nothing does."""
    refused = sorted(form.features - _ALLOWED_FEATURES)
    if form.has_column_mapping:
        refused.append("columnMapping (delta.columnMapping.mode)")
    refused += [
        f"CHECK constraint {key.removeprefix('delta.constraints.')}"
        for key in sorted(form.configuration)
        if key.startswith("delta.constraints.")
    ]
    refused += [
        f"{title} {column.name}"
        for column in form.columns
        for key, title in _COLUMN_FEATURES.items()
        if key in column.metadata or key in column.marks_within
    ]
    return tuple(refused)


def features_of_every_commit(form: TableForm) -> tuple[str, ...]:
    """Name what leaves even a commit without rows to Spark's writer; empty when nothing does."""
    return tuple(sorted(form.features - _ALLOWED_FEATURES - _OF_ROWS_ONLY))


def form_changes(before: TableForm, now: TableForm) -> tuple[str, ...]:
    """Name what has changed so that files written for the form ``before`` may not fit ``now``."""
    columns = [
        {column.name: replace(column, metadata=_without_comment(column.metadata)) for column in form.columns}
        for form in (before, now)
    ]
    properties = [
        {key: value for key, value in form.configuration.items() if _decides_on_rows(key)}
        for form in (before, now)
    ]
    changes = [f"column {name}" for name in _differing(*columns)]
    if before.partition_by != now.partition_by:
        changes.append(f"partitioning, now by ({', '.join(now.partition_by)})")
    changes += [f"property {name}" for name in _differing(*properties)]
    changes += [f"feature {name}" for name in sorted(before.features ^ now.features)]
    return tuple(changes)


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]


def _without_comment(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if key != "comment"}


def _decides_on_rows(property_name: str) -> bool:
    """Whether a table's property may concern the rows that are added, and not only their upkeep."""
    return property_name.startswith("delta.") and property_name not in _UPKEEP_PROPERTIES


def forgets_transactions(form: TableForm) -> bool:
    """Whether the table's writers drop transaction ids when they are old."""
    return TRANSACTION_RETENTION in form.configuration


def uncompacted_features(form: TableForm) -> tuple[str, ...]:
    """Name what forbids compacting the table's files; empty when nothing does.

    A deletion vector lies beside its file, and delta-rs does not tell which files have one.  Of a time it
    does not tell in which zone the log has it: Spark may have meant another one than UTC.
    """
    types = form.column_types
    many_texts = [name for name in form.partition_by if types[name] not in _PARTITION_TYPES]
    return (
        *refused_features(form),
        *sorted(form.features & {"deletionVectors"}),
        *(f"partition column {name} of type {types[name]}" for name in many_texts),
    )


def check_columns(path: str, form: TableForm, wanted: TableForm, *, may_differ: bool = False) -> None:
    """Refuse a table that rows of ``wanted``'s columns do not fit.

    The table may have columns that are computed, and with ``may_differ`` others in which the rows then have
    nulls.

    Raises:
        SchemaError: If columns, types or partitioning differ; every difference is named.
    """
    asked = wanted.column_types
    found = {
        column.name: column.type
        for column in form.columns
        if column.name in asked
        or (column.name in given_columns(form) and not (may_differ and column.is_nullable))
    }
    differences = list(column_differences(asked, found, "the table"))
    if wanted.partition_by and wanted.partition_by != form.partition_by:
        differences.append(
            f"partitioned by ({', '.join(form.partition_by)}) instead of ({', '.join(wanted.partition_by)})"
        )
    if differences:
        can_evolve = not may_differ and asked.keys() != found.keys()
        remedy = (
            " Or let the sink add columns that the table lacks, and have nulls in those that only the table "
            "has: DeltaSink(schema_evolution=True), option schemaEvolution=true of "
            "`pyspark-rocketmq consume`."
            if can_evolve
            else ""
        )
        raise SchemaError(
            f"The rows do not fit the Delta table {path}: {'; '.join(differences)}. "
            f"Change the listener's output schema or the table (ALTER TABLE), or name another path.{remedy}"
        )


def given_columns(form: TableForm) -> frozenset[str]:
    """Columns whose values come with the rows; Delta computes the others."""
    return frozenset(column.name for column in form.columns if not _COMPUTED & column.metadata.keys())


def cannot_take_files(path: str, refused: Iterable[str], why_not_by_spark: str) -> OptionError:
    """The error for a table with such features, where Spark's writer cannot be used either."""
    problem = (
        f"The Delta table {path} cannot take files from the connector, because it has: {', '.join(refused)}. "
        f"Spark's own writer, which knows these, cannot be used, because {why_not_by_spark}. Remove them "
        "(ALTER TABLE ... DROP FEATURE, DROP CONSTRAINT, ALTER COLUMN ... TYPE STRING), or let the sink make "
        "a table of its own under another path and copy from there."
    )
    return OptionError((problem,), where="Delta sink")


def check_wanted(path: str, wanted: TableForm) -> None:
    """Refuse columns that no sink table can have.

    Raises:
        SchemaError: If a row could not say which message it came from.
        OptionError: If a partition column is missing or of a type that cannot be one.
    """
    types = wanted.column_types
    differences = column_differences(
        POSITION_TYPES, {name: types[name] for name in POSITION_TYPES if name in types}, "the rows"
    )
    if differences:
        raise SchemaError(
            f"Rows for the Delta table {path} must carry the position of their message: "
            f"{'; '.join(differences)}."
        )
    problems = tuple(
        f"partition column {name!r} has type {types.get(name, 'none: the rows have no such column')}; "
        f"a partition column must be one of {', '.join(sorted(_PARTITION_TYPES))}"
        for name in wanted.partition_by
        if types.get(name) not in _PARTITION_TYPES
    )
    if problems:
        raise OptionError(problems, where="Delta sink")


_FORBIDDEN: Final = frozenset(" ,;{}()\n\t=")
"""Characters that Delta takes in no name of a column or field, except with column mapping."""


def check_characters(path: str, schema_json: str) -> None:
    """Refuse names that Delta forbids: Spark would read such a table, and take no ALTER TABLE for it.

    Raises:
        SchemaError: Naming each of them, fields within columns included.
    """
    forbidden = [repr(name) for name in names_within(schema_json) if _FORBIDDEN & set(name)]
    if forbidden:
        raise SchemaError(
            f"The Delta table {path} cannot have {', '.join(forbidden)}: Delta takes no space, tab or line "
            "end and none of ,;{}()= in the name of a column or field. Rename it in the listener's output "
            "schema, or make the table in Spark with column mapping (TBLPROPERTIES "
            "('delta.columnMapping.mode' = 'name')), for which Spark's writer adds the rows."
        )


def rows_condition(queue: MessageQueue, begin: int, quote: str = '"') -> str:
    """The condition, in SQL, that chooses a queue's rows from an offset on; ``quote`` is that of names."""
    topic, broker, queue_id, offset = (f"{quote}{name}{quote}" for name in POSITION_TYPES)
    return (
        f"({topic} = {sql_literal(queue.topic)} AND {broker} = {sql_literal(queue.broker_name)} "
        f"AND {queue_id} = {queue.queue_id} AND {offset} >= {begin})"
    )


class SinkCommit(NamedTuple):
    """A commit of a sink, with or without rows."""

    consumer_group: str
    watermarks: Mapping[str, int]
    """By application id; only those that it moves."""
    commit_id: str
    """Tells it from all others in the log."""
    newest: Mapping[str, str] = MappingProxyType({})
    """The newest message below each watermark that moves, as text of ``consume.generations``, by its id;
    empty where the one before is the newest still."""
    record: Mapping[str, Any] = MappingProxyType({})
    """How far the whole group is with this commit; see ``group_commits.GroupCommit``."""

    @classmethod
    def of(
        cls, consumer_group: str, watermarks: Mapping[str, int], newest: Mapping[str, str] | None = None
    ) -> SinkCommit:
        """A new one."""
        return cls(consumer_group, watermarks, str(uuid.uuid4()), newest or {})

    def metadata(self, **more: Any) -> dict[str, str]:
        """What it says of itself, in ``userMetadata``, which every Delta writer can set."""
        return {"userMetadata": json.dumps(self.own(**more))}

    def own(self, **more: Any) -> dict[str, Any]:
        """The same, as :func:`own_metadata` returns it."""
        return {"consumerGroup": self.consumer_group, "rocketmqCommit": self.commit_id, **more}

    def newest_after(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return the newest messages of all queues, as numbers; ``known`` are those before this commit.

        A queue has only that of its last generation.
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
        """Whether a history entry is this commit's."""
        return own_metadata(entry).get("rocketmqCommit") == self.commit_id


REACHED: Final = "reached"
"""In the ``userMetadata`` of a commit of files: watermarks of the group's queues, by application id."""
WATERMARKS: Final = "watermarks"
"""The same in a commit as Spark makes it, after which transaction ids of queues do not count."""
NUMBER: Final = "commits"
"""Beside it: the version of the group's own id, which counts such commits."""
NEWEST: Final = "newest"
"""In a commit's ``userMetadata``: the newest message of each queue, by application id."""
WHOLE_AT: Final = "wholeAt"
"""In a commit of files with very many queues, all of which it records: when it was made, in milliseconds."""
CHANGED_SINCE: Final = "changedSince"
"""In a commit of files that records only what has changed since such a commit: the version of that one."""


def message_text(numbers: Sequence[int]) -> str:
    """Return a newest message as text of ``consume.generations``."""
    return json.dumps(numbers, separators=(",", ":"))


def last_generations(by_id: Mapping[str, V]) -> Mapping[str, V]:
    """Return the entries, by application id, of the last generation of each queue."""
    last = _last_of_each(by_id)
    if len(last) == len(by_id):
        return by_id
    return {name: value for name, value in by_id.items() if _is_last(name, last)}


def superseded(ids: Mapping[Q, str], by_id: Mapping[str, object]) -> frozenset[Q]:
    """Return those of ``ids`` of which ``by_id`` has a later generation."""
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
    """An application id without the generation."""
    return _parts(name)[0]


@lru_cache(maxsize=1 << 16)
def _parts(name: str) -> tuple[str, int]:
    """The same, and the generation."""
    before, colon, last = name.rpartition(":")
    queue_id, _, generation = last.partition(".")
    return f"{before}{colon}{queue_id}", int(generation) if generation.isdecimal() else 0


def puts_other_rows(entry: Mapping[str, Any]) -> bool:
    """Whether a history entry is of a RESTORE, or of what replaces a table and goes on with its log."""
    return entry.get("operation") == "RESTORE" or is_replacement(entry)


def is_replacement(entry: Mapping[str, Any]) -> bool:
    """Whether it says that the table was made anew on its log, with or without rows."""
    operation = str(entry.get("operation"))
    return operation == "CLONE" or operation.startswith(("REPLACE TABLE", "CREATE OR REPLACE TABLE"))


def restored_to(entry: Mapping[str, Any]) -> int:
    """The version that a RESTORE brought back.

    Raises:
        ValueError: If it was named by a time: which version that was, each writer of Delta tables decides for
            itself.
    """
    parameters = entry["operationParameters"]
    if parameters.get("version") is None:
        raise ValueError(f"RESTORE names no version, only a time: {parameters}.")
    return int(parameters["version"])


def own_metadata(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The sink's own part of a history entry; empty for commits of others.

    An entry that is kept by the writer of its commit has it as it was, and need not be parsed.
    """
    metadata = entry.get("userMetadata") or "{}"
    if isinstance(metadata, dict):
        return metadata
    try:
        metadata = json.loads(metadata)
    except ValueError:
        return {}
    return metadata if isinstance(metadata, dict) else {}
