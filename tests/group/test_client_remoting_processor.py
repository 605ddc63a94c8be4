"""What a member answers when a broker asks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pytest

from pyspark_rocketmq.consume.metrics import ConsumeMetrics, RecentMetrics
from pyspark_rocketmq.group.requests import ClientRemotingProcessor, ConsumeOne
from pyspark_rocketmq.listeners.arrow_listener import ArrowListener, PandasListener
from pyspark_rocketmq.listeners.context import ConsumeConcurrentlyContext, ConsumeOrderlyContext
from pyspark_rocketmq.listeners.direct_consume import DirectConsumer
from pyspark_rocketmq.model import ConsumeFromWhere, MessageExt, MessageModel, MessageQueue, QueueState
from pyspark_rocketmq.offsets.broker import BrokerOffsetStore
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, ConsumeType, HeartbeatData
from pyspark_rocketmq.wire.requests.client_info import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumeStatus,
)
from pyspark_rocketmq.wire.subscription import build_subscription
from tests.helpers.fake_clock import FakeClock
from tests.helpers.messages import message_at
from tests.helpers.offsets_at_brokers import OffsetsAtBrokers

HELD, OTHERS = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)


@dataclass
class Member:
    """Holds what it is set to hold, since a monotonic second."""

    queues: dict[MessageQueue, float]
    notifications: list[None] = field(default_factory=list)
    resets: dict[MessageQueue, int] = field(default_factory=dict)
    """For the next plan."""

    def held(self) -> Mapping[MessageQueue, float]:
        return self.queues

    def notified(self) -> None:
        self.notifications.append(None)

    def reset_found(self, queue: MessageQueue, target: int) -> None:
        self.resets[queue] = target


def opened(options: ReadOptions) -> Callable[[], ConsumeOne] | None:
    listener = options.listener
    if listener is None:
        return None
    return lambda: DirectConsumer(listener, "g", orderly=options.consume_orderly).consume


class Desk:
    """A desk of group ``g`` with both queues in its store and one held."""

    def __init__(self, clock: FakeClock, model: MessageModel = MessageModel.CLUSTERING, **more: str) -> None:
        clock.advance(100.0)
        self.store = MemoryOffsetStore("desk", clock=clock)
        self.store.claim("progress", "me", {HELD: 5, OTHERS: 7})
        self.member = Member({HELD: 90.0})
        options = ReadOptions.parse(
            {
                "nameServers": "ns:9876",
                "topic": "orders",
                "consumerGroup": "g",
                "offsetStore": self.store.spec,
                **more,
            }
        )
        self.desk = ClientRemotingProcessor(options, self.store, "progress", clock, opened(options))
        consumer = ConsumerData(
            group_name="g",
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=model,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            subscriptions=(build_subscription("orders", "paid", sub_version=1),),
        )
        self.unfenced: list[set[MessageQueue]] = []
        """Queues of each report of resets that no epoch fences off."""
        self.desk.serve(
            self.member,  # type: ignore[arg-type]
            HeartbeatData(client_id="me", consumers=(consumer,)),
            lambda queues: self.unfenced.append(set(queues)),
        )


@pytest.fixture
def at(clock: FakeClock) -> Desk:
    return Desk(clock)


def test_a_change_of_the_group_is_passed_on_and_another_groups_is_not(at: Desk) -> None:
    """B1."""
    at.desk.consumer_ids_changed("g")
    at.desk.consumer_ids_changed("another")

    assert len(at.member.notifications) == 1


def test_offsets_are_those_of_the_queues_held(at: Desk) -> None:
    assert at.desk.next_offsets("g", "orders") == {HELD: 5}
    assert at.desk.next_offsets("g", "another") == {}
    assert at.desk.next_offsets("another", "orders") == {}


def test_a_reset_moves_the_queues_held_and_fences_the_batch_under_way(at: Desk) -> None:
    """F5: every member gets all queues, and each moves its own."""
    epoch = at.store.read("progress")[HELD].epoch

    at.desk.reset_offsets("g", "orders", {HELD: 1, OTHERS: 1})

    rows = at.store.read("progress")
    assert (rows[HELD].next_offset, rows[OTHERS].next_offset) == (1, 7)
    assert rows[HELD].epoch == epoch + 1
    assert (at.member.resets, at.unfenced) == ({}, [set()])


def test_a_reset_in_a_store_at_the_brokers_is_stored_again_by_the_next_plan(clock: FakeClock) -> None:
    """F5: nothing there keeps a commit that is under way from replacing it."""
    at = Desk(clock)
    brokers = OffsetsAtBrokers("progress")
    brokers.offsets = {HELD: 5, OTHERS: 7}
    at.desk._store = BrokerOffsetStore(brokers)

    at.desk.reset_offsets("g", "orders", {HELD: 1, OTHERS: 1})

    assert brokers.offsets == {HELD: 1, OTHERS: 7}
    assert (at.member.resets, at.unfenced) == ({HELD: 1}, [{HELD}])


@pytest.mark.parametrize(
    "asked",
    [("another", "orders", {HELD: 1}), ("g", "another", {HELD: 1}), ("g", "orders", {HELD: -1})],
    ids=["another group", "another topic", "no offset"],
)
def test_a_reset_of_something_else_changes_nothing(
    asked: tuple[str, str, dict[MessageQueue, int]], at: Desk
) -> None:
    before = at.store.read("progress")

    at.desk.reset_offsets(*asked)

    assert at.store.read("progress") == before


def test_running_info_has_queues_locks_and_offsets(at: Desk) -> None:
    """B5, C2: the lock's moment is shown on the wall clock."""
    info = at.desk.running_info("g")

    assert info is not None
    assert [each.sub_string for each in info.subscriptions] == ["paid"]
    assert info.queues.keys() == {HELD}
    queue = info.queues[HELD]
    assert (queue.commit_offset, queue.locked) == (5, True)
    assert queue.last_lock_timestamp == 1_700_000_090_000
    assert info.properties["PROP_NAMESERVER_ADDR"] == "ns:9876"
    assert at.desk.running_info("another") is None


