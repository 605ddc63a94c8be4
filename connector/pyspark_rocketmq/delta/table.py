"""Opens, creates, describes and queries Delta tables through delta-rs.

Names of features are those of the Delta protocol (``PROTOCOL.md``, "Valid Feature Names in Table Features").

Do not import this on executors: if a process imports delta-rs and forks later, its children fail.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.table import SUPPORTED_READER_FEATURES

from pyspark_rocketmq.delta.ddl import NOT_NULL, metadata_keys_within, type_ddl
from pyspark_rocketmq.delta.paths import check_decodes_alike, check_exclusive_create, local_path
from pyspark_rocketmq.delta.storage_options import NO_OPTIONS, StorageOptions
from pyspark_rocketmq.display import masked, masking_logger
from pyspark_rocketmq.retry import commit_with_retry

logger = masking_logger(__name__)

T = TypeVar("T")

STORAGE_ERRORS = (DeltaError, OSError)
"""Errors of delta-rs: DeltaError if a table cannot be read, OSError if its storage does not answer."""

_PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses in seconds before remote storage is asked again."""
_OPEN_ATTEMPTS: Final = 9
"""Number of attempts to open a local table in which a ``DeltaError`` is ignored.

One more attempt follows, and raises the error. If there is no table, the first attempt raises the error.
"""

_LEGACY_WRITER_FEATURES = (
    (2, "appendOnly"),
    (2, "invariants"),
    (3, "checkConstraints"),
    (4, "changeDataFeed"),
    (4, "generatedColumns"),
    (5, "columnMapping"),
    (6, "identityColumns"),
)
"""Features that a writer version below 7 implies (``PROTOCOL.md``, "Requirements for Writers")."""
_TABLE_FEATURES_VERSION = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One top-level column as the log's schema has it."""

    name: str
    type: str
    """Delta's type name; SQL text when the type is nested."""
    is_nullable: bool = True
    metadata: Mapping[str, Any]
    marks_within: frozenset[str] = frozenset()
    """Metadata keys of fields within the type (of its structs), except comments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableForm:
    """A table's columns, partitioning, properties and features at one version."""

    columns: tuple[Column, ...]
    partition_by: tuple[str, ...]
    configuration: Mapping[str, str]
    features: frozenset[str]
    """Features that a writer must support, whether they are in use or not."""

    @property
    def column_types(self) -> dict[str, str]:
        """Type by column name."""
        return {column.name: column.type for column in self.columns}

    @property
    def has_column_mapping(self) -> bool:
        """Whether the files' column names differ from the table's."""
        return self.configuration.get("delta.columnMapping.mode", "none") != "none"


def parse_columns(schema_json: str) -> tuple[Column, ...]:
    """Read the columns from the ``schemaString`` of a metadata action."""
    return tuple(
        Column(
            name=field["name"],
            type=field["type"] if isinstance(field["type"], str) else type_ddl(field["type"]),
            is_nullable=field.get("nullable", True),
            metadata=field.get("metadata") or {},
            marks_within=metadata_keys_within(field["type"]),
        )
        for field in json.loads(schema_json)["fields"]
    )


def writer_features(
    min_writer_version: int, named_writer: Iterable[str] | None, named_reader: Iterable[str] | None
) -> frozenset[str]:
    """Return the features of a protocol action: those that it names, or that its old version implies."""
    if min_writer_version >= _TABLE_FEATURES_VERSION:
        return frozenset(named_writer or ()) | frozenset(named_reader or ())
    return frozenset(name for version, name in _LEGACY_WRITER_FEATURES if version <= min_writer_version)


def column_differences(wanted: Mapping[str, str], found: Mapping[str, str], where: str) -> tuple[str, ...]:
    """Describe how ``found``, the types of the columns in ``where``, differ from ``wanted``.

    Return one text for all missing columns, one for all superfluous ones, and one for all of another type;
    texts without columns are left out. A type does not differ if it is the wanted type without any NOT NULL
    in it.
    """
    missing = [f"{name} {type_ddl(wanted[name])}" for name in wanted if name not in found]
    superfluous = [f"{name} {type_ddl(found[name])}" for name in found if name not in wanted]
    differing = [
        f"{name} is {type_ddl(found[name])} instead of {type_ddl(wanted[name])}"
        for name in wanted
        if name in found and not _fits(wanted[name], found[name])
    ]
    parts = (
        (f"missing in {where}", missing),
        (f"only in {where}", superfluous),
        ("of another type", differing),
    )
    return tuple(f"{title}: {', '.join(names)}" for title, names in parts if names)


def _fits(wanted: str, found: str) -> bool:
    """Return whether ``found`` is the type ``wanted``, or this type with nulls allowed at every depth."""
    return found in (wanted, wanted.replace(NOT_NULL, ""))


def as_nullable(field: pa.Field) -> pa.Field:
    """Return the column with nulls allowed at every depth."""
    return pa.field(field.name, _nullable_type(field.type), metadata=field.metadata)


