"""A stream reads while its world changes at random: ``python -m tests.source.stress --seconds 600 --seed 7``.

On the simulator, topics and queues are added, topics deleted and made again, messages stored, brokers
restarted, and old messages expire before they are read; the reader is killed at any step of a batch, too,
drains now and then as with AvailableNow, and changes its limits. At the end every message that is still there
was read exactly once, each queue's in order, and no message of a deleted topic twice. What the world does is
a function of the seed; what the reader meets is the machine's.

A topic is made again when a plan has gone by without it: made again before,
it can look to any reader like the one that was.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa

from broker_sim.cluster import SimCluster
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode
from tests.helpers.stream_read import StreamUnderTest
from tests.helpers.wait import wait_until
from tests.real_broker import plain_remoting

PATTERN = "stress-.*"
RETENTION_BYTES = 40_000
"""Per broker; some hundred messages, so that a reader that was away finds some gone."""
_FEWEST_TOPICS = 3
_MOST_TOPICS = 12
_MOST_QUEUES = 6
_LONGEST_PAUSE_S = 0.02
_LONGEST_OUTAGE_S = 0.5
_LONGEST_STOP_S = 0.5
_DRAIN_S = 120.0


@dataclass
class World:
    """What changes around the reader; lives on a thread of its own."""

    sim: SimCluster
    rng: random.Random
    reader: Reader
    begun_s: float = field(default_factory=time.monotonic)
    stored: dict[tuple[MessageQueue, int], list[bytes]] = field(default_factory=dict)
    """Bodies by queue and by how often its topic was made before; a message's place is its queue offset."""
    queues_of: dict[str, int] = field(default_factory=dict)
    """Of the topics there are."""
    times_made: Counter[str] = field(default_factory=Counter)
    deleted: dict[str, int] = field(default_factory=dict)
    """Topics there were, and how many plans the reader had begun then."""
    last_change_s: float = 0.0
    """When a topic or queue was added or deleted."""
    done: Counter[str] = field(default_factory=Counter)
    is_over: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None

    def run(self) -> None:
        """Go on until ``is_over``."""
        try:
            while not self.is_over.wait(self.rng.uniform(0, _LONGEST_PAUSE_S)):
                self.step()
        except BaseException as failure:  # noqa: BLE001 - reported at the end
            self.failure = failure

    def step(self) -> None:
        """One thing, mostly messages."""
        acts: list[tuple[int, Callable[[], None]]] = [
            (100, self.store_messages),
            (1, self.add_topic),
            (1, self.add_queue),
            (1, self.delete_topic),
            (1, self.make_topic_anew),
            (1, self.restart_broker),
        ]
        (act,) = self.rng.choices([act for _, act in acts], [weight for weight, _ in acts])
        if not self.queues_of:
            act = self.add_topic
        act()
        self.done[act.__name__] += 1

    def add_topic(self) -> None:
        """On both brokers."""
        if len(self.queues_of) < _MOST_TOPICS:
            self._make(f"stress-{len(self.times_made)}")

    def make_topic_anew(self) -> None:
        """One that was deleted, and that the reader has forgotten."""
        forgotten = [name for name, plans in self.deleted.items() if self.reader.has_forgotten(name, plans)]
        if forgotten and len(self.queues_of) < _MOST_TOPICS:
            name = self.rng.choice(forgotten)
            del self.deleted[name]
            self._make(name)
            self.done["topics made again"] += 1

    def _make(self, name: str) -> None:
        self.times_made[name] += 1
        self.queues_of[name] = self.rng.randint(1, 3)
        self.sim.create_topic(name, queues=self.queues_of[name])
        self._changed()

    def delete_topic(self) -> None:
        """With all its messages, read or not."""
        if len(self.queues_of) <= _FEWEST_TOPICS:
            return
        name = self.rng.choice(sorted(self.queues_of))
        del self.queues_of[name]
        for address in self.sim.broker_addresses.values():
            _admin(address, RequestCode.DELETE_TOPIC_IN_BROKER, name)
        _admin(self.sim.name_servers, RequestCode.DELETE_TOPIC_IN_NAMESRV, name)
        self.deleted[name] = self.reader.plans_begun
        self.done["topics deleted"] += 1
        self._changed()

    def add_queue(self) -> None:
        """To one of the topics."""
        name = self.rng.choice(sorted(self.queues_of))
        if self.queues_of[name] < _MOST_QUEUES:
            self.queues_of[name] += 1
            self.sim.create_topic(name, queues=self.queues_of[name])
            self.done["queues added"] += 1
            self._changed()

    def _changed(self) -> None:
        self.last_change_s = time.monotonic() - self.begun_s

    def store_messages(self) -> None:
        """A few or many, in one queue."""
        topic = self.rng.choice(sorted(self.queues_of))
        name = self.rng.choice(sorted(self.sim.broker_addresses))
        queue = MessageQueue(topic, name, self.rng.randrange(self.queues_of[topic]))
        made = self.times_made[topic]
        bodies = self.stored.setdefault((queue, made), [])
        new = [
            b"%d %d %s" % (made, len(bodies) + number, b"x" * self.rng.randrange(100))
            for number in range(self.rng.choice((1, 2, 5, 40)))
        ]
        first = self.sim.put(queue, [Message(topic=topic, body=body) for body in new])
        assert first == len(bodies), f"{queue}: stored at {first} and not at {len(bodies)}"
        bodies += new

    def present(self) -> dict[MessageQueue, list[bytes]]:
        """What was stored in the topics there are, since they were made."""
        return {
            queue: bodies
            for (queue, made), bodies in self.stored.items()
            if queue.topic in self.queues_of and made == self.times_made[queue.topic]
        }

    def restart_broker(self) -> None:
        """Stop one for a moment; the other goes on."""
        name = self.rng.choice(sorted(self.sim.broker_addresses))
        self.sim.stop_broker(name)
        self.is_over.wait(self.rng.uniform(0, _LONGEST_OUTAGE_S))
        self.sim.start_broker(name)


