"""The changes of a batch for many tables, split by table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from pyspark_rocketmq.sinks.change_table.columns import KEYS, SCHEMA, SOURCE, TARGET
from pyspark_rocketmq.sinks.change_table.compaction import OPERATION


@dataclass
class TargetChanges:
    """The changes of one table in a file; implements ``ChangeRows``."""

    path: str
    """Path of an Arrow file with the changes of all tables."""
    batches: list[int] = field(default_factory=list)
    """Numbers of the file's record batches with changes of this table."""
    count: int = 0
    key_texts: set[str] = field(default_factory=set)
    sources: set[str] = field(default_factory=set)
    """The sources of the rows (``routes.Routed.source``)."""
    operations: set[str] = field(default_factory=set)

    @property
    def keys(self) -> list[tuple[str, ...]]:
        """Names of the key's columns, ``[("id",)]``; two or more tuples if changes have different keys.

        Empty if there are only truncations and changes of the schema.
        """
        return [tuple(json.loads(text)) for text in sorted(self.key_texts)]

    @property
    def has_rows(self) -> bool:
        """Whether there are changes of rows, not only of the schema."""
        return self.operations != {SCHEMA}

    def tables(self) -> Iterator[pa.Table]:
        """Yield the table's changes as Arrow tables, one for each of its record batches in the file."""
        with pa.memory_map(self.path) as mapped, pa.ipc.open_file(mapped) as stored:
            for number in self.batches:
                yield pa.Table.from_batches([stored.get_batch(number)])

    def carrying(self) -> Iterator[pa.Table]:
        """Yield all changes, like :meth:`tables`: each may have values in the column ``MORE``."""
        return self.tables()

    def add(self, number: int, rows: pa.RecordBatch) -> None:
        """Note that record batch ``number`` of the file has the changes ``rows`` of this table."""
        self.batches.append(number)
        self.count += rows.num_rows
        self.key_texts.update(rows.column(KEYS).drop_null().unique().to_pylist())
        self.sources.update(rows.column(SOURCE).unique().to_pylist())
        self.operations.update(rows.column(OPERATION).unique().to_pylist())


def split_by_target(changes: Iterable[pa.Table], path: str) -> dict[str, TargetChanges]:
    """Write changes into an Arrow file at ``path``, whose record batches each have changes of one table.

    Return where the changes of each table are in the file. The keys are the tables' folders, as in the column
    ``TARGET``.
    """
    found: dict[str, TargetChanges] = {}
    written = 0
    parts = iter(changes)
    first = next(parts, None)
    if first is None:
        return found
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, first.schema) as stored:
        for rows in (first, *parts):
            for target, part in _parts(rows):
                stored.write_batch(part)
                found.setdefault(target, TargetChanges(path)).add(written, part)
                written += 1
    return found


def _parts(rows: pa.Table) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the folder of each table that has changes in ``rows``, and these changes."""
    [*batches] = rows.sort_by(TARGET).combine_chunks().to_batches()
    for batch in batches:
        start = 0
        for each in batch.column(TARGET).value_counts():
            count = each["counts"].as_py()
            yield each["values"].as_py(), batch.slice(start, count)
            start += count
