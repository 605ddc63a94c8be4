"""What JSON may cost in memory: sixteen million bytes of ``{},`` become objects of four hundred million.

So a text is weighed before it is read, by what it can become at most: its characters three times (as text, as text
again where fastjson's keys ask for a second look, as strings), and an object for each mark that brings one.
"""

from __future__ import annotations

from typing import Final

from pyspark_rocketmq.errors import RemoteProtocolError

MAX_JSON_MEMORY: Final = 32 * 1024 * 1024
"""Bytes, twice the longest frame; a table of some twenty thousand queues, or a list of a hundred thousand topics."""

_LIGHT_BYTES: Final = 512 * 1024
"""Texts up to here stay below the limit whatever is in them."""
_BYTES_PER_MARK: Final = 100
_MARKS: Final = (b",", b":", b"[", b"{")
_COPIES: Final = 3
_WIDEST_CHARACTER: Final = 4


def check_json_size(data: bytes) -> None:
    """Refuse what would take more than ``MAX_JSON_MEMORY`` as Python's objects.

    Raises:
        RemoteProtocolError: If it would.
    """
    if len(data) <= _LIGHT_BYTES:
        return
    width = 1 if data.isascii() else _WIDEST_CHARACTER
    needed = len(data) * _COPIES * width + _BYTES_PER_MARK * sum(map(data.count, _MARKS))
    if needed > MAX_JSON_MEMORY:
        raise RemoteProtocolError(
            f"A JSON text of {len(data)} bytes would take up to {needed} bytes of memory; at most {MAX_JSON_MEMORY} "
            f"are spent on one. It begins {data[:80]!r}."
        )
