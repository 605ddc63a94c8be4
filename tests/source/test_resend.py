"""What a task of a replay sends, without Spark: in order, and once as long as answers arrive."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.replay.tasks import RESEND_COLUMNS, ResendRanges
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from tests.source.conftest import Topics


def resend(topics: Topics, source: str, target: str, **options: str) -> int:
    """Send the only queue of ``source`` to queue 0 of ``target``; how many messages."""
    (partition,) = (replace(one, columns=RESEND_COLUMNS) for one in topics.planned(source, **options))
    to = {partition.planned.queue: MessageQueue(target, "broker-a", 0)}
    tasks = ResendRanges([partition], (topics.sim.name_servers,), to, 5.0)
    (row,) = tasks(iter([pa.RecordBatch.from_pydict({"id": [0]})]))
    return row.column("sent")[0].as_py()


def busy(topics: Topics, times: int) -> None:
    topics.sim.faults.add(
        "answer-code",
        on=RequestCode.SEND_BATCH_MESSAGE,
        times=times,
        response_code=ResponseCode.SYSTEM_BUSY,
        remark="[TIMEOUT_CLEAN_QUEUE]",
    )


def test_a_busy_broker_is_waited_for(topics: Topics) -> None:
    """H3, A2: nothing is sent twice that was refused."""
    source, target = topics.make(1500), topics.make(0)
    busy(topics, 3)

    assert resend(topics, source, target) == 1500
    bodies = topics.read(target).column("body").to_pylist()
    assert bodies == [b"%d" % number for number in range(1500)]


def test_one_that_stays_busy_ends_the_task(topics: Topics) -> None:
    """H3: after retryTimeoutMs."""
    source, target = topics.make(3), topics.make(0)
    busy(topics, 50)
    try:
        with pytest.raises(RocketMQError, match="TIMEOUT_CLEAN_QUEUE"):
            resend(topics, source, target, retryTimeoutMs="300")
    finally:
        topics.sim.faults.clear()
