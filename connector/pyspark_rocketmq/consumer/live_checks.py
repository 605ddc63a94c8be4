"""Checks, before a query starts, whether it can run in real time, and why not.

In real time the tasks of a batch run for minutes. So a query needs three things that micro-batches do not
need. Each task has a task slot for all this time. Each task reports its results over a connection to the
driver. And Spark does not kill the tasks' Python workers, which yield no rows to Spark meanwhile. A query
that lacks one of these would start, and stop consuming later, perhaps after hours.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import OptionError, TransportError
from pyspark_rocketmq.hub.connections import HubClient
from pyspark_rocketmq.hub.session import HubAddress
from pyspark_rocketmq.hub.state import Slots
from pyspark_rocketmq.sinks.base import CommitsGroups, Sink
from pyspark_rocketmq.sinks.multi import single_sinks
from pyspark_rocketmq.sinks.shared_storage import is_on_one_machine
from pyspark_rocketmq.spark.session import IdleKill, ask_executors, idle_kill, most_slots, task_slots

logger = logging.getLogger(__name__)

_CONNECT_S: Final = 5.0
_MOST_SHOWN: Final = 3
"""Maximum number of hosts named in a problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveContext:
    """Facts about session, executors and sinks that decide whether a query can run in real time."""

    lasts_s: float
    """Length of a batch in seconds."""
    slots: int
    """Number of tasks that can run at the same time; 0 if unknown."""
    can_listen: bool = True
    """Whether the driver has opened a port to which planner and tasks connect."""
    unreached: Mapping[str, str] = field(default_factory=dict)
    """Hosts whose executors cannot connect to the driver, with the reason for each."""
    one_commit: tuple[str, ...] = ()
    """Sinks that can make only one commit in a batch."""
    by_spark: tuple[str, ...] = ()
    """Sinks whose rows Spark writes in a separate job."""
    idle_kill: IdleKill | None = None


def argument_problems(*, has_listener: bool, is_engine_state: bool, is_classic: bool) -> list[str]:
    """Return why a query with these arguments and this kind of session cannot run in real time."""
    problems = []
    if not has_listener:
        problems.append(
            "trigger realTime cannot be used with register_message_table(): Spark computes such a table, and "
            "its rows reach the sink only at the end of a batch. Use {'processingTime': '1 second'}, or "
            "register a listener"
        )
    if is_engine_state:
        problems.append(
            "trigger realTime cannot be used with orderly_engine 'state': there messages reach the listener "
            "through a shuffle, which ends only when the whole batch has been read. Leave out orderly_engine"
        )
    if not is_classic:
        problems.append(
            "trigger realTime cannot be used over Spark Connect: there the planner has no connection to the "
            "process that commits, so a new queue would wait for the end of a batch. Start the query in a "
            "classic session, or use {'processingTime': '1 second'}"
        )
    return problems


def live_problems(context: LiveContext) -> list[str]:
    """Return each reason why a query cannot run in real time; empty if it can."""
    problems = [
        f"trigger realTime cannot be used with {name}, which makes only one commit in a batch: its batches "
        "have no method commit_group. Use DeltaSink or DatabaseSink"
        for name in context.one_commit
    ]
    if context.by_spark and context.slots == 1:
        problems.append(
            "trigger realTime needs two task slots here, and the session has one. Consuming tasks hold "
            "their slots during the whole batch, and Spark needs another one to add rows to "
            f"{', '.join(context.by_spark)}. Start the session with more cores (spark.executor.cores, or "
            "local[2])"
        )
    if not context.can_listen:
        problems.append(
            "trigger realTime needs a connection from each task to the driver, and the driver could not open "
            "a port for them; its log has the reason. Correct spark.driver.bindAddress, or install OpenSSL "
            "if Spark encrypts its network"
        )
    if context.unreached:
        shown = [f"{host} ({reason})" for host, reason in sorted(context.unreached.items())]
        more = f" and {len(shown) - _MOST_SHOWN} more hosts" if len(shown) > _MOST_SHOWN else ""
        problems.append(
            "trigger realTime needs a connection from each task to the driver, and these hosts cannot make "
            f"one: {', '.join(shown[:_MOST_SHOWN])}{more}. Let executors reach spark.driver.host, or use "
            "{'processingTime': '1 second'}"
        )
    return problems + _idle_problems(context)


