"""Rows as text, where JSON is all that travels: a compressed Arrow stream in base 64."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence

import pyarrow as pa

_WRITING = pa.ipc.IpcWriteOptions(compression="zstd")


def rows_to_text(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> str:
    """The rows of ``batches``, all of ``schema``."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=_WRITING) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return b64encode(sink.getvalue()).decode("ascii")


def text_to_rows(text: str) -> pa.Table:
    """The reverse, with the schema it was written with."""
    with pa.ipc.open_stream(b64decode(text)) as reader:
        return reader.read_all()
