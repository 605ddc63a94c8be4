"""A query that goes on until its block ends, while a test takes things away from it."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from pyspark_rocketmq.commit.pipeline import BatchReport
from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.model import ConsumeFromWhere
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.end_to_end.test_orderly_consumer import INSTANCE_NAME, Consumption, emit_step
from tests.helpers.orders import OUTPUT_SCHEMA
from tests.helpers.processes import all_pids, is_planner, parent_of
from tests.helpers.wait import wait_until

OFTEN = {"processingTime": "100 milliseconds"}

_PATIENCE_S = 240.0
"""More than anything here takes on a busy machine."""


class RunningQuery:
    """Consumes as ``consumption.drain`` does, in the same group, tables and checkpoint."""

    def __init__(
        self,
        consumption: Consumption,
        *,
        name_servers: str = "",
        listener: object = emit_step,
        trigger: Mapping[str, str] = OFTEN,
        **settings: Any,
    ) -> None:
        self._consumed = 0
        gateway = consumption.spark.sparkContext._gateway
        assert gateway is not None
        self._jvm = gateway.proc.pid
        others = set(self._runners())
        consumer = PushConsumer(
            consumer_group=consumption.group,
            name_servers=name_servers or consumption.cluster.name_servers,
            offset_store=consumption.store,
            orderly_engine=consumption.engine,
            **{
                "consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                "instance_name": INSTANCE_NAME,
            }
            | settings,
        )
        consumer.subscribe(consumption.topic)
        consumer.register_message_listener(listener, output_schema=OUTPUT_SCHEMA)
        consumer.register_batch_listener(self._count)
        self._query = consumer.start(
            consumption.spark,
            sink=DeltaSink(consumption.sink),
            checkpoint=str(consumption.folder / "checkpoint"),
            trigger=trigger,
        )
        self._others = others

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._query.stop()

    def await_consumed(self, messages: int) -> None:
        """Wait until batches with so many messages are committed."""
        wait_until(
            lambda: self._consumed >= messages or self._query.exception() is not None,
            _PATIENCE_S,
            reason=f"{messages} messages consumed",
        )
        assert self._query.exception() is None, self._query.exception()

    def await_failure(self) -> str:
        """Wait until the query has ended by itself; its error's text."""
        return str(wait_until(self._query.exception, _PATIENCE_S, reason="The query's failure"))

    def stop(self) -> BaseException | None:
        """Stop the query and wait for its end; the error it ended with, if any."""
        self._query.stop()
        return self._query.exception()

    def kill_planner(self) -> None:
        """SIGKILL to the process that plans this query."""
        (pid,) = set(self._runners()) - self._others
        os.kill(pid, signal.SIGKILL)

    def _count(self, report: BatchReport) -> None:
        self._consumed += sum(ack.consumed for ack in report.acks)

    def _runners(self) -> list[int]:
        """Source runners of the session; they are children of its JVM."""
        return [pid for pid in all_pids() if parent_of(pid) == self._jvm and is_planner(pid)]
