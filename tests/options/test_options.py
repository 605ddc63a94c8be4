from __future__ import annotations

import dataclasses
import json
import re
from enum import Enum
from pathlib import Path

import pytest

from pyspark_rocketmq.cli.options import ConsumeSettings
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.options.consumer import ConsumerOptions
from pyspark_rocketmq.options.declare import OptionSet, Use, option, specs_of
from pyspark_rocketmq.options.parsers import text_value
from pyspark_rocketmq.options.read import ReadOptions
from scripts.pages import options_page

REQUIRED = {"nameServers": "127.0.0.1:9876", "topic": "orders"}


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(OptionError) as caught:
        ReadOptions.parse({"nameServers": "nowhere", "topicc": "orders", "pullBatchSize": "4096"})

    text = str(caught.value)
    assert "'nowhere', which is not host:port" in text
    assert "unknown option 'topicc'; did you mean 'topic'?" in text
    assert "option pullBatchSize='4096' is not between 1 and 1024" in text
    assert "is required" not in text, "the topic was meant by 'topicc'"
    assert len(caught.value.problems) == 3


def test_an_option_that_a_misspelt_key_meant_is_not_also_called_missing() -> None:
    for meant in (
        {"nameserver": "a:1", "topik": "orders"},
        {"kafka.bootstrap.servers": "a:1", "subscribe": "x"},
    ):
        with pytest.raises(OptionError) as caught:
            ReadOptions.parse(meant)

        assert "is required" not in str(caught.value)
        assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("key", "is_shown"),
    [
        ("sekretKey", True),
        ("acessKey", True),
        ("securityTokn", True),
        ("tlsKeyPasswort", True),
        ("secretKei", False),
        ("topicc", False),
    ],
)
def test_a_misspelt_secret_that_spark_does_not_mask_is_reported(key: str, is_shown: bool) -> None:
    """A5"""
    with pytest.raises(OptionError, match=f"unknown option '{key}'; did you mean") as caught:
        ReadOptions.parse(REQUIRED | {key: "canary"})

    assert ("Spark does not mask the value" in str(caught.value)) == is_shown
    assert "canary" not in str(caught.value)


def test_keys_are_matched_without_regard_to_case() -> None:
    """Spark stores option keys in lower case."""
    options = ReadOptions.parse({key.lower(): value for key, value in REQUIRED.items()})

    assert options.name_servers == ("127.0.0.1:9876",)


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1;b:2", ("a:1", "b:2")),
        (" a:1 , b:2 ;", ("a:1", "b:2")),
        ("[::1]:9876", ("[::1]:9876",)),
    ],
)
def test_name_servers_are_separated_by_semicolons_or_commas(text: str, addresses: tuple[str, ...]) -> None:
    assert ReadOptions.parse(REQUIRED | {"nameServers": text}).name_servers == addresses


class _Start(str, Enum):  # noqa: UP042 - whose text is not what str() gives
    EARLIEST = "earliest"


def test_numbers_and_booleans_are_taken_as_spark_writes_them() -> None:
    """In a map for ``Replay``, ``QueryMonitor`` or ``PushConsumer``; Spark's ``option()`` does so itself."""
    parsed = ReadOptions.parse(
        {**REQUIRED, "pullBatchSize": 64, "failOnDataLoss": False, "startingOffsets": _Start.EARLIEST}
    )
    assert (
        parsed.starting_offsets
        == ReadOptions.parse({**REQUIRED, "startingOffsets": "earliest"}).starting_offsets
    )
    assert (parsed.pull_batch_size, parsed.fail_on_data_loss) == (64, False)

    with pytest.raises(OptionError, match="option 'topics' is of type list; give it as a string"):
        ReadOptions.parse({"nameServers": "a:1", "topics": ["orders"]})


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"subscribe": "orders"}, "unknown option 'subscribe', which is Kafka's; here it is 'topic'"),
        ({"kafka.bootstrap.servers": "a:1"}, "which is Kafka's; here it is 'nameServers'"),
        ({"startingOffsets": "earliset"}, "did you mean 'earliest'?"),
        ({"startingTimestamp": "01/02/2024"}, "is not a time: give milliseconds since the epoch, such as 17"),
        (
            {"startingTimestamp": "1700000000"},
            "is in seconds; give milliseconds since the epoch, 1700000000000",
        ),
        (
            {"startingOffsetsByTimestamp": '{"orders": 1700000000}'},
            "has a value for topic orders that is in seconds; give milliseconds",
        ),
        (
            {"subscription": "created | paid"},
            "has the tag 'created | paid'; separate tags only by '||' ('a || b')",
        ),
        ({"subscription": "new || created && paid"}, "has the tag 'created && paid'"),
        (
            {"subscription": "created, paid"},
            "has the tag 'created, paid'; separate tags only by '||' ('a || b')",
        ),
        ({"subscription": "created paid||new"}, "has the tag 'created paid'"),
        ({"subscription": "created;paid"}, "has the tag 'created;paid'"),
    ],
)
def test_an_unknown_option_names_the_likely_one(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError) as caught:
        ReadOptions.parse(REQUIRED | given)

    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", ";", "host", "host:", "host:port", "host:70000", ":9876", "a:1;b", "http://a"]
)
def test_a_name_server_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="nameServers"):
        ReadOptions.parse(REQUIRED | {"nameServers": text})


