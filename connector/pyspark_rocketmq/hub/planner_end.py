"""The planner's connection to its driver: it sends plans and receives reports of finished queues.

Everything also works without the connection: a batch then ends when Spark asks for the next plan, and a queue
that must be given up leaves with its batch.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, Protocol, assert_never

from pyspark_rocketmq.clock import Clock, is_done_within
from pyspark_rocketmq.consume.recent_offsets import PassedOffset
from pyspark_rocketmq.display import masking_logger
from pyspark_rocketmq.errors import TransportError
from pyspark_rocketmq.hub.connections import HubClient
from pyspark_rocketmq.hub.messages import (
    ArrivalsWanted,
    FromPlanner,
    OffsetsArrived,
    PlanMade,
    PlannerConnected,
    PlannerLeaving,
    PlanOver,
    QueryDrained,
    QueuesFree,
    QueuesHeldUp,
    QueuesLeaving,
    ReplanWanted,
    ResetFound,
    SlotsKnown,
    StorageRenewed,
    StorageWanted,
    StoreChanged,
    ToPlanner,
    decode_to_planner,
)
from pyspark_rocketmq.hub.session import HubAddress
from pyspark_rocketmq.hub.state import CALLS_END_S
from pyspark_rocketmq.model import MessageQueue

logger = masking_logger(__name__)

_CONNECT_S: Final = 5.0
_FIRST_SLOTS_S: Final = 2.0
"""Maximum time for which the first plan waits for the driver's first report, in seconds."""
_STORAGE_ANSWER_S: Final = 10.0
"""Longest wait for renewed storage options, in seconds; the driver may call the user's function for them."""
_ARRIVALS_ANSWER_S: Final = 3.0
"""Longest wait for the offsets that have arrived at brokers, in seconds; the driver has them in memory."""
_AGAIN_AFTER_S: Final = 5.0
"""Pause before another attempt to connect, in seconds."""


class QueueLocks(Protocol):
    """Receiver of the driver's reports: the planner's group member, which holds the locks of the queues."""

    def free(self, plan: int, queues: Collection[MessageQueue] | None) -> None:
        """Note that other members may have these queues of a plan; None means all queues of the plan.

        Ignored unless ``plan`` is the number of the newest plan.
        """
        ...

    def reset_found(self, queue: MessageQueue, target: int) -> None:
        """Note that an operator has reset a queue to offset ``target``.

        The next plan then begins there, and is made soon.
        """
        ...


