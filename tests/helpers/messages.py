"""Messages made up for tests."""

from __future__ import annotations

from pyspark_rocketmq.model import MessageExt, MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 3)


def message_at(
    queue_offset: int, *, queue: MessageQueue = QUEUE, keys: str | None = None, body: bytes = b""
) -> MessageExt:
    """Make a plausible message at one position."""
    return MessageExt(
        *queue,
        queue_offset=queue_offset,
        commit_log_offset=queue_offset * 100,
        msg_id=f"{queue_offset:032X}",
        keys=keys or f"key-{queue_offset}",
        tags=None,
        body=body or f"body-{queue_offset}".encode(),
        properties={},
        born_timestamp=1_700_000_000_000,
        born_host="127.0.0.1:1",
        store_timestamp=1_700_000_000_001,
        store_host="127.0.0.1:2",
        reconsume_times=0,
        sys_flag=0,
        flag=0,
    )
