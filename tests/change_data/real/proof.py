"""Tables of the lake that must equal those of a real PostgreSQL: ``python -m tests.change_data.real.proof``.

Debezium's engine feeds a topic of a real RocketMQ while random transactions run. Two applications consume it
into change tables, and share the queues. Some messages are swapped, some sent twice. Applications stop, are
killed and paused all the while, brokers are stopped, and Debezium is killed. At the end each table of the
lake must equal its source, value by value, and each history must have all versions that the database had. A
change table that trusts the order of queues must differ: else this program would see nothing. The seed
decides the transactions, how messages are disturbed, and the faults.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import accumulate, cycle
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from deltalake import DeltaTable

from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.delta import _read_rows
from pyspark_rocketmq.offsets.store import OffsetRow
from pyspark_rocketmq.sinks.change_table.columns import HIDDEN
from pyspark_rocketmq.sinks.change_table.compaction import POSITION
from pyspark_rocketmq.sinks.change_table.versions import END_AT
from tests.applications.chaos import FORGETFUL_S, TIMING
from tests.applications.event_threads import EventThreads
from tests.applications.running_application import (
    EVERY_SECOND,
    Group,
    Pace,
    RunningApplication,
    wait_patiently,
)
from tests.applications.schedule import NAME_SERVER, Event, Kind, schedule
from tests.applications.slot import Slot
from tests.change_data.real.feeder import Feeder
from tests.change_data.real.source_tables import DOCUMENTS, ORDERS, Row, SourceTable, Version, Workload
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
_SHOWN = 5
_LOOKS_S = 1.0
"""Pause between two looks whether the applications still run."""
_FAULTS = ("applications", "servers")
_PACES = (EVERY_SECOND, Pace({"processingTime": "0 seconds"}))
_POSTGRES = {"wal_level": "logical", "max_replication_slots": "4", "max_wal_senders": "4"}


class LakeTable(NamedTuple):
    """A table of the lake, with a consumer group of its own."""

    source: SourceTable
    has_history: bool = False
    """Whether it keeps all versions of each row."""

    @property
    def name(self) -> str:
        """Its name, which its group has as well."""
        return f"{self.source.name}-history" if self.has_history else self.source.name


class LakeTables:
    """The lake's tables with the groups that consume them, in one order of changes."""

    def __init__(self, folder: Path, tables: Sequence[LakeTable], order: str) -> None:
        self._folder = folder / order
        self.tables = tables
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
                    "source": f"postgres.shop.{table.source.name}",
                    "keys": table.source.keys,
                    "columns": table.source.columns,
                    "hasHistory": table.has_history,
                }
                for table in self.tables
            ],
        }

    def behind(self, ends: Mapping[MessageQueue, int]) -> list[str]:
        """Return the queues that are not yet consumed."""
        return [
            f"{table.name}: {queue} of {end}"
            for table in self.tables
            for queue, end in ends.items()
            if (row := self.progress(table).get(queue)) is None or row.next_offset < end
        ]

    def owners(self) -> set[str]:
        """Return the client ids of those who have queues of every table."""
        first, *others = ({row.owner for row in self.progress(table).values()} for table in self.tables)
        return first.intersection(*others)

    def progress(self, table: LakeTable) -> Mapping[MessageQueue, OffsetRow]:
        """Return the offsets of a table's group."""
        path = self._offsets(table)
        return _read_rows(DeltaTable(path), self._group(table)) if DeltaTable.is_deltatable(str(path)) else {}

    def rows(self, table: LakeTable) -> dict[Row, Row]:
        """Return a table by key.

        Raises:
            AssertionError: If a key has two rows.
        """
        found = [row for row, _ in self._read(table)]
        by_key = {row[: len(table.source.keys)]: row for row in found}
        assert len(by_key) == len(found), f"a key of {table.name} has two rows"
        return by_key

    def versions(self, table: LakeTable) -> dict[Row, list[Version]]:
        """Return the versions of each key of a history, in their order."""
        found: dict[Row, list[tuple[str, Version]]] = defaultdict(list)
        for row, hidden in self._read(table):
            version = Version(row, is_current=hidden[END_AT] is None)
            found[row[: len(table.source.keys)]].append((hidden[POSITION], version))
        return {
            key: [version for _, version in sorted(each, key=itemgetter(0))] for key, each in found.items()
        }

    def _read(self, table: LakeTable) -> list[tuple[Row, Mapping[str, Any]]]:
        """Return all rows, each with its hidden columns."""
        stored = DeltaTable(self._path(table)).to_pyarrow_table()
        names = table.source.column_names
        assert {*stored.column_names} - HIDDEN == {*names}
        return [(tuple(row[name] for name in names), row) for row in stored.to_pylist()]

    def _group(self, table: LakeTable) -> str:
        return f"{table.name}-by-{self._order}"

    def _offsets(self, table: LakeTable) -> Path:
        return self._folder / f"{table.name}-offsets"

    def _path(self, table: LakeTable) -> Path:
        return self._folder / table.name


