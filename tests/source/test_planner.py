from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Never

import pytest

from pyspark_rocketmq.clock import Deadline
from pyspark_rocketmq.consume.metrics import ConsumeMetrics, RecentMetrics
from pyspark_rocketmq.consume.part import not_begun
from pyspark_rocketmq.consume.planning import REST_S
from pyspark_rocketmq.errors import (
    BrokerError,
    ConnectFailed,
    DataLoss,
    NameServerNotReady,
    NoPermission,
    OffsetError,
    OffsetStoreUnavailable,
    RocketMQError,
    SystemBusy,
    TopicAway,
    TopicNotFound,
    TransportError,
)
from pyspark_rocketmq.group.broker_offsets import BrokerOffsets, ResetWatch
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueBounds, QueueRange, QueueState
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit, SinkRecord
from pyspark_rocketmq.options.positions import EARLIEST, LATEST, QueuePositions
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.cluster_view import Snapshot
from pyspark_rocketmq.source.first_contact import at_first_contact
from pyspark_rocketmq.source.message_lookup import MessageLookup
from pyspark_rocketmq.source.planner import MicroBatchPlanner
from pyspark_rocketmq.source.progress import CheckpointProgress, GroupProgress
from pyspark_rocketmq.source.queue_claims import LatelyArrived
from pyspark_rocketmq.source.queue_generations import CheckpointGenerations
from pyspark_rocketmq.source.ranges import Offset, offset_to_plan
from pyspark_rocketmq.source.topic_changes import Vanished
from pyspark_rocketmq.stored_values import LastMessage, RememberedMessages
from tests.helpers import stored_texts
from tests.helpers.fake_clock import FakeClock
from tests.helpers.ownership import OneMember

A0 = MessageQueue("orders", "broker-a", 0)
A1 = MessageQueue("orders", "broker-a", 1)
B0 = MessageQueue("orders", "broker-b", 0)
Ranges = list[tuple[MessageQueue, int, int]]


class FakeView:
    """A cluster whose bounds a test writes down; ``down`` names brokers that do not answer, or everything."""

    def __init__(self, bounds: Mapping[MessageQueue, tuple[int, int]]) -> None:
        self.bounds = dict(bounds)
        self.down: dict[str, RocketMQError] = {}
        self.not_in_route: set[str] = set()
        self.absent: dict[str, RocketMQError] = {}
        self.gone: dict[MessageQueue, DataLoss | None] = {}
        self.at_slaves: dict[MessageQueue, tuple[int, int]] = {}
        """What slaves have, once their masters are down."""
        self.updated_ms: dict[MessageQueue, int] = {}
        self.still_registering: RocketMQError | None = None
        self.addresses = {name: BrokerAddress(f"{name}:1") for name in ("broker-a", "broker-b")}

    def whole_snapshot(self) -> Snapshot:
        if self.still_registering is not None:
            raise self.still_registering
        return self.snapshot()

    def snapshot(self) -> Snapshot:
        if "everything" in self.down:
            raise self.down["everything"]
        return Snapshot(
            bounds={
                queue: QueueBounds(low, high, self.updated_ms.get(queue, 0))
                for queue, (low, high) in self.bounds.items()
                if queue.broker_name not in self.down and queue.broker_name not in self.not_in_route
            },
            addresses={
                name: address for name, address in self.addresses.items() if name not in self.not_in_route
            },
            unreachable=dict(self.down),
            absent=self.absent,
            still_registering=self.still_registering,
            slaves={
                queue.broker_name: BrokerAddress(f"{queue.broker_name}-slave:1")
                for queue in self.at_slaves
                if queue.broker_name in self.down
            },
            slave_bounds={
                queue: QueueBounds(*bounds)
                for queue, bounds in self.at_slaves.items()
                if queue.broker_name in self.down
            },
        )

    def vanished(self, known: Sequence[QueueRange], snapshot: Snapshot | None) -> list[Vanished]:
        return [Vanished(each.queue, self.gone[each.queue]) for each in known if each.queue in self.gone]

    def forget_deleted(self, snapshot: Snapshot) -> None:
        """Every look is at all there is."""

    def expect_retries(self) -> None:
        """Every look is at all there is."""

    def starting_positions(
        self, snapshot: Snapshot, queues: Collection[MessageQueue], default: QueuePositions
    ) -> dict[MessageQueue, int]:
        at_end = default == LATEST
        return {q: snapshot.bounds[q].max_offset if at_end else snapshot.bounds[q].min_offset for q in queues}


