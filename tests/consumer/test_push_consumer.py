"""What a consumer refuses before it asks anything of Spark."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.consume.concurrent import ConcurrentSettings
from pyspark_rocketmq.consume.orderly import OrderlySettings
from pyspark_rocketmq.consumer import push_consumer
from pyspark_rocketmq.consumer.engine import state
from pyspark_rocketmq.consumer.engine.direct import DirectEngine
from pyspark_rocketmq.consumer.engine.keyed import KeyedRangeConsumer
from pyspark_rocketmq.consumer.engine.orderly import RangeConsumer
from pyspark_rocketmq.consumer.message_table import json_body
from pyspark_rocketmq.consumer.push_consumer import PushConsumer, _StartRequest
from pyspark_rocketmq.consumer.settings import warn_of_long_name
from pyspark_rocketmq.errors import OptionError, SchemaError
from pyspark_rocketmq.hub.state import Slots
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, MessageModel, OrderlyBy
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.open import MemoryOffsetStore, open_offset_store
from pyspark_rocketmq.offsets.store import OffsetStore
from pyspark_rocketmq.options.consumer import consume_time
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.spark.session import check_speculation, lives
from tests.helpers.fake_clock import FakeClock


def problems_of(**settings: Any) -> tuple[str, ...]:
    consumer = PushConsumer(
        **{
            "consumer_group": "g",
            "name_servers": "a:1",
            "offset_store": DeltaOffsetStore("unused"),
            **settings,
        }
    )
    consumer.subscribe("orders")
    with pytest.raises(OptionError) as caught:
        consumer.start(None, checkpoint="unused")  # type: ignore[arg-type]
    # No listener is registered, so that start() never gets farther.
    return tuple(problem for problem in caught.value.problems if "no listener is registered" not in problem)


@pytest.mark.parametrize(
    "store", [MemoryOffsetStore("m", clock=FakeClock()), "memory:m", " memory:m"], ids=str
)
def test_a_store_in_memory_is_refused_since_the_planner_is_another_process(store: OffsetStore | str) -> None:
    """The planner would begin again with every query, and see no commit."""
    [problem] = problems_of(offset_store=store)

    assert "cannot be seen by Spark's planner process; use DeltaOffsetStore" in problem


@pytest.mark.parametrize("store", ["broker:", " broker:"])
def test_a_sink_is_refused_where_the_brokers_keep_the_offsets(store: str) -> None:
    """H1: without fencing no row is there exactly once."""
    consumer = PushConsumer(consumer_group="g", name_servers="a:1", offset_store=store)
    consumer.subscribe("orders")
    with pytest.raises(OptionError, match=r"offset_store is ' ?broker:', which accepts commits"):
        consumer.start(None, sink=DeltaSink("./unused"), checkpoint="unused")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("delta:file:/lake/offsets", "delta:/lake/offsets"),
        ("file:file:/lake/offsets", "file:/lake/offsets"),
        ("delta:s3:/lake/offsets", "delta:s3:/lake/offsets"),
        ("delta:~/offsets", f"delta:{Path.home()}/offsets"),
        ("./s3:/offsets", f"delta:{Path.cwd()}/s3:/offsets"),
        ("delta:s3://lake/offsets", "delta:s3://lake/offsets"),
    ],
)
def test_an_offset_store_s_uri_is_no_folder_below_the_current_one(text: str, spec: str) -> None:
    """J1: one that nobody understands is refused when the store is opened."""
    consumer = PushConsumer(consumer_group="g", name_servers="a:1", offset_store=text)

    assert consumer._settings.store_spec == spec
    if spec == "delta:s3:/lake/offsets":
        with pytest.raises(OptionError, match="neither a path nor a URI"):
            open_offset_store(consumer._settings.store_spec)


def test_a_text_that_names_no_store_is_refused_in_the_words_of_the_option() -> None:
    [problem] = problems_of(offset_store="brokers:")

    assert "has the unknown kind 'brokers'" in problem


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("nameServers", "parameter name_servers"),
        ("topic", "subscribe()"),
        ("SUBSCRIPTION", "subscribe()"),
        ("consumergroup", "parameter consumer_group"),
        ("offsetStore", "parameter offset_store"),
        ("startingOffsets", "parameter consume_from_where"),
        ("startingTimestamp", "parameters consume_from_where and consume_timestamp"),
        ("maxOffsetsPerTrigger", "parameter max_offsets_per_trigger"),
        ("realTime", "parameter trigger of start()"),
    ],
)
def test_an_option_that_a_parameter_sets_is_refused_by_name(key: str, instead: str) -> None:
    """Else group and offsets of the planner and of the committer could differ."""
    [problem] = problems_of(options={key: "||"})

    assert problem == f"options={{'{key}': …}} would override what this consumer sets itself; use {instead}"


@pytest.mark.parametrize("written", ["19700101000000", "19700201000000", "20260101000000"])
def test_a_group_may_begin_at_any_time(written: str) -> None:
    """F5: in 1970 too, whose milliseconds are few as seconds are."""
    assert not problems_of(consume_from_where="CONSUME_FROM_TIMESTAMP", consume_timestamp=written)


@pytest.fixture
def in_shanghai(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process's local time is that of Shanghai, UTC+8."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Shanghai")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_shanghai")
@pytest.mark.parametrize(
    "written",
    [
        "20261122180000",
        "20261122180000+08:00",
        "20261122180000+0800",
        "20261122100000Z",
        "20261122050000-05:00",
        "2026-11-22T10:00",
        "2026-11-22 18:00+08:00",
    ],
)
def test_a_time_to_begin_at_is_local_time_unless_it_names_a_zone(written: str) -> None:
    """F2: read as UTC it would pass over eight hours of messages."""
    ten_o_clock = datetime(2026, 11, 22, 10, tzinfo=UTC)

    assert consume_time(written) == ten_o_clock
    consumer = PushConsumer(
        consumer_group="g",
        name_servers="a:1",
        offset_store=DeltaOffsetStore("unused"),
        consume_from_where="CONSUME_FROM_TIMESTAMP",
        consume_timestamp=written,
    )
    options = consumer._settings.source_options({"orders": "*"}, None, orderly=True, problems=[])
    assert options["startingTimestamp"] == str(int(ten_o_clock.timestamp() * 1000))


@pytest.mark.parametrize(
    "written", ["2026112218000", "20261322180000", "20261122180000+8", "20261122180000CET"]
)
def test_an_invalid_consume_timestamp_is_refused_with_the_expected_form(written: str) -> None:
    """F2."""
    [problem] = problems_of(consume_from_where="CONSUME_FROM_TIMESTAMP", consume_timestamp=written)

    assert problem == (
        f"consume_timestamp='{written}' is not a time written as yyyyMMddHHmmss, "
        "perhaps with a zone (20261122180000+08:00, 20261122100000Z), or as ISO (2026-11-22T10:00, UTC "
        "unless it says otherwise)"
    )


def test_an_engine_that_is_none_is_refused_naming_those_there_are() -> None:
    [problem] = problems_of(orderly_engine="fast")

    assert problem == "orderly_engine='fast' is none of state, direct"


def test_an_order_that_is_none_is_refused_naming_those_there_are() -> None:
    """I8"""
    [problem] = problems_of(orderly_by="key")

    assert problem == "orderly_by='key' is none of queue, sharding_key"
    assert problems_of(orderly_by=OrderlyBy.SHARDING_KEY) == problems_of(orderly_by="sharding_key") == ()


@pytest.mark.parametrize(
    ("order", "is_by_key"), [("queue", False), ("sharding_key", True), (OrderlyBy.SHARDING_KEY, True)]
)
def test_a_listener_gets_its_messages_in_the_order_that_is_asked_for(order: str, is_by_key: bool) -> None:
    """I8"""
    consumer = PushConsumer(
        consumer_group="g", name_servers="a:1", offset_store=DeltaOffsetStore("unused"), orderly_by=order
    )
    consumer.subscribe("orders")
    consumer.register_message_listener(lambda messages, context: None, output_schema="step string")
    options = ReadOptions.parse(consumer._source_options())
    _, engine = consumer._engine(None, StructType().add("step", "string"), options)  # type: ignore[arg-type]

    assert isinstance(engine, DirectEngine)
    assert isinstance(engine._consumer, KeyedRangeConsumer) == is_by_key


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("concurrent", "needs an orderly listener, and this one is concurrent"),
        ("state", "needs orderly_engine 'direct': with 'state' the calls for one queue never overlap"),
        ("table", "needs a listener, and register_message_table\\(\\) has none"),
    ],
)
def test_an_order_by_key_is_refused_where_it_makes_no_sense(case: str, says: str) -> None:
    """I8"""
    consumer = PushConsumer(
        consumer_group="g",
        name_servers="a:1",
        offset_store=DeltaOffsetStore("unused"),
        orderly_by="sharding_key",
        orderly_engine="state" if case == "state" else "direct",
    )
    consumer.subscribe("orders")
    if case == "table":
        consumer.register_message_table(json_body("order_id string"))
    else:
        consumer.register_message_listener(
            lambda messages, context: None, orderly=case != "concurrent", output_schema="order_id string"
        )
    with pytest.raises(OptionError, match=f"orderly_by='sharding_key' {says}"):
        consumer.start(None, checkpoint="unused")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("interval", "says"),
    [
        (
            "49ms",
            "is shorter than 50 ms; each commit makes a new version of the sink and of the offset store",
        ),
        ("often", "is not a duration such as 15m; units are ms, s, m, min, h, d"),
    ],
)
def test_a_commit_interval_that_is_none_is_refused(interval: str, says: str) -> None:
    assert problems_of(commit_interval=interval) == (f"commit_interval='{interval}' {says}",)


def test_a_commit_interval_is_a_text() -> None:
    assert problems_of(commit_interval="200 milliseconds") == ()
    with pytest.raises(OptionError, match=r"commit_interval must be a string or None, not 0\.2"):
        problems_of(commit_interval=0.2)


def test_a_commit_interval_is_refused_with_the_state_engine() -> None:
    """H1: its rows cross Spark, and come when the job ends."""
    [problem] = problems_of(commit_interval="1 second", orderly_engine="state")

    assert problem == (
        "commit_interval cannot be used with orderly_engine 'state': there rows reach the sink only at the end "
        "of a micro-batch. Leave out one of the two"
    )


def test_a_commit_interval_is_refused_with_a_table_of_messages() -> None:
    consumer = PushConsumer(
        consumer_group="g",
        name_servers="a:1",
        offset_store=DeltaOffsetStore("unused"),
        commit_interval="1 second",
    )
    consumer.subscribe("orders")
    consumer.register_message_table(json_body("order_id string"))
    with pytest.raises(OptionError, match=r"commit_interval cannot be used with register_message_table\(\)"):
        consumer.start(None, checkpoint="unused")  # type: ignore[arg-type]


@pytest.mark.parametrize("fails", [True, False])
def test_the_state_engine_is_refused_where_spark_and_arrow_do_not_fit(
    *, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row J4: naming the versions that do."""
    monkeypatch.setattr(state, "STATE_ENGINE_BROKEN", fails)

    problems = problems_of(orderly_engine="state")

    assert len(problems) == fails
    for problem in problems:
        assert f"does not work on Spark {pyspark.__version__} with pyarrow {pa.__version__}" in problem
        assert "Spark 4.0.5, 4.1.4, or 4.2, or pyarrow 25 or older" in problem


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"consume_message_batch_maxsize": 1},
            "'consume_message_batch_maxsize', did you mean 'consume_message_batch_max_size'?",
        ),
        ({"consumeThreadMax": 1}, "'consumeThreadMax', did you mean 'consume_thread_max'?"),
        ({"colour": 1}, "'colour'; those are consumer_group, "),
    ],
)
def test_a_parameter_that_is_not_there_is_refused_with_the_one_that_was_meant(
    given: dict[str, Any], says: str
) -> None:
    with pytest.raises(TypeError) as caught:
        problems_of(**given)

    assert f"PushConsumer() has no parameter {says}" in str(caught.value)


