"""Every transaction id of a Delta table, which delta-rs tells only one by one and by name.

They are in the newest checkpoint, which carries all of them, and in the commits after it (Delta protocol, "Transaction
Identifiers", "Checkpoints" and "V2 spec": a checkpoint of the second form has a name of its own, may be JSON, and keeps nothing but files
in others). For rare moments only: the checkpoint of a large table is large.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow.parquet as pq
from pyarrow import fs

from pyspark_rocketmq.offsets.log_files import read_actions


def all_transactions(filesystem: fs.FileSystem, folder: str, version: int) -> dict[str, int]:
    """Application id → version, as of a table version that the log still has.

    Raises:
        OSError: If a file of the log is missing or cannot be read, or the newest checkpoint is of a later version.
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
