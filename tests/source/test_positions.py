"""Where a batch read begins and ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_rocketmq.errors import OffsetsBeganAgain, OptionError
from pyspark_rocketmq.format import DefaultSource
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.stored_values import LastMessage, RememberedMessages
from tests.object_stores.server import Bucket
from tests.real_broker import plain_remoting
from tests.source.conftest import Topics
from tests.source.test_vanished import make_again

REQUIRED = {"nameServers": "n:1", "topic": "orders"}
UPDATE_CONSUMER_OFFSET = 15


def of_queue(topic: str, **values: int) -> str:
    """JSON for queues of broker-a: ``q0=5``."""
    return json.dumps({topic: {"broker-a": {key[1:]: value for key, value in values.items()}}})


def store_times(topics: Topics, topic: str) -> list[int]:
    column = topics.read(topic, includeColumns="storeTimestamp").column(0)
    return [int(value.timestamp() * 1000) for value in column.to_pylist()]


def spread_over_time(topics: Topics, count: int) -> tuple[str, list[int]]:
    """A queue whose messages have different store timestamps, and those."""
    topic = topics.make(1)
    while len(set(times := store_times(topics, topic))) < count:
        topics.put(topic, 0, 1)
    return topic, times


def test_a_batch_begins_and_ends_where_offsets_say(topics: Topics) -> None:
    """startingOffsets, endingOffsets, H3: the end is exclusive; queues not named are read from end to end."""
    topic = topics.make(6, 3)

    assert topics.offsets(
        topic, startingOffsets=of_queue(topic, q0=2), endingOffsets=of_queue(topic, q0=5)
    ) == {
        0: [2, 3, 4],
        1: [0, 1, 2],
    }
    assert topics.offsets(
        topic, startingOffsets=json.dumps({topic: 1}), endingOffsets=json.dumps({topic: 2})
    ) == {
        0: [1],
        1: [1],
    }


def test_an_empty_range_of_offsets_reads_nothing(topics: Topics) -> None:
    topic = topics.make(6)

    assert (
        topics.offsets(topic, startingOffsets=of_queue(topic, q0=4), endingOffsets=of_queue(topic, q0=4))
        == {}
    )


@pytest.mark.parametrize(
    ("start", "end", "sentence"),
    [
        (4, 3, r"would begin at offset 4 and end before it, at offset 3 \(exclusive\)"),
        (0, 7, r"endingOffsets asks for offset 7 \(exclusive\) of topic=.* but the broker has only 0 to 6"),
        (9, 6, "startingOffsets asks for offset 9"),
    ],
)
def test_offsets_that_are_not_there_end_the_read_or_are_passed_over(
    topics: Topics, start: int, end: int, sentence: str
) -> None:
    """failOnDataLoss, F4."""
    topic = topics.make(6)
    options = {"startingOffsets": of_queue(topic, q0=start), "endingOffsets": of_queue(topic, q0=end)}

    with pytest.raises(OptionError, match=sentence):
        topics.planned(topic, **options)
    assert topics.offsets(topic, failOnDataLoss="false", **options) == (
        {0: list(range(6))} if end > 6 else {}
    )


def test_a_queue_that_does_not_exist_cannot_end_a_read(topics: Topics) -> None:
    topic = topics.make(1)

    with pytest.raises(OptionError, match=r"endingOffsets names topic=.* queue=5, which does not exist"):
        topics.planned(topic, endingOffsets=of_queue(topic, q5=1))
    with pytest.raises(OptionError, match=r"endingOffsetsByTimestamp names topic=.* queue=5"):
        topics.planned(topic, endingOffsetsByTimestamp=of_queue(topic, q5=1))


def test_a_batch_begins_and_ends_at_a_time(topics: Topics) -> None:
    """startingTimestamp, endingTimestamp, F2: from the first message at or after one,
    to before the first at or after.
    """
    topic, times = spread_over_time(topics, 5)
    begin, end = sorted(set(times))[1], sorted(set(times))[3]

    read = topics.offsets(topic, startingTimestamp=str(begin), endingTimestamp=str(end))

    assert read == {0: [offset for offset, at in enumerate(times) if begin <= at < end]}


def test_each_queue_may_have_a_time_of_its_own(topics: Topics) -> None:
    """startingOffsetsByTimestamp, endingOffsetsByTimestamp: queues not named are read from end to end."""
    topic, times = spread_over_time(topics, 5)
    middle = sorted(set(times))[2]
    first = times.index(middle)
    text = of_queue(topic, q0=middle)

    assert topics.offsets(topic, startingOffsetsByTimestamp=text) == {0: list(range(first, len(times)))}
    assert topics.offsets(topic, endingOffsetsByTimestamp=json.dumps({topic: middle})) == {
        0: list(range(first))
    }
    other = json.dumps({topic: {"broker-a": {"0": middle}}})
    assert topics.offsets(topic, startingOffsetsByTimestamp=other, endingTimestamp="1") == {}


def test_a_time_without_a_message_begins_with_the_next_or_is_an_error(topics: Topics) -> None:
    """startingOffsetsByTimestampStrategy"""
    topic = topics.make(2)
    future = str(2**41)

    assert topics.offsets(topic, startingTimestamp=future) == {}
    assert topics.offsets(topic, endingTimestamp=future) == {0: [0, 1]}
    with pytest.raises(OptionError, match="has no message stored at or after 2199023255552"):
        topics.planned(topic, startingTimestamp=future, startingOffsetsByTimestampStrategy="error")


def commit(topics: Topics, group: str, topic: str, queue_id: int, offset: int) -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    address = topics.sim.broker_addresses["broker-a"]
    # A broker takes offsets of groups only that it knows: a pull makes one known.
    pull = {"queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
            "subscription": "*", "subVersion": "0", "expressionType": "TAG"}  # fmt: skip
    plain_remoting.call(address, 11, {**fields, **pull})
    assert plain_remoting.call(address, UPDATE_CONSUMER_OFFSET, fields).code == 0


def test_a_read_begins_where_a_group_stands(topics: Topics) -> None:
    """startingOffsets=group, startingGroup: a queue without an offset of the group from its first message."""
    topic = topics.make(5, 2)
    commit(topics, "reader", topic, 0, 3)
    options = {"startingOffsets": "group", "startingGroup": "reader"}

    assert topics.offsets(topic, **options) == {0: [3, 4], 1: [0, 1]}
    assert topics.offsets(topic, offsetStore="broker:", **options) == {0: [3, 4], 1: [0, 1]}
    assert topics.sim.committed_offset("reader", MessageQueue(topic, "broker-a", 0)) == 3


def test_a_read_ends_where_a_group_stands(topics: Topics) -> None:
    """endingOffsets=group, endingGroup: nothing of a queue without an offset of the group,
    or where it is not that far.
    """
    topic = topics.make(5, 2)
    commit(topics, "reader", topic, 0, 3)
    commit(topics, "ahead", topic, 0, 4)
    ends = {"endingOffsets": "group", "endingGroup": "reader"}
    between = {"startingOffsets": "group", "startingGroup": "reader", "endingOffsets": "GROUP"}

    assert topics.offsets(topic, **ends) == {0: [0, 1, 2]}
    assert topics.offsets(topic, offsetStore="broker:", **ends) == {0: [0, 1, 2]}
    assert topics.offsets(topic, **between, endingGroup="ahead") == {0: [3]}
    assert topics.offsets(topic, **ends, startingOffsets=of_queue(topic, q0=4)) == {}


def test_a_group_that_is_beyond_the_end_is_data_loss(topics: Topics) -> None:
    """endingOffsets=group, F4: what it had consumed is no longer there."""
    topic = topics.make(5)
    commit(topics, "reader", topic, 0, 7)
    ends = {"endingOffsets": "group", "endingGroup": "reader"}

    with pytest.raises(OptionError, match=r"endingOffsets asks for offset 7 \(exclusive\).*only 0 to 5"):
        topics.planned(topic, **ends)
    assert topics.offsets(topic, failOnDataLoss="false", **ends) == {0: [0, 1, 2, 3, 4]}


def test_an_offset_table_may_be_on_an_object_store(topics: Topics, s3: Bucket) -> None:
    """J1: storageSecrets."""
    topic = topics.make(5)
    store = DeltaOffsetStore(s3.uri("offsets"), storage_options=s3.storage_options())
    store.claim("reader", "client", {MessageQueue(topic, "broker-a", 0): 3})
    options = {
        "startingOffsets": "group",
        "startingGroup": "reader",
        "offsetStore": s3.uri("offsets"),
        "storageSecrets": json.dumps(s3.storage_options()),
    }

    assert topics.offsets(topic, **options) == {0: [3, 4]}


def test_a_read_begins_where_an_offset_table_says(topics: Topics, tmp_path: Path) -> None:
    """startingGroup, endingGroup with offsetStore."""
    topic = topics.make(5, 2)
    store = DeltaOffsetStore(str(tmp_path / "offsets"))
    store.reset("reader", {MessageQueue(topic, "broker-a", 0): 4})

    options = {
        "startingOffsets": "group",
        "startingGroup": "reader",
        "offsetStore": str(tmp_path / "offsets"),
    }
    assert topics.offsets(topic, **options) == {0: [4], 1: [0, 1]}
    ends = {"endingOffsets": "group", "endingGroup": "reader", "offsetStore": options["offsetStore"]}
    assert topics.offsets(topic, **ends) == {0: [0, 1, 2, 3]}


def test_a_topic_made_again_has_nothing_that_a_group_has_consumed(topics: Topics, tmp_path: Path) -> None:
    """startingGroup, endingGroup, F4: the table remembers the message that it consumed last."""
    topic = topics.make(5)
    queue = MessageQueue(topic, "broker-a", 0)
    store = DeltaOffsetStore(str(tmp_path / "offsets"))
    epoch = store.claim("reader", "client", {queue: 0})[queue].epoch
    row = topics.read(topic).select(["commitLogOffset", "storeTimestamp"]).to_pylist()[3]
    last = LastMessage(3, round(row["storeTimestamp"].timestamp() * 1000), row["commitLogOffset"])
    state = QueueState(4, epoch, last_message=RememberedMessages.of(last))
    store.commit("reader", [QueueCommit(queue=queue, state=state)], query_id="q", batch_id=1)
    table = {"offsetStore": str(tmp_path / "offsets")}
    starts = {"startingOffsets": "group", "startingGroup": "reader", **table}
    ends = {"endingOffsets": "group", "endingGroup": "reader", **table}
    assert topics.offsets(topic, **starts) == {0: [4]}
    assert topics.offsets(topic, **ends) == {0: [0, 1, 2, 3]}

    make_again(topics, topic, 9)

    for options in (starts, ends):
        with pytest.raises(OffsetsBeganAgain, match="offset 3 was consumed"):
            topics.planned(topic, **options)
    assert topics.offsets(topic, failOnDataLoss="false", **starts) == {0: [*range(9)]}
    assert topics.offsets(topic, failOnDataLoss="false", **ends) == {}


def test_one_queue_is_read_by_many_tasks(topics: Topics) -> None:
    """minPartitions, maxRecordsPerPartition, H3: every message once."""
    topic = topics.make(40)

    assert [task.planned.count for task in topics.planned(topic, minPartitions="4")] == [10] * 4
    assert [task.planned.count for task in topics.planned(topic, maxRecordsPerPartition="15")] == [13, 13, 14]
    for options in ({"minPartitions": "7"}, {"maxRecordsPerPartition": "3", "subscription": "odd"}):
        step = 2 if "subscription" in options else 1
        assert topics.offsets(topic, **options) == {0: list(range(step - 1, 40, step))}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"startingTimestamp": "1", "startingOffsetsByTimestamp": '{"orders": 1}'}, "exclude each other"),
        ({"endingTimestamp": "1", "endingOffsets": "latest"}, "exclude each other"),
        (
            {"startingTimestamp": "2", "endingTimestamp": "1"},
            "is 2, later than 'endingTimestamp', which is 1",
        ),
        ({"startingOffsets": "group"}, "'startingOffsets=group' needs 'startingGroup'"),
        ({"startingGroup": "g"}, "'startingGroup' needs 'startingOffsets=group'"),
        ({"endingOffsets": "group"}, "'endingOffsets=group' needs 'endingGroup'"),
        ({"endingGroup": "g"}, "'endingGroup' needs 'endingOffsets=group'"),
        ({"endingGroup": "g", "endingOffsets": "latest"}, "'endingGroup' needs 'endingOffsets=group'"),
        ({"endingOffsetsByTimestamp": '{"x": 1}'}, "names topic 'x', but this query reads orders"),
        ({"minPartitions": "0"}, "minPartitions='0' is not between"),
        ({"minPartitions": "1.0"}, "minPartitions='1.0' is not a whole number"),
        (
            {"minPartitions": "2", "maxRecordsPerPartition": "1", "consumerGroup": "g", "offsetStore": "/s"},
            "'maxRecordsPerPartition' does not go with 'consumerGroup', which reads a queue in one task",
        ),
        (
            {"startingOffsets": "group", "consumerGroup": "g", "offsetStore": "/s"},
            "'consumerGroup', because that group continues at its own offsets",
        ),
    ],
)
def test_positions_that_do_not_go_together_are_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        ReadOptions.parse(REQUIRED | given)


def test_a_group_that_cannot_begin_at_another_gets_only_that_error() -> None:
    of_group = {"startingOffsets": "group", "startingGroup": "x", "consumerGroup": "g", "offsetStore": "/s"}

    with pytest.raises(OptionError) as refused:
        ReadOptions.parse(REQUIRED | of_group)

    (problem,) = refused.value.problems
    assert "'consumerGroup', because that group continues at its own offsets" in problem


def test_options_without_meaning_for_a_stream_or_a_batch_are_refused() -> None:
    stream = DefaultSource(REQUIRED | {"endingOffsets": "latest"})
    batch = DefaultSource(REQUIRED | {"startingOffsets": '{"orders": "latest"}'})

    with pytest.raises(OptionError, match="option 'endingOffsets' is for batch reads: a stream has no end"):
        stream.streamReader(stream.schema())
    with pytest.raises(OptionError, match="'startingOffsets' is latest"):
        batch.reader(batch.schema())
