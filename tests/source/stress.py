"""A stream reads while its world changes at random: ``python -m tests.source.stress --seconds 600 --seed 7``.

On the simulator, topics and queues are added, messages stored, brokers restarted, and old messages expire before they are
read; the reader is killed at any step of a batch, too, drains now and then as with AvailableNow, and changes its limits.  At
the end every message that is still there was read exactly once, each queue's in order.  What the world does is a function
of the seed; what the reader meets is the machine's.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa

from broker_sim.cluster import SimCluster
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.client.process_lines import close_idle_lines
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.model import Message, MessageQueue
from tests.helpers.stream_read import StreamUnderTest
from tests.helpers.wait import wait_until

PATTERN = "stress-.*"
RETENTION_BYTES = 40_000
"""Per broker; some hundred messages, so that a reader that was away finds some gone."""
_MOST_TOPICS = 12
_MOST_QUEUES = 6
_LONGEST_PAUSE_S = 0.02
_LONGEST_OUTAGE_S = 0.5
_LONGEST_STOP_S = 0.5
_DRAIN_S = 30.0


@dataclass
class World:
    """What changes around the reader; lives on a thread of its own."""

    sim: SimCluster
    rng: random.Random
    stored: dict[MessageQueue, list[bytes]] = field(default_factory=dict)
    """Bodies by queue; a message's place is its queue offset."""
    queues_of: dict[str, int] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)
    is_over: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None

    def run(self) -> None:
        """Go on until ``is_over``; leave all brokers running."""
        try:
            while not self.is_over.wait(self.rng.uniform(0, _LONGEST_PAUSE_S)):
                self.step()
            for name in tuple(self.down):
                self.sim.start_broker(name)
        except BaseException as failure:  # noqa: BLE001 - told at the end
            self.failure = failure

    def step(self) -> None:
        """One thing, mostly messages."""
        acts: list[tuple[int, Callable[[], None]]] = [
            (80, self.store_messages),
            (1, self.add_topic),
            (1, self.add_queue),
            (1, self.restart_broker),
        ]
        (act,) = self.rng.choices([act for _, act in acts], [weight for weight, _ in acts])
        if not self.queues_of:
            act = self.add_topic
        act()
        self.done[act.__name__] += 1

    def add_topic(self) -> None:
        """On both brokers; that one of them is down does not hinder it, as it knows its topics when it comes back."""
        if len(self.queues_of) < _MOST_TOPICS:
            name = f"stress-{len(self.queues_of)}"
            self.queues_of[name] = self.rng.randint(1, 3)
            self.sim.create_topic(name, queues=self.queues_of[name])

    def add_queue(self) -> None:
        """To one of the topics."""
        name = self.rng.choice(sorted(self.queues_of))
        if self.queues_of[name] < _MOST_QUEUES:
            self.queues_of[name] += 1
            self.sim.create_topic(name, queues=self.queues_of[name])

    def store_messages(self) -> None:
        """A few or many, in one queue."""
        running = sorted(self.sim.broker_addresses.keys() - self.down)
        if not running:
            return
        topic = self.rng.choice(sorted(self.queues_of))
        queue = MessageQueue(topic, self.rng.choice(running), self.rng.randrange(self.queues_of[topic]))
        bodies = self.stored.setdefault(queue, [])
        new = [
            b"%d %s" % (len(bodies) + number, b"x" * self.rng.randrange(100))
            for number in range(self.rng.choice((1, 2, 5, 40)))
        ]
        first = self.sim.put(queue, [Message(topic=topic, body=body) for body in new])
        assert first == len(bodies), f"{queue}: stored at {first} and not at {len(bodies)}"
        bodies += new

    def restart_broker(self) -> None:
        """Stop one for a moment; the other goes on."""
        name = self.rng.choice(sorted(self.sim.broker_addresses))
        self.sim.stop_broker(name)
        self.down.add(name)
        self.is_over.wait(self.rng.uniform(0, _LONGEST_OUTAGE_S))
        self.sim.start_broker(name)
        self.down.discard(name)


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
            requestTimeoutMs="5000",
            retryTimeoutMs="20000",
        )
        self.batches: list[pa.Table] = []
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        """One micro-batch, or a drain."""
        if self._rng.random() < 0.03:
            # A query that is stopped for a while misses messages.
            time.sleep(self._rng.uniform(0, _LONGEST_STOP_S))
            self._restart("stopped for a while")
        elif self._rng.random() < 0.02:
            self._stream.prepare_available_now()
            while self._plan():
                self._run()
            self._restart("drained")
        elif self._plan():
            self._run()

    def drain(self) -> bool:
        """Read on; whether there was nothing to read."""
        if not self._plan():
            return True
        self._run()
        return False

    def has_reached(self, ends: Mapping[MessageQueue, int]) -> bool:
        """Whether the checkpoint says that every queue is read to its end."""
        plan = self._stream.planned()
        return all(
            plan.get(topic, {}).get(broker_name, {}).get(str(queue_id), {}).get("to") == end
            for (topic, broker_name, queue_id), end in ends.items()
        )

    def _plan(self) -> bool:
        if not self._stream.plan():
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
    read: dict[MessageQueue, list[tuple[int, bytes]]] = {}
    for rows in reader.batches:
        columns = (
            rows.column(name).to_pylist()
            for name in ("topic", "brokerName", "queueId", "queueOffset", "body")
        )
        for topic, broker_name, queue_id, queue_offset, body in zip(*columns, strict=True):
            read.setdefault(MessageQueue(topic, broker_name, queue_id), []).append((queue_offset, body))
    problems = []
    for queue in sorted(read.keys() | world.stored.keys()):
        stored, seen = world.stored.get(queue, []), read.get(queue, [])
        offsets = [queue_offset for queue_offset, _ in seen]
        if offsets != sorted(set(offsets)):
            problems.append(f"{queue}: read twice or out of order: {_unordered(offsets)}")
        changed = [at for at, body in seen if at >= len(stored) or stored[at] != body]
        if changed:
            problems.append(f"{queue}: not as stored: {changed[:5]}")
        still_there = range(world.sim.bounds(queue).min_offset, len(stored))
        lost = sorted(set(still_there).difference(offsets))
        if lost:
            problems.append(f"{queue}: never read: {lost[:5]} of {len(lost)}")
    return problems


