"""Bodies decoded in listeners, by the schemas of a registry."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import io
import json
import pickle
import re
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.errors import (
    BadRecord,
    FrameDamaged,
    OptionError,
    SchemaError,
    SchemaNotFound,
    SchemaRegistryDown,
)
from pyspark_rocketmq.listeners.messages import ArrowMessages
from pyspark_rocketmq.model import MessageExt
from pyspark_rocketmq.schemas.formats import avro_decoder
from pyspark_rocketmq.schemas.framing import BodyFormat, Framing
from pyspark_rocketmq.schemas.http_lookup import lookup_of
from pyspark_rocketmq.schemas.lookup import RegisteredSchema
from pyspark_rocketmq.schemas.registry import SchemaRegistry
from tests.helpers.messages import message_at
from tests.schemas.fake_registry import FakeRegistry, answers
from tests.schemas.frames import GUID, framed

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "amount", "type": ["null", "double"], "default": None},
    ],
}
ORDER_2 = {
    **ORDER,
    "fields": [*ORDER["fields"], {"name": "tags", "type": {"type": "array", "items": "string"}}],
}
COLUMNS = pa.schema([("id", pa.string()), ("amount", pa.float64()), ("tags", pa.list_(pa.string()))])


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as running:
        running.add(7, ORDER)
        running.add(8, ORDER_2)
        yield running


def avro(schema: Any, value: object) -> bytes:
    import fastavro

    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def message(body: bytes, offset: int = 5, **properties: str) -> MessageExt:
    found = message_at(offset)
    return found._replace(body=body, properties={**found.properties, **properties})


def with_properties(body: bytes, properties: dict[str, str]) -> MessageExt:
    return message(body)._replace(properties=properties)


def confluent(schema_id: int, payload: bytes) -> bytes:
    return framed(Framing.CONFLUENT, schema_id, payload, BodyFormat.AVRO)[0]


def order(schema_id: int = 7, **fields: Any) -> bytes:
    value = {"id": "o1", "amount": 1.5, "tags": ["a"], **fields}
    return confluent(schema_id, avro(ORDER if schema_id == 7 else ORDER_2, value))


def test_a_body_is_decoded_by_its_writers_schema(registry: FakeRegistry) -> None:
    """K4: two versions of a schema in one queue; each is asked for once, also after pickling."""
    decode = pickle.loads(pickle.dumps(registry.client().decoder()))

    found = [decode(message(order(schema_id))) for schema_id in (7, 8, 7, 8)]

    assert found == [{"id": "o1", "amount": 1.5}, {"id": "o1", "amount": 1.5, "tags": ["a"]}] * 2
    assert pickle.loads(pickle.dumps(decode))(message(order(id="o2")))["id"] == "o2"
    assert registry.requests == ["/schemas/ids/7", "/schemas/ids/8"]


def test_a_readers_schema_resolves_the_writers(registry: FakeRegistry) -> None:
    """K4: fields that the writer lacks get their defaults, others are left out."""
    wanted = {
        **ORDER,
        "fields": [ORDER["fields"][0], {"name": "currency", "type": "string", "default": "EUR"}],
    }
    decode = registry.client().decoder(reader_schema=json.dumps(wanted))

    assert decode(message(order(8))) == {"id": "o1", "currency": "EUR"}


def test_a_schema_may_use_others(registry: FakeRegistry) -> None:
    """K4: references, which are asked for by subject and version."""
    registry.schemas["subjects/item/versions/1"] = {
        "schema": json.dumps({"type": "enum", "name": "shop.Colour", "symbols": ["RED", "BLUE"]})
    }
    registry.add(
        9,
        {"type": "record", "name": "shop.Item", "fields": [{"name": "colour", "type": "shop.Colour"}]},
        references=[{"name": "shop.Colour", "subject": "item", "version": 1}],
    )

    assert registry.client().decoder()(message(confluent(9, b"\x02"))) == {"colour": "BLUE"}


def test_a_property_may_name_the_schema(registry: FakeRegistry) -> None:
    """K4: Confluent's headers, in a message and in a batch."""
    registry.schemas[f"guids/{GUID}"] = {"schema": json.dumps(ORDER)}
    decode = registry.client().decoder(framing="confluent-headers")
    one = message(avro(ORDER, {"id": "o1", "amount": None}), __value_schema_id=str(GUID))

    assert decode(one) == {"id": "o1", "amount": None}
    assert decode.columns(ArrowMessages.of([one]).batch, COLUMNS).column("id").to_pylist() == ["o1"]