@pytest.mark.parametrize(
    ("length", "namespace", "has_letters", "warns"),
    [(120, None, True, False), (121, None, True, True), (115, "shop%", True, False), (120, "shop", True, True),
     (200, None, False, False)],
)  # fmt: skip
def test_a_group_whose_dead_letters_may_find_no_topic_is_warned_of(
    caplog: pytest.LogCaptureFixture, length: int, namespace: str | None, has_letters: bool, warns: bool
) -> None:
    """D6: its name is too long for a topic with %RETRY% or %DLQ% before it."""
    warn_of_long_name("g" * length, namespace and namespace.rstrip("%"), has_letters=has_letters)

    assert ("at most 120 characters" in caplog.text) == warns


@pytest.mark.parametrize(
    ("model", "orderly", "most", "has_letters"),
    [
        (MessageModel.CLUSTERING, True, 3, True),
        (MessageModel.CLUSTERING, True, -1, False),
        (MessageModel.CLUSTERING, False, -1, True),
        (MessageModel.BROADCASTING, True, 3, True),
        (MessageModel.BROADCASTING, False, 3, False),
    ],
)
def test_a_message_that_always_fails_becomes_a_dead_letter(
    model: MessageModel, orderly: bool, most: int, has_letters: bool
) -> None:
    """D6, E5: in broadcasting a concurrent listener's message is dropped, so no topic's name is too long."""
    consumer = PushConsumer(
        consumer_group="g", name_servers="a:1", offset_store="file:unused", message_model=model,
        max_reconsume_times=most,
    )  # fmt: skip

    assert consumer._settings.makes_dead_letters(orderly=orderly) == has_letters


