"""Tables of the lake that must equal those of a database, and the queries that keep them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from deltalake import DeltaTable

from pyspark_rocketmq.change_data.routes import SOURCE_DATABASE, SOURCE_TABLE
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.delta import _read_rows
from pyspark_rocketmq.offsets.store import OffsetRow
from pyspark_rocketmq.sinks.change_table.columns import HIDDEN
from pyspark_rocketmq.sinks.change_table.compaction import POSITION
from pyspark_rocketmq.sinks.change_table.versions import END_AT
from tests.change_data.real.source_tables import DOCUMENTS, ITEMS, ORDERS, SHARDS, VISITS, Row, SourceTable
from tests.change_data.real.workload import Version

DEBEZIUM, CANAL = "debezium", "canal-protobuf"
"""Envelopes, each with a topic of its own."""
DATABASE = "postgres"


class LakeTable(NamedTuple):
    """A table of the lake."""

    sources: tuple[SourceTable, ...]
    """The tables of the database whose rows it has: one, or several that become one."""
    folder: str = "."
    """Its folder, below that of its query."""
    has_history: bool = False
    """True if it keeps all versions of each row."""

    @property
    def source(self) -> SourceTable:
        """The first one of its sources, which have the same columns."""
        return self.sources[0]

    @property
    def is_merged(self) -> bool:
        """Whether its rows name their table of the database."""
        return len(self.sources) > 1

    @property
    def columns(self) -> list[str]:
        """Names of its columns, those of the key first."""
        of_source = [SOURCE_DATABASE, SOURCE_TABLE] if self.is_merged else []
        return of_source + self.source.column_names

    @property
    def keys(self) -> int:
        """Number of columns of its key."""
        return (2 if self.is_merged else 0) + len(self.source.keys)


@dataclass(frozen=True, kw_only=True)
class LakeQuery:
    """A query with a consumer group of its own, and the tables that it keeps."""

    name: str
    """Its name, which its group and its folder have as well."""
    tables: Sequence[LakeTable]
    envelope: str
    settings: Mapping[str, Any] = field(repr=False)
    """Settings of its sink."""
    is_for_many: bool = False
    """Whether the sink is ``ChangeTables``, not ``ChangeTable``."""

    @property
    def has_history(self) -> bool:
        """True if it keeps all versions of each row."""
        return any(table.has_history for table in self.tables)

    @property
    def sources(self) -> list[SourceTable]:
        """The tables of the database whose rows it keeps."""
        return [source for table in self.tables for source in table.sources]


def of_debezium(source: SourceTable, *, columns: str, has_history: bool = False) -> LakeQuery:
    """Return the query that keeps one table by the messages of Debezium."""
    named = {"source_table": f"{DATABASE}.{source.full_name}"}
    return _of_one(source, DEBEZIUM, columns, has_history, named)


def of_canal(source: SourceTable, *, columns: str, has_history: bool = False) -> LakeQuery:
    """Return the query that keeps one table by the messages of Canal."""
    named = {"source_table": source.full_name, "source_time_zone": "UTC"}
    return _of_one(source, CANAL, columns, has_history, named)


def _of_one(
    source: SourceTable, envelope: str, columns: str, has_history: bool, named: Mapping[str, Any]
) -> LakeQuery:
    return LakeQuery(
        name=f"{source.name}-history" if has_history else source.name,
        tables=[LakeTable((source,), has_history=has_history)],
        envelope=envelope,
        settings={
            "keys": source.keys,
            "columns": columns,
            "stored_as_scd_type": 2 if has_history else 1,
            **named,
        },
    )


MANY = LakeQuery(
    name="many",
    tables=[
        LakeTable((DOCUMENTS,), "shop/documents"),
        LakeTable((VISITS,), "shop/visits"),
        LakeTable(SHARDS, "all/carts"),
    ],
    envelope=DEBEZIUM,
    settings={
        "routes": [
            {"source": r"postgres\.\w+\.carts_\d", "target": "all/carts", "merges": True},
            {"source": r"postgres\.shop\.(documents|visits)", "target": "{schema}/{table}"},
        ],
        "keys": {f"{DATABASE}.{VISITS.full_name}": VISITS.keys},
    },
    is_for_many=True,
)
"""Three tables by one query: one that is a union of shards, one whose source has no key, and another one."""
QUERIES = (
    # What these tables lack comes with the messages.
    of_debezium(ORDERS, columns=ORDERS.first_columns),
    of_debezium(ORDERS, columns=ORDERS.columns, has_history=True),
    of_debezium(DOCUMENTS, columns=DOCUMENTS.first_columns, has_history=True),
    MANY,
    of_canal(ITEMS, columns=ITEMS.first_columns),
    of_canal(ITEMS, columns=ITEMS.columns, has_history=True),
)


class Lake:
    """The tables of some queries, in one order of changes."""

    def __init__(
        self, folder: Path, queries: Sequence[LakeQuery], order: str, topics: Mapping[str, str]
    ) -> None:
        """Take the queries; ``topics`` has the topic of each envelope."""
        self.folder = folder / order
        self.queries = queries
        self._order = order
        self._topics = topics

    @property
    def settings(self) -> dict[str, object]:
        """Settings of the applications."""
        return {
            "queries": [
                {
                    "name": query.name,
                    "group": self._group(query),
                    "topic": self._topics[query.envelope],
                    "offsets": str(self._offsets(query)),
                    "folder": str(self.folder / query.name),
                    "isForMany": query.is_for_many,
                    "sink": {
                        "envelope": query.envelope,
                        "order": self._order,
                        # The order of queues has none for truncations.
                        "truncates": "apply" if self._order == "source" else "ignore",
                        **query.settings,
                    },
                }
                for query in self.queries
            ]
        }

    def truncatable(self) -> set[SourceTable]:
        """Return the tables of the database whose truncation every query can apply now.

        None can if it merges the table with others, nor if it has yet to make a table of the lake for it.
        """
        tables = [(self._path(query, table), table) for query in self.queries for table in query.tables]
        refused = {
            source
            for path, table in tables
            for source in table.sources
            if table.is_merged or not (path / "_delta_log" / f"{0:020}.json").exists()
        }
        return {source for query in self.queries for source in query.sources} - refused

    def behind(self, ends: Mapping[MessageQueue, int]) -> list[str]:
        """Return the queues that are not yet consumed."""
        return [
            f"{query.name}: {queue} of {end}"
            for query in self.queries
            for queue, end in ends.items()
            if queue.topic == self._topics[query.envelope]
            and ((row := self.progress(query).get(queue)) is None or row.next_offset < end)
        ]

    def owners(self) -> set[str]:
        """Return the client ids of those who have queues in every query."""
        first, *others = ({row.owner_id for row in self.progress(query).values()} for query in self.queries)
        return first.intersection(*others)

    def progress(self, query: LakeQuery) -> Mapping[MessageQueue, OffsetRow]:
        """Return the offsets of a query's group."""
        path = self._offsets(query)
        return _read_rows(DeltaTable(path), self._group(query)) if DeltaTable.is_deltatable(str(path)) else {}

    def rows(self, query: LakeQuery, table: LakeTable) -> dict[Row, Row]:
        """Return a table by key.

        Raises:
            AssertionError: If a key has two rows.
        """
        found = [row for row, _ in self._read(query, table)]
        by_key = {row[: table.keys]: row for row in found}
        assert len(by_key) == len(found), f"a key of {query.name}/{table.folder} has two rows"
        return by_key

    def versions(self, query: LakeQuery, table: LakeTable) -> dict[Row, list[Version]]:
        """Return the versions of each key of a history, in their order."""
        found: dict[Row, list[tuple[str, Version]]] = defaultdict(list)
        for row, hidden in self._read(query, table):
            version = Version(row, is_current=hidden[END_AT] is None)
            found[row[: table.keys]].append((hidden[POSITION], version))
        return {
            key: [version for _, version in sorted(each, key=itemgetter(0))] for key, each in found.items()
        }

    def _read(self, query: LakeQuery, table: LakeTable) -> list[tuple[Row, Mapping[str, Any]]]:
        """Return all rows, each with its hidden columns."""
        stored = DeltaTable(self._path(query, table)).to_pyarrow_table()
        assert {*stored.column_names} - HIDDEN == {*table.columns} | table.source.former_names
        return [(tuple(row[name] for name in table.columns), row) for row in stored.to_pylist()]

    def _group(self, query: LakeQuery) -> str:
        return f"{query.name}-by-{self._order}"

    def _offsets(self, query: LakeQuery) -> Path:
        return self.folder / f"{query.name}-offsets"

    def _path(self, query: LakeQuery, table: LakeTable) -> Path:
        return self.folder / query.name / table.folder