@pytest.mark.parametrize(
    ("legacy", "wanted", "other"), [(False, "content", "global"), (True, "global", "content")]
)
def test_an_id_of_apicurios_other_kind_names_no_schema(
    registry: FakeRegistry, legacy: bool, wanted: str, other: str
) -> None:
    """K4: both kinds are small numbers, so the registry would often return another schema."""
    decode = registry.client(legacy_id_mode=legacy).decoder(framing="apicurio-headers")
    datum = avro(ORDER, {"id": "o1", "amount": None})
    ids = {f"apicurio.value.{wanted}Id": "7", f"apicurio.value.{other}Id": "8"}
    right, both, wrong = (
        {name: ids[name] for name in names} for names in (list(ids)[:1], ids, list(ids)[1:])
    )

    for properties in (right, both):
        assert decode(with_properties(datum, properties)) == {"id": "o1", "amount": None}
    with pytest.raises(BadRecord, match=f"has its schema's {other}Id"):
        decode(with_properties(datum, wrong))
    with pytest.raises(FrameDamaged, match="has none of the properties"):
        decode(message(datum))
    (row,) = decode.columns(ArrowMessages.of([with_properties(datum, wrong)]).batch, COLUMNS).to_pylist()
    assert (row["badRecord"], row["id"]) == (datum, None)
    assert f"Have producers set apicurio.registry.use-id={wanted}Id" in row["badReason"]
    assert registry.requests == ["/schemas/ids/7"]


@pytest.mark.parametrize("body_format", ["avro", "protobuf", "json"])
def test_a_header_of_confluent_is_no_apicurio_id(body_format: str) -> None:
    """K4: the error names the framing that the message has."""
    decode = SchemaRegistry("http://127.0.0.1:1").decoder(framing="apicurio-headers", format=body_format)

    with pytest.raises(FrameDamaged, match="It looks like confluent-headers"):
        decode(message(b"x", __value_schema_id=str(GUID)))


def test_json_needs_no_id_of_a_certain_kind() -> None:
    """K4: no schema is looked up by it."""
    decode = SchemaRegistry("http://127.0.0.1:1").decoder(framing="apicurio-headers", format="json")

    for kind in ("global", "content"):
        assert decode(with_properties(b"{}", {f"apicurio.value.{kind}Id": "7"})) == {}


def test_json_needs_no_registry() -> None:
    """K4: its fields have names."""
    decode = SchemaRegistry("http://127.0.0.1:1").decoder(framing="rocketmq-json", format="json")

    assert decode(message(b"\0\0\0\0\0\0\0\x07" + b'{"id": "o1"}')) == {"id": "o1"}
    for payload in (b"{", b"{} {}", b"\xff", b'{"a": NaN}', b"[" * 100_000):
        with pytest.raises(BadRecord, match="not JSON in UTF-8"):
            decode(message(b"\0\0\0\0\0\0\0\x07" + payload))


def test_a_json_number_that_is_too_large_is_a_bad_record() -> None:
    """K4: Python would make it infinite, which JSON cannot express."""
    decode = SchemaRegistry("http://127.0.0.1:1").decoder(framing="rocketmq-json", format="json")

    for number in (b"1e999", b"-1e400", b"1" * 400 + b".0"):
        with pytest.raises(BadRecord, match=r"1.* is too large for a float"):
            decode(message(b"\0\0\0\0\0\0\0\x07" + b'{"a": [%s]}' % number))
    assert decode(message(b"\0\0\0\0\0\0\0\x07" + b'{"a": -1.7e308}')) == {"a": -1.7e308}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x04o1", "not in framing confluent"),
        (order()[:-1], "does not fit its Avro schema: EOFError"),
        (order() + b"x", "1 bytes are left"),
        (confluent(7, b"\x04\xff\xff\x00"), "UnicodeDecodeError"),
        (confluent(7, b"\x04o1\x09"), "IndexError"),
        (confluent(66, b""), "has no schema id 66"),
        (confluent(20, b""), "not an Avro schema"),
        (confluent(21, b""), "items take no bytes"),
        (confluent(22, b"\x02" * 100_000 + b"\0"), "RecursionError"),
    ],
)
def test_what_no_schema_decodes_is_a_bad_record(registry: FakeRegistry, body: bytes, reason: str) -> None:
    """K4: damaged frames and payloads, unknown schemas, and schemas that cannot be used."""
    registry.add(20, {"type": "unheard-of"})
    registry.add(21, {"type": "array", "items": {"type": "record", "name": "E", "fields": []}})
    registry.add(22, {"type": "record", "name": "T", "fields": [{"name": "next", "type": ["null", "T"]}]})
    decode = registry.client().decoder()

    with pytest.raises(BadRecord, match=reason) as caught:
        decode(message(body))

    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_schema_that_contains_itself_is_decoded(registry: FakeRegistry) -> None:
    """K4: by another reader, which does not crash."""
    registry.add(22, {"type": "record", "name": "T", "fields": [{"name": "next", "type": ["null", "T"]}]})

    assert registry.client().decoder()(message(confluent(22, b"\x02\x02\x00"))) == {
        "next": {"next": {"next": None}}
    }


def record(name: str, /, *types: Any) -> dict[str, Any]:
    """Return the schema of a record with a field for each type."""
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{number}", "type": type_} for number, type_ in enumerate(types)],
    }


def doubled(depth: int, innermost: Any) -> dict[str, Any]:
    """Return the schema of a record with two fields of a record with two fields, and so on."""
    found: Any = record(f"R{depth}", innermost)
    for level in reversed(range(depth)):
        found = record(f"R{level}", found, f"R{level + 1}")
    return dict(found)


