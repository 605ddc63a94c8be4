"""What the Spark of this Python can do, from 4.0 on: the one place that asks.

Spark 4.2 and newer tell a Python source of the trigger, and give it the offset to plan from. Before, Spark
asks for the latest offset without a word, and takes what it gets as one micro-batch.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any, Final
from zipimport import zipimporter

import pyarrow as pa
import pyspark
from pyspark.sql import datasource
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import DataType, StructType

TELLS_TRIGGER: Final = find_spec("pyspark.sql.streaming.datasource") is not None
_STREAMS_TAKE_ARROW: Final = hasattr(datasource, "DataSourceStreamArrowWriter")


def cuts_by_floats(spark: str) -> bool:
    """Whether ``applyInPandasWithState`` of this version cuts Arrow data at an offset that became a float.

    From 4.2 on it stays a number without a fraction; 4.0.5 and 4.1.4 make it one again.
    """
    major, minor, patch = (int(each) for each in re.findall(r"\d+", spark)[:3])
    return patch < {(4, 0): 5, (4, 1): 4}.get((major, minor), 0)


def _arrow_takes_floats() -> bool:
    with suppress(TypeError):
        return bool(pa.record_batch({"n": [0]}).slice(0.0, 1.0).num_rows)
    return False


STATE_FAILS: Final = cuts_by_floats(pyspark.__version__) and not _arrow_takes_floats()
"""Whether ``applyInPandasWithState`` fails by itself, with the pyarrow of this process."""
HAS_DELTA: Final = tuple(map(int, pyspark.__version__.split(".")[:2])) <= (4, 2)
"""Whether Delta Lake has a release for it; a platform may have one of its own."""
NEWEST_DELTA: Final = (4, 4)
"""Its newest release, made for Spark 4.2."""

if TYPE_CHECKING or TELLS_TRIGGER:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class SupportsTriggerAvailableNow:
        """Spark before 4.2 has no such class, and calls none of its methods."""

    ReadAllAvailable = ReadLimit = ReadMaxRows = SupportsTriggerAvailableNow

if TYPE_CHECKING or _STREAMS_TAKE_ARROW:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):
        """Spark 4.0 gives record batches to whatever is of the second class, a stream's writer too."""


_IN_UTC: Final[dict[str, Any]] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}
)
"""Spark before 4.2 knows no other zone of Arrow's."""


def arrow_type(data_type: DataType) -> pa.DataType:
    """As Spark gives and wants it, with times in UTC."""
    return to_arrow_type(data_type, **_IN_UTC)


def arrow_schema(columns: StructType) -> pa.Schema:
    """See :func:`arrow_type`."""
    return to_arrow_schema(columns, **_IN_UTC)


class _OfArchive:
    """Python's way to read an archive's directory again, for one that has changed since."""

    def __init__(self, finder: zipimporter) -> None:
        self._finder = finder
        self._seen = self._stamp()

    def _stamp(self) -> tuple[int, int] | None:
        with suppress(OSError):
            found = os.stat(self._finder.archive)  # noqa: PTH116 - a path is made for each
            return found.st_mtime_ns, found.st_size
        return None

    def __call__(self) -> None:
        stamp = self._stamp()
        if stamp != self._seen or stamp is None:
            self._seen = stamp
            zipimporter.invalidate_caches(self._finder)


def keep_archives() -> None:
    """Keep what this worker knows of the archives on Python's path until one changes.

    Spark before 4.2 forgets it before every task: reading pyspark's own again takes 0.1 s of a core.
    """
    for finder in () if TELLS_TRIGGER else list(sys.path_importer_cache.values()):
        if isinstance(finder, zipimporter) and "invalidate_caches" not in vars(finder):
            vars(finder)["invalidate_caches"] = _OfArchive(finder)


__all__ = [
    "HAS_DELTA",
    "NEWEST_DELTA",
    "STATE_FAILS",
    "TELLS_TRIGGER",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "arrow_type",
    "cuts_by_floats",
    "keep_archives",
]
