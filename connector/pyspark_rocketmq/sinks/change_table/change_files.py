"""Changes of one table as tasks wrote them."""

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
        """Yield the changes in parts, one at a time in memory."""
        ...

    def carrying(self) -> Iterator[pa.Table]:
        """Yield the parts in which a change may have values in the column ``MORE``."""
        ...


@dataclass(frozen=True)
class FileChanges:
    """Changes in files of tasks; implements :class:`ChangeRows`."""

    folder: TaskFolder
    files: Sequence[WrittenFile]

    @property
    def count(self) -> int:
        """See :attr:`ChangeRows.count`."""
        return sum(file.num_records for file in self.files)

    def tables(self) -> Iterator[pa.Table]:
        """See :meth:`ChangeRows.tables`."""
        return self.folder.stream(self.files)

    def carrying(self) -> Iterator[pa.Table]:
        """See :meth:`ChangeRows.carrying`."""
        return self.folder.stream([file for file in self.files if file.null_count(MORE) != file.num_records])
