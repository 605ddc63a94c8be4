"""The driver's side of giving queues up: commits ahead of a batch's end, one at a time,
and the look at the store.
"""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume import cuts
from pyspark_rocketmq.consume.cuts import Place
from pyspark_rocketmq.consume.part import Group, Part
from pyspark_rocketmq.consume.recent_offsets import AgedOffset
from pyspark_rocketmq.errors import SinkConflict
from pyspark_rocketmq.hub import driver_end, task_end
from pyspark_rocketmq.hub.connections import HubClient
from pyspark_rocketmq.hub.driver_end import BatchEnd, Committed, DriverControl
from pyspark_rocketmq.hub.messages import (
    ArrivalsWanted,
    OffsetsArrived,
    PlanMade,
    PlannerConnected,
    PlannerLeaving,
    PlanOver,
    QueryDrained,
    QueuesFree,
    QueuesHeldUp,
    SlotsKnown,
    ToPlanner,
    decode_to_planner,
)
from pyspark_rocketmq.hub.session import HubAddress
from pyspark_rocketmq.hub.state import Commit, Slots
from pyspark_rocketmq.hub.task_end import Fate, TaskControl, ask_driver
from pyspark_rocketmq.model import MessageQueue
from tests.helpers.parts import part_of
from tests.helpers.wait import PATIENCE_S, wait_until

A, B = (MessageQueue("T", "broker-a", number) for number in range(2))
PART = part_of("part", A)
REST = part_of("rest", B)


def refuse_nothing(_: Commit) -> Committed:
    return Committed()


class Query:
    """A hub with a planner, and the store's epochs."""

    def __init__(
        self,
        calls_end_s: float = 0.1,
        interval_s: float | None = None,
        *,
        may_offsets_wait: bool = False,
    ) -> None:
        self.epochs = {A: 1, B: 1}
        self.slots = Slots(2, 2)
        self.received: list[ToPlanner] = []
        self.hub = DriverControl(
            "127.0.0.1",
            "127.0.0.1",
            must_ask=True,
            slots=lambda: self.slots,
            read_epochs=lambda: dict(self.epochs),
            clock=SystemClock(),
            look_every_s=0.02,
            calls_end_s=calls_end_s,
            interval_s=interval_s,
            may_offsets_wait=may_offsets_wait,
        )
        self.planner = HubClient[ToPlanner](
            HubAddress.parse(self.hub.secret),
            decode=decode_to_planner,
            received=self.received.append,
            lost=lambda: None,
            clock=SystemClock(),
            timeout_s=PATIENCE_S,
        )
        self.planner.send(PlannerConnected())
        self.planner.send(PlanMade(1, frozenset({A, B})))
        wait_until(lambda: self.hub._hub.query(lambda state: state.plan) == 1, reason="The plan")

    def has_received(self, kind: type[ToPlanner]) -> bool:
        return any(isinstance(message, kind) for message in self.received)

    def begin(self, *committed: list[Part], failures: Sequence[BaseException] = ()) -> TaskControl:
        coming = iter(failures)

        def make(commit: Commit) -> Committed:
            failure = next(coming, None)
            if failure is not None:
                raise failure
            assert commit.group is not None
            for each in committed:
                each.extend(commit.group.parts)
            return Committed()

        terms = self.hub.begin(3, make)
        assert terms is not None
        instructions = ask_driver(terms, 0, dict.fromkeys((A, B), Place(1, 0)))
        assert instructions is not None
        assert instructions.begins(A)
        return instructions


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch) -> Iterator[Query]:
    monkeypatch.setattr(task_end, "_connections", {})
    running = Query()
    yield running
    running.planner.close()
    running.hub.failed()
    running.hub.close()


def test_the_planner_hears_how_many_tasks_can_run_now(query: Query) -> None:
    """D3: executors come and go."""

    def received() -> list[int]:
        return [message.slots for message in query.received if isinstance(message, SlotsKnown)]

    wait_until(lambda: received() == [2], PATIENCE_S, reason="the first number of slots")
    query.slots = Slots(5, 5)
    wait_until(lambda: received() == [2, 5], PATIENCE_S, reason="the number of slots between two batches")
    query.hub.begin(3, refuse_nothing)
    query.slots = Slots(7, 7)
    wait_until(lambda: received() == [2, 5, 7], PATIENCE_S, reason="the number of slots during a batch")