@pytest.mark.parametrize("topic", ["", "or.ders", "x" * 128, "t t"])
def test_a_topic_that_rocketmq_would_refuse_is_refused(topic: str) -> None:
    with pytest.raises(OptionError, match="topic"):
        ReadOptions.parse(REQUIRED | {"topic": topic})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"consumerGroup": "g"}, "'consumerGroup' needs 'offsetStore'"),
        ({"offsetStore": "/lake/offsets"}, "'offsetStore' needs 'consumerGroup'"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "exclude each other"),
        ({"consumeOrderly": "false"}, "'consumeOrderly' needs 'consumerGroup'"),
        (
            {"startingOffsets": '{"other": {"broker-a": {"0": 1}}}'},
            "'startingOffsets' names topic 'other', but this query reads orders",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        ReadOptions.parse(REQUIRED | given)


NAME_SERVERS = {"nameServers": "127.0.0.1:9876"}


@pytest.mark.parametrize(
    ("given", "subscribed"),
    [
        ({"topic": "orders"}, {"orders": "*"}),
        ({"topics": "orders, payments", "subscription": "paid"}, {"orders": "paid", "payments": "paid"}),
        (
            {"subscriptions": '{"orders": " created || paid", "payments": "*"}'},
            {"orders": "created || paid", "payments": "*"},
        ),
        ({"topic": "orders", "sqlFilter": "a > 1"}, {"orders": "a > 1"}),
        ({"subscriptions": '{"orders": {"sql": "a > 1"}, "b": "x"}'}, {"orders": "a > 1", "b": "x"}),
    ],
)
def test_a_query_reads_one_topic_or_several(given: dict[str, str], subscribed: dict[str, str]) -> None:
    """A3: in the order given, each with its tags."""
    options = ReadOptions.parse(NAME_SERVERS | given)

    assert options.subscribed() == options.all_subscribed() == tuple(subscribed)
    assert {topic: options.subscription_of(topic).expression for topic in subscribed} == subscribed


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "option 'topic' is required, or 'topics', or 'topicPattern', or 'subscriptions' in its place"),
        ({"topic": "a", "topics": "b"}, "options 'topic' and 'topics' exclude each other"),
        ({"topics": "a", "subscriptions": '{"b": "*"}'}, "'topics' and 'subscriptions' exclude each other"),
        ({"subscriptions": '{"b": "*"}', "subscription": "x"}, "leave 'subscription' out"),
        ({"subscriptions": '{"b": "*"}', "sqlFilter": "a > 1"}, "leave 'sqlFilter' out"),
        ({"topic": "a", "subscription": "x", "sqlFilter": "a > 1"}, "'subscription' and 'sqlFilter' exclude"),
        ({"topic": "a", "topicPattern": "b.*"}, "'topic' and 'topicPattern' exclude each other"),
        ({"topicPattern": "b("}, r"topicPattern='b\(' is not a regular expression"),
        (
            {"topicPattern": "b", "startingOffsets": '{"a": 1}'},
            "but this query reads only topics of its pattern",
        ),
        (
            {"topicPattern": "b", "consumerGroup": "g", "offsetStore": "/s"},
            "'topicPattern' does not go with 'consumerGroup', whose members must subscribe to the same",
        ),
        ({"subscriptions": '{"a": {"sql": ""}}'}, "which is empty"),
        ({"subscriptions": '{"a": {"sq": "x"}}'}, "which is not a string; the shape is"),
        ({"topics": " , "}, "topics=' , ' is empty"),
        ({"topics": "a,b,a"}, "names a twice"),
        ({"topics": "a,b c"}, "is not a topic name"),
        ({"subscriptions": "orders"}, "is not JSON of the shape"),
        ({"subscriptions": '["orders"]'}, "is of another shape"),
        ({"subscriptions": "{}"}, "is of another shape"),
        ({"subscriptions": "[" * 100_000}, "is nested too deeply"),
        ({"storageSecrets": "[" * 100_000}, "is not JSON such as"),
        ({"subscriptions": '{"a": "*", "a": "x"}'}, "has the name 'a' twice"),
        ({"subscriptions": '{"a": "||"}'}, r"has for topic 'a' the expression '\|\|', which names no tag"),
        ({"subscriptions": '{"a": 1}'}, "has for topic 'a' the expression '1', which is not a string"),
        ({"subscriptions": '{"a b": "*"}'}, r"names topic 'a b', which is not a topic name"),
        (
            {"topics": "a,b", "startingOffsets": '{"c": {"broker-a": {"0": 1}}}'},
            "'startingOffsets' names topic 'c', but this query reads a, b",
        ),
        ({"topics": "a," + "b" * 127, "namespace": "n"}, "option 'topic' is longer than 127"),
    ],
)
def test_topics_that_cannot_be_read_are_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        ReadOptions.parse(NAME_SERVERS | given)