def _unordered(offsets: list[int]) -> list[tuple[int, int]]:
    return [(one, next_) for one, next_ in pairwise(offsets) if next_ <= one][:5]


def stress(seed: int, seconds: float) -> tuple[list[str], dict[str, int]]:
    """Problems, and how often what was done."""
    settings = BrokerSettings(retention_bytes=RETENTION_BYTES)
    with SimCluster(brokers=2, settings=settings) as sim:
        world = World(sim, random.Random(seed))
        reader = Reader(sim.name_servers, random.Random(seed + 1))
        thread = threading.Thread(target=world.run, name="world")
        thread.start()
        try:
            ends_s = time.monotonic() + seconds
            while time.monotonic() < ends_s and thread.is_alive():
                reader.step()
        finally:
            world.is_over.set()
            thread.join()
        if world.failure is not None:
            raise world.failure
        ends = {queue: len(bodies) for queue, bodies in world.stored.items()}
        # Not before the route shows the newest queues.
        found = []
        try:
            wait_until(
                lambda: reader.drain() and reader.has_reached(ends), _DRAIN_S, reason="The end of every queue"
            )
        except (AssertionError, RocketMQError) as error:
            found.append(str(error))
        found += problems_of(reader, world)
        stored = sum(map(len, world.stored.values()))
        facts = {"stored": stored, "read": sum(map(len, reader.batches)), **world.done, **reader.done}
        close_idle_lines()
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
    sys.stdout.write(
        "".join(f"FAILED {problem}\n" for problem in problems)
        or "every message that is there was read once\n"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