def test_finished_ranges_are_committed_while_the_job_runs(query: Query) -> None:
    """B5"""
    committed: list[Part] = []
    instructions = query.begin(committed)
    assert instructions.hand_over(PART)
    instructions.await_taken()

    wait_until(lambda: query.has_received(QueuesFree), PATIENCE_S, reason="A free queue")
    assert [part.id for part in committed] == ["part"]
    assert query.hub.end([PART], could_ask=True) == BatchEnd(1, None)


def test_offsets_that_wait_are_stored_at_the_end_of_the_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """H1: and once more if that fails; the next plan begins at them."""
    monkeypatch.setattr(task_end, "_connections", {})
    query = Query(interval_s=60.0, may_offsets_wait=True)
    made: list[Commit] = []

    def make(commit: Commit) -> Committed:
        made.append(commit)
        if len(made) == 3:
            raise ConnectionError("the storage is away")
        return Committed(took_s=60.0)

    def has_made(number: int) -> bool:
        return len(made) == number

    try:
        terms = query.hub.begin(3, make)
        assert terms is not None
        task = ask_driver(terms, 0, dict.fromkeys((A, B), Place(1, 0)))
        assert task is not None
        for number, part in enumerate((PART, REST), 1):
            task.hand_over(part, ends=frozenset(), cut=None)
            wait_until(partial(has_made, number), PATIENCE_S, reason="A commit")
        task.await_taken()

        assert query.hub.end([], could_ask=True) == BatchEnd(1, None)
        assert [commit.stores_offsets for commit in made] == [True, False, True, True]
        assert [commit.group for commit in made[2:]] == [None, None]
        assert "offsets of the batch could not be committed" in caplog.text
    finally:
        query.planner.close()
        query.hub.failed()
        query.hub.close()


class PanicException(BaseException):
    """Stands for what pyo3 raises where Rust panics."""


@pytest.mark.parametrize("failure", [ConnectionError("the storage is away"), PanicException("a bug")])
def test_a_failed_early_commit_is_made_again_before_the_batch_ends(
    query: Query, failure: BaseException
) -> None:
    """H1: it is the driver's, and its queue is nobody else's before."""
    committed: list[Part] = []
    instructions = query.begin(committed, failures=[failure])
    assert instructions.hand_over(PART)
    instructions.await_taken()

    assert query.hub.end([REST], could_ask=True) == BatchEnd(1, Group((REST,)))
    assert committed == [PART]
    wait_until(lambda: query.has_received(QueuesFree), PATIENCE_S, reason="A free queue")


