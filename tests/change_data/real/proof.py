"""Tables of the lake that must equal those of a real PostgreSQL: ``python -m tests.change_data.real.proof``.

Debezium's engine feeds a topic of a real RocketMQ while random transactions run; change tables consume it.
Some messages are swapped, some sent twice. At the end each table of the lake must equal its source, value by
value. A change table that trusts the order of queues must not: else this program would see nothing. The seed
decides the transactions, and how messages are disturbed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from pyspark_rocketmq.client.transport import Closing
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.delta import _read_rows
from pyspark_rocketmq.offsets.store import OffsetRow
from pyspark_rocketmq.sinks.change_table.columns import HIDDEN
from tests.applications.chaos import FORGETFUL_S, TIMING
from tests.applications.running_application import Group, RunningApplication, wait_patiently
from tests.change_data.real.feeder import Feeder
from tests.change_data.real.source_tables import DOCUMENTS, ORDERS, Row, SourceTable, Workload
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.queue_ends import queue_ends
from tests.postgres.server import Postgres
from tests.real_broker.harness import RealCluster

_QUEUES = 2
"""Queues on each of two brokers."""
_FIRST_ROWS = 60
"""Transactions before Debezium begins, whose rows are in its snapshot."""
_PAUSE_S = 0.02
"""Pause between two steps of the workload."""
_DISTURBED = 0.1
_DRAIN_S = 400.0
_EXIT_S = 210.0
_SHOWN = 5
_LOG_TAIL = 3000
_POSTGRES = {"wal_level": "logical", "max_replication_slots": "4", "max_wal_senders": "4"}


class LakeTables:
    """The lake's tables with the groups that consume them, in one order of changes."""

    def __init__(self, folder: Path, tables: Sequence[SourceTable], order: str) -> None:
        self._folder = folder / order
        self._tables = tables
        self._order = order

    @property
    def settings(self) -> dict[str, object]:
        """Settings of the applications."""
        return {
            "order": self._order,
            "tables": [
                {
                    "group": self._group(table),
                    "offsets": str(self._offsets(table)),
                    "path": str(self._path(table)),
                    "source": f"postgres.shop.{table.name}",
                    "keys": table.keys,
                    "columns": table.columns,
                }
                for table in self._tables
            ],
        }

    def behind(self, ends: Mapping[MessageQueue, int]) -> list[str]:
        """Return the queues that are not yet consumed."""
        return [
            f"{table.name}: {queue} of {end}"
            for table in self._tables
            for queue, end in ends.items()
            if (row := self.progress(table).get(queue)) is None or row.next_offset < end
        ]

    def progress(self, table: SourceTable) -> Mapping[MessageQueue, OffsetRow]:
        """Return the offsets of a table's group."""
        path = self._offsets(table)
        return _read_rows(DeltaTable(path), self._group(table)) if DeltaTable.is_deltatable(str(path)) else {}

    def rows(self, table: SourceTable) -> dict[Row, Row]:
        """Return a table by key.

        Raises:
            AssertionError: If a key has two rows.
        """
        stored = DeltaTable(self._path(table)).to_pyarrow_table()
        names = table.column_names
        assert {*stored.column_names} - HIDDEN == {*names}
        found = [tuple(row[name] for name in names) for row in stored.to_pylist()]
        by_key = {row[: len(table.keys)]: row for row in found}
        assert len(by_key) == len(found), f"a key of {table.name} has two rows"
        return by_key

    def _group(self, table: SourceTable) -> str:
        return f"{table.name}-by-{self._order}"

    def _offsets(self, table: SourceTable) -> Path:
        return self._folder / f"{table.name}-offsets"

    def _path(self, table: SourceTable) -> Path:
        return self._folder / table.name