NULLS = ["null"] * 40


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(doubled(200, "null"), id="2^200 nulls"),
        pytest.param(doubled(200, record("E")), id="2^200 empty records"),
        pytest.param(doubled(200, {"type": "fixed", "name": "F", "size": 0}), id="2^200 empty bytes"),
        pytest.param(record("A", "int", doubled(200, "null"), "int"), id="a part that takes no bytes"),
        pytest.param(["null", doubled(200, "null")], id="a branch"),
        pytest.param(record("A", *(doubled(12, "null") if n == 0 else "R0" for n in range(9))), id="a sum"),
        pytest.param({"type": "map", "values": record("A", *NULLS)}, id="values of a map"),
        pytest.param({"type": "array", "items": record("A", "int", *NULLS)}, id="items for a byte"),
        pytest.param(
            {"type": "array", "items": ["null", record("A", *NULLS, *NULLS)]}, id="branches of items"
        ),
        pytest.param({"type": "array", "items": {"type": "fixed", "name": "F", "size": -1}}, id="size -1"),
        pytest.param(record("T", ["null", "T"], *NULLS), id="a list in itself"),
        pytest.param(record("T", {"type": "array", "items": "T"}, *NULLS), id="a tree"),
        pytest.param(record("T", "T"), id="without end"),
        pytest.param(record("T", doubled(12, record("U", ["null", "T"], *NULLS))), id="over another one"),
    ],
)
def test_a_schema_by_which_a_short_body_is_huge_is_a_bad_record(schema: Any) -> None:
    """K4: it would hang the worker, or take all its memory, in each attempt."""
    with pytest.raises(BadRecord, match=r"take no(ne| bytes).* a short body could have a huge value"):
        avro_decoder(RegisteredSchema(json.dumps(schema)), {}, None)


def test_names_of_other_schemas_count_with_all_they_have() -> None:
    """K4: schemas of references, each of them small."""
    used = {f"R{level}": record(f"R{level}", *[f"R{level + 1}"] * 2) for level in range(30)}
    references = {"R30": RegisteredSchema(json.dumps(record("R30", "null")))}
    references |= {name: RegisteredSchema(json.dumps(each)) for name, each in reversed(used.items())}

    with pytest.raises(BadRecord, match="a short body could have a huge value"):
        avro_decoder(RegisteredSchema('"R0"'), references, None)


@pytest.mark.parametrize(
    ("schema", "used"),
    [
        pytest.param([record("A", "int"), record("A", ["null", "A"])], [], id="branches, a list in itself"),
        pytest.param(
            [record("A", "int"), record("A", {"type": "array", "items": "null"})], [], id="branches, an array"
        ),
        pytest.param(
            record("W", "B", record("A", ["null", "A"])), [record("B", record("A", "int"))], id="inner"
        ),
        pytest.param("W", [record("A", "int"), record("W", record("A", "long"))], id="two references"),
        pytest.param(
            record("W", "B", record("A", "string")), [record("A", "int"), record("B", "A")], id="meant before"
        ),
        pytest.param(
            [{"type": "fixed", "name": "A", "size": 2}, {"type": "fixed", "name": "A", "size": 4}],
            [],
            id="size",
        ),
        pytest.param([{"type": "fixed", "name": "A", "size": 2}, record("A", "int")], [], id="other kind"),
        pytest.param(
            [record("N", {"type": "enum", "name": "A", "symbols": list(each)}) for each in ("XY", "YX")],
            [],
            id="symbols",
        ),
    ],
)
def test_a_name_with_two_definitions_makes_a_bad_record(schema: Any, used: list[Any]) -> None:
    """K4: fastavro would read by the last one, and the check of one of them does not hold for the other."""
    references = {str(number): RegisteredSchema(json.dumps(each)) for number, each in enumerate(used)}

    with pytest.raises(BadRecord, match=r"defines [AN] twice, and differently"):
        avro_decoder(RegisteredSchema(json.dumps(schema)), references, None)


def test_definitions_that_differ_only_in_remarks_are_one() -> None:
    """K4: references may repeat a definition."""
    inner = record("A", "int")
    references = {
        name: RegisteredSchema(json.dumps(record(name, inner | {"doc": name}, "A"))) for name in ("B", "C")
    }

    decode = avro_decoder(RegisteredSchema(json.dumps(record("W", "B", "C"))), references, None)

    one = {"f0": {"f0": 1}, "f1": {"f0": 2}}
    assert decode(b"\x02\x04" * 2, None) == {"f0": one, "f1": one}