def test_parameters_of_another_kind_are_refused_together_where_they_are_given() -> None:
    """Not by Spark, Python or the JVM, later."""
    with pytest.raises(OptionError) as caught:
        PushConsumer(
            consumer_group="g",
            name_servers=["a:1"],  # type: ignore[arg-type]
            offset_store=Path("offsets"),  # type: ignore[arg-type]
            consume_message_batch_max_size="32",  # type: ignore[arg-type]
            mirror_offsets=1,  # type: ignore[arg-type]
        )

    assert caught.value.problems == (
        "name_servers must be a string, not a list",
        "consume_message_batch_max_size must be a whole number, not '32'",
        "mirror_offsets must be True or False, not 1",
        f"offset_store must be a store or a string, not {Path('offsets')!r}; use DeltaOffsetStore(path)",
    )


def test_an_enum_member_may_be_given_by_name_and_a_wrong_name_is_refused() -> None:
    consumer = PushConsumer(
        consumer_group="g",
        name_servers="a:1",
        offset_store="unused",
        message_model="BROADCASTING",
        instance_name="i",
    )
    consumer.subscribe("orders")
    consumer.register_message_table(lambda body: body)
    assert consumer.source_options()["messageModel"] == "BROADCASTING"

    with pytest.raises(
        OptionError, match=r"consume_from_where is 'FIRST_OFFSET', .* did you mean 'CONSUME_FROM_FIRST"
    ):
        PushConsumer(
            consumer_group="g", name_servers="a:1", offset_store="unused", consume_from_where="FIRST_OFFSET"
        )


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"sink": "/lake/orders"}, "not '/lake/orders'; for a Delta table write DeltaSink('/lake/orders')"),
        (
            {"sink": [DeltaSink("./unused"), 7]},
            "sink must be a DeltaSink, a DatabaseSink or another Sink, not 7",
        ),
        ({"sink": "jdbc:mysql://shop:secret@db/orders"}, "or another Sink, not a string"),
        ({"trigger": "1 second"}, "trigger must be a mapping such as {'processingTime': '1 second'}"),
        (
            {"trigger": {"processingtime": "1 second"}},
            "unknown key 'processingtime'; did you mean 'processingTime'?",
        ),
        (
            {"trigger": {"once": True}},
            "use {'availableNow': True}, which consumes all present messages and ends",
        ),
        ({"trigger": {"continuous": "1 second"}}, "takes no Python data source"),
        ({"trigger": {"realTime": 300}}, "must be a duration such as '5 minutes', not 300"),
        ({"trigger": {"realTime": "long"}}, "trigger {'realTime': 'long'} is not a duration such as 15m"),
        (
            {"trigger": {"realTime": "4999ms"}},
            "trigger {'realTime': '4999ms'} is shorter than 5 s; this is the length",
        ),
        ({"trigger": {"realtime": "5m"}}, "unknown key 'realtime'; did you mean 'realTime'?"),
        (
            {"trigger": {"realTime": "5m", "availableNow": True}},
            "trigger has realTime and availableNow, but a query takes only one",
        ),
        ({"trigger": {"availableNow": False}}, "must be True, not False"),
        ({"trigger": {"processingTime": 5}}, "must be an interval such as '1 second', not 5"),
        (
            {"trigger": {"processingTime": "-5 seconds"}},
            "must be an interval such as '1 second', not '-5 seconds'",
        ),
        ({"trigger": {"processingTime": "often"}}, "must be an interval such as '1 second', not 'often'"),
        ({"trigger": {}}, "trigger is empty"),
        (
            {"trigger": {"processingTime": "interval 5 minutes", "availableNow": True}},
            "trigger has processingTime and availableNow, but a query takes only one",
        ),
        ({"checkpoint": None}, "checkpoint must be a folder's path or URI, not None"),
    ],
    ids=str,
)
def test_invalid_start_arguments_are_reported_with_all_other_problems(
    given: dict[str, Any], complaint: str
) -> None:
    consumer = PushConsumer(consumer_group="g", name_servers="a:1", offset_store="unused")
    consumer.subscribe("orders")
    with pytest.raises(OptionError) as caught:
        consumer.start(None, **{"checkpoint": "unused"} | given)  # type: ignore[arg-type]

    of_listener, problem = caught.value.problems
    assert "no listener is registered" in of_listener
    assert complaint in problem


