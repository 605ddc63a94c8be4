"""Creates a member from options, and makes it leave the group when the process ends.

Spark ends the planner process with SIGTERM, without calling our code before. If the driver dies, the planner
process exits by itself. In both cases the member leaves. If this process is killed by ``kill -9``, or its
machine fails, brokers keep the member until their time-outs.

Spark ends the Python workers up to four seconds after the planner. So the planner keeps the locks until the
driver reports that no listener call is running, or until Spark must have ended the workers.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import types
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Final

from pyspark_rocketmq.client.cluster import Cluster, subscription_data
from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.consume.allocation import AllocationStrategy, allocation_strategy
from pyspark_rocketmq.consume.membership import Allocate, Membership, MembershipTiming
from pyspark_rocketmq.display import masking_logger
from pyspark_rocketmq.group.member import CALL_TIMEOUT_S, GroupCalls, RunningMember
from pyspark_rocketmq.group.requests import ClientRemotingProcessor, ConsumeOne
from pyspark_rocketmq.hub.planner_end import PlannerControl
from pyspark_rocketmq.model import ConsumeFromWhere, MessageModel, MessageQueue
from pyspark_rocketmq.offsets.store import OffsetKey, OffsetStore
from pyspark_rocketmq.options.positions import EARLIEST
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, ConsumeType, HeartbeatData

logger = masking_logger(__name__)

_WITHIN_S: Final = 20.0
"""Maximum seconds for a member's last calls, which last so long only if a broker is silent: 10 s for the
round under way, then 3 s each for unregistering, for the check that no other process uses the member's name,
and for unlocking."""

_members: list[RunningMember] = []


def unregister_at_exit(member: RunningMember) -> None:
    """Stop ``member`` when this process exits or gets SIGTERM.

    SIGTERM is handled only if the process's first call of this function is on the main thread.
    """
    if not _members:
        atexit.register(_leave)
        if threading.current_thread() is threading.main_thread():
            _install()
    _members.append(member)


def _install() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def on_sigterm(number: int, frame: types.FrameType | None) -> None:
        # The interrupted main thread may hold any lock, so nothing here may wait.
        for member in _members:
            member.stop_soon()
        if callable(before):
            before(number, frame)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, on_sigterm)


def _leave() -> None:
    while _members:
        member = _members.pop()
        member.stop(member.calls_end_s + _WITHIN_S)


def offset_key(options: ReadOptions) -> str:
    """Return the key under which offset store and sink keep the progress of this consumer.

    It is ``GROUP`` or ``NAMESPACE%GROUP``, with ``@INSTANCE`` after it in broadcasting.
    """
    assert options.consumer_group is not None
    is_broadcast = options.message_model is MessageModel.BROADCASTING
    instance = options.instance_name if is_broadcast else None
    return str(OffsetKey(options.namespace or "", options.consumer_group, instance))


def client_id(options: ReadOptions) -> str:
    """Return ``HOST@INSTANCE``; without an instance name, each call makes a new, unique one.

    Source: ``ClientConfig.buildMQClientId``, ``changeInstanceNameToPID``.
    """
    instance = options.instance_name or f"{os.getpid()}#{uuid.uuid4().hex[:12]}"
    return f"{os.uname().nodename}@{instance}"


def join_group(
    options: ReadOptions,
    member_id: str,
    store: OffsetStore,
    clock: Clock,
    *,
    timing: MembershipTiming | None = None,
    driver: PlannerControl | None = None,
    open_listener: Callable[[], ConsumeOne] | None = None,
) -> RunningMember:
    """Create a member of ``options.consumer_group`` called ``member_id``; the caller starts and stops it.

    Args:
        options: The query's options.
        member_id: The client id.
        store: The offset store of the group.
        clock: The system's clock, except in tests.
        timing: Intervals of heartbeats, rebalances and locks; RocketMQ's by default. Other values must fit
            the brokers' time-outs.
        driver: This process's connection to the driver if the query is a ``PushConsumer``'s; otherwise None.
        open_listener: Opens the listener for a message that an administrator sends to this member; None if
            the listener runs on executors only.

    Raises:
        OptionError: If there is no such allocation strategy, or a certificate cannot be used.
    """
    group = options.consumer_group
    assert group is not None
    is_broadcast = options.message_model is MessageModel.BROADCASTING
    machine = Membership(
        member_id,
        _logging_errors(allocation_strategy(options.allocate_message_queue_strategy), group),
        needs_locks=options.needs_locks(),
        is_broadcast=is_broadcast,
        timing=timing,
    )
    now_ms = int(clock.now_s() * 1000)
    heartbeat = HeartbeatData(
        client_id=member_id,
        consumers=(
            ConsumerData(
                group_name=group,
                consume_type=ConsumeType.CONSUME_PASSIVELY,
                message_model=options.message_model,
                consume_from_where=_consume_from_where(options),
                subscriptions=tuple(
                    subscription_data(options.subscription_of(topic), sub_version=now_ms)
                    # A heartbeat replaces the group's subscriptions at the broker, so it contains all topics,
                    # as a Java consumer's does (A3).
                    for topic in options.all_subscribed()
                ),
            ),
        ),
    )
    # The member's calls have their own time-out: while a call waits, no lock is renewed.
    processor = ClientRemotingProcessor(options, store, offset_key(options), clock, open_listener)
    pool = ConnectionSettings.of(options).open_pool(clock, lambda _: processor)
    cluster = Cluster.of(options, clock, pool=pool, at_most_s=CALL_TIMEOUT_S)
    calls = GroupCalls(
        pool=pool,
        brokers=cluster.brokers(),
        routes=cluster.routes(options, cluster.name_server(options.route_refresh_ms / 1000)),
    )
    member = RunningMember(machine, heartbeat, calls, clock)
    processor.serve(member, heartbeat, None if driver is None else driver.was_reset)
    if driver is not None:
        member.watched_by(driver)
        driver.start(member)
    return member


def _logging_errors(strategy: AllocationStrategy, group: str) -> Allocate:
    """Return a function that allocates by ``strategy``, which may be a user's.

    If the strategy fails, the function logs the error and returns None, so that the member keeps its queues.

    Source: ``RebalanceImpl.rebalanceByTopic``.
    """

    def allocate(
        client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Collection[MessageQueue] | None:
        try:
            share = _checked(strategy.allocate(client_id, queues, members))
        except Exception:
            logger.exception(
                "queues cannot be allocated, this member keeps those it has and asks again at the next "
                "rebalance group=%s topic=%s strategy=%s",
                group,
                queues[0].topic,
                type(strategy).__name__,
            )
            return None
        return share

    return allocate


def _checked(share: Sequence[MessageQueue]) -> tuple[MessageQueue, ...]:
    if not all(isinstance(queue, MessageQueue) for queue in share):
        raise TypeError(f"allocate returned {share!r:.200}, which is not a sequence of MessageQueue")
    return tuple(share)


def _consume_from_where(options: ReadOptions) -> ConsumeFromWhere:
    if options.starting_timestamp is not None:
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    is_earliest = options.starting_offsets == EARLIEST
    return (
        ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        if is_earliest
        else ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    )