class Application(Closing):
    """The application that consumes."""

    def __init__(self, group: Group, lake: LakeTables) -> None:
        module = "tests.change_data.real.consume"
        self._running = RunningApplication(group, "one", module=module, more=lake.settings)

    def look(self) -> None:
        """Look whether it still runs.

        Raises:
            AssertionError: If it ended.
        """
        code = self._running.exit_code
        assert code is None, f"the application ended with code {code}:\n{self._tail()}"

    def stop(self) -> None:
        """Stop it in good order.

        Raises:
            AssertionError: If it ended badly.
        """
        self._running.ask_to_stop()
        code = self._running.await_exit(_EXIT_S)
        assert code == 0, f"the application ended with code {code}:\n{self._tail()}"

    def close(self) -> None:
        """Leave no process behind."""
        self._running.close()

    def _tail(self) -> str:
        return self._running.log.read_bytes()[-_LOG_TAIL:].decode(errors="replace")


class Proof:
    """One run."""

    def __init__(
        self,
        cluster: ClusterUnderTest,
        postgres: Postgres,
        folder: Path,
        *,
        seed: int,
        tables: Sequence[SourceTable],
        truncates: bool,
    ) -> None:
        self._folder = folder
        self._cluster = cluster
        self._topic = cluster.create_topic("changes", queues=_QUEUES)
        self._tables = tables
        self._workload = Workload(partial(postgres.connect), random.Random(seed), tables, truncates=truncates)
        self._feeder = Feeder(
            folder,
            database=postgres.address,
            name_servers=cluster.name_servers,
            topic=self._topic,
            seed=seed,
            disturbed=_DISTURBED,
        )
        self.counts: Counter[str] = Counter()
        self._began_s = time.monotonic()

    def run(self, seconds: float) -> list[str]:
        """Return how the lake's tables differ from the database's."""
        for _ in range(_FIRST_ROWS):
            self._workload.step()
        lake = LakeTables(self._folder, self._tables, "source")
        with self._feeder, self._application(lake) as application:
            self._say("transactions and consumption begin")
            self._work(seconds)
            self._workload.finish()
            wait_patiently(self._is_fed, _DRAIN_S, reason="the last change's message")
            ends = self._ends()
            self.counts["messages"] = sum(ends.values())
            self._say(f"draining {self.counts['messages']} messages")
            self._await_drained(lake, ends, application)
            application.stop()
        return self._differences(lake)

    def differences_by_queue(self) -> list[str]:
        """Return the differences of tables for which the order of queues decides."""
        lake = LakeTables(self._folder, self._tables, "queue")
        self._say("consuming by the order of queues")
        with self._application(lake) as application:
            self._await_drained(lake, self._ends(), application)
            application.stop()
        return self._differences(lake)

    def close(self) -> None:
        """Leave nothing behind."""
        self._feeder.close()
        self._workload.close()

    def _work(self, seconds: float) -> None:
        began_s = time.monotonic()
        is_altered = False
        while (now_s := time.monotonic() - began_s) < seconds:
            self._workload.step()
            self._is_fed()
            time.sleep(_PAUSE_S)
            if now_s > seconds / 3 and not is_altered:
                is_altered = True
                self._workload.add_columns()
                self._say("a column more in each table")
        self.counts["committed transactions"] = self._workload.committed
        self.counts["rolled back"] = self._workload.rolled_back

    def _is_fed(self) -> bool:
        if self._feeder.has_ended and not self._feeder.has_sent_all:
            self.counts["ends of Debezium by itself"] += 1
            self._say(f"Debezium ended by itself: {self._feeder.log_tail()[-400:]}")
            assert self.counts["ends of Debezium by itself"] < 10, self._feeder.log_tail()
            self._feeder.start()
        return self._feeder.has_sent_all

    def _application(self, lake: LakeTables) -> Application:
        group = Group(
            name_servers=self._cluster.name_servers,
            topic=self._topic,
            group="unused",
            folder=self._folder / str(lake.settings["order"]),
            timing=TIMING,
        )
        group.folder.mkdir(parents=True, exist_ok=True)
        return Application(group, lake)

    def _await_drained(
        self, lake: LakeTables, ends: Mapping[MessageQueue, int], application: Application
    ) -> None:
        def is_drained() -> bool:
            application.look()
            return not lake.behind(ends)

        wait_patiently(is_drained, _DRAIN_S, reason="all being consumed")

    def _ends(self) -> dict[MessageQueue, int]:
        return queue_ends(self._cluster.name_servers, self._cluster.broker_addresses, self._topic)

    def _differences(self, lake: LakeTables) -> list[str]:
        found = []
        for table in self._tables:
            here, there = self._workload.rows(table), lake.rows(table)
            self.counts[f"rows of {table.name}"] = len(here)
            found += _differences(table, here, there)
        return found

    def _say(self, text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._began_s:7.1f} s  {text}\n")
        sys.stdout.flush()


