"""What a broker reads back from a message in its commit log; the counterpart of :mod:`broker_sim.layout`."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address

from broker_sim.layout import Host, Member, MessageRun
from pyspark_rocketmq.wire.properties import decode_properties

# queue id, flag, queue offset, commit log offset, sys flag, born timestamp, born IPv4, born port,
# store timestamp, store IPv4, store port, reconsume times, prepared offset, body length
_HEAD = struct.Struct(">4xI4xiiqqiqIIqIIiqi")
_MAGIC_V2 = 0xDAA320AB
_SHORT = struct.Struct(">h")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredParts:
    """One stored message taken apart."""

    run: MessageRun
    """The message as a run of one, to be stored again perhaps with changes."""
    queue_offset: int
    commit_log_offset: int
    store_timestamp: int
    store_host: Host

    @property
    def member(self) -> Member:
        """Flag, body and properties."""
        return self.run.members[0]

    @property
    def properties(self) -> dict[str, str]:
        """The properties; of a name that stands twice the last."""
        return decode_properties(self.member.properties)


def read_stored(message: bytes) -> StoredParts:
    """Take apart a message as :func:`broker_sim.layout.encode_run` wrote it."""
    head = _HEAD.unpack_from(message)
    magic, queue_id, flag, queue_offset, commit_log_offset, sys_flag, born_timestamp = head[:7]
    born_ip, born_port, store_timestamp, store_ip, store_port, reconsume_times, _, body_length = head[7:]
    body_end = _HEAD.size + body_length
    topic_at = body_end + (2 if magic == _MAGIC_V2 else 1)
    topic_end = topic_at + int.from_bytes(message[body_end:topic_at], "big")
    (properties_length,) = _SHORT.unpack_from(message, topic_end)
    properties_at = topic_end + _SHORT.size
    run = MessageRun(
        topic=message[topic_at:topic_end].decode(),
        queue_id=queue_id,
        members=(
            Member(
                flag,
                message[_HEAD.size : body_end],
                message[properties_at : properties_at + properties_length],
            ),
        ),
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=Host(str(IPv4Address(born_ip)), born_port),
        reconsume_times=reconsume_times,
    )
    return StoredParts(
        run=run,
        queue_offset=queue_offset,
        commit_log_offset=commit_log_offset,
        store_timestamp=store_timestamp,
        store_host=Host(str(IPv4Address(store_ip)), store_port),
    )