class Planning:
    """A planner over a fake cluster, on a clock that its pauses move."""

    def __init__(
        self,
        bounds: Mapping[MessageQueue, tuple[int, int]],
        *,
        group: bool = False,
        start: QueuePositions | None = None,
        store: MemoryOffsetStore | None = None,
        client_id: str = "me",
        down: Mapping[str, RocketMQError] | None = None,
        broker_offsets: BrokerOffsets | None = None,
        lately_arrived: LatelyArrived | None = None,
        reset_watch: ResetWatch | None = None,
        is_sole_owner: bool = False,
        message_lookup: MessageLookup | None = None,
        **options: str,
    ) -> None:
        self.clock = FakeClock()
        self.view = FakeView(bounds)
        self.view.down = dict(down or {})
        self.store = store or MemoryOffsetStore("test", clock=self.clock)
        self.pauses: list[float] = []
        self.on_pause: list[Any] = []
        given = {"nameServers": "n:1", "topic": "orders"} | options
        self._default_start = start or EARLIEST
        self.ownership = OneMember(lambda: self.view.bounds)
        view: Any = self.view
        progress = (
            GroupProgress(
                consumer_group="g",
                client_id=client_id,
                store=self.store,
                ownership=self.ownership,
                starts=self._starts,
                clock=self.clock,
                is_sole_owner=is_sole_owner,
                broker_offsets=broker_offsets,
                lately_arrived=lately_arrived,
                reset_watch=reset_watch,
                message_lookup=message_lookup,
                fail_on_data_loss=ReadOptions.parse(given).fail_on_data_loss,
            )
            if group
            else CheckpointProgress(self._starts)
        )
        self._message_lookup = None if group else message_lookup
        self.held_up = ""
        """The driver's report of queues that wait."""
        self.options: dict[str, str] = {}
        """Instead of those given, from the next restart on; an empty text leaves one out."""

        def planner_of(generations: CheckpointGenerations | None) -> MicroBatchPlanner:
            values = {key: value for key, value in (given | self.options).items() if value}
            options = ReadOptions.parse(values)
            return MicroBatchPlanner(
                options,
                view,
                progress,
                self.clock,
                self._pause,
                generations=generations,
                held_up=lambda: self.held_up,
            )

        self._planner_of = planner_of
        self._fails = ReadOptions.parse(given).fail_on_data_loss
        self.restart()
        self.offset: Offset = self.planner.initial()

    def _starts(self, snapshot: Snapshot, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        return self.view.starting_positions(snapshot, queues, self._default_start)

    def restart(self) -> None:
        """As a query does that was stopped; with only what it knows of the checkpoint."""
        watch = self._message_lookup
        generations = None
        if watch is not None:
            generations = CheckpointGenerations(watch, self.clock, fail_on_data_loss=self._fails)
        self.planner = self._planner_of(generations)

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.advance(seconds)
        for action in self.on_pause:
            action()

    def next(self) -> Ranges | None:
        """The next plan's non-empty ranges; None when Spark would run no batch."""
        latest = self.planner.latest(self.offset)
        if latest == self.offset:
            return None
        self.offset = latest
        self.planner.runnable(latest)
        return [(r.queue, r.start, r.end) for r in offset_to_plan(latest)[1] if r.count]

    def commit(self, queue: MessageQueue, next_offset: int, **facts: Any) -> bool:
        """What the committer does after a batch; whether the store took it."""
        epoch = next(r.state.epoch for r in offset_to_plan(self.offset)[1] if r.queue == queue)
        state = {name: facts.pop(name) for name in QueueState._fields if name in facts}
        commit = QueueCommit(queue=queue, state=QueueState(next_offset, epoch, **state), **facts)
        result = self.store.commit("g", [commit], query_id="q", batch_id=self.offset["seq"])
        return bool(result.accepted)


def test_a_plain_stream_goes_on_where_its_last_plan_ended() -> None:
    planning = Planning({A0: (0, 5), A1: (2, 3)})

    assert planning.next() == [(A0, 0, 5), (A1, 2, 3)]
    assert planning.next() is None

    planning.view.bounds[A1] = (2, 9)
    assert planning.next() == [(A1, 3, 9)]
    planning.view.bounds[A0] = (0, 6)
    assert planning.next() == [(A0, 5, 6)]


@pytest.mark.parametrize("group", [False, True], ids=["plain", "group"])
def test_a_single_micro_batch_holds_all_that_is_stored_whatever_the_limits(group: bool) -> None:
    """H4: ``trigger(once=True)`` runs one, and would end after a part."""
    planning = Planning(
        {A0: (0, 5_000), A1: (0, 2)}, group=group, maxOffsetsPerTrigger="10", minOffsetsPerTrigger="10"
    )

    offset = planning.planner.all_at_once(planning.offset)

    ranges = offset_to_plan(offset)[1]
    assert [(r.queue, r.start, r.end) for r in ranges] == [(A0, 0, 5_000), (A1, 0, 2)]
    planning.view.bounds[A0] = (0, 5_001)
    if not group:
        assert planning.planner.all_at_once(offset) == offset


def test_a_stream_from_latest_skips_what_was_there() -> None:
    planning = Planning({A0: (0, 5)}, start=LATEST)

    assert planning.next() is None
    planning.view.bounds[A0] = (0, 7)
    assert planning.next() == [(A0, 5, 7)]


def test_spark_gets_one_answer_for_the_initial_offset() -> None:
    """Spark asks twice in the first batch; a second look could be past the first batch's end."""
    planning = Planning({A0: (0, 5)}, start=LATEST)
    planning.view.bounds[A0] = (0, 50)

    assert planning.planner.initial() == planning.offset


def test_a_queue_that_appears_while_the_query_runs_is_read_from_its_start() -> None:
    """A2"""
    for group in (False, True):
        planning = Planning({A0: (0, 5)}, group=group, start=LATEST)
        assert planning.next() is None

        planning.view.bounds |= {B0: (3, 8)}
        assert planning.next() == [(B0, 3, 8)]


def test_a_group_is_planned_from_its_offset_store() -> None:
    """F1: what the store says is next, not what the previous batch planned."""
    planning = Planning({A0: (0, 10)}, group=True)
    assert planning.next() == [(A0, 0, 10)]

    assert planning.commit(A0, 4)

    assert planning.next() == [(A0, 4, 10)]


def test_a_limit_is_shared_by_the_queues_of_all_topics() -> None:
    """H3: in proportion to what is left in each, whatever its topic is called."""
    payments = MessageQueue("payments", "broker-b", 0)
    for group in (False, True):
        planning = Planning({A0: (0, 60), payments: (0, 30)}, group=group, maxOffsetsPerTrigger="30")

        assert planning.next() == [(A0, 0, 20), (payments, 0, 10)]


def test_a_queue_gets_no_more_than_its_threshold_and_without_one_all_there_is() -> None:
    """D13: Java's 1,000 would bound the throughput,
    for a queue gets its next messages with the next micro-batch.
    """
    for group in (False, True):
        assert Planning({A0: (0, 5000)}, group=group).next() == [(A0, 0, 5000)]
        planning = Planning({A0: (0, 5000), A1: (0, 7)}, group=group, pullThresholdForQueue="1000")
        assert planning.next() == [(A0, 0, 1000), (A1, 0, 7)]


def test_available_now_waits_for_a_topic_that_is_out_of_sight() -> None:
    """H4: name servers forget a topic whose brokers are all away;
    what was there at the start is to be drained.
    """
    payments = MessageQueue("payments", "broker-b", 0)
    planning = Planning({A0: (0, 5), payments: (0, 3)}, retryTimeoutMs="60000")
    planning.planner.prepare_available_now()
    del planning.view.bounds[payments]
    planning.view.absent = {"payments": TopicNotFound(17, "No topic route info")}
    assert planning.next() == [(A0, 0, 5)]

    def come_back() -> None:
        planning.view.bounds[payments] = (0, 3)
        planning.view.absent = {}

    planning.on_pause.append(come_back)
    assert planning.next() == [(payments, 0, 3)]
    assert planning.pauses


@pytest.mark.parametrize("group", [False, True], ids=["plain", "group"])
def test_an_available_now_query_does_not_begin_while_brokers_may_still_register(group: bool) -> None:
    """A2, H4: queues that it does not see at its beginning are not read."""
    planning = Planning({A0: (0, 5), B0: (0, 3)}, group=group, retryTimeoutMs="60000")
    planning.view.not_in_route = {"broker-b"}
    planning.view.still_registering = NameServerNotReady(0, "it had no broker")

    def registers() -> None:
        planning.view.not_in_route = set()
        planning.view.still_registering = None

    planning.on_pause.append(registers)
    planning.planner.prepare_available_now()

    assert planning.next() == [(A0, 0, 5), (B0, 0, 3)]


def test_an_available_now_query_does_not_begin_before_all_its_topics_are_seen() -> None:
    """H4."""
    planning = Planning({A0: (0, 5)}, retryTimeoutMs="2000")
    planning.view.absent = {"payments": TopicNotFound(17, "No topic route info of payments")}

    with pytest.raises(TopicNotFound, match="payments"):
        planning.planner.prepare_available_now()


def test_a_suspended_queue_is_planned_when_it_is_due_and_others_do_not_wait() -> None:
    """D3"""
    planning = Planning({A0: (0, 10), A1: (0, 10)}, group=True)
    planning.next()
    planning.commit(A1, 10)
    planning.commit(
        A0,
        4,
        suspended_until_s=planning.clock.now_s() + 2,
        reconsume_times=1,
        retry_counts=stored_texts.retries("[[4,9,1]]"),
    )

    planning.view.bounds[A1] = (0, 12)
    assert planning.next() == [(A1, 10, 12)]
    planning.commit(A1, 12)
    assert planning.next() is None
    planning.clock.advance(2)
    assert planning.next() == [(A0, 4, 10)]
    [planned] = offset_to_plan(planning.offset)[1]
    assert (planned.state.reconsume_times, planned.state.retry_counts.to_text()) == (1, "[[4,9,1]]")


def test_how_long_a_listener_has_a_message_is_known_from_what_was_counted() -> None:
    """D11: of a queue without a count nothing is known."""
    planning = Planning({A0: (0, 10), A1: (0, 10)}, group=True)
    planning.next()
    metrics = ConsumeMetrics(ok=3, failed=1, calls=2, call_ms=8.0)
    text = RecentMetrics[str](planning.clock.now_s()).add("", metrics, planning.clock.now_s())
    planning.commit(A0, 4, statistics=text)
    planning.next()

    assert planning.planner.listener_ms(A0) == 2.0
    assert planning.planner.listener_ms(A1) is None
    planning.clock.advance(7200)
    assert planning.planner.listener_ms(A0) is None


@pytest.mark.parametrize("timeout_ms", [5_000, 20_000])
def test_a_drain_that_stands_still_ends_with_an_error_that_says_where(timeout_ms: int) -> None:
    """H4: drainTimeoutMs; a message that always fails, and no limit, would hold it for ever.

    Any queue that moves is a sign of life.
    """
    planning = Planning(
        {A0: (0, 10), A1: (0, 3)},
        group=True,
        drainTimeoutMs=str(timeout_ms),
        consumerGroup="g",
        offsetStore="o",
    )
    planning.planner.prepare_available_now()

    def give_back() -> None:
        planning.commit(A0, 4, suspended_until_s=planning.clock.now_s() + 1, reconsume_times=1)

    assert planning.next() == [(A0, 0, 10), (A1, 0, 3)]
    planning.clock.advance(3600)
    give_back()
    planning.commit(A1, 2)
    assert planning.next() == [(A1, 2, 3)]
    planning.clock.advance(timeout_ms / 1000 - 1)
    planning.commit(A1, 3)
    began_s = planning.clock.now_s()

    def go_on_in_vain() -> None:
        while planning.next() == [(A0, 4, 10)]:
            give_back()

    with pytest.raises(
        OffsetError,
        match=r"availableNow query of group g has made no progress for .* queue=0 at offset 4\. .* drainTimeoutMs",
    ):
        go_on_in_vain()
    assert timeout_ms / 1000 <= planning.clock.now_s() - began_s <= timeout_ms / 1000 + 2


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("", "set max_reconsume_times"),
        ("No broker took it: no right.", "No broker took it: no right. Correct"),
    ],
)
def test_a_drain_that_stands_still_names_what_refuses_its_dead_letters(reason: str, says: str) -> None:
    """D6: a limit that is set is no advice."""
    planning = Planning({A0: (0, 10)}, group=True, drainTimeoutMs="5000", consumerGroup="g", offsetStore="o")
    planning.planner.prepare_available_now()
    planning.held_up = reason

    def go_on_in_vain() -> None:
        while planning.next():
            planning.commit(A0, 4, suspended_until_s=planning.clock.now_s() + 1, reconsume_times=1)

    with pytest.raises(OffsetError) as caught:
        go_on_in_vain()

    assert says in str(caught.value)
    assert ("max_reconsume_times" in str(caught.value)) == (not reason)


