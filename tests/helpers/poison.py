"""Messages whose body does not match their sysFlag, stored as any producer can store them."""

from __future__ import annotations

from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.command import RemotingCommand
from tests.helpers.wait import PATIENCE_S

GARBAGE = b"no compressed bytes"
COMPRESSED = 1


def store_as_it_is(
    address: str, queue: MessageQueue, body: bytes = GARBAGE, sys_flag: int = COMPRESSED
) -> None:
    """Have the broker at ``address`` store a message with that body and sysFlag."""
    fields = {
        "producerGroup": "p", "topic": queue.topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "1",
        "queueId": str(queue.queue_id), "sysFlag": str(sys_flag), "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": "KEYS\x01poison\x02", "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
    }  # fmt: skip
    deadline = Deadline.after(SystemClock(), PATIENCE_S)
    with ChannelPool(SystemClock()) as pool:
        answer = pool.get(address, deadline).request(
            RemotingCommand(code=10, ext_fields=fields, body=body), deadline
        )
    assert answer.code == 0, answer