class PlannerControl:
    """The planner's connection to the driver: sends plans and their changes, and receives answers.

    It implements ``PlanWatcher``. It connects, and reconnects, on its own thread. The newest plan and its
    changes are sent again on each new connection. Other messages are lost if there is no connection.
    """

    def __init__(self, address: HubAddress, clock: Clock) -> None:
        """Prepare the connection without opening it."""
        self._address = address
        self._clock = clock
        self._member: QueueLocks | None = None
        self._client: HubClient[ToPlanner] | None = None
        self._plan: PlanMade | None = None
        self._leaving: QueuesLeaving | None = None
        self._replan: ReplanWanted | None = None
        self._drained: QueryDrained | None = None
        """The newest message of each of these four kinds, to send it again on a new connection."""
        self._is_needed = threading.Event()
        self._is_needed.set()
        self._slots = 0
        self._are_slots_known = threading.Event()
        self._calls_end_s = CALLS_END_S
        self._is_leaving = False
        self._is_warned = False
        self._storage_answer: Future[Mapping[str, str]] = Future()
        self._arrivals_asked = 0
        """Number of the last question for offsets that have arrived."""
        self._arrivals_answer: tuple[int, Future[Mapping[MessageQueue, Sequence[PassedOffset]]]] = 0, Future()
        """Number and answer of the question that waits for one, or that was answered last."""
        self.held_up = ""
        """Reason why queues cannot be consumed, from the driver's last report; empty without one."""

    def start(self, member: QueueLocks) -> None:
        """Connect, and begin to report free queues and resets to ``member``; return immediately."""
        self._member = member
        # A daemon, because Spark decides when the process ends.
        threading.Thread(target=self._run, name="rocketmq-driver-connection", daemon=True).start()

    def plan_made(self, plan: int, queues: Collection[MessageQueue]) -> None:
        """Report a new plan to the driver, with its number and queues."""
        self._plan = PlanMade(plan, frozenset(queues))
        self._leaving = self._replan = None
        self._send(self._plan)

    def must_leave(self, plan: int, queues: Collection[MessageQueue]) -> None:
        """Report to the driver all queues of ``plan`` that are to be given up by now.

        They include the queues of earlier calls.
        """
        self._leaving = QueuesLeaving(plan, frozenset(queues))
        self._send(self._leaving)

    def replan(self, plan: int, reason: str) -> None:
        """Report that the planner wants to replace ``plan``, for a ``reason`` in words, for the log.

        If the plan's ranges are open, the driver ends the plan's batch.
        """
        self._replan = ReplanWanted(plan, reason)
        self._send(self._replan)

    def leaves(self, plan: int) -> None:
        """Report to the driver that the planner is about to end, and return immediately.

        The driver then stops the tasks of ``plan``. The caller waits until they deliver no more messages.
        From now on, a broken connection is not opened again.
        """
        self._is_leaving = True
        self._send(PlannerLeaving(plan))

    def calls_end_s(self) -> float:
        """Return how many seconds listener calls may go on after the query's end.

        The driver reports it; before its first report, the result is ``CALLS_END_S``.
        """
        return self._calls_end_s

    def was_reset(self, unfenced: Collection[MessageQueue]) -> None:
        """Report that queues were reset in the offset store, so that the driver compares epochs now.

        ``unfenced``: the reset queues if the store has no epochs; empty if it has, because their epochs show
        which queues were reset.
        """
        self._send(StoreChanged(frozenset(unfenced)))

    def storage_options(self) -> Mapping[str, str] | None:
        """Ask the driver for the offset store's current storage options, and return them.

        Return None without a connection, or if no answer comes within ten seconds. Do not call this on the
        connection's thread, which receives the answer.
        """
        client = self._client
        if client is None:
            return None
        answer: Future[Mapping[str, str]] = Future()
        self._storage_answer = answer
        client.send(StorageWanted())
        if is_done_within(answer, _STORAGE_ANSWER_S):
            return answer.result()
        logger.warning("the driver has sent no renewed storage options of the offset store in time")
        return None

    def lately_arrived(
        self, queues: Collection[MessageQueue]
    ) -> Mapping[MessageQueue, Sequence[PassedOffset]]:
        """Ask the driver which offsets of ``queues`` have lately arrived at their brokers, and return them.

        They come oldest first, each with a monotonic second of this process. The result is empty without a
        connection, or if no answer comes within three seconds. Do not call this on the connection's thread,
        which receives the answer.
        """
        client = self._client
        if client is None:
            return {}
        self._arrivals_asked += 1
        answer: Future[Mapping[MessageQueue, Sequence[PassedOffset]]] = Future()
        self._arrivals_answer = self._arrivals_asked, answer
        client.send(ArrivalsWanted(self._arrivals_asked, frozenset(queues)))
        if is_done_within(answer, _ARRIVALS_ANSWER_S):
            return answer.result()
        logger.warning("the driver has not answered in time which offsets have arrived at the brokers")
        return {}

    def drained(self) -> None:
        """Report that an ``availableNow`` query has consumed everything, so that the driver stops it."""
        self._drained = QueryDrained()
        self._send(self._drained)

    def slots(self) -> int:
        """Return the maximum number of tasks of the next batch, as the driver reported; 0 for any number.

        The first call waits up to two seconds for the first report. Without a report the result is 0.
        """
        self._are_slots_known.wait(_FIRST_SLOTS_S)
        self._are_slots_known.set()
        return self._slots

    def _send(self, message: FromPlanner) -> None:
        client = self._client
        if client is not None:
            client.send(message)

    # --- the threads ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            self._is_needed.wait()
            self._is_needed.clear()
            try:
                self._connect()
                continue
            except TransportError as error:
                if not self._is_warned:
                    logger.warning(
                        "could not connect to the driver at %s:%d (%s), so queues change hands between two "
                        "batches only; check spark.driver.host and firewalls",
                        self._address.host,
                        self._address.port,
                        error.detail,
                    )
                self._is_warned = True
            except Exception:
                # Nobody watches this thread.
                logger.exception("the connection to the driver failed, trying again")
            self._is_needed.set()
            pause.wait(_AGAIN_AFTER_S)

    def _connect(self) -> None:
        client = HubClient[ToPlanner](
            self._address,
            decode=decode_to_planner,
            received=self._received,
            lost=self._lost,
            clock=self._clock,
            timeout_s=_CONNECT_S,
        )
        client.send(PlannerConnected())
        self._client = client
        for message in (self._plan, self._leaving, self._replan, self._drained):
            if message is not None:
                client.send(message)

    def _received(self, message: ToPlanner) -> None:
        assert self._member is not None, "it exists before the connection"
        match message:
            case PlanOver(plan):
                self._member.free(plan, None)
            case QueuesFree(plan, queues):
                self._member.free(plan, queues)
            case ResetFound(queue, target):
                self._member.reset_found(queue, target)
            case SlotsKnown(slots, calls_end_s):
                self._slots, self._calls_end_s = slots, calls_end_s
                self._are_slots_known.set()
            case QueuesHeldUp(reason):
                self.held_up = reason
            case StorageRenewed() | OffsetsArrived():
                self._take_answer(message)
            case _:
                assert_never(message)

    def _take_answer(self, message: StorageRenewed | OffsetsArrived) -> None:
        """Pass the answer to a question on to the thread that waits for it."""
        if isinstance(message, StorageRenewed):
            if not self._storage_answer.done():
                self._storage_answer.set_result(message.options)
            return
        asked, answer = self._arrivals_answer
        if message.number != asked or answer.done():
            # It comes too late, and its ages are no longer true.
            return
        now_s = self._clock.monotonic_s()
        answer.set_result(
            {
                queue: [PassedOffset(now_s - age_s, offset) for age_s, offset in some]
                for queue, some in message.ages.items()
            }
        )

    def _lost(self) -> None:
        self._client = None
        # A process that ends cannot start a thread for another connection. From now on only the clock shows
        # when the listener's last calls must have ended.
        if not self._is_leaving:
            self._is_needed.set()