def _differences(table: SourceTable, here: Mapping[Row, Row], there: Mapping[Row, Row]) -> list[str]:
    """Return what a table of the lake has otherwise than its source."""
    found = [f"{table.name} {key}: missing" for key in here.keys() - there.keys()]
    found += [f"{table.name} {key}: deleted, but there" for key in there.keys() - here.keys()]
    for key in here.keys() & there.keys():
        for name, wanted, got in zip(table.column_names, here[key], there[key], strict=True):
            if not _is_same(wanted, got):
                found.append(f"{table.name} {key} {name}: {_shown(got)} instead of {_shown(wanted)}")
    return found


def _is_same(wanted: Any, got: Any) -> bool:
    # True equals 1, and 1 equals Decimal(1).
    return type(wanted) is type(got) and bool(wanted == got)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:60]}… ({len(text)} characters)"


def prove(
    folder: Path,
    *,
    seed: int,
    seconds: float,
    tables: Sequence[SourceTable],
    by_queue: bool,
) -> tuple[list[str], list[str], Counter[str]]:
    """Run everything; return the differences, those by the order of queues, and counts of what happened."""
    with (
        RealCluster(brokers=2, forgetful_s=FORGETFUL_S) as real,
        Postgres(_POSTGRES) as postgres,
    ):
        cluster = ClusterUnderTest(real, "real")
        # The order of queues has none for truncations.
        proof = Proof(cluster, postgres, folder, seed=seed, tables=tables, truncates=not by_queue)
        try:
            differences = proof.run(seconds)
            return differences, proof.differences_by_queue() if by_queue else [], proof.counts
        finally:
            proof.close()


def main() -> None:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m tests.change_data.real.proof", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="duration of the transactions")
    parser.add_argument("--seed", type=int, help="another one each time by default")
    parser.add_argument("--by-queue", action="store_true", help="also show that the order of queues is wrong")
    parser.add_argument("--keep", type=Path, help="folder for logs and tables, which is kept")
    chosen = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if chosen.seed is None else chosen.seed
    folder = chosen.keep or Path(tempfile.mkdtemp(prefix="change-data-"))
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"seed {seed}, {chosen.seconds:g} s\n")
    differences, by_queue, counts = prove(
        folder,
        seed=seed,
        seconds=chosen.seconds,
        tables=(ORDERS, DOCUMENTS),
        by_queue=chosen.by_queue,
    )
    sys.stdout.write("".join(f"{name}: {number}\n" for name, number in counts.items()))
    if chosen.by_queue:
        sys.stdout.write(f"wrong by the order of queues: {len(by_queue)} values\n")
    sys.stdout.write(f"differences: {len(differences)}\n")
    sys.stdout.write("".join(f"  - {each}\n" for each in differences[:_SHOWN]))
    is_clean = not differences and bool(by_queue) == chosen.by_queue
    if is_clean and chosen.keep is None:
        shutil.rmtree(folder)
    else:
        sys.stdout.write(f"seed {seed}; logs and tables: {folder}\n")
    sys.exit(0 if is_clean else 1)


if __name__ == "__main__":
    main()