class Reader:
    """A query and its sink, which keeps the rows of each batch once, by its number in the offset log."""

    def __init__(self, name_servers: str, rng: random.Random) -> None:
        self._rng = rng
        self._stream = StreamUnderTest(
            nameServers=name_servers,
            topicPattern=PATTERN,
            startingOffsets="earliest",
            failOnDataLoss="false",
            includeColumns="topic,brokerName,queueId,queueOffset,body",
            routeRefreshMs="50",
            requestTimeoutMs="60000",
            retryTimeoutMs="60000",
        )
        self.batches: list[pa.Table] = []
        self.done: Counter[str] = Counter()
        self.plans_begun = 0
        self._planned: tuple[int, frozenset[str]] = (0, frozenset())
        """Number of the newest plan, and its topics."""

    def has_forgotten(self, topic: str, plans: int) -> bool:
        """Whether a plan that began after ``plans`` others has nothing of ``topic``;
        may be asked on any thread.
        """
        number, topics = self._planned
        return number > plans and topic not in topics

    def step(self) -> None:
        """One micro-batch, or a drain."""
        if self._rng.random() < 0.03:
            # A query that is stopped for a while misses messages.
            time.sleep(self._rng.uniform(0, _LONGEST_STOP_S))
            self._restart("stopped for a while")
        elif self._rng.random() < 0.02:
            self._drain_as_available_now()
        elif self._plan():
            self._run()

    def _drain_as_available_now(self) -> None:
        """Spark says so to a query that begins; one that fails is begun again without."""
        self._restart("began to drain")
        try:
            self._stream.prepare_available_now()
            while self._plan():
                self._run()
        except RocketMQError as error:
            self.done[f"drain failed: {type(error).__name__}"] += 1
        self._restart("drained")

    def messages(self) -> Iterator[tuple[MessageQueue, int, bytes]]:
        """What the sink has, in the order of its batches: queue, queue offset and body."""
        for rows in self.batches:
            columns = (
                rows.column(name).to_pylist()
                for name in ("topic", "brokerName", "queueId", "queueOffset", "body")
            )
            for topic, broker_name, queue_id, queue_offset, body in zip(*columns, strict=True):
                yield MessageQueue(topic, broker_name, queue_id), queue_offset, body

    def drain(self) -> bool:
        """Read on; whether there was nothing to read."""
        if not self._plan():
            return True
        self._run()
        return False

    def not_at(self, ends: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | None]:
        """The queues that the checkpoint does not say are read to their end, and what it says of them."""
        plan = self._stream.planned()
        known = {
            queue: plan.get(queue.topic, {}).get(queue.broker_name, {}).get(str(queue.queue_id), {}).get("to")
            for queue in ends
        }
        return {queue: end for queue, end in known.items() if end != ends[queue]}

    def _plan(self) -> bool:
        self.plans_begun += 1
        is_new = self._stream.plan()
        self._planned = (self.plans_begun, frozenset(self._stream.planned()))
        if not is_new:
            return False
        if self._rng.random() < 0.1:
            self._restart("killed after planning")
        return True

    def _run(self) -> None:
        while True:
            try:
                rows = self._stream.run()
            except RocketMQError as error:
                self.done[f"batch failed: {type(error).__name__}"] += 1
                self._restart("started again")
                continue
            if self._rng.random() < 0.1:
                self._restart("killed before its sink committed")
                continue
            self.batches.append(rows)
            self.done["batches"] += 1
            return

    def _restart(self, why: str) -> None:
        self.done[why] += 1
        self._stream.restart(
            maxOffsetsPerTrigger=str(self._rng.choice((1, 50, 1000))),
            minPartitions=str(self._rng.choice((1, 20))),
            pullBatchSize=str(self._rng.choice((1, 8, 32))),
            pullsInFlight=str(self._rng.choice((1, 16))),
        )


