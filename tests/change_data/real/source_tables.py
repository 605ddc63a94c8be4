"""Tables of a PostgreSQL and random transactions on them, by a seed."""

from __future__ import annotations

import random
import string
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from tests.change_data.real.feeder import LAST_TABLE

SCHEMA = "shop"
Connection = psycopg.Connection[Any]
Row = tuple[Any, ...]
Values = Mapping[str, Any]
_TENANTS, _NUMBERS = 2, 25
_TEXTS = ("", "grün", "漢字 😀", 'a "quoted" \\ line\nand another', "null", "0", " ")
_BIG = 4_000
"""Characters of a value that PostgreSQL stores apart (TOAST), and leaves out of later changes."""
_LOCK_MS = 50
_NOTES = "notes"
"""Schema of the tables with all changes."""
_NOTING: tuple[LiteralString, ...] = (
    "CREATE TABLE {notes} AS SELECT nextval('notes.number') AS number, 'INSERT' AS what, * FROM {table}",
    # A change of the key deletes a row and inserts another one, as it does for Debezium.
    """
    CREATE FUNCTION {note}() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'TRUNCATE' THEN
            INSERT INTO {notes} (number, what) VALUES (nextval('notes.number'), 'TRUNCATE');
            RETURN NULL;
        END IF;
        IF TG_OP = 'DELETE' OR (TG_OP = 'UPDATE' AND {old_key} IS DISTINCT FROM {new_key}) THEN
            INSERT INTO {notes} SELECT nextval('notes.number'), 'DELETE', OLD.*;
        END IF;
        IF TG_OP <> 'DELETE' THEN
            INSERT INTO {notes} SELECT nextval('notes.number'), 'INSERT', NEW.*;
        END IF;
        RETURN NULL;
    END $$
    """,
    "CREATE TRIGGER rows AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {note}()",
    "CREATE TRIGGER all_rows AFTER TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {note}()",
)