@pytest.mark.parametrize("name", [5, "T"])
@pytest.mark.parametrize("place", ["whole", "a branch", "a branch of a branch"])
def test_a_schema_that_pretends_to_be_checked_is_checked(place: str, name: Any) -> None:
    """K4: fastavro would use it as it is, and a payload could crash the worker."""
    other = record(name, ["null", "record2"])
    marks = {"__fastavro_parsed": True, "__named_schemas": {"record": "int", "record2": other}}
    whole = marks | other
    schema = {"whole": whole, "a branch": ["null", whole], "a branch of a branch": [["null", whole]]}[place]

    with pytest.raises(BadRecord, match="is not an Avro schema"):
        avro_decoder(RegisteredSchema(json.dumps(schema)), {}, None)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (doubled(10, "int"), None),
        (doubled(11, "null"), None),
        (["null", record("E")], None),
        (record("A", *["null"] * 9_000), None),
        (record("A", *[["null", "string"]] * 500), None),
        (
            {"type": "array", "items": record("A", ["null", record("E")], record("F"))},
            [{"f0": None, "f1": {}}],
        ),
        ({"type": "map", "values": ["null", record("E")]}, {"a": None, "b": {}}),
        ({"type": "map", "values": "null"}, {"a": None}),
        (record("T", {"type": "array", "items": "T"}), {"f0": [{"f0": []}]}),
        (record("T", ["null", "T"], record("E")), {"f0": {"f0": None, "f1": {}}, "f1": {}}),
    ],
)
def test_parts_without_bytes_are_decoded(schema: Any, value: Any) -> None:
    """K4: as far as serializers write them; a wide or deep schema is none by which a short body is huge."""
    decode = avro_decoder(RegisteredSchema(json.dumps(schema)), {}, None)

    assert value is None or decode(avro(schema, value), None) == value