def test_running_info_has_the_rates_of_each_topic(at: Desk, clock: FakeClock) -> None:
    """D11: as of the last batch, for every topic of the group; a clock that goes on makes it less."""
    recent: RecentMetrics[MessageQueue] = RecentMetrics(clock.now_s() - 60)
    metrics = recent.add(HELD, ConsumeMetrics(600, 6, 10, 50.0, 606, 3, 6.0), clock.now_s())
    at.store.commit(
        "progress",
        [QueueCommit(queue=HELD, state=QueueState(9, 1), statistics=metrics)],
        query_id="q",
        batch_id=1,
    )

    info = at.desk.running_info("g")

    assert info is not None
    assert info.statuses == {
        "orders": ConsumeStatus(
            pull_rt=2.0,
            pull_tps=10.1,
            consume_rt=5.0,
            consume_ok_tps=10.0,
            consume_failed_tps=0.1,
            consume_failed_msgs=6,
        ),
        "%RETRY%g": ConsumeStatus(),
    }
    clock.advance(61)
    later = at.desk.running_info("g")
    assert later is not None
    assert later.statuses["orders"] == ConsumeStatus(consume_rt=5.0, consume_failed_msgs=6)


def test_a_broadcasting_member_has_no_locks(clock: FakeClock) -> None:
    """B3."""
    info = Desk(clock, MessageModel.BROADCASTING).desk.running_info("g")

    assert info is not None
    assert [(queue.locked, queue.last_lock_timestamp) for queue in info.queues.values()] == [(False, 0)]


def test_consuming_directly_is_refused_in_a_sentence(at: Desk) -> None:
    """D12: the listener is on the executors."""
    message = message_at(3)

    answer = at.desk.consume_directly("g", message)

    assert answer is not None
    assert answer.consume_result is ConsumeResult.CR_THROW_EXCEPTION
    assert "this member is a Spark query, whose listener runs on executors only" in (answer.remark or "")
    assert at.desk.consume_directly("another", message) is None


