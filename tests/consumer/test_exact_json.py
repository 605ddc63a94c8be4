"""Bodies that ``json_body`` takes, and those that Spark's from_json takes but ``json_body`` refuses."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, ByteType, MapType, StringType, StructField, StructType

from pyspark_rocketmq.consumer.message_table import json_body

pytestmark = pytest.mark.spark

SCHEMA = (
    "id string, price decimal(5,2), x double, f float, small tinyint, at timestamp, n struct<`p.q`: decimal(3,1)>, "
    "r array<tinyint>, m map<string, double>, s array<struct<d: decimal(4,0)>>"
)


def decoded(
    spark: SparkSession, bodies: list[bytes], schema: str | StructType = SCHEMA, **options: str
) -> list[Row | None]:
    rows = spark.createDataFrame(list(enumerate(bodies)), "at int, body binary")
    found = rows.select("at", json_body(schema, options)(sf.col("body")).alias("found")).collect()
    return [row.found for row in sorted(found, key=lambda row: row.at)]


def assert_all_are_bad(spark: SparkSession, bodies: list[bytes], schema: str = SCHEMA) -> None:
    kept = zip(bodies, decoded(spark, bodies, schema), strict=True)
    assert [(body, found) for body, found in kept if found is not None] == []


def test_a_body_that_is_more_than_one_json_object_is_a_bad_record(spark: SparkSession) -> None:
    """H1: Spark's parser ends behind the first value, and nothing would say what was lost."""
    assert_all_are_bad(
        spark,
        [
            b'{"id":"1"}' + rest
            for rest in (
                b'\n{"id":"2"}', b'{"id":"2"}', b',{"id":"2"}', b"garbage", b"\0\0", b"]", b"}", b"]}", b",", b"1", b'],"x":[{}',
                b'],"x":[{"id":"2"}]}garbage', b',{"id":"2"}],"x":[{}', b',{}],"x":[{}', b',null],"x":[{}', b',{"end":1}],"x":[{}', b"/* open", b"// comment", b"\xc2\xa0", b"\xef\xbb\xbf",
            )
        ]
        + [b"", b" ", b"null", b'"x"', b"5", b'[{"id":"1"}]', b"[]", b'\xef\xbb\xbf{"id":"1"}', b'{"id":"1"', b'"x":{"id":"1"}'],
    )  # fmt: skip


def test_white_space_around_the_one_object_is_no_part_of_it(spark: SparkSession) -> None:
    bodies = [b'{"id":"1"}', b' \t{"id":"1"}\r\n ', b'{"id":"1","unknown":{"a":[1]}}']

    assert [found and found.id for found in decoded(spark, bodies)] == ["1"] * 3


def test_an_allowed_comment_does_not_hide_what_follows(spark: SparkSession) -> None:
    bodies = [b'{"id":"1"} // said', b'{"id":"1"} /* said */', b'{"id":"1"} // said\n{"id":"2"}']

    assert [found and found.id for found in decoded(spark, bodies, allowComments="true")] == ["1", "1", None]


def test_bytes_that_are_not_utf8_are_a_bad_record_wherever_they_are(spark: SparkSession) -> None:
    """H1: they would come out as U+FFFD."""
    latin = "Jos\u00e9".encode("latin-1")
    bodies = [b'{"id":"' + latin + b'"}', b'{"unknown":"' + latin + b'"}', b'{"' + latin + b'":1,"id":"1"}']
    surrogate, too_long = b'{"id":"\xed\xa0\x80"}', b'{"id":"\xc0\xaf"}'

    assert_all_are_bad(spark, [*bodies, surrogate, too_long, '{"id":"1"}'.encode("utf-16")])


def test_an_escape_of_half_a_character_is_a_bad_record(spark: SparkSession) -> None:
    """H1: it would come out as a question mark."""
    halves = [
        r"\ud800",
        r"\uDC00x",
        r"a\ud83d",
        r"\ud83d\u0041",
        r"\ude00\ud83d",
        r"\\\ud800",
        r"\ud83d\\ude00",
    ]
    assert_all_are_bad(spark, [b'{"id":"%s"}' % half.encode() for half in halves])

    whole = [r"\ud83d\ude00", r"\uD83D\uDE00!", r"\\ud800", r"\\\\ud800", "\U0001f600", r"\ud7ff\ue000"]
    found = decoded(spark, [b'{"id":"%s"}' % text.encode() for text in whole])
    assert [each and each.id for each in found] == [json.loads(f'"{text}"') for text in whole]


