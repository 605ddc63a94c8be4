"""Tables of a PostgreSQL: their columns, how these change meanwhile, and random values, by a seed."""

from __future__ import annotations

import random
import string
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, LiteralString, NamedTuple

from psycopg import sql
from psycopg.types.json import Jsonb

SCHEMAS: tuple[LiteralString, ...] = ("shop", "west")
Row = tuple[Any, ...]
_TENANTS, _NUMBERS = 2, 25
_TEXTS = ("", "grün", "漢字 😀", 'a "quoted" \\ line\nand another', "null", "0", " ")
_BIG = 4_000
"""Characters of a value that PostgreSQL stores apart (TOAST), and leaves out of later changes."""


class Alter(StrEnum):
    """Kinds of statements that change a column."""

    ADD = "columns added"
    WIDEN = "types changed"
    RENAME = "columns renamed"


class Alteration(NamedTuple):
    """A change of a column while transactions run."""

    kind: Alter
    column: str
    """Name of the column from then on."""
    statement: LiteralString
    make: Callable[[random.Random], Any]
    """Makes the column's values from then on."""
    former: str | None = None
    """Name of a renamed column until then.

    Afterwards every row is written again: the lake takes it for a new column, which has no values yet.
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceTable:
    """A table of the database."""

    schema: LiteralString = "shop"
    name: str
    statements: Sequence[LiteralString]
    """Statements that make it; the last ones may alter it."""
    keys: tuple[str, ...]
    columns: str
    """Columns in the lake, in Spark's form: those that the table has in the end."""
    casts: Mapping[str, LiteralString] = field(default_factory=dict)
    """Columns that are read as another type, which the lake's table has."""
    big: frozenset[str]
    """Columns with big values."""
    has_full_identity: bool
    """Whether changes have all values of the row before them, those that are stored apart included."""
    alterations: Sequence[Alteration]
    """Changes of the columns while transactions run, in this order."""
    key: Callable[[random.Random], Row]
    values: Callable[[random.Random], dict[str, Any]]
    """Makes values of the columns that the table has at first, besides those of the key."""

    @property
    def full_name(self) -> str:
        """Its name after that of its schema."""
        return f"{self.schema}.{self.name}"

    @property
    def column_names(self) -> list[str]:
        """Names of its columns in the end, those of the key first."""
        return [each.split()[0] for each in self.columns.split(", ")]

    @property
    def first_columns(self) -> str:
        """Columns that it has at first, in Spark's form."""
        added = self.absent_after(0)
        return ", ".join(each for each in self.columns.split(", ") if each.split()[0] not in added)

    @property
    def former_names(self) -> frozenset[str]:
        """Names of columns that are renamed; the lake's table keeps them."""
        return frozenset(each.former for each in self.alterations if each.former is not None)

    @property
    def in_database(self) -> sql.Identifier:
        """Its name in statements."""
        return sql.Identifier(self.schema, self.name)

    def absent_after(self, altered: int) -> frozenset[str]:
        """Return which of its last columns it lacks after its first ``altered`` alterations."""
        coming = self.alterations[altered:]
        return frozenset(each.column for each in coming if each.kind is not Alter.WIDEN)

    def values_after(self, altered: int, by: random.Random) -> dict[str, Any]:
        """Make values of the columns that it has after its first ``altered`` alterations."""
        values = self.values(by)
        for alteration in self.alterations[:altered]:
            values.pop(alteration.former or "", None)
            values[alteration.column] = alteration.make(by)
        return values


def _text(by: random.Random) -> str | None:
    return by.choice([None, *_TEXTS, "".join(by.choices(string.printable[:90], k=by.randrange(30)))])


