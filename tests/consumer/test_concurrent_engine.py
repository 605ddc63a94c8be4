"""The concurrent engine as Spark calls it: pickled, with record batches of the source."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import create_autospec

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.client.producer.send_back import SendBackSettings
from pyspark_rocketmq.consume.concurrent import ConcurrentSettings
from pyspark_rocketmq.consume.part import QueueAck, joined, reset_after
from pyspark_rocketmq.consume.turns import QUEUE_PACE, RangeInstructions
from pyspark_rocketmq.consumer.engine.arrivals import ClosedSource
from pyspark_rocketmq.consumer.engine.call_pool import CallPool, PooledRange, RangesAtOnce
from pyspark_rocketmq.consumer.engine.concurrent import ConcurrentEngine
from pyspark_rocketmq.consumer.engine.output import Consumed
from pyspark_rocketmq.errors import ListenerError, RocketMQError
from pyspark_rocketmq.listeners.arrow_listener import ArrowListener, PandasListener
from pyspark_rocketmq.listeners.context import ConsumeConcurrentlyContext
from pyspark_rocketmq.listeners.forms import form_of
from pyspark_rocketmq.listeners.row_validation import RowColumns
from pyspark_rocketmq.model import (
    ConsumeConcurrentlyStatus,
    MessageExt,
    MessageQueue,
    QueueRange,
    QueueState,
)
from pyspark_rocketmq.source.schema import Arrival, EndReason, RangeEnd
from tests.helpers.messages import message_at
from tests.helpers.scripted_cluster import ScriptedCluster
from tests.helpers.source_rows import rows_of, source_of
from tests.helpers.wait import PATIENCE_S, wait_until

ORDERS = MessageQueue("orders", "broker-a", 3)
RETRY = MessageQueue("%RETRY%billing", "broker-a", 0)
OUTPUT = StructType().add("name", "string")


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster() as cluster:
        cluster.routes["orders"] = cluster.route({"broker-a": 4})
        cluster.routes["%RETRY%billing"] = cluster.route({"broker-a": 1})
        yield cluster


def fail_every_third(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
    (message,) = messages
    context.emit(name=f"{message.topic}:{message.queue_offset}")
    if message.queue_offset % 3 == 0:
        context.delay_level_when_next_consume = 2
        return ConsumeConcurrentlyStatus.RECONSUME_LATER
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


async def fail_every_third_later(
    messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext
) -> object:
    await asyncio.sleep(0.001)
    return fail_every_third(messages, context)


def consume(
    cluster: ScriptedCluster, rows: Sequence[dict[str, Any]], listener: Any = fail_every_third
) -> list[Consumed]:
    engine = ConcurrentEngine(
        form_of(listener, orderly=False),
        OUTPUT,
        ConcurrentSettings(max_reconsume_times=7),
        SendBackSettings(
            name_servers=(cluster.name_server.address,),
            consumer_group="billing",
            # What is late is sent once more: not because the machine is busy.
            back_timeout_s=60.0,
        ),
    )
    return list(pickle.loads(pickle.dumps(engine))(source_of(rows, 4)))


@pytest.mark.parametrize("listener", [fail_every_third, fail_every_third_later], ids=["threads", "loop"])
def test_a_range_becomes_its_rows_and_one_ack(cluster: ScriptedCluster, listener: Any) -> None:
    """E1-E3, E6: acknowledged messages' rows with their positions; the others are sent back from the task."""
    planned = QueueRange.between(ORDERS, 10, 16, epoch=4)

    (consumed,) = consume(cluster, rows_of(planned), listener)

    data = [row for rows in consumed.batches() for row in rows.to_pylist()]
    assert [(row["queueId"], row["queueOffset"], row["name"]) for row in data] == [
        (3, offset, f"orders:{offset}") for offset in (10, 11, 13, 14)
    ]
    ack = consumed.ack
    assert (ack.queue, ack.state.epoch, ack.start, ack.state.next_offset, ack.sent_back) == (
        ORDERS,
        4,
        10,
        16,
        2,
    )
    sent_back = [request.ext_fields for request in cluster.brokers["broker-a"].sent_back]
    assert sorted(fields["offset"] for fields in sent_back) == ["1200", "1500"]
    assert {(fields["delayLevel"], fields["maxReconsumeTimes"]) for fields in sent_back} == {("2", "7")}