SEEN: list[int] = []


def answering(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> object:
    """Answers what the message's key says."""
    (message,) = messages
    SEEN.append(message.queue_offset)
    context.emit(anything="is dropped")
    context.auto_commit = message.keys != "ROLLBACK"
    if message.keys == "raise":
        raise ValueError("not today")
    if message.keys == "leave":
        sys.exit(3)
    if message.keys == "cancelled":
        raise asyncio.CancelledError
    return None if message.keys == "None" else message.keys


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ("SUCCESS", ConsumeResult.CR_SUCCESS),
        ("COMMIT", ConsumeResult.CR_COMMIT),
        ("ROLLBACK", ConsumeResult.CR_ROLLBACK),
        ("SUSPEND_CURRENT_QUEUE_A_MOMENT", ConsumeResult.CR_LATER),
        ("None", ConsumeResult.CR_RETURN_NULL),
        ("raise", ConsumeResult.CR_THROW_EXCEPTION),
        ("no status", ConsumeResult.CR_LATER),
    ],
)
def test_a_listener_that_has_a_name_consumes_one_message_directly(
    answer: str, result: ConsumeResult, clock: FakeClock
) -> None:
    """D12: here and now, and the offset stays where it is."""
    at = Desk(clock, listener=f"{__name__}:answering")
    before = at.store.read("progress")
    SEEN.clear()

    told = at.desk.consume_directly("g", message_at(3, keys=answer))

    assert told is not None
    assert (told.consume_result, told.order, told.auto_commit) == (result, True, answer != "ROLLBACK")
    assert told.remark == ("ValueError: not today" if answer == "raise" else None)
    assert told.spent_time_mills >= 0
    assert SEEN == [3]
    assert at.store.read("progress") == before


@pytest.mark.parametrize("key", ["leave", "cancelled"])
def test_a_base_exception_ends_only_its_call(key: str, clock: FakeClock) -> None:
    """D12: sys.exit in a listener would end the thread that answers the broker, for good and unseen."""
    told = Desk(clock, listener=f"{__name__}:answering").desk.consume_directly("g", message_at(3, keys=key))

    assert told is not None
    assert told.consume_result is ConsumeResult.CR_THROW_EXCEPTION
    assert told.remark in {"SystemExit: 3", "CancelledError: "}


async def answering_later(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
    await asyncio.sleep(0)
    return answering_concurrently(messages, context)


def answering_concurrently(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
    """Answers what the message's key says."""
    context.emit(anything="is dropped")
    context.ack_index = -1
    if messages[0].keys == "raise":
        raise ValueError("not today")
    if messages[0].keys == "frame":
        return pd.DataFrame({"name": ["a", "b"]})
    return None if messages[0].keys == "None" else messages[0].keys


@pytest.mark.parametrize("listener", ["answering_concurrently", "answering_later"])
@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ("CONSUME_SUCCESS", ConsumeResult.CR_SUCCESS),
        ("RECONSUME_LATER", ConsumeResult.CR_LATER),
        ("None", ConsumeResult.CR_RETURN_NULL),
        ("raise", ConsumeResult.CR_THROW_EXCEPTION),
        ("no status", ConsumeResult.CR_LATER),
        ("frame", ConsumeResult.CR_LATER),
    ],
)
def test_a_concurrent_listener_consumes_one_message_directly(
    listener: str, answer: str, result: ConsumeResult, clock: FakeClock
) -> None:
    """D12: its ackIndex does not matter, as in Java."""
    at = Desk(clock, listener=f"{__name__}:{listener}", consumeOrderly="false")

    told = at.desk.consume_directly("g", message_at(3, keys=answer))

    assert told is not None
    assert (told.consume_result, told.order, told.auto_commit) == (result, False, True)
    assert told.remark == ("ValueError: not today" if answer == "raise" else None)


