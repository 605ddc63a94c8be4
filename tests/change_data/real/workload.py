"""Random transactions on tables of a PostgreSQL, by a seed, and all versions of the rows that they make."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg import sql

from tests.change_data.real.feeder import LAST_TABLE, PUBLICATION
from tests.change_data.real.source_tables import SCHEMAS, Alteration, Row, SourceTable

Connection = psycopg.Connection[Any]
Values = Mapping[str, Any]
TRUNCATE = "TRUNCATE"
_LOCK_MS = 50
_CONFLICTS = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.ExclusionViolation,
    psycopg.errors.LockNotAvailable,
)
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


class Version(NamedTuple):
    """One of the versions of a row."""

    row: Row
    is_current: bool
    may_be_missing: bool = False
    """True if it had ended when Debezium began to follow the database's log."""


class Note(NamedTuple):
    """A change of a row or, without a row, of all rows."""

    number: int
    what: str
    row: Row


def versions_of(notes: Iterable[Note], keys: int, followed_from: int) -> dict[Row, list[Version]]:
    """Return the versions of each row by key, in their order.

    Args:
        notes: All changes of a table, in their order.
        keys: Number of columns of the key, which are the first ones.
        followed_from: Number of the newest note when Debezium began to follow the database's log.
    """
    found: dict[Row, list[Version]] = defaultdict(list)

    def end(key: Row, number: int) -> None:
        if found[key] and found[key][-1].is_current:
            was_early = number <= followed_from
            found[key][-1] = found[key][-1]._replace(is_current=False, may_be_missing=was_early)

    for number, what, row in notes:
        key = row[:keys]
        if what == "INSERT" and found[key] and found[key][-1] == Version(row, is_current=True):
            continue
        for each in list(found) if what == TRUNCATE else [key]:
            end(each, number)
        if what == "INSERT":
            found[key].append(Version(row, is_current=True))
    return {key: versions for key, versions in found.items() if versions}


