"""Settings of a job: file and --option merged, every problem reported at once, nothing else accepted."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_rocketmq.cli.consume import _consumer, sink_of, with_storage
from pyspark_rocketmq.cli.demo.settings import DemoSettings
from pyspark_rocketmq.cli.options import (
    ConsumeSettings,
    OffsetsLagSettings,
    OffsetsShowSettings,
    PublishSettings,
    ReplaySettings,
    TablesCompactSettings,
    Trigger,
)
from pyspark_rocketmq.cli.settings import ClusterAccess, gather_texts, load_settings
from pyspark_rocketmq.consumer.message_columns import MessageColumns
from pyspark_rocketmq.consumer.settings import SET_BY
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import BodyType, ConsumeFromWhere
from pyspark_rocketmq.options.consumer import ConsumerOptions
from pyspark_rocketmq.options.declare import OptionSet, specs_of
from pyspark_rocketmq.options.read import ReadOptions
from tests.packaging.checkout import ROOT

CONSUME = (
    "nameServers=127.0.0.1:9876",
    "topic=orders",
    "consumerGroup=etl",
    "listener=shop.listeners:on_order",
    "outputSchema=order_id string",
    "sink=/lake/orders",
    "offsetStore=/lake/offsets",
    "checkpoint=/lake/checkpoint",
)


def problems_of(
    settings: type[ConsumeSettings] | type[DemoSettings] | type[OffsetsLagSettings] | type[ReplaySettings],
    *pairs: str,
    conf: Path | None = None,
) -> tuple[str, ...]:
    with pytest.raises(OptionError) as caught:
        load_settings(settings, "a job", conf, pairs)
    return caught.value.problems


def test_an_option_on_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    conf = tmp_path / "demo.toml"
    conf.write_text("orders = 10\nseed = 1\n")

    settings = load_settings(DemoSettings, "demo", conf, ["ORDERS=20"])

    assert (settings.orders, settings.seed) == (20, 1)


def test_tables_of_the_file_only_group(tmp_path: Path) -> None:
    conf = tmp_path / "x.toml"
    conf.write_text('topic = "t"\n[listener]\nlistener = "m:f"\n[listener.more]\norderly = true\n')

    assert gather_texts(conf, ()) == ({"topic": "t", "listener": "m:f", "orderly": "true"}, [])


def test_lists_become_the_text_a_user_would_type(tmp_path: Path) -> None:
    conf = tmp_path / "x.toml"
    conf.write_text('nameServers = ["a:1", "b:2"]\n')

    assert gather_texts(conf, ()) == ({"nameServers": "a:1,b:2"}, [])


def test_all_problems_of_file_pairs_and_values_are_reported_together(tmp_path: Path) -> None:
    conf = tmp_path / "x.toml"
    conf.write_text('seed = "x"\n[a]\nSEED = 2\n[b]\nwhen = 2024-01-01\n')

    problems = problems_of(DemoSettings, "ordrs=3", "nonsense", "brokers=99", conf=conf)

    assert problems == (
        f"--conf {conf} sets 'SEED' twice",
        f"--conf {conf}: 'when' must be a string, a number, true or false, or a list of these",
        "--option 'nonsense' is not key=value",
        "option seed='x' is not a whole number, 0 or more",
        "unknown option 'ordrs'; did you mean 'orders'?",
        "option brokers='99' is not between 1 and 8",
    )


def test_an_offset_table_that_is_not_there_is_reported_with_the_other_problems(tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught:
        load_settings(OffsetsLagSettings, "offsets lag", None, [f"offsetStore={tmp_path}/none"])

    first, second = caught.value.problems
    assert first.startswith("option 'nameServers' is required")
    assert (
        second
        == f"option offsetStore='{tmp_path}/none' is wrong: there is no offset table at {tmp_path}/none"
    )


@pytest.mark.parametrize("store", ["there", "s3://lake/_offsets", "broker:", "kind:x", ""])
def test_only_an_offset_table_that_is_surely_missing_is_reported(store: str, tmp_path: Path) -> None:
    (tmp_path / "there" / "_delta_log").mkdir(parents=True)
    given = str(tmp_path / store) if store == "there" else store

    with pytest.raises(OptionError) as caught:
        load_settings(OffsetsLagSettings, "offsets lag", None, [f"offsetStore={given}"])

    assert "there is no offset table" not in str(caught.value)


def test_a_starting_option_of_the_data_source_is_answered_with_the_job_s() -> None:
    assert problems_of(ConsumeSettings, *CONSUME, "startingOffsets=earliest") == (
        "unknown option 'startingOffsets', which is the data source's; here it is 'consumeFromWhere'",
    )


def test_a_file_that_is_missing_or_no_toml_is_reported_with_the_other_problems(tmp_path: Path) -> None:
    missing, broken = tmp_path / "missing.toml", tmp_path / "broken.toml"
    broken.write_text("a = \n")

    assert problems_of(DemoSettings, "sed=1", conf=missing)[0] == (
        f"--conf {missing} cannot be read: No such file or directory"
    )
    first, second = problems_of(DemoSettings, "sed=1", conf=broken)
    assert first.startswith(f"--conf {broken} is not TOML: ")
    assert second == "unknown option 'sed'; did you mean 'seed'?"


@pytest.mark.parametrize(
    ("settings", "pairs"),
    [
        (ConsumeSettings, CONSUME),
        (OffsetsShowSettings, ("offsetStore=/lake/offsets",)),
        (OffsetsLagSettings, ("offsetStore=/lake/offsets", "nameServers=127.0.0.1:9876")),
    ],
)
def test_options_of_a_connection_that_do_not_go_together_are_refused_at_once(
    settings: type[ConsumeSettings] | type[OffsetsLagSettings], pairs: tuple[str, ...]
) -> None:
    """G1: before Spark starts or a store is read."""
    given = ("accessKey=me", "tlsCertFile=c.pem", "namespace=shop", "namespaceV2=rmq-1")

    assert problems_of(settings, *pairs, *given) == (
        "option 'accessKey' needs 'secretKey'",
        "option 'tlsCertFile' needs 'useTls=true'",
        "options 'namespace' and 'namespaceV2' exclude each other; give one",
    )


def test_a_table_that_is_one_option_may_be_spelt_in_any_case(tmp_path: Path) -> None:
    conf = tmp_path / "x.toml"
    conf.write_text('[brokeraddresses]\n"10.0.0.5:1" = "1.2.3.4:1"\n[STORAGESECRETS]\nkey = "k"\n')

    assert gather_texts(conf, ()) == (
        {"brokeraddresses": '{"10.0.0.5:1": "1.2.3.4:1"}', "STORAGESECRETS": '{"key": "k"}'},
        [],
    )


@pytest.mark.parametrize("value", ["2026-01-01", "07:32:00", "[2026-01-01T00:00:00Z]", "{ of = 1 }"])
@pytest.mark.parametrize("table", ["storageSecrets", "brokerAddresses", "BROKERADDRESSES"])
def test_a_value_without_a_text_in_a_table_that_is_one_option_is_named(
    tmp_path: Path, table: str, value: str
) -> None:
    conf = tmp_path / "x.toml"
    conf.write_text(f'[{table}]\nkey = "k"\nuntil = {value}\n')

    texts, problems = gather_texts(conf, ())

    assert texts == {table: '{"key": "k"}'}
    assert problems == [
        f"--conf {conf}: '{table}.until' must be a string, a number, true or false, or a list of these"
    ]


def test_every_required_option_of_consume_is_asked_for_at_once() -> None:
    problems = problems_of(ConsumeSettings)

    assert [problem.split("'")[1] for problem in problems] == [pair.split("=")[0] for pair in CONSUME]


def test_only_options_that_the_job_has_are_named_in_place_of_another() -> None:
    (problem,) = (each for each in problems_of(ConsumeSettings) if "'topic'" in each)

    assert problem.startswith("option 'topic' is required, or 'topics', or 'subscriptions' in its place")


def test_consume_has_rocketmqs_defaults() -> None:
    settings = load_settings(ConsumeSettings, "consume", None, CONSUME)

    assert settings.consume_message_batch_max_size == 1
    assert settings.suspend_current_queue_time_millis == 1000
    assert settings.consume_from_where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    assert settings.trigger == Trigger("1 second")
    assert settings.trigger.keywords() == {"processingTime": "1 second"}


def test_the_example_file_of_consume_is_complete_and_valid() -> None:
    settings = load_settings(ConsumeSettings, "consume", ROOT / "conf/consume.example.toml", ())

    assert settings.listener == "listeners:on_orders"
    documented = (ROOT / "conf/consume.example.toml").read_text()
    for spec in specs_of(ConsumeSettings):
        assert f"{spec.key} = " in documented


@pytest.mark.parametrize(
    ("pair", "problem"),
    [
        (
            "trigger=often",
            (
                "option trigger='often' is not a trigger; write availableNow, an interval such as '1 second', or "
                "realTime, which may be followed by the length of a batch ('realTime 5 minutes')"
            ),
        ),
        (
            "trigger=realTime 1 second",
            (
                "option trigger='realTime 1 second' is shorter than 5 s; this is the length of a batch, and between "
                "two batches nothing is consumed for a moment. Results are committed within a batch, at every "
                "commit_interval"
            ),
        ),
        (
            "listener=on_order",
            "option listener='on_order' is not module:function, such as order_jobs:on_order",
        ),
        (
            "commitInterval=49ms",
            (
                "option commitInterval='49ms' is shorter than 50 ms; each commit makes a new version of the sink "
                "and of the offset store"
            ),
        ),
        (
            "commitInterval=often",
            "option commitInterval='often' is not a duration such as 15m; units are ms, s, m, min, h, d",
        ),
        ("orderlyBy=key", "option orderlyBy='key' is none of queue, sharding_key"),
        ("orderlyEngine=fast", "option orderlyEngine='fast' is none of state, direct"),
        (
            "consumeFromWhere=FIRST",
            (
                "option consumeFromWhere='FIRST' is none of CONSUME_FROM_LAST_OFFSET, "
                "CONSUME_FROM_FIRST_OFFSET, CONSUME_FROM_TIMESTAMP"
            ),
        ),
        (
            "consumeTimestamp=yesterday",
            (
                "option consumeTimestamp='yesterday' is not a time written as yyyyMMddHHmmss, "
                "perhaps with a zone (20261122180000+08:00, 20261122100000Z), or as ISO (2026-11-22T10:00, "
                "UTC unless it says otherwise)"
            ),
        ),
        ("sink=", "option sink='' is empty"),
    ],
)
def test_an_unusable_value_is_reported_with_its_key_and_the_reason(pair: str, problem: str) -> None:
    key = pair.split("=", maxsplit=1)[0]

    others = [other for other in CONSUME if not other.startswith(f"{key}=")]

    assert problems_of(ConsumeSettings, *others, pair) == (problem,)


def test_a_timestamp_that_would_be_ignored_is_refused() -> None:
    (problem,) = problems_of(ConsumeSettings, *CONSUME, "consumeTimestamp=20240131120000")

    assert problem == "option 'consumeTimestamp' needs consumeFromWhere=CONSUME_FROM_TIMESTAMP"


def test_a_broadcasting_consumer_without_a_name_for_its_progress_is_refused() -> None:
    """B3."""
    (problem,) = problems_of(ConsumeSettings, *CONSUME, "messageModel=broadcasting")

    assert problem == (
        "option 'messageModel=BROADCASTING' needs 'instanceName', under which this query's progress is kept"
    )


def test_the_sink_is_set_up_as_in_python() -> None:
    given = ["partitionBy=topic", "mergeKeys=order_id, step", "schemaEvolution=true"]

    sink = sink_of(load_settings(ConsumeSettings, "consume", None, [*CONSUME, *given]))

    assert repr(sink) == (
        "DeltaSink('/lake/orders', partition_by=('topic',), merge_keys=('order_id', 'step'), "
        "schema_evolution=True, compaction=True)"
    )


def test_a_sink_may_be_the_table_of_a_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """J5: the name stays as it is, and what cannot go with it is refused before Spark starts."""
    monkeypatch.chdir(tmp_path)
    others = [pair for pair in CONSUME if not pair.startswith("sink=")]
    pairs = [*others, "sink=main.`the shop`.orders", "sinkStaging=staging"]

    sink = sink_of(load_settings(ConsumeSettings, "consume", None, pairs))

    assert repr(sink) == (
        "DeltaSink('main.`the shop`.orders', partition_by=(), merge_keys=(), schema_evolution=False, "
        f"compaction=True, staging='{tmp_path}/staging')"
    )
    assert problems_of(ConsumeSettings, *CONSUME, "sinkStaging=staging") == (
        (
            "option 'sinkStaging' is only for a sink that is named as in a catalog (CATALOG.SCHEMA.TABLE); "
            "leave it out for a path"
        ),
    )
    [problem] = problems_of(ConsumeSettings, *others, "sink=orders")
    assert "'orders' has 1 part; for a table of a catalog write SCHEMA.TABLE" in problem


def test_available_now_drains_and_ends() -> None:
    settings = load_settings(ConsumeSettings, "consume", None, [*CONSUME, "trigger=availableNow"])

    assert settings.trigger.keywords() == {"availableNow": True}


@pytest.mark.parametrize(
    ("text", "lasts"),
    [("realTime", "5 minutes"), (" realtime  1 hour ", "1 hour"), ("realTime 90s", "90s")],
)
def test_real_time_has_batches_of_five_minutes_unless_given(text: str, lasts: str) -> None:
    settings = load_settings(ConsumeSettings, "consume", None, [*CONSUME, f"trigger={text}"])

    assert settings.trigger.keywords() == {"realTime": lasts}


def test_relative_paths_are_the_current_directorys_and_uris_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    others = [pair for pair in CONSUME if not pair.startswith("sink=")]

    pairs = [*others, "sink=lake/orders", "pyFiles=a.py, s3://bucket/b.zip"]
    settings = load_settings(ConsumeSettings, "consume", None, pairs)

    assert settings.sink == str(tmp_path / "lake/orders")
    assert settings.py_files == (str(tmp_path / "a.py"), "s3://bucket/b.zip")


@pytest.mark.parametrize(
    "uri", ["file:/lake/x", "FILE:/lake/x", "s3:/lake/x", "dbfs:/lake/x", "viewfs:/lake/x"]
)
@pytest.mark.parametrize(
    "settings", [ConsumeSettings, DemoSettings, PublishSettings, ReplaySettings, TablesCompactSettings]
)
def test_no_uri_with_one_slash_is_a_folder_below_the_current_one(
    settings: type[OptionSet], uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J1: the package writes no table there; what only Spark reads is Spark's to understand."""
    monkeypatch.chdir(tmp_path)
    ours = {"sink", "sinkStaging", "toTable", "record", "table", "workDir"}
    sparks = {"checkpoint", "input", "pyFiles"}

    for spec in specs_of(settings):
        if spec.key in ours and uri.lower().startswith("file:"):
            assert spec.parse(uri) == "/lake/x"
        elif spec.key in ours:
            with pytest.raises(ValueError, match=f"^cannot be used: .*'{uri}'"):
                spec.parse(uri)
        elif spec.key in sparks:
            assert spec.parse(uri) in {uri, (uri,)}
        else:
            with suppress(ValueError):
                assert str(tmp_path) not in str(spec.parse(uri))