def consumer_of(**settings: Any) -> PushConsumer:
    consumer = PushConsumer(
        consumer_group="g", name_servers="a:1", offset_store=DeltaOffsetStore("unused"), **settings
    )
    consumer.subscribe("orders")
    return consumer


def test_columns_of_messages_need_a_sink_and_no_listener() -> None:
    """K7"""
    consumer = consumer_of(orderly_by="sharding_key", undecodable_messages="keep")
    consumer.register_message_columns(["keys", "body"])
    consumer.register_message_table(json_body("order_id string"))
    with pytest.raises(OptionError) as caught:
        consumer.start(None, checkpoint="unused")  # type: ignore[arg-type]

    problems = "; ".join(caught.value.problems)
    for each in (
        "register_message_columns() needs a sink",
        "more than one of a listener, a table of messages and columns of messages is registered",
        "Add 'properties' to its columns, or use 'fail'",
        "needs a listener, and register_message_columns() has none",
    ):
        assert each in problems


def test_columns_of_messages_may_be_kept_undecoded_and_committed_while_a_batch_runs() -> None:
    """K7, L7"""
    consumer = consumer_of(commit_interval="200ms", undecodable_messages="keep")
    consumer.register_message_columns(body="string")

    assert consumer.source_options()["handOverRanges"] == "true"
    assert consumer._real_time_problems(None) == []