@dataclass
class Workload:
    """Random transactions on tables, one after the other or two at the same time."""

    connect: Callable[[], Connection]
    by: random.Random
    tables: Sequence[SourceTable]
    shards: Collection[SourceTable] = ()
    """Tables between which rows move."""
    truncated: set[SourceTable] = field(default_factory=set)
    """Tables that may be truncated now."""
    committed: int = 0
    rolled_back: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """Rows that were changed, by the kind of the statement, and other statements."""

    def __post_init__(self) -> None:
        self._one, self._other = self.connect(), self.connect()
        self._altered = dict.fromkeys(self.tables, 0)
        """How many of its alterations each table has had."""
        self._followed_from = 0
        """Number of the newest note when Debezium began to follow the database's log; 0 before."""
        self._not_yet: defaultdict[Connection, Counter[str]] = defaultdict(Counter)
        """Counts of transactions that are not committed."""
        for schema in SCHEMAS:
            self._one.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        self._one.execute(
            sql.SQL("CREATE PUBLICATION {} FOR TABLES IN SCHEMA {}").format(
                sql.Identifier(PUBLICATION), sql.SQL(", ").join(map(sql.Identifier, SCHEMAS))
            )
        )
        self._one.execute(f"CREATE TABLE {SCHEMAS[0]}.{LAST_TABLE} (id int PRIMARY KEY)")
        for table in self.tables:
            for statement in table.statements:
                self._one.execute(sql.SQL(statement).format(table=table.in_database))
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
                "notes": _notes(table),
                "note": sql.Identifier(_NOTES, f"note {table.full_name}"),
                "old_key": _row("old", table.keys),
                "new_key": _row("new", table.keys),
            }
            for statement in _NOTING:
                self._one.execute(sql.SQL(statement).format(**names))
        self._one.commit()

    def alter(self, table: SourceTable) -> Alteration:
        """Make the next alteration of a table, and return it; later transactions write what it has then."""
        alteration = table.alterations[self._altered[table]]
        # A vacuum of the table ends only after a second.
        self._one.execute("SET LOCAL lock_timeout = 60000")
        for place in (table.in_database, _notes(table)):
            self._one.execute(sql.SQL(alteration.statement).format(table=place))
        if alteration.former is not None:
            self._rewrite(table)
        self._one.commit()
        self._altered[table] += 1
        self.counts[alteration.kind] += 1
        return alteration

    def finish(self) -> None:
        """Write the last change."""
        self._one.execute(f"INSERT INTO {SCHEMAS[0]}.{LAST_TABLE} VALUES (1)")
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
            sql.SQL("SELECT number, what, {} FROM {} ORDER BY number").format(
                self._shown(table), _notes(table)
            )
        ).fetchall()
        self._one.commit()
        notes = [Note(number, what, tuple(row)) for number, what, *row in noted]
        return versions_of(notes, len(table.keys), self._followed_from)

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

    def _shown(self, table: SourceTable) -> sql.Composed:
        """Return a table's columns as the lake's table has them; NULL for one that is not there yet."""
        absent = table.absent_after(self._altered[table])
        return sql.SQL(", ").join(
            sql.SQL("NULL")
            if name in absent
            else sql.SQL("{}::{}").format(sql.Identifier(name), sql.SQL(table.casts[name]))
            if name in table.casts
            else sql.Identifier(name)
            for name in table.column_names
        )

    def _transaction(self, connection: Connection) -> None:
        self._statements(connection)
        counts = self._not_yet.pop(connection, Counter())
        is_whole = connection.info.transaction_status is psycopg.pq.TransactionStatus.INTRANS
        if is_whole and self.by.random() < 0.95:
            connection.commit()
            self.committed += 1
            self.counts += counts
        else:
            connection.rollback()
            self.rolled_back += 1

    def _statements(self, connection: Connection) -> None:
        """Run some statements; after a conflict the transaction is as good as rolled back."""
        with suppress(*_CONFLICTS):
            if connection.info.transaction_status is psycopg.pq.TransactionStatus.INERROR:
                return
            for _ in range(self.by.choice([1, 1, 1, 2, 3, 6])):
                self._statement(connection, self.by.choice(self.tables))

    def _statement(self, connection: Connection, table: SourceTable) -> None:
        kinds = [self._insert] * 8 + [self._update] * 7 + [self._delete] * 2
        kinds += [self._move] * 2 + [self._again, self._update_many, self._delete_many]
        if table in self.shards:
            kinds += [self._move_to_shard] * 2
        if table in self.truncated and self.by.random() < 0.004:
            kinds = [self._truncate]
        self.by.choice(kinds)(connection, table)

    def _values(self, table: SourceTable) -> dict[str, Any]:
        return table.values_after(self._altered[table], self.by)

    def _execute(
        self, connection: Connection, statement: sql.Composed, values: Sequence[Any], *, counted: str
    ) -> None:
        self._not_yet[connection][counted] += connection.execute(statement, values).rowcount

    def _insert(self, connection: Connection, table: SourceTable) -> None:
        self._insert_row(connection, table, table.key(self.by))

    def _insert_row(self, connection: Connection, table: SourceTable, key: Row) -> None:
        row = {**dict(zip(table.keys, key, strict=True)), **self._values(table)}
        statement = sql.SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT DO NOTHING").format(
            table.in_database,
            sql.SQL(", ").join(map(sql.Identifier, row)),
            sql.SQL(", ").join([sql.Placeholder()] * len(row)),
        )
        self._execute(connection, statement, list(row.values()), counted="rows inserted")

    def _update(self, connection: Connection, table: SourceTable) -> None:
        """Change some columns of a row; big values mostly stay, and are left out of the change."""
        values = self._values(table)
        chosen = {name: value for name, value in values.items() if self.by.random() < 0.4}
        if chosen:
            self._set(connection, table, table.key(self.by), chosen, counted="rows updated")

    def _move(self, connection: Connection, table: SourceTable) -> None:
        """Change a row's key.

        Debezium gets a value that is stored apart only with the row before the change; without that row
        nobody could give it to the new key, so it is written again.
        """
        values = {} if table.has_full_identity else self._values(table)
        chosen = {name: value for name, value in values.items() if name in table.big}
        old, new = table.key(self.by), table.key(self.by)
        if old != new:
            moved = {**dict(zip(table.keys, new, strict=True)), **chosen}
            self._set(connection, table, old, moved, counted="keys changed")

    def _set(
        self, connection: Connection, table: SourceTable, key: Row, values: Values, *, counted: str
    ) -> None:
        statement = sql.SQL("UPDATE {} SET {} WHERE {}").format(
            table.in_database, _pairs(values, ", "), _where(table)
        )
        self._execute(connection, statement, [*values.values(), *key], counted=counted)

    def _update_many(self, connection: Connection, table: SourceTable) -> None:
        name, value = self.by.choice(list(self._values(table).items()))
        statement = sql.SQL("UPDATE {} SET {} WHERE {} > {}").format(
            table.in_database,
            _pairs({name: value}, ", "),
            sql.Identifier(table.keys[-1]),
            sql.Placeholder(),
        )
        self._execute(connection, statement, [value, table.key(self.by)[-1]], counted="rows updated")

    def _rewrite(self, table: SourceTable) -> None:
        """Write each row again as it is."""
        name = sql.Identifier(table.keys[0])
        self._one.execute(sql.SQL("UPDATE {} SET {} = {}").format(table.in_database, name, name))

    def _delete(self, connection: Connection, table: SourceTable) -> None:
        self._delete_row(connection, table, table.key(self.by))

    def _delete_row(self, connection: Connection, table: SourceTable, key: Row) -> None:
        statement = sql.SQL("DELETE FROM {} WHERE {}").format(table.in_database, _where(table))
        self._execute(connection, statement, key, counted="rows deleted")

    def _delete_many(self, connection: Connection, table: SourceTable) -> None:
        between = sorted([table.key(self.by)[-1], table.key(self.by)[-1]])
        statement = sql.SQL("DELETE FROM {} WHERE {} BETWEEN {} AND {}").format(
            table.in_database, sql.Identifier(table.keys[-1]), sql.Placeholder(), sql.Placeholder()
        )
        self._execute(connection, statement, between, counted="rows deleted")

    def _again(self, connection: Connection, table: SourceTable) -> None:
        """Delete a row and insert its key again, in one transaction."""
        key = table.key(self.by)
        self._delete_row(connection, table, key)
        self._insert_row(connection, table, key)

    def _move_to_shard(self, connection: Connection, table: SourceTable) -> None:
        """Delete a row and insert its key into another shard, in one transaction."""
        key = table.key(self.by)
        self._delete_row(connection, table, key)
        self._insert_row(connection, self.by.choice([each for each in self.shards if each is not table]), key)
        self._not_yet[connection]["moves to another shard"] += 1

    def _truncate(self, connection: Connection, table: SourceTable) -> None:
        connection.execute(sql.SQL("TRUNCATE {}").format(table.in_database))
        self._not_yet[connection]["truncations"] += 1


def _notes(table: SourceTable) -> sql.Identifier:
    """Return the name of the table with all changes of a table."""
    return sql.Identifier(_NOTES, table.full_name)


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
