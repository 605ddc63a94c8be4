"""Debezium's engine, which feeds topics as Debezium Server and Canal do: a process that can be killed.

python -m tests.change_data.real.feeder     # its jars into .cache/
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Self

from psycopg.conninfo import conninfo_to_dict

from pyspark_rocketmq.client.transport import Closing
from tests.change_data.real.source_tables import SCHEMAS
from tests.real_broker.artifacts import CACHE, fetch_jars, fetch_once
from tests.real_broker.java_process import JavaProcess, java_command, java_environment

LAST_TABLE = "last"
"""Table whose first row is the last change of a run."""
PUBLICATION = "changes"
"""Publication of the database, which must be there before the first start."""
_HERE = Path(__file__).parent
_HEAP = ("-Xmx256m",)


def fetch_debezium() -> Path:
    """Return the folder of its jars; downloads them if they are not there yet.

    Raises:
        HarnessError: If Maven is missing or could not fetch them.
    """
    return fetch_once("Debezium", _HERE / "pom.xml", CACHE / "debezium-3.6.1")


def fetch_canal() -> Path:
    """Return the folder of Canal's jars; downloads them if they are not there yet.

    Raises:
        HarnessError: If Maven is missing or could not fetch them.
    """
    return fetch_once("Canal", _HERE / "canal.pom.xml", CACHE / "canal-1.1.8")


class Feeder(Closing):
    """The process; killed, it starts again where it has noted to be, and sends the rest again."""

    def __init__(
        self,
        folder: Path,
        *,
        database: str,
        name_servers: str,
        topic: str,
        canal_topic: str,
        canal_queues: int,
        canal_tables: Collection[str],
        seed: int,
        disturbed: float,
    ) -> None:
        """Prepare it.

        Args:
            folder: Folder for its settings, position and log.
            database: Connection string of PostgreSQL.
            name_servers: Addresses of the cluster.
            topic: Topic that gets the changes of all tables but ``canal_tables``.
            canal_topic: Topic that gets the changes of these, as the messages of Canal.
            canal_queues: Number of the queues of this topic.
            canal_tables: Names of tables, after those of their schemas.
            seed: Seed of what is swapped and sent again.
            disturbed: Share of the messages that are sent too early, and of those that are sent twice.
        """
        self._folder = folder
        self._end = folder / "end-of-feed"
        self._counts = folder / "feed.counts"
        self._settings = {
            **_debezium(conninfo_to_dict(database), folder),
            "feed.name.servers": name_servers,
            "feed.topic": topic,
            "feed.canal.topic": canal_topic,
            "feed.canal.queues": canal_queues,
            "feed.canal.tables": ",".join(f"_{name.replace('.', '_')}" for name in canal_tables),
            "feed.last.table": f"_{LAST_TABLE}",
            "feed.end": self._end,
            "feed.counts": self._counts,
            "feed.disturbed": str(disturbed),
        }
        self._seed = seed
        self.starts = 0
        self._process: JavaProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Start the process, each time with another order of sends."""
        self.starts += 1
        settings = {**self._settings, "feed.seed": str(self._seed + self.starts)}
        file = self._folder / "feed.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
        command = java_command(self._folder, str(_HERE / "FeedDebezium.java"), [str(file)], heap=_HEAP)
        environment = java_environment([fetch_debezium() / "*", fetch_jars() / "*", fetch_canal() / "*"])
        self._process = JavaProcess(command, environment, self._folder / "feed.log")

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone, by itself or not."""
        return self._process is None or self._process.has_ended

    @property
    def has_sent_all(self) -> bool:
        """True once it has sent everything before the row of :data:`LAST_TABLE`."""
        return self._end.exists()

    def counts(self) -> Counter[str]:
        """Return what it has sent and how, but for batches during which it was killed."""
        return counted(self._counts.read_text(encoding="utf-8").splitlines())

    def log_tail(self) -> str:
        """Return the end of what it printed."""
        return "" if self._process is None else self._process.log_tail()

    def close(self) -> None:
        """Leave no process behind."""
        self.kill()


def counted(lines: Iterable[str]) -> Counter[str]:
    """Return the sums of the numbers in lines such as ``sends swapped=3``, by name."""
    counts: Counter[str] = Counter()
    for line in lines:
        name, _, number = line.partition("=")
        counts[name] += int(number)
    return counts


def _debezium(database: Mapping[str, object], folder: Path) -> dict[str, object]:
    return {
        "name": "proof",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": database["host"],
        "database.port": database["port"],
        "database.user": database["user"],
        "database.password": "unused",
        "database.dbname": database["dbname"],
        "plugin.name": "pgoutput",
        # Debezium alters a publication of its own at each start; PostgreSQL then reads older rows with the
        # tables' newest columns.
        "publication.autocreate.mode": "disabled",
        "publication.name": PUBLICATION,
        "schema.include.list": ",".join(SCHEMAS),
        "topic.prefix": "proof",
        "topic.delimiter": "_",
        "tombstones.on.delete": "false",
        # Debezium Server cannot send a truncation, which has no key.
        "skipped.operations": "none",
        "provide.transaction.metadata": "true",
        "poll.interval.ms": "50",
        "slot.retry.delay.ms": "500",
        "slot.max.retries": "60",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": folder / "feed.offsets",
        "offset.flush.interval.ms": "2000",
    }


if __name__ == "__main__":
    fetch_debezium()
    fetch_canal()
