"""Times at which the rows of a Delta table were committed, from its log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

COMMITTED: Final = "committed"
"""Name of the added column: the time of the commit that added the row, in milliseconds since the epoch."""


class _Commit(NamedTuple):
    at_ms: int
    files: tuple[str, ...]


def rows_with_times(table: Path, columns: list[str]) -> pa.Table:
    """Return columns of all rows that the table's commits added, with the commit's ``commitInfo.timestamp``.

    The table lies on a local disk, its log is complete, and the files that it compacted are still there.
    """
    pieces: list[pa.Table] = []
    for commit in _commits(table):
        for file in commit.files:
            rows = pq.read_table(table / file, columns=columns, partitioning=None)
            pieces.append(rows.append_column(COMMITTED, pa.repeat(pa.scalar(commit.at_ms), len(rows))))
    return pa.concat_tables(pieces)


def _commits(table: Path) -> Iterator[_Commit]:
    for path in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        added = (action["add"] for action in actions if "add" in action)
        # Compaction adds the same rows again.
        files = tuple(unquote(add["path"]) for add in added if add["dataChange"])
        [at_ms] = [action["commitInfo"]["timestamp"] for action in actions if "commitInfo" in action]
        yield _Commit(at_ms, files)
