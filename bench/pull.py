"""Pull and decode in one Python process, between a bare socket loop and other clients,
in interleaved rounds.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

from bench.cluster import QUEUES, fill, real_cluster
from bench.measure import Result, Spread, Target, load_average
from bench.processor_time import processor_s
from bench.pull_peers import MESSAGES_PER_PULL, Librocketmq, LitePull, PeerFailed, Reading
from bench.raw_pull import pull_together
from pyspark_rocketmq.model import Message
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.fetcher import Fetcher
from pyspark_rocketmq.source.ranges import QueuePartition
from pyspark_rocketmq.source.reader import read_queues
from pyspark_rocketmq.source.readers import RocketMQBatchReader
from pyspark_rocketmq.wire.properties import KEYS, TAGS
from tests.helpers.cluster import ClusterUnderTest
from tests.real_broker.harness import RealCluster

_BODY_SIZES = {"1 KiB": 1024, "100 B": 100}
_DEPTH = 64
"""Eight pulls in flight for each of eight queues."""
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_OURS = "pull + decode"
_UNDECODED = "only pull"
_RAW = "bare loop"
_LITE_PULL = "DefaultLitePullConsumer"
_LITE_PULL_AFTER_FIRST = "DefaultLitePullConsumer, after its first message"
_LIBROCKETMQ = "librocketmq"
_TARGETS = {_RAW: 0.7, _LITE_PULL: 4.0, _LIBROCKETMQ: 8.0}
_METHOD = """\
One broker with its default limits (at most {per_pull} messages a pull) and {messages:,} messages in {queues} queues, per body
size, sent in batches with KEYS and TAGS; bodies are text, because librocketmq cuts them at the first NUL. All of it is
in the page cache. Broker and clients share the machine. Each of {rounds} rounds, after one for warming up, reads the
whole topic in turn with:

* *{raw}*: one connection, {depth} pulls in flight over all queues, the next pull sent with each answer; frames are split
  and their headers parsed, bodies are dropped. Connected before the clock starts.
* *{ours}*: `read_queues`, which the Spark source reads with: one process, one connection, {depth} pulls in
  flight, every message as a row of Arrow columns (all 17). Its connection is the one it has kept from the round before, as a
  Spark worker keeps it from task to task.
* *{undecoded}*: the same without decoding, to distinguish the two parts.
* *{lite_pull}*: Java's client, `pullBatchSize` {per_pull}, a new group in a new JVM (1 GiB heap), from its first poll to
  its last message; start-up and rebalance lie between, hence the second row.
* *{librocketmq}*: `PullConsumer` of the PyPI package `rocketmq` 0.4.4, every body read; connects before the clock starts.