def test_available_now_waits_for_a_suspended_queue_and_stops_at_what_was_there() -> None:
    """H4"""
    planning = Planning({A0: (0, 10)}, group=True)
    planning.planner.prepare_available_now()
    planning.view.bounds[A0] = (0, 99)
    assert planning.next() == [(A0, 0, 10)]
    planning.commit(A0, 4, suspended_until_s=planning.clock.now_s() + 0.8)

    assert planning.next() == [(A0, 4, 10)]
    assert sum(planning.pauses) == pytest.approx(0.8, abs=0.01)

    planning.commit(A0, 10)
    assert planning.next() is None


def test_an_operators_reset_is_picked_up_at_the_next_plan_and_fences_the_running_batch() -> None:
    """F5"""
    planning = Planning({A0: (0, 10)}, group=True)
    planning.next()

    planning.store.reset("g", {A0: 2})

    assert not planning.commit(A0, 10)
    assert planning.next() == [(A0, 2, 10)]
    assert planning.commit(A0, 10)


def test_a_store_that_forgets_the_whole_group_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """H2: otherwise the group would begin again where the options say, perhaps at the end."""
    planning = Planning({A0: (0, 9)}, group=True, start=LATEST)
    planning.next()
    monkeypatch.setattr(planning.store, "read", lambda _: {})

    with pytest.raises(
        OffsetError, match=r"gone from .* had 1 queue .* was deleted .* start the query again"
    ):
        planning.next()


