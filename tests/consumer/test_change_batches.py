"""Changes read as columns give the same rows as changes read one by one."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rocketmq.change_data import canal
from pyspark_rocketmq.change_data.canal import CanalJson
from pyspark_rocketmq.change_data.change import ChangeMessage, Decoded
from pyspark_rocketmq.change_data.columnar import ChangeColumns
from pyspark_rocketmq.change_data.json_text import parse
from pyspark_rocketmq.change_data.rules import Rules
from pyspark_rocketmq.consumer.change_listener import ChangeListener
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.listeners.row_buffer import Emitted, batches_of
from pyspark_rocketmq.listeners.row_validation import OutputColumns
from pyspark_rocketmq.model import MessageExt
from pyspark_rocketmq.sinks.change_table.columns import MORE, PROBLEM
from pyspark_rocketmq.sinks.change_table.compaction import OPERATION
from pyspark_rocketmq.sinks.change_table.sink import ChangeTable
from tests.helpers.messages import message_at

SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
COLUMNS = pa.schema(
    {
        "id": pa.int64(),
        "small": pa.int16(),
        "price": pa.decimal128(10, 2),
        "note": pa.string(),
        "day": pa.date32(),
        "seen": pa.timestamp("us"),
        "at": pa.timestamp("us", "UTC"),
        "ratio": pa.float32(),
        "share": pa.float64(),
        "data": pa.binary(),
        "large": pa.decimal128(20, 0),
        "third": pa.int32(),
    }
)
TYPES = {
    "id": "bigint(20)",
    "small": "smallint(6)",
    "price": "decimal(10,2)",
    "note": "varchar(600)",
    "day": "date",
    "seen": "datetime(6)",
    "at": "timestamp",
    "ratio": "float",
    "share": "double",
    "data": "varbinary(16)",
    "large": "bigint(20) unsigned",
    "third": "mediumint(9)",
}
USUAL: Mapping[str, Sequence[str]] = {
    "small": ["0", "-32768", "32767"],
    "price": ["1.50", "-0.01", "99999999.99", "0.00"],
    "note": ["", "a", "grün 漢字 😀", "\x00"],
    "day": ["2026-02-28"],
    "seen": ["2026-01-02 03:04:05.678901", "2026-01-02 03:04:05"],
    "at": ["2026-01-02 03:04:05"],
    "ratio": ["1.5"],
    "share": ["0.1"],
    "data": ["\x00\xff"],
    "large": ["18446744073709551615"],
    "third": ["-8388608", "8388607"],
}
ODD: Mapping[str, Sequence[Any]] = {
    "small": ["32768", "007", "+5", "0x1F", " 1", "1_0", "", "-0", 5, 1.5, True],
    "price": ["1.5", "1.500", "1.505", "1E+2", "-0.00", "999999999.99", "NaN", "1,5", 2],
    "note": [7, ["x"], "\x00", "😀", ""],
    "day": ["0000-00-00", "10000-01-01", "2026-02-30", "yesterday"],
    "seen": ["2026-01-02 03:04:05.1234567", "0000-00-00 00:00:00", "2026-01-02T03:04:05Z"],
    "at": ["2026-01-02 03:04:05+01:00", "9999-12-31 23:59:59"],
    "ratio": ["0.1", "NaN", "1e39", "-0"],
    "share": ["NaN", "inf", "1e400", "x"],
    "data": ["漢", "00"],
    "large": ["18446744073709551616", "-1"],
    "third": ["8388608", "2147483647"],
}


ODD_ROWS: Sequence[Mapping[str, Any]] = ({"new": "1"}, {"id": None}, {"id": "x"}, {"id": "007"})
ODD_OLD: Sequence[Any] = (
    [{"id": "9"}], [{"id": "1"}], [None], [], {}, "x", [{"other": "1"}], [{}] * 9, None,
)  # fmt: skip
ODD_MEMBERS: Sequence[tuple[str, Any]] = (
    ("data", []), ("data", None), ("data", [None]), ("data", "x"), ("database", "other"), ("database", None),
    ("database", 5), ("es", None), ("es", 0), ("es", True), ("es", 10**18), ("es", "1"), ("gtid", ""),
    ("gtid", "x:y"), ("gtid", 7), ("gtid", f"{SERVER}:1-99999999999999999999"), ("isDdl", True),
    ("isDdl", 1), ("mysqlType", {**TYPES, "new": "int"}), ("mysqlType", {**TYPES, "price": "varchar(9)"}),
    ("mysqlType", {**TYPES, "note": "enum('a','b')"}), ("mysqlType", None), ("mysqlType", {"id": 5}),
    ("mysqlType", {**TYPES, "price": "decimal(12,4)"}), ("mysqlType", {**TYPES, "small": "int unsigned"}),
    ("pkNames", None), ("pkNames", ["id", "small"]), ("pkNames", ["nobody"]), ("pkNames", [["id"]]),
    ("table", "others"), ("table", ""), ("type", "update"), ("type", "TRUNCATE"), ("type", ["UPDATE"]),
    ("type", "QUERY"), ("_tidb", {"commitTs": 77}), ("es", 10**4299),
    ("mysqlType", {**TYPES, "large": "decimal(5,-2)"}),
)  # fmt: skip
ODD_BODIES = (b"null", b" ", b"[]", b"{", b'{"data":"\\ud800"}', b"\xff", b"7")


def with_value(message: dict[str, Any], column: str, value: object) -> None:
    message["data"][0][column] = value


def with_old_value(message: dict[str, Any], column: str, value: object) -> None:
    message["old"][0] = {column: value}


def without(message: dict[str, Any], column: str) -> None:
    del message["data"][0][column]


def with_row(message: dict[str, Any], row: Mapping[str, Any]) -> None:
    message["data"][0].update(row)


def with_member(message: dict[str, Any], name: str, value: object) -> None:
    message[name] = value


CHANGED: Sequence[Callable[[dict[str, Any]], None]] = [
    *(partial(with_value, column=name, value=value) for name in ODD for value in ODD[name]),
    *(partial(with_old_value, column=name, value=value) for name in ODD for value in ODD[name]),
    *(partial(without, column=name) for name in TYPES),
    *(partial(with_row, row=row) for row in ODD_ROWS),
    *(partial(with_member, name="old", value=old) for old in ODD_OLD),
    *(partial(with_member, name=name, value=value) for name, value in ODD_MEMBERS),
]


def body_of(random: Random, *, is_odd: bool) -> bytes:
    """Return a message of Canal; an odd one differs from usual ones in one thing."""
    kind = random.choice(["INSERT", "UPDATE", "UPDATE", "DELETE"])
    data: list[dict[str, Any]] = [
        {
            "id": str(random.randint(0, 5)),
            **{name: random.choice([*values, None]) for name, values in USUAL.items()},
        }
        for _ in range(random.randint(1, 3))
    ]
    transaction = random.randint(1, 40)
    message: dict[str, Any] = {
        "data": data,
        "database": "shop",
        "es": 1_700_000_000_000 + transaction,
        "gtid": f"{SERVER}:1-{transaction}",
        "isDdl": False,
        "mysqlType": TYPES,
        "old": [{"price": random.choice(USUAL["price"])} for _ in data] if kind == "UPDATE" else None,
        "pkNames": ["id"],
        "table": "orders",
        "type": kind,
    }
    if is_odd and random.random() < 0.1:
        return random.choice(ODD_BODIES)
    if is_odd:
        message["old"] = message["old"] or [{}]
        random.choice(CHANGED)(message)
    return json.dumps(message).encode()


LESS = pa.schema(list(COLUMNS)[:4])
"""A table that has not yet all columns of the source."""
TABLES: Sequence[tuple[pa.Schema, Mapping[str, Any]]] = (
    (COLUMNS, {}),
    (LESS, {}),
    (LESS, {"order": "queue", "truncates": "ignore", "schema_changes": "ignore"}),
    (COLUMNS, {"deletes": "ignore", "source_table": "shop.orders"}),
    (COLUMNS, {"schema_changes": "exception", "source_table": "shop.others"}),
    (LESS, {"schema_changes": "evolve", "source_table": "shop.orders"}),
    (LESS, {"schema_changes": "exception"}),
)


def listener_of(columns: pa.Schema = COLUMNS, **chosen: Any) -> ChangeListener:
    sink = ChangeTable(
        "/nowhere/orders", keys=["id"], envelope="canal", source_time_zone="UTC", columns=columns, **chosen
    )
    listener: ChangeListener = pickle.loads(pickle.dumps(ChangeListener(sink)))
    return listener


def emitted(listener: ChangeListener, *deliveries: Sequence[MessageExt]) -> tuple[list[dict[str, Any]], int]:
    """Return the rows that the listener emits for deliveries, and how many of them came in batches."""
    output = OutputColumns.of(listener.schema)
    taken: list[Emitted] = []
    for messages in deliveries:
        context = ConsumeOrderlyContext(messages, output)
        listener.consume_message(messages, context)
        taken += context.take_emitted()
    batches = [each for each in taken if isinstance(each, pa.RecordBatch)]
    assert all(batch.schema == output.rows.schema for batch in batches)
    rows = [row for batch in batches_of(taken, output.rows) for row in batch.to_pylist()]
    return rows, sum(batch.num_rows for batch in batches)


@pytest.mark.parametrize(("columns", "chosen"), TABLES, ids=range(len(TABLES)))
@pytest.mark.parametrize("seed", range(5))
def test_messages_read_together_give_the_rows_of_each_one(
    seed: int, columns: pa.Schema, chosen: Mapping[str, Any]
) -> None:
    """K6: whatever Canal's messages have in them, columns change no row, no reason and no order."""
    random = Random(seed)
    listener = listener_of(columns, **chosen)
    odd_share = random.choice([0.005, 0.03, 0.1])
    bodies = [body_of(random, is_odd=random.random() < odd_share) for _ in range(200)]
    messages = [message_at(number, body=body) for number, body in enumerate(bodies)]
    together, _ = emitted(listener, *(messages[at : at + 64] for at in range(0, len(messages), 64)))
    one_by_one, in_batches = emitted(listener, *([message] for message in messages))
    assert in_batches == 0
    assert list(map(repr, together)) == list(map(repr, one_by_one))


