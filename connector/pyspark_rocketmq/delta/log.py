"""Reads, writes and cleans up the log of a Delta table where delta-rs cannot, or is too slow.

delta-rs makes checkpoints, removes expired files of the log, and reads everything about a table's newest
version.  For each commit it lists the whole log several times, and it keeps every file's name in memory.  So
its commit takes 3 ms at first, and 400 ms after 100,000 commits or with 200,000 files
(``docs/upstream/delta-rs-cost-of-a-commit.md``).  :meth:`LogFiles.put` always takes 0.1 ms plus the disk's
time to store the file, and :meth:`LogFiles.keeps_form` 0.1 ms for each commit of another writer.  These times
were measured on one machine with a local disk and delta-rs 1.6.6.

This module's commits on a local disk can be left to delta-rs, as all others are, once delta-rs commits faster
and waits until a commit's file is on the disk.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from io import BufferedReader
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from pyspark_rocketmq.delta.paths import fsync_path, local_path
from pyspark_rocketmq.delta.storage_options import NO_OPTIONS, StorageOptions

logger = logging.getLogger(__name__)

_LOG: Final = "_delta_log"
_LAST_CHECKPOINT: Final = f"{_LOG}/_last_checkpoint"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?.*\.parquet")
"""Pattern of the name of a checkpoint, or of one of its parts; a part's name has the number of parts."""
_LOG_FILE = re.compile(r"(\d{20})\..+")
_TXN: Final = b'"txn"'
_FILE_ACTIONS: Final = (b'{"add":', b'{"remove":', b'{"cdc":')
_FORM_KEEPING_ACTIONS: Final = frozenset({"add", "remove", "cdc", "txn", "commitInfo"})
"""Actions of a commit that cannot change columns, properties or features."""
_UNFINISHED: Final = ".rocketmq-"
"""Prefix of the names of commits that are being written; readers of Delta tables ignore such names."""
_UNFINISHED_MAX_AGE_S: Final = 3600.0
"""Age above which an unfinished commit counts as left by a killed process, in seconds."""
_READ_AT_ONCE = 256 * 1024
"""Bytes read by one request to an object store."""
_READS_AT_ONCE = 32
_MAX_FOLLOWED_COMMITS = 20
"""Number of new commits above which reading all transaction ids again is quicker than reading the commits."""

_Read = TypeVar("_Read")


class CommitFile(NamedTuple):
    """Size and modification time of a commit's file in the log; both are None if there is no such commit."""

    version: int
    size: int | None
    mtime_ns: int | None


class Transactions(NamedTuple):
    """Every transaction id of a table (application id → version) as of a version of the table."""

    table_version: int
    by_app_id: dict[str, int]


def transaction_line(app_id: str, version: int, now_ms: int) -> str:
    """Return the line of a commit that sets a transaction id; a sink's commit has one such line per queue."""
    return f'{{"txn": {{"appId": {json.dumps(app_id)}, "version": {version}, "lastUpdated": {now_ms}}}}}'