@pytest.mark.parametrize(
    ("columns", "body", "error"),
    [(["key"], "binary", SchemaError), (["keys"], "text", OptionError)],
)
def test_columns_that_a_message_has_not_are_refused_where_they_are_registered(
    columns: list[str], body: str, error: type[Exception]
) -> None:
    """K7"""
    with pytest.raises(error):
        consumer_of().register_message_columns(columns, body=body)


def test_real_time_is_refused_where_rows_come_at_the_end_of_a_batch() -> None:
    """I7"""
    consumer = consumer_of(orderly_engine="state")
    consumer.register_message_table(json_body("order_id string"))
    not_classic: Any = SimpleNamespace()
    with pytest.raises(OptionError) as caught:
        consumer.start(not_classic, checkpoint="unused", trigger={"realTime": "5 minutes"})

    begin = "trigger realTime cannot be used "
    of_real_time = [each for each in caught.value.problems if each.startswith(begin)]
    assert [each.removeprefix(begin).partition(":")[0] for each in of_real_time] == [
        "with register_message_table()",
        "with orderly_engine 'state'",
        "over Spark Connect",
    ]


@pytest.mark.parametrize("trigger", [{"processingTime": "1 second"}, {"availableNow": True}])
def test_spark_gets_its_own_triggers_as_they_are(trigger: dict[str, Any]) -> None:
    assert _StartRequest(None, "unused", trigger, None).trigger_of_spark == trigger


