"""The socket of a query's hub, the driver's server: feeds :class:`HubState` and carries out its actions.

:class:`~pyspark_rocketmq.hub.driver_end.DriverControl` uses it for the driver.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, TypeVar, assert_never

from pyspark_rocketmq.clock import Clock, is_done_within
from pyspark_rocketmq.consume.recent_offsets import AgedOffset
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.hub.connections import Connection, ConnectionLoop
from pyspark_rocketmq.hub.encryption import HubCertificate
from pyspark_rocketmq.hub.messages import (
    ArrivalsWanted,
    CallsEnded,
    JsonObject,
    NothingToCut,
    OffsetsArrived,
    PartHandedOver,
    PlanMade,
    PlannerConnected,
    PlannerLeaving,
    QueryDrained,
    QueuesLeaving,
    QueuesReleased,
    QueueStands,
    ReplanWanted,
    ResetFound,
    StorageRenewed,
    StorageWanted,
    StoreChanged,
    TaskBegins,
    TaskDirty,
    TaskDone,
    TaskFailed,
    TaskIdle,
    TaskResumes,
    decode_to_driver,
)
from pyspark_rocketmq.hub.session import HubAddress
from pyspark_rocketmq.hub.state import (
    CALLS_END_S,
    Action,
    Commit,
    Ended,
    Flushed,
    HubState,
    Look,
    Queues,
    Send,
    Slots,
    StillDelivered,
)
from pyspark_rocketmq.model import MessageQueue

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ANSWER_S: Final = 10.0
"""Longest wait for an answer of the hub's thread, in seconds; normally it takes far less."""
_BACKLOG: Final = 128


