"""The table of watermarks in a user's database.

One row per group and queue holds the next offset, the queue's generation (a number that grows when its
offsets start again), the id of the attempt (the transaction) that stored the row, and the newest message
below the offset.  The text of the message begins with the first characters of the attempt's id.  If a member
of an earlier release moves the offset, it stores a new id but leaves the old message.  The message then does
not match the id, and is ignored. Two more kinds of rows have no topic:

* the row without a group is the table's identity, which shows whether two sinks share one table;
* an *open attempt* is inserted before the user's function is called and deleted after it, in one transaction.
  It becomes visible only if that function commits by itself.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final, NamedTuple

from pyspark_rocketmq.display import masked
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.retry import commit_with_retry

logger = logging.getLogger(__name__)

Connection = Any
"""Connection of DB-API 2, not in autocommit mode: ``cursor()``, ``commit()``, ``rollback()``, ``close()``."""

PAUSES_S: Final = (0.0, 0.05, 0.2, 1.0, 3.0)
"""Seconds before each further try of a transaction that failed."""
_SAVEPOINT = "rocketmq_rows"
_KEY = ("consumer_group", "topic", "broker_name", "queue_id")
_COLUMNS: Mapping[str, str] = {
    "consumer_group": "VARCHAR(255) NOT NULL",
    "topic": "VARCHAR(255) NOT NULL",
    "broker_name": "VARCHAR(127) NOT NULL",
    "queue_id": "INTEGER NOT NULL",
    "next_offset": "BIGINT NOT NULL",
    "generation": "BIGINT DEFAULT 0 NOT NULL",
    "attempt": "VARCHAR(36) DEFAULT '' NOT NULL",
    "newest_message": "VARCHAR(80) DEFAULT '' NOT NULL",
}
"""Columns with their SQL types, in the order of :class:`_Row`."""
_ADDED: Final[Mapping[str, str]] = {"generation": "0", "attempt": "''", "newest_message": "''"}
"""Columns that a table of an earlier release lacks, with the SQL of the value that its rows get there."""


class Watermark(NamedTuple):
    """Progress of one queue: the next offset whose rows are not in the database."""

    next_offset: int = 0
    generation: int = 0
    attempt: str = ""
    """Id of the transaction that stored this watermark; empty if the table had no column for ids then."""
    newest_message: str = ""
    """Stored form of :attr:`newest`: the first 8 characters of the attempt's id, then the message."""

    @classmethod
    def stored_by(cls, attempt: str, next_offset: int, generation: int, newest: str) -> Watermark:
        """Return the watermark that a transaction stores; ``attempt`` is the transaction's id."""
        return cls(next_offset, generation, attempt, f"{_mark(attempt)}{newest}" if newest else "")

    @property
    def newest(self) -> str:
        """The newest message below the offset, as text of ``RememberedMessages``; empty if it is unknown.

        It is unknown if the attempt stored none, or if a member of an earlier release moved the offset.
        """
        mark = _mark(self.attempt)
        return self.newest_message.removeprefix(mark) if mark and self.newest_message.startswith(mark) else ""


def shown_error(error: Exception) -> str:
    """Return class and text of a driver's error on one line, without passwords and the last full stop."""
    text = masked(" ".join(str(error).split()))
    return f"{type(error).__name__}: {text.removesuffix('.')}"


def _mark(attempt: str) -> str:
    """Return the mark of a transaction's messages: the first 8 characters of its id."""
    return attempt[:8]


class _Row(NamedTuple):
    consumer_group: str
    topic: str
    broker_name: str
    queue_id: int
    next_offset: int = 0
    generation: int = 0
    attempt: str = ""
    newest_message: str = ""


class Stored(NamedTuple):
    """A group's rows in the table."""

    watermarks: Mapping[MessageQueue, Watermark]
    open_attempts: Sequence[str]
    """Ids of transactions that the user's function has committed too early.

    For the group ``""``, which no consumer has, the only element is the table's identity instead.
    """


