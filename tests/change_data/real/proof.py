"""Tables of the lake that must equal those of a real PostgreSQL: ``python -m tests.change_data.real.proof``.

Debezium's engine feeds topics of a real RocketMQ while random transactions run, one of them by Canal's own
classes. Two applications consume them into change tables and histories, and share the queues: several tables
by one query, shards that become one table, a table without a key. Some messages are swapped, some sent twice.
Columns are added and renamed, types change, tables are truncated. Applications stop, are killed and paused all
the while, brokers are stopped, and Debezium is killed. At the end each table of the lake must equal its source,
value by value, and each history must have all versions that the database had. A change table that trusts the
order of queues must differ: else this program would see nothing. The seed decides the transactions, how
messages are disturbed, and the faults.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import accumulate, cycle
from operator import itemgetter
from pathlib import Path

from pyspark_rocketmq.model import MessageQueue
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
from tests.change_data.real.differences import differing_rows, differing_versions, union
from tests.change_data.real.feeder import Feeder
from tests.change_data.real.lake import CANAL, DATABASE, DEBEZIUM, QUERIES, Lake, LakeQuery, LakeTable
from tests.change_data.real.source_tables import Row, SourceTable
from tests.change_data.real.workload import Workload
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


def alteration_times(
    seed: int, seconds: float, tables: Sequence[SourceTable]
) -> list[tuple[float, SourceTable]]:
    """Return when a table has its next alteration, in seconds; the first such moment is the first element."""
    by = random.Random(seed)
    return sorted(
        ((by.uniform(0.1, 0.8) * seconds, table) for table in tables for _ in table.alterations),
        key=itemgetter(0),
    )


class Proof:
    """One run."""

    def __init__(
        self,
        cluster: ClusterUnderTest,
        postgres: Postgres,
        folder: Path,
        *,
        seed: int,
        queries: Sequence[LakeQuery],
        truncates: bool,
    ) -> None:
        self._folder = folder
        self._cluster = cluster
        self._seed = seed
        self._topics = {
            envelope: cluster.create_topic(f"changes-{envelope}", queues=_QUEUES)
            for envelope in (DEBEZIUM, CANAL)
        }
        self._queries = queries
        self._truncates = truncates
        tables = {source: query.envelope for query in queries for source in query.sources}
        shards = [
            source
            for query in queries
            for table in query.tables
            if table.is_merged
            for source in table.sources
        ]
        self._workload = Workload(postgres.connect, random.Random(seed), [*tables], shards)
        self._feeder = Feeder(
            folder,
            database=postgres.address,
            name_servers=cluster.name_servers,
            topic=self._topics[DEBEZIUM],
            canal_topic=self._topics[CANAL],
            canal_queues=_QUEUES * len(cluster.broker_addresses),
            canal_tables=[table.full_name for table, envelope in tables.items() if envelope == CANAL],
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
        lake = Lake(self._folder, self._queries, "source", self._topics)
        slots = self._slots(lake, ["one", "two"])
        with self._feeder, self._running(slots):
            for slot in slots.values():
                slot.await_member()
            self._say("transactions begin")
            self._work(lake, slots, seconds)
            self._workload.finish()
            wait_patiently(self._is_fed, _DRAIN_S, reason="the last change's message")
            self._drain(lake, slots)
        self.counts += self._workload.counts + self._feeder.counts()
        return self._differences(lake)

    def differences_by_queue(self) -> list[str]:
        """Return the differences of tables for which the order of queues decides."""
        queries = [query for query in self._queries if not query.has_history and not query.is_for_many]
        lake = Lake(self._folder, queries, "queue", self._topics)
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

    def _work(self, lake: Lake, slots: Mapping[str, Slot], seconds: float) -> None:
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
        alterations = alteration_times(self._seed, seconds, self._workload.tables)
        with closing(disturbance):
            while (now_s := time.monotonic() - began_s) < seconds:
                self._workload.step()
                self._is_fed()
                disturbance.look()
                time.sleep(_PAUSE_S)
                if self._truncates:
                    self._workload.truncated = lake.truncatable()
                while alterations and now_s >= alterations[0][0]:
                    self._alter(alterations.pop(0)[1])
            disturbance.finish()
        for _, table in alterations:
            self._alter(table)
        self.counts["committed transactions"] = self._workload.committed
        self.counts["rolled back"] = self._workload.rolled_back

    def _alter(self, table: SourceTable) -> None:
        alteration = self._workload.alter(table)
        self._say(f"{table.full_name}: {alteration.kind}: {alteration.column}")

    def _is_fed(self) -> bool:
        if self._feeder.has_ended and not self._feeder.has_sent_all:
            self.counts["ends of Debezium by itself"] += 1
            self._say(f"Debezium ended by itself: {self._feeder.log_tail()[-400:]}")
            assert self.counts["ends of Debezium by itself"] < 10, self._feeder.log_tail()
            self._feeder.start()
        return self._feeder.has_sent_all

    def _slots(self, lake: Lake, names: Sequence[str]) -> dict[str, Slot]:
        group = Group(
            name_servers=self._cluster.name_servers,
            topic="unused",
            group="unused",
            folder=lake.folder,
            timing=TIMING,
        )
        group.folder.mkdir(parents=True, exist_ok=True)
        module = "tests.change_data.real.consume"
        start = partial(RunningApplication, group, module=module, more=lake.settings)
        return {
            name: Slot(name, start, lake.owners, cycle(_PACES), say=self._say, problem=self._problem)
            for name in names
        }

    def _drain(self, lake: Lake, slots: Mapping[str, Slot]) -> None:
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
        addresses = self._cluster.name_servers, self._cluster.broker_addresses
        ends = [queue_ends(*addresses, topic) for topic in self._topics.values()]
        return {queue: end for each in ends for queue, end in each.items()}

    def _differences(self, lake: Lake) -> list[str]:
        found = []
        for query in lake.queries:
            for table in query.tables:
                name = query.name if table.folder == "." else table.folder
                if table.has_history:
                    versions = lake.versions(query, table)
                    self.counts[f"versions in {name}"] = sum(map(len, versions.values()))
                    found += differing_versions(name, self._workload.versions(table.source), versions)
                else:
                    rows = self._rows(table)
                    self.counts[f"rows in {name}"] = len(rows)
                    found += differing_rows(name, table.columns, rows, lake.rows(query, table))
        return found

    def _rows(self, table: LakeTable) -> Mapping[Row, Row]:
        """Return the rows that a table of the lake must have."""
        if not table.is_merged:
            return self._workload.rows(table.source)
        return union({(DATABASE, each.full_name): self._workload.rows(each) for each in table.sources})

    def _problem(self, text: str) -> None:
        self._say(f"PROBLEM: {text}")
        self.problems.append(text)

    def _say(self, text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._began_s:7.1f} s  {text}\n")
        sys.stdout.flush()


def prove(
    folder: Path,
    *,
    seed: int,
    seconds: float,
    queries: Sequence[LakeQuery],
    by_queue: bool,
) -> tuple[list[str], list[str], Counter[str]]:
    """Run everything; return what is wrong, differences by the order of queues, and counts of what happened."""
    with (
        RealCluster(brokers=2, forgetful_s=FORGETFUL_S) as real,
        Postgres(_POSTGRES) as postgres,
    ):
        cluster = ClusterUnderTest(real, "real")
        # The order of queues has none for truncations.
        proof = Proof(cluster, postgres, folder, seed=seed, queries=queries, truncates=not by_queue)
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
        queries=QUERIES,
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
