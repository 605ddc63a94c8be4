"""Orderly consumers that give messages up, from the broker to its dead-letter topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession

from pyspark_rocketmq.format import register
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeOrderlyStatus, Message, MessageExt, dlq_topic, retry_topic
from tests.end_to_end.test_orderly_consumer import Consumption, emit_step
from tests.helpers.cluster import LONG_ON_REAL, SIM_ONLY, ClusterUnderTest
from tests.helpers.delivery_log import DeliveryLog
from tests.helpers.golden import golden
from tests.helpers.modes import BOTH_MODES, Mode
from tests.helpers.orders import check_sink, produce_orders
from tests.helpers.sending import await_dispatched, patient_producer, send_back_patiently

pytestmark = pytest.mark.spark

MOST = 2
BAD = {("order-3", "paid"), ("order-3", "packed"), ("order-8", "delivered")}


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    send_back_patiently(monkeypatch)


@pytest.fixture
def consumption(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path, engine: str, mode: Mode
) -> Consumption:
    return Consumption(spark, cluster, tmp_path, cluster.create_topic(queues=2), engine, mode=mode)


def stored(consumption: Consumption, topic: str) -> list[Row]:
    await_dispatched(consumption.cluster.name_servers)
    register(consumption.spark)
    return (
        consumption.spark.read.format("rocketmq")
        .options(nameServers=consumption.cluster.name_servers, topic=topic)
        .load()
        .collect()
    )


@LONG_ON_REAL
@pytest.mark.parametrize(
    ("engine", "mode"),
    [("state", Mode.MICRO_BATCH), ("direct", Mode.MICRO_BATCH), ("direct", Mode.REAL_TIME)],
    indirect=["mode"],
)
def test_a_message_that_always_fails_becomes_a_dead_letter_and_its_queue_goes_on(
    consumption: Consumption,
) -> None:
    """D6: delivered maxReconsumeTimes + 1 times, then kept with its history;
    nothing else is touched by it.
    """
    expected = dict(produce_orders(consumption.cluster.name_servers, consumption.topic, 10))
    log = DeliveryLog(consumption.folder / "deliveries")

    def fail(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        log.note(messages)
        emit_step(messages, context)
        if (messages[0].keys, messages[0].tags) in BAD:
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        return ConsumeOrderlyStatus.SUCCESS

    consumption.drain(fail, max_reconsume_times=MOST, suspend_current_queue_time_millis=10)

    for key, step in BAD:
        expected[key] = tuple(each for each in expected[key] if each != step)
    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    assert sum(consumption.next_offsets().values()) == 50
    assert Counter(log.times_delivered().values()) == {1: 47, MOST + 1: 3}
    acks = [ack for batch in consumption.reports for ack in batch.acks]
    assert (sum(ack.dead_letters for ack in acks), sum(ack.failed for ack in acks)) == (3, 3 * (MOST + 1))

    letters = stored(consumption, dlq_topic(consumption.group))
    assert {(row["keys"], row["tags"]) for row in letters} == BAD
    assert len(letters) == 3
    for row in letters:
        assert (row["reconsumeTimes"], row["body"].decode()) == (MOST + 1, f"{row['keys']}:{row['tags']}")


@SIM_ONLY
@BOTH_MODES
@pytest.mark.parametrize("engine", ["direct"])
def test_a_row_that_breaks_the_output_schema_ends_the_query_and_makes_no_dead_letter(
    consumption: Consumption,
) -> None:
    """D5: what was acknowledged before stays, nothing is counted,
    and a corrected listener gets all the rest.
    """
    expected = produce_orders(consumption.cluster.name_servers, consumption.topic, 20)

    def misspell(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        if (messages[0].keys, messages[0].tags) == ("order-15", "delivered"):
            with suppress(Exception):
                context.emit(orderid=messages[0].keys)
        return emit_step(messages, context)

    with pytest.raises(
        StreamingQueryException, match=r"SchemaError: .* Output rows have column\(s\) orderid"
    ):
        consumption.drain(misspell, max_reconsume_times=0, max_offsets_per_trigger=20)
    assert {row.state.reconsume_times for row in consumption.store.read(consumption.group).values()} == {0}
    done = sum(consumption.next_offsets().values())
    # In real time the listener may be there before anything is committed.
    assert (0 if consumption.mode is Mode.MICRO_BATCH else -1) < done < 100

    consumption.drain(max_reconsume_times=0)

    report = check_sink(consumption.sink, expected)
    assert report.is_clean, str(report)
    assert sum(ack.dead_letters for batch in consumption.reports for ack in batch.acks) == 0


@BOTH_MODES
@pytest.mark.parametrize("engine", ["direct"])
def test_a_dead_letter_is_the_one_java_s_consumer_leaves(consumption: Consumption) -> None:
    """D6: with the same properties, MIN_OFFSET and MAX_OFFSET among them,
    which a consumer adds to what it has pulled.
    """
    (letter,) = next(
        scenario
        for scenario in golden("orderly_trace.json")["scenarios"]
        if "maxReconsumeTimes=0" in scenario["scenario"]
    )["dlq_content"]
    with patient_producer(consumption.cluster.name_servers) as producer:
        properties = {"KEYS": letter["key"], "TAGS": "T"}
        sent = producer.send(Message(topic=consumption.topic, body=b"a", properties=properties))

    def fail(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> None:
        raise ValueError("always")

    consumption.drain(fail, max_reconsume_times=0)

    (row,) = stored(consumption, dlq_topic(consumption.group))
    of_this_run = {
        "RETRY_TOPIC": consumption.topic,
        "ORIGIN_MESSAGE_ID": sent.msg_id,
        "UNIQ_KEY": sent.msg_id,
        "MIN_OFFSET": "0",
        "MAX_OFFSET": "1",
    }
    assert dict(row["properties"]) == letter["properties"] | of_this_run
    assert (row["reconsumeTimes"], row["keys"]) == (letter["reconsumeTimes"], letter["key"])
    assert stored(consumption, retry_topic(consumption.group)) == []