CHANGED = (
    '"price":1.005', '"price":"1.005"', '"price":999.999', '"price":1000', '"price":1e-9',
    '"n":{"p.q":1.25}', '"s":[{"d":1},{"d":0.5}]', '"s":[{"d":99999}]',
    '"x":1e400', '"x":-1e400', '"f":1e39', '"m":{"a":1,"b":1e400}', '"id":"Infinity","x":1e400',
    '"small":200', '"small":255', '"small":-129', '"r":[1,128]',
    '"m":{"a":1,"a":2}',
    '"at":1700000000000', '"at":"+12026-01-01T00:00:00Z"',
)  # fmt: skip


def test_a_value_that_spark_would_change_is_a_bad_record(spark: SparkSession) -> None:
    """H1: rounded, cut off or put in the place of another one without a word."""
    assert_all_are_bad(spark, [b"{%s}" % value.encode() for value in CHANGED])


MOMENTS = (
    "d date, at timestamp, local timestamp_ntz, s struct<d: date, at: timestamp>, r array<timestamp>, "
    "m map<string, struct<d: date>>, note string"
)


CUT_TIMES = (
    '"d":"2024-01-02T10:00:00Z"', '"d":"2024-01-02 10:00"', '"d":"2024-01-02Tanything"', '"s":{"d":"2024-1-2T1:00"}',
    '"m":{"a":{"d":"2024-01-02T10:00:00Z"}}',
    '"at":"2024-01-02T10:00:00.1234567Z"', '"at":"2024-01-02T10:00:00.123456001Z"',
    '"local":"2024-01-02T10:00:00.1234561"', '"s":{"at":"2024-01-02T10:00:00.0000001Z"}',
    '"r":["2024-01-02T10:00:00Z","2024-01-02T10:00:00.123456789Z"]',
)  # fmt: skip


def test_a_time_that_its_column_cannot_hold_whole_is_a_bad_record(spark: SparkSession) -> None:
    """H1: the time of day of a date, and what is finer than a microsecond, would be left out."""
    assert_all_are_bad(spark, [b"{%s}" % value.encode() for value in CUT_TIMES], MOMENTS)


def test_times_that_their_columns_hold_whole_come_as_they_were_sent(spark: SparkSession) -> None:
    body = (
        b'{"d":"2024-01-02","at":"2024-01-02T10:00:00.1234560Z","local":"2024-01-02T10:00:00.123456000",'
        b'"s":{"d":"2024-01-03 ","at":"2024-01-02T10:00:00.5Z"},"r":["2024-01-02T10:00:00.123456Z",null],'
        b'"m":{"a":{"d":"2024-01-04"},"b":null},"note":"2024-01-02T10:00:00.123456789Z"}'
    )
    [found] = decoded(spark, [body], MOMENTS)

    assert found is not None
    assert (str(found.d), str(found.s.d), str(found.m["a"].d)) == ("2024-01-02", "2024-01-03", "2024-01-04")
    assert (found["at"].microsecond, found.local.microsecond, found.s["at"].microsecond) == (
        123456,
        123456,
        500000,
    )
    assert found.note == "2024-01-02T10:00:00.123456789Z"


NESTED = "a int, s struct<b: int, t: struct<c: int>>, r array<struct<b: int>>, m map<string, struct<b: int>>, note string"


TWICE = (
    '{"a":1,"a":2}', '{"a":1,"a":1}', '{"a":1,"note":"x","a":null}', "{'a':1,'a':2}", r'{"a":1,"\u0061":2}',
    '{"s":{"b":1,"b":2}}', '{"s":{"t":{"c":1,"c":2}}}', '{"s":{"t":{"c":1},"t":{}}}', '{"r":[{"b":1},{"b":1,"b":2}]}',
    '{"m":{"x":{"b":1,"b":2}}}', '{"s":{"b":1},"s":{"b":1}}', "{\"a\":1,'a':2}",
)  # fmt: skip