def test_a_uri_with_one_slash_is_refused_with_what_to_write() -> None:
    """J1"""
    others = [pair for pair in CONSUME if not pair.startswith("sink=")]

    assert problems_of(ConsumeSettings, *others, "sink=s3:/lake/x") == (
        (
            "option sink='s3:/lake/x' cannot be used: 's3:/lake/x' is neither a path nor a URI; write "
            "s3://AUTHORITY/lake/x, or for a folder of that name ./s3:/lake/x"
        ),
    )


def test_settings_passed_to_the_source_are_valid_there() -> None:
    settings = load_settings(ConsumeSettings, "consume", None, [*CONSUME, "failOnDataLoss=false"])

    parsed = ReadOptions.parse({"nameServers": "h:1", "topic": "t", **settings.source_options()})
    assert parsed.fail_on_data_loss is False


def test_a_consumer_gets_each_of_its_settings_from_the_command() -> None:
    of_consumer = {
        "consumeFromWhere": "CONSUME_FROM_TIMESTAMP",
        "consumeTimestamp": "20261122100000Z",
        "consumeMessageBatchMaxSize": "7",
        "maxReconsumeTimes": "3",
        "suspendCurrentQueueTimeMillis": "70",
        "consumeThreadMax": "5",
        "consumeTimeoutS": "60",
        "maxOffsetsPerTrigger": "1000",
        "commitInterval": "200 milliseconds",
        "mirrorOffsets": "false",
        "orderlyBy": "sharding_key",
        "orderlyEngine": "state",
    }
    of_source = {
        "failOnDataLoss": "false",
        "pullBatchSize": "8",
        "pullsInFlight": "4",
        "requestTimeoutMs": "1000",
        "retryTimeoutMs": "2000",
        "storageSecrets": '{"AWS_REGION": "eu-central-1"}',
    }
    assert of_consumer.keys() == {spec.key for spec in specs_of(ConsumerOptions)}
    named = [pair for pair in CONSUME if not pair.startswith(("listener=", "outputSchema="))]
    pairs = [*named, "bodySchema=id string", *map("=".join, (of_consumer | of_source).items())]

    consumer = _consumer(load_settings(ConsumeSettings, "consume", None, pairs))

    assert consumer._settings.own == ConsumerOptions.parse(of_consumer)
    passed = ReadOptions.parse({"nameServers": "h:1", "topic": "t", **consumer._settings.options})
    assert passed == ReadOptions.parse({"nameServers": "h:1", "topic": "t", **of_source})
    of_command = {spec.key for spec in specs_of(ConsumeSettings)} & {
        spec.key for spec in specs_of(ReadOptions)
    }
    access = {spec.key for spec in specs_of(ClusterAccess)}
    assert of_command - access - SET_BY.keys() == of_source.keys()