def test_a_registry_that_is_away_makes_no_bad_record(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K4: neither in a message nor in a batch; what is known is decoded all the same."""
    client = registry.client()
    decode = client.decoder()
    decode(message(order()))
    # Only from here on, so that the first look-up may take as long as a loaded machine needs.
    monkeypatch.setattr(lookup_of(client.settings), "_wait_s", 0.01)
    registry.reaction = answers(503, {})

    assert decode(message(order(id="o2")))["id"] == "o2"
    with pytest.raises(SchemaRegistryDown):
        decode(message(order(8)))
    with pytest.raises(SchemaRegistryDown):
        decode.columns(ArrowMessages.of([message(order(), 5), message(order(8), 6)]).batch, COLUMNS)


def test_a_batch_becomes_columns(registry: FakeRegistry) -> None:
    """K4: several schemas and bad records in one batch; each message is a row, in order."""
    bodies = [order(8), b"{}", order(7, id="o2"), confluent(66, b""), order(8, id="o3", tags=[], amount=None)]
    batch = ArrowMessages.of([message(body, 5 + at) for at, body in enumerate(bodies)]).batch

    rows = registry.client().decoder().columns(batch, COLUMNS)

    assert rows.schema.names == ["queueOffset", "id", "amount", "tags", "badRecord", "badReason"]
    assert rows.schema.field("tags").type == pa.list_(pa.string())
    assert rows.select(["queueOffset", "id", "amount", "tags", "badRecord"]).to_pandas().values.tolist()[0][:3] == [
        5, "o1", 1.5,
    ]  # fmt: skip
    found = rows.to_pylist()
    assert [(row["queueOffset"], row["id"], row["tags"]) for row in found] == [
        (5, "o1", ["a"]), (6, None, None), (7, "o2", None), (8, None, None), (9, "o3", []),
    ]  # fmt: skip
    assert [row["badRecord"] for row in found] == [None, b"{}", None, bodies[3], None]
    assert "looks like JSON" in found[1]["badReason"].replace("It ", "")
    assert "no schema id 66" in found[3]["badReason"]


def test_an_empty_batch_has_the_columns(registry: FakeRegistry) -> None:
    """K4: a delivery never is empty, a slice may be."""
    batch = ArrowMessages.of([message(order())]).batch.slice(0, 0)

    rows = registry.client().decoder().columns(batch, COLUMNS)

    assert rows.num_rows == 0
    assert rows.schema.names[1:4] == COLUMNS.names


def test_a_value_that_does_not_fit_its_column_is_a_bad_record(registry: FakeRegistry) -> None:
    """K4: only that row."""
    columns = pa.schema([("id", pa.string()), ("amount", pa.int32())])
    bodies = [order(amount=2.0), order(amount=1.5), order(amount=1e300)]
    batch = ArrowMessages.of([message(body, 5 + at) for at, body in enumerate(bodies)]).batch

    found = registry.client().decoder().columns(batch, columns).to_pylist()

    assert [row["amount"] for row in found] == [2, None, None]
    assert [row["badRecord"] for row in found] == [None, *bodies[1:]]
    assert found[1]["badReason"].endswith("does not fit the columns: the value of amount would change.")


def test_a_body_that_is_nested_deeply_ends_no_batch(registry: FakeRegistry) -> None:
    """K4: it fits or not as by itself, also if another record of the batch does not fit."""
    deep = b"[" * 700 + b"]" * 700
    bodies = [b'{"id": "o1"}', b'{"id": "o2", "note": %s}' % deep, b'{"id": 3}', b'{"id": %s}' % deep]
    framed_bodies = [bytes(7) + b"\x07" + body for body in bodies]
    batch = ArrowMessages.of([message(body, 5 + at) for at, body in enumerate(framed_bodies)]).batch
    decode = registry.client().decoder(framing="rocketmq-json", format="json")

    found = decode.columns(batch, pa.schema([("id", pa.string())])).to_pylist()

    assert [row["id"] for row in found] == ["o1", "o2", None, None]
    assert [row["badRecord"] for row in found] == [None, None, *framed_bodies[2:]]


def test_a_value_that_is_no_record_is_a_bad_record_in_columns(registry: FakeRegistry) -> None:
    """K4: one by one it is a value like others."""
    registry.add(30, "long")
    decode = registry.client().decoder()
    one = message(confluent(30, b"\x08"))

    assert decode(one) == 4
    assert decode.columns(ArrowMessages.of([one]).batch, COLUMNS).to_pylist()[0]["badReason"] == (
        "The body's value is not a record."
    )


def test_columns_of_its_own_are_not_overwritten(registry: FakeRegistry) -> None:
    """K4: the error names them."""
    with pytest.raises(SchemaError, match="badRecord"):
        registry.client().decoder().columns(
            ArrowMessages.of([message(order())]).batch, pa.schema([("badRecord", pa.string())])
        )


LOGICAL = {
    "type": "record",
    "name": "L",
    "fields": [
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "raw", "type": "bytes"},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
    ],
}


def test_logical_types_have_their_columns(registry: FakeRegistry) -> None:
    """K4: exact, and UUIDs as text."""
    registry.add(31, LOGICAL)
    value = {
        "day": dt.date(2026, 1, 2),
        "at": dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
        "price": decimal.Decimal("12345678.90"),
        "key": uuid.UUID(int=7),
        "raw": b"\0\xff",
        "counts": {"a": 2**62},
    }
    columns = pa.schema(
        [
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("price", pa.decimal128(10, 2)),
            ("key", pa.string()),
            ("raw", pa.binary()),
            ("counts", pa.map_(pa.string(), pa.int64())),
        ]
    )
    batch = ArrowMessages.of([message(confluent(31, avro(LOGICAL, value)))]).batch

    (row,) = registry.client().decoder().columns(batch, columns).to_pylist()

    assert row["badReason"] is None
    assert {name: row[name] for name in columns.names} == {
        **value, "key": str(uuid.UUID(int=7)), "counts": [("a", 2**62)],
    }  # fmt: skip


@pytest.mark.parametrize("logical", ["timestamp-nanos", "local-timestamp-nanos", None])
def test_a_time_that_is_decoded_to_a_number_is_a_bad_record(
    registry: FakeRegistry, logical: str | None
) -> None:
    """K4: fastavro has no times of nanoseconds; a column of numbers takes them."""
    kind = "long" if logical is None else {"type": "long", "logicalType": logical}
    registry.add(31, {"type": "record", "name": "N", "fields": [{"name": "at", "type": kind}]})
    one = message(confluent(31, avro("long", 1_700_000_000_123_456_789)))
    batch, decode = ArrowMessages.of([one]).batch, registry.client().decoder()

    (as_time,) = decode.columns(batch, pa.schema([("at", pa.timestamp("ns", "UTC"))])).to_pylist()
    (as_number,) = decode.columns(batch, pa.schema([("at", pa.int64())])).to_pylist()

    assert as_time["badRecord"] == one.body
    assert "A column of times takes only times" in as_time["badReason"]
    assert (as_number["at"], as_number["badRecord"]) == (1_700_000_000_123_456_789, None)


PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
AMOUNT = {"type": "fixed", "name": "A", "size": 16, "logicalType": "decimal", "precision": 38}
MILLIS = {"type": "int", "logicalType": "time-millis"}
MICROS = {"type": "long", "logicalType": "time-micros"}


@pytest.mark.parametrize(
    ("logical", "sent", "value"),
    [
        (PRICE, b"\0\0\x27\x0f", decimal.Decimal("99.99")),
        (PRICE, b"\xd8\xf1", decimal.Decimal("-99.99")),
        (PRICE, b"", decimal.Decimal("0.00")),
        (PRICE, b"\x27\x10", None),
        pytest.param(PRICE, b"\x01" * 2_000_000, None, id="takes minutes as a decimal"),
        (AMOUNT, (2**125).to_bytes(16), decimal.Decimal(2**125)),
        (AMOUNT, (2**127 - 1).to_bytes(16), None),
        (MILLIS, 86_399_999, dt.time(23, 59, 59, 999_000)),
        (MILLIS, 86_400_000, None),
        (MILLIS, -1, None),
        (MICROS, 1, dt.time(0, 0, 0, 1)),
        (MICROS, -1, None),
    ],
)
def test_decimals_and_times_of_day_are_exact_or_bad_records(
    registry: FakeRegistry, logical: dict[str, Any], sent: Any, value: Any
) -> None:
    """K4: fastavro would round a decimal of too many digits, and make a time of a negative number."""
    plain = {key: part for key, part in logical.items() if key != "logicalType"}
    registry.add(31, twice(logical))
    registry.add(32, twice(logical, {"name": "again", "type": ["null", "L"]}))
    payload = avro(twice(plain), {"v": sent, "w": [sent]})
    bodies = [confluent(31, payload), confluent(32, payload + b"\0")]

    for body in bodies:
        if value is None:
            with pytest.raises(BadRecord, match=r"not fit its Avro schema: ValueError: a (decimal|time)"):
                registry.client().decoder()(message(body))
        else:
            found = registry.client().decoder()(message(body))
            assert (found["v"], found["w"]) == (value, [value])


def twice(kind: dict[str, Any], *fields: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a record with a value of a type, perhaps by its name, and a list of such values."""
    items = {"type": "array", "items": kind.get("name", kind)}
    both = [{"name": "v", "type": ["null", kind]}, {"name": "w", "type": items}]
    return {"type": "record", "name": "L", "fields": [*both, *fields]}


@settings(deadline=None, max_examples=150)
@given(payload=st.binary(max_size=60), which=st.sampled_from([7, 8, 31]))
def test_no_payload_ends_in_another_error(payload: bytes, which: int) -> None:
    """K4: a value or a bad record, and in a batch a row."""
    schema = {7: ORDER, 8: ORDER_2, 31: LOGICAL}[which]
    decode = avro_decoder(RegisteredSchema(json.dumps(schema)), {}, None)
    found: object = None
    try:
        found = decode(payload, None)
    except BadRecord as bad:
        found = str(bad)

    assert isinstance(found, dict | str)


# --- protobuf -----------------------------------------------------------------------------------------------


def field(name: str, number: int, kind: str, **more: Any) -> FieldDescriptorProto:
    return FieldDescriptorProto(
        name=name,
        number=number,
        type=getattr(FieldDescriptorProto, f"TYPE_{kind}"),
        label=more.pop("label", FieldDescriptorProto.LABEL_OPTIONAL),
        **more,
    )


def order_file() -> FileDescriptorProto:
    """``Header`` and ``Order`` with a nested ``Item``, a map, an enumeration, a time and a wrapper."""
    repeated = FieldDescriptorProto.LABEL_REPEATED
    file = FileDescriptorProto(
        name="anything.proto",
        package="shop",
        syntax="proto3",
        dependency=["common/colour.proto", timestamp_pb2.DESCRIPTOR.name, wrappers_pb2.DESCRIPTOR.name],
    )
    file.message_type.add(name="Header")
    found = file.message_type.add(name="Order")
    entry = DescriptorProto(name="CountsEntry", field=[field("key", 1, "STRING"), field("value", 2, "INT64")])
    entry.options.map_entry = True
    found.nested_type.extend([DescriptorProto(name="Item", field=[field("sku", 1, "STRING")]), entry])
    found.field.extend(
        [
            field("id", 1, "STRING"),
            field("items", 2, "MESSAGE", type_name=".shop.Order.Item", label=repeated),
            field("counts", 3, "MESSAGE", type_name=".shop.Order.CountsEntry", label=repeated),
            field("colour", 4, "ENUM", type_name=".common.Colour"),
            field("at", 5, "MESSAGE", type_name=".google.protobuf.Timestamp"),
            field("note", 6, "MESSAGE", type_name=".google.protobuf.StringValue"),
            field("first", 7, "MESSAGE", type_name=".shop.Order.Item"),
        ]
    )
    return file


def colour_file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="x.proto", package="common", syntax="proto3")
    file.enum_type.add(name="Colour").value.add(name="RED", number=0)
    file.enum_type[0].value.add(name="BLUE", number=1)
    return file


