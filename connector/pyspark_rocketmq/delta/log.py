"""The log of a Delta table, where delta-rs does not read or clean it up, or not fast enough.

Figures are of one machine with a local disk and delta-rs 1.6.6.  delta-rs makes checkpoints, removes expired
files of the log, and reads everything about a table's newest version.  It lists the whole log several times
for each commit, and keeps the name of every file: a commit takes 8 ms, after 100,000 commits 370 ms, and with
200,000 files 400 ms (``docs/upstream/delta-rs-cost-of-a-commit.md``; once that is fixed, commits on a local
disk can go through delta-rs as all others do).  :meth:`LogFiles.put` takes 0.1 ms in all of them and what the
disk takes to keep it, and :meth:`LogFiles.keeps_form` 0.1 ms for each commit of others.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
import uuid
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
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint.*\.parquet")
_ANY = re.compile(r"(\d{20})\..+")
_TXN: Final = b'"txn"'
_FILE_ACTIONS: Final = (b'{"add":', b'{"remove":', b'{"cdc":')
_FORMLESS: Final = frozenset({"add", "remove", "cdc", "txn", "commitInfo"})
"""Actions that say nothing of columns, properties and features."""
_UNFINISHED: Final = ".rocketmq-"
"""Begins the names of commits that are being written; readers of Delta tables pass over such names."""
_UNFINISHED_FOR_S: Final = 3600.0
"""What is older was left by a process that was killed."""
_READ_AT_ONCE = 256 * 1024
"""Bytes: an object store is asked once for each."""
_READS_AT_ONCE = 32
_FOLLOWED_COMMITS = 20
"""After more commits than that, reading all transaction ids anew is quicker than reading the commits."""

_Read = TypeVar("_Read")


class CommitFile(NamedTuple):
    """A commit's file; neither size nor time if it is not there."""

    version: int
    size: int | None
    mtime_ns: int | None


class Transactions(NamedTuple):
    """Every transaction id of a table (application id → version) as of a version of the table."""

    table_version: int
    by_app_id: dict[str, int]


def transaction_line(app_id: str, version: int, now_ms: int) -> str:
    """Return the line of a commit that sets a transaction id; a sink's has one for each queue."""
    return f'{{"txn": {{"appId": {json.dumps(app_id)}, "version": {version}, "lastUpdated": {now_ms}}}}}'