class LogFiles:
    """Reads and writes the log, the folder ``_delta_log``, of the table at ``table_uri``."""

    def __init__(self, table_uri: str, storage: StorageOptions = NO_OPTIONS) -> None:
        self.table_uri: Final = table_uri
        self.storage: Final = storage
        self._local_folder = local_path(table_uri)
        self.is_local: Final = self._local_folder is not None
        """Whether the log is on a disk or a mount of this machine."""

    @property
    def takes_commits(self) -> bool:
        """Whether :meth:`put` works here: true for local folders.

        Local folders without hard links, where it would not work, are refused by ``check_exclusive_create``.
        """
        return self.is_local

    @cached_property
    def _files(self) -> fs.FileSystem:
        if self._local_folder is not None:
            return fs.SubTreeFileSystem(self._local_folder, fs.LocalFileSystem())
        return fs.PyFileSystem(DeltaStorageHandler(self.table_uri, self.storage.values_for(self.table_uri)))

    def readable_versions(self) -> range:
        """Return the versions that can still be opened; empty if there is no table.

        Unlike this, delta-rs reports only the newest version.
        """
        names = self._names()
        commits = sorted(_versions(_COMMIT, names))
        if not commits:
            return range(0)
        first = commits[0] if commits[0] == 0 else min(_checkpoints(names), default=commits[-1])
        return range(first, commits[-1] + 1)

    def commit_file(self, version: int) -> CommitFile:
        """Return size and time of the file of commit ``version``; both are None if the log lacks it.

        If another table was put into this folder, size and time differ from those of the former table's
        commit with the same number. delta-rs does not notice such a replacement.

        This takes 0.01 ms.  To list the log for a newer commit, delta-rs takes 0.3 ms, and 6 ms after 5,000
        commits.
        """
        [info] = self._files.get_file_info([_commit_path(version)])
        return CommitFile(version, info.size, info.mtime_ns)

    def commit_info(self, version: int) -> dict[str, Any] | None:
        """Return a commit's ``commitInfo`` with its version; None if the commit is no longer in the log.

        If a commit has no ``commitInfo``, only its version is returned.

        A commit may have any number of files, so only one of its actions is in memory at a time.  This takes
        0.02 ms.  delta-rs' history takes 0.5 ms, and 5 ms after 5,000 commits, because it lists the log.
        """
        try:
            with self._lines(version) as lines:
                for line in lines:
                    # Most writers put it first; for other writers, a few lines are parsed in vain.
                    if b'"commitInfo"' in line and (info := json.loads(line).get("commitInfo")) is not None:
                        return {**info, "version": version}
        except FileNotFoundError:
            return None
        return {"version": version}

    def keeps_form(self, version: int) -> bool | None:
        """Return whether a commit leaves columns, properties and features as they are.

        An unknown action counts as a change. Return None if the commit is not in the log.
        """
        try:
            with self._lines(version) as lines:
                return all(line.startswith(_FILE_ACTIONS) or _line_keeps_form(line) for line in lines)
        except FileNotFoundError:
            return None

    def actions(self, version: int) -> list[dict[str, Any]]:
        """Return all actions of a commit; only for small commits, since all of them are in memory.

        Raises:
            OSError: If the commit is not in the log, or cannot be read.
            ValueError: If the commit's file is damaged.
        """
        return self._actions(_commit_path(version))

    def removed_paths(self, version: int) -> set[str]:
        """Return the paths of the files that a commit removes, URL-encoded as in the log.

        Raises:
            FileNotFoundError: If the commit is not in the log.
        """
        with self._lines(version) as lines:
            actions = [json.loads(line) for line in lines if b'"remove"' in line]
        return {action["remove"]["path"] for action in actions if "remove" in action}

    def put(self, version: int, actions: Iterable[Mapping[str, Any] | str]) -> CommitFile:
        """Make the commit of a version, completely or not at all; only where :attr:`takes_commits` is true.

        Return size and time of the commit's file. A later look may find other values, because Spark's log
        store may replace that file: it first looks whether the version has a commit, and then renames its own
        file to the commit's name.

        Like delta-rs, this writes a complete file and gives it a second name, that of the commit.  Unlike
        delta-rs, it first waits until the file is on the disk.  Without that, a power cut might leave an
        empty commit before a later one that is complete, and readers would skip the empty one without an
        error.

        Args:
            version: The version to commit.
            actions: The commit's actions; strings are finished lines, such as :func:`transaction_line`
                returns.

        Raises:
            FileExistsError: If the version exists, or another writer has replaced this commit.  On a mount
                that sends requests twice, the existing commit may be this very one.
            OSError: If the commit failed; it may have been made all the same.
        """
        assert self._local_folder is not None
        log = Path(self._local_folder, _LOG)
        unfinished = log / f"{_UNFINISHED}{uuid.uuid4()}.tmp"
        try:
            lines = [action if isinstance(action, str) else json.dumps(action) for action in actions]
            unfinished.write_text("\n".join([*lines, ""]), encoding="ascii")
            fsync_path(unfinished)
            written = unfinished.stat()
            os.link(unfinished, log / f"{version:020d}.json")
        finally:
            with suppress(OSError):
                unfinished.unlink()
        with suppress(OSError):
            # The commit is made and visible to readers by now.
            fsync_path(log)
        made = CommitFile(version, written.st_size, written.st_mtime_ns)
        if self.commit_file(version) != made:
            raise FileExistsError(
                errno.EEXIST, f"Another writer has replaced the commit of version {version} in {log}"
            )
        return made

    def remove_unfinished(self) -> None:
        """Remove files older than an hour that processes left when they were killed in :meth:`put`."""
        if not self.takes_commits:
            return
        assert self._local_folder is not None
        for left in Path(self._local_folder, _LOG).glob(f"{_UNFINISHED}*"):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > _UNFINISHED_MAX_AGE_S:
                    left.unlink()

    def last_checkpoint_file(self) -> tuple[int | None, int | None]:
        """Return size and time of the file that names the newest checkpoint; both None if it is missing."""
        [info] = self._files.get_file_info([_LAST_CHECKPOINT])
        return info.size, info.mtime_ns

    def may_lack_commits_after(self, version: int) -> bool:
        """Return whether commits after ``version`` may be missing from the log.

        They may be if there is a checkpoint after ``version``, because commits before a checkpoint may be
        cleaned up. Return True also if the file that names the newest checkpoint is damaged.
        """
        try:
            newest = self._last_checkpoint()
            return newest is not None and int(newest["version"]) > version
        except (ValueError, KeyError):
            return True

    def commit_infos_below(self, version: int) -> Iterator[dict[str, Any]]:
        """Yield :meth:`commit_info` of versions below ``version``, newest first, up to a missing one."""
        found = self._read_each(self.commit_info, range(version - 1, -1, -1))
        return (info for info in takewhile(lambda info: info is not None, found) if info is not None)

    def row_change_info(self, version: int) -> dict[str, Any] | None:
        """Return the ``commitInfo`` of a commit that changed rows; None for other or missing commits.

        Delta's protocol requires neither ``commitInfo`` nor any field of it. Without a ``timestamp`` from the
        writer, the result has the time of the commit's file.  delta-rs' history does not show whether a
        commit changed rows.
        """
        try:
            actions = self._actions(_commit_path(version))
        except FileNotFoundError:
            return None
        files = [action.get("add") or action.get("remove") or {} for action in actions]
        if not any(file.get("dataChange") for file in files):
            return None
        info: dict[str, Any] = next(
            (action["commitInfo"] for action in actions if "commitInfo" in action), {}
        )
        if info.get("timestamp") is not None:
            return info
        return {**info, "timestamp": (self.commit_file(version).mtime_ns or 0) // 1_000_000}

    def transactions(self, version: int, known: Transactions | None = None) -> Transactions:
        """Return the transactions of all applications as of a version that the log still has.

        ``known`` has the transactions as of this version or an earlier one; with it, only commits after that
        version are read, if they are few and still in the log. delta-rs looks up each id by its name and goes
        through the log for it, which takes 0.5 to 7 ms. Here all ids together take 4 ms, or 0.05 ms if
        ``known`` lacks only one commit.

        Raises:
            OSError: If a file of the log is missing or cannot be read, or the newest checkpoint is of a later
                version.
            ValueError, KeyError: If the log has the form of a later protocol.
        """
        if known is not None and 0 <= version - known.table_version <= _MAX_FOLLOWED_COMMITS:
            try:
                return self._with_later_commits(known, version)
            except FileNotFoundError:
                logger.debug("commits were cleaned up, transaction ids are read from the checkpoint")
        return self._with_later_commits(self._checkpointed_transactions(version), version)

    def remove_before(self, version: int) -> int:
        """Remove log files older than the newest whole checkpoint up to ``version``; return their number.

        delta-rs removes log files only by age, and lists the log at every commit: at ten commits a second,
        each list would have 860,000 files after a day.  The newest version always stays.  If the process is
        killed halfway, the remaining versions have no gap.
        """
        names = self._names()
        first = max((checkpoint for checkpoint in _checkpoints(names) if checkpoint <= version), default=0)
        # In the order of versions, so that the log never has a gap.
        outdated = sorted(
            name for name in names if (found := _LOG_FILE.fullmatch(name)) and int(found[1]) < first
        )
        for name in outdated:
            try:
                self._files.delete_file(f"{_LOG}/{name}")
            except FileNotFoundError:
                logger.debug("log file already removed by another process: %s", name)
        return len(outdated)

    def _names(self) -> list[str]:
        found = self._files.get_file_info(fs.FileSelector(_LOG, allow_not_found=True))
        return [info.base_name for info in found]

    def _actions(self, path: str, kind: bytes = b"") -> list[dict[str, Any]]:
        """Return the actions in a file of JSON lines, only those whose line contains ``kind``."""
        with self._files.open_input_stream(path) as stream:
            return [
                json.loads(line) for line in stream.readall().splitlines() if line.strip() and kind in line
            ]

    @contextmanager
    def _lines(self, version: int) -> Iterator[BufferedReader]:
        with (
            self._files.open_input_stream(_commit_path(version)) as stream,
            BufferedReader(stream, _READ_AT_ONCE) as lines,
        ):
            yield lines

    def _last_checkpoint(self) -> dict[str, Any] | None:
        try:
            with self._files.open_input_stream(_LAST_CHECKPOINT) as stream:
                newest = json.loads(stream.readall())
        except FileNotFoundError:
            return None
        if isinstance(newest, dict):
            return newest
        raise ValueError(
            f"The file _last_checkpoint in the log of {self.table_uri} is not a JSON object. Restore the "
            "file, or have Spark or delta-rs write a new checkpoint."
        )

    def _checkpoint_rows(self, path: str) -> list[dict[str, Any]]:
        rows = pq.read_table(path, columns=["txn"], filesystem=self._files)
        return list(rows.filter(rows["txn"].is_valid()).to_pylist())

    def _read_each(self, read: Callable[[int], _Read], versions: Sequence[int]) -> Iterator[_Read]:
        return map(read, versions) if self.is_local else read_ahead(read, versions)

    def _with_later_commits(self, known: Transactions, version: int) -> Transactions:
        by_app_id = dict(known.by_app_id)
        later = range(known.table_version + 1, version + 1)
        for actions in self._read_each(lambda commit: self._actions(_commit_path(commit), _TXN), later):
            by_app_id |= _by_app_id(actions)
        return Transactions(version, by_app_id)

    def _checkpointed_transactions(self, version: int) -> Transactions:
        """Return the transaction ids in the newest checkpoint, which must not be later than ``version``.

        Without a checkpoint, return no ids, as of table version -1.

        Delta protocol, "Transaction Identifiers", "Checkpoints" and "V2 spec": a V2 checkpoint has its own
        kind of name and may be JSON. Its sidecar files need not be read: they have no transaction ids.
        """
        newest = self._last_checkpoint()
        if newest is None:
            return Transactions(-1, {})
        at, parts = int(newest["version"]), newest.get("parts")
        if at > version:
            raise OSError(f"The checkpoint of {self.table_uri} is of version {at}, later than {version}.")
        name = f"{at:020d}.checkpoint"
        if "v2Checkpoint" in newest:
            names = [newest["v2Checkpoint"]["path"].rpartition("/")[2]]
        elif parts is None:
            names = [f"{name}.parquet"]
        else:
            names = [f"{name}.{part:010d}.{int(parts):010d}.parquet" for part in range(1, int(parts) + 1)]
        found: dict[str, int] = {}
        for path in (f"{_LOG}/{name}" for name in names):
            if path.endswith(".json"):
                found |= _by_app_id(self._actions(path, _TXN))
            else:
                found |= _by_app_id(self._checkpoint_rows(path))
        return Transactions(at, found)


def read_ahead(read: Callable[[int], _Read], versions: Sequence[int]) -> Iterator[_Read]:
    """Yield ``read(version)`` for each version, in order.

    The first call runs without others, since callers mostly need no more. Then 2, 4, 8, and so on up to 32
    calls run at the same time: an object store takes some 20 ms for each.
    """
    yield from map(read, versions[:1])
    begin, at_once = 1, 2
    with ThreadPoolExecutor(_READS_AT_ONCE, "rocketmq-delta-log") as threads:
        while begin < len(versions):
            yield from threads.map(read, versions[begin : begin + at_once])
            begin, at_once = begin + at_once, min(2 * at_once, _READS_AT_ONCE)


def _line_keeps_form(line: bytes) -> bool:
    try:
        action = json.loads(line) if line.strip() else {}
    except ValueError:
        return False
    return isinstance(action, dict) and action.keys() <= _FORM_KEEPING_ACTIONS


def _by_app_id(actions: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    return {txn["appId"]: txn["version"] for action in actions if (txn := action.get("txn")) is not None}


def _versions(pattern: re.Pattern[str], names: list[str]) -> Iterator[int]:
    return (int(found[1]) for name in names if (found := pattern.fullmatch(name)))


def _checkpoints(names: Iterable[str]) -> Iterator[int]:
    """Yield the versions of the checkpoints that have all their parts.

    A writer may have been killed between two parts, or may still write them.
    """
    parts = Counter(found.groups() for name in names if (found := _CHECKPOINT.fullmatch(name)))
    return (int(version) for (version, of), count in parts.items() if count >= int(of or 1))


def _commit_path(version: int) -> str:
    return f"{_LOG}/{version:020d}.json"