class Disturbance:
    """The faults of applications, brokers and Debezium during the transactions, each on its target's thread."""

    def __init__(
        self,
        cluster: ClusterUnderTest,
        slots: Mapping[str, Slot],
        feeder: Feeder,
        *,
        seed: int,
        seconds: float,
        say: Callable[[str], None],
        problem: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._feeder = feeder
        self._say = say
        self._problem = problem
        brokers = sorted(cluster.broker_addresses)
        self._events = schedule(
            seed, seconds, slots=[*slots], brokers=brokers, forgetful_s=FORGETFUL_S, faults=_FAULTS
        )
        self._kills_s = _kills_of_feeder(seed, seconds)
        self.counts = Counter(str(event.kind) for event in self._events)
        self.counts["Debezium killed (-9)"] = len(self._kills_s)
        self._threads = EventThreads(slots, [*brokers, NAME_SERVER], do=self._do, say=say)
        self._next_look_s = 0.0

    def look(self) -> None:
        """Do what is due by now; start again what ended."""
        self._do_until(self._threads.now_s)

    def finish(self) -> None:
        """Wait until all that was due is done."""
        self._do_until(math.inf)
        for error in self._threads.errors():
            self._problem(repr(error))

    def close(self) -> None:
        """Do nothing more."""
        self._threads.close()

    def _do_until(self, at_s: float) -> None:
        while self._kills_s and at_s >= self._kills_s[0]:
            self._kills_s.pop(0)
            if not self._feeder.has_sent_all:
                self._say("Debezium: killed (-9)")
                self._feeder.kill()
                self._feeder.start()
        while self._events and at_s >= self._events[0].at_s:
            self._threads.make(self._events.pop(0))
        if at_s >= self._next_look_s:
            self._next_look_s = at_s + _LOOKS_S
            self._threads.look()

    def _do(self, event: Event) -> None:
        if event.kind is Kind.BROKER_STOP:
            self._cluster.stop_broker(event.target)
        elif event.kind is Kind.BROKER_START:
            self._cluster.start_broker(event.target)
        else:
            self._cluster.restart_name_server()


def _kills_of_feeder(seed: int, seconds: float) -> list[float]:
    """Return the seconds at which Debezium is killed; the last one is early enough to see it come back."""
    by = random.Random(seed)
    kills = list(accumulate(by.uniform(10.0, 40.0) for _ in range(int(seconds / 10.0))))
    return [at_s for at_s in kills if at_s < seconds - 5.0]


class Proof:
    """One run."""

    def __init__(
        self,
        cluster: ClusterUnderTest,
        postgres: Postgres,
        folder: Path,
        *,
        seed: int,
        tables: Sequence[LakeTable],
        truncates: bool,
    ) -> None:
        self._folder = folder
        self._cluster = cluster
        self._seed = seed
        self._topic = cluster.create_topic("changes", queues=_QUEUES)
        self._tables = tables
        sources = list(dict.fromkeys(table.source for table in tables))
        self._workload = Workload(postgres.connect, random.Random(seed), sources, truncates=truncates)
        self._feeder = Feeder(
            folder,
            database=postgres.address,
            name_servers=cluster.name_servers,
            topic=self._topic,
            seed=seed,
            disturbed=_DISTURBED,
        )
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        """Problems besides the differences of tables."""
        self._began_s = time.monotonic()

    def run(self, seconds: float) -> list[str]:
        """Return how the lake's tables differ from the database's."""
        for _ in range(_FIRST_ROWS):
            self._workload.step()
        self._workload.begin_history()
        lake = LakeTables(self._folder, self._tables, "source")
        slots = self._slots(lake, ["one", "two"])
        with self._feeder, self._running(slots):
            for slot in slots.values():
                slot.await_member()
            self._say("transactions begin")
            self._work(slots, seconds)
            self._workload.finish()
            wait_patiently(self._is_fed, _DRAIN_S, reason="the last change's message")
            self._drain(lake, slots)
        return self._differences(lake)

    def differences_by_queue(self) -> list[str]:
        """Return the differences of tables for which the order of queues decides."""
        tables = [table for table in self._tables if not table.has_history]
        lake = LakeTables(self._folder, tables, "queue")
        self._say("consuming by the order of queues")
        slots = self._slots(lake, ["one"])
        with self._running(slots):
            self._drain(lake, slots)
        return self._differences(lake)

    def close(self) -> None:
        """Leave nothing behind."""
        self._feeder.close()
        self._workload.close()

    @contextmanager
    def _running(self, slots: Mapping[str, Slot]) -> Iterator[None]:
        try:
            for slot in slots.values():
                slot.join(same_name=False)
            yield
        finally:
            for slot in slots.values():
                slot.close()

    def _work(self, slots: Mapping[str, Slot], seconds: float) -> None:
        disturbance = Disturbance(
            self._cluster,
            slots,
            self._feeder,
            seed=self._seed,
            seconds=seconds,
            say=self._say,
            problem=self._problem,
        )
        self.counts += disturbance.counts
        began_s = time.monotonic()
        is_altered = False
        with closing(disturbance):
            while (now_s := time.monotonic() - began_s) < seconds:
                self._workload.step()
                self._is_fed()
                disturbance.look()
                time.sleep(_PAUSE_S)
                if now_s > seconds / 3 and not is_altered:
                    is_altered = True
                    self._workload.add_columns()
                    self._say("a column more in each table")
            disturbance.finish()
        self.counts["committed transactions"] = self._workload.committed
        self.counts["rolled back"] = self._workload.rolled_back

    def _is_fed(self) -> bool:
        if self._feeder.has_ended and not self._feeder.has_sent_all:
            self.counts["ends of Debezium by itself"] += 1
            self._say(f"Debezium ended by itself: {self._feeder.log_tail()[-400:]}")
            assert self.counts["ends of Debezium by itself"] < 10, self._feeder.log_tail()
            self._feeder.start()
        return self._feeder.has_sent_all

    def _slots(self, lake: LakeTables, names: Sequence[str]) -> dict[str, Slot]:
        group = Group(
            name_servers=self._cluster.name_servers,
            topic=self._topic,
            group="unused",
            folder=self._folder / str(lake.settings["order"]),
            timing=TIMING,
        )
        group.folder.mkdir(parents=True, exist_ok=True)
        module = "tests.change_data.real.consume"
        start = partial(RunningApplication, group, module=module, more=lake.settings)
        return {
            name: Slot(name, start, lake.owners, cycle(_PACES), say=self._say, problem=self._problem)
            for name in names
        }

    def _drain(self, lake: LakeTables, slots: Mapping[str, Slot]) -> None:
        """Wait until all messages are consumed, and stop the applications in good order."""
        ends = self._ends()
        self.counts["messages"] = sum(ends.values())
        self._say(f"draining {self.counts['messages']} messages")

        def is_drained() -> bool:
            for slot in slots.values():
                slot.look()
            return not lake.behind(ends)

        wait_patiently(is_drained, _DRAIN_S, reason="all being consumed")
        for slot in slots.values():
            slot.stop()

    def _ends(self) -> dict[MessageQueue, int]:
        return queue_ends(self._cluster.name_servers, self._cluster.broker_addresses, self._topic)

    def _differences(self, lake: LakeTables) -> list[str]:
        found = []
        for table in lake.tables:
            if table.has_history:
                there = lake.versions(table)
                self.counts[f"versions of {table.source.name}"] = sum(map(len, there.values()))
                found += _differing_versions(table, self._workload.versions(table.source), there)
            else:
                here = self._workload.rows(table.source)
                self.counts[f"rows of {table.name}"] = len(here)
                found += _differences(table.source, here, lake.rows(table))
        return found

    def _problem(self, text: str) -> None:
        self._say(f"PROBLEM: {text}")
        self.problems.append(text)

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


def _differing_versions(
    table: LakeTable, here: Mapping[Row, Sequence[Version]], there: Mapping[Row, Sequence[Version]]
) -> list[str]:
    """Return what a history of the lake has otherwise than the database had it.

    It may lack the first versions of a row, if they had ended when Debezium read the table.
    """
    found = []
    for key in here.keys() | there.keys():
        wanted, got = here.get(key, ()), there.get(key, ())
        missing = len(wanted) - len(got)
        if missing < 0 or any(not each.may_be_missing for each in wanted[:missing]):
            found.append(f"{table.name} {key}: {len(got)} versions instead of {len(wanted)}")
            continue
        for number, (one, other) in enumerate(zip(wanted[missing:], got, strict=True)):
            if one.is_current != other.is_current or not all(map(_is_same, one.row, other.row)):
                found.append(f"{table.name} {key}: version {number} is {_shown(other)}, not {_shown(one)}")
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
    tables: Sequence[LakeTable],
    by_queue: bool,
) -> tuple[list[str], list[str], Counter[str]]:
    """Run everything; return what is wrong, differences by the order of queues, and counts of what happened."""
    with (
        RealCluster(brokers=2, forgetful_s=FORGETFUL_S) as real,
        Postgres(_POSTGRES) as postgres,
    ):
        cluster = ClusterUnderTest(real, "real")
        # The order of queues has none for truncations.
        proof = Proof(cluster, postgres, folder, seed=seed, tables=tables, truncates=not by_queue)
        try:
            differences = proof.run(seconds)
            by_queue_differences = proof.differences_by_queue() if by_queue else []
            return proof.problems + differences, by_queue_differences, proof.counts
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
        tables=(LakeTable(ORDERS), LakeTable(ORDERS, has_history=True), LakeTable(DOCUMENTS)),
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
