"""A topic that is deleted and made again, over and over, while a group consumes it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.delta.commit import stored_files
from pyspark_rocketmq.delta.storage_options import StorageOptions, filesystem_of
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import Message, MessageQueue
from tests.applications.running_application import Group, wait_patiently
from tests.helpers.cluster import ClusterUnderTest
from tests.real_broker import plain_remoting

FRESH_TOPIC = "fresh"
_BROKER = "broker-b"
_QUEUES = 2
_IN_SINK_S = 300.0
_CHANGE_S = 120.0
_DELETE_AT_BROKER, _DELETE_AT_NAME_SERVER = 215, 216


_COLUMNS = ["order_id", "queueOffset", "delivered_ns", "topic"]


class _Row(NamedTuple):
    key: str
    queue_offset: int
    delivered_ns: int
    topic: str


class FreshTopic:
    """Each *generation* of the topic gets its own messages,
    all of which must be in the sink once before it ends.

    A generation begins once the group has seen the empty topic. A group that looks again only after a queue
    has grown past its old length continues behind the new messages, as Java's consumers do.
    """

    def __init__(self, cluster: ClusterUnderTest, group: Group, stop: Callable[[], bool]) -> None:
        """Stop waiting once ``stop`` returns true."""
        self._cluster = cluster
        self._group = group
        self._stop = stop
        self._generation = 0
        self._sent: set[str] = set()
        """Keys ``generation-GENERATION-QUEUE-NUMBER``; a send whose outcome is unknown is repeated,
        so that some are stored twice.
        """
        self._read: dict[str, list[_Row]] = {}
        """Rows by the sink's file."""
        self._lock = threading.Lock()
        self._is_empty = threading.Lock()
        """Held while the topic has no message yet."""
        self.seen_version = -1
        """Sink's version with all messages of former generations; no RESTORE may go behind it."""
        self._make()

    def next_generation(self, messages: int) -> None:
        """Have all messages of this generation consumed, make the topic again, and begin the next one.

        Raises:
            AssertionError: If the sink did not have them in time.
        """
        is_seen = False
        while not is_seen and not self._stop():
            self.await_all()
            with self._lock:
                # A RESTORE may have taken them away again.
                sink = self._group.storage.table("sink")
                assert sink is not None
                version = sink.version()
                is_seen = not self._missing(self._rows_of(sink))
                if is_seen:
                    self.seen_version = version
        with self._is_empty:
            self._patiently(self._delete)
            self._patiently(self._make)
            wait_patiently(
                lambda: self._stop() or self._is_begun_again(),
                _IN_SINK_S,
                reason=f"the group at the beginning of topic {FRESH_TOPIC}",
            )
            self._generation += 1
            self.send(messages)

    def send(self, messages: int) -> None:
        """Send so many messages of this generation to each queue."""
        queues = [MessageQueue(FRESH_TOPIC, _BROKER, queue_id) for queue_id in range(_QUEUES)]
        with Producer(self._cluster.name_servers, "fresh-producer", send_timeout_s=10.0) as producer:
            for number in range(messages):
                for queue in queues:
                    self._send(producer, queue, f"generation-{self._generation}-{queue.queue_id}-{number}")

    def problems(self) -> list[str]:
        """Return messages that the sink lacks, has twice, or got out of order."""
        rows = self._rows()
        lost = [f"fresh topic: {key} is lost" for key in sorted(self._missing())]
        copies = Counter((row.key, row.queue_offset) for row in rows)
        doubled = [
            f"fresh topic: {key} at {at} is there {n} times" for (key, at), n in copies.items() if n > 1
        ]
        last: dict[str, int] = {}
        late = []
        for row in rows:
            queue_of_generation = row.key.rpartition("-")[0]
            if row.queue_offset < last.get(queue_of_generation, -1):
                late.append(f"fresh topic: {row.key} at {row.queue_offset} came late")
            last[queue_of_generation] = row.queue_offset
        return lost + doubled + late

    def counts(self) -> str:
        """Return the counts for the summary."""
        return f"fresh topic: {self._generation + 1} generations, {len(self._sent)} messages, {len(self._rows())} rows"

    def may_crash(self, broker_name: str) -> AbstractContextManager[object]:
        """Return the lock to hold while that broker is crashed.

        A real one builds its queues again from its log, and those that are empty get the messages back that
        were deleted with the topic.
        """
        is_at_risk = self._cluster.kind == "real" and broker_name == _BROKER
        return self._is_empty if is_at_risk else nullcontext()

    def restorable(self) -> threading.Lock:
        """Return the lock to hold while the sink is restored: no generation may end meanwhile."""
        return self._lock

    def _send(self, producer: Producer, queue: MessageQueue, key: str) -> None:
        def is_stored() -> bool:
            try:
                producer.send(Message(topic=FRESH_TOPIC, body=f"{key}:sent".encode()), queue=queue)
            except RocketMQError:
                return self._stop()
            return True

        self._sent.add(key)
        wait_patiently(is_stored, _CHANGE_S, reason=f"{key} being stored")

    def await_all(self) -> None:
        """Wait until the sink has every message sent so far.

        Raises:
            AssertionError: If it has not in time.
        """
        wait_patiently(
            lambda: self._stop() or not self._missing(),
            _IN_SINK_S,
            reason=f"the rows of generation {self._generation} of topic {FRESH_TOPIC}",
        )

    def _is_begun_again(self) -> bool:
        # None while the offset store is deleted: without it the group has no message to compare with.
        rows = [row for queue, row in self._group.rows().items() if queue.topic == FRESH_TOPIC]
        return len(rows) == _QUEUES and all(row.next_offset == 0 for row in rows)

    def _missing(self, rows: Iterable[_Row] | None = None) -> set[str]:
        return self._sent - {row.key for row in (self._rows() if rows is None else rows)}

    def _rows(self) -> list[_Row]:
        """In the order of delivery."""
        sink = self._group.storage.table("sink")
        return [] if sink is None else self._rows_of(sink)

    def _rows_of(self, sink: DeltaTable) -> list[_Row]:
        # Files never change, and an emulator of storage would otherwise only serve them again and again.
        paths = [file.path for file in stored_files(sink)]
        filesystem, folder = filesystem_of(self._group.sink, StorageOptions(self._group.storage.options))
        for path in paths:
            if path not in self._read:
                found = pq.read_table(f"{folder}/{path}", filesystem=filesystem, columns=_COLUMNS)
                found = found.filter(pc.field("topic") == FRESH_TOPIC)
                self._read[path] = [_Row(*row) for row in zip(*found.to_pydict().values(), strict=True)]
        rows = (row for path in paths for row in self._read[path])
        return sorted(rows, key=lambda row: (row.delivered_ns, row.queue_offset))

    def _delete(self) -> None:
        address = self._cluster.broker_addresses[_BROKER]
        for where, code in (
            (address, _DELETE_AT_BROKER),
            (self._cluster.name_servers, _DELETE_AT_NAME_SERVER),
        ):
            answer = plain_remoting.call(where, code, {"topic": FRESH_TOPIC})
            # A broker without timers fails when it has deleted everything but their counts.
            is_done = answer.code == 0 or "getTimerMetrics" in str(answer.remark)
            assert is_done, f"{where} did not delete topic {FRESH_TOPIC}: {answer.remark}"

    def _make(self) -> None:
        self._cluster.create_topic(FRESH_TOPIC, queues=_QUEUES, brokers=[_BROKER])

    def _patiently(self, change: Callable[[], None]) -> None:
        """Repeat until it is done: a broker or the name server may be away."""

        def is_done() -> bool:
            try:
                change()
            except (OSError, AssertionError, RocketMQError):
                return self._stop()
            return True

        wait_patiently(is_done, _CHANGE_S, reason=f"topic {FRESH_TOPIC} made again")
