"""Command ``demo``: the whole path from a producer through a broker and a listener into a Delta table.

The broker is ``broker_sim`` as a child process, or the user's cluster.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from math import inf
from pathlib import Path
from tempfile import gettempdir
from types import FrameType
from typing import IO

from rich.console import Console

import pyspark_rocketmq as rmq
from pyspark_rocketmq.cli.demo.orders import (
    MESSAGES_PER_REQUEST,
    OUTPUT_SCHEMA,
    on_order,
    order_events,
    send_events,
)
from pyspark_rocketmq.cli.demo.report import (
    check_orders,
    print_findings,
    print_head,
    read_orders,
    verdict_line,
)
from pyspark_rocketmq.cli.demo.settings import DemoSettings
from pyspark_rocketmq.cli.offsets.cluster import broker_bounds
from pyspark_rocketmq.cli.offsets.records import view_offsets
from pyspark_rocketmq.cli.offsets.show import print_offsets
from pyspark_rocketmq.cli.running import RowCounter, await_query, progress_bar, spark_session
from pyspark_rocketmq.cli.settings import JobFailed
from pyspark_rocketmq.client.cluster import Cluster
from pyspark_rocketmq.client.pool import process_pool
from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.consume.latencies import LatencyHistogram
from pyspark_rocketmq.display import counted
from pyspark_rocketmq.errors import TopicNotFound
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, TopicRoute
from pyspark_rocketmq.wire.requests.send import AUTO_CREATE_TOPIC

_DEFAULT_FOLDER = "pyspark-rocketmq-demo-"
"""Prefix of the run's folder in the directory for temporary files."""

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 5.0
QUEUES = 8
_REQUEST_TIMEOUT_S = 5.0
_ROUTE_TIMEOUT_S = 40.0
"""Time for a topic's route to appear. A broker reports a new topic to the name server immediately, or with
its next heartbeat, every 30 s."""
_POLL_S = 0.1
_REQUEST_TIMEOUT_MS = 5_000
_LIVE_PER_SECOND = 2_000.0
_LIVE_BATCH = 8
"""Messages per request in real time: few, so that a message hardly waits for others of its queue."""
_STOP_QUERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNames:
    """Names of one run. Names that the settings lack contain the start time, so each run has its own."""

    topic: str
    consumer_group: str
    work_dir: Path

    @classmethod
    def for_run(cls, settings: DemoSettings, started: datetime) -> RunNames:
        """Take the names from the settings, or make them from the start time."""
        run = started.strftime("%Y%m%d-%H%M%S")
        work_dir = Path(settings.work_dir or Path(gettempdir(), _DEFAULT_FOLDER + run))
        return cls(
            topic=settings.topic or f"demo-orders-{run}",
            consumer_group=settings.consumer_group or f"demo-group-{run}",
            work_dir=work_dir,
        )

    @property
    def orders(self) -> str:
        """Path of the Delta table of consumed orders."""
        return str(self.work_dir / "orders")

    @property
    def offsets(self) -> str:
        """Path of the Delta table of the group's progress."""
        return str(self.work_dir / "offsets")

    @property
    def checkpoint(self) -> str:
        """Path of Spark's checkpoint."""
        return str(self.work_dir / "checkpoint")


@contextmanager
def embedded_cluster(brokers: int) -> Iterator[str]:
    """Start a simulated cluster in a child process; yield its name server's address; stop it in the end.

    Raises:
        JobFailed: If it does not start within 60 s.
    """
    # --exit-with-parent, because a demo that is killed cannot stop it.
    command = [
        sys.executable,
        "-m",
        "broker_sim",
        "--port",
        "0",
        "--brokers",
        str(brokers),
        "--exit-with-parent",
        str(os.getpid()),
    ]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)  # noqa: S603
    assert process.stdout is not None
    try:
        yield _read_addresses(process.stdout)
    finally:
        _stop(process)
        process.stdout.close()