class WatermarkTable:
    """The table of watermarks; each transaction gets its connection from ``connect`` and closes it."""

    def __init__(self, connect: Callable[[], Connection], name: str, placeholder: str) -> None:
        """Set the table's name; ``placeholder`` is the mark for parameters in the driver's SQL."""
        self._connect = connect
        self.name = name
        """Name of the table in SQL."""
        self.identity: str | None = None
        """Id of the table, the same for all connections that reach it; None before :meth:`prepare`."""
        self._sql = _Statements(name, placeholder)

    def prepare(self, sleep: Callable[[float], None]) -> None:
        """Create the table, add columns that one of an earlier release lacks, and test what commits rely on.

        If no connection can be opened, the database driver's own error is raised.

        Raises:
            OptionError: If the table cannot be created or has another form, or if connections commit by
                themselves.
        """
        self._check_connects()

        def attempt(_: Exception | None) -> None:
            self._bring_into_form()
            self._try_out()
            self.identity = self._identify()

        try:
            # Other processes may be making the table just now, or have it locked.
            commit_with_retry(
                f"table {self.name}", attempt, PAUSES_S, sleep, unknown=Exception, refused=OptionError
            )
        except OptionError:
            raise
        except Exception as error:
            problem = (
                f"the table of watermarks {self.name} cannot be used: {shown_error(error)}. It "
                f"needs this form, and the rights SELECT, INSERT, UPDATE and DELETE: {self._sql.create}"
            )
            raise OptionError((problem,), where="database sink") from error

    def stored_identity(self, sleep: Callable[[float], None]) -> str | None:
        """Return the identity of the existing table, empty if it has none; None if the table cannot be read.

        A table of an earlier release is read as it is. If reading fails, it is tried again: a table that is
        locked for a moment would otherwise seem to be gone. If no connection can be opened, or the database
        executes no statement at all, the database driver's own error is raised.
        """
        for pause_s in (*PAUSES_S, None):
            self._check_connects()
            self._sql.lacks = ()
            if self._reading_fails(*_COLUMNS) is None:
                break
            unreadable = self._reading_fails(*(name for name in _COLUMNS if name not in _ADDED))
            if unreadable is None:
                self._sql.lacks = tuple(name for name in _ADDED if self._reading_fails(name) is not None)
                break
            if pause_s is None:
                self._check_executes()
                logger.info(
                    "table of watermarks %s is not there, or cannot be read: %s",
                    self.name,
                    shown_error(unreadable),
                )
                return None
            sleep(pause_s)
        return next(iter(self.read("").open_attempts), "")

    def read(self, consumer_group: str) -> Stored:
        """Return the group's watermarks, and the ids of its transactions that were committed too early."""
        with self.transaction() as cursor:
            cursor.execute(self._sql.select, (consumer_group,))
            rows = [_Row(*values) for values in cursor.fetchall()]
        # A database may ignore case: leave out rows of a group whose name differs only in case.
        found = [row for row in rows if row.consumer_group == consumer_group]
        watermarks = {
            MessageQueue(row.topic, row.broker_name, int(row.queue_id)): Watermark(
                int(row.next_offset), int(row.generation), row.attempt, row.newest_message
            )
            for row in found
            if row.topic
        }
        return Stored(watermarks, [row.attempt for row in found if not row.topic])

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Yield a cursor; commit its work at the end of the block, or roll it back after an exception."""
        with closing(self._connect()) as connection:
            try:
                with closing(connection.cursor()) as cursor:
                    yield cursor
                connection.commit()
            except BaseException:
                with suppress(Exception):
                    connection.rollback()
                raise

    @contextmanager
    def open_attempt(self, cursor: Any, consumer_group: str, attempt: str) -> Iterator[None]:
        """Insert a row for ``attempt``, run the ``with`` block in the same transaction, and delete the row.

        If the block commits, although it must not, the row stays and its id is in ``Stored.open_attempts``.

        Raises:
            RuntimeError: If the transaction has ended in the block.
        """
        cursor.execute(self._sql.insert, _Row(consumer_group, "", attempt, 0, attempt=attempt))
        cursor.execute(f"SAVEPOINT {_SAVEPOINT}")
        yield
        try:
            cursor.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        except Exception as error:
            raise RuntimeError(
                "the savepoint set before write(cursor, rows) was called cannot be released after it: "
                f"{error} The function must neither commit nor roll back, nor go on after an error of the "
                "database"
            ) from error
        cursor.execute(self._sql.delete_one, (consumer_group, "", attempt, 0))

    def move(
        self, cursor: Any, consumer_group: str, queue: MessageQueue, old: Watermark | None, new: Watermark
    ) -> bool:
        """Replace the watermark ``old`` by ``new``; return False if the stored one is no longer ``old``.

        With ``old`` None, the queue has no watermark yet, and a row is inserted. If two consumers insert this
        row, the second violates the primary key, and finds the first one's watermark when it tries again.
        """
        key = (consumer_group, queue.topic, queue.broker_name, queue.queue_id)
        if old is None:
            cursor.execute(self._sql.insert, (*key, *new))
            return True
        cursor.execute(self._sql.update, (*new, *key, *old))
        return bool(cursor.rowcount == 1)

    def forget_attempts_statement(self, consumer_group: str, attempts: Iterable[str]) -> str:
        """Return the SQL statement that deletes the ids of commits that the user's function made too early.

        An operator runs it after removing the rows that these commits have written.
        """
        return self._sql.forget_attempts(consumer_group, attempts)

    def _check_connects(self) -> None:
        """Raise the database driver's own error if no connection can be opened."""
        self._connect().close()

    def _check_executes(self) -> None:
        """Raise the database driver's own error if not even statements without a table can be executed.

        A connection to a proxy may be open while the database behind it is away.
        """
        with self.transaction() as cursor:
            cursor.execute(f"SAVEPOINT {_SAVEPOINT}")
            cursor.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}")

    def _bring_into_form(self) -> None:
        self._sql.lacks = ()
        if self._reading_fails(*_COLUMNS) is None:
            return
        unreadable = self._reading_fails(*(name for name in _COLUMNS if name not in _ADDED))
        if unreadable is not None:
            self._run(self._sql.create, unreadable)
            return
        for column in _ADDED:
            missing = self._reading_fails(column)
            if missing is not None:
                self._run(self._sql.add_column(column), missing)

    def _reading_fails(self, *columns: str) -> Exception | None:
        try:
            with self.transaction() as cursor:
                cursor.execute(self._sql.select_nothing(columns))
                cursor.fetchall()
        except Exception as error:  # noqa: BLE001 - reported if the table cannot be created either
            return error
        return None

    def _run(self, statement: str, reason: Exception) -> None:
        try:
            with self.transaction() as cursor:
                cursor.execute(statement)
        except Exception as error:
            raise RuntimeError(
                f"reading it failed: {reason}; and the statement {statement} failed: {error}"
            ) from error
        logger.info("table of watermarks changed statement=%s", statement)

    def _try_out(self) -> None:
        """Insert test rows and roll back. Check the primary key, the columns' sizes and the rollback.

        Raises:
            OptionError: If one of the checks fails.
            Exception: The database driver's own error if the database refuses a statement.
        """
        probe = _probe(str(uuid.uuid4()))
        failure: Exception | None = None
        with closing(self._connect()) as connection:
            try:
                with closing(connection.cursor()) as cursor:
                    self._try_key_and_columns(cursor, probe)
            except Exception as error:  # noqa: BLE001 - raised below
                failure = error
            finally:
                with suppress(Exception):
                    connection.rollback()
        if self._remove_what_stayed(probe):
            problem = (
                "a row written through a connection of connect() was still there after a rollback: the "
                "connection commits each statement by itself (autocommit), or the tables do not support "
                f"transactions ({self.name}). Rows and watermarks could not be one transaction. Connect "
                "without autocommit (psycopg and MySQL: autocommit=False; sqlite3: neither "
                "isolation_level=None nor autocommit=True; MySQL's tables: ENGINE=InnoDB)"
            )
            raise OptionError((problem,), where="database sink")
        if failure is not None:
            raise failure

    def _try_key_and_columns(self, cursor: Any, probe: _Row) -> None:
        cursor.execute(self._sql.insert, probe)
        cursor.execute(f"SAVEPOINT {_SAVEPOINT}")
        cursor.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        cursor.execute(self._sql.select, (probe.consumer_group,))
        [found] = cursor.fetchall()
        wrong = [
            f"{name} gives {got!r} for {put!r}"
            for name, put, got in zip(_Row._fields, probe, found, strict=True)
            if put != got
        ]
        if wrong:
            self._refuse(f"does not hold the inserted values: {'; '.join(wrong)}")
        for column, value in _others(probe).items():
            try:
                cursor.execute(self._sql.insert, probe._replace(**{column: value}))
            except Exception as error:
                if not _is_integrity_error(error):
                    raise
                self._refuse(f"takes no second row that differs in {column} only: {error}")
        try:
            cursor.execute(self._sql.insert, probe._replace(next_offset=1, generation=1, attempt="other"))
        except Exception as error:
            if _is_integrity_error(error):
                return
            raise
        self._refuse("takes two rows of one group and queue: its primary key is missing or another one")

    def _refuse(self, what: str) -> None:
        problem = (
            f"the table of watermarks {self.name} {what}. Alter it to this form: "
            f"{self._sql.create}. If it has no group's watermarks yet, you may also create it again, or name "
            "another one by watermark_table=…"
        )
        raise OptionError((problem,), where="database sink")

    def _remove_what_stayed(self, probe: _Row) -> bool:
        stayed = False
        with self.transaction() as cursor:
            for group in (probe.consumer_group, _others(probe)["consumer_group"]):
                cursor.execute(self._sql.select, (group,))
                if cursor.fetchall():
                    stayed = True
                    cursor.execute(self._sql.delete_group, (group,))
        return stayed

    def _identify(self) -> str:
        stored = self.read("").open_attempts
        if stored:
            return stored[0]
        made = str(uuid.uuid4())
        with self.transaction() as cursor:
            cursor.execute(self._sql.insert, _Row("", "", "", 0, attempt=made))
        return made