def test_offsets_show_needs_only_the_table() -> None:
    settings = load_settings(OffsetsShowSettings, "offsets show", None, ["offsetStore=/lake/offsets"])

    assert settings.consumer_group is None
    assert settings.name_servers is None


def test_a_secured_cluster_is_reached_with_the_source_s_own_options() -> None:
    """A5, A6: given to a job, valid at the source, never shown."""
    given = {
        "namespace": "shop",
        "accessKey": "user-7fa1",
        "secretKey": "secret-7fa1",
        "useTls": "true",
        "tlsVerifyHostname": "false",
    }
    pairs = [*CONSUME, *(f"{key}={text}" for key, text in given.items())]
    settings = load_settings(ConsumeSettings, "consume", None, pairs)

    parsed = ReadOptions.parse({"nameServers": "h:1", "topic": "t", **settings.source_options()})
    assert (parsed.namespace, parsed.access_key, parsed.secret_key) == ("shop", "user-7fa1", "secret-7fa1")
    assert (parsed.use_tls, parsed.tls_verify_hostname, parsed.tls_verify_certificate) == (True, False, True)
    assert "7fa1" not in repr(settings)


def test_a_managed_cluster_is_reached_with_the_source_s_own_options(tmp_path: Path) -> None:
    """L8: `brokerAddresses` is a table of the file, or JSON; a host names the namespace for the job, too."""
    file = tmp_path / "job.toml"
    file.write_text(
        '[security]\nnamespaceV2 = "rmq-cn-1"\n'
        'brokerAddresses = { "10.0.0.5:10911" = "1.2.3.4:10911", "10.0.0.6:10911" = "1.2.3.4:10912" }\n'
    )
    settings = load_settings(ConsumeSettings, "consume", file, [*CONSUME])
    parsed = ReadOptions.parse({"nameServers": "h:1", "topic": "t", **settings.source_options()})

    assert parsed.namespace_v2 == "rmq-cn-1"
    assert parsed.broker_addresses == (
        ("10.0.0.5:10911", "1.2.3.4:10911"),
        ("10.0.0.6:10911", "1.2.3.4:10912"),
    )
    host = "nameServers=http://MQ_INST_1_ab.mq.example.com:80"
    show = ["offsetStore=/lake/offsets", host]
    assert load_settings(OffsetsShowSettings, "offsets show", None, show).namespace == "MQ_INST_1_ab"
    assert load_settings(OffsetsShowSettings, "offsets show", None, [*show, "namespace=n"]).namespace == "n"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("sqlFilter=a > 1", [("orders", "a > 1", True)]),
        ("subscription=paid", [("orders", "paid", False)]),
        ('subscriptions={"a": {"sql": "b > 1"}, "c": "d"}', [("a", "b > 1", True), ("c", "d", False)]),
    ],
)
def test_a_consumer_subscribes_by_tags_or_by_conditions(
    given: str, wanted: list[tuple[str, str, bool]]
) -> None:
    """A3, A4: sqlFilter, subscription and subscriptions."""
    pairs = [pair for pair in CONSUME if not pair.startswith("topic=")]
    topic = [] if given.startswith("subscriptions") else ["topic=orders"]

    settings = load_settings(ConsumeSettings, "consume", None, [*pairs, *topic, given])

    assert list(settings.subscribed()) == wanted