def test_a_group_reads_its_retry_topic_unless_it_broadcasts() -> None:
    """E3, B3: ``DefaultMQPushConsumerImpl.copySubscription``; E5: nothing is given back in broadcasting."""
    group = REQUIRED | {"consumerGroup": "g", "offsetStore": "/lake/offsets"}

    tagged = ReadOptions.parse(group | {"subscription": "paid"})
    assert tagged.all_subscribed() == ("orders", "%RETRY%g")
    assert [tagged.subscription_of(topic).expression for topic in tagged.all_subscribed()] == ["paid", "*"]
    broadcasting = group | {"messageModel": "BROADCASTING", "instanceName": "one"}
    assert ReadOptions.parse(broadcasting).all_subscribed() == ("orders",)


def test_machine_rooms_need_a_member_that_says_where_it_is() -> None:
    """B2."""
    nearby = REQUIRED | {"consumerGroup": "g", "offsetStore": "/lake/offsets"}
    nearby |= {"allocateMessageQueueStrategy": "machineRoomNearby:consistentHash"}

    for given in (nearby, nearby | {"instanceName": "worker-1"}):
        with pytest.raises(OptionError, match="machine room, such as 'east/worker-1'"):
            ReadOptions.parse(given)
    assert ReadOptions.parse(nearby | {"instanceName": "east/worker-1"}).instance_name == "east/worker-1"


def test_a_member_s_name_may_be_the_full_name_of_a_machine() -> None:
    """B2: a client's instance name is any text in Java."""
    name = "west-ip-10-0-0-7.ec2.internal"

    assert ReadOptions.parse(REQUIRED | OF_A_GROUP | {"instanceName": name}).instance_name == name
    with pytest.raises(OptionError, match=r"topic='a\.b' is not a topic name"):
        ReadOptions.parse(REQUIRED | {"topic": "a.b"})


@pytest.mark.parametrize("name", ["/worker", "east/", "a b", "a/b c"])
def test_a_room_and_a_name_are_names(name: str) -> None:
    """B2."""
    with pytest.raises(OptionError, match="option instanceName="):
        ReadOptions.parse(REQUIRED | OF_A_GROUP | {"instanceName": name})


def test_a_broadcasting_consumer_s_progress_has_no_room_in_its_name() -> None:
    """B3: it names files."""
    given = REQUIRED | OF_A_GROUP | {"messageModel": "BROADCASTING", "instanceName": "east/one"}
    with pytest.raises(OptionError, match="'instanceName=east/one' has a '/'"):
        ReadOptions.parse(given)


def test_starting_offsets_may_name_queues_of_each_topic() -> None:
    """F2."""
    text = '{"a": {"broker-a": {"0": 1}}, "b": {"broker-a": {"0": 7}}}'

    starts = ReadOptions.parse(NAME_SERVERS | {"topics": "a,b", "startingOffsets": text}).starting_offsets

    assert starts is not None
    assert [starts.wanted(MessageQueue(topic, "broker-a", 0)) for topic in ("a", "b")] == [1, 7]


@pytest.mark.parametrize(("text", "expression"), [("*", "*"), (" a || b ", "a || b"), ("||a", "||a")])
def test_a_subscription_names_tags_or_everything(text: str, expression: str) -> None:
    assert ReadOptions.parse(REQUIRED | {"subscription": text}).subscription == expression


