"""Differences between Spark's versions from 4.0 on. Outside this module only engine ``state`` checks them.

Spark 4.2 and newer pass the trigger and the start offset to a Python source. Older versions only ask the
source for its latest offset, and plan everything up to that as one micro-batch.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any, Final
from zipimport import zipimporter

import pyarrow as pa
import pyspark
from pyspark.sql import datasource
from pyspark.sql.pandas import functions
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import DataType, StructType

SPARK_PASSES_TRIGGER: Final = find_spec("pyspark.sql.streaming.datasource") is not None
HAS_ARROW_UDF: Final = hasattr(functions, "arrow_udf")
"""Whether Spark is 4.1 or newer, which also has declarative pipelines."""
_STREAMS_TAKE_ARROW: Final = hasattr(datasource, "DataSourceStreamArrowWriter")


HAS_DELTA: Final = tuple(map(int, pyspark.__version__.split(".")[:2])) <= (4, 2)
"""Whether Delta Lake has a release for this Spark; a platform may have its own Delta Lake."""
NEWEST_DELTA: Final = (4, 4)
"""Newest release of Delta Lake, built for Spark 4.2."""

if TYPE_CHECKING or SPARK_PASSES_TRIGGER:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class SupportsTriggerAvailableNow:
        """Stand-in for Spark before 4.2, which has no such class and calls none of its methods."""

    ReadAllAvailable = ReadLimit = ReadMaxRows = SupportsTriggerAvailableNow

if TYPE_CHECKING or _STREAMS_TAKE_ARROW:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):
        """Stand-in for Spark 4.0, which passes record batches to any ``DataSourceArrowWriter``."""


_IN_UTC: Final[dict[str, Any]] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}
)
"""Argument for times in UTC; Spark before 4.2 always uses UTC and has no such argument."""


def arrow_type(data_type: DataType) -> pa.DataType:
    """Return the Arrow type in which Spark passes and expects values, with times in UTC."""
    return to_arrow_type(data_type, **_IN_UTC)


def arrow_schema(columns: StructType) -> pa.Schema:
    """Return the columns with their types by :func:`arrow_type`."""
    return to_arrow_schema(columns, **_IN_UTC)


class _ArchiveStamp:
    """Replacement for a finder's ``invalidate_caches``, which drops the cached directory of an archive.

    A call of the replacement drops that directory only if the archive's file has changed.
    """

    def __init__(self, finder: zipimporter) -> None:
        self._finder = finder
        self._seen = self._stamp()

    def _stamp(self) -> tuple[int, int] | None:
        with suppress(OSError):
            found = os.stat(self._finder.archive)  # noqa: PTH116 - a path is created for each
            return found.st_mtime_ns, found.st_size
        return None

    def __call__(self) -> None:
        stamp = self._stamp()
        if stamp != self._seen or stamp is None:
            self._seen = stamp
            zipimporter.invalidate_caches(self._finder)


def keep_archives() -> None:
    """Keep the cached directories of the archives on Python's path until an archive changes.

    Spark before 4.2 drops these directories before every task, and reading the one of pyspark's archive again
    takes 0.1 s of a core. With a newer Spark this function does nothing.
    """
    for finder in () if SPARK_PASSES_TRIGGER else list(sys.path_importer_cache.values()):
        if isinstance(finder, zipimporter) and "invalidate_caches" not in vars(finder):
            vars(finder)["invalidate_caches"] = _ArchiveStamp(finder)


__all__ = [
    "HAS_DELTA",
    "NEWEST_DELTA",
    "SPARK_PASSES_TRIGGER",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "arrow_type",
    "keep_archives",
]
