"""A hub and those who connect to it, over sockets: tasks, planners and strangers."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from pyspark_rocketmq import clock
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.consume.cuts import Place
from pyspark_rocketmq.consume.part import Part
from pyspark_rocketmq.errors import ConnectFailed, RocketMQError
from pyspark_rocketmq.hub import connections, task_end
from pyspark_rocketmq.hub.connections import HubClient
from pyspark_rocketmq.hub.messages import (
    JsonObject,
    PlanMade,
    PlannerConnected,
    PlanOver,
    QueuesFree,
    QueuesLeaving,
    SlotsKnown,
    StoreChanged,
    TaskDirty,
    ToPlanner,
    decode_to_planner,
    encode,
)
from pyspark_rocketmq.hub.server import HubServer
from pyspark_rocketmq.hub.session import LONGEST_GREETING, HubAddress, Session
from pyspark_rocketmq.hub.state import Action, Commit, HubState, Slots
from pyspark_rocketmq.hub.task_end import ControlEndpoint, Fate, TaskControl, ask_driver
from pyspark_rocketmq.model import MessageQueue
from tests.helpers.parts import part_of
from tests.helpers.wait import PATIENCE_S, wait_until

A, B, C = (MessageQueue("T", "broker-a", number) for number in range(3))
BATCH = 7
PART = part_of("part", A)


class Driver:
    """A hub whose parts are committed when a test says so."""

    def __init__(self, interval_s: float | None = None, *, is_encrypted: bool = False) -> None:
        self.parts: list[Part] = []
        """Parts of the groups that were to be committed."""
        self.looks = 0
        self.hub = HubServer(
            "127.0.0.1",
            "127.0.0.1",
            must_ask=True,
            slots=Slots(),
            commit=self._commit,
            look=self._look,
            interval_s=interval_s,
            is_encrypted=is_encrypted,
            clock=SystemClock(),
        )
        self.terms = ControlEndpoint(
            self.hub.address, BATCH, self.hub.query(lambda state: state.batch_begins(BATCH))
        )

    def _commit(self, commit: Commit) -> None:
        assert commit.group is not None
        self.parts.extend(commit.group.parts)

    def _look(self) -> None:
        self.looks += 1

    def ask(self, *queues: MessageQueue, partition: int = 0, tasks: int = 1) -> TaskControl:
        instructions = ask_driver(self.terms, partition, dict.fromkeys(queues, Place(1, 0)), tasks=tasks)
        assert instructions is not None
        return instructions


class Planner:
    """A planner's connection."""

    def __init__(self, address: HubAddress) -> None:
        self.received: list[ToPlanner] = []
        self.client = HubClient[ToPlanner](
            address,
            decode=decode_to_planner,
            received=self.received.append,
            lost=lambda: None,
            clock=SystemClock(),
            timeout_s=PATIENCE_S,
        )
        self.client.send(PlannerConnected())

    def must_leave(self, *queues: MessageQueue) -> None:
        self.client.send(QueuesLeaving(1, frozenset(queues)))

    def await_freed(self, *queues: MessageQueue) -> None:
        def freed() -> set[MessageQueue]:
            free = [message.queues for message in self.received if isinstance(message, QueuesFree)]
            return set().union(*free)

        wait_until(lambda: freed() >= set(queues), PATIENCE_S, reason=f"{queues} free")


both_ways = pytest.mark.parametrize("driver", [False, True], ids=["plain", "encrypted"], indirect=True)
"""Has a test run with and without encryption."""


@pytest.fixture
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr(task_end, "_connections", {})
    monkeypatch.setattr(task_end, "_failed_s", {})
    running = Driver(is_encrypted=getattr(request, "param", False))
    yield running
    running.hub.close()


@pytest.fixture
def planner(driver: Driver) -> Iterator[Planner]:
    connected = Planner(driver.hub.address)
    connected.client.send(PlanMade(1, frozenset({A, B, C})))
    # Tasks have connections of their own, and could be faster.
    wait_until(lambda: driver.hub.query(lambda state: state.plan) == 1, PATIENCE_S, reason="The plan")
    yield connected
    connected.client.close()


def await_given_up(instructions: TaskControl, queue: MessageQueue) -> None:
    wait_until(lambda: instructions.is_given_up(queue), PATIENCE_S, reason=f"{queue} given up")


