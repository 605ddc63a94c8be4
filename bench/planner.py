"""Cost of planning a micro-batch with 1,024 queues, and its parts."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.cluster import fill
from bench.measure import Result, Spread, Stopwatch, Target, Timed, load_average
from pyspark_rocketmq.cli.demo.run import embedded_cluster
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.model import Message
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit
from pyspark_rocketmq.options.positions import EARLIEST
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.cluster_view import ClusterView
from pyspark_rocketmq.source.planner import MicroBatchPlanner
from pyspark_rocketmq.source.progress import CheckpointProgress, GroupProgress
from pyspark_rocketmq.source.queue_claims import Starts
from pyspark_rocketmq.source.ranges import Offset, offset_to_plan, partitions_of
from pyspark_rocketmq.source.start_positions import OptionPositions
from tests.helpers.ownership import OneMember

_BROKERS = 2
_QUEUES = 1_024
_GROUP = "bench"
_TOPIC = "orders"
_TARGET_MS = 20.0
_TIMEOUT_S = 10.0
_CLOCK = SystemClock()

_TOTAL = "latest() and JSON"
_LOOK = "· look at the cluster: one statistics request per broker"
_BROKERS_WAITED = "· · waiting for the simulated brokers, both together"
_PROGRESS = "· progress of the queues"
_STORE = "· · of which reading the offset store"
_REST = "· planning and JSON"
_PARTITIONS = "partitions() of the planned batch"
_CPU = "CPU of latest(), all threads of this process"
_PARTS = (_TOTAL, _CPU, _LOOK, _BROKERS_WAITED, _PROGRESS, _STORE, _REST, _PARTITIONS)

_METHOD = """\
`MicroBatchPlanner.latest()` and the JSON text of the offset it returns, for a topic of {queues:,} queues on {brokers}
simulated brokers in a process of their own; every trigger plans a range for every queue. `group` plans for a consumer
group whose {queues:,} offsets are in a Delta offset store: between two triggers another writer commits all of them (not
counted). {triggers} triggers after {warm_up} for warming up. `partitions()` is what Spark asks right after."""


def run(*, triggers: int = 60, warm_up: int = 5) -> Result:
    """Measure ``triggers`` triggers without and with a consumer group."""
    before = load_average()
    rows: list[tuple[str, ...]] = []
    targets: list[Target] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        embedded_cluster(_BROKERS) as name_server,
        ChannelPool(_CLOCK) as pool,
    ):
        _fill(name_server, pool, per_queue=triggers + warm_up)
        for mode, bench in (
            ("plain", plain_triggers(name_server, pool)),
            ("group", group_triggers(name_server, pool, Path(folder) / "offsets")),
        ):
            rounds = [bench.trigger() for _ in range(warm_up + triggers)][warm_up:]
            spreads = {part: Spread.of(each.get(part, 0.0) for each in rounds) for part in _PARTS}
            rows += [(f"{mode}: {part}, ms", *spread.cells(".2f")) for part, spread in spreads.items()]
            target = f"planning {_QUEUES:,} queues, {mode}"
            targets.append(
                Target(what=target, seen=spreads[_TOTAL], bound=_TARGET_MS, at_most=True, unit="ms")
            )
    return Result(
        name="planner",
        title="Planner",
        method=_METHOD.format(queues=_QUEUES, brokers=_BROKERS, triggers=triggers, warm_up=warm_up),
        columns=("what", "min", "median", "max"),
        rows=tuple(rows),
        targets=tuple(targets),
        load=(before, load_average()),
    )


class Triggers:
    """One planner, triggered as by Spark."""

    def __init__(
        self,
        options: ReadOptions,
        planner: MicroBatchPlanner,
        watch: Stopwatch,
        commit: Callable[[Offset], None],
    ) -> None:
        self._options = options
        self._planner = planner
        self._watch = watch
        self._commit = commit
        self._offset = planner.initial()

    def trigger(self) -> dict[str, float]:
        """Plan one micro-batch, then pretend it was consumed; milliseconds by part."""
        self._watch.seconds.clear()
        cpu_s = time.process_time()
        with self._watch.time(_TOTAL):
            offset = self._planner.latest(self._offset)
            json.dumps(offset)
        spent = self._watch.seconds
        spent[_CPU] = time.process_time() - cpu_s
        spent[_REST] = spent[_TOTAL] - spent[_LOOK] - spent[_PROGRESS]
        parts = {name: seconds * 1000 for name, seconds in spent.items()}
        with self._watch.time(_PARTITIONS):
            _, ranges = self._planner.plan_of(offset)
            seen = self._planner.snapshot_for(ranges, can_wait=True)
            count = len(partitions_of(ranges, self._options, seen.addresses, seen.replicas))
        parts[_PARTITIONS] = spent[_PARTITIONS] * 1000
        if count != _QUEUES:
            raise RuntimeError(f"{count} of {_QUEUES} queues were planned.")
        self._offset = offset
        self._commit(offset)
        return parts


def plain_triggers(name_server: str, pool: ChannelPool) -> Triggers:
    """A stream whose progress is in Spark's checkpoint."""
    watch = Stopwatch()
    options = _options(name_server)
    view = _timed_view(options, pool, watch)
    progress = CheckpointProgress(_starts(options, pool))
    return Triggers(options, _planner(options, view, progress, watch), watch, lambda _: None)