class LogFiles:
    """The log of the table at ``table_uri``."""

    def __init__(self, table_uri: str, storage: StorageOptions = NO_OPTIONS) -> None:
        self.table_uri: Final = table_uri
        self.storage: Final = storage
        self._folder_here = local_path(table_uri)
        self.is_local: Final = self._folder_here is not None
        """Whether it is on a disk of this machine, or on a mount."""

    @property
    def takes_commits(self) -> bool:
        """Whether :meth:`put` can be used: ``check_exclusive_create`` has refused folders without links."""
        return self.is_local

    @cached_property
    def _files(self) -> fs.FileSystem:
        if self._folder_here is not None:
            return fs.SubTreeFileSystem(self._folder_here, fs.LocalFileSystem())
        return fs.PyFileSystem(DeltaStorageHandler(self.table_uri, self.storage.values_for(self.table_uri)))

    def readable_versions(self) -> range:
        """The versions that can still be opened, none without a table; delta-rs tells the newest one only."""
        names = self._names()
        commits = sorted(_versions(_COMMIT, names))
        if not commits:
            return range(0)
        first = commits[0] if commits[0] == 0 else min(_versions(_CHECKPOINT, names), default=commits[-1])
        return range(first, commits[-1] + 1)

    def commit_file(self, version: int) -> CommitFile:
        """What tells the commit of ``version`` from another table's of that number, which delta-rs does not.

        0.01 ms; that delta-rs lists the log for a newer commit takes 0.3 ms, and 6 ms after 5,000 commits.
        """
        [info] = self._files.get_file_info([_commit_path(version)])
        return CommitFile(version, info.size, info.mtime_ns)

    def commit_info(self, version: int) -> dict[str, Any] | None:
        """What a commit says of itself, with its version; None if it is not in the log any more.

        A commit may have any number of files; no more than one action of it is in memory.  0.02 ms, where
        delta-rs' history takes 0.5 ms and, for it lists the log, 5 ms after 5,000 commits.
        """
        try:
            with self._lines(version) as lines:
                for line in lines:
                    # Most writers have it first; of the others' lines few are worth being parsed.
                    if b'"commitInfo"' in line and (info := json.loads(line).get("commitInfo")) is not None:
                        return {**info, "version": version}
        except FileNotFoundError:
            return None
        return {"version": version}

    def keeps_form(self, version: int) -> bool | None:
        """Whether a commit leaves columns, properties and features alone; None if it is not in the log.

        An action that is not known here counts as a change of them.
        """
        try:
            with self._lines(version) as lines:
                return all(line.startswith(_FILE_ACTIONS) or _is_formless(line) for line in lines)
        except FileNotFoundError:
            return None

    def removed_paths(self, version: int) -> set[str]:
        """The files that a commit removes, as in the log."""
        with self._lines(version) as lines:
            actions = [json.loads(line) for line in lines if b'"remove"' in line]
        return {action["remove"]["path"] for action in actions if "remove" in action}

    def put(self, version: int, actions: Iterable[Mapping[str, Any] | str]) -> None:
        """Make the commit of a version whole or not at all, where :attr:`takes_commits`.

        As delta-rs does it: a second name for a file that is complete.  Here the file is on the disk before:
        else a power cut may leave a commit without its actions behind a later one that has them, and readers
        pass over it.

        Args:
            version: The commit's.
            actions: What it does; texts are lines already, as of :func:`transaction_line`.

        Raises:
            FileExistsError: If there is one; perhaps this one, on a mount whose server answered twice.
            OSError: If it was not made, or perhaps was.
        """
        assert self._folder_here is not None
        log = Path(self._folder_here, _LOG)
        unfinished = log / f"{_UNFINISHED}{uuid.uuid4()}.tmp"
        try:
            lines = [action if isinstance(action, str) else json.dumps(action) for action in actions]
            unfinished.write_text("\n".join([*lines, ""]), encoding="ascii")
            fsync_path(unfinished)
            os.link(unfinished, log / f"{version:020d}.json")
        finally:
            with suppress(OSError):
                unfinished.unlink()
        with suppress(OSError):
            # The commit is made, and readers see it.
            fsync_path(log)

    def remove_unfinished(self) -> None:
        """Remove what processes left that were killed in :meth:`put`."""
        if not self.takes_commits:
            return
        assert self._folder_here is not None
        for left in Path(self._folder_here, _LOG).glob(f"{_UNFINISHED}*"):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > _UNFINISHED_FOR_S:
                    left.unlink()

    def last_checkpoint_file(self) -> tuple[int | None, int | None]:
        """Size and time of the file that names the newest checkpoint, as :class:`CommitFile` has them."""
        [info] = self._files.get_file_info([_LAST_CHECKPOINT])
        return info.size, info.mtime_ns

    def may_lack_commits_after(self, version: int) -> bool:
        """Whether commits after ``version`` may have been cleaned up: there is a later checkpoint."""
        try:
            newest = self._last_checkpoint()
            return newest is not None and int(newest["version"]) > version
        except (ValueError, KeyError):
            return True

    def commit_infos_below(self, version: int) -> Iterator[dict[str, Any]]:
        """The same of all versions below, the newest first, until one is not in the log any more."""
        found = self._read_each(self.commit_info, range(version - 1, -1, -1))
        return (info for info in takewhile(lambda info: info is not None, found) if info is not None)

    def row_change_info(self, version: int) -> dict[str, Any] | None:
        """As :meth:`commit_info`, but None if no rows were changed, which delta-rs' history does not tell."""
        try:
            actions = self._actions(_commit_path(version))
        except FileNotFoundError:
            return None
        files = [action.get("add") or action.get("remove") or {} for action in actions]
        if not any(file.get("dataChange") for file in files):
            return None
        return next((action["commitInfo"] for action in actions if "commitInfo" in action), None)

    def transactions(self, version: int, known: Transactions | None = None) -> Transactions:
        """The transaction ids as of a version that the log still has; ``known`` are those of an earlier one.

        delta-rs tells them only one by one and by name, and goes through the log for each: 0.5 to 7 ms, where
        all together take 4 ms, and those of one more commit 0.05 ms.

        Raises:
            OSError: If a file of the log is missing or cannot be read, or the newest checkpoint is of a later
                version.
            ValueError, KeyError: If the log is in a form of a later protocol.
        """
        if known is not None and 0 <= version - known.table_version <= _FOLLOWED_COMMITS:
            try:
                return self._followed(known, version)
            except FileNotFoundError:
                logger.debug("commits were cleaned up, transaction ids are read from the checkpoint")
        return self._followed(self._checkpointed_transactions(version), version)

    def forget_before(self, version: int) -> int:
        """Remove what only versions before the newest checkpoint need, up to ``version``; how many files.

        delta-rs cleans the log up by age only, and every commit lists it: at ten commits a second that is a
        day's 860,000 files in each list.  The newest version is never touched, and killed at any point this
        leaves versions without a gap.
        """
        names = self._names()
        first = max((each for each in _versions(_CHECKPOINT, names) if each <= version), default=0)
        # In order of their names, so in order of versions: what is left is always the end of the log.
        outdated = sorted(name for name in names if (found := _ANY.fullmatch(name)) and int(found[1]) < first)
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
        """The actions in a file of JSON lines; of other kinds than ``kind`` few or none."""
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
        raise ValueError(f"The log of {self.table_uri} has no checkpoint's name in _last_checkpoint.")

    def _checkpoint_rows(self, path: str) -> list[dict[str, Any]]:
        rows = pq.read_table(path, columns=["txn"], filesystem=self._files)
        return list(rows.filter(rows["txn"].is_valid()).to_pylist())

    def _read_each(self, read: Callable[[int], _Read], versions: Sequence[int]) -> Iterator[_Read]:
        return map(read, versions) if self.is_local else read_ahead(read, versions)

    def _followed(self, known: Transactions, version: int) -> Transactions:
        by_app_id = dict(known.by_app_id)
        later = range(known.table_version + 1, version + 1)
        for actions in self._read_each(lambda each: self._actions(_commit_path(each), _TXN), later):
            by_app_id |= _by_app_id(actions)
        return Transactions(version, by_app_id)

    def _checkpointed_transactions(self, version: int) -> Transactions:
        """Those of the newest checkpoint; of no version without one.

        Delta protocol, "Transaction Identifiers", "Checkpoints" and "V2 spec": a checkpoint of the second
        form has a name of its own, may be JSON, and keeps nothing but files in others.
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
    """What ``read`` gives for each version; the further it goes, the more are read at once.

    Mostly the first one is enough; an object store takes some 20 ms for each.
    """
    yield from map(read, versions[:1])
    begin, at_once = 1, 2
    with ThreadPoolExecutor(_READS_AT_ONCE, "rocketmq-delta-log") as threads:
        while begin < len(versions):
            yield from threads.map(read, versions[begin : begin + at_once])
            begin, at_once = begin + at_once, min(2 * at_once, _READS_AT_ONCE)


def _is_formless(line: bytes) -> bool:
    try:
        action = json.loads(line) if line.strip() else {}
    except ValueError:
        return False
    return isinstance(action, dict) and action.keys() <= _FORMLESS


def _by_app_id(actions: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    return {txn["appId"]: txn["version"] for action in actions if (txn := action.get("txn")) is not None}


def _versions(pattern: re.Pattern[str], names: list[str]) -> Iterator[int]:
    return (int(found[1]) for name in names if (found := pattern.fullmatch(name)))


def _commit_path(version: int) -> str:
    return f"{_LOG}/{version:020d}.json"
