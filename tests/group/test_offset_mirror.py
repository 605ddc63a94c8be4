"""The group's progress as brokers see it."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from pyspark_rocketmq.group.offset_mirror import OffsetMirror
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from tests.helpers.fake_clock import FakeClock
from tests.helpers.scripted_cluster import ScriptedCluster
from tests.helpers.scripted_server import Peer
from tests.helpers.wait import PATIENCE_S, wait_until

A0 = MessageQueue("orders", "broker-a", 0)
A1 = MessageQueue("orders", "broker-a", 1)
B0 = MessageQueue("orders", "broker-b", 0)
GROUP = "order-etl"
_CONNECTOR = Path(__file__).parent.parent.parent / "connector"


class Brokers:
    """Two brokers that note the offsets they are sent, and answer as set."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.cluster = cluster
        self.sent: SimpleQueue[tuple[MessageQueue, int]] = SimpleQueue()
        self.codes: dict[str, int] = {}
        """Answers other than success, by broker."""
        self.silent: set[str] = set()
        for name, broker in cluster.brokers.items():
            broker.fault = lambda peer, request, name=name: self._take_in(name, peer, request)

    def _take_in(self, name: str, peer: Peer, request: RemotingCommand) -> None:
        assert request.code == RequestCode.UPDATE_CONSUMER_OFFSET
        fields = request.ext_fields
        assert fields["consumerGroup"] == GROUP
        is_silent, code = name in self.silent, self.codes.get(name, ResponseCode.SUCCESS)
        queue = MessageQueue(fields["topic"], name, int(fields["queueId"]))
        self.sent.put((queue, int(fields["commitOffset"])))
        if not is_silent:
            peer.answer(request, code)

    def next(self) -> tuple[MessageQueue, int]:
        try:
            return self.sent.get(timeout=PATIENCE_S)
        except Empty:
            raise AssertionError("No offset came.") from None


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with ScriptedCluster() as cluster:
        cluster.routes["orders"] = cluster.route({"broker-a": 2, "broker-b": 2})
        yield Brokers(cluster)


@pytest.fixture
def store() -> MemoryOffsetStore:
    """All three queues are claimed under epoch 1."""
    store = MemoryOffsetStore("mirror", clock=FakeClock())
    store.claim(GROUP, "me", dict.fromkeys((A0, A1, B0), 0))
    return store


def options(brokers: Brokers, **more: str) -> ReadOptions:
    given = {
        "nameServers": brokers.cluster.name_server.address,
        "topic": "orders",
        "consumerGroup": GROUP,
        "offsetStore": "delta:/unused",
        "requestTimeoutMs": "60000",
    }
    return ReadOptions.parse(given | more)


def mirror_of(
    brokers: Brokers, store: MemoryOffsetStore, again_after_s: float, quiet_s: float = 0.01
) -> OffsetMirror:
    return OffsetMirror(
        options(brokers), store, GROUP, again_after_s=again_after_s, pace_s=0.0, quiet_s=quiet_s
    )


@pytest.fixture
def mirror(brokers: Brokers, store: MemoryOffsetStore) -> OffsetMirror:
    """One that tries again when it is flushed, or has something new to show."""
    return mirror_of(brokers, store, again_after_s=60.0)


def commit(queue: MessageQueue, next_offset: int, epoch: int = 1) -> QueueCommit:
    return QueueCommit(queue=queue, state=QueueState(next_offset, epoch))


def test_each_offset_goes_to_its_queues_broker(brokers: Brokers, mirror: OffsetMirror) -> None:
    """F1."""
    mirror.show([commit(A0, 7), commit(B0, 9)])

    assert {brokers.next(), brokers.next()} == {(A0, 7), (B0, 9)}
    assert mirror.flush(PATIENCE_S)
    mirror.show([commit(A0, 8)])
    assert brokers.next() == (A0, 8)
    assert mirror.flush(PATIENCE_S)