@both_ways
def test_a_queue_that_the_planner_must_give_away_is_given_up_handed_over_committed_and_free(
    driver: Driver, planner: Planner
) -> None:
    """B5, D7"""
    instructions = driver.ask(A, B)
    assert instructions.begins(A)
    assert instructions.begins(B)
    planner.must_leave(A)
    await_given_up(instructions, A)

    assert not instructions.is_given_up(B)
    assert (instructions.fate(A), instructions.fate(B)) == (Fate.HANDED_OVER, Fate.KEPT)
    assert instructions.hand_over(PART)
    instructions.await_taken()
    wait_until(lambda: driver.parts, PATIENCE_S, reason="A part to commit")
    assert driver.parts == [PART]
    driver.hub.report(lambda state: state.committed(frozenset(), 0.0))
    planner.await_freed(A)


def test_a_queue_that_its_task_has_not_begun_is_free_at_once(driver: Driver, planner: Planner) -> None:
    """B5"""
    instructions = driver.ask(A, B)
    assert instructions.begins(A)
    planner.must_leave(B)

    planner.await_freed(B)
    assert not instructions.begins(B)


def test_what_has_come_to_its_end_in_a_running_task_is_cut_off(driver: Driver, planner: Planner) -> None:
    """B5"""
    instructions = driver.ask(A, B)
    cut = threading.Event()

    def begin_cut(number: int | None) -> bool:
        if number is None:
            cut.set()
        return True

    instructions.when_cut(begin_cut)
    assert instructions.begins(A)
    assert not instructions.kept({A})
    planner.must_leave(A)

    assert cut.wait(PATIENCE_S)
    assert instructions.kept({A})


def test_a_reset_is_looked_for_when_the_planner_says_so_and_dropped(driver: Driver, planner: Planner) -> None:
    """F5"""
    instructions = driver.ask(A)
    assert instructions.begins(A)
    planner.client.send(StoreChanged(frozenset()))
    wait_until(lambda: driver.looks, PATIENCE_S, reason="A look at the store")
    assert driver.hub.query(lambda state: state.is_watched)
    driver.hub.report(lambda state: state.moved({A: 2}, state.batches, 0.0))

    await_given_up(instructions, A)
    assert instructions.fate(A) is Fate.DROPPED
    instructions.released(A)
    planner.await_freed(A)


def test_a_queue_that_was_reset_where_no_epoch_fences_its_batch_off_is_dropped(
    driver: Driver, planner: Planner
) -> None:
    """F5: the brokers are the store."""
    instructions = driver.ask(A, B)
    assert instructions.begins(A)
    planner.client.send(StoreChanged(frozenset({A})))

    await_given_up(instructions, A)
    assert (instructions.fate(A), instructions.fate(B)) == (Fate.DROPPED, Fate.KEPT)


def test_a_task_that_has_ended_leaves_a_copy(driver: Driver, planner: Planner) -> None:
    """B5"""
    instructions = driver.ask(A, B)
    last = part_of("part", A, B)
    instructions.done(last)
    planner.must_leave(B)

    wait_until(lambda: driver.parts, PATIENCE_S, reason="A part to commit")
    assert driver.parts == [last]
    driver.hub.report(lambda state: state.committed(frozenset(), 0.0))
    assert driver.hub.batch_ends(could_ask=True) is None
    assert driver.hub.query(lambda state: state.rest([last])) is None


def test_the_end_of_a_batch_waits_for_the_commit_of_all_that_was_handed_over(driver: Driver) -> None:
    """H1"""
    instructions = driver.ask(A)
    assert instructions.hand_over(PART)
    instructions.await_taken()
    with ThreadPoolExecutor() as pool:
        end = pool.submit(lambda: driver.hub.batch_ends(could_ask=True))
        with pytest.raises(FutureTimeout):
            end.result(0.1)
        driver.hub.report(lambda state: state.committed(frozenset(), 0.0))

        assert end.result(PATIENCE_S) is None


def test_a_cut_is_asked_for_as_soon_as_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's thread looks at the clock twice a second, if nothing else happens."""
    monkeypatch.setattr(connections, "_TICK_S", 1_000.0)
    monkeypatch.setattr(task_end, "_connections", {})
    cutting = Driver(interval_s=0.05)
    try:
        instructions = cutting.ask(A)
        instructions._send(TaskDirty(instructions.id))

        wait_until(
            lambda: cutting.hub.query(lambda state: state._cuts._number) == 1, PATIENCE_S, reason="A cut"
        )
    finally:
        cutting.hub.close()


