"""A group's rows ↔ the bytes of ``offsets.json``. Pure.

Shape, pretty-printed or not::

    {"offsetTable": {{"brokerName": …, "queueId": …, "topic": …}: 12, …},     Java's, with objects for keys
     "version": 1,
     "rows": [{"brokerName": …, "queueId": …, "topic": …, "epoch": …, …}]}    ours; Java leaves it out

Source: ``OffsetSerializeWrapper``, ``LocalFileOffsetStore``.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType
from typing import Any, Final

from pyspark_rocketmq.errors import RemoteProtocolError, SchemaError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.rules import new_row
from pyspark_rocketmq.offsets.store import OffsetRow
from pyspark_rocketmq.peer_text import peer_text
from pyspark_rocketmq.wire.bodies import offsets_from_json, offsets_to_json, queue_from_json, queue_to_json
from pyspark_rocketmq.wire.json_fields import JsonObject, read_object
from pyspark_rocketmq.wire.json_quirks import dumps_java

_VERSION: Final = 1
_WHERE: Final = "offsets.json"
_NUMBER: Final = (int,)
_TEXT: Final = (str,)
_TIME: Final = (float, int)
_KEPT: Final = (
    ("epoch", "epoch", _NUMBER),
    ("owner", "owner", _TEXT),
    ("reconsumeTimes", "reconsume_times", _NUMBER),
    ("suspendedUntil", "suspended_until_s", (*_TIME, NoneType)),
    ("queryId", "query_id", _TEXT),
    ("batchId", "batch_id", _NUMBER),
    ("updatedAt", "updated_at_s", _TIME),
    ("putBack", "put_back", _TEXT),
    ("statistics", "statistics", _TEXT),
    ("generation", "generation", _NUMBER),
    ("lastMessage", "last_message", _TEXT),
    ("shown", "shown", _TEXT),
    ("sinks", "sinks", _TEXT),
)
"""Key in ``rows``, field of the row, and of which types its value may be."""


def encode_rows(rows: Iterable[OffsetRow]) -> bytes:
    """Write the file of one group, sorted by queue."""
    ordered = sorted(rows, key=lambda row: row.queue)
    return dumps_java(
        {
            "offsetTable": offsets_to_json({row.queue: row.next_offset for row in ordered}),
            "version": _VERSION,
            "rows": [
                queue_to_json(row.queue) | {key: getattr(row, field) for key, field, _ in _KEPT}
                for row in ordered
            ],
        }
    )


def decode_rows(content: bytes, consumer_group: str) -> dict[MessageQueue, OffsetRow]:
    """Read the file of one group, ours or Java's.

    Raises:
        RemoteProtocolError: If it is cut off or something else.
        SchemaError: If a newer release wrote it.
    """
    document = read_object(content, _WHERE)
    version = document.integer("version", _VERSION)
    if version > _VERSION:
        raise SchemaError(
            f"The offset file of group {consumer_group} has version {version}, this release knows {_VERSION}. "
            "Use the release that wrote it, or name another path for the offset store."
        )
    known = {queue_from_json(row.members, _WHERE): row for row in document.objects("rows")}
    return {
        queue: _row(consumer_group, queue, next_offset, known.get(queue))
        for queue, next_offset in offsets_from_json(document, "offsetTable").items()
    }


def _row(consumer_group: str, queue: MessageQueue, next_offset: int, kept: JsonObject | None) -> OffsetRow:
    if next_offset < 0:
        raise RemoteProtocolError(f"{_WHERE}: next offset {next_offset} of {queue} is negative.")
    values: dict[str, Any] = {}
    for key, field, kinds in _KEPT:
        if kept is not None and key in kept.members:
            values[field] = kept.members[key]
            if type(values[field]) not in kinds:
                raise RemoteProtocolError(
                    f"{_WHERE}: {key} of {queue} is {peer_text(repr(values[field]))}; that is no {kinds[0].__name__}."
                )
    return new_row(consumer_group, queue, next_offset)._replace(**values)