@pytest.mark.parametrize("is_flushed", [True, False])
def test_the_store_gets_what_has_arrived_when_nothing_new_comes(
    brokers: Brokers, store: MemoryOffsetStore, is_flushed: bool
) -> None:
    """F5: whatever else the broker has from then on was put there by somebody else."""
    brokers.codes["broker-b"] = ResponseCode.SYSTEM_BUSY
    mirror = mirror_of(brokers, store, again_after_s=60.0, quiet_s=60.0 if is_flushed else 0.01)
    commits = [replace(commit(queue, 7), is_shown=True) for queue in (A0, B0)]
    store.claim(GROUP, "me", {A0: 0, B0: 0}, at_brokers={A0: 1, B0: 1})
    commits = [replace(each, state=each.state._replace(epoch=2)) for each in commits]
    store.commit(GROUP, commits, query_id="q", batch_id=1)
    mirror.show(commits)
    assert {brokers.next(), brokers.next()} == {(A0, 7), (B0, 7)}
    if is_flushed:
        mirror.flush(0.1)

    wait_until(lambda: store.read(GROUP)[A0].shown.to_text() == "[7]", reason="The note in the store")

    assert store.read(GROUP)[B0].shown.to_text() == "[1,0,7]"
    assert (mirror.arrived(A0), mirror.arrived(B0)) == (7, None)


def test_the_offsets_that_a_crash_of_the_broker_may_lose_are_remembered(
    brokers: Brokers, store: MemoryOffsetStore
) -> None:
    """F5: those that it has taken lately, and no others."""
    clock = FakeClock()
    mirror = OffsetMirror(options(brokers), store, GROUP, pace_s=0.0, quiet_s=0.0, clock=clock)
    brokers.codes["broker-b"] = ResponseCode.SYSTEM_BUSY
    for offset, pause_s in ((3, 20.0), (4, 10.0), (5, 4.0), (6, 2.0)):
        mirror.show([commit(A0, offset), commit(B0, offset)])
        wait_until(lambda: mirror.arrived(A0) == offset, reason="The offset")  # noqa: B023
        clock.advance(pause_s)

    # 3 was replaced 14 s before 6 arrived; its broker may have it again.
    assert mirror.lately_arrived([A0, A1, B0]) == {A0: ((36.0, 3), (16.0, 4), (6.0, 5), (2.0, 6))}
    mirror.show([commit(A0, 9)])
    wait_until(lambda: mirror.arrived(A0) == 9, reason="The offset")
    assert mirror.lately_arrived([A0]) == {A0: ((16.0, 4), (6.0, 5), (2.0, 6), (0.0, 9))}
    for offset in range(10, 60):
        mirror.show([commit(A0, offset)])
        wait_until(lambda: mirror.arrived(A0) == offset, reason="The offset")  # noqa: B023
    assert [offset for _, offset in mirror.lately_arrived([A0])[A0]] == list(range(28, 60))


@pytest.mark.parametrize("role", ["SLAVE", "ASYNC_MASTER"])
def test_an_offset_that_a_slave_got_is_not_taken_for_its_masters(
    brokers: Brokers, store: MemoryOffsetStore, role: str
) -> None:
    """F5, L3: the master comes back with the offset that it had; nobody has put that there."""
    brokers.cluster.routes["orders"] = brokers.cluster.route({"broker-a": 2, "broker-b": 2}, perm=4)
    server = brokers.cluster.brokers["broker-a"].server
    server.broker_name, server.role = "broker-a", role
    mirror = mirror_of(brokers, store, again_after_s=60.0)
    store.claim(GROUP, "me", {A0: 0, B0: 0}, at_brokers={A0: 1, B0: 1})
    commits = [replace(commit(queue, 7, epoch=2), is_shown=True) for queue in (A0, B0)]
    store.commit(GROUP, commits, query_id="q", batch_id=1)

    mirror.show(commits)

    assert {brokers.next(), brokers.next()} == {(A0, 7), (B0, 7)}
    assert mirror.flush(PATIENCE_S)
    wait_until(lambda: store.read(GROUP)[B0].shown.to_text() == "[7]", reason="The note in the store")
    is_slave = role == "SLAVE"
    assert store.read(GROUP)[A0].shown.to_text() == ("[1,0,7]" if is_slave else "[7]")
    assert mirror.arrived(A0) == (None if is_slave else 7)


def test_nothing_runs_when_all_is_shown(brokers: Brokers, mirror: OffsetMirror) -> None:
    """F1: a notebook may start any number of consumers."""
    others = set(threading.enumerate())

    mirror.show([])
    mirror.show([commit(A0, 7)])
    assert mirror.flush(PATIENCE_S)

    def has_ended() -> bool:
        return "rocketmq-offset-mirror" not in {thread.name for thread in set(threading.enumerate()) - others}

    wait_until(has_ended, reason="The end of the mirror's thread")