def test_a_store_that_is_put_back_under_a_query_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """H2: its epochs come a second time, and would fence nobody."""
    planning = Planning({A0: (0, 9)}, group=True)
    planning.next()
    earlier = planning.store.read("g")
    assert planning.commit(A0, 4)
    planning.next()
    monkeypatch.setattr(planning.store, "read", lambda _: dict(earlier))

    with pytest.raises(
        OffsetError, match=r"restored to an earlier state or replaced: .*queue=0 was at 4 and is at 0, both"
    ):
        planning.next()


def test_a_store_that_shows_an_earlier_state_for_a_moment_only_is_gone_on_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H2: a file store's content while a new file takes the old one's place."""
    planning = Planning({A0: (0, 9)}, group=True)
    planning.next()
    earlier = planning.store.read("g")
    assert planning.commit(A0, 4)
    planning.next()
    assert planning.commit(A0, 6)
    now = planning.store.read("g")
    looks = iter([earlier])
    monkeypatch.setattr(planning.store, "read", lambda _: dict(next(looks, now)))

    assert planning.next() == [(A0, 6, 9)]


def test_a_queue_claimed_by_another_consumer_is_in_no_plan_any_more(caplog: pytest.LogCaptureFixture) -> None:
    """B5, C5: the loser's batch is fenced, and it does not claim the queue back."""
    first = Planning({A0: (0, 10), A1: (0, 10)}, group=True)
    first.next()
    first.store.claim("g", "other", {A0: 0})

    assert not first.commit(A0, 10)
    assert first.commit(A1, 5)
    with caplog.at_level(logging.WARNING):
        assert first.next() == [(A1, 5, 10)]
        first.commit(A1, 7)
        assert first.next() == [(A1, 7, 10)]
    assert caplog.text.count("queue lost group=g") == 1
    assert "new_owner=other" in caplog.text


def test_a_new_group_begins_when_all_brokers_answer_and_then_where_the_option_says() -> None:
    """F2: a queue of a broker that comes late would look like one that was made later."""
    planning = Planning({A0: (0, 10), B0: (0, 10)}, group=True, start=LATEST)
    planning.view.down = {"broker-b": ConnectFailed("b:1", "refused")}
    assert planning.next() is None
    assert planning.store.read("g") == {}

    planning.view.down = {}
    assert planning.next() is None
    planning.view.bounds = {A0: (0, 11), B0: (0, 12)}
    assert planning.next() == [(A0, 10, 11), (B0, 10, 12)]