def test_in_real_time_a_batch_follows_the_other_at_once() -> None:
    """Spark's own trigger of this name takes no Python data source and no foreachBatch."""
    request = _StartRequest(None, "unused", {"realTime": "5 minutes"}, None)

    assert request.trigger_of_spark == {"processingTime": "0 seconds"}
    assert not request.drains


@pytest.mark.parametrize(
    ("interval", "of_micro_batches", "in_real_time"),
    [(None, None, 0.5), ("2 seconds", 2.0, 2.0), ("50ms", 0.05, 0.05)],
)
def test_results_are_committed_every_half_second_in_real_time_unless_set(
    interval: str | None, of_micro_batches: float | None, in_real_time: float
) -> None:
    consumer = consumer_of(commit_interval=interval)
    consumer.register_message_listener(
        lambda messages, context: ConsumeOrderlyStatus.SUCCESS, output_schema="step string"
    )
    given = consumer._source_options()

    for trigger, wanted in (({}, of_micro_batches), ({"realTime": "5m"}, in_real_time)):
        options = ReadOptions.parse({**given, **trigger})
        parts = consumer._parts(options, consumer._store(options), None, None, drains=False)
        assert parts.commit_interval_s == wanted


@pytest.mark.parametrize("is_live", [False, True], ids=["micro-batches", "real time"])
@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_in_real_time_every_task_asks_the_driver_and_has_a_slot(
    orderly: bool, is_live: bool, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1, I7: on a cluster, where a micro-batch also runs if tasks cannot connect. A5: encrypted as Spark is."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(push_consumer, "driver_address", lambda spark: ("driver", "0.0.0.0", False))
    monkeypatch.setattr(push_consumer, "calls_end_s", lambda spark: 5.0)
    monkeypatch.setattr(push_consumer, "driver_control", lambda *_, **settings: given.update(settings))
    consumer = consumer_of()
    consumer.register_message_listener(
        lambda messages, context: None, orderly=orderly, output_schema="step string"
    )
    options = ReadOptions.parse(consumer._source_options() | ({"realTime": "5m"} if is_live else {}))
    spark: Any = SimpleNamespace(conf={"spark.network.crypto.enabled": str(is_live).lower()})

    consumer._hub(spark, options, consumer._store(options), lambda: Slots(4, 3), has_sink=is_live)

    assert given["must_ask"] is is_live
    assert given["is_encrypted"] is is_live
    assert given["slots"]() == (Slots(4, 3) if orderly or is_live else Slots())
    assert given["commit_interval_s"] == (0.5 if is_live else None)
    assert given["has_sink"] is is_live


def test_all_problems_are_reported_together() -> None:
    problems = problems_of(
        consumer_group="or.ders",
        offset_store=MemoryOffsetStore("m", clock=FakeClock()),
        options={"Topic": "other", "pullBatchSize": "0"},
    )

    assert len(problems) == 4


def test_an_object_that_cannot_be_pickled_is_named_before_anything_runs() -> None:
    """And what to do instead; a hook like a listener."""
    connection = sqlite3.connect(":memory:")

    def insert(messages: object, context: object) -> None:
        connection.execute("SELECT 1")

    class Hook:
        def __init__(self) -> None:
            self.lock = threading.Lock()

    consumer = PushConsumer(consumer_group="g", name_servers="a:1", offset_store=DeltaOffsetStore("unused"))
    consumer.subscribe("orders")
    consumer.register_message_listener(insert, output_schema="step string")
    consumer.register_consume_message_hook(Hook())  # type: ignore[arg-type]
    with pytest.raises(OptionError) as caught:
        consumer.start(None, checkpoint="unused")  # type: ignore[arg-type]

    of_listener, of_hook = caught.value.problems
    assert (
        "insert cannot be sent to the executors: its variable 'connection' is a sqlite3.Connection"
        in of_listener
    )
    assert "create that object in the open() of a listener class" in of_listener
    assert "the hook an object of type Hook cannot be sent to the executors: its attribute 'lock'" in of_hook
    connection.close()


@pytest.mark.parametrize("times", [-1, 0, 16])
def test_any_number_of_reconsumptions_is_taken(times: int) -> None:
    """D6"""
    assert problems_of(max_reconsume_times=times) == ()


def test_a_negative_number_of_reconsumptions_is_refused() -> None:
    """D6"""
    [problem] = problems_of(max_reconsume_times=-2)

    assert problem == "max_reconsume_times=-2 must be -1 (no limit), 0 or more"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"consume_thread_max": 0}, "consume_thread_max=0 is not between 1 and 1000"),
        ({"consume_thread_max": 1001}, "consume_thread_max=1001 is not between 1 and 1000"),
        ({"consume_timeout_s": 0.0}, "consume_timeout_s=0.0 must be more than 0"),
    ],
)
def test_a_pool_or_a_time_out_that_cannot_be_is_refused(settings: dict[str, Any], problem: str) -> None:
    """E1, E7"""
    assert problems_of(**settings) == (problem,)


