"""The files of a Delta table's log: versions, actions, transaction ids, removal.

Delta cleans its log up by age only, and every commit lists it: at ten commits a second that is a day's
860,000 files in each list.  This keeps a number of commits instead.  Works on everything delta-rs can open.

Every transaction id of a Delta table, which delta-rs tells only one by one and by name.

They are in the newest checkpoint, which carries all of them, and in the commits after it (Delta protocol,
"Transaction Identifiers", "Checkpoints" and "V2 spec": a checkpoint of the second form has a name of its own,
may be JSON, and keeps nothing but files in others). For rare moments only: the checkpoint of a large table is
large.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from functools import cached_property
from io import BufferedReader
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

logger = logging.getLogger(__name__)

_LOG: Final = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint.*\.parquet")
_ANY = re.compile(r"(\d{20})\..+")
_CERTAINLY_KEPT_S: Final = 10.0
"""Nothing cleans up commits that are as young."""
_READ_AT_ONCE = 256 * 1024
"""Bytes: an object store is asked once for each."""


class CommitFile(NamedTuple):
    """A commit's file; neither size nor time if it is not there."""

    version: int
    size: int | None
    mtime_ns: int | None


class LogFiles:
    """The log of the table at ``table_uri``."""

    def __init__(self, table_uri: str) -> None:
        self._table_uri = table_uri
        self._folder_here = _folder_here(table_uri)

    @cached_property
    def _filesystem(self) -> fs.FileSystem:
        # Refused for a folder that is not there yet.
        return fs.PyFileSystem(DeltaStorageHandler(self._table_uri))

    def readable_versions(self) -> range:
        """The versions that can still be opened; empty without a table."""
        names = self._names()
        commits = sorted(_versions(_COMMIT, names))
        if not commits:
            return range(0)
        first = commits[0] if commits[0] == 0 else min(_versions(_CHECKPOINT, names), default=commits[-1])
        return range(first, commits[-1] + 1)

    def commit_file(self, version: int) -> CommitFile:
        """What tells the commit of ``version`` from another table's of that number."""
        name = _path(f"{version:020d}.json")
        if self._folder_here is not None:
            # Asked for a file of this machine, delta-rs takes fifty times as long.
            [info] = fs.LocalFileSystem().get_file_info([f"{self._folder_here}/{name}"])
        else:
            [info] = self._filesystem.get_file_info([name])
        return CommitFile(version, info.size, info.mtime_ns)

    def may_have_newer(self, tip: CommitFile, age_s: float) -> bool:
        """Whether there may be a commit after ``tip``, which was the newest one ``age_s`` seconds ago.

        To look for the next file is a hundred times as quick as to have delta-rs list the log. On storage of
        other machines it is not, and in a log that was cleaned up meanwhile it tells nothing; so both is left
        to delta-rs.
        """
        if self._folder_here is None or age_s > _CERTAINLY_KEPT_S:
            return True
        names = (
            f"{self._folder_here}/{_path(f'{version:020d}.json')}"
            for version in (tip.version + 1, tip.version)
        )
        following, own = fs.LocalFileSystem().get_file_info(list(names))
        is_tip = own.size == tip.size and own.mtime_ns == tip.mtime_ns
        return following.type is not fs.FileType.NotFound or not is_tip

    def commit_info(self, version: int) -> dict[str, Any] | None:
        """What the commit of ``version`` says of itself; None when it changed no rows, or is gone."""
        try:
            actions = read_actions(self._filesystem, _path(f"{version:020d}.json"))
        except FileNotFoundError:
            return None
        files = [action.get("add") or action.get("remove") or {} for action in actions]
        if not any(file.get("dataChange") for file in files):
            return None
        return next((action["commitInfo"] for action in actions if "commitInfo" in action), None)

    def forget_before(self, version: int) -> int:
        """Remove what only versions before the newest checkpoint need, up to ``version``; how many files.

        The newest version is never touched, and killed at any point this leaves versions without a gap.
        """
        names = self._names()
        first = max((each for each in _versions(_CHECKPOINT, names) if each <= version), default=0)
        # In order of their names, so in order of versions: what is left is always the end of the log.
        outdated = sorted(name for name in names if (found := _ANY.fullmatch(name)) and int(found[1]) < first)
        for name in outdated:
            try:
                self._filesystem.delete_file(_path(name))
            except FileNotFoundError:
                logger.debug("log file already removed by another process: %s", name)
        return len(outdated)

    def _names(self) -> list[str]:
        found = self._filesystem.get_file_info(fs.FileSelector(_LOG, allow_not_found=True))
        return [info.base_name for info in found]