@pytest.mark.parametrize("columns", [COLUMNS, LESS], ids=["all columns", "new columns"])
@pytest.mark.parametrize("change", CHANGED, ids=range(len(CHANGED)))
def test_one_odd_message_changes_no_other_one(
    change: Callable[[dict[str, Any]], None], columns: pa.Schema
) -> None:
    """K6: among usual messages, an odd one gives the row or the reason that it gives by itself."""
    messages = changes(40)
    for number in (7, 9):  # an update and an insert
        message = json.loads(messages[number].body)
        change(message)
        messages[number] = messages[number]._replace(body=json.dumps(message).encode())
    listener = listener_of(columns)
    together, _ = emitted(listener, messages)
    one_by_one, _ = emitted(listener, *([message] for message in messages))
    assert list(map(repr, together)) == list(map(repr, one_by_one))


def changes(count: int, **members: Any) -> list[MessageExt]:
    """Return messages of one usual row each."""
    row = {"id": "1", **dict.fromkeys(USUAL), "price": "1.50", "note": "a", "day": "2026-02-28"}
    return [
        message_at(
            number,
            body=json.dumps(
                {
                    "data": [{**row, "id": str(number)}],
                    "database": "shop",
                    "es": 1_700_000_000_000,
                    "gtid": f"{SERVER}:1-{number + 1}",
                    "mysqlType": TYPES,
                    "old": [{"price": "1.40"}],
                    "pkNames": ["id"],
                    "table": "orders",
                    "type": ("INSERT", "UPDATE", "DELETE")[number % 3],
                    **members,
                }
            ).encode(),
        )
        for number in range(count)
    ]