def test_at_the_end_of_a_batch_the_planner_hears_of_it(driver: Driver, planner: Planner) -> None:
    """B5"""
    instructions = driver.ask(A)
    instructions.done(PART)
    assert driver.hub.batch_ends(could_ask=True) is None
    driver.hub.report(lambda state: state.batch_committed(state.plan, state.batches))

    wait_until(lambda: len(planner.received) == 2, PATIENCE_S, reason="The batch's end")
    assert planner.received == [SlotsKnown(0, 5.0), PlanOver(1)]


@both_ways
def test_a_task_whose_driver_is_gone_makes_no_further_delivery(driver: Driver) -> None:
    """I5: and what it has said that it hands over is in doubt."""
    instructions = driver.ask(A)
    driver.hub.close()

    await_given_up(instructions, A)
    assert instructions.fate(A) is Fate.KEPT
    assert not instructions.hand_over(PART)


def test_a_part_whose_arrival_is_not_known_fails_its_task(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: another attempt asks."""
    instructions = driver.ask(A)
    monkeypatch.setattr(instructions, "_send_now", lambda *_, **__: None)
    assert instructions.hand_over(PART)
    driver.hub.close()

    with pytest.raises(RocketMQError, match="has not confirmed 1 part of this task's result"):
        instructions.await_taken()


def after(happened: threading.Event) -> Callable[[HubState], list[Action]]:
    """An event for the hub's thread that lasts until then."""

    def event(_: HubState) -> list[Action]:
        happened.wait(PATIENCE_S)
        return []

    return event


def test_a_question_outlasts_a_pause_of_the_process(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """H4: after a pause the time of a wait is over before the hub's thread has run again."""
    paused = threading.Event()
    monkeypatch.setattr(clock, "waits", lambda _: iter([0.0, 0.0, PATIENCE_S]))
    driver.hub.report(after(paused))
    threading.Timer(0.05, paused.set).start()

    assert driver.hub.query(lambda state: state.plan) == 0


def test_a_question_that_is_never_answered_names_what_does_not_answer(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H4"""
    answers = threading.Event()
    monkeypatch.setattr(clock, "waits", lambda _: iter([0.0]))
    driver.hub.report(after(answers))

    with pytest.raises(RocketMQError, match="connections of planner and tasks has not answered"):
        driver.hub.query(lambda state: state.plan)
    answers.set()


def test_a_stopped_query_stops_its_tasks(driver: Driver) -> None:
    """B7"""
    instructions = driver.ask(A)
    driver.hub.report(lambda state: state.stop(0.0))

    await_given_up(instructions, A)
    assert instructions.fate(A) is Fate.KEPT


@both_ways
def test_a_listener_on_the_port_without_the_key_is_not_taken_for_the_driver(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    """H9: the task goes on as if there were none, and says so once."""
    address = HubAddress.new("127.0.0.1", driver.hub.address.port, driver.hub.address.fingerprint)
    terms = ControlEndpoint(address, BATCH, must_ask=False)

    assert ask_driver(terms, 0, {A: Place(1, 0)}) is None
    assert ask_driver(terms, 0, {A: Place(1, 0)}) is None
    assert caplog.text.count("could not connect from this worker to the driver at 127.0.0.1:") == 1
    assert "let executors reach spark.driver.host" in caplog.text
    assert "brokerIP1" not in caplog.text, "advice about brokers does not help"
    assert address.key.hex() not in caplog.text
    # Who knows it is served all the same.
    assert driver.ask(A).begins(A)


def strangers_socket(driver: Driver) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", driver.hub.address.port), PATIENCE_S)
    if not driver.hub.address.fingerprint:
        assert sock.recv(4096)
    return sock


def is_closed(sock: socket.socket) -> bool:
    try:
        while sock.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\n",
        b"x" * (LONGEST_GREETING + 1),
        b'{"nonce": "n", "proof": "p"}\n',
        b"\x80\x04." + b"\x00" * 64 + b"\n",
    ],
)
def test_a_stranger_who_says_anything_is_hung_up_on(driver: Driver, said: bytes) -> None:
    """H9"""
    with strangers_socket(driver) as sock:
        sock.sendall(said)
        assert is_closed(sock)
    assert driver.ask(A).begins(A)


@both_ways
def test_a_stranger_who_says_nothing_is_hung_up_on(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """H9"""
    with strangers_socket(driver) as sock:
        monkeypatch.setattr(driver.hub, "_prove_within_s", 0.0)
        assert is_closed(sock)


def test_the_workers_of_a_large_cluster_may_connect_at_once(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H9: none of them has proved itself before all have connected, and none is taken for a stranger."""
    monkeypatch.setattr(driver.hub, "_prove_within_s", PATIENCE_S)
    workers = [Session("hub", driver.hub.address.key, is_hub=False) for _ in range(200)]
    with ExitStack() as stack:
        socks = [stack.enter_context(closing(_connected(driver))) for _ in workers]
        proofs = [b"".join(_answers(worker, sock)) for worker, sock in zip(workers, socks, strict=True)]
        for sock, proof in zip(socks, proofs, strict=True):
            sock.sendall(proof)
        for worker, sock in zip(workers, socks, strict=True):
            list(_answers(worker, sock))

    assert all(worker.is_open for worker in workers)


def _connected(driver: Driver) -> socket.socket:
    return socket.create_connection(("127.0.0.1", driver.hub.address.port), PATIENCE_S)


def _answers(worker: Session, sock: socket.socket) -> Iterator[bytes]:
    """Yield a worker's answers to what the hub has sent."""
    for line in worker.lines(sock.recv(4096)):
        yield worker.receive(line)[0]


@both_ways
def test_strangers_cannot_keep_others_out(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """H9: the oldest of too many goes."""
    monkeypatch.setattr(connections, "_MOST_STRANGERS", 4)
    crowd = [strangers_socket(driver) for _ in range(12)]
    for sock in crowd[8:]:
        # A part of a handshake holds nobody up.
        sock.sendall(b"\x16\x03\x01\x00\xdc\x01" if driver.hub.address.fingerprint else b"{")

    assert driver.ask(A).begins(A)
    assert [is_closed(sock) for sock in crowd[:8]] == [True] * 8
    for sock in crowd:
        sock.close()


@both_ways
@pytest.mark.parametrize(
    "message",
    [
        {},
        {"type": "unknown", "task": "x"},
        {"type": "plan", "plan": "x", "queues": []},
        {"type": "begin", "task": "t", "batch": 7, "partition": 0, "queues": [["T"]], "handsOver": True},
        {"type": "handed", "task": "t", "part": {"id": "p"}},
        {"type": "leaving", "plan": 1, "queues": 3},
    ],
)
def test_a_peer_with_the_key_that_sends_nonsense_is_disconnected_and_harms_no_other(
    driver: Driver, message: JsonObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H9"""
    monkeypatch.setattr(connections, "encode", lambda sent: sent if sent is message else encode(sent))
    is_lost = threading.Event()
    client = HubClient[ToPlanner](
        driver.hub.address,
        decode=decode_to_planner,
        received=lambda _: None,
        lost=is_lost.set,
        clock=SystemClock(),
        timeout_s=PATIENCE_S,
    )
    client.send(message)  # type: ignore[arg-type]

    assert is_lost.wait(PATIENCE_S)
    assert driver.ask(A).begins(A)


@both_ways
def test_a_missing_driver_is_reported_with_its_address(driver: Driver) -> None:
    driver.hub.close()

    def why() -> str:
        try:
            HubClient[ToPlanner](
                driver.hub.address,
                decode=decode_to_planner,
                received=lambda _: None,
                lost=lambda: None,
                clock=SystemClock(),
                timeout_s=1.0,
            ).close()
        except ConnectFailed as error:
            return str(error)
        return ""

    said = wait_until(why, PATIENCE_S, reason="A hub that does not listen any more")
    assert str(driver.hub.address.port) in said


@both_ways
def test_a_silent_peer_is_taken_for_dead(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """I5: a machine without power closes nothing."""
    instructions = driver.ask(A)
    monkeypatch.setattr(connections, "SILENT_FOR_S", -1.0)

    await_given_up(instructions, A)


def why_refused(address: HubAddress, *, timeout_s: float = PATIENCE_S) -> str:
    with pytest.raises(ConnectFailed) as refused:
        HubClient[ToPlanner](
            address,
            decode=decode_to_planner,
            received=lambda _: None,
            lost=lambda: None,
            clock=SystemClock(),
            timeout_s=timeout_s,
        )
    return str(refused.value)


@pytest.mark.parametrize("driver", [True], indirect=True)
def test_a_process_that_does_not_encrypt_gets_a_reason(driver: Driver) -> None:
    """A5: it waits for a greeting, as the driver waits for a handshake."""
    address = replace(driver.hub.address, fingerprint=b"")

    assert "the other side has sent nothing in time. If Spark encrypts its network, driver" in why_refused(
        address, timeout_s=0.2
    )


def test_a_process_that_encrypts_gets_a_reason_where_the_driver_does_not(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    """A5: on either side."""
    caplog.set_level(logging.INFO, connections.__name__)
    address = replace(driver.hub.address, fingerprint=b"\0" * 32)

    place = f"127.0.0.1:{address.port}"
    assert why_refused(address) == (
        f"No secure connection to {place}: the process there does not encrypt, but the query's driver does, so "
        "another process uses the driver's port now. Look at the driver's log: the query may have ended."
    )


@pytest.mark.parametrize("driver", [True], indirect=True)
def test_another_certificate_is_not_taken_for_the_driver_s(driver: Driver) -> None:
    """A5: whoever has the key, too."""
    address = replace(driver.hub.address, fingerprint=b"\0" * 32)

    assert "the certificate there is not that of the query's driver" in why_refused(address)
    assert driver.ask(A).begins(A)


@pytest.mark.parametrize("driver", [True], indirect=True)
def test_a_long_message_arrives_whole(driver: Driver, planner: Planner) -> None:
    """A5: longer than a record of TLS and than what one read takes."""
    queues = [MessageQueue("T" * 100, "broker-a", number) for number in range(10_000)]
    instructions = driver.ask(*queues)
    planner.must_leave(*queues[1:])

    planner.await_freed(*queues[1:])
    assert [queue for queue in queues if not instructions.is_given_up(queue)] == queues[:1]


def test_tasks_of_one_process_share_a_connection(driver: Driver) -> None:
    one, other = driver.ask(A), driver.ask(B, partition=1)

    assert one._connection is other._connection
    assert one.id != other.id


@pytest.mark.parametrize("how", ["done", "failed", "over", "lost"])
def test_a_task_with_only_suspended_queues_is_notified_of_the_end_of_its_batch(
    driver: Driver, how: str
) -> None:
    """D3"""
    one, other = driver.ask(A, tasks=2), driver.ask(B, partition=1, tasks=2)
    assert not one.is_batch_at_work()
    told = threading.Event()
    one.idles(told.set)
    wait_until(lambda: one._is_batch_at_work, PATIENCE_S, reason="What the driver says")
    assert one.is_batch_at_work()

    match how:
        case "done":
            other.done(part_of("other", B))
        case "failed":
            other.forget()
        case "over":
            driver.hub.batch_ends(could_ask=True)
        case _:
            driver.hub.close()

    assert told.wait(PATIENCE_S)
    assert not one.is_batch_at_work()


def test_the_only_task_of_a_batch_does_not_ask_which_task_to_wait_for(driver: Driver) -> None:
    """D3"""
    instructions = driver.ask(A)
    instructions.idles(lambda: None)

    assert not instructions.is_batch_at_work()


def test_a_task_whose_connection_ends_as_it_begins_gets_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """D1: it was open when the task took it; nothing would ever answer on it."""
    before, driver = Driver(), Driver()
    with closing(driver.hub):
        ended = task_end._connected(before.terms)
        assert ended is not None
        before.hub.close()
        wait_until(lambda: ended._is_over, reason="The end of the connection")
        found = [ended, task_end._connected(driver.terms)]
        monkeypatch.setattr(task_end, "_connected", lambda *_, **__: found.pop(0))

        instructions = ask_driver(driver.terms, 0, {A: Place(1, 0)}, open_for_s=300.0)
        assert instructions is not None
        assert instructions.begins(A)


def test_a_connection_goes_on_after_a_break_for_an_open_task_that_has_not_asked_yet() -> None:
    """D1"""
    driver = Driver()
    with closing(driver.hub):
        connection = task_end._connected(driver.terms)
        assert connection is not None
        instructions = connection.begin({A: Place(1, 0)}, is_cut=False, open_for_s=300.0)
        assert instructions is not None

        assert connection._broken()
        instructions.ask(BATCH, 0, attempt=0, tasks=1)
        assert instructions.await_answer()