def read_actions(filesystem: fs.FileSystem, path: str) -> list[dict[str, Any]]:
    """The actions of the commit whose file is at ``path``.

    Raises:
        OSError: If it cannot be read; FileNotFoundError: if it was cleaned up.
        ValueError: If it is no JSON.
    """
    with filesystem.open_input_stream(path) as stream:
        return [json.loads(line) for line in stream.readall().splitlines() if line.strip()]


def read_commit_info(filesystem: fs.FileSystem, path: str) -> dict[str, Any] | None:
    """What the commit whose file is at ``path`` says of itself; None if it is not there (any more).

    A commit may have any number of files; no more than one action of it is in memory.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no JSON.
    """
    try:
        with filesystem.open_input_stream(path) as stream, BufferedReader(stream, _READ_AT_ONCE) as lines:
            for line in lines:
                # Most writers have it first; of the others' lines few are worth being parsed.
                if b'"commitInfo"' in line and (info := json.loads(line).get("commitInfo")) is not None:
                    return dict(info)
    except FileNotFoundError:
        return None
    return {}


def _folder_here(table_uri: str) -> str | None:
    """The folder of a table on this machine."""
    if "://" not in table_uri:
        return table_uri
    return fs.FileSystem.from_uri(table_uri)[1] if table_uri.startswith("file://") else None


def _versions(pattern: re.Pattern[str], names: list[str]) -> Iterator[int]:
    return (int(found[1]) for name in names if (found := pattern.fullmatch(name)))


def _path(name: str) -> str:
    return f"{_LOG}/{name}"


def all_transactions(filesystem: fs.FileSystem, folder: str, version: int) -> dict[str, int]:
    """Application id → version, as of a table version that the log still has.

    Raises:
        OSError: If a file of the log is missing or cannot be read, or the newest checkpoint is of a later
            version.
    """
    found: dict[str, int] = {}
    checkpoint_version = -1
    for at, path in _checkpoint_files(filesystem, folder):
        if at > version:
            raise OSError(f"{path} is of a later version than {version}, whose transaction ids are wanted.")
        checkpoint_version = at
        found |= _transactions_in(filesystem, path)
    for later in range(checkpoint_version + 1, version + 1):
        found |= transactions_of(filesystem, folder, later)
    return found


def transactions_of(filesystem: fs.FileSystem, folder: str, version: int) -> dict[str, int]:
    """Application id → version, of one commit.

    Raises:
        OSError: If the commit was cleaned up.
        ValueError, KeyError: If it is in a form of a later protocol.
    """
    return _transactions_in(filesystem, f"{folder}/_delta_log/{version:020d}.json")


def _transactions_in(filesystem: fs.FileSystem, path: str) -> dict[str, int]:
    if path.endswith(".json"):
        actions = [action.get("txn") for action in read_actions(filesystem, path)]
    else:
        actions = pq.read_table(path, columns=["txn"], filesystem=filesystem).column("txn").to_pylist()
    return {action["appId"]: action["version"] for action in actions if action is not None}


def _checkpoint_files(filesystem: fs.FileSystem, folder: str) -> Iterator[tuple[int, str]]:
    """Version and path of each file of the newest checkpoint; nothing before the first one."""
    try:
        with filesystem.open_input_stream(f"{folder}/_delta_log/_last_checkpoint") as stream:
            newest = json.loads(stream.readall())
    except FileNotFoundError:
        return
    version, parts = int(newest["version"]), newest.get("parts")
    if "v2Checkpoint" in newest:
        yield version, f"{folder}/_delta_log/{newest['v2Checkpoint']['path'].rpartition('/')[2]}"
        return
    name = f"{folder}/_delta_log/{version:020d}.checkpoint"
    if parts is None:
        yield version, f"{name}.parquet"
        return
    for part in range(1, int(parts) + 1):
        yield version, f"{name}.{part:010d}.{int(parts):010d}.parquet"