def as_registered(file: FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


@pytest.fixture
def protobuf_registry(registry: FakeRegistry) -> FakeRegistry:
    registry.schemas["subjects/colour/versions/3"] = {"schema": as_registered(colour_file())}
    registry.add(
        40,
        as_registered(order_file()),
        references=[{"name": "common/colour.proto", "subject": "colour", "version": 3}],
    )
    return registry


ITEM = b"\x0a\x03abc"
ORDER_BYTES = (
    b"\x0a\x02o1" + b"\x12\x05" + ITEM + b"\x1a\x05\x0a\x01a\x10\x07" + b"\x20\x01" + b"\x2a\x02\x08\x01"
)
ORDER_VALUE = {
    "id": "o1",
    "items": [{"sku": "abc"}],
    "counts": {"a": 7},
    "colour": "BLUE",
    "at": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC),
    "note": None,
    "first": None,
}


@pytest.mark.parametrize(
    ("framing", "after_id", "payload", "value"),
    [
        ("confluent", b"\x02\x02", ORDER_BYTES, ORDER_VALUE),
        ("confluent", b"\x04\x02\x00", ITEM, {"sku": "abc"}),
        ("confluent", b"\x00", b"", {}),
        ("apicurio", b"\x07\x0a\x05Order", ORDER_BYTES, ORDER_VALUE),
        ("apicurio", b"\x0c\x0a\x0ashop.Order", ORDER_BYTES, ORDER_VALUE),
    ],
)
def test_protobuf_is_decoded_by_its_files_descriptor(
    protobuf_registry: FakeRegistry, framing: str, after_id: bytes, payload: bytes, value: object
) -> None:
    """K4: message types by index or name, imports, and well-known types, which no registry has."""
    decode = protobuf_registry.client().decoder(framing=framing, format="protobuf")

    assert decode(message(b"\0\0\0\0\x28" + after_id + payload)) == value
    assert protobuf_registry.requests[0] == "/schemas/ids/40?format=serialized"


def test_a_message_type_may_be_given(protobuf_registry: FakeRegistry) -> None:
    """K4: where the frame names none."""
    client = protobuf_registry.client()
    properties = {"apicurio.value.contentId": "40"}
    one = message(ORDER_BYTES)._replace(properties=properties)

    with pytest.raises(BadRecord, match="2 message types; give message_type"):
        client.decoder(framing="apicurio-headers", format="protobuf")(one)
    decode = client.decoder(framing="apicurio-headers", format="protobuf", message_type="Order")
    assert decode(one) == ORDER_VALUE


