"""A Delta table through delta-rs: its columns and features, queries, one handle per thread.

Pure: values in, sentences out; neither Arrow nor delta-rs is needed. Names of features are those of the Delta
protocol (``PROTOCOL.md``, "Valid Feature Names in Table Features").

Not for executors: importing delta-rs in a process that forks later makes the children fail.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from pyspark_rocketmq.errors import OptionError

_LEGACY_WRITER_FEATURES = (
    (2, "appendOnly"),
    (2, "invariants"),
    (3, "checkConstraints"),
    (4, "changeDataFeed"),
    (4, "generatedColumns"),
    (5, "columnMapping"),
    (6, "identityColumns"),
)
"""Features that a writer version below 7 stands for (``PROTOCOL.md``, "Requirements for Writers")."""
_TABLE_FEATURES_VERSION = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One top-level column as the log's schema has it."""

    name: str
    type: str
    """Delta's type name; JSON text when the type is nested."""
    is_nullable: bool = True
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableForm:
    """What the newest metadata and protocol actions of a table say."""

    columns: tuple[Column, ...]
    partition_by: tuple[str, ...]
    configuration: Mapping[str, str]
    features: frozenset[str]
    """Features a writer must know, whether they are in use or not."""

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
            type=_type_text(field["type"]),
            is_nullable=field.get("nullable", True),
            metadata=field.get("metadata") or {},
        )
        for field in json.loads(schema_json)["fields"]
    )


def writer_features(
    min_writer_version: int, named_writer: Iterable[str] | None, named_reader: Iterable[str] | None
) -> frozenset[str]:
    """Return the features that a protocol action stands for, named or implied by an old version number."""
    if min_writer_version >= _TABLE_FEATURES_VERSION:
        return frozenset(named_writer or ()) | frozenset(named_reader or ())
    return frozenset(name for version, name in _LEGACY_WRITER_FEATURES if version <= min_writer_version)


def column_differences(wanted: Mapping[str, str], found: Mapping[str, str], where: str) -> tuple[str, ...]:
    """Say how ``found``, the columns of ``where`` by type, differ from ``wanted``; empty if not."""
    missing = [f"{name} {wanted[name]}" for name in wanted if name not in found]
    superfluous = [f"{name} {found[name]}" for name in found if name not in wanted]
    differing = [
        f"{name} is {found[name]} instead of {wanted[name]}"
        for name in wanted
        if name in found and found[name] != wanted[name]
    ]
    parts = (
        (f"missing in {where}", missing),
        (f"only in {where}", superfluous),
        ("of another type", differing),
    )
    return tuple(f"{title}: {', '.join(names)}" for title, names in parts if names)


def _type_text(type_: Any) -> str:
    if isinstance(type_, str):
        return type_
    return json.dumps(type_, sort_keys=True)


STORAGE_ERRORS = (DeltaError, OSError)
"""What delta-rs raises when a table or its storage does not answer; storage errors are no ``DeltaError``."""


_SINGLE_SLASH: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")


def sql_literal(text: str) -> str:
    """``text`` as delta-rs' SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def query_rows(table: DeltaTable, sql: str) -> pa.Table:
    """The answer to ``sql`` about ``rows``, as which it knows the version that ``table`` stands at."""
    # QueryBuilder, because delta-rs' Arrow data set reads NULLs from tables with mapped columns; from_stream,
    # because pa.table() loads pandas to see whether it is given a DataFrame.
    found = QueryBuilder().register("rows", table).execute(sql).read_all()
    return pa.RecordBatchReader.from_stream(found).read_all()


def table_uri(path: str | Path) -> str:
    """Return a storage URI as it is and a local path made absolute: other processes work in other folders.

    Raises:
        OptionError: If it is a URI with a single slash, which would be a folder of that name below the one
            that the process works in.
    """
    text = str(path)
    scheme = _SINGLE_SLASH.match(text)
    if scheme is None or isinstance(path, Path):
        return text if "://" in text else str(Path(path).absolute())
    if scheme[1].lower() == "file":
        # As Hadoop writes it, for which a percent sign is one.
        return text[scheme.end() - 1 :]
    rest = text[scheme.end() :]
    if scheme[1].lower() == "dbfs":
        problem = (
            f"'{text}' is a path of Spark's alone; write /dbfs/{rest}, or a folder of a volume: /Volumes/…"
        )
        raise OptionError((problem,), where="path of a table")
    problem = (
        f"'{text}' is neither a path nor a URI; write {scheme[1]}://AUTHORITY/{rest}, or for a folder "
        f"of that name ./{text}"
    )
    raise OptionError((problem,), where="path of a table")


def read_form(table: DeltaTable) -> TableForm:
    """Return the columns, partitioning, properties and features of the version that ``table`` stands at."""
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
