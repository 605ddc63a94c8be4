"""URIs with keys in them, wherever they are shown."""

from __future__ import annotations

import ast
import functools
import logging
import pickle
from pathlib import Path

import pytest

from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.display import masked, masking_logger
from pyspark_rocketmq.errors import OffsetError, OptionError
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.open import open_offset_store
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.sinks.database import DatabaseSink
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from pyspark_rocketmq.sinks.multi import MultiSink, Route
from tests.packaging.checkout import ROOT

PACKAGE = ROOT / "connector" / "pyspark_rocketmq"
URI = "s3://AKIA:CANARY/+x@bucket/offsets"
SIGNED = "abfss://lake@account.dfs.core.windows.net/offsets?sig=CANARY&se=2027"
SECRETS = {
    "accessKey": "CANARY",
    "secretKey": "CANARY",
    "securityToken": "CANARY",
    "useTls": "true",
    "tlsCertFile": "client.pem",
    "tlsKeyPassword": "CANARY",
}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/data/offsets", "/data/offsets"),
        ("/data/a@b?c/offsets", "/data/a@b?c/offsets"),
        ("s3://bucket/offsets", "s3://bucket/offsets"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("hdfs://host:8020/a@b", "hdfs://host:8020/a@b"),
        ("abfss://lake@account.dfs.core.windows.net/x", "abfss://lake@account.dfs.core.windows.net/x"),
        ("abfss://lake:KEY@account/x", "abfss://***@account/x"),
        ("s3://KEY@bucket/x", "s3://***@bucket/x"),
        ("s3://AKIA:KEY@bucket/x", "s3://***@bucket/x"),
        ("s3://AKIA:a/b+c@bucket/x", "s3://***@bucket/x"),
        ("delta:s3://AKIA:KEY@bucket/x", "delta:s3://***@bucket/x"),
        ("abfss://lake@account/x?sig=KEY&se=1", "abfss://lake@account/x?***"),
        ("'s3://a:KEY@b/x' and \"s3://c:KEY@d/y?z=KEY\".", "'s3://***@b/x' and \"s3://***@d/y?***\"."),
        ("There is none at s3://b/x?k=KEY. Put it back.", "There is none at s3://b/x?***. Put it back."),
        ("nameServers='user:KEY@host:9876;other:9876'", "nameServers='***@host:9876;other:9876'"),
        ("host@1:2", "host@1:2"),
        ("no route: dbname=shop password=KEY, user=etl", "no route: dbname=shop password=***, user=etl"),
        ("PGPASSWORD='K E\\'Y' sslpassword = \"K Y\" x", "PGPASSWORD=*** sslpassword = *** x"),
        ("failed (no route: password=***)", "failed (no route: password=***)"),
        ("password authentication failed", "password authentication failed"),
        ("password='KEY\nx='y'", "password=***\nx='y'"),
    ],
)
def test_user_information_queries_and_passwords_are_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize("uri", [URI, SIGNED])
def test_no_repr_shows_a_secret(uri: str) -> None:
    """A5."""
    connect = functools.partial(print, "password=CANARY")
    database = DatabaseSink(connect, print)
    options = {"nameServers": "h:1", "topic": "T", "consumerGroup": "g", "offsetStore": uri, **SECRETS}
    consumer = PushConsumer(consumer_group="g", name_servers="h:1", offset_store=uri, options=SECRETS)

    for each in (
        ReadOptions.parse(options),
        consumer,
        consumer._settings,
        database,
        DeltaSink(uri),
        MultiSink([DeltaSink(uri), database]),
        Route(sink=DeltaSink(uri)),
        DeltaOffsetStore(uri),
    ):
        assert "CANARY" not in repr(each)
        assert "CANARY" not in str(each)


def test_an_error_of_options_may_come_from_another_process() -> None:
    """As those of a pool of processes do."""
    copy = pickle.loads(pickle.dumps(OptionError(("a is wrong", "b is wrong"), where="several sinks")))

    assert (copy.problems, copy.where) == (("a is wrong", "b is wrong"), "several sinks")
    assert str(copy) == "Invalid several sinks:\n  - a is wrong\n  - b is wrong"


