"""Changes of one table, read from the files in which tasks wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from pyspark_rocketmq.delta.files import WrittenFile
from pyspark_rocketmq.sinks.change_table.columns import MORE
from pyspark_rocketmq.sinks.delta.task_files import TaskFolder


class ChangeRows(Protocol):
    """Changes of one table as tasks wrote them, which can be read several times."""

    @property
    def count(self) -> int:
        """Number of the changes."""
        ...

    def tables(self) -> Iterator[pa.Table]:
        """Yield the changes as several Arrow tables, of which only one is in memory at a time."""
        ...

    def carrying(self) -> Iterator[pa.Table]:
        """Yield the Arrow tables of :meth:`tables`, except those that have only nulls in the column ``MORE``.

        That column has the values of columns that the source got after the query had started.
        """
        ...


@dataclass(frozen=True)
class FileChanges:
    """Changes in files of tasks; implements :class:`ChangeRows`."""

    folder: TaskFolder
    files: Sequence[WrittenFile]

    @property
    def count(self) -> int:
        """Number of the changes in all files."""
        return sum(file.num_records for file in self.files)

    def tables(self) -> Iterator[pa.Table]:
        """Yield the changes of all files as Arrow tables, of which only one is in memory at a time."""
        return self.folder.stream(self.files)

    def carrying(self) -> Iterator[pa.Table]:
        """Yield the changes of the files that may have values in the column ``MORE``.

        That column has the values of columns that the source got after the query had started.
        """
        return self.folder.stream([file for file in self.files if file.null_count(MORE) != file.num_records])
