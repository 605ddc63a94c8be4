"""Checks before a query starts in real time, whose tasks run until their batch is over.

Such tasks hold their slots, yield no rows to Spark, and hand over what they have done on their connection to
the driver. Where one of these is impossible, the query would stand still or lose its workers, perhaps hours
later. So it is refused, with all the reasons together.
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
from pyspark_rocketmq.spark.session import IdleKill, ask_executors, idle_kill, task_slots

logger = logging.getLogger(__name__)

_CONNECT_S: Final = 5.0
_MOST_SHOWN: Final = 3
"""Maximum number of hosts named in a problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveContext:
    """The facts that decide if a query can run in real time, apart from its own arguments."""

    lasts_s: float
    """How long a batch lasts."""
    slots: int
    """How many tasks can run at the same time; 0 if unknown."""
    can_listen: bool = True
    """Whether the driver listens for planner and tasks."""
    unreached: Mapping[str, str] = field(default_factory=dict)
    """Why executors cannot reach the driver, by host."""
    one_commit: tuple[str, ...] = ()
    """Sinks that make one commit in a batch."""
    by_spark: tuple[str, ...] = ()
    """Sinks whose rows Spark writes, in a job of its own."""
    idle_kill: IdleKill | None = None


def argument_problems(*, has_listener: bool, is_engine_state: bool, is_classic: bool) -> list[str]:
    """Return the problems of a consumer's arguments, which need no session to be found."""
    problems = []
    if not has_listener:
        problems.append(
            "trigger realTime needs a listener: a table of messages is made by Spark's own expressions, "
            "which bring the rows of a batch at its end; use {'processingTime': '1 second'}"
        )
    if is_engine_state:
        problems.append(
            "trigger realTime needs orderly_engine 'direct': with 'state' messages reach the listener by "
            "Spark's shuffle, which waits until all of the batch are read"
        )
    if not is_classic:
        problems.append(
            "trigger realTime needs a classic session: over Spark Connect the planner has no connection to "
            "the process that commits, so a new queue would wait for the end of a batch; use "
            "{'processingTime': '1 second'}"
        )
    return problems


def live_problems(context: LiveContext) -> list[str]:
    """Return why a query cannot run in real time; empty if it can."""
    problems = [
        "trigger realTime needs sinks that make several commits in a batch, as DeltaSink and DatabaseSink "
        f"do, and {name} makes one: its batches have no commit_group"
        for name in context.one_commit
    ]
    if context.by_spark and context.slots == 1:
        problems.append(
            "trigger realTime needs two task slots, one of them for the jobs with which Spark adds rows "
            f"to {', '.join(context.by_spark)}, and the session has one: tasks hold their slots "
            "until the batch is over; start it with more cores (spark.executor.cores, or local[2])"
        )
    if not context.can_listen:
        problems.append(
            "trigger realTime needs connections of the tasks to the driver, which can accept none, as its "
            "log shows; correct spark.driver.bindAddress, or install OpenSSL if Spark encrypts its network"
        )
    if context.unreached:
        shown = [f"{host} ({reason})" for host, reason in sorted(context.unreached.items())]
        more = f" and {len(shown) - _MOST_SHOWN} more hosts" if len(shown) > _MOST_SHOWN else ""
        problems.append(
            "trigger realTime needs connections of the tasks to the driver, and there is none from "
            f"{', '.join(shown[:_MOST_SHOWN])}{more}; let executors reach spark.driver.host, or use "
            "{'processingTime': '1 second'}"
        )
    return problems + _idle_problems(context)


def _idle_problems(context: LiveContext) -> list[str]:
    kill = context.idle_kill
    if kill is None or kill.after_s >= context.lasts_s:
        return []
    time, end = kill.settings
    problem = (
        f"trigger realTime runs tasks that yield nothing for {context.lasts_s:g} s, and {end}=true ends "
        f"their workers after {time}={kill.after_s:g}; set {end}=false, or more seconds than a batch lasts"
    )
    return [problem]


def live_context(
    spark: SparkSession, sink: Sink | None, consumer_group: str, hub: HubAddress | None, lasts_s: float
) -> LiveContext:
    """Look at session and executors, and at the prepared ``sink``; ``hub`` is None if nobody listens."""
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
    """Check that a query can run in real time; return how many slots it must leave free.

    Args:
        spark: A classic session.
        sink: Its sinks, as one, and prepared.
        consumer_group: The key of its progress.
        hub_secret: Address and key of the query's hub; None if the driver cannot listen.
        lasts_s: How long a batch lasts.

    Raises:
        OptionError: With all reasons why it cannot.
    """
    hub = None if hub_secret is None else HubAddress.parse(hub_secret)
    context = live_context(spark, sink, consumer_group, hub, lasts_s)
    if problems := live_problems(context):
        raise OptionError(tuple(problems), where=f"configuration of consumer group '{consumer_group}'")
    return 1 if context.by_spark else 0


class FreeSlots:
    """How many tasks a batch may have now, if some slots are left to other jobs."""

    def __init__(self, spark: SparkSession, left: int) -> None:
        self._spark = spark
        self.left = left
        """Number of slots to leave."""

    def __call__(self) -> Slots:
        """Count the session's slots."""
        return spared(task_slots(self._spark), self.left)


def spared(slots: Slots, count: int) -> Slots:
    """Return the slots for a batch that leaves ``count`` of them free; at least one is for its tasks."""
    return slots._replace(most_planned=max(1, slots.most_planned - count)) if slots.most_planned else slots


def _unreached(spark: SparkSession, hub: HubAddress) -> dict[str, str]:
    """Let tasks connect to the driver; return why they cannot, by host."""
    if is_on_one_machine(spark):
        return {}
    rows = ask_executors(
        spark, Connect(hub), "host string, problem string", "Can all executors connect to the driver?"
    )
    if rows is None:
        logger.warning(
            "could not check in time whether executors can connect to the driver, because none was running; "
            "the first batch will show it"
        )
        return {}
    return {row["host"]: row["problem"] for row in rows}


class Connect:
    """Function for tasks that yields a row if the driver cannot be reached."""

    def __init__(self, hub: HubAddress) -> None:
        self._hub = hub

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See the class."""
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