def _read_addresses(output: IO[bytes]) -> str:
    """Return the name server's address from the JSON in the first line of the simulator's output.

    Raises:
        JobFailed: If there is no such line within 60 s.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        line = output.readline() if selector.select(_START_TIMEOUT_S) else b""
    try:
        return str(json.loads(line)["nameServers"])
    except (ValueError, KeyError) as error:
        raise JobFailed(
            f"The simulated cluster did not report its address within {_START_TIMEOUT_S:g} s; the first "
            f"line of its output was {line!r}. Run `pyspark-rocketmq simulator` to see why, or run the demo "
            "on another cluster: --option nameServers=HOST:PORT."
        ) from error


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def share_queues(broker_names: Collection[str], queues: int) -> dict[str, int]:
    """Return the number of queues of each broker, if ``queues`` queues are shared evenly.

    A remainder goes to the brokers that are first by name. Brokers that get no queue are left out.
    ``broker_names`` has at least one name.
    """
    each, more = divmod(queues, len(broker_names))
    shares = {name: each + (place < more) for place, name in enumerate(sorted(broker_names))}
    return {name: share for name, share in shares.items() if share}


class DemoTopic:
    """The topic of the demo, on the cluster behind ``name_servers``."""

    def __init__(self, topic: str, name_servers: Sequence[str]) -> None:
        self._topic = topic
        self._clock = SystemClock()
        cluster = Cluster(tuple(name_servers), process_pool(), self._clock, _REQUEST_TIMEOUT_S)
        self._name_server, self._brokers = cluster.name_server(), cluster.brokers()

    def ensure(self) -> tuple[MessageQueue, ...]:
        """Create the topic if it is missing; return its queues.

        Raises:
            JobFailed: If messages were ever stored in it, or it cannot be created or gets no route.
            RocketMQError: If the cluster cannot be reached, or refuses.
        """
        try:
            route = self._route(self._topic)
        except TopicNotFound:
            self._create()
            route = self._await_route()
        self._check_empty(route)
        return route.publish_queues(self._topic)

    def _create(self) -> None:
        try:
            # Each broker that creates topics has this template for them.
            route = self._route(AUTO_CREATE_TOPIC)
        except TopicNotFound as error:
            raise JobFailed(
                "No broker of this cluster creates topics automatically, so the demo cannot create "
                f"'{self._topic}'. Create an empty topic with `mqadmin updateTopic -n HOST:PORT -c CLUSTER "
                "-t TOPIC`, and run the demo with --option topic=TOPIC."
            ) from error
        masters = _masters(route)
        if not masters:
            raise JobFailed(
                f"The demo cannot create '{self._topic}': no broker that creates topics automatically "
                f"({', '.join(sorted(broker.broker_name for broker in route.brokers))}) has a master now. "
                "Start the master of one of them, and run the demo again."
            )
        for broker_name, share in share_queues(masters, QUEUES).items():
            self._brokers.create_topic(masters[broker_name], self._topic, share)

    def _await_route(self) -> TopicRoute:
        deadline = Deadline.after(self._clock, _ROUTE_TIMEOUT_S)
        while not deadline.has_passed:
            self._name_server.invalidate(self._topic)
            try:
                route = self._route(self._topic)
            except TopicNotFound:
                route = None
            if route is not None and len(route.publish_queues(self._topic)) >= QUEUES:
                return route
            time.sleep(_POLL_S)
        raise JobFailed(
            f"Topic '{self._topic}' was created, but the name server does not list its {QUEUES} queues after "
            f"{_ROUTE_TIMEOUT_S:g} s; check that every broker of the cluster can reach the name server."
        )

    def _check_empty(self, route: TopicRoute) -> None:
        stored = sum(
            bounds.max_offset
            for address in _masters(route).values()
            for bounds in self._brokers.topic_stats(address, self._topic).values()
        )
        if stored:
            raise JobFailed(
                f"Topic '{self._topic}' is not new: brokers have stored {counted(stored, 'message')} in it, "
                "and the demo counts only its own messages. Give the name of a new topic, or leave option "
                "'topic' out."
            )

    def _route(self, topic: str) -> TopicRoute:
        return self._name_server.route(topic, Deadline.after(self._clock, _REQUEST_TIMEOUT_S))


def _masters(route: TopicRoute) -> Mapping[str, BrokerAddress]:
    return {broker.broker_name: broker.master for broker in route.brokers if broker.master is not None}


def run_demo(settings: DemoSettings, console: Console) -> None:
    """Send orders, consume all of them into a Delta table, show the first rows, and check the table.

    In real time, consume while they are sent.

    Raises:
        JobFailed: If a message was lost, duplicated or out of order, or the demo could not run.
        RocketMQError: If the cluster cannot be used.
    """
    names = RunNames.for_run(settings, datetime.now(UTC))
    console.print(f"Work directory: {names.work_dir}", markup=False, soft_wrap=True)
    with _terminable(), _cluster(settings) as name_servers:
        console.print(f"Name servers: {';'.join(name_servers)}", markup=False)
        queues = DemoTopic(names.topic, name_servers).ensure()
        console.print(f"Topic: {names.topic}, {len(queues)} queues", markup=False)
        latencies = None
        if settings.real_time:
            sent, latencies = _consume_in_real_time(settings, names, name_servers, queues, console)
        else:
            sent = _produce(settings, names, name_servers, queues, console)
            _consume(settings, names, name_servers, sent, console)
        _show(names, name_servers, console)
    _check(settings, names, sent, console)
    if latencies is not None:
        line = f"store to listener: {latencies.percentiles()}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _terminable() -> Iterator[None]:
    """Make SIGTERM raise SystemExit within the block, so that the simulated cluster is stopped, too."""

    def leave(signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signal module's
        sys.exit(128 + signal_number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def _cluster(settings: DemoSettings) -> Iterator[Sequence[str]]:
    if settings.name_servers is not None:
        yield settings.name_servers
        return
    with embedded_cluster(settings.brokers) as name_server:
        yield (name_server,)


def _produce(
    settings: DemoSettings,
    names: RunNames,
    name_servers: Sequence[str],
    queues: Sequence[MessageQueue],
    console: Console,
    *,
    per_second: float = inf,
    first_sent: Callable[[], None] | None = None,
) -> int:
    """Send the messages, at most ``per_second`` of them in a second; return their number.

    ``first_sent`` is called after the first message. The other messages are sent when it has returned.
    """
    events = order_events(settings.orders, settings.seed)
    started_s = time.monotonic()
    with (
        Producer(";".join(name_servers), producer_group=f"{names.consumer_group}-producer") as producer,
        progress_bar(console) as bar,
    ):
        task = bar.add_task("messages sent", total=settings.orders * 5)
        sent = total = 0
        if first_sent is not None:
            sent = send_events(producer, islice(events, 1), queues, lambda count: bar.advance(task, count))
            first_sent()
            started_s = time.monotonic()

        def on_sent(count: int) -> None:
            nonlocal total
            bar.advance(task, count)
            total += count
            time.sleep(max(0.0, started_s + total / per_second - time.monotonic()))

        size = MESSAGES_PER_REQUEST if per_second == inf else _LIVE_BATCH
        sent += send_events(producer, events, queues, on_sent, batch_size=size)
    console.print(f"Sent {sent} messages in {time.monotonic() - started_s:.1f} s")
    return sent


def _consumer(
    settings: DemoSettings,
    names: RunNames,
    name_servers: Sequence[str],
    counter: RowCounter,
    console: Console,
) -> rmq.PushConsumer:
    consumer = rmq.PushConsumer(
        consumer_group=names.consumer_group,
        name_servers=";".join(name_servers),
        offset_store=rmq.DeltaOffsetStore(names.offsets),
        consume_from_where=rmq.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        consume_message_batch_max_size=settings.batch_size,
        max_offsets_per_trigger=settings.max_offsets_per_trigger,
    )
    consumer.subscribe(names.topic)
    consumer.register_message_listener(on_order, orderly=True, output_schema=OUTPUT_SCHEMA)
    consumer.register_batch_listener(counter)
    console.print(
        "The demo's listener fails on purpose now and then, so tracebacks and warnings are expected."
    )
    return consumer


def _consume_in_real_time(
    settings: DemoSettings,
    names: RunNames,
    name_servers: Sequence[str],
    queues: Sequence[MessageQueue],
    console: Console,
) -> tuple[int, LatencyHistogram]:
    """Consume messages while they are sent.

    Return the number of messages sent, and how long they took from their storage to the listener.
    """
    counter = RowCounter()
    with spark_session("demo") as spark:
        consumer = _consumer(settings, names, name_servers, counter, console)
        query = consumer.start(
            spark,
            sink=rmq.DeltaSink(names.orders),
            checkpoint=names.checkpoint,
            trigger={"realTime": "5 minutes"},
        )

        def await_first() -> None:
            """Wait until the first row is there, so that the query's start does not count as latency."""
            while not counter.rows and query.isActive:
                time.sleep(_POLL_S)
            counter.forget_latencies()

        sent = _produce(
            settings,
            names,
            name_servers,
            queues,
            console,
            per_second=_LIVE_PER_SECOND,
            first_sent=await_first,
        )
        await_query(query, counter, sent, console, is_enough=lambda: counter.rows >= sent)
        if not consumer.stop(query, _STOP_QUERY_S):
            raise JobFailed(
                f"The query did not end within {_STOP_QUERY_S:g} s after it was asked to stop. Look for the "
                "reason in the log above, and run the demo again."
            )
        console.print(f"Consumed {counter.rows} rows while they were sent")
    return sent, counter.to_listener


