"""Checks before a query starts: do all machines share the folders, and does no table lie within another?

A path without a scheme is on each machine's own disk, unless all machines have mounted the same storage
at that path. To find out, the driver puts an empty file (a *marker*) into the folder, and tasks look for it.
"""

from __future__ import annotations

import logging
import os
import posixpath
import socket
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from pyspark_rocketmq.delta.paths import local_path
from pyspark_rocketmq.errors import OptionError, StorageNotShared
from pyspark_rocketmq.spark.session import ask_executors

logger = logging.getLogger(__name__)

_HIDDEN: Final = ("_", ".")
"""Prefixes of names of folders that Delta's VACUUM ignores."""
_NO_FOLDERS: Final[Mapping[str, str]] = MappingProxyType({})
"""No folders with tables below them."""


def normal_place(path: str) -> str:
    """Return one form for all ways to write a place: a path with links followed, or a normal storage URI.

    ``s3a://`` becomes ``s3://``.
    """
    folder = local_path(path)
    if folder is not None:
        return os.path.realpath(folder)
    scheme, _, rest = path.partition("://")
    scheme = "s3" if scheme.lower() == "s3a" else scheme.lower()
    return f"{scheme}://{posixpath.normpath(rest)}"


def check_not_nested(places: Mapping[str, str], folders: Mapping[str, str] = _NO_FOLDERS) -> None:
    """Refuse tables at the same place, and a table within another one whose VACUUM would remove its files.

    Args:
        places: Paths or URIs of tables as the user wrote them. The keys name them in the error; a key may be
            the name of an option.
        folders: Folders that have tables of a sink at any place below them, with keys of the same kind.

    Raises:
        OptionError: If two tables are at the same place or within each other; it names every such pair.
    """
    wide = {normal_place(folder) for folder in folders.values()}
    problems = tuple(
        f"{one}={first!r} and {other}={second!r} {problem}"
        for (one, first), (other, second) in combinations({**places, **folders}.items(), 2)
        if (problem := _relation(normal_place(first), normal_place(second), wide))
    )
    if problems:
        raise OptionError(problems, where="query tables")


def _relation(one: str, other: str, wide: Collection[str]) -> str:
    """Describe what is wrong with two places; empty if nothing is.

    ``wide`` are the places that may have tables at any place below them.
    """
    if one == other:
        return "are one place; give each table a folder of its own"
    outer, inner = sorted((one, other), key=len)
    within = inner.removeprefix(outer.rstrip("/") + "/")
    if within == inner or within.startswith(_HIDDEN):
        return ""
    if outer in wide:
        return (
            f"lie within each other: tables can be at any place below {outer}, and VACUUM of a table at "
            f"{inner} removes those within it; put it beside {outer}, or into a folder there whose name "
            "begins with _"
        )
    return (
        f"lie within each other: VACUUM of the outer table ({outer}) removes files that are not in its log, "
        "such as those of the inner one; put them beside each other, or the inner one into a folder whose "
        "name begins with _"
    )


def is_on_one_machine(spark: SparkSession) -> bool:
    """Return whether driver and executors are one process: the master is ``local`` or ``local[…]``."""
    master = str(spark.sparkContext.master)
    return master == "local" or master.startswith("local[")


def check_shared(spark: SparkSession, places: Mapping[str, str]) -> None:
    """Check that the executors see the same folders under these paths as the driver.

    Args:
        spark: A classic session; nothing is checked if driver and executors are in one process.
        places: Paths or URIs; the keys name them in the error. URIs of shared storage are not checked.

    Raises:
        StorageNotShared: If an executor sees another folder; it names the executor's host.
    """
    if is_on_one_machine(spark):
        return
    folders = {name: folder for name, path in places.items() if (folder := local_path(path)) is not None}
    if not folders:
        return
    with _marked(folders) as markers:
        missing = _looked_for(spark, list(markers))
        for marker, host in missing.items():
            name = markers[marker]
            raise StorageNotShared(
                f"{name}={folders[name]!r} is another folder on {host} than on the driver's machine "
                f"{socket.gethostname()}, or is missing there: the driver does not see the executors' files "
                "in it, and other machines do not see the driver's. Name storage that all machines share: an "
                "object store, HDFS, or a folder where all of them have mounted the same storage."
            )


@contextmanager
def _marked(folders: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Create a marker in each folder; yield the paths of the markers, each with its folder's key.

    The markers have new names, and are removed at the end.
    """
    markers = {f"{folder}/_rocketmq_{uuid.uuid4()}": name for name, folder in folders.items()}
    try:
        for marker in markers:
            Path(marker).parent.mkdir(parents=True, exist_ok=True)
            Path(marker).touch()
        yield markers
    finally:
        for marker in markers:
            Path(marker).unlink(missing_ok=True)


def _looked_for(spark: SparkSession, markers: list[str]) -> dict[str, str]:
    """Let tasks look for the markers; return those that a host does not see, each with such a host.

    If the tasks have not ended in time, log a WARNING and return an empty result.
    """
    rows = ask_executors(
        spark, Look(markers), "marker string, host string", "Do all machines see the tables' folders?"
    )
    if rows is None:
        logger.warning(
            "could not check in time whether all machines share the tables' folders, because no executor was "
            "running; the first commit will show it"
        )
        return {}
    return {row["marker"]: row["host"] for row in rows}


class Look:
    """Function with which tasks look for markers; it yields a row for each marker that is missing."""

    def __init__(self, markers: list[str]) -> None:
        self._markers = markers

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row with ``marker`` and ``host`` for each file that is missing on this machine."""
        for _ in batches:
            pass
        missing = [marker for marker in self._markers if not Path(marker).exists()]
        yield pa.RecordBatch.from_pydict(
            {
                "marker": pa.array(missing, pa.string()),
                "host": pa.array([socket.gethostname()] * len(missing), pa.string()),
            }
        )