def problems_of(reader: Reader, world: World) -> list[str]:
    """What was lost, read twice, out of order or not as it was stored, a sentence each."""
    read: dict[tuple[MessageQueue, int], list[tuple[int, bytes]]] = {}
    newest: Counter[MessageQueue] = Counter()
    problems = []
    for queue, queue_offset, body in reader.messages():
        made = int(body.split()[0])
        read.setdefault((queue, made), []).append((queue_offset, body))
        if made < newest[queue]:
            problems.append(f"{queue}: {body!r} came after messages of the topic that was made later")
        newest[queue] = max(made, newest[queue])
    for place, seen in sorted(read.items()):
        stored = world.stored.get(place, [])
        offsets = [queue_offset for queue_offset, _ in seen]
        if offsets != sorted(set(offsets)):
            problems.append(f"{place}: read twice or out of order: {_unordered(offsets)}")
        changed = [at for at, body in seen if at >= len(stored) or stored[at] != body]
        if changed:
            problems.append(f"{place}: not as stored: {changed[:5]}")
    for queue, bodies in sorted(world.present().items()):
        still_there = range(world.sim.bounds(queue).min_offset, len(bodies))
        found = {at for at, _ in read.get((queue, world.times_made[queue.topic]), [])}
        lost = sorted(set(still_there).difference(found))
        if lost:
            problems.append(f"{queue}: never read: {lost[:5]} of {len(lost)}")
    return problems


def _unordered(offsets: list[int]) -> list[tuple[int, int]]:
    return [(one, next_) for one, next_ in pairwise(offsets) if next_ <= one][:5]


def _admin(address: str, code: RequestCode, topic: str) -> None:
    answer = plain_remoting.call(address, code, {"topic": topic})
    assert answer.code == 0, f"{address} refused to delete {topic}: {answer.remark}"


def stress(seed: int, seconds: float) -> tuple[list[str], dict[str, int]]:
    """Problems, and how often what was done."""
    settings = BrokerSettings(retention_bytes=RETENTION_BYTES)
    with SimCluster(brokers=2, settings=settings) as sim:
        reader = Reader(sim.name_servers, random.Random(seed + 1))
        world = World(sim, random.Random(seed), reader)
        thread = threading.Thread(target=world.run, name="world")
        thread.start()
        try:
            ends_s = time.monotonic() + seconds
            # However slow the machine is, something is read while things change.
            while thread.is_alive() and (time.monotonic() < ends_s or not any(map(len, reader.batches))):
                reader.step()
        finally:
            world.is_over.set()
            thread.join()
        if world.failure is not None:
            raise world.failure
        # A queue whose messages had all expired when it was first seen has nothing to be read,
        # nor a place in a plan.
        ends = {
            queue: len(bodies)
            for queue, bodies in world.present().items()
            if sim.bounds(queue).min_offset < len(bodies)
        }
        # Not before the route shows the newest queues.
        found = []
        try:
            wait_until(
                lambda: reader.drain() and not reader.not_at(ends), _DRAIN_S, reason="The end of every queue"
            )
        except (AssertionError, RocketMQError) as error:
            found.append(f"{error} Not read to the end: {reader.not_at(ends)}")
        found += problems_of(reader, world)
        stored = sum(map(len, world.stored.values()))
        facts = {
            "stored": stored,
            "read": sum(map(len, reader.batches)),
            "seconds until topics last changed": round(world.last_change_s),
            **world.done,
            **reader.done,
        }
        close_idle_connections()
    return found, facts


def main() -> int:
    """Run for so long and print the seed first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    sys.stdout.write(f"seed {arguments.seed}\n")
    sys.stdout.flush()
    problems, facts = stress(arguments.seed, arguments.seconds)
    sys.stdout.write("".join(f"{name:40} {count}\n" for name, count in facts.items()))
    sys.stdout.write(f"to see it again: make stress SECONDS={arguments.seconds:g} SEED={arguments.seed}\n")
    sys.stdout.write(
        "".join(f"FAILED {problem}\n" for problem in problems)
        or "every message that is there was read once\n"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
