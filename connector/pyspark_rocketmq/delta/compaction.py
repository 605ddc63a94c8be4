"""Compacts the small files of a sink's table: chooses partitions with many, and joins their files.

A micro-batch adds at least one file to each partition that it writes to: at one batch a second, 86,400 files
a day.  Files grow in steps (:data:`TARGETS`), so that a row is rewritten about once in each step, and not
whenever new files arrive.

delta-rs (1.6.6) compacts, too, but does not notice that another OPTIMIZE has replaced the same files, and
then both versions of the rows stay (``docs/upstream/delta-rs-two-optimizes.md``).
``tests/delta/test_upstream.py`` fails once delta-rs is fixed; then most of this module can be removed.

This module checks the commits made meanwhile before it replaces a group of files. If one of these files was
removed, it replaces none of the group.  If delta-rs' OPTIMIZE comes second, nothing here can stop it, so a
:class:`Compactor` stops compacting a table in which it finds an OPTIMIZE by delta-rs.  delta-rs' overwrites,
and its deletes of all rows, have the same defect and leave the compacted rows in the table. A
:class:`Compactor` logs an error about those.
"""

from __future__ import annotations

import errno
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow import ArrowException

from pyspark_rocketmq.delta.commit import (
    CommitNote,
    FileCommit,
    Partition,
    StoredFile,
    commit_files,
    commit_on_top,
    is_below,
    stored_files,
)
from pyspark_rocketmq.delta.files import GrowingFile, WrittenFile, conform
from pyspark_rocketmq.delta.log import LogFiles
from pyspark_rocketmq.delta.storage_options import filesystem_of
from pyspark_rocketmq.delta.table import STORAGE_ERRORS, open_table
from pyspark_rocketmq.display import counted, masked
from pyspark_rocketmq.errors import SchemaError
from pyspark_rocketmq.process_end import process_ends

logger = logging.getLogger(__name__)

TARGETS: Final = (1 << 20, 16 << 20, 128 << 20)
"""Target sizes of compacted files, in bytes.

Many small files are joined into files of about the first size, later many of these into files of the next
size. A table's property may replace the last one.
"""
MIN_SMALL_FILES: Final = 64
"""Number of small files at which a partition is compacted."""
_MAX_COMMIT_BYTES: Final = 256 << 20
_MAX_COMMIT_FILES: Final = 10_000
_MAX_BIN_FILES: Final = 4_000
"""Maximum number of files in a bin, the files that are joined into one.

Credentials are renewed only between bins, and on slow storage this many files take a minute.
"""
_COMMIT_AFTER_S: Final = 60.0
"""Time after which the work so far is committed, so that it is kept if the process ends."""
_ROWS_AT_ONCE: Final = 16 * 1024
"""Number of rows that are gathered from small files and written as one piece.

Larger pieces save time, because statistics are made for each piece.
"""
_BYTES_AT_ONCE: Final = 16 << 20
"""Maximum size, in bytes, of the rows in memory, and of a file that is read whole."""
_PAUSE_AFTER_S: Final = 0.05
_PAUSE_FACTOR: Final = 4.0
"""Duration of a pause, in multiples of the work before it: so at most a fifth of a core is used."""
_REMOTE_PAUSE_FACTOR: Final = 1.0
"""The same factor for remote storage, where most of the time is spent waiting."""
_TARGET_PROPERTY: Final = "delta.targetFileSize"
_UNITS: Final = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
_FILE_ERRORS: Final = (ArrowException, FileNotFoundError, SchemaError)
"""Errors of a file that cannot be compacted; other files still can be."""
_COMMIT_ID: Final = "compactionId"
_PLAIN: Final = "!$&'()+,-./:;=@_~"
"""Characters that delta-rs does not encode in a path, besides letters and digits."""
_FIRST_CHECKED: Final = 100
"""Number of versions in which a :class:`Compactor` first looks for removals by delta-rs."""


class Compacted(NamedTuple):
    """The result of a compaction."""

    files_removed: int = 0
    files_added: int = 0
    files_changed: int = 0
    """Number of files that were not replaced because of another commit.

    That commit had changed the table's form (columns, partitioning, properties or features), or had removed
    one of the files that were to be replaced together.
    """