def _nullable_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type_):
        return pa.struct([as_nullable(field) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(_nullable_type(type_.key_type), as_nullable(type_.item_field))
    if pa.types.is_list(type_):
        return pa.list_(as_nullable(type_.value_field))
    if pa.types.is_large_list(type_):
        return pa.large_list(as_nullable(type_.value_field))
    return type_


def read_with_retry(
    what: str, place: str, storage: StorageOptions, read: Callable[[], T], sleep: Callable[[float], object]
) -> T:
    """Return ``read()``; if it raises DeltaError or OSError, call it up to five more times.

    ``what`` names what is read, for logs and errors. ``place`` is the table's absolute path, URI, or name in
    a catalog. A table on a local disk is read only once.

    Within each call delta-rs itself tries twenty times, which takes some ten seconds, unless the storage
    options set other numbers.

    Raises:
        DeltaError, OSError: If the last call fails.
    """
    folder = local_path(place)
    is_on_disk = folder is not None and Path(folder).is_absolute()

    def attempt(_: Exception | None) -> T:
        try:
            return read()
        except STORAGE_ERRORS as error:
            # This removes secrets from the error before it is logged.
            storage.describe_error(error)
            raise

    return commit_with_retry(what, attempt, () if is_on_disk else _PAUSES_S, sleep, unknown=STORAGE_ERRORS)


def open_table(uri: str, storage: StorageOptions = NO_OPTIONS, *, version: int | None = None) -> DeltaTable:
    """Open a table, its newest version by default, with the storage options as last renewed.

    delta-rs lists the log's folder, which takes a while if the folder is large.  If two commits are made
    meanwhile, a local disk may list only the later one.  delta-rs then reports a gap in the log, and this
    function opens the table again.

    Raises:
        DeltaError: If there is no table, or if it cannot be read.
        OSError: If its storage does not answer.
    """
    options = storage.values_for(uri)
    for _ in range(_OPEN_ATTEMPTS if version is None and local_path(uri) is not None else 0):
        try:
            return DeltaTable(uri, storage_options=options)
        except TableNotFoundError:
            raise
        except DeltaError:
            logger.debug("table could not be opened: %s", masked(uri), exc_info=True)
    return DeltaTable(uri, version, storage_options=options)


def create_table(
    uri: str,
    schema: pa.Schema,
    partition_by: Sequence[str],
    storage: StorageOptions = NO_OPTIONS,
    **settings: Any,
) -> DeltaTable:
    """Create a table with delta-rs' default protocol (1/2), or open the one that another process created.

    Raises:
        DeltaError, OSError: If the table could be neither created nor opened.
        OptionError: If two writers could overwrite each other's commits in the folder, or if delta-rs would
            decode its path.
    """
    check_decodes_alike(uri)
    folder = local_path(uri)
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    check_exclusive_create(uri)
    # Without this, a delta-rs that lost the race for version 0 would try again, and its version 1 would give
    # the table another id.
    once = CommitProperties(max_commit_retries=0)
    try:
        return DeltaTable.create(
            uri,
            schema=schema,
            partition_by=list(partition_by),
            commit_properties=once,
            storage_options=storage.values_for(uri),
            raise_if_key_not_exists=False,
            **settings,
        )
    except DeltaError:
        return open_table(uri, storage)


def sql_literal(text: str) -> str:
    """Return ``text`` as a literal of delta-rs' SQL."""
    return "'" + text.replace("'", "''") + "'"


def highest_text(table: DeltaTable, column: str) -> str | None:
    """Return the highest text of a column, as the statistics of the files show it; None if they show none.

    Statistics cut off a long text, and may end it with another character, so the result may not be a value of
    the column.
    """
    files = pa.table(table.get_add_actions(flatten=True))
    name = f"max.{column}"
    found = files[name].drop_null().to_pylist() if name in files.column_names else ()
    return max(found, default=None)


def query_rows(table: DeltaTable, sql: str) -> pa.Table:
    """Run ``sql`` on the version that ``table`` is at, and return the rows; the table's name is ``rows``.

    Raises:
        DeltaError, OSError: If the table's files cannot be read.
    """
    # QueryBuilder, because delta-rs' Arrow data set reads NULLs from tables with mapped columns. from_stream,
    # because pa.table() loads pandas to see whether its argument is a DataFrame.
    try:
        found = QueryBuilder().register("rows", table).execute(sql).read_all()
    except Exception as error:
        if type(error) is Exception:
            # delta-rs raises a plain Exception for a file that it cannot read from the storage.
            raise DeltaError(str(error)) from error
        raise
    return pa.RecordBatchReader.from_stream(found).read_all()


def unread_features(table: DeltaTable) -> tuple[str, ...]:
    """Return the names of the features with which delta-rs' data set cannot read a table."""
    return tuple(sorted({*(table.protocol().reader_features or ())} - SUPPORTED_READER_FEATURES))


def arrow_columns(table: DeltaTable) -> pa.Schema:
    """Return the columns of the version that ``table`` is at, as Delta writes them into Parquet."""
    return pa.schema(table.schema().to_arrow()).remove_metadata()


def read_form(table: DeltaTable) -> TableForm:
    """Return the columns, partitioning, properties and features of the version that ``table`` is at."""
    metadata = table.metadata()
    protocol = table.protocol()
    return TableForm(
        columns=parse_columns(table.schema().to_json()),
        partition_by=tuple(metadata.partition_columns),
        configuration=dict(metadata.configuration),
        features=writer_features(
            protocol.min_writer_version, protocol.writer_features, protocol.reader_features
        ),
    )