def test_offsets_lag_needs_the_table_and_the_cluster() -> None:
    assert [problem.split("'")[1] for problem in problems_of(OffsetsLagSettings)] == [
        "offsetStore",
        "nameServers",
    ]


REPLAY = ("nameServers=127.0.0.1:9876", "topic=orders")


@pytest.mark.parametrize(
    ("pairs", "problem"),
    [
        ((), "give one of the options 'toTable' and 'toTopic'"),
        (("toTable=/t", "toTopic=copy", "record=/r"), "give one of the options 'toTable' and 'toTopic'"),
        (("toTopic=copy",), "options 'toTopic' and 'record' go together"),
        (("toTable=/t", "record=/r"), "options 'toTopic' and 'record' go together"),
        (("toTable=/t", "consumerGroup=g", "offsetStore=/o"), "a batch read touches no group's offsets"),
        (("toTable=/t", "startingOfsets=earliest"), "did you mean 'startingOffsets'"),
    ],
)
def test_a_replay_has_one_target_and_no_group(pairs: tuple[str, ...], problem: str) -> None:
    """H3"""
    assert [found for found in problems_of(ReplaySettings, *REPLAY, *pairs) if problem in found]


def test_a_replay_takes_the_options_of_a_read() -> None:
    """H3: they are not declared a second time."""
    settings = load_settings(
        ReplaySettings, "replay", None, [*REPLAY, "toTable=/lake/t", "minPartitions=8", "startingTimestamp=5"]
    )

    assert (settings.to_table, settings.min_partitions, settings.starting_timestamp) == ("/lake/t", 8, 5)
    assert settings.offsets_per_step == 200_000


