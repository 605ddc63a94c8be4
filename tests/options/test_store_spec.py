"""Which store an option names, and what each kind is no store for."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.options.store_spec import StoreKind, StoreSpec

GROUP = {"nameServers": "a:1", "topic": "orders", "consumerGroup": "g"}
BROADCASTING = {"messageModel": "BROADCASTING", "instanceName": "one"}
CONCURRENT = {"consumeOrderly": "false"}


@pytest.mark.parametrize(
    ("text", "kind", "place"),
    [
        ("/lake/_offsets", StoreKind.DELTA, "/lake/_offsets"),
        (" lake/my offsets ", StoreKind.DELTA, "lake/my offsets"),
        ("s3://lake/_offsets", StoreKind.DELTA, "s3://lake/_offsets"),
        ("file:///lake/_offsets", StoreKind.DELTA, "file:///lake/_offsets"),
        ("delta:abfss://c@a/_offsets", StoreKind.DELTA, "abfss://c@a/_offsets"),
        ("file:/var/offsets", StoreKind.FILE, "/var/offsets"),
        ("broker:", StoreKind.BROKER, ""),
        ("memory:tests", StoreKind.MEMORY, "tests"),
    ],
)
def test_the_scheme_names_the_kind(text: str, kind: StoreKind, place: str) -> None:
    assert StoreSpec.parse(text) == StoreSpec(kind, place)


@pytest.mark.parametrize("given", [{}, CONCURRENT, BROADCASTING])
def test_a_delta_table_does_for_every_consumer(given: dict[str, str]) -> None:
    ReadOptions.parse({**GROUP, **given, "offsetStore": "/lake/_offsets"})


@pytest.mark.parametrize(("store", "given"), [("file:/var/offsets", BROADCASTING), ("broker:", CONCURRENT)])
def test_each_kind_does_for_the_consumer_java_has_it_for(store: str, given: dict[str, str]) -> None:
    """F1"""
    assert ReadOptions.parse({**GROUP, **given, "offsetStore": store}).offset_store == store


@pytest.mark.parametrize(
    ("store", "given", "sentence"),
    [
        ("file:/var/offsets", {}, "a CLUSTERING group on other machines cannot use them; use a Delta table"),
        ("broker:", BROADCASTING | CONCURRENT, "has only one offset for all instances"),
        (
            "broker:",
            {},
            "neither attempts nor suspensions nor epochs; use a Delta table, or consumeOrderly=false",
        ),
        ("redis:x", {}, "option offsetStore='redis:x' has the unknown kind 'redis'"),
    ],
)
def test_options_a_store_cannot_honour_are_refused_at_load(
    store: str, given: dict[str, str], sentence: str
) -> None:
    """F1, H1: before anything is consumed."""
    with pytest.raises(OptionError, match=sentence):
        ReadOptions.parse({**GROUP, **given, "offsetStore": store})