def _big_text(by: random.Random) -> str | None:
    size = by.choice([0, 10, _BIG, _BIG * 2])
    return by.choice([None, "".join(by.choices(string.ascii_letters + "é漢", k=50)) * (size // 50)])


def _moment(by: random.Random) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=by.randrange(-(2**51), 2**51))


def _price(by: random.Random) -> Decimal | None:
    return by.choice([None, Decimal(by.randrange(-(10**12) + 1, 10**12)).scaleb(-2)])


def _int(by: random.Random) -> int | None:
    return by.choice([None, by.randrange(-(2**31), 2**31)])


def _bigint(by: random.Random) -> int | None:
    return by.choice([None, by.randrange(-(2**63), 2**63)])


def _added(column: str, statement: LiteralString, make: Callable[[random.Random], Any]) -> Alteration:
    return Alteration(Alter.ADD, column, statement, make)


def _order(by: random.Random) -> dict[str, Any]:
    return {
        "price": _price(by),
        "note": _big_text(by),
        "changed": by.choice([None, _moment(by)]),
        "raw": by.choice([None, by.randbytes(by.randrange(20))]),
        "code": _int(by),
    }


def _document(by: random.Random) -> dict[str, Any]:
    return {
        "body": _big_text(by),
        "title": _text(by),
        "facts": by.choice([None, Jsonb({"a": by.randrange(2**60), "b": [None, _text(by)]})]),
        "ratio": by.choice([None, by.random(), by.random() * 1e300, -1 / 3, 0.0]),
        "day": by.choice([None, date(1900, 1, 1) + timedelta(days=by.randrange(80_000))]),
        "big": by.choice([None, Decimal(by.randrange(-(10**38) + 1, 10**38)).scaleb(-10)]),
        "flag": by.choice([None, True, False]),
        "amount": _bigint(by),
        "moment": by.choice([None, _moment(by).replace(tzinfo=None)]),
    }


def _cart(by: random.Random) -> dict[str, Any]:
    return {"owner": _text(by), "note": _big_text(by), "quantity": _int(by), "total": _price(by)}


def _visit(by: random.Random) -> dict[str, Any]:
    return {"label": _text(by), "page": _big_text(by), "seen": by.choice([None, _moment(by)])}


def _item(by: random.Random) -> dict[str, Any]:
    return {"name": _text(by), "note": _big_text(by), "price": _price(by), "stock": _int(by)}


def _shard(schema: LiteralString, name: str) -> SourceTable:
    return SourceTable(
        schema=schema,
        name=name,
        statements=(
            (
                "CREATE TABLE {table} (id int PRIMARY KEY, owner text, note text, quantity int, "
                "total numeric(12,2))"
            ),
            "ALTER TABLE {table} ALTER COLUMN note SET STORAGE EXTERNAL",
        ),
        keys=("id",),
        columns="id int, holder string, note string, quantity int, total decimal(12,2), extra string",
        big=frozenset({"note"}),
        has_full_identity=False,
        alterations=(
            Alteration(
                Alter.RENAME, "holder", "ALTER TABLE {table} RENAME COLUMN owner TO holder", _text, "owner"
            ),
            _added("extra", "ALTER TABLE {table} ADD COLUMN extra text", _text),
            # The lake's table has the type of the first shard's first change, so values still fit it.
            Alteration(
                Alter.WIDEN, "quantity", "ALTER TABLE {table} ALTER COLUMN quantity TYPE bigint", _int
            ),
        ),
        key=lambda by: (by.randrange(_NUMBERS),),
        values=_cart,
    )


ORDERS = SourceTable(
    name="orders",
    statements=(
        (
            "CREATE TABLE {table} (tenant int, no varchar(10), price numeric(12,2), note text, "
            "changed timestamptz, raw bytea, code int, PRIMARY KEY (tenant, no))"
        ),
        "ALTER TABLE {table} ALTER COLUMN note SET STORAGE EXTERNAL",
    ),
    keys=("tenant", "no"),
    columns="tenant int, no string, price decimal(12,2), note string, changed timestamp, raw binary, "
    "code bigint, extra bigint",
    big=frozenset({"note"}),
    has_full_identity=False,
    alterations=(
        _added("extra", "ALTER TABLE {table} ADD COLUMN extra bigint", _bigint),
        Alteration(Alter.WIDEN, "code", "ALTER TABLE {table} ALTER COLUMN code TYPE bigint", _bigint),
    ),
    key=lambda by: (by.randrange(_TENANTS), f"no-{by.randrange(_NUMBERS)}"),
    values=_order,
)
DOCUMENTS = SourceTable(
    name="documents",
    statements=(
        (
            "CREATE TABLE {table} (id uuid PRIMARY KEY, body text, title text, facts jsonb, ratio float8, "
            "day date, big numeric(38,10), flag boolean, amount bigint, moment timestamp)"
        ),
        "ALTER TABLE {table} ALTER COLUMN body SET STORAGE EXTERNAL",
        "ALTER TABLE {table} REPLICA IDENTITY FULL",
    ),
    keys=("id",),
    columns="id string, body string, title string, facts string, ratio double, day date, big decimal(38,10), "
    "flag boolean, amount bigint, moment timestamp_ntz, words string",
    casts={"id": "text", "facts": "text"},
    big=frozenset({"body"}),
    has_full_identity=True,
    alterations=(_added("words", "ALTER TABLE {table} ADD COLUMN words text", _text),),
    key=lambda by: (uuid.UUID(int=by.randrange(_NUMBERS)),),
    values=_document,
)
SHARDS = (_shard("shop", "carts_1"), _shard("shop", "carts_2"), _shard("west", "carts_1"))
"""Tables that become one in the lake; a row may move from one to another."""
VISITS = SourceTable(
    name="visits",
    statements=(
        # Only such a constraint keeps a key unique without being one that Debezium sees.
        (
            "CREATE TABLE {table} (place int, no int, label text, page text, seen timestamptz, "
            "EXCLUDE USING btree (place WITH =, no WITH =))"
        ),
        "ALTER TABLE {table} ALTER COLUMN page SET STORAGE EXTERNAL",
        "ALTER TABLE {table} REPLICA IDENTITY FULL",
    ),
    keys=("place", "no"),
    columns="place int, no int, title string, page string, seen timestamp, pages bigint",
    big=frozenset({"page"}),
    has_full_identity=True,
    alterations=(
        Alteration(Alter.RENAME, "title", "ALTER TABLE {table} RENAME COLUMN label TO title", _text, "label"),
        _added("pages", "ALTER TABLE {table} ADD COLUMN pages bigint", _bigint),
    ),
    key=lambda by: (by.randrange(_TENANTS), by.randrange(_NUMBERS)),
    values=_visit,
)
"""A table without a primary key."""
ITEMS = SourceTable(
    name="items",
    statements=(
        "CREATE TABLE {table} (id int PRIMARY KEY, name text, note text, price numeric(12,2), stock int)",
        "ALTER TABLE {table} ALTER COLUMN note SET STORAGE EXTERNAL",
    ),
    keys=("id",),
    columns="id int, name string, note string, price decimal(12,2), stock bigint, sold bigint",
    big=frozenset({"note"}),
    has_full_identity=False,
    alterations=(
        Alteration(Alter.WIDEN, "stock", "ALTER TABLE {table} ALTER COLUMN stock TYPE bigint", _bigint),
        _added("sold", "ALTER TABLE {table} ADD COLUMN sold bigint", _bigint),
    ),
    key=lambda by: (by.randrange(_NUMBERS),),
    values=_item,
)
"""A table whose changes are sent as Canal's messages."""
