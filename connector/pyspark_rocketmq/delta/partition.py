"""Reads and replaces the rows of one partition, in a table that has one partition column.

Once the partition's files are known, later commits show which files have taken their place.  So on a disk of
this machine, they can be followed without delta-rs and without listing the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from pyspark_rocketmq.delta.commit import (
    NO_POST_COMMIT_HOOKS,
    CommitNote,
    FileCommit,
    StoredFile,
    is_below,
    stored_files,
)
from pyspark_rocketmq.delta.files import GrowingFile, WrittenFile
from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.delta.snapshot import TableSnapshot
from pyspark_rocketmq.delta.storage_options import filesystem_of
from pyspark_rocketmq.delta.table import query_rows, sql_literal

_MOST_FOLLOWED = 50
"""Maximum number of commits that are read one by one to find a partition's files."""

Files = tuple[StoredFile, ...]


class Partition(NamedTuple):
    """The partition of a table whose ``column`` has this ``value``."""

    column: str
    value: str

    @property
    def predicate(self) -> str:
        """Condition for the partition's rows, in delta-rs' SQL."""
        return f"{self.column} = {sql_literal(self.value)}"

    @property
    def _values(self) -> dict[str, str | None]:
        return {self.column: self.value}

    @property
    def _key(self) -> tuple[tuple[str, str | None], ...]:
        """The partition in the form of ``StoredFile.partition``."""
        return ((self.column, self.value),)

    def rows_in(self, table: DeltaTable) -> pa.Table:
        """Return the partition's rows in the version that ``table`` is at.

        Raises:
            DeltaError, OSError: If the table's files cannot be read.
        """
        return query_rows(table, f"SELECT * FROM rows WHERE {self.predicate}")  # noqa: S608 - a quoted literal

    def files_in(self, table: DeltaTable) -> Files | None:
        """Return the partition's files in the version that ``table`` is at.

        Return None if one of the files is outside the table's folder.
        """
        files = tuple(file for file in stored_files(table) if file.partition == self._key)
        return files if all(is_below(file.path) for file in files) else None

    def files_at(self, log: LogFiles, version: int, *, mark: str) -> Files | None:
        """Find the partition's files in a version by reading only a few commits, without delta-rs.

        These are the newest commit that replaced all rows of the partition, and the commits after it.

        Args:
            log: The table's log.
            version: A version whose commits are still in the log.
            mark: Name of a field of ``commitInfo``; a commit that has this field replaces all rows of the
                partition whose value is the field's.

        Returns:
            The files; None if they cannot be known in this way, so that delta-rs has to be asked.
        """
        for replaced in range(version, max(-1, version - _MOST_FOLLOWED), -1) if log.is_local else ():
            try:
                actions = log.actions(replaced)
            except (OSError, ValueError):
                return None
            marks = {action["commitInfo"].get(mark) for action in actions if "commitInfo" in action}
            if self.value in marks:
                return self._files_from(log, replaced, version, actions, mark=mark)
            if marks <= {None}:
                return None
        return None

    def _files_from(
        self, log: LogFiles, replaced: int, version: int, actions: Sequence[dict[str, Any]], *, mark: str
    ) -> Files | None:
        """Return the partition's files in ``version``; None if the commits do not show them.

        ``actions`` are those of commit ``replaced``, which replaced all rows of the partition.
        """
        found: dict[str, StoredFile] = {}
        if not all(self._follow(action, found) for action in actions if "remove" not in action):
            return None
        return self.files_after(log, tuple(found.values()), range(replaced + 1, version + 1), mark=mark)

    def files_after(self, log: LogFiles, files: Files, versions: range, *, mark: str) -> Files | None:
        """Return the partition's files after further commits.

        Args:
            log: The table's log.
            files: The partition's files before these commits.
            versions: The commits, in order.
            mark: Name of a field of ``commitInfo``. A commit that has this field only adds and removes whole
                files. If a commit lacks the field, the files cannot be known.

        Returns:
            The files; None if they cannot be known in this way, so that delta-rs has to be asked.
        """
        # On remote storage, each commit would be one more request.
        if not log.is_local or len(versions) > _MOST_FOLLOWED:
            return None
        found: dict[str, StoredFile] = {unquote(file.path): file for file in files}
        for version in versions:
            try:
                actions = log.actions(version)
            except (OSError, ValueError):
                return None
            if not any(mark in action.get("commitInfo", {}) for action in actions):
                return None
            for action in actions:
                if not self._follow(action, found):
                    return None
        return tuple(found.values())

    def _follow(self, action: dict[str, Any], found: dict[str, StoredFile]) -> bool:
        """Apply one action of a commit to ``found``, the partition's files by decoded path.

        Return False if the action's effect on these files is unknown.
        """
        [(kind, fields)] = action.items()
        if kind == "add" and fields["partitionValues"] == self._values:
            path = fields["path"]
            found[unquote(path)] = StoredFile(path, fields["size"], self._key)
            return is_below(path) and not fields.get("deletionVector")
        if kind == "remove":
            is_known = found.pop(unquote(fields["path"]), None) is not None
            return is_known or fields.get("partitionValues", self._values) != self._values
        return kind in ("add", "commitInfo", "txn")

    def replace(
        self, snapshot: TableSnapshot, rows: pa.Table, files: Files | None, note: CommitNote
    ) -> Files | None:
        """Replace the partition's rows, on top of the version that ``snapshot`` is at.

        Args:
            snapshot: The table.
            rows: The new rows, with all columns.
            files: The partition's files in the snapshot's version; None if only delta-rs may replace them.
            note: The information of the commit.

        Returns:
            The partition's files after the commit. None if delta-rs made the commit, because it does not
            report the files.

        Raises:
            FileExistsError: If another commit came first; delta-rs raises DeltaError instead.  On a mount
                that sends requests twice, the other commit may be this very one.
            DeltaError, OSError: If the commit failed, or if its outcome is unknown.
        """
        if files is None or not snapshot.commits_itself:
            write_deltalake(
                snapshot.table,
                rows,
                mode="overwrite",
                predicate=self.predicate,
                commit_properties=note.properties(),
                post_commithook_properties=NO_POST_COMMIT_HOOKS,
            )
            return None
        added = self._written(snapshot.log, rows.drop_columns([self.column]))
        parameters = {"mode": "Overwrite", "partitionBy": f'["{self.column}"]', "predicate": self.predicate}
        snapshot.commit(
            FileCommit(operation="WRITE", parameters=parameters, added=added, removed=files, note=note)
        )
        return tuple(StoredFile(file.log_path, file.size, self._key) for file in added)

    def _written(self, log: LogFiles, rows: pa.Table) -> Sequence[WrittenFile]:
        """Write ``rows``, without the partition column, into a new file; without rows, write no file."""
        if not rows.num_rows:
            return ()
        file = GrowingFile(*filesystem_of(log.table_uri), rows.schema, self._values)
        try:
            for batch in rows.to_batches():
                file.add(batch)
            return (file.finish(),)
        except BaseException:
            file.close_quietly()
            raise


def rows_of_files(log: LogFiles, files: Files) -> pa.Table:
    """Return the rows in a partition's files, without the partition column; only for a local table.

    ``files`` must not be empty.

    Raises:
        DeltaError: If a file is damaged.
        OSError: If a file cannot be read.
    """
    filesystem, folder = filesystem_of(log.table_uri)
    tables = []
    for file in files:
        try:
            with filesystem.open_input_file(f"{folder}/{unquote(file.path)}") as stream:
                tables.append(pq.ParquetFile(stream).read())
        except pa.ArrowException as error:
            raise DeltaError(f"The file {unquote(file.path)} of the table is damaged: {error}") from error
    return pa.concat_tables(tables, promote_options="default")