def target_of(sizes: Iterable[int], targets: Sequence[int] = TARGETS) -> int | None:
    """Return the size to which a partition's files should be compacted; None if there are too few files yet.

    A file is small if it has less than half of the target size.  The result is the largest target for which
    there are at least ``MIN_SMALL_FILES`` small files, which together have at least half of the target size.
    For the smallest target, the number of files is enough.
    """
    sizes = list(sizes)
    for target in reversed(targets):
        small = [size for size in sizes if size < target // 2]
        if len(small) >= MIN_SMALL_FILES and (target == targets[0] or sum(small) >= target // 2):
            return target
    return None


def largest_target(configuration: Mapping[str, str]) -> int:
    """Return the file size that a table's properties ask for; 128 MiB if they ask for none."""
    text = configuration.get(_TARGET_PROPERTY, "").strip().lower()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number) :].strip() or "b"
    if number.isdecimal() and int(number) > 0 and unit in _UNITS:
        return int(number) * _UNITS[unit]
    return TARGETS[-1]


def targets_of(configuration: Mapping[str, str]) -> tuple[int, ...]:
    """Return the target file sizes to try for a table, ascending.

    These are the sizes of :data:`TARGETS` below the table's own target, then the table's own.
    """
    largest = largest_target(configuration)
    return (*(target for target in TARGETS if target < largest), largest)


def bins_of(files: Iterable[StoredFile], target: int) -> list[list[StoredFile]]:
    """Group a partition's small files, in their order, into bins: lists of files to be joined into one.

    A file is small if it has less than half of ``target`` bytes. A bin has at most ``target`` bytes and 4,000
    files. A bin of a single file is left out.
    """
    bins: list[list[StoredFile]] = []
    room = 0
    for file in files:
        if file.size >= target // 2:
            continue
        if file.size > room or len(bins[-1]) == _MAX_BIN_FILES:
            bins.append([])
            room = target
        bins[-1].append(file)
        room -= file.size
    return [group for group in bins if len(group) > 1]


class Throttle:
    """Slows down work that runs beside something more urgent. This base class never pauses."""

    def pause(self) -> bool:
        """Pause if a pause is due; return whether the work may go on. The base class only returns True."""
        return True


class BackgroundThrottle(Throttle):
    """Lets work use a fifth of a core by default, and stops it when the process's main thread ends."""

    def __init__(
        self,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = process_ends.wait,
        is_wanted: Callable[[], bool] = lambda: not process_ends.is_set(),
        *,
        pause_factor: float = _PAUSE_FACTOR,
    ) -> None:
        """Begin to measure work; each pause takes ``pause_factor`` times as long as the work before it.

        The other arguments are for tests.
        """
        self._now_s, self._sleep, self._is_wanted, self._pause_factor = now_s, sleep, is_wanted, pause_factor
        self._since_s = now_s()

    def pause(self) -> bool:
        """Pause if the work since the last pause took 50 ms or more; return False if the process ends."""
        worked_s = self._now_s() - self._since_s
        if worked_s >= _PAUSE_AFTER_S:
            self._sleep(worked_s * self._pause_factor)
            self._since_s = self._now_s()
        return self._is_wanted()


class Compactor:
    """Compacts a sink's table when called.

    It stops for good if it finds an OPTIMIZE by delta-rs in the table's log.
    """

    def __init__(self) -> None:
        self._checked_up_to: int | None = None
        """The newest version that was checked for removals by delta-rs; None before the first check."""
        self._has_stopped = False

    def compact_if_worth_it(self, table: DeltaTable, log: LogFiles) -> None:
        """Compact partitions with many small files in the version that ``table`` is at.

        Raises the errors of :func:`compact`. First log the harm that delta-rs' own OPTIMIZE, DELETE and
        overwrites have done since the last call.
        """
        version = int(table.version())
        since = version - _FIRST_CHECKED if self._checked_up_to is None else self._checked_up_to
        for found, operation in unchecked_removals(log, since, version):
            self._report_removals(log, found, operation)
        self._checked_up_to = version
        if not self._has_stopped:
            compact_if_worth_it(table, log)

    def _report_removals(self, log: LogFiles, version: int, operation: str) -> None:
        path, optimizes = masked(log.table_uri), operation == "OPTIMIZE"
        if optimizes and not self._has_stopped:
            self._has_stopped = True
            logger.warning(
                "the sink no longer compacts small files path=%s: version %d is an OPTIMIZE by delta-rs, "
                "which doubles rows if another compaction runs at the same time. Set compaction=False at the "
                "sink, or run `pyspark-rocketmq tables compact --option table=PATH` instead of delta-rs' "
                "OPTIMIZE.",
                path,
                version,
            )
        missed = count_missed_files(log, version)
        if missed and optimizes:
            logger.error(
                "ROWS ARE DOUBLED path=%s: version %d, an OPTIMIZE by delta-rs, has compacted %s that had "
                "been replaced since the OPTIMIZE began. Stop the table's queries and RESTORE the table to "
                "version %d, which also removes later rows of all writers. Then start the queries and follow "
                "their errors.",
                path,
                version,
                counted(missed, "file"),
                version - 1,
            )
        elif missed:
            logger.error(
                "ROWS STAY path=%s: version %d, a %s by delta-rs, has removed %s that a compaction had "
                "replaced since it began, so their rows are still there. Run the %s again.",
                path,
                version,
                operation,
                counted(missed, "file"),
                operation,
            )


