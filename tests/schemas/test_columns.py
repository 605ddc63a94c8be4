"""Frames split in Spark's columns, by the same rules as in a listener."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.avro.functions import from_avro

import pyspark_rocketmq as rmq
from pyspark_rocketmq.errors import FrameDamaged, OptionError
from pyspark_rocketmq.schemas.framing import BodyFormat, Framing, split_frame
from tests.schemas.frames import GUID, framed

CASES = 60
ROWS = "body binary, properties map<string,string>"


def bodies(framing: Framing, body_format: BodyFormat) -> Iterator[tuple[bytes, Mapping[str, str]]]:
    """Whole frames, the same ones cut and changed, and any bytes."""
    chosen = random.Random(f"{framing}{body_format}")
    for number in range(CASES):
        schema_id = GUID if number % 5 == 0 else chosen.randrange(1, 2**31)
        path = tuple(chosen.randrange(0, 2 ** chosen.randrange(1, 20)) for _ in range(chosen.randrange(1, 5)))
        body, properties = framed(framing, schema_id, chosen.randbytes(number % 9), body_format, path)
        yield body, properties
        yield body[: chosen.randrange(len(body) + 1)], properties
        damaged = bytearray(body or b"\0")
        damaged[chosen.randrange(min(len(damaged), 12))] = chosen.choice([0, 1, 0x10, 0x7F, 0x80, 0xFF])
        yield bytes(damaged), {}
        yield (
            chosen.randbytes(chosen.randrange(30)),
            {"__value_schema_id": "?", "apicurio.value.globalId": "0"},
        )


@pytest.mark.spark
@pytest.mark.parametrize("body_format", BodyFormat)
def test_columns_are_what_a_listener_gets(spark: SparkSession, body_format: BodyFormat) -> None:
    """K4: id and payload of all framings; null for a damaged frame."""
    for framing in Framing:
        cases = list(bodies(framing, body_format))
        rows = spark.createDataFrame(cases, ROWS).select(
            rmq.schema_id(sf.col("body"), framing, properties=sf.col("properties")).alias("id"),
            rmq.payload(sf.col("body"), framing, body_format).alias("payload"),
        )
        found = [(row.id, None if row.payload is None else bytes(row.payload)) for row in rows.collect()]
        whole = 0
        for (body, properties), (schema_id, payload) in zip(cases, found, strict=True):
            try:
                frame = split_frame(framing, body, properties, body_format)
            except FrameDamaged:
                assert schema_id is None or payload is None or framing is Framing.CONFLUENT_HEADERS
            else:
                whole += 1
                assert (schema_id, payload) == (str(frame.schema_id), frame.payload), (framing, body.hex())
        assert whole >= CASES


@pytest.mark.spark
def test_sparks_own_function_decodes_the_payload(spark: SparkSession) -> None:
    """K4: as docs/how-to/decoding.md has it; a damaged frame is null, as a damaged datum is."""
    order = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
    body, _ = framed(Framing.CONFLUENT, 7, b"\x04o1", BodyFormat.AVRO)
    messages = spark.createDataFrame([(body,), (b"\x04o1",), (body[:5] + b"\xff",)], "body binary")

    decoded = from_avro(rmq.payload(messages.body), json.dumps(order), {"mode": "PERMISSIVE"})
    rows = messages.select(rmq.schema_id(messages.body).alias("schema"), decoded.alias("order")).collect()

    assert [(row.schema, row.order and row.order.id) for row in rows] == [
        ("7", "o1"),
        (None, None),
        ("7", None),
    ]


@pytest.mark.spark
def test_a_header_may_be_in_base64(spark: SparkSession) -> None:
    """K4: and what is neither is null, not an error."""
    texts = ["AQ0fLDtKWUhnh5altMPS4fA=", str(GUID), "00000000ff", "not base64!", "", None]
    rows = spark.createDataFrame([(b"", {"__value_schema_id": text}) for text in texts], ROWS)

    found = rows.select(rmq.schema_id(rows.body, "confluent-headers", properties=rows.properties)).collect()

    assert [row[0] for row in found] == [str(GUID), str(GUID), "255", None, None, None]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("framing", "name", "ids"),
    [
        (
            "apicurio-headers",
            "apicurio.value.globalId",
            {"9223372036854775807": "9223372036854775807", "9223372036854775808": None, "07": None},
        ),
        (
            "confluent-headers",
            "__value_schema_id",
            {
                "0000000007": "7",
                "000000000700": "7",
                "0000000007040204": "7",
                "0000000007ff": None,
                "000000000704": None,
                f"01{GUID.hex}00": str(GUID),
                f"01{GUID.hex}ff": None,
                "AAAAAAf/": None,
            },
        ),
    ],
)
def test_a_damaged_header_gives_no_id(
    spark: SparkSession, framing: str, name: str, ids: dict[str, str | None]
) -> None:
    """K4: a number above a schema's largest, or bytes behind the id that are no message type."""
    rows = spark.createDataFrame([(b"", {name: text}) for text in ids], ROWS)

    found = rows.select(rmq.schema_id(rows.body, framing, properties=rows.properties)).collect()

    assert [row[0] for row in found] == list(ids.values())


@pytest.mark.spark
def test_wrong_arguments_are_refused(spark: SparkSession) -> None:
    """K4: before a query starts."""
    with pytest.raises(OptionError, match="framing is 'kafka'; choose from confluent, "):
        rmq.payload(sf.col("body"), "kafka")
    with pytest.raises(OptionError, match="format is 'xml'; choose from avro, json, protobuf"):
        rmq.payload(sf.col("body"), format="xml")
    with pytest.raises(OptionError, match="give properties="):
        rmq.schema_id(sf.col("body"), "apicurio-headers")