def test_listener_and_body_schema_exclude_each_other() -> None:
    problems = problems_of(ConsumeSettings, *CONSUME, "bodySchema=a string")

    assert [problem.split(" exclude")[0] for problem in problems] == [
        "options 'bodySchema' and 'listener'",
        "options 'bodySchema' and 'outputSchema'",
    ]


def test_a_body_schema_stands_for_a_listener() -> None:
    pairs = [pair for pair in CONSUME if not pair.startswith(("listener", "outputSchema"))]

    settings = load_settings(
        ConsumeSettings, "consume", None, [*pairs, "bodySchema=a string, b int", "messageColumns=keys, tags"]
    )

    assert (settings.listener, settings.body_schema) == (None, "a string, b int")
    assert settings.message_columns == ("keys", "tags")


@pytest.mark.parametrize("given", [["raw=true"], ["raw=true", "messageColumns=body,keys", "bodyType=string"]])
def test_messages_as_they_are_need_no_listener(given: list[str]) -> None:
    """K7"""
    pairs = [pair for pair in CONSUME if not pair.startswith(("listener", "outputSchema"))]

    consumer = _consumer(load_settings(ConsumeSettings, "consume", None, [*pairs, *given]))

    assert consumer._columns == (
        MessageColumns()
        if len(given) == 1
        else MessageColumns(names=("body", "keys"), body_type=BodyType.STRING)
    )