def unchecked_removals(log: LogFiles, since: int, version: int) -> list[tuple[int, str]]:
    """Return versions after ``since``, up to ``version``, in which delta-rs may have removed files unchecked.

    In some operations, such as OPTIMIZE, delta-rs removes files without checking the commits made since the
    operation began. Each version comes with the name of its operation.
    """
    infos = takewhile(lambda info: info["version"] > since, log.commit_infos_below(version + 1))
    return sorted(
        (info["version"], info["operation"])
        for info in infos
        if str(info.get("engineInfo")).startswith("delta-rs")
        and (
            info.get("operation") in {"OPTIMIZE", "DELETE"}
            or (info.get("operationParameters") or {}).get("mode") == "Overwrite"
        )
    )


def count_missed_files(log: LogFiles, version: int) -> int:
    """Return how many files a commit removes that the version before it no longer had.

    Return 0 if the version before it can no longer be opened.
    """
    if version - 1 not in log.readable_versions():
        return 0
    before = open_table(log.table_uri, log.storage, version=version - 1)
    there = {unquote(file.path) for file in stored_files(before) if is_below(file.path)}
    removed = {unquote(path) for path in log.removed_paths(version) if is_below(path)}
    return len(removed - there)


def compact_if_worth_it(table: DeltaTable, log: LogFiles, throttle: Throttle | None = None) -> Compacted:
    """Compact each partition that has many small files; raise the errors of :func:`compact`.

    ``throttle`` slows the work down; None stands for a :class:`BackgroundThrottle`.
    """
    targets = targets_of(table.metadata().configuration)
    throttle = throttle or BackgroundThrottle(
        pause_factor=_PAUSE_FACTOR if log.is_local else _REMOTE_PAUSE_FACTOR
    )
    return _compact(table, log, lambda files: target_of((file.size for file in files), targets), throttle)


def compact(table: DeltaTable, log: LogFiles) -> Compacted:
    """Compact the small files of each partition, however few they are.

    Files are replaced in groups, one commit for each. If another commit has removed a file of a group
    meanwhile, the whole group stays as it is.  Files that were written but not committed are no part of the
    table, and the next VACUUM removes them.

    Raises:
        DeltaError, OSError: If the storage does not answer, or a commit fails.
        FileNotFoundError, ArrowException, SchemaError: If a file is gone or damaged, or does not fit the
            table; raised after the other files are compacted.
    """
    target = largest_target(table.metadata().configuration)
    return _compact(table, log, lambda _: target, Throttle())


def _compact(
    table: DeltaTable, log: LogFiles, target_for: Callable[[list[StoredFile]], int | None], throttle: Throttle
) -> Compacted:
    rewriter = _Rewriter(table, log, throttle)
    by_partition: dict[Partition, list[StoredFile]] = {}
    for file in stored_files(table):
        if is_below(file.path) and (log.takes_commits or has_delta_rs_encoding(file.path)):
            by_partition.setdefault(file.partition, []).append(file)
    for files in by_partition.values():
        target = target_for(files)
        for small_files in bins_of(files, target) if target is not None else ():
            if not rewriter.rewrite(small_files):
                return rewriter.finish()
    return rewriter.finish()


