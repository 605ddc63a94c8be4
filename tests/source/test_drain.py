"""The end of a query with ``trigger(availableNow=True)``, without brokers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

import pytest

from pyspark_rocketmq.errors import ConnectFailed, OffsetError, RocketMQError, TransportError
from pyspark_rocketmq.model import MessageQueue, QueueBounds, QueueRange, QueueState
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.cluster_view import Snapshot
from pyspark_rocketmq.source.drain import Drain
from pyspark_rocketmq.source.progress import ProgressSource
from tests.helpers.fake_clock import FakeClock

A0, A1, B0 = (MessageQueue("orders", name, at) for name, at in (("a", 0), ("a", 1), ("b", 0)))
GROUP = {"consumerGroup": "g", "offsetStore": "delta:/unused", "drainTimeoutMs": "10000"}


class Progress:
    """The part of a group's progress that a drain reads."""

    def __init__(self) -> None:
        self.positions: dict[MessageQueue, int] = {}
        self.others: set[MessageQueue] = set()
        """Queues that are known to be other members'."""

    def position(self, queue: MessageQueue, _: object) -> int | None:
        return self.positions.get(queue)

    def left_to_others(self, queues: Collection[MessageQueue]) -> Collection[MessageQueue]:
        return self.others.intersection(queues)


class Case:
    def __init__(self, *, is_group: bool = True) -> None:
        self.clock = FakeClock()
        self.progress = Progress()
        self.reason = ""
        given = {"nameServers": "n:1", "topic": "orders", **(GROUP if is_group else {})}
        parsed = ReadOptions.parse(given)
        self.drain = Drain(parsed, cast("ProgressSource", self.progress), self.clock, lambda: self.reason)

    def begin(self, **ends: int) -> None:
        queues = {"a0": A0, "a1": A1, "b0": B0}
        self.drain.begin({queues[name]: QueueBounds(0, end) for name, end in ends.items()})

    def trouble_with(
        self,
        snapshot: Snapshot,
        *planned: MessageQueue,
        waiting: Mapping[MessageQueue, RocketMQError] | None = None,
    ) -> RocketMQError | None:
        """Return what the drain says after a plan in which only ``planned`` could be."""
        progress = {queue: QueueState(0) for queue in planned}
        return self.drain.trouble(snapshot, [], progress, waiting=waiting or {})


def seen(*queues: MessageQueue, **down: ConnectFailed) -> Snapshot:
    return Snapshot(bounds={queue: QueueBounds(0, 9) for queue in queues}, addresses={}, unreachable=down)


def test_a_query_that_does_not_drain_has_no_ends_and_no_trouble() -> None:
    case = Case()

    assert not case.drain.has_begun
    assert case.drain.left({A0: QueueState(3)}) == {}
    assert case.trouble_with(seen()) is None


def test_a_queue_is_left_until_its_end_at_the_beginning_is_reached() -> None:
    case = Case()
    case.begin(a0=5, a1=7)

    assert case.drain.left({A0: QueueState(5), A1: QueueState(6), B0: QueueState(0)}) == {A1: 6}


def test_queues_that_had_messages_and_were_in_no_plan_are_not_planned() -> None:
    case = Case()
    case.begin(a0=5, a1=7, b0=0)

    assert case.drain.not_planned([QueueRange.between(A0, 0, 3)]) == [QueueRange.between(A1, 0, 0)]


def test_a_deleted_queue_holds_up_no_drain() -> None:
    case = Case()
    case.begin(a0=5)
    assert isinstance(case.trouble_with(seen()), TransportError)

    case.drain.forget(A0)

    assert case.trouble_with(seen()) is None
    assert case.drain.has_begun


def test_a_drain_ends_although_a_broker_is_down_whose_queues_were_read() -> None:
    case = Case()
    case.begin(a0=5, b0=4)
    down = ConnectFailed("b:1", "refused")
    assert case.trouble_with(seen(A0, b=down), A0) is down

    case.progress.positions[B0] = 4

    assert case.trouble_with(seen(A0, b=down), A0) is None


def test_a_queue_that_the_plan_left_out_holds_up_the_drain() -> None:
    case = Case()
    case.begin(a0=5)
    error = ConnectFailed("a:1", "refused")

    assert case.trouble_with(seen(A0), waiting={A0: error}) is error


@pytest.mark.parametrize("position", [None, 4])
def test_a_queue_that_this_member_does_not_hold_holds_up_the_drain(position: int | None) -> None:
    """H4: it is in sight of the planner, and so it is not missing; nobody has read it to its end."""
    case = Case()
    case.begin(a0=5, a1=5)
    if position is not None:
        case.progress.positions[A1] = position

    shown = str(case.trouble_with(seen(A0, A1), A0))

    assert shown.startswith(f"{A1} may have unread messages")
    assert "are still locked by another member" in shown
    assert "if the member was killed, 60 s for its locks to end; or raise retryTimeoutMs" in shown


def test_a_queue_that_was_read_or_is_another_members_does_not_hold_up_the_drain() -> None:
    """H4: nor does one that was empty when the drain began; whose it is, is not known."""
    case = Case()
    case.begin(a0=5, a1=5, b0=0)
    case.progress.positions[A0] = 5
    case.progress.others = {A1}

    assert case.trouble_with(seen(A0, A1, B0)) is None


def test_a_missing_broker_holds_up_the_drain_whosever_its_queues_were() -> None:
    case = Case()
    case.begin(b0=4)
    case.progress.others = {B0}

    assert isinstance(case.trouble_with(seen(A0)), TransportError)


@pytest.mark.parametrize(
    ("reason", "advice"), [("", "why the listener gives"), ("r is set.", "r is set. Correct")]
)
def test_a_drain_that_does_not_move_for_its_timeout_fails(reason: str, advice: str) -> None:
    case = Case()
    case.reason = reason
    case.begin(a0=5, a1=5)
    case.drain.check_moves({A0: 3, A1: 1})
    case.clock.advance(9)
    case.drain.check_moves({A0: 3, A1: 2})
    case.clock.advance(9)
    case.drain.check_moves({A0: 3, A1: 2})
    case.clock.advance(1)

    with pytest.raises(OffsetError, match=rf"no progress for 10 s: .* at offset 3; .* at offset 2.*{advice}"):
        case.drain.check_moves({A0: 3, A1: 2})


def test_a_plain_stream_may_stand_still_for_any_time() -> None:
    case = Case(is_group=False)
    case.begin(a0=5)
    case.drain.check_moves({A0: 3})
    case.clock.advance(99)

    case.drain.check_moves({A0: 3})