def test_messages_as_they_are_exclude_a_listener_and_a_body_schema() -> None:
    """K7"""
    problems = problems_of(ConsumeSettings, *CONSUME, "raw=true")
    assert [problem.split(" exclude")[0] for problem in problems] == [
        "options 'raw' and 'listener'",
        "options 'raw' and 'outputSchema'",
    ]

    named = [pair for pair in CONSUME if not pair.startswith(("listener", "outputSchema"))]
    [of_two] = problems_of(ConsumeSettings, *named, "raw=true", "bodySchema=a string")
    assert of_two.startswith("options 'bodySchema' and 'raw' exclude each other")
    [of_none] = problems_of(ConsumeSettings, *named, "raw=false")
    assert of_none.startswith(
        "give the options 'listener' and 'outputSchema', or 'bodySchema', or 'raw=true'"
    )


def session_with(**settings: str) -> Any:
    """One with these settings of S3A."""
    named = [(f"spark.hadoop.fs.s3a.{name.replace('_', '.')}", text) for name, text in settings.items()]
    conf = SimpleNamespace(getAll=lambda: [("spark.app.name", "consume"), *named])
    return SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf))


ON_S3 = (*CONSUME, "sink=s3://lake/orders", "offsetStore=s3a://offsets/etl")
IN_SPARK = {"access_key": "a", "bucket.offsets.access.key": "o"}