def test_a_broker_that_was_away_finds_its_queues_claimed_as_before() -> None:
    """B5: a new claim would raise the epoch, and could take back what another consumer claimed meanwhile."""
    planning = Planning({A0: (0, 10), B0: (0, 10)}, group=True)
    planning.next()
    planning.view.down = {"broker-b": ConnectFailed("b:1", "refused")}
    planning.next()
    planning.view.down = {}
    planning.clock.advance(REST_S)

    assert planning.next() == [(A0, 0, 10), (B0, 0, 10)]
    assert {row.epoch for row in planning.store.read("g").values()} == {1}


def test_a_logged_plan_runs_again_only_for_queues_not_claimed_or_reset_since(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """H1, F5: data of an old epoch would move the sink past messages that come again."""
    planning = Planning({A0: (0, 10), A1: (0, 10)}, group=True)
    planning.next()

    planning.store.reset("g", {A0: 3})

    with caplog.at_level(logging.WARNING):
        assert [planned.queue for planned in planning.planner.runnable(planning.offset)] == [A1]
    assert "logged range not run again" in caplog.text


def test_a_topic_whose_brokers_are_all_away_does_not_end_the_query() -> None:
    """A2: a name server says that such a topic does not exist."""
    planning = Planning({A0: (0, 10)})
    planning.view.down = {"everything": TopicNotFound(17, "No topic route info")}

    assert planning.next() is None
    planning.view.down = {}
    assert planning.next() == [(A0, 0, 10)]


def test_available_now_ends_although_a_broker_it_has_drained_is_down() -> None:
    """H4"""
    for group in (False, True):
        planning = Planning({A0: (0, 10), B0: (0, 10)}, group=group, retryTimeoutMs="5000")
        planning.planner.prepare_available_now()
        planning.next()
        if group:
            planning.commit(A0, 10)
            planning.commit(B0, 10)
            planning.view.bounds[A0] = (0, 10)
            assert planning.next() is None
        planning.view.down = {"broker-b": ConnectFailed("b:1", "refused")}

        assert planning.next() is None
        assert planning.pauses == []


def test_available_now_ends_although_a_listener_never_commits_the_last_messages() -> None:
    """H4, D4: they stay for the next run, together with those that come after them."""
    planning = Planning({A0: (0, 7)}, group=True)
    planning.planner.prepare_available_now()
    assert planning.next() == [(A0, 0, 7)]
    planning.commit(A0, 5)

    plans = [planning.next() for _ in range(5)]

    assert plans == [[(A0, 5, 7)]] + [None] * 4


@pytest.mark.parametrize("drains", [False, True])
def test_a_range_that_its_task_has_not_begun_is_planned_again(
    drains: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """H4, D4: the task could not ask its driver; the listener has had nothing that it could commit."""
    planning = Planning({A0: (0, 5), A1: (0, 9)}, group=True, pullThresholdForQueue="7")
    if drains:
        planning.planner.prepare_available_now()
    assert planning.next() == [(A0, 0, 5), (A1, 0, 7)]
    planning.commit(A0, 5)
    ack = not_begun(QueueRange.between(A1, 0, 7), planning.clock.now_s())
    planning.commit(A1, 0, suspended_until_s=ack.state.suspended_until_s)

    with caplog.at_level(logging.ERROR):
        assert planning.next() == [(A1, 0, 7)]
    assert caplog.records == []


def test_a_drain_does_not_end_after_a_batch_that_was_dropped_under_its_epoch() -> None:
    """H4, H10: the committer raises the epoch where another consumer had moved the sink."""
    planning = Planning({A0: (0, 4)}, group=True)
    planning.planner.prepare_available_now()
    planning.next()
    newest = RememberedMessages.of(LastMessage(1, 1001, 64))
    assert planning.store.note_sinks("g", {A0: SinkRecord(0, 2, newest)})

    assert planning.next() == [(A0, 0, 4)]
    planning.commit(A0, 4)
    assert planning.next() is None


def test_a_listener_that_commits_rarely_gets_longer_ranges() -> None:
    """D4: without growing ranges a group with a limit would read the same messages for ever."""
    planning = Planning({A0: (0, 100)}, group=True, maxOffsetsPerTrigger="10")

    assert planning.next() == [(A0, 0, 10)]
    assert planning.next() == [(A0, 0, 20)]
    assert planning.next() == [(A0, 0, 40)]
    planning.commit(A0, 25)
    assert planning.next() == [(A0, 25, 35)]


def test_a_listener_gets_what_it_did_not_commit_again_when_there_is_more() -> None:
    """D4: until then it has nothing to do."""
    planning = Planning({A0: (0, 3), A1: (0, 1)}, group=True)
    assert planning.next() == [(A0, 0, 3), (A1, 0, 1)]
    planning.commit(A1, 1)
    assert planning.next() is None

    planning.view.bounds[A1] = (0, 2)
    assert planning.next() == [(A1, 1, 2)]
    planning.view.bounds[A0] = (0, 4)
    assert planning.next() == [(A0, 0, 4)]
    assert planning.next() is None
    planning.clock.advance(REST_S)
    assert planning.next() == [(A0, 0, 4), (A1, 1, 2)]


def test_a_plan_that_waits_for_more_messages_was_not_delivered() -> None:
    """D4: with minOffsetsPerTrigger a plan may be put off;
    its messages are delivered when the wait is over.
    """
    planning = Planning({A0: (0, 9)}, group=True, minOffsetsPerTrigger="10", maxTriggerDelay="1m")
    assert planning.next() == [(A0, 0, 9)]
    planning.commit(A0, 8)

    assert planning.next() is None
    assert planning.next() is None
    planning.clock.advance(61)
    assert planning.next() == [(A0, 8, 9)]


def test_a_listener_that_has_had_what_the_threshold_allows_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """D4, D13: the queue stands still until somebody acts."""
    planning = Planning({A0: (0, 100)}, group=True, pullThresholdForQueue="30")
    with caplog.at_level(logging.ERROR):
        plans = [planning.next() for _ in range(4)]

    assert plans == [[(A0, 0, 30)], None, None, None]
    (record,) = caplog.records
    assert "has had 30 messages from offset 0 on without a COMMIT" in record.getMessage()
    assert "raise pullThresholdForQueue. group=None topic=orders" in record.getMessage()


def test_lost_messages_end_the_query_with_the_queue_and_the_offsets() -> None:
    """F4"""
    for group in (False, True):
        planning = Planning({A0: (0, 10)}, group=group)
        planning.next()
        planning.view.bounds[A0] = (50, 60)

        with pytest.raises(DataLoss, match=r"broker=broker-a queue=0: offset \d+ was wanted.*failOnDataLoss"):
            planning.next()


def test_lost_messages_are_skipped_and_logged_when_asked_to(caplog: pytest.LogCaptureFixture) -> None:
    """F4: the group's store moves at once, under a new epoch."""
    for group in (False, True):
        planning = Planning({A0: (0, 10)}, group=group, failOnDataLoss="false")
        planning.next()
        if group:
            planning.commit(A0, 10)
        planning.view.bounds[A0] = (50, 60)

        with caplog.at_level(logging.WARNING):
            ranges = planning.next() or planning.next()

        assert ranges == [(A0, 50, 60)]
        assert "offset gap skipped" in caplog.text
        if group:
            assert planning.commit(A0, 60)


def test_a_log_that_lost_its_tail_does_not_swallow_what_comes_after() -> None:
    """F4: the corrected offset is remembered at once; a later look would be past newer messages."""
    for group in (False, True):
        planning = Planning({A0: (0, 10)}, group=group, failOnDataLoss="false")
        planning.next()
        if group:
            planning.commit(A0, 10)
        planning.view.bounds[A0] = (0, 6)
        assert not planning.next()

        planning.view.bounds[A0] = (0, 8)
        assert planning.next() == [(A0, 6, 8)]


def test_a_wrong_address_ends_the_query_at_first_contact() -> None:
    with pytest.raises(ConnectFailed, match="Could not connect to n:1"):
        Planning({A0: (0, 1)}, down={"everything": ConnectFailed("n:1", "refused")})


AWAY = [
    ConnectFailed("n:1", "refused"),
    SystemBusy(2, "busy"),
    BrokerError(1, "the store is not open yet"),
    NameServerNotReady(1, "name server not ready"),
    TopicAway(17, "No topic route info"),
]


def away_for(planning: Planning, error: RocketMQError, seconds: float) -> None:
    """Nothing answers, or all with ``error``, for so long."""
    planning.view.down = {"everything": error}
    back_s = planning.clock.monotonic_s() + seconds

    def look() -> None:
        if planning.clock.monotonic_s() >= back_s:
            planning.view.down = {}

    planning.on_pause.append(look)


def worked_before(*, group: bool) -> Planning:
    planning = Planning({A0: (0, 10)}, group=group, retryTimeoutMs="60000")
    assert planning.next() == [(A0, 0, 10)]
    if group:
        planning.commit(A0, 10)
    planning.view.bounds[A0] = (0, 12)
    planning.restart()
    return planning


@pytest.mark.parametrize("error", AWAY, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("group", [True, False], ids=["group", "plain"])
def test_a_query_that_has_worked_starts_while_the_cluster_is_away_and_waits(
    group: bool, error: RocketMQError, caplog: pytest.LogCaptureFixture
) -> None:
    """A8: its offset rows or its checkpoint show that the address is right."""
    planning = worked_before(group=group)
    away_for(planning, error, 50.0)

    assert planning.next() == [(A0, 10, 12)]

    [said] = [each.message for each in caplog.records if "waiting up to" in each.message]
    assert "this query has read from the cluster before" in said
    assert str(error) in said


def test_a_group_that_has_worked_waits_with_a_new_checkpoint_too() -> None:
    """A8: Spark asks for the first offset of a query then."""
    planning = worked_before(group=True)
    away_for(planning, ConnectFailed("n:1", "refused"), 50.0)

    planning.offset = planning.planner.initial()

    assert planning.next() == [(A0, 10, 12)]


@pytest.mark.parametrize("group", [True, False], ids=["group", "plain"])
def test_a_logged_plan_that_runs_again_waits_for_a_cluster_that_is_away(group: bool) -> None:
    """A8, H1: Spark asks for its partitions before anything else."""
    planning = worked_before(group=group)
    away_for(planning, ConnectFailed("n:1", "refused"), 50.0)

    assert planning.planner.snapshot_for([QueueRange.between(A0, 0, 10)], can_wait=not group).bounds


@pytest.mark.parametrize("error", AWAY[:3], ids=lambda error: type(error).__name__)
def test_a_group_that_has_worked_ends_when_the_cluster_stays_away(error: RocketMQError) -> None:
    """A8: option retryTimeoutMs bounds the wait."""
    planning = worked_before(group=True)
    away_for(planning, error, 90.0)

    with pytest.raises(type(error)):
        planning.next()

    assert 50 <= sum(planning.pauses) <= 60


def test_a_group_that_has_worked_ends_at_once_where_it_has_no_right() -> None:
    """A8: the user must act."""
    planning = worked_before(group=True)
    away_for(planning, NoPermission(16, "no acl permission"), 5.0)

    with pytest.raises(NoPermission):
        planning.next()

    assert not planning.pauses


@pytest.mark.parametrize(
    "rows", [{}, {MessageQueue("others", "broker-a", 0): 1}], ids=["no rows", "of others"]
)
def test_a_group_that_has_never_worked_ends_after_three_tries(rows: dict[MessageQueue, int]) -> None:
    """A8: an address may be wrong."""
    store = MemoryOffsetStore("test", clock=FakeClock())
    if rows:
        store.claim("g", "me", rows)

    with pytest.raises(ConnectFailed):
        Planning({A0: (0, 1)}, group=True, store=store, down={"everything": ConnectFailed("n:1", "refused")})


def test_a_new_group_that_waits_for_a_topic_ends_when_a_server_refuses_for_no_known_reason() -> None:
    """A8: what it waited for may pass, and that may not."""
    view_errors = [TopicAway(17, "not there yet"), BrokerError(1, "failed")]
    tries: list[int] = []

    def look() -> None:
        tries.append(1)
        raise view_errors[min(len(tries) // 5, 1)]

    clock = FakeClock()
    with pytest.raises(BrokerError, match="failed"):
        at_first_contact(look, Deadline.after(clock, 120.0), clock.advance)

    assert len(tries) == 5


def test_a_cluster_that_goes_away_costs_a_trigger_and_not_the_query(caplog: pytest.LogCaptureFixture) -> None:
    planning = Planning({A0: (0, 10)})
    planning.view.down = {"everything": ConnectFailed("n:1", "refused")}

    with caplog.at_level(logging.WARNING):
        assert planning.next() is None
    assert "planning skipped" in caplog.text

    planning.view.down = {}
    assert planning.next() == [(A0, 0, 10)]


def test_a_broker_that_is_down_costs_only_its_own_queues() -> None:
    planning = Planning({A0: (0, 10), B0: (0, 10)})
    planning.view.down = {"broker-b": ConnectFailed("b:1", "refused")}

    assert planning.next() == [(A0, 0, 10)]
    planning.view.down = {}
    assert planning.next() == [(B0, 0, 10)]


def test_available_now_waits_for_a_broker_that_is_down_and_gives_up_after_a_while() -> None:
    """H4: ending early would leave its messages unread and look like success."""
    planning = Planning({A0: (0, 10), B0: (0, 10)}, retryTimeoutMs="5000")
    planning.planner.prepare_available_now()
    planning.view.down = {"broker-b": ConnectFailed("b:1", "refused")}
    assert planning.next() == [(A0, 0, 10)]

    with pytest.raises(ConnectFailed):
        planning.next()
    assert 5 <= sum(planning.pauses) <= 6

    planning.on_pause.append(planning.view.down.clear)
    assert planning.next() == [(B0, 0, 10)]


def test_the_trouble_that_an_available_now_query_waits_for_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """H4: and again with the next plan that has to wait, or when it is another one."""
    planning = Planning({A0: (0, 10), B0: (0, 10)}, retryTimeoutMs="60000")
    planning.planner.prepare_available_now()
    planning.view.down = {"broker-b": ConnectFailed("b:1", "refused")}
    assert planning.next() == [(A0, 0, 10)]
    logged = []

    def see() -> None:
        logged.append(caplog.text.count("some queues cannot be planned"))
        if len(logged) == 3:
            planning.view.down = {"broker-b": ConnectFailed("b:1", "no answer within 3 s")}
        if len(logged) == 6:
            planning.view.down = {}

    planning.on_pause.append(see)

    assert planning.next() == [(B0, 0, 10)]
    assert logged == [1, 1, 1, 2, 2, 2]


def test_available_now_does_not_mistake_a_broker_that_left_the_route_for_a_drained_one() -> None:
    """H4: a name server forgets a broker as soon as its connection is gone."""
    planning = Planning({A0: (0, 10), B0: (0, 10)}, retryTimeoutMs="5000")
    planning.planner.prepare_available_now()
    planning.view.not_in_route = {"broker-b"}
    assert planning.next() == [(A0, 0, 10)]

    with pytest.raises(
        TransportError, match="broker=broker-b queue=0 was there when this AvailableNow query began"
    ):
        planning.next()

    planning.on_pause.append(planning.view.not_in_route.clear)
    assert planning.next() == [(B0, 0, 10)]


def test_a_replayed_plan_waits_for_a_broker_that_is_down_at_the_restart() -> None:
    """H1: the logged plan names the broker; failing at once would end the query at every restart."""
    planning = Planning({A0: (0, 10), B0: (0, 10)}, retryTimeoutMs="5000")
    planning.view.not_in_route = {"broker-b"}
    planning.next()

    planning.on_pause.append(planning.view.not_in_route.clear)
    planned = [QueueRange.between(queue, 0, 10) for queue in (A0, B0)]

    assert planning.planner.snapshot_for(planned, can_wait=True).addresses.keys() == {"broker-a", "broker-b"}
    assert sum(planning.pauses) < 5


def test_bounds_are_reported_as_of_the_last_look() -> None:
    """B5: it becomes ``latestOffset`` in Spark's progress; a limited plan does not hide the backlog."""
    planning = Planning({A0: (0, 100), B0: (0, 50)}, maxOffsetsPerTrigger="10")
    planning.next()
    planning.view.bounds[A0] = (0, 120)

    planning.next()

    assert {queue: bounds.max_offset for queue, bounds in planning.planner.newest().items()} == {
        A0: 120,
        B0: 50,
    }


def test_a_broadcasting_instance_ends_when_another_query_claims_its_rows() -> None:
    """H8, B3: two that began in the same moment, under one client id; each would miss messages."""
    planning = Planning({A0: (0, 5), A1: (0, 3)}, group=True, is_sole_owner=True)
    assert planning.next() == [(A0, 0, 5), (A1, 0, 3)]
    planning.store.claim("g", "me", {A1: 0})

    with pytest.raises(OffsetError, match="member me is alive and consumes under the same instanceName"):
        planning.next()


@pytest.mark.parametrize("rival", ["me", "another host's"])
@pytest.mark.parametrize("resets_after", [0, 1])
@pytest.mark.parametrize("resets_before", [0, 1, 2])
def test_a_broadcasting_instance_whose_rows_were_reset_notices_another_query(
    rival: str, resets_before: int, resets_after: int
) -> None:
    """H8, B3, F5: a row stays marked as reset until a batch commits; of the two, the one that claimed first ends.

    A reset, before the start or after both have begun, raises the epoch as a claim does.
    """
    store = MemoryOffsetStore("test", clock=FakeClock())
    before = Planning({A0: (0, 5)}, group=True, is_sole_owner=True, store=store)
    before.next()
    before.commit(A0, 5)
    for _ in range(resets_before):
        store.reset("g", {A0: 0})
    first, second = (
        Planning({A0: (0, 9)}, group=True, is_sole_owner=True, store=store, client_id=name)
        for name in ("me", rival)
    )
    assert first.next() == second.next() == [(A0, 0 if resets_before else 5, 9)]
    for _ in range(resets_after):
        store.reset("g", {A0: 1})

    with pytest.raises(
        OffsetError, match=f"member {rival} is alive and consumes under the same instanceName"
    ):
        first.next()
    assert not first.commit(A0, 9)
    assert second.next() == ([(A0, 1, 9)] if resets_after else None)
    assert second.commit(A0, 9)
    assert second.next() is None


def test_a_broadcasting_instance_notices_another_query_that_claims_while_it_plans() -> None:
    """H8, B3, F5: between its look at the store and the reset that it stores; it does not wait for the queue."""
    planning = Planning({A0: (0, 5), A1: (0, 3)}, group=True, is_sole_owner=True)
    planning.next()
    planning.ownership.resets[A0] = 2
    reset = planning.store.reset

    def claim_and_reset(*what: Any, **how: Any) -> Any:
        planning.store.claim("g", "me", {A0: 0})
        return reset(*what, **how)

    planning.store.reset = claim_and_reset  # type: ignore[method-assign]
    with pytest.raises(OffsetError, match="Another query uses progress g"):
        planning.next()
    assert not planning.ownership.claimed_elsewhere


@pytest.mark.parametrize("rivals", [0, 1], ids=["alone", "with a rival"])
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_broadcasting_instance_knows_its_own_claims_whose_answers_were_lost(lost: int, rivals: int) -> None:
    """H8, B3: the store has them, and its epoch has grown; a rival's claim shows all the same."""
    planning = Planning({A0: (0, 5)}, group=True, is_sole_owner=True)
    planning.next()
    planning.commit(A0, 5)
    planning.view.bounds[A0] = (0, 6)
    handed_back = planning.store.claim

    def stored_but_not_answered(*what: Any, **how: Any) -> Never:
        handed_back(*what, **how)
        raise OffsetStoreUnavailable("the answer was lost")

    planning.next()
    planning.store.claim = stored_but_not_answered  # type: ignore[method-assign]
    planning.ownership.reclaim(A0)
    for _ in range(lost):
        assert planning.next() is None
    planning.store.claim = handed_back  # type: ignore[method-assign]
    for _ in range(rivals):
        planning.store.claim("g", "me", {A0: 0})

    if rivals:
        with pytest.raises(OffsetError, match="consumes under the same instanceName"):
            planning.next()
    else:
        assert planning.next() == [(A0, 5, 6)]


def test_a_broadcasting_instance_goes_on_whose_sink_was_ahead() -> None:
    """H8, H10: a batch of its earlier run was held up before its commit."""
    planning = Planning({A0: (0, 4)}, group=True, is_sole_owner=True)
    planning.next()
    newest = RememberedMessages.of(LastMessage(1, 1001, 64))
    assert planning.store.note_sinks("g", {A0: SinkRecord(0, 2, newest)})

    assert planning.next() == [(A0, 0, 4)]

    planning.store.claim("g", "me", {A0: 0})
    with pytest.raises(OffsetError, match="Another query uses progress"):
        planning.next()


def test_a_broadcasting_instance_goes_on_after_its_own_batches_and_an_operators_reset() -> None:
    """H8, F5: neither is another query."""
    planning = Planning({A0: (0, 5), A1: (0, 3)}, group=True, is_sole_owner=True)
    planning.next()
    assert planning.commit(A0, 5)
    planning.store.reset("g", {A1: 1})

    assert planning.next() == [(A1, 1, 3)]
    assert planning.commit(A1, 3)
    planning.ownership.reclaim(A0)
    planning.view.bounds[A0] = (0, 6)
    assert planning.next() == [(A0, 5, 6)]
    assert planning.commit(A0, 6)
    assert planning.next() is None
