"""Judgement of a Delta table by its log's metadata: which columns it has and which features it asks of writers.

Pure: values in, sentences out; neither Arrow nor delta-rs is needed. Names of features are those of the Delta
protocol (``PROTOCOL.md``, "Valid Feature Names in Table Features").
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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
    """Say how ``found`` (name → type), the columns of ``where``, differs from ``wanted``; empty when it does not, whatever the order."""
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