def test_an_orderly_consumer_s_calls_time_out_when_configured_so() -> None:
    """D8."""
    consumer = PushConsumer(
        consumer_group="g",
        name_servers="a:1",
        offset_store=DeltaOffsetStore("unused"),
        max_reconsume_times=3,
        suspend_current_queue_time_millis=70,
        consume_message_batch_max_size=9,
        consume_thread_max=7,
        consume_timeout_s=2.5,
    )

    assert consumer._settings.orderly() == OrderlySettings(
        max_reconsume_times=3,
        suspend_current_queue_time_millis=70,
        consume_message_batch_max_size=9,
        consume_thread_max=7,
        consume_timeout_s=2.5,
    )


@pytest.mark.parametrize(("given", "taken"), [(-1, 16), (0, 0), (3, 3)])
def test_a_concurrent_consumer_gives_a_message_up_after_sixteen_attempts_by_default(
    given: int, taken: int
) -> None:
    """E8, C1: ``DefaultMQPushConsumerImpl.getMaxReconsumeTimes``; its members take no locks."""
    consumer = PushConsumer(
        consumer_group="g",
        name_servers="a:1",
        offset_store=DeltaOffsetStore("unused"),
        max_reconsume_times=given,
        consume_thread_max=7,
        consume_timeout_s=60.0,
        message_model=MessageModel.CLUSTERING,
    )
    consumer.subscribe("orders")
    consumer.register_message_listener(
        lambda messages, context: ConsumeConcurrentlyStatus.CONSUME_SUCCESS,
        orderly=False,
        output_schema="step string",
    )

    assert consumer._settings.concurrent() == ConcurrentSettings(
        consume_thread_max=7, max_reconsume_times=taken, consume_timeout_s=60.0
    )
    assert not ReadOptions.parse(consumer._source_options()).needs_locks()


def test_a_consumer_subscribes_to_each_topic_by_tags_or_by_a_condition() -> None:
    """A3, A4: ``DefaultMQPushConsumer.subscribe`` with ``MessageSelector.bySql``."""
    consumer = PushConsumer(consumer_group="g", name_servers="a:1", offset_store=DeltaOffsetStore("unused"))
    consumer.subscribe("orders", "paid")
    consumer.subscribe("payments", sql="amount > 10")
    consumer.register_message_listener(
        lambda messages, context: ConsumeOrderlyStatus.SUCCESS, output_schema="step string"
    )

    parsed = ReadOptions.parse(consumer._source_options())

    assert parsed.subscription_of("orders") == ("orders", "paid", False)
    assert parsed.subscription_of("payments") == ("payments", "amount > 10", True)
    assert parsed.subscription_of("%RETRY%g") == ("%RETRY%g", "*", False)


@pytest.mark.parametrize("orderly", [True, False])
def test_the_planner_gets_a_listener_s_name(orderly: bool) -> None:
    """D12: which consumes single messages with it."""
    consumer = PushConsumer(consumer_group="g", name_servers="a:1", offset_store=DeltaOffsetStore("unused"))
    consumer.subscribe("orders")
    consumer.register_message_listener("shop.orders:on_order", orderly=orderly, output_schema="step string")

    options = ReadOptions.parse(consumer._source_options())

    assert (options.listener, options.consume_orderly) == ("shop.orders:on_order", orderly)


def test_a_composed_query_must_say_how_dead_letters_are_sent() -> None:
    """D6: before anything runs."""
    output = OutputColumns.of(StructType().add("name", "string"))
    settings = OrderlySettings(max_reconsume_times=3)

    with pytest.raises(OptionError, match="max_reconsume_times=3 needs send_back"):
        RangeConsumer(lambda messages, context: None, output, settings)