def test_messages_of_the_retry_topic_come_under_their_own_topic(cluster: ScriptedCluster) -> None:
    """E3: rows and ack are the retry queue's, and what fails again goes back to the retry queue's broker."""
    planned = QueueRange.between(RETRY, 0, 3, epoch=1)

    (consumed,) = consume(cluster, rows_of(planned, originTopic="orders"))

    data = [row for rows in consumed.batches() for row in rows.to_pylist()]
    assert [(row["topic"], row["queueOffset"], row["name"]) for row in data] == [
        ("%RETRY%billing", offset, f"orders:{offset}") for offset in (1, 2)
    ]
    assert consumed.ack.queue == RETRY
    (request,) = cluster.brokers["broker-a"].sent_back
    assert request.ext_fields["originTopic"] == "orders"


def test_ranges_that_share_a_task_are_consumed_one_after_the_other(cluster: ScriptedCluster) -> None:
    """E6: as after coalesced partitions."""
    ranges = [
        QueueRange.between(ORDERS, 1, 3, epoch=1),
        QueueRange.between(ORDERS._replace(queue_id=0), 7, 9, epoch=1),
    ]

    brought = consume(cluster, [row for planned in ranges for row in rows_of(planned)])

    # The second one begins when the calls of the first one are out, and may end before it.
    brought.sort(key=lambda each: each.ack.start)
    found = [[rows.column("queueOffset").to_pylist() for rows in each.batches()] for each in brought]
    assert (found, [each.ack.state.next_offset for each in brought]) == ([[[1, 2]], [[7, 8]]], [3, 9])


def test_a_range_that_lost_a_row_is_refused_before_anything_is_delivered(cluster: ScriptedCluster) -> None:
    """E6, H1: the whole range would be acknowledged."""
    rows = rows_of(QueueRange.between(ORDERS, 10, 16, epoch=4))

    with pytest.raises(RocketMQError, match="6 messages were read"):
        consume(cluster, rows[1:])
    assert not cluster.brokers["broker-a"].sent_back


def engine_of(listener: Any, **settings: Any) -> ConcurrentEngine:
    nowhere = SendBackSettings(name_servers=("127.0.0.1:1",), consumer_group="billing")
    return ConcurrentEngine(form_of(listener, orderly=False), OUTPUT, ConcurrentSettings(**settings), nowhere)