class HubServer(ConnectionLoop):
    """The server in the driver to which a query's planner and tasks connect; it listens until it is closed.

    Only its thread touches the :class:`HubState`, which decides.
    """

    def __init__(
        self,
        host: str,
        bind_host: str,
        *,
        must_ask: bool,
        slots: Slots,
        commit: Callable[[Commit], None],
        look: Callable[[], None],
        storage_options: Callable[[], Mapping[str, str]] = dict,
        arrivals: Callable[[Queues], Mapping[MessageQueue, Sequence[AgedOffset]]] = lambda _: {},
        drained: Callable[[], None] = lambda: None,
        leaving: Callable[[], None] = lambda: None,
        calls_end_s: float = CALLS_END_S,
        interval_s: float | None = None,
        may_offsets_wait: bool = False,
        is_encrypted: bool = False,
        clock: Clock,
    ) -> None:
        """Open a port and start to serve planner and tasks.

        Args:
            host: Host name under which planner and tasks reach this process.
            bind_host: Host name on which this process opens the port.
            must_ask: Whether every task can surely connect, so that none may begin without an answer.
            slots: Number of tasks that can run now.
            commit: Begins a commit, and returns immediately; ``HubState.committed`` or
                ``HubState.commit_failed`` reports the outcome later.
            look: Begins to compare the epochs of the batch's queues with those in the offset store, and to
                check whether the query still runs; returns immediately.
            storage_options: Returns renewed storage options for the offset store; may take a while.
            arrivals: Returns the offsets of queues that have lately arrived at brokers; returns immediately.
            drained: Begins to stop the query, because nothing is left to consume; returns immediately.
            leaving: Called when queues are to be given up; returns immediately.
            calls_end_s: How long listener calls may go on after the query's end, in seconds.
            interval_s: Shortest time between two commits while a job runs, in seconds. If it is None, a
                running job commits only results of queues that are given up.
            may_offsets_wait: Whether offsets may be stored less often than rows are committed, because the
                sink records how far its rows go.
            is_encrypted: Whether to encrypt all connections.
            clock: The system's clock, except in tests.

        Raises:
            OSError: If the port cannot be opened, or the connections cannot be encrypted.
        """
        certificate = HubCertificate.new() if is_encrypted else None
        family = socket.AF_INET6 if ":" in bind_host else socket.AF_INET
        listening = socket.create_server((bind_host, 0), family=family, backlog=_BACKLOG)
        super().__init__("rocketmq-hub", clock)
        fingerprint = b"" if certificate is None else certificate.fingerprint
        self.address = HubAddress.new(host, listening.getsockname()[1], fingerprint)
        """Address, key and fingerprint of the certificate that planner and tasks need to connect."""
        self._state = HubState(
            must_ask=must_ask,
            slots=slots,
            calls_end_s=calls_end_s,
            interval_s=interval_s,
            may_offsets_wait=may_offsets_wait,
        )
        self._flushed: Future[BaseException | None] = Future()
        """Result of the batch that ends: set when everything is committed, to None or the error with which
        the batch fails."""
        self._commit = commit
        self._look = look
        self._storage_options = storage_options
        self._arrivals = arrivals
        self._drained = drained
        self._leaving = leaving
        self._listen(listening, self.address.key, certificate)
        self._thread.start()

    # --- the driver, from any of its threads ----------------------------------------------------------------

    def report(self, event: Callable[[HubState], list[Action]]) -> None:
        """Have the hub's thread call ``event`` with the state, and carry out the actions that it returns.

        Return immediately; the thread does this soon.
        """
        self._call(lambda: self._act(event(self._state)))

    def query(self, question: Callable[[HubState], T]) -> T:
        """Have the hub's thread call ``question`` with the state, and return the result.

        Raises:
            Exception: The error that ``question`` raises.
            RocketMQError: If the hub's thread does not answer within ten seconds. Time in which this process
                is suspended does not count.
        """
        answer: Future[T] = Future()

        def ask() -> None:
            try:
                answer.set_result(question(self._state))
            except Exception as error:  # noqa: BLE001 - the caller raises it
                answer.set_exception(error)

        self._call(ask)
        if is_done_within(answer, _ANSWER_S):
            return answer.result()
        raise RocketMQError(
            f"The thread for the connections of planner and tasks has not answered for {_ANSWER_S:g} s. Look "
            "at the driver's log and load, and start the query again."
        )

    def batch_ends(self, *, could_ask: bool | None, is_whole: bool = True) -> BaseException | None:
        """End the batch after its job, and wait until all results that tasks have sent are committed.

        Return the error with which the batch fails, or None if it does not fail.

        Args:
            could_ask: Whether all tasks of the batch were connected; None if no task had to connect.
            is_whole: Whether the job is complete; if False, it failed or was cancelled.
        """
        flushed: Future[BaseException | None] = Future()

        def end(state: HubState) -> None:
            self._flushed = flushed
            now_s = self._clock.monotonic_s()
            self._act(state.job_is_over(now_s, is_whole=is_whole))
            self._act(state.batch_ends(now_s, could_ask=could_ask, is_whole=is_whole))

        self.query(end)
        # Commits have deadlines of their own, and failed ones are given up after a minute.
        return flushed.result()

    # --- the hub's thread -----------------------------------------------------------------------------------

    def _received(self, connection: Connection, facts: JsonObject) -> None:
        message = decode_to_driver(facts, connection.peer)
        match message:
            case TaskBegins() | TaskResumes() | TaskIdle() | TaskFailed() | TaskDone():
                self._act(self._task_event(connection, message))
            case (
                TaskDirty()
                | PartHandedOver()
                | NothingToCut()
                | QueuesReleased()
                | QueueStands()
                | CallsEnded()
            ):
                self._act(self._progress_event(connection, message))
            case ResetFound():
                self._act(self._state.reset_found(message))
            case QueuesLeaving() | ReplanWanted() | PlannerLeaving():
                self._act(self._plan_event(message))
            case _:
                self._act(self._planner_event(connection, message))

    def _lost(self, connection: Connection) -> None:
        now_s = self._clock.monotonic_s()
        self._act(self._state.lost(connection, now_s, is_silent=not connection.is_closed_by_peer))

    def _tick(self, now_s: float) -> None:
        self._act(self._state.tick(now_s))

    def _next_tick_s(self) -> float | None:
        return self._state.next_tick_s

    def _planner_event(
        self,
        connection: Connection,
        message: PlannerConnected | PlanMade | StoreChanged | StorageWanted | ArrivalsWanted | QueryDrained,
    ) -> list[Action]:
        """Pass a message of a planner to the state, or to the driver."""
        match message:
            case PlannerConnected():
                logger.info("planner connected peer=%s", connection.peer)
                return self._state.planner_came(connection)
            case PlanMade(plan, queues):
                self._state.plan_made(plan, queues)
            case StoreChanged(unfenced):
                self._look()
                return self._state.unfenced_reset(unfenced, self._clock.monotonic_s())
            case StorageWanted():
                # Getting credentials may take long, so another thread waits for them.
                threading.Thread(
                    target=self._answer_storage,
                    args=(connection,),
                    name="rocketmq-storage-options",
                    daemon=True,
                ).start()
            case ArrivalsWanted(number, queues):
                self._send(connection, OffsetsArrived(number, self._arrivals(queues)))
            case QueryDrained():
                self._drained()
            case _:
                assert_never(message)
        return []

    def _plan_event(self, message: QueuesLeaving | ReplanWanted | PlannerLeaving) -> list[Action]:
        """Pass a change of the plan under way to the state."""
        now_s = self._clock.monotonic_s()
        match message:
            case QueuesLeaving(plan, queues):
                self._leaving()
                return self._state.must_leave(plan, queues, now_s)
            case ReplanWanted(plan, reason):
                return self._state.replan(plan, reason, now_s)
            case PlannerLeaving(plan):
                return self._state.planner_leaves(plan, now_s)
            case _:
                assert_never(message)

    def _task_event(
        self, connection: Connection, message: TaskBegins | TaskResumes | TaskIdle | TaskFailed | TaskDone
    ) -> list[Action]:
        """Pass to the state that a task begins, resumes, is idle, has failed or is done."""
        state, now_s = self._state, self._clock.monotonic_s()
        match message:
            case TaskBegins():
                return state.task_begins(connection, message, now_s)
            case TaskResumes():
                return state.task_resumes(connection, message, now_s)
            case TaskIdle(task):
                return state.task_idles(connection, task, now_s)
            case TaskFailed(task, error):
                return state.task_failed(connection, task, now_s, error)
            case TaskDone(task, copy):
                return state.task_done(connection, task, copy, now_s)
            case _:
                assert_never(message)

    def _progress_event(
        self,
        connection: Connection,
        message: TaskDirty | PartHandedOver | NothingToCut | QueuesReleased | QueueStands | CallsEnded,
    ) -> list[Action]:
        """Pass the progress of a task to the state."""
        state, now_s = self._state, self._clock.monotonic_s()
        match message:
            case TaskDirty(task):
                return state.task_is_dirty(connection, task, now_s)
            case PartHandedOver():
                return state.handed_over(connection, message, now_s)
            case NothingToCut(task, cut):
                return state.nothing_to_cut(connection, task, cut, now_s)
            case QueuesReleased(task, queues):
                return state.released(connection, task, queues, now_s)
            case QueueStands():
                return state.queue_stands(connection, message, now_s)
            case CallsEnded(task):
                return state.calls_ended(connection, task, now_s)
            case _:
                assert_never(message)

    def _answer_storage(self, connection: Connection) -> None:
        try:
            options = dict(self._storage_options())
        except Exception as error:  # noqa: BLE001 - not its text, which may hold anything
            logger.warning("could not get storage options for the planner: %s", type(error).__name__)
            return
        self._call(lambda: self._send(connection, StorageRenewed(options)))

    def _act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Send(connection, message):
                    assert isinstance(connection, Connection)
                    self._send(connection, message)
                case Commit():
                    self._commit(action)
                case Flushed(failure):
                    self._flushed.set_result(failure)
                case Look():
                    self._look()
                case Ended(ending):
                    level = logging.INFO if ending.slots is None else logging.WARNING
                    logger.log(
                        level, "batch in real time ends reason=%s: %s", ending.reason.value, ending.why
                    )
                case StillDelivered():
                    logger.warning(
                        "a task was lost and may still be in a listener call; its queues are planned again "
                        "now, so the listener may get some messages twice at the same time"
                    )