@pytest.mark.parametrize("is_on", [True, False])
def test_a_session_that_starts_slow_tasks_twice_is_refused(is_on: bool) -> None:
    """D1: both copies of a task would call the listener with the same messages."""
    session = SimpleNamespace(conf={"spark.speculation": str(is_on).lower()})

    with pytest.raises(OptionError, match="second copy of a slow task") if is_on else nullcontext():
        check_speculation(session)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "is_mirrored"),
    [({}, True), ({"mirror_offsets": False}, False), ({"message_model": MessageModel.BROADCASTING}, False)],
)
def test_offsets_are_mirrored_unless_the_group_is_broadcasting(
    settings: dict[str, Any], is_mirrored: bool
) -> None:
    """F1, B3: a broadcasting consumer commits nothing to a broker."""
    consumer = PushConsumer(
        consumer_group="g",
        name_servers="a:1",
        offset_store=DeltaOffsetStore("unused"),
        instance_name="one",
        **settings,
    )
    consumer.subscribe("orders")
    consumer.register_message_listener(
        lambda messages, context: ConsumeOrderlyStatus.SUCCESS, output_schema="step string"
    )

    options = ReadOptions.parse(consumer._source_options())
    store = consumer._store(options)
    committer = consumer._parts(options, store, None, None, drains=False).committer(store, str, None)

    assert (committer._parts._mirror is not None) is is_mirrored


@pytest.mark.parametrize(
    ("given", "spec"),
    [
        ("lake/_offsets", "delta:{}/lake/_offsets"),
        ("file:progress", "file:{}/progress"),
        ("/lake/_offsets", "delta:/lake/_offsets"),
        ("s3://lake/_offsets", "s3://lake/_offsets"),
    ],
)
def test_a_relative_path_of_offsets_is_the_driver_s(given: str, spec: str) -> None:
    """H1: the planner is another process, which may work in another folder."""
    consumer = PushConsumer(
        consumer_group="g",
        name_servers="a:1",
        offset_store=given,
        message_model="BROADCASTING",
        instance_name="i",
    )
    consumer.subscribe("orders")
    consumer.register_message_table(lambda body: body)

    assert consumer.source_options()["offsetStore"] == spec.format(Path.cwd())


def jvm_context(*, is_stopped: bool) -> object:
    return SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: is_stopped))


def forbidden() -> object:
    raise PermissionError("not allowed")


@pytest.mark.parametrize(
    ("is_active", "java_context", "expected"),
    [
        (True, jvm_context(is_stopped=False), True),
        (False, jvm_context(is_stopped=False), False),
        (True, None, False),
        (True, jvm_context(is_stopped=True), False),
        (True, SimpleNamespace(sc=forbidden), True),
    ],
    ids=["running", "ended", "session stopped", "stopped by the JVM", "a platform forbids to ask"],
)
def test_a_query_does_not_outlive_its_session(
    *, is_active: bool, java_context: object, expected: bool
) -> None:
    """H11: Spark counts an idle query as active after ``spark.stop()``, which leaves no Java context, and
    after the JVM stopped the context, which Python does not notice.
    """
    query: Any = SimpleNamespace(isActive=is_active)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=java_context))

    assert lives(query, spark) is expected


@pytest.mark.parametrize("fails", [False, True], ids=["is stopped", "cannot be stopped"])
def test_the_hub_of_a_query_that_has_ended_is_forgotten(*, fails: bool) -> None:
    """A program that starts one drain after the other would keep all of them."""
    stops: list[Callable[[], None]] = []
    calls: list[str] = []

    def stop() -> None:
        calls.append("stop")
        if fails:
            raise ConnectionError

    consumer = consumer_of()
    hub: Any = SimpleNamespace(lives_with=lambda _, stop: stops.append(stop))
    query: Any = SimpleNamespace(runId="a run", stop=stop)
    session: Any = None
    consumer._keep(hub, query, session)
    assert consumer._hubs == {"a run": hub}

    with pytest.raises(ConnectionError) if fails else nullcontext():
        stops[0]()

    assert (consumer._hubs, calls) == ({}, ["stop"])