class Column(NamedTuple):
    """A column of the database."""

    name: str
    type: LiteralString
    make: Callable[[random.Random], Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceTable:
    """A table of the database and of the lake."""

    name: str
    statements: Sequence[LiteralString]
    """Statements that make it; the last ones may alter it."""
    keys: tuple[str, ...]
    columns: str
    """Columns of the lake's table, in Spark's form; more than there are at first."""
    casts: Mapping[str, LiteralString] = field(default_factory=dict)
    """Columns that are read as another type, which the lake's table has."""
    big: frozenset[str]
    """Columns with big values."""
    has_full_identity: bool
    """Whether changes have all values of the row before them, those that are stored apart included."""
    added: Column
    """The column that is added while changes are made."""
    key: Callable[[random.Random], Row]
    values: Callable[[random.Random], dict[str, Any]]

    @property
    def column_names(self) -> list[str]:
        """The names of the lake's columns."""
        return [each.split()[0] for each in self.columns.split(", ")]

    @property
    def in_database(self) -> sql.Identifier:
        """Its name in statements."""
        return sql.Identifier(SCHEMA, self.name)

    @property
    def notes(self) -> sql.Identifier:
        """Name of the table with all its changes."""
        return sql.Identifier(_NOTES, self.name)


def _text(by: random.Random) -> str | None:
    return by.choice([None, *_TEXTS, "".join(by.choices(string.printable[:90], k=by.randrange(30)))])


def _big_text(by: random.Random) -> str | None:
    size = by.choice([0, 10, _BIG, _BIG * 2])
    return by.choice([None, "".join(by.choices(string.ascii_letters + "é漢", k=50)) * (size // 50)])


def _moment(by: random.Random) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=by.randrange(-(2**51), 2**51))


def _order(by: random.Random) -> dict[str, Any]:
    return {
        "price": by.choice([None, Decimal(by.randrange(-(10**12) + 1, 10**12)).scaleb(-2)]),
        "note": _big_text(by),
        "changed": by.choice([None, _moment(by)]),
        "raw": by.choice([None, by.randbytes(by.randrange(20))]),
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
        "amount": by.choice([None, by.randrange(-(2**63), 2**63)]),
        "moment": by.choice([None, _moment(by).replace(tzinfo=None)]),
    }


ORDERS = SourceTable(
    name="orders",
    statements=(
        (
            "CREATE TABLE shop.orders (tenant int, no varchar(10), price numeric(12,2), note text, "
            "changed timestamptz, raw bytea, PRIMARY KEY (tenant, no))"
        ),
        "ALTER TABLE shop.orders ALTER COLUMN note SET STORAGE EXTERNAL",
    ),
    keys=("tenant", "no"),
    columns="tenant int, no string, price decimal(12,2), note string, changed timestamp, raw binary, extra bigint",
    big=frozenset({"note"}),
    has_full_identity=False,
    added=Column("extra", "bigint", lambda by: by.randrange(10**9)),
    key=lambda by: (by.randrange(_TENANTS), f"no-{by.randrange(_NUMBERS)}"),
    values=_order,
)
DOCUMENTS = SourceTable(
    name="documents",
    statements=(
        (
            "CREATE TABLE shop.documents (id uuid PRIMARY KEY, body text, title text, facts jsonb, ratio float8, "
            "day date, big numeric(38,10), flag boolean, amount bigint, moment timestamp)"
        ),
        "ALTER TABLE shop.documents ALTER COLUMN body SET STORAGE EXTERNAL",
        "ALTER TABLE shop.documents REPLICA IDENTITY FULL",
    ),
    keys=("id",),
    columns="id string, body string, title string, facts string, ratio double, day date, big decimal(38,10), "
    "flag boolean, amount bigint, moment timestamp_ntz, words string",
    casts={"id": "text", "facts": "text"},
    big=frozenset({"body"}),
    has_full_identity=True,
    added=Column("words", "text", _text),
    key=lambda by: (uuid.UUID(int=by.randrange(_NUMBERS)),),
    values=_document,
)


class Version(NamedTuple):
    """One of the versions of a row."""

    row: Row
    is_current: bool
    may_be_missing: bool = False
    """Whether it had ended when Debezium began to follow the database's log."""


@dataclass
class Workload:
    """Random transactions on tables, one after the other or two at the same time."""

    connect: Callable[[], Connection]
    by: random.Random
    tables: Sequence[SourceTable]
    truncates: bool = True
    committed: int = 0
    rolled_back: int = 0

    def __post_init__(self) -> None:
        self._one, self._other = self.connect(), self.connect()
        self._has_new_columns = False
        self._followed_from = 0
        """Number of the newest note when Debezium began to follow the database's log; 0 before."""
        self._one.execute(f"CREATE SCHEMA {SCHEMA}")
        self._one.execute(f"CREATE TABLE {SCHEMA}.{LAST_TABLE} (id int PRIMARY KEY)")
        for table in self.tables:
            for statement in table.statements:
                self._one.execute(statement)
        self._one.commit()
        for connection in (self._one, self._other):
            connection.execute(f"SET lock_timeout = {_LOCK_MS}")
            connection.commit()

    def close(self) -> None:
        """Close the connections."""
        self._one.close()
        self._other.close()

    def step(self) -> None:
        """Make a transaction, or two of which the one that begins later may commit first."""
        if not self._followed_from:
            self._look_for_debezium()
        if self.by.random() < 0.8:
            self._transaction(self._one)
            return
        self._statements(self._one)
        self._transaction(self._other)
        self._transaction(self._one)

    def begin_history(self) -> None:
        """Note each row now, and every change from now on, in tables that Debezium does not read."""
        self._one.execute(f"CREATE SCHEMA {_NOTES}")
        self._one.execute(f"CREATE SEQUENCE {_NOTES}.number")
        for table in self.tables:
            names = {
                "table": table.in_database,
                "notes": table.notes,
                "note": sql.Identifier(_NOTES, f"note_{table.name}"),
                "old_key": _row("old", table.keys),
                "new_key": _row("new", table.keys),
            }
            for statement in _NOTING:
                self._one.execute(sql.SQL(statement).format(**names))
        self._one.commit()

    def add_columns(self) -> None:
        """Add a column to each table; later transactions write it."""
        for table in self.tables:
            for place in (table.in_database, table.notes):
                self._one.execute(
                    sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(
                        place, sql.Identifier(table.added.name), sql.SQL(table.added.type)
                    )
                )
        self._has_new_columns = True
        self._one.commit()

    def _look_for_debezium(self) -> None:
        """Note which changes were made before Debezium began to follow the log, after it read the tables."""
        streaming = self._one.execute(
            "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"
        ).fetchone()
        if streaming is not None:
            number = self._one.execute(f"SELECT last_value FROM {_NOTES}.number").fetchone()
            assert number is not None
            self._followed_from = number[0]
        self._one.commit()

    def finish(self) -> None:
        """Write the last change."""
        self._one.execute(f"INSERT INTO {SCHEMA}.{LAST_TABLE} VALUES (1)")
        self._one.commit()

    def rows(self, table: SourceTable) -> dict[Row, Row]:
        """Return the table by key, each value as the lake's table has it."""
        columns = self._shown(table)
        found = self._one.execute(sql.SQL("SELECT {} FROM {}").format(columns, table.in_database)).fetchall()
        self._one.commit()
        return {row[: len(table.keys)]: row for row in found}

    def versions(self, table: SourceTable) -> dict[Row, list[Version]]:
        """Return the versions of each row since :meth:`begin_history` by key, in their order."""
        noted = self._one.execute(
            sql.SQL("SELECT number, what, {} FROM {} ORDER BY number").format(self._shown(table), table.notes)
        ).fetchall()
        self._one.commit()
        found: dict[Row, list[Version]] = defaultdict(list)

        def end(key: Row, number: int) -> None:
            if found[key] and found[key][-1].is_current:
                was_early = number <= self._followed_from
                found[key][-1] = found[key][-1]._replace(is_current=False, may_be_missing=was_early)

        for number, what, *values in noted:
            row = tuple(values)
            key = row[: len(table.keys)]
            if what == "INSERT" and found[key] and found[key][-1] == Version(row, is_current=True):
                continue
            for each in list(found) if what == "TRUNCATE" else [key]:
                end(each, number)
            if what == "INSERT":
                found[key].append(Version(row, is_current=True))
        return {key: versions for key, versions in found.items() if versions}

    def _shown(self, table: SourceTable) -> sql.Composed:
        """Return a table's columns as the lake's table has them; NULL for one that is not there yet."""
        return sql.SQL(", ").join(
            sql.SQL("NULL")
            if name == table.added.name and not self._has_new_columns
            else sql.SQL("{}::{}").format(sql.Identifier(name), sql.SQL(table.casts[name]))
            if name in table.casts
            else sql.Identifier(name)
            for name in table.column_names
        )

    def _transaction(self, connection: Connection) -> None:
        self._statements(connection)
        is_whole = connection.info.transaction_status is psycopg.pq.TransactionStatus.INTRANS
        if is_whole and self.by.random() < 0.95:
            connection.commit()
            self.committed += 1
        else:
            connection.rollback()
            self.rolled_back += 1

    def _statements(self, connection: Connection) -> None:
        """Run some statements; after a conflict the transaction is as good as rolled back."""
        with suppress(psycopg.errors.UniqueViolation, psycopg.errors.LockNotAvailable):
            if connection.info.transaction_status is psycopg.pq.TransactionStatus.INERROR:
                return
            for _ in range(self.by.choice([1, 1, 1, 2, 3, 6])):
                self._statement(connection, self.by.choice(self.tables))

    def _statement(self, connection: Connection, table: SourceTable) -> None:
        kinds = [self._insert] * 8 + [self._update] * 7 + [self._delete] * 2
        kinds += [self._move] * 2 + [self._again, self._update_many, self._delete_many]
        if self.truncates and self.by.random() < 0.01:
            kinds = [self._truncate]
        self.by.choice(kinds)(connection, table)

    def _values(self, table: SourceTable) -> dict[str, Any]:
        values = table.values(self.by)
        if self._has_new_columns:
            values[table.added.name] = table.added.make(self.by)
        return values

    def _insert(self, connection: Connection, table: SourceTable) -> None:
        self._insert_row(connection, table, table.key(self.by))

    def _insert_row(self, connection: Connection, table: SourceTable, key: Row) -> None:
        row = {**dict(zip(table.keys, key, strict=True)), **self._values(table)}
        connection.execute(
            sql.SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT DO NOTHING").format(
                table.in_database,
                sql.SQL(", ").join(map(sql.Identifier, row)),
                sql.SQL(", ").join([sql.Placeholder()] * len(row)),
            ),
            list(row.values()),
        )

    def _update(self, connection: Connection, table: SourceTable) -> None:
        """Change some columns of a row; big values mostly stay, and are left out of the change."""
        values = self._values(table)
        chosen = {name: value for name, value in values.items() if self.by.random() < 0.4}
        if chosen:
            self._set(connection, table, table.key(self.by), chosen)

    def _move(self, connection: Connection, table: SourceTable) -> None:
        """Change a row's key.

        Debezium gets a value that is stored apart only with the row before the change; without that row
        nobody could give it to the new key, so it is written again.
        """
        values = {} if table.has_full_identity else self._values(table)
        chosen = {name: value for name, value in values.items() if name in table.big}
        new = dict(zip(table.keys, table.key(self.by), strict=True))
        self._set(connection, table, table.key(self.by), {**new, **chosen})

    def _set(self, connection: Connection, table: SourceTable, key: Row, values: Values) -> None:
        connection.execute(
            sql.SQL("UPDATE {} SET {} WHERE {}").format(
                table.in_database, _pairs(values, ", "), _where(table)
            ),
            [*values.values(), *key],
        )

    def _update_many(self, connection: Connection, table: SourceTable) -> None:
        name, value = self.by.choice(list(self._values(table).items()))
        connection.execute(
            sql.SQL("UPDATE {} SET {} WHERE {} > {}").format(
                table.in_database,
                _pairs({name: value}, ", "),
                sql.Identifier(table.keys[-1]),
                sql.Placeholder(),
            ),
            [value, table.key(self.by)[-1]],
        )

    def _delete(self, connection: Connection, table: SourceTable) -> None:
        self._delete_row(connection, table, table.key(self.by))

    def _delete_row(self, connection: Connection, table: SourceTable, key: Row) -> None:
        connection.execute(sql.SQL("DELETE FROM {} WHERE {}").format(table.in_database, _where(table)), key)

    def _delete_many(self, connection: Connection, table: SourceTable) -> None:
        between = sorted([table.key(self.by)[-1], table.key(self.by)[-1]])
        connection.execute(
            sql.SQL("DELETE FROM {} WHERE {} BETWEEN {} AND {}").format(
                table.in_database, sql.Identifier(table.keys[-1]), sql.Placeholder(), sql.Placeholder()
            ),
            between,
        )

    def _again(self, connection: Connection, table: SourceTable) -> None:
        """Delete a row and insert its key again, in one transaction."""
        key = table.key(self.by)
        self._delete_row(connection, table, key)
        self._insert_row(connection, table, key)

    def _truncate(self, connection: Connection, table: SourceTable) -> None:
        connection.execute(sql.SQL("TRUNCATE {}").format(table.in_database))


def _row(record: LiteralString, columns: Sequence[str]) -> sql.Composed:
    """Return some columns of a record of a trigger as one value."""
    each = [sql.SQL("{}.{}").format(sql.SQL(record), sql.Identifier(column)) for column in columns]
    return sql.SQL("ROW({})").format(sql.SQL(", ").join(each))


def _where(table: SourceTable) -> sql.Composed:
    return _pairs(table.keys, " AND ")


def _pairs(names: Mapping[str, Any] | Sequence[str], between: str) -> sql.Composed:
    return sql.SQL(between).join(
        sql.SQL("{} = {}").format(sql.Identifier(name), sql.Placeholder()) for name in names
    )
