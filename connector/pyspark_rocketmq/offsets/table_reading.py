"""Finds a Delta table and reads its form through delta-rs, for the pure judgement of :mod:`.table_form`.

Not for executors: importing delta-rs in a process that forks later makes the children fail.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.offsets.table_form import TableForm, parse_columns, writer_features

STORAGE_ERRORS = (DeltaError, OSError)
"""What delta-rs raises when a table or its storage does not answer; storage errors are no ``DeltaError``."""


_SINGLE_SLASH: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")


def sql_literal(text: str) -> str:
    """``text`` as delta-rs' SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def query_rows(table: DeltaTable, sql: str) -> pa.Table:
    """The answer to ``sql`` about ``rows``, as which it knows the version that ``table`` stands at."""
    # QueryBuilder, because delta-rs' Arrow data set reads NULLs from tables with mapped columns; from_stream, because
    # pa.table() loads pandas to see whether it is given a DataFrame.
    found = QueryBuilder().register("rows", table).execute(sql).read_all()
    return pa.RecordBatchReader.from_stream(found).read_all()


def table_uri(path: str | Path) -> str:
    """Return a storage URI as it is and a local path made absolute: other processes work in other folders.

    Raises:
        OptionError: If it is a URI with a single slash, which would be a folder of that name below the one that the process works in.
    """
    text = str(path)
    scheme = _SINGLE_SLASH.match(text)
    if scheme is None or isinstance(path, Path):
        return text if "://" in text else str(Path(path).absolute())
    if scheme[1].lower() == "file":
        # As Hadoop writes it, for which a percent sign is one.
        return text[scheme.end() - 1 :]
    rest = text[scheme.end() :]
    if scheme[1].lower() == "dbfs":
        problem = (
            f"'{text}' is a path of Spark's alone; write /dbfs/{rest}, or a folder of a volume: /Volumes/…"
        )
        raise OptionError((problem,), where="path of a table")
    problem = f"'{text}' is neither a path nor a URI; write {scheme[1]}://AUTHORITY/{rest}, or for a folder of that name ./{text}"
    raise OptionError((problem,), where="path of a table")


def read_form(table: DeltaTable) -> TableForm:
    """Return the columns, partitioning, properties and features of the version that ``table`` stands at."""
    metadata = table.metadata()
    protocol = table.protocol()
    return TableForm(
        columns=parse_columns(table.schema().to_json()),
        partition_by=tuple(metadata.partition_columns),
        configuration=dict(metadata.configuration),
        features=writer_features(
            protocol.min_writer_version, protocol.writer_features, protocol.reader_features
        ),
    )