def _probe(unique: str) -> _Row:
    """Return a row with the longest strings and largest numbers that the table must hold."""
    return _Row(
        f"try-out-{unique}".ljust(255, "x"),
        "t" * 255,
        "b" * 127,
        (1 << 31) - 1,
        (1 << 63) - 1,
        (1 << 63) - 1,
        unique,
        "m" * 80,
    )


def _others(probe: _Row) -> dict[str, Any]:
    """Return, for each column of the key, a value that differs from that in ``probe``."""
    values: tuple[Any, ...] = probe  # The columns of the key come first.
    return {
        name: value - 1 if isinstance(value, int) else f"{value[:-1]}o"
        for name, value in zip(_KEY, values, strict=False)
    }


def _is_integrity_error(error: Exception) -> bool:
    """Return whether the error is DB-API's ``IntegrityError``; each driver has its own class of that name."""
    return any(kind.__name__ == "IntegrityError" for kind in type(error).__mro__)


class _Statements:
    """SQL statements for the watermark table that SQLite, PostgreSQL, MySQL and others all accept."""

    def __init__(self, table: str, mark: str) -> None:
        self._table = table
        columns = ", ".join(_COLUMNS)
        key = " AND ".join(f"{name} = {mark}" for name in _KEY)
        values = [name for name in _COLUMNS if name not in _KEY]
        self.create = (
            f"CREATE TABLE IF NOT EXISTS {table} ("
            + ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
            + f", PRIMARY KEY ({', '.join(_KEY)}))"
        )
        self._mark = mark
        self.lacks: Sequence[str] = ()
        """Columns that the table does not have yet."""
        self.update = (
            f"UPDATE {table} SET {', '.join(f'{name} = {mark}' for name in values)} "  # noqa: S608
            f"WHERE {key} AND {' AND '.join(f'{name} = {mark}' for name in values)}"
        )
        marks = ", ".join([mark] * len(_COLUMNS))
        self.insert = f"INSERT INTO {table} ({columns}) VALUES ({marks})"  # noqa: S608
        self.delete_one = f"DELETE FROM {table} WHERE {key}"  # noqa: S608
        self.delete_group = f"DELETE FROM {table} WHERE consumer_group = {mark}"  # noqa: S608

    @property
    def select(self) -> str:
        """Statement that returns a group's rows."""
        columns = ", ".join(_ADDED[name] if name in self.lacks else name for name in _COLUMNS)
        return f"SELECT {columns} FROM {self._table} WHERE consumer_group = {self._mark}"  # noqa: S608

    def select_nothing(self, columns: Iterable[str]) -> str:
        """Return a statement that fails if one of these columns cannot be read."""
        return f"SELECT {', '.join(columns)} FROM {self._table} WHERE queue_id = 0 AND 1 = 0"  # noqa: S608

    def add_column(self, name: str) -> str:
        """Return the statement that adds this column to a table of an earlier release."""
        return f"ALTER TABLE {self._table} ADD COLUMN {name} {_COLUMNS[name]}"

    def forget_attempts(self, consumer_group: str, attempts: Iterable[str]) -> str:
        """Return a statement for an operator, which deletes the ids of a group's too early commits."""
        ids = ", ".join(f"'{attempt}'" for attempt in sorted(attempts))
        where = f"consumer_group = '{consumer_group}' AND topic = '' AND attempt IN ({ids})"
        return f"DELETE FROM {self._table} WHERE {where}"  # noqa: S608