Ratios are taken round by round. *µs* is processor time, user and system, of client and broker, which share the cores: where the
bare loop keeps all of them busy, its µs by ours is the ratio that no client of this cost can exceed.{missing}"""


def run(*, messages: int = 400_000, rounds: int = 5) -> Result:
    """Measure ``rounds`` rounds per body size."""
    before = load_average()
    rows: list[tuple[str, ...]] = []
    targets: list[Target] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, real_cluster() as cluster:
        peers = Peers.prepare(Path(folder))
        for name, size in _BODY_SIZES.items():
            contest = Contest.prepare(cluster, peers, size, messages)
            figures = contest.run(rounds)
            rows += _rows(name, figures) + _costs(name, contest.used)
            targets += _targets(name, figures)
    return Result(
        name="pull",
        title="Pull and decode",
        method=_method(messages, rounds, peers.missing),
        columns=("what", "min", "median", "max"),
        rows=tuple(rows),
        targets=tuple(targets),
        load=(before, load_average()),
    )


@dataclass(frozen=True, slots=True)
class Peers:
    """The other clients that are available here."""

    lite_pull: LitePull
    librocketmq: Librocketmq | None
    missing: str
    """The clients that are not available, with the reasons."""

    @classmethod
    def prepare(cls, work: Path) -> Peers:
        """Compile one, install the other."""
        lite_pull = LitePull(work)
        try:
            return cls(lite_pull, Librocketmq(), "")
        except PeerFailed as reason:
            missing = f"librocketmq could not be installed and is not in the tables: {reason}"
            print(f"  {missing}", flush=True)
            return cls(lite_pull, None, missing)


@dataclass(frozen=True, slots=True)
class Contest:
    """All contestants on one topic."""

    cluster: ClusterUnderTest
    peers: Peers
    topic: str
    partitions: tuple[QueuePartition, ...]
    body_size: int
    broker_pid: int
    used: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Microseconds of processor time per message, of this process and of the broker, round by round."""

    @classmethod
    def prepare(cls, cluster: ClusterUnderTest, peers: Peers, body_size: int, messages: int) -> Contest:
        """Fill a topic and take the ranges to read."""
        topic = cluster.create_topic(f"bench-pull-{body_size}", QUEUES)
        fill(
            cluster.name_servers,
            topic,
            queues=QUEUES,
            per_queue=messages // QUEUES,
            message=partial(_message, topic, _bodies(body_size)),
        )
        options = {"topic": topic, "nameServers": cluster.name_servers, "pullsInFlight": str(_DEPTH)}
        reader = RocketMQBatchReader(ReadOptions.parse(options))
        partitions = tuple(each for each in reader.partitions() if isinstance(each, QueuePartition))
        assert isinstance(cluster.backend, RealCluster)
        (name,) = cluster.broker_addresses
        return cls(cluster, peers, topic, partitions, body_size, cluster.backend.pid_of(name))

    @property
    def messages(self) -> int:
        """All messages of the topic."""
        return sum(each.planned.count for each in self.partitions)

    def run(self, rounds: int) -> list[dict[str, float]]:
        """Messages per second of each contestant, in rounds after one for warming up."""
        self._round()
        self.used.clear()
        figures = []
        for number in range(rounds):
            figures.append(self._round())
            rates = "  ".join(f"{name} {rate:,.0f}" for name, rate in figures[-1].items())
            print(f"  {self.topic} round {number + 1}: {rates}  load {load_average()}", flush=True)
        return figures

    def _round(self) -> dict[str, float]:
        rates = {
            _RAW: self._timed(_RAW, self._raw),
            _OURS: self._timed(_OURS, self._ours),
            _UNDECODED: self._undecoded(),
        }
        lite_pull = self.peers.lite_pull.read(self.cluster.name_servers, self.topic, self.messages)
        rates[_LITE_PULL] = self._rate(lite_pull, lite_pull.seconds)
        rates[_LITE_PULL_AFTER_FIRST] = self._rate(lite_pull, lite_pull.seconds_after_first)
        if self.peers.librocketmq is not None:
            reading = self.peers.librocketmq.read(self.cluster.name_servers, self.topic)
            rates[_LIBROCKETMQ] = self._rate(reading, reading.seconds)
        return rates

    def _timed(self, who: str, read: Callable[[], float]) -> float:
        """Return the result of ``read``; record its cost to this process and to the broker."""
        pids = os.getpid(), self.broker_pid
        before = [processor_s(pid) for pid in pids]
        rate = read()
        here, there = (processor_s(pid) - was for pid, was in zip(pids, before, strict=True))
        self.used.setdefault(who, []).append((here / self.messages * 1e6, there / self.messages * 1e6))
        return rate

    def _raw(self) -> float:
        ranges = [
            (each.planned.queue.queue_id, each.planned.start, each.planned.end) for each in self.partitions
        ]
        address = self.partitions[0].address
        messages, seconds = pull_together(
            address, self.topic, ranges, depth=_DEPTH, messages_per_pull=MESSAGES_PER_PULL
        )
        return self._checked(messages, "the bare loop") / seconds

    def _ours(self) -> float:
        messages = 0
        started_s = time.perf_counter()
        for _, batch in read_queues(self.partitions):
            messages += batch.num_rows
        seconds = time.perf_counter() - started_s
        return self._checked(messages, "the source") / seconds

    def _undecoded(self) -> float:
        reached = dict.fromkeys(range(len(self.partitions)), 0)
        started_s = time.perf_counter()
        for each in chain.from_iterable(Fetcher(self.partitions).arrivals()):
            if each.chunks:
                reached[each.range_index] = each.chunks[-1].limit
        seconds = time.perf_counter() - started_s
        starts = sum(each.planned.start for each in self.partitions)
        return self._checked(sum(reached.values()) - starts, "the fetcher") / seconds

    def _rate(self, reading: Reading, seconds: float) -> float:
        if reading.body_bytes != reading.messages * self.body_size:
            raise RuntimeError(
                f"A peer read bodies of {reading.body_bytes} bytes in {reading.messages} messages."
            )
        return self._checked(reading.messages, "a peer") / seconds

    def _checked(self, messages: int, who: str) -> int:
        if messages != self.messages:
            raise RuntimeError(f"Of {self.messages} messages {who} read {messages}.")
        return messages


def _bodies(size: int) -> list[bytes]:
    source = random.Random(7)
    return [bytes(source.choices(_LETTERS, k=size)) for _ in range(64)]


def _message(topic: str, bodies: list[bytes], number: int) -> Message:
    properties = {KEYS: f"key-{number:08d}", TAGS: f"tag-{number % 5}"}
    return Message(topic=topic, body=bodies[number % len(bodies)], properties=properties)


def _rows(name: str, figures: list[dict[str, float]]) -> list[tuple[str, ...]]:
    return [
        (f"{name}: {who}, messages/s", *Spread.of(each[who] for each in figures).cells(",.0f"))
        for who in figures[0]
    ]


def _costs(name: str, used: dict[str, list[tuple[float, float]]]) -> list[tuple[str, ...]]:
    """Return rows with the processor time and the ratio that it would allow."""
    rows: list[tuple[str, ...]] = []
    for who, costs in used.items():
        for place, seen in zip(("client", "broker"), zip(*costs, strict=True), strict=True):
            rows.append((f"{name}: {who}, µs of {place} a message", *Spread.of(seen).cells(".2f")))
    possible = Spread.of(sum(raw) / sum(ours) for raw, ours in zip(used[_RAW], used[_OURS], strict=True))
    return [*rows, (f"{name}: {_RAW}'s µs / those of {_OURS}", *possible.cells(".2f"))]


def _targets(name: str, figures: list[dict[str, float]]) -> list[Target]:
    return [
        Target(
            what=f"{_OURS} / {peer}, {name}",
            seen=Spread.of(each[_OURS] / each[peer] for each in figures),
            bound=bound,
            at_most=False,
        )
        for peer, bound in _TARGETS.items()
        if peer in figures[0]
    ]


def _method(messages: int, rounds: int, missing: str) -> str:
    return _METHOD.format(
        per_pull=MESSAGES_PER_PULL,
        messages=messages,
        queues=QUEUES,
        rounds=rounds,
        depth=_DEPTH,
        raw=_RAW,
        ours=_OURS,
        undecoded=_UNDECODED,
        lite_pull=_LITE_PULL,
        librocketmq=_LIBROCKETMQ,
        missing=f"\n\n{missing}" if missing else "",
    )