def test_offsets_that_a_broker_refused_are_sent_again_later(
    brokers: Brokers, store: MemoryOffsetStore, caplog: pytest.LogCaptureFixture
) -> None:
    """F1: given once, and sent until it is taken."""
    brokers.codes["broker-a"] = ResponseCode.SYSTEM_BUSY
    mirror = mirror_of(brokers, store, again_after_s=0.01)

    with caplog.at_level(logging.WARNING):
        mirror.show([commit(A0, 7)])
        assert [brokers.next() for _ in range(3)] == [(A0, 7)] * 3
        brokers.codes.clear()
        assert mirror.flush(PATIENCE_S)

    assert caplog.text.count("offsets not sent to the broker, trying again") == 1


def test_only_the_newest_offset_of_a_queue_is_kept(brokers: Brokers, mirror: OffsetMirror) -> None:
    """F1."""
    brokers.codes["broker-a"] = ResponseCode.SYSTEM_BUSY
    mirror.show([commit(A0, 7)])
    assert brokers.next() == (A0, 7)
    brokers.codes.clear()

    mirror.show([commit(A0, 8)])

    assert brokers.next() == (A0, 8)
    assert mirror.flush(PATIENCE_S)
    assert brokers.sent.empty()


def test_a_queue_gets_one_offset_a_second_unless_somebody_is_to_have_a_queue(
    brokers: Brokers, store: MemoryOffsetStore
) -> None:
    """F1, B5: without a sink each group of a batch is stored, several times a second."""
    mirror = OffsetMirror(options(brokers), store, GROUP, pace_s=10 * PATIENCE_S)
    mirror.show([commit(A0, 7)])
    assert brokers.next() == (A0, 7)

    mirror.show([commit(A0, 8), commit(B0, 2)])
    mirror.show([commit(A0, 9)])
    mirror.hurry()
    assert {brokers.next(), brokers.next()} == {(A0, 9), (B0, 2)}
    mirror.show([commit(A0, 10)])
    mirror.show([commit(A0, 11)])
    assert mirror.await_shown([commit(A0, 11)], PATIENCE_S)

    assert brokers.next() == (A0, 11)
    assert mirror.flush(PATIENCE_S)
    assert brokers.sent.empty()


@pytest.mark.parametrize("change", ["claim", "reset"])
def test_an_offset_that_waits_for_the_pace_is_not_sent_when_the_queue_has_moved(
    brokers: Brokers, store: MemoryOffsetStore, change: str
) -> None:
    """C5, F5: the broker has the reset by then, and would go back to the old offset for good."""
    clock = FakeClock()
    mirror = OffsetMirror(options(brokers), store, GROUP, pace_s=10 * PATIENCE_S, clock=clock)
    mirror.show([commit(A0, 7)])
    assert brokers.next() == (A0, 7)
    mirror.show([commit(A0, 8), commit(A1, 5)])

    if change == "claim":
        store.claim(GROUP, "other", {A0: 0})
    else:
        store.reset(GROUP, {A0: 2})
    clock.advance(0.5)
    assert mirror.flush(PATIENCE_S)

    assert brokers.next() == (A1, 5)
    assert brokers.sent.empty()


def test_the_store_gets_what_has_arrived_when_the_query_ends(
    brokers: Brokers, store: MemoryOffsetStore
) -> None:
    """F5: an operator may move the group at its broker from then on."""
    mirror = mirror_of(brokers, store, again_after_s=60.0, quiet_s=10 * PATIENCE_S)
    store.claim(GROUP, "me", {A0: 0}, at_brokers={A0: 1})
    shown = replace(commit(A0, 7, epoch=2), is_shown=True)
    store.commit(GROUP, [shown], query_id="q", batch_id=1)
    mirror.show([shown])
    assert mirror.await_shown([shown], PATIENCE_S)

    mirror.query_ended()

    wait_until(lambda: store.read(GROUP)[A0].shown.to_text() == "[7]", reason="The note in the store")


@pytest.mark.parametrize("change", ["claim", "reset"])
def test_an_old_offset_is_not_sent_again_when_the_queue_has_moved(
    brokers: Brokers, store: MemoryOffsetStore, mirror: OffsetMirror, change: str
) -> None:
    """C5, F5: it would hide where another member has come, or undo an operator's reset."""
    brokers.codes["broker-a"] = ResponseCode.SYSTEM_BUSY
    mirror.show([commit(A0, 7), commit(A1, 5)])
    assert [brokers.next(), brokers.next()] == [(A0, 7), (A1, 5)]
    brokers.codes.clear()

    if change == "claim":
        store.claim(GROUP, "other", {A0: 0})
    else:
        store.reset(GROUP, {A0: 2})
    assert mirror.flush(PATIENCE_S)

    assert brokers.next() == (A1, 5)
    assert brokers.sent.empty()


