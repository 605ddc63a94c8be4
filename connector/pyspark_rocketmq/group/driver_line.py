"""The planner's connection to its driver: plans go one way, what is over the other.

Without it everything works all the same: a batch is over when Spark asks for the next plan, and a queue that
was taken away leaves with its batch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from typing import Final

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.errors import TransportError
from pyspark_rocketmq.group.member import RunningMember
from pyspark_rocketmq.hub.connections import HubClient
from pyspark_rocketmq.hub.session import HubAddress, Message, listed, queue_list
from pyspark_rocketmq.model import MessageQueue

logger = logging.getLogger(__name__)

_CONNECT_S: Final = 5.0
_FIRST_WORD_S: Final = 2.0
"""How long the first plan waits for what the driver says at once."""
_AGAIN_AFTER_S: Final = 5.0
"""Pause before a connection that was lost, or could not be made, is tried again."""


class DriverLine:
    """Implements ``PlanWatcher``; connects on a thread of its own, again and again."""

    def __init__(self, address: HubAddress, clock: Clock) -> None:
        """Connect to nobody yet."""
        self._address = address
        self._clock = clock
        self._member: RunningMember | None = None
        self._client: HubClient | None = None
        self._plan: Message | None = None
        self._leaving: Message | None = None
        """What was said last, for a driver who was away."""
        self._is_needed = threading.Event()
        self._is_needed.set()
        self._slots = 0
        self._are_slots_told = threading.Event()
        self._is_warned = False

    def start(self, member: RunningMember) -> None:
        """Begin to tell ``member`` of what is over; returns at once."""
        self._member = member
        # A daemon: the process ends when Spark says so.
        threading.Thread(target=self._run, name="rocketmq-driver-line", daemon=True).start()

    def plan_made(self, plan: int, queues: Collection[MessageQueue]) -> None:
        """See ``PlanWatcher``."""
        self._plan = {"is": "plan", "plan": plan, "queues": listed(queues)}
        self._leaving = None
        self._send(self._plan)

    def must_leave(self, plan: int, queues: Collection[MessageQueue]) -> None:
        """See ``PlanWatcher``."""
        self._leaving = {"is": "leaving", "plan": plan, "queues": listed(queues)}
        self._send(self._leaving)

    def was_reset(self) -> None:
        """Queues were reset in the offset store: the driver is to look there now."""
        self._send({"is": "look"})

    def slots(self) -> int:
        """How many tasks can run at the same time, by the driver's last report; 0 if not known.

        Its first word is waited for, two seconds at most.
        """
        self._are_slots_told.wait(_FIRST_WORD_S)
        self._are_slots_told.set()
        return self._slots

    def _send(self, message: Message) -> None:
        client = self._client
        if client is not None:
            client.send(message)

    # --- the threads ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            self._is_needed.wait()
            try:
                self._connect()
            except TransportError as error:
                if not self._is_warned:
                    logger.warning(
                        "the driver cannot be reached, so queues change hands between two batches only: %s",
                        error,
                    )
                self._is_warned = True
                pause.wait(_AGAIN_AFTER_S)
            except Exception:
                # Nobody watches this thread.
                logger.exception("the connection to the driver failed, trying again")
                pause.wait(_AGAIN_AFTER_S)

    def _connect(self) -> None:
        self._is_needed.clear()
        try:
            client = HubClient(
                self._address,
                received=self._received,
                lost=self._lost,
                clock=self._clock,
                timeout_s=_CONNECT_S,
            )
        except BaseException:
            self._is_needed.set()
            raise
        client.send({"is": "planner"})
        self._client = client
        for said in (self._plan, self._leaving):
            if said is not None:
                client.send(said)

    def _received(self, message: Message) -> None:
        assert self._member is not None, "it is there before the connection"
        match message["is"]:
            case "over":
                self._member.free(int(message["plan"]), None)
            case "free":
                self._member.free(int(message["plan"]), queue_list(message["queues"]))
            case "slots":
                self._slots = int(message["slots"])
                self._are_slots_told.set()
            case _:
                pass

    def _lost(self) -> None:
        self._client = None
        self._is_needed.set()