def test_usual_messages_become_one_batch() -> None:
    """Inserts, updates and deletes in turns do not end a run."""
    listener = listener_of()
    rows, in_batches = emitted(listener, changes(60))
    assert in_batches == len(rows) == 60
    assert {row["of_price"] for row in rows[2::3]} == {None}
    assert listener.messages_per_call > 1


@pytest.mark.parametrize("schema_changes", ["lenient", "evolve", "ignore"])
def test_columns_that_the_table_lacks_do_not_end_a_batch(schema_changes: str) -> None:
    """K3: a new column is carried in a text of each row, or ignored."""
    rows, in_batches = emitted(listener_of(LESS, schema_changes=schema_changes), changes(60))
    assert in_batches == 60
    assert sum(row[MORE] is not None for row in rows) == (0 if schema_changes == "ignore" else 40)


@pytest.mark.parametrize("name", ["ID", "__position", "new"])
@pytest.mark.parametrize("value", ["1", "x"])
def test_a_new_column_has_a_name_that_the_table_can_have(name: str, value: str) -> None:
    """K3: a name that it cannot have is the reason of each change, however many are read together."""
    messages = []
    for message in changes(40, mysqlType={**TYPES, name: "int"}):
        members = json.loads(message.body)
        members["data"][0][name] = value
        messages.append(message._replace(body=json.dumps(members).encode()))
    listener = listener_of()
    together, _ = emitted(listener, messages)
    one_by_one, _ = emitted(listener, *([message] for message in messages))
    assert list(map(repr, together)) == list(map(repr, one_by_one))
    assert all(row[PROBLEM] for row in together[::3]) == (name != "new" or value == "x")