@pytest.mark.parametrize(
    "pause", [FakeClock.advance, FakeClock.step], ids=["process stops", "machine sleeps"]
)
def test_a_process_that_slept_before_it_sent_looks_whether_it_was_replaced(
    brokers: Brokers, store: MemoryOffsetStore, pause: Callable[[FakeClock, float], None]
) -> None:
    """C5, F5: the fenced zombie, paused between the store's commit and the mirror's first word.

    While a machine sleeps, only the wall clock goes on.
    """
    clock = FakeClock()
    # Whether the name server's answer still counts after such a sleep
    # depends on who looks at the clock first.
    mirror = OffsetMirror(options(brokers), store, GROUP, clock=clock, again_after_s=0.01)

    def sleep_and_be_replaced(peer: Peer, request: RemotingCommand) -> None:
        pause(clock, 90)
        store.claim(GROUP, "other", {A0: 0})
        brokers.cluster.name_server.script = answer
        answer(peer, request)

    answer = brokers.cluster.name_server.script
    brokers.cluster.name_server.script = sleep_and_be_replaced

    mirror.show([commit(A0, 7), commit(A1, 5)])

    assert brokers.next() == (A1, 5)
    assert mirror.flush(PATIENCE_S)
    assert brokers.sent.empty()


def test_an_offset_that_waited_for_another_broker_is_late_whatever_was_shown_since(
    brokers: Brokers, store: MemoryOffsetStore
) -> None:
    """C5, F5: a busy query shows other queues' offsets every second."""
    clock = FakeClock()
    mirror = OffsetMirror(options(brokers), store, GROUP, clock=clock, again_after_s=0.01, pace_s=0.0)
    broker = brokers.cluster.brokers["broker-a"]
    answer = broker.fault
    assert answer is not None

    def answer_late(peer: Peer, request: RemotingCommand) -> None:
        broker.fault = answer
        mirror.show([commit(B0, 9)])
        clock.advance(30)
        store.claim(GROUP, "other", {B0: 0})
        mirror.show([commit(A1, 5)])
        answer(peer, request)

    broker.fault = answer_late
    mirror.show([commit(A0, 7)])

    assert [brokers.next(), brokers.next()] == [(A0, 7), (A1, 5)]
    assert mirror.flush(PATIENCE_S)
    assert brokers.sent.empty()


def test_a_broker_that_is_silent_keeps_no_other_brokers_offsets_back(
    brokers: Brokers, store: MemoryOffsetStore
) -> None:
    """F1: and costs one time-out, however many queues it has."""
    mirror = OffsetMirror(options(brokers, requestTimeoutMs="500"), store, GROUP, again_after_s=0.5)
    brokers.silent.add("broker-a")

    mirror.show([commit(A0, 7), commit(A1, 5), commit(B0, 9)])

    assert [brokers.next(), brokers.next()] == [(A0, 7), (B0, 9)]
    brokers.silent.clear()
    # A machine that stands still makes broker-b late, too, and any of these.
    wait_until(lambda: mirror.flush(0.5), reason="Everything shown")
    later = {brokers.next() for _ in range(brokers.sent.qsize())}
    assert {(A0, 7), (A1, 5)} <= later <= {(A0, 7), (A1, 5), (B0, 9)}


def test_a_flush_is_bounded(brokers: Brokers, mirror: OffsetMirror) -> None:
    """F1: a query ends although a broker is away."""
    brokers.codes["broker-a"] = ResponseCode.SYSTEM_BUSY
    mirror.show([commit(A0, 7)])

    assert not mirror.flush(0.05)
    brokers.codes.clear()
    assert mirror.flush(PATIENCE_S)