def has_delta_rs_encoding(path: str) -> bool:
    """Return whether delta-rs would write the path of a file that it removes exactly as the log has it.

    Other writers URL-encode other characters. To delta-rs, a path with another encoding names another file.
    """
    return quote(unquote(path), safe=_PLAIN) == path


class _Rewriter:
    """Writes and commits the files of one compaction."""

    def __init__(self, table: DeltaTable, log: LogFiles, throttle: Throttle) -> None:
        self._table = table
        self._log = log
        self._values = log.storage.values
        self._throttle = throttle
        self._version = int(table.version())
        self._tip = log.commit_file(self._version)
        self._partition_by = tuple(table.metadata().partition_columns)
        schema = pa.schema(table.schema().to_arrow()).remove_metadata()
        self._schema = pa.schema([field for field in schema if field.name not in self._partition_by])
        self._filesystem, self._folder = filesystem_of(log.table_uri, log.storage)
        self._old: list[StoredFile] = []
        self._new: list[WrittenFile] = []
        self._removed_since: set[str] = set()
        """Decoded paths of files that other commits have removed since this compaction began."""
        self._is_changed = False
        """Whether the table was replaced, or its form changed: then nothing more can be committed."""
        self._failure: Exception | None = None
        self._done = Compacted()
        self._committed_s = time.monotonic()

    def _renew_options(self) -> None:
        """Renew the storage options, since keys may expire while a large table is compacted."""
        self._log.storage.renew()
        if self._log.storage.values is not self._values:
            self._values = self._log.storage.values
            self._log = LogFiles(self._log.table_uri, self._log.storage)
            self._filesystem, self._folder = filesystem_of(self._log.table_uri, self._log.storage)
            self._table = open_table(self._log.table_uri, self._log.storage, version=self._version)

    def rewrite(self, files: Sequence[StoredFile]) -> bool:
        """Join these files of one partition into one, and commit if enough files or bytes have gathered.

        Return whether the compaction may go on.  If a file cannot be compacted, keep the error for
        :meth:`finish` and return True.
        """
        self._renew_options()
        made = GrowingFile(self._filesystem, self._folder, self._schema, dict(files[0].partition))
        try:
            is_whole = self._copy(files, made)
            if is_whole:
                self._new.append(made.finish())
        except _FILE_ERRORS as error:
            self._abandon(made)
            self._failure = self._failure or error
            return True
        except BaseException:
            self._abandon(made)
            raise
        if not is_whole:
            self._abandon(made)
            return False
        self._old += files
        nbytes, taken_s = sum(file.size for file in self._old), time.monotonic() - self._committed_s
        if nbytes >= _MAX_COMMIT_BYTES or len(self._old) >= _MAX_COMMIT_FILES or taken_s >= _COMMIT_AFTER_S:
            self._commit()
        return not self._is_changed

    def _abandon(self, made: GrowingFile) -> None:
        made.close_quietly()
        with suppress(OSError):
            self._filesystem.delete_file(f"{self._folder}/{made.path}")

    def _copy(self, files: Sequence[StoredFile], made: GrowingFile) -> bool:
        gathered: list[pa.RecordBatch] = []
        count = nbytes = 0
        for file in files:
            for batch in self._rows_of(file):
                gathered.append(batch)
                count, nbytes = count + batch.num_rows, nbytes + batch.nbytes
                if count >= _ROWS_AT_ONCE or nbytes >= _BYTES_AT_ONCE:
                    made.add(pa.concat_batches(gathered))
                    gathered, count, nbytes = [], 0, 0
            if not self._throttle.pause():
                return False
        if gathered:
            made.add(pa.concat_batches(gathered))
        return True

    def finish(self) -> Compacted:
        """Commit the rest and return the overall result; raise the first error of a file, if there is one."""
        self._commit()
        if self._done.files_removed:
            logger.info(
                "files compacted path=%s from=%d to=%d",
                masked(self._log.table_uri),
                self._done.files_removed,
                self._done.files_added,
            )
        if self._failure is not None:
            raise self._failure
        return self._done

    def _rows_of(self, file: StoredFile) -> Iterator[pa.RecordBatch]:
        with self._filesystem.open_input_file(f"{self._folder}/{unquote(file.path)}") as stored:
            # Read small files whole: otherwise there is a request to the object store for each column.
            source = pa.BufferReader(stored.read_buffer()) if file.size <= _BYTES_AT_ONCE else stored
            parquet = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
            for number in range(parquet.num_row_groups):
                group = parquet.metadata.row_group(number)
                a_row = max(1, group.total_byte_size // max(1, group.num_rows))
                at_once = max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE // a_row))
                # For small files threads are slower: 0.6 ms instead of 0.3.
                for batch in parquet.iter_batches(at_once, row_groups=[number], use_threads=False):
                    kept = [name for name in batch.schema.names if name not in self._partition_by]
                    yield conform(batch.select(kept), self._schema, fills_missing=True)

    def _commit(self) -> None:
        old, new, self._old, self._new = self._old, self._new, [], []
        self._committed_s = time.monotonic()
        if not old:
            return
        if self._put(old, new):
            removed, added, changed = self._done
            self._done = Compacted(removed + len(old), added + len(new), changed)
        else:
            self._done = self._done._replace(files_changed=self._done.files_changed + len(old))
            logger.info("files changed while they were compacted path=%s", masked(self._log.table_uri))

    def _put(self, old: Sequence[StoredFile], new: Sequence[WrittenFile]) -> bool:
        """Replace the files ``old`` by ``new`` in one commit, on top of the commits of others.

        Return whether the commit is made. It is not if others have removed one of the ``old`` files, changed
        more than files, replaced the table or put it back to an earlier state, or if commits may be missing
        from the log.
        """
        # Writers encode paths differently; for Spark, paths that decode to the same one are the same file.
        paths, commit_id = {unquote(file.path) for file in old}, str(uuid.uuid4())

        def follow(_: Exception | None) -> Callable[[], bool]:
            is_there = self._follow_commits(commit_id, paths)
            if is_there is None:
                return partial(self._put_next, old, new, commit_id)
            return lambda: is_there

        try:
            return commit_on_top(f"compaction path={masked(self._log.table_uri)}", follow)
        except FileExistsError:
            return False

    def _put_next(self, old: Sequence[StoredFile], new: Sequence[WrittenFile], commit_id: str) -> bool:
        try:
            self._commit_next(old, new, commit_id)
        except STORAGE_ERRORS as error:
            if self._has_next():
                # Another commit came first, or this one was made and the answer was lost.
                raise FileExistsError(errno.EEXIST, f"There is version {self._version + 1}") from error
            raise
        self._advance()
        return True

    def _follow_commits(self, commit_id: str, paths: Set[str]) -> bool | None:
        """Read the new commits of others, and decide whether this commit can come next.

        Return None if this commit can come next, and True if the log has it already. Return False if it must
        not be made: another commit removed one of the files in ``paths`` or changed anything but files, the
        table was replaced or put back to an earlier state, or commits may be missing from the log.
        """
        if self._log.commit_file(self._version) != self._tip:
            # It is another table, or the same one in an earlier state.
            self._is_changed = True
            return False
        while (commit := self._log.commit_info(self._version + 1)) is not None:
            if commit.get(_COMMIT_ID) == commit_id:
                return True
            if not self._log.keeps_form(self._version + 1):
                self._is_changed = True
                return False
            self._removed_since.update(map(unquote, self._log.removed_paths(self._version + 1)))
            self._advance()
        if self._log.may_lack_commits_after(self._version):
            self._is_changed = True
            return False
        return None if self._removed_since.isdisjoint(paths) else False

    def _has_next(self) -> bool:
        return self._log.commit_info(self._version + 1) is not None

    def _commit_next(self, old: Sequence[StoredFile], new: Sequence[WrittenFile], commit_id: str) -> None:
        parameters = {"predicate": "[]", "auto": "true"}
        note: dict[str, Any] = {_COMMIT_ID: commit_id}
        table = None
        if not self._log.takes_commits:
            table = self._table
            table.update_incremental()
            if table.version() != self._version:
                raise FileExistsError(errno.EEXIST, f"There is a commit after version {self._version}")
            # delta-rs itself writes the parameters of an append.
            note["operationParameters"] = parameters
        commit = FileCommit(
            operation="OPTIMIZE",
            parameters=parameters,
            added=new,
            removed=old,
            changes_rows=False,
            note=CommitNote(metadata=note),
        )
        # Commit as the next version or fail: a later version might follow another OPTIMIZE of these files.
        commit_files(self._log, table, self._version, commit, only_next=True)

    def _advance(self) -> None:
        self._version += 1
        self._tip = self._log.commit_file(self._version)
