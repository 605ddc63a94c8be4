"""The commits of a table as its catalog shows them, for tables whose log this process may not read.

The commits come from ``DESCRIBE HISTORY``.  This module runs no SQL: its caller passes a function that reads
the newest commits.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from deltalake.exceptions import DeltaError

from pyspark_rocketmq.delta.log import CommitFile
from pyspark_rocketmq.delta.storage_options import StorageOptions

_PAGES: Final = (20, 200, 2_000, None)
"""Numbers of commits to read, tried in this order until one is enough; None reads all commits.

On a local disk each read takes 0.2 s.
"""

ReadCommits = Callable[[int | None], list[dict[str, Any]]]
"""Function that reads the newest commits, the newest first: at most the number given, or all for None.

Each commit is a dict with columns of ``DESCRIBE HISTORY``; its ``timestamp`` is in nanoseconds.
"""


class CatalogHistory:
    """The commits of a table as ``DESCRIBE HISTORY`` returns them; implements ``CommitLog``."""

    def __init__(
        self, name: str, storage: StorageOptions, read: ReadCommits, *, last: int | None = None
    ) -> None:
        """Set up the history; its commits are read when they are first needed.

        ``name`` is the table's name, and ``read`` reads its newest commits.  The history ends at version
        ``last``; None means at the newest one.
        """
        self.table_uri: Final = name
        self.storage: Final = storage
        self._read = read
        self._last = last
        self._pages = iter(_PAGES)
        self._entries: list[dict[str, Any]] = []
        """Commits read since the last :meth:`refresh`, the newest first, without a gap."""
        self._is_whole = False

    def as_of(self, version: int) -> CatalogHistory:
        """Return the same history without the commits after ``version``; nothing is read yet."""
        return CatalogHistory(self.table_uri, self.storage, self._read, last=version)

    def refresh(self) -> int:
        """Read the newest commits again; return the newest version.

        Raises:
            DeltaError: If the history cannot be read, or has no commits any more.
        """
        self._pages, self._is_whole, self._entries = iter(_PAGES), False, []
        while not self._entries and not self._is_whole:
            self._read_more()
        if not self._entries:
            raise DeltaError(f"The history of {self.table_uri} contains no commits any more.")
        return self.newest

    @property
    def newest(self) -> int:
        """The newest version at the last :meth:`refresh`."""
        return int(self._entries[0]["version"])

    def _read_more(self) -> None:
        limit = next(self._pages)
        entries = self._read(limit)
        self._entries = [entry for entry in entries if self._last is None or entry["version"] <= self._last]
        self._is_whole = limit is None or len(entries) < limit

    def commit_info(self, version: int) -> dict[str, Any] | None:
        """Return the entry of a commit in the history, with its ``version``; None if the history lacks it."""
        found = next(self.commit_infos_below(version + 1), None)
        return found if found is not None and found["version"] == version else None

    def commit_infos_below(self, version: int) -> Iterator[dict[str, Any]]:
        """Yield the entries of the commits below ``version``, the newest first; read older ones as needed."""
        while True:
            for entry in self._entries:
                if entry["version"] < version:
                    version = entry["version"]
                    yield entry
            if self._is_whole:
                return
            self._read_more()

    def commit_file(self, version: int) -> CommitFile:
        """Return values that distinguish this table's commit from another table's commit of the same version.

        ``size`` is a checksum of the commit's entry in the history, and ``mtime_ns`` its time.  Both are None
        if the history lacks the commit.
        """
        entry = self.commit_info(version)
        if entry is None:
            return CommitFile(version, None, None)
        facts = {name: value for name, value in entry.items() if name != "timestamp"}
        return CommitFile(version, zlib.crc32(json.dumps(facts, sort_keys=True).encode()), entry["timestamp"])
