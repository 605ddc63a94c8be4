"""A part of a task's result: its form as JSON, and several of them as one."""

from __future__ import annotations

import json

import pytest

from pyspark_rocketmq.consume.metrics import ConsumeMetrics
from pyspark_rocketmq.consume.part import Part, QueueAck, merged
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import MessageQueue, QueueState

A, B, C = (MessageQueue("T", "broker-a", number) for number in range(3))


def ack(queue: MessageQueue, start: int = 0, end: int = 3) -> QueueAck:
    return QueueAck(
        queue=queue,
        start=start,
        state=QueueState(end, epoch=4, suspended_until_s=1_500.25),
        consumed=end - start,
        failed=1,
        finished="SUSPENDED",
        last_error="ValueError: no such order",
        metrics=ConsumeMetrics(),
    )


def part(part_id: str, *queues: MessageQueue) -> Part:
    return Part(
        id=part_id,
        acks=tuple(map(ack, queues)),
        written=tuple({"path": f"{part_id}-{queue.queue_id}.parquet"} for queue in queues),
        emitted=5,
        left_out=2,
    )


def test_a_part_is_the_same_after_json() -> None:
    """H1"""
    sent = part("p", B, A)

    assert Part.from_facts(json.loads(json.dumps(sent.facts))) == sent
    assert Part.from_facts(sent.facts) == sent
    assert list(sent.facts) == ["id", "written", "acks", "emitted", "left_out"]
    assert sent.queues == {A, B}


def test_merged_parts_have_everything_with_acks_by_queue() -> None:
    """H1"""
    whole = merged([part("p", C, A), part("q", B)])

    assert [each.queue for each in whole.acks] == [A, B, C]
    assert [facts["path"] for facts in whole.written] == ["p-2.parquet", "p-0.parquet", "q-1.parquet"]
    assert (whole.emitted, whole.left_out) == (10, 4)
    assert merged(()) == Part(id="", acks=())


def test_a_queue_in_two_parts_of_a_batch_is_refused() -> None:
    """H1: its rows were copied on the way to the engine."""
    with pytest.raises(RocketMQError, match="two ranges of one batch were consumed, 0 to 3 and 0 to 3"):
        merged([part("p", A, B), part("q", B)])


@pytest.mark.parametrize("missing", ["id", "written", "acks", "emitted", "left_out"])
def test_a_part_without_one_of_its_facts_is_refused(missing: str) -> None:
    """H9"""
    facts = {name: value for name, value in part("p", A).facts.items() if name != missing}
    with pytest.raises(KeyError):
        Part.from_facts(facts)