def _consume(
    settings: DemoSettings, names: RunNames, name_servers: Sequence[str], sent: int, console: Console
) -> None:
    counter = RowCounter()
    with spark_session("demo") as spark:
        consumer = _consumer(settings, names, name_servers, counter, console)
        started_s = time.monotonic()
        query = consumer.start(
            spark,
            sink=rmq.DeltaSink(names.orders),
            checkpoint=names.checkpoint,
            trigger={"availableNow": True},
        )
        await_query(query, counter, sent, console)
        took_s = time.monotonic() - started_s
    console.print(
        f"Consumed {counter.rows} rows in {took_s:.1f} s, {counter.rows / took_s:,.0f} rows per second with "
        f"the query's start; deliveries given back by the listener on purpose: {counter.given_back}"
    )


def _show(names: RunNames, name_servers: Sequence[str], console: Console) -> None:
    print_head(read_orders(names.orders), names.orders, console)
    rows = rmq.DeltaOffsetStore(names.offsets).read(names.consumer_group).values()
    print_offsets(view_offsets(rows, broker_bounds(names.topic, name_servers, _REQUEST_TIMEOUT_MS)), console)


def _check(settings: DemoSettings, names: RunNames, sent: int, console: Console) -> None:
    report = check_orders(read_orders(names.orders), settings.orders)
    print_findings(report.examples, console)
    console.print(verdict_line(sent, report), markup=False, highlight=False, soft_wrap=True)
    if not report.is_clean or report.rows != sent:
        raise JobFailed(
            "The consumed messages differ from the sent ones: some are missing, doubled or out of order, as "
            "shown above. This is a bug, unless something else used the demo's topic or table: run the demo "
            "again, and report the output if it fails again."
        )
