"""When a message was stored, asked of its broker as an operator asks: no group's offsets and figures are touched."""

from __future__ import annotations

from pyspark_rocketmq.client.broker import BrokerClient, PullRequest
from pyspark_rocketmq.client.pull import PullStatus
from pyspark_rocketmq.connection_options import PLAIN_SOURCE_GROUP
from pyspark_rocketmq.model import BrokerAddress, MessageQueue
from pyspark_rocketmq.wire.messages import decode_stored_messages


def stored_at_s(
    brokers: BrokerClient, address: BrokerAddress, queue: MessageQueue, queue_offset: int
) -> float | None:
    """Wall-clock second at which the first message from ``queue_offset`` on was stored; None if there is none.

    Costs a pull of one message.

    Raises:
        RocketMQError: If the broker does not answer in time, or refuses.
    """
    request = PullRequest(
        consumer_group=PLAIN_SOURCE_GROUP, queue=queue, queue_offset=queue_offset, max_msg_nums=1
    )
    pulled = brokers.pull(address, request)
    if pulled.status is not PullStatus.FOUND:
        return None
    # Bodies are left as they are: one that cannot be decompressed was stored at its time, too.
    messages = decode_stored_messages(pulled.body)
    times = [one.store_timestamp for one in messages if one.queue_offset >= queue_offset]
    return times[0] / 1000 if times else None