def test_no_error_shows_a_secret_of_a_uri() -> None:
    """A5."""
    error = OffsetError(f"There is no Delta table at {URI}. Put it back.")

    for each in (
        error,
        pickle.loads(pickle.dumps(error)),
        OptionError((f"offsetStore='{SIGNED}' is nothing",)),
    ):
        assert "CANARY" not in str(each)
        assert "CANARY" not in repr(each)


@pytest.mark.parametrize(
    "refused",
    [
        {"nameServers": "user:CANARY@host"},
        {"nameServers": URI},
        {"nameServers": SIGNED},
        {"offsetStore": "postgres://u:CANARY@h/db"},
        {"offsetStore": "user:CANARY@host"},
        {"secretKey:CANARY": "x"},
        {"secretKey CANARY": "x"},
        {"=CANARY": "x"},
    ],
    ids=str,
)
def test_a_refused_option_shows_no_secret(refused: dict[str, str]) -> None:
    """A5."""
    options = {"nameServers": "h:1", "topic": "T", "consumerGroup": "g", "offsetStore": "/x", **refused}

    with pytest.raises(OptionError) as caught:
        ReadOptions.parse(options)

    assert "CANARY" not in str(caught.value)


def test_a_store_of_an_unknown_kind_is_refused_without_its_secret() -> None:
    """A5."""
    with pytest.raises(OptionError) as caught:
        open_offset_store("postgres://u:CANARY@h/db")

    assert "CANARY" not in str(caught.value)


def test_sinks_of_one_place_are_named_without_what_connects() -> None:
    """A5."""
    connect = functools.partial(print, "password=CANARY")

    with pytest.raises(OptionError) as caught:
        MultiSink([DatabaseSink(connect, print), DatabaseSink(connect, print)])

    assert "CANARY" not in str(caught.value)


LOGGER = masking_logger("pyspark_rocketmq.test_masked")


class _Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    """Return the error with a traceback."""
    try:
        raise error from cause
    except type(error):
        return error


def test_no_log_shows_a_secret_of_an_error_or_its_causes(caplog: pytest.LogCaptureFixture) -> None:
    """A5: a handler that formats the error by itself gets no error."""
    cause = raised(OSError(f"no route to {URI} password=CANARY"))

    LOGGER.warning("not committed: %s", cause, exc_info=raised(OffsetError("The database is away."), cause))

    (record,) = caplog.records
    assert "CANARY" not in caplog.text
    assert "not committed: no route to s3://***@bucket/offsets password=***\nTraceback" in caplog.text
    assert "OSError: no route to s3://***@bucket/offsets password=***\n" in caplog.text
    assert "\npyspark_rocketmq.errors.OffsetError: The database is away." in caplog.text
    assert record.exc_info is None


def test_a_log_without_a_secret_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """D5: tools group records by their errors and arguments."""
    error = raised(ValueError("bad"))

    LOGGER.warning("queue=%d", 3, exc_info=error)

    (record,) = caplog.records
    assert (record.msg, record.args) == ("queue=%d", (3,))
    assert record.exc_info == (ValueError, error, error.__traceback__)


def test_an_error_without_a_text_costs_no_more_than_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """D5: of a user's class; the caller goes on."""
    monkeypatch.setattr(LOGGER, "propagate", False)
    monkeypatch.setattr(logging, "lastResort", None)
    error = raised(_Unreadable())

    LOGGER.warning("failed: %s", error, exc_info=error)


@pytest.mark.parametrize(
    "module", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_whoever_logs_a_traceback_has_it_masked(module: Path) -> None:
    """A5: an error of this package may have one of a driver as its cause."""
    calls = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)]
    logs = [
        call.lineno
        for call in calls
        if ast.unparse(call.func) == "logger.exception"
        or (ast.unparse(call.func).startswith("logger.") and "exc_info" in {key.arg for key in call.keywords})
    ]
    is_masked = "masking_logger(__name__)" in {ast.unparse(call) for call in calls}

    assert is_masked or logs == []