def _idle_problems(context: LiveContext) -> list[str]:
    kill = context.idle_kill
    if kill is None or kill.after_s >= context.lasts_s:
        return []
    time, end = kill.settings
    problem = (
        f"trigger realTime runs tasks that yield no rows for {context.lasts_s:g} s, the length of a batch, "
        f"but {end}=true ends such workers after {time}={kill.after_s:g} seconds. Set {end}=false, or set "
        f"{time} to more than {context.lasts_s:g}"
    )
    return [problem]


def live_context(
    spark: SparkSession, sink: Sink | None, consumer_group: str, hub: HubAddress | None, lasts_s: float
) -> LiveContext:
    """Return the facts about a session, its executors and the prepared ``sink`` (None without one).

    Tasks on the executors try to connect to ``hub``, the address at which the driver accepts connections;
    None if it could not open a port. ``lasts_s`` is the length of a batch in seconds.
    """
    begun: dict[str, Any] = {}
    if sink is not None:
        begun = {repr(each): each.begin(consumer_group, {}) for each in single_sinks(sink)}
    return LiveContext(
        lasts_s=lasts_s,
        slots=task_slots(spark).at_once,
        can_listen=hub is not None,
        unreached={} if hub is None else _unreached(spark, hub),
        one_commit=tuple(name for name, batch in begun.items() if not isinstance(batch, CommitsGroups)),
        by_spark=tuple(name for name, batch in begun.items() if getattr(batch, "is_by_spark", False)),
        idle_kill=idle_kill(spark),
    )


def check_live(
    spark: SparkSession, sink: Sink | None, consumer_group: str, hub_secret: str | None, lasts_s: float
) -> int:
    """Check that a query can run in real time; return the number of task slots it must leave free.

    Args:
        spark: A classic session.
        sink: The query's sinks, joined into one, after ``prepare``; None without a sink.
        consumer_group: The key of the group's progress.
        hub_secret: Address at which the driver accepts connections, with its key; None if it could not open
            a port.
        lasts_s: Length of a batch in seconds.

    Raises:
        OptionError: With every reason in session, executors and sinks why the query cannot run in real time.
    """
    hub = None if hub_secret is None else HubAddress.parse(hub_secret)
    context = live_context(spark, sink, consumer_group, hub, lasts_s)
    if problems := live_problems(context):
        raise OptionError(tuple(problems), where=f"configuration of consumer group '{consumer_group}'")
    return 1 if context.by_spark else 0


class FreeSlots:
    """Function that returns how many task slots the session has now, less some slots to leave free."""

    def __init__(self, spark: SparkSession, left: int) -> None:
        self._spark = spark
        self.left = left
        """Number of slots that a batch leaves free for Spark's other jobs."""

    def __call__(self) -> Slots:
        """Return the session's task slots; ``most_planned`` is lower by the number of slots to leave free."""
        slots = task_slots(self._spark)
        if self.left and not slots.most_planned:
            slots = slots._replace(most_planned=most_slots(self._spark))
        return spared(slots, self.left)


def spared(slots: Slots, count: int) -> Slots:
    """Return ``slots`` with ``most_planned`` lower by ``count``, so that a batch leaves these slots free.

    ``most_planned`` stays at least 1. If it is 0 (a batch may have any number of tasks), it stays 0.
    """
    most = slots.most_planned
    return slots._replace(most_planned=max(1, most - count) if most else 0, left=count)


def _unreached(spark: SparkSession, hub: HubAddress) -> dict[str, str]:
    """Have tasks connect to the driver; return the hosts where that fails, with the reason for each.

    The result is empty on a single machine, or if no executor runs in time.
    """
    if is_on_one_machine(spark):
        return {}
    rows = ask_executors(
        spark, Connect(hub), "host string, problem string", "Can all executors connect to the driver?"
    )
    if rows is None:
        logger.warning(
            "no executor was running in time to check that it can connect to the driver; if one cannot, the "
            "first batch fails"
        )
        return {}
    return {row["host"]: row["problem"] for row in rows}


class Connect:
    """Function for tasks that connects to the driver, and yields a row with host and reason if that fails."""

    def __init__(self, hub: HubAddress) -> None:
        self._hub = hub

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Connect once for the whole task; yield a batch with one row if that fails, else an empty batch."""
        for _ in batches:
            pass
        problems = []
        try:
            HubClient[None](
                self._hub,
                decode=lambda _, __: None,
                received=lambda _: None,
                lost=lambda: None,
                clock=SystemClock(),
                timeout_s=_CONNECT_S,
            ).close()
        except TransportError as error:
            problems.append(error.detail)
        yield pa.RecordBatch.from_pydict(
            {
                "host": pa.array([socket.gethostname()] * len(problems), pa.string()),
                "problem": pa.array(problems, pa.string()),
            }
        )