@pytest.mark.parametrize("text", ["", " ", "||", " || || "])
def test_a_subscription_without_a_tag_is_refused(text: str) -> None:
    """Spark would find out only in a task, where the expression is parsed for the broker."""
    with pytest.raises(OptionError, match=r"option subscription='.*' names no tag; give tags"):
        ReadOptions.parse(REQUIRED | {"subscription": text})


@pytest.mark.parametrize("text", ["newest", "{}", '{"orders": {"broker-a": {"0": "5"}}}'])
def test_a_problem_with_the_starting_offsets_reads_as_a_sentence(text: str) -> None:
    with pytest.raises(OptionError, match=r"option startingOffsets='.*' (is|has) (?!.*\.$)"):
        ReadOptions.parse(REQUIRED | {"startingOffsets": text})


OF_A_GROUP = {"consumerGroup": "g", "offsetStore": "/lake/offsets"}
ONLY_IN_ONE = {
    "endingOffsets": {"endingOffsets": "latest"},
    "endingGroup": {"endingOffsets": "group", "endingGroup": "g"},
    "endingTimestamp": {"endingTimestamp": "1"},
    "endingOffsetsByTimestamp": {"endingOffsetsByTimestamp": '{"orders": 1}'},
    "maxOffsetsPerTrigger": {},
    "maxBytesPerTrigger": {},
    "minOffsetsPerTrigger": {},
    "maxTriggerDelay": {"minOffsetsPerTrigger": "1", "maxTriggerDelay": "5s"},
    "routeRefreshMs": {},
    "pullThresholdForQueue": {},
    "drainTimeoutMs": {},
    "pullThresholdSizeForQueue": {},
    "consumerGroup": OF_A_GROUP,
    "messageModel": OF_A_GROUP | {"messageModel": "BROADCASTING", "instanceName": "i"},
    "consumeOrderly": OF_A_GROUP | {"consumeOrderly": "false"},
    "handOverRanges": OF_A_GROUP | {"handOverRanges": "true"},
    "listener": {"listener": "m:f"},
    "allocateMessageQueueStrategy": {"allocateMessageQueueStrategy": "consistentHash"},
    "instanceName": {"instanceName": "i"},
}
"""How an option only of streams, or only of batches, is given."""


def test_an_option_is_refused_where_it_is_not_used() -> None:
    """docs/options.md says where that is; one that were passed over in silence would be believed to act."""
    used_in = {spec.key: set(spec.used_in) - {Use.WRITE} for spec in specs_of(ReadOptions)}
    assert {key for key, uses in used_in.items() if len(uses) == 1} == ONLY_IN_ONE.keys()

    for key, given in ONLY_IN_ONE.items():
        options = ReadOptions.parse(REQUIRED | (given or {key: "7"}))
        problems = {Use.STREAM: options.problems_of_stream(), Use.BATCH: options.problems_of_batch()}
        refusing = {
            use for use, said in problems.items() if any(f"option '{key}' is for" in one for one in said)
        }
        assert refusing == {Use.STREAM, Use.BATCH} - used_in[key], key


def test_an_option_that_says_what_is_so_anyway_is_refused_nowhere() -> None:
    """Such as one map of options for a stream and a batch."""
    defaults = {"pullThresholdSizeForQueue": "100", "routeRefreshMs": "30000", "consumeOrderly": "TRUE"}

    assert ReadOptions.parse(REQUIRED | defaults).problems_of_batch() == []


def test_a_consumer_s_options_have_the_same_defaults_for_a_command() -> None:
    of_the_job = {spec.key: spec.default_text for spec in specs_of(ConsumeSettings)}
    assert {spec.key: spec.default_text for spec in specs_of(ConsumerOptions)}.items() <= of_the_job.items()


def test_booleans_are_shown_as_spark_s_users_write_them() -> None:
    assert "| `failOnDataLoss` | stream, batch | boolean | true |" in options_page()
    assert not re.search(r"\| (True|False) \|", options_page())


def test_a_default_that_says_required_does_not_make_an_option_required() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
    class Tls(OptionSet):
        client_auth: str = option("clientAuth", text_value, "required").doc("Who must prove it.")

    assert Tls.parse({}).client_auth == "required"