def test_an_odd_message_costs_only_its_own_run() -> None:
    """The messages before and after a statement are still read as columns."""
    messages = changes(60)
    statement = changes(31, isDdl=True, type="ALTER", sql="ALTER TABLE orders ADD x int")[30]
    rows, in_batches = emitted(listener_of(), [*messages[:30], statement, *messages[31:]])
    assert in_batches == len(rows) == 59


def test_changes_of_another_table_give_no_rows() -> None:
    """K3: nothing of them is read, but a value that cannot be read is no fault of this table, either."""
    listener = listener_of(source_table="shop.orders")
    rows, _ = emitted(listener, changes(40, table="others", old=[{"price": "x"}]))
    assert rows == []


def test_few_messages_are_read_one_by_one() -> None:
    """A batch for each few rows would cost more than it saves."""
    rows, in_batches = emitted(listener_of(), changes(5))
    assert (len(rows), in_batches) == (5, 0)


def test_runs_have_all_messages_in_order() -> None:
    """Bodies that are no message of Canal have a run of their own."""
    bodies = [b"{", *(message.body for message in changes(40)), b"null", b"7"]
    runs = list(CanalJson(Rules()).runs(bodies))
    assert [number for numbers, _ in runs for number in numbers] == list(range(len(bodies)))
    assert [isinstance(found, ChangeColumns) for _, found in runs] == [False, True, False, False]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Bodies that Canal's envelope has parsed."""
    bodies: list[bytes] = []

    def counted(body: bytes) -> Any:
        bodies.append(body)
        return parse(body)

    monkeypatch.setattr(canal, "parse", counted)
    return bodies


def test_messages_of_two_tables_in_turns_are_parsed_once(parsed: list[bytes]) -> None:
    """Runs that are too short for columns have the contents of their messages."""
    ours, others = changes(20), changes(20, table="others")
    bodies = [body for pair in zip(ours, others, strict=True) for body in (pair[0].body, pair[1].body)]
    envelope = CanalJson(Rules())
    contents = [each for _, found in envelope.runs(bodies) if isinstance(found, list) for each in found]
    assert parsed == bodies
    assert contents == [envelope.decode(ChangeMessage(body)) for body in bodies]


def test_messages_that_become_no_batch_are_parsed_once(parsed: list[bytes]) -> None:
    """H6: as those of a table that still has a column which the source has dropped."""
    messages = changes(40)
    more = pa.schema([*COLUMNS, ("dropped", pa.int32())])
    rows, in_batches = emitted(listener_of(more), messages)
    assert (len(rows), in_batches) == (40, 0)
    assert parsed == [message.body for message in messages]


def test_a_run_is_bounded() -> None:
    """Rows wait for their batch as Python's objects, so there must not be too many of them."""
    [message] = changes(1)
    members = json.loads(message.body)
    members["data"] *= 1000
    many = [json.dumps({**members, "old": None}).encode()] * 12
    large = [changes(1, sql="x" * (3 << 20))[0].body] * 30
    assert [len(numbers) for numbers, _ in CanalJson(Rules()).runs(many)] == [5, 5, 2]
    assert [len(numbers) for numbers, _ in CanalJson(Rules()).runs(large)] == [3] * 10


def test_a_class_of_the_user_s_own_decodes_each_message() -> None:
    """An envelope that is made of Canal's one may leave out changes or add some."""

    class Silent(CanalJson):
        def decode(self, message: ChangeMessage) -> Sequence[Decoded]:
            return []

    class Strange:
        runs = 3

        def decode(self, message: ChangeMessage) -> Sequence[Decoded]:
            return []

    for envelope in (Silent(Rules()), Strange()):
        sink = ChangeTable("/nowhere/orders", keys=["id"], envelope=envelope, columns=COLUMNS)
        listener = ChangeListener(sink)
        assert emitted(listener, changes(40)) == ([], 0)
        assert listener.messages_per_call == 1


def test_columns_of_decimals_that_spark_makes_wider_are_judged_by_their_own_type() -> None:
    """K6: decimal(5,-2) has whole hundreds, but Spark's type for it has each number below 10,000,000."""
    columns = pa.schema([("id", pa.int64()), ("price", pa.decimal128(7, 0))])
    messages = []
    for message in changes(40, mysqlType={"id": "bigint", "price": "decimal(5,-2)"}, old=None, type="INSERT"):
        members = json.loads(message.body)
        members["data"] = [{"id": "1", "price": "12345"}]
        messages.append(message._replace(body=json.dumps(members).encode()))
    rows, _ = emitted(listener_of(columns), messages)
    assert {row[OPERATION] for row in rows} == {"bad"}