def test_protobuf_becomes_columns(protobuf_registry: FakeRegistry) -> None:
    """K4: structs, lists and maps."""
    columns = pa.schema(
        [("id", pa.string()), ("counts", pa.map_(pa.string(), pa.int64())), ("at", pa.timestamp("us", "UTC"))]
    )
    batch = ArrowMessages.of([message(b"\0\0\0\0\x28\x02\x02" + ORDER_BYTES)]).batch

    (row,) = protobuf_registry.client().decoder(format="protobuf").columns(batch, columns).to_pylist()

    assert (row["id"], row["counts"], row["at"]) == ("o1", [("a", 7)], ORDER_VALUE["at"])


@pytest.mark.parametrize(
    ("schema", "body", "reason"),
    [
        (None, b"\x02\x02\x0a\x09o1", "DecodeError"),
        (None, b"\x02\x0eo1", "no message type at indexes"),
        (None, b"\x04\x02\x0eo1", "no message type at indexes"),
        ('syntax = "proto3"; message Order {}', b"\x00", "text instead of its descriptor"),
        ("AAAA", b"\x00", "cannot be used as a protobuf file"),
        (as_registered(FileDescriptorProto(name="a", dependency=["b.proto"])), b"\x00", "imports b.proto"),
    ],
)
def test_protobuf_that_no_schema_decodes_is_a_bad_record(
    protobuf_registry: FakeRegistry, schema: str | None, body: bytes, reason: str
) -> None:
    """K4: damaged payloads, unknown message types, files that cannot be used."""
    if schema is not None:
        protobuf_registry.add(40, schema)

    with pytest.raises(BadRecord, match=reason):
        protobuf_registry.client().decoder(format="protobuf")(message(b"\0\0\0\0\x28" + body))


NANOS = [
    timestamp_pb2.Timestamp(seconds=1_700_000_000, nanos=123_456_789),
    timestamp_pb2.Timestamp(seconds=-1, nanos=1),
    duration_pb2.Duration(seconds=1, nanos=999_999_999),
    duration_pb2.Duration(nanos=-3),
]


def one_field(value: Any) -> bytes:
    """Return a protobuf message whose field 1 is the message ``value``."""
    encoded = value.SerializeToString()
    return b"\x0a" + bytes([len(encoded)]) + bytes(encoded)


@pytest.mark.parametrize(
    "value",
    [
        timestamp_pb2.Timestamp(seconds=2**62),
        timestamp_pb2.Timestamp(nanos=-3),
        duration_pb2.Duration(seconds=2**62),
    ],
)
def test_a_protobuf_time_that_python_cannot_hold_is_a_bad_record(registry: FakeRegistry, value: Any) -> None:
    """K4: only that row; the others of the batch are decoded."""
    kind = value.DESCRIPTOR
    file = FileDescriptorProto(name="a", syntax="proto3", dependency=[kind.file.name])
    file.message_type.add(name="A").field.extend([field("at", 1, "MESSAGE", type_name=f".{kind.full_name}")])
    registry.add(40, as_registered(file))
    bodies = [b"\0\0\0\0\x28\0" + part for part in (b"", one_field(value))]
    batch = ArrowMessages.of([message(body, 5 + at) for at, body in enumerate(bodies)]).batch

    found = registry.client().decoder(format="protobuf").columns(batch, pa.schema([])).to_pylist()

    assert [row["badRecord"] for row in found] == [None, bodies[1]]
    assert "does not fit its protobuf schema" in found[1]["badReason"]


@pytest.mark.parametrize("value", [*NANOS, timestamp_pb2.Timestamp(seconds=2**34, nanos=1001)])
def test_a_protobuf_time_finer_than_its_column_is_a_bad_record(registry: FakeRegistry, value: Any) -> None:
    """K4: Go's times have nanoseconds; no digit of them is lost, and others than these columns may be read."""
    kind = value.DESCRIPTOR
    times = {"Timestamp": pa.timestamp("us", "UTC"), "Duration": pa.duration("us")}
    registry.add(40, with_imports(kind.file.name, at=f".{kind.full_name}"))
    batch = ArrowMessages.of([message(b"\0\0\0\0\x28\0" + one_field(value))]).batch
    decode = registry.client().decoder(format="protobuf")

    (row,) = decode.columns(batch, pa.schema([("at", times[kind.name])])).to_pylist()

    assert row["badRecord"] is not None
    assert re.search("the value of at would change|OutOfBounds", row["badReason"])


@pytest.mark.parametrize("value", NANOS)
def test_a_column_of_nanoseconds_holds_protobufs_times(registry: FakeRegistry, value: Any) -> None:
    """K4: to the last digit; a listener that decodes one message gets them, too."""
    kind = value.DESCRIPTOR
    times = {"Timestamp": pa.timestamp("ns", "UTC"), "Duration": pa.duration("ns")}
    registry.add(40, with_imports(kind.file.name, at=f".{kind.full_name}"))
    one = message(b"\0\0\0\0\x28\0" + one_field(value))
    decode = registry.client().decoder(format="protobuf")

    found = decode.columns(ArrowMessages.of([one]).batch, pa.schema([("at", times[kind.name])]))

    assert found["at"].cast(pa.int64()).to_pylist() == [value.ToNanoseconds()]
    assert isinstance(decode(one)["at"], dt.datetime | dt.timedelta)
    assert decode(one)["at"].value == value.ToNanoseconds()