def test_a_secret_shows_in_no_repr_and_in_no_error() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
    class Credentials(OptionSet):
        access_key: str = option("accessKey", text_value).doc("Who.")
        secret_key: str = option("secretKey", text_value, secret=True).doc("Proof.")

    parsed = Credentials.parse({"accessKey": "me", "secretKey": "hunter2"})
    with pytest.raises(OptionError) as caught:
        Credentials.parse({"accessKey": "me", "secretKey": "  "})

    assert repr(parsed) == "Credentials(accessKey='me', secretKey=***)"
    assert "secretKey='***' is empty" in str(caught.value)


def test_the_documentation_page_is_fresh() -> None:
    page = Path(__file__).parents[2] / "docs" / "options.md"

    assert page.read_text(encoding="utf-8") == options_page(), "run `make docs`"


SECRETS = {
    "accessKey": "user-7fa1",
    "secretKey": "secret-7fa1",
    "securityToken": "token-7fa1",
    "useTls": "true",
    "tlsCertFile": "/pki/client.pem",
    "tlsKeyFile": "/pki/client.key",
    "tlsKeyPassword": "password-7fa1",
}


def test_no_secret_is_shown() -> None:
    """A5: neither when printed nor in an error."""
    options = ReadOptions.parse(REQUIRED | SECRETS)

    assert options.secret_key == "secret-7fa1"
    assert "7fa1" not in repr(options)
    assert "secretKey=***" in repr(options)
    with pytest.raises(OptionError) as caught:
        ReadOptions.parse(REQUIRED | SECRETS | {"securityToken": " ", "secretkeyy": "secret-7fa1"})
    assert "7fa1" not in str(caught.value)
    assert "securityToken='***' is empty" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"accessKey": "a"}, "'accessKey' needs 'secretKey'"),
        ({"secretKey": "s"}, "'secretKey' needs 'accessKey'"),
        ({"securityToken": "t"}, "'securityToken' needs 'accessKey'"),
        ({"tlsCaFile": "ca.pem"}, "'tlsCaFile' needs 'useTls=true'"),
        ({"tlsCertFile": "c.pem"}, "'tlsCertFile' needs 'useTls=true'"),
        ({"useTls": "true", "tlsKeyFile": "k.pem"}, "'tlsKeyFile' needs 'tlsCertFile'"),
        ({"useTls": "true", "tlsKeyPassword": "p"}, "'tlsKeyPassword' needs 'tlsCertFile'"),
        (
            {"useTls": "true", "tlsCaFile": "ca.pem", "tlsVerifyCertificate": "false"},
            "'tlsCaFile' is of no use with 'tlsVerifyCertificate=false'",
        ),
    ],
)
def test_security_that_would_be_ignored_is_refused(given: dict[str, str], sentence: str) -> None:
    """A5: half a configuration is worse than none."""
    with pytest.raises(OptionError, match=sentence):
        ReadOptions.parse(REQUIRED | given)


def test_a_namespace_counts_towards_the_length_of_names() -> None:
    """A6: brokers limit the name they see."""
    fits = REQUIRED | {"topic": "t" * 122, "namespace": "shop"}

    assert ReadOptions.parse(fits).namespace == "shop"
    with pytest.raises(OptionError, match="together with its namespace 'shop%'"):
        ReadOptions.parse(fits | {"topic": "t" * 123})


@pytest.mark.parametrize("text", ["", "a%b", "a b"])
def test_a_namespace_that_could_not_be_taken_off_again_is_refused(text: str) -> None:
    """A6: it ends at the first percent sign."""
    with pytest.raises(OptionError, match="namespace"):
        ReadOptions.parse(REQUIRED | {"namespace": text})


@pytest.mark.parametrize("written", ["2023-11-14T22:13:20", "2023-11-15 06:13:20+08:00", "1700000000000"])
def test_a_time_may_be_written_as_milliseconds_or_as_iso(written: str) -> None:
    """startingTimestamp, endingTimestamp, and per topic; in UTC unless it says otherwise,
    as for ``offsets reset --to``.
    """
    per_topic = json.dumps({"t": written if "-" in written else int(written)})
    plain = ReadOptions.parse(
        {"nameServers": "n:1", "topic": "t", "startingTimestamp": written, "endingTimestamp": written}
    )
    named = ReadOptions.parse({"nameServers": "n:1", "topic": "t", "startingOffsetsByTimestamp": per_topic})

    assert plain.starting_timestamp == plain.ending_timestamp == 1_700_000_000_000
    starting_times = named.starting_times()
    assert starting_times is not None
    assert starting_times.wanted(MessageQueue("t", "b", 0)) == 1_700_000_000_000