def group_triggers(name_server: str, pool: ChannelPool, table: Path) -> Triggers:
    """A consumer group whose progress is in a Delta table that somebody else commits to."""
    watch = Stopwatch()
    options = _options(name_server, consumerGroup=_GROUP, offsetStore=str(table))
    view = _timed_view(options, pool, watch)
    queues = tuple(view.snapshot().bounds)
    progress = GroupProgress(
        consumer_group=_GROUP,
        client_id="bench",
        store=Timed(DeltaOffsetStore(table), watch, read=_STORE),
        ownership=OneMember(lambda: queues),
        starts=_starts(options, pool),
        clock=_CLOCK,
    )
    committer = DeltaOffsetStore(table)

    def commit(offset: Offset) -> None:
        seq, ranges = offset_to_plan(offset)
        commits = [
            QueueCommit(queue=each.queue, state=each.state._replace(next_offset=each.end)) for each in ranges
        ]
        committer.commit(_GROUP, commits, query_id="bench", batch_id=seq)

    return Triggers(options, _planner(options, view, progress, watch), watch, commit)


def _options(name_server: str, **more: str) -> ReadOptions:
    # As many offsets as queues: each trigger plans one message of every queue.
    return ReadOptions.parse(
        {"nameServers": name_server, "topic": _TOPIC, "maxOffsetsPerTrigger": str(_QUEUES), **more}
    )


def _timed_view(options: ReadOptions, pool: ChannelPool, watch: Stopwatch) -> Any:
    view = ClusterView(options, _TimedPool(pool, watch), _CLOCK)  # type: ignore[arg-type]
    return Timed(view, watch, snapshot=_LOOK)


def _starts(options: ReadOptions, pool: ChannelPool) -> Starts:
    return OptionPositions.of(options, pool, _CLOCK, EARLIEST).starts


def _planner(options: ReadOptions, view: Any, progress: Any, watch: Stopwatch) -> MicroBatchPlanner:
    timed: Any = Timed(progress, watch, read=_PROGRESS)
    return MicroBatchPlanner(options, view, timed, _CLOCK, time.sleep)


class _TimedPool:
    """A pool whose channels measure how long their answers took."""

    def __init__(self, pool: ChannelPool, watch: Stopwatch) -> None:
        self._pool = pool
        self._watch = watch

    def get(self, address: str, deadline: Deadline) -> Any:
        return Timed(self._pool.get(address, deadline), self._watch, request=_BROKERS_WAITED)


def _fill(name_server: str, pool: ChannelPool, *, per_queue: int) -> None:
    admin = BrokerClient(pool, _CLOCK, _TIMEOUT_S)
    names = NameServerClient((name_server,), pool, _CLOCK, _TIMEOUT_S)
    # TBW102 is on every broker, so its route contains all their addresses.
    for broker in names.route("TBW102", Deadline.after(_CLOCK, _TIMEOUT_S)).brokers:
        admin.create_topic(str(broker.master), _TOPIC, _QUEUES // _BROKERS)
    message = Message(topic=_TOPIC, body=b"x")
    fill(name_server, _TOPIC, per_queue=per_queue, message=lambda _: message, queues=_QUEUES)