def test_a_protobuf_file_may_define_options(registry: FakeRegistry) -> None:
    """K4: it imports protobuf's own description of files, which no registry has."""
    file = FileDescriptorProto(name="a", syntax="proto3", dependency=[descriptor_pb2.DESCRIPTOR.name])
    file.message_type.add(name="A").field.extend([field("id", 1, "STRING")])
    file.extension.append(field("secret", 50001, "BOOL", extendee=".google.protobuf.FieldOptions"))
    registry.add(40, as_registered(file))

    assert registry.client().decoder(format="protobuf")(message(b"\0\0\0\0\x28\0\x0a\x01x")) == {"id": "x"}


def with_imports(*names: str, **types: str) -> str:
    """A file whose message has a field for each type."""
    file = FileDescriptorProto(name="a", syntax="proto3", dependency=names)
    fields = [
        field(name, number, "MESSAGE", type_name=type_)
        for number, (name, type_) in enumerate(types.items(), 1)
    ]
    file.message_type.add(name="A").field.extend(fields)
    file.message_type[0].options.MergeFromString(b"\x82\x44\x03\x0a\x01x")
    return as_registered(file)


@pytest.mark.parametrize("decimals", ["confluent/type/decimal.proto", "confluent/types/decimal.proto"])
def test_files_that_confluents_serializers_leave_out_are_known(registry: FakeRegistry, decimals: str) -> None:
    """K4: they register no references to them."""
    imports = [decimals, "confluent/meta.proto", "google/type/date.proto", "google/type/interval.proto"]
    imports.append(timestamp_pb2.DESCRIPTOR.name)
    types = {"price": ".confluent.type.Decimal", "meta": ".confluent.Meta", "day": ".google.type.Date"}
    registry.add(40, with_imports(*imports, **types, during=".google.type.Interval"))
    payload = (
        b"\x0a\x07\x0a\x01\x7f\x10\x05\x18\x02"
        b"\x12\x0a\x12\x08\x0a\x01k\x12\x03abc"
        b"\x1a\x07\x08\xea\x0f\x10\x0b\x18\x1d"
        b"\x22\x04\x0a\x02\x08\x01"
    )

    assert registry.client().decoder(format="protobuf")(message(b"\0\0\0\0\x28\0" + payload)) == {
        "price": {"value": b"\x7f", "precision": 5, "scale": 2},
        "meta": {"doc": "", "params": {"k": "abc"}, "tags": []},
        "day": {"year": 2026, "month": 11, "day": 29},
        "during": {"start_time": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC), "end_time": None},
    }


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("google/type/date.proto", "install googleapis-common-protos"),
        ("google/type/../os.proto", "which the registry does not have"),
        ("os.proto", "which the registry does not have"),
    ],
)
def test_a_file_that_is_not_there_is_named(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    """K4: only Google's files are looked for among modules."""
    monkeypatch.setitem(sys.modules, "google.type.date_pb2", None)
    registry.add(40, with_imports(name, day=".google.type.Date"))

    with pytest.raises(BadRecord, match=f"imports {name}, .*{reason}"):
        registry.client().decoder(format="protobuf")(message(b"\0\0\0\0\x28\0"))


# --- arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"framing": "kafka"}, "framing is 'kafka'; choose from confluent, "),
        ({"format": "xml"}, "format is 'xml'; choose from avro, json, protobuf"),
        ({"format": "json", "reader_schema": "{}"}, "reader_schema is for format avro"),
        ({"reader_schema": "{"}, "reader_schema is not JSON"),
        ({"reader_schema": "{}"}, "reader_schema is not an Avro schema: "),
        ({"reader_schema": '{"type": "record", "fields": []}'}, "reader_schema is not an Avro schema: "),
        ({"reader_schema": '"Order"'}, "reader_schema is not an Avro schema: UnknownType: Order"),
        ({"message_type": "Order"}, "message_type is for format protobuf"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, str], problem: str) -> None:
    """K4: before a query starts."""
    with pytest.raises(OptionError, match=problem):
        SchemaRegistry("http://a").decoder(**arguments)


@pytest.mark.parametrize("error", [None, ModuleNotFoundError("google")])
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    """K4: what to install, and where."""

    def find_spec(name: str) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr("pyspark_rocketmq.schemas.decoding.find_spec", find_spec)

    with pytest.raises(OptionError, match=r"google.protobuf, on the executors, too: .*\[protobuf\]"):
        SchemaRegistry("http://a").decoder(format="protobuf")


def test_the_errors_are_of_three_kinds() -> None:
    """K4: a listener catches BadRecord and lets SchemaRegistryDown pass."""
    assert issubclass(FrameDamaged, BadRecord)
    assert issubclass(SchemaNotFound, BadRecord)
    assert not issubclass(SchemaRegistryDown, BadRecord)