@PandasListener
def answering_with_a_frame(messages: pd.DataFrame, context: ConsumeOrderlyContext) -> object:
    """Return the answer that the message's key names, with a row."""
    return messages["keys"][0], pd.DataFrame({"prices": [[Decimal("1.5"), None]], "at": [date(2026, 1, 2)]})


@ArrowListener
def answering_with_a_batch(messages: pa.RecordBatch, context: ConsumeOrderlyContext) -> object:
    """Return the answer that the message's key names, with a row."""
    return messages.column("keys")[0].as_py(), pa.RecordBatch.from_pydict({"prices": [[1.5, None]]})


@pytest.mark.parametrize("listener", ["answering_with_a_frame", "answering_with_a_batch"])
def test_rows_that_a_listener_returns_are_dropped_in_a_direct_call(listener: str, clock: FakeClock) -> None:
    """D12: of whatever types their columns are."""
    at = Desk(clock, listener=f"{__name__}:{listener}")

    result = at.desk.consume_directly("g", message_at(3, keys="SUCCESS"))

    assert result is not None
    assert (result.consume_result, result.remark) == (ConsumeResult.CR_SUCCESS, None)


def test_a_listener_that_this_process_cannot_import_is_reported(clock: FakeClock) -> None:
    """D12: the modules of executors may not be where the planner is."""
    told = Desk(clock, listener="no_such_module:on_order").desk.consume_directly("g", message_at(3))

    assert told is not None
    assert told.consume_result is ConsumeResult.CR_THROW_EXCEPTION
    assert "'no_such_module:on_order' cannot be imported" in (told.remark or "")


def test_messages_that_two_brokers_pass_on_at_the_same_time_have_one_listener(clock: FakeClock) -> None:
    """D12: as another one would open the listener's class a second time."""
    at = Desk(clock)
    used: list[int] = []
    opened: list[int] = []

    def open_listener() -> ConsumeOne:
        opened.append(number := len(opened))
        if not number:
            # The second message comes on another broker's thread, while the first one's opens the listener.
            at.desk.consume_directly("g", message_at(4))

        def consume(message: MessageExt) -> ConsumeMessageDirectlyResult:
            used.append(number)
            return ConsumeMessageDirectlyResult(consume_result=ConsumeResult.CR_SUCCESS, order=True)

        return consume

    at.desk._open_listener = open_listener
    at.desk.consume_directly("g", message_at(3))
    at.desk.consume_directly("g", message_at(5))

    assert len(used) == 3
    assert len(set(used)) == 1


def test_before_there_is_a_member_nothing_is_held(clock: FakeClock, at: Desk) -> None:
    store = MemoryOffsetStore("empty-desk", clock=clock)
    options = ReadOptions.parse(
        {"nameServers": "ns:9876", "topic": "orders", "consumerGroup": "g", "offsetStore": store.spec}
    )
    desk = ClientRemotingProcessor(options, store, "progress", clock)

    desk.consumer_ids_changed("g")

    assert desk.next_offsets("g", "orders") == {}
    assert desk.running_info("g") is None


def test_a_concurrent_member_says_so_and_shows_no_locks(clock: FakeClock) -> None:
    """D11, E1: consumerStatus."""
    desk = Desk(clock, consumeOrderly="false").desk

    info = desk.running_info("g")

    assert info is not None
    assert info.properties["PROP_CONSUMEORDERLY"] == "false"
    assert [(one.locked, one.last_lock_timestamp) for one in info.queues.values()] == [(False, 0)]
    refused = desk.consume_directly("g", message_at(0))
    assert refused is not None
    assert not refused.order


def test_a_reset_of_any_topic_of_the_group_is_followed(clock: FakeClock) -> None:
    """F5: of the retry topic, too."""
    at = Desk(clock)
    retry = MessageQueue("%RETRY%g", "broker-a", 0)
    at.store.claim("progress", "me", {retry: 5})
    at.member.queues[retry] = 90.0

    at.desk.reset_offsets("g", "%RETRY%g", {retry: 2})

    assert at.store.read("progress")[retry].next_offset == 2