def test_offsets_are_given_up_a_minute_after_the_query_if_the_cluster_is_gone(
    brokers: Brokers, store: MemoryOffsetStore, caplog: pytest.LogCaptureFixture
) -> None:
    """C5: a notebook's driver goes on after its queries, and must not ask a cluster that is gone for ever."""
    brokers.codes["broker-a"] = ResponseCode.SYSTEM_ERROR
    clock = FakeClock()
    mirror = OffsetMirror(options(brokers), store, GROUP, clock=clock, again_after_s=0.01)
    mirror.show([commit(A0, 7)])
    mirror.query_ended()
    for _ in range(3):
        assert brokers.next() == (A0, 7)
    assert not mirror.flush(0.05)

    clock.advance(61.0)
    assert mirror.flush(PATIENCE_S)
    assert "offsets not sent to the brokers group=order-etl queues=1" in caplog.text


def test_a_cluster_that_is_away_costs_a_batch_nothing(
    brokers: Brokers, store: MemoryOffsetStore, mirror: OffsetMirror
) -> None:
    """F1: and a batch after that has everything shown."""
    brokers.cluster.routes.clear()
    mirror.show([commit(A0, 7)])
    wait_until(lambda: brokers.cluster.route_requests)
    brokers.cluster.routes["orders"] = brokers.cluster.route({"broker-a": 2, "broker-b": 2})

    mirror.show([commit(B0, 9)])

    assert mirror.flush(PATIENCE_S)
    assert {brokers.next(), brokers.next()} == {(A0, 7), (B0, 9)}


class _Panic(BaseException):
    """Like a panic of delta-rs, which is not an Exception."""


@pytest.mark.parametrize("failure", [MemoryError("none left"), _Panic("none left")], ids=["error", "panic"])
def test_an_unexpected_failure_is_logged_and_the_next_batch_begins_again(
    brokers: Brokers,
    store: MemoryOffsetStore,
    mirror: OffsetMirror,
    *,
    failure: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """F1: the image must not die with one of its threads."""
    brokers.codes["broker-a"] = ResponseCode.SYSTEM_BUSY

    def fail(_: str) -> None:
        raise failure

    monkeypatch.setattr(store, "read", fail)
    with caplog.at_level(logging.ERROR):
        mirror.show([commit(A0, 7)])
        brokers.next()
        assert mirror.flush(PATIENCE_S)
    assert "none left" in caplog.text
    brokers.codes.clear()

    mirror.show([commit(A0, 8)])
    assert brokers.next() == (A0, 8)
    assert mirror.flush(PATIENCE_S)


def test_an_unexpected_failure_wakes_those_who_wait_for_offsets(
    brokers: Brokers, store: MemoryOffsetStore, mirror: OffsetMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1: the offsets are given up, and the end of a batch waits for them."""
    is_waiting = threading.Event()

    class Watched(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            is_waiting.set()
            return super().wait(timeout)

    def fail(_: str) -> None:
        assert is_waiting.wait(PATIENCE_S)
        raise MemoryError("none left")

    monkeypatch.setattr(mirror, "_sent", Watched(mirror._guard))
    monkeypatch.setattr(store, "read", fail)
    brokers.codes["broker-a"] = ResponseCode.SYSTEM_BUSY
    mirror.show([commit(A0, 7)])
    brokers.next()
    waits = threading.Thread(target=mirror.await_shown, args=([commit(A0, 7)], threading.TIMEOUT_MAX))
    waits.daemon = True
    waits.start()
    mirror.flush(PATIENCE_S)

    waits.join(PATIENCE_S)
    assert not waits.is_alive()


_PROGRAM = """
import sys
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.group import offset_mirror
# Without a wait at its end the process would show nothing;
# how long it waits for a broker that is late is not the question.
offset_mirror._AT_EXIT_S = float(sys.argv[2])
options = ReadOptions.parse({"nameServers": sys.argv[1], "topic": "orders", "consumerGroup": "order-etl",
                             "offsetStore": "delta:/unused", "requestTimeoutMs": "60000"})
queue = MessageQueue("orders", "broker-a", 0)
# Asked whether the offset is still true where the process stood still before it sent it.
store = MemoryOffsetStore("mirror", clock=SystemClock())
store.claim("order-etl", "me", {queue: 0})
commit = QueueCommit(queue=queue, state=QueueState(7, 1))
offset_mirror.OffsetMirror(options, store, "order-etl").show([commit])
"""


def test_a_driver_that_ends_after_its_last_batch_has_shown_it(brokers: Brokers) -> None:
    """F1: AvailableNow; the process ends right after."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, brokers.cluster.name_server.address, str(PATIENCE_S)],
        env={"PYTHONPATH": str(_CONNECTOR)},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert brokers.next() == (A0, 7)
