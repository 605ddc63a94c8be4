"""Decides by a table's features and properties which commits need Spark.

Also finds the changes of a table after which files that were written before may no longer fit.

A commit that adds finished Parquet files skips anything that Delta does to rows *while writing them*, such as
computing generated columns.  If a table needs such things, Spark's own writer must write it.  This module
does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pyspark_rocketmq.delta.table import TableForm

_ALLOWED_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        # These are harmless while no column or property uses them; refused_features checks that.
        "checkConstraints",
        "columnMapping",
        "generatedColumns",
        "invariants",
    }
)
"""Features of a table to which files may be added.

delta-rs 1.6 can write them all (each was tried). For a commit that adds whole files with their row counts,
``PROTOCOL.md`` has no further requirements under these features.
"""
_OF_ADDED_COLUMNS = frozenset({"timestampNtz", "appendOnly", "invariants"})
"""Features that may appear or vanish when delta-rs adds the table's first column of times without a zone.

The table's protocol version then changes from one that implies features to one that lists them.
"""
_ROW_ONLY_FEATURES = frozenset(
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
"""Features that by ``PROTOCOL.md`` require nothing of a commit that neither adds nor removes files."""
_COLUMN_FEATURES = {
    "delta.generationExpression": "generated column",
    "delta.identity.start": "identity column",
    "delta.invariants": "invariant of column",
    "__CHAR_VARCHAR_TYPE_STRING": "CHAR or VARCHAR column",
}
_COMPUTED = frozenset({"delta.generationExpression", "delta.identity.start"})
"""Metadata keys of columns that Delta fills itself."""
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
"""Properties that concern only the log, old files and the sizes of files, and not the rows."""
PARTITION_TYPES = frozenset({"string", "byte", "short", "integer", "long", "boolean", "date"})
"""Types whose partition values have only one text form."""


def refused_features(form: TableForm) -> tuple[str, ...]:
    """Return the names of the features that forbid adding files to the table; empty if none does."""
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
    """Return the features for which Spark must make even a commit without rows; empty if there are none."""
    return tuple(sorted(form.features - _ALLOWED_FEATURES - _ROW_ONLY_FEATURES))


def form_changes(before: TableForm, now: TableForm) -> tuple[str, ...]:
    """Name the changes from ``before`` to ``now`` after which files written for ``before`` may not fit.

    A name is, for example, ``column id`` or ``feature rowTracking``. Empty if there are no such changes.
    """
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


def without_additions(form: TableForm, before: TableForm) -> TableForm:
    """Return ``form`` without columns that were added since ``before`` and may be null.

    Features that the table got because of such columns are left out, too. Rows written for ``before`` still
    fit a table with such additions.
    """
    known = before.column_types
    columns = tuple(each for each in form.columns if each.name in known or not each.is_nullable)
    is_same = form.features ^ before.features <= _OF_ADDED_COLUMNS
    return replace(form, columns=columns, features=before.features if is_same else form.features)


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]


def _without_comment(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if key != "comment"}


def _decides_on_rows(property_name: str) -> bool:
    """Return whether a table's property may concern the rows that are added, and not only maintenance."""
    return property_name.startswith("delta.") and property_name not in _UPKEEP_PROPERTIES


def expires_transactions(form: TableForm) -> bool:
    """Return whether the table's writers delete old transaction ids."""
    return TRANSACTION_RETENTION in form.configuration


def uncompacted_features(form: TableForm) -> tuple[str, ...]:
    """Return the names of the features that forbid compacting the table's files; empty if none does.

    Deletion vectors forbid it because delta-rs does not show which files have one.  So do partition columns
    of other types than :data:`PARTITION_TYPES`, such as timestamps: delta-rs does not show the time zone that
    the log uses for these, and Spark may have used another one than UTC.
    """
    types = form.column_types
    many_texts = [name for name in form.partition_by if types[name] not in PARTITION_TYPES]
    return (
        *refused_features(form),
        *sorted(form.features & {"deletionVectors"}),
        *(f"partition column {name} of type {types[name]}" for name in many_texts),
    )


def writable_columns(form: TableForm) -> frozenset[str]:
    """Return the columns for which a writer gives values; Delta computes the others."""
    return frozenset(column.name for column in form.columns if not _COMPUTED & column.metadata.keys())