def test_an_early_commit_that_cannot_be_made_fails_the_batch(
    query: Query, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """H1: its outcome may be unknown, so nothing is committed after it."""
    monkeypatch.setattr(cuts, "_FAIL_AFTER_S", 0.0)
    instructions = query.begin(failures=[ConnectionError("the storage is away")] * 9)
    assert instructions.hand_over(PART)
    instructions.await_taken()
    wait_until(lambda: "the storage is away" in caplog.text, PATIENCE_S, reason="The first failure")

    with pytest.raises(ConnectionError, match="the storage is away"):
        query.hub.end([], could_ask=True)
    assert not query.has_received(QueuesFree)
    assert caplog.text.count("parts=1 queues=1: the storage is away") == 2
    assert caplog.text.count("Traceback") == 1, "the same error again is one line"


def test_a_commit_that_fails_is_logged_without_the_password_of_its_cause(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    """A5: a database driver's error may repeat what it connects with."""
    failure = SinkConflict("The rows could not be written.")
    failure.__cause__ = OSError("no route to postgresql://etl:hunter2@db/shop password=hunter2")
    instructions = query.begin([], failures=[failure])
    assert instructions.hand_over(PART)
    instructions.await_taken()
    query.hub.end([], could_ask=True)

    assert "hunter2" not in caplog.text
    assert "OSError: no route to postgresql://***@db/shop password=***" in caplog.text


def test_a_commit_that_takes_long_is_reported_while_it_lasts(
    query: Query, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """I7: Spark may wait for a task slot that nobody gives back."""
    monkeypatch.setattr(driver_end, "_LONG_COMMIT_S", 0.05)
    may_end = threading.Event()

    def make(_: Commit) -> Committed:
        assert may_end.wait(PATIENCE_S)
        return Committed()

    terms = query.hub.begin(3, make)
    assert terms is not None
    instructions = ask_driver(terms, 0, dict.fromkeys((A, B), Place(1, 0)))
    assert instructions is not None
    assert instructions.hand_over(PART)
    wait_until(lambda: "needs a free task slot" in caplog.text)
    query.hub._report_long_commit(SystemClock().monotonic_s() + 50.0)
    assert caplog.text.count("needs a free task slot") == 1
    query.hub._report_long_commit(SystemClock().monotonic_s() + 70.0)
    assert caplog.text.count("needs a free task slot") == 2
    may_end.set()
    query.hub.end([], could_ask=True)
    query.hub._report_long_commit(SystemClock().monotonic_s() + 200.0)
    assert caplog.text.count("needs a free task slot") == 2


def test_a_job_that_fails_does_not_wait_for_storage_that_is_away(query: Query) -> None:
    """B7: the query ends with the job's error."""
    instructions = query.begin(failures=[ConnectionError("the storage is away")] * 9)
    assert instructions.hand_over(PART)
    instructions.await_taken()

    query.hub.cut_short()
    assert not query.has_received(QueuesFree)


def test_an_interval_that_tasks_cannot_keep_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """I5: a firewall must not keep a query from consuming."""
    monkeypatch.setattr(task_end, "_connections", {})
    query = Query(interval_s=0.2)
    try:
        for _ in range(2):
            query.hub.begin(3, refuse_nothing)
            query.hub.end([], could_ask=False)
        assert caplog.text.count("without regard to commit_interval: tasks could not connect to") == 1
    finally:
        query.planner.close()
        query.hub.failed()
        query.hub.close()


@pytest.mark.parametrize("interval_s", [None, 0.2])
def test_tasks_report_progress_only_if_somebody_asks_for_cuts(
    monkeypatch: pytest.MonkeyPatch, interval_s: float | None
) -> None:
    monkeypatch.setattr(task_end, "_connections", {})
    query = Query(interval_s=interval_s)
    try:
        terms = query.hub.begin(3, refuse_nothing)
        assert terms is not None
        assert terms.wants_cuts is (interval_s is not None)
    finally:
        query.planner.close()
        query.hub.failed()
        query.hub.close()


def over_until_shown(query: Query) -> threading.Event:
    """Run a batch; return the event at which the brokers have its offsets."""
    query.begin([])
    end = query.hub.end([], could_ask=True)
    is_shown = threading.Event()

    def wait() -> None:
        is_shown.wait(PATIENCE_S)

    query.hub.over(end.plan, wait)
    return is_shown


def test_the_planner_hears_of_a_batch_once_the_brokers_have_its_offsets(query: Query) -> None:
    """B5: and the next batch does not wait for that."""
    is_shown = over_until_shown(query)

    query.begin([])
    query.hub.end([], could_ask=True)
    assert not query.has_received(PlanOver)
    is_shown.set()
    wait_until(lambda: query.has_received(PlanOver), PATIENCE_S, reason="The batch's end")


def test_a_batch_that_could_not_begin_ends_no_wait_for_the_offsets_of_the_one_before(query: Query) -> None:
    """B5, H11: whoever has the queues next, a Java member perhaps, begins at the brokers' offsets."""
    is_shown = over_until_shown(query)

    query.hub.failed()
    query.planner.send(PlannerLeaving(1))
    wait_until(lambda: query.hub._hub.query(lambda state: state._last_plan) == 1, PATIENCE_S)
    query.hub.held_up("the mark")
    wait_until(lambda: query.has_received(QueuesHeldUp), PATIENCE_S, reason="Everything sent so far")
    assert not query.has_received(PlanOver)
    is_shown.set()
    wait_until(lambda: query.has_received(PlanOver), PATIENCE_S, reason="The batch's end")


def test_the_planner_hears_of_the_last_batch_of_a_query_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """B7, H11: it keeps its locks until then, and the brokers were slow with the batch before."""
    monkeypatch.setattr(task_end, "_connections", {})
    query = Query(calls_end_s=PATIENCE_S)
    are_offsets_shown = threading.Event()

    def wait() -> None:
        are_offsets_shown.wait(PATIENCE_S)

    try:
        for _ in range(2):
            query.begin([])
            query.hub.over(query.hub.end([], could_ask=True).plan, wait)
        query.hub.close()
        wait_until(lambda: query.hub._over.qsize() == 2, reason="The end of the hub's threads")
        are_offsets_shown.set()

        wait_until(lambda: query.received.count(PlanOver(1)) == 2, reason="The last batch")
    finally:
        are_offsets_shown.set()
        query.planner.close()


def test_a_queue_that_is_reset_while_a_batch_takes_long_is_dropped(query: Query) -> None:
    """F5"""
    instructions = query.begin([])
    query.epochs[A] = 2

    wait_until(lambda: instructions.is_given_up(A), PATIENCE_S, reason="A look at the store")
    assert instructions.fate(A) is Fate.DROPPED
    assert not instructions.is_given_up(B)
    query.hub.end([], could_ask=True)


@pytest.mark.parametrize("ends", ["committed", "job failed", "commit failed"])
def test_a_stop_says_whether_the_batch_was_committed_and_not_only_that_it_is_over(
    query: Query, ends: str
) -> None:
    """B7: a batch that has failed is over, too, and its messages are consumed again."""
    query.begin([])
    with ThreadPoolExecutor(1) as other:
        stopped = other.submit(query.hub.stop_tasks, PATIENCE_S)
        wait_until(lambda: query.hub._hub.query(lambda state: state.is_stopping), reason="The stop")
        if ends == "job failed":
            query.hub.cut_short()
        else:
            query.hub.end([], could_ask=True)
        if ends == "committed":
            query.hub.over(1, lambda: None)
        else:
            query.hub.failed()

        assert stopped.result() is (ends == "committed")


def test_a_batch_after_one_that_failed_may_be_committed(query: Query) -> None:
    """B7: a batch that could not begin is not committed either; the answer is that of the newest batch."""
    query.hub.failed()
    assert not query.hub.stop_tasks(0.0)
    query.hub.begin(3, refuse_nothing)
    query.hub.over(query.hub.end([], could_ask=True).plan, lambda: None)

    assert query.hub.stop_tasks(PATIENCE_S)


def test_it_ends_with_its_query_and_not_within_a_batch(query: Query) -> None:
    """H1: a batch that was begun is committed."""
    query.begin([])
    query.hub.lives_with(lambda: False)
    wait_until(lambda: query.hub._is_closed, PATIENCE_S, reason="An end of the query noticed")

    end = query.hub.end([], could_ask=True)
    query.hub.over(end.plan, lambda: None)
    wait_until(lambda: not query.planner.is_open, PATIENCE_S, reason="The connections' end")
    assert query.hub.begin(4, refuse_nothing) is None


def test_its_end_is_noticed_although_the_offset_store_does_not_answer(query: Query) -> None:
    """H11: tasks deliver until then, and the planner that Spark has ended keeps the locks for seconds only."""
    is_answered = threading.Event()

    def read() -> dict[MessageQueue, int]:
        is_answered.wait(2 * PATIENCE_S)
        return {}

    instructions = query.begin([])
    query.hub._look_every_s = 2 * PATIENCE_S
    query.hub._read_epochs = read
    query.hub.lives_with(lambda: False)
    try:
        query.planner.close()
        # Without a planner tasks end after 15 s in any case.
        wait_until(lambda: instructions.is_given_up(B), 10.0, reason="The end of its tasks")
    finally:
        query.hub._look_every_s = 0.02
        is_answered.set()


def test_its_end_is_noticed_although_delta_rs_panicked(query: Query) -> None:
    """H11: a panic is not an Exception."""

    class Panic(BaseException):
        pass

    has_read = threading.Event()

    def read() -> dict[MessageQueue, int]:
        has_read.set()
        raise Panic

    query.begin([])
    query.hub._read_epochs = read
    assert has_read.wait(PATIENCE_S)
    query.hub.lives_with(lambda: False)

    wait_until(lambda: query.hub._is_closed, PATIENCE_S, reason="An end of the query noticed")


def test_a_query_that_outlives_its_session_is_stopped_without_a_traceback(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    """H11: after ``spark.stop()`` an idle query counts as active, nothing can be asked, and stopping fails."""
    caplog.set_level(logging.INFO)
    is_session_stopped, stopped = threading.Event(), threading.Event()

    def slots() -> Slots:
        if is_session_stopped.is_set():
            raise AttributeError("'NoneType' object has no attribute 'conf'")
        is_session_stopped.set()
        return Slots(2, 2)

    def stop() -> None:
        stopped.set()
        raise RuntimeError("Cannot call methods on a stopped SparkContext")

    query.hub.lives_with(lambda: not is_session_stopped.is_set(), stop)
    query.hub._slots = slots

    assert stopped.wait(PATIENCE_S)
    wait_until(lambda: not query.planner.is_open, PATIENCE_S, reason="The connections' end")
    assert "Traceback" not in caplog.text
    assert query.hub.begin(4, refuse_nothing) is None


def test_the_planner_is_told_what_has_arrived_at_brokers_as_soon_as_somebody_knows(query: Query) -> None:
    """F5: what sends offsets to the brokers is made after the hub."""

    def answers() -> list[OffsetsArrived]:
        return [message for message in query.received if isinstance(message, OffsetsArrived)]

    query.planner.send(ArrivalsWanted(1, frozenset({A, B})))
    wait_until(lambda: answers() == [OffsetsArrived(1, {})], PATIENCE_S, reason="The first answer")
    query.hub.answers_by(lambda queues: dict.fromkeys(queues, (AgedOffset(2.0, 7),)))

    query.planner.send(ArrivalsWanted(2, frozenset({A})))

    wait_until(lambda: len(answers()) == 2, PATIENCE_S, reason="The second answer")
    assert answers()[1] == OffsetsArrived(2, {A: (AgedOffset(2.0, 7),)})


def test_what_waits_for_the_end_of_the_query_hears_of_it_once_nothing_is_committed(query: Query) -> None:
    ended = threading.Event()
    query.hub.when_ended(ended.set)
    query.begin([])
    query.hub.lives_with(lambda: False)
    wait_until(lambda: query.hub._is_closed, PATIENCE_S, reason="An end of the query noticed")
    assert not ended.is_set()

    end = query.hub.end([], could_ask=True)
    query.hub.over(end.plan, lambda: None)
    assert ended.wait(PATIENCE_S)


@pytest.mark.parametrize("fails", [False, True], ids=["is stopped", "cannot be stopped"])
def test_a_query_that_has_ended_is_no_longer_held(query: Query, *, fails: bool) -> None:
    """Spark's query holds its ``foreachBatch`` function, and so the hub: in a circle of two languages, none of
    them would ever be freed.
    """

    class Streaming:
        def is_alive(self) -> bool:
            return False

        def stop(self) -> None:
            if fails:
                raise ConnectionError

    streaming = Streaming()
    held = weakref.ref(streaming)
    query.hub.lives_with(streaming.is_alive, streaming.stop)
    del streaming
    wait_until(lambda: not query.planner.is_open, PATIENCE_S, reason="The connections' end")

    gc.collect()
    assert held() is None


def test_a_query_that_has_consumed_all_it_was_to_is_stopped_between_two_batches(query: Query) -> None:
    """Rows H4, J4: before Spark 4.2 the planner says when a query of ``availableNow`` is to end."""
    stopped = threading.Event()
    query.begin([])
    query.planner.send(QueryDrained())
    query.hub.lives_with(lambda: True, stopped.set)
    wait_until(lambda: query.hub._is_drained, PATIENCE_S, reason="The planner's word")
    assert not query.hub._is_closed
    assert not stopped.is_set()

    end = query.hub.end([], could_ask=True)
    query.hub.over(end.plan, lambda: None)

    assert stopped.wait(PATIENCE_S)
    wait_until(lambda: not query.planner.is_open, PATIENCE_S, reason="The connections' end")