def ranges_of(queues: int, count: int = 1) -> ClosedSource:
    """Ranges of ``queues`` queues with ``count`` messages each."""
    planned = [
        QueueRange.between(MessageQueue("orders", "broker-a", number), 0, count, epoch=1)
        for number in range(queues)
    ]
    return source_of([row for each in planned for row in rows_of(each)], 4)


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "loop"])
def test_calls_of_all_queues_of_a_task_are_under_way_at_once(*, is_async: bool) -> None:
    """E1: as in Java, one pool for all of them; a slow call holds up no other queue."""
    all_are_here = threading.Barrier(8)
    here: list[asyncio.Event] = []

    def wait(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        all_are_here.wait(PATIENCE_S)
        context.emit(name=str(messages[0].queue_id))
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async def wait_on_loop(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        here.append(asyncio.Event())
        if len(here) == 8:
            for each in here:
                each.set()
        await asyncio.wait_for(here[-1].wait() if len(here) < 8 else asyncio.sleep(0), PATIENCE_S)
        context.emit(name=str(messages[0].queue_id))
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumed = list(engine_of(wait_on_loop if is_async else wait)(ranges_of(8)))

    assert sorted(each.ack.queue.queue_id for each in consumed) == list(range(8))
    assert {(each.ack.state.next_offset, each.ack.metrics.ok, len(each.rows)) for each in consumed} == {
        (1, 1, 1)
    }


@pytest.mark.parametrize("form", [ArrowListener, PandasListener])
@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize("kept", [[], [5], [2, 3]], ids=str)
def test_a_call_may_return_rows_of_any_of_its_messages(
    form: Callable[[Any], Any], at_once: int, kept: list[int]
) -> None:
    """H6: a filter may match nothing."""

    def listener(rows: Any, context: ConsumeConcurrentlyContext) -> Any:
        if form is PandasListener:
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS, rows[["queueOffset"]][
                rows.queueOffset.isin(kept)
            ]
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS, rows.select(["queueOffset"]).filter(
            pc.is_in(rows["queueOffset"], pa.array(kept))
        )

    (consumed,) = engine_of(form(listener), consume_message_batch_max_size=at_once)(ranges_of(1, 8))

    found = [row["queueOffset"] for rows in consumed.batches() for row in rows.to_pylist()]
    assert (found, consumed.ack.state.next_offset, consumed.ack.failed) == (kept, 8, 0)


def test_a_queue_with_a_backlog_leaves_room_for_the_others() -> None:
    """E1: its calls hold the whole pool, and each of the others gets a thread of it all the same."""
    others = threading.Semaphore(0)

    def listener(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        if messages[0].queue_id:
            others.release()
        elif messages[0].queue_offset == 6:
            # Behind all calls that the pool had at once.
            assert all(others.acquire(timeout=PATIENCE_S) for _ in range(3))
        else:
            time.sleep(QUEUE_PACE.slow_s)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    rows = [
        row
        for number in range(4)
        for row in rows_of(
            QueueRange.between(MessageQueue("orders", "broker-a", number), 0, 1 if number else 9, epoch=1)
        )
    ]
    consumed = list(engine_of(listener, consume_thread_max=2)(source_of(rows, 4)))

    assert {(each.ack.queue.queue_id, each.ack.state.next_offset) for each in consumed} == {
        (0, 9), (1, 1), (2, 1), (3, 1),
    }  # fmt: skip
    assert {each.ack.metrics.failed for each in consumed} == {0}


@pytest.mark.parametrize("most", [1, 3])
def test_the_queues_of_a_task_share_so_many_threads(most: int) -> None:
    """E1, E9: consumeThreadMax is the task's, and nothing is dropped."""
    guard = threading.Lock()
    running = highest = 0

    def listener(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        nonlocal running, highest
        with guard:
            running += 1
            highest = max(highest, running)
        time.sleep(0.002)
        with guard:
            running -= 1
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumed = list(engine_of(listener, consume_thread_max=most)(ranges_of(6, 20)))

    assert [each.ack.state.next_offset for each in consumed] == [20] * 6
    assert highest <= most


@pytest.mark.parametrize("queues", [1, 3])
def test_a_task_ends_when_calls_that_never_return_have_all_its_threads(
    cluster: ScriptedCluster, queues: int
) -> None:
    """E7: their messages are sent back; other queues come again with the next micro-batch."""
    release = threading.Event()

    def listener(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        release.wait(PATIENCE_S)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    engine = ConcurrentEngine(
        form_of(listener, orderly=False),
        OUTPUT,
        ConcurrentSettings(consume_thread_max=2, consume_timeout_s=0.3),
        SendBackSettings(
            name_servers=(cluster.name_server.address,), consumer_group="billing", back_timeout_s=60.0
        ),
    )
    try:
        consumed = list(engine(ranges_of(queues, 5)))
    finally:
        release.set()

    assert len(consumed) == queues
    assert sum(each.ack.sent_back for each in consumed) == 2
    assert sum(each.ack.state.next_offset for each in consumed) == 2
    assert {each.ack.finished for each in consumed} == {"THREADS_LOST"}


def test_an_error_in_one_queue_begins_no_further_call_of_the_others() -> None:
    """E1: the task fails, and its messages are delivered again."""
    has_begun, has_failed = threading.Event(), threading.Event()
    begun: list[int] = []

    def listener(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        if messages[0].queue_id == 0:
            assert has_begun.wait(PATIENCE_S)
            raise SystemExit
        begun.append(messages[0].queue_offset)
        has_begun.set()
        has_failed.wait(PATIENCE_S)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    rows = rows_of(QueueRange.between(MessageQueue("orders", "broker-a", 0), 0, 1, epoch=1))
    rows += rows_of(QueueRange.between(MessageQueue("orders", "broker-a", 1), 0, 9, epoch=1))
    with pytest.raises(ListenerError):
        list(engine_of(listener, consume_thread_max=2)(source_of(rows, 4)))
    has_failed.set()

    wait_until(lambda: all(each.name != "rocketmq-queue-1" for each in threading.enumerate()))
    assert len(begun) <= 2


class KeepsOne(RangeInstructions):
    """Gives up all queues but one when it is named, and takes what the others have brought."""

    def __init__(self) -> None:
        self.kept: int | None = None
        self.taken = threading.Event()

    def is_given_up(self, queue: MessageQueue) -> bool:
        return self.kept not in (None, queue.queue_id)

    def take(self, brought: object) -> bool:
        assert isinstance(brought, Consumed)
        assert brought.ack.finished == "GIVEN_UP"
        self.taken.set()
        return True


def test_a_queue_is_given_up_while_a_slow_call_of_another_one_has_the_only_thread() -> None:
    """E1, B5: it waits for a slot, and does not hold its next owner up."""
    instructions = KeepsOne()

    def listener(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        if messages[0].queue_offset == 0:
            # Either queue may be the first to get the thread.
            instructions.kept = messages[0].queue_id
            assert instructions.taken.wait(PATIENCE_S)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumed = list(engine_of(listener, consume_thread_max=1)(ranges_of(2, 2), instructions))

    assert [(each.ack.queue.queue_id, each.ack.state.next_offset) for each in consumed] == [
        (instructions.kept, 2)
    ]
    assert {each.ack.metrics.failed for each in consumed} == {0}


PLANNED = QueueRange.between(ORDERS, 100, 400, epoch=1)


def reset_read(after: Callable[[], object]) -> Iterator[list[Arrival]]:
    """Yield a range whose next pull, after a call of ``after``, is answered with a reset."""
    yield [Arrival(PLANNED, [[message_at(at, queue=ORDERS) for at in range(100, 132)]])]
    after()
    end = replace(PLANNED, end=132)
    yield [Arrival(PLANNED, (), RangeEnd(planned=end, rows=32, reason=EndReason.EARLY, reset_to=7))]


def test_a_reset_that_is_read_after_a_range_has_ended_early_is_passed_on() -> None:
    """F5: the broker reports it only once, and the rest of a closed range is read in any case."""
    has_ended = threading.Event()

    class Unopened:
        def open(self, context: object) -> None:
            raise OSError("the database is away")

        def consume_message(self, messages: object, context: object) -> object:
            raise AssertionError

    acks: list[QueueAck] = []
    source = ClosedSource(reset_read(lambda: has_ended.wait(PATIENCE_S)))
    for consumed in engine_of(Unopened())(source):
        assert not consumed.rows
        acks.append(consumed.ack)
        has_ended.set()

    assert [(ack.start, ack.state.next_offset, ack.reset_to) for ack in acks] == [
        (100, 100, None),
        (100, 100, 7),
    ]
    assert joined(*acks) == replace(acks[0], reset_to=7)


def test_a_reset_that_is_read_while_a_range_ends_is_passed_on() -> None:
    """F5: the result is made, and the task does not have it yet."""
    result = Consumed(
        [],
        QueueAck(
            queue=ORDERS, start=100, state=QueueState(101), consumed=1, failed=0, finished="THREADS_LOST"
        ),
        create_autospec(RowColumns, instance=True),
    )

    def consume(one: PooledRange) -> Consumed:
        wait_until(lambda: one.is_whole)
        return result

    source = ClosedSource(reset_read(lambda: None))
    found = list(RangesAtOnce(source, consume, CallPool(1), lambda _: False).consumed())

    assert found == [result, result._replace(ack=reset_after(result.ack, 7))]


def test_no_other_range_is_read_while_those_at_hand_take_much_memory() -> None:
    """E1: memory is bounded; a single range may take any number."""
    begun: list[int] = []
    ends = threading.Semaphore(0)
    pool = CallPool(4)

    def has_begun(count: int) -> bool:
        return len(begun) == count

    class Idle:
        def look_again(self) -> None:
            """Nobody waits."""

        def lets_next_begin(self) -> bool:
            return True

    def consume(one: PooledRange) -> Consumed:
        begun.append(one.planned.queue.queue_id)
        run = Idle()
        pool.join(run)
        pool.last_out()
        assert ends.acquire(timeout=PATIENCE_S)
        pool.leave(run)
        return Consumed(
            [], create_autospec(QueueAck, instance=True), create_autospec(RowColumns, instance=True)
        )

    planned = [
        QueueRange.between(MessageQueue("orders", "broker-a", number), 0, 1, epoch=1) for number in range(4)
    ]
    arrived = [
        [Arrival(each, [[message_at(0)]], RangeEnd(planned=each, rows=1), nbytes=80 << 20)]
        for each in planned
    ]
    results: list[Consumed] = []
    task = RangesAtOnce(ClosedSource(arrived), consume, pool, lambda _: False)
    thread = threading.Thread(target=lambda: results.extend(task.consumed()))
    thread.start()
    wait_until(partial(has_begun, 2))
    for count in (3, 4):
        ends.release()
        wait_until(partial(has_begun, count))
    for _ in range(2):
        ends.release()
    thread.join(PATIENCE_S)

    assert begun == [0, 1, 2, 3]
    assert len(results) == 4
