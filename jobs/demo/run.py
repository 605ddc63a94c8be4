"""Job ``demo``: the whole path, from a producer through a broker and a listener into a Delta table."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType

from rich.console import Console

import pyspark_rocketmq as rmq
from jobs.cluster_look import broker_bounds
from jobs.demo.cluster import embedded_cluster
from jobs.demo.listener import OUTPUT_SCHEMA, on_order
from jobs.demo.names import RunNames
from jobs.demo.orders import order_events
from jobs.demo.producer import send_events
from jobs.demo.report import check_orders, print_findings, print_head, read_orders, verdict_line
from jobs.demo.settings import DemoSettings
from jobs.demo.topic import DemoTopic
from jobs.errors import JobFailed
from jobs.offset_view import view_offsets
from jobs.offsets_show import print_offsets
from jobs.progress import RowCounter, await_query, progress_bar
from jobs.session import spark_session
from pyspark_rocketmq.client.producer.producer import Producer

_REQUEST_TIMEOUT_MS = 5_000


def run_demo(settings: DemoSettings, console: Console) -> None:
    """Produce, consume until drained, show and check.

    Raises:
        JobFailed: If a message was lost, doubled or out of order, or the demo could not run.
    """
    names = RunNames.for_run(settings, datetime.now(UTC))
    console.print(f"Work directory: {names.work_dir}", markup=False, soft_wrap=True)
    with _terminable(), _cluster(settings) as name_servers:
        console.print(f"Name servers: {';'.join(name_servers)}", markup=False)
        sent = _produce(settings, names, name_servers, console)
        _consume(settings, names, name_servers, sent, console)
        _show(names, name_servers, console)
    _check(settings, names, sent, console)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM unwinds the stack, so that the embedded cluster is stopped as well."""

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


def _produce(settings: DemoSettings, names: RunNames, name_servers: Sequence[str], console: Console) -> int:
    queues = DemoTopic(names.topic, name_servers).ensure()
    console.print(f"Topic: {names.topic}, {len(queues)} queues", markup=False)
    events = order_events(settings.orders, settings.seed)
    started_s = time.monotonic()
    with (
        Producer(";".join(name_servers), producer_group=f"{names.consumer_group}-producer") as producer,
        progress_bar(console) as bar,
    ):
        task = bar.add_task("messages sent", total=settings.orders * 5)
        sent = send_events(producer, events, queues, lambda count: bar.advance(task, count))
    console.print(f"Sent {sent} messages in {time.monotonic() - started_s:.1f} s")
    return sent


def _consume(
    settings: DemoSettings, names: RunNames, name_servers: Sequence[str], sent: int, console: Console
) -> None:
    counter = RowCounter()
    with spark_session("demo") as spark:
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
            "The listener gives some deliveries back on purpose; its warnings are part of the demo."
        )
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
        f"Consumed {counter.rows} rows in {took_s:.1f} s, {counter.rows / took_s:,.0f} rows per second with the "
        f"query's start; deliveries given back by the listener on purpose: {counter.given_back}"
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
        raise JobFailed("The order check failed: what was consumed is not what was sent.")