def test_a_field_that_is_sent_twice_is_a_bad_record(spark: SparkSession) -> None:
    """H1: the last one would count, at any depth."""
    assert_all_are_bad(spark, [body.encode() for body in TWICE], NESTED)


def test_a_name_that_is_there_twice_but_in_no_object_twice_is_no_bad_record(spark: SparkSession) -> None:
    bodies = [
        '{"a":1,"s":{"b":1,"t":{"c":1}},"r":[{"b":1},{"b":2},null],"m":{"x":{"b":1},"y":{"b":2}}}',
        '{"a":1,"note":"\\"a\\" it\'s"}', '{"note":"a","a":1,"unknown":{"a":2}}', '{"a":1,"x":1,"x":2}',
        '{"a":1,"r":[]}', '{"note":null,"a":1}',
    ]  # fmt: skip
    found = decoded(spark, [body.encode() for body in bodies], NESTED)

    assert [row and row.a for row in found] == [1] * len(bodies)


def test_values_that_fit_their_columns_come_as_they_were_sent(spark: SparkSession) -> None:
    body = (
        b'{"price":-123.40,"x":1.5e300,"f":0.5,"small":-128,"n":{"p.q":9.9},"r":[127,null],"m":{"a":-0.0,"b":null},'
        b'"s":[{"d":12e2},null,{}],"at":1700000000}'
    )
    [found] = decoded(spark, [body])

    assert found is not None
    values: dict[str, Any] = found.asDict(recursive=True)
    at = values.pop("at")
    assert at.year == 2023
    assert {name: str(value) for name, value in values.items()} == {
        "id": "None", "price": "-123.40", "x": "1.5e+300", "f": "0.5", "small": "-128", "n": "{'p.q': Decimal('9.9')}",
        "r": "[127, None]", "m": "{'a': -0.0, 'b': None}", "s": "[{'d': Decimal('1200')}, None, {'d': None}]",
    }  # fmt: skip


def test_an_infinity_that_was_sent_stays_one(spark: SparkSession) -> None:
    """Spark's allowNonNumericNumbers is on unless it is set."""
    found = decoded(spark, [b'{"x":"Infinity"}', b'{"x":-INF}', b'{"f":NaN}', b'{"x":Infinity,"f":1e39}'])

    assert [each and (each.x, str(each.f)) for each in found] == [
        (float("inf"), "None"), (float("-inf"), "None"), (None, "nan"), None,
    ]  # fmt: skip


def test_random_prices_are_exact_or_bad_records(spark: SparkSession) -> None:
    from decimal import Decimal

    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    sent = [
        f"{rng.choice('-+')}{rng.randrange(2000)}.{rng.randrange(10 ** rng.randint(1, 6))}"
        for _ in range(400)
    ]
    texts = [each.lstrip("+") + rng.choice(["", "", "e0", "e-1", "E1", "00"]) for each in sent]

    found = decoded(spark, [b'{"price":%s}' % text.encode() for text in texts])

    cent = Decimal("0.01")
    for text, row in zip(texts, found, strict=True):
        value = Decimal(text)
        fits = value == value.quantize(cent) and abs(value) < 1000
        assert (row.price if row else None) == (value if fits else None), f"seed={seed} {text}"


def test_a_schema_with_not_null_inside_decodes_as_if_it_allowed_nulls(spark: SparkSession) -> None:
    """H1: from_json takes every column for one that may be null, at any depth."""
    schema = "id string not null, n struct<a: int not null>, d struct<p: decimal(5,2) not null>"
    found = decoded(spark, [b'{"id":"1","n":{"a":1},"d":{"p":1.5}}', b'{"n":{}}'], schema)
    assert [each and (each.id, each.n.a) for each in found] == [("1", 1), (None, None)]
    parsed = StructType(
        [
            StructField("r", ArrayType(StringType(), containsNull=False)),
            StructField("m", MapType(StringType(), ByteType(), valueContainsNull=False)),
        ]
    )
    [row] = decoded(spark, [b'{"r":["x"],"m":{"y":1}}'], parsed)
    assert row is not None
    assert (row.r, row.m) == (["x"], {"y": 1})
