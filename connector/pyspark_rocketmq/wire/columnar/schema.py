"""The columns of messages in Arrow, as ``MessageExt`` declares them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from pyspark_rocketmq.model import MESSAGE_COLUMNS, POSITION_COLUMNS, QUEUE_COLUMNS, ColumnType

MAP_TYPE: Final = pa.map_(pa.string(), pa.string())
TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
_ARROW_TYPES: Final[Mapping[ColumnType, pa.DataType]] = {
    ColumnType.STRING: pa.string(),
    ColumnType.INTEGER: pa.int32(),
    ColumnType.LONG: pa.int64(),
    ColumnType.BINARY: pa.binary(),
    ColumnType.TIMESTAMP: TIMESTAMP_TYPE,
    ColumnType.TEXTS_BY_NAME: MAP_TYPE,
}
MESSAGE_SCHEMA: Final = pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in MESSAGE_COLUMNS.items()])
"""The columns of a message in Spark's types; all nullable, as Spark writes them."""
QUEUE_FIELDS: Final = tuple(map(MESSAGE_SCHEMA.field, QUEUE_COLUMNS))
POSITION_FIELDS: Final = tuple(map(MESSAGE_SCHEMA.field, POSITION_COLUMNS))