def secrets_of(session: Any, *pairs: str) -> list[dict[str, str] | None]:
    """Of a consumer's source and sink."""
    parts = with_storage(session, load_settings(ConsumeSettings, "consume", None, [*ON_S3, *pairs]))
    return [None if one.storage_secrets is None else json.loads(one.storage_secrets) for one in parts]


def test_storage_that_no_option_reaches_is_reached_by_spark_s_settings() -> None:
    """J1: of a consumer's offset store and sink, each as its bucket's say."""
    of_store, of_sink = {"aws_access_key_id": "o"}, {"aws_access_key_id": "a"}

    assert secrets_of(session_with(**IN_SPARK)) == [of_store, of_sink]
    assert secrets_of(session_with(**IN_SPARK), "sink=/lake/orders") == [of_store, None]
    assert secrets_of(session_with(**IN_SPARK), "offsetStore=broker:", "consumeOrderly=false") == [
        None,
        of_sink,
    ]
    named = ("sink=main.shop.orders", "sinkStaging=s3://lake/staging")
    assert secrets_of(session_with(**IN_SPARK), *named) == [of_store, of_sink]


@pytest.mark.parametrize(
    ("variables", "pairs", "secrets"),
    [
        ({}, ['storageSecrets={"aws_region": "eu"}'], {"aws_region": "eu"}),
        ({"AWS_SECRET_ACCESS_KEY": "of another"}, [], None),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/token", "AWS_REGION": "eu"}, [], None),
        ({"AWS_ENDPOINT_URL": "http://store"}, [], None),
        ({"AWS_REGION": "eu", "AZURE_STORAGE_ACCOUNT_KEY": "k"}, [], {"aws_access_key_id": "a"}),
    ],
)
def test_spark_s_settings_of_storage_join_no_keys_of_option_or_environment(
    variables: dict[str, str],
    pairs: list[str],
    secrets: dict[str, str] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """J1: a key of one and a token of another would be refused."""
    for name, text in variables.items():
        monkeypatch.setenv(name, text)

    assert secrets_of(session_with(access_key="a"), *pairs) == [secrets, secrets]
